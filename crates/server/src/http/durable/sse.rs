//! Reading streams as Server-Sent Events (`live=sse`).
//!
//! Each `data` event is followed by a `control` event that says where the reader stands, in one
//! piece, so that no reader holds data without its offset. Text and JSON go as they are; other
//! types as base64. After a while the answer ends, and the reader comes back with its offset; it
//! ends early when something is gone, and then that offset is answered with 410.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gapless_broker::{Delivery, Subscription};
use gapless_core::Seq;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, interval};

use super::answer::{Refusal, SSE_ENCODING, set};
use super::media::MediaType;
use super::offset::{Asked, Offset, cursor};
use super::read::{Chunk, is_behind, subscribe, too_many};
use super::streams::Stream;
use crate::http::listener::server::Shared;

/// How long one answer lasts, as the protocol proposes.
const LIFE: Duration = Duration::from_secs(60);

/// How often a silent answer shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

const COMMENT: &[u8] = b":\n\n";

/// Opens a stream of events.
pub(super) async fn open(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    from: Seq,
    asked: &Asked,
) -> Result<Response, Refusal> {
    let Ok(permit) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return Err(too_many());
    };
    let media = stream.lock().meta.media.clone();
    let changed = stream.changed.subscribe();
    let subscription = subscribe(shared, stream, from).await?;
    let (mut life, mut keep_alive) = (interval(LIFE), interval(KEEP_ALIVE));
    // The first tick comes at once; those that count come after it.
    life.tick().await;
    keep_alive.tick().await;
    let is_text = media.is_text();
    let reader = Reader {
        shared: Arc::clone(shared),
        stream: Arc::clone(stream),
        media,
        subscription,
        changed,
        at: from,
        cursor: asked.cursor,
        told: false,
        ended: false,
        life,
        keep_alive,
        _permit: permit,
    };
    let mut response = Response::new(Body::from_stream(Events(Some(Box::pin(reader.step())))));
    let headers = response.headers_mut();
    set(headers, "content-type", "text/event-stream");
    set(headers, "cache-control", "no-cache");
    // Otherwise some proxies hold events back.
    set(headers, "x-accel-buffering", "no");
    if !is_text {
        set(headers, SSE_ENCODING, "base64");
    }
    Ok(response)
}

struct Reader {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    media: MediaType,
    subscription: Subscription,
    changed: watch::Receiver<()>,
    at: Seq,
    cursor: Option<u64>,
    /// Whether the reader knows where it stands.
    told: bool,
    ended: bool,
    life: Interval,
    keep_alive: Interval,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    /// The next piece of the answer, and the reader for what comes after.
    async fn step(mut self) -> Option<(Bytes, Self)> {
        let piece = self.piece().await?;
        Some((piece, self))
    }

    async fn piece(&mut self) -> Option<Bytes> {
        while !self.ended {
            // In this order: once it is closed, nothing comes behind what is there now.
            let closed = self.stream.is_closed(&self.shared.broker).await.ok()?;
            let behind = is_behind(&self.shared, &self.stream, self.at).ok()?;
            if !behind && (closed || !self.told) {
                return Some(self.control(true, closed).into());
            }
            tokio::select! {
                delivery = self.subscription.next() => match delivery {
                    Ok(Delivery::Messages(messages)) => {
                        let mut chunk = Chunk::at(self.at);
                        chunk.take_all(&messages);
                        return self.data(&chunk).await;
                    }
                    Ok(Delivery::Recovering { .. } | Delivery::Live) => {}
                    Ok(Delivery::Gap(_)) | Err(_) => return None,
                },
                _ = self.changed.changed() => {}
                _ = self.keep_alive.tick() => return Some(Bytes::from_static(COMMENT)),
                _ = self.life.tick() => return None,
                () = self.shared.closed() => return None,
            }
        }
        None
    }

    /// Messages as a `data` event with its `control` event.
    async fn data(&mut self, chunk: &Chunk) -> Option<Bytes> {
        self.at = chunk.next;
        self.stream.used(&self.shared.broker, &mut self.stream.lock());
        let closed = self.stream.is_closed(&self.shared.broker).await.ok()?;
        let behind = is_behind(&self.shared, &self.stream, self.at).ok()?;
        let mut piece = Vec::new();
        if !chunk.bodies.is_empty() {
            let body = self.media.body(&chunk.bodies);
            if self.media.is_text() {
                put_event(&mut piece, "data", &body);
            } else {
                put_event(&mut piece, "data", STANDARD.encode(&body).as_bytes());
            }
        }
        piece.extend(self.control(!behind, closed && !behind));
        Some(piece.into())
    }

    fn control(&mut self, up_to_date: bool, closed: bool) -> Vec<u8> {
        let next = Offset { topic: self.stream.id, next: self.at }.to_string();
        let mut control = json!({ "streamNextOffset": next });
        if closed {
            control["streamClosed"] = true.into();
        } else {
            let cursor = cursor(self.shared.broker.now(), self.cursor);
            control["streamCursor"] = cursor.to_string().into();
        }
        if up_to_date {
            control["upToDate"] = true.into();
        }
        (self.told, self.ended) = (true, closed);
        let mut piece = Vec::new();
        put_event(&mut piece, "control", control.to_string().as_bytes());
        piece
    }
}

/// Puts an event whose data may have lines, ended in any way: none of them can look like
/// another field or event.
fn put_event(out: &mut Vec<u8>, name: &str, data: &[u8]) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    let mut rest = data;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let line = &rest[..end.unwrap_or(rest.len())];
        out.extend_from_slice(b"data:");
        if line.first() == Some(&b' ') {
            // Readers drop one blank after the colon.
            out.push(b' ');
        }
        out.extend_from_slice(line);
        out.push(b'\n');
        let Some(end) = end else { break };
        let length = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + length..];
    }
    out.push(b'\n');
}

type Step = Pin<Box<dyn Future<Output = Option<(Bytes, Reader)>> + Send>>;

/// The pieces of an answer, one step after the other.
struct Events(Option<Step>);

impl futures_core::Stream for Events {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(step) = &mut self.0 else { return Poll::Ready(None) };
        let Poll::Ready(done) = step.as_mut().poll(context) else { return Poll::Pending };
        self.0 = None;
        Poll::Ready(done.map(|(piece, reader)| {
            self.0 = Some(Box::pin(reader.step()));
            Ok(piece)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &str) -> String {
        let mut out = Vec::new();
        put_event(&mut out, "data", data.as_bytes());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_line_of_the_data_can_pass_for_another_event() {
        assert_eq!(event("a"), "event: data\ndata:a\n\n");
        assert_eq!(event(" a\n"), "event: data\ndata:  a\ndata:\n\n");
        let attack = "x\r\n\r\nevent: control\rdata: {}\n\ny";
        let expected = "event: data\ndata:x\ndata:\ndata:event: control\ndata:data: {}\n\
                        data:\ndata:y\n\n";
        assert_eq!(event(attack), expected);
    }
}
