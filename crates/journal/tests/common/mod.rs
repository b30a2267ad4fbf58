//! A small broker for the tests: it numbers messages, keeps what is in memory, reads the
//! rest from history, and checks on every read that no seq is left out.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gapless_core::{
    Batch, Durability, Entry, EntryHeader, EntryKind, Epoch, Message, Position, RecordsBuilder,
    Seq, Timestamp, TopicId,
};
use gapless_journal::blobs::BlobError;
use gapless_journal::faulty::FaultyFs;
use gapless_journal::file_log::FileLogOptions;
use gapless_journal::fs::Fs;
use gapless_journal::layout::{BLOBS_FOLDER, Folder, LOG_FOLDER};
use gapless_journal::{
    BeginError, ItemWriter, Journal, JournalOptions, Lsn, OpenError, Opened, Parts, PatternReader,
    Policy, ReadError, Recover, Secret, Sink, State, TailRead, Ticket, checksum,
};

pub const FLUSHED: Durability = Durability::Flushed;
pub const WRITTEN: Durability = Durability::Written;
pub const MEMORY: Durability = Durability::Memory;

/// Topics from this number on are compacted.
pub const COMPACTED: u64 = 100;
/// How long their tombstones stay.
pub const GRACE: Duration = Duration::from_millis(1000);
/// How long a test waits for something that happens on another thread.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Files so small that a few frames cross from one to the next.
pub const SMALL_LOG: FileLogOptions =
    FileLogOptions { first_file_bytes: 64 * 1024, file_bytes_max: 256 * 1024 };

/// Epoch and secret of new stores.
pub const EPOCH: Epoch = Epoch(0xfeed_beef);

pub fn new_store() -> (Epoch, Secret) {
    (EPOCH, Secret::new(0x5ec2_e7ed_0f0f_1234))
}

pub fn root() -> PathBuf {
    PathBuf::from("/store")
}

pub fn folder(fs: &FaultyFs) -> Folder {
    folder_on(Arc::new(fs.clone()), &root())
}

pub fn folder_on(fs: Arc<dyn Fs>, path: &Path) -> Folder {
    Folder { log: SMALL_LOG, ..Folder::new(fs, path) }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topic {
    pub next: u64,
    pub floor: u64,
    pub gone: bool,
    as_of: Position,
    /// The last seq that can be read.
    visible: u64,
    /// What is in memory: the frame, and whole batches.
    memory: Vec<(Lsn, Bytes)>,
}

/// The state above the journal.
#[derive(Default)]
pub struct Topics(Mutex<BTreeMap<TopicId, Topic>>);

impl Topics {
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<TopicId, Topic>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State for Topics {
    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError> {
        let ids: Vec<TopicId> = self.lock().keys().copied().collect();
        for id in ids {
            let topic = self.lock()[&id].clone();
            let numbers = [id.0, topic.next, topic.floor, u64::from(topic.gone), topic.as_of.0];
            let item: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            write(&item)?;
        }
        Ok(())
    }

    fn policy(&self, topic: TopicId) -> Policy {
        match self.lock().get(&topic) {
            Some(found) if !found.gone => Policy::Kept {
                floor: Seq(found.floor),
                compaction: (topic.0 >= COMPACTED).then_some(GRACE),
            },
            _ => Policy::Gone,
        }
    }

    fn evicted(&self, topic: TopicId, through: Lsn) {
        if let Some(topic) = self.lock().get_mut(&topic) {
            topic.memory.retain(|(lsn, _)| *lsn > through);
        }
    }
}

struct TopicSink(TopicId, Arc<Topics>);

impl Sink for TopicSink {
    fn settled(&self, lsn: Lsn, bytes: Bytes, _: &mut Vec<Waker>) {
        if let Some(topic) = self.1.lock().get_mut(&self.0) {
            topic.visible = batches(&bytes).last().map_or(topic.visible, |last| last.last().0);
            topic.memory.push((lsn, bytes));
        }
    }
}

#[derive(Default)]
struct Recovering(BTreeMap<TopicId, Topic>);

impl Recover for Recovering {
    fn restore(&mut self, item: Bytes) -> Result<(), String> {
        let numbers: Vec<u64> = item
            .chunks_exact(8)
            .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes")))
            .collect();
        let [id, next, floor, gone, as_of] = numbers[..] else { return Err("no topic".into()) };
        let as_of = Position(as_of);
        let topic =
            Topic { next, floor, gone: gone != 0, as_of, visible: next - 1, memory: Vec::new() };
        self.0.insert(TopicId(id), topic);
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, entry: Entry) -> Result<(), String> {
        let header = entry.header;
        let fresh = || Topic { next: 1, floor: 1, ..Topic::default() };
        let topic = self.0.entry(header.topic).or_insert_with(fresh);
        let known = header.position <= topic.as_of;
        match header.kind {
            EntryKind::Batch => {
                if !known {
                    if header.seq.0 != topic.next {
                        return Err(format!("{} where {} should be", header.seq, topic.next));
                    }
                    topic.next = header.last_seq().next().0;
                    topic.as_of = header.last_position();
                    topic.visible = header.last_seq().0;
                }
                topic.memory.push((lsn, entry.bytes));
            }
            EntryKind::Floor if !known => {
                topic.floor = header.seq.0;
                topic.as_of = header.position;
            }
            EntryKind::TopicDelete if !known => {
                topic.gone = true;
                topic.as_of = header.position;
            }
            _ => {}
        }
        Ok(())
    }
}

pub struct Store {
    pub journal: Arc<Journal>,
    pub topics: Arc<Topics>,
    pub opened: Opened,
    pub now: Timestamp,
}

/// Opens the store without threads.
pub fn open(fs: &FaultyFs) -> Store {
    try_open(fs).expect("the store opens")
}

pub fn try_open(fs: &FaultyFs) -> Result<Store, OpenError> {
    try_open_with(&folder(fs), JournalOptions::small(), false)
}

pub fn try_open_with(
    folder: &Folder,
    options: JournalOptions,
    flusher_thread: bool,
) -> Result<Store, OpenError> {
    let began = Instant::now();
    let monotonic = Arc::new(move || began.elapsed());
    try_open_parts(folder.parts(new_store(), monotonic, flusher_thread)?, options)
}

pub fn try_open_parts(parts: Parts, options: JournalOptions) -> Result<Store, OpenError> {
    let mut recovering = Recovering::default();
    let (journal, opened) = Journal::open(parts, options, &mut recovering)?;
    let now = opened.last_time.max(Timestamp(1_000_000));
    let topics = Arc::new(Topics(Mutex::new(recovering.0)));
    Ok(Store { journal: Arc::new(journal), topics, opened, now })
}

/// A batch of one topic on its way.
pub type Part = (u64, Vec<Message>);

impl Store {
    /// Appends all parts as one; tells where each begins.
    pub fn append(
        &self,
        parts: &[Part],
        required: Durability,
        wanted: Durability,
    ) -> Result<(Ticket, Vec<(Seq, Position)>), BeginError> {
        let records: Vec<_> = parts
            .iter()
            .map(|(topic, messages)| {
                let mut builder = RecordsBuilder::default();
                messages.iter().for_each(|each| builder.push(each).expect("a good message"));
                (TopicId(*topic), builder.finish())
            })
            .collect();
        let bytes = records.iter().map(|(_, records)| 64 + records.bytes.len()).sum();
        let mut topics = self.topics.lock();
        let mut append = self.journal.begin(bytes)?;
        let time = append.time(self.now);
        let mut places = Vec::new();
        for (id, records) in &records {
            let fresh = || Topic { next: 1, floor: 1, ..Topic::default() };
            let topic = topics.entry(*id).or_insert_with(fresh);
            let sink: Arc<dyn Sink> = Arc::new(TopicSink(*id, Arc::clone(&self.topics)));
            let seq = Seq(topic.next);
            let crc = checksum(&records.bytes);
            let position = append.batch((*id, seq), time, (records, crc), &sink);
            topic.next += u64::from(records.count);
            topic.as_of = position.plus(u64::from(records.count) - 1);
            places.push((seq, position));
        }
        Ok((append.finish(required, wanted), places))
    }

    /// Publishes one message and makes it durable; tells its seq and position.
    pub fn publish(&self, topic: u64, message: Message) -> (Seq, Position) {
        let (ticket, places) =
            self.append(&[(topic, vec![message])], FLUSHED, FLUSHED).expect("there is room");
        self.journal.turn();
        assert_eq!(ready(ticket), Some(Ok(FLUSHED)));
        places[0]
    }

    /// Publishes `count` messages with bodies of about `bytes`, each durable.
    pub fn fill(&self, topic: u64, count: u64, bytes: usize) {
        for _ in 0..count {
            let seq = self.topics.lock().get(&TopicId(topic)).map_or(1, |topic| topic.next);
            self.publish(topic, Message::new(body(topic, seq, bytes)));
        }
    }

    fn entry(&self, kind: EntryKind, topic: u64, seq: u64, change: impl FnOnce(&mut Topic)) {
        let mut topics = self.topics.lock();
        let mut append = self.journal.begin_freeing(64).expect("there is room");
        let time = append.time(self.now);
        let header =
            EntryHeader { topic: TopicId(topic), seq: Seq(seq), time, ..EntryHeader::new(kind) };
        let position = append.entry(header, &[]);
        let topic = topics.get_mut(&TopicId(topic)).expect("the topic exists");
        change(topic);
        topic.as_of = position;
        let ticket = append.finish(FLUSHED, FLUSHED);
        drop(topics);
        self.journal.turn();
        assert_eq!(ready(ticket), Some(Ok(FLUSHED)));
    }

    pub fn raise_floor(&self, topic: u64, floor: u64) {
        self.entry(EntryKind::Floor, topic, floor, |topic| topic.floor = floor);
        self.journal.note_dead();
    }

    pub fn delete(&self, topic: u64) {
        self.entry(EntryKind::TopicDelete, topic, 0, |topic| topic.gone = true);
        self.journal.note_dead();
    }

    pub fn seal(&self) {
        self.journal.seal(&*self.topics, self.now).expect("sealed");
    }

    pub fn compact(&self) {
        self.journal.compact(&*self.topics, self.now).expect("compacted");
    }

    pub fn keep(&self) -> gapless_journal::Kept {
        self.journal.keep(&*self.topics, self.now).expect("kept")
    }

    pub fn close(self) {
        let journal = Arc::into_inner(self.journal).expect("it has one owner");
        journal.close().expect("closed");
    }

    /// Ends without a word, as a crash of the process does.
    pub fn abandon(self) {
        Arc::into_inner(self.journal).expect("it has one owner").abandon();
    }

    /// All messages of a topic from `from` on; every seq is accounted for, or it panics.
    pub fn read(&self, topic: u64, from: u64) -> Vec<(u64, Message)> {
        self.try_read(topic, from, 4096).expect("history can be read")
    }

    pub fn try_read(
        &self,
        topic: u64,
        from: u64,
        step: usize,
    ) -> Result<Vec<(u64, Message)>, ReadError> {
        let mut next = from;
        let mut messages = Vec::new();
        loop {
            let (last, memory) = {
                let topics = self.topics.lock();
                let found = &topics[&TopicId(topic)];
                (found.visible, found.memory.clone())
            };
            if next > last {
                return Ok(messages);
            }
            let memory: Vec<Batch> = memory.iter().flat_map(|(_, bytes)| batches(bytes)).collect();
            let here = memory.iter().position(|batch| batch.last().0 >= next);
            let in_memory = here.filter(|&at| memory[at].first().0 <= next);
            let found = match in_memory {
                Some(at) => memory[at..].to_vec(),
                None => {
                    let range = (Seq(next), Seq(last));
                    let pending = self.journal.read_topic(TopicId(topic), range, step);
                    block_on(pending)??.iter().flat_map(batches).collect()
                }
            };
            assert!(!found.is_empty(), "topic {topic}: {next} of {last} is nowhere");
            for batch in found {
                assert!(
                    batch.first().0 <= next && batch.last().0 >= next,
                    "topic {topic}: {}..={} where {next} should be",
                    batch.first(),
                    batch.last()
                );
                for record in batch.records() {
                    let seq = batch.seq_of(&record).0;
                    if seq >= next {
                        messages.push((seq, batch.message(&record)));
                    }
                }
                next = batch.last().0 + 1;
            }
        }
    }

    /// The seqs of a topic that can be read.
    pub fn seqs(&self, topic: u64) -> Vec<u64> {
        let floor = self.topics.lock()[&TopicId(topic)].floor;
        self.read(topic, floor).into_iter().map(|(seq, _)| seq).collect()
    }

    /// All batches of the wanted topics at and after `from`, in the order they come:
    /// history first, then memory. `step` says how many bytes to read at once.
    pub fn follow(
        &self,
        from: Position,
        wanted: &[u64],
        mut step: impl FnMut() -> usize,
    ) -> Vec<Batch> {
        let topics: Vec<u64> = wanted.to_vec();
        let wanted: Arc<dyn Fn(TopicId) -> bool + Send + Sync> =
            Arc::new(move |topic| topics.contains(&topic.0));
        let mut reader = PatternReader::new(from);
        let mut found: Vec<Batch> = Vec::new();
        loop {
            match self.journal.tail(reader.next(), step(), (1, Waker::noop())) {
                TailRead::Wait => return found,
                TailRead::Frames { frames, last: through } => {
                    let mut last = reader.next();
                    for frame in frames {
                        for entry in entries(&frame) {
                            let next = entry.header.last_position().next();
                            if next > last {
                                last = next;
                                found.extend(
                                    Batch::new(entry).filter(|batch| wanted(batch.header().topic)),
                                );
                            }
                        }
                    }
                    assert!(last <= through.next(), "no entry lies beyond the last position");
                    assert!(through >= reader.next(), "the tail makes progress");
                    reader = PatternReader::new(through.next());
                }
                TailRead::Behind => {
                    let before = reader.next();
                    let (after, read) =
                        block_on(self.journal.read_pattern(reader, Arc::clone(&wanted), step()))
                            .expect("the pool is open");
                    let read = read.expect("history can be read");
                    assert!(after.next() > before || !read.is_empty(), "stuck at {before}");
                    found.extend(read.iter().flat_map(batches));
                    reader = after;
                }
            }
        }
    }
}

pub fn entries(bytes: &Bytes) -> Vec<Entry> {
    let mut rest = bytes.clone();
    let mut found = Vec::new();
    while !rest.is_empty() {
        found.push(Entry::take(&mut rest, checksum).expect("whole entries"));
    }
    found
}

pub fn batches(bytes: &Bytes) -> Vec<Batch> {
    entries(bytes).into_iter().filter_map(Batch::new).collect()
}

/// A body that tells where it belongs.
pub fn body(topic: u64, seq: u64, bytes: usize) -> Vec<u8> {
    let mut body = format!("{topic}/{seq}/").into_bytes();
    body.resize(body.len().max(bytes), b'.');
    body
}

/// What a future says when it is asked once.
pub fn ready<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future, but not for ever.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let began = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = DEADLINE.checked_sub(began.elapsed()).expect("it ends before the deadline");
        std::thread::park_timeout(left);
    }
}

/// Waits until something holds, but not for ever.
pub fn eventually(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "it holds before the deadline");
        std::thread::yield_now();
    }
}

/// The files of the store's blobs whose names begin so.
pub fn blobs(fs: &FaultyFs, prefix: &str) -> Vec<PathBuf> {
    files_in(fs, BLOBS_FOLDER, prefix)
}

/// The files of the store's log.
pub fn log_files(fs: &FaultyFs) -> Vec<PathBuf> {
    let mut files = files_in(fs, LOG_FOLDER, "");
    files.retain(|path| path.extension().is_some_and(|end| end == "log"));
    files
}

fn files_in(fs: &FaultyFs, dir: &str, prefix: &str) -> Vec<PathBuf> {
    let dir = root().join(dir);
    let named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.parent() == Some(&dir) && name.starts_with(prefix)
    };
    fs.files().into_iter().map(|(path, _)| path).filter(named).collect()
}
