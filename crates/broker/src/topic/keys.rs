//! The newest message of each key, as far as it is in memory: known for topics of which a key was
//! looked up.
//!
//! The first look-up builds it, which can take a second, and must not hold publishers up. So the
//! topic's lock is held for a step at a time: a few slices to read, or a few keys to add. From the
//! first step on publishers note the keys of what they publish; what was there before is read from
//! memory, or found in segments when it has moved there meanwhile.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use gapless_core::batch::FLAG_KEYS;
use gapless_core::{Records, Seq};
use gapless_journal::ReadError;

use crate::broker::Inner;
use crate::topic::live_topic::{LiveTopic, LiveTopicState, batches, lock};

/// Bytes of messages that are taken out of a topic in one step, under its lock: slices of them,
/// which are not copied.
const STEP_BYTES: usize = 256 * 1024;

/// Keys that are added under a topic's lock.
const STEP_KEYS: usize = 1024;

/// The fewest keys from which those of messages that have left memory are dropped.
const PRUNE_KEYS_MIN: usize = 1024;

/// The newest message of a key, and whether it removes the key.
type Newest = HashMap<u128, (Seq, bool)>;

/// The keys of a topic. Messages that have not settled yet are in it too.
#[derive(Debug)]
pub(crate) struct Keys {
    newest: Newest,
    prune_at: usize,
    /// Until all is known: held by the one thread that builds it.
    building: Option<Arc<Mutex<()>>>,
}

impl Keys {
    fn begin() -> Self {
        let building = Some(Arc::default());
        Self { newest: Newest::new(), prune_at: PRUNE_KEYS_MIN, building }
    }

    /// Notes the keys of messages that were just numbered.
    pub(crate) fn note(&mut self, records: &Records, first: Seq, hash: impl Fn(&[u8]) -> u128) {
        if records.flags & FLAG_KEYS == 0 {
            return;
        }
        for record in records.iter() {
            if let Some(key) = record.key {
                let seq = first.plus(u64::from(record.offset));
                self.newest.insert(hash(key), (seq, record.is_tombstone()));
            }
        }
    }

    /// Drops those whose message has left memory, when that is worth it.
    pub(crate) fn prune(&mut self, first: Seq) {
        if self.newest.len() > self.prune_at {
            self.newest.retain(|_, (seq, _)| *seq >= first);
            self.prune_at = (self.newest.len() * 2).max(PRUNE_KEYS_MIN);
        }
    }

    /// The newest message of a key in memory, once all are known.
    pub(crate) fn newest(&self, hash: u128) -> Option<(Seq, bool)> {
        self.newest.get(&hash).copied().filter(|_| self.building.is_none())
    }
}

impl Inner {
    /// Makes sure that the keys of a topic's messages in memory are known.
    pub(crate) fn track_keys<'a>(
        &self,
        cell: &'a LiveTopic,
    ) -> Result<MutexGuard<'a, LiveTopicState>, ReadError> {
        loop {
            let mut state = cell.lock();
            let keys = state.keys_or(Keys::begin);
            let Some(building) = keys.building.clone() else { return Ok(state) };
            drop(state);
            let one_at_a_time = lock(&building);
            if cell.lock().keys_or(Keys::begin).building.is_none() {
                continue;
            }
            let mut build = Build::new(cell);
            while !build.is_settled() && self.journal.failure().is_none() {
                self.settle()?;
            }
            while build.read(|key| self.journal.key_hash(key)) {}
            while !build.finish() {}
            drop(one_at_a_time);
        }
    }
}

/// The keys of what was in memory when publishers began to note those of what they publish.
struct Build<'a> {
    cell: &'a LiveTopic,
    newest: Newest,
    next: Seq,
    /// The last message that may be in no publisher's notes.
    through: Seq,
}

impl<'a> Build<'a> {
    fn new(cell: &'a LiveTopic) -> Self {
        let through = cell.lock().machine.last();
        Self { cell, newest: Newest::new(), next: Seq(0), through }
    }

    /// Whether all that must be read can be.
    fn is_settled(&self) -> bool {
        self.cell.lock().machine.settled() >= self.through
    }

    /// One step; returns whether there is more.
    fn read(&mut self, hash: impl Fn(&[u8]) -> u128) -> bool {
        let parts = {
            let state = self.cell.lock();
            self.next = self.next.max(state.view().tail);
            if self.next > self.through {
                return false;
            }
            state.take(self.next, STEP_BYTES)
        };
        let before = self.next;
        for batch in parts.into_iter().flat_map(batches) {
            for record in batch.records() {
                if let Some(key) = record.key {
                    let newest = (batch.seq_of(&record), record.is_tombstone());
                    self.newest.insert(hash(key), newest);
                }
            }
            self.next = batch.last().next();
        }
        self.next > before
    }

    /// Adds what publishers have noted; returns whether that was little enough to be added under the
    /// lock, so that all is known. It becomes little: adding is faster than publishing.
    fn finish(&mut self) -> bool {
        // Nothing is moved to a larger table under the lock.
        self.newest.reserve(STEP_KEYS);
        let mut state = self.cell.lock();
        let keys = state.keys_or(Keys::begin);
        let noted = std::mem::take(&mut keys.newest);
        if noted.len() > STEP_KEYS {
            drop(state);
            self.add(noted);
            return false;
        }
        self.add(noted);
        let newest = std::mem::take(&mut self.newest);
        let prune_at = (newest.len() * 2).max(PRUNE_KEYS_MIN);
        *keys = Keys { newest, prune_at, building: None };
        true
    }

    fn add(&mut self, noted: Newest) {
        for (key, newest) in noted {
            match self.newest.entry(key) {
                Entry::Occupied(mut known) if known.get().0 < newest.0 => {
                    known.insert(newest);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(vacant) => {
                    vacant.insert(newest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use gapless_core::{Durability, Message, PublishAck, PublishOptions, TopicName, TopicSettings};
    use tempfile::TempDir;

    use super::*;
    use crate::{Broker, BrokerOptions};

    fn with_topic() -> (TempDir, Broker, TopicName) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = BrokerOptions::new(folder.path());
        options.defaults.durability = Durability::Written;
        let broker = Broker::open(options).expect("a broker");
        let topic = TopicName::parse("t").expect("a good name");
        broker.create_topic(&topic, TopicSettings::default()).expect("a topic");
        (folder, broker, topic)
    }

    /// Publishes a message of each of these keys; returns the seq of the first.
    fn publish(broker: &Broker, topic: &TopicName, keys: &[(u64, bool)]) -> Seq {
        let message = |(key, removes): &(u64, bool)| match removes {
            true => Message::tombstone(key.to_string()),
            false => Message::new("x".repeat(40)).with_key(key.to_string()),
        };
        let messages: Vec<Message> = keys.iter().map(message).collect();
        let ack = broker.publish_batch(topic, &messages, &PublishOptions::default()).wait();
        let PublishAck::Accepted(accepted) = ack.expect("the disk is well") else {
            panic!("there is room")
        };
        accepted.first
    }

    #[test]
    fn l7_a_topic_is_free_between_the_steps_of_finding_its_keys() {
        const KEYS: u64 = 20_000;
        let (_folder, broker, topic) = with_topic();
        let mut model = BTreeMap::new();
        let mut note = |keys: &[(u64, bool)]| {
            for batch in keys.chunks(500) {
                let first = publish(&broker, &topic, batch);
                let seqs = (first.0..).map(Seq);
                model.extend(batch.iter().zip(seqs).map(|((key, no), seq)| (*key, (seq, *no))));
            }
        };
        let all: Vec<(u64, bool)> = (0..KEYS).map(|key| (key, false)).collect();
        note(&all);

        let inner = &broker.inner;
        let cell = inner.live_topic(&topic).expect("the topic is there");
        cell.lock().keys_or(Keys::begin);
        let mut build = Build::new(&cell);
        assert!(build.is_settled());
        let (mut steps, bytes) = (0, cell.lock().tail_bytes());
        // Old keys and new ones, more of them than are added under the lock.
        while build.read(|key| inner.journal.key_hash(key)) {
            assert!(cell.state.try_lock().is_ok(), "publishers do not wait");
            let new = (0..STEP_KEYS as u64).map(|each| (KEYS + each - 512, each % 3 == 0));
            let old = (0..100).map(|each| (each * steps, each % 7 == 0));
            note(&new.chain(old).collect::<Vec<_>>());
            steps += 1;
        }
        assert!(steps >= bytes / STEP_BYTES as u64, "{bytes} bytes are read in {steps} steps");
        let mut rounds = 1;
        while !build.finish() {
            assert!(cell.state.try_lock().is_ok(), "publishers do not wait");
            rounds += 1;
        }
        assert!(rounds > 1, "the notes of publishers are too many for one step");
        let state = cell.lock();
        for (key, newest) in &model {
            let hash = inner.journal.key_hash(key.to_string().as_bytes());
            assert_eq!(state.latest_of_key(hash), Some(*newest), "key {key}");
        }
    }

    #[test]
    fn l7_keys_are_right_when_several_ask_first_while_others_publish() {
        let (_folder, broker, topic) = with_topic();
        let (broker, topic) = (&broker, &topic);
        let all: Vec<(u64, bool)> = (0..2_000).map(|key| (key, false)).collect();
        let first = publish(broker, topic, &all);
        let latest = |key: u64| {
            let found = broker.latest(topic, &Bytes::from(key.to_string()));
            found.expect("the disk is well").map(|found| found.seq)
        };
        std::thread::scope(|scope| {
            let one = |key: u64| publish(broker, topic, &[(key, false)]);
            let publisher = scope.spawn(move || (0..1_000).map(one).collect::<Vec<Seq>>());
            for asker in 0..3 {
                scope.spawn(move || {
                    for key in (1_000 + asker..2_000).step_by(3) {
                        assert_eq!(latest(key), Some(first.plus(key)), "key {key}");
                    }
                });
            }
            let seconds = publisher.join().expect("it publishes");
            for (key, second) in (0..).zip(seconds) {
                assert_eq!(latest(key), Some(second), "key {key}");
            }
        });
    }
}
