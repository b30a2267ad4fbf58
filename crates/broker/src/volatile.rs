//! Publishing into memory: volatile topics, which keep a little, and volatile subjects,
//! which need no creation and keep nothing.

use std::sync::Arc;

use gapless_core::topic::{Effect, Input};
use gapless_core::{
    Accepted, Durability, EntryHeader, EntryKind, GapReason, PublishAck, PublishOptions, Records,
    RejectReason, Seq, TopicId, TopicName, resolve,
};
use gapless_journal::Lsn;

use crate::broker::Inner;
use crate::cell::Cell;
use crate::publish::{Publishing, ids_of, loose_batch};

impl Inner {
    /// Into a topic that was made to be volatile.
    pub(crate) fn publish_volatile(
        &self,
        cell: &Arc<Cell>,
        records: &Records,
        options: &PublishOptions,
    ) -> Publishing {
        if let Some(reason) = self.too_large(records) {
            return self.reject(&cell.name, reason);
        }
        let now = self.clock.now();
        let mut state = cell.lock();
        if state.deleted {
            drop(state);
            return self.reject(&cell.name, RejectReason::UnknownTopic);
        }
        let resolved = resolve(options, &state.settings.defaults(), &self.defaults);
        if resolved.require_subscribers && !self.is_followed(&cell.name) {
            drop(state);
            return self.reject(&cell.name, RejectReason::NoSubscribers);
        }
        let ids = ids_of(records);
        let mut effects = Vec::new();
        let count = records.count;
        let input = Input::Offer { count, ids: &ids, expect: options.expect, key_last: None };
        state.machine.step(now, input, &mut effects);
        let first = match effects[..] {
            [Effect::Accepted { first, .. }] => first,
            [Effect::Rejected(reason)] => {
                drop(state);
                return self.reject(&cell.name, reason);
            }
            // Duplicates in memory only: all of it is answered with the first one's seq.
            _ => {
                let known = effects.iter().find_map(|effect| match effect {
                    Effect::Duplicate { seq, .. } => Some(*seq),
                    _ => None,
                });
                return Publishing::accepted(known.unwrap_or_default(), 1, true);
            }
        };
        let header = self.volatile_header(cell.id, first, records);
        let batch = loose_batch(header, records);
        state.push(Lsn::NONE, batch.bytes().clone());
        let own = state.settings.retention.bytes.unwrap_or(u64::MAX);
        let max = own.min(self.limits.volatile_topic_bytes_max);
        if let Some(below) = state.shrink(max) {
            state.step(now, Input::Trim { below, reason: GapReason::Slow });
        }
        let wakers = state.wake_all();
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.router.deliver(&cell.name, &batch, &self.limits);
        self.metrics.published_messages.increment(u64::from(count));
        Publishing::accepted(first, count, false)
    }

    /// To whoever wants the subject now.
    pub(crate) fn publish_subject(
        &self,
        subject: &TopicName,
        records: &Records,
        options: &PublishOptions,
    ) -> Publishing {
        if subject.is_system() {
            return self.reject(subject, RejectReason::InvalidTopic);
        }
        if let Some(reason) = self.too_large(records) {
            return self.reject(subject, reason);
        }
        // Nothing is kept of a subject, so without a subscriber the message would be lost:
        // that is an answer worth giving, unless the publisher says it does not care.
        if options.require_subscribers.unwrap_or(true) && !self.router.is_wanted(subject) {
            return self.reject(subject, RejectReason::NoSubscribers);
        }
        if options.expect.is_some() || options.durability > Some(Durability::Memory) {
            return self.reject(subject, RejectReason::UnknownTopic);
        }
        let first = self.route(subject, records);
        self.metrics.published_messages.increment(u64::from(records.count));
        Publishing::accepted(first, records.count, false)
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

    fn too_large(&self, records: &Records) -> Option<RejectReason> {
        let (bytes, max) = (records.bytes.len() as u64, self.limits.message_bytes_max as u64);
        (bytes > max).then_some(RejectReason::TooLarge { bytes, max })
    }
}

impl Publishing {
    /// The ack of something that lives in memory only.
    pub(crate) fn accepted(first: Seq, count: u32, duplicate: bool) -> Self {
        Self::ready(PublishAck::Accepted(Accepted {
            first,
            last: first.plus(u64::from(count.max(1) - 1)),
            position: gapless_core::Position(0),
            durability: Durability::Memory,
            duplicate,
        }))
    }
}

