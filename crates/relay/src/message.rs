//! From a row to a message, or to a dead letter that says why not.

use std::collections::HashMap;

use bytes::Bytes;
use gapless_core::batch::put_varint;
use gapless_core::message::{HEADER_BYTES_MAX, KEY_BYTES_MAX, MessageError};
use gapless_core::{Message, NameError, Record, Records, RecordsBuilder, TopicName};
use gapless_outbox::{Op, Payload, Row};

/// Longest text of a row that is put into a header of a dead letter, in bytes.
const HEADER_TEXT_MAX: usize = 1024;

/// How topics are named.
#[derive(Clone, Debug)]
pub struct Naming {
    /// What comes before the topic of a row.
    pub prefix: String,
    /// Where rows go that cannot become messages.
    pub dead_letters: TopicName,
}

/// Why a row cannot become a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its topic has no name that a topic can have.
    #[error("{0:?} cannot be a topic: {1}")]
    Topic(String, NameError),
    /// Its topic is the system's.
    #[error("{0:?} is a topic of the system")]
    SystemTopic(String),
    /// A part of it is over a limit.
    #[error("{0}")]
    Limit(String),
    /// The broker refuses it.
    #[error("the broker refuses it: {0}")]
    Broker(String),
}

/// Messages on their way into topics, encoded as the journal keeps them: a row is copied once.
#[derive(Default)]
pub(crate) struct Parts {
    /// Topics by their names in rows, before the prefix.
    known: HashMap<String, usize>,
    parts: Vec<(TopicName, RecordsBuilder)>,
    /// The headers of one row; here so that its memory is used again.
    headers: Vec<u8>,
}

impl Parts {
    /// Adds the message of a row.
    ///
    /// # Errors
    /// When the row cannot be one; nothing was added.
    pub(crate) fn push(&mut self, row: &Row, naming: &Naming) -> Result<(), Refusal> {
        let body = match (&row.payload, row.op, &row.key) {
            (Payload::TooLarge(bytes), _, _) => {
                return Err(Refusal::Limit(format!("the payload has {bytes} bytes")));
            }
            // A keyed message without a body removes its key.
            (_, Op::Delete, Some(_)) => None,
            (Payload::Bytes(bytes), _, _) => Some(&bytes[..]),
            (Payload::None, _, _) => Some(&[][..]),
        };
        let key = row.key.as_ref().map(String::as_bytes);
        if let Some(key) = key.filter(|key| key.len() > KEY_BYTES_MAX) {
            return Err(limit(&MessageError::KeyTooLong { bytes: key.len() }));
        }
        self.headers.clear();
        let (mut count, mut bytes) = (0, 0);
        each_header(row, |name, value| {
            (count, bytes) = (count + 1, bytes + name.len() + value.len());
            put_varint(&mut self.headers, name.len() as u64);
            self.headers.extend_from_slice(name.as_bytes());
            put_varint(&mut self.headers, value.len() as u64);
            self.headers.extend_from_slice(value);
        });
        if bytes > HEADER_BYTES_MAX {
            return Err(limit(&MessageError::Headers { count, bytes }));
        }
        let at = self.part(&row.topic, naming)?;
        let records = &mut self.parts[at].1;
        let (offset, headers) = (records.count(), &self.headers[..]);
        records.push_record(&Record { offset, key, id: None, ttl_ms: None, headers, body });
        Ok(())
    }

    /// Adds a message for a topic.
    pub(crate) fn push_message(
        &mut self,
        topic: &TopicName,
        message: &Message,
    ) -> Result<(), Refusal> {
        let mut records = RecordsBuilder::default();
        records.push(message).map_err(|error| limit(&error))?;
        self.parts.push((topic.clone(), records));
        Ok(())
    }

    /// How many topics they are for.
    pub(crate) fn topics(&self) -> usize {
        self.parts.len()
    }

    /// The messages of each topic.
    pub(crate) fn finish(self) -> Vec<(TopicName, Records)> {
        self.parts.into_iter().map(|(topic, records)| (topic, records.finish())).collect()
    }

    fn part(&mut self, topic: &str, naming: &Naming) -> Result<usize, Refusal> {
        if let Some(at) = self.known.get(topic) {
            return Ok(*at);
        }
        let name = format!("{}{topic}", naming.prefix);
        let parsed =
            TopicName::parse(&name).map_err(|error| Refusal::Topic(name.clone(), error))?;
        if parsed.is_system() {
            return Err(Refusal::SystemTopic(name));
        }
        self.parts.push((parsed, RecordsBuilder::default()));
        self.known.insert(topic.to_owned(), self.parts.len() - 1);
        Ok(self.parts.len() - 1)
    }
}

fn limit(error: &MessageError) -> Refusal {
    Refusal::Limit(error.to_string())
}

/// What is kept of a row that cannot become a message: all of it that fits.
pub(crate) fn dead_letter(row: &Row, why: &Refusal, bytes_max: usize) -> Message {
    let mut headers = Vec::new();
    each_header(row, |name, value| {
        let value = String::from_utf8_lossy(value);
        headers.push((name.to_owned(), cut(&value, HEADER_TEXT_MAX)));
    });
    headers.push(("outbox-topic".to_owned(), cut(&row.topic, HEADER_TEXT_MAX)));
    headers.push(("outbox-error".to_owned(), cut(&why.to_string(), HEADER_TEXT_MAX)));
    if let Some(key) = &row.key {
        headers.push(("outbox-key".to_owned(), cut(key, HEADER_TEXT_MAX)));
    }
    let body = match &row.payload {
        Payload::Bytes(bytes) if bytes.len() <= bytes_max => bytes.clone(),
        Payload::Bytes(bytes) => {
            headers.push(("outbox-payload-bytes".to_owned(), bytes.len().to_string().into()));
            Bytes::new()
        }
        Payload::TooLarge(bytes) => {
            headers.push(("outbox-payload-bytes".to_owned(), bytes.to_string().into()));
            Bytes::new()
        }
        Payload::None => Bytes::new(),
    };
    let key = row.key.as_ref().filter(|key| key.len() <= KEY_BYTES_MAX);
    let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
    Message { key, headers, body: Some(body), ..Message::default() }
}

/// What is kept of a row beside its key and payload.
fn each_header(row: &Row, mut put: impl FnMut(&str, &[u8])) {
    let mut number = |name, number: u64| put(name, Digits::of(number).text());
    number("outbox-seq", row.seq);
    number("outbox-created-ms", row.created_at.0);
    number("outbox-ingested-ms", row.ingested_at.0);
    put("outbox-op", row.op.name().as_bytes());
    put("outbox-event-id", row.event_id.as_bytes());
    for (name, value) in [("outbox-kind", &row.kind), ("outbox-reason", &row.reason)] {
        if let Some(value) = value {
            put(name, value.as_bytes());
        }
    }
}

/// A number in decimal digits, without a string of its own.
struct Digits {
    bytes: [u8; 20],
    from: usize,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut digits = Self { bytes: [0; 20], from: 20 };
        loop {
            digits.from -= 1;
            digits.bytes[digits.from] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    fn text(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

/// The beginning of a text, at a boundary of its characters.
fn cut(text: &str, max: usize) -> Bytes {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Bytes::copy_from_slice(&text.as_bytes()[..end])
}

#[cfg(test)]
mod tests {
    use gapless_core::Timestamp;

    use super::*;

    fn naming() -> Naming {
        let dead_letters = TopicName::parse("outbox.dead").expect("a good name");
        Naming { prefix: "shop.".to_owned(), dead_letters }
    }

    fn row() -> Row {
        Row {
            seq: 7,
            op: Op::Upsert,
            event_id: "e1".to_owned(),
            topic: "orders".to_owned(),
            kind: Some("order".to_owned()),
            key: Some("k".to_owned()),
            reason: None,
            created_at: Timestamp(1),
            ingested_at: Timestamp(2),
            payload: Payload::Bytes(Bytes::from_static(b"{}")),
        }
    }

    /// The topic and the message of a row.
    fn message(row: &Row, naming: &Naming) -> Result<(TopicName, Message), Refusal> {
        let mut parts = Parts::default();
        parts.push(row, naming)?;
        let (topic, records) = parts.finish().pop().expect("one topic");
        let message = records.iter().next().expect("one record").to_message(&records.bytes);
        message.validate().expect("what is put is checked");
        Ok((topic, message))
    }

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            assert_eq!(Digits::of(number).text(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn b10_an_upsert_is_a_body_and_a_delete_a_tombstone() {
        let (topic, upsert) = message(&row(), &naming()).expect("a message");
        assert_eq!(topic.as_str(), "shop.orders");
        assert_eq!(upsert.body.as_deref(), Some(&b"{}"[..]));
        assert_eq!(upsert.key.as_deref(), Some(&b"k"[..]));
        let seq = upsert.headers.iter().find(|(name, _)| name == "outbox-seq").expect("a header");
        assert_eq!(seq.1.as_ref(), b"7");
        let (_, delete) = message(&Row { op: Op::Delete, ..row() }, &naming()).expect("a message");
        assert_eq!(delete.body, None);
        let keyless = Row { op: Op::Delete, key: None, ..row() };
        message(&keyless, &naming()).expect("a delete without a key is a message too");
    }

    #[test]
    fn b10_what_cannot_become_a_message_says_why_and_fits_a_dead_letter() {
        let wide = "x".repeat(20_000);
        let bad = [
            Row { topic: "a b".to_owned(), ..row() },
            Row { topic: wide.clone(), ..row() },
            Row { key: Some(wide.clone()), ..row() },
            Row { event_id: wide.clone(), ..row() },
            Row { reason: Some(wide), ..row() },
            Row { payload: Payload::TooLarge(9_000_000), ..row() },
        ];
        for row in bad {
            let why = message(&row, &naming()).expect_err("it cannot be one");
            let letter = dead_letter(&row, &why, 1_000);
            letter.validate().expect("a dead letter is a message");
        }
        let system = Naming { prefix: "$".to_owned(), ..naming() };
        assert!(message(&row(), &system).is_err());
    }
}
