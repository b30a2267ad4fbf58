//! What a group has read and is not done: runs of neighbours, found by place, state, time,
//! member and key.
//!
//! A run is a message or several that lie next to each other, in their topic and in the
//! journal, and share one fate. It is known by its *last* position, so that acks in order
//! shorten it at its front without touching any index. Every index is exact: [`Open::check`]
//! rebuilds them and compares.

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use core::num::NonZeroU128;

use super::lines::Lines;
use super::op::Failure;
use super::{Lease, MemberId};
use crate::id::{Position, Seq, TopicId};
use crate::time::Timestamp;

/// What is to happen with a run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It may be handed out.
    Ready,
    /// It waits behind another of its key.
    Waiting,
    /// It failed and waits for its time.
    Parked { due: Timestamp },
    /// A member has it.
    Leased { member: MemberId, deadline: Timestamp },
    /// It is to be buried.
    Dying,
}

/// Neighbours with one fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: Position,
    pub(super) topic: TopicId,
    /// The seq of the first.
    pub(super) seq: Seq,
    /// When the first was accepted.
    pub(super) time: Timestamp,
    /// Only single messages have one.
    pub(super) key: Option<NonZeroU128>,
    /// Deliveries that count, that of now included.
    pub(super) attempts: u32,
    pub(super) failure: Option<Box<Failure>>,
    pub(super) state: State,
}

/// How many messages are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// May be handed out.
    pub ready: u64,
    /// Wait behind another of their key.
    pub waiting: u64,
    /// Wait for their next attempt.
    pub parked: u64,
    /// Are with members.
    pub in_flight: u64,
    /// Are to be buried.
    pub dying: u64,
}

impl Counts {
    /// All that are read and not done.
    pub fn open(&self) -> u64 {
        self.ready + self.waiting + self.parked + self.in_flight + self.dying
    }

    fn of(&mut self, state: State) -> &mut u64 {
        match state {
            State::Ready => &mut self.ready,
            State::Waiting => &mut self.waiting,
            State::Parked { .. } => &mut self.parked,
            State::Leased { .. } => &mut self.in_flight,
            State::Dying => &mut self.dying,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    runs: BTreeMap<Position, Run>,
    ready: BTreeSet<Position>,
    parked: BTreeSet<(Timestamp, Position)>,
    deadlines: BTreeSet<(Timestamp, Position)>,
    held: BTreeSet<(MemberId, Position)>,
    dying: BTreeSet<Position>,
    keys: Lines,
    counts: Counts,
    /// Changes of the map so far: what a test of cost counts.
    #[cfg(test)]
    pub(super) touched: u64,
}

impl Open {
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// All runs with their last positions, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Position, &Run)> {
        self.runs.iter().map(|(last, run)| (*last, run))
    }

    /// All runs that end at `from` or later, in order.
    pub(super) fn from(&self, from: Position) -> impl Iterator<Item = (Position, &Run)> {
        self.runs.range(from..).map(|(last, run)| (*last, run))
    }

    pub(super) fn get(&self, last: Position) -> Option<&Run> {
        self.runs.get(&last)
    }

    /// The first run that ends at `from` or later.
    pub(super) fn next_from(&self, from: Position) -> Option<(Position, &Run)> {
        self.from(from).next()
    }

    /// The last run that ends before `before`.
    pub(super) fn last_before(&self, before: Position) -> Option<Position> {
        self.runs.range(..before).next_back().map(|(last, _)| *last)
    }

    pub(super) fn first_ready(&self) -> Option<Position> {
        self.ready.first().copied()
    }

    pub(super) fn first_parked(&self) -> Option<(Timestamp, Position)> {
        self.parked.first().copied()
    }

    /// The lowest place of all that wait for their time.
    pub(super) fn lowest_parked(&self) -> Option<Position> {
        self.parked.iter().map(|(_, last)| *last).min()
    }

    pub(super) fn first_deadline(&self) -> Option<(Timestamp, Position)> {
        self.deadlines.first().copied()
    }

    /// The first run from `from` on that a member has.
    pub(super) fn held_from(&self, member: MemberId, from: Position) -> Option<Position> {
        let (_, last) = self.held.range((member, from)..).next().filter(|(id, _)| *id == member)?;
        Some(*last)
    }

    pub(super) fn dying(&self) -> impl Iterator<Item = (Position, &Run)> {
        self.dying.iter().map(|last| (*last, &self.runs[last]))
    }

    /// The first of a key.
    pub(super) fn head(&self, key: NonZeroU128) -> Option<Position> {
        self.keys.head(key)
    }

    /// How many keys have messages open.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn insert(&mut self, last: Position, run: Run) {
        self.touch();
        *self.counts.of(run.state) += len(&run, last);
        if let Some(key) = run.key {
            self.keys.insert(key, last);
        }
        self.index(last, run.state);
        self.runs.insert(last, run);
    }

    fn index(&mut self, last: Position, state: State) {
        match state {
            State::Ready => {
                self.ready.insert(last);
            }
            State::Waiting => {}
            State::Parked { due } => {
                self.parked.insert((due, last));
            }
            State::Leased { member, deadline } => {
                self.deadlines.insert((deadline, last));
                self.held.insert((member, last));
            }
            State::Dying => {
                self.dying.insert(last);
            }
        }
    }

    fn unindex(&mut self, last: Position, state: State) {
        match state {
            State::Ready => {
                self.ready.remove(&last);
            }
            State::Waiting => {}
            State::Parked { due } => {
                self.parked.remove(&(due, last));
            }
            State::Leased { member, deadline } => {
                self.deadlines.remove(&(deadline, last));
                self.held.remove(&(member, last));
            }
            State::Dying => {
                self.dying.remove(&last);
            }
        }
    }

    /// Gives a whole run another state.
    pub(super) fn set_state(&mut self, last: Position, state: State) {
        let run = self.runs.get_mut(&last).expect("the run is open");
        let (before, count) = (core::mem::replace(&mut run.state, state), len(run, last));
        self.moved(last, count, (before, state));
    }

    /// Updates counts and indexes to another state.
    fn moved(&mut self, last: Position, count: u64, (before, state): (State, State)) {
        self.touch();
        *self.counts.of(before) -= count;
        *self.counts.of(state) += count;
        self.unindex(last, before);
        self.index(last, state);
    }

    /// Gives a run that is ready, or as many of its first messages as are wanted, to a member
    /// as another attempt.
    pub(super) fn lease(
        &mut self,
        last: Position,
        most: u64,
        state: State,
    ) -> (Lease, TopicId, Seq) {
        let run = self.runs.get_mut(&last).expect("the run is open");
        let (first, topic, seq) = (run.first, run.topic, run.seq);
        let (count, attempt) = (len(run, last), run.attempts.saturating_add(1));
        let lease = Lease { first, last: first.plus(count.min(most) - 1), attempt };
        if lease.last < last {
            let mut run = self.cut(last, first, lease.last);
            (run.attempts, run.state) = (attempt, state);
            self.insert(lease.last, run);
            return (lease, topic, seq);
        }
        run.attempts = attempt;
        let before = core::mem::replace(&mut run.state, state);
        self.moved(last, count, (before, state));
        (lease, topic, seq)
    }

    /// Takes the messages from `from` to `to` out of the run that ends at `last`.
    pub(super) fn cut(&mut self, last: Position, from: Position, to: Position) -> Run {
        self.touch();
        let Entry::Occupied(mut entry) = self.runs.entry(last) else { panic!("the run is open") };
        let run = entry.get_mut();
        assert!(run.first <= from && from <= to && to <= last, "a cut lies within its run");
        let before = from.distance(run.first);
        let mut piece = if to < last {
            // The rest keeps its name; what lies before the cut gets one.
            let piece = run.clone();
            run.seq = run.seq.plus(to.next().distance(run.first));
            run.first = to.next();
            piece
        } else {
            entry.remove()
        };
        *self.counts.of(piece.state) -= to.next().distance(from);
        if to == last {
            self.unindex(last, piece.state);
        }
        if let Some(key) = piece.key {
            self.keys.remove(key, last);
        }
        if before > 0 {
            self.runs.insert(from.prev(), piece.clone());
            self.index(from.prev(), piece.state);
        }
        piece.first = from;
        piece.seq = piece.seq.plus(before);
        piece
    }

    #[cfg(test)]
    fn touch(&mut self) {
        self.touched += 1;
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "counts in tests only")]
    fn touch(&mut self) {}

    /// Asserts that every index says what the runs say.
    pub(super) fn check(&self) {
        let mut again = Self::default();
        let mut end = None;
        for (last, run) in self.iter() {
            assert!(run.first <= last, "a run has a message");
            assert!(end.is_none_or(|end| end < run.first), "runs do not overlap");
            assert!(run.key.is_none() || run.first == last, "one with a key is alone");
            end = Some(last);
            again.insert(last, run.clone());
        }
        assert_eq!(again.ready, self.ready, "ready");
        assert_eq!(again.parked, self.parked, "parked");
        assert_eq!(again.deadlines, self.deadlines, "deadlines");
        assert_eq!(again.held, self.held, "held");
        assert_eq!(again.dying, self.dying, "dying");
        assert_eq!(again.keys, self.keys, "keys");
        assert_eq!(again.counts, self.counts, "counts");
        for (last, run) in self.iter() {
            let is_behind = run.key.is_some_and(|key| self.keys.is_behind(key, last));
            assert_eq!(run.state == State::Waiting, is_behind, "of a key all but the first wait");
        }
    }
}

/// How many messages a run has.
pub(super) fn len(run: &Run, last: Position) -> u64 {
    last.next().distance(run.first)
}
