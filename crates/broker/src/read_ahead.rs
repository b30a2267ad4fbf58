//! What a group has read and not handed out yet, as shared buffers, and how leased messages
//! are found in it.
//!
//! It is a convenience with a bound: what is not in it any more is read again by its seq.

use std::collections::VecDeque;
use std::num::NonZeroU128;

use bytes::Bytes;
use gapless_core::group::{Granted, Offered};
use gapless_core::{BatchRef, EntryHeader, Position, Seq, Tally, Timestamp, TopicId, TopicName};
use gapless_journal::without;

use crate::cell::batches;
use crate::delivery::Messages;

/// Tells what stands for a key.
pub(crate) type KeyHash<'a> = &'a dyn Fn(&[u8]) -> u128;

/// Bytes kept for one group; the oldest go first.
const READ_AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Default)]
pub(crate) struct ReadAhead {
    buffers: VecDeque<Buffer>,
    bytes: usize,
}

/// Batches of one topic that were read together.
struct Buffer {
    name: TopicName,
    topic: TopicId,
    parts: Vec<Bytes>,
    batches: Vec<Place>,
    bytes: usize,
}

/// Where a batch lies.
#[derive(Clone, Copy)]
struct Place {
    header: EntryHeader,
    part: usize,
    from: usize,
    to: usize,
}

impl ReadAhead {
    /// Keeps what was read, and tells which messages it holds: neighbours as one run, unless
    /// keys matter, for which a hash is given.
    pub(crate) fn push(
        &mut self,
        topic: TopicId,
        messages: &Messages,
        hash: Option<KeyHash<'_>>,
    ) -> Vec<Offered> {
        let (from, to) = (messages.from(), messages.to());
        let mut runs: Vec<Offered> = Vec::new();
        let mut places = Vec::new();
        let parts = messages.parts();
        for (part, bytes) in parts.iter().enumerate() {
            let mut at = 0;
            for batch in BatchRef::all(bytes) {
                let header = *batch.header();
                let begin = at;
                at += batch.bytes().len();
                if header.last_seq() < from || header.seq > to || header.count == 0 {
                    continue;
                }
                places.push(Place { header, part, from: begin, to: at });
                offer(&mut runs, topic, &batch, (from, to), hash);
            }
        }
        let bytes = messages.bytes();
        self.bytes += bytes;
        let name = messages.topic().clone();
        let parts = parts.to_vec();
        self.buffers.push_back(Buffer { name, topic, parts, batches: places, bytes });
        runs
    }

    /// Lets go of what lies before the first message to be handed out, and of the oldest if
    /// it is too much.
    pub(crate) fn forget(&mut self, first_wanted: Option<Position>) {
        while let Some(front) = self.buffers.front() {
            let last = front.batches.last().map(|place| place.header.last_position());
            let over = last.is_none_or(|last| first_wanted.is_none_or(|first| last < first));
            if !over && (self.bytes <= READ_AHEAD_BYTES_MAX || self.buffers.len() == 1) {
                return;
            }
            self.bytes -= front.bytes;
            self.buffers.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Messages of the first grant and of those after it that lie in the same buffer and are
    /// of the same attempt; tells how many grants that are. None if they must be read again.
    pub(crate) fn find(
        &self,
        grants: &VecDeque<Granted>,
        now: Timestamp,
    ) -> Option<(Messages, usize)> {
        let first = grants.front()?;
        let holds = |buffer: &&Buffer| {
            let begin = buffer.batches.first().map(|place| place.header.position);
            let end = buffer.batches.last().map(|place| place.header.last_position());
            begin.is_some_and(|begin| begin <= first.lease.first)
                && end.is_some_and(|end| first.lease.last <= end)
                && buffer.topic == first.topic
        };
        let at = self.buffers.partition_point(|buffer| {
            let end = buffer.batches.last().map(|place| place.header.last_position());
            end.is_none_or(|end| end < first.lease.first)
        });
        let buffer = self.buffers.get(at).filter(holds)?;
        let end = buffer.batches.last()?.header.last_position();
        let fits = |each: &&Granted| {
            each.topic == first.topic
                && each.lease.attempt == first.lease.attempt
                && each.lease.last <= end
        };
        let count = grants.iter().take_while(fits).count();
        Some((buffer.pick(grants.iter().take(count), now), count))
    }
}

/// Adds the messages of a batch that lie between two seqs to runs of neighbours.
pub(crate) fn offer(
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
    if whole && (hash.is_none() || header.flags & gapless_core::batch::FLAG_KEYS == 0) {
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

impl Buffer {
    /// The messages of these grants, which lie in this buffer in order. Batches of which all
    /// are wanted stay shared, and so do those cut at the beginning or the end of the whole,
    /// where the range of seqs says so; of others the wanted messages are copied.
    fn pick<'a>(&self, grants: impl Iterator<Item = &'a Granted>, now: Timestamp) -> Messages {
        let wanted = self.wanted(grants);
        let mut picked = Picked { parts: Vec::new(), run: None, tally: Tally::default() };
        let (mut from, mut to) = (Seq(u64::MAX), Seq(0));
        let (mut position, mut last_first) = (Position(0), Seq(0));
        for (index, (place, stretches)) in wanted.iter().enumerate() {
            let header = &place.header;
            let (begin, end) = (header.position, header.last_position());
            let seq = |position: Position| header.seq.plus(position.distance(begin));
            let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { continue };
            from = from.min(seq(first.0));
            to = to.max(seq(last.1));
            (position, last_first) = (last.1, header.seq);
            let at_begin = first.0 == begin || index == 0;
            let at_end = last.1 == end || index + 1 == wanted.len();
            if stretches.len() == 1 && at_begin && at_end {
                picked.share(&self.parts, place);
            } else {
                picked.copy(&self.parts, place, stretches);
            }
        }
        picked.close(&self.parts);
        let tally = Some((picked.tally, last_first));
        Messages::new(self.name.clone(), (from, to), position, now, picked.parts, tally)
    }

    /// The batches that hold wanted messages, each with the stretches that are.
    fn wanted<'a>(
        &self,
        grants: impl Iterator<Item = &'a Granted>,
    ) -> Vec<(Place, Vec<(Position, Position)>)> {
        let mut wanted: Vec<(Place, Vec<(Position, Position)>)> = Vec::new();
        let mut at = None;
        for lease in grants.map(|grant| grant.lease) {
            let before = |place: &Place| place.header.last_position() < lease.first;
            let mut index = match at {
                None => self.batches.partition_point(before),
                Some(at) => at,
            };
            while let Some(place) = self.batches.get(index) {
                let (begin, end) = (place.header.position, place.header.last_position());
                if begin > lease.last {
                    break;
                }
                at = Some(index);
                if end < lease.first {
                    index += 1;
                    continue;
                }
                let stretch = (lease.first.max(begin), lease.last.min(end));
                match wanted.last_mut() {
                    Some((last, stretches)) if last.header.position == begin => {
                        match stretches.last_mut() {
                            Some(before) if before.1.next() == stretch.0 => before.1 = stretch.1,
                            _ => stretches.push(stretch),
                        }
                    }
                    _ => wanted.push((*place, vec![stretch])),
                }
                if end >= lease.last {
                    break;
                }
                index += 1;
            }
        }
        wanted
    }
}

/// Parts that are being put together.
struct Picked {
    parts: Vec<Bytes>,
    /// Neighbouring batches that stay shared: their part, and where they begin and end in it.
    run: Option<(usize, usize, usize)>,
    tally: Tally,
}

impl Picked {
    fn share(&mut self, memory: &[Bytes], place: &Place) {
        self.tally.note(&place.header);
        match &mut self.run {
            Some((part, _, to)) if *part == place.part && *to == place.from => *to = place.to,
            _ => {
                self.close(memory);
                self.run = Some((place.part, place.from, place.to));
            }
        }
    }

    fn copy(&mut self, memory: &[Bytes], place: &Place, stretches: &[(Position, Position)]) {
        self.close(memory);
        // With keys there are many stretches, so each message looks for its own.
        let is_wanted = |at: Position| {
            let next = stretches.partition_point(|(_, to)| *to < at);
            stretches.get(next).is_some_and(|(from, _)| *from <= at)
        };
        for batch in batches(memory[place.part].slice(place.from..place.to)) {
            if let Some(left) = without(&batch, |record| is_wanted(batch.position_of(record))) {
                self.tally.note(left.header());
                self.parts.push(left.bytes().clone());
            }
        }
    }

    fn close(&mut self, memory: &[Bytes]) {
        if let Some((part, from, to)) = self.run.take() {
            self.parts.push(memory[part].slice(from..to));
        }
    }
}
