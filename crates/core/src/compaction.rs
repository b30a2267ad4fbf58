//! Which messages of a compacted topic may go: of each key only the latest stays (C5).
//!
//! A keyed message without a body removes its key. It stays readable for a while after, so
//! that readers who are away learn of the removal; then it goes too. Messages without a
//! key are nobody's successor and stay.
//!
//! Knowing the latest seq of each key is the caller's index; rewriting is the collector's.

use crate::id::Seq;
use crate::settings::Compaction;
use crate::time::Timestamp;

/// What must be known of a message to judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its seq.
    pub seq: Seq,
    /// When it was accepted.
    pub time: Timestamp,
    /// Whether it removes its key: keyed, and without a body.
    pub tombstone: bool,
    /// The latest seq of its key; none if it has no key.
    pub latest: Option<Seq>,
}

/// What may be done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It must stay readable.
    Keep,
    /// It may go.
    Drop,
}

/// Judges one message. An index that lags behind the message never lets it go.
pub fn judge(candidate: &Candidate, now: Timestamp, compaction: &Compaction) -> Verdict {
    let Some(latest) = candidate.latest else {
        return Verdict::Keep;
    };
    let superseded = latest > candidate.seq;
    let told = candidate.tombstone && candidate.time.after(compaction.tombstone_grace) <= now;
    if superseded || told { Verdict::Drop } else { Verdict::Keep }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn verdict(seq: u64, latest: Option<u64>, tombstone: bool, now: u64) -> Verdict {
        let compaction = Compaction { tombstone_grace: Duration::from_millis(100) };
        let time = Timestamp(1_000);
        let candidate = Candidate { seq: Seq(seq), time, tombstone, latest: latest.map(Seq) };
        judge(&candidate, Timestamp(now), &compaction)
    }

    #[test]
    fn c5_of_each_key_only_the_latest_stays() {
        assert_eq!(verdict(3, Some(4), false, 1_000), Verdict::Drop);
        assert_eq!(verdict(4, Some(4), false, 9_000), Verdict::Keep);
    }

    #[test]
    fn c5_a_removal_stays_for_its_grace_and_then_goes() {
        assert_eq!(verdict(4, Some(4), true, 1_099), Verdict::Keep);
        assert_eq!(verdict(4, Some(4), true, 1_100), Verdict::Drop);
        assert_eq!(verdict(4, Some(5), true, 1_000), Verdict::Drop);
    }

    #[test]
    fn without_a_key_nothing_goes() {
        assert_eq!(verdict(1, None, false, u64::MAX), Verdict::Keep);
        assert_eq!(verdict(1, None, true, u64::MAX), Verdict::Keep);
    }

    #[test]
    fn an_index_that_lags_lets_nothing_go() {
        assert_eq!(verdict(5, Some(3), false, 1_000), Verdict::Keep);
    }
}
