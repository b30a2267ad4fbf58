//! The one place of the client that reads time.
//!
//! The machines count in ms from the creation of the client, by a clock that never goes back.
//! It is the runtime's, so that tests can move it.

use std::time::Duration;

use gapless_core::Timestamp;
use tokio::time::Instant;

/// As far as a wait without an end looks ahead: a day, after which it simply looks again.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Time since the client was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let ms = self.origin.elapsed().as_millis();
        Timestamp(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// When to wake for this time; a long while ahead if there is none.
    pub(crate) fn instant(&self, at: Option<Timestamp>) -> Instant {
        let far = self.origin + self.origin.elapsed() + NEVER;
        let at = at.and_then(|at| self.origin.checked_add(Duration::from_millis(at.0)));
        at.map_or(far, |at| at.min(far))
    }
}
