//! Ownership of work that one process does at a time: the fence of an outbox, a consumer.
//!
//! A lease in the database is asked for again and again. It is held from the time it was
//! *asked for*, by the clock of the process that asks, so that it ends here no later than in the
//! database. An owner asks again after a third of the lease; the others ask when the lease of the
//! owner may have ended, at the latest after a third of a lease.
//!
//! Two owners do no harm (bounds are true, offsets move by compare-and-set): the lease saves
//! work. Asking is not here.

use alloc::vec::Vec;
use core::time::Duration;

use crate::time::Timestamp;

/// How many times an owner asks within a lease.
const ASKS_PER_LEASE: u32 = 3;

/// What is known about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Another one has it, or it was never asked for.
    Standby,
    /// It is ours until then.
    Owner { until: Timestamp },
}

/// The machine: call `step` when its deadline has passed and when an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    lease: Duration,
    state: State,
    ask_at: Timestamp,
    asked_at: Option<Timestamp>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// The lease is ours.
    Granted,
    /// Another one has it for this long at most.
    Refused {
        /// How much is left of it.
        left: Duration,
    },
    /// There was no answer.
    Failed,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask for the lease, or to keep it.
    Ask,
    /// The work is ours from now on.
    Began,
    /// The work is not ours any more: stop.
    Ended,
}

impl Owner {
    /// Not an owner yet; asks at once.
    pub fn new(lease: Duration) -> Self {
        Self { lease, state: State::Standby, ask_at: Timestamp(0), asked_at: None }
    }

    /// How long a lease lasts.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether the work is ours at this time.
    pub fn owns(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Owner { until } if now < until)
    }

    /// When to step next.
    pub fn deadline(&self) -> Timestamp {
        let ask = if self.asked_at.is_some() { Timestamp::NEVER } else { self.ask_at };
        match self.state {
            State::Standby => ask,
            State::Owner { until } => until.min(ask),
        }
    }

    /// Takes in what happened.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        let pause = self.lease / ASKS_PER_LEASE;
        match input {
            Input::Tick => {}
            Input::Granted => {
                let Some(asked_at) = self.asked_at.take() else { return };
                if matches!(self.state, State::Standby) {
                    effects.push(Effect::Began);
                }
                self.state = State::Owner { until: asked_at.after(self.lease) };
                self.ask_at = asked_at.after(pause);
            }
            Input::Refused { left } => {
                self.asked_at = None;
                self.ask_at = now.after(left.min(pause).max(Duration::from_millis(1)));
                self.end(effects);
            }
            Input::Failed => {
                self.asked_at = None;
                self.ask_at = now.after(pause / ASKS_PER_LEASE);
            }
        }
        if matches!(self.state, State::Owner { until } if now >= until) {
            self.end(effects);
        }
        if self.asked_at.is_none() && now >= self.ask_at {
            self.asked_at = Some(now);
            effects.push(Effect::Ask);
        }
    }

    fn end(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.state, State::Owner { .. }) {
            self.state = State::Standby;
            effects.push(Effect::Ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const LEASE: Duration = Duration::from_secs(9);

    fn step(owner: &mut Owner, now: u64, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        owner.step(Timestamp(now), input, &mut effects);
        effects
    }

    #[test]
    fn b8_a_lease_counts_from_when_it_was_asked_for() {
        let mut owner = Owner::new(LEASE);
        assert_eq!(step(&mut owner, 1_000, Input::Tick), [Effect::Ask]);
        assert_eq!(step(&mut owner, 3_000, Input::Granted), [Effect::Began]);
        assert!(owner.owns(Timestamp(9_999)));
        assert!(!owner.owns(Timestamp(10_000)), "the answer took two seconds");
    }

    #[test]
    fn b8_an_owner_that_gets_no_answer_stops_by_itself() {
        let mut owner = Owner::new(LEASE);
        step(&mut owner, 0, Input::Tick);
        step(&mut owner, 0, Input::Granted);
        assert_eq!(step(&mut owner, 3_000, Input::Tick), [Effect::Ask]);
        assert_eq!(owner.deadline(), Timestamp(9_000));
        assert_eq!(step(&mut owner, 9_000, Input::Tick), [Effect::Ended]);
    }

    #[test]
    fn b8_a_standby_asks_when_the_lease_of_the_owner_ends() {
        let mut owner = Owner::new(LEASE);
        step(&mut owner, 0, Input::Tick);
        let left = Duration::from_millis(200);
        assert_eq!(step(&mut owner, 10, Input::Refused { left }), vec![]);
        assert_eq!(owner.deadline(), Timestamp(210));
        assert_eq!(step(&mut owner, 210, Input::Tick), [Effect::Ask]);
        assert_eq!(step(&mut owner, 211, Input::Granted), [Effect::Began]);
    }

    #[test]
    fn b8_an_owner_that_is_refused_stops_at_once() {
        let mut owner = Owner::new(LEASE);
        step(&mut owner, 0, Input::Tick);
        step(&mut owner, 0, Input::Granted);
        step(&mut owner, 3_000, Input::Tick);
        let left = Duration::from_secs(5);
        assert_eq!(step(&mut owner, 3_001, Input::Refused { left }), [Effect::Ended]);
        assert!(!owner.owns(Timestamp(3_001)));
    }
}
