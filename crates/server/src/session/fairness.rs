//! History yields to live traffic.
//!
//! A client that reads history keeps the cores busy for as long as that takes: the server's, and
//! its own where both are on one machine. A live message then waits behind it at every wake-up on
//! its way. So while any connection is live, those that recover have shorter turns, share a number of
//! bytes, and each pauses a moment after its share, which lets live messages pass. The share is so
//! large that a reader alone still gets more than half of its speed. While none is live, none
//! pauses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Bytes that a connection writes before others get their turn.
const TURN_BYTES: usize = 256 * 1024;
/// The same for one that recovers while any connection is live.
const TURN_BESIDE_LIVE_BYTES: usize = 128 * 1024;
/// Bytes that all recovering connections write between two pauses while any connection is live:
/// what takes them longer than the pause.
const SHARED_BYTES: usize = 2 * 1024 * 1024;
/// The least that is worth a turn.
const SHARE_BYTES_MIN: usize = 32 * 1024;
/// How long a recovering connection pauses after its share. The runtime's timers have a resolution
/// of one millisecond.
const REST: Duration = Duration::from_millis(1);
/// A connection counts as live for so long after something was published or delivered live.
const LIVE_MS: u64 = 100;

/// When a connection was last live, for all connections of a listener.
#[derive(Debug)]
pub(crate) struct Fairness {
    started: Instant,
    /// Until when some connection counts as live, in ms after `started`.
    live_until: AtomicU64,
}

/// How much a connection may write in a turn, and after how much it pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) bytes: usize,
    pub(crate) rest_after: Option<usize>,
}

impl Share {
    /// How long it pauses when it has written `bytes` more than the `unrested` since its last pause.
    pub(crate) fn rest(self, unrested: &mut usize, bytes: usize) -> Option<Duration> {
        let Some(most) = self.rest_after else {
            *unrested = 0;
            return None;
        };
        *unrested += bytes;
        let rests = *unrested >= most;
        if rests {
            *unrested = 0;
        }
        rests.then_some(REST)
    }
}

impl Fairness {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, live_until: AtomicU64::new(0) }
    }

    /// Notes that this connection is live.
    pub(crate) fn live(&self, now: Instant) {
        self.live_until.store(self.ms(now) + LIVE_MS, Ordering::Relaxed);
    }

    /// What a connection may write in a turn; `recovering` is how many read history, if this
    /// one is among them.
    pub(crate) fn share(&self, now: Instant, recovering: Option<usize>) -> Share {
        match recovering {
            Some(readers) if self.ms(now) < self.live_until.load(Ordering::Relaxed) => {
                let share = (SHARED_BYTES / readers.max(1)).max(SHARE_BYTES_MIN);
                Share { bytes: share.min(TURN_BESIDE_LIVE_BYTES), rest_after: Some(share) }
            }
            _ => Share { bytes: TURN_BYTES, rest_after: None },
        }
    }

    fn ms(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_recovers_rests_only_while_somebody_is_live() {
        let start = Instant::now();
        let fairness = Fairness::new(start);
        let at = |ms| start + Duration::from_millis(ms);
        let free = Share { bytes: TURN_BYTES, rest_after: None };
        assert_eq!(fairness.share(at(5), Some(1)), free);
        fairness.live(at(10));
        assert_eq!(fairness.share(at(50), None), free, "the live ones themselves never rest");
        let (share, mut unrested) = (fairness.share(at(50), Some(1)), 0);
        let turns = SHARED_BYTES / TURN_BESIDE_LIVE_BYTES;
        for turn in 1..=3 * turns {
            let rest = share.rest(&mut unrested, share.bytes);
            assert_eq!(rest.is_some(), turn.is_multiple_of(turns), "turn {turn}");
        }
        assert_eq!(fairness.share(at(10 + LIVE_MS), Some(1)), free);
    }

    #[test]
    fn many_who_recover_share_what_one_may_have() {
        let start = Instant::now();
        let fairness = Fairness::new(start);
        fairness.live(start);
        let share = |readers| fairness.share(start, Some(readers));
        assert_eq!(share(1).rest_after, Some(SHARED_BYTES));
        assert_eq!(share(4).rest_after, Some(SHARED_BYTES / 4));
        let least = Share { bytes: SHARE_BYTES_MIN, rest_after: Some(SHARE_BYTES_MIN) };
        assert_eq!(share(10_000), least);
    }
}
