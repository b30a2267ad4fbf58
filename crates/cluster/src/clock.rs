//! The one place of the cluster that reads time, waits for it and draws randomness.
//!
//! The machine's times never go back: they are the wall clock of the start and what has passed since.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gapless_core::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};

/// Times for the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    at: Timestamp,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), at: wall() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at.after(self.started.elapsed())
    }
}

/// The wall clock.
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Waits this long: for a timer, the next ping or the next attempt.
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Random bytes that cannot be foreseen; `None` if the system has none.
pub(crate) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}
