//! How often to look when no notification comes: soon after something was
//! found, then ever more rarely.

use core::time::Duration;

/// The machine: `found` and `nothing` say how long to wait before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    least: Duration,
    most: Duration,
    wait: Duration,
}

impl Pace {
    /// Waits between `least` and `most`; a `most` below `least` is taken as `least`, and both
    /// are at least a millisecond.
    pub fn new(least: Duration, most: Duration) -> Self {
        let least = least.max(Duration::from_millis(1));
        Self { least, most: most.max(least), wait: least }
    }

    /// There was something.
    pub fn found(&mut self) -> Duration {
        self.wait = self.least;
        self.wait
    }

    /// There was nothing.
    pub fn nothing(&mut self) -> Duration {
        let wait = self.wait;
        self.wait = wait.saturating_mul(2).min(self.most);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_slows_down_to_the_most_and_is_fast_again_after_a_find() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(5), ms(30));
        let waits = [pace.nothing(), pace.nothing(), pace.nothing(), pace.nothing()];
        assert_eq!(waits, [ms(5), ms(10), ms(20), ms(30)]);
        assert_eq!(pace.found(), ms(5));
        assert_eq!(pace.nothing(), ms(5));
    }
}
