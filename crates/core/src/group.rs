//! A group: a place in the journal shared by members, with leases, acks and second attempts.
//!
//! It holds what is *not* done: runs of messages that were read and not acked (`group/open.rs`).
//! Everything up to the *frontier* that is in no run is done. What is written down is the
//! opposite, as ranges stretched to the open neighbours, so that they merge although
//! positions of others lie between (`docs/adr/0009`).
//!
//! The rules it keeps: a message is with one member at a time; of a key (mode keyed) only the
//! first is handed out; in mode ordered one member gets all in order; an ack counts only from the
//! member that holds the message, for the attempt it names; what was recorded as done is never
//! handed out again, and what was not is never forgotten.
//!
//! It reads no messages and holds none: the caller offers positions and reads what is handed out.
//! `Record` effects must be appended to the journal, all of one step together, before the outcome
//! is reported.

mod ahead;
mod deliver;
mod explain;
pub mod fail;
mod letter;
mod lines;
pub mod op;
mod open;
mod settings;
#[cfg(test)]
mod tests;
mod totals;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::num::NonZeroU128;
use core::time::Duration;

use crate::id::{Position, Seq, TopicId};
use crate::name::TopicName;
use crate::ranges::Ranges;
use crate::time::Timestamp;
use ahead::Ahead;
use op::{Failure, Op, Stop};
use open::{Open, Run, State};

pub use explain::{OpenMessage, OpenState};
pub use letter::{DeadLetter, LetterFilter, Redrive};
pub use open::Counts;
pub use settings::{
    GroupSettings, GroupSettingsError, GroupStart, LEASE_MAX, LEASE_MIN, Mode, OPEN_MAX, OnGap,
};
pub use totals::GroupTotals;

/// Runs whose lease ends in one step, at most: bounds what one step writes down.
pub const EXPIRED_AT_ONCE: usize = 1024;

/// The number of a member; never given twice while the group is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Messages that were handed out together: every position between is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// The first.
    pub first: Position,
    /// The last.
    pub last: Position,
    /// Which attempt it is; with the member it is the fencing token.
    pub attempt: u32,
}

impl Lease {
    /// How many messages it names.
    pub fn count(&self) -> u64 {
        self.last.0.saturating_add(1).saturating_sub(self.first.0)
    }
}

/// Neighbours of the source that were read for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Where the first lies.
    pub first: Position,
    /// How many they are; one if it has a key.
    pub count: u64,
    /// Their topic.
    pub topic: TopicId,
    /// The seq of the first.
    pub seq: Seq,
    /// When the first was accepted.
    pub time: Timestamp,
    /// What stands for its key, if keys matter.
    pub key: Option<NonZeroU128>,
}

/// Messages that a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The member.
    pub member: MemberId,
    /// Which, and in which attempt.
    pub lease: Lease,
    /// Their topic.
    pub topic: TopicId,
    /// The seq of the first.
    pub seq: Seq,
    /// Until when it must be acked or extended.
    pub deadline: Timestamp,
}

/// A message that is to be buried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dying {
    /// Where the first lies.
    pub first: Position,
    /// Where the last lies.
    pub last: Position,
    /// Their topic.
    pub topic: TopicId,
    /// The seq of the first.
    pub seq: Seq,
    /// What became of them.
    pub failure: Failure,
}

/// What happens to a group.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A member comes; it may have this many in flight.
    Join {
        /// The member.
        member: MemberId,
        /// Most in flight with it.
        window: u32,
    },
    /// A member may have another number in flight.
    Window {
        /// The member.
        member: MemberId,
        /// Most in flight with it.
        window: u32,
    },
    /// A member goes. What it held goes to others; it counts as failed if it went without
    /// saying so.
    Leave {
        /// The member.
        member: MemberId,
        /// Whether what it held counts as failed.
        failed: bool,
    },
    /// The source was read up to `through`, and holds these.
    Offer {
        /// In order; those that are known already are passed over.
        runs: &'a [Offered],
        /// Everything of the source up to here was read.
        through: Position,
    },
    /// A member asks for messages.
    Take {
        /// The member.
        member: MemberId,
        /// At most this many.
        max: u64,
    },
    /// A member is done with these.
    Ack {
        /// The member.
        member: MemberId,
        /// Which.
        leases: &'a [Lease],
    },
    /// A member is done with all it holds up to here and was handed.
    Commit {
        /// The member.
        member: MemberId,
        /// Up to where.
        through: Position,
        /// What it holds and was not handed yet, rising; one cannot be done with it.
        unread: &'a [Lease],
    },
    /// A member could not do these; they are tried again.
    Nack {
        /// The member.
        member: MemberId,
        /// Which.
        leases: &'a [Lease],
        /// When; by the schedule if it does not say.
        delay: Option<Duration>,
        /// What was wrong.
        reason: &'a str,
    },
    /// A member rejected these for good: they are not delivered again.
    Terminate {
        /// The member.
        member: MemberId,
        /// Which.
        leases: &'a [Lease],
        /// What was wrong.
        reason: &'a str,
    },
    /// A member needs more time for these; for all it holds if none is named.
    Extend {
        /// The member.
        member: MemberId,
        /// Which.
        leases: &'a [Lease],
    },
    /// Messages that were handed out to a member cannot be read any more.
    Gone {
        /// The member.
        member: MemberId,
        /// Which.
        lease: Lease,
    },
    /// These are dead letters now.
    Buried {
        /// The first.
        first: Position,
        /// The last.
        last: Position,
    },
    /// Messages of the source that were not read are gone.
    Gap(Stop),
    /// Nothing is handed out until it is resumed.
    Pause,
    /// Things go on, over a gap too.
    Resume,
    /// Start again after this position.
    Reset {
        /// Everything up to here counts as done.
        floor: Position,
        /// What is gone up to here does not count as a gap.
        forgiven: Position,
    },
    /// Other settings.
    Configure(GroupSettings),
    /// Dead letters were redriven or removed.
    EndLetters {
        /// The first.
        first: Seq,
        /// The last.
        last: Seq,
    },
    /// Dead letters are to be redriven gradually, or no more of them.
    Redrive(Option<Redrive>),
    /// Time went on.
    Tick,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read these and hand them out.
    Deliver(Granted),
    /// Write this down.
    Record(Op),
    /// How many of the messages that were named are counted, and how many the member does
    /// not hold any more.
    Counted {
        /// Counted.
        taken: u64,
        /// Not held.
        refused: u64,
    },
    /// Leases of a member ran out.
    Expired {
        /// The member.
        member: MemberId,
        /// How many messages.
        count: u64,
    },
    /// This member gets the messages now.
    Active {
        /// The member.
        member: MemberId,
    },
    /// This member stands by.
    Standby {
        /// The member.
        member: MemberId,
    },
    /// Messages failed for the last time and are to be buried.
    Died {
        /// How many.
        count: u64,
    },
    /// Messages failed for the last time and are let go.
    Dropped {
        /// How many.
        count: u64,
    },
    /// A gap was passed over.
    Passed(Stop),
}

/// A member as the group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// The member.
    pub id: MemberId,
    /// Most in flight with it.
    pub window: u32,
    /// How many are in flight with it.
    pub in_flight: u64,
    /// Whether it gets messages: always, unless it stands by.
    pub active: bool,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    window: u32,
    in_flight: u64,
    /// In mode ordered: until when it must be heard of, if anything is in flight.
    deadline: Timestamp,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Group {
    settings: GroupSettings,
    seed: u64,
    frontier: Position,
    open: Open,
    ahead: Ahead,
    members: BTreeMap<MemberId, Member>,
    /// In mode ordered: which member gets the messages, and which is next.
    active: Option<MemberId>,
    standbys: VecDeque<MemberId>,
    paused: bool,
    stopped: Option<Stop>,
    forgiven: Position,
    letters_ended: Ranges,
    redrive: Option<Box<Redrive>>,
}

impl Group {
    /// A group that begins after `floor`; the seed spreads its retries.
    pub fn new(settings: GroupSettings, floor: Position, forgiven: Position, seed: u64) -> Self {
        Self {
            settings,
            seed,
            frontier: floor,
            open: Open::default(),
            ahead: Ahead::default(),
            members: BTreeMap::new(),
            active: None,
            standbys: VecDeque::new(),
            paused: false,
            stopped: None,
            forgiven,
            letters_ended: Ranges::new(),
            redrive: None,
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// Everything up to here is done.
    pub fn floor(&self) -> Position {
        self.open.iter().next().map_or(self.frontier, |(_, run)| run.first.prev())
    }

    /// Everything up to here was read, or is known to be done.
    pub fn frontier(&self) -> Position {
        self.frontier
    }

    /// How many messages are in which state.
    pub fn counts(&self) -> Counts {
        self.open.counts()
    }

    /// How many keys have messages open.
    pub fn keys(&self) -> usize {
        self.open.keys()
    }

    /// When the oldest message that is not done was accepted.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.open.iter().next().map(|(_, run)| run.time)
    }

    /// When the next message that failed is tried again.
    pub fn next_retry(&self) -> Option<Timestamp> {
        self.open.first_parked().map(|(due, _)| due)
    }

    /// Whether it was paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The gap that stopped it.
    pub fn stopped(&self) -> Option<&Stop> {
        self.stopped.as_ref()
    }

    /// Gaps up to here do not stop it.
    pub fn forgiven(&self) -> Position {
        self.forgiven
    }

    /// The seqs of dead letters that were redriven or removed.
    pub fn letters_ended(&self) -> &Ranges {
        &self.letters_ended
    }

    /// The dead letters that are being redriven.
    pub fn redrive(&self) -> Option<&Redrive> {
        self.redrive.as_deref()
    }

    /// Its members.
    pub fn members(&self) -> impl Iterator<Item = MemberView> + '_ {
        self.members.keys().filter_map(|id| self.member(*id))
    }

    /// One of its members.
    pub fn member(&self, id: MemberId) -> Option<MemberView> {
        let Member { window, in_flight, .. } = *self.members.get(&id)?;
        let active = self.settings.mode != Mode::Ordered || self.active == Some(id);
        Some(MemberView { id, window, in_flight, active })
    }

    /// The member that gets the messages in mode ordered.
    pub fn active(&self) -> Option<MemberId> {
        self.active
    }

    /// Messages that wait to be buried, the first `max` runs of them.
    pub fn dying(&self, max: usize) -> Vec<Dying> {
        let dying = |(last, run): (Position, &Run)| Dying {
            first: run.first,
            last,
            topic: run.topic,
            seq: run.seq,
            failure: run.failure.as_deref().cloned().expect("what dies has failed"),
        };
        self.open.dying().take(max).map(dying).collect()
    }

    /// Whether more of the source should be read before anything else can be handed out.
    pub fn wants_more(&self) -> bool {
        let counts = self.open.counts();
        let room = counts.in_flight < u64::from(self.settings.in_flight_max)
            && counts.open() < u64::from(self.settings.open_max);
        // In order nothing passes what waits for its next attempt.
        let held_up = self.settings.mode == Mode::Ordered && counts.parked > 0;
        self.is_running() && room && counts.ready == 0 && !held_up
    }

    /// Whether a member could be handed something now.
    pub fn has_for(&self, member: MemberId) -> bool {
        self.room(member) > 0 && self.next_ready().is_some()
    }

    /// How many more a member may get.
    pub fn room_of(&self, member: MemberId) -> u64 {
        self.room(member)
    }

    /// How many a member has.
    pub fn in_flight_of(&self, member: MemberId) -> u64 {
        self.members.get(&member).map_or(0, |member| member.in_flight)
    }

    /// Up to which seq open messages of a topic lie close together, from `at` on: for reading
    /// them in one go. Between two of them lie at most `apart` others. `None` when the next
    /// `runs` all do, so that there are likely to be more.
    pub fn close_by(&self, topic: TopicId, at: Position, apart: u64, runs: usize) -> Option<Seq> {
        let (mut last, mut seen) = (None, 0);
        for (end, run) in self.open.from(at).take(runs) {
            let is_far = |last: Seq| run.seq.distance(last) > apart.saturating_add(1);
            if run.topic != topic || last.is_some_and(is_far) {
                return last;
            }
            last = Some(run.seq.plus(open::len(run, end) - 1));
            seen += 1;
        }
        last.filter(|_| seen < runs)
    }

    /// Whether all of these wait to be buried.
    pub fn is_dying(&self, first: Position, last: Position) -> bool {
        let mut at = first;
        while at <= last {
            match self.open.next_from(at) {
                Some((end, run)) if run.first <= at && run.state == State::Dying => at = end.next(),
                _ => return false,
            }
        }
        true
    }

    fn is_running(&self) -> bool {
        !self.paused && self.stopped.is_none()
    }

    /// Whether a member holds all of these, so that an ack would be counted for each.
    pub fn holds(&self, member: MemberId, leases: &[Lease]) -> bool {
        let mut sorted = Vec::new();
        if leases.len() > 1 {
            sorted.extend_from_slice(leases);
            sorted.sort_unstable();
        }
        let apart = sorted.windows(2).all(|pair| pair[0].last < pair[1].first);
        let held = |lease: &Lease| {
            let mut at = lease.first;
            while at <= lease.last {
                match self.next_held(member, lease, at) {
                    Some((_, from, to)) if from == at => at = to.next(),
                    _ => return false,
                }
            }
            true
        };
        apart && leases.iter().all(held)
    }

    /// How many bytes a step with these leases writes down at most.
    pub fn record_bytes_max(&self, leases: &[Lease]) -> usize {
        let mut runs = 0;
        for lease in leases {
            if lease.first == lease.last {
                runs += 1;
                continue;
            }
            let mut at = lease.first;
            while let Some((last, run)) = self.open.next_from(at) {
                if run.first > lease.last {
                    break;
                }
                runs += 1;
                at = last.next();
            }
        }
        OP_BYTES_MAX * (runs + 1) + op::ERROR_BYTES_MAX
    }

    /// How many bytes a step that ends all leases of a member writes down at most.
    pub fn leave_bytes_max(&self, member: MemberId) -> usize {
        let mut runs = 0;
        let mut at = Position(0);
        while let Some(last) = self.open.held_from(member, at) {
            runs += 1;
            at = last.next();
        }
        OP_BYTES_MAX * (runs + 1)
    }

    /// How many bytes a commit of a member writes down at most, past so many unread leases.
    pub fn commit_bytes_max(&self, member: MemberId, unread: usize) -> usize {
        self.leave_bytes_max(member) + OP_BYTES_MAX * unread
    }

    /// How many bytes a tick writes down at most.
    pub fn tick_bytes_max(&self) -> usize {
        let ordered = if self.settings.mode == Mode::Ordered { 1 } else { 0 };
        OP_BYTES_MAX * (EXPIRED_AT_ONCE.min(self.open.len()) + ordered + 1)
    }

    /// When something happens by itself.
    pub fn deadline(&self) -> Option<Timestamp> {
        let active = self.active.and_then(|id| self.members.get(&id));
        let active = active.filter(|member| member.in_flight > 0).map(|member| member.deadline);
        let parked = self.open.first_parked().map(|(due, _)| due);
        let leased = self.open.first_deadline().map(|(deadline, _)| deadline);
        let leased = leased.filter(|deadline| *deadline != Timestamp::NEVER);
        [active, parked, leased].into_iter().flatten().min()
    }

    /// Drives the group.
    pub fn step(&mut self, now: Timestamp, input: Input<'_>, effects: &mut Vec<Effect>) {
        match input {
            Input::Join { member, window } => self.join(member, window, effects),
            Input::Window { member, window } => {
                if let Some(member) = self.members.get_mut(&member) {
                    member.window = window;
                }
            }
            Input::Leave { member, failed } => self.leave(now, member, failed, effects),
            Input::Offer { runs, through } => self.offer(now, runs, through),
            Input::Take { member, max } => self.take(now, member, max, effects),
            Input::Ack { member, leases } => {
                self.heard(now, member);
                self.ack(now, member, leases, effects);
            }
            Input::Commit { member, through, unread } => {
                self.heard(now, member);
                self.commit(now, member, (through, unread), effects);
            }
            Input::Nack { member, leases, delay, reason } => {
                self.heard(now, member);
                let how = fail::How { delay, dead: false, reason };
                self.give_back(now, member, leases, how, effects);
            }
            Input::Terminate { member, leases, reason } => {
                self.heard(now, member);
                let how = fail::How { delay: None, dead: true, reason };
                self.give_back(now, member, leases, how, effects);
            }
            Input::Extend { member, leases } => self.extend(now, member, leases, effects),
            Input::Gone { member, lease } => self.ack(now, member, &[lease], effects),
            Input::Buried { first, last } => self.buried(first, last, effects),
            Input::Gap(stop) => self.gap(stop, effects),
            Input::Pause => {
                if !core::mem::replace(&mut self.paused, true) {
                    effects.push(Effect::Record(Op::Paused));
                }
            }
            Input::Resume => self.resume(effects),
            Input::Reset { floor, forgiven } => {
                self.restart(floor, forgiven);
                effects.push(Effect::Record(Op::Reset { floor, forgiven }));
            }
            Input::Configure(settings) => {
                effects.push(Effect::Record(Op::Configured(settings.clone().into())));
                self.settings = settings;
            }
            Input::EndLetters { first, last } => {
                self.letters_ended.insert(first.0, last.0);
                effects.push(Effect::Record(Op::LettersEnded { first, last }));
            }
            Input::Redrive(redrive) => {
                let redrive = redrive.map(Box::new);
                if self.redrive != redrive {
                    self.redrive.clone_from(&redrive);
                    effects.push(Effect::Record(Op::Redrive(redrive)));
                }
            }
            Input::Tick => self.tick(now, effects),
        }
    }

    fn gap(&mut self, stop: Stop, effects: &mut Vec<Effect>) {
        if stop.through <= self.forgiven || self.stopped.is_some() {
            return;
        }
        match self.settings.on_gap {
            OnGap::Continue => {
                self.forgiven = stop.through;
                effects.push(Effect::Passed(stop));
            }
            OnGap::Stop => {
                self.stopped = Some(stop.clone());
                effects.push(Effect::Record(Op::Stopped(stop)));
            }
        }
    }

    fn resume(&mut self, effects: &mut Vec<Effect>) {
        let stop = self.stopped.take();
        if !core::mem::replace(&mut self.paused, false) && stop.is_none() {
            return;
        }
        if let Some(stop) = stop {
            self.forgiven = self.forgiven.max(stop.through);
        }
        effects.push(Effect::Record(Op::Resumed { forgiven: self.forgiven }));
    }

    fn restart(&mut self, floor: Position, forgiven: Position) {
        self.open = Open::default();
        self.ahead = Ahead::default();
        self.frontier = floor;
        self.forgiven = forgiven;
        self.stopped = None;
        self.members.values_mut().for_each(|member| member.in_flight = 0);
    }

    /// Takes over a change that was written down, after a restart.
    pub fn replay(&mut self, op: Op) {
        match op {
            Op::Created { .. } | Op::Deleted => {}
            Op::Configured(settings) => self.settings = *settings,
            Op::Done { first, last } => {
                self.ahead.add_done(first, last);
                self.absorb();
            }
            Op::Failed { first, last, failure } => self.ahead.add_failed(first, last, failure),
            Op::Paused => self.paused = true,
            Op::Resumed { forgiven } => {
                self.paused = false;
                self.stopped = None;
                self.forgiven = forgiven;
            }
            Op::Reset { floor, forgiven } => self.restart(floor, forgiven),
            Op::Stopped(stop) => self.stopped = Some(stop),
            Op::LettersEnded { first, last } => self.letters_ended.insert(first.0, last.0),
            Op::Redrive(redrive) => self.redrive = redrive,
        }
    }

    /// The changes that lead from nothing to what must survive of this state.
    pub fn state_ops(&self, name: &TopicName, put: &mut dyn FnMut(Op)) {
        put(Op::Created {
            name: name.clone(),
            settings: self.settings.clone().into(),
            floor: self.floor(),
            forgiven: self.forgiven,
        });
        let mut done_from = self.floor().next();
        let done = |from: Position, to: Position, put: &mut dyn FnMut(Op)| {
            if from <= to {
                put(Op::Done { first: from, last: to });
            }
        };
        for (last, run) in self.open.iter() {
            done(done_from, run.first.prev(), put);
            done_from = last.next();
        }
        done(done_from, self.frontier, put);
        for (first, last) in self.ahead.done.iter() {
            put(Op::Done { first: Position(first), last: Position(last) });
        }
        for (last, run) in self.open.iter() {
            if let Some(failure) = run.failure.as_deref().cloned() {
                put(Op::Failed { first: run.first, last, failure });
            }
        }
        for (first, last, failure) in self.ahead.failed() {
            put(Op::Failed { first, last, failure: failure.clone() });
        }
        if self.paused {
            put(Op::Paused);
        }
        if let Some(stop) = self.stopped.clone() {
            put(Op::Stopped(stop));
        }
        for (first, last) in self.letters_ended.iter() {
            put(Op::LettersEnded { first: Seq(first), last: Seq(last) });
        }
        if self.redrive.is_some() {
            put(Op::Redrive(self.redrive.clone()));
        }
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        self.open.check();
        let last = self.open.iter().last().map(|(last, _)| last);
        assert!(last.is_none_or(|last| last <= self.frontier), "open lies before the frontier");
        let done = self.ahead.done.first();
        assert!(done.is_none_or(|(first, _)| first > self.frontier.0 + 1), "done is absorbed");
        let mut held = 0;
        for (id, member) in &self.members {
            let mut at = Position(0);
            let mut own = 0;
            while let Some(last) = self.open.held_from(*id, at) {
                own += open::len(self.open.get(last).expect("it is open"), last);
                at = last.next();
            }
            assert_eq!(own, member.in_flight, "what member {} holds", id.0);
            held += own;
        }
        assert_eq!(held, self.open.counts().in_flight, "only members hold");
        if self.settings.mode == Mode::Ordered {
            let active = self.active.into_iter().chain(self.standbys.iter().copied());
            let mut all: Vec<MemberId> = active.collect();
            all.sort_unstable();
            assert!(all.iter().eq(self.members.keys()), "a member is active or stands by");
            assert!(self.active.is_some() || self.members.is_empty(), "a member is active");
            for (_, run) in self.open.iter() {
                if let State::Leased { member, .. } = run.state {
                    assert_eq!(Some(member), self.active, "only the active member holds");
                }
            }
        }
    }
}

/// The longest change that describes a run, without the text of its error.
const OP_BYTES_MAX: usize = 96;
