//! A journal on a disk that is full, or in a process that has no file descriptor left: what is
//! let in is written, the rest is refused at once, and what frees room passes.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use common::*;
use gapless_core::{EntryHeader, EntryKind, Message, Seq, TopicId};
use gapless_journal::faulty::{CrashKind, FaultyFs};
use gapless_journal::log::{AppendError, Floor, Log, LogError, LogWriter, Lsn, Prepare, TakeOver};
use gapless_journal::{BeginError, Failure, JournalOptions};

/// Publishes to topics 1 and 2 in turn until something is refused; tells why, and how many
/// were taken. Each that was taken is durable at once.
fn fill_up(store: &Store) -> (BeginError, u64) {
    for taken in 0..2000 {
        match store.append(&one(1 + taken % 2, 3000), FLUSHED, FLUSHED) {
            Ok((ticket, _)) => {
                store.journal.turn();
                assert_eq!(ready(ticket), Some(Ok(FLUSHED)), "what is let in is written");
            }
            Err(BeginError::Busy { .. }) => store.journal.turn(),
            Err(error) => return (error, taken),
        }
        // What cannot be done for want of room is tried again.
        let _ = store.journal.keep(&*store.topics, store.now);
    }
    panic!("nothing was ever refused");
}

fn full_store(fs: &FaultyFs) -> (Store, u64) {
    let store = open(fs);
    store.fill(1, 1, 100);
    store.fill(2, 1, 100);
    store.keep();
    fs.set_capacity(Some(fs.used_bytes() + 900 * 1024));
    let (refused, taken) = fill_up(&store);
    assert_eq!(refused, BeginError::Full);
    assert!(taken > 50, "only {taken} were taken");
    (store, taken)
}

#[test]
fn h4_full_disk_refuses_at_once_keeps_all_and_goes_on_by_itself() {
    let fs = FaultyFs::new(4);
    let (store, _) = full_store(&fs);
    assert!(store.journal.stats().full);
    let before = (store.seqs(1), store.seqs(2));
    fs.set_capacity(None);
    store.keep();
    store.journal.turn();
    assert!(!store.journal.stats().full);
    store.fill(1, 1, 10);
    assert_eq!(store.seqs(1).len(), before.0.len() + 1);
    store.abandon();
    fs.crash(CrashKind::Power);
    let store = open(&fs);
    assert_eq!((store.seqs(1).len(), store.seqs(2)), (before.0.len() + 1, before.1));
}

#[test]
fn h4_floor_passes_on_a_full_disk_and_gives_its_room_back() {
    let fs = FaultyFs::new(5);
    let (store, _) = full_store(&fs);
    let kept = store.seqs(2);
    let (used, next) = (fs.used_bytes(), store.topics.lock()[&TopicId(1)].next);
    store.raise_floor(1, next);
    for _ in 0..20 {
        store.keep();
        store.journal.turn();
    }
    assert!(used - fs.used_bytes() > 200 * 1024, "{used} before, {} after", fs.used_bytes());
    assert!(!store.journal.stats().full);
    store.fill(2, 20, 3000);
    assert_eq!(store.seqs(2).len(), kept.len() + 20);
    store.abandon();
    fs.crash(CrashKind::Power);
    let store = open(&fs);
    assert_eq!(store.seqs(2).len(), kept.len() + 20);
    assert!(store.seqs(1).is_empty());
}

#[test]
fn h4_deletion_frees_a_disk_that_others_have_filled_to_the_last_byte() {
    let fs = FaultyFs::new(6);
    let (store, _) = full_store(&fs);
    let kept = store.seqs(2);
    // Nothing is free now, not even what the journal leaves.
    fs.set_capacity(Some(fs.used_bytes()));
    store.delete(1);
    for _ in 0..20 {
        store.keep();
        store.journal.turn();
    }
    assert!(!store.journal.stats().full, "{} used", fs.used_bytes());
    store.fill(2, 5, 3000);
    store.close();
    let store = open(&fs);
    assert_eq!(store.seqs(2).len(), kept.len() + 5);
}

#[test]
fn h4_reserve_is_for_what_frees_room_and_is_filled_again() {
    let fs = FaultyFs::new(7);
    let (store, _) = full_store(&fs);
    // Small ones fit the last file for a while.
    while let Ok((ticket, _)) = store.append(&one(1, 10), FLUSHED, FLUSHED) {
        store.journal.turn();
        assert_eq!(ready(ticket), Some(Ok(FLUSHED)));
    }
    let mut passed = 0;
    while let Ok(mut append) = store.journal.begin_freeing(64) {
        let header =
            EntryHeader { topic: TopicId(1), seq: Seq(1), ..EntryHeader::new(EntryKind::Floor) };
        append.entry(header, &[]);
        let ticket = append.finish(FLUSHED, FLUSHED);
        store.journal.turn();
        assert_eq!(ready(ticket), Some(Ok(FLUSHED)));
        assert_eq!(store.journal.begin(64).err(), Some(BeginError::Full), "after {passed}");
        passed += 1;
        assert!(passed < 1000, "the reserve has no end");
    }
    assert!(passed >= 8, "the reserve took only {passed}");
    fs.set_capacity(None);
    store.keep();
    store.journal.turn();
    store.fill(2, 1, 3000);
    store.keep();
    fs.set_capacity(Some(fs.used_bytes()));
    assert!(store.journal.begin_freeing(64).is_ok());
}

#[test]
fn h4_close_on_a_full_disk_keeps_all_that_was_taken() {
    let fs = FaultyFs::new(8);
    let (store, _) = full_store(&fs);
    fs.set_capacity(Some(fs.used_bytes()));
    let before = (store.seqs(1), store.seqs(2));
    store.close();
    let store = open(&fs);
    assert!(store.opened.clean);
    assert_eq!((store.seqs(1), store.seqs(2)), before);
}

/// A log on a disk that copies on write: also a file that is there needs room to be written.
#[derive(Debug)]
struct CopiesOnWrite {
    log: Arc<dyn Log>,
    full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct CopyingWriter {
    writer: Box<dyn LogWriter>,
    full: Arc<AtomicBool>,
}

impl Log for CopiesOnWrite {
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError> {
        let taken = self.log.take_over(floor)?;
        let writer = CopyingWriter { writer: taken.writer, full: Arc::clone(&self.full) };
        Ok(TakeOver { writer: Box::new(writer), ..taken })
    }
}

impl LogWriter for CopyingWriter {
    fn next(&self) -> Lsn {
        self.writer.next()
    }

    fn frame_bytes_max(&self) -> usize {
        self.writer.frame_bytes_max()
    }

    fn settle(&mut self) -> Result<(), LogError> {
        self.writer.settle()
    }

    fn append(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(AppendError::Full);
        }
        self.writer.append(at, frame)
    }

    fn flush(&mut self) -> Result<(), AppendError> {
        self.writer.flush()
    }

    fn trim(&mut self, below: Lsn) -> Result<(), AppendError> {
        self.writer.trim(below)
    }

    fn preparer(&self) -> Option<Arc<dyn Prepare>> {
        self.writer.preparer()
    }
}

#[test]
fn h4_those_who_wait_are_told_when_the_disk_refuses_what_was_let_in() {
    let full = Arc::new(AtomicBool::new(false));
    let mut parts =
        folder(&FaultyFs::new(9)).parts(new_store(), Arc::new(Default::default), true).unwrap();
    let (make, refuses) = (parts.log, Arc::clone(&full));
    parts.log = Box::new(move |epoch| Arc::new(CopiesOnWrite { log: make(epoch), full: refuses }));
    let store = try_open_parts(parts, JournalOptions::small()).unwrap();
    store.fill(1, 1, 100);
    full.store(true, Ordering::SeqCst);
    let (awaited, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    assert_eq!(block_on(awaited), Err(Failure::Unwritten));
    assert_eq!(store.journal.begin(10).err(), Some(BeginError::Full));
    full.store(false, Ordering::SeqCst);
    eventually(|| !store.journal.stats().full);
    assert_eq!(store.journal.failure(), None);
    let (ticket, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    assert_eq!(block_on(ticket), Ok(FLUSHED));
    assert_eq!(store.seqs(1), [1, 2, 3], "what was not certain is there in its place");
}

#[test]
fn h5_without_file_descriptors_appends_are_refused_and_go_on_when_there_are_some() {
    let fs = FaultyFs::new(10);
    let store = open(&fs);
    store.fill(1, 1, 100);
    fs.set_open_files_max(Some(fs.open_files()));
    let (refused, taken) = fill_up(&store);
    assert!(matches!(refused, BeginError::Held { .. }), "{refused:?}");
    assert_eq!(store.journal.failure(), None, "nothing was written, so nothing is in doubt");
    fs.set_open_files_max(None);
    store.keep();
    store.journal.turn();
    store.fill(1, 1, 3000);
    assert_eq!((store.seqs(1).len() + store.seqs(2).len()) as u64, taken + 2);
    let files: Vec<_> = fs.files().into_iter().map(|(path, _)| path).collect();
    assert!(!files.iter().any(|path| path.extension().is_some_and(|ext| ext == "new")));
    store.close();
}

#[test]
fn h5_history_of_any_length_needs_few_descriptors() {
    let fs = FaultyFs::new(11);
    let mut options = JournalOptions::small();
    // Never merged, so that there are many segments.
    options.merged_bytes_max = 1;
    let mut store = try_open_with(&folder(&fs), options, false).unwrap();
    let max = gapless_journal::OPEN_FILES_MAX as u64;
    for _ in 0..max {
        store.fill(1, 1, 100);
        store.now.0 += 1;
        store.seal();
    }
    assert!(store.journal.stats().segments >= max);
    assert_eq!(store.seqs(1).len() as u64, max);
    let log_and_locks = 16;
    assert!(fs.open_files() <= max + log_and_locks, "{} are open", fs.open_files());
}

/// A message of so many bytes for a topic.
fn one(topic: u64, bytes: usize) -> Vec<Part> {
    vec![(topic, vec![Message::new(vec![7; bytes])])]
}
