//! How long to wait before trying again: a schedule that doubles, is capped, and is spread.
//!
//! The first failure waits `first`, each further one twice as long, up to `most`; then
//! every wait is moved by up to `jitter_percent` of itself, up or down, so that many clients that
//! failed together do not return together. A success restarts the schedule, but not the jitter:
//! failures at regular intervals are still spread.
//!
//! Chance is a seed handed in: the same seed gives the same waits everywhere. What is tried,
//! and when to give up, is not here.

use core::time::Duration;

/// How waits grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait, before jitter.
    pub most: Duration,
    /// By how many percent of itself a wait is moved at most, up or down.
    pub jitter_percent: u8,
}

impl Default for Backoff {
    /// Short enough that a restarted server is found at once, long enough that a dead one
    /// is not troubled: half a second to half a minute, a fifth up or down.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            most: Duration::from_secs(30),
            jitter_percent: 20,
        }
    }
}

/// Why a backoff was refused. No schedule was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackoffError {
    /// Twice nothing is nothing: it would try without pause.
    #[error("the first wait is zero: give at least a millisecond")]
    ZeroFirst,
    /// The first wait would be above the longest.
    #[error(
        "the first wait {first:?} is above the longest {most:?}: lower it, or raise the longest"
    )]
    FirstAboveMost {
        /// The first wait.
        first: Duration,
        /// The longest wait.
        most: Duration,
    },
    /// A jitter of all could take away the whole wait.
    #[error("a jitter of {percent} percent leaves no wait: give less than 100")]
    JitterTooLarge {
        /// The jitter asked for.
        percent: u8,
    },
}

/// What one percent is divided into, so that jitter has finer steps than percents.
const PER_PERCENT: u32 = 1_000;

/// A schedule and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    backoff: Backoff,
    /// How many failures there were since the last success; stops at the largest number.
    failures: u32,
    random: u64,
}

impl Retries {
    /// A schedule at its beginning.
    pub fn new(backoff: Backoff, seed: u64) -> Result<Self, BackoffError> {
        let Backoff { first, most, jitter_percent: percent } = backoff;
        if first.is_zero() {
            return Err(BackoffError::ZeroFirst);
        }
        if first > most {
            return Err(BackoffError::FirstAboveMost { first, most });
        }
        if percent >= 100 {
            return Err(BackoffError::JitterTooLarge { percent });
        }
        Ok(Self { backoff, failures: 0, random: seed })
    }

    /// How many failures there were since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// It failed: how long to wait before trying again.
    pub fn failed(&mut self) -> Duration {
        let Backoff { first, most, jitter_percent } = self.backoff;
        let doubled = 2_u32.saturating_pow(self.failures);
        let wait = first.saturating_mul(doubled).min(most);
        self.failures = self.failures.saturating_add(1);

        let percent = u32::from(jitter_percent);
        let least = (100 - percent) * PER_PERCENT;
        let share = least + self.below(2 * percent * PER_PERCENT + 1);
        wait.saturating_mul(share) / (100 * PER_PERCENT)
    }

    /// It succeeded: the next failure waits as the first.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// A number below `bound`, which is not zero.
    fn below(&mut self, bound: u32) -> u32 {
        let draw = self.draw() % u64::from(bound);
        u32::try_from(draw).expect("what is below a small number is small")
    }

    /// The next number of splitmix64.
    fn draw(&mut self) -> u64 {
        let drawn = splitmix(self.random);
        self.random = self.random.wrapping_add(STEP);
        drawn
    }
}

/// By how much the state of splitmix64 moves.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that splitmix64 draws in this state.
pub(crate) fn splitmix(state: u64) -> u64 {
    let mut z = state.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn retries(seed: u64) -> Retries {
        Retries::new(Backoff::default(), seed).unwrap()
    }

    fn waits(seed: u64, count: usize) -> Vec<Duration> {
        let mut retries = retries(seed);
        (0..count).map(|_| retries.failed()).collect()
    }

    #[test]
    fn schedules_that_cannot_wait_are_refused() {
        let good = Backoff::default();
        let zero = Backoff { first: Duration::ZERO, ..good };
        assert_eq!(Retries::new(zero, 1), Err(BackoffError::ZeroFirst));
        let (first, most) = (Duration::from_secs(31), good.most);
        let above = Backoff { first, ..good };
        assert_eq!(Retries::new(above, 1), Err(BackoffError::FirstAboveMost { first, most }));
        let wild = Backoff { jitter_percent: 100, ..good };
        assert_eq!(Retries::new(wild, 1), Err(BackoffError::JitterTooLarge { percent: 100 }));
    }

    #[test]
    fn without_jitter_waits_double_up_to_the_longest() {
        let plain = Backoff { jitter_percent: 0, ..Backoff::default() };
        let mut retries = Retries::new(plain, 7).unwrap();
        let seen: Vec<_> = (0..9).map(|_| retries.failed().as_millis()).collect();
        assert_eq!(seen, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        retries.succeeded();
        assert_eq!(retries.failed(), plain.first);
    }

    #[test]
    fn the_same_seed_gives_the_same_waits_and_another_seed_others() {
        assert_eq!(waits(5, 20), waits(5, 20));
        assert_ne!(waits(5, 20), waits(6, 20));
    }

    /// The numbers of splitmix64 for the seed zero, as its author published them.
    #[test]
    fn draws_are_those_of_splitmix64() {
        let mut retries = retries(0);
        let draws = [retries.draw(), retries.draw(), retries.draw()];
        assert_eq!(draws, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn first_waits_of_many_clients_are_spread_over_the_whole_range() {
        let firsts: Vec<_> = (0..1_000).map(|seed| waits(seed, 1)[0].as_millis()).collect();
        for from in (400..600).step_by(20) {
            let here = firsts.iter().filter(|ms| (from..from + 20).contains(*ms)).count();
            assert!((50..200).contains(&here), "{here} of 1000 wait {from} ms and a little");
        }
    }

    proptest! {
        /// For all settings, a wait stays within its jitter around the doubled, capped
        /// one, is never zero, and restarts after a success.
        #[test]
        fn every_wait_is_within_its_bounds(
            seed in any::<u64>(),
            first in 1_u64..100_000,
            more in 0_u64..10_000_000,
            jitter_percent in 0_u8..100,
            outcomes in proptest::collection::vec(proptest::bool::weighted(0.9), 1..120),
        ) {
            let most = first + more;
            let (first_wait, most_wait) = (Duration::from_millis(first), Duration::from_millis(most));
            let backoff = Backoff { first: first_wait, most: most_wait, jitter_percent };
            let mut retries = Retries::new(backoff, seed).unwrap();
            let mut base = first;
            for failed in outcomes {
                if !failed {
                    retries.succeeded();
                    prop_assert_eq!(retries.failures(), 0);
                    base = first;
                    continue;
                }
                let wait = retries.failed().as_nanos();
                let one_percent = u128::from(base) * 10_000;
                let percent = u128::from(jitter_percent);
                prop_assert!(wait >= one_percent * (100 - percent));
                prop_assert!(wait <= one_percent * (100 + percent));
                prop_assert!(wait > 0);
                base = (base * 2).min(most);
            }
        }

        #[test]
        fn no_wait_overflows(seed in any::<u64>(), jitter_percent in 0_u8..100) {
            let backoff = Backoff { first: Duration::from_nanos(1), most: Duration::MAX, jitter_percent };
            let mut retries = Retries::new(backoff, seed).unwrap();
            for _ in 0..200 {
                retries.failed();
            }
            prop_assert_eq!(retries.failures(), 200);
        }
    }
}
