//! What a worker knows of its leases: until when each attempt may run.
//!
//! The leader counts a lease from when it hears of an attempt, the worker from when it sent what
//! the leader answered: never later. So a worker that was stopped for a while, a leader that was,
//! and a link that swallows everything all end alike: the worker's time is over first.
//!
//! An assignment counts from the newest answer before it, since the leader sent it later.
//!
//! Times are of a clock of the worker's own that never jumps. Not here: frames, and stopping programs.

use alloc::vec::Vec;
use core::time::Duration;

use crate::time::Timestamp;

/// A job is stopped so long before its lease ends, or a sixth of the lease if that is less: with a
/// short lease, a leader that restarts would else find nothing running.
pub const MARGIN_MAX: Duration = Duration::from_secs(2);

/// A renewal that is not answered yet.
#[derive(Clone, Debug)]
struct Asked<A> {
    number: u64,
    at: Timestamp,
    attempts: Vec<A>,
}

/// The leases of one connection, over attempts that are named by `A`.
#[derive(Clone, Debug)]
pub struct Leases<A> {
    lease: Duration,
    /// Whether the leader answers renewals; an older one does not, and what was sent counts.
    answers: bool,
    /// When the newest message was sent that the leader answered.
    in_touch: Timestamp,
    asked: Option<Asked<A>>,
    asked_count: u64,
}

impl<A> Leases<A> {
    /// A connection whose hello was sent then, and answered.
    pub fn new(lease: Duration, answers: bool, hello_sent: Timestamp) -> Self {
        Self { lease, answers, in_touch: hello_sent, asked: None, asked_count: 0 }
    }

    /// How often leases are renewed.
    pub fn renew_every(&self) -> Duration {
        self.lease / 3
    }

    /// Until when an attempt may run that is assigned now.
    pub fn until_of_new(&self, now: Timestamp) -> Timestamp {
        self.until(if self.answers { self.in_touch } else { now })
    }

    /// Leases are to be renewed: the number of the message, unless the last one is not answered yet.
    pub fn ask(&mut self, now: Timestamp, attempts: Vec<A>) -> Option<u64> {
        if self.asked.is_some() {
            return None;
        }
        self.asked_count += 1;
        self.asked = Some(Asked { number: self.asked_count, at: now, attempts });
        Some(self.asked_count)
    }

    /// If this is the answer to the last renewal: its attempts, and until when they may run now.
    pub fn answered(&mut self, number: u64) -> Option<(Vec<A>, Timestamp)> {
        (self.asked.as_ref()?.number == number).then(|| self.renewed())?
    }

    /// If the leader does not answer: the attempts of the last renewal, which count as renewed.
    pub fn unanswered(&mut self) -> Option<(Vec<A>, Timestamp)> {
        (!self.answers).then(|| self.renewed())?
    }

    fn renewed(&mut self) -> Option<(Vec<A>, Timestamp)> {
        let asked = self.asked.take()?;
        self.in_touch = asked.at;
        Some((asked.attempts, self.until(asked.at)))
    }

    /// When the leader is given up, unless it answers before.
    pub fn gives_up(&self) -> Option<Timestamp> {
        self.asked.as_ref().map(|asked| asked.at.after(self.lease))
    }

    fn until(&self, sent: Timestamp) -> Timestamp {
        sent.after(self.lease).before(MARGIN_MAX.min(self.lease / 6))
    }
}
