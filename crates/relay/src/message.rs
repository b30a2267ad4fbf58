//! From a row to a message, or to a dead letter that says why not.

use bytes::Bytes;
use gapless_core::message::KEY_BYTES_MAX;
use gapless_core::{Message, NameError, TopicName};
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

/// The topic and the message of a row.
pub(crate) fn message(row: &Row, naming: &Naming) -> Result<(TopicName, Message), Refusal> {
    let name = format!("{}{}", naming.prefix, row.topic);
    let topic = TopicName::parse(&name).map_err(|error| Refusal::Topic(name.clone(), error))?;
    if topic.is_system() {
        return Err(Refusal::SystemTopic(name));
    }
    let body = match (&row.payload, row.op, &row.key) {
        (Payload::TooLarge(bytes), _, _) => {
            return Err(Refusal::Limit(format!("the payload has {bytes} bytes")));
        }
        // A keyed message without a body removes its key.
        (_, Op::Delete, Some(_)) => None,
        (Payload::Bytes(bytes), _, _) => Some(bytes.clone()),
        (Payload::None, _, _) => Some(Bytes::new()),
    };
    let key = row.key.as_ref().map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let message = Message { key, body, headers: headers(row, usize::MAX), ..Message::default() };
    message.validate().map_err(|error| Refusal::Limit(error.to_string()))?;
    Ok((topic, message))
}

/// What is kept of a row that cannot become a message: all of it that fits.
pub(crate) fn dead_letter(row: &Row, why: &Refusal, bytes_max: usize) -> Message {
    let mut headers = headers(row, HEADER_TEXT_MAX);
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

fn headers(row: &Row, text_max: usize) -> Vec<(String, Bytes)> {
    let mut headers = vec![
        ("outbox-seq".to_owned(), row.seq.to_string().into()),
        ("outbox-op".to_owned(), Bytes::from_static(row.op.name().as_bytes())),
        ("outbox-event-id".to_owned(), cut(&row.event_id, text_max)),
        ("outbox-created-ms".to_owned(), row.created_at.0.to_string().into()),
        ("outbox-ingested-ms".to_owned(), row.ingested_at.0.to_string().into()),
    ];
    for (name, value) in [("outbox-kind", &row.kind), ("outbox-reason", &row.reason)] {
        if let Some(value) = value {
            headers.push((name.to_owned(), cut(value, text_max)));
        }
    }
    headers
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
