//! What is there when a store is opened again: after a crash anywhere, after damage
//! anywhere, and while somebody else has it.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use gapless_core::{Epoch, Message, Position};
use gapless_journal::blobs::{BlobError, Blobs};
use gapless_journal::dir_blobs::DirBlobs;
use gapless_journal::faulty::{CrashKind, FaultyFs, Times};
use gapless_journal::fs::{DiskFs, Fs};
use gapless_journal::log::{Floor, Log, LogError, TakeOver};
use gapless_journal::{JournalOptions, Manifest, OpenError, read_checkpoint};

/// Ten rounds of appends over three topics, each of them one append, with seals and
/// collecting in between; ends at the first error. Tells how many were acknowledged.
fn run(fs: &FaultyFs) -> u64 {
    let mut acknowledged = 0;
    let Ok(store) = try_open(fs) else { return 0 };
    for round in 1..=10 {
        let parts: Vec<Part> =
            (1..=3).map(|topic| (topic, vec![Message::new(body(topic, round, 2000))])).collect();
        let Ok((ticket, _)) = store.append(&parts, FLUSHED, FLUSHED) else { break };
        if ticket.wait() != Ok(FLUSHED) {
            break;
        }
        acknowledged = round;
        if round % 3 == 0 && store.journal.seal(&*store.topics, store.now).is_err() {
            break;
        }
        if store.journal.keep(&*store.topics, store.now).is_err() {
            break;
        }
    }
    if store.journal.failure().is_none() {
        let _ = store.journal.close();
    }
    acknowledged
}

#[test]
fn append_over_several_topics_is_there_whole_or_not_at_all_whenever_the_power_goes() {
    let whole = FaultyFs::new(0);
    assert_eq!(run(&whole), 10);
    let writes = whole.writes();
    for kind in [CrashKind::Power, CrashKind::Process] {
        for nth in 1..=writes {
            let fs = FaultyFs::new(nth);
            fs.crash_after_writes(nth);
            let acknowledged = run(&fs);
            fs.crash(kind);
            let store = try_open(&fs).unwrap_or_else(|error| panic!("write {nth}: {error}"));
            let counts: BTreeSet<usize> = (1..=3)
                .map(|topic| {
                    if store.topics.lock().contains_key(&gapless_core::TopicId(topic)) {
                        store.read(topic, 1).len()
                    } else {
                        0
                    }
                })
                .collect();
            assert_eq!(counts.len(), 1, "write {nth}: {counts:?}");
            let count = counts.first().copied().unwrap() as u64;
            assert!(count >= acknowledged, "write {nth}: {count} of {acknowledged}");
            assert!(count <= acknowledged + 1, "write {nth}");
            // And it goes on, numbers and all.
            store.fill(1, 1, 10);
            store.seal();
            assert_eq!(store.seqs(1).len() as u64, count + 1);
            store.close();
        }
    }
}

#[test]
fn what_was_flushed_survives_power_loss_and_what_was_written_survives_a_kill() {
    for seed in 0..50 {
        let fs = FaultyFs::new(seed);
        let store = open(&fs);
        store.fill(1, 3, 100);
        for _ in 0..3 {
            let message = vec![(1, vec![Message::new("written")])];
            let (ticket, _) = store.append(&message, WRITTEN, WRITTEN).unwrap();
            assert_eq!(ticket.wait(), Ok(WRITTEN));
        }
        let kind = if seed % 2 == 0 { CrashKind::Process } else { CrashKind::Power };
        fs.crash(kind);
        store.abandon();
        let found = open(&fs).seqs(1).len();
        match kind {
            CrashKind::Process => assert_eq!(found, 6),
            CrashKind::Power => assert!((3..=6).contains(&found)),
        }
    }
}

#[test]
fn positions_never_repeat_after_an_unclean_end() {
    for seed in 0..20 {
        let fs = FaultyFs::new(seed);
        let mut given = BTreeSet::new();
        let mut jumps = 0;
        for round in 0..4 {
            let store = open(&fs);
            jumps += usize::from(store.opened.jump.is_some());
            assert_eq!(store.opened.jump.is_some(), round > 0);
            assert_eq!(store.journal.jumps().len(), jumps);
            for _ in 0..=seed % 3 {
                // Visible to readers, and lost by most of the crashes.
                let message = vec![(1, vec![Message::new("x")])];
                let (ticket, places) = store.append(&message, WRITTEN, WRITTEN).unwrap();
                assert_eq!(ticket.wait(), Ok(WRITTEN));
                assert!(given.insert(places[0].1), "{:?} again", places[0].1);
            }
            fs.crash(CrashKind::Power);
            store.abandon();
        }
    }
}

#[test]
fn clean_close_has_no_jump() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    assert!(store.opened.created && store.opened.clean);
    store.fill(1, 5, 10);
    store.close();
    let store = open(&fs);
    assert!(!store.opened.created && store.opened.clean);
    assert_eq!(store.opened.jump, None);
    let (_, position) = store.publish(1, Message::new("x"));
    assert_eq!(position, Position(6));
    store.seal();
    store.close();
    let store = open(&fs);
    assert_eq!(store.journal.next_position(), Position(7));
    assert_eq!(store.opened.frames_replayed, 0);
}

#[test]
fn everything_comes_from_segments_after_a_seal_and_replay_is_short() {
    let fs = FaultyFs::new(2);
    let store = open(&fs);
    for topic in 1..=5 {
        store.fill(topic, 30, 1000);
    }
    store.seal();
    store.fill(1, 2, 1000);
    store.abandon();
    let store = open(&fs);
    assert_eq!(store.opened.frames_replayed, 2);
    for topic in 1..=5 {
        let read = store.read(topic, 1);
        assert_eq!(read.len(), if topic == 1 { 32 } else { 30 });
        for (seq, message) in read {
            assert_eq!(message.body.unwrap(), body(topic, seq, 1000));
        }
    }
    // The log is trimmed: filling it again and again takes no more room.
    let round = |store: &Store| {
        store.fill(9, 40, 4000);
        store.seal();
        log_files(&fs).iter().map(|path| fs.dump(path).unwrap().len()).sum::<usize>()
    };
    let used: Vec<usize> = (0..12).map(|_| round(&store)).collect();
    assert_eq!(used[5], used[11], "{used:?}");
}

#[test]
fn torn_end_is_cut_and_told() {
    let mut torn = 0;
    for seed in 0..40 {
        let fs = FaultyFs::new(seed);
        let store = open(&fs);
        store.fill(1, 3, 100);
        fs.crash_after_writes(1);
        let message = vec![(1, vec![Message::new(vec![b'x'; 6000])])];
        let (ticket, _) = store.append(&message, FLUSHED, FLUSHED).unwrap();
        assert!(ticket.wait().is_err());
        store.abandon();
        fs.crash(CrashKind::Power);
        let store = open(&fs);
        torn += usize::from(store.opened.torn.is_some());
        if store.opened.torn.is_some() {
            assert_eq!(store.seqs(1), [1, 2, 3]);
        }
        store.fill(1, 1, 100);
    }
    assert!(torn > 2, "{torn} torn ends");
}

#[test]
fn damaged_frame_in_the_middle_of_the_log_refuses_and_says_where() {
    let fs = FaultyFs::new(3);
    let store = open(&fs);
    store.fill(1, 6, 3000);
    store.abandon();
    let log = log_files(&fs).remove(0);
    // The third frame begins at the third block.
    fs.flip_bit(&log, 2 * 4096 + 500, 3);
    let before = fs.files();
    match try_open(&fs).err() {
        Some(OpenError::Log(LogError::Damaged { lsn, .. })) => assert_eq!(lsn.0, 3),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs.files(), before, "nothing was touched");
}

/// A store with two segments, a checkpoint, and something in the log.
fn settled_store(seed: u64) -> FaultyFs {
    let fs = FaultyFs::new(seed);
    let store = open(&fs);
    for topic in 1..=3 {
        store.fill(topic, 10, 500);
    }
    store.seal();
    store.fill(1, 10, 500);
    store.seal();
    store.fill(2, 3, 500);
    store.close();
    fs
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str());
    name.expect("a name").to_owned()
}

#[test]
fn damaged_manifest_refuses_by_name_and_an_older_one_is_not_taken() {
    let fs = settled_store(4);
    let newest = blobs(&fs, "manifest-").pop().unwrap();
    fs.flip_bit(&newest, 40, 0);
    match try_open(&fs).err() {
        Some(OpenError::Damaged { name, .. }) => assert_eq!(name, name_of(&newest)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_checkpoint_refuses_by_name() {
    let fs = settled_store(5);
    let checkpoint = blobs(&fs, "checkpoint-").pop().unwrap();
    let bytes = fs.dump(&checkpoint).unwrap().len() as u64;
    for offset in (0..bytes).filter(|offset| !(8..16).contains(offset)) {
        fs.flip_bit(&checkpoint, offset, 2);
        match try_open(&fs).err() {
            Some(OpenError::Damaged { name, .. }) => assert_eq!(name, name_of(&checkpoint)),
            other => panic!("byte {offset}: {other:?}"),
        }
        fs.flip_bit(&checkpoint, offset, 2);
    }
    open(&fs);
}

#[test]
fn missing_checkpoint_or_segment_refuses_by_name() {
    for prefix in ["checkpoint-", "segment-"] {
        let fs = settled_store(6);
        let gone = blobs(&fs, prefix).remove(0);
        fs.remove(&gone).unwrap();
        match try_open(&fs).err() {
            Some(OpenError::Damaged { name, .. }) => assert_eq!(name, name_of(&gone)),
            Some(OpenError::Blobs(BlobError::Missing { name })) => {
                assert_eq!(name, name_of(&gone));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn with_checksum_at(fs: &FaultyFs, path: &Path, version: u16, end: usize) {
    fs.overwrite(path, 8, &version.to_le_bytes());
    let bytes = fs.dump(path).expect("the file is there");
    let crc = gapless_journal::checksum(&bytes[..end]);
    fs.overwrite(path, end as u64, &crc.to_le_bytes());
}

#[test]
fn newer_versions_refuse_by_name() {
    for prefix in ["manifest-", "checkpoint-", "segment-"] {
        let fs = settled_store(7);
        let path = match prefix {
            "segment-" => blobs(&fs, prefix).remove(0),
            _ => blobs(&fs, prefix).pop().unwrap(),
        };
        match prefix {
            "manifest-" => with_checksum_at(&fs, &path, 2, fs.dump(&path).unwrap().len() - 4),
            "segment-" => with_checksum_at(&fs, &path, 2, 60),
            _ => fs.overwrite(&path, 8, &2_u16.to_le_bytes()),
        }
        match try_open(&fs).err() {
            Some(OpenError::Version { name, found: 2, known: 1 }) => {
                assert_eq!(name, name_of(&path));
            }
            other => panic!("{prefix}: {other:?}"),
        }
    }
}

#[test]
fn missing_or_damaged_index_is_made_anew_and_told() {
    let fs = settled_store(8);
    let indexes: Vec<_> = blobs(&fs, "segment-")
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "index"))
        .collect();
    assert_eq!(indexes.len(), 2);
    fs.remove(&indexes[0]).unwrap();
    fs.flip_bit(&indexes[1], 20, 1);
    let store = open(&fs);
    let told: Vec<String> = store.opened.indexes_rebuilt.iter().map(|(n, _)| n.clone()).collect();
    assert_eq!(told, indexes.iter().map(|path| name_of(path)).collect::<Vec<_>>());
    assert_eq!(store.seqs(1).len(), 20);
    assert_eq!(store.seqs(2).len(), 13);
    store.close();
    assert!(open(&fs).opened.indexes_rebuilt.is_empty());
}

#[test]
fn log_that_is_older_than_the_checkpoint_is_noticed() {
    let fs = FaultyFs::new(9);
    let store = open(&fs);
    store.fill(1, 3, 500);
    store.journal.flush();
    let old: Vec<_> =
        log_files(&fs).into_iter().map(|p| (p.clone(), fs.dump(&p).unwrap())).collect();
    store.fill(1, 20, 500);
    store.close();
    for newer in log_files(&fs).iter().filter(|path| old.iter().all(|(each, _)| each != *path)) {
        fs.remove(newer).unwrap();
    }
    for (path, bytes) in old {
        fs.overwrite(&path, 0, &bytes);
    }
    match try_open(&fs).err() {
        Some(OpenError::CheckpointAhead { checkpoint, log }) => {
            assert_eq!((checkpoint.0, log.0), (23, 3));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn second_opener_is_refused_and_does_not_disturb_the_first() {
    let fs = FaultyFs::new(10);
    let store = open(&fs);
    store.fill(1, 5, 500);
    // The loser comes while a blob is in the making, as in every seal.
    let second = fs.clone();
    let tried = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&tried);
    fs.on_sync(Some(Arc::new(move || {
        let refused = try_open(&second).err();
        assert!(matches!(refused, Some(OpenError::Log(LogError::Locked { .. }))), "{refused:?}");
        count.fetch_add(1, Ordering::SeqCst);
    })));
    store.fill(1, 5, 500);
    store.seal();
    store.compact();
    fs.on_sync(None);
    assert!(tried.load(Ordering::SeqCst) > 5);
    store.fill(1, 5, 500);
    store.seal();
    store.abandon();
    assert_eq!(open(&fs).seqs(1).len(), 15);
}

/// A log whose owner goes on, seals and ends just before it is taken over.
#[derive(Debug)]
struct Late {
    log: Arc<dyn Log>,
    fs: FaultyFs,
    done: AtomicBool,
}

impl Log for Late {
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError> {
        if !self.done.swap(true, Ordering::SeqCst) {
            let store = open(&self.fs);
            for _ in 0..4 {
                store.fill(1, 40, 3000);
                store.seal();
            }
            store.close();
        }
        self.log.take_over(floor)
    }
}

#[test]
fn opener_with_an_outdated_manifest_takes_the_newer_one() {
    let fs = FaultyFs::new(11);
    let store = open(&fs);
    store.fill(1, 10, 500);
    store.close();
    let mut parts = folder(&fs).parts(Epoch(1), Arc::new(Default::default), false).unwrap();
    // Without the lock of the folder, as where there are no folders.
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    parts.blobs = Arc::new(DirBlobs::new(shared, root().join("blobs")).unwrap());
    let (log, late) = (parts.log, fs);
    let done = AtomicBool::new(false);
    parts.log = Box::new(move |epoch| Arc::new(Late { log: log(epoch), fs: late, done }));
    let store = try_open_parts(parts, JournalOptions::small()).unwrap();
    assert!(store.opened.orphans.is_empty(), "{:?}", store.opened.orphans);
    assert_eq!(store.seqs(1).len(), 170);
}

#[test]
fn read_only_folder_refuses() {
    let fs = settled_store(12);
    fs.set_read_only(true);
    let refused = try_open(&fs).err();
    assert!(matches!(refused, Some(OpenError::Log(LogError::ReadOnly { .. }))), "{refused:?}");
    fs.set_read_only(false);
    open(&fs);
    let empty = FaultyFs::new(12);
    empty.set_read_only(true);
    let refused = try_open(&empty).err();
    assert!(matches!(refused, Some(OpenError::Log(LogError::ReadOnly { .. }))), "{refused:?}");
}

#[test]
fn orphans_of_a_crash_between_blob_and_manifest_are_removed_and_told() {
    let mut found = 0;
    for nth in 1..60 {
        let fs = FaultyFs::new(nth);
        let store = open(&fs);
        store.fill(1, 10, 3000);
        fs.crash_after_writes(nth);
        let sealed = store.journal.seal(&*store.topics, store.now);
        fs.crash(CrashKind::Power);
        store.abandon();
        let store = open(&fs);
        let orphans = store.opened.orphans.clone();
        found += orphans.len();
        assert!(sealed.is_err() || orphans.is_empty());
        let left: BTreeSet<String> = blobs(&fs, "").iter().map(|path| name_of(path)).collect();
        assert!(orphans.iter().all(|name| !left.contains(name)));
        assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
        assert_eq!(store.seqs(1).len(), 10);
        store.seal();
        if sealed.is_ok() {
            break;
        }
    }
    assert!(found >= 2, "{found} orphans");
}

/// After a seal that failed at any of its writes, the same store goes on and the next seal
/// does all: no name is used twice, and nothing is left behind.
#[test]
fn failed_seal_is_made_good_by_the_next_one() {
    for nth in 1..40 {
        let fs = FaultyFs::new(nth);
        let store = open(&fs);
        store.fill(1, 10, 3000);
        fs.fail_write(nth, std::io::ErrorKind::StorageFull, Times::Once);
        let first = store.journal.seal(&*store.topics, store.now);
        fs.disarm();
        store.fill(1, 7, 3000);
        store.seal();
        assert_eq!(store.seqs(1).len(), 17);
        let left = blobs(&fs, "segment-").len() + blobs(&fs, "checkpoint-").len();
        let segments = store.journal.stats().segments as usize;
        assert_eq!(left, 2 * segments + 1, "write {nth}");
        store.close();
        let store = open(&fs);
        assert_eq!(store.seqs(1).len(), 17);
        assert!(store.opened.orphans.is_empty());
        if first.is_ok() {
            assert!(nth > 3);
            return;
        }
    }
    panic!("it always failed");
}

/// The same when the failure comes so late that the manifest may be there or not.
#[test]
fn seal_whose_fate_is_unknown_loses_nothing() {
    for nth in 1..20 {
        let fs = FaultyFs::new(nth);
        let store = open(&fs);
        store.fill(1, 10, 3000);
        fs.fail_sync(nth, std::io::ErrorKind::Other, Times::Once);
        let sealed = store.journal.seal(&*store.topics, store.now);
        fs.disarm();
        let alive = store.journal.failure().is_none();
        if alive {
            store.fill(1, 5, 3000);
            if nth % 2 == 0 {
                store.seal();
            }
        }
        store.abandon();
        fs.crash(CrashKind::Power);
        assert_eq!(open(&fs).seqs(1).len(), if alive { 15 } else { 10 }, "sync {nth}");
        if sealed.is_ok() {
            return;
        }
    }
    panic!("it always failed");
}

#[test]
fn journal_without_a_single_message_seals_and_opens() {
    let fs = FaultyFs::new(14);
    open(&fs).close();
    let store = open(&fs);
    store.seal();
    assert_eq!(store.keep(), gapless_journal::Kept::default());
    store.close();
    assert_eq!(blobs(&fs, "segment-").len(), 0);
}

#[test]
fn manifests_and_checkpoints_can_be_read_by_tools() {
    let fs = settled_store(15);
    let store = DirBlobs::new(Arc::new(fs), root().join("blobs")).unwrap();
    let manifest = Manifest::newest(&store).unwrap().unwrap();
    assert!(manifest.clean);
    assert_eq!(manifest.segments.len(), 2);
    assert_eq!(Manifest::names(&store).unwrap().len(), 2);
    let mut items = 0;
    let name = manifest.checkpoint.unwrap();
    read_checkpoint(&store, &name, &mut |_| {
        items += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(items, 3);
    assert_eq!(store.list("checkpoint-").unwrap().len(), 1);
}

#[test]
fn store_on_the_disk_of_this_machine_survives_being_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder_on(Arc::new(DiskFs), dir.path());
    for round in 0..4 {
        let store = try_open_with(&folder, JournalOptions::small(), round % 2 == 0).unwrap();
        let busy = try_open_with(&folder, JournalOptions::small(), false).err();
        assert!(matches!(busy, Some(OpenError::Log(LogError::Locked { .. }))), "{busy:?}");
        store.fill(1, 30, 1000);
        store.keep();
        if round == 1 {
            store.seal();
        }
        store.abandon();
    }
    let store = try_open_with(&folder, JournalOptions::small(), false).unwrap();
    assert_eq!(store.seqs(1).len(), 120);
}
