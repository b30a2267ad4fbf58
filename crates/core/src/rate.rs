//! How much per second: a leaky bucket that holds one second's worth.
//!
//! What is larger than a whole second's worth goes through when the bucket is empty, and is paid
//! back afterwards: it would never go through otherwise. Time is handed in.

use core::time::Duration;

/// A rate, and how far it is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_second: u64,
    /// When everything taken so far is paid for.
    paid: Duration,
}

/// What the bucket holds.
const BURST: Duration = Duration::from_secs(1);

impl Rate {
    /// So many per second; zero lets nothing through but what costs nothing.
    pub fn new(per_second: u64) -> Self {
        Self { per_second, paid: Duration::ZERO }
    }

    /// Takes `count`, or returns how long to wait before it can be taken; then nothing was taken.
    /// `now` never goes back.
    pub fn take(&mut self, count: u64, now: Duration) -> Result<(), Duration> {
        if self.per_second == 0 {
            return if count == 0 { Ok(()) } else { Err(BURST) };
        }
        let nanos = u128::from(count) * 1_000_000_000 / u128::from(self.per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begin = self.paid.max(now);
        let paid = begin.saturating_add(cost);
        let fits = paid.saturating_sub(now) <= BURST;
        if fits || begin == now {
            self.paid = paid;
            return Ok(());
        }
        let empty = begin.saturating_sub(now);
        Err(paid.saturating_sub(now).saturating_sub(BURST).min(empty).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_second_s_worth_goes_at_once_and_the_rest_at_the_rate() {
        let mut rate = Rate::new(10);
        for _ in 0..10 {
            assert_eq!(rate.take(1, at(0)), Ok(()));
        }
        assert_eq!(rate.take(1, at(0)), Err(at(100)));
        assert_eq!(rate.take(1, at(100)), Ok(()));
        assert_eq!(rate.take(1, at(100)), Err(at(100)));
    }

    #[test]
    fn what_is_larger_than_the_bucket_goes_when_it_is_empty_and_is_paid_back() {
        let mut rate = Rate::new(10);
        assert_eq!(rate.take(50, at(0)), Ok(()));
        assert_eq!(rate.take(1, at(0)), Err(at(4100)));
        assert_eq!(rate.take(50, at(4000)), Err(at(1000)));
        assert_eq!(rate.take(50, at(5000)), Ok(()));
        assert!(Rate::new(0).take(1, at(0)).is_err());
    }

    proptest! {
        #[test]
        fn waiting_as_told_is_enough_and_the_rate_holds(
            per_second in 1_u64..1000, counts in prop::collection::vec(1_u64..100, 1..50),
        ) {
            let (mut rate, mut now, mut taken) = (Rate::new(per_second), Duration::ZERO, 0);
            for count in counts {
                while let Err(wait) = rate.take(count, now) {
                    prop_assert!(wait > Duration::ZERO);
                    now += wait;
                }
                taken += count;
            }
            // One bucket and the largest piece may be ahead of the rate.
            let most = per_second as u128 * now.as_nanos() / 1_000_000_000;
            prop_assert!(u128::from(taken) <= most + u128::from(per_second) + 100);
        }
    }
}
