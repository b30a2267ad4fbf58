//! Events of a follower as Server-Sent Events.
//!
//! `id:` is the token, so that the `Last-Event-ID` a browser sends by itself when it comes
//! back goes on right behind the last event it saw. Messages have no `event:`, everything
//! else has: a client that listens for messages only does not see it.

use std::str::FromStr;
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::Token;

use crate::Budget;
use crate::http::follow::event_stream::{FRAME_BYTES, Feed, put_event, put_head};
use crate::http::follow::events::{Asked, Event, Events};
use crate::json::long_body::{Form, LongBody, WHOLE_BYTES_MAX};
use crate::json::message::{Shown, base64, put_token};

/// What stands in the data of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// A JSON object with its numbers, key, headers and body.
    #[default]
    Json,
    /// The body alone.
    Body,
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "body" => Ok(Self::Body),
            _ => Err("write json or body"),
        }
    }
}

/// The events of one subscription.
pub(crate) struct SseFeed {
    events: Events,
    format: Format,
    /// Sent before everything else: where the stream begins.
    begins_at: Option<Token>,
    /// The rest of a message that is too long to be written at once.
    long: Option<LongBody>,
    memory: Budget,
}

impl SseFeed {
    pub(crate) fn new(events: Events, format: Format, memory: Budget) -> Self {
        Self { events, format, begins_at: None, long: None, memory }
    }

    /// Sends the client its position before the first message, for starts that would mean another
    /// position after a reconnect.
    pub(crate) fn telling_place(mut self) -> Self {
        self.begins_at = Some(self.events.token());
        self
    }
}

impl Feed for SseFeed {
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        if let Some(token) = self.begins_at.take() {
            // Without data browsers see no event, but they keep the id.
            put_head(&mut out, None, Some(&token));
            out.push(b'\n');
        }
        let most = self.memory.piece_bytes(FRAME_BYTES);
        if let Some(long) = &mut self.long {
            if !long.put(&mut out, most) {
                return Poll::Ready(Some(out.into()));
            }
            self.long = None;
        }
        let (format, mut long) = (self.format, None);
        let asked = self.events.poll(context, &mut |event| {
            long = put(&mut out, &event, format);
            long.is_none() && out.len() < most
        });
        self.long = long.and_then(|mut long| (!long.put(&mut out, most)).then_some(long));
        match asked {
            _ if !out.is_empty() => Poll::Ready(Some(out.into())),
            Poll::Ready(Asked::Over) => Poll::Ready(None),
            Poll::Ready(Asked::Some) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Appends an event, or its beginning and what is left of it.
fn put(out: &mut Vec<u8>, event: &Event<'_>, format: Format) -> Option<LongBody> {
    match (event, format) {
        (Event::Message(message), Format::Json) => put_json(out, message),
        (Event::Message(message), Format::Body) => put_body(out, message),
        _ => {
            let (name, token, facts) = (event.name(), event.token(), event.facts());
            let id = token.as_ref().map(|token| token as &dyn std::fmt::Display);
            put_event(out, Some(name), id, &facts.to_string());
            None
        }
    }
}

fn put_json(out: &mut Vec<u8>, message: &Shown<'_>) -> Option<LongBody> {
    if let Some(token) = message.token {
        out.extend_from_slice(b"id: ");
        put_token(out, token);
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    let long = message.begin(b"", out);
    if long.is_none() {
        out.extend_from_slice(b"\n\n");
    }
    long.map(|long| long.then(b"\n\n"))
}

fn put_body(out: &mut Vec<u8>, message: &Shown<'_>) -> Option<LongBody> {
    let id = message.token.as_ref().map(|token| token as &dyn std::fmt::Display);
    let Some(body) = message.body else {
        // The message removes its key; it has no other content.
        let key = String::from_utf8_lossy(message.key.unwrap_or_default());
        put_event(out, Some("removed"), id, &key);
        return None;
    };
    let text = std::str::from_utf8(body);
    if let Some(whole) = message.whole.filter(|_| body.len() > WHOLE_BYTES_MAX) {
        put_head(out, text.is_err().then_some("base64"), id);
        out.extend_from_slice(b"data: ");
        let form = if text.is_ok() { Form::Lines { after_return: false } } else { Form::Base64 };
        return Some(LongBody::new(whole.slice_ref(body), form).then(b"\n\n"));
    }
    match text {
        Ok(text) => put_event(out, None, id, text),
        Err(_) => put_event(out, Some("base64"), id, &base64(body)),
    }
    None
}
