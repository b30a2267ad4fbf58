//! The one place of jobs that reads time and waits for it.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How old something is that was changed then.
pub(crate) fn age(changed: std::time::SystemTime) -> Duration {
    changed.elapsed().unwrap_or_default()
}

/// Waits this long: for the next look, lease or attempt.
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until then.
pub(crate) async fn pause_until(then: Instant) {
    tokio::time::sleep_until(then).await;
}
