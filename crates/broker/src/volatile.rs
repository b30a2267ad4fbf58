//! Publishing into memory: volatile topics, which keep a little, and volatile subjects,
//! which need no creation and keep nothing.

pub(crate) mod named;
pub(crate) mod report;
pub(crate) mod router;
pub(crate) mod spread;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use gapless_core::entry::{ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES};
use gapless_core::topic::Input;
use gapless_core::{
    Batch, Durability, EntryHeader, EntryKind, Expect, GapReason, Position, PublishOptions,
    Records, RejectReason, Seq, TopicDefaults, TopicId, TopicName, TotalLimit, resolve,
};
use gapless_journal::Lsn;

use crate::broker::Inner;
use crate::publish::Publishing;
use crate::publish::commit::{key_trouble, loose_batch};
use crate::publish::offer::{Acks, Numbers, offer, preview};
use crate::topic::live_topic::{LiveTopic, LiveTopicState};
use crate::volatile::report::{Receipt, Report, Reporting};

/// A publish that was taken, and whether the cluster has a part in its report.
type Reported = (Publishing, bool);

impl Inner {
    /// Into a topic that was created as volatile.
    pub(crate) fn publish_volatile(
        &self,
        cell: &Arc<LiveTopic>,
        (records, acks): (&Records, Acks),
        options: &PublishOptions,
    ) -> Publishing {
        self.reporting((&cell.name, acks), options, |report| {
            self.accept_volatile(cell, (records, acks), options, report)
        })
    }

    /// Publishes, with a report if one is asked for. Nothing was delivered of what is refused.
    fn reporting(
        &self,
        (subject, acks): (&TopicName, Acks),
        options: &PublishOptions,
        publish: impl FnOnce(Option<&Arc<Report>>) -> Result<Reported, RejectReason>,
    ) -> Publishing {
        let report = match options.report.then(|| self.report(subject)).transpose() {
            Ok(report) => report,
            Err(reason) => return self.refuse(subject, reason, acks).of_memory(),
        };
        match publish(report.as_ref()) {
            Ok((mut publishing, awaits_cluster)) => {
                publishing.report = report.map(|report| Reporting::sealed(report, awaits_cluster));
                publishing
            }
            Err(reason) => {
                report.into_iter().for_each(|report| report.refuse());
                self.refuse(subject, reason, acks).of_memory()
            }
        }
    }

    fn accept_volatile(
        &self,
        cell: &Arc<LiveTopic>,
        (records, acks): (&Records, Acks),
        options: &PublishOptions,
        report: Option<&Arc<Report>>,
    ) -> Result<Reported, RejectReason> {
        let key = match options.expect {
            Some(Expect::KeyLast(_)) => records.iter().next().and_then(|record| record.key),
            _ => None,
        };
        let tracked = key.is_some().then(|| self.track_keys(cell)).transpose();
        let mut state = match tracked {
            Ok(state) => state.unwrap_or_else(|| cell.lock()),
            Err(error) => return Ok((Publishing::failed(key_trouble(&error)), false)),
        };
        let own = state.settings.max_message_bytes;
        if let Some(reason) = self.too_large(records, own).or(over_batch(records)) {
            return Err(reason);
        }
        let now = self.clock.now();
        if state.deleted {
            return Err(RejectReason::UnknownTopic);
        }
        if options.durability > Some(Durability::Memory) {
            return Err(RejectReason::NotDurable);
        }
        let defaults = state.settings.defaults();
        let beyond = self.beyond(&cell.name).is_some();
        let requires = resolve(options, &defaults, &self.defaults).require_subscribers;
        let lonely = requires && !self.is_followed(&cell.name);
        if lonely && !beyond {
            return Err(RejectReason::NoSubscribers);
        }
        let bytes_max = self.volatile_room(&state, records)?;
        let hash = key.map(|key| self.journal.key_hash(key));
        let newest = hash.and_then(|hash| state.latest_of_key(hash)).map(|(seq, _)| seq);
        let expect = (options.expect, newest.filter(|seq| *seq >= state.first()));
        let mut admitted = None;
        // What this topic refuses or knows already must not reach other nodes.
        if beyond && let Some(numbers) = preview(records, expect, &state, now) {
            let fresh = numbers.only_new(records);
            let offered = (&cell.name, fresh.as_ref().unwrap_or(records));
            admitted = self.admit(offered, options, &defaults, report)?;
        }
        if lonely && admitted.is_none_or(|admitted| admitted.targets() == 0) {
            return Err(RejectReason::NoSubscribers);
        }
        let numbers = offer(records, expect, &mut state, now)?;
        self.metrics.duplicates.increment(u64::from(numbers.known()));
        if numbers.all_known() {
            return Ok((Publishing::volatile(numbers, acks), false));
        }
        let fresh = numbers.only_new(records);
        let records = fresh.as_ref().unwrap_or(records);
        let (first, count) = (numbers.first, records.count);
        let incoming = (records, Duration::ZERO);
        self.keep_volatile(cell, state, (incoming, first), bytes_max, report);
        self.metrics.published_messages.increment(u64::from(count));
        self.flow.add_in(count, records.bytes.len());
        self.tell_accepted(&cell.name, first, count);
        Ok((Publishing::volatile(numbers, acks), admitted.is_some()))
    }

    /// Puts numbered records into a volatile topic and to all who follow it.
    fn keep_volatile(
        &self,
        cell: &LiveTopic,
        mut state: MutexGuard<'_, LiveTopicState>,
        ((records, age), first): ((&Records, Duration), Seq),
        bytes_max: u64,
        report: Option<&Arc<Report>>,
    ) {
        state.note_keys(records, first, |key| self.journal.key_hash(key));
        let header = self.volatile_header(cell.id, first, records, age);
        let batch = loose_batch(header, records);
        state.push(Lsn::NONE, batch.bytes().clone());
        if let Some(below) = state.shrink(bytes_max) {
            let kept = state.batches().next().map(|batch| batch.header().position);
            state.floor_position = kept.unwrap_or(header.position).prev();
            state.step(self.clock.now(), Input::Trim { below, reason: GapReason::Slow });
        }
        if let Some(report) = report {
            self.report_followers(report, &cell.name, header.last_seq());
        }
        let wakers = state.wake_all();
        // Under the lock, so that every mailbox gets them in the order of their seqs.
        let dropped = self.router.deliver(&cell.name, &batch, report, &self.limits);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        dropped.into_iter().for_each(Receipt::overflowed);
    }

    /// Delivers what came from another node to those who follow it here.
    pub(crate) fn route_incoming(
        &self,
        subject: &TopicName,
        (records, age): (&Records, Duration),
        report: Option<&Arc<Report>>,
    ) {
        let volatile = self.topics.find(subject).filter(|cell| !cell.lock().is_durable());
        let Some(cell) = volatile else {
            self.route(subject, (records, age), report);
            return;
        };
        let mut state = cell.lock();
        if state.deleted {
            drop(state);
            self.route(subject, (records, age), report);
            return;
        }
        // Without room for more, it takes the place of what the topic has.
        let bytes_max = self.volatile_room(&state, records).unwrap_or(state.tail_bytes());
        // Without an expectation nothing is refused.
        let Ok(numbers) = offer(records, (None, None), &mut state, self.clock.now()) else {
            return;
        };
        if numbers.all_known() {
            return;
        }
        let fresh = numbers.only_new(records);
        let records = fresh.as_ref().unwrap_or(records);
        self.keep_volatile(&cell, state, ((records, age), numbers.first), bytes_max, report);
    }

    /// Bytes that a volatile topic keeps, at most.
    fn volatile_topic_max(&self, state: &LiveTopicState) -> u64 {
        let own = state.settings.retention.bytes.unwrap_or(u64::MAX);
        own.min(self.limits.volatile_topic_bytes_max)
    }

    /// Bytes that a volatile topic may keep after these are added. When all volatile topics
    /// together have reached their limit, one can only replace what it has.
    fn volatile_room(
        &self,
        state: &LiveTopicState,
        records: &Records,
    ) -> Result<u64, RejectReason> {
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
        self.reporting((subject, acks), options, |report| {
            self.accept_subject(subject, (records, acks), options, report)
        })
    }

    fn accept_subject(
        &self,
        subject: &TopicName,
        (records, acks): (&Records, Acks),
        options: &PublishOptions,
        report: Option<&Arc<Report>>,
    ) -> Result<Reported, RejectReason> {
        if let Some(reason) = self.too_large(records, None).or(over_batch(records)) {
            return Err(reason);
        }
        // Nothing is kept of a subject, so without a subscriber the message would be lost, and the
        // name is most likely misspelt. That is refused, unless the publisher accepts it.
        let wanted = self.router.is_wanted(subject);
        let lonely = !wanted && options.require_subscribers != Some(false);
        let asked = options.require_subscribers.is_some();
        let alone = if asked { RejectReason::NoSubscribers } else { RejectReason::UnknownTopic };
        if lonely && self.beyond(subject).is_none() {
            return Err(alone);
        }
        if options.expect.is_some() || options.durability > Some(Durability::Memory) {
            return Err(RejectReason::UnknownTopic);
        }
        let none = TopicDefaults::default();
        let admitted = self.admit((subject, records), options, &none, report)?;
        if lonely && admitted.is_none_or(|admitted| admitted.targets() == 0) {
            return Err(alone);
        }
        let first = if wanted {
            self.route(subject, (records, Duration::ZERO), report)
        } else {
            Seq(self.router.positions(records.count).0)
        };
        self.metrics.published_messages.increment(u64::from(records.count));
        self.flow.add_in(records.count, records.bytes.len());
        self.tell_accepted(subject, first, records.count);
        let numbers = Numbers::fresh(first, records.count);
        Ok((Publishing::volatile(numbers, acks), admitted.is_some()))
    }

    /// Gives the records numbers and puts them into the mailboxes.
    pub(crate) fn route(
        &self,
        subject: &TopicName,
        (records, age): (&Records, Duration),
        report: Option<&Arc<Report>>,
    ) -> Seq {
        let batch = self.volatile_batch(records, age);
        let dropped = self.router.deliver(subject, &batch, report, &self.limits);
        dropped.into_iter().for_each(Receipt::overflowed);
        batch.header().seq
    }

    /// Records of a subject, numbered by their positions.
    pub(crate) fn volatile_batch(&self, records: &Records, age: Duration) -> Batch {
        let mut header = self.volatile_header(TopicId(0), Seq(0), records, age);
        header.seq = Seq(header.position.0);
        loose_batch(header, records)
    }

    fn volatile_header(
        &self,
        topic: TopicId,
        seq: Seq,
        records: &Records,
        age: Duration,
    ) -> EntryHeader {
        EntryHeader {
            flags: records.flags,
            topic,
            seq,
            position: self.router.positions(records.count),
            time: self.clock.now().before(age),
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
    fn of_memory(self) -> Self {
        Self { volatile: true, ..self }
    }

    /// The acks of something that lives in memory only.
    fn volatile(numbers: Numbers, acks: Acks) -> Self {
        let mut ready = Self::new();
        numbers.put_acks(acks, Position(0), &mut ready);
        ready
    }
}
