//! The bytes of messages: records in a batch.
//!
//! A publisher encodes the records once; the topic puts the numbers into the header before
//! them ([`crate::entry`]); and so they go to disk, to memory and to every subscriber. A record's
//! seq is an offset from the batch's first seq, so that a batch from which compaction took records
//! still knows the number of each that is left, and accounts for those that are not.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::time::Duration;

use crate::entry::{ENTRY_HEADER_BYTES, Entry, EntryHeader, EntryKind};
use crate::id::{Position, Seq};
use crate::message::{Message, MessageError};
use crate::time::{Timestamp, whole_ms};

/// Most messages of one batch.
pub const BATCH_COUNT_MAX: u32 = 65_536;

/// Set in a batch's flags when one of its records has a key.
pub const FLAG_KEYS: u16 = 1;
/// Set in a batch's flags when one of its records has an id.
pub const FLAG_IDS: u16 = 2;
/// Set in a batch's flags when records that were in it are gone.
pub const FLAG_HOLES: u16 = 4;

const HAS_KEY: u8 = 1;
const HAS_HEADERS: u8 = 2;
const HAS_BODY: u8 = 4;
const HAS_ID: u8 = 8;
const HAS_TTL: u8 = 16;
const KNOWN: u8 = HAS_KEY | HAS_HEADERS | HAS_BODY | HAS_ID | HAS_TTL;

/// Why some bytes are not a batch. They come from outside; nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The bytes end inside a record.
    #[error("record {index} is cut short")]
    Short {
        /// Which record.
        index: u32,
    },
    /// A record says something that cannot be.
    #[error("record {index} is malformed")]
    Malformed {
        /// Which record.
        index: u32,
    },
    /// There are more records than a batch may have.
    #[error("a batch holds at most {BATCH_COUNT_MAX} messages")]
    TooMany,
}

/// Records ready to be numbered: the body of a batch, and what its header will say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The encoded records.
    pub bytes: Bytes,
    /// How many they are.
    pub count: u32,
    /// [`FLAG_KEYS`] and [`FLAG_IDS`].
    pub flags: u16,
    /// The shortest time to live in ms; zero when none has one.
    pub ttl_min_ms: u32,
    /// Whether one of them has more than a body: then there is more to check.
    pub extras: bool,
}

impl Records {
    /// Checks records that were encoded elsewhere: each well formed, numbered from zero on.
    ///
    /// # Errors
    /// Names the first record that is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let mut found = Self::default();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let index = found.count;
            if index == BATCH_COUNT_MAX {
                return Err(BatchError::TooMany);
            }
            let record = Record::take(&mut rest, index)?;
            if record.offset != index || (record.body.is_none() && record.key.is_none()) {
                return Err(BatchError::Malformed { index });
            }
            found.note(&record);
        }
        found.bytes = bytes;
        Ok(found)
    }

    /// The records, in order.
    pub fn iter(&self) -> RecordIter<'_> {
        RecordIter { rest: &self.bytes, index: 0 }
    }

    fn note(&mut self, record: &Record<'_>) {
        self.count += 1;
        self.flags |= if record.key.is_some() { FLAG_KEYS } else { 0 };
        self.flags |= if record.id.is_some() { FLAG_IDS } else { 0 };
        self.extras |= record.key.is_some()
            || record.id.is_some()
            || record.ttl_ms.is_some()
            || !record.headers.is_empty();
        if let Some(ttl) = record.ttl_ms
            && (self.ttl_min_ms == 0 || ttl < self.ttl_min_ms)
        {
            self.ttl_min_ms = ttl;
        }
    }
}

/// Encodes messages as records.
#[derive(Debug, Default)]
pub struct RecordsBuilder {
    out: BytesMut,
    found: Records,
}

impl RecordsBuilder {
    /// A builder with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { out: BytesMut::with_capacity(bytes), found: Records::default() }
    }

    /// Adds a message after checking it. Its `not_before` is not part of a record: messages are
    /// delayed outside the batch.
    ///
    /// # Errors
    /// Says which limit it breaks; nothing was added.
    pub fn push(&mut self, message: &Message) -> Result<(), MessageError> {
        message.validate()?;
        let ttl_ms = message.ttl.map(|ttl| {
            u32::try_from(whole_ms(ttl)).expect("validate() keeps the time to live in 32 bits")
        });
        let headers = encode_headers(&message.headers);
        self.push_record(&Record {
            offset: self.found.count,
            key: message.key.as_deref(),
            id: message.id.as_deref(),
            ttl_ms,
            headers: &headers,
            body: message.body.as_deref(),
        });
        Ok(())
    }

    /// Adds a record as it is, under the offset it has; offsets must rise.
    pub fn push_record(&mut self, record: &Record<'_>) {
        record.put(&mut self.out);
        self.found.note(record);
    }

    /// How many records were added.
    pub fn count(&self) -> u32 {
        self.found.count
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// The records.
    pub fn finish(self) -> Records {
        Records { bytes: self.out.freeze(), ..self.found }
    }
}

/// One message inside a batch, borrowed from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// How far its seq is from the batch's first.
    pub offset: u32,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its id.
    pub id: Option<&'a [u8]>,
    /// How many ms after the batch's time it may still be delivered.
    pub ttl_ms: Option<u32>,
    /// Its headers, still encoded; empty when it has none.
    pub headers: &'a [u8],
    /// Its content.
    pub body: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// The only record in these bytes, which were encoded elsewhere.
    ///
    /// # Errors
    /// When it is not well formed, or not the only one.
    pub fn only(mut bytes: &'a [u8]) -> Result<Self, BatchError> {
        let record = Self::take(&mut bytes, 0)?;
        let is_empty = record.body.is_none() && record.key.is_none();
        if record.offset != 0 || is_empty || !bytes.is_empty() {
            return Err(BatchError::Malformed { index: 0 });
        }
        Ok(record)
    }

    /// Whether it removes its key.
    pub fn is_tombstone(&self) -> bool {
        self.key.is_some() && self.body.is_none()
    }

    /// The record as a message that shares `bytes`, of which it is a part.
    pub fn to_message(&self, bytes: &Bytes) -> Message {
        let share = |part: &[u8]| bytes.slice_ref(part);
        let headers = decode_headers(self.headers).unwrap_or_default();
        Message {
            key: self.key.map(share),
            id: self.id.map(share),
            ttl: self.ttl_ms.map(|ms| Duration::from_millis(u64::from(ms))),
            headers: headers.into_iter().map(|(name, value)| (name, share(value))).collect(),
            body: self.body.map(share),
            not_before: None,
        }
    }

    fn put(&self, out: &mut BytesMut) {
        let mut flags = 0;
        let mut len = 1 + varint_bytes(u64::from(self.offset));
        let mut part = |present: Option<usize>, flag: u8| {
            if let Some(bytes) = present {
                flags |= flag;
                len += varint_bytes(bytes as u64) + bytes;
            }
        };
        part(self.id.map(<[u8]>::len), HAS_ID);
        part(self.key.map(<[u8]>::len), HAS_KEY);
        part((!self.headers.is_empty()).then_some(self.headers.len()), HAS_HEADERS);
        if let Some(ttl) = self.ttl_ms {
            flags |= HAS_TTL;
            len += varint_bytes(u64::from(ttl));
        }
        if let Some(body) = self.body {
            flags |= HAS_BODY;
            len += body.len();
        }
        out.reserve(len + 5);
        put_varint(out, len as u64);
        out.put_u8(flags);
        put_varint(out, u64::from(self.offset));
        if let Some(ttl) = self.ttl_ms {
            put_varint(out, u64::from(ttl));
        }
        for bytes in [self.id, self.key].into_iter().flatten() {
            put_varint(out, bytes.len() as u64);
            out.put_slice(bytes);
        }
        if !self.headers.is_empty() {
            put_varint(out, self.headers.len() as u64);
            out.put_slice(self.headers);
        }
        if let Some(body) = self.body {
            out.put_slice(body);
        }
    }

    fn take(rest: &mut &'a [u8], index: u32) -> Result<Self, BatchError> {
        let short = BatchError::Short { index };
        let malformed = BatchError::Malformed { index };
        let mut cut = *rest;
        let len = take_varint(&mut cut).ok_or(short)?;
        let mut record = take_bytes(&mut cut, len).ok_or(short)?;
        let (&flags, after) = record.split_first().ok_or(malformed)?;
        record = after;
        if flags & !KNOWN != 0 {
            return Err(malformed);
        }
        let small = |rest: &mut &[u8]| {
            take_varint(rest).and_then(|value| u32::try_from(value).ok()).ok_or(malformed)
        };
        let offset = small(&mut record)?;
        let ttl_ms = if flags & HAS_TTL != 0 { Some(small(&mut record)?) } else { None };
        let mut part = |flag: u8| {
            if flags & flag == 0 {
                return Ok(None);
            }
            let len = take_varint(&mut record).ok_or(malformed)?;
            take_bytes(&mut record, len).map(Some).ok_or(malformed)
        };
        let (id, key) = (part(HAS_ID)?, part(HAS_KEY)?);
        let headers = part(HAS_HEADERS)?.unwrap_or_default();
        let body = (flags & HAS_BODY != 0).then_some(record);
        if (body.is_none() && !record.is_empty())
            || (!headers.is_empty() && decode_headers(headers).is_none())
        {
            return Err(malformed);
        }
        *rest = cut;
        Ok(Self { offset, key, id, ttl_ms, headers, body })
    }
}

/// Goes over the records of checked bytes.
#[derive(Clone, Debug, Default)]
pub struct RecordIter<'a> {
    rest: &'a [u8],
    index: u32,
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let record = Record::take(&mut self.rest, self.index).ok()?;
        self.index += 1;
        Some(record)
    }
}

/// Numbered messages of one topic, borrowed: for going over many without touching reference counts.
#[derive(Clone, Copy, Debug)]
pub struct BatchRef<'a> {
    header: EntryHeader,
    bytes: &'a [u8],
}

impl<'a> BatchRef<'a> {
    /// Goes over the batches in bytes that were checked before; ends at the first bytes that are
    /// not a batch.
    pub fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        core::iter::from_fn(move || Self::take(&mut bytes))
    }

    /// Takes the first batch off bytes that were checked before; `None` if that is not a batch.
    #[inline]
    pub fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let (header, len) = EntryHeader::read(bytes).ok()?;
        let (batch, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        (header.kind == EntryKind::Batch).then_some(Self { header, bytes: batch })
    }

    /// Its numbers.
    pub fn header(&self) -> &EntryHeader {
        &self.header
    }

    /// Header and records, as stored.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its messages.
    pub fn records(&self) -> RecordIter<'a> {
        RecordIter { rest: &self.bytes[ENTRY_HEADER_BYTES..], index: 0 }
    }

    /// Where in its bytes each record begins, for [`BatchRef::record_at`].
    pub fn starts(&self) -> Vec<u32> {
        let mut starts = Vec::with_capacity(self.header.count as usize);
        let mut records = self.records();
        loop {
            let at = self.bytes.len() - records.rest.len();
            if records.next().is_none() {
                return starts;
            }
            starts.push(u32::try_from(at).expect("a batch has less than 4 GiB"));
        }
    }

    /// The record that begins at this byte, one of [`BatchRef::starts`].
    pub fn record_at(&self, start: u32) -> Option<Record<'a>> {
        Record::take(&mut self.bytes.get(start as usize..)?, 0).ok()
    }

    /// The seq of one of its records.
    pub fn seq_of(&self, record: &Record<'_>) -> Seq {
        self.header.seq.plus(u64::from(record.offset))
    }

    /// The position of one of its records.
    pub fn position_of(&self, record: &Record<'_>) -> Position {
        self.header.position.plus(u64::from(record.offset))
    }

    /// Whether one of its records is past its time to live at `now`.
    pub fn is_expired(&self, record: &Record<'_>, now: Timestamp) -> bool {
        record.ttl_ms.is_some_and(|ttl| self.header.time.0.saturating_add(u64::from(ttl)) <= now.0)
    }

    /// Whether any of its records may be past its time to live at `now`.
    pub fn may_have_expired(&self, now: Timestamp) -> bool {
        let ttl = self.header.ttl_min_ms;
        ttl != 0 && self.header.time.0.saturating_add(u64::from(ttl)) <= now.0
    }
}

/// Numbered messages of one topic, sharing the bytes they came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch(Entry);

impl Batch {
    /// The batch in an entry; `None` when the entry is of another kind.
    pub fn new(entry: Entry) -> Option<Self> {
        (entry.header.kind == EntryKind::Batch).then_some(Self(entry))
    }

    /// The same, borrowed.
    pub fn view(&self) -> BatchRef<'_> {
        BatchRef { header: self.0.header, bytes: &self.0.bytes }
    }

    /// Its numbers.
    pub fn header(&self) -> &EntryHeader {
        &self.0.header
    }

    /// Header and records, as stored.
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// The first seq it accounts for.
    pub fn first(&self) -> Seq {
        self.0.header.seq
    }

    /// The last seq it accounts for.
    pub fn last(&self) -> Seq {
        self.0.header.last_seq()
    }

    /// When its messages were accepted.
    pub fn time(&self) -> Timestamp {
        self.0.header.time
    }

    /// Its messages, borrowed.
    pub fn records(&self) -> RecordIter<'_> {
        self.view().records()
    }

    /// The seq of one of its records.
    pub fn seq_of(&self, record: &Record<'_>) -> Seq {
        self.view().seq_of(record)
    }

    /// The position of one of its records.
    pub fn position_of(&self, record: &Record<'_>) -> Position {
        self.view().position_of(record)
    }

    /// Whether one of its records is past its time to live at `now`.
    pub fn is_expired(&self, record: &Record<'_>, now: Timestamp) -> bool {
        self.view().is_expired(record, now)
    }

    /// Whether any of its records may be past its time to live at `now`.
    pub fn may_have_expired(&self, now: Timestamp) -> bool {
        self.view().may_have_expired(now)
    }

    /// One of its records as a message that shares the batch's bytes.
    pub fn message(&self, record: &Record<'_>) -> Message {
        record.to_message(&self.0.bytes)
    }
}

fn encode_headers(headers: &[(String, Bytes)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in headers {
        put_varint(&mut out, name.len() as u64);
        out.put_slice(name.as_bytes());
        put_varint(&mut out, value.len() as u64);
        out.put_slice(value);
    }
    out
}

fn decode_headers(mut rest: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let mut headers = Vec::new();
    while !rest.is_empty() {
        let (name, value) = take_header(&mut rest)?;
        headers.push((core::str::from_utf8(name).ok()?.to_string(), value));
    }
    Some(headers)
}

fn take_header<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let len = take_varint(rest)?;
    let name = take_bytes(rest, len)?;
    let len = take_varint(rest)?;
    Some((name, take_bytes(rest, len)?))
}

/// The names and values of a record's headers, as they are encoded; without an allocation.
pub(crate) fn headers_of(mut rest: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    core::iter::from_fn(move || take_header(&mut rest))
}

/// Writes a number in seven bits per byte, low ones first.
pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads what [`put_varint`] wrote; `None` when it ends early or is longer than 64 bits.
pub fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    // Most are small.
    if let Some((&byte, after)) = rest.split_first()
        && byte < 0x80
    {
        *rest = after;
        return Some(u64::from(byte));
    }
    let mut value = 0_u64;
    for (index, &byte) in rest.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        if index == 9 && part > 1 {
            return None;
        }
        value |= part << (7 * index);
        if byte & 0x80 == 0 {
            *rest = &rest[index + 1..];
            return Some(value);
        }
    }
    None
}

/// Takes `len` bytes off the front; `None` when there are fewer.
pub fn take_bytes<'a>(rest: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let len = usize::try_from(len).ok()?;
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
