//! The one place that reads time and draws randomness; everything else is handed them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gapless_core::{Epoch, Timestamp};
use gapless_journal::Secret;

/// Reads the time.
pub trait Clock: Send + Sync {
    /// Wall-clock time; may go back when the clock is set.
    fn now(&self) -> Timestamp;

    /// Time since some moment; never goes back.
    fn monotonic(&self) -> Duration;
}

/// The clock of the machine.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A clock that stands still until it is moved: for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    ms: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self { ms: AtomicU64::new(now.0) }
    }

    /// Sets the clock, also to an earlier time. Here that moves the monotonic time too.
    pub fn set(&self, now: Timestamp) {
        self.ms.store(now.0, Ordering::Relaxed);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.ms.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.ms.load(Ordering::Relaxed))
    }
}

/// A random id for a new store.
pub fn random_epoch() -> Epoch {
    Epoch(random(b"epoch"))
}

/// A random number that cannot be computed from the epoch, which clients see.
pub fn random_secret() -> Secret {
    Secret::new(random(b"secret"))
}

/// The hasher's keys come from the system's generator; `what` keeps two numbers apart.
fn random(what: &[u8]) -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write(what);
    hasher.write_u64(SystemClock::default().now().0);
    hasher.write_u32(std::process::id());
    hasher.finish()
}
