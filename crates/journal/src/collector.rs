//! Drops what is dead: below the floor of its topic, of a topic that is gone, expired, or
//! superseded by a newer message of its key.
//!
//! A segment without anything living is deleted. One that is mostly dead is rewritten
//! without it; small neighbours are written together. No number changes: what a batch lost
//! stays accounted for by its span, and runs of lost batches become one hole. Only
//! neighbours are merged, so that segments stay in the order of their positions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::batch::{FLAG_HOLES, FLAG_IDS, FLAG_KEYS};
use gapless_core::{
    Batch, Entry, EntryHeader, Record, Records, RecordsBuilder, Seq, Timestamp, TopicId,
};

use crate::blobs::BlobError;
use crate::error::ReadError;
use crate::history::batches;
use crate::index::{BlockRow, KeyRow, key_hash};
use crate::journal::Inner;
use crate::keeper::{Fresh, KeepError};
use crate::marks::lock;
use crate::segment::{Segment, SegmentWriter};
use crate::state::{Policy, State};

/// Index rows read at once.
const ROWS_AT_ONCE: u64 = 256;
/// Rows of keys between two looks at whether something else is due.
const ROWS_OF_A_STEP: u64 = 4096;
/// How many segments there may be before small ones are merged even in a hurry.
const SEGMENTS_MAX_HURRIED: usize = 1000;
/// Share of dead bytes, in percent, from which a segment is rewritten when the disk is nearly
/// full.
const TIGHT_DEAD_PERCENT: u64 = 10;
/// How many small neighbours are worth merging.
const MERGE_RUN_MIN: usize = 4;

/// Decides record by record what stays, and folds what does not into holes.
pub(crate) struct Dropper<'a> {
    state: &'a dyn State,
    now: Timestamp,
    policies: HashMap<TopicId, Policy>,
    hole: Option<EntryHeader>,
}

impl<'a> Dropper<'a> {
    pub(crate) fn new(state: &'a dyn State, now: Timestamp) -> Self {
        Self { state, now, policies: HashMap::new(), hole: None }
    }

    pub(crate) fn policy(&mut self, topic: TopicId) -> Policy {
        *self.policies.entry(topic).or_insert_with(|| self.state.policy(topic))
    }

    /// Writes what is left of a batch.
    pub(crate) fn write(
        &mut self,
        batch: &Batch,
        compactor: &Compactor,
        out: &mut SegmentWriter<'_>,
    ) -> Result<(), BlobError> {
        let topic = batch.header().topic;
        let Policy::Kept { floor, compaction } = self.policy(topic) else { return Ok(()) };
        if batch.last() < floor {
            return Ok(());
        }
        let keys = compaction.is_some() && batch.header().flags & FLAG_KEYS != 0;
        let expired = batch.may_have_expired(self.now);
        // The newest of a key hides those before it, so its expiry is the compactor's too:
        // gone too early, it would bring an older one back.
        let stays = |record: &Record<'_>| {
            if keys && record.key.is_some() {
                !compactor.is_dead(topic, batch.seq_of(record))
            } else {
                !(expired && batch.is_expired(record, self.now))
            }
        };
        if batch.header().count == 0 {
            return self.fold(*batch.header(), out);
        }
        if !(keys || expired) || batch.records().all(|record| stays(&record)) {
            self.flush_hole(out)?;
            return out.push(batch);
        }
        match without(batch, stays) {
            Some(batch) => {
                self.flush_hole(out)?;
                out.push(&batch)
            }
            None => self.fold(*batch.header(), out),
        }
    }

    /// Adds an empty batch to the hole before it, if it follows at once.
    fn fold(&mut self, header: EntryHeader, out: &mut SegmentWriter<'_>) -> Result<(), BlobError> {
        if let Some(hole) = &mut self.hole
            && hole.topic == header.topic
            && hole.last_seq().next() == header.seq
            && let Some(span) = hole.span.checked_add(header.span)
        {
            hole.span = span;
            hole.time = header.time;
            hole.position = header.last_position();
            return Ok(());
        }
        self.flush_hole(out)?;
        // It stands where its last message stood: a reader who has seen only the first of
        // them must still get a notice of the rest.
        let position = header.last_position();
        self.hole =
            Some(EntryHeader { flags: FLAG_HOLES, count: 0, ttl_min_ms: 0, position, ..header });
        Ok(())
    }

    fn flush_hole(&mut self, out: &mut SegmentWriter<'_>) -> Result<(), BlobError> {
        match self.hole.take() {
            Some(header) => out.push(&batch_of(header, &[])),
            None => Ok(()),
        }
    }

    /// Writes the last hole.
    pub(crate) fn finish(&mut self, out: &mut SegmentWriter<'_>) -> Result<(), BlobError> {
        self.flush_hole(out)
    }
}

/// The batch without the records that do not stay; `None` when none does.
pub fn without(batch: &Batch, stays: impl Fn(&Record<'_>) -> bool) -> Option<Batch> {
    let mut kept = RecordsBuilder::with_capacity(batch.bytes().len());
    for record in batch.records().filter(|record| stays(record)) {
        kept.push_record(&record);
    }
    with_records(batch.header(), &kept.finish())
}

/// The batch of this header with some of its records only; `None` for no record.
pub fn with_records(header: &EntryHeader, kept: &Records) -> Option<Batch> {
    if kept.count == 0 {
        return None;
    }
    let others = header.flags & !(FLAG_KEYS | FLAG_IDS);
    let header = EntryHeader {
        flags: others | FLAG_HOLES | kept.flags,
        count: kept.count,
        ttl_min_ms: kept.ttl_min_ms,
        ..*header
    };
    Some(batch_of(header, &kept.bytes))
}

fn batch_of(header: EntryHeader, records: &[u8]) -> Batch {
    let mut bytes = Vec::with_capacity(64 + records.len());
    header.put(&mut bytes, records, crc32c::crc32c(records), crc32c::crc32c);
    let entry = Entry { header, bytes: Bytes::from(bytes) };
    Batch::new(entry).expect("the header says that it is a batch")
}

/// Knows which keyed messages of compacted topics are dead.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    /// Per compacted topic the seqs that stay, sorted.
    survivors: BTreeMap<TopicId, Vec<Seq>>,
}

impl Compactor {
    fn is_dead(&self, topic: TopicId, seq: Seq) -> bool {
        self.survivors.get(&topic).is_some_and(|seqs| seqs.binary_search(&seq).is_err())
    }

    /// For batches that are about to become a segment: of each key the newest stays.
    pub(crate) fn over_batches(
        epoch: u64,
        sorted: &[(TopicId, Seq, Bytes)],
        dropper: &mut Dropper<'_>,
    ) -> Self {
        let mut newest: HashMap<(TopicId, u128), Seq> = HashMap::new();
        for (topic, _, bytes) in sorted {
            if !matches!(dropper.policy(*topic), Policy::Kept { compaction: Some(_), .. }) {
                continue;
            }
            let Ok(entry) = Entry::take_trusted(&mut bytes.clone()) else { continue };
            let Some(batch) = Batch::new(entry) else { continue };
            for record in batch.records() {
                if let Some(key) = record.key {
                    newest.insert((*topic, key_hash(epoch, key)), batch.seq_of(&record));
                }
            }
        }
        let mut compactor = Self::default();
        for ((topic, _), seq) in newest {
            compactor.survivors.entry(topic).or_default().push(seq);
        }
        compactor.survivors.values_mut().for_each(|seqs| seqs.sort_unstable());
        compactor
    }

    /// For segments: of each key the newest in any of them stays. One that is past (see
    /// [`KeyRow::is_past`]) goes, but only when nothing older is left that it still hides. `step` is
    /// called now and then.
    fn add_topic(
        &mut self,
        segments: &[Arc<Segment>],
        topic: TopicId,
        (grace, now): (Duration, Timestamp),
        step: &mut dyn FnMut(),
    ) -> Result<Vec<u64>, ReadError> {
        let mut dead = vec![0; segments.len()];
        let mut survivors = Vec::new();
        let mut keys = Vec::new();
        for segment in segments {
            keys.push(KeyCursor::new(segment, topic)?);
        }
        let mut heap = BinaryHeap::new();
        for (at, cursor) in keys.iter_mut().enumerate() {
            heap.extend(cursor.peek()?.map(|row| Reverse((row.hash, at))));
        }
        let mut same: Vec<(usize, KeyRow)> = Vec::new();
        let mut rows = 0_u64;
        while let Some(Reverse((hash, at))) = heap.pop() {
            rows += 1;
            if rows.is_multiple_of(ROWS_OF_A_STEP) {
                step();
            }
            same.extend(keys[at].next()?.map(|row| (at, row)));
            heap.extend(keys[at].peek()?.map(|row| Reverse((row.hash, at))));
            if heap.peek().is_some_and(|Reverse(next)| next.0 == hash) {
                continue;
            }
            same.sort_unstable_by_key(|(_, row)| row.seq);
            let newest = same.pop();
            same.iter().for_each(|(at, _)| dead[*at] += 1);
            if let Some((at, row)) = newest {
                if same.is_empty() && row.is_past(grace, now) {
                    dead[at] += 1;
                } else {
                    survivors.push(row.seq);
                }
            }
            same.clear();
        }
        survivors.sort_unstable();
        self.survivors.insert(topic, survivors);
        Ok(dead)
    }
}

/// Goes over the key rows of one topic in one segment.
struct KeyCursor<'a> {
    segment: &'a Segment,
    topic: TopicId,
    at: u64,
    rows: VecDeque<KeyRow>,
}

impl<'a> KeyCursor<'a> {
    fn new(segment: &'a Segment, topic: TopicId) -> Result<Self, ReadError> {
        let at = segment.index().find_key(topic, 0)?;
        Ok(Self { segment, topic, at, rows: VecDeque::new() })
    }

    fn peek(&mut self) -> Result<Option<KeyRow>, ReadError> {
        if self.rows.is_empty() {
            self.rows = self.segment.index().keys(self.at, ROWS_AT_ONCE)?.into();
            self.at += self.rows.len() as u64;
        }
        Ok(self.rows.front().copied().filter(|row| row.topic == self.topic))
    }

    fn next(&mut self) -> Result<Option<KeyRow>, ReadError> {
        let row = self.peek()?;
        self.rows.pop_front();
        Ok(row)
    }
}

/// Goes over the block rows of a segment.
struct BlockCursor {
    segment: Arc<Segment>,
    at: u64,
    rows: VecDeque<BlockRow>,
}

impl BlockCursor {
    fn new(segment: &Arc<Segment>) -> Self {
        Self { segment: Arc::clone(segment), at: 0, rows: VecDeque::new() }
    }

    fn peek(&mut self) -> Result<Option<BlockRow>, ReadError> {
        if self.rows.is_empty() {
            self.rows = self.segment.index().blocks(self.at, ROWS_AT_ONCE)?.into();
            self.at += self.rows.len() as u64;
        }
        Ok(self.rows.front().copied())
    }

    fn next(&mut self) -> Result<Option<BlockRow>, ReadError> {
        let row = self.peek()?;
        self.rows.pop_front();
        Ok(row)
    }
}

/// What is dead in each of some segments.
pub(crate) struct Dead {
    /// Bytes, about.
    pub(crate) bytes: Vec<u64>,
    /// Keyed messages of compacted topics.
    pub(crate) superseded: Vec<u64>,
    /// The longest grace of the tombstones of compacted topics; none if there is no such topic.
    pub(crate) grace_max: Option<Duration>,
}

impl Inner {
    /// Does one piece of collecting, if any is worth it.
    pub(crate) fn collect(&self, state: &dyn State, now: Timestamp) -> Result<bool, KeepError> {
        let segments = self.segments();
        let mut dropper = Dropper::new(state, now);
        let mut compactor = Compactor::default();
        let dead = self.dead_bytes(&segments, &mut dropper, &mut compactor)?.bytes;
        let bytes = |at: usize| segments[at].meta().bytes;
        let mostly_dead =
            |at: usize| dead[at] * 100 >= bytes(at) * self.options.dead_percent && dead[at] > 0;
        if self.is_tight() {
            // What frees room, and first what needs the least to do so.
            let percent = if self.is_stuck() { 0 } else { TIGHT_DEAD_PERCENT };
            let living = |at: &usize| bytes(*at).saturating_sub(dead[*at]);
            let helps = |at: &usize| dead[*at] > 0 && dead[*at] * 100 >= bytes(*at) * percent;
            let fits = |at: &usize| helps(at) && living(at) <= self.free_bytes();
            let least = (0..segments.len()).filter(fits).min_by_key(living);
            let Some(at) = least else { return Ok(false) };
            self.rewrite(&segments[at..=at], &mut dropper, &compactor)?;
            return Ok(true);
        }
        if let Some(at) = (0..segments.len()).find(|&at| mostly_dead(at)) {
            // Dead neighbours, and small ones, come along up to a sensible size.
            let mut end = at + 1;
            let mut living = bytes(at).saturating_sub(dead[at]);
            while end < segments.len() && mostly_dead(end) {
                living += bytes(end).saturating_sub(dead[end]);
                if living > self.options.merged_bytes_max {
                    break;
                }
                end += 1;
            }
            self.rewrite(&segments[at..end], &mut dropper, &compactor)?;
            return Ok(true);
        }
        match self.small_run(&segments) {
            // That can wait until there is time; but each segment is two open files.
            Some(_) if segments.len() < SEGMENTS_MAX_HURRIED && lock(&self.sealed).hurried => {
                Ok(false)
            }
            Some(run) => {
                self.rewrite(&segments[run], &mut dropper, &compactor)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Rewrites every segment.
    pub(crate) fn rewrite_all(&self, state: &dyn State, now: Timestamp) -> Result<(), KeepError> {
        // Twice, because a tombstone goes only when nothing older of its key is left.
        for _ in 0..2 {
            let segments = self.segments();
            let mut dropper = Dropper::new(state, now);
            let mut compactor = Compactor::default();
            self.dead_bytes(&segments, &mut dropper, &mut compactor)?;
            for segment in segments.iter() {
                self.rewrite(std::slice::from_ref(segment), &mut dropper, &compactor)?;
            }
        }
        Ok(())
    }

    /// How many bytes of each segment are dead, about. Fills in what compaction decides.
    pub(crate) fn dead_bytes(
        &self,
        segments: &[Arc<Segment>],
        dropper: &mut Dropper<'_>,
        compactor: &mut Compactor,
    ) -> Result<Dead, ReadError> {
        let mut dead = vec![0; segments.len()];
        // Per segment: bytes and messages of each compacted topic, to turn counts to bytes.
        let mut compacted: Vec<BTreeMap<TopicId, (u64, u64)>> = vec![BTreeMap::new(); dead.len()];
        let mut topics: BTreeSet<(TopicId, Duration)> = BTreeSet::new();
        for (at, segment) in segments.iter().enumerate() {
            let mut rows = BlockCursor::new(segment);
            while let Some(row) = rows.next()? {
                let bytes = u64::from(row.bytes);
                match dropper.policy(row.topic) {
                    Policy::Gone => dead[at] += bytes,
                    Policy::Kept { floor, .. } if row.last_seq < floor => dead[at] += bytes,
                    // Before the expiry, which is not enough to lose the newest of a key.
                    Policy::Kept { compaction: Some(grace), .. } => {
                        topics.insert((row.topic, grace));
                        let sums = compacted[at].entry(row.topic).or_default();
                        sums.0 += bytes;
                        sums.1 += u64::from(row.messages);
                    }
                    Policy::Kept { .. } if row.messages > 0 && row.expires <= dropper.now => {
                        dead[at] += bytes;
                    }
                    Policy::Kept { .. } => {}
                }
            }
        }
        let grace_max = topics.iter().map(|(_, grace)| *grace).max();
        let mut all_superseded = vec![0; dead.len()];
        for (topic, grace) in topics {
            let at = (dropper.state, dropper.now);
            let mut step = || self.seal_meanwhile(&mut lock(&self.manifest), at);
            let superseded =
                compactor.add_topic(segments, topic, (grace, dropper.now), &mut step)?;
            for (at, count) in superseded.into_iter().enumerate() {
                all_superseded[at] += count;
                if let Some((bytes, messages)) = compacted[at].get(&topic) {
                    dead[at] += bytes * count.min(*messages) / (*messages).max(1);
                }
            }
        }
        Ok(Dead { bytes: dead, superseded: all_superseded, grace_max })
    }

    /// Neighbours that are small enough to be one.
    fn small_run(&self, segments: &[Arc<Segment>]) -> Option<std::ops::Range<usize>> {
        let small = self.options.merged_bytes_max / MERGE_RUN_MIN as u64;
        let mut from = 0;
        while from < segments.len() {
            let mut bytes = 0;
            let mut to = from;
            while to < segments.len()
                && segments[to].meta().bytes < small
                && bytes + segments[to].meta().bytes <= self.options.merged_bytes_max
            {
                bytes += segments[to].meta().bytes;
                to += 1;
            }
            if to - from >= MERGE_RUN_MIN {
                return Some(from..to);
            }
            from = to.max(from + 1);
        }
        None
    }

    /// Rewrites neighbouring segments as one, without what is dead.
    pub(crate) fn rewrite(
        &self,
        old: &[Arc<Segment>],
        dropper: &mut Dropper<'_>,
        compactor: &Compactor,
    ) -> Result<(), KeepError> {
        let Some(last) = old.last().map(|segment| segment.meta().last) else { return Ok(()) };
        let mut manifest = lock(&self.manifest);
        let mut fresh = Fresh::new(&*self.blobs);
        let mut writer = self.segment_writer(fresh.segment(&mut manifest))?;
        let empty = writer.bytes();
        let mut cursors: Vec<BlockCursor> = old.iter().map(BlockCursor::new).collect();
        while let Some(topic) = lowest_topic(&mut cursors)? {
            for cursor in &mut cursors {
                while let Some(row) = cursor.peek()?.filter(|row| row.topic == topic) {
                    cursor.rows.pop_front();
                    let gone = match dropper.policy(topic) {
                        Policy::Gone => true,
                        Policy::Kept { floor, .. } => row.last_seq < floor,
                    };
                    if gone {
                        continue;
                    }
                    for batch in batches(&cursor.segment, &row)? {
                        dropper.write(&batch, compactor, &mut writer)?;
                    }
                    self.seal_meanwhile(&mut manifest, (dropper.state, dropper.now));
                }
            }
        }
        dropper.finish(&mut writer)?;
        let new = (writer.bytes() > empty).then(|| writer.finish(last)).transpose()?;
        // Floors and deletions may still be on their way to the log. They must be there
        // before what they let go is gone, or a crash would bring back a topic without it.
        self.flush_all()?;
        let mut next = manifest.clone();
        let is_old = |name: &Arc<str>| old.iter().any(|each| each.meta().name == *name);
        let at = next.segments.iter().position(|meta| is_old(&meta.name));
        let at = at.expect("segments that are rewritten are in the manifest");
        next.segments.retain(|meta| !is_old(&meta.name));
        if let Some(new) = &new {
            next.segments.insert(at, new.meta().clone());
        }
        let names = |each: &Arc<Segment>| [each.meta().data_name(), each.meta().index_name()];
        let unneeded = old.iter().flat_map(names).collect();
        let copied = self.install(&mut manifest, next, fresh, unneeded)?;
        self.swap_segments(|segments| {
            segments.retain(|segment| !is_old(&segment.meta().name));
            if let Some(new) = new {
                segments.insert(at, Arc::new(new));
            }
        });
        drop(manifest);
        if copied {
            self.delete_unneeded();
        }
        Ok(())
    }
}

fn lowest_topic(cursors: &mut [BlockCursor]) -> Result<Option<TopicId>, ReadError> {
    let mut lowest = None;
    for cursor in cursors {
        if let Some(row) = cursor.peek()? {
            lowest = Some(lowest.map_or(row.topic, |topic: TopicId| topic.min(row.topic)));
        }
    }
    Ok(lowest)
}
