//! Messages as lines: for people, and as JSON for programs.
//!
//! One message is one line. Bytes that are not text are shown in hexadecimal to people;
//! programs get the JSON of the HTTP API.

use gapless_client::Token;
use gapless_core::time::whole_ms;
use gapless_core::{Epoch, Message, Position, Seq, Timestamp};
use serde_json::Value;

use crate::output::Paint;

/// A message with its numbers, as it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) topic: &'a str,
    pub(crate) seq: Seq,
    pub(crate) position: Position,
    pub(crate) time: Timestamp,
    pub(crate) message: &'a Message,
    /// The store it came from, if that is known: then it can be resumed from here.
    pub(crate) epoch: Option<Epoch>,
}

impl Shown<'_> {
    /// `topic seq key body`, for people.
    pub(crate) fn line(&self, paint: Paint) -> String {
        let key = self
            .message
            .key
            .as_ref()
            .map_or_else(|| paint.dim("-"), |key| paint.yellow(readable(key)));
        let body = match &self.message.body {
            Some(body) => readable(body),
            None => paint.dim("(removed)"),
        };
        let mut line = format!("{} {} {key} {body}", paint.cyan(self.topic), paint.dim(self.seq));
        for (name, value) in &self.message.headers {
            line += &paint.dim(format!(" {name}={}", readable(value)));
        }
        line
    }

    /// All of it, for programs: the same JSON as over HTTP, with these members before it.
    pub(crate) fn json(&self, before: &[(&str, Value)]) -> Vec<u8> {
        let mut out = b"{".to_vec();
        for (name, value) in before {
            out.extend_from_slice(format!("\"{name}\":{value},").as_bytes());
        }
        let message = self.message;
        let shown = gapless_server::json::Shown {
            topic: self.topic,
            seq: self.seq,
            position: self.position,
            token: self.epoch.map(|epoch| Token { epoch, position: self.position }),
            time: self.time,
            key: message.key.as_deref(),
            id: message.id.as_deref(),
            ttl_ms: message.ttl.map(whole_ms),
            headers: &message.headers,
            body: message.body.as_deref(),
            whole: None,
        };
        shown.put_members(&mut out);
        out.push(b'}');
        out
    }
}

/// Bytes on one line of a terminal: text as it is but without control characters, else
/// hexadecimal.
pub(crate) fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let mut line = String::with_capacity(text.len());
            for each in text.chars() {
                match each {
                    '\t' => line.push(each),
                    each if each.is_control() => line.extend(each.escape_default()),
                    each => line.push(each),
                }
            }
            line
        }
        Err(_) => {
            let mut line = "0x".to_owned();
            for byte in bytes {
                line += &format!("{byte:02x}");
            }
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(message: &Message) -> Shown<'_> {
        Shown {
            topic: "orders",
            seq: Seq(7),
            position: Position(9),
            time: Timestamp(0),
            message,
            epoch: Some(Epoch(0xab)),
        }
    }

    #[test]
    fn a_message_is_one_line() {
        let message = Message::new("two\nlines").with_key("k").with_header("a", "b");
        assert_eq!(shown(&message).line(Paint::OFF), "orders 7 k two\\nlines a=b");
        assert_eq!(shown(&Message::new("x")).line(Paint::OFF), "orders 7 - x");
        assert_eq!(shown(&Message::tombstone("k")).line(Paint::OFF), "orders 7 k (removed)");
        let bytes = Message::new(&[0xff, 0x01][..]);
        assert_eq!(shown(&bytes).line(Paint::OFF), "orders 7 - 0xff01");
    }

    #[test]
    fn a_terminal_is_not_steered_by_messages() {
        assert_eq!(readable(b"\x1b[31mred\x07"), "\\u{1b}[31mred\\u{7}");
        assert_eq!(readable("grün\t€".as_bytes()), "grün\t€");
    }

    #[test]
    fn json_is_that_of_http_and_never_guesses() {
        let value = |message: &Message| -> Value {
            let json = shown(message).json(&[("event", "message".into())]);
            serde_json::from_slice(&json).expect("it is JSON")
        };
        let json = value(&Message::new(&[0xff][..]).with_key("k").with_header("h", "v"));
        assert_eq!(json["event"], "message");
        assert_eq!(json["topic"], "orders");
        assert_eq!(json["seq"], 7);
        assert_eq!(json["cursor"], "00000000000000ab:9");
        assert_eq!(json["key"], "k");
        assert_eq!(json["base64"], "/w==");
        assert_eq!(json["headers"]["h"], "v");
        assert_eq!(value(&Message::new("x"))["text"], "x");
        let removed = value(&Message::tombstone("k"));
        assert!(["text", "json", "base64"].iter().all(|name| removed.get(name).is_none()));
    }
}
