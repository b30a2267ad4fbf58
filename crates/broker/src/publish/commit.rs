//! The one way into the journal for messages: several topics, cells and the end of a delayed
//! message in one place of a frame, all of it or nothing.
//!
//! Locks are taken in one order: topics by their numbers, then the topic of delayed messages,
//! then the frame. Everything that may refuse does so before anything is put.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use bytes::Bytes;
use gapless_core::batch::put_varint;
use gapless_core::entry::ENTRY_HEADER_BYTES;
use gapless_core::group::Input as GroupInput;
use gapless_core::{
    Accepted, Batch, Durability, Entry, EntryHeader, EntryKind, Expect, ExpectCell, Position,
    PubSubError, PublishAck, PublishOptions, Records, RejectReason, Resolved, Seq, Timestamp,
    TopicId, TopicName, TotalLimit, resolve,
};
use gapless_journal::{Append, ReadError, Sink, checksum};
use smallvec::SmallVec;

use crate::broker::Inner;
use crate::error::refused;
use crate::group::GroupState;
use crate::publish::delayed::{NOT_WAITING, due_of};
use crate::publish::offer::{Acks, Numbers, offer};
use crate::publish::{Atomic, GroupPart, Publishing, Timing};
use crate::topic::live_topic::{LiveTopic, LiveTopicState};

/// One publish in this many is timed for `gapless_ack_seconds`: reading the clock for each
/// would cost more than it is worth.
const TIMED_ONE_IN: u64 = 16;

/// A part of a publish whose topic is found.
pub(crate) struct Prepared {
    cell: Arc<LiveTopic>,
    sink: Arc<dyn Sink>,
    records: Records,
    crc: u32,
    expect: Option<Expect>,
    acks: Acks,
    /// The key for an expectation about one, and what segments know of it.
    key: Option<(u128, Option<Seq>, u32)>,
}

impl Prepared {
    pub(crate) fn new(cell: Arc<LiveTopic>, records: Records, expect: Option<Expect>) -> Self {
        let crc = checksum(&records.bytes);
        let sink: Arc<dyn Sink> = Arc::clone(&cell) as _;
        Self { cell, sink, records, crc, expect, acks: Acks::Together, key: None }
    }

    pub(crate) fn acked(self, acks: Acks) -> Self {
        Self { acks, ..self }
    }
}

impl Inner {
    pub(crate) fn reject(&self, topic: &TopicName, reason: RejectReason) -> Publishing {
        self.metrics.rejected(&reason);
        self.emit(
            "publish.rejected",
            &[("topic", topic.as_str().into()), ("reason", reason.name().into())],
        );
        Publishing::rejected(reason)
    }

    /// As [`Inner::reject`]; but those that were gathered are published again one by one, and
    /// only what is refused then is counted.
    pub(crate) fn refuse(&self, topic: &TopicName, reason: RejectReason, acks: Acks) -> Publishing {
        match acks {
            Acks::Together => self.reject(topic, reason),
            Acks::Each => Publishing::rejected(reason),
        }
    }

    pub(crate) fn commit_atomic(&self, mut atomic: Atomic, options: &PublishOptions) -> Publishing {
        if !options.is_in_force() || options.report {
            let name = atomic.parts.first().map_or_else(cells_name, |part| part.topic.clone());
            return self.reject(&name, RejectReason::NotSupported);
        }
        let mut parts = Vec::with_capacity(atomic.parts.len());
        for part in std::mem::take(&mut atomic.parts) {
            let records = match part.messages {
                Ok(records) => records,
                Err(reason) => return self.reject(&part.topic, reason),
            };
            if part.topic.is_system() && !atomic.system {
                return self.reject(&part.topic, RejectReason::InvalidTopic);
            }
            let Some(cell) = self.topics.find(&part.topic) else {
                return self.reject(&part.topic, RejectReason::UnknownTopic);
            };
            if !cell.lock().is_durable() {
                return self.reject(&part.topic, RejectReason::NotDurable);
            }
            parts.push(Prepared::new(cell, records, part.expect));
        }
        // A topic is locked once, so parts of one topic must be put together by the caller;
        // topics are locked in the order of their numbers, so that two commits never wait
        // for each other.
        let mut ids: Vec<_> = parts.iter().map(|part| part.cell.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            let name = parts[0].cell.name.clone();
            return self.reject(&name, RejectReason::InvalidPayload);
        }
        if let Some(reason) = self.check_cells(&atomic) {
            return self.reject(&cells_name(), reason);
        }
        self.commit(&mut parts, &atomic, options)
    }

    fn check_cells(&self, atomic: &Atomic) -> Option<RejectReason> {
        let max = self.limits.cell_bytes_max;
        let cells = &atomic.cells;
        for (name, value) in cells {
            let conditional = atomic
                .expected
                .iter()
                .any(|(known, expect)| known == name && *expect != ExpectCell::Anything);
            // What a part of the system keeps under such a name is never overwritten unseen.
            if name.starts_with(SYSTEM_CELLS) && !conditional && !atomic.system {
                return Some(RejectReason::NotAuthorised);
            }
            let bytes = value.as_ref().map_or(0, Bytes::len).max(name.len());
            if bytes > max {
                return Some(RejectReason::TooLarge { bytes: bytes as u64, max: max as u64 });
            }
            if name.is_empty() {
                return Some(RejectReason::InvalidPayload);
            }
        }
        if cells.iter().all(|(_, value)| value.is_none()) {
            return None;
        }
        let (count, bytes) = self.cells_after(cells);
        let (count_max, bytes_max) = (self.limits.cells_max, self.limits.cells_bytes_max);
        let reached = |limit, max| Some(RejectReason::LimitReached { limit, max });
        match () {
            () if count > count_max => reached(TotalLimit::Cells, count_max as u64),
            () if bytes > bytes_max => reached(TotalLimit::CellBytes, bytes_max),
            () => None,
        }
    }

    /// The one way into the journal for messages.
    pub(crate) fn commit(
        &self,
        parts: &mut [Prepared],
        atomic: &Atomic,
        options: &PublishOptions,
    ) -> Publishing {
        for part in &mut *parts {
            if let Err(error) = self.look_up_key(part) {
                return Publishing::failed(error);
            }
        }
        let count = self.published.fetch_add(1, Ordering::Relaxed);
        let began = count.is_multiple_of(TIMED_ONE_IN).then(|| self.clock.monotonic());
        let mut publishing = loop {
            match self.try_commit(parts, atomic, options) {
                Tried::Done(publishing) => break publishing,
                Tried::KeyMoved(at) => {
                    if let Err(error) = self.look_up_key(&mut parts[at]) {
                        return Publishing::failed(error);
                    }
                }
            }
        };
        if self.journal.wants_keeping() {
            self.keeper.wake();
        }
        publishing.timing = began.map(|began| Timing {
            clock: Arc::clone(&self.clock),
            seconds: self.metrics.ack_seconds.clone(),
            began,
        });
        publishing
    }

    /// For an expectation about a key: what segments know of it, looked up without a lock.
    fn look_up_key(&self, part: &mut Prepared) -> Result<(), PubSubError> {
        if !matches!(part.expect, Some(Expect::KeyLast(_))) {
            return Ok(());
        }
        let Some(key) = part.records.iter().next().and_then(|record| record.key) else {
            return Ok(());
        };
        let hash = self.journal.key_hash(key);
        let trouble = |error: ReadError| key_trouble(&error);
        let evictions = self.track_keys(&part.cell).map_err(trouble)?.evictions;
        let found = self.journal.latest_of_key(part.cell.id, hash).map_err(trouble)?;
        part.key = Some((hash, found.map(|(seq, _)| seq), evictions));
        Ok(())
    }

    /// Waits until what was accepted may be seen, unless the disk refuses it.
    pub(crate) fn settle(&self) -> Result<(), ReadError> {
        self.journal.flush();
        if self.journal.is_blocked() { Err(ReadError::Full) } else { Ok(()) }
    }

    fn try_commit(
        &self,
        parts: &mut [Prepared],
        atomic: &Atomic,
        options: &PublishOptions,
    ) -> Tried {
        // Groups before topics, always, and each once.
        let mut groups = match lock_groups(atomic) {
            Some(groups) => groups,
            None => return Tried::Done(self.reject(&cells_name(), RejectReason::LeaseLost)),
        };
        let mut order: SmallVec<[usize; 1]> = (0..parts.len()).collect();
        order.sort_unstable_by_key(|&at| parts[at].cell.id);
        let mut states: SmallVec<[Option<MutexGuard<'_, LiveTopicState>>; 1]> = SmallVec::new();
        states.resize_with(parts.len(), || None);
        let mut wanted = Durability::Memory;
        let mut required = Durability::Memory;
        for &at in &order {
            let state = parts[at].cell.lock();
            let part = &parts[at];
            match self.check_part(part, &state, options) {
                Ok(resolved) => {
                    wanted = wanted.max(resolved.durability);
                    let own = state.settings.defaults().durability;
                    required = required.max(own.unwrap_or(self.defaults.durability));
                }
                Err(Refused::Reason(reason)) => {
                    drop(state);
                    drop(states);
                    return Tried::Done(self.refuse(&part.cell.name, reason, part.acks));
                }
                Err(Refused::KeyMoved) => return Tried::KeyMoved(at),
            }
            states[at] = Some(state);
        }
        // After the topics, always: only the timers lock both, and in this order.
        let mut delay_state = atomic.delay_done.as_ref().map(|(cell, _, _)| cell.lock());
        if let (Some((_, seq, _)), Some(state)) = (&atomic.delay_done, &delay_state)
            && !state.delayed().is_some_and(|waiting| waiting.contains(*seq))
        {
            // It was published or cancelled meanwhile.
            return Tried::Done(Publishing::rejected(NOT_WAITING));
        }
        if parts.is_empty() {
            wanted = options.durability.unwrap_or(self.defaults.durability);
            required = wanted;
        }
        // An ack in a step is as safe as one by itself.
        wanted = wanted.max(groups.durability);
        let bytes = room_for(parts, atomic) + groups.bytes;
        let append = if !parts.is_empty() {
            self.journal.begin(bytes)
        } else if atomic.only_frees_room() {
            self.journal.begin_freeing(bytes)
        } else {
            self.journal.begin_note(bytes)
        };
        let mut append = match append {
            Ok(append) => append,
            Err(error) => {
                drop(states);
                return Tried::Done(match refused(error) {
                    Ok(reason) => match parts.first() {
                        Some(part) => self.refuse(&part.cell.name, reason, part.acks),
                        None => self.reject(&cells_name(), reason),
                    },
                    Err(error) => Publishing::failed(error),
                });
            }
        };
        // Cells change only here, with the frame's lock held: so what is seen now holds until
        // this step has changed it.
        if !self.cells_are(&atomic.expected) {
            drop((append, states));
            return Tried::Done(self.reject(&cells_name(), RejectReason::ExpectedCell));
        }
        let time = append.time(self.clock.now());
        let mut machines = Vec::new();
        let several = parts.len() > 1;
        let mut offers: SmallVec<[Numbers; 1]> = SmallVec::with_capacity(parts.len());
        for (part, state) in parts.iter().zip(&mut states) {
            let state = state.as_mut().expect("every part's topic was locked above");
            if several {
                // A later part may be refused; then the earlier ones must not have happened.
                machines.push(state.machine.clone());
            }
            let key_last = part.key.map(|(hash, in_segments, _)| {
                let newest = state.latest_of_key(hash).map(|(seq, _)| seq).or(in_segments);
                // What is gone does not count, whether or not the collector came to it.
                newest.filter(|seq| *seq >= state.first()).unwrap_or_default()
            });
            let numbers = match offer(&part.records, (part.expect, key_last), state, time) {
                Ok(numbers) => numbers,
                Err(reason) => {
                    for (state, machine) in states.iter_mut().zip(machines) {
                        state.as_mut().expect("every part's topic was locked above").machine =
                            machine;
                    }
                    drop(append);
                    drop(states);
                    return Tried::Done(self.refuse(&part.cell.name, reason, part.acks));
                }
            };
            offers.push(numbers);
        }
        let mut publishing = Publishing::new();
        for ((part, state), numbers) in parts.iter().zip(&mut states).zip(offers) {
            let state = state.as_mut().expect("every part's topic was locked above");
            let position = self.put_part(part, state, &numbers, (&mut append, time));
            numbers.put_acks(part.acks, position, &mut publishing);
        }
        self.put_cells(atomic, &mut append, time);
        if let (Some((cell, seq, cancelled)), Some(state)) = (&atomic.delay_done, &mut delay_state)
        {
            let header = EntryHeader {
                time,
                topic: cell.id,
                seq: *seq,
                flags: u16::from(*cancelled),
                ..EntryHeader::new(EntryKind::DelayDone)
            };
            state.as_of = append.entry(header, &[]);
            if let Some(delayed) = state.delayed_mut() {
                delayed.remove(*seq);
            }
        }
        self.put_groups(atomic, &mut groups, &mut append);
        let ticket = append.finish(required, wanted);
        drop((states, delay_state, groups));
        if publishing.acks.is_empty() {
            // Only cells: there is no seq to report.
            publishing.acks.push(PublishAck::Accepted(Accepted {
                first: Seq(0),
                last: Seq(0),
                position: Position(0),
                durability: wanted,
                duplicate: false,
            }));
        }
        publishing.ticket = (wanted > Durability::Memory).then_some(ticket);
        Tried::Done(publishing)
    }

    /// Puts what is new of a part into the frame; returns the position of the first message.
    fn put_part(
        &self,
        part: &Prepared,
        state: &mut LiveTopicState,
        numbers: &Numbers,
        (append, time): (&mut Append<'_>, Timestamp),
    ) -> Position {
        self.metrics.duplicates.increment(u64::from(numbers.known()));
        if numbers.all_known() {
            return Position(0);
        }
        let fresh = numbers.only_new(&part.records);
        let (records, crc) = match &fresh {
            None => (&part.records, part.crc),
            Some(fresh) => (fresh, checksum(&fresh.bytes)),
        };
        let first = numbers.first;
        let place = (part.cell.id, first);
        let position = append.batch(place, time, (records, crc), &part.sink);
        state.as_of = position.plus(u64::from(records.count - 1));
        state.note_keys(records, first, |key| self.journal.key_hash(key));
        if let Some(delayed) = state.delayed_mut() {
            let seq = |record: &gapless_core::Record<'_>| first.plus(u64::from(record.offset));
            delayed.note(records.iter().map(|each| (seq(&each), due_of(each.headers))));
        }
        self.metrics.published_messages.increment(u64::from(records.count));
        self.metrics.published_bytes.increment(records.bytes.len() as u64);
        self.flow.add_in(records.count, records.bytes.len());
        self.tell_accepted(&part.cell.name, first, records.count);
        position
    }

    /// Publishes the event that messages were accepted, if it has subscribers.
    pub(crate) fn tell_accepted(&self, topic: &TopicName, first: Seq, count: u32) {
        if self.router.has_event_followers() {
            let last = first.plus(u64::from(count - 1));
            let fields = [
                ("topic", topic.as_str().into()),
                ("first", first.0.into()),
                ("last", last.0.into()),
            ];
            self.emit("publish.accepted", &fields);
        }
    }

    /// Puts what happens to groups into the frame.
    fn put_groups(&self, atomic: &Atomic, groups: &mut LockedGroups<'_>, append: &mut Append<'_>) {
        for (group, part) in &atomic.groups {
            let at = groups.states.iter_mut().find(|(id, _)| *id == group.id);
            let (_, state) = at.expect("every group of the step was locked before");
            match part {
                GroupPart::Ack { member, leases } => {
                    let input = GroupInput::Ack { member: *member, leases };
                    let stepped = self.group_put(group, state, input, append);
                    self.count_said(state, *member, (true, stepped.taken));
                    if let Some(traces) = self.traces.get() {
                        traces.said(group.id, *member, leases, ("acked", false));
                    }
                }
                GroupPart::Buried(ranges) => {
                    for (first, last) in ranges {
                        let input = GroupInput::Buried { first: *first, last: *last };
                        self.group_put(group, state, input, append);
                    }
                }
                GroupPart::LettersEnded(ranges) => {
                    for (first, last) in ranges {
                        let input = GroupInput::EndLetters { first: *first, last: *last };
                        self.group_put(group, state, input, append);
                    }
                }
            }
        }
    }

    /// Puts cells into the frame.
    fn put_cells(&self, atomic: &Atomic, append: &mut Append<'_>, time: Timestamp) {
        for (name, value) in &atomic.cells {
            let mut body = Vec::with_capacity(name.len() + 8);
            put_varint(&mut body, name.len() as u64);
            body.extend_from_slice(name);
            body.extend_from_slice(value.as_deref().unwrap_or_default());
            let flags = u16::from(value.is_none());
            let header = EntryHeader { time, flags, ..EntryHeader::new(EntryKind::Cell) };
            let position = append.entry(header, &body);
            self.set_cell(name, value.as_ref(), position);
        }
    }

    /// What can be said before the journal is asked for a place.
    fn check_part(
        &self,
        part: &Prepared,
        state: &LiveTopicState,
        options: &PublishOptions,
    ) -> Result<Resolved, Refused> {
        if state.deleted {
            return Err(Refused::Reason(RejectReason::UnknownTopic));
        }
        if let Some(reason) = self.too_large(&part.records, state.settings.max_message_bytes) {
            return Err(Refused::Reason(reason));
        }
        if let Some((_, _, evictions)) = part.key
            && evictions != state.evictions
        {
            return Err(Refused::KeyMoved);
        }
        let resolved = resolve(options, &state.settings.defaults(), &self.defaults);
        if resolved.require_subscribers && !self.is_followed(&part.cell.name) {
            return Err(Refused::Reason(RejectReason::NoSubscribers));
        }
        Ok(resolved)
    }

    /// Whether one of the records is over the limit of the broker or of its topic.
    pub(crate) fn too_large(&self, records: &Records, own: Option<u32>) -> Option<RejectReason> {
        let own = own.map_or(usize::MAX, |max| max as usize);
        let max = self.limits.message_bytes_max.min(own);
        // Only when the whole is over the limit can one of it be.
        if records.bytes.len() <= max {
            return None;
        }
        let size = |record: gapless_core::Record<'_>| -> usize {
            let parts = [record.key, record.body, Some(record.headers)];
            parts.into_iter().flatten().map(<[u8]>::len).sum()
        };
        let bytes = records.iter().map(size).find(|bytes| *bytes > max)?;
        Some(RejectReason::TooLarge { bytes: bytes as u64, max: max as u64 })
    }
}

/// The groups of a step, locked, how many bytes they will write at most, and how durable the
/// acks must be.
struct LockedGroups<'a> {
    states: Vec<(TopicId, MutexGuard<'a, GroupState>)>,
    bytes: usize,
    durability: Durability,
}

/// Locks the groups of a step in the order of their numbers; `None` if what is to happen to
/// one of them cannot any more.
fn lock_groups(atomic: &Atomic) -> Option<LockedGroups<'_>> {
    let mut order: Vec<_> = atomic.groups.iter().map(|(group, _)| group).collect();
    order.sort_unstable_by_key(|group| group.id);
    order.dedup_by_key(|group| group.id);
    let states: Vec<_> = order.into_iter().map(|group| (group.id, group.lock())).collect();
    let (mut bytes, mut durability) = (0, Durability::Memory);
    for (group, part) in &atomic.groups {
        let at = states.iter().find(|(id, _)| *id == group.id);
        let (_, state) = at.expect("every group of the step was just locked");
        let machine = &state.machine;
        let (possible, more) = match part {
            GroupPart::Ack { member, leases } => {
                durability = durability.max(machine.settings().durability);
                let unread = state.has_unread(*member, leases);
                (!unread && machine.holds(*member, leases), machine.record_bytes_max(leases))
            }
            GroupPart::Buried(ranges) => {
                (ranges.iter().all(|(first, last)| machine.is_dying(*first, *last)), 0)
            }
            GroupPart::LettersEnded(ranges) => {
                let ended = |(first, last): &(Seq, Seq)| {
                    let next = machine.letters_ended().next_from(first.0);
                    next.is_some_and(|(from, _)| from <= last.0)
                };
                (!ranges.iter().any(ended), 0)
            }
        };
        if !possible || state.deleted {
            return None;
        }
        let entries = match part {
            GroupPart::Ack { .. } => 1,
            GroupPart::Buried(ranges) => ranges.len(),
            GroupPart::LettersEnded(ranges) => ranges.len(),
        };
        bytes += more + entries * (ENTRY_HEADER_BYTES + SMALL_CHANGE_BYTES);
    }
    Some(LockedGroups { states, bytes, durability })
}

/// How the names of cells begin that parts of the system keep: they are written only on
/// condition of what they were, or by a subsystem.
const SYSTEM_CELLS: &[u8] = b"$";

/// The longest change of a group that records one range.
const SMALL_CHANGE_BYTES: usize = 64;

/// What stands for the topic when only cells were to be written.
fn cells_name() -> TopicName {
    TopicName::parse("$cells").expect("the name is well formed")
}

/// The error for a publisher when the last seq of a key cannot be found out.
pub(crate) fn key_trouble(error: &ReadError) -> PubSubError {
    match error {
        ReadError::Full => PubSubError::StorageFull,
        other => PubSubError::Internal(other.to_string()),
    }
}

enum Tried {
    Done(Publishing),
    /// What was looked up about this part's key may be out of date.
    KeyMoved(usize),
}

enum Refused {
    Reason(RejectReason),
    KeyMoved,
}

fn room_for(parts: &[Prepared], atomic: &Atomic) -> usize {
    let batches: usize = parts.iter().map(|part| part.records.bytes.len()).sum();
    let cell = |(name, value): &(Bytes, Option<Bytes>)| {
        name.len() + value.as_ref().map_or(0, Bytes::len) + 10
    };
    let cells: usize = atomic.cells.iter().map(cell).sum();
    let entries = parts.len() + atomic.cells.len() + 1;
    batches + cells + entries * ENTRY_HEADER_BYTES
}

/// A batch that is in no journal.
pub(crate) fn loose_batch(header: EntryHeader, records: &Records) -> Batch {
    let mut bytes = Vec::with_capacity(ENTRY_HEADER_BYTES + records.bytes.len());
    header.put(&mut bytes, &records.bytes, checksum(&records.bytes), checksum);
    let entry = Entry { header, bytes: bytes.into() };
    Batch::new(entry).expect("the header says that it is a batch")
}
