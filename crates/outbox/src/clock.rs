//! The one place of the outbox that reads time and pauses.
//!
//! The machines count in ms from when a task began, by the runtime's clock, which never goes
//! back.

use std::time::Duration;

use gapless_core::Timestamp;
use tokio::time::Instant;

/// Time since a task began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Waits.
pub(crate) async fn pause(wait: Duration) {
    tokio::time::sleep(wait).await;
}
