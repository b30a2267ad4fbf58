//! Reading, handing out, and being done.

use alloc::vec::Vec;

use super::ahead::Known;
use super::open::{Run, State};
use super::{Effect, Granted, Group, Lease, Member, MemberId, Mode, Offered, Op};
use crate::id::Position;
use crate::time::Timestamp;

impl Group {
    pub(super) fn join(&mut self, id: MemberId, window: u32, effects: &mut Vec<Effect>) {
        let member = Member { window, in_flight: 0, deadline: Timestamp::NEVER };
        assert!(self.members.insert(id, member).is_none(), "a member joins once");
        if self.settings.mode != Mode::Ordered {
            return;
        }
        if self.active.is_none() {
            self.active = Some(id);
            effects.push(Effect::Active { member: id });
        } else {
            self.standbys.push_back(id);
            effects.push(Effect::Standby { member: id });
        }
    }

    /// Every call of a member shows that it is alive; in mode ordered that extends its lease.
    pub(super) fn heard(&mut self, now: Timestamp, member: MemberId) {
        if self.active == Some(member)
            && let Some(member) = self.members.get_mut(&member)
        {
            member.deadline = now.after(self.settings.lease);
        }
    }

    pub(super) fn offer(&mut self, now: Timestamp, runs: &[Offered], through: Position) {
        for run in runs {
            let last = run.first.plus(run.count.saturating_sub(1));
            let mut at = run.first.max(self.frontier.next());
            while run.count > 0 && at <= last {
                let (to, known) = self.ahead.next(at, last);
                let failure = match known {
                    Known::Done => {
                        at = to.next();
                        continue;
                    }
                    Known::Failed(failure) => Some(failure.clone().into()),
                    Known::Nothing => None,
                };
                self.place(now, run, (at, to), failure);
                at = to.next();
            }
            self.frontier = self.frontier.max(last);
        }
        self.frontier = self.frontier.max(through);
        self.absorb();
    }

    /// Opens messages that were read.
    fn place(
        &mut self,
        now: Timestamp,
        run: &Offered,
        (first, last): (Position, Position),
        failure: Option<alloc::boxed::Box<super::Failure>>,
    ) {
        let attempts = failure.as_ref().map_or(0, |failure| failure.attempts);
        let dead = failure.as_ref().is_some_and(|failure| failure.dead);
        let keyed = self.settings.mode == Mode::Keyed && !dead;
        let mut run = Run {
            first,
            topic: run.topic,
            seq: run.seq.plus(first.distance(run.first)),
            time: run.time,
            key: run.key.filter(|_| keyed),
            attempts,
            failure,
            state: State::Waiting,
        };
        if run.key.is_none_or(|key| self.open.head(key).is_none()) {
            run.state = free(now, &run);
        }
        self.open.insert(last, run);
    }

    /// Moves the frontier over what is known to be done.
    pub(super) fn absorb(&mut self) {
        while let Some((first, last)) = self.ahead.done.first() {
            if first > self.frontier.0.saturating_add(1) {
                break;
            }
            self.frontier = self.frontier.max(Position(last));
            self.ahead.forget_through(self.frontier);
        }
        if !self.ahead.is_empty() {
            self.ahead.forget_through(self.frontier);
        }
    }

    /// How many more a member may get.
    pub(super) fn room(&self, member: MemberId) -> u64 {
        let Some(state) = self.members.get(&member) else { return 0 };
        if self.settings.mode == Mode::Ordered && self.active != Some(member) {
            return 0;
        }
        let most = u64::from(state.window.min(self.settings.member_in_flight_max));
        let all = u64::from(self.settings.in_flight_max);
        let in_flight = self.open.counts().in_flight;
        most.saturating_sub(state.in_flight).min(all.saturating_sub(in_flight))
    }

    /// The next run that may be handed out.
    pub(super) fn next_ready(&self) -> Option<Position> {
        let last = self.open.first_ready().filter(|_| self.is_running())?;
        if self.settings.mode != Mode::Ordered {
            return Some(last);
        }
        // In order nothing passes what waits for its next attempt.
        self.open.lowest_parked().is_none_or(|parked| last < parked).then_some(last)
    }

    pub(super) fn take(
        &mut self,
        now: Timestamp,
        member: MemberId,
        max: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.wake_due(now);
        let ordered = self.settings.mode == Mode::Ordered;
        let until = now.after(self.settings.lease);
        let mut room = self.room(member).min(max);
        while room > 0 {
            let Some(last) = self.next_ready() else { break };
            // In order the member has one lease for all it holds.
            let deadline = if ordered { Timestamp::NEVER } else { until };
            let state = State::Leased { member, deadline };
            let (lease, topic, seq) = self.open.lease(last, room, state);
            let count = lease.count();
            let state = self.members.get_mut(&member).expect("only members have room");
            if ordered && state.in_flight == 0 {
                state.deadline = until;
            }
            state.in_flight += count;
            room -= count;
            effects.push(Effect::Deliver(Granted { member, lease, topic, seq, deadline: until }));
        }
    }

    /// The next messages of a lease, from `at` on, that the member holds: their run, the
    /// first and the last.
    pub(super) fn next_held(
        &self,
        member: MemberId,
        lease: &Lease,
        mut at: Position,
    ) -> Option<(Position, Position, Position)> {
        while at <= lease.last {
            // Mostly what lies there is the member's; else its own are looked through.
            let (mut last, mut run) = self.open.next_from(at)?;
            if !matches!(run.state, State::Leased { member: holder, .. } if holder == member) {
                last = self.open.held_from(member, at)?;
                run = self.open.get(last).expect("what is held is open");
            }
            let from = run.first.max(at);
            if from > lease.last {
                return None;
            }
            if run.attempts == lease.attempt {
                return Some((last, from, last.min(lease.last)));
            }
            at = last.next();
        }
        None
    }

    pub(super) fn ack(
        &mut self,
        now: Timestamp,
        member: MemberId,
        leases: &[Lease],
        effects: &mut Vec<Effect>,
    ) {
        let (mut taken, mut named) = (0, 0_u64);
        let mut ended = Vec::new();
        for lease in leases {
            named = named.saturating_add(lease.count());
            let mut at = lease.first;
            while let Some((last, from, to)) = self.next_held(member, lease, at) {
                taken += self.end(now, member, (last, from, to), &mut ended);
                at = to.next();
            }
        }
        self.record_ended(ended, effects);
        effects.push(Effect::Counted { taken, refused: named.saturating_sub(taken) });
    }

    pub(super) fn commit(
        &mut self,
        now: Timestamp,
        member: MemberId,
        (through, unread): (Position, &[Lease]),
        effects: &mut Vec<Effect>,
    ) {
        let (mut taken, mut ended) = (0, Vec::new());
        let (mut at, mut unread) = (Position(0), unread.iter().peekable());
        while let Some(last) = self.open.held_from(member, at) {
            let from = self.open.get(last).expect("what is held is open").first.max(at);
            if from > through {
                break;
            }
            while unread.next_if(|lease| lease.last < from).is_some() {}
            let mut to = last.min(through);
            if let Some(lease) = unread.peek().filter(|lease| lease.first <= to) {
                if lease.first <= from {
                    at = lease.last.next();
                    continue;
                }
                to = lease.first.prev();
            }
            taken += self.end(now, member, (last, from, to), &mut ended);
            at = to.next();
        }
        self.record_ended(ended, effects);
        effects.push(Effect::Counted { taken, refused: 0 });
    }

    /// Ends messages that a member holds; it is still to be written down.
    fn end(
        &mut self,
        now: Timestamp,
        member: MemberId,
        (last, from, to): (Position, Position, Position),
        ended: &mut Vec<(Position, Position)>,
    ) -> u64 {
        let run = self.open.cut(last, from, to);
        let count = to.next().distance(from);
        self.members.get_mut(&member).expect("only members hold messages").in_flight -= count;
        self.pass_key(now, &run);
        match ended.last_mut() {
            Some((_, end)) if end.next() == from => *end = to,
            _ => ended.push((from, to)),
        }
        count
    }

    /// Writes down that all of these are done, each range between open neighbours once.
    fn record_ended(&self, mut ended: Vec<(Position, Position)>, effects: &mut Vec<Effect>) {
        ended.sort_unstable();
        let mut told = Position(0);
        for (from, to) in ended {
            if told < to {
                told = self.record_done(from, to, effects);
            }
        }
    }

    /// Records that these are done, together with what is done around them; returns how far.
    pub(super) fn record_done(
        &self,
        from: Position,
        to: Position,
        effects: &mut Vec<Effect>,
    ) -> Position {
        let first = self.open.last_before(from).map_or(Position(1), Position::next);
        let next = self.open.next_from(to.next()).map(|(_, run)| run.first.prev());
        let range = (first, next.unwrap_or(self.frontier));
        // A range that the one before has grown into is recorded once, as the larger.
        if let Some(Effect::Record(Op::Done { first, last })) = effects.last_mut()
            && range.0 <= last.next()
            && *first <= range.1.next()
        {
            (*first, *last) = (range.0.min(*first), range.1.max(*last));
            return range.1;
        }
        effects.push(Effect::Record(Op::Done { first: range.0, last: range.1 }));
        range.1
    }

    /// Lets the next message of a key come to its turn.
    pub(super) fn pass_key(&mut self, now: Timestamp, ended: &Run) {
        let head = ended.key.and_then(|key| self.open.head(key));
        if let Some(head) = head {
            let run = self.open.get(head).expect("a key's messages are open");
            if run.state == State::Waiting {
                let state = free(now, run);
                self.open.set_state(head, state);
            }
        }
    }

    /// Makes parked messages ready that are due.
    pub(super) fn wake_due(&mut self, now: Timestamp) {
        while let Some((due, last)) = self.open.first_parked() {
            if due > now {
                return;
            }
            self.open.set_state(last, State::Ready);
        }
    }
}

/// The state of messages that nothing stands before.
pub(super) fn free(now: Timestamp, run: &Run) -> State {
    match run.failure.as_deref() {
        Some(failure) if failure.dead => State::Dying,
        Some(failure) if failure.due > now => State::Parked { due: failure.due },
        _ => State::Ready,
    }
}
