//! Cutting a stored batch in pieces, for a frame or a credit that cannot take it whole.
//!
//! The pieces account for the same seqs and positions as the batch, each exactly once: a hole
//! between two messages goes with the message before it, holes at the ends with the piece at
//! that end. Each piece is a batch of its own, with its own flags, times to live and
//! checksums; the function for these is handed in, as this crate has none.
//!
//! Most batches are never cut. Which frames the pieces go into is in `pack.rs`.

use alloc::vec::Vec;
use bytes::BytesMut;
use gapless_core::batch::{FLAG_HOLES, FLAG_IDS, FLAG_KEYS};
use gapless_core::entry::ENTRY_HEADER_BYTES;
use gapless_core::{Batch, Checksum, Entry, EntryHeader, Position, Record, RecordsBuilder, Seq};

/// How large a piece may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitLimit {
    /// Most bytes, header included.
    pub bytes: usize,
    /// Most messages.
    pub messages: u32,
}

/// Why a batch cannot be cut. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// One message alone is above the limit.
    #[error("the message of seq {seq} needs a batch of {bytes} bytes, {max} are allowed")]
    MessageTooLarge {
        /// Which message.
        seq: Seq,
        /// What it takes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The limit allows no message at all.
    #[error("the limit allows no message")]
    NoRoom,
    /// The batch is not what its header says.
    #[error("the batch of seq {seq} is damaged")]
    Damaged {
        /// Its first seq.
        seq: Seq,
    },
}

/// Cuts a batch into pieces within `limit`; one that fits comes back as it is.
///
/// # Errors
/// When a single message is above the limit, or the batch is damaged.
pub fn split(
    batch: &Batch,
    limit: SplitLimit,
    checksum: Checksum,
) -> Result<Vec<Batch>, SplitError> {
    if fits(batch, limit) {
        return Ok(alloc::vec![batch.clone()]);
    }
    let records = records_of(batch)?;
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < records.len() {
        let end = at + fitting(batch, &records[at..], at == 0, limit)?;
        pieces.push(piece(batch, &records, (at, end), checksum));
        at = end;
    }
    Ok(pieces)
}

/// Cuts off the front of a batch as much as `limit` allows; the second is the rest, if any.
///
/// # Errors
/// When not even one message is within the limit, or the batch is damaged.
pub fn cut(
    batch: &Batch,
    limit: SplitLimit,
    checksum: Checksum,
) -> Result<(Batch, Option<Batch>), SplitError> {
    if fits(batch, limit) {
        return Ok((batch.clone(), None));
    }
    let records = records_of(batch)?;
    let end = fitting(batch, &records, true, limit)?;
    let front = piece(batch, &records, (0, end), checksum);
    let rest =
        (end < records.len()).then(|| piece(batch, &records, (end, records.len()), checksum));
    Ok((front, rest))
}

/// The batch with only those of its messages that are wanted, by position; it accounts for the
/// same seqs. `None` when none is wanted; as it is when all are.
///
/// # Errors
/// When the batch is damaged.
pub fn only(
    batch: &Batch,
    mut wanted: impl FnMut(Position) -> bool,
    checksum: Checksum,
) -> Result<Option<Batch>, SplitError> {
    let records = records_of(batch)?;
    let position = |record: &Record<'_>| batch.header().position.plus(u64::from(record.offset));
    let kept: Vec<Record<'_>> =
        records.iter().filter(|record| wanted(position(record))).copied().collect();
    Ok(match kept.len() {
        0 => None,
        count if count == records.len() => Some(batch.clone()),
        _ => Some(rebuilt(batch, &kept, (0, batch.header().span), checksum)),
    })
}

fn fits(batch: &Batch, limit: SplitLimit) -> bool {
    let header = batch.header();
    header.count == 0 || (batch.bytes().len() <= limit.bytes && header.count <= limit.messages)
}

/// The messages, if they are what the header says.
fn records_of(batch: &Batch) -> Result<Vec<Record<'_>>, SplitError> {
    let header = batch.header();
    let damaged = SplitError::Damaged { seq: header.seq };
    let span = u64::from(header.span);
    let (seq, position) = (header.seq.0, header.position.0);
    if seq.checked_add(span).is_none() || position.checked_add(span).is_none() {
        return Err(damaged);
    }
    let records: Vec<Record<'_>> = batch.records().collect();
    let rises = records.windows(2).all(|pair| pair[0].offset < pair[1].offset);
    let inside = records.last().is_some_and(|last| last.offset < header.span);
    if records.len() == header.count as usize && rises && inside {
        Ok(records)
    } else {
        Err(damaged)
    }
}

/// How many of the records fit into a piece that begins with them; at least one.
fn fitting(
    batch: &Batch,
    records: &[Record<'_>],
    is_first: bool,
    limit: SplitLimit,
) -> Result<usize, SplitError> {
    // Only the first piece begins before its first message, where the batch begins.
    let begin = if is_first { 0 } else { records[0].offset };
    let mut bytes = ENTRY_HEADER_BYTES;
    let mut count = 0;
    for record in records.iter().take(limit.messages as usize) {
        let offset = record.offset - begin;
        bytes += record_bytes(record, offset);
        if bytes > limit.bytes {
            if count == 0 {
                let seq = batch.seq_of(record);
                return Err(SplitError::MessageTooLarge { seq, bytes, max: limit.bytes });
            }
            break;
        }
        count += 1;
    }
    if count == 0 { Err(SplitError::NoRoom) } else { Ok(count) }
}

/// How many bytes a record takes under this offset.
fn record_bytes(record: &Record<'_>, offset: u32) -> usize {
    let with_len = |part: &[u8]| varint_bytes(part.len() as u64) + part.len();
    let mut bytes = 1 + varint_bytes(u64::from(offset));
    bytes += record.ttl_ms.map_or(0, |ttl| varint_bytes(u64::from(ttl)));
    bytes += record.id.map_or(0, with_len) + record.key.map_or(0, with_len);
    bytes += if record.headers.is_empty() { 0 } else { with_len(record.headers) };
    bytes += record.body.map_or(0, <[u8]>::len);
    varint_bytes(bytes as u64) + bytes
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// The batch of some of the records: `from` included, `to` excluded.
fn piece(
    batch: &Batch,
    records: &[Record<'_>],
    (from, to): (usize, usize),
    checksum: Checksum,
) -> Batch {
    let begin = if from == 0 { 0 } else { records[from].offset };
    let end = records.get(to).map_or(batch.header().span, |next| next.offset);
    rebuilt(batch, &records[from..to], (begin, end), checksum)
}

/// A batch that accounts for the offsets from `begin` to before `end`, with these messages.
fn rebuilt(
    batch: &Batch,
    records: &[Record<'_>],
    (begin, end): (u32, u32),
    checksum: Checksum,
) -> Batch {
    let whole = batch.header();
    let mut builder = RecordsBuilder::default();
    for record in records {
        builder.push_record(&Record { offset: record.offset - begin, ..*record });
    }
    let made = builder.finish();
    let span = end - begin;
    let others = whole.flags & !(FLAG_KEYS | FLAG_IDS | FLAG_HOLES);
    let holes = if made.count < span { FLAG_HOLES } else { 0 };
    let header = EntryHeader {
        flags: others | holes | made.flags,
        seq: Seq(whole.seq.0 + u64::from(begin)),
        position: Position(whole.position.0 + u64::from(begin)),
        span,
        count: made.count,
        ttl_min_ms: made.ttl_min_ms,
        ..*whole
    };
    let mut bytes = BytesMut::with_capacity(ENTRY_HEADER_BYTES + made.bytes.len());
    header.put(&mut bytes, &made.bytes, checksum(&made.bytes), checksum);
    let entry = Entry { header, bytes: bytes.freeze() };
    Batch::new(entry).expect("the header of a batch says that it is one")
}
