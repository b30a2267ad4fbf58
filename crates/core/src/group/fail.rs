//! Failing, leaving, running out of time, and giving up.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::op::{Failure, short_error};
use super::open::{Run, State, len};
use super::{EXPIRED_AT_ONCE, Effect, Group, Lease, MemberId, Mode, Op};
use crate::id::Position;
use crate::time::Timestamp;

/// What is said of a lease that ran out.
pub const EXPIRED: &str = "the lease ran out";
/// What is said of a member that went without saying so.
pub const WENT_AWAY: &str = "the member went away";

/// How messages failed.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    /// When they are redelivered, if the member that failed asked for a delay.
    pub(super) delay: Option<Duration>,
    /// Never.
    pub(super) dead: bool,
    pub(super) reason: &'a str,
}

impl Group {
    /// A member could not do these.
    pub(super) fn give_back(
        &mut self,
        now: Timestamp,
        member: MemberId,
        leases: &[Lease],
        how: How<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let (mut taken, mut named) = (0, 0_u64);
        let mut again = None;
        for lease in leases {
            named = named.saturating_add(lease.count());
            let mut at = lease.first;
            while let Some((last, from, to)) = self.next_held(member, lease, at) {
                let run = self.let_go(member, (last, from, to));
                taken += len(&run, to);
                if !self.fail(now, to, run, how, effects) {
                    again = Some(again.unwrap_or(from).min(from));
                }
                at = to.next();
            }
        }
        if let Some(from) = again
            && self.settings.mode == Mode::Ordered
        {
            // It begins again at the first that failed, so what it got after that comes back.
            self.release(now, member, from);
        }
        effects.push(Effect::Counted { taken, refused: named.saturating_sub(taken) });
    }

    /// Takes messages from a member.
    fn let_go(
        &mut self,
        member: MemberId,
        (last, from, to): (Position, Position, Position),
    ) -> Run {
        let run = self.open.cut(last, from, to);
        self.members.get_mut(&member).expect("only members hold messages").in_flight -=
            len(&run, to);
        run
    }

    /// A delivery failed. Returns whether it was the last attempt.
    fn fail(
        &mut self,
        now: Timestamp,
        last: Position,
        mut run: Run,
        how: How<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let dead = how.dead || run.attempts >= self.settings.attempts_max;
        let first_at = run.failure.as_ref().map_or(now, |failure| failure.first_at);
        let wait = how.delay.unwrap_or_else(|| {
            let seed = self.seed ^ run.first.0.rotate_left(20) ^ u64::from(run.attempts);
            self.settings.retry.wait(run.attempts, seed)
        });
        let failure = Failure {
            attempts: run.attempts,
            dead,
            due: if dead { now } else { now.after(wait) },
            first_at,
            error: Arc::from(short_error(how.reason)),
        };
        let count = len(&run, last);
        if dead && !self.settings.dead_letters {
            self.pass_key(now, &run);
            self.record_done(run.first, last, effects);
            effects.push(Effect::Dropped { count });
            return true;
        }
        let first = run.first;
        effects.push(Effect::Record(Op::Failed { first, last, failure: failure.clone() }));
        run.failure = Some(Box::new(failure));
        run.state = super::deliver::free(now, &run);
        if dead {
            // It no longer holds up other messages of its key.
            self.pass_key(now, &run);
            run.key = None;
            effects.push(Effect::Died { count });
        }
        self.open.insert(last, run);
        dead
    }

    /// Gives back what a member holds from `from` on, without counting it.
    fn release(&mut self, now: Timestamp, member: MemberId, from: Position) {
        let mut at = from;
        while let Some(last) = self.open.held_from(member, at) {
            let first = self.open.get(last).expect("what is held is open").first;
            let mut run = self.let_go(member, (last, first, last));
            run.attempts -= 1;
            run.state = super::deliver::free(now, &run);
            self.open.insert(last, run);
            at = last.next();
        }
    }

    pub(super) fn extend(
        &mut self,
        now: Timestamp,
        member: MemberId,
        leases: &[Lease],
        effects: &mut Vec<Effect>,
    ) {
        self.heard(now, member);
        let ordered = self.settings.mode == Mode::Ordered;
        let deadline = now.after(self.settings.lease);
        let (mut taken, mut named) = (0, 0_u64);
        if leases.is_empty() {
            let mut at = Position(0);
            while let Some(last) = self.open.held_from(member, at) {
                taken += len(self.open.get(last).expect("what is held is open"), last);
                if !ordered {
                    self.open.set_state(last, State::Leased { member, deadline });
                }
                at = last.next();
            }
            named = taken;
        }
        for lease in leases {
            named = named.saturating_add(lease.count());
            let mut at = lease.first;
            while let Some((last, from, to)) = self.next_held(member, lease, at) {
                taken += to.next().distance(from);
                if !ordered {
                    let mut run = self.open.cut(last, from, to);
                    run.state = State::Leased { member, deadline };
                    self.open.insert(to, run);
                }
                at = to.next();
            }
        }
        effects.push(Effect::Counted { taken, refused: named.saturating_sub(taken) });
    }

    pub(super) fn leave(
        &mut self,
        now: Timestamp,
        member: MemberId,
        failed: bool,
        effects: &mut Vec<Effect>,
    ) {
        if !self.members.contains_key(&member) {
            return;
        }
        self.take_all(now, member, failed.then_some(WENT_AWAY), effects);
        self.members.remove(&member);
        self.standbys.retain(|id| *id != member);
        if self.active == Some(member) {
            self.active = None;
            self.next_active(effects);
        }
    }

    /// Takes everything from a member. If that is for a reason it counts as failed: in mode
    /// ordered only the first, since it had not come to the others.
    fn take_all(
        &mut self,
        now: Timestamp,
        member: MemberId,
        reason: Option<&str>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(reason) = reason else { return self.release(now, member, Position(0)) };
        let how = How { delay: Some(Duration::ZERO), dead: false, reason };
        let mut at = Position(0);
        while let Some(last) = self.open.held_from(member, at) {
            let first = self.open.get(last).expect("what is held is open").first;
            let ordered = self.settings.mode == Mode::Ordered;
            let to = if ordered { first } else { last };
            let run = self.let_go(member, (last, first, to));
            self.fail(now, to, run, how, effects);
            if ordered {
                return self.release(now, member, Position(0));
            }
            at = last.next();
        }
    }

    fn next_active(&mut self, effects: &mut Vec<Effect>) {
        self.active = self.standbys.pop_front();
        if let Some(member) = self.active {
            effects.push(Effect::Active { member });
        }
    }

    pub(super) fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.wake_due(now);
        for _ in 0..EXPIRED_AT_ONCE {
            let Some((deadline, last)) = self.open.first_deadline() else { break };
            if deadline > now {
                break;
            }
            let run = self.open.get(last).expect("what has a deadline is open");
            let State::Leased { member, .. } = run.state else { break };
            let first = run.first;
            let run = self.let_go(member, (last, first, last));
            effects.push(Effect::Expired { member, count: len(&run, last) });
            let how = How { delay: Some(Duration::ZERO), dead: false, reason: EXPIRED };
            self.fail(now, last, run, how, effects);
        }
        self.depose(now, effects);
    }

    /// In mode ordered: a member that was not heard of hands over to the next.
    fn depose(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(member) = self.active else { return };
        let state = self.members[&member];
        if state.in_flight == 0 || state.deadline > now {
            return;
        }
        effects.push(Effect::Expired { member, count: state.in_flight });
        self.take_all(now, member, Some(EXPIRED), effects);
        if !self.standbys.is_empty() {
            self.standbys.push_back(member);
            effects.push(Effect::Standby { member });
            self.next_active(effects);
        }
    }

    /// What was to be buried is.
    pub(super) fn buried(&mut self, first: Position, last: Position, effects: &mut Vec<Effect>) {
        let mut at = first;
        while let Some((end, run)) = self.open.next_from(at) {
            let (from, to) = (run.first.max(first), end.min(last));
            if from > last {
                return;
            }
            if run.state == State::Dying {
                self.open.cut(end, from, to);
                self.record_done(from, to, effects);
            }
            at = end.next();
        }
    }
}
