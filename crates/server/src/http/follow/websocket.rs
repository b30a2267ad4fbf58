//! Events of a follower over a WebSocket: each a JSON text message.
//!
//! A message is its usual JSON with `"event": "message"`; everything else has its own name
//! there, and the `cursor` behind it if it moves the place. Nothing is expected from the
//! client but that it answers pings; it closes to unsubscribe.
//!
//! A message with a long body is sent in fragments, as the client takes them.
//!
//! It is pulled as the other streams are: the subscription is asked only when everything before
//! was taken. The end is a close with a reason: 1000 when the topic is deleted, 1001 when the
//! server closes or the client does not answer pings (reconnect), 1008 when the client does what
//! it may not or its right is taken away, 1002 when it breaks the protocol, 1011 when history
//! cannot be read.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_core::Stream;
use futures_util::{SinkExt, StreamExt};
use gapless_auth::Caller;
use gapless_broker::FollowError;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite::Error as WebSocketError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data as OpData, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};

use crate::budget::Share;
use crate::http::follow::event_stream::FRAME_BYTES;
use crate::http::follow::events::{Asked, Event, Events};
use crate::http::follow::upgrade::{Socket, Upgrade};
use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;
use crate::json::long_body::LongBody;
use crate::session::sessions::CLOSED_BY_ADMIN;

/// Bytes that are read at once: clients send pongs and a close.
const READ_BYTES: usize = 1024;

/// Most bytes of a message from a client: it has nothing to say.
const RECEIVED_BYTES_MAX: usize = 4096;

/// Most bytes of output in memory: several pieces, and the largest key and headers as JSON.
const WRITE_BYTES_MAX: usize = 1024 * 1024;

/// A client that has answered none of so many pings is gone.
const PINGS_UNANSWERED_MAX: u32 = 2;

/// How long the client gets to take a close.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Answers the upgrade; the session goes on by itself, for as long as the permit is held.
pub(crate) fn accept(
    upgrade: Upgrade,
    (shared, caller): (Arc<Shared>, Caller),
    permit: OwnedSemaphorePermit,
    ping_every: Duration,
    events: Events,
) -> Result<Response, Problem> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(FRAME_BYTES)
        .max_write_buffer_size(WRITE_BYTES_MAX)
        .max_message_size(Some(RECEIVED_BYTES_MAX))
        .max_frame_size(Some(RECEIVED_BYTES_MAX));
    let accepted = upgrade.accept(config, move |socket| async move {
        let mut timer = interval(ping_every);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick would come at once.
        timer.reset();
        let share = shared.options.memory.share();
        let closed = Box::pin(async move {
            tokio::select! {
                () = shared.closed() => (CloseCode::Away, CLOSING.to_owned()),
                lost = caller.lost() => (CloseCode::Policy, lost.to_string()),
            }
        });
        let session = Session { socket, events, timer, unanswered: 0, closed, end: None, share };
        session.run(ping_every).await;
        drop(permit);
    });
    accepted.ok_or_else(|| Problem::bad_request("no WebSocket was asked for"))
}

struct Session {
    socket: Socket,
    events: Events,
    timer: Interval,
    /// Pings since the client was last heard.
    unanswered: u32,
    /// When the server ends it, and how.
    closed: Pin<Box<dyn Future<Output = (CloseCode, String)> + Send>>,
    /// How it ends, once everything was sent.
    end: Option<(CloseCode, String)>,
    /// What it holds of the memory of all connections.
    share: Share,
}

/// What a session does next.
enum Turn {
    /// These are to be sent, and then this message, whose beginning is the last of them.
    Send(Vec<Message>, Option<LongBody>),
    /// The client was heard.
    Heard,
    /// It is time for a ping.
    Ping,
    /// It is over; the close frame says why.
    Close(CloseCode, String),
    /// The client has closed.
    Closed,
    /// The client is gone.
    Gone,
}

impl Session {
    async fn run(mut self, ping_every: Duration) {
        let patience = ping_every * (PINGS_UNANSWERED_MAX + 1);
        loop {
            let turn = poll_fn(|context| self.poll_turn(context)).await;
            let (messages, mut long) = match turn {
                Turn::Heard => {
                    self.unanswered = 0;
                    continue;
                }
                Turn::Gone => return,
                Turn::Closed => return self.drain().await,
                Turn::Close(code, reason) => return self.close(code, reason).await,
                Turn::Send(messages, long) => (messages, long),
                Turn::Ping if self.unanswered >= PINGS_UNANSWERED_MAX => {
                    return self.close(CloseCode::Away, "pings were not answered".into()).await;
                }
                Turn::Ping => {
                    self.unanswered += 1;
                    (vec![Message::Ping(Bytes::new())], None)
                }
            };
            self.share.set(messages.iter().map(Message::len).sum());
            let mut next = Some(messages);
            while let Some(messages) = next.take() {
                // A client that takes nothing for so long does not answer pings either.
                let sent = timeout(patience, send(&mut self.socket, messages));
                tokio::select! {
                    sent = sent => match sent {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) | Err(_) => return,
                    },
                    (code, reason) = self.closed.as_mut() => {
                        return self.close(code, reason).await;
                    }
                }
                next = self.next_fragment(&mut long);
            }
            self.share.set(0);
        }
    }

    /// The next piece of a long message.
    fn next_fragment(&mut self, long: &mut Option<LongBody>) -> Option<Vec<Message>> {
        let mut out = Vec::new();
        let is_last = long.as_mut()?.put(&mut out, self.share.budget().piece_bytes(FRAME_BYTES));
        if is_last {
            *long = None;
        }
        self.share.set(out.len());
        Some(vec![Message::Frame(Frame::message(out, OpCode::Data(OpData::Continue), is_last))])
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        match Pin::new(&mut self.socket).poll_next(context) {
            Poll::Pending => {}
            Poll::Ready(None) => return Poll::Ready(Turn::Gone),
            Poll::Ready(Some(Ok(Message::Close(_)))) => return Poll::Ready(Turn::Closed),
            Poll::Ready(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => {
                return Poll::Ready(Turn::Heard);
            }
            Poll::Ready(Some(Ok(Message::Text(_) | Message::Binary(_)))) => {
                let reason = "nothing is expected here but pongs and a close".to_owned();
                return Poll::Ready(Turn::Close(CloseCode::Policy, reason));
            }
            Poll::Ready(Some(Err(failed))) => {
                return Poll::Ready(Turn::Close(CloseCode::Protocol, failed.to_string()));
            }
        }
        if let Poll::Ready((code, reason)) = self.closed.as_mut().poll(context) {
            return Poll::Ready(Turn::Close(code, reason));
        }
        let mut messages = Vec::new();
        let (mut bytes, mut end, mut long) = (0, None, None);
        let most = self.share.budget().piece_bytes(FRAME_BYTES);
        let asked = self.events.poll(context, &mut |event| {
            let text;
            (text, long) = text_of(&event);
            bytes += text.len();
            let is_whole = long.is_none();
            let first = Frame::message(text, OpCode::Data(OpData::Text), is_whole);
            messages.push(Message::Frame(first));
            if let Event::Ended(failed) = &event {
                end = Some((close_code_of(failed), failed.to_string()));
            }
            if let Event::Closed = &event {
                end = Some((CloseCode::Policy, CLOSED_BY_ADMIN.to_owned()));
            }
            is_whole && bytes < most
        });
        match asked {
            Poll::Ready(Asked::Some) => {
                self.end = self.end.take().or(end);
                return Poll::Ready(Turn::Send(messages, long));
            }
            Poll::Ready(Asked::Over) => {
                let (code, reason) = self.end.take().unwrap_or((CloseCode::Away, CLOSING.into()));
                return Poll::Ready(Turn::Close(code, reason));
            }
            Poll::Pending => {}
        }
        self.timer.poll_tick(context).map(|_| Turn::Ping)
    }

    /// Sends the client the reason of the end, and waits for it to read that, but not for ever.
    async fn close(mut self, code: CloseCode, mut reason: String) {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        let frame = CloseFrame { code, reason: reason.into() };
        let sent = timeout(CLOSE_WAIT, self.socket.send(Message::Close(Some(frame)))).await;
        if matches!(sent, Ok(Ok(()))) {
            self.drain().await;
        }
    }

    /// Lets both closes cross. Whether the client took ours or not, the connection ends here.
    async fn drain(mut self) {
        let drained = async { while let Some(Ok(_)) = self.socket.next().await {} };
        let _ = timeout(CLOSE_WAIT, drained).await;
    }
}

/// Most bytes of the reason of a close, by RFC 6455.
const REASON_BYTES_MAX: usize = 123;

const CLOSING: &str = "the server is closing";

/// Sends all of them, and gathers them into few writes.
async fn send(socket: &mut Socket, messages: Vec<Message>) -> Result<(), WebSocketError> {
    for message in messages {
        socket.feed(message).await?;
    }
    socket.flush().await
}

fn close_code_of(failed: &FollowError) -> CloseCode {
    match failed {
        FollowError::Deleted(_) | FollowError::TakenOver { .. } => CloseCode::Normal,
        FollowError::Closed => CloseCode::Away,
        _ => CloseCode::Error,
    }
}

/// An event as text, or its beginning and what is left of it.
fn text_of(event: &Event<'_>) -> (Vec<u8>, Option<LongBody>) {
    if let Event::Message(message) = event {
        let mut out = Vec::new();
        let long = message.begin(b"\"event\":\"message\",", &mut out);
        return (out, long);
    }
    let mut facts = event.facts();
    if let Some(members) = facts.as_object_mut() {
        members.insert("event".into(), event.name().into());
        members.extend(event.token().map(|token| ("cursor".into(), token.to_string().into())));
    }
    (facts.to_string().into_bytes(), None)
}
