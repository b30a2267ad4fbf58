//! Messages as lines: for people, and as JSON for programs.
//!
//! One message is one line. Bytes that are no text are shown in hexadecimal to people, and
//! as `…_base64` to programs, so that nothing is lost or guessed.

use bytes::Bytes;
use gapless_client::Token;
use gapless_core::{Epoch, Message, Position, Seq, Timestamp};
use serde_json::{Map, Value, json};

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

    /// All of it, for programs.
    pub(crate) fn json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("event".into(), "message".into());
        fields.insert("topic".into(), self.topic.into());
        fields.insert("seq".into(), self.seq.0.into());
        fields.insert("position".into(), self.position.0.into());
        if let Some(epoch) = self.epoch {
            let token = Token { epoch, position: self.position };
            fields.insert("token".into(), token.to_string().into());
        }
        fields.insert("time".into(), gapless_core::calendar::format(self.time.0).into());
        fields.insert("time_ms".into(), self.time.0.into());
        put(&mut fields, "key", self.message.key.as_ref());
        put(&mut fields, "id", self.message.id.as_ref());
        let ttl_ms = self.message.ttl.map(|ttl| ttl.as_millis() as u64);
        fields.insert("ttl_ms".into(), ttl_ms.into());
        let headers = self.message.headers.iter().map(|(name, value)| {
            let mut header = Map::new();
            header.insert("name".into(), name.as_str().into());
            put(&mut header, "value", Some(value));
            Value::Object(header)
        });
        fields.insert("headers".into(), headers.collect());
        put(&mut fields, "body", self.message.body.as_ref());
        Value::Object(fields)
    }
}

/// Bytes as a text field; as `name_base64` if they are none; null if there are none.
fn put(fields: &mut Map<String, Value>, name: &str, bytes: Option<&Bytes>) {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| base64(bytes))) {
        None => fields.insert(name.to_owned(), Value::Null),
        Some(Ok(text)) => fields.insert(name.to_owned(), json!(text)),
        Some(Err(encoded)) => fields.insert(format!("{name}_base64"), encoded.into()),
    };
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

/// Base64 as in RFC 4648, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
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
    fn json_has_all_fields_and_never_guesses() {
        let message = Message::new(&[0xff][..]).with_key("k").with_header("h", "v");
        let json = shown(&message).json();
        assert_eq!(json["topic"], "orders");
        assert_eq!(json["seq"], 7);
        assert_eq!(json["token"], "00000000000000ab:9");
        assert_eq!(json["key"], "k");
        assert_eq!(json["body_base64"], "/w==");
        assert!(json.get("body").is_none());
        assert_eq!(json["headers"][0]["name"], "h");
        assert_eq!(json["headers"][0]["value"], "v");
        assert_eq!(shown(&Message::tombstone("k")).json()["body"], Value::Null);
    }

    #[test]
    fn base64_agrees_with_the_standard() {
        let known = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in known {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
