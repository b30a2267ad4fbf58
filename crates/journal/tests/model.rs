//! Whatever is published, floored, deleted, sealed, collected, crashed and opened again in
//! whatever order: what can be read is exactly what a plain model says.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::*;
use gapless_core::{Message, Position, Seq, Timestamp, TopicId};
use gapless_journal::JournalOptions;
use gapless_journal::faulty::{CrashKind, FaultyFs};
use proptest::prelude::*;

/// Two plain topics and two compacted ones.
const TOPICS: [u64; 4] = [1, 2, COMPACTED, COMPACTED + 1];

#[derive(Clone, Debug)]
enum Step {
    /// Several batches in one append: topic and messages.
    Append(Vec<(usize, Vec<Sketch>)>),
    Floor(usize, u8),
    Delete(usize),
    Seal,
    Keep,
    Compact,
    Wait(u16),
    Close,
    Crash(bool),
}

#[derive(Clone, Debug)]
struct Sketch {
    key: Option<u8>,
    tombstone: bool,
    ttl_ms: Option<u16>,
    bytes: u16,
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let ttl = prop_oneof![3 => Just(None), 1 => (1..2000_u16).prop_map(Some)];
    (proptest::option::of(0..4_u8), prop::bool::weighted(0.2), ttl, 0..900_u16)
        .prop_map(|(key, tombstone, ttl_ms, bytes)| Sketch { key, tombstone, ttl_ms, bytes })
}

fn step() -> impl Strategy<Value = Step> {
    let batch = (0..TOPICS.len(), prop::collection::vec(sketch(), 1..5));
    prop_oneof![
        12 => prop::collection::vec(batch, 1..4).prop_map(Step::Append),
        1 => (0..TOPICS.len(), any::<u8>()).prop_map(|(topic, by)| Step::Floor(topic, by)),
        1 => (0..TOPICS.len()).prop_map(Step::Delete),
        3 => Just(Step::Seal),
        2 => Just(Step::Keep),
        1 => Just(Step::Compact),
        1 => (1..1500_u16).prop_map(Step::Wait),
        1 => Just(Step::Close),
        1 => any::<bool>().prop_map(Step::Crash),
    ]
}

#[derive(Clone, Debug)]
struct Kept {
    seq: u64,
    position: Position,
    time: Timestamp,
    message: Message,
}

impl Kept {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.message.ttl.is_some_and(|ttl| self.time.after(ttl) <= now)
    }
}

#[derive(Debug, Default)]
struct Model {
    /// The number that each of [`TOPICS`] has now; a topic that was created again is another one.
    ids: [u64; 4],
    topics: BTreeMap<u64, Vec<Kept>>,
    floors: BTreeMap<u64, u64>,
}

impl Model {
    fn floor(&self, id: u64) -> u64 {
        self.floors.get(&id).copied().unwrap_or(1)
    }

    /// Whether this message must be there; others may be.
    fn must_be_there(&self, id: u64, kept: &Kept, now: Timestamp) -> bool {
        if kept.seq < self.floor(id) || kept.is_expired(now) {
            return false;
        }
        if id < COMPACTED || kept.message.key.is_none() {
            return true;
        }
        let newest = self.topics[&id].iter().rfind(|each| each.message.key == kept.message.key);
        newest.is_some_and(|newest| newest.seq == kept.seq)
            && (kept.message.body.is_some() || kept.time.after(GRACE) > now)
    }

    /// What a reader of all of a compacted topic should hold, per key.
    fn values(&self, id: u64, now: Timestamp) -> BTreeMap<Vec<u8>, Message> {
        let mut values = BTreeMap::new();
        for kept in &self.topics[&id] {
            note_value(&mut values, kept.message.clone());
        }
        let newest = |key: &[u8]| {
            let of_key = |kept: &&Kept| kept.message.key.as_deref() == Some(key);
            self.topics[&id].iter().rfind(|kept| of_key(kept))
        };
        values.retain(|key, _| {
            newest(key).is_some_and(|kept| !kept.is_expired(now) && kept.seq >= self.floor(id))
        });
        values
    }
}

fn note_value(values: &mut BTreeMap<Vec<u8>, Message>, message: Message) {
    if let Some(key) = message.key.as_deref() {
        match message.body {
            Some(_) => values.insert(key.to_vec(), message),
            None => values.remove(key),
        };
    }
}

fn options() -> JournalOptions {
    JournalOptions { tail_bytes: 2048, seal_bytes: 24 * 1024, ..JournalOptions::small() }
}

struct World {
    fs: FaultyFs,
    store: Option<Store>,
    model: Model,
    now: Timestamp,
    fresh: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let model = Model { ids: TOPICS, ..Model::default() };
        let now = Timestamp(1_000_000);
        let mut world = Self { fs: FaultyFs::new(seed), store: None, model, now, fresh: 1 };
        world.open();
        world
    }

    fn open(&mut self) {
        let mut store = try_open_with(&folder(&self.fs), options(), false).expect("it opens");
        store.now = self.now;
        self.store = Some(store);
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("it is open")
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append(parts) => self.append(parts),
            Step::Floor(topic, by) => {
                let id = self.model.ids[*topic];
                let Some(kept) = self.model.topics.get(&id) else { return };
                let (floor, last) = (self.model.floor(id), kept.len() as u64);
                let to = floor + u64::from(*by) * (last + 1 - floor) / 255;
                self.store().raise_floor(id, to);
                self.model.floors.insert(id, to);
            }
            Step::Delete(topic) => {
                let id = self.model.ids[*topic];
                if self.model.topics.remove(&id).is_some() {
                    self.store().delete(id);
                    self.fresh += 1;
                    self.model.ids[*topic] = TOPICS[*topic] + 1000 * self.fresh;
                    if TOPICS[*topic] < COMPACTED {
                        // Below the compacted ones there is room for two digits only.
                        self.model.ids[*topic] = 3 + self.fresh;
                    }
                }
            }
            Step::Seal => self.store().seal(),
            Step::Keep => {
                self.store().keep();
            }
            Step::Compact => self.store().compact(),
            Step::Wait(ms) => {
                self.now = self.now.after(Duration::from_millis(u64::from(*ms)));
                let now = self.now;
                self.store.as_mut().expect("it is open").now = now;
            }
            Step::Close => {
                self.store.take().expect("it is open").close();
                self.open();
                assert!(self.store().opened.clean);
            }
            Step::Crash(power) => {
                let kind = if *power { CrashKind::Power } else { CrashKind::Process };
                self.fs.crash(kind);
                self.store.take().expect("it is open").abandon();
                self.open();
            }
        }
    }

    fn append(&mut self, parts: &[(usize, Vec<Sketch>)]) {
        let mut made: Vec<Part> = Vec::new();
        for (topic, sketches) in parts {
            let id = self.model.ids[*topic];
            let messages = sketches.iter().map(|sketch| {
                let filler = vec![b'.'; usize::from(sketch.bytes)];
                let mut message = Message::new(filler);
                if let Some(key) = sketch.key {
                    message = message.with_key(vec![key]);
                    message.body = message.body.filter(|_| !sketch.tombstone);
                }
                if let Some(ms) = sketch.ttl_ms {
                    message = message.with_ttl(Duration::from_millis(u64::from(ms)));
                }
                message.with_header("at", self.fresh.to_string())
            });
            made.push((id, messages.collect()));
        }
        let (ticket, places) = self.store().append(&made, FLUSHED, FLUSHED).expect("room");
        self.store().journal.turn();
        assert_eq!(ready(ticket), Some(Ok(FLUSHED)));
        for ((id, messages), (seq, position)) in made.into_iter().zip(places) {
            let kept = self.model.topics.entry(id).or_default();
            assert_eq!(seq.0, kept.len() as u64 + 1);
            for (offset, message) in (0..).zip(messages) {
                let (seq, position) = (seq.0 + offset, position.plus(offset));
                kept.push(Kept { seq, position, time: self.now, message });
            }
        }
    }

    fn check(&self, from: u8, sizes: &[usize]) {
        for (&id, kept) in &self.model.topics {
            self.check_topic(id, kept, from, sizes[0]);
        }
        self.check_pattern(from, sizes);
    }

    fn check_topic(&self, id: u64, kept: &[Kept], from: u8, size: usize) {
        let floor = self.model.floor(id);
        let from = floor + u64::from(from) % (kept.len() as u64 + 2 - floor);
        // Every seq is accounted for, or this panics.
        let read = self.store().try_read(id, from, size).expect("history can be read");
        let read: BTreeMap<u64, Message> = read.into_iter().collect();
        for kept in kept.iter().filter(|kept| kept.seq >= from) {
            match read.get(&kept.seq) {
                Some(found) => assert_eq!(*found, kept.message),
                None => assert!(
                    !self.model.must_be_there(id, kept, self.now),
                    "topic {id}: {} is gone at {}: {kept:?}",
                    kept.seq,
                    self.now
                ),
            }
        }
        assert!(read.keys().all(|seq| *seq <= kept.len() as u64));
        if id >= COMPACTED {
            let mut values = BTreeMap::new();
            let all = self.store().try_read(id, floor, size).expect("history can be read");
            all.into_iter().for_each(|(_, message)| note_value(&mut values, message));
            let expected = self.model.values(id, self.now);
            for (key, value) in &expected {
                assert_eq!(values.get(key), Some(value), "topic {id}, key {key:?}");
            }
            for (key, value) in values.iter().filter(|(key, _)| !expected.contains_key(*key)) {
                // Nothing older than the newest may come back, though that is expired.
                let newest = kept.iter().rfind(|kept| kept.message.key == value.key);
                let newest = &newest.expect("it was published").message;
                assert_eq!(value, newest, "topic {id}: an older value of {key:?} is back");
            }
        }
        self.check_lookups(id, kept);
    }

    /// Lookups see segments only, so they are compared where these hold everything.
    fn check_lookups(&self, id: u64, kept: &[Kept]) {
        let journal = &self.store().journal;
        let (topic, floor) = (TopicId(id), Seq(self.model.floor(id)));
        let sealed = journal.bytes_of(topic, floor).expect("history can be read");
        if let Some((seq, passed)) =
            journal.find_bytes(topic, floor, sealed / 2).expect("history can be read")
        {
            assert!(passed >= sealed / 2 && seq >= floor);
            let left = journal.bytes_of(topic, seq).expect("history can be read");
            assert_eq!(left + passed, sealed);
        }
        if sealed == 0 {
            return;
        }
        for wanted in kept.iter().filter(|kept| kept.seq >= floor.0).step_by(3) {
            let found = journal.find_position(topic, floor, wanted.position.prev());
            // Past what is gone it may go, since no reader could read it from there.
            if let Some(header) = found.expect("history can be read")
                && self.model.must_be_there(id, wanted, self.now)
            {
                assert!((header.seq.0..=header.last_seq().0).contains(&wanted.seq));
            }
            let found = journal
                .find_time(topic, floor, (wanted.time, Timestamp::NEVER))
                .expect("it can be read");
            if let Some(header) = found {
                assert!(header.time >= wanted.time && header.seq.0 <= wanted.seq);
            }
            if let Some(key) = &wanted.message.key {
                let hash = journal.key_hash(key);
                let found = journal.latest_of_key(topic, hash).expect("it can be read");
                if let Some((seq, tombstone)) = found {
                    let of_seq = &kept[seq.0 as usize - 1].message;
                    assert_eq!(of_seq.key.as_ref(), Some(key));
                    assert_eq!(of_seq.body.is_none(), tombstone);
                }
            }
        }
    }

    fn check_pattern(&self, from: u8, sizes: &[usize]) {
        let last = self.model.topics.values().flatten().map(|kept| kept.position.0).max();
        let from = Position(last.unwrap_or(0) * u64::from(from) / 255);
        let wanted: Vec<u64> = self.model.topics.keys().copied().step_by(2).collect();
        let mut turn = 0;
        let batches = self.store().follow(from, &wanted, || {
            turn += 1;
            sizes[turn % sizes.len()]
        });
        let mut found = BTreeMap::new();
        let mut before = Position(0);
        for batch in batches {
            let header = batch.header();
            assert!(wanted.contains(&header.topic.0));
            assert!(header.position > before || before == Position(0), "{header:?}");
            before = header.position;
            for record in batch.records() {
                let id = (header.topic.0, batch.seq_of(&record).0);
                let twice = found.insert(id, (batch.position_of(&record), batch.message(&record)));
                assert!(twice.is_none(), "{id:?} twice");
            }
        }
        for &id in &wanted {
            for kept in &self.model.topics[&id] {
                match found.remove(&(id, kept.seq)) {
                    Some(read) => assert_eq!(read, (kept.position, kept.message.clone())),
                    None => assert!(
                        kept.position < from || !self.model.must_be_there(id, kept, self.now),
                        "topic {id}: {} at {} is not followed from {from}",
                        kept.seq,
                        kept.position
                    ),
                }
            }
        }
        assert!(found.is_empty(), "{found:?}");
    }
}

/// A few seconds' worth, unless the nightly run asks for more.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(100)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_can_be_read_is_what_the_model_says(
        seed in any::<u64>(),
        steps in prop::collection::vec((step(), any::<u8>()), 1..60),
        sizes in prop::collection::vec(1..5000_usize, 1..4),
    ) {
        let mut world = World::new(seed);
        for (step, from) in &steps {
            world.step(step);
            if !matches!(step, Step::Append(_)) {
                world.check(*from, &sizes);
            }
        }
        world.check(0, &sizes);
    }
}
