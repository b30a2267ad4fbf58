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
use gapless_core::cluster::{
    DeliveryReport, DeliveryStatus, Identity, NodeName, REPORT_FAILED_MAX, SubscriberName,
    SubscriberResult,
};
use gapless_core::message::{HEADER_BYTES_MAX, HEADERS_MAX, ID_BYTES_MAX, KEY_BYTES_MAX, TTL_MAX};
use gapless_core::{
    DeliveryPolicy, Durability, Expect, ExpectCell, MessageError, PartitionBehavior, Position,
    PublishOptions, Record, Records, Timestamp, TopicName,
};

use crate::field::Field;
use crate::verb::{Fields, VerbError, no_subject};
use crate::wire::{List, Reader, at_most, ensure, exists, put_bytes};

/// Most parts of one commit, and most acks of its answer: a commit locks all its topics.
pub const COMMIT_PARTS_MAX: usize = 1024;
/// Most cells of one commit.
pub const COMMIT_CELLS_MAX: usize = 1024;
/// Longest name of a cell, in bytes.
pub const CELL_NAME_BYTES_MAX: usize = 255;

const PARTS: List = List { field: "parts", item_bytes_min: 3, count_max: COMMIT_PARTS_MAX };
const CELLS: List = List { field: "cells", item_bytes_min: 2, count_max: COMMIT_CELLS_MAX };

/// Bits that say which options follow.
mod has {
    pub(super) const DURABILITY: u16 = 1;
    pub(super) const DELIVERY: u16 = 2;
    pub(super) const PARTITION: u16 = 4;
    pub(super) const REQUIRE_SUBSCRIBERS: u16 = 8;
    pub(super) const EXPECT_TOPIC: u16 = 16;
    pub(super) const EXPECT_KEY: u16 = 32;
    pub(super) const NOT_BEFORE: u16 = 64;
    /// A `DeliveryReport` is to follow the ack; no field.
    pub(super) const REPORT: u16 = 128;
    pub(super) const ALL: u16 = 255;
}

/// Bits that say what follows the name of a cell.
mod cell {
    /// Its new value; without it the cell is removed.
    pub(super) const VALUE: u8 = 1;
    /// It must not be there.
    pub(super) const EXPECTED: u8 = 2;
    /// Its old value, which it must have.
    pub(super) const EXPECTED_VALUE: u8 = 6;
}

/// Messages for one topic, to be accepted together or not at all. Answered by
/// [`PublishAck`](crate::PublishAck) with one part.
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
/// [`PublishAck`](crate::PublishAck) with one part for each, or a single one if all of it is rejected.
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
    /// What it must be before.
    pub expect: ExpectCell,
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
            let flags = payload.u8("cell")?;
            let value = match flags & cell::VALUE {
                0 => None,
                _ => Some(payload.bytes("cell")?),
            };
            let expect = match flags & !cell::VALUE {
                0 => ExpectCell::Anything,
                cell::EXPECTED => ExpectCell::Absent,
                cell::EXPECTED_VALUE => ExpectCell::Value(payload.bytes("cell")?),
                _ => return Err(VerbError::Value { field: "cell" }),
            };
            cells.push(CellWrite { name, value, expect });
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
            let expected = match cell.expect {
                ExpectCell::Anything => 0,
                ExpectCell::Absent => cell::EXPECTED,
                ExpectCell::Value(_) => cell::EXPECTED_VALUE,
            };
            out.put_u8(expected | if cell.value.is_some() { cell::VALUE } else { 0 });
            if let Some(value) = &cell.value {
                put_bytes(out, value);
            }
            if let ExpectCell::Value(value) = &cell.expect {
                put_bytes(out, value);
            }
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        if self.parts.is_empty() && self.cells.is_empty() {
            return Err(VerbError::NoMessage);
        }
        self.check_fields()
    }
}

impl Commit {
    /// All but that there is something in it.
    pub(crate) fn check_fields(&self) -> Result<(), VerbError> {
        ensure(self.options.expect.is_none(), "options")?;
        PARTS.check(self.parts.len())?;
        CELLS.check(self.cells.len())?;
        for part in &self.parts {
            check_expect(part.expect)?;
            check_records(&part.records)?;
        }
        self.cells.iter().try_for_each(|cell| check_cell_name(&cell.name))
    }
}

plain! {
    /// Takes a delayed message back before it is due. Answered by [`Cancelled`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CancelDelayed {
        /// The id from its ack.
        id: Position,
    };

    /// Whether a delayed message could be taken back.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Cancelled {
        /// Whether it was still waiting; if not, it was published, cancelled before, or unknown.
        was_waiting: bool,
    };
}

/// How a subscriber is named in a report.
mod subscriber {
    pub(super) const HANDLE: u8 = 1;
    pub(super) const HANDLE_OF_NODE: u8 = 2;
    pub(super) const IDENTITY: u8 = 3;
    pub(super) const NODE: u8 = 4;
}

const FAILED: List = List { field: "failed", item_bytes_min: 3, count_max: REPORT_FAILED_MAX };

fn take_status(payload: &mut Reader) -> Result<DeliveryStatus, VerbError> {
    let status = DeliveryStatus::from_code(payload.u8("status")?);
    status.ok_or(VerbError::Value { field: "status" })
}

fn take_subscriber(payload: &mut Reader) -> Result<SubscriberName, VerbError> {
    let field = "subscriber";
    let bad = |_| VerbError::Value { field };
    let kind = payload.u8(field)?;
    let node = match kind {
        subscriber::HANDLE_OF_NODE | subscriber::NODE => {
            Some(NodeName::parse(&payload.text(field)?).map_err(bad)?)
        }
        _ => None,
    };
    Ok(match (kind, node) {
        (subscriber::NODE, Some(node)) => SubscriberName::Node(node),
        (subscriber::HANDLE | subscriber::HANDLE_OF_NODE, node) => {
            SubscriberName::Handle { node, number: payload.u64(field)? }
        }
        (subscriber::IDENTITY, _) => {
            SubscriberName::Identity(Identity::parse(&payload.text(field)?).map_err(bad)?)
        }
        _ => return Err(VerbError::Value { field }),
    })
}

fn put_subscriber(subscriber: &SubscriberName, out: &mut BytesMut) {
    match subscriber {
        SubscriberName::Handle { node: None, number } => {
            out.put_u8(subscriber::HANDLE);
            out.put_u64_le(*number);
        }
        SubscriberName::Handle { node: Some(node), number } => {
            out.put_u8(subscriber::HANDLE_OF_NODE);
            put_bytes(out, node.as_str().as_bytes());
            out.put_u64_le(*number);
        }
        SubscriberName::Identity(identity) => {
            out.put_u8(subscriber::IDENTITY);
            put_bytes(out, identity.as_str().as_bytes());
        }
        SubscriberName::Node(node) => {
            out.put_u8(subscriber::NODE);
            put_bytes(out, node.as_str().as_bytes());
        }
    }
}

impl Fields for DeliveryReport {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let status = take_status(payload)?;
        let delivered = payload.varint_u32("delivered")?;
        let unnamed = payload.varint_u32("unnamed")?;
        let count = payload.count(&FAILED)?;
        let mut failed = Vec::with_capacity(count);
        for _ in 0..count {
            let subscriber = take_subscriber(payload)?;
            failed.push(SubscriberResult { subscriber, status: take_status(payload)? });
        }
        Ok(Self { status, delivered, failed, unnamed })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.status.code());
        put_varint(out, self.delivered.into());
        put_varint(out, self.unnamed.into());
        put_varint(out, self.failed.len() as u64);
        for failed in &self.failed {
            put_subscriber(&failed.subscriber, out);
            out.put_u8(failed.status.code());
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        FAILED.check(self.failed.len())
    }
}

fn take_options(payload: &mut Reader) -> Result<(PublishOptions, Option<Timestamp>), VerbError> {
    let flags = payload.u16("options")?;
    let both = has::EXPECT_TOPIC | has::EXPECT_KEY;
    ensure(flags & !has::ALL == 0 && flags & both != both, "options")?;
    let is = |flag: u16| flags & flag != 0;
    let mut options = PublishOptions { report: is(has::REPORT), ..PublishOptions::default() };
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

/// How many bytes of a publish's payload are its options, if it expects nothing and is not
/// delayed.
pub(crate) fn plain_options_bytes(payload: &[u8]) -> Option<usize> {
    let flags = u16::from_le_bytes(*payload.first_chunk()?);
    let codes = has::DURABILITY | has::DELIVERY | has::PARTITION | has::REQUIRE_SUBSCRIBERS;
    (flags & !codes == 0).then(|| 2 + flags.count_ones() as usize)
}

/// What such options say.
pub(crate) fn plain_options(options: &[u8]) -> Option<PublishOptions> {
    let mut fields = Reader::new(&Bytes::copy_from_slice(options));
    take_options(&mut fields).ok().map(|(options, _)| options)
}

fn put_options(out: &mut BytesMut, options: &PublishOptions, not_before: Option<Timestamp>) {
    let flag = |is: bool, flag: u16| if is { flag } else { 0 };
    let mut flags = flag(options.durability.is_some(), has::DURABILITY)
        | flag(options.delivery.is_some(), has::DELIVERY)
        | flag(options.partition.is_some(), has::PARTITION)
        | flag(options.require_subscribers.is_some(), has::REQUIRE_SUBSCRIBERS)
        | flag(not_before.is_some(), has::NOT_BEFORE)
        | flag(options.report, has::REPORT);
    let expect = match options.expect {
        Some(Expect::TopicLast(seq)) => {
            flags |= has::EXPECT_TOPIC;
            Some(seq.0)
        }
        Some(Expect::KeyLast(seq)) => {
            flags |= has::EXPECT_KEY;
            Some(seq.0)
        }
        None => None,
    };
    out.put_u16_le(flags);
    let codes = [
        options.durability.map(Durability::code),
        options.delivery.map(DeliveryPolicy::code),
        options.partition.map(PartitionBehavior::code),
        options.require_subscribers.map(u8::from),
    ];
    codes.into_iter().flatten().for_each(|code| out.put_u8(code));
    let numbers = [expect, not_before.map(|time| time.0)];
    numbers.into_iter().flatten().for_each(|number| out.put_u64_le(number));
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
    if !records.extras {
        return Ok(());
    }
    for (index, record) in (0..).zip(records.iter()) {
        check_record(&record).map_err(|error| VerbError::Message { index, error })?;
    }
    Ok(())
}

pub(crate) fn check_record(record: &Record<'_>) -> Result<(), MessageError> {
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
