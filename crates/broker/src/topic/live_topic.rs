//! A topic as the broker holds it: its machine, its newest batches, and the wakers of its readers.
//!
//! One short lock around plain code; nothing is awaited under it. The tail holds only what has
//! settled, so everything in it may be delivered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use gapless_core::topic::{Effect, Input};
use gapless_core::{
    Batch, Entry, EntryHeader, GapReason, Kept, Position, Seq, Storage, Timestamp, Topic, TopicId,
    TopicName, TopicSettings, View,
};
use gapless_journal::{Lsn, Sink};

use crate::checked::after_topic_step;
use crate::publish::delayed::Waiting;
use crate::topic::keys::Keys;
use crate::topic::slices::{Slice, Slices};

/// Locks a mutex whose data is whole even if a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One topic.
pub(crate) struct LiveTopic {
    pub(crate) id: TopicId,
    pub(crate) name: TopicName,
    pub(crate) state: Mutex<LiveTopicState>,
    /// Messages handed to subscribers and members of groups since the store was opened.
    pub(crate) messages_out: AtomicU64,
    /// Where to leave a note when retention has work here.
    pub(crate) trims: Arc<Mutex<Vec<TopicId>>>,
}

pub(crate) struct LiveTopicState {
    pub(crate) machine: Topic,
    pub(crate) settings: Arc<TopicSettings>,
    /// The position of the last entry that changed this state.
    pub(crate) as_of: Position,
    /// The position of the last message that is gone.
    pub(crate) floor_position: Position,
    /// The floor as far as it is flushed: only what lies below it may be deleted.
    pub(crate) flushed_floor: Seq,
    /// No message that may be seen lies beyond this position, none that may not before it.
    pub(crate) visible: Position,
    /// When the oldest kept message was accepted; only ever too early.
    pub(crate) oldest_time: Timestamp,
    tail: Slices,
    tail_bytes: TailBytes,
    /// Bytes that ever came into the tail.
    pub(crate) bytes_in: u64,
    rare: Option<Box<Rare>>,
    /// Counts evictions, and wraps around: a look-up in segments, made without the lock, compares
    /// it to notice that the tail has moved meanwhile.
    pub(crate) evictions: u32,
    trim_noted: bool,
    /// Its deletion is written down: nothing is published to it any more.
    pub(crate) deleted: bool,
    /// Its deletion is flushed: nothing of it is handed out any more.
    pub(crate) gone: bool,
}

/// How many bytes of a topic are in memory, counted in a total if there is one.
#[derive(Debug, Default)]
struct TailBytes {
    bytes: u64,
    total: Option<Arc<AtomicU64>>,
}

impl TailBytes {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(total) = &self.total {
            total.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    fn remove(&mut self, bytes: usize) {
        self.bytes -= bytes as u64;
        if let Some(total) = &self.total {
            total.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for TailBytes {
    fn drop(&mut self) {
        if let Some(total) = &self.total {
            total.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// What most of many topics have nothing of.
#[derive(Default)]
struct Rare {
    /// The wakers of readers that wait for more.
    readers: BTreeMap<u64, Waker>,
    keys: Option<Keys>,
    /// What waits to be published; in the topic of delayed messages only.
    delayed: Option<Waiting>,
}

impl LiveTopic {
    pub(crate) fn new(
        id: TopicId,
        name: TopicName,
        settings: Arc<TopicSettings>,
        trims: Arc<Mutex<Vec<TopicId>>>,
    ) -> Self {
        let state = LiveTopicState {
            machine: Topic::new(settings.dedup),
            settings,
            as_of: Position(0),
            floor_position: Position(0),
            flushed_floor: Seq(1),
            visible: Position(0),
            oldest_time: Timestamp::NEVER,
            tail: Slices::default(),
            tail_bytes: TailBytes::default(),
            bytes_in: 0,
            rare: None,
            evictions: 0,
            trim_noted: false,
            deleted: false,
            gone: false,
        };
        Self { id, name, state: Mutex::new(state), messages_out: AtomicU64::new(0), trims }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LiveTopicState> {
        lock(&self.state)
    }

    /// Counts messages that a subscriber or a member of a group was handed.
    pub(crate) fn count_out(&self, messages: u64) {
        self.messages_out.fetch_add(messages, Ordering::Relaxed);
    }
}

impl Sink for LiveTopic {
    fn settled(&self, lsn: Lsn, bytes: Bytes, wakers: &mut Vec<Waker>) {
        let mut state = self.lock();
        if state.push(lsn, bytes) && !state.trim_noted {
            state.trim_noted = true;
            drop(state);
            lock(&self.trims).push(self.id);
            state = self.lock();
        }
        wakers.extend(state.wake_all());
    }
}

impl LiveTopicState {
    /// Adds batches that are visible now. Returns whether retention has work to do.
    pub(crate) fn push(&mut self, lsn: Lsn, bytes: Bytes) -> bool {
        let (mut first, mut last) = (Seq(0), Seq(0));
        for header in headers(&bytes) {
            if first == Seq(0) {
                first = header.seq;
                if self.oldest_time == Timestamp::NEVER {
                    self.oldest_time = header.time;
                }
            }
            last = header.last_seq();
            self.visible = self.visible.max(header.last_position());
        }
        if first == Seq(0) {
            return false;
        }
        self.tail_bytes.add(bytes.len());
        self.bytes_in += bytes.len() as u64;
        self.tail.push(Slice { first, lsn, bytes });
        if last > self.machine.settled() {
            self.step(Timestamp(0), Input::Settled { through: last });
        }
        let retention = &self.settings.retention;
        let kept = self.machine.settled().next().distance(self.machine.first());
        retention.bytes.is_some() || retention.count.is_some_and(|count| kept > count)
    }

    /// Drives the machine and gives its one effect back, if it had any.
    pub(crate) fn step(&mut self, now: Timestamp, input: Input<'_>) -> Option<Effect> {
        let mut effects = Vec::new();
        self.machine.step(now, input, &mut effects);
        after_topic_step(&self.machine);
        effects.pop()
    }

    /// The first seq that may be read. Retention by count holds at once, even before the
    /// floor is written down.
    pub(crate) fn first(&self) -> Seq {
        let next = self.machine.settled().next();
        let by_count = self
            .settings
            .retention
            .count
            .map_or(Seq(1), |count| Seq(next.0.saturating_sub(count).max(1)));
        self.machine.first().max(by_count)
    }

    /// One past the last seq that may be read.
    pub(crate) fn next(&self) -> Seq {
        self.machine.settled().next()
    }

    pub(crate) fn view(&self) -> View {
        let next = self.next();
        let by_count = self.first() > self.machine.first();
        let reason = if by_count { GapReason::Retention } else { self.machine.floor_reason() };
        View {
            first: self.first(),
            floor_reason: reason,
            tail: self.tail.get(0).map_or(next, |slice| slice.first),
            next,
        }
    }

    /// What a reader may be handed, now.
    pub(crate) fn kept(&self) -> Kept {
        let View { first, floor_reason, .. } = self.view();
        let (age, compacted) = (self.settings.retention.age, self.settings.compaction.is_some());
        Kept { first, floor_reason, age, compacted }
    }

    pub(crate) fn wait(&mut self, reader: u64, waker: &Waker) {
        self.rare.get_or_insert_default().readers.insert(reader, waker.clone());
    }

    /// Forgets the waker of a reader that has left.
    pub(crate) fn leave(&mut self, reader: u64) {
        if let Some(rare) = &mut self.rare {
            rare.readers.remove(&reader);
        }
    }

    /// The wakers of all waiting readers, to be woken when the lock is free.
    pub(crate) fn wake_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let readers = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.readers));
        readers.into_iter().flat_map(BTreeMap::into_values)
    }

    /// Batches from `from` on that are in memory, up to `bytes_max` but at least one.
    pub(crate) fn take(&self, from: Seq, bytes_max: usize) -> Vec<Bytes> {
        let mut bytes = 0;
        let mut parts = Vec::new();
        for slice in self.tail.from(self.tail.find(from)) {
            if bytes > 0 && bytes + slice.bytes.len() > bytes_max {
                break;
            }
            let part = if slice.first < from {
                skip_before(slice.bytes.clone(), from)
            } else {
                slice.bytes.clone()
            };
            bytes += part.len();
            if !part.is_empty() {
                parts.push(part);
            }
        }
        parts
    }

    /// The batches in memory, oldest first.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Batch> + '_ {
        self.tail.from(0).flat_map(|slice| batches(slice.bytes.clone()))
    }

    /// Drops what is no longer in memory.
    pub(crate) fn evict(&mut self, through: Lsn) {
        while self.tail.get(0).is_some_and(|slice| slice.lsn <= through) {
            self.drop_front();
        }
    }

    /// Bytes of what is in memory.
    pub(crate) fn tail_bytes(&self) -> u64 {
        self.tail_bytes.bytes
    }

    /// Counts what is in memory in a total too, for as long as it is there.
    pub(crate) fn count_in(&mut self, total: &Arc<AtomicU64>) {
        total.fetch_add(self.tail_bytes.bytes, Ordering::Relaxed);
        self.tail_bytes.total = Some(Arc::clone(total));
    }

    /// Drops the oldest batches of a volatile topic until `bytes_max` are left; returns the new
    /// first seq if any were dropped.
    pub(crate) fn shrink(&mut self, bytes_max: u64) -> Option<Seq> {
        let mut dropped = false;
        while self.tail_bytes() > bytes_max && self.tail.len() > 1 {
            self.drop_front();
            dropped = true;
        }
        dropped.then(|| self.tail.get(0).map_or(self.next(), |slice| slice.first))
    }

    /// Drops the oldest slices that lie wholly below the floor.
    pub(crate) fn drop_gone(&mut self) {
        let first = self.machine.first();
        let is_gone = |next: Option<&Slice>, end: Seq| next.map_or(end, |next| next.first) <= first;
        while self.tail.len() > 0 && is_gone(self.tail.get(1), self.next()) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        if let Some(slice) = self.tail.pop() {
            self.tail_bytes.remove(slice.bytes.len());
            self.evictions = self.evictions.wrapping_add(1);
        }
        let first = self.tail.get(0).map_or(self.next(), |slice| slice.first);
        if let Some(keys) = self.keys_mut() {
            keys.prune(first);
        }
    }

    /// The keys in memory, which are begun here if they are not known.
    pub(crate) fn keys_or(&mut self, begin: impl FnOnce() -> Keys) -> &mut Keys {
        self.rare.get_or_insert_default().keys.get_or_insert_with(begin)
    }

    fn keys(&self) -> Option<&Keys> {
        self.rare.as_ref()?.keys.as_ref()
    }

    fn keys_mut(&mut self) -> Option<&mut Keys> {
        self.rare.as_mut()?.keys.as_mut()
    }

    /// The messages that wait here to be published, if this is their topic.
    pub(crate) fn delayed(&self) -> Option<&Waiting> {
        self.rare.as_ref()?.delayed.as_ref()
    }

    pub(crate) fn delayed_mut(&mut self) -> Option<&mut Waiting> {
        self.rare.as_mut()?.delayed.as_mut()
    }

    /// Makes this the topic of delayed messages, if it is not yet.
    pub(crate) fn hold_delayed(&mut self) -> &mut Waiting {
        self.rare.get_or_insert_default().delayed.get_or_insert_default()
    }

    /// Notes the keys of a batch that was just numbered, if keys are tracked.
    pub(crate) fn note_keys(
        &mut self,
        records: &gapless_core::Records,
        first: Seq,
        hash: impl Fn(&[u8]) -> u128,
    ) {
        if let Some(keys) = self.keys_mut() {
            keys.note(records, first, hash);
        }
    }

    /// The newest message of a key in memory, if keys are tracked.
    pub(crate) fn latest_of_key(&self, hash: u128) -> Option<(Seq, bool)> {
        self.keys()?.newest(hash)
    }

    pub(crate) fn retention_done(&mut self) {
        self.trim_noted = false;
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.settings.storage == Storage::Durable
    }
}

/// The headers of the entries in `bytes`.
pub(crate) fn headers(bytes: &Bytes) -> impl Iterator<Item = EntryHeader> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (header, len) = EntryHeader::read(bytes.get(at..)?).ok()?;
        at += len;
        Some(header)
    })
}

/// The batches in `bytes`, which were checked before.
pub(crate) fn batches(mut bytes: Bytes) -> impl Iterator<Item = Batch> {
    std::iter::from_fn(move || Batch::new(Entry::take_trusted(&mut bytes).ok()?))
}

/// Drops the batches that lie wholly before `seq`.
fn skip_before(mut bytes: Bytes, seq: Seq) -> Bytes {
    while let Ok((header, len)) = EntryHeader::read(&bytes) {
        if header.last_seq() >= seq || bytes.len() < len {
            break;
        }
        drop(bytes.split_to(len));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_takes_less_than_a_quarter_of_a_kilobyte() {
        // With the two counts of its handle, in whole pieces of 16 bytes, as memory is given out.
        let bytes = size_of::<LiveTopic>() + 2 * size_of::<usize>();
        assert!(bytes <= 248, "{bytes} bytes");
    }
}
