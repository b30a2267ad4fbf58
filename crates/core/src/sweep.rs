//! Where a reader of many topics stands in the journal.
//!
//! Messages come in the order of their positions, so one number, `next`, is the place in all
//! topics. A sweep also counts the seqs of each topic that came by: they follow one another
//! without a hole. What is missing between two of them is a gap that it reports; what was accounted
//! for once is not handed out or reported again. `next` never moves backwards.
//!
//! A hole that compaction or expiry left stands where its last message stood, in the segment that
//! holds all its positions. So a recovering reader reads what segments hold from segments, never
//! the rest of one from memory: it would pass the first positions of a hole in the one and the last
//! in the other, and the hole would not be reported. A live reader has read only memory since a
//! segment's end; if it falls behind in the middle of a hole, what it has not counted is reported.
//!
//! It recovers until it has passed everything that was there when that began, then it is live.
//! It reads nothing itself. How much of an entry may be seen is decided in `reach.rs`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::entry::EntryHeader;
use crate::gap::GapReason;
use crate::id::{Position, Seq, TopicId};
use crate::reach::{Kept, Reach};
use crate::time::Timestamp;

/// Topics whose seqs are counted, at most; past it all are forgotten, and what is missing of a
/// topic is reported without its first seq when the topic next appears in a hole.
pub const TOPICS_MAX: usize = 65_536;

/// A reader's place in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The position the reader needs next.
    next: Position,
    state: State,
    /// Of each topic that came by, the next seq.
    topics: BTreeMap<TopicId, Seq>,
    /// Whether nothing was seen of a topic that is not among them.
    from_beginning: bool,
    /// A topic that was deleted before this position was never seen.
    began: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Reading up to `target`, which was the last position when that began.
    Recovering { target: Position, told: bool },
    /// At the end.
    Live,
}

/// What happens to a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// What comes next is not in memory any more; `last` is the last position of all.
    Behind {
        /// The last position that may be seen.
        last: Position,
    },
    /// What comes next, if there is any, is in memory.
    AtTail {
        /// Whether there is nothing.
        is_empty: bool,
    },
    /// A topic's floor lies at this position.
    Floor {
        /// Which topic.
        topic: TopicId,
        /// What it keeps.
        kept: &'a Kept,
        /// Where the last message below the floor stood.
        position: Position,
    },
    /// Here a topic was created under the name of a deleted one (`reused.rs`).
    Reused {
        /// Which topic.
        topic: TopicId,
        /// Where its creation stands; nothing of it stands before.
        position: Position,
    },
    /// An entry of a wanted topic comes by.
    Entry {
        /// Its numbers.
        header: &'a EntryHeader,
        /// What its topic keeps.
        kept: &'a Kept,
    },
    /// Up to here there is nothing more.
    Passed {
        /// The last position.
        through: Position,
    },
}

/// What is to be done about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Report to the reader that history from here to there comes next.
    Recovering {
        /// Its place.
        from: Position,
        /// The last position that could be seen then.
        to: Position,
    },
    /// The reader has turned from recovering to live.
    CaughtUp,
    /// Report to the reader that seqs of a topic are gone.
    Gap {
        /// The first; `None` when it is not known which of them the reader has seen.
        from: Option<Seq>,
        /// The last.
        to: Seq,
        /// The positions that this accounts for.
        positions: (Position, Position),
        /// Everything up to here is accounted for after it.
        through: Position,
        /// Why.
        reason: GapReason,
    },
    /// Report to the reader that the topic it knew by a name was deleted, and that the one which
    /// has the name now begins with seq one.
    Deleted {
        /// The positions that this accounts for; the last is that of the creation.
        positions: (Position, Position),
    },
    /// Hand out the entry from this seq on.
    Deliver {
        /// The first seq.
        from: Seq,
    },
}

impl Sweep {
    /// A reader that stands before `next`, while `last` is the last position that may be seen.
    /// `from_beginning` says that there is nothing before its place.
    pub fn start(next: Position, last: Position, from_beginning: bool) -> Self {
        let state = State::Recovering { target: last, told: false };
        let began = if from_beginning { last } else { Position(0) };
        Self { next, state, topics: BTreeMap::new(), from_beginning, began }
    }

    /// The position the reader needs next.
    pub fn next(&self) -> Position {
        self.next
    }

    /// Whether the reader has reached the end and stayed there.
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// A sweep waits for no time.
    pub fn deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Takes one step.
    pub fn step(&mut self, now: Timestamp, input: Input<'_>, effects: &mut Vec<Effect>) {
        match input {
            Input::Behind { last } => self.fall_behind(last, effects),
            Input::AtTail { is_empty } => self.reach_tail(is_empty, effects),
            Input::Floor { topic, kept, position } => self.floor(topic, kept, position, effects),
            Input::Reused { topic, position } => self.reused(topic, position, effects),
            Input::Entry { header, kept } => self.entry(now, header, kept, effects),
            Input::Passed { through } => self.next = self.next.max(through.next()),
        }
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        assert!(self.next >= Position(1), "nothing lies before the first position");
        assert!(self.topics.len() <= TOPICS_MAX, "what is counted has a bound");
        assert!(self.topics.values().all(|next| *next >= Seq(1)), "the first seq is one");
    }

    fn fall_behind(&mut self, last: Position, effects: &mut Vec<Effect>) {
        if matches!(self.state, State::Recovering { told: true, .. }) {
            return;
        }
        self.state = State::Recovering { target: last, told: true };
        effects.push(Effect::Recovering { from: self.next, to: last });
    }

    fn reach_tail(&mut self, is_empty: bool, effects: &mut Vec<Effect>) {
        let State::Recovering { target, .. } = self.state else { return };
        if is_empty || self.next > target {
            self.state = State::Live;
            effects.push(Effect::CaughtUp);
        }
    }

    /// The next seq of a topic, if it is known what was seen of it.
    fn next_of(&self, topic: TopicId) -> Option<Seq> {
        let known = self.topics.get(&topic).copied();
        known.or(self.from_beginning.then_some(Seq(1)))
    }

    fn note(&mut self, topic: TopicId, next: Seq) {
        if self.topics.len() == TOPICS_MAX && !self.topics.contains_key(&topic) {
            self.topics.clear();
            self.from_beginning = false;
        }
        self.topics.insert(topic, next);
    }

    fn floor(
        &mut self,
        topic: TopicId,
        kept: &Kept,
        position: Position,
        effects: &mut Vec<Effect>,
    ) {
        let from = self.next_of(topic);
        if position < self.next || from.is_some_and(|from| from >= kept.first) {
            return;
        }
        effects.push(Effect::Gap {
            from,
            to: kept.first.prev(),
            positions: (self.next, position),
            through: self.next.prev(),
            reason: kept.floor_reason,
        });
        self.note(topic, kept.first);
    }

    /// The place moves over the creation, so that it is reported once. A reader that began at the
    /// beginning after it has seen nothing of the deleted topic.
    fn reused(&mut self, topic: TopicId, position: Position, effects: &mut Vec<Effect>) {
        if position < self.next {
            return;
        }
        if position > self.began {
            effects.push(Effect::Deleted { positions: (self.next, position) });
        }
        self.next = position.next();
        self.note(topic, Seq(1));
    }

    fn entry(
        &mut self,
        now: Timestamp,
        header: &EntryHeader,
        kept: &Kept,
        effects: &mut Vec<Effect>,
    ) {
        let (last, end) = (header.last_seq(), header.last_position());
        if end < self.next {
            return;
        }
        let known = self.next_of(header.topic);
        let is_hole = header.count == 0;
        // The position of a seq inside a hole is not known, so it does not say what was seen.
        let passed = if is_hole { 0 } else { self.next.distance(header.position) };
        let mut from = known.map_or(header.seq.plus(passed), |known| known.max(header.seq));
        if let Some(known) = known.filter(|known| *known < header.seq) {
            self.missing(known, header.seq.prev(), kept, effects);
        }
        while from <= last {
            let Reach::Gone { to, reason } = kept.reach(header, from, now) else {
                effects.push(Effect::Deliver { from });
                break;
            };
            let through = header.position.plus(to.distance(header.seq)).min(end);
            let is_unknown = is_hole && header.span > 1 && known.is_none();
            let begin = if is_hole { self.next } else { self.next.max(header.position) };
            effects.push(Effect::Gap {
                from: (!is_unknown).then_some(from),
                to,
                positions: (begin, through),
                through,
                reason,
            });
            from = to.next();
        }
        self.next = self.next.max(end.next());
        self.note(header.topic, last.next().max(known.unwrap_or_default()));
    }

    /// Reports seqs that no entry accounts for.
    fn missing(&self, mut from: Seq, to: Seq, kept: &Kept, effects: &mut Vec<Effect>) {
        let through = self.next.prev();
        while from <= to {
            let below = from < kept.first;
            let end = if below { to.min(kept.first.prev()) } else { to };
            let reason = if below { kept.floor_reason } else { kept.hole_reason() };
            let positions = (through, through);
            effects.push(Effect::Gap { from: Some(from), to: end, positions, through, reason });
            from = end.next();
        }
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
