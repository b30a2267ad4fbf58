//! Publishers never stand still: not while the keeper flushes, not while it writes segments or
//! drops what is dead, and not when they are faster than that.

mod common;

use std::sync::{Arc, Mutex, OnceLock};

use common::*;
use gapless_core::{Message, Position, TopicId};
use gapless_journal::blobs::BlobError;
use gapless_journal::faulty::FaultyFs;
use gapless_journal::{BeginError, ItemWriter, JournalOptions, Lsn, Policy, State};

const KIB: usize = 1024;
const MIB: u64 = 1024 * 1024;

fn one(topic: u64, bytes: usize) -> Vec<Part> {
    vec![(topic, vec![Message::new(vec![b'x'; bytes])])]
}

#[test]
fn those_who_only_write_do_not_wait_for_a_flush_of_the_keeper() {
    let fs = FaultyFs::new(1);
    let store = Arc::new(open(&fs));
    store.fill(1, 2, 10);
    let (first, _) = store.append(&one(1, 10), WRITTEN, WRITTEN).unwrap();
    assert_eq!(ready(first), Some(Ok(WRITTEN)));
    let seen = Arc::new(OnceLock::new());
    let (noted, publisher) = (Arc::clone(&seen), Arc::clone(&store));
    fs.on_sync(Some(Arc::new(move || {
        let written = || ready(publisher.append(&one(1, 10), WRITTEN, WRITTEN).unwrap().0);
        noted.get_or_init(written);
    })));
    let before = store.journal.last_settled();
    store.journal.flush();
    fs.on_sync(None);
    assert_eq!(seen.get(), Some(&Some(Ok(WRITTEN))), "written while the flush was under way");
    assert_eq!(store.journal.flushed_position(), before, "and not taken for flushed by it");
    store.journal.flush();
    assert_eq!(store.journal.flushed_position(), store.journal.last_settled());
    assert_eq!(store.seqs(1), [1, 2, 3, 4]);
}

#[test]
fn what_is_in_memory_becomes_segments_of_a_bounded_size() {
    let options = JournalOptions::small();
    let store = open(&FaultyFs::new(2));
    for _ in 0..55 {
        store.fill(1, 1, 4000);
    }
    assert!(store.keep().sealed);
    let stats = store.journal.stats();
    assert!(stats.segments >= 3, "{stats:?}");
    assert!(stats.segment_bytes / stats.segments <= options.seal_bytes + 8192, "{stats:?}");
    assert_eq!(store.seqs(1), (1..=55).collect::<Vec<_>>());
}

/// Publishes in the middle of what the keeper does, once.
struct Publishing {
    store: Store,
    /// Where that began.
    published: OnceLock<Position>,
}

impl State for Publishing {
    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError> {
        self.store.topics.checkpoint(write)
    }

    fn policy(&self, topic: TopicId) -> Policy {
        self.published.get_or_init(|| {
            let first = self.store.journal.next_position();
            self.store.fill(2, 20, 4000);
            first
        });
        self.store.topics.policy(topic)
    }

    fn evicted(&self, topic: TopicId, through: Lsn) {
        self.store.topics.evicted(topic, through);
    }
}

#[test]
fn segments_are_written_also_while_the_collector_works() {
    let fs = FaultyFs::new(3);
    // A clock that stands still: nothing takes any time.
    let parts = folder(&fs).parts(new_store(), Arc::new(Default::default), false).unwrap();
    let store = try_open_parts(parts, JournalOptions::small()).unwrap();
    store.fill(1, 30, 4000);
    store.seal();
    store.raise_floor(1, 28);
    let state = Publishing { store, published: OnceLock::new() };
    let journal = &state.store.journal;
    // Nothing is due when it begins, and all of this is dropping what is dead.
    assert!(journal.keep(&state, state.store.now).unwrap().collected);
    let published = state.published.get().expect("the collector asked for a policy");
    assert!(journal.is_sealed(*published), "the first of it is in a segment");
    assert_eq!(state.store.seqs(1), [28, 29, 30]);
    assert_eq!(state.store.seqs(2).len(), 20);
    // All of it is found again, in the order of positions.
    let found = state.store.follow(Position(1), &[1, 2], || 4096);
    assert!(found.windows(2).all(|pair| pair[0].header().position < pair[1].header().position));
    let store = state.store;
    store.close();
    let store = open(&fs);
    assert_eq!((store.seqs(1), store.seqs(2).len()), (vec![28, 29, 30], 20));
}

#[test]
fn messages_wait_for_the_pace_before_memory_is_full_and_notes_do_not() {
    let fs = FaultyFs::new(4);
    let options = JournalOptions {
        unsealed_bytes_max: 2 * MIB,
        waiting_bytes_max: 16 * MIB as usize,
        ..JournalOptions::small()
    };
    let store = try_open_with(&folder(&fs), options.clone(), true).unwrap();
    while store.journal.stats().tail_bytes < options.unsealed_bytes_max / 8 * 7 {
        let appended = store.append(&one(1, 16 * KIB), FLUSHED, FLUSHED);
        appended.expect("nothing waits, so there is room").0.wait().unwrap();
    }
    // The flusher takes no more while the disk is busy.
    let busy = Arc::new(Mutex::new(()));
    let held = busy.lock().unwrap();
    let disk = Arc::clone(&busy);
    fs.on_sync(Some(Arc::new(move || drop(disk.lock()))));
    let mut tickets = Vec::new();
    let refused = loop {
        match store.append(&one(1, 16 * KIB), FLUSHED, FLUSHED) {
            Ok((mut ticket, _)) => {
                assert_eq!(ready(&mut ticket), None, "it asks for a turn");
                tickets.push(ticket);
            }
            Err(error) => break error,
        }
        assert!(tickets.len() < 100, "far less than may wait at other times");
    };
    assert!(matches!(refused, BeginError::Busy { .. }), "{refused}");
    drop(store.journal.begin_note(100).expect("there is room for what is no message"));
    drop(held);
    for ticket in tickets {
        assert_eq!(block_on(ticket), Ok(FLUSHED));
    }
    // Publishing goes on, though nothing became a segment.
    let room = |store: &Store| store.append(&one(1, 10), FLUSHED, FLUSHED).ok();
    let mut appended = None;
    eventually(|| {
        appended = room(&store);
        appended.is_some()
    });
    assert_eq!(appended.unwrap().0.wait(), Ok(FLUSHED));
}
