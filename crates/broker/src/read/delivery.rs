//! What a subscriber is handed.

use std::time::Duration;

use bytes::Bytes;
use gapless_core::batch::RecordIter;
use gapless_core::{
    Batch, BatchRef, Batches, Delivered, DeliveredRef, GapNotice, Position, Seq, Tally, Timestamp,
    TopicName,
};
use gapless_journal::without;

use crate::topic::live_topic::batches;

/// One step of a subscription.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// History from here to there comes next (recovery response).
    Recovering {
        /// The place of the subscriber: a seq of its topic, or a position.
        from: u64,
        /// How far history goes at this moment, included.
        to: u64,
    },
    /// Messages, history or live.
    Messages(Messages),
    /// Numbers that will not be delivered, and why.
    Gap(GapNotice),
    /// History is done; what comes now is live (recovery complete).
    Live,
}

/// Messages of one topic that account for the seqs `from` to `to`: a seq between them that
/// does not come was compacted away or has expired.
#[derive(Clone, Debug)]
pub struct Messages {
    topic: TopicName,
    from: Seq,
    to: Seq,
    last_position: Position,
    now: Timestamp,
    parts: Vec<Bytes>,
    mailed: bool,
    /// What their headers say; `None` when some must be left out of the parts.
    tally: Option<(Tally, Seq)>,
}

impl Messages {
    pub(crate) fn new(
        topic: TopicName,
        (from, to): (Seq, Seq),
        last_position: Position,
        now: Timestamp,
        parts: Vec<Bytes>,
        tally: Option<(Tally, Seq)>,
    ) -> Self {
        Self { topic, from, to, last_position, now, parts, tally, mailed: false }
    }

    /// The same, of volatile messages between those of the journal.
    pub(crate) fn mailed(self) -> Self {
        Self { mailed: true, ..self }
    }

    /// Whether they are volatile ones between those of the journal.
    pub(crate) fn is_mailed(&self) -> bool {
        self.mailed
    }

    /// The memory they lie in.
    pub(crate) fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Whether none of them can have expired.
    pub(crate) fn is_alive(&self) -> bool {
        let expires = self.tally.map(|(tally, _)| tally.expires);
        expires.is_some_and(|expires| expires.is_none_or(|expires| expires > self.now))
    }

    /// Those from this seq on.
    pub(crate) fn beginning_at(self, from: Seq) -> Self {
        Self { from: self.from.max(from), ..self }
    }

    /// Where they were published.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The first seq they account for.
    pub fn from(&self) -> Seq {
        self.from
    }

    /// The last seq they account for.
    pub fn to(&self) -> Seq {
        self.to
    }

    /// The last position they account for: the one for a token.
    pub fn last_position(&self) -> Position {
        self.last_position
    }

    /// The position for a token after the message at `position`, one of these. Volatile messages of
    /// a pattern have positions that do not exist in the journal; after them a subscriber stands
    /// where it stood before.
    pub fn place_after(&self, position: Position) -> Position {
        if self.mailed { self.last_position } else { position }
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// The batches, as stored, without messages whose time to live is over. The first may
    /// hold messages before [`Messages::from`], the last some after [`Messages::to`].
    pub fn batches(&self) -> impl Iterator<Item = Batch> + '_ {
        let now = self.now;
        let wanted = |batch: &Batch| batch.last() >= self.from && batch.first() <= self.to;
        let all = self.parts.iter().cloned().flat_map(batches).filter(wanted);
        all.filter_map(move |batch| {
            if batch.may_have_expired(now) {
                without(&batch, |record| !batch.is_expired(record, now))
            } else {
                Some(batch)
            }
        })
    }

    /// The same, in the runs of memory in which they lie: for handing them on.
    pub fn stored(&self) -> Batches {
        match self.tally {
            Some((tally, last_first))
                if tally.expires.is_none_or(|expires| expires > self.now)
                    && tally.is_within(self.from, self.to, last_first) =>
            {
                Batches::trusted(self.parts.iter().cloned(), tally, last_first)
            }
            _ => self.batches().collect(),
        }
    }

    /// The messages, in order, borrowed: the fastest way to go over many.
    pub fn records(&self) -> impl Iterator<Item = DeliveredRef<'_>> {
        self.refs()
    }

    fn refs(&self) -> Refs<'_> {
        let records = RecordIter::default();
        Refs { of: self, next_part: 0, rest: &[], batch: None, expired: false, records }
    }

    /// The messages, in order, each sharing the bytes it came in.
    pub fn iter(&self) -> impl Iterator<Item = Delivered> + '_ {
        let mut refs = self.refs();
        std::iter::from_fn(move || {
            let each = refs.next()?;
            Some(Delivered {
                seq: each.seq,
                position: each.position,
                time: each.time,
                message: each.record.to_message(refs.part()),
            })
        })
    }

    /// How long ago the first of them was published, when they were handed out.
    pub(crate) fn age(&self) -> Duration {
        let mut first = self.parts.first().map(|part| &part[..]).unwrap_or_default();
        let published = BatchRef::take(&mut first).map_or(self.now, |batch| batch.header().time);
        Duration::from_millis(self.now.0.saturating_sub(published.0))
    }

    /// The same as [`Messages::count`], from what their headers say where that is enough.
    pub(crate) fn handed_out(&self) -> u64 {
        match self.tally {
            Some((tally, last_first))
                if self.is_alive() && tally.is_within(self.from, self.to, last_first) =>
            {
                tally.messages
            }
            _ => self.count() as u64,
        }
    }

    /// How many messages there are.
    pub fn count(&self) -> usize {
        self.records().count()
    }
}

/// Goes over messages, borrowed. Written out instead of put together from adapters, which
/// would move all of this for each message.
struct Refs<'a> {
    of: &'a Messages,
    next_part: usize,
    /// What is left of the part before.
    rest: &'a [u8],
    batch: Option<BatchRef<'a>>,
    /// Whether some messages of the batch may be over.
    expired: bool,
    records: RecordIter<'a>,
}

impl<'a> Refs<'a> {
    /// The part in which the last message lies.
    fn part(&self) -> &'a Bytes {
        &self.of.parts[self.next_part - 1]
    }

    /// Goes to the next batch that has something wanted.
    fn next_batch(&mut self) -> Option<()> {
        loop {
            let Some(batch) = BatchRef::take(&mut self.rest) else {
                self.rest = self.of.parts.get(self.next_part)?;
                self.next_part += 1;
                continue;
            };
            if batch.header().last_seq() >= self.of.from && batch.header().seq <= self.of.to {
                self.expired = batch.may_have_expired(self.of.now);
                self.records = batch.records();
                self.batch = Some(batch);
                return Some(());
            }
        }
    }
}

impl<'a> Iterator for Refs<'a> {
    type Item = DeliveredRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<DeliveredRef<'a>> {
        loop {
            let (Some(batch), Some(record)) = (&self.batch, self.records.next()) else {
                self.next_batch()?;
                continue;
            };
            let seq = batch.seq_of(&record);
            let wanted = self.of.from <= seq && seq <= self.of.to;
            if wanted && !(self.expired && batch.is_expired(&record, self.of.now)) {
                let (position, time) = (batch.position_of(&record), batch.header().time);
                return Some(DeliveredRef { seq, position, time, record });
            }
        }
    }
}
