//! Groups of gapless over its native protocol: shared leases, acks that are confirmed when
//! they are flushed.
//!
//! A member acknowledges each frame's messages by the leases that came with them, byte for
//! byte: a list of leases is written the same way in both.

use std::hint::black_box;

use gapless_core::{BatchRef, GroupSettings, GroupStart, Mode, Pattern, TopicName};
use gapless_protocol::{
    ErrorCode, FRAME_HEAD_BYTES, GroupCreate, GroupDescribe, GroupJoin, Kind, Verb,
};

use super::link::{Dialect, Link, Seen};
use super::native::{Native, ask, decode};
use super::systems::{Group, Groups};
use crate::benches::store::Result;
use crate::benches::wire::frames;

/// Where a frame tells how long its subject is, and where the subject begins.
const SUBJECT_BYTES_AT: usize = 37;

/// Bytes of `GroupMessages` before its leases: membership and deadline.
const LEASES_AT: usize = 16;

/// Answer when the ack is as durable as the group asks, and the leases follow.
const CONFIRM_DURABLE: u8 = 2;
const WHICH_LEASES: u8 = 1;

impl Groups for Native {
    fn create_group(&self, link: &mut Link, group: Group<'_>) -> Result<bool> {
        let mode = if group.keyed { Mode::Keyed } else { Mode::Shared };
        let mut settings = GroupSettings::new(Pattern::literal(&TopicName::parse(group.topic)?));
        (settings.mode, settings.start) = (mode, GroupStart::Beginning);
        let create = GroupCreate { group: TopicName::parse(group.name)?, settings };
        match ask(link, create)? {
            Verb::GroupInfo(_) => Ok(true),
            Verb::Error(error) if error.code == ErrorCode::NotOffered.number() => Ok(false),
            other => Err(format!("no group but {other:?}").into()),
        }
    }

    fn join(&self, link: &mut Link, group: Group<'_>, member: usize) -> Result<()> {
        let join = GroupJoin {
            group: TopicName::parse(group.name)?,
            name: format!("member {member}"),
            window: u32::try_from(2 * group.batch)?,
        };
        match ask(link, join)? {
            Verb::GroupJoined(joined) => {
                let out = Vec::new();
                link.dialect = Box::new(Member { member: joined.member, acks: out, number: 0 });
                Ok(())
            }
            other => Err(format!("not joined but {other:?}").into()),
        }
    }

    fn left(&self, link: &mut Link, group: Group<'_>) -> Result<u64> {
        match ask(link, GroupDescribe { group: TopicName::parse(group.name)? })? {
            Verb::GroupInfo(info) => Ok(info.lag),
            other => Err(format!("no group but {other:?}").into()),
        }
    }
}

/// A member's side: an ack for each frame of messages.
struct Member {
    member: u64,
    acks: Vec<u8>,
    number: u64,
}

impl Member {
    /// Adds the ack of what came; tells how many messages that are.
    fn ack(&mut self, frame: &[u8]) -> Option<u64> {
        let subject = frame.get(SUBJECT_BYTES_AT..SUBJECT_BYTES_AT + 2)?;
        let subject = usize::from(u16::from_le_bytes(subject.try_into().ok()?));
        let leases = frame.get(FRAME_HEAD_BYTES + subject + LEASES_AT..)?;
        let (bytes, messages) = measure(leases)?;
        // Looked at one by one, as in the other protocols. A batch is delivered whole also where
        // some of its messages are with others.
        let walked: u64 = BatchRef::all(&leases[bytes..])
            .flat_map(|batch| batch.records())
            .map(|record| u64::from(black_box(record.body).is_some()))
            .sum();
        if walked < messages {
            return None;
        }
        self.number += 1;
        let payload = 8 + 2 + bytes;
        self.acks.extend_from_slice(&((FRAME_HEAD_BYTES - 4 + payload) as u32).to_le_bytes());
        self.acks.push(Kind::GroupAck.number());
        self.acks.extend_from_slice(&u128::from(self.number).to_le_bytes());
        self.acks.extend_from_slice(&[0; 16 + 2]);
        self.acks.extend_from_slice(&(payload as u32).to_le_bytes());
        self.acks.extend_from_slice(&self.member.to_le_bytes());
        self.acks.extend_from_slice(&[CONFIRM_DURABLE, WHICH_LEASES]);
        self.acks.extend_from_slice(&leases[..bytes]);
        Some(messages)
    }
}

/// Bytes of a list of leases, and how many messages they name.
fn measure(list: &[u8]) -> Option<(usize, u64)> {
    let mut at = 0;
    let mut next = || {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = *list.get(at)?;
            at += 1;
            value |= u64::from(byte & 0x7F).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
        }
    };
    let mut messages = 0;
    for _ in 0..next()? {
        let (_skipped, more, _attempt) = (next()?, next()?, next()?);
        messages += more + 1;
    }
    Some((at, messages))
}

impl Dialect for Member {
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
        let mut at = 0;
        while let Some(frame) = frames::Seen::first(&bytes[at..]) {
            at += frame.bytes.len();
            if frame.is(Kind::GroupMessages) {
                let messages = self.ack(frame.bytes);
                seen.messages += messages.ok_or("messages that cannot be understood")?;
            } else if frame.is(Kind::GroupDone) {
                seen.answers += 1;
            } else {
                match decode(frame)? {
                    Verb::GroupRole(_) => {}
                    other => return Err(format!("gapless sent {other:?}").into()),
                }
            }
        }
        Ok(at)
    }

    fn owes(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.acks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_leases_is_measured_without_reading_it_twice() {
        // Two leases: 10 messages from 300 on, then one; the batches follow.
        let list = [2, 0xAC, 0x02, 9, 1, 0, 0, 1, 99, 99];
        assert_eq!(measure(&list), Some((8, 11)));
        assert_eq!(measure(&list[..5]), None);
    }
}
