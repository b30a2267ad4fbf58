//! Back-pressure that grows with what waits for a segment.
//!
//! Publishers can be faster than segments are written. Without pacing they would run at full
//! speed until memory is full and then stand still until the next segment is there, or until
//! another file of the log is made. So from half of the limit on, in memory or in the log, the log
//! takes messages at a rate that falls from any to none as the rest of the limit is used up. It
//! settles where it equals that of the segments, and no ack waits for more than a short rest.
//!
//! The rate is kept by the flusher's thread, which rests after a turn for as long as what it wrote
//! should take, and by a limit of what may gather meanwhile. Without such a thread there is no
//! pacing: who writes in its own thread does not sleep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::journal::Inner;

/// The longest rest after a turn: what pacing adds to an ack at most.
const REST_MAX: Duration = Duration::from_millis(10);
/// The shortest rest that is worth a wake-up; shorter ones add up.
const REST_MIN: Duration = Duration::from_millis(1);
/// Bytes that may gather during a rest at least, however low the rate is. With a rest of the
/// longest kind after each turn, what is left of the limit lasts for seconds.
const GATHERED_BYTES_MIN: u64 = 64 * 1024;

/// The rest that is due.
#[derive(Debug)]
pub(crate) struct Pacing {
    /// Whether there is a thread that can rest.
    has_flusher: bool,
    /// In nanoseconds. Only the flusher's thread changes it.
    owed: AtomicU64,
}

impl Pacing {
    pub(crate) fn new(has_flusher: bool) -> Self {
        Self { has_flusher, owed: AtomicU64::new(0) }
    }
}

impl Inner {
    /// Bytes per second that the log should take; `None` if it may take any.
    fn paced_rate(&self) -> Option<u64> {
        let memory = self.unsealed.load(Ordering::Acquire);
        let unsealed = memory.max(self.unsealed_log.load(Ordering::Acquire));
        rate(unsealed, self.options.unsealed_bytes_max).filter(|_| self.pacing.has_flusher)
    }

    /// Whether the log is to take less than it could, so that only the flusher's thread writes.
    pub(crate) fn is_paced(&self) -> bool {
        self.paced_rate().is_some()
    }

    /// Whether so many bytes have gathered that another message must wait for the next turn.
    pub(crate) fn is_ahead_of_pace(&self, gathered: u64) -> bool {
        self.paced_rate().is_some_and(|rate| {
            let in_a_rest = u128::from(rate) * REST_MAX.as_millis() / 1000;
            u128::from(gathered) >= in_a_rest.max(GATHERED_BYTES_MIN.into())
        })
    }

    /// How long the flusher's thread rests after so many bytes were written.
    pub(crate) fn rest_after(&self, bytes: u64) -> Duration {
        let Some(rate) = self.paced_rate() else {
            self.pacing.owed.store(0, Ordering::Relaxed);
            return Duration::ZERO;
        };
        let (rest, owed) = rest(self.pacing.owed.load(Ordering::Relaxed), bytes, rate);
        self.pacing.owed.store(owed, Ordering::Relaxed);
        rest
    }
}

/// How long to rest after so many bytes, at that rate, if so many nanoseconds were owed before;
/// with it, how many are owed from now on.
fn rest(owed: u64, bytes: u64, rate: u64) -> (Duration, u64) {
    let takes = u128::from(bytes) * Duration::from_secs(1).as_nanos() / u128::from(rate.max(1));
    // What is more than the longest rest is forgotten: if that is too often, the rate falls.
    let due = (u128::from(owed) + takes).min(REST_MAX.as_nanos()) as u64;
    let rest = Duration::from_nanos(due);
    if rest < REST_MIN { (Duration::ZERO, due) } else { (rest, 0) }
}

/// Bytes per second with so many of `max` bytes unsealed: any up to half of them, none with all of
/// them. Between, what is left of them would last a second or less.
fn rate(unsealed: u64, max: u64) -> Option<u64> {
    let half = max / 2;
    let over = unsealed.checked_sub(half).filter(|over| *over > 0)?;
    let left = max.saturating_sub(unsealed);
    let rate = u128::from(left) * u128::from(max - half) / u128::from(over);
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn the_rate_falls_from_any_to_none_as_the_limit_is_used_up() {
        let at = |unsealed: u64| rate(unsealed * MIB, 256 * MIB).map(|rate| rate / MIB);
        assert_eq!(at(0), None);
        assert_eq!(at(128), None);
        assert!(at(129) > Some(10_000));
        assert_eq!(at(192), Some(128));
        assert_eq!(at(256), Some(0));
        assert_eq!(at(300), Some(0));
        let rates: Vec<_> = (129..=256).map(at).collect();
        assert!(rates.windows(2).all(|pair| pair[1] <= pair[0]), "{rates:?}");
    }
    #[test]
    fn short_rests_add_up_and_none_is_longer_than_the_longest() {
        let mut owed = 0;
        let mut rested = Duration::ZERO;
        for _ in 0..1000 {
            // A tenth of a millisecond each.
            let (rest, left) = rest(owed, 100, 1_000_000);
            assert!(rest.is_zero() || rest == REST_MIN, "{rest:?}");
            owed = left;
            rested += rest;
        }
        assert_eq!(rested, Duration::from_millis(100));
        assert_eq!(rest(0, 64 * MIB, 0), (REST_MAX, 0));
    }
}
