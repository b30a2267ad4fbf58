//! What must hold: a plain picture of the store, kept beside the real one.
//!
//! Every change is a [`Commit`]; the state is what the commits so far come to. The model
//! keeps the state as of the last opening and the commits since, so that after a crash it
//! can ask which prefix of them is there. It knows nothing of files, frames or flushes.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::entry::ENTRY_HEADER_BYTES;
use gapless_core::{
    DedupWindow, Durability, Message, RecordsBuilder, Timestamp, TopicName, TopicSettings,
};

/// One making of a topic; created again under the same name it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TopicKey(pub u32);

/// A message that was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// Which offer it was: no two are the same.
    pub offer: u64,
    /// What was sent.
    pub message: Message,
    /// When it was accepted.
    pub time: Timestamp,
    /// The commit it came with.
    pub commit: u64,
    /// How many bytes the batch has that it came with.
    pub batch_bytes: u64,
    /// Its place in the journal, once it was in an answer.
    pub position: Cell<Option<u64>>,
}

impl Accepted {
    /// Whether its time to live is over.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.message.ttl.is_some_and(|ttl| self.time.after(ttl) <= now)
    }

    /// Whether it removes its key.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.message.key.is_some() && self.message.body.is_none()
    }
}

/// The ids a topic must remember.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    window: DedupWindow,
    known: VecDeque<(Bytes, u64, Timestamp)>,
}

impl Ids {
    fn new(window: DedupWindow) -> Self {
        Self { window, known: VecDeque::new() }
    }

    /// The seq that this id has, if it is still to be known.
    pub(crate) fn find(&self, id: &[u8], now: Timestamp) -> Option<u64> {
        let (_, seq, time) = self.known.iter().rev().find(|(known, _, _)| known == id)?;
        (time.after(self.window.time) > now).then_some(*seq)
    }

    fn insert(&mut self, id: &Bytes, seq: u64, now: Timestamp) {
        if self.window.count > 0 && !self.window.time.is_zero() {
            self.known.push_back((id.clone(), seq, now));
        }
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((_, _, time)) = self.known.front() {
            let past = time.after(self.window.time) <= now;
            if !past && self.distinct() <= self.window.count as usize {
                break;
            }
            self.known.pop_front();
        }
    }

    fn distinct(&self) -> usize {
        let ids: std::collections::BTreeSet<&[u8]> =
            self.known.iter().map(|(id, _, _)| &id[..]).collect();
        ids.len()
    }
}

/// A topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicModel {
    pub name: TopicName,
    pub settings: TopicSettings,
    /// All messages ever, by seq from one on.
    pub log: Vec<Rc<Accepted>>,
    pub ids: Ids,
    /// The first seq that no purge took.
    pub purged: u64,
    /// The shortest grace of tombstones while it was compacted, if it ever was.
    pub grace: Option<Duration>,
    /// Whether it ever was not compacted.
    pub was_plain: bool,
    /// Whether it ever had retention.
    pub retained: bool,
    pub deleted: bool,
}

impl TopicModel {
    fn new(name: TopicName, settings: TopicSettings) -> Self {
        let mut topic = Self {
            name,
            settings,
            log: Vec::new(),
            ids: Ids::new(settings.dedup),
            purged: 1,
            grace: None,
            was_plain: false,
            retained: false,
            deleted: false,
        };
        topic.configure(settings, Timestamp(0));
        topic
    }

    fn configure(&mut self, settings: TopicSettings, now: Timestamp) {
        self.settings = settings;
        self.ids.forget(now);
        self.ids.window = settings.dedup;
        self.ids.forget(now);
        self.retained |= settings.retention != gapless_core::Retention::default();
        self.was_plain |= settings.compaction.is_none();
        if let Some(compaction) = settings.compaction {
            let grace = compaction.tombstone_grace;
            self.grace = Some(self.grace.map_or(grace, |known| known.min(grace)));
        }
    }

    /// The next seq.
    pub(crate) fn next(&self) -> u64 {
        self.log.len() as u64 + 1
    }

    /// The message of this seq.
    pub(crate) fn at(&self, seq: u64) -> Option<&Rc<Accepted>> {
        self.log.get(usize::try_from(seq.checked_sub(1)?).ok()?)
    }

    /// How safe messages are before they are seen.
    pub(crate) fn required(&self) -> Durability {
        self.settings.durability.unwrap_or(Durability::Flushed)
    }

    /// The newest message of a key.
    pub(crate) fn newest(&self, key: &[u8]) -> Option<(u64, &Rc<Accepted>)> {
        let of_key = |each: &&Rc<Accepted>| each.message.key.as_deref() == Some(key);
        let found = self.log.iter().rev().find(of_key)?;
        let at = self.log.iter().rposition(|each| Rc::ptr_eq(each, found))?;
        Some((at as u64 + 1, found))
    }

    /// Whether a reader may be handed the numbers around this one without it.
    pub(crate) fn may_be_absent(&self, seq: u64, now: Timestamp) -> bool {
        let Some(message) = self.at(seq) else { return false };
        if message.is_expired(now) {
            return true;
        }
        let (Some(grace), Some(key)) = (self.grace, &message.message.key) else { return false };
        let superseded = self.newest(key).is_some_and(|(newest, _)| newest > seq);
        superseded || (message.is_tombstone() && message.time.after(grace) <= now)
    }
}

/// A message that waits for its time.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub due: Timestamp,
    pub target: TopicName,
    pub offer: u64,
    pub message: Message,
}

/// Messages that wait for their time, by their number among all that ever did.
#[derive(Clone, Debug)]
pub(crate) struct Delayed {
    pub waiting: BTreeMap<u64, Waiting>,
    pub next: u64,
    pub ids: Ids,
}

/// Everything that survives.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub topics: BTreeMap<TopicKey, TopicModel>,
    pub names: BTreeMap<TopicName, TopicKey>,
    pub cells: BTreeMap<Bytes, Bytes>,
    pub delayed: Delayed,
}

impl Default for State {
    fn default() -> Self {
        let ids = Ids::new(DedupWindow::default());
        let delayed = Delayed { waiting: BTreeMap::new(), next: 1, ids };
        Self { topics: BTreeMap::new(), names: BTreeMap::new(), cells: BTreeMap::new(), delayed }
    }
}

/// Messages of one topic inside a commit.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub topic: TopicKey,
    pub messages: Vec<Rc<Accepted>>,
}

/// One atomic change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Create { key: TopicKey, name: TopicName, settings: TopicSettings },
    Configure { key: TopicKey, settings: TopicSettings },
    Delete { key: TopicKey },
    Purge { key: TopicKey, below: u64 },
    Write(Write),
}

/// Messages, cells and delayed messages that are written together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Write {
    pub parts: Vec<Part>,
    pub cells: Vec<(Bytes, Option<Bytes>)>,
    pub scheduled: Option<Waiting>,
    pub done: Option<u64>,
}

/// A change with its time, and what the world was told about it.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub serial: u64,
    pub time: Timestamp,
    pub change: Change,
    /// What its ack named.
    pub acked: Option<Durability>,
    /// How safe it is before it is seen.
    pub required: Durability,
    /// Whether a reader saw it.
    pub seen: bool,
}

impl State {
    /// The topic of this name.
    pub(crate) fn named(&self, name: &TopicName) -> Option<(TopicKey, &TopicModel)> {
        let key = *self.names.get(name)?;
        Some((key, &self.topics[&key]))
    }

    /// Topics that are there.
    pub(crate) fn living(&self) -> impl Iterator<Item = (TopicKey, &TopicModel)> {
        self.names.values().map(|key| (*key, &self.topics[key]))
    }

    fn topic(&mut self, key: TopicKey) -> &mut TopicModel {
        self.topics.get_mut(&key).expect("a commit names a topic that was made before")
    }

    /// Makes the change.
    pub(crate) fn apply(&mut self, commit: &Commit) {
        let now = commit.time;
        match &commit.change {
            Change::Create { key, name, settings } => {
                self.topics.insert(*key, TopicModel::new(name.clone(), *settings));
                self.names.insert(name.clone(), *key);
            }
            Change::Configure { key, settings } => self.topic(*key).configure(*settings, now),
            Change::Delete { key } => {
                let topic = self.topic(*key);
                topic.deleted = true;
                let name = topic.name.clone();
                self.names.remove(&name);
            }
            Change::Purge { key, below } => {
                let topic = self.topic(*key);
                topic.purged = topic.purged.max(*below);
            }
            Change::Write(write) => self.write(write, now),
        }
    }

    fn write(&mut self, write: &Write, now: Timestamp) {
        for part in &write.parts {
            let topic = self.topic(part.topic);
            for message in &part.messages {
                let seq = topic.next();
                if let Some(id) = &message.message.id {
                    topic.ids.insert(id, seq, now);
                }
                topic.log.push(Rc::clone(message));
            }
            topic.ids.forget(now);
        }
        for (name, value) in &write.cells {
            match value {
                Some(value) => self.cells.insert(name.clone(), value.clone()),
                None => self.cells.remove(name),
            };
        }
        if let Some(waiting) = &write.scheduled {
            let seq = self.delayed.next;
            if let Some(id) = &waiting.message.id {
                self.delayed.ids.insert(&scoped(&waiting.target, id), seq, now);
            }
            self.delayed.ids.forget(now);
            self.delayed.waiting.insert(seq, waiting.clone());
            self.delayed.next += 1;
        }
        if let Some(seq) = write.done {
            self.delayed.waiting.remove(&seq);
        }
    }
}

/// The same id may be used in two topics.
pub(crate) fn scoped(topic: &TopicName, id: &[u8]) -> Bytes {
    [topic.as_str().as_bytes(), &[0], id].concat().into()
}

/// How many bytes a batch of these messages has.
pub(crate) fn batch_bytes<'a>(messages: impl Iterator<Item = &'a Message>) -> u64 {
    let mut records = RecordsBuilder::default();
    for message in messages {
        records.push(message).expect("the workload makes messages within the limits");
    }
    (ENTRY_HEADER_BYTES + records.bytes()) as u64
}
