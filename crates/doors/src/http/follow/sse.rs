//! Events of a follower as Server-Sent Events.
//!
//! `id:` is the token, so that the `Last-Event-ID` a browser sends by itself when it comes
//! back goes on right behind the last event it saw. Messages have no `event:`, everything
//! else has: who listens for messages only is not disturbed by it.

use std::str::FromStr;
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::Token;

use crate::http::event_stream::{FRAME_BYTES, Feed, put_event, put_head};
use crate::http::follow::events::{Asked, Event, Events};
use crate::http::shown::{Shown, base64, put_token};

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
    /// Told before everything else: where the stream begins.
    begins_at: Option<Token>,
}

impl SseFeed {
    pub(crate) fn new(events: Events, format: Format) -> Self {
        Self { events, format, begins_at: None }
    }

    /// Tells the client where it stands before anything came, for beginnings that would be
    /// another place when it comes back.
    pub(crate) fn telling_place(mut self) -> Self {
        self.begins_at = Some(self.events.token());
        self
    }
}

impl Feed for SseFeed {
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        if let Some(token) = self.begins_at.take() {
            // Without data it is no event, but the id is noted.
            put_head(&mut out, None, Some(&token));
            out.push(b'\n');
        }
        let format = self.format;
        let asked = self.events.poll(context, &mut |event| {
            put(&mut out, &event, format);
            out.len() < FRAME_BYTES
        });
        match asked {
            _ if !out.is_empty() => Poll::Ready(Some(out.into())),
            Poll::Ready(Asked::Over) => Poll::Ready(None),
            Poll::Ready(Asked::Some) | Poll::Pending => Poll::Pending,
        }
    }
}

fn put(out: &mut Vec<u8>, event: &Event<'_>, format: Format) {
    match (event, format) {
        (Event::Message(message), Format::Json) => put_json(out, message),
        (Event::Message(message), Format::Body) => put_body(out, message),
        _ => {
            let (name, token, facts) = (event.name(), event.token(), event.facts());
            let id = token.as_ref().map(|token| token as &dyn std::fmt::Display);
            put_event(out, Some(name), id, &facts.to_string());
        }
    }
}

fn put_json(out: &mut Vec<u8>, message: &Shown<'_>) {
    out.extend_from_slice(b"id: ");
    put_token(out, message.token);
    out.extend_from_slice(b"\ndata: ");
    message.put(out);
    out.extend_from_slice(b"\n\n");
}

fn put_body(out: &mut Vec<u8>, message: &Shown<'_>) {
    let id: Option<&dyn std::fmt::Display> = Some(&message.token);
    match message.body.map(|body| (body, std::str::from_utf8(body))) {
        Some((_, Ok(text))) => put_event(out, None, id, text),
        Some((bytes, Err(_))) => put_event(out, Some("base64"), id, &base64(bytes)),
        // The message removes its key, which is all there is to tell.
        None => {
            let key = String::from_utf8_lossy(message.key.unwrap_or_default());
            put_event(out, Some("removed"), id, &key);
        }
    }
}
