//! The doors of gapless: they translate between a protocol and the broker, and hold no rules.

mod answers;
mod budget;
pub mod http;
mod machine;
pub mod native;
mod numbered;
mod sessions;
mod sockets;

use std::path::PathBuf;

pub use budget::Budget;
pub use sessions::Sessions;

/// Why a door did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; is another server running there?")]
    Listen {
        /// Which address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another server listens on the Unix socket.
    #[error("another server listens on {}", .0.display())]
    InUse(PathBuf),
    /// The system gives no threads to keep processors awake.
    #[error("cannot start a thread: {0}; try without native.awake_us")]
    Threads(std::io::Error),
}

/// A runtime as doors want it: it looks for new events after every few turns, so that busy
/// connections do not keep others waiting. The usual interval is some sixty turns, and a turn
/// of a connection that reads history takes half a millisecond.
///
/// # Errors
/// When the system has no threads to give.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(TURNS_BETWEEN_EVENTS)
        .global_queue_interval(TURNS_BETWEEN_EVENTS)
        .build()
}

/// Turns of tasks before the runtime looks at sockets and at wakes from other threads.
const TURNS_BETWEEN_EVENTS: u32 = 2;
