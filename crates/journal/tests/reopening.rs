//! What is there when a store is opened again: after a crash anywhere, after damage
//! anywhere, and while another process has it.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use gapless_core::{Epoch, Message, Position};
use gapless_journal::blobs::Blobs;
use gapless_journal::dir_blobs::DirBlobs;
use gapless_journal::doctor::{Finding, Severity, examine};
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
fn m3_every_flipped_bit_in_a_manifest_or_checkpoint_leaves_a_store_with_everything_in_it() {
    // Closed, and killed after a seal: each has another state before the last one.
    for killed in [false, true] {
        let fs = settled_store(4);
        if killed {
            let store = open(&fs);
            store.fill(3, 2, 500);
            store.seal();
            store.fill(3, 1, 500);
            store.abandon();
        }
        for path in [blobs(&fs, "manifest-"), blobs(&fs, "checkpoint-")].concat() {
            let bytes = fs.dump(&path).expect("it is there");
            // A bit of each byte, and another in the next: all of them take a minute.
            for offset in (0..bytes.len()).step_by(if killed { 1 } else { 5 }) {
                let fs = copy_of(&fs);
                fs.flip_bit(&path, offset as u64, (offset % 8) as u8);
                let found = || format!("{} at byte {offset}", path.display());
                let store = try_open(&fs).unwrap_or_else(|e| panic!("{}: {e}", found()));
                let counts = (store.seqs(1).len(), store.seqs(2).len(), store.seqs(3).len());
                assert_eq!(counts, (20, 13, if killed { 13 } else { 10 }), "{}", found());
                assert!(store.opened.orphans.is_empty(), "{}", found());
                store.close();
                // And what was damaged is good again.
                let (manifests, checkpoints) = (blobs(&fs, "manifest-"), blobs(&fs, "checkpoint-"));
                assert_eq!((manifests.len(), checkpoints.len()), (2, 2));
                assert!(open(&fs).opened.passed_over.is_none(), "{}", found());
            }
        }
    }
}

/// The same files in another file system.
fn copy_of(fs: &FaultyFs) -> FaultyFs {
    let copy = FaultyFs::new(1);
    for (path, _) in fs.files() {
        copy.create_dir(path.parent().expect("a folder")).expect("room");
        let file = copy.create(&path).expect("room");
        file.write_all_at(&[&fs.dump(&path).expect("it is there")], 0).expect("room");
    }
    copy
}

#[test]
fn missing_manifest_or_copy_is_no_loss() {
    for (prefix, nth) in
        [("manifest-", 0), ("manifest-", 1), ("checkpoint-", 0), ("checkpoint-", 1)]
    {
        let fs = settled_store(5);
        let gone = blobs(&fs, prefix).remove(nth);
        fs.remove(&gone).unwrap();
        let store = open(&fs);
        assert_eq!((store.seqs(1).len(), store.seqs(2).len()), (20, 13));
        if prefix == "checkpoint-" {
            let (name, _) = store.opened.checkpoint_restored.clone().expect("told");
            assert_eq!(name, name_of(&gone));
        }
    }
}

#[test]
fn missing_segment_and_a_checkpoint_without_any_copy_refuse_by_name() {
    let fs = settled_store(6);
    let gone = blobs(&fs, "segment-").remove(0);
    fs.remove(&gone).unwrap();
    match refused(&fs) {
        OpenError::Damaged { name, .. } => assert_eq!(name, name_of(&gone)),
        other => panic!("{other:?}"),
    }
    let fs = settled_store(6);
    let both = blobs(&fs, "checkpoint-");
    both.iter().for_each(|path| fs.flip_bit(path, 70, 1));
    match refused(&fs) {
        OpenError::Damaged { name, .. } => assert_eq!(name, name_of(&both[0])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn l4_swapped_and_copied_manifests_are_named_as_such() {
    let swap = |fs: &FaultyFs, copy: bool| {
        let [older, newer] = blobs(fs, "manifest-").try_into().expect("two");
        let bytes = (fs.dump(&older).expect("there"), fs.dump(&newer).expect("there"));
        fs.overwrite(&newer, 0, &bytes.0);
        if !copy {
            fs.overwrite(&older, 0, &bytes.1);
        }
        (name_of(&older), name_of(&newer))
    };
    let fs = settled_store(7);
    let (older, newer) = swap(&fs, false);
    match refused(&fs) {
        OpenError::Misnamed { name, holds } => assert_eq!((name, holds), (newer, older)),
        other => panic!("{other:?}"),
    }
    let fs = settled_store(7);
    let (_, newer) = swap(&fs, true);
    let store = open(&fs);
    let (name, why) = store.opened.passed_over.expect("told");
    assert!(name == newer && why.contains("renamed or copied"), "{why}");
}

#[test]
fn c3_no_store_is_created_where_files_of_one_lie_and_nothing_is_touched() {
    let all = |_: &str| true;
    let log = |path: &str| path.ends_with(".log");
    let blob = |path: &str| path.contains("segment-") || path.contains("checkpoint-");
    // What is left of a store without its manifests.
    type Stays = fn(&str) -> bool;
    for (which, stays) in [("all", all as Stays), ("log", log), ("blobs", blob)] {
        let whole = settled_store(16);
        let fs = FaultyFs::new(1);
        for (path, _) in whole.files() {
            let text = path.display().to_string();
            if stays(&text) && !text.contains("manifest-") {
                fs.create_dir(path.parent().expect("a folder")).expect("room");
                let file = fs.create(&path).expect("room");
                file.write_all_at(&[&whole.dump(&path).expect("there")], 0).expect("room");
            }
        }
        match refused(&fs) {
            OpenError::Remains { found } => assert!(!found.is_empty(), "{which}"),
            other => panic!("{which}: {other:?}"),
        }
        let report = examine(&folder(&fs), &mut |_, _| {}).unwrap();
        assert!(matches!(report.findings[..], [Finding::Remains { .. }]), "{:?}", report.findings);
        assert_eq!(report.worst(), Some(Severity::Damaged));
    }
    // Also what the doctor put aside.
    let fs = FaultyFs::new(2);
    fs.create_dir(&root().join("blobs")).unwrap();
    fs.create(&root().join("blobs/damaged-manifest-00000000000000000001")).unwrap();
    assert!(matches!(refused(&fs), OpenError::Remains { .. }));
}

#[test]
fn c3_blobs_of_another_store_are_left_alone_and_told() {
    let fs = settled_store(17);
    let other = FaultyFs::new(1);
    let parts = folder(&other).parts((Epoch(2), new_store().1), Arc::new(Default::default), false);
    let store = try_open_parts(parts.unwrap(), JournalOptions::small()).unwrap();
    store.fill(1, 50, 500);
    store.seal();
    store.close();
    let mut copied = BTreeSet::new();
    for path in [blobs(&other, "segment-"), blobs(&other, "checkpoint-")].concat() {
        let name = name_of(&path).replacen("-0", "-9", 1);
        let file = fs.create(&root().join("blobs").join(&name)).unwrap();
        file.write_all_at(&[&other.dump(&path).unwrap()], 0).unwrap();
        copied.insert(name);
    }
    let store = open(&fs);
    assert!(store.opened.orphans.is_empty(), "{:?}", store.opened.orphans);
    assert_eq!(store.opened.foreign.iter().cloned().collect::<BTreeSet<_>>(), copied);
    store.seal();
    store.close();
    let left: BTreeSet<String> = blobs(&fs, "").iter().map(|path| name_of(path)).collect();
    assert!(copied.is_subset(&left));
}

#[test]
fn segment_that_is_newer_than_manifest_and_log_is_never_deleted() {
    // A backup of manifests and log is put beside the segments of today.
    let fs = settled_store(18);
    let backup = copy_of(&fs);
    let store = open(&fs);
    store.fill(1, 30, 500);
    store.seal();
    store.close();
    for (path, _) in fs.files() {
        let text = path.display().to_string();
        if !text.contains("segment-") {
            fs.remove(&path).unwrap();
        }
    }
    for (path, _) in backup.files() {
        if fs.dump(&path).is_none() {
            let file = fs.create(&path).unwrap();
            file.write_all_at(&[&backup.dump(&path).unwrap()], 0).unwrap();
        }
    }
    match refused(&fs) {
        OpenError::SegmentAhead { last, known, .. } => assert!(last > known),
        other => panic!("{other:?}"),
    }
    let report = examine(&folder(&fs), &mut |_, _| {}).unwrap();
    let ahead = |each: &Finding| matches!(each, Finding::SegmentAhead { .. });
    assert!(report.findings.iter().any(ahead), "{:?}", report.findings);
}

#[test]
fn every_refusal_leaves_the_folder_as_it_was_and_positions_do_not_jump() {
    type Damage = fn(&FaultyFs);
    let damages: [(&str, Damage); 7] = [
        ("both manifests damaged", |fs| {
            blobs(fs, "manifest-").iter().for_each(|path| fs.flip_bit(path, 40, 0));
        }),
        ("both checkpoints damaged", |fs| {
            blobs(fs, "checkpoint-").iter().for_each(|path| fs.flip_bit(path, 90, 0));
        }),
        ("a segment gone", |fs| fs.remove(&blobs(fs, "segment-")[2]).unwrap()),
        ("an index gone, and a segment damaged", |fs| {
            let segments = blobs(fs, "segment-");
            fs.remove(&segments[1]).unwrap();
            fs.flip_bit(&segments[2], 20, 1);
        }),
        ("the log gone", |fs| {
            log_files(fs).iter().for_each(|path| fs.remove(path).unwrap());
            fs.remove(&root().join("log/LOCK")).unwrap();
        }),
        ("a frame damaged", |fs| {
            let (path, at) = first_live(fs);
            fs.flip_bit(&path, at + 100, 0);
        }),
        ("an entry that cannot be applied", |fs| {
            let (path, at) = first_live(fs);
            break_entry(fs, &path, at);
        }),
    ];
    for (what, damage) in damages {
        // An unclean end, an unfinished blob and an unfinished frame: much that opening changes.
        let fs = settled_store(19);
        let store = open(&fs);
        store.fill(2, 3, 500);
        store.abandon();
        fs.create(&root().join("blobs/.new-1")).unwrap();
        damage(&fs);
        for _ in 0..3 {
            let error = refused(&fs);
            assert!(!error.to_string().is_empty(), "{what}");
        }
    }
}

/// In which log file, and where in it, the first frame is that has to be replayed.
fn first_live(fs: &FaultyFs) -> (PathBuf, u64) {
    let store = DirBlobs::new(Arc::new(fs.clone()), root().join("blobs"));
    let from = Manifest::newest(&store).expect("read").expect("a manifest").replay_from.0;
    let within = |path: PathBuf| {
        let bytes = fs.dump(&path).expect("a log file");
        let starts = (0..bytes.len()).step_by(4096);
        let is_it = |at: &usize| {
            bytes[*at..].starts_with(b"gaplessF") && bytes[at + 24..at + 32] == from.to_le_bytes()
        };
        starts.rev().find(is_it).map(|at| (path, at as u64))
    };
    log_files(fs).into_iter().find_map(within).expect("it is in one of them")
}

/// Gives the first entry of a frame another seq, with checksums that fit; the frames behind
/// it no longer link to it, so it is the last one.
fn break_entry(fs: &FaultyFs, path: &Path, at: u64) {
    let bytes = fs.dump(path).expect("a log file");
    let at = at as usize;
    let length = bytes[at + 20..at + 24].try_into().expect("four bytes");
    let length = u32::from_le_bytes(length) as usize;
    let mut frame = bytes[at..at + 64 + length].to_vec();
    frame[64 + 24] ^= 0x40;
    let entry = gapless_journal::checksum(&frame[64 + 8..64 + 64]);
    frame[64 + 4..64 + 8].copy_from_slice(&entry.to_le_bytes());
    let payload = gapless_journal::checksum(&frame[64..]);
    frame[16..20].copy_from_slice(&payload.to_le_bytes());
    let head = gapless_journal::checksum(&[&frame[..12], &frame[16..64]].concat());
    frame[12..16].copy_from_slice(&head.to_le_bytes());
    fs.overwrite(path, at as u64, &frame);
}

/// Why the store does not open; and not a byte is changed by that.
fn refused(fs: &FaultyFs) -> OpenError {
    let dump =
        || -> Vec<_> { fs.files().into_iter().map(|(path, _)| (fs.dump(&path), path)).collect() };
    let before = dump();
    let error = try_open(fs).err().expect("it does not open");
    assert!(dump() == before, "files changed by {error}");
    error
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
            "manifest-" => blobs(&fs, prefix).pop().unwrap(),
            _ => blobs(&fs, prefix).remove(0),
        };
        let end = if prefix == "manifest-" { fs.dump(&path).unwrap().len() - 4 } else { 60 };
        with_checksum_at(&fs, &path, 9, end);
        match refused(&fs) {
            OpenError::Version { name, found: 9, .. } => assert_eq!(name, name_of(&path)),
            other => panic!("{prefix}: {other:?}"),
        }
    }
}

#[test]
fn missing_or_damaged_index_is_rebuilt_and_reported() {
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
    let mut parts = folder(&fs).parts(new_store(), Arc::new(Default::default), false).unwrap();
    // Without the lock of the folder, as where there are no folders.
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    parts.blobs = Arc::new(DirBlobs::new(shared, root().join("blobs")));
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
        assert_eq!(left, 2 * segments + 2, "write {nth}");
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
    let store = DirBlobs::new(Arc::new(fs), root().join("blobs"));
    let manifest = Manifest::newest(&store).unwrap().unwrap();
    assert!(manifest.clean);
    assert_eq!(manifest.segments.len(), 2);
    assert_eq!(Manifest::names(&store).unwrap().len(), 2);
    let mut items = 0;
    let name = manifest.checkpoint.unwrap();
    read_checkpoint(&store, (&name, EPOCH.0), &mut |_| {
        items += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(items, 3);
    assert_eq!(store.list("checkpoint-").unwrap().len(), 2);
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
