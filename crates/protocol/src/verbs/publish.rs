//! Verbs that bring messages in, and what is answered.
//!
//! Messages come as core's records, whose bytes go to the journal and to subscribers as they
//! are. Here they are checked once: each well formed and within its limits. An ack says the
//! seq of every message, also of those that were there already.
//!
//! Whether a publish is accepted is decided elsewhere.

use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::batch::{put_varint, take_bytes, take_varint};
use gapless_core::message::{
    HEADER_BYTES_MAX, HEADERS_MAX, ID_BYTES_MAX, KEY_BYTES_MAX, TTL_MAX,
};
use gapless_core::{
    Accepted, DeliveryPolicy, Expect, MessageError, PartitionBehavior, Position, PublishOptions,
    Record, Records, RejectReason, Seq, Timestamp, TopicName,
};

use crate::verb::{Fields, VerbError, no_subject};
use crate::wire::{List, Reader, at_most, ensure, exists, put_bytes};

/// Most parts of one commit, and most acks of its answer: a commit locks all its topics.
pub const COMMIT_PARTS_MAX: usize = 1024;
/// Most cells of one commit.
pub const COMMIT_CELLS_MAX: usize = 1024;
/// Longest name of a cell, in bytes.
pub const CELL_NAME_BYTES_MAX: usize = 255;
/// Longest detail of a rejection that a later version may send, in bytes.
pub const DETAIL_BYTES_MAX: usize = 255;

const PARTS: List = List { field: "parts", item_bytes_min: 3, count_max: COMMIT_PARTS_MAX };
const CELLS: List = List { field: "cells", item_bytes_min: 2, count_max: COMMIT_CELLS_MAX };
const ACKS: List = List { field: "acks", item_bytes_min: 4, count_max: COMMIT_PARTS_MAX };
const KNOWN: List = List {
    field: "known",
    item_bytes_min: 9,
    count_max: gapless_core::batch::BATCH_COUNT_MAX as usize,
};

/// Bits that say which options follow.
mod has {
    pub(super) const DURABILITY: u16 = 1;
    pub(super) const DELIVERY: u16 = 2;
    pub(super) const PARTITION: u16 = 4;
    pub(super) const REQUIRE_SUBSCRIBERS: u16 = 8;
    pub(super) const EXPECT_TOPIC: u16 = 16;
    pub(super) const EXPECT_KEY: u16 = 32;
    pub(super) const NOT_BEFORE: u16 = 64;
    pub(super) const ALL: u16 = 127;
}

/// Messages for one topic, to be accepted together or not at all. Answered by
/// [`PublishAck`] with one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Where they go.
    pub topic: TopicName,
    /// What the publisher asks for.
    pub options: PublishOptions,
    /// When the message shall appear, if not at once; then there is exactly one.
    pub not_before: Option<Timestamp>,
    /// The messages; at least one.
    pub records: Records,
}

impl Fields for Publish {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let topic = TopicName::parse(subject)?;
        let (options, not_before) = take_options(payload)?;
        Ok(Self { topic, options, not_before, records: Records::parse(payload.rest())? })
    }

    fn put(&self, out: &mut BytesMut) {
        put_options(out, &self.options, self.not_before);
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        each(&self.records.bytes);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_expect(self.options.expect)?;
        ensure(self.not_before.is_none() || self.records.count <= 1, "not_before")?;
        check_records(&self.records)
    }
}

/// Messages for several topics, and cells: after a crash all are there, or none. Answered by
/// [`PublishAck`] with one part for each, or a single one if all of it is rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// What the publisher asks for; what it expects is asked for by each part.
    pub options: PublishOptions,
    /// The messages, each topic once.
    pub parts: Vec<CommitPart>,
    /// The cells.
    pub cells: Vec<CellWrite>,
}

/// The messages of a commit for one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPart {
    /// Where they go.
    pub topic: TopicName,
    /// What must be true.
    pub expect: Option<Expect>,
    /// The messages; at least one.
    pub records: Records,
}

/// A small named value that is set or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellWrite {
    /// Its name; not empty.
    pub name: Bytes,
    /// Its value; `None` removes it.
    pub value: Option<Bytes>,
}

impl Fields for Commit {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let (options, not_before) = take_options(payload)?;
        ensure(not_before.is_none() && options.expect.is_none(), "options")?;
        let count = payload.count(&PARTS)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let topic = payload.name("topic")?;
            let expect = match payload.u8("expect")? {
                0 => None,
                1 => Some(Expect::TopicLast(payload.seq("expect")?)),
                2 => Some(Expect::KeyLast(payload.seq("expect")?)),
                _ => return Err(VerbError::Value { field: "expect" }),
            };
            let records = Records::parse(payload.bytes("records")?)?;
            parts.push(CommitPart { topic, expect, records });
        }
        let count = payload.count(&CELLS)?;
        let mut cells = Vec::with_capacity(count);
        for _ in 0..count {
            let name = payload.bytes("cell name")?;
            let value = if payload.flag("cell")? { Some(payload.bytes("cell")?) } else { None };
            cells.push(CellWrite { name, value });
        }
        Ok(Self { options, parts, cells })
    }

    fn put(&self, out: &mut BytesMut) {
        put_options(out, &self.options, None);
        put_varint(out, self.parts.len() as u64);
        for part in &self.parts {
            put_bytes(out, part.topic.as_str().as_bytes());
            match part.expect {
                None => out.put_u8(0),
                Some(Expect::TopicLast(seq)) => {
                    out.put_u8(1);
                    out.put_u64_le(seq.0);
                }
                Some(Expect::KeyLast(seq)) => {
                    out.put_u8(2);
                    out.put_u64_le(seq.0);
                }
            }
            put_bytes(out, &part.records.bytes);
        }
        put_varint(out, self.cells.len() as u64);
        for cell in &self.cells {
            put_bytes(out, &cell.name);
            out.put_u8(u8::from(cell.value.is_some()));
            if let Some(value) = &cell.value {
                put_bytes(out, value);
            }
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(self.options.expect.is_none(), "options")?;
        PARTS.check(self.parts.len())?;
        CELLS.check(self.cells.len())?;
        if self.parts.is_empty() && self.cells.is_empty() {
            return Err(VerbError::NoMessage);
        }
        for part in &self.parts {
            check_expect(part.expect)?;
            check_records(&part.records)?;
        }
        self.cells.iter().try_for_each(|cell| check_cell_name(&cell.name))
    }
}

/// What became of a publish or a commit, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishAck {
    /// One for each part; a single rejection stands for all of them.
    pub parts: Vec<PartAck>,
}

/// What became of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartAck {
    /// Taken; delivery has begun.
    Accepted(PartAccepted),
    /// Kept until it is due; only then does it get its seq.
    Scheduled {
        /// The id by which it can be cancelled until it is due.
        id: Position,
        /// When it will appear in its topic.
        due: Timestamp,
    },
    /// Refused; nothing was written.
    Rejected(Rejection),
}

/// Where the messages of a part stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAccepted {
    /// Numbers and durability. `first` to `last` are those of the new messages; if all were
    /// there already, the lowest and the highest of theirs.
    pub accepted: Accepted,
    /// How many messages the part had; zero for a commit of cells only.
    pub count: u32,
    /// Which of them were there already.
    pub known: Known,
}

/// Which messages of a part were there already, so that they were not stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// None: the seqs of the part run from first to last.
    None,
    /// These, by ascending index in the part, with the seq each has had since then. The others
    /// have the seqs from first to last, in their order.
    These(Vec<(u32, Seq)>),
    /// Some, but the server cannot say which.
    Some,
}

impl PartAccepted {
    /// The seq of a message by its index in the part; `None` when there is no such message, or
    /// the server did not say.
    pub fn seq_of(&self, index: u32) -> Option<Seq> {
        if index >= self.count {
            return None;
        }
        let before = match &self.known {
            Known::None => 0,
            Known::These(known) => match known.binary_search_by_key(&index, |(at, _)| *at) {
                Ok(found) => return Some(known[found].1),
                Err(before) => before,
            },
            Known::Some if self.count == 1 => 0,
            Known::Some => return None,
        };
        Some(self.accepted.first.plus(u64::from(index) - before as u64))
    }

    fn check(&self) -> Result<(), VerbError> {
        let Accepted { first, last, position, duplicate, .. } = self.accepted;
        exists(first.0, "first")?;
        exists(last.0, "last")?;
        exists(position.0, "position")?;
        ensure(first <= last, "last")?;
        let span = last.next().distance(first);
        match &self.known {
            Known::None => {
                ensure(!duplicate && span == u64::from(self.count.max(1)), "count")
            }
            Known::Some => ensure(self.count > 0, "count"),
            Known::These(known) => {
                KNOWN.check(known.len())?;
                let rises = known.windows(2).all(|pair| pair[0].0 < pair[1].0);
                let inside = known.last().is_some_and(|(index, _)| *index < self.count);
                ensure(rises && inside, "known")?;
                known.iter().try_for_each(|(_, seq)| exists(seq.0, "known"))?;
                let fresh = u64::from(self.count) - known.len() as u64;
                let adds_up = if fresh == 0 { duplicate } else { !duplicate && span == fresh };
                ensure(adds_up, "count")
            }
        }
    }
}

/// Why a part was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// For a reason that this version knows.
    Reason(RejectReason),
    /// For one that a later version knows.
    Other {
        /// Its number.
        code: u16,
        /// What it says besides.
        detail: Bytes,
    },
}

impl Rejection {
    /// Its number in the one list.
    pub fn code(&self) -> u16 {
        match self {
            Self::Reason(reason) => reason.code(),
            Self::Other { code, .. } => *code,
        }
    }

    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        let code = payload.u16("reason")?;
        let detail = payload.bytes("detail")?;
        let mut fields = Reader::new(&detail);
        let reason = match code {
            1 => RejectReason::InvalidTopic,
            2 => RejectReason::InvalidPayload,
            3 => RejectReason::NotSerializable,
            4 => RejectReason::QueueFull,
            5 => RejectReason::NoSubscribers,
            6 => RejectReason::PartitionDrop,
            7 => RejectReason::ExpectedSeq { actual: fields.seq("actual")? },
            8 => RejectReason::TooLarge { bytes: fields.u64("bytes")?, max: fields.u64("max")? },
            9 => RejectReason::Expired,
            10 => RejectReason::NotAuthorised,
            11 => RejectReason::UnknownTopic,
            12 => RejectReason::NotDurable,
            code => return Ok(Self::Other { code, detail }),
        };
        fields.finish()?;
        Ok(Self::Reason(reason))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u16_le(self.code());
        match self {
            Self::Reason(RejectReason::ExpectedSeq { actual }) => {
                out.put_u8(8);
                out.put_u64_le(actual.0);
            }
            Self::Reason(RejectReason::TooLarge { bytes, max }) => {
                out.put_u8(16);
                out.put_u64_le(*bytes);
                out.put_u64_le(*max);
            }
            Self::Reason(_) => out.put_u8(0),
            Self::Other { detail, .. } => put_bytes(out, detail),
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        match self {
            Self::Reason(RejectReason::ExpectedSeq { actual }) => exists(actual.0, "actual"),
            Self::Reason(_) => Ok(()),
            Self::Other { code, detail } => {
                let known = RejectReason::CODES.iter().any(|(number, _)| number == code);
                ensure(!known && (1..100).contains(code), "reason")?;
                at_most(DETAIL_BYTES_MAX, detail.len(), "detail")
            }
        }
    }
}

impl PartAck {
    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        match payload.u8("ack")? {
            1 => {}
            2 => {
                let id = payload.position("id")?;
                return Ok(Self::Scheduled { id, due: Timestamp(payload.u64("due")?) });
            }
            3 => return Ok(Self::Rejected(Rejection::take(payload)?)),
            _ => return Err(VerbError::Value { field: "ack" }),
        }
        let (first, last) = (payload.seq("first")?, payload.seq("last")?);
        let position = payload.position("position")?;
        let durability = payload.durability("durability")?;
        let duplicate = payload.flag("duplicate")?;
        let count = payload.u32("count")?;
        let known = match payload.u8("known")? {
            0 => Known::None,
            1 => {
                let count = payload.count(&KNOWN)?;
                let mut known = Vec::with_capacity(count);
                for _ in 0..count {
                    known.push((payload.varint_u32("known")?, payload.seq("known")?));
                }
                Known::These(known)
            }
            2 => Known::Some,
            _ => return Err(VerbError::Value { field: "known" }),
        };
        let accepted = Accepted { first, last, position, durability, duplicate };
        Ok(Self::Accepted(PartAccepted { accepted, count, known }))
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Accepted(PartAccepted { accepted, count, known }) => {
                out.put_u8(1);
                out.put_u64_le(accepted.first.0);
                out.put_u64_le(accepted.last.0);
                out.put_u64_le(accepted.position.0);
                out.put_u8(accepted.durability.code());
                out.put_u8(u8::from(accepted.duplicate));
                out.put_u32_le(*count);
                match known {
                    Known::None => out.put_u8(0),
                    Known::These(known) => {
                        out.put_u8(1);
                        put_varint(out, known.len() as u64);
                        for (index, seq) in known {
                            put_varint(out, u64::from(*index));
                            out.put_u64_le(seq.0);
                        }
                    }
                    Known::Some => out.put_u8(2),
                }
            }
            Self::Scheduled { id, due } => {
                out.put_u8(2);
                out.put_u64_le(id.0);
                out.put_u64_le(due.0);
            }
            Self::Rejected(rejection) => {
                out.put_u8(3);
                rejection.put(out);
            }
        }
    }
}

impl Fields for PublishAck {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let count = payload.count(&ACKS)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(PartAck::take(payload)?);
        }
        Ok(Self { parts })
    }

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.parts.len() as u64);
        self.parts.iter().for_each(|part| part.put(out));
    }

    fn check(&self) -> Result<(), VerbError> {
        ACKS.check(self.parts.len())?;
        ensure(!self.parts.is_empty(), "acks")?;
        for part in &self.parts {
            match part {
                PartAck::Accepted(accepted) => accepted.check()?,
                PartAck::Scheduled { id, .. } => exists(id.0, "id")?,
                PartAck::Rejected(rejection) => {
                    ensure(self.parts.len() == 1, "acks")?;
                    rejection.check()?;
                }
            }
        }
        Ok(())
    }
}

/// Takes a delayed message back before it is due. Answered by [`Cancelled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelDelayed {
    /// The id from its ack.
    pub id: Position,
}

impl Fields for CancelDelayed {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { id: payload.position("id")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.id.0);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.id.0, "id")
    }
}

/// Whether a delayed message could be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Whether it was still waiting; if not, it was published, cancelled before, or unknown.
    pub was_waiting: bool,
}

impl Fields for Cancelled {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { was_waiting: payload.flag("was_waiting")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.was_waiting));
    }
}

fn take_options(
    payload: &mut Reader,
) -> Result<(PublishOptions, Option<Timestamp>), VerbError> {
    let flags = payload.u16("options")?;
    let both = has::EXPECT_TOPIC | has::EXPECT_KEY;
    ensure(flags & !has::ALL == 0 && flags & both != both, "options")?;
    let is = |flag: u16| flags & flag != 0;
    let mut options = PublishOptions::default();
    if is(has::DURABILITY) {
        options.durability = Some(payload.durability("durability")?);
    }
    if is(has::DELIVERY) {
        let delivery = DeliveryPolicy::from_code(payload.u8("delivery")?);
        options.delivery = Some(delivery.ok_or(VerbError::Value { field: "delivery" })?);
    }
    if is(has::PARTITION) {
        let partition = PartitionBehavior::from_code(payload.u8("partition")?);
        options.partition = Some(partition.ok_or(VerbError::Value { field: "partition" })?);
    }
    if is(has::REQUIRE_SUBSCRIBERS) {
        options.require_subscribers = Some(payload.flag("require_subscribers")?);
    }
    if is(has::EXPECT_TOPIC) {
        options.expect = Some(Expect::TopicLast(payload.seq("expect")?));
    }
    if is(has::EXPECT_KEY) {
        options.expect = Some(Expect::KeyLast(payload.seq("expect")?));
    }
    let mut not_before = None;
    if is(has::NOT_BEFORE) {
        not_before = Some(Timestamp(payload.u64("not_before")?));
    }
    Ok((options, not_before))
}

fn put_options(out: &mut BytesMut, options: &PublishOptions, not_before: Option<Timestamp>) {
    let mut fields = BytesMut::new();
    let mut flags = 0;
    if let Some(durability) = options.durability {
        flags |= has::DURABILITY;
        fields.put_u8(durability.code());
    }
    if let Some(delivery) = options.delivery {
        flags |= has::DELIVERY;
        fields.put_u8(delivery.code());
    }
    if let Some(partition) = options.partition {
        flags |= has::PARTITION;
        fields.put_u8(partition.code());
    }
    if let Some(require) = options.require_subscribers {
        flags |= has::REQUIRE_SUBSCRIBERS;
        fields.put_u8(u8::from(require));
    }
    match options.expect {
        Some(Expect::TopicLast(seq)) => {
            flags |= has::EXPECT_TOPIC;
            fields.put_u64_le(seq.0);
        }
        Some(Expect::KeyLast(seq)) => {
            flags |= has::EXPECT_KEY;
            fields.put_u64_le(seq.0);
        }
        None => {}
    }
    if let Some(time) = not_before {
        flags |= has::NOT_BEFORE;
        fields.put_u64_le(time.0);
    }
    out.put_u16_le(flags);
    out.put_slice(&fields);
}

fn check_expect(expect: Option<Expect>) -> Result<(), VerbError> {
    match expect {
        Some(Expect::TopicLast(seq) | Expect::KeyLast(seq)) => exists(seq.0, "expect"),
        None => Ok(()),
    }
}

pub(crate) fn check_cell_name(name: &Bytes) -> Result<(), VerbError> {
    ensure(!name.is_empty(), "cell name")?;
    at_most(CELL_NAME_BYTES_MAX, name.len(), "cell name")
}

/// What a message must keep that comes as a record: the limits of [`gapless_core::Message`].
fn check_records(records: &Records) -> Result<(), VerbError> {
    if records.count == 0 {
        return Err(VerbError::NoMessage);
    }
    for (index, record) in (0..).zip(records.iter()) {
        check_record(&record).map_err(|error| VerbError::Message { index, error })?;
    }
    Ok(())
}

fn check_record(record: &Record<'_>) -> Result<(), MessageError> {
    if let Some(key) = record.key
        && key.len() > KEY_BYTES_MAX
    {
        return Err(MessageError::KeyTooLong { bytes: key.len() });
    }
    if let Some(id) = record.id
        && !(1..=ID_BYTES_MAX).contains(&id.len())
    {
        return Err(MessageError::IdLength { bytes: id.len() });
    }
    let (mut rest, mut count, mut bytes) = (record.headers, 0, 0);
    while let Some(len) = take_varint(&mut rest) {
        bytes += take_bytes(&mut rest, len).map_or(0, <[u8]>::len);
        count += 1;
    }
    // Names and values take turns.
    count /= 2;
    if count > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(MessageError::Headers { count, bytes });
    }
    match record.ttl_ms {
        Some(ttl) if ttl == 0 || u128::from(ttl) > TTL_MAX.as_millis() => Err(MessageError::Ttl),
        _ => Ok(()),
    }
}
