//! How long flushes take, as counts in buckets: one addition per flush.
//!
//! Buckets grow by a quarter of a power of two, so a quantile is right to within a fifth.
//! Two readings subtracted give the flushes between them, so everybody who looks can have a
//! window of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per power of two.
const STEPS: usize = 4;
/// Powers of two: up to about a minute, in microseconds. What is longer counts as that.
const POWERS: usize = 26;
const BUCKETS: usize = STEPS * POWERS;
/// The first power of two that [`FlushTimes::cumulative`] tells apart: no disk is faster.
const SHOWN_POWER: usize = 5;

/// The counters of a journal.
#[derive(Debug)]
pub(crate) struct Buckets([AtomicU64; BUCKETS]);

impl Default for Buckets {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Buckets {
    pub(crate) fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0[bucket_of(us)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> FlushTimes {
        FlushTimes(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

/// How many flushes took how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushTimes([u64; BUCKETS]);

impl Default for FlushTimes {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl FlushTimes {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those after an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(earlier.0[at])))
    }

    /// For each power of two of microseconds between 32 µs and half a minute: that time, and
    /// how many were shorter.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        let shorter = |power: usize| self.0[..power * STEPS].iter().sum();
        (SHOWN_POWER..POWERS).map(move |power| (Duration::from_micros(1 << power), shorter(power)))
    }

    /// The time that this share of flushes (0.5 for half of them) did not exceed; `None` when
    /// there was none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut passed = 0;
        let at = self.0.iter().position(|bucket| {
            passed += bucket;
            passed >= wanted
        })?;
        Some(Duration::from_micros(end_of(at)))
    }
}

/// The bucket of a time: its power of two, and which quarter of it.
fn bucket_of(us: u64) -> usize {
    let us = us.max(1);
    let power = us.ilog2() as usize;
    let quarter = ((us - (1 << power)) * STEPS as u64) >> power;
    (power * STEPS + quarter as usize).min(BUCKETS - 1)
}

/// The longest time in a bucket, in microseconds.
fn end_of(bucket: usize) -> u64 {
    let (power, quarter) = (bucket / STEPS, (bucket % STEPS) as u64);
    let begin = 1_u64 << power;
    begin + (begin * (quarter + 1)).div_ceil(STEPS as u64) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_its_bucket_and_close_to_the_bucket_s_end() {
        for us in (1..5000).chain([65_536, 100_000, 1_000_000, 40_000_000]) {
            let end = end_of(bucket_of(us));
            assert!(us <= end && end <= us + us / 4, "{us} µs in a bucket that ends at {end}");
            assert!(bucket_of(us) == 0 || end_of(bucket_of(us) - 1) < us);
        }
    }

    #[test]
    fn times_beyond_the_last_bucket_are_counted_in_it() {
        let buckets = Buckets::default();
        buckets.note(Duration::from_secs(1_000_000));
        buckets.note(Duration::ZERO);
        assert_eq!(buckets.read().count(), 2);
    }

    #[test]
    fn cumulative_counts_are_of_what_was_shorter() {
        let buckets = Buckets::default();
        for us in [1, 31, 32, 33, 4095, 4096, 90_000_000] {
            buckets.note(Duration::from_micros(us));
        }
        let shorter: Vec<(u128, u64)> =
            buckets.read().cumulative().map(|(time, count)| (time.as_micros(), count)).collect();
        assert_eq!(shorter[0], (32, 2));
        assert_eq!(shorter[1], (64, 4));
        assert!(shorter.contains(&(4096, 5)) && shorter.contains(&(8192, 6)));
        assert_eq!(shorter.last(), Some(&(33_554_432, 6)));
    }

    #[test]
    fn quantiles_are_of_the_flushes_between_two_readings() {
        let buckets = Buckets::default();
        assert_eq!(buckets.read().quantile(0.5), None);
        buckets.note(Duration::from_secs(10));
        let earlier = buckets.read();
        for us in 1..=100 {
            buckets.note(Duration::from_micros(us * 10));
        }
        let times = buckets.read().since(&earlier);
        assert_eq!(times.count(), 100);
        let us = |share| times.quantile(share).map_or(0, |time| time.as_micros());
        assert!((500..=625).contains(&us(0.5)), "{}", us(0.5));
        assert!((990..=1250).contains(&us(0.99)), "{}", us(0.99));
        assert!((10..=13).contains(&us(0.0)), "{}", us(0.0));
    }
}
