//! When a message that failed is tried again: a schedule, spread by a seed that is handed in.
//!
//! The wait depends on nothing but the schedule, how often it failed, and the seed: so every
//! replay gives the same. How often is often enough is not decided here.

use alloc::vec::Vec;
use core::time::Duration;

use crate::backoff::splitmix;

/// Most steps a schedule may list.
pub const STEPS_MAX: usize = 64;
/// Longest wait between two attempts, before jitter.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long to wait after each failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// These, one after the other; the last one again and again. None means at once.
    Steps(Vec<Duration>),
    /// The first, each further one longer by this factor, up to the most.
    Growing {
        /// The wait after the first failure.
        first: Duration,
        /// By how much the next one is longer.
        factor: u32,
        /// The longest.
        most: Duration,
    },
}

/// A schedule of waits and how far they are spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The waits.
    pub waits: Waits,
    /// By how many percent of itself a wait is moved at most, up or down.
    pub jitter_percent: u8,
}

impl Default for RetryPolicy {
    /// A second, doubling up to five minutes, a fifth up or down.
    fn default() -> Self {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(300));
        Self { waits: Waits::Growing { first, factor: 2, most }, jitter_percent: 20 }
    }
}

/// Why a schedule was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryError {
    /// There are too many steps.
    #[error("{count} waits are listed: list at most {STEPS_MAX}")]
    TooManySteps {
        /// How many.
        count: usize,
    },
    /// A wait is too long.
    #[error("a wait of {wait:?} is too long: at most {} days", WAIT_MAX.as_secs() / 86_400)]
    TooLong {
        /// The wait.
        wait: Duration,
    },
    /// A factor of zero makes every wait but the first nothing.
    #[error("the factor is zero: give at least one")]
    ZeroFactor,
    /// A jitter of all could take away the whole wait.
    #[error("a jitter of {percent} percent leaves no wait: give less than 100")]
    JitterTooLarge {
        /// The jitter asked for.
        percent: u8,
    },
}

/// What one percent is divided into, so that jitter has finer steps than percents.
const PER_PERCENT: u64 = 1_000;

impl RetryPolicy {
    /// Tries again at once.
    pub fn at_once() -> Self {
        Self { waits: Waits::Steps(Vec::new()), jitter_percent: 0 }
    }

    /// Whether this schedule makes sense.
    ///
    /// # Errors
    /// Says what does not.
    pub fn validate(&self) -> Result<(), RetryError> {
        if self.jitter_percent >= 100 {
            return Err(RetryError::JitterTooLarge { percent: self.jitter_percent });
        }
        let longest = match &self.waits {
            Waits::Steps(steps) if steps.len() > STEPS_MAX => {
                return Err(RetryError::TooManySteps { count: steps.len() });
            }
            Waits::Steps(steps) => steps.iter().max().copied().unwrap_or_default(),
            Waits::Growing { factor: 0, .. } => return Err(RetryError::ZeroFactor),
            Waits::Growing { first, most, .. } => *first.max(most),
        };
        if longest > WAIT_MAX { Err(RetryError::TooLong { wait: longest }) } else { Ok(()) }
    }

    /// How long to wait after the failure of this number (the first is 1).
    pub fn wait(&self, failures: u32, seed: u64) -> Duration {
        let before = failures.saturating_sub(1);
        let wait = match &self.waits {
            Waits::Steps(steps) => {
                let at = (before as usize).min(steps.len().saturating_sub(1));
                steps.get(at).copied().unwrap_or_default()
            }
            Waits::Growing { first, factor, most } => {
                first.saturating_mul(factor.saturating_pow(before)).min(*most)
            }
        };
        let percent = u64::from(self.jitter_percent);
        let least = (100 - percent) * PER_PERCENT;
        let share = least + splitmix(seed) % (2 * percent * PER_PERCENT + 1);
        let nanos = wait.as_nanos() * u128::from(share) / u128::from(100 * PER_PERCENT);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn listed_waits_go_one_after_the_other_and_the_last_stays() {
        let waits = Waits::Steps(vec![seconds(1), seconds(5)]);
        let policy = RetryPolicy { waits, jitter_percent: 0 };
        let waits: Vec<_> = (1..5).map(|failures| policy.wait(failures, 7).as_secs()).collect();
        assert_eq!(waits, [1, 5, 5, 5]);
        assert_eq!(RetryPolicy::at_once().wait(3, 7), Duration::ZERO);
    }

    #[test]
    fn growing_waits_grow_up_to_the_most() {
        let waits = Waits::Growing { first: seconds(2), factor: 3, most: seconds(50) };
        let policy = RetryPolicy { waits, jitter_percent: 0 };
        let waits: Vec<_> = (1..6).map(|failures| policy.wait(failures, 7).as_secs()).collect();
        assert_eq!(waits, [2, 6, 18, 50, 50]);
        assert_eq!(policy.wait(u32::MAX, 7), seconds(50));
    }

    #[test]
    fn schedules_that_make_no_sense_are_refused() {
        let jitter = RetryPolicy { jitter_percent: 100, ..RetryPolicy::default() };
        assert_eq!(jitter.validate(), Err(RetryError::JitterTooLarge { percent: 100 }));
        let waits = Waits::Growing { first: seconds(1), factor: 0, most: seconds(1) };
        let zero = RetryPolicy { waits, ..RetryPolicy::default() };
        assert_eq!(zero.validate(), Err(RetryError::ZeroFactor));
        let many = RetryPolicy { waits: Waits::Steps(vec![seconds(1); 65]), jitter_percent: 0 };
        assert_eq!(many.validate(), Err(RetryError::TooManySteps { count: 65 }));
        let long = RetryPolicy { waits: Waits::Steps(vec![Duration::MAX]), jitter_percent: 0 };
        assert_eq!(long.validate(), Err(RetryError::TooLong { wait: Duration::MAX }));
        assert_eq!(RetryPolicy::default().validate(), Ok(()));
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_bounds_and_is_the_same_for_a_seed(
            seed in any::<u64>(), percent in 0..100_u8, failures in 1..40_u32,
        ) {
            let policy = RetryPolicy { jitter_percent: percent, ..RetryPolicy::default() };
            let plain = RetryPolicy { jitter_percent: 0, ..policy.clone() }.wait(failures, seed);
            let wait = policy.wait(failures, seed);
            let percent = u32::from(percent);
            prop_assert!(wait >= plain * (100 - percent) / 100);
            prop_assert!(wait <= plain * (100 + percent) / 100);
            prop_assert_eq!(wait, policy.wait(failures, seed));
        }
    }
}
