//! A message as JSON: the one shape in which the HTTP API and the command line show it.
//!
//! A body stands under the name of what it is: `json`, `text` or `base64`. So a text that looks
//! like JSON stays a text, and nothing is guessed. What a message does not have is not there;
//! one without body removes its key. One message is one line.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gapless_core::time::whole_ms;
use gapless_core::{Delivered, Epoch, Position, Seq, Timestamp, Token, TopicName};
use serde::de::IgnoredAny;

use crate::json::long_body::{Compact, Form, LongBody, WHOLE_BYTES_MAX};

/// The header of a message that says what its body is.
pub(crate) const CONTENT_TYPE: &str = "content-type";

/// A message with its numbers, borrowed, to be written as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its place in its topic.
    pub seq: Seq,
    /// Its place in the journal.
    pub position: Position,
    /// The place right behind it, to resume from; `None` where it is not known.
    pub token: Option<Token>,
    /// When it was accepted.
    pub time: Timestamp,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its id.
    pub id: Option<&'a [u8]>,
    /// How long it is kept, in ms.
    pub ttl_ms: Option<u64>,
    /// Its headers.
    pub headers: &'a [(String, Bytes)],
    /// Its body; `None` removes its key.
    pub body: Option<&'a [u8]>,
    /// What the body is a part of, so that it can be shared.
    pub whole: Option<&'a Bytes>,
}

impl<'a> Shown<'a> {
    /// A message that was found, to be shown.
    pub fn of(topic: &'a TopicName, epoch: Option<Epoch>, found: &'a Delivered) -> Self {
        let message = &found.message;
        Self {
            topic: topic.as_str(),
            seq: found.seq,
            position: found.position,
            token: epoch.map(|epoch| Token { epoch, position: found.position }),
            time: found.time,
            key: message.key.as_deref(),
            id: message.id.as_deref(),
            ttl_ms: message.ttl.map(whole_ms),
            headers: &message.headers,
            body: message.body.as_deref(),
            whole: message.body.as_ref(),
        }
    }

    /// Appends it as one object without line ends.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.put_members(out);
        out.push(b'}');
    }

    /// Appends it as one object without line ends, from which the bytes of the body can be had again
    /// exactly: JSON stands as it is, or as a text if it has line ends or spaces around it.
    pub fn put_exact(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.put_numbers(out);
        self.put_parts(out);
        if let Some(body) = self.body {
            let one_line = !body.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
            if one_line && body.trim_ascii().len() == body.len() && self.is_json(body) {
                out.extend_from_slice(b",\"json\":");
                out.extend_from_slice(body);
            } else {
                put_plain_body(out, body);
            }
        }
        out.push(b'}');
    }

    /// Appends it as one object behind `before`, or only its beginning if its body is long: the
    /// rest is to be written piece by piece.
    pub(crate) fn begin(&self, before: &[u8], out: &mut Vec<u8>) -> Option<LongBody> {
        out.push(b'{');
        out.extend_from_slice(before);
        self.put_numbers(out);
        self.put_parts(out);
        let long = self.long_body(out);
        if long.is_none() {
            self.put_body(out);
            out.push(b'}');
        }
        long.map(|long| long.then(b"}"))
    }

    /// Appends what stands between the braces.
    pub fn put_members(&self, out: &mut Vec<u8>) {
        self.put_numbers(out);
        self.put_content(out);
    }

    fn put_numbers(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"topic\":");
        put_text(out, self.topic);
        put_number(out, b",\"seq\":", self.seq.0);
        put_number(out, b",\"position\":", self.position.0);
        if let Some(token) = self.token {
            out.extend_from_slice(b",\"cursor\":\"");
            put_token(out, token);
            out.push(b'"');
        }
        put_number(out, b",\"time_ms\":", self.time.0);
    }

    /// Appends what the publisher gave, each member with a comma before it.
    pub(crate) fn put_content(&self, out: &mut Vec<u8>) {
        self.put_parts(out);
        self.put_body(out);
    }

    fn put_parts(&self, out: &mut Vec<u8>) {
        put_bytes(out, "key", self.key);
        put_bytes(out, "id", self.id);
        if let Some(ttl_ms) = self.ttl_ms {
            put_number(out, b",\"ttl_ms\":", ttl_ms);
        }
        if !self.headers.is_empty() {
            put_headers(out, self.headers);
        }
    }

    /// Whether the body is said to be JSON, and is.
    fn is_json(&self, body: &[u8]) -> bool {
        let says = |(name, value): &(String, Bytes)| {
            name.eq_ignore_ascii_case(CONTENT_TYPE) && says_json(value)
        };
        self.headers.iter().any(says) && serde_json::from_slice::<IgnoredAny>(body).is_ok()
    }

    /// The body if it is long, and appends what stands before it.
    fn long_body(&self, out: &mut Vec<u8>) -> Option<LongBody> {
        let body = self.body.filter(|body| body.len() > WHOLE_BYTES_MAX)?;
        let shared = self.whole?.slice_ref(body);
        if self.is_json(body) {
            out.extend_from_slice(b",\"json\":");
            return Some(LongBody::new(shared, Form::Json(Compact::default())));
        }
        let is_text = std::str::from_utf8(body).is_ok();
        out.extend_from_slice(if is_text { b",\"text\":\"" } else { b",\"base64\":\"" });
        let form = if is_text { Form::Text } else { Form::Base64 };
        Some(LongBody::new(shared, form).then(b"\""))
    }

    fn put_body(&self, out: &mut Vec<u8>) {
        let Some(body) = self.body else { return };
        if self.is_json(body) {
            out.extend_from_slice(b",\"json\":");
            Compact::default().put(out, body);
        } else {
            put_plain_body(out, body);
        }
    }
}

/// Whether a media type is JSON: `application/json`, or one that ends in `+json`.
fn says_json(media_type: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(media_type) else { return false };
    let essence = text.split(';').next().unwrap_or(text).trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// A name with one value has that value, a name with several a list of them.
fn put_headers(out: &mut Vec<u8>, headers: &[(String, Bytes)]) {
    out.extend_from_slice(b",\"headers\":{");
    for (at, (name, value)) in headers.iter().enumerate() {
        if headers[..at].iter().any(|(before, _)| before == name) {
            continue;
        }
        if at > 0 {
            out.push(b',');
        }
        put_text(out, name);
        out.push(b':');
        let mut others = headers[at + 1..].iter().filter(|(each, _)| each == name).peekable();
        if others.peek().is_none() {
            put_value(out, value);
            continue;
        }
        out.push(b'[');
        put_value(out, value);
        for (_, value) in others {
            out.push(b',');
            put_value(out, value);
        }
        out.push(b']');
    }
    out.push(b'}');
}

fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(text) => put_text(out, text),
        Err(_) => {
            out.extend_from_slice(b"{\"base64\":");
            put_base64(out, value);
            out.push(b'}');
        }
    }
}

/// Bytes as text if they are, else as base64 under another name.
fn put_bytes(out: &mut Vec<u8>, name: &str, bytes: Option<&[u8]>) {
    let Some(bytes) = bytes else { return };
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.extend_from_slice(b"\":");
            put_text(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b"_base64\":");
            put_base64(out, bytes);
        }
    }
}

/// Appends a body: a text if it is one, else base64.
fn put_plain_body(out: &mut Vec<u8>, body: &[u8]) {
    match std::str::from_utf8(body) {
        Ok(text) => {
            out.extend_from_slice(b",\"text\":");
            put_text(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b",\"base64\":");
            put_base64(out, body);
        }
    }
}

fn put_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(base64(bytes).as_bytes());
    out.push(b'"');
}

/// Base64 as in RFC 4648, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn put_number(out: &mut Vec<u8>, before: &[u8], number: u64) {
    out.extend_from_slice(before);
    put_digits(out, number);
}

/// A number in decimal, without the machinery of formatting: this is the hot path.
fn put_digits(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A token as its `Display` writes it.
pub(crate) fn put_token(out: &mut Vec<u8>, token: Token) {
    for shift in (0..16).rev() {
        out.push(b"0123456789abcdef"[(token.epoch.0 >> (4 * shift)) as usize & 15]);
    }
    out.push(b':');
    put_digits(out, token.position.0);
}

/// Appends a text as a JSON string.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    // A Vec takes everything.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use gapless_core::Message;
    use serde_json::{Value, json};

    use super::*;

    fn shown(message: &Message) -> String {
        let mut out = Vec::new();
        let shown = Shown {
            topic: "orders",
            seq: Seq(7),
            position: Position(9),
            token: Some(Token { epoch: Epoch(0xab), position: Position(9) }),
            time: Timestamp(1000),
            key: message.key.as_deref(),
            id: message.id.as_deref(),
            ttl_ms: None,
            headers: &message.headers,
            body: message.body.as_deref(),
            whole: None,
        };
        shown.put(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn json_text_and_bytes_are_told_apart() {
        let numbers = r#"{"topic":"orders","seq":7,"position":9,"#.to_owned()
            + r#""cursor":"00000000000000ab:9","time_ms":1000"#;
        let text = shown(&Message::new("a\n\"b\""));
        assert_eq!(text, numbers.clone() + r#","text":"a\n\"b\""}"#);
        assert_eq!(shown(&Message::tombstone("k")), numbers + r#","key":"k"}"#);
        let json = "{ \"n\": 12345678901234567890.10,\n \"a \\\" b\": 1 }";
        let json = Message::new(json).with_header("Content-Type", "application/json");
        let end = r#","json":{"n":12345678901234567890.10,"a \" b":1}}"#;
        assert!(shown(&json).ends_with(end), "{}", shown(&json));
        let wrong = Message::new("{").with_header(CONTENT_TYPE, "application/json");
        assert!(shown(&wrong).ends_with(r#","text":"{"}"#));
        assert!(shown(&Message::new(&[0xff, 0][..])).ends_with(r#","base64":"/wA="}"#));
    }

    #[test]
    fn repeated_headers_and_bytes_in_them_stay() {
        let message = Message::tombstone(&[0xfe][..])
            .with_header("a", "1")
            .with_header("b", &[0xff][..])
            .with_header("a", "2");
        let value: Value = serde_json::from_str(&shown(&message)).expect("JSON");
        assert_eq!(value["key_base64"], "/g==");
        assert_eq!(value["headers"], json!({"a": ["1", "2"], "b": {"base64": "/w=="}}));
    }

    #[test]
    fn numbers_and_tokens_are_written_as_everywhere() {
        for number in [0, 9, 10, u64::MAX] {
            let mut out = Vec::new();
            put_digits(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
            let token = Token { epoch: Epoch(number), position: Position(number) };
            out.clear();
            put_token(&mut out, token);
            assert_eq!(out, token.to_string().into_bytes());
        }
    }
}
