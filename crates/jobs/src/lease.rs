//! How long a worker may go on with its jobs: the rule is `gapless_core::job::lease`, here are its
//! frames and the clock of this process.

use std::time::Duration;

use gapless_core::Timestamp;
use gapless_core::job::lease;
use gapless_protocol::Frame;

use crate::clock::Instant;
use crate::wire::{AttemptRef, JobAnswer};

/// From this version on leaders answer renewals.
const ANSWERS_FROM: u32 = 2;

/// What a worker knows of its leases on one connection.
pub(crate) struct Leases {
    /// From when its times count.
    start: Instant,
    machine: lease::Leases<AttemptRef>,
}

impl Leases {
    /// A connection whose hello was sent then, and answered.
    pub(crate) fn new(lease: Duration, version: u32, hello_sent: Instant) -> Self {
        let machine = lease::Leases::new(lease, version >= ANSWERS_FROM, Timestamp(0));
        Self { start: hello_sent, machine }
    }

    /// How often leases are renewed.
    pub(crate) fn renew_every(&self) -> Duration {
        self.machine.renew_every()
    }

    /// Until when an attempt may run that is assigned now.
    pub(crate) fn until_of_new(&self, now: Instant) -> Instant {
        self.instant(self.machine.until_of_new(self.timestamp(now)))
    }

    /// Leases are to be renewed: the id of the message, unless the last one is not answered yet.
    pub(crate) fn ask(&mut self, now: Instant, attempts: Vec<AttemptRef>) -> Option<[u8; 16]> {
        self.machine.ask(self.timestamp(now), attempts).map(id_of)
    }

    /// If this is the answer to the last renewal: its attempts, and until when they may run now.
    pub(crate) fn answered(&mut self, frame: &Frame) -> Option<(Vec<AttemptRef>, Instant)> {
        let number = u64::try_from(u128::from_be_bytes(frame.corr_id)).ok()?;
        // A job may have the same id as this message.
        let answer: JobAnswer = serde_json::from_slice(&frame.payload).ok()?;
        if !answer.job_id.is_empty() || !answer.accepted {
            return None;
        }
        let (attempts, until) = self.machine.answered(number)?;
        Some((attempts, self.instant(until)))
    }

    /// If the leader does not answer: the attempts of the last renewal, which count as renewed.
    pub(crate) fn unanswered(&mut self) -> Option<(Vec<AttemptRef>, Instant)> {
        let (attempts, until) = self.machine.unanswered()?;
        Some((attempts, self.instant(until)))
    }

    /// When the leader is given up, unless it answers before.
    pub(crate) fn gives_up(&self) -> Option<Instant> {
        self.machine.gives_up().map(|at| self.instant(at))
    }

    /// Whole milliseconds, rounded down: what is counted from is never too late.
    fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp(at.saturating_duration_since(self.start).as_millis() as u64)
    }

    fn instant(&self, at: Timestamp) -> Instant {
        self.start + Duration::from_millis(at.0)
    }
}

fn id_of(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use gapless_core::job::lease::MARGIN_MAX;

    use super::*;
    use crate::clock;

    const LEASE: Duration = Duration::from_secs(12);

    fn attempt(job: &str) -> AttemptRef {
        AttemptRef { job_id: job.to_owned(), attempt: 1, epoch: "e".to_owned() }
    }

    fn answer(id: [u8; 16], text: &str) -> Frame {
        let (subject, payload) =
            (bytes::Bytes::new(), bytes::Bytes::copy_from_slice(text.as_bytes()));
        Frame { kind: 106, msg_id: [0; 16], corr_id: id, subject, payload }
    }

    #[test]
    fn e10_a_worker_without_its_leader_goes_on_for_most_of_its_lease() {
        let now = clock::now();
        for lease_ms in [3_000, 15_000, 600_000] {
            let lease = Duration::from_millis(lease_ms);
            let leases = Leases::new(lease, 2, now);
            // Renewed three times in its time, so a third of it may be over.
            let left = leases.until_of_new(now) - (now + leases.renew_every());
            assert!(left >= lease / 2, "{left:?} of {lease:?}");
            let before = now + lease - leases.until_of_new(now);
            assert!(before >= Duration::from_millis(500), "there is time to stop");
        }
    }

    #[test]
    fn e10_only_an_answer_extends_a_lease_and_from_when_it_was_asked_for() {
        let start = clock::now();
        let mut leases = Leases::new(LEASE, 2, start);
        let asked = start + LEASE / 2;
        let id = leases.ask(asked, vec![attempt("a")]).expect("nothing is open");
        assert_eq!(leases.ask(asked, vec![]), None, "one at a time");
        assert_eq!(leases.unanswered(), None);
        let long_after = start + LEASE * 9;
        // Nothing was heard since the hello: what is assigned now may be long over.
        assert_eq!(leases.until_of_new(long_after), start + LEASE - MARGIN_MAX);
        assert_eq!(leases.gives_up(), Some(asked + LEASE));
        let accepted = r#"{"JobId":"","Accepted":true}"#;
        for other in [
            answer([9; 16], accepted),
            answer(id, r#"{"JobId":"00000000-0000-0000-0000-000000000001","Accepted":true}"#),
            answer(id, r#"{"JobId":"","Accepted":false}"#),
        ] {
            assert_eq!(leases.answered(&other), None, "{other:?}");
        }
        let until = asked + LEASE - MARGIN_MAX;
        let told = leases.answered(&answer(id, accepted));
        assert_eq!(told, Some((vec![attempt("a")], until)));
        assert_eq!(leases.until_of_new(long_after), until);
        assert_eq!(leases.gives_up(), None);
    }

    #[test]
    fn a_leader_of_before_need_not_answer() {
        let start = clock::now();
        let mut leases = Leases::new(LEASE, 1, start);
        let later = start + LEASE * 2;
        assert_eq!(leases.until_of_new(later), later + LEASE - MARGIN_MAX);
        leases.ask(later, vec![attempt("a")]);
        let told = leases.unanswered();
        assert_eq!(told, Some((vec![attempt("a")], later + LEASE - MARGIN_MAX)));
    }
}
