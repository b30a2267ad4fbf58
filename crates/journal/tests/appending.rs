//! What an append promises: its durability, its company in a flush, and what becomes of it
//! when the disk is full, slow or broken.

mod common;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Wake, Waker};

use common::*;
use gapless_core::{EntryHeader, EntryKind, Message, RecordsBuilder, Seq, TopicId};
use gapless_journal::faulty::{CrashKind, FaultyFs, Times};
use gapless_journal::file_log::FileLogOptions;
use gapless_journal::fs::DiskFs;
use gapless_journal::layout::Folder;
use gapless_journal::{BeginError, Failure, JournalOptions, KeepError, Sink, TailRead, checksum};

fn one(topic: u64, bytes: usize) -> Vec<Part> {
    vec![(topic, vec![Message::new(vec![b'x'; bytes])])]
}

#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (Arc::clone(&count), Waker::from(count))
}

#[test]
fn ack_waits_for_flush() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    let (mut ticket, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    assert_eq!(ready(&mut ticket), None);
    let syncs = fs.syncs();
    store.journal.turn();
    assert!(fs.syncs() > syncs);
    assert_eq!(ready(&mut ticket), Some(Ok(FLUSHED)));
}

#[test]
fn a_little_that_is_to_be_written_only_is_written_by_who_asks_first() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    store.fill(1, 1, 10);
    let (ticket, _) = store.append(&one(1, 10), WRITTEN, WRITTEN).unwrap();
    let syncs = fs.syncs();
    assert_eq!(ready(ticket), Some(Ok(WRITTEN)));
    assert_eq!(fs.syncs(), syncs, "no flush was asked for");
    store.journal.flush();
    let (ticket, _) = store.append(&[], FLUSHED, FLUSHED).unwrap();
    assert_eq!(ready(ticket), Some(Ok(FLUSHED)), "nothing is left to flush");
}

#[test]
fn ack_of_a_written_append_waits_for_much_and_for_the_flush_of_others() {
    let store = open(&FaultyFs::new(1));
    let (mut much, _) = store.append(&one(1, 100_000), WRITTEN, WRITTEN).unwrap();
    assert_eq!(ready(&mut much), None);
    store.journal.turn();
    assert_eq!(ready(&mut much), Some(Ok(WRITTEN)));
    let (mut flushed, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    let (mut written, _) = store.append(&one(1, 10), WRITTEN, WRITTEN).unwrap();
    assert_eq!((ready(&mut written), ready(&mut flushed)), (None, None));
    written.lead();
    assert_eq!((ready(&mut written), ready(&mut flushed)), (Some(Ok(FLUSHED)), Some(Ok(FLUSHED))));
}

#[test]
fn ack_of_a_memory_append_is_there_at_once() {
    let store = open(&FaultyFs::new(1));
    let (ticket, _) = store.append(&one(1, 10), MEMORY, MEMORY).unwrap();
    assert_eq!(ready(ticket), Some(Ok(MEMORY)));
}

#[test]
fn nothing_is_visible_before_its_durability_is_reached() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    store.append(&one(1, 10), FLUSHED, MEMORY).unwrap();
    let journal = Arc::clone(&store.journal);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    fs.on_sync(Some(Arc::new(move || {
        noted.lock().unwrap().push(journal.last_settled());
    })));
    store.journal.turn();
    fs.on_sync(None);
    assert!(!seen.lock().unwrap().is_empty());
    assert!(seen.lock().unwrap().iter().all(|position| position.0 == 0));
    assert_eq!(store.journal.last_settled().0, 1);
    assert_eq!(store.seqs(1), [1]);
}

#[test]
fn many_publishers_share_one_flush() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    store.fill(1, 1, 10);
    let syncs = fs.syncs();
    let tickets: Vec<_> = (0..200)
        .map(|topic| store.append(&one(topic % 7, 20), FLUSHED, FLUSHED).unwrap().0)
        .collect();
    store.journal.turn();
    assert!(tickets.into_iter().all(|ticket| ready(ticket) == Some(Ok(FLUSHED))));
    assert!(fs.syncs() - syncs <= 2, "{} flushes for 200 appends", fs.syncs() - syncs);
}

#[test]
fn append_that_is_dropped_leaves_nothing() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    let (kept, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    let next = store.journal.next_position();
    let mut records = RecordsBuilder::default();
    records.push(&Message::new("never")).unwrap();
    let records = records.finish();
    struct Unheard;
    impl Sink for Unheard {
        fn settled(&self, _: gapless_journal::Lsn, _: bytes::Bytes, _: &mut Vec<Waker>) {
            panic!("it was never appended");
        }
    }
    let sink: Arc<dyn Sink> = Arc::new(Unheard);
    let mut append = store.journal.begin(500).unwrap();
    let crc = checksum(&records.bytes);
    let time = append.time(store.now);
    append.batch((TopicId(1), Seq(2)), time, (&records, crc), &sink);
    append.entry(EntryHeader::new(EntryKind::Cell), b"half");
    drop(append);
    assert_eq!(store.journal.next_position(), next);
    store.journal.turn();
    assert_eq!(ready(kept), Some(Ok(FLUSHED)));
    store.abandon();
    assert_eq!(open(&fs).seqs(1), [1]);
}

#[test]
#[should_panic(expected = "in an append of 64")]
fn append_that_is_larger_than_it_said_is_a_bug() {
    let store = open(&FaultyFs::new(1));
    let mut append = store.journal.begin(64).unwrap();
    append.entry(EntryHeader::new(EntryKind::Cell), b"too much");
    append.finish(FLUSHED, FLUSHED);
}

#[test]
fn append_that_fits_no_frame_is_refused_before_anything_is_written() {
    let store = open(&FaultyFs::new(1));
    let refused = store.journal.begin(300 * 1024).err();
    assert!(matches!(refused, Some(BeginError::TooLarge { .. })), "{refused:?}");
    store.fill(1, 1, 200 * 1024);
    assert_eq!(store.seqs(1), [1]);
}

#[test]
fn failed_flush_poisons_and_everybody_who_waits_learns_it() {
    for seed in 0..20 {
        let fs = FaultyFs::new(seed);
        let store = open(&fs);
        store.fill(1, 5, 100);
        let (count, waker) = counter();
        let mut tickets: Vec<_> =
            (0..10).map(|_| store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap().0).collect();
        for ticket in &mut tickets {
            let polled = std::pin::Pin::new(ticket).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        fs.fail_sync(1, ErrorKind::Other, Times::Once);
        store.journal.turn();
        assert_eq!(count.0.load(Ordering::SeqCst), 10);
        for ticket in tickets {
            assert!(matches!(ready(ticket), Some(Err(Failure::Poisoned { .. }))));
        }
        let refused = store.journal.begin(100).err();
        assert!(matches!(refused, Some(BeginError::Failed(Failure::Poisoned { .. }))));
        let kept = store.journal.seal(&*store.topics, store.now);
        assert!(matches!(kept, Err(KeepError::Failed(_))), "{kept:?}");
        let writes = fs.writes();
        store.journal.turn();
        assert_eq!(fs.writes(), writes, "nothing is tried again");
        store.abandon();
        fs.crash(CrashKind::Power);
        let store = open(&fs);
        let seqs = store.seqs(1);
        assert!(seqs.len() >= 5 && seqs.iter().copied().eq(1..=seqs.len() as u64), "{seqs:?}");
        store.fill(1, 1, 10);
    }
}

#[test]
fn failed_write_poisons_too() {
    let fs = FaultyFs::new(3);
    let store = open(&fs);
    store.fill(1, 5, 100);
    fs.fail_write(1, ErrorKind::Other, Times::Once);
    let (ticket, _) = store.append(&one(1, 10), WRITTEN, WRITTEN).unwrap();
    assert!(matches!(ticket.wait(), Err(Failure::Poisoned { .. })));
    assert!(store.journal.failure().is_some());
    store.abandon();
    assert!(open(&fs).seqs(1).len() >= 5);
}

#[test]
fn busy_when_too_much_waits_and_room_wakes() {
    let fs = FaultyFs::new(7);
    let store = open(&fs);
    let mut accepted = 0;
    let refused = loop {
        match store.append(&one(1, 1000), FLUSHED, FLUSHED) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, BeginError::Busy { .. }));
    let max = JournalOptions::small().waiting_bytes_max as u64;
    assert!(store.journal.stats().waiting_bytes <= max);
    let (count, waker) = counter();
    store.journal.wait_for_room(&waker);
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    store.journal.turn();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    store.fill(1, 1, 1000);
    assert_eq!(store.seqs(1).len(), accepted + 1);
}

#[test]
fn room_that_was_made_before_somebody_waited_for_it_wakes_too() {
    let store = open(&FaultyFs::new(8));
    let (count, waker) = counter();
    store.journal.wait_for_room(&waker);
    store.journal.turn();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    let journal = Arc::clone(&store.journal);
    drop(store);
    journal.wait_for_room(&waker);
    let journal = Arc::into_inner(journal).unwrap();
    journal.close().unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 2, "the end wakes as well");
}

#[test]
fn reader_that_waits_is_woken_by_the_next_frame_and_one_that_left_is_forgotten() {
    let store = open(&FaultyFs::new(8));
    let (stays, stays_waker) = counter();
    let (leaves, leaves_waker) = counter();
    let next = store.journal.next_position();
    for (reader, waker) in [(1, &stays_waker), (2, &leaves_waker)] {
        let read = store.journal.tail(next, 100, (reader, waker));
        assert!(matches!(read, TailRead::Wait));
    }
    store.journal.forget_reader(2);
    store.fill(1, 1, 10);
    let woken = [stays, leaves].map(|count| count.0.load(Ordering::SeqCst));
    assert_eq!(woken, [1, 0]);
}

#[test]
fn busy_while_too_much_is_in_no_segment_and_keeping_makes_room() {
    let fs = FaultyFs::new(9);
    // Sealing would be due far too late, and must be early enough nevertheless.
    let options = JournalOptions { seal_bytes: u64::MAX, ..JournalOptions::small() };
    let store = try_open_with(&folder(&fs), options, false).unwrap();
    let refused = loop {
        match store.append(&one(1, 5000), FLUSHED, FLUSHED) {
            Ok(_) => store.journal.turn(),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, BeginError::Busy { .. }));
    let (count, waker) = counter();
    store.journal.wait_for_room(&waker);
    store.journal.turn();
    assert_eq!(count.0.load(Ordering::SeqCst), 0, "a turn alone does not help");
    assert!(store.keep().sealed);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    store.fill(1, 1, 10);
}

#[test]
fn tail_is_bounded_after_keeping() {
    let fs = FaultyFs::new(10);
    let store = open(&fs);
    let options = JournalOptions::small();
    for _ in 0..300 {
        store.fill(1, 1, 3000);
        store.keep();
        // What is in no segment is at most what a seal waits for, and one frame.
        let most = options.tail_bytes.max(options.seal_bytes + 8192);
        assert!(store.journal.stats().tail_bytes <= most);
    }
    assert!(store.journal.stats().segments > 0);
    assert_eq!(store.seqs(1).len(), 300);
}

#[test]
fn too_many_positions_are_flushed_though_nobody_asked() {
    let fs = FaultyFs::new(11);
    let options = JournalOptions {
        waiting_bytes_max: 64 << 20,
        unsealed_bytes_max: 1 << 40,
        frame_bytes: 200 << 10,
        ..JournalOptions::small()
    };
    let log = FileLogOptions { file_bytes_max: 1 << 20, ..SMALL_LOG };
    let store = try_open_with(&Folder { log, ..folder(&fs) }, options, false).unwrap();
    let mut batch = RecordsBuilder::default();
    for _ in 0..65_536 {
        batch.push(&Message::new("")).unwrap();
    }
    let records = batch.finish();
    let crc = checksum(&records.bytes);
    struct Unheard;
    impl Sink for Unheard {
        fn settled(&self, _: gapless_journal::Lsn, _: bytes::Bytes, _: &mut Vec<Waker>) {}
    }
    let sink: Arc<dyn Sink> = Arc::new(Unheard);
    store.journal.turn();
    let mut written = 0_u64;
    while written < 1 << 23 {
        assert_eq!(store.journal.stats().flushes, 0);
        let header_bytes = 64;
        let mut append = match store.journal.begin(header_bytes + records.bytes.len()) {
            Ok(append) => append,
            Err(error) => panic!("{error}"),
        };
        let time = append.time(store.now);
        append.batch((TopicId(1), Seq(written + 1)), time, (&records, crc), &sink);
        drop(append.finish(WRITTEN, WRITTEN));
        store.journal.turn();
        written += 65_536;
    }
    let syncs = fs.syncs();
    let mut append = store.journal.begin(64).unwrap();
    append.entry(EntryHeader::new(EntryKind::Cell), &[]);
    let ticket = append.finish(WRITTEN, WRITTEN);
    store.journal.turn();
    assert!(fs.syncs() > syncs);
    assert_eq!(ready(ticket), Some(Ok(FLUSHED)), "more than was asked for");
}

#[test]
fn ticket_outlives_its_journal_and_does_not_keep_it_open() {
    let fs = FaultyFs::new(12);
    let store = open(&fs);
    let (flushed, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    store.close();
    assert_eq!(flushed.wait(), Ok(FLUSHED));
    let store = open(&fs);
    let (lost, _) = store.append(&one(1, 10), FLUSHED, FLUSHED).unwrap();
    store.abandon();
    let store = open(&fs);
    assert_eq!(lost.wait(), Err(Failure::Closed));
    assert_eq!(store.seqs(1), [1]);
}

#[test]
fn panic_of_a_sink_ends_the_journal_and_nobody_waits_for_ever() {
    struct Bad;
    impl Sink for Bad {
        fn settled(&self, _: gapless_journal::Lsn, _: bytes::Bytes, _: &mut Vec<Waker>) {
            panic!("a bug above");
        }
    }
    let store = open(&FaultyFs::new(13));
    let mut records = RecordsBuilder::default();
    records.push(&Message::new("x")).unwrap();
    let records = records.finish();
    let sink: Arc<dyn Sink> = Arc::new(Bad);
    let mut append = store.journal.begin(100).unwrap();
    let crc = checksum(&records.bytes);
    let time = append.time(store.now);
    append.batch((TopicId(1), Seq(1)), time, (&records, crc), &sink);
    let ticket = append.finish(FLUSHED, FLUSHED);
    let journal = Arc::clone(&store.journal);
    assert!(std::thread::spawn(move || journal.turn()).join().is_err());
    assert!(matches!(ticket.wait(), Err(Failure::Poisoned { .. })));
    assert!(store.journal.begin(10).is_err());
}

/// Publishers that block, and publishers that are polled, on the disk of this machine.
#[test]
fn all_waiters_get_done_with_real_threads() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder_on(Arc::new(DiskFs), dir.path());
    let options = JournalOptions { recovery_threads: 2, ..JournalOptions::small() };
    let store = try_open_with(&folder, options.clone(), true).unwrap();
    let (threads, each) = (8, 100);
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        for topic in 0..threads as u64 {
            let (store, barrier) = (&store, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for index in 0..each {
                    let message = Message::new(body(topic, index + 1, 700));
                    let wanted = if index % 3 == 0 { WRITTEN } else { FLUSHED };
                    let ticket = loop {
                        match store.append(&[(topic, vec![message.clone()])], wanted, wanted) {
                            Ok((ticket, _)) => break ticket,
                            Err(BeginError::Busy { .. }) => block_on(room(store)),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let done = if topic % 2 == 0 { ticket.wait() } else { block_on(ticket) };
                    assert!(done.unwrap() >= wanted);
                }
            });
        }
        barrier.wait();
        // Meanwhile segments are made, merged and read.
        let last = |topic| store.topics.lock().get(&TopicId(topic)).map_or(1, |each| each.next);
        eventually(|| {
            store.keep();
            for topic in 0..threads as u64 {
                if last(topic) > 1 {
                    assert!(store.try_read(topic, 1, 2000).is_ok());
                }
            }
            (0..threads as u64).all(|topic| last(topic) == each + 1)
                || store.journal.failure().is_some()
        });
    });
    let check = |store: &Store| {
        for topic in 0..threads as u64 {
            let read = store.read(topic, 1);
            assert_eq!(read.len() as u64, each);
            for (seq, message) in read {
                assert_eq!(message.body.unwrap(), body(topic, seq, 700));
            }
        }
    };
    store.journal.flush();
    check(&store);
    store.close();
    let store = try_open_with(&folder, options, true).unwrap();
    assert!(store.opened.clean);
    check(&store);
    store.close();
}

/// Done when there may be room.
fn room(store: &Store) -> impl Future<Output = ()> + '_ {
    let mut asked = false;
    std::future::poll_fn(move |context| {
        if std::mem::replace(&mut asked, true) {
            return std::task::Poll::Ready(());
        }
        store.journal.wait_for_room(context.waker());
        std::task::Poll::Pending
    })
}
