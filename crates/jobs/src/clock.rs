//! The one place of jobs that reads time and waits for it.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A moment as the other processes of this machine read it: milliseconds of the clock that they share.
/// If this process is stopped in the middle of it, the moment is too early, never too late.
pub(crate) fn shared_ms(then: Instant) -> u64 {
    let shared = shared_now_ms();
    shared + then.saturating_duration_since(now()).as_millis() as u64
}

/// The moment that another process wrote so; too early, never too late, like the above.
pub(crate) fn from_shared_ms(ms: u64) -> Instant {
    let now = now();
    now + Duration::from_millis(ms.saturating_sub(shared_now_ms()))
}

fn shared_now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
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
