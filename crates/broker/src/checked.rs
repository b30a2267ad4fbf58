//! Whether every machine of the broker is as it must be.
//!
//! In debug builds each machine is checked after each step, unless that would cost more than
//! [`CHECKED_MAX`] looks: a check walks all that a machine holds. The simulator has every machine
//! checked after each of its steps, in every build. The invariants are in the machines.

use gapless_core::{Group, Topic};

use crate::broker::Broker;
use crate::read::subscription::Subscription;

/// Ids that a topic remembers, or messages that a group has open: with more than these, a check
/// after every step would make a debug build take quadratic time.
const CHECKED_MAX: u64 = 256;

/// Checks a topic's machine after a step of a debug build.
pub(crate) fn after_topic_step(machine: &Topic) {
    if cfg!(debug_assertions) && machine.remembered() as u64 <= CHECKED_MAX {
        machine.check();
    }
}

/// Checks a group's machine after a step of a debug build.
pub(crate) fn after_group_step(machine: &Group) {
    if cfg!(debug_assertions) && machine.counts().open() <= CHECKED_MAX {
        machine.check();
    }
}

impl Broker {
    /// Asserts what must always be true of every topic, every group and the index of
    /// subscriptions; walks everything they hold.
    pub fn check(&self) {
        for cell in self.inner.topics.all() {
            cell.lock().machine.check();
        }
        for group in self.inner.groups.all() {
            let state = group.lock();
            state.machine.check();
            state.source.iter().for_each(|source| source.follower.check());
        }
        self.inner.router.check();
    }
}

impl Subscription {
    /// Asserts what must always be true of its place.
    pub fn check(&self) {
        self.follower.check();
    }
}
