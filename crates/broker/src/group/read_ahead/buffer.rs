//! Batches of one topic that were read together, and taking messages out of them.
//!
//! The rule: taking some messages costs as much as they are, however many others lie in the
//! same batch. So a batch is shared only if at least half of it is wanted; of others the wanted
//! messages are copied, found by a table of where each record begins, which is built once.

use std::num::NonZeroU128;

use bytes::Bytes;
use gapless_core::batch::FLAG_KEYS;
use gapless_core::group::Offered;
use gapless_core::{
    BatchRef, EntryHeader, Position, RecordsBuilder, Seq, Tally, Timestamp, TopicId, TopicName,
};
use gapless_journal::with_records;

use crate::read::delivery::Messages;

/// Computes what stands for a key.
pub(crate) type KeyHash<'a> = &'a dyn Fn(&[u8]) -> u128;

/// Memory of a buffer and of a batch in it, beside the bytes of the batch.
const BUFFER_BYTES: usize = 256;
const PLACE_BYTES: usize = size_of::<Place>();

/// Batches of one topic that were read together.
pub(super) struct Buffer {
    pub(super) name: TopicName,
    /// The seqs it accounts for, both included: of one that is not in it nothing is left.
    pub(super) first: Seq,
    pub(super) last: Seq,
    /// Messages that are still to be handed out, if that is known.
    pub(super) left: Option<u64>,
    /// When it was used last, in uses of all buffers; zero if never.
    pub(super) used: u64,
    parts: Vec<Bytes>,
    places: Vec<Place>,
}

/// Where a batch lies.
struct Place {
    header: EntryHeader,
    part: usize,
    from: usize,
    to: usize,
    /// Where its records begin; built when single ones are wanted.
    starts: Option<Box<[u32]>>,
}

/// Messages of one batch that are wanted: its place, and the stretches of seqs, rising.
struct Wanted {
    place: usize,
    stretches: Vec<(Seq, Seq)>,
}

impl Buffer {
    /// What was read of these seqs.
    pub(super) fn new(name: TopicName, (first, last): (Seq, Seq), parts: Vec<Bytes>) -> Self {
        let mut places = Vec::new();
        for (part, bytes) in parts.iter().enumerate() {
            let mut at = 0;
            for batch in BatchRef::all(bytes) {
                let header = *batch.header();
                let from = at;
                at += batch.bytes().len();
                if header.last_seq() >= first && header.seq <= last && header.count > 0 {
                    places.push(Place { header, part, from, to: at, starts: None });
                }
            }
        }
        Self { name, first, last, left: None, used: 0, parts, places }
    }

    /// How much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let parts: usize = self.parts.iter().map(Bytes::len).sum();
        BUFFER_BYTES + PLACE_BYTES * self.places.len() + parts
    }

    pub(super) fn holds(&self, seq: Seq) -> bool {
        self.first <= seq && seq <= self.last
    }

    /// The first seq of the batch in which this seq lies, or of the next one.
    pub(super) fn batch_of(&self, seq: Seq) -> Seq {
        let at = self.places.partition_point(|place| place.header.last_seq() < seq);
        self.places.get(at).map_or(seq, |place| place.header.seq)
    }

    /// The messages in it: neighbours as one run, unless keys matter, for which a hash is given.
    pub(super) fn offer(&self, topic: TopicId, hash: Option<KeyHash<'_>>) -> Vec<Offered> {
        let mut runs = Vec::new();
        for place in &self.places {
            offer(&mut runs, topic, &self.batch(place), (self.first, self.last), hash);
        }
        runs
    }

    fn batch(&self, place: &Place) -> BatchRef<'_> {
        let mut bytes = &self.parts[place.part][place.from..place.to];
        BatchRef::take(&mut bytes).expect("a place is that of a batch")
    }

    /// Takes the messages of these ranges of seqs, which lie in it and rise, into `picked`; the
    /// flags say whether they are the first of all that are picked, and whether they are the last.
    pub(super) fn pick(
        &mut self,
        ranges: &[(Seq, Seq)],
        (is_first, is_last): (bool, bool),
        picked: &mut Picked,
    ) {
        let wanted = self.wanted(ranges);
        for (index, each) in wanted.iter().enumerate() {
            let header = self.places[each.place].header;
            picked.work += 1;
            let (Some(first), Some(last)) = (each.stretches.first(), each.stretches.last()) else {
                continue;
            };
            // The range of seqs of the whole says where it begins and ends.
            let at_begin = first.0 <= header.seq || (index == 0 && is_first);
            let at_end = last.1 >= header.last_seq() || (index + 1 == wanted.len() && is_last);
            let count = last.1.next().distance(first.0);
            let is_whole = each.stretches.len() == 1 && at_begin && at_end;
            if is_whole && count * 2 >= u64::from(header.span) {
                picked.share(self, each.place, count);
            } else {
                self.copy(each, picked);
            }
            let within = last.1.min(header.last_seq()).distance(header.seq);
            picked.reach(header.position.plus(within), header.seq);
        }
        picked.close(self);
    }

    /// The batches that hold wanted messages, each with the stretches that are.
    fn wanted(&self, ranges: &[(Seq, Seq)]) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut at = 0;
        for &(from, to) in ranges {
            // Mostly the next one lies in the same batch, or far away.
            if self.places.get(at).is_some_and(|place| place.header.last_seq() < from) {
                at += self.places[at..].partition_point(|place| place.header.last_seq() < from);
            }
            while let Some(place) = self.places.get(at).filter(|place| place.header.seq <= to) {
                let (begin, end) = (place.header.seq, place.header.last_seq());
                let stretch = (from.max(begin), to.min(end));
                match wanted.last_mut().filter(|last| last.place == at) {
                    None => wanted.push(Wanted { place: at, stretches: vec![stretch] }),
                    Some(last) => match last.stretches.last_mut() {
                        Some(before) if before.1.next() == stretch.0 => before.1 = stretch.1,
                        _ => last.stretches.push(stretch),
                    },
                }
                if end > to {
                    break;
                }
                at += 1;
            }
        }
        wanted
    }

    /// Copies the wanted messages of a batch.
    fn copy(&mut self, Wanted { place, stretches }: &Wanted, picked: &mut Picked) {
        picked.close(self);
        let place = &mut self.places[*place];
        let mut bytes = &self.parts[place.part][place.from..place.to];
        let batch = BatchRef::take(&mut bytes).expect("a place is that of a batch");
        let header = &place.header;
        let starts = place.starts.get_or_insert_with(|| {
            picked.work += u64::from(header.count);
            batch.starts().into()
        });
        let record_at = |index: usize| batch.record_at(*starts.get(index)?);
        let mut kept = RecordsBuilder::default();
        for (from, to) in stretches {
            let (from, to) = (from.distance(header.seq), to.distance(header.seq));
            // Without holes the offset of a record is its index.
            let mut index = usize::try_from(from).unwrap_or(usize::MAX).min(starts.len());
            if header.count != header.span {
                let before = |start: &u32| {
                    batch.record_at(*start).is_some_and(|record| u64::from(record.offset) < from)
                };
                index = starts.partition_point(before);
                picked.work += u64::from(header.count.ilog2());
            }
            while let Some(record) = record_at(index).filter(|each| u64::from(each.offset) <= to) {
                picked.work += 1;
                kept.push_record(&record);
                index += 1;
            }
        }
        if let Some(left) = with_records(header, &kept.finish()) {
            picked.found += u64::from(left.header().count);
            picked.tally.note(left.header());
            picked.parts.push(left.bytes().clone());
        }
    }
}

/// Adds the messages of a batch that lie between two seqs to runs of neighbours.
fn offer(
    runs: &mut Vec<Offered>,
    topic: TopicId,
    batch: &BatchRef<'_>,
    (from, to): (Seq, Seq),
    hash: Option<KeyHash<'_>>,
) {
    let header = batch.header();
    let whole = header.count == header.span;
    let add = |runs: &mut Vec<Offered>, seq: Seq, count: u64, key: Option<NonZeroU128>| {
        let first = header.position.plus(seq.distance(header.seq));
        if let Some(run) = runs.last_mut()
            && run.first.plus(run.count) == first
            && run.seq.plus(run.count) == seq
            && run.key.or(key).is_none()
        {
            run.count += count;
            return;
        }
        runs.push(Offered { first, count, topic, seq, time: header.time, key });
    };
    if whole && (hash.is_none() || header.flags & FLAG_KEYS == 0) {
        let first = header.seq.max(from);
        add(runs, first, header.last_seq().min(to).next().distance(first), None);
        return;
    }
    for record in batch.records() {
        let seq = batch.seq_of(&record);
        if from <= seq && seq <= to {
            let key = record.key.and_then(|key| Some(hash?(key)));
            add(runs, seq, 1, key.map(|key| NonZeroU128::new(key).unwrap_or(NonZeroU128::MIN)));
        }
    }
}

/// Messages of one topic that are being put together.
#[derive(Default)]
pub(super) struct Picked {
    parts: Vec<Bytes>,
    /// Neighbouring batches that stay shared: their part, and where they begin and end in it.
    run: Option<(usize, usize, usize)>,
    tally: Tally,
    /// How many of the wanted messages were found.
    pub(super) found: u64,
    last_position: Position,
    /// The first seq of the last batch.
    pub(super) last_first: Seq,
    /// Batches and records looked at so far: what a test of cost counts.
    pub(super) work: u64,
}

impl Picked {
    fn share(&mut self, buffer: &Buffer, place: usize, count: u64) {
        let place = &buffer.places[place];
        self.tally.note(&place.header);
        // Which of them are left is not known without a look at each.
        self.found += if place.header.count == place.header.span { count } else { 0 };
        match &mut self.run {
            Some((part, _, to)) if *part == place.part && *to == place.from => *to = place.to,
            _ => {
                self.close(buffer);
                self.run = Some((place.part, place.from, place.to));
            }
        }
    }

    fn close(&mut self, buffer: &Buffer) {
        if let Some((part, from, to)) = self.run.take() {
            self.parts.push(buffer.parts[part].slice(from..to));
        }
    }

    fn reach(&mut self, last_position: Position, last_first: Seq) {
        (self.last_position, self.last_first) = (last_position, last_first);
    }

    /// How many bytes they have.
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// All of them; `wanted` is how many were asked for between these seqs.
    pub(super) fn finish(
        self,
        name: TopicName,
        range: (Seq, Seq),
        wanted: u64,
        now: Timestamp,
    ) -> Messages {
        // If some are gone, each must be looked at before it is handed out.
        let tally = (self.found == wanted).then_some((self.tally, self.last_first));
        Messages::new(name, range, self.last_position, now, self.parts, tally)
    }
}
