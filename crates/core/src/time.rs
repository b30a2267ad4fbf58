//! Points in time, handed in from outside: nothing in this crate reads a clock.

use core::fmt;
use core::time::Duration;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// How far the times that a store gives may be ahead of its clock. They never go back by less,
/// so that small corrections of a clock leave them in order; by more they follow it.
pub const AHEAD_MAX: Duration = Duration::from_secs(60);

impl Timestamp {
    /// The latest time there is; used for "never".
    pub const NEVER: Self = Self(u64::MAX);

    /// This time plus `duration`, in whole milliseconds; stops at [`Timestamp::NEVER`].
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_ms(duration)))
    }

    /// This time minus `duration`, in whole milliseconds; stops at zero.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_ms(duration)))
    }

    /// The time for what happens next, at `now` by the clock, if this was the last one given.
    pub fn next(self, now: Self) -> Self {
        if self.is_ahead_of(now) { now } else { self.max(now) }
    }

    /// Whether this is so far ahead of `now` that the clock must have been wrong when it was
    /// given, or is now.
    pub fn is_ahead_of(self, now: Self) -> bool {
        self > now.after(AHEAD_MAX)
    }

    /// How long ago `earlier` was; zero if it lies in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole milliseconds, rounded up so that a wait is never too short.
pub fn whole_ms(duration: Duration) -> u64 {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_time_stands_still_for_a_small_step_back_and_follows_a_large_one() {
        let last = Timestamp(1_000_000_000);
        let ahead = whole_ms(AHEAD_MAX);
        assert_eq!(last.next(Timestamp(last.0 + 1)), Timestamp(last.0 + 1));
        assert_eq!(last.next(Timestamp(last.0 - ahead)), last);
        let far = Timestamp(last.0 - ahead - 1);
        assert_eq!(last.next(far), far);
    }
}
