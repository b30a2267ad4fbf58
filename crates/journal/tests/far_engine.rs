//! A journal whose log and blobs are behind a network: every call takes 50 ms, so what counts is
//! how many calls are made one after the other, and which threads wait for them.

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use gapless_core::{Message, TopicId};
use gapless_journal::blobs::{Blob, BlobError, BlobWriter, Blobs};
use gapless_journal::log::{AppendError, Floor, Log, LogError, LogWriter, Lsn, Prepare, TakeOver};
use gapless_journal::memory::{MemoryBlobs, MemoryLog};
use gapless_journal::{JournalOptions, Parts, TailRead, Ticket};

const DELAY: Duration = Duration::from_millis(50);
/// What a range of an object store brings about as fast as one byte.
const STEP_BYTES: usize = 256 * 1024;
const AT_ONCE: usize = 16;

/// What was asked of the engine.
#[derive(Debug, Default)]
struct Asked {
    appends: AtomicUsize,
    frames: AtomicUsize,
    append_threads: Mutex<BTreeSet<String>>,
    opening: AtomicUsize,
    opened_together: AtomicUsize,
    reads: AtomicUsize,
}

impl Asked {
    fn append(&self, frames: usize) {
        self.appends.fetch_add(1, Ordering::SeqCst);
        self.frames.fetch_add(frames, Ordering::SeqCst);
        let name = thread::current().name().unwrap_or("?").to_owned();
        self.append_threads.lock().expect("no thread panicked").insert(name);
        thread::sleep(DELAY);
    }

    fn appends(&self) -> usize {
        self.appends.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Clone)]
struct FarLog(MemoryLog, Arc<Asked>);

impl Log for FarLog {
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError> {
        let taken = self.0.take_over(floor)?;
        Ok(TakeOver { writer: Box::new(FarWriter(taken.writer, Arc::clone(&self.1))), ..taken })
    }
}

#[derive(Debug)]
struct FarWriter(Box<dyn LogWriter>, Arc<Asked>);

impl LogWriter for FarWriter {
    fn next(&self) -> Lsn {
        self.0.next()
    }

    fn frame_bytes_max(&self) -> usize {
        self.0.frame_bytes_max()
    }

    fn append(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.1.append(1);
        self.0.append(at, frame)
    }

    fn append_all(
        &mut self,
        at: Lsn,
        frames: &[Bytes],
        flushed: bool,
    ) -> (usize, Result<(), AppendError>) {
        self.1.append(frames.len());
        self.0.append_all(at, frames, flushed)
    }

    fn flush(&mut self) -> Result<(), AppendError> {
        self.0.flush()
    }

    fn trim(&mut self, below: Lsn) -> Result<(), AppendError> {
        self.0.trim(below)
    }

    fn preparer(&self) -> Option<Arc<dyn Prepare>> {
        None
    }
}

#[derive(Debug, Clone)]
struct FarBlobs(MemoryBlobs, Arc<Asked>);

impl Blobs for FarBlobs {
    fn opened_at_once(&self) -> usize {
        AT_ONCE
    }

    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        self.0.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        let together = self.1.opening.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.opened_together.fetch_max(together, Ordering::SeqCst);
        thread::sleep(DELAY);
        self.1.opening.fetch_sub(1, Ordering::SeqCst);
        Ok(Arc::new(FarBlob(self.0.open(name)?, Arc::clone(&self.1))))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        self.0.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.0.delete(name)
    }
}

#[derive(Debug)]
struct FarBlob(Arc<dyn Blob>, Arc<Asked>);

impl Blob for FarBlob {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn step_bytes(&self) -> usize {
        STEP_BYTES
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        self.1.reads.fetch_add(1, Ordering::SeqCst);
        self.0.read_at(buf, offset)
    }
}

#[derive(Default)]
struct Engine {
    log: MemoryLog,
    blobs: MemoryBlobs,
    asked: Arc<Asked>,
}

impl Engine {
    fn open(&self, options: JournalOptions) -> Store {
        let (new_epoch, new_secret) = new_store();
        let log = FarLog(self.log.clone(), Arc::clone(&self.asked));
        let began = Instant::now();
        let parts = Parts {
            blobs: Arc::new(FarBlobs(self.blobs.clone(), Arc::clone(&self.asked))),
            log: Box::new(move |_| Arc::new(log)),
            new_epoch,
            new_secret,
            monotonic: Arc::new(move || began.elapsed()),
            flusher_thread: true,
        };
        try_open_parts(parts, options).expect("the store opens")
    }
}

fn wait_for(tickets: impl IntoIterator<Item = Ticket>) {
    for ticket in tickets {
        block_on(ticket).expect("appended");
    }
}

fn message(bytes: usize) -> Vec<Part> {
    vec![(1, vec![Message::new(vec![b'x'; bytes])])]
}

#[test]
fn appends_to_a_far_log_are_never_made_by_a_thread_that_polls() {
    let engine = Engine::default();
    let store = engine.open(JournalOptions::default());
    for durability in [WRITTEN, FLUSHED, WRITTEN] {
        let (ticket, _) = store.append(&message(10), durability, durability).unwrap();
        assert!(!ticket.may_lead(), "a connection must not lead it either");
        block_on(ticket).expect("appended");
    }
    let threads = engine.asked.append_threads.lock().unwrap().clone();
    assert_eq!(threads, BTreeSet::from(["flusher".to_owned()]));
}

#[test]
fn a_thousand_publishes_in_flight_share_each_append() {
    const IN_FLIGHT: usize = 1_000;
    const ROUNDS: usize = 10;
    let engine = Engine::default();
    let store = engine.open(JournalOptions::default());
    let mut tickets: VecDeque<Ticket> = VecDeque::new();
    for _ in 0..IN_FLIGHT * ROUNDS {
        if tickets.len() == IN_FLIGHT {
            block_on(tickets.pop_front().expect("it is full")).expect("appended");
        }
        tickets.push_back(store.append(&message(128), FLUSHED, FLUSHED).unwrap().0);
    }
    wait_for(tickets);
    // The delay alone explains one append per window. While one is under way the next gathers
    // whatever was acked before it, so a window may be cut in two, but no further.
    let appends = engine.asked.appends();
    assert!(appends <= 2 * ROUNDS, "{appends} appends for {ROUNDS} windows");
}

#[test]
fn frames_that_have_gathered_meanwhile_go_out_in_one_call() {
    let engine = Engine::default();
    let store = engine.open(JournalOptions { frame_bytes: 4096, ..JournalOptions::default() });
    let tickets: Vec<_> =
        (0..64).map(|_| store.append(&message(1_000), WRITTEN, WRITTEN).unwrap().0).collect();
    wait_for(tickets);
    let (appends, frames) = (engine.asked.appends(), engine.asked.frames.load(Ordering::SeqCst));
    assert!(frames >= 3 * appends, "{frames} frames in {appends} appends");
}

#[test]
fn a_live_reader_waits_for_one_append_and_nothing_else() {
    let engine = Engine::default();
    let store = engine.open(JournalOptions::default());
    let from = store.journal.next_position();
    let before = engine.asked.appends();
    let (ticket, _) = store.append(&message(10), FLUSHED, FLUSHED).unwrap();
    block_on(ticket).expect("appended");
    let seen = store.journal.tail(from, 1 << 20, (1, std::task::Waker::noop()));
    assert!(matches!(seen, TailRead::Frames { .. }), "acked means visible");
    assert_eq!(engine.asked.appends() - before, 1);
}

#[test]
fn segments_of_a_far_store_are_opened_at_the_same_time() {
    let engine = Engine::default();
    let store = engine.open(JournalOptions::small());
    for topic in 1..=2 * AT_ONCE as u64 {
        let (ticket, _) =
            store.append(&[(topic, vec![Message::new("x")])], FLUSHED, FLUSHED).unwrap();
        block_on(ticket).expect("appended");
        store.seal();
    }
    let segments = engine.blobs.list("seg").unwrap().len();
    store.close();
    engine.asked.opened_together.store(0, Ordering::SeqCst);
    let store = engine.open(JournalOptions::small());
    assert_eq!(store.seqs(1), [1]);
    let together = engine.asked.opened_together.load(Ordering::SeqCst);
    assert!(together > AT_ONCE / 2, "{segments} blobs of segments, {together} at the same time");
}

#[test]
fn a_look_up_in_a_far_index_asks_for_few_ranges() {
    const MESSAGES: u64 = 2_000;
    let engine = Engine::default();
    // Blocks so small that the index has many rows.
    let options = JournalOptions { block_bytes: 256, ..JournalOptions::default() };
    let store = engine.open(options);
    let messages = (0..MESSAGES).map(|_| message(200).remove(0)).collect::<Vec<_>>();
    for part in messages.chunks(100) {
        let tickets: Vec<_> = part
            .iter()
            .map(|part| store.append(std::slice::from_ref(part), FLUSHED, FLUSHED).unwrap().0)
            .collect();
        wait_for(tickets);
    }
    store.seal();
    let before = engine.asked.reads.load(Ordering::SeqCst);
    let range = (gapless_core::Seq(MESSAGES / 2), gapless_core::Seq(MESSAGES / 2));
    let read = store.journal.read_topic(TopicId(1), range, 4096);
    assert!(!block_on(read).expect("the pool is open").expect("history can be read").is_empty());
    let reads = engine.asked.reads.load(Ordering::SeqCst) - before;
    assert!(reads <= 4, "{reads} ranges were asked for");
}
