//! Publishing into memory: volatile topics, which keep a little, and volatile subjects,
//! which need no creation and keep nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gapless_core::entry::{ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES};
use gapless_core::topic::Input;
use gapless_core::{
    Durability, EntryHeader, EntryKind, Expect, GapReason, Position, PublishOptions, Records,
    RejectReason, Seq, TopicId, TopicName, TotalLimit, resolve,
};
use gapless_journal::Lsn;

use crate::broker::Inner;
use crate::cell::{Cell, CellState};
use crate::commit::{key_trouble, loose_batch};
use crate::offer::{Acks, Numbers, offer};
use crate::publish::Publishing;

impl Inner {
    /// Into a topic that was created as volatile.
    pub(crate) fn publish_volatile(
        &self,
        cell: &Arc<Cell>,
        (records, acks): (&Records, Acks),
        options: &PublishOptions,
    ) -> Publishing {
        let key = match options.expect {
            Some(Expect::KeyLast(_)) => records.iter().next().and_then(|record| record.key),
            _ => None,
        };
        let tracked = key.is_some().then(|| self.track_keys(cell)).transpose();
        let mut state = match tracked {
            Ok(state) => state.unwrap_or_else(|| cell.lock()),
            Err(error) => return Publishing::failed(key_trouble(&error)),
        };
        let own = state.settings.max_message_bytes;
        if let Some(reason) = self.too_large(records, own).or(over_batch(records)) {
            drop(state);
            return self.refuse(&cell.name, reason, acks);
        }
        let now = self.clock.now();
        if state.deleted {
            drop(state);
            return self.refuse(&cell.name, RejectReason::UnknownTopic, acks);
        }
        if options.durability > Some(Durability::Memory) {
            drop(state);
            return self.refuse(&cell.name, RejectReason::NotDurable, acks);
        }
        let resolved = resolve(options, &state.settings.defaults(), &self.defaults);
        if resolved.require_subscribers && !self.is_followed(&cell.name) {
            drop(state);
            return self.refuse(&cell.name, RejectReason::NoSubscribers, acks);
        }
        let bytes_max = match self.volatile_room(&state, records) {
            Ok(bytes_max) => bytes_max,
            Err(reason) => {
                drop(state);
                return self.refuse(&cell.name, reason, acks);
            }
        };
        let hash = key.map(|key| self.journal.key_hash(key));
        let newest = hash.and_then(|hash| state.latest_of_key(hash)).map(|(seq, _)| seq);
        let expect = (options.expect, newest.filter(|seq| *seq >= state.first()));
        let numbers = match offer(records, expect, &mut state, now) {
            Ok(numbers) => numbers,
            Err(reason) => {
                drop(state);
                return self.refuse(&cell.name, reason, acks);
            }
        };
        self.metrics.duplicates.increment(u64::from(numbers.known()));
        if numbers.all_known() {
            return Publishing::volatile(numbers, acks);
        }
        let fresh = numbers.only_new(records);
        let records = fresh.as_ref().unwrap_or(records);
        let first = numbers.first;
        let count = records.count;
        state.note_keys(records, first, |key| self.journal.key_hash(key));
        let header = self.volatile_header(cell.id, first, records);
        let batch = loose_batch(header, records);
        state.push(Lsn::NONE, batch.bytes().clone());
        if let Some(below) = state.shrink(bytes_max) {
            let kept = state.batches().next().map(|batch| batch.header().position);
            state.floor_position = kept.unwrap_or(header.position).prev();
            state.step(now, Input::Trim { below, reason: GapReason::Slow });
        }
        let wakers = state.wake_all();
        // Under the lock, so that every mailbox gets them in the order of their seqs.
        self.router.deliver(&cell.name, &batch, &self.limits);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.metrics.published_messages.increment(u64::from(count));
        self.tell_accepted(&cell.name, first, count);
        Publishing::volatile(numbers, acks)
    }

    /// Bytes that a volatile topic keeps, at most.
    fn volatile_topic_max(&self, state: &CellState) -> u64 {
        let own = state.settings.retention.bytes.unwrap_or(u64::MAX);
        own.min(self.limits.volatile_topic_bytes_max)
    }

    /// Bytes that a volatile topic may keep after these are added. When all volatile topics
    /// together have reached their limit, one can only replace what it has.
    fn volatile_room(&self, state: &CellState, records: &Records) -> Result<u64, RejectReason> {
        let (own_max, kept) = (self.volatile_topic_max(state), state.tail_bytes());
        let more = (ENTRY_HEADER_BYTES + records.bytes.len()) as u64;
        let (limit, max) = (TotalLimit::VolatileBytes, self.limits.volatile_bytes_max);
        if self.volatile_bytes.load(Ordering::Relaxed) + more <= max {
            Ok(own_max)
        } else if more <= kept {
            Ok(own_max.min(kept))
        } else {
            Err(RejectReason::LimitReached { limit, max })
        }
    }

    /// To the subscribers that the subject has now.
    pub(crate) fn publish_subject(
        &self,
        subject: &TopicName,
        (records, acks): (&Records, Acks),
        options: &PublishOptions,
    ) -> Publishing {
        if let Some(reason) = self.too_large(records, None).or(over_batch(records)) {
            return self.refuse(subject, reason, acks);
        }
        // Nothing is kept of a subject, so without a subscriber the message would be lost, and the
        // name is most likely misspelt. That is refused, unless the publisher accepts it.
        let wanted = self.router.is_wanted(subject);
        if !wanted && options.require_subscribers != Some(false) {
            let asked = options.require_subscribers.is_some();
            let unknown = RejectReason::UnknownTopic;
            let reason = if asked { RejectReason::NoSubscribers } else { unknown };
            return self.refuse(subject, reason, acks);
        }
        if options.expect.is_some() || options.durability > Some(Durability::Memory) {
            return self.refuse(subject, RejectReason::UnknownTopic, acks);
        }
        let first = if wanted {
            self.route(subject, records)
        } else {
            Seq(self.router.positions(records.count).0)
        };
        self.metrics.published_messages.increment(u64::from(records.count));
        self.tell_accepted(subject, first, records.count);
        Publishing::volatile(Numbers::fresh(first, records.count), acks)
    }

    /// Gives the records numbers and puts them into the mailboxes.
    pub(crate) fn route(&self, subject: &TopicName, records: &Records) -> Seq {
        let mut header = self.volatile_header(TopicId(0), Seq(0), records);
        header.seq = Seq(header.position.0);
        self.router.deliver(subject, &loose_batch(header, records), &self.limits);
        header.seq
    }

    fn volatile_header(&self, topic: TopicId, seq: Seq, records: &Records) -> EntryHeader {
        EntryHeader {
            flags: records.flags,
            topic,
            seq,
            position: self.router.positions(records.count),
            time: self.clock.now(),
            span: records.count,
            count: records.count,
            ttl_min_ms: records.ttl_min_ms,
            ..EntryHeader::new(EntryKind::Batch)
        }
    }
}

/// No batch may be larger than an entry of the journal, even if it never gets there.
fn over_batch(records: &Records) -> Option<RejectReason> {
    let (bytes, max) = (records.bytes.len(), ENTRY_BYTES_MAX - ENTRY_HEADER_BYTES);
    let reason = RejectReason::TooLarge { bytes: bytes as u64, max: max as u64 };
    (bytes > max).then_some(reason)
}

impl Publishing {
    /// The acks of something that lives in memory only.
    fn volatile(numbers: Numbers, acks: Acks) -> Self {
        let mut ready = Self::new();
        numbers.put_acks(acks, Position(0), &mut ready);
        ready
    }
}
