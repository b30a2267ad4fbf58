//! Frames made beforehand, and a walk over the heads of those that come.

use bytes::BytesMut;
use gapless_core::{Message, PublishOptions, RecordsBuilder, TopicName};
use gapless_protocol::{FRAME_HEAD_BYTES, FrameLimit, Ids, Kind, Publish, Verb};

use crate::benches::store::{Result, message};

/// Bytes of a `Messages` payload before its batches.
const MESSAGES_HEAD_BYTES: usize = 32;

/// Bytes of a batch before its records.
const BATCH_HEAD_BYTES: usize = 64;

/// Where a batch tells how many messages are in it.
const BATCH_COUNT_AT: usize = 52;

/// One frame in what was read.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) kind: u8,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Seen<'a> {
    /// The first frame, if it is all there.
    pub(crate) fn first(bytes: &'a [u8]) -> Option<Self> {
        let len = u32_at(bytes, 0)? as usize + 4;
        let bytes = bytes.get(..len)?;
        Some(Self { kind: *bytes.get(4)?, bytes })
    }

    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind == kind.number()
    }

    fn payload(&self) -> Option<&'a [u8]> {
        let subject = u16::from_le_bytes(self.bytes.get(37..39)?.try_into().ok()?);
        self.bytes.get(FRAME_HEAD_BYTES + usize::from(subject)..)
    }
}

/// What a `Messages` frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// The last seq it accounts for.
    pub(crate) to: u64,
    pub(crate) messages: u64,
    /// Bytes of its batches, as credit counts them.
    pub(crate) bytes: u64,
}

/// Looks through a `Messages` frame and hands out each batch.
pub(crate) fn delivered<'a>(frame: Seen<'a>, mut each: impl FnMut(&'a [u8])) -> Option<Delivered> {
    let payload = frame.payload()?;
    let (head, mut rest) = payload.split_at_checked(MESSAGES_HEAD_BYTES)?;
    let mut messages = 0;
    let bytes = rest.len() as u64;
    while !rest.is_empty() {
        let len = u32_at(rest, 0)? as usize;
        let (batch, after) = rest.split_at_checked(len.max(BATCH_HEAD_BYTES))?;
        messages += u64::from(u32_at(batch, BATCH_COUNT_AT)?);
        each(batch);
        rest = after;
    }
    Some(Delivered { to: u64_at(head, 16)?, messages, bytes })
}

/// As many publishes as may be in flight, one after the other, each with an id of its own.
pub(crate) struct Publishes {
    bytes: Vec<u8>,
    frame_bytes: usize,
    count: usize,
    next: usize,
}

impl Publishes {
    /// `count` frames of `batch` messages each.
    pub(crate) fn new(
        topic: &TopicName,
        message_bytes: usize,
        batch: usize,
        count: usize,
    ) -> Result<Self> {
        let mut out = BytesMut::new();
        for number in 1..=count as u128 {
            let body = message(message_bytes);
            publish(topic, &vec![body; batch], number, &mut out)?;
        }
        Ok(Self { frame_bytes: out.len() / count, bytes: out.to_vec(), count, next: 0 })
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The bytes of the next `count` frames, as long as they lie in one piece: at least one.
    pub(crate) fn take(&mut self, count: usize) -> (&[u8], usize) {
        let count = count.min(self.count - self.next);
        let from = self.next * self.frame_bytes;
        self.next = (self.next + count) % self.count;
        (&self.bytes[from..from + count * self.frame_bytes], count)
    }
}

/// A publish of one body.
pub(crate) fn publish_one(topic: &TopicName, body: Vec<u8>) -> Result<BytesMut> {
    let mut out = BytesMut::new();
    publish(topic, &[Message::new(body)], 1, &mut out)?;
    Ok(out)
}

fn publish(
    topic: &TopicName,
    messages: &[Message],
    number: u128,
    out: &mut BytesMut,
) -> Result<()> {
    let mut records = RecordsBuilder::default();
    messages.iter().try_for_each(|message| records.push(message))?;
    let publish = Publish {
        topic: topic.clone(),
        options: PublishOptions::default(),
        not_before: None,
        records: records.finish(),
    };
    let ids = Ids::question(number.to_le_bytes());
    Ok(Verb::from(publish).encode(ids, FrameLimit::MAX, out)?)
}

/// A frame of this kind and size that means nothing: what a bare server answers.
pub(crate) fn empty(kind: Kind, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEAD_BYTES + payload_bytes];
    let len = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    frame[4] = kind.number();
    let payload = payload_bytes as u32;
    frame[39..43].copy_from_slice(&payload.to_le_bytes());
    frame
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishes_are_handed_out_in_turn_and_in_whole_frames() {
        let topic = TopicName::parse("a").unwrap();
        let mut frames = Publishes::new(&topic, 16, 2, 3).unwrap();
        let each = frames.frame_bytes();
        let (bytes, count) = frames.take(2);
        assert_eq!((bytes.len(), count), (2 * each, 2));
        let seen = Seen::first(bytes).unwrap();
        assert!(seen.is(Kind::Publish));
        assert_eq!(seen.bytes.len(), each);
        assert_eq!(frames.take(2).1, 1);
        assert_eq!(frames.take(9).1, 3);
    }

    #[test]
    fn a_frame_is_seen_when_it_is_all_there() {
        let frame = empty(Kind::PublishAck, 40);
        assert!(Seen::first(&frame).unwrap().is(Kind::PublishAck));
        assert!(Seen::first(&frame[..frame.len() - 1]).is_none());
        assert!(Seen::first(&frame[..3]).is_none());
    }

    #[test]
    fn messages_are_counted_by_the_heads_of_their_batches() {
        let mut frame = empty(Kind::Messages, MESSAGES_HEAD_BYTES + 2 * 70);
        let payload = &mut frame[FRAME_HEAD_BYTES..];
        payload[16] = 9;
        for batch in 0..2 {
            let batch = &mut payload[MESSAGES_HEAD_BYTES + batch * 70..];
            batch[0] = 70;
            batch[BATCH_COUNT_AT] = 3;
        }
        let mut batches = 0;
        let seen = delivered(Seen::first(&frame).unwrap(), |batch| batches += batch.len());
        let expected = Delivered { to: 9, messages: 6, bytes: 140 };
        assert_eq!(seen, Some(expected));
        assert_eq!(batches, 140);
    }
}
