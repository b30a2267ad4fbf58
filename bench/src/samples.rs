//! How long single steps took, and what that comes to.

use std::time::Duration;

use crate::table::{Figure, Row};

/// Bounds the memory for samples; what comes later is counted but not sorted in.
const SAMPLES_MAX: usize = 1 << 20;

/// How long single steps took, and how many of them fit in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Half of the steps took at most this many microseconds.
    pub p50_us: f64,
    /// All but one in a hundred took at most this many microseconds.
    pub p99_us: f64,
    /// Steps per second, over the whole run.
    pub per_second: f64,
    /// Bytes per second, over the whole run; 0 where no bytes are moved.
    pub bytes_per_second: f64,
}

/// Single steps of one or several rounds.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    steps_us: Vec<f64>,
    steps: u64,
    took: Duration,
}

impl Samples {
    /// Adds a step.
    pub fn note(&mut self, step: Duration) {
        self.steps += 1;
        if !self.is_full() {
            self.steps_us.push(step.as_secs_f64() * 1e6);
        }
    }

    /// Adds the time that the steps of a round took together, as rates are counted over it.
    pub fn spend(&mut self, round: Duration) {
        self.took += round;
    }

    /// Adds another's steps and time.
    pub fn join(&mut self, other: Self) {
        self.steps += other.steps;
        self.took += other.took;
        let room = SAMPLES_MAX - self.steps_us.len().min(SAMPLES_MAX);
        self.steps_us.extend(other.steps_us.into_iter().take(room));
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.steps_us.len() >= SAMPLES_MAX
    }

    /// How many steps were added.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What they come to, if each moved `step_bytes`.
    pub fn rate(&self, step_bytes: usize) -> Rate {
        let mut sorted = self.steps_us.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let seconds = self.took.as_secs_f64();
        let per_second = if seconds > 0.0 { self.steps as f64 / seconds } else { 0.0 };
        Rate {
            p50_us: percentile(&sorted, 50),
            p99_us: percentile(&sorted, 99),
            per_second,
            bytes_per_second: per_second * step_bytes as f64,
        }
    }
}

impl Rate {
    /// The rate as a row of a table, with times and bytes beside it.
    pub fn row(&self, work: &str) -> Row {
        let row = Row::new(work, Figure::per_second(self.per_second))
            .beside("p50", Figure::micros(self.p50_us))
            .beside("p99", Figure::micros(self.p99_us));
        if self.bytes_per_second > 0.0 {
            return row.beside("bytes", Figure::bytes_per_second(self.bytes_per_second));
        }
        row
    }
}

/// The value that `percent` of the sorted values do not exceed; 0 if there are none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(steps_us: &[u64], round_ms: u64) -> Samples {
        let mut samples = Samples::default();
        for us in steps_us {
            samples.note(Duration::from_micros(*us));
        }
        samples.spend(Duration::from_millis(round_ms));
        samples
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 50.0);
        assert_eq!(percentile(&values, 99), 99.0);
        assert_eq!(percentile(&[7.0], 50), 7.0);
        assert_eq!(percentile(&[], 99), 0.0);
    }

    #[test]
    fn rates_count_steps_and_bytes_over_all_rounds() {
        let mut all = samples(&[3, 1], 500);
        all.join(samples(&[2, 4], 1500));
        let expected = Rate { p50_us: 2.0, p99_us: 4.0, per_second: 2.0, bytes_per_second: 20.0 };
        assert_eq!(all.rate(10), expected);
        assert_eq!(all.steps(), 4);
    }

    #[test]
    fn nothing_measured_is_zero_and_not_a_division_by_it() {
        assert_eq!(Samples::default().rate(10).per_second, 0.0);
    }
}
