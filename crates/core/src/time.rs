//! Points in time, handed in from outside: nothing in this crate reads a clock.

use core::fmt;
use core::time::Duration;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

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
