//! JSON as a message, in the same shape in which messages are shown.
//!
//! So what a read shows can be published again as it is: the numbers that the store gave are
//! accepted and passed over. Any other member that is not known is refused, since a misspelt
//! condition must not publish without it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gapless_core::{Expect, Message, Seq, Timestamp};
use gapless_protocol::ErrorCode;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::http::listener::body::in_words;
use crate::http::values::problem::Problem;
use crate::http::values::publish::one_of;
use crate::json::message::CONTENT_TYPE;

/// What is said of a body that was given as JSON.
const APPLICATION_JSON: &str = "application/json";

/// Why a condition on a key without a key is refused.
pub(crate) const KEY_MISSING: &str =
    "`expect_key_seq` is about a key, and the message has none: add `key`";

/// A message as JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Incoming<'a> {
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    key_base64: Option<Text<'a>>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    id_base64: Option<Text<'a>>,
    ttl_ms: Option<u64>,
    headers: Option<Headers>,
    #[serde(borrow)]
    json: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    base64: Option<Text<'a>>,
    delay_ms: Option<u64>,
    at_ms: Option<u64>,
    expect_seq: Option<u64>,
    expect_key_seq: Option<u64>,
    // What a read shows beside them.
    #[serde(rename = "topic")]
    _topic: Option<IgnoredAny>,
    #[serde(rename = "seq")]
    _seq: Option<IgnoredAny>,
    #[serde(rename = "position")]
    _position: Option<IgnoredAny>,
    #[serde(rename = "cursor")]
    _cursor: Option<IgnoredAny>,
    #[serde(rename = "time_ms")]
    _time_ms: Option<IgnoredAny>,
    #[serde(rename = "attempt")]
    _attempt: Option<IgnoredAny>,
    #[serde(rename = "lease")]
    _lease: Option<IgnoredAny>,
}

/// Reads a message out of `bytes`, of which it shares what it can.
pub(crate) fn message(bytes: &Bytes, now: Timestamp) -> Result<(Message, Option<Expect>), Problem> {
    // serde would also accept an array with the members in their order; refuse that.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad_request("a message is a JSON object"));
    }
    let incoming: Incoming<'_> = serde_json::from_slice(bytes).map_err(|why| {
        Problem::bad_request(format!("this is not a valid message: {}", in_words(&why)))
    })?;
    incoming.into_message(|part| bytes.slice_ref(part), now)
}

impl Incoming<'_> {
    /// The message, and what it expects. `share` turns a part of what was parsed into bytes.
    pub(crate) fn into_message(
        self,
        share: impl Fn(&[u8]) -> Bytes,
        now: Timestamp,
    ) -> Result<(Message, Option<Expect>), Problem> {
        let bytes = |text: Text<'_>| match text.0 {
            Cow::Borrowed(text) => share(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        };
        let mut headers = self.headers.map_or_else(Vec::new, |headers| headers.0);
        let json = self.json.map(|json| share(json.get().as_bytes()));
        if json.is_some() && !headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
            headers.push((CONTENT_TYPE.into(), Bytes::from_static(APPLICATION_JSON.as_bytes())));
        }
        let text = one_of("json", json, "text", self.text.map(bytes))?;
        let base64 = decoded("base64", self.base64)?;
        let key = decoded("key_base64", self.key_base64)?;
        let id = decoded("id_base64", self.id_base64)?;
        let delay = self.delay_ms.map(|ms| now.after(Duration::from_millis(ms)));
        let message = Message {
            key: one_of("key", self.key.map(bytes), "key_base64", key)?,
            id: one_of("id", self.id.map(bytes), "id_base64", id)?,
            ttl: self.ttl_ms.map(Duration::from_millis),
            not_before: one_of("delay_ms", delay, "at_ms", self.at_ms.map(Timestamp))?,
            body: one_of("json or text", text, "base64", base64)?,
            headers,
        };
        message.validate().map_err(|why| Problem::new(ErrorCode::InvalidPayload, why))?;
        let topic_last = self.expect_seq.map(|seq| Expect::TopicLast(Seq(seq)));
        let key_last = self.expect_key_seq.map(|seq| Expect::KeyLast(Seq(seq)));
        if key_last.is_some() && message.key.is_none() {
            return Err(Problem::bad_request(KEY_MISSING));
        }
        Ok((message, one_of("expect_seq", topic_last, "expect_key_seq", key_last)?))
    }
}

fn decoded(name: &str, text: Option<Text<'_>>) -> Result<Option<Bytes>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let decoded = STANDARD.decode(text.0.as_bytes()).map_err(|why| {
        Problem::bad_request(format_args!("`{name}` is not valid base64 (RFC 4648, padded): {why}"))
    });
    decoded.map(|bytes| Some(bytes.into()))
}

/// A text that is borrowed from the JSON unless it has escapes.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        from.deserialize_str(Texts)
    }
}

/// Headers of a message: a name has one value or an array of them, in the order given.
#[derive(Debug)]
struct Headers(Vec<(String, Bytes)>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of headers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = Vec::new();
                while let Some((name, Values(values))) = map.next_entry::<String, Values>()? {
                    headers.extend(values.into_iter().map(|value| (name.clone(), value)));
                }
                Ok(Headers(headers))
            }
        }
        from.deserialize_map(Names)
    }
}

/// What a header's name has: a text, `{"base64": …}`, or an array of these.
struct Values(Vec<Bytes>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, {\"base64\": …}, or an array of these")
            }

            fn visit_str<E>(self, text: &str) -> Result<Values, E> {
                Ok(Values(vec![Bytes::copy_from_slice(text.as_bytes())]))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values, A::Error> {
                let wrong = || serde::de::Error::custom("an object here is {\"base64\": …}");
                let Some((name, text)) = map.next_entry::<String, String>()? else {
                    return Err(wrong());
                };
                let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
                if name != "base64" || map.next_key::<String>()?.is_some() {
                    return Err(wrong());
                }
                Ok(Values(vec![bytes.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Values, A::Error> {
                let mut all = Vec::new();
                while let Some(Values(values)) = seq.next_element()? {
                    all.extend(values);
                }
                Ok(Values(all))
            }
        }
        from.deserialize_any(Each)
    }
}

#[cfg(test)]
mod tests {
    use gapless_broker::Delivered;
    use gapless_core::{Epoch, Position, TopicName};

    use super::*;
    use crate::json::message::Shown;

    fn read(json: &'static str) -> Result<(Message, Option<Expect>), Problem> {
        message(&Bytes::from_static(json.as_bytes()), Timestamp(1000))
    }

    #[test]
    fn what_is_shown_is_the_message_again() {
        let messages = [
            Message::new("plain \"text\"\n"),
            Message::new(&b"\xff\x00"[..]).with_key(&b"\xfe"[..]).with_id(&b"\xfd"[..]),
            Message::new("{\"a\":[1,2.50]}").with_header(CONTENT_TYPE, APPLICATION_JSON),
            Message::tombstone("k").with_ttl(Duration::from_millis(7)),
            Message::new("").with_header("a", "1").with_header("a", &b"\xff"[..]),
        ];
        let topic = TopicName::parse("t").unwrap();
        for message in messages {
            let (seq, position, time) = (Seq(1), Position(2), Timestamp(3));
            let delivered = Delivered { seq, position, time, message };
            let mut out = Vec::new();
            Shown::of(&topic, Some(Epoch(1)), &delivered).put(&mut out);
            let again = super::message(&out.into(), Timestamp(0)).unwrap();
            assert_eq!(again, (delivered.message, None));
        }
    }

    #[test]
    fn wishes_are_read_and_contradictions_refused() {
        let (message, expect) =
            read(r#"{"key":"k","text":"t","delay_ms":5,"expect_key_seq":0}"#).unwrap();
        assert_eq!(message.not_before, Some(Timestamp(1005)));
        assert_eq!(expect, Some(Expect::KeyLast(Seq(0))));
        for wrong in [
            "",
            "[]",
            "{",
            r#"{"txt":"t"}"#,
            r#"{"text":1}"#,
            r#"{"text":"t","json":1}"#,
            r#"{"text":"t","base64":""}"#,
            r#"{"base64":"*"}"#,
            r#"{"text":"t","delay_ms":1,"at_ms":1}"#,
            r#"{"text":"t","expect_seq":1,"expect_key_seq":1}"#,
            r#"{"text":"t","ttl_ms":0}"#,
            r#"{"text":"t","headers":{"a":{"b":"c"}}}"#,
            r#"{"id":"only"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
