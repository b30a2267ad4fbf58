//! gapless over its native protocol.

use std::hint::black_box;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use gapless_core::{
    BatchRef, Durability, EntryHeader, EntryKind, Message, Pattern, PublishOptions, RecordsBuilder,
    TopicName, TopicSettings,
};
use gapless_protocol::{
    Credit, Decoder, FRAME_HEAD_BYTES, Features, FrameLimit, Hello, Ids, Kind, Ping, Publish,
    StartFrom, Subscribe, TopicCreate, TopicDescribe, VERSION, Verb,
};

use super::link::{Dialect, Link, Seen};
use super::rights;
use super::systems::{Groups, Part, Store, System, To};
use crate::benches::store::Result;
use crate::benches::wire::frames::{self, delivered};

/// Credit of a subscription: half of what a server with the defaults allows.
const CREDIT_MESSAGES: u32 = 500_000;
const CREDIT_BYTES: u64 = 32 * 1024 * 1024;

/// Where the ack of a publish says what became of it: behind the count of its parts.
const ACK_AT: usize = FRAME_HEAD_BYTES + 1;
const ACCEPTED: u8 = 1;

/// Bytes of a frame of messages before its batches.
const MESSAGES_HEAD_BYTES: usize = 32;

/// Batches of a frame that is made here to be read.
const DELIVERIES_PER_FRAME: usize = 64;

/// Subscriptions that are asked for before the first is answered.
const SUBSCRIBES_AT_ONCE: usize = 256;

/// gapless, as `gapless serve` runs it.
pub(super) struct Native;

impl System for Native {
    fn connect(&self, address: SocketAddr) -> Result<Link> {
        let mut link = Link::open(address, Box::new(Frames::default()))?;
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: Features::GROUPS,
            client_name: "bench".to_owned(),
            token: rights::token_for(address).map(Bytes::from),
            extension: Bytes::new(),
        };
        match ask(&mut link, hello)? {
            Verb::Welcome(_) => Ok(link),
            other => Err(format!("no welcome but {other:?}").into()),
        }
    }

    fn create_request(
        &self,
        _: &Link,
        topic: &str,
        store: Store,
        number: usize,
    ) -> Result<Option<Vec<u8>>> {
        let Some(durability) = durability(store) else { return Ok(None) };
        let settings = TopicSettings { durability: Some(durability), ..TopicSettings::default() };
        let create = TopicCreate { topic: TopicName::parse(topic)?, settings };
        encode(create, number as u128).map(Some)
    }

    fn follow(&self, link: &mut Link, topic: &str) -> Result<()> {
        subscribed(link, topic, StartFrom::Now)
    }

    fn follow_many(&self, link: &mut Link, topics: &[String]) -> Result<()> {
        for some in topics.chunks(SUBSCRIBES_AT_ONCE) {
            let mut out = Vec::new();
            for topic in some {
                out.extend(encode(subscribe(topic, StartFrom::Now)?, 1)?);
            }
            link.send(&out)?;
            let mut made = 0;
            while made < some.len() {
                match answer(link)? {
                    Verb::Subscribed(_) => made += 1,
                    Verb::RecoveryComplete(_) | Verb::RecoveryResponse(_) => {}
                    other => return Err(format!("not subscribed but {other:?}").into()),
                }
            }
        }
        Ok(())
    }

    fn replay(&self, link: &mut Link, topic: &str) -> Result<()> {
        subscribed(link, topic, StartFrom::Beginning)
    }

    fn stored(&self, link: &mut Link, topic: &str) -> Result<u64> {
        match ask(link, TopicDescribe { topic: TopicName::parse(topic)? })? {
            Verb::TopicInfo(info) => Ok(info.next.0 - 1),
            other => Err(format!("no topic but {other:?}").into()),
        }
    }

    fn publish(&self, _: &Link, to: To<'_>, body: &[u8], part: Part) -> Result<Vec<u8>> {
        let mut records = RecordsBuilder::default();
        for _ in 0..part.batch {
            records.push(&Message::new(body.to_vec()))?;
        }
        // Peers do not say whether there is a subscriber.
        let require_subscribers = (to.store == Store::Live).then_some(false);
        let publish = Publish {
            topic: TopicName::parse(to.topic)?,
            options: PublishOptions { require_subscribers, ..PublishOptions::default() },
            not_before: None,
            records: records.finish(),
        };
        // Without an id there is no ack, as nats-server's core gives none.
        encode(publish, if self.answers(to.store) { part.number as u128 + 1 } else { 0 })
    }

    fn answers(&self, store: Store) -> bool {
        store != Store::Live
    }

    fn barrier(&self, link: &mut Link) -> Result<()> {
        match ask(link, Ping { echo: Bytes::new() })? {
            Verb::Pong(_) => Ok(()),
            other => Err(format!("no pong but {other:?}").into()),
        }
    }

    fn is_two_way(&self) -> bool {
        true
    }

    fn groups(&self) -> Option<&dyn Groups> {
        Some(self)
    }

    fn following(&self) -> Box<dyn Dialect> {
        Box::new(Frames::default())
    }

    fn deliveries(&self, topic: &str, body: &[u8], count: usize) -> Result<Vec<u8>> {
        // As live deliveries come: frames with some batches, each of one message.
        let batch = one_batch(&[body])?;
        let mut out = Vec::new();
        for from in (0..count).step_by(DELIVERIES_PER_FRAME) {
            let batches = DELIVERIES_PER_FRAME.min(count - from);
            out.extend(messages(&batch.repeat(batches)));
        }
        let _ = topic;
        Ok(out)
    }
}

/// A batch of these bodies.
fn one_batch(bodies: &[&[u8]]) -> Result<Vec<u8>> {
    let mut records = RecordsBuilder::default();
    for body in bodies {
        records.push(&Message::new(body.to_vec()))?;
    }
    let records = records.finish();
    let (flags, count) = (records.flags, records.count);
    let header = EntryHeader { flags, count, span: count, ..EntryHeader::new(EntryKind::Batch) };
    let mut batch = Vec::new();
    header.put(&mut batch, &records.bytes, 0, |_| 0);
    Ok(batch)
}

/// A frame that delivers these batches.
fn messages(batches: &[u8]) -> Vec<u8> {
    let mut frame = frames::empty(Kind::Messages, MESSAGES_HEAD_BYTES + batches.len());
    frame[FRAME_HEAD_BYTES + MESSAGES_HEAD_BYTES..].copy_from_slice(batches);
    frame
}

/// How safe a topic's messages are; a volatile subject is no topic and needs no creation.
fn durability(store: Store) -> Option<Durability> {
    match store {
        Store::Live => None,
        Store::Memory => Some(Durability::Memory),
        Store::Written => Some(Durability::Written),
        Store::Flushed => Some(Durability::Flushed),
    }
}

fn subscribe(topic: &str, from: StartFrom) -> Result<Subscribe> {
    Ok(Subscribe {
        pattern: Pattern::literal(&TopicName::parse(topic)?),
        credit_messages: CREDIT_MESSAGES,
        credit_bytes: CREDIT_BYTES,
        from,
        identity: None,
    })
}

fn subscribed(link: &mut Link, topic: &str, from: StartFrom) -> Result<()> {
    match ask(link, subscribe(topic, from)?)? {
        Verb::Subscribed(made) => {
            link.dialect =
                Box::new(Frames { subscription: made.subscription, ..Frames::default() });
            Ok(())
        }
        other => Err(format!("not subscribed but {other:?}").into()),
    }
}

pub(super) fn encode(verb: impl Into<Verb>, number: u128) -> Result<Vec<u8>> {
    let mut out = BytesMut::new();
    verb.into().encode(Ids::question(number.to_le_bytes()), FrameLimit::MAX, &mut out)?;
    Ok(out.to_vec())
}

/// Asks and takes the next frame for the answer.
pub(super) fn ask(link: &mut Link, verb: impl Into<Verb>) -> Result<Verb> {
    link.send(&encode(verb, 1)?)?;
    answer(link)
}

/// The next frame.
fn answer(link: &mut Link) -> Result<Verb> {
    link.parse(|bytes| match frames::Seen::first(bytes) {
        Some(frame) => Ok(Some((frame.bytes.len(), decode(frame)?))),
        None => Ok(None),
    })
}

pub(super) fn decode(frame: frames::Seen<'_>) -> Result<Verb> {
    let mut bytes = BytesMut::from(frame.bytes);
    let frame = Decoder::new(FrameLimit::MAX).decode(&mut bytes)?;
    Ok(Verb::decode(&frame.ok_or("half a frame")?)?)
}

/// Frames by their heads, and the credit that deliveries used.
#[derive(Default)]
struct Frames {
    subscription: u64,
    used_messages: u64,
    used_bytes: u64,
}

impl Frames {
    /// What is neither an ack nor messages.
    fn other(frame: frames::Seen<'_>, seen: &mut Seen<'_>) -> Result<()> {
        match decode(frame)? {
            Verb::RecoveryComplete(_) | Verb::RecoveryResponse(_) => Ok(()),
            Verb::TopicInfo(_) => {
                seen.answers += 1;
                Ok(())
            }
            other => Err(format!("gapless sent {other:?}").into()),
        }
    }
}

impl Dialect for Frames {
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
        let mut at = 0;
        while let Some(frame) = frames::Seen::first(&bytes[at..]) {
            at += frame.bytes.len();
            if frame.is(Kind::PublishAck) {
                if frame.bytes.get(ACK_AT) != Some(&ACCEPTED) {
                    return Err(format!("gapless sent {:?}", decode(frame)?).into());
                }
                seen.answers += 1;
            } else if frame.is(Kind::Messages) {
                // Each message is looked at, as in the other protocols, where there is no other way to
                // find the next one.
                let mut walked = 0;
                let came = delivered(frame, |batch| {
                    for record in BatchRef::all(batch).flat_map(|batch| batch.records()) {
                        walked += 1;
                        let body = black_box(record.body.unwrap_or_default());
                        if let Some(each) = &mut seen.each {
                            each(body);
                        }
                    }
                });
                let came = came.filter(|came| came.messages == walked);
                let came = came.ok_or("messages that cannot be understood")?;
                seen.messages += came.messages;
                self.used_messages += came.messages;
                self.used_bytes += came.bytes;
            } else {
                Self::other(frame, seen)?;
            }
        }
        Ok(at)
    }

    fn owes(&mut self, out: &mut Vec<u8>) {
        let (messages, bytes) = (self.used_messages, self.used_bytes);
        if messages < u64::from(CREDIT_MESSAGES) / 4 && bytes < CREDIT_BYTES / 4 {
            return;
        }
        let messages = u32::try_from(messages).unwrap_or(CREDIT_MESSAGES).max(1);
        let credit = Credit { subscription: self.subscription, messages, bytes };
        out.extend(encode(credit, 0).expect("a credit is smaller than any frame may be"));
        (self.used_messages, self.used_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_of_a_long_batch_is_handed_out_with_its_body() {
        let bodies: Vec<Vec<u8>> = (0..200).map(|number| vec![number; 128]).collect();
        let batch = one_batch(&bodies.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let frame = messages(&batch);
        let mut came = Vec::new();
        let mut each = |body: &[u8]| came.push(body.to_vec());
        let taken = Frames::default().take(&frame, &mut Seen::with(&mut each)).unwrap();
        assert_eq!((taken, came), (frame.len(), bodies));
    }

    #[test]
    fn a_message_that_is_announced_and_not_there_is_an_error() {
        let mut batch = one_batch(&[b"one", b"two"]).unwrap();
        assert!(Frames::default().take(&messages(&batch), &mut Seen::default()).is_ok());
        batch[COUNT_AT] += 1;
        assert!(Frames::default().take(&messages(&batch), &mut Seen::default()).is_err());
    }

    /// Where a batch says how many messages are in it.
    const COUNT_AT: usize = 52;
}
