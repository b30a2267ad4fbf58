//! Carrying out retention: raising floors when age, bytes or count say so.
//!
//! A floor is an entry of the journal like everything else, so that replay needs no clock.
//! What lies below it is gone for every reader at once; the collector frees the disk later.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gapless_core::topic::{Effect, Input};
use gapless_core::{Durability, EntryHeader, EntryKind, Gap, GapReason, Seq, Timestamp, TopicName};
use gapless_journal::{ReadError, Ticket};

use crate::broker::{Broker, Inner};
use crate::error::{TopicError, begin_error};
use crate::topic::admin::confirmed;
use crate::topic::live_topic::{LiveTopic, lock};

impl Broker {
    /// Removes all messages below `below`, for ever. Returns what was removed.
    ///
    /// # Errors
    /// When there is no such topic or seq, or it cannot be written down.
    pub fn purge(&self, topic: &TopicName, below: Seq) -> Result<Option<Gap>, TopicError> {
        if topic.is_system() {
            return Err(TopicError::System(topic.clone()));
        }
        let cell = self.inner.live_topic(topic)?;
        let next = cell.lock().next();
        if below > next {
            return Err(TopicError::Ahead { wanted: below, next });
        }
        let now = self.inner.clock.now();
        let (gap, ticket) = self.inner.begin_trim(&cell, below, GapReason::Purge, now)?;
        // It was reported as gone for ever, so it must not come back.
        confirmed(ticket)?;
        Ok(gap)
    }
}

impl Inner {
    /// Raises a topic's floor. No caller waits for it: if it is lost, it is raised again.
    pub(crate) fn trim(
        &self,
        cell: &Arc<LiveTopic>,
        below: Seq,
        reason: GapReason,
        now: Timestamp,
    ) -> Result<Option<Gap>, TopicError> {
        Ok(self.begin_trim(cell, below, reason, now)?.0)
    }

    /// Raises a topic's floor; the ticket resolves when that is durable.
    fn begin_trim(
        &self,
        cell: &Arc<LiveTopic>,
        below: Seq,
        reason: GapReason,
        now: Timestamp,
    ) -> Result<(Option<Gap>, Option<Ticket>), TopicError> {
        // Where the last one lies that goes: looked up before, without the lock. If it is
        // gone already, so is everything below, and its place is known.
        let (below, position) = match self.stored_at(cell, below.prev())? {
            // Nothing of a hole is left, and where one inside it stood is not known: it goes
            // whole, and with it the floor stands where its last message stood.
            Some(hole) if hole.header().count == 0 => (hole.last().next(), hole.header().position),
            Some(batch) => {
                let offset = below.prev().distance(batch.first());
                (below, batch.header().position.plus(offset))
            }
            None => (below, cell.lock().floor_position),
        };
        let mut state = cell.lock();
        let below = below.min(state.next());
        if below <= state.machine.first() || state.deleted {
            return Ok((None, None));
        }
        if !state.is_durable() {
            let effect = state.step(now, Input::Trim { below, reason });
            state.floor_position = state.floor_position.max(position);
            state.drop_gone();
            return Ok((trimmed(effect), None));
        }
        let body = position.0.to_le_bytes();
        let mut append = self.journal.begin_freeing(128).map_err(begin_error)?;
        let time = append.time(now);
        let gap = trimmed(state.step(time, Input::Trim { below, reason }));
        let header = EntryHeader {
            topic: cell.id,
            seq: below,
            time,
            flags: u16::from(reason.code()),
            ..EntryHeader::new(EntryKind::Floor)
        };
        state.as_of = append.entry(header, &body);
        let durability =
            if reason == GapReason::Purge { Durability::Flushed } else { Durability::Written };
        let ticket = append.finish(durability, durability);
        state.floor_position = state.floor_position.max(position);
        state.drop_gone();
        let wakers = state.wake_all();
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.trims.fetch_add(1, Ordering::AcqRel);
        self.journal.note_dead();
        if let Some(gap) = gap {
            self.emit(
                "topic.trimmed",
                &[
                    ("topic", cell.name.as_str().into()),
                    ("from", gap.from.0.into()),
                    ("to", gap.to.0.into()),
                    ("reason", reason.name().into()),
                ],
            );
        }
        Ok((gap, Some(ticket)))
    }

    /// The first seq that a reader may be handed: past its age a message is gone before the
    /// floor rises over it (C4).
    pub(crate) fn first_kept(&self, cell: &LiveTopic, now: Timestamp) -> Result<Seq, ReadError> {
        let first = cell.lock().first();
        Ok(self.first_young(cell, now)?.map_or(first, |(young, _)| young.max(first)))
    }

    /// The first seq that is not past its age, and when it was accepted; `None` when none is
    /// past it.
    fn first_young(
        &self,
        cell: &LiveTopic,
        now: Timestamp,
    ) -> Result<Option<(Seq, Timestamp)>, ReadError> {
        let age = {
            let state = cell.lock();
            let aged = |age| {
                let oldest = state.oldest_time;
                oldest != Timestamp::NEVER && !oldest.is_ahead_of(now) && oldest.after(age) <= now
            };
            state.settings.retention.age.filter(|age| aged(*age))
        };
        let Some(age) = age else { return Ok(None) };
        // Accepted after this moment.
        let young = Timestamp(now.before(age).0 + 1);
        let found = self.seq_at_time(cell, young)?;
        Ok(Some(found.unwrap_or_else(|| (cell.lock().next(), Timestamp::NEVER))))
    }

    /// Raises the floor over what is past its age. Only the keeper does so, and those who change
    /// a topic's settings: for readers it is gone already.
    pub(crate) fn enforce_age(
        &self,
        cell: &Arc<LiveTopic>,
        now: Timestamp,
    ) -> Result<(), ReadError> {
        {
            let mut state = cell.lock();
            let oldest = state.oldest_time;
            if oldest != Timestamp::NEVER && oldest.is_ahead_of(now) {
                // A wrong clock stamped it. It is not kept for ever: its age counts from now.
                state.oldest_time = now;
                return Ok(());
            }
        }
        let Some((below, time)) = self.first_young(cell, now)? else { return Ok(()) };
        match self.trim(cell, below, GapReason::Retention, now) {
            Ok(_) => {
                let mut state = cell.lock();
                if state.machine.first() >= below {
                    // If it has become empty meanwhile, the next message brings its time.
                    let empty = below == state.next();
                    state.oldest_time = if empty { Timestamp::NEVER } else { time };
                }
                Ok(())
            }
            Err(TopicError::Read(error)) => Err(error),
            Err(error) => {
                tracing::warn!(topic = cell.name.as_str(), %error, "retention must wait");
                Ok(())
            }
        }
    }

    /// Carries out retention by bytes and by count where it was noted to be due.
    pub(crate) fn enforce_sizes(&self, now: Timestamp) {
        let noted = std::mem::take(&mut *lock(&self.topics.trims));
        for id in noted {
            let Some(cell) = self.topics.by_id(id) else { continue };
            cell.lock().retention_done();
            if let Err(error) = self.enforce_size(&cell, now) {
                tracing::warn!(topic = cell.name.as_str(), %error, "retention must wait");
                lock(&self.topics.trims).push(id);
            }
        }
    }

    /// Carries out retention by bytes and by count.
    pub(crate) fn enforce_size(
        &self,
        cell: &Arc<LiveTopic>,
        now: Timestamp,
    ) -> Result<(), TopicError> {
        let (first, settings) = {
            let state = cell.lock();
            (state.first(), Arc::clone(&state.settings))
        };
        let mut below = first;
        if let Some(bytes_max) = settings.retention.bytes {
            below = below.max(self.floor_by_bytes(cell, first, bytes_max)?);
        }
        if below > cell.lock().machine.first() {
            self.trim(cell, below, GapReason::Retention, now)?;
        }
        Ok(())
    }

    /// The first seq that is kept when retention has done all it is to do.
    pub(crate) fn first_to_stay(&self, cell: &LiveTopic, now: Timestamp) -> Result<Seq, ReadError> {
        let first = self.first_kept(cell, now)?;
        let bytes_max = cell.lock().settings.retention.bytes;
        match bytes_max {
            Some(bytes_max) => Ok(first.max(self.floor_by_bytes(cell, first, bytes_max)?)),
            None => Ok(first),
        }
    }

    /// The seq from which on the topic has at most `bytes_max`; its newest batch stays.
    fn floor_by_bytes(
        &self,
        cell: &LiveTopic,
        first: Seq,
        bytes_max: u64,
    ) -> Result<Seq, ReadError> {
        let (tail, tail_bytes, evictions) = {
            let state = cell.lock();
            let gone = state.batches().take_while(|batch| batch.last() < first);
            let gone: u64 = gone.map(|batch| batch.bytes().len() as u64).sum();
            (state.view().tail, state.tail_bytes() - gone, state.evictions)
        };
        let in_segments = self.bytes_in_segments(cell, first, tail)?;
        let excess = (in_segments + tail_bytes).saturating_sub(bytes_max);
        if excess == 0 {
            return Ok(first);
        }
        if first < tail
            && let Some((seq, _)) = self.journal.find_bytes(cell.id, first, excess)?
            && seq < tail
        {
            return Ok(seq);
        }
        let mut passed = in_segments;
        let state = cell.lock();
        if state.evictions != evictions {
            // What was in memory is in segments now: count again.
            drop(state);
            return self.floor_by_bytes(cell, first, bytes_max);
        }
        let mut floor = first;
        for batch in state.batches().filter(|batch| batch.last() >= first) {
            floor = batch.first().max(first);
            if passed >= excess {
                break;
            }
            passed += batch.bytes().len() as u64;
        }
        Ok(floor)
    }

    /// How many bytes of a topic are in segments and not in memory too.
    pub(crate) fn bytes_in_segments(
        &self,
        cell: &LiveTopic,
        first: Seq,
        tail: Seq,
    ) -> Result<u64, ReadError> {
        if first >= tail {
            return Ok(0);
        }
        let from_first = self.journal.bytes_of(cell.id, first)?;
        Ok(from_first.saturating_sub(self.journal.bytes_of(cell.id, tail)?))
    }
}

fn trimmed(effect: Option<Effect>) -> Option<Gap> {
    match effect {
        Some(Effect::Trimmed(gap)) => Some(gap),
        _ => None,
    }
}
