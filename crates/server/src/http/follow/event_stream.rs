//! Server-Sent Events as the body of a response, for any kind of event.
//!
//! A [`Feed`] produces the events; this adds what all streams share: a permit, the hint when to
//! reconnect, comments that keep the connection alive, and an end when the listener closes.
//!
//! It is pulled: the feed is asked only when the connection can take more. So a slow reader
//! costs one frame here and one buffer in the connection, and its feed stands still. The
//! closing of the connection drops the body, and with it the feed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use gapless_protocol::ErrorCode;
use hyper::body::Frame;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;

/// What a stream of events is called.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// When a client should come back after a connection was lost.
const RETRY_MS: u64 = 1000;

/// Bytes of events after which a frame is closed: large enough to be worth a write, small
/// enough that thousands of streams can have one each.
pub(crate) const FRAME_BYTES: usize = 32 * 1024;

/// Where the events of a stream come from.
pub(crate) trait Feed: Send + Unpin + 'static {
    /// Some events, ready to be sent, about [`FRAME_BYTES`] of them at most; `None` is the
    /// end of the stream. Never an empty frame.
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// The comment that is sent when nothing else was for a while.
#[derive(Clone, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) every: Duration,
    /// The comment, with its line ends.
    pub(crate) comment: Bytes,
}

impl KeepAlive {
    pub(crate) fn new(every: Duration, text: &str) -> Self {
        let mut comment = String::new();
        for line in text.split(['\n', '\r']) {
            comment.push_str(": ");
            comment.push_str(line);
            comment.push('\n');
        }
        comment.push('\n');
        Self { every, comment: comment.into() }
    }
}

impl Default for KeepAlive {
    /// Shorter than what proxies usually wait for.
    fn default() -> Self {
        Self { every: Duration::from_secs(15), comment: Bytes::from_static(b": keep-alive\n\n") }
    }
}

/// The right to one of the listener's streams, for as long as it is held.
///
/// # Errors
/// When as many are open as may be. Nothing was done.
pub(crate) fn stream_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Problem> {
    Arc::clone(&shared.streams).try_acquire_owned().map_err(|_| {
        let max = shared.options.streams_max;
        let detail = format!("{max} streams are open, which is the limit; close one, or come back");
        Problem::new(ErrorCode::TooManySubscriptions, detail).with("streams_max", max)
    })
}

/// A response that streams what the feed gives.
pub(crate) fn event_stream(
    shared: Arc<Shared>,
    permit: OwnedSemaphorePermit,
    keep_alive: KeepAlive,
    feed: impl Feed,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Proxies that gather answers would hold the events back.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    let mut timer = interval(keep_alive.every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick would come at once.
    timer.reset();
    let stream = EventStream {
        feed,
        keep_alive,
        timer,
        sent: false,
        closed: Box::pin(async move { shared.closed().await }),
        state: State::Opening,
        _permit: permit,
    };
    (headers, Body::new(stream)).into_response()
}

struct EventStream<F> {
    feed: F,
    keep_alive: KeepAlive,
    timer: Interval,
    /// Something was sent since the timer was set.
    sent: bool,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    state: State,
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Ended,
}

impl<F: Feed> EventStream<F> {
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.state {
            State::Opening => {
                // So the client sees that it is answered, even when nothing comes for long.
                self.state = State::Open;
                return Poll::Ready(Some(Bytes::from(format!("retry: {RETRY_MS}\n\n"))));
            }
            State::Open => {}
            State::Ended => return Poll::Ready(None),
        }
        if self.closed.as_mut().poll(context).is_ready() {
            // The end of the stream; the client comes back with the last id it saw.
            self.state = State::Ended;
            return Poll::Ready(Some(Bytes::from_static(b": the server is closing\n\n")));
        }
        if let Poll::Ready(events) = self.feed.poll_events(context) {
            self.sent = true;
            if events.is_none() {
                self.state = State::Ended;
            }
            return Poll::Ready(events);
        }
        // The time counts from the last frame. It is set when the feed has run dry, not for
        // every frame of many.
        if std::mem::take(&mut self.sent) {
            self.timer.reset();
        }
        let comment = &self.keep_alive.comment;
        self.timer.poll_tick(context).map(|_| Some(comment.clone()))
    }
}

impl<F: Feed> HttpBody for EventStream<F> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.get_mut().poll_bytes(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.state == State::Ended
    }
}

/// Writes an event. Lines of `data` become lines of the event: a client reads them with `\n`
/// between, whichever line end stood there.
pub(crate) fn put_event(
    out: &mut Vec<u8>,
    event: Option<&str>,
    id: Option<&dyn std::fmt::Display>,
    data: &str,
) {
    put_head(out, event, id);
    let mut rest = data;
    loop {
        let (line, after) = match rest.find(['\n', '\r']) {
            None => (rest, None),
            Some(end) if rest[end..].starts_with("\r\n") => (&rest[..end], Some(&rest[end + 2..])),
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
        };
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        match after {
            Some(after) => rest = after,
            None => break,
        }
    }
    out.push(b'\n');
}

/// The lines of an event before its data.
pub(crate) fn put_head(out: &mut Vec<u8>, event: Option<&str>, id: Option<&dyn std::fmt::Display>) {
    use std::io::Write;

    if let Some(event) = event {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.as_bytes());
        out.push(b'\n');
    }
    if let Some(id) = id {
        // A Vec takes everything.
        let _ = writeln!(out, "id: {id}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &str) -> String {
        let mut out = Vec::new();
        put_event(&mut out, Some("gap"), Some(&7), data);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_kind_of_line_end_begins_a_line_of_data() {
        assert_eq!(event("one"), "event: gap\nid: 7\ndata: one\n\n");
        assert_eq!(
            event("a\nb\r\nc\rd"),
            "event: gap\nid: 7\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
        );
        assert_eq!(event(""), "event: gap\nid: 7\ndata: \n\n");
        assert_eq!(event("a\n"), "event: gap\nid: 7\ndata: a\ndata: \n\n");
    }

    #[test]
    fn a_comment_of_several_lines_stays_a_comment() {
        let keep_alive = KeepAlive::new(Duration::from_secs(1), "a\ndata: b");
        assert_eq!(keep_alive.comment, ": a\n: data: b\n\n");
    }
}
