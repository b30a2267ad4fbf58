//! The one place of a shared node that reads time.

use std::time::Instant;

/// Now.
pub(super) fn now() -> Instant {
    Instant::now()
}
