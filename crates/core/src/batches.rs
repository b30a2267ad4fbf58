//! Batches one after the other, in the pieces of memory in which they lie.
//!
//! A reader of history is handed thousands of small batches at once. They go on as the few
//! runs of bytes that they are; one look at each header, when they were read, gives all that
//! is asked of them later. No list of batches is built and no bytes are copied.

use alloc::collections::VecDeque;
use bytes::Bytes;

use crate::batch::{Batch, BatchRef};
use crate::entry::{Entry, EntryError, EntryHeader, EntryKind};
use crate::id::Seq;
use crate::time::Timestamp;

/// Seqs and positions above it are refused: below it no sum of two of them overflows.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// What the headers of some batches say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// How many messages they hold.
    pub messages: u64,
    /// The first seq that they account for, and the last; `None` for no batch.
    pub range: Option<(Seq, Seq)>,
    /// When the first of their messages expires, if one does.
    pub expires: Option<Timestamp>,
    /// The last seq of the first batch.
    first_to: Seq,
    /// Whether seqs rise and no batch claims more messages than seqs.
    sound: bool,
}

impl Default for Tally {
    fn default() -> Self {
        Self { messages: 0, range: None, expires: None, first_to: Seq(0), sound: true }
    }
}

impl Tally {
    /// Adds the header of the batch that comes next.
    pub fn note(&mut self, header: &EntryHeader) {
        let numbers = header.seq.0 <= NUMBER_MAX && header.position.0 <= NUMBER_MAX;
        self.sound &= numbers && header.kind == EntryKind::Batch && header.count <= header.span;
        if !numbers {
            return;
        }
        let last = header.last_seq();
        self.messages += u64::from(header.count);
        if header.ttl_min_ms != 0 {
            let expires = Timestamp(header.time.0.saturating_add(u64::from(header.ttl_min_ms)));
            self.expires = Some(self.expires.map_or(expires, |first| first.min(expires)));
        }
        self.range = match self.range {
            None => {
                self.first_to = last;
                Some((header.seq, last))
            }
            Some((first, before)) => {
                self.sound &= before < header.seq;
                Some((first, last))
            }
        };
    }

    /// Whether every batch is within the requested seqs `from` to `to`, and all are in order.
    pub fn is_within(&self, from: Seq, to: Seq, last_first: Seq) -> bool {
        self.sound && self.range.is_none_or(|_| self.first_to >= from && last_first <= to)
    }
}

/// Batches of one topic, as stored.
#[derive(Clone, Debug, Default)]
pub struct Batches {
    parts: VecDeque<Bytes>,
    bytes: usize,
    tally: Tally,
    /// The first seq of the last batch.
    last_first: Seq,
}

impl Batches {
    /// Batches whose headers were looked at before; `last_first` is the first seq of the last.
    pub fn trusted(parts: impl IntoIterator<Item = Bytes>, tally: Tally, last_first: Seq) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().collect();
        let bytes = parts.iter().map(Bytes::len).sum();
        Self { parts, bytes, tally, last_first }
    }

    /// Looks at the headers of bytes that come from elsewhere. Checksums are not looked at.
    ///
    /// # Errors
    /// When something in them is not a batch, or is cut short.
    pub fn parse(bytes: Bytes) -> Result<Self, EntryError> {
        let (mut tally, mut last_first, mut at) = (Tally::default(), Seq(0), 0);
        while at < bytes.len() {
            let (header, len) = EntryHeader::read(&bytes[at..])?;
            if bytes.len() - at < len {
                return Err(EntryError::Short);
            }
            if header.kind != EntryKind::Batch {
                return Err(EntryError::Unknown { kind: header.kind as u8, version: 0 });
            }
            tally.note(&header);
            last_first = header.seq;
            at += len;
        }
        Ok(Self::trusted((at > 0).then_some(bytes), tally, last_first))
    }

    /// Adds a batch at the end.
    pub fn push(&mut self, batch: &Batch) {
        self.tally.note(batch.header());
        self.last_first = batch.first();
        self.bytes += batch.bytes().len();
        self.parts.push_back(batch.bytes().clone());
    }

    /// Puts a batch before the others.
    pub fn push_front(&mut self, batch: &Batch) {
        let mut all = Self::default();
        all.push(batch);
        if let Some((_, last)) = self.tally.range {
            all.tally.sound &= self.tally.sound && batch.last() < self.first();
            all.tally.range = Some((batch.first(), last));
            all.tally.messages += self.tally.messages;
            all.tally.expires = [all.tally.expires, self.tally.expires].into_iter().flatten().min();
            all.last_first = self.last_first;
            all.bytes += self.bytes;
            all.parts.append(&mut self.parts);
        }
        *self = all;
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many messages their headers say they hold.
    pub fn messages(&self) -> u64 {
        self.tally.messages
    }

    /// The first seq that they account for, and the last; `None` for no batch.
    pub fn range(&self) -> Option<(Seq, Seq)> {
        self.tally.range
    }

    /// The first seq that they account for; zero for no batch.
    fn first(&self) -> Seq {
        self.tally.range.map_or(Seq(0), |(first, _)| first)
    }

    /// Whether all are in order, and each has something of the seqs `from` to `to`.
    pub fn are_within(&self, from: Seq, to: Seq) -> bool {
        self.tally.is_within(from, to, self.last_first)
    }

    /// The pieces of memory in which they lie.
    pub fn parts(&self) -> impl Iterator<Item = &Bytes> {
        self.parts.iter()
    }

    /// Each of them, borrowed.
    pub fn views(&self) -> impl Iterator<Item = BatchRef<'_>> {
        self.parts.iter().flat_map(|part| BatchRef::all(part))
    }

    /// Each of them, sharing its bytes.
    pub fn iter(&self) -> impl Iterator<Item = Batch> + '_ {
        self.parts.iter().flat_map(|part| {
            let mut rest = part.clone();
            core::iter::from_fn(move || Batch::new(Entry::take_trusted(&mut rest).ok()?))
        })
    }

    /// Takes the first of them off.
    pub fn pop_front(&mut self) -> Option<Batch> {
        let part = self.parts.front_mut()?;
        let batch = Entry::take_trusted(part).ok().and_then(Batch::new)?;
        if part.is_empty() {
            self.parts.pop_front();
        }
        self.lost_front(batch.bytes().len(), u64::from(batch.header().count));
        Some(batch)
    }

    /// Takes off the front the batches that fit into `bytes` and `messages` together, whole.
    pub fn take_front(&mut self, bytes: usize, messages: u64) -> Self {
        if self.bytes <= bytes && self.tally.messages <= messages {
            return core::mem::take(self);
        }
        let mut front = Self::default();
        while let Some(mut part) = self.parts.pop_front() {
            let mut at = 0;
            while let Ok((header, len)) = EntryHeader::read(&part[at..]) {
                let more = front.tally.messages + u64::from(header.count);
                let fits = front.bytes + at + len <= bytes && more <= messages;
                if !fits {
                    break;
                }
                front.tally.note(&header);
                front.last_first = header.seq;
                at += len;
            }
            let whole = at == part.len();
            if at > 0 {
                front.bytes += at;
                front.parts.push_back(part.split_to(at));
            }
            if !whole {
                self.parts.push_front(part);
                break;
            }
        }
        self.lost_front(front.bytes, front.tally.messages);
        front
    }

    /// Sets the tally right after batches were taken off the front, without a look at all
    /// that are left.
    fn lost_front(&mut self, bytes: usize, messages: u64) {
        self.bytes -= bytes;
        self.tally.messages -= messages;
        let first = self.parts.front().and_then(|part| EntryHeader::read(part).ok());
        match (first, self.tally.range) {
            (Some((header, _)), Some((_, last))) => {
                self.tally.range = Some((header.seq, last));
                self.tally.first_to = header.last_seq();
            }
            _ => *self = Self::default(),
        }
    }
}

impl PartialEq for Batches {
    /// Where the bytes lie does not matter.
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.iter().eq(other.iter())
    }
}

impl Eq for Batches {}

impl FromIterator<Batch> for Batches {
    fn from_iter<I: IntoIterator<Item = Batch>>(all: I) -> Self {
        let mut batches = Self::default();
        all.into_iter().for_each(|batch| batches.push(&batch));
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::RecordsBuilder;
    use crate::id::Position;
    use crate::message::Message;
    use alloc::vec::Vec;
    use bytes::BytesMut;
    use proptest::prelude::*;

    fn batch(seq: u64, count: u32, holes: u32) -> Batch {
        let mut builder = RecordsBuilder::default();
        (0..count).for_each(|_| builder.push(&Message::new("body")).unwrap());
        let records = builder.finish();
        let header = EntryHeader {
            seq: Seq(seq),
            position: Position(seq + 100),
            span: count + holes,
            count,
            ..EntryHeader::new(EntryKind::Batch)
        };
        let mut bytes = BytesMut::new();
        header.put(&mut bytes, &records.bytes, 0, |_| 0);
        Batch::new(Entry { header, bytes: bytes.freeze() }).unwrap()
    }

    fn some(shapes: &[(u32, u32)]) -> Vec<Batch> {
        let mut next = 1;
        let make = |&(count, holes): &(u32, u32)| {
            let made = batch(next, count, holes.max(u32::from(count == 0)));
            next = made.last().next().0;
            made
        };
        shapes.iter().map(make).collect()
    }

    /// The same batches in runs of memory, as a reader of history gets them.
    fn in_runs(all: &[Batch], run: usize) -> Batches {
        let (mut tally, mut last_first) = (Tally::default(), Seq(0));
        all.iter().for_each(|batch| {
            tally.note(batch.header());
            last_first = batch.first();
        });
        let joined = |run: &[Batch]| {
            let mut bytes = BytesMut::new();
            run.iter().for_each(|batch| bytes.extend_from_slice(batch.bytes()));
            bytes.freeze()
        };
        Batches::trusted(all.chunks(run).map(joined), tally, last_first)
    }

    fn same(left: &Batches, right: &[Batch]) {
        let plain: Batches = right.iter().cloned().collect();
        assert_eq!(left, &plain);
        assert_eq!((left.bytes(), left.messages()), (plain.bytes(), plain.messages()));
        assert_eq!(left.range(), plain.range());
        assert_eq!(left.are_within(Seq(3), Seq(5)), plain.are_within(Seq(3), Seq(5)));
    }

    proptest! {
        /// For any split and any runs: front and rest are what a plain list would give.
        #[test]
        fn taking_the_front_off_is_cutting_a_list(
            shapes in prop::collection::vec((0..4_u32, 0..3_u32), 0..20),
            run in 1..5_usize, bytes in 0..600_usize, messages in 0..12_u64,
        ) {
            let all = some(&shapes);
            let mut rest = in_runs(&all, run);
            same(&rest, &all);
            let front = rest.take_front(bytes, messages);
            let taken = front.iter().count();
            same(&front, &all[..taken]);
            same(&rest, &all[taken..]);
            prop_assert!(front.messages() <= messages && front.bytes() <= bytes);
            // It stopped where the next one did not fit.
            if let Some(next) = all.get(taken) {
                let more = front.messages() + u64::from(next.header().count);
                prop_assert!(front.bytes() + next.bytes().len() > bytes || more > messages);
            }
            let popped = rest.pop_front();
            prop_assert_eq!(popped.as_ref(), all.get(taken));
            if let Some(popped) = popped {
                same(&rest, &all[taken + 1..]);
                rest.push_front(&popped);
                same(&rest, &all[taken..]);
            }
        }
    }

    #[test]
    fn bytes_from_elsewhere_are_looked_at() {
        let all = some(&[(2, 0), (0, 3), (1, 1)]);
        let joined = in_runs(&all, 9).parts().next().unwrap().clone();
        same(&Batches::parse(joined.clone()).unwrap(), &all);
        let cut = Batches::parse(joined.slice(..joined.len() - 1));
        assert_eq!(cut, Err(EntryError::Short));
        assert_eq!(Batches::parse(Bytes::new()), Ok(Batches::default()));
    }

    #[test]
    fn disorder_and_lies_are_noticed() {
        let twice: Batches = [batch(5, 1, 0), batch(5, 1, 0)].into_iter().collect();
        assert!(!twice.are_within(Seq(1), Seq(9)));
        let after: Batches = [batch(5, 1, 0)].into_iter().collect();
        assert!(!after.are_within(Seq(6), Seq(9)) && !after.are_within(Seq(1), Seq(4)));
        assert!(after.are_within(Seq(5), Seq(5)));
        let beyond: Batches = [batch(NUMBER_MAX + 1, 1, 0)].into_iter().collect();
        assert!(!beyond.are_within(Seq(1), Seq(u64::MAX)));
    }
}
