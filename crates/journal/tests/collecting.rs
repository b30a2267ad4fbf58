//! What the collector may drop, and what it must not: messages below the floor, of topics
//! that are gone, past their time, superseded; and never a number.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use gapless_core::{Message, Position, Seq, Timestamp, TopicId};
use gapless_journal::faulty::{FaultyFs, Times};
use gapless_journal::fs::DiskFs;
use gapless_journal::{JournalOptions, PatternReader, ReadError};

const K: u64 = COMPACTED;

/// Nothing stays in memory, so that all reads show what the collector left.
fn open(fs: &FaultyFs) -> Store {
    try_open_with(&folder(fs), no_tail(), false).expect("the store opens")
}

fn no_tail() -> JournalOptions {
    JournalOptions { tail_bytes: 0, ..JournalOptions::small() }
}

fn collect_all(store: &Store) {
    for round in 0.. {
        if !store.keep().collected {
            return;
        }
        assert!(round < 100, "the collector never ends");
    }
}

fn data_bytes(store: &Store) -> u64 {
    store.journal.stats().segment_bytes
}

fn keyed(key: &str, value: &str) -> Message {
    Message::new(value.to_owned()).with_key(key.to_owned())
}

/// The values that a reader of the whole topic sees.
fn values(store: &Store, topic: u64) -> Vec<(String, String)> {
    let mut values = std::collections::BTreeMap::new();
    for (_, message) in store.read(topic, 1) {
        let text = |bytes: bytes::Bytes| String::from_utf8(bytes.to_vec()).expect("text");
        let Some(key) = message.key.map(text) else { continue };
        match message.body.map(text) {
            Some(value) => values.insert(key, value),
            None => values.remove(&key),
        };
    }
    values.into_iter().collect()
}

#[test]
fn wholly_dead_segment_is_deleted() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    store.fill(1, 20, 1000);
    store.seal();
    store.fill(2, 20, 1000);
    store.seal();
    assert_eq!(store.journal.stats().segments, 2);
    store.delete(1);
    collect_all(&store);
    assert_eq!(store.journal.stats().segments, 1);
    assert_eq!(blobs(&fs, "segment-").len(), 2);
    assert_eq!(store.seqs(2).len(), 20);
    store.abandon();
    assert_eq!(open(&fs).seqs(2).len(), 20);
}

#[test]
fn mostly_dead_segment_is_written_anew_and_numbers_stay() {
    let fs = FaultyFs::new(2);
    let store = open(&fs);
    for _ in 0..20 {
        store.fill(1, 1, 1500);
        store.fill(2, 1, 1000);
    }
    store.seal();
    let before = data_bytes(&store);
    let positions = |store: &Store| -> Vec<(u64, u64)> {
        let batches = store.follow(Position(0), &[1, 2], || 3000);
        batches.iter().map(|b| (b.first().0, b.header().position.0)).collect()
    };
    let all = positions(&store);
    store.raise_floor(1, 5);
    collect_all(&store);
    assert_eq!(data_bytes(&store), before, "a few dead ones are not worth it");
    store.raise_floor(1, 21);
    collect_all(&store);
    assert!(data_bytes(&store) < before * 6 / 10);
    assert_eq!(store.seqs(2), (1..=20).collect::<Vec<_>>());
    let left = positions(&store);
    assert!(left.iter().all(|each| all.contains(each)));
    assert_eq!(left.len(), 20);
    store.close();
    assert_eq!(positions(&open(&fs)), left);
}

#[test]
fn small_segments_are_merged() {
    let fs = FaultyFs::new(3);
    let store = open(&fs);
    for _ in 0..10 {
        store.fill(1, 2, 500);
        store.fill(2, 2, 500);
        store.seal();
    }
    assert_eq!(store.journal.stats().segments, 10);
    collect_all(&store);
    assert_eq!(store.journal.stats().segments, 1);
    for topic in [1, 2] {
        assert_eq!(store.seqs(topic), (1..=20).collect::<Vec<_>>());
    }
    store.close();
    assert_eq!(open(&fs).seqs(2).len(), 20);
}

#[test]
fn compaction_keeps_the_newest_of_each_key_and_all_without_a_key() {
    let fs = FaultyFs::new(4);
    let store = open(&fs);
    for round in 0..6 {
        for key in ["a", "b", "c"] {
            store.publish(K, keyed(key, &format!("{key}{round}")));
        }
        store.publish(K, Message::new("no key"));
        store.seal();
    }
    store.compact();
    let left = store.seqs(K);
    // Rounds of four: of the last one all, of the others what has no key.
    assert_eq!(left, [4, 8, 12, 16, 20, 21, 22, 23, 24]);
    assert_eq!(values(&store, K), [("a", "a5"), ("b", "b5"), ("c", "c5")].map(owned));
    let (found, tombstone) = latest(&store, "b").unwrap();
    assert_eq!((found, tombstone), (Seq(22), false));
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn latest(store: &Store, key: &str) -> Option<(Seq, bool)> {
    let hash = store.journal.key_hash(key.as_bytes());
    store.journal.latest_of_key(TopicId(K), hash).expect("history can be read")
}

#[test]
fn tombstone_goes_only_after_its_grace_and_brings_nothing_back() {
    let fs = FaultyFs::new(5);
    let mut store = open(&fs);
    store.publish(K, keyed("a", "old"));
    store.publish(K, keyed("b", "stays"));
    store.seal();
    store.publish(K, Message::tombstone("a"));
    store.seal();
    store.compact();
    assert_eq!(store.seqs(K), [2, 3]);
    assert_eq!(latest(&store, "a"), Some((Seq(3), true)));
    store.now = store.now.after(GRACE);
    store.compact();
    assert_eq!(store.seqs(K), [2]);
    assert_eq!(latest(&store, "a"), None);
    assert_eq!(values(&store, K), [("b", "stays")].map(owned));
    store.close();
    let store = open(&fs);
    assert_eq!(store.seqs(K), [2]);
    assert_eq!(store.publish(K, keyed("a", "new")).0, Seq(4), "no number is given twice");
}

/// The tombstone's segment is mostly dead, the one with the old value is not: the tombstone
/// must stay until the old value is gone.
#[test]
fn tombstone_stays_while_an_older_value_is_left() {
    let fs = FaultyFs::new(6);
    let mut store = open(&fs);
    store.publish(K, keyed("a", "old"));
    store.fill(1, 20, 2000);
    store.seal();
    store.publish(K, Message::tombstone("a"));
    store.fill(2, 5, 2000);
    store.seal();
    store.now = store.now.after(GRACE * 2);
    store.delete(2);
    collect_all(&store);
    assert_eq!(store.seqs(1).len(), 20);
    assert!(values(&store, K).is_empty(), "{:?}", values(&store, K));
    store.compact();
    assert!(store.seqs(K).is_empty());
}

#[test]
fn expired_messages_go_and_their_numbers_stay_accounted_for() {
    let fs = FaultyFs::new(7);
    let mut store = open(&fs);
    let short = |text: &str| Message::new(text.to_owned()).with_ttl(Duration::from_millis(50));
    for _ in 0..10 {
        store.publish(1, short("short"));
    }
    store.publish(1, Message::new("long"));
    let parts = vec![(1, vec![short("a"), Message::new("b"), short("c")])];
    store.append(&parts, FLUSHED, FLUSHED).unwrap();
    store.seal();
    store.compact();
    assert_eq!(store.seqs(1).len(), 14);
    store.now = store.now.after(Duration::from_millis(50));
    store.compact();
    assert_eq!(store.seqs(1), [11, 13]);
    store.close();
    let store = open(&fs);
    assert_eq!(store.seqs(1), [11, 13]);
    assert_eq!(store.publish(1, Message::new("next")).0, Seq(15));
}

#[test]
fn expiry_of_the_newest_of_a_key_does_not_bring_back_an_older_one() {
    let fs = FaultyFs::new(8);
    let mut store = open(&fs);
    store.publish(K, keyed("a", "old"));
    store.fill(1, 20, 2000);
    store.seal();
    store.publish(K, keyed("a", "new").with_ttl(Duration::from_millis(10)));
    store.fill(2, 5, 2000);
    store.seal();
    store.now = store.now.after(Duration::from_secs(1));
    store.delete(2);
    collect_all(&store);
    assert_ne!(values(&store, K), [("a", "old")].map(owned));
    store.compact();
    assert!(store.seqs(K).is_empty());
    store.close();
    assert!(open(&fs).seqs(K).is_empty());
}

#[test]
fn seal_of_nothing_but_the_dead_makes_no_segment() {
    let fs = FaultyFs::new(9);
    let store = open(&fs);
    store.fill(1, 5, 1000);
    store.delete(1);
    store.seal();
    assert_eq!(store.journal.stats().segments, 0);
    assert!(blobs(&fs, "segment-").is_empty());
    store.fill(2, 1, 10);
    store.close();
    assert_eq!(open(&fs).seqs(2), [1]);
}

/// Nothing lives in the newest segments, or there never were any: a reader of many topics
/// must still come to the tail.
#[test]
fn follower_passes_what_left_no_segment() {
    let fs = FaultyFs::new(10);
    let store = open(&fs);
    store.fill(1, 3, 100);
    store.seal();
    store.fill(2, 3, 100);
    store.seal();
    store.delete(2);
    store.seal();
    collect_all(&store);
    store.fill(1, 1, 100);
    let read = |wanted: &[u64]| -> Vec<u64> {
        store.follow(Position(0), wanted, || 100).iter().map(|batch| batch.first().0).collect()
    };
    assert_eq!(read(&[1]), [1, 2, 3, 4]);
    assert_eq!(read(&[1, 2]), [1, 2, 3, 4]);
    assert!(read(&[]).is_empty());
}

/// Two dead batches of a topic become one hole; what another topic published between them
/// must not be taken for a part of it.
#[test]
fn follower_loses_nothing_that_lies_between_the_parts_of_a_hole() {
    let fs = FaultyFs::new(15);
    let store = open(&fs);
    store.publish(K, keyed("a", "1"));
    store.fill(1, 2, 100);
    store.publish(K, keyed("a", "2"));
    store.publish(K, keyed("a", "3"));
    store.seal();
    for bytes_max in [1, 10_000] {
        let batches = store.follow(Position(0), &[1, K], || bytes_max);
        let found: Vec<u64> = batches
            .iter()
            .flat_map(|batch| batch.records().map(|record| batch.position_of(&record).0))
            .collect();
        assert_eq!(found, [2, 3, 5]);
    }
}

#[test]
fn failed_collecting_is_tried_again() {
    let fs = FaultyFs::new(11);
    let store = open(&fs);
    store.fill(1, 20, 1500);
    store.fill(2, 20, 1000);
    store.seal();
    store.delete(1);
    store.journal.flush();
    fs.fail_write(1, std::io::ErrorKind::Other, Times::UntilDisarmed);
    assert!(store.journal.keep(&*store.topics, store.now).is_err());
    fs.disarm();
    let before = data_bytes(&store);
    collect_all(&store);
    assert!(data_bytes(&store) < before);
    assert_eq!(store.seqs(2).len(), 20);
    assert_eq!(blobs(&fs, "segment-").len(), 2);
}

#[test]
fn reader_goes_on_while_its_segments_are_rewritten() {
    let fs = FaultyFs::new(12);
    let store = open(&fs);
    for _ in 0..8 {
        for topic in 1..=3 {
            store.fill(topic, 3, 1000);
        }
        store.seal();
    }
    let mut steps = 0;
    let batches = store.follow(Position(0), &[1, 3], || {
        steps += 1;
        match steps {
            5 => store.compact(),
            9 => collect_all(&store),
            13 => store.delete(2),
            17 => store.compact(),
            _ => {}
        }
        1500
    });
    assert!(steps > 20);
    let positions: Vec<u64> = batches.iter().map(|batch| batch.header().position.0).collect();
    assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
    assert_eq!(batches.len(), 48);
}

#[test]
fn readers_on_threads_go_on_while_segments_are_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder_on(Arc::new(DiskFs), dir.path());
    let options = JournalOptions { recovery_threads: 2, ..no_tail() };
    let store = try_open_with(&folder, options, true).unwrap();
    for _ in 0..10 {
        for topic in 1..=3 {
            store.fill(topic, 5, 700);
        }
        store.seal();
    }
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for topic in 1..=3 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(store.read(topic, 1).len(), 50);
                    assert_eq!(store.follow(Position(0), &[topic], || 2000).len(), 50);
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        eventually(|| {
            store.compact();
            collect_all(&store);
            done.load(Ordering::SeqCst) == 3
        });
    });
    store.close();
}

#[test]
fn times_bytes_and_positions_are_found() {
    let fs = FaultyFs::new(13);
    let mut store = open(&fs);
    let start = store.now;
    let mut positions = Vec::new();
    for index in 0..60 {
        store.now = Timestamp(start.0 + index * 10);
        store.fill(2, 1, 100);
        positions.push(store.publish(1, Message::new(vec![b'x'; 400])).1);
        if index % 20 == 19 {
            store.seal();
        }
    }
    let topic = TopicId(1);
    let bytes = store.journal.bytes_of(topic, Seq(1)).unwrap();
    let each = bytes / 60;
    for index in 0..60_u64 {
        let seq = Seq(index + 1);
        let time = Timestamp(start.0 + index * 10);
        for (from, at) in [(Seq(1), Timestamp(time.0 - 5)), (seq, Timestamp(0))] {
            let found =
                store.journal.find_time(topic, from, (at, Timestamp::NEVER)).unwrap().unwrap();
            assert_eq!((found.seq, found.time), (seq, time));
        }
        assert_eq!(store.journal.bytes_of(topic, seq).unwrap(), bytes - index * each);
        let found = store.journal.find_bytes(topic, Seq(1), index * each).unwrap();
        assert_eq!(found, Some((seq, index * each)));
        if index < 50 {
            let found = store.journal.find_bytes(topic, Seq(11), index * each - index / 2);
            assert_eq!(found.unwrap(), Some((Seq(index + 11), index * each)));
        }
        let before = positions[index as usize].prev();
        let found = store.journal.find_position(topic, Seq(1), before).unwrap().unwrap();
        assert_eq!((found.seq, found.position), (seq, positions[index as usize]));
    }
    let late = Timestamp(start.0 + 600);
    assert_eq!(store.journal.find_time(topic, Seq(1), (late, Timestamp::NEVER)).unwrap(), None);
    assert_eq!(store.journal.find_bytes(topic, Seq(1), bytes).unwrap(), None);
    assert_eq!(store.journal.find_position(topic, Seq(1), positions[59]).unwrap(), None);
    assert_eq!(
        store.journal.find_time(TopicId(9), Seq(1), (Timestamp(0), Timestamp::NEVER)).unwrap(),
        None
    );
    assert_eq!(store.journal.bytes_of(TopicId(9), Seq(1)).unwrap(), 0);
}

#[test]
fn damaged_block_is_told_at_reading_and_nothing_is_left_out() {
    let fs = FaultyFs::new(14);
    let store = open(&fs);
    for topic in 1..=3 {
        store.fill(topic, 20, 500);
    }
    store.seal();
    store.close();
    let data = blobs(&fs, "segment-").remove(0);
    let bytes = fs.dump(&data).unwrap();
    let needle = body(2, 10, 500);
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    fs.flip_bit(&data, at as u64 + 100, 6);
    let store = open(&fs);
    assert_eq!(store.seqs(1).len(), 20);
    assert_eq!(store.seqs(3).len(), 20);
    let read = store.try_read(2, 1, 1000);
    assert!(matches!(read, Err(ReadError::Damaged { .. })), "{read:?}");
    // A follower gets what lies before, then the error, again and again, and no step
    // beyond it.
    let wanted: Arc<dyn Fn(TopicId) -> bool + Send + Sync> = Arc::new(|_| true);
    let mut reader = PatternReader::new(Position(0));
    let mut found = 0;
    let mut errors = 0;
    for _ in 0..100 {
        let pending = store.journal.read_pattern(reader, Arc::clone(&wanted), 900);
        let (after, read) = block_on(pending).unwrap();
        reader = after;
        match read {
            Ok(parts) => {
                assert_eq!(errors, 0, "nothing comes after the damage");
                found += parts.len();
            }
            Err(error) => {
                assert!(matches!(error, ReadError::Damaged { .. }));
                errors += 1;
            }
        }
    }
    assert!(errors > 10);
    assert!((20..30).contains(&found), "{found}");
}
