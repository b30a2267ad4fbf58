//! Whether a subscriber on some node is delivered to (A9).
//!
//! A delivery that failed suspends the subscriber; a sign of life makes it active again.
//! One that stays suspended for longer than the time to live is removed, and stays so: it must
//! subscribe again. Only a look at the clock removes: a sign of life that comes first wins, even at
//! the instant of expiry, since what is held can be delivered then.
//!
//! Delivering, and knowing which node a subscriber lives on, is not here.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::time::Timestamp;

/// Why a delivery failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailReason {
    /// The subscriber did not take it in time.
    Timeout,
    /// Its node answers, but the subscriber is not there.
    SubscriberUnreachable,
    /// Its whole node is unreachable.
    NodeUnreachable,
    /// Anything else.
    OtherError,
}

impl FailReason {
    /// The word users see, the same in every API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::SubscriberUnreachable => "subscriber-unreachable",
            Self::NodeUnreachable => "node-unreachable",
            Self::OtherError => "other-error",
        }
    }
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a subscriber is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is delivered to.
    Active,
    /// It is not delivered to, but still remembered.
    Suspended {
        /// Why its delivery failed first.
        reason: FailReason,
        /// When that was; later failures do not move it, or it would never be removed.
        since: Timestamp,
    },
    /// It is forgotten.
    Removed,
}

/// One subscriber as its topic sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    status: Status,
    suspended_ttl: Duration,
}

/// What happens to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// It took a delivery. For a suspended one that is a late report, and a sign of life.
    Delivered,
    /// It did not take a delivery.
    Failed {
        /// Why not.
        reason: FailReason,
    },
    /// The topology says that its node is back.
    NodeBack,
    /// Time has passed.
    Tick,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Deliver no more to it, and say so.
    Suspended {
        /// Why.
        reason: FailReason,
    },
    /// Deliver to it again, and say so.
    Resumed,
    /// Forget it, and say so.
    Removed {
        /// Why it had been suspended.
        reason: FailReason,
    },
}

impl Subscriber {
    /// An active subscriber that may stay suspended for `suspended_ttl`.
    pub fn new(suspended_ttl: Duration) -> Self {
        Self { status: Status::Active, suspended_ttl }
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Takes one step. After its removal nothing changes any more.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match (self.status, input) {
            (Status::Active, Input::Failed { reason }) => {
                self.status = Status::Suspended { reason, since: now };
                effects.push(Effect::Suspended { reason });
            }
            (Status::Suspended { .. }, Input::Delivered | Input::NodeBack) => {
                self.status = Status::Active;
                effects.push(Effect::Resumed);
            }
            (Status::Suspended { reason, since }, Input::Tick)
                if since.after(self.suspended_ttl) <= now =>
            {
                self.status = Status::Removed;
                effects.push(Effect::Removed { reason });
            }
            _ => {}
        }
    }

    /// When a suspended subscriber is removed.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.status {
            Status::Suspended { since, .. } => Some(since.after(self.suspended_ttl)),
            Status::Active | Status::Removed => None,
        }
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        let suspended = matches!(self.status, Status::Suspended { .. });
        assert_eq!(self.deadline().is_some(), suspended, "only the suspended wait for time");
    }
}

#[cfg(test)]
#[path = "subscriber_tests.rs"]
mod tests;
