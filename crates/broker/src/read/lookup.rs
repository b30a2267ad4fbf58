//! Finding single messages: by seq, by key, by time, by position.
//!
//! What is not in memory is searched for in segments, in the thread that asks. So these are called
//! by threads that may wait for the disk: those of the keeper and the timers, those of callers of a
//! blocking form, and those of the recovery pool, where [`Inner::look_up`] has them run for a poll.

use std::sync::Arc;

use bytes::Bytes;
use gapless_core::{AHEAD_MAX, Batch, Delivered, Position, Seq, Timestamp, TopicName};
use gapless_journal::{Pending, ReadError, without};

use crate::broker::{Broker, Inner};
use crate::error::TopicError;
use crate::read::subscription::NOTHING_SEEN;
use crate::topic::live_topic::{LiveTopic, batches};

impl Broker {
    /// The newest message of a key; `None` when there is none, or it was removed.
    ///
    /// # Errors
    /// When there is no such topic, or history cannot be read.
    pub fn latest(&self, topic: &TopicName, key: &[u8]) -> Result<Option<Delivered>, TopicError> {
        let cell = self.inner.live_topic(topic)?;
        let newest = self.inner.latest_of_key(&cell, key)?;
        match newest {
            Some((seq, false)) => Ok(self.inner.read_one(&cell, seq)?),
            _ => Ok(None),
        }
    }

    /// The message of this seq; `None` when it is gone or not there yet.
    ///
    /// # Errors
    /// When there is no such topic, or history cannot be read.
    pub fn read(&self, topic: &TopicName, seq: Seq) -> Result<Option<Delivered>, TopicError> {
        let cell = self.inner.live_topic(topic)?;
        Ok(self.inner.read_one(&cell, seq)?)
    }
}

/// Where the messages of a topic are. The count of evictions shows whether that still holds later:
/// what was in memory when segments were searched may have moved to them meanwhile.
fn first_and_tail(cell: &LiveTopic) -> (Seq, Seq, u32) {
    let state = cell.lock();
    let view = state.view();
    (view.first, view.tail, state.evictions)
}

impl Inner {
    /// Has a search run by the recovery pool, for those who must not wait for the disk.
    pub(crate) fn look_up<T: Send + 'static>(
        self: &Arc<Self>,
        search: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Pending<Result<T, ReadError>> {
        let inner = Arc::downgrade(self);
        self.journal.look_up(move || inner.upgrade().map(|it| search(&it)).ok_or(ReadError::Closed))
    }

    /// The seq of the newest message of a key, and whether it removes the key.
    pub(crate) fn latest_of_key(
        &self,
        cell: &LiveTopic,
        key: &[u8],
    ) -> Result<Option<(Seq, bool)>, ReadError> {
        let hash = self.journal.key_hash(key);
        loop {
            let state = self.track_keys(cell)?;
            if let Some((seq, tombstone)) = state.latest_of_key(hash) {
                if seq <= state.machine.settled() || self.journal.failure().is_some() {
                    return Ok(Some((seq, tombstone)));
                }
                // The newest is on its way to the disk; the answer waits for it.
                drop(state);
                self.settle()?;
                continue;
            }
            let evictions = state.evictions;
            drop(state);
            let found = self.journal.latest_of_key(cell.id, hash)?;
            if cell.lock().evictions == evictions {
                return Ok(found);
            }
        }
    }

    /// The message of this seq, if it may be read.
    pub(crate) fn read_one(
        &self,
        cell: &LiveTopic,
        seq: Seq,
    ) -> Result<Option<Delivered>, ReadError> {
        let Some(batch) = self.batch_at(cell, seq)? else { return Ok(None) };
        let now = self.clock.now();
        let found = batch.records().find(|record| batch.seq_of(record) == seq);
        let found = found.filter(|record| !batch.is_expired(record, now));
        let stored = found.as_ref().map(|_| batch.time());
        if cell.lock().kept().gone(seq, stored, now).is_some() {
            return Ok(None);
        }
        Ok(found.map(|record| Delivered {
            seq,
            position: batch.position_of(&record),
            time: batch.time(),
            message: batch.message(&record),
        }))
    }

    /// The batch that accounts for this seq, if it is kept and visible.
    pub(crate) fn batch_at(&self, cell: &LiveTopic, seq: Seq) -> Result<Option<Batch>, ReadError> {
        if seq < cell.lock().first() {
            return Ok(None);
        }
        self.stored_at(cell, seq)
    }

    /// The batch that accounts for this seq, if it is visible and not below the floor as it
    /// is written down, even if retention by count has let it go already.
    pub(crate) fn stored_at(&self, cell: &LiveTopic, seq: Seq) -> Result<Option<Batch>, ReadError> {
        let parts = {
            let state = cell.lock();
            let view = state.view();
            if seq < state.machine.first() || seq >= view.next {
                return Ok(None);
            }
            (seq >= view.tail).then(|| state.take(seq, 1))
        };
        let parts = match parts {
            Some(parts) => parts,
            None => self.journal.read_topic_here(cell.id, (seq, seq), 1)?,
        };
        let holds = |batch: &Batch| (batch.first()..=batch.last()).contains(&seq);
        Ok(parts.into_iter().flat_map(batches).find(holds))
    }

    /// The first seq of a topic that was accepted at `time` or later, and when; `None` when
    /// there is none yet.
    pub(crate) fn seq_at_time(
        &self,
        cell: &LiveTopic,
        time: Timestamp,
    ) -> Result<Option<(Seq, Timestamp)>, ReadError> {
        let (first, tail, evictions) = first_and_tail(cell);
        // What a wrong clock has stamped is passed over, unless such a time is asked for.
        let latest = self.clock.now().after(AHEAD_MAX).max(time);
        let mut found = None;
        if first < tail {
            let batch = self.journal.find_time(cell.id, first, (time, latest))?;
            found = batch.filter(|each| each.seq < tail);
        }
        let in_segments = found.map(|batch| (batch.seq.max(first), batch.time));
        if found.is_some_and(|batch| batch.last_seq() < tail) {
            return Ok(in_segments);
        }
        let state = cell.lock();
        if state.evictions != evictions {
            drop(state);
            return self.seq_at_time(cell, time);
        }
        // A hole that reaches into memory: what is in memory shows whether its beginning is older.
        if found.is_some() && state.batches().next().is_none_or(|batch| batch.time() >= time) {
            return Ok(in_segments);
        }
        let found = state.batches().find(|batch| (time..=latest).contains(&batch.time()));
        Ok(found.map(|batch| (batch.first().max(state.first()), batch.time())))
    }

    /// The first seq of a topic after a position.
    pub(crate) fn seq_after(
        &self,
        cell: &LiveTopic,
        position: Position,
    ) -> Result<Option<Seq>, ReadError> {
        // From the floor as recorded: what retention by count has removed already lies between, and
        // must be reported.
        let (_, tail, evictions) = first_and_tail(cell);
        let first = cell.lock().machine.first();
        let after = |header: &gapless_core::EntryHeader| {
            header.seq.plus(position.next().distance(header.position)).max(first)
        };
        if first < tail
            && let Some(header) = self.journal.find_position(cell.id, first, position)?
            && header.seq < tail
        {
            return Ok(Some(after(&header)));
        }
        let state = cell.lock();
        if state.evictions != evictions {
            drop(state);
            return self.seq_after(cell, position);
        }
        let found = state.batches().find(|batch| batch.header().last_position() > position);
        Ok(found.map(|batch| after(batch.header())))
    }

    /// A position with all before `next` up to it, and the others behind it.
    pub(crate) fn position_before(
        &self,
        cell: &LiveTopic,
        next: Seq,
    ) -> Result<Position, ReadError> {
        let (visible, end, floor) = {
            let state = cell.lock();
            // A subscriber that begins before the floor gets a gap notice; until then it has seen
            // nothing.
            let begins_before = next < state.machine.first();
            let floor = if begins_before { NOTHING_SEEN } else { state.floor_position };
            (state.visible, state.next(), floor)
        };
        if next >= end {
            return Ok(visible);
        }
        let last = next.prev();
        match self.stored_at(cell, last)? {
            None => Ok(floor),
            // A hole stands where its last message stood; where one inside it stood is not
            // known, but all before the hole lie before that.
            Some(hole) if hole.header().count == 0 && last < hole.last() => {
                self.position_before(cell, hole.first())
            }
            Some(hole) if hole.header().count == 0 => Ok(hole.header().position),
            Some(batch) => Ok(batch.header().position.plus(last.distance(batch.first()))),
        }
    }

    /// The parts with only those messages that are the newest of their key.
    pub(crate) fn newest_of_keys(
        &self,
        cell: &Arc<LiveTopic>,
        parts: Vec<Bytes>,
        to: Seq,
    ) -> Result<Vec<Bytes>, ReadError> {
        let mut kept = Vec::new();
        for batch in parts.into_iter().flat_map(batches) {
            if batch.first() > to {
                kept.push(batch.bytes().clone());
                continue;
            }
            let mut newest = Vec::new();
            for record in batch.records() {
                let seq = batch.seq_of(&record);
                let is_newest = match record.key {
                    Some(key) => self.latest_of_key(cell, key)? == Some((seq, false)),
                    None => false,
                };
                if is_newest || seq > to {
                    newest.push(record.offset);
                }
            }
            let stays = |record: &gapless_core::Record<'_>| newest.contains(&record.offset);
            kept.extend(without(&batch, stays).map(|batch| batch.bytes().clone()));
        }
        Ok(kept)
    }
}
