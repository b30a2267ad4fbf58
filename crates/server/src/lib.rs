//! The listeners of gapless: they translate between a protocol and the broker, and hold no rules.

mod answers;
mod budget;
pub mod certificate;
mod cluster;
pub mod forward;
pub mod http;
pub mod json;
mod machine;
pub mod native;
mod process;
mod read_ahead;
mod session;
mod tls;

use std::path::PathBuf;

pub use budget::Budget;
pub use forward::Duplex;
pub use gapless_auth::{Auth, AuthError, AuthOptions};
pub use session::connections::Connections;
pub use session::sessions::Sessions;
pub use tls::{Tls, TlsError, TlsFiles};

/// Why a listener did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", perhaps_in_use(source))]
    Listen {
        /// Which address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another server listens on the Unix socket.
    #[error("another server listens on {}", .0.display())]
    InUse(PathBuf),
    /// Roles and identities cannot be read.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The system gives no threads to keep processors awake.
    #[error("cannot start a thread: {0}; try without native.awake_us")]
    Threads(std::io::Error),
}

fn perhaps_in_use(error: &std::io::Error) -> &'static str {
    let in_use = error.kind() == std::io::ErrorKind::AddrInUse;
    if in_use { "; is another server running there?" } else { "" }
}

/// A runtime tuned for the listeners: it looks for new events after every few turns, so that busy
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
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
}

/// Threads for what may block: admin calls that wait for a flush, and looks into history. More
/// calls than that wait for a thread; all that wait for one flush go on together anyway.
const BLOCKING_THREADS_MAX: usize = 64;

/// Turns of tasks before the runtime looks at sockets and at wakes from other threads. Most turns are
/// short, and a look costs as much as one; a task whose turn was long lets the runtime look before
/// its next one by itself.
const TURNS_BETWEEN_EVENTS: u32 = 8;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    /// Only a failing test waits for it.
    const DEADLINE: Duration = Duration::from_secs(30);

    #[test]
    fn l8_calls_that_block_share_a_bounded_number_of_threads() {
        let runtime = super::runtime().expect("a runtime");
        // How many run now, how many ran at the same time at most, and whether they may end.
        let state = Arc::new((Mutex::new((0, 0, false)), Condvar::new()));
        let blocked = (0..4 * super::BLOCKING_THREADS_MAX).map(|_| {
            let state = Arc::clone(&state);
            runtime.spawn_blocking(move || {
                let (lock, changed) = &*state;
                let mut now = lock.lock().expect("no one panics");
                now.0 += 1;
                now.1 = now.1.max(now.0);
                changed.notify_all();
                let mut now = changed
                    .wait_timeout_while(now, DEADLINE, |now| !now.2)
                    .expect("no one panics")
                    .0;
                now.0 -= 1;
            })
        });
        let blocked: Vec<_> = blocked.collect();
        let (lock, changed) = &*state;
        let all = |now: &mut (usize, usize, bool)| now.0 < super::BLOCKING_THREADS_MAX;
        let now = lock.lock().expect("no one panics");
        let mut now = changed.wait_timeout_while(now, DEADLINE, all).expect("no one panics").0;
        now.2 = true;
        changed.notify_all();
        drop(now);
        runtime.block_on(async {
            for each in blocked {
                each.await.expect("it ends");
            }
        });
        assert_eq!(lock.lock().expect("no one panics").1, super::BLOCKING_THREADS_MAX);
    }
}
