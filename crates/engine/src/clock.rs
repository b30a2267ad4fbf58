//! The one place of the engine that reads time, pauses and draws random numbers.
//!
//! A span is the larger of what the monotonic and the wall clock say: one of them stands still while
//! a machine is suspended, the other may be set.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    monotonic: Duration,
    wall: Duration,
}

/// What the engine takes from the machine beside the network.
pub trait Time: Send + Sync + Debug {
    /// This moment.
    fn now(&self) -> Moment;
    /// Waits.
    fn pause(&self, span: Duration);
    /// A random number, unique to this writer.
    fn nonce(&self) -> u64;

    /// How long ago a moment was.
    fn since(&self, moment: Moment) -> Duration {
        let now = self.now();
        let monotonic = now.monotonic.saturating_sub(moment.monotonic);
        monotonic.max(now.wall.saturating_sub(moment.wall))
    }
}

/// The clocks of the machine.
#[derive(Debug)]
pub struct MachineTime {
    started: Instant,
    drawn: AtomicU64,
}

impl Default for MachineTime {
    fn default() -> Self {
        Self { started: Instant::now(), drawn: AtomicU64::new(0) }
    }
}

impl Time for MachineTime {
    fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { monotonic: self.started.elapsed(), wall }
    }

    fn pause(&self, span: Duration) {
        std::thread::sleep(span);
    }

    fn nonce(&self) -> u64 {
        // Keys from the operating system's randomness, new for each thread; with counter, process
        // and time no two are alike.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(self.drawn.fetch_add(1, Ordering::Relaxed));
        hasher.write_u32(std::process::id());
        hasher.write_u128(self.now().wall.as_nanos());
        hasher.finish()
    }
}

/// A clock that moves only by pauses and when told: for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualTime {
    ms: AtomicU64,
    drawn: AtomicU64,
}

impl ManualTime {
    /// A clock whose random numbers begin here, so that several have different ones.
    #[must_use]
    pub fn new(first_nonce: u64) -> Self {
        Self { ms: AtomicU64::new(0), drawn: AtomicU64::new(first_nonce) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Time for ManualTime {
    fn now(&self) -> Moment {
        let now = Duration::from_millis(self.ms.load(Ordering::SeqCst));
        Moment { monotonic: now, wall: now }
    }

    fn pause(&self, span: Duration) {
        self.advance(span);
    }

    fn nonce(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_the_larger_of_both_clocks() {
        let time = ManualTime::new(1);
        time.advance(Duration::from_secs(100));
        let seconds = Duration::from_secs;
        let suspended = Moment { monotonic: seconds(99), wall: seconds(10) };
        assert_eq!(time.since(suspended), seconds(90));
        let set_back = Moment { monotonic: seconds(40), wall: seconds(500) };
        assert_eq!(time.since(set_back), seconds(60));
        assert_ne!(MachineTime::default().nonce(), MachineTime::default().nonce());
    }
}
