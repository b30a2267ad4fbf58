//! Reading what is no longer in memory: many topics by position, and looking things up.
//!
//! These are plain functions over segments; the pool runs them. Every batch handed out was
//! checked against its block's checksum.
//!
//! Not here: reading one topic, see [`crate::topic_reader`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use bytes::Bytes;
use gapless_core::{Batch, Entry, EntryHeader, Position, Seq, Timestamp, TopicId};

use crate::error::ReadError;
use crate::index::BlockRow;
use crate::segment::Segment;

/// Index rows read at once.
const ROWS_AT_ONCE: u64 = 64;

/// Blocks that a reader of many topics has in memory whole; of further ones only a piece.
const WHOLE_BLOCKS_MAX: usize = 16;

/// The segments of a store, in the order of their positions.
pub(crate) type Segments = Arc<Vec<Arc<Segment>>>;

/// The batches of one block.
pub(crate) fn batches(segment: &Segment, row: &BlockRow) -> Result<Vec<Batch>, ReadError> {
    let mut block = segment.read_blocks(std::slice::from_ref(row))?.pop().unwrap_or_default();
    let mut batches = Vec::new();
    while !block.is_empty() {
        batches.push(take_batch(segment, &mut block, row.offset)?);
    }
    Ok(batches)
}

/// Takes the first batch off checked bytes, which lie at `offset`.
fn take_batch(segment: &Segment, bytes: &mut Bytes, offset: u64) -> Result<Batch, ReadError> {
    let entry =
        Entry::take_trusted(bytes).map_err(|why| segment.damaged(offset, &why.to_string()))?;
    Batch::new(entry).ok_or_else(|| segment.damaged(offset, "it is not a batch"))
}

/// The first batch of `topic` in segments that reaches `from` and for which `here` holds.
/// Asked first about whole blocks, then about the batches of the block where it held; it
/// must stay true once it is. Of a block that begins before `from`, only about batches.
pub(crate) fn find_batch(
    segments: &[Arc<Segment>],
    topic: TopicId,
    from: Seq,
    mut here: impl FnMut(&Run) -> bool,
) -> Result<Option<EntryHeader>, ReadError> {
    for segment in segments {
        let mut at = segment.index().find(topic, from)?;
        'rows: loop {
            let rows = segment.index().blocks(at, ROWS_AT_ONCE)?;
            at += rows.len() as u64;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                if row.topic != topic {
                    break 'rows;
                }
                if row.first_seq >= from && !here(&Run::of_block(&row)) {
                    continue;
                }
                for batch in batches(segment, &row)? {
                    if batch.last() >= from && here(&Run::of_batch(&batch)) {
                        return Ok(Some(*batch.header()));
                    }
                }
            }
        }
    }
    Ok(None)
}

/// What [`find_batch`] asks about: how a block or a batch ends.
pub(crate) struct Run {
    pub(crate) is_block: bool,
    pub(crate) time: Timestamp,
    pub(crate) last_position: Position,
    pub(crate) bytes: u64,
}

impl Run {
    fn of_block(row: &BlockRow) -> Self {
        Self {
            is_block: true,
            time: row.last_time,
            last_position: row.last_position,
            bytes: u64::from(row.bytes),
        }
    }

    fn of_batch(batch: &Batch) -> Self {
        Self {
            is_block: false,
            time: batch.time(),
            last_position: batch.header().last_position(),
            bytes: batch.bytes().len() as u64,
        }
    }
}

/// The newest message of a key in segments: its seq, and whether it removes the key.
pub(crate) fn latest_of_key(
    segments: &[Arc<Segment>],
    topic: TopicId,
    hash: u128,
) -> Result<Option<(Seq, bool)>, ReadError> {
    for segment in segments.iter().rev() {
        let at = segment.index().find_key(topic, hash)?;
        let row = segment.index().keys(at, 1)?;
        if let Some(row) = row.first().filter(|row| (row.topic, row.hash) == (topic, hash)) {
            return Ok(Some((row.seq, row.tombstone)));
        }
    }
    Ok(None)
}

/// How many bytes of `topic` at or after `from` are in segments.
pub(crate) fn bytes_of(
    segments: &[Arc<Segment>],
    topic: TopicId,
    from: Seq,
) -> Result<u64, ReadError> {
    let mut bytes = 0;
    find_batch(segments, topic, from, |block| {
        bytes += block.bytes;
        false
    })?;
    Ok(bytes)
}

/// Reads the batches of many topics in the order of their positions, segment by segment.
///
/// It keeps its place between steps: the blocks it will need, by position, and those it is
/// in the middle of. It holds a piece of each at most, but for a few that it holds whole.
pub struct PatternReader {
    next: Position,
    segment: Option<Arc<Segment>>,
    /// Wanted blocks of the segment, the last one first.
    rows: Vec<BlockRow>,
    open: BinaryHeap<Reverse<Head>>,
}

/// The next batch of a block that is being read; ordered by position.
struct Head {
    position: Position,
    batch: Batch,
    rest: OpenBlock,
}

/// What is left of a block that is being read.
struct OpenBlock {
    /// Checked batches that are in memory.
    piece: Bytes,
    /// Where the next piece begins in the data, and where the block ends.
    at: u64,
    end: u64,
}

impl OpenBlock {
    /// Begins to read a block: all of it if it is one of `few`, else a piece at a time, so
    /// that the open blocks of many topics fit a cache, and do not fill the memory.
    fn new(segment: &Segment, row: &BlockRow, few: bool) -> Result<Self, ReadError> {
        let end = row.offset + u64::from(row.bytes);
        if few {
            let whole = segment.read_blocks(std::slice::from_ref(row))?;
            return Ok(Self { piece: whole.into_iter().next().unwrap_or_default(), at: end, end });
        }
        Ok(Self { piece: Bytes::new(), at: row.offset, end })
    }

    /// The next batch. After an error it can be asked again.
    fn next(&mut self, segment: &Segment) -> Result<Option<Batch>, ReadError> {
        if self.piece.is_empty() && self.at < self.end {
            self.piece = segment.read_piece(self.at, self.end)?;
            self.at += self.piece.len() as u64;
        }
        if self.piece.is_empty() {
            return Ok(None);
        }
        let offset = self.at - self.piece.len() as u64;
        take_batch(segment, &mut self.piece, offset).map(Some)
    }
}

/// What one look at a segment gave.
enum Read {
    Entry(Bytes),
    Nothing,
    End,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.position == other.position
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.position.cmp(&other.position)
    }
}

impl PatternReader {
    /// A reader that begins at `next`.
    pub fn new(next: Position) -> Self {
        Self { next, segment: None, rows: Vec::new(), open: BinaryHeap::new() }
    }

    /// The first position not read yet.
    pub fn next(&self) -> Position {
        self.next
    }

    /// Reads up to `bytes_max` of the topics that `wanted` names, but not beyond `sealed`,
    /// through which `segments` hold everything. When it returns, all through `next() - 1`
    /// was handed out. After an error it stands where it was, and can be asked again.
    pub(crate) fn step(
        &mut self,
        (segments, sealed): (&[Arc<Segment>], Position),
        wanted: &dyn Fn(TopicId) -> bool,
        bytes_max: usize,
    ) -> Result<Vec<Bytes>, ReadError> {
        let mut out = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max {
            match self.read_next((segments, sealed), wanted) {
                Ok(Read::Entry(entry)) => {
                    bytes += entry.len();
                    out.push(entry);
                }
                Ok(Read::Nothing) => {}
                Ok(Read::End) => break,
                // What was read counts; the error comes again with the next step.
                Err(_) if !out.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(out)
    }

    fn read_next(
        &mut self,
        (segments, sealed): (&[Arc<Segment>], Position),
        wanted: &dyn Fn(TopicId) -> bool,
    ) -> Result<Read, ReadError> {
        if self.segment.is_none() && !self.enter(segments, wanted)? {
            // The last segments may be gone, or never have been: nothing lived in them.
            self.next = self.next.max(sealed.next());
            return Ok(Read::End);
        }
        if let Some(entry) = self.pop()? {
            return Ok(Read::Entry(entry));
        }
        let done = self.segment.take();
        let last = done.map_or(self.next, |segment| segment.meta().last.next());
        self.next = self.next.max(last);
        Ok(Read::Nothing)
    }

    /// Goes to the segment that holds `next`, or the first one after it.
    fn enter(
        &mut self,
        segments: &[Arc<Segment>],
        wanted: &dyn Fn(TopicId) -> bool,
    ) -> Result<bool, ReadError> {
        let at = segments.partition_point(|segment| segment.meta().last < self.next);
        let Some(segment) = segments.get(at) else { return Ok(false) };
        let (mut from, mut asked, mut found) = (0, None, Vec::new());
        loop {
            let rows = segment.index().blocks(from, 1024)?;
            if rows.is_empty() {
                break;
            }
            from += rows.len() as u64;
            for row in rows {
                let (topic, is_wanted) = asked
                    .filter(|(topic, _)| *topic == row.topic)
                    .unwrap_or_else(|| (row.topic, wanted(row.topic)));
                asked = Some((topic, is_wanted));
                if is_wanted && row.last_position >= self.next {
                    found.push(row);
                }
            }
        }
        found.sort_by_key(|row| Reverse(row.first_position));
        self.rows = found;
        self.segment = Some(Arc::clone(segment));
        Ok(true)
    }

    /// The batch with the lowest position among the wanted blocks. After an error it can be
    /// asked for again.
    fn pop(&mut self) -> Result<Option<Bytes>, ReadError> {
        let Some(segment) = self.segment.clone() else { return Ok(None) };
        loop {
            let head = self.open.peek().map(|head| head.0.position);
            let row = self.rows.last().filter(|row| head.is_none_or(|at| row.first_position < at));
            let Some(row) = row else { break };
            let few = self.open.len() < WHOLE_BLOCKS_MAX;
            let mut rest = OpenBlock::new(&segment, row, few)?;
            let mut first = rest.next(&segment)?;
            while first.as_ref().is_some_and(|each| each.header().last_position() < self.next) {
                first = rest.next(&segment)?;
            }
            self.rows.pop();
            self.open.extend(first.map(|batch| {
                let position = batch.header().position;
                Reverse(Head { position, batch, rest })
            }));
        }
        let Some(mut head) = self.open.peek_mut() else { return Ok(None) };
        let batch = match head.0.rest.next(&segment)? {
            Some(batch) => {
                head.0.position = batch.header().position;
                std::mem::replace(&mut head.0.batch, batch)
            }
            None => PeekMut::pop(head).0.batch,
        };
        self.next = self.next.max(batch.header().last_position().next());
        Ok(Some(batch.bytes().clone()))
    }
}
