//! The index of a segment: where the blocks of a topic lie, and the newest of each key.
//!
//! Two tables of fixed rows, each row with a checksum of its own, so that a lookup reads a
//! few rows and trusts nothing unread. Block rows are sorted by topic and seq, key rows by
//! topic and hash. The index is never the only truth: it can be rebuilt from the data,
//! and is when it is missing or damaged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut};
use gapless_core::batch::FLAG_KEYS;
use gapless_core::{Batch, Position, Seq, Timestamp, TopicId};
use siphasher::sip128::SipHasher13;

use crate::blobs::{Blob, BlobError, Blobs};
use crate::error::ReadError;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"gaplidx\n");
/// The version of the index format.
pub const INDEX_VERSION: u16 = 1;
const HEADER_BYTES: usize = 64;
const BLOCK_ROW_BYTES: usize = 88;
const KEY_ROW_BYTES: usize = 48;

/// One block: neighbouring batches of one topic, read and checked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) topic: TopicId,
    pub(crate) first_seq: Seq,
    pub(crate) last_seq: Seq,
    pub(crate) first_position: Position,
    pub(crate) last_position: Position,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
    pub(crate) messages: u32,
    pub(crate) last_time: Timestamp,
    /// When the last of its messages expires; [`Timestamp::NEVER`] if one never does.
    pub(crate) expires: Timestamp,
}

/// The newest message of a key in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRow {
    pub(crate) topic: TopicId,
    pub(crate) hash: u128,
    pub(crate) seq: Seq,
    pub(crate) time: Timestamp,
    pub(crate) tombstone: bool,
    /// Its time to live; zero when it has none, or is a tombstone.
    pub(crate) ttl_ms: u32,
}

/// In the place of a time to live: the message removes its key. No message lives so long
/// (`TTL_MAX`).
const TOMBSTONE: u32 = u32::MAX;

impl KeyRow {
    /// Whether the message may go, given that nothing older of its key is left: a tombstone
    /// after its grace, another after its time to live.
    pub(crate) fn is_past(&self, grace: Duration, now: Timestamp) -> bool {
        if self.tombstone {
            self.time.after(grace) <= now
        } else {
            self.ttl_ms != 0 && self.time.0.saturating_add(u64::from(self.ttl_ms)) <= now.0
        }
    }
}

/// The hash under which a key is found. 128 bits, keyed with the store's epoch, so that two
/// keys never meet by chance nor by intent.
pub(crate) fn key_hash(epoch: u64, key: &[u8]) -> u128 {
    SipHasher13::new_with_keys(epoch, 0x6761_706c_6573_7321).hash(key).as_u128()
}

trait Row: Copy {
    const BYTES: usize;
    fn put(&self, out: &mut Vec<u8>);
    fn read(row: &[u8]) -> Self;
}

impl Row for BlockRow {
    const BYTES: usize = BLOCK_ROW_BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.topic.0);
        out.put_u64_le(self.first_seq.0);
        out.put_u64_le(self.last_seq.0);
        out.put_u64_le(self.first_position.0);
        out.put_u64_le(self.last_position.0);
        out.put_u64_le(self.offset);
        out.put_u64_le(self.last_time.0);
        out.put_u64_le(self.expires.0);
        out.put_u32_le(self.bytes);
        out.put_u32_le(self.crc);
        out.put_u32_le(self.messages);
        out.put_u64_le(0);
    }

    fn read(mut row: &[u8]) -> Self {
        Self {
            topic: TopicId(row.get_u64_le()),
            first_seq: Seq(row.get_u64_le()),
            last_seq: Seq(row.get_u64_le()),
            first_position: Position(row.get_u64_le()),
            last_position: Position(row.get_u64_le()),
            offset: row.get_u64_le(),
            last_time: Timestamp(row.get_u64_le()),
            expires: Timestamp(row.get_u64_le()),
            bytes: row.get_u32_le(),
            crc: row.get_u32_le(),
            messages: row.get_u32_le(),
        }
    }
}

impl Row for KeyRow {
    const BYTES: usize = KEY_ROW_BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.topic.0);
        out.put_u128_le(self.hash);
        out.put_u64_le(self.seq.0);
        out.put_u64_le(self.time.0);
        out.put_u32_le(if self.tombstone { TOMBSTONE } else { self.ttl_ms });
    }

    fn read(mut row: &[u8]) -> Self {
        let (topic, hash) = (TopicId(row.get_u64_le()), row.get_u128_le());
        let (seq, time) = (Seq(row.get_u64_le()), Timestamp(row.get_u64_le()));
        let last = row.get_u32_le();
        let tombstone = last == TOMBSTONE;
        let ttl_ms = if tombstone { 0 } else { last };
        Self { topic, hash, seq, time, tombstone, ttl_ms }
    }
}

/// Makes an index while batches pass by, sorted by topic and seq.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    epoch: u64,
    block_bytes: usize,
    blocks: Vec<u8>,
    keys: Vec<u8>,
    topic_keys: BTreeMap<u128, KeyRow>,
    open: Option<BlockRow>,
    first: Option<Position>,
    last: Position,
}

impl IndexBuilder {
    pub(crate) fn new(epoch: u64, block_bytes: usize) -> Self {
        Self {
            epoch,
            block_bytes,
            blocks: Vec::new(),
            keys: Vec::new(),
            topic_keys: BTreeMap::new(),
            open: None,
            first: None,
            last: Position(0),
        }
    }

    /// Whether this batch must begin a new block.
    pub(crate) fn begins_block(&self, batch: &Batch) -> bool {
        self.open.is_none_or(|open| {
            open.topic != batch.header().topic
                || open.bytes as usize + batch.bytes().len() > self.block_bytes
        })
    }

    /// Adds a batch that lies at `offset`.
    pub(crate) fn push(&mut self, batch: &Batch, offset: u64) {
        let header = batch.header();
        let follows = |open: BlockRow| open.offset + u64::from(open.bytes) == offset;
        if self.begins_block(batch) || !self.open.is_some_and(follows) {
            self.close_block();
        }
        if self.topic_keys.first_key_value().is_some_and(|(_, row)| row.topic != header.topic) {
            self.close_topic();
        }
        let block = self.open.get_or_insert(BlockRow {
            topic: header.topic,
            first_seq: header.seq,
            last_seq: header.seq,
            first_position: header.position,
            last_position: header.position,
            offset,
            bytes: 0,
            crc: 0,
            messages: 0,
            last_time: header.time,
            expires: header.time,
        });
        block.last_seq = header.last_seq();
        block.last_position = header.last_position();
        block.crc = crc32c::crc32c_append(block.crc, batch.bytes());
        block.bytes += u32::try_from(batch.bytes().len()).expect("a batch fits ENTRY_BYTES_MAX");
        block.messages += header.count;
        block.last_time = header.time;
        block.expires = block.expires.max(expiry(batch));
        self.first = Some(self.first.map_or(header.position, |first| first.min(header.position)));
        self.last = self.last.max(header.last_position());
        if header.flags & FLAG_KEYS != 0 {
            for record in batch.records() {
                let Some(key) = record.key else { continue };
                let hash = key_hash(self.epoch, key);
                let row = KeyRow {
                    topic: header.topic,
                    hash,
                    seq: batch.seq_of(&record),
                    time: header.time,
                    tombstone: record.is_tombstone(),
                    ttl_ms: record.ttl_ms.unwrap_or(0),
                };
                self.topic_keys.insert(hash, row);
            }
        }
    }

    fn close_block(&mut self) {
        if let Some(block) = self.open.take() {
            put_row(&block, &mut self.blocks);
        }
    }

    fn close_topic(&mut self) {
        for row in std::mem::take(&mut self.topic_keys).values() {
            put_row(row, &mut self.keys);
        }
    }

    /// The positions it covers, and the whole index.
    pub(crate) fn finish(mut self, data_bytes: u64) -> (Position, Position, Vec<u8>) {
        self.close_block();
        self.close_topic();
        let first = self.first.unwrap_or_default();
        let mut out = Vec::with_capacity(HEADER_BYTES + self.blocks.len() + self.keys.len());
        out.put_u64_le(MAGIC);
        out.put_u16_le(INDEX_VERSION);
        out.put_u16_le(0);
        out.put_u32_le(0);
        out.put_u64_le((self.blocks.len() / BLOCK_ROW_BYTES) as u64);
        out.put_u64_le((self.keys.len() / KEY_ROW_BYTES) as u64);
        out.put_u64_le(data_bytes);
        out.put_u64_le(first.0);
        out.put_u64_le(self.last.0);
        out.put_u32_le(0);
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out.extend_from_slice(&self.blocks);
        out.extend_from_slice(&self.keys);
        (first, self.last, out)
    }
}

/// When the last message of a batch expires. A hole has nothing to wait for.
fn expiry(batch: &Batch) -> Timestamp {
    let time = batch.time();
    if batch.header().count == 0 {
        return time;
    }
    if batch.header().ttl_min_ms == 0 {
        return Timestamp::NEVER;
    }
    let lasts = batch
        .records()
        .map(|record| record.ttl_ms.map(|ttl| time.0.saturating_add(u64::from(ttl))));
    lasts.map(|at| at.map_or(Timestamp::NEVER, Timestamp)).max().unwrap_or(time)
}

fn put_row<R: Row>(row: &R, out: &mut Vec<u8>) {
    let from = out.len();
    row.put(out);
    let crc = crc32c::crc32c(&out[from..]);
    out.put_u32_le(crc);
    debug_assert_eq!(out.len() - from, R::BYTES);
}

/// Why an index cannot be used. It is rebuilt from the data then.
#[derive(Debug)]
pub(crate) enum IndexFault {
    /// It is missing, cut short, of another version or damaged.
    Unusable(String),
    /// The store did not answer.
    Read(BlobError),
}

/// An index that is open for lookups.
#[derive(Debug)]
pub(crate) struct Index {
    name: Arc<str>,
    blob: Arc<dyn Blob>,
    blocks: u64,
    keys: u64,
}

impl Index {
    pub(crate) fn open(blobs: &dyn Blobs, name: &str, data_bytes: u64) -> Result<Self, IndexFault> {
        let unusable = |why: &str| IndexFault::Unusable(why.to_owned());
        let blob = match blobs.open(name) {
            Ok(blob) => blob,
            Err(BlobError::Missing { .. }) => return Err(unusable("it is missing")),
            Err(error) => return Err(IndexFault::Read(error)),
        };
        if blob.len() < HEADER_BYTES as u64 {
            return Err(unusable("it is cut short"));
        }
        let mut header = [0; HEADER_BYTES];
        blob.read_at(&mut header, 0).map_err(IndexFault::Read)?;
        let crc = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
        let mut rest = &header[..];
        let (magic, version) = (rest.get_u64_le(), rest.get_u16_le());
        rest.advance(6);
        let (blocks, keys) = (rest.get_u64_le(), rest.get_u64_le());
        let of_bytes = rest.get_u64_le();
        rest.advance(20);
        if magic != MAGIC || version != INDEX_VERSION || rest.get_u32_le() != crc {
            return Err(unusable("its header is damaged or of another version"));
        }
        let rows = blocks * BLOCK_ROW_BYTES as u64 + keys * KEY_ROW_BYTES as u64;
        if of_bytes != data_bytes || blob.len() != HEADER_BYTES as u64 + rows {
            return Err(unusable("it does not fit its data"));
        }
        Ok(Self { name: name.into(), blob, blocks, keys })
    }

    fn rows<R: Row>(&self, table: u64, from: u64, count: u64) -> Result<Vec<R>, ReadError> {
        let mut bytes = vec![0; R::BYTES * count as usize];
        let offset = table + from * R::BYTES as u64;
        self.blob.read_at(&mut bytes, offset)?;
        let damaged = |at: usize| ReadError::Damaged {
            name: Arc::clone(&self.name),
            offset: offset + (at * R::BYTES) as u64,
            why: "the checksum of a row does not fit".to_owned(),
        };
        let check = |(at, row): (usize, &[u8])| {
            let (row, mut stored) = row.split_at(R::BYTES - 4);
            let good = stored.get_u32_le() == crc32c::crc32c(row);
            if good { Ok(R::read(row)) } else { Err(damaged(at)) }
        };
        bytes.chunks_exact(R::BYTES).enumerate().map(check).collect()
    }

    /// The first row for which `before` is false, by halving.
    fn search<R: Row>(
        &self,
        table: u64,
        count: u64,
        before: impl Fn(&R) -> bool,
    ) -> Result<u64, ReadError> {
        let (mut low, mut high) = (0, count);
        // So few are read all at once.
        let few = (self.blob.step_bytes() / R::BYTES).max(1) as u64;
        while high - low > few {
            let middle = low + (high - low) / 2;
            if before(&self.rows::<R>(table, middle, 1)?[0]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let rows = self.rows::<R>(table, low, high - low)?;
        Ok(low + rows.partition_point(before) as u64)
    }

    /// How many blocks there are.
    pub(crate) fn block_count(&self) -> u64 {
        self.blocks
    }

    /// How many key rows there are.
    pub(crate) fn key_count(&self) -> u64 {
        self.keys
    }

    /// Up to `count` block rows from the row `from` on.
    pub(crate) fn blocks(&self, from: u64, count: u64) -> Result<Vec<BlockRow>, ReadError> {
        let count = count.min(self.blocks.saturating_sub(from));
        self.rows(HEADER_BYTES as u64, from, count)
    }

    /// The row of the first block of `topic` that reaches `seq`; the row may be of another
    /// topic when there is none.
    pub(crate) fn find(&self, topic: TopicId, seq: Seq) -> Result<u64, ReadError> {
        let before = |row: &BlockRow| (row.topic, row.last_seq) < (topic, seq);
        self.search(HEADER_BYTES as u64, self.blocks, before)
    }

    /// Up to `count` key rows from the row `from` on.
    pub(crate) fn keys(&self, from: u64, count: u64) -> Result<Vec<KeyRow>, ReadError> {
        let count = count.min(self.keys.saturating_sub(from));
        self.rows(self.key_table(), from, count)
    }

    /// The row of the first key of `topic` whose hash is at least `hash`.
    pub(crate) fn find_key(&self, topic: TopicId, hash: u128) -> Result<u64, ReadError> {
        let before = |row: &KeyRow| (row.topic, row.hash) < (topic, hash);
        self.search(self.key_table(), self.keys, before)
    }

    fn key_table(&self) -> u64 {
        HEADER_BYTES as u64 + self.blocks * BLOCK_ROW_BYTES as u64
    }
}
