//! A connection that speaks HTTP/2: many requests at the same time, each with a window of its own.
//!
//! A client may close the window of an answer and hold what was made of it. So answers are handed over
//! in small pieces ([`Outgoing`]), the next one when the window is open again; an answer that waits for
//! too long ends the connection, as a socket does that takes nothing. A connection without requests
//! ends as one of HTTP/1.1 does whose next head does not come.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;

use crate::http::listener::options::HttpOptions;
use crate::http::listener::outgoing::Outgoing;
use crate::http::listener::socket::Socket;
use crate::http::listener::wire::{Io, Wire};
use crate::session::sockets::slow_reader_ended;

/// Requests of one connection at the same time, at most.
const STREAMS_MAX: u32 = 100;
/// Bytes of requests' bodies that a client may send before they are read, of one and of all.
const WINDOW_BYTES: u32 = 256 * 1024;
/// How often is looked whether a connection gets on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the requests of one connection wait for.
pub(crate) struct Streams(Mutex<State>);

struct State {
    next: u64,
    /// Answers whose last piece may not have been taken, and since when.
    waiting: BTreeMap<u64, Instant>,
    /// How many requests are being answered, and since when there is none.
    answered: usize,
    quiet_since: Instant,
}

/// That an answer waits until its piece is taken, for as long as this is held.
pub(crate) struct Waiting(Arc<Wire>, u64);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(streams) = self.0.streams() {
            streams.lock().waiting.remove(&self.1);
        }
    }
}

impl Streams {
    pub(crate) fn new() -> Self {
        let (waiting, quiet_since) = (BTreeMap::new(), Instant::now());
        Self(Mutex::new(State { next: 0, waiting, answered: 0, quiet_since }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came.
    pub(crate) fn begin(&self) {
        self.lock().answered += 1;
    }

    /// A request was answered.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.answered -= 1;
        state.quiet_since = Instant::now();
    }

    /// A piece of an answer was handed over.
    pub(crate) fn wait(&self, wire: &Arc<Wire>) -> Waiting {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state.waiting.insert(number, Instant::now());
        Waiting(Arc::clone(wire), number)
    }

    /// Whether no request came for so long.
    fn is_quiet(&self, now: Instant, most: Duration) -> bool {
        let state = self.lock();
        state.answered == 0 && now >= state.quiet_since + most
    }

    /// Whether an answer was not taken for so long.
    fn is_stuck(&self, now: Instant, most: Duration) -> bool {
        self.lock().waiting.values().any(|since| now >= *since + most)
    }
}

/// Serves a connection until it ends, or is ended: because of what its client does, or because the
/// listener closes.
pub(crate) async fn serve<S>(
    options: &HttpOptions,
    (wire, socket): (&Arc<Wire>, Socket),
    service: S,
    closed: impl Future<Output = ()>,
) where
    S: Service<hyper::Request<Incoming>, Response = hyper::Response<Outgoing>, Error = Infallible>,
    S::Future: Send + 'static,
{
    let head_bytes = u32::try_from(options.head_bytes_max).unwrap_or(u32::MAX);
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(options.head_timeout))
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(head_bytes)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .serve_connection(
            TokioIo::new(Io::new(Arc::clone(wire), socket, options.write_timeout)),
            service,
        );
    tokio::pin!(connection);
    // Why it failed is the client's to know: it did it.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = out_of_patience(options, wire) => {}
        () = closed => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(options.drain, connection).await;
}

/// Resolves when a client asks for nothing, or takes nothing, for too long.
async fn out_of_patience(options: &HttpOptions, wire: &Wire) {
    let Some(streams) = wire.streams() else { return std::future::pending().await };
    let mut due = tokio::time::interval(LOOK_EVERY);
    loop {
        let now = due.tick().await;
        if streams.is_quiet(now, options.head_timeout) {
            return;
        }
        let memory = &options.memory;
        let patience = if memory.is_short() { memory.patience() } else { options.write_timeout };
        if streams.is_stuck(now, patience) {
            return slow_reader_ended("http", &wire.peer().to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_when_its_last_request_was_answered_long_ago() {
        let streams = Streams::new();
        let second = Duration::from_secs(1);
        streams.begin();
        tokio::time::advance(10 * second).await;
        assert!(!streams.is_quiet(Instant::now(), 9 * second), "one is being answered");
        streams.end();
        assert!(!streams.is_quiet(Instant::now(), 9 * second), "one just was");
        tokio::time::advance(9 * second).await;
        assert!(streams.is_quiet(Instant::now(), 9 * second));
    }
}
