//! The doctor sees what opening would see, changes nothing, and repairs only when asked,
//! saying what is lost.

mod common;

use std::path::Path;

use common::*;
use gapless_core::Message;
use gapless_journal::OpenError;
use gapless_journal::doctor::{Finding, Repair, Report, Severity, examine, repair};
use gapless_journal::faulty::{CrashKind, FaultyFs};
use gapless_journal::fs::Fs;
use gapless_journal::log::LogError;

/// A store with two segments, a checkpoint, and three frames in the log.
fn closed_store(seed: u64) -> FaultyFs {
    let fs = FaultyFs::new(seed);
    let store = open(&fs);
    for topic in 1..=3 {
        store.fill(topic, 10, 500);
        store.publish(topic, Message::new("v").with_key("k"));
    }
    store.seal();
    store.fill(1, 10, 500);
    store.seal();
    store.fill(2, 3, 500);
    store.close();
    fs
}

/// Examines, and proves that nothing was changed by it.
fn look(fs: &FaultyFs) -> Report {
    let dump =
        || -> Vec<_> { fs.files().into_iter().map(|(path, _)| (fs.dump(&path), path)).collect() };
    let before = dump();
    fs.set_read_only(true);
    let report = examine(&folder(fs), &mut |_, _| {}).expect("it can be read");
    fs.set_read_only(false);
    assert_eq!(dump(), before);
    for finding in &report.findings {
        assert!(!finding.to_string().is_empty() && !finding.advice().is_empty());
    }
    report
}

fn mend(fs: &FaultyFs, report: &Report) -> Vec<Repair> {
    let done = repair(&folder(fs), report).expect("it can be repaired");
    assert!(done.iter().all(|each| !each.to_string().is_empty()));
    done
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str());
    name.expect("a name").to_owned()
}

fn ending(fs: &FaultyFs, end: &str) -> Vec<std::path::PathBuf> {
    let mut found = blobs(fs, "segment-");
    found.retain(|path| path.extension().is_some_and(|each| each == end));
    found
}

#[test]
fn sound_store_has_no_findings_and_everything_is_counted() {
    let fs = closed_store(1);
    let mut seen = Vec::new();
    let report = examine(&folder(&fs), &mut |done, total| seen.push((done, total))).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.worst(), None);
    assert_eq!(report.segments.len(), 2);
    assert_eq!(report.segments.iter().map(|(_, batches)| batches).sum::<u64>(), 43);
    assert_eq!(report.checkpoint_items, Some(3));
    assert_eq!(report.manifests.len(), 2);
    let log = report.log.unwrap();
    assert_eq!(log.next.0 - log.first.0, 3);
    assert!(seen.is_sorted());
    assert_eq!(*seen.last().unwrap(), (report.segment_bytes, report.segment_bytes));
    assert!(mend(&fs, &look(&fs)).is_empty());
    assert!(open(&fs).opened.clean);
}

#[test]
fn empty_folder_holds_no_store() {
    let fs = FaultyFs::new(2);
    let report = look(&fs);
    assert!(matches!(report.findings[..], [Finding::NoStore]));
    assert_eq!(report.worst(), Some(Severity::Info));
}

#[test]
fn open_store_can_be_examined_and_not_repaired() {
    let fs = FaultyFs::new(3);
    let store = open(&fs);
    store.fill(1, 3, 100);
    let report = look(&fs);
    assert!(matches!(report.findings[..], [Finding::NotClosed]), "{:?}", report.findings);
    let refused = repair(&folder(&fs), &report);
    assert!(matches!(refused, Err(OpenError::Log(LogError::Locked { .. }))));
    store.fill(1, 1, 100);
}

#[test]
fn l3_an_unusable_index_is_found_and_only_repair_rebuilds_a_damaged_row() {
    let fs = closed_store(4);
    let indexes = ending(&fs, "index");
    fs.remove(&indexes[0]).unwrap();
    // A row of the other one, where opening does not look.
    fs.flip_bit(&indexes[1], 64 + 20, 3);
    let report = look(&fs);
    assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
    assert!(report.findings.iter().all(|each| matches!(each, Finding::Index { .. })));
    assert_eq!(report.worst(), Some(Severity::Repairable));
    let done = mend(&fs, &report);
    let expected: Vec<Repair> =
        indexes.iter().map(|path| Repair::IndexRebuilt { name: name_of(path) }).collect();
    assert_eq!(done, expected);
    assert!(look(&fs).findings.is_empty());
    let store = open(&fs);
    assert!(store.opened.indexes_rebuilt.is_empty());
    assert_eq!(store.seqs(1).len(), 21);
}

#[test]
fn orphans_are_found_and_deleted() {
    let fs = closed_store(5);
    // A copy of one that is needed holds nothing else.
    let data = fs.dump(&ending(&fs, "data")[0]).unwrap();
    let orphan = root().join("blobs/segment-00000000000000000099.data");
    fs.create(&orphan).unwrap().write_all_at(&[&data], 0).unwrap();
    let report = look(&fs);
    assert!(matches!(report.findings[..], [Finding::Orphan { .. }]), "{:?}", report.findings);
    assert_eq!(mend(&fs, &report), [Repair::OrphanDeleted { name: name_of(&orphan) }]);
    assert!(look(&fs).findings.is_empty());
}

#[test]
fn damaged_data_is_found_wherever_it_is_and_cannot_be_repaired() {
    let fs = closed_store(6);
    let data = ending(&fs, "data").remove(0);
    let bytes = fs.dump(&data).unwrap();
    for offset in (0..bytes.len() as u64).step_by(97) {
        fs.flip_bit(&data, offset, 1);
        let report = look(&fs);
        // Between blocks there are a few zeros that are never read.
        let padding = bytes[offset as usize] == 0 && report.findings.is_empty();
        assert!(
            padding || matches!(report.findings[..], [Finding::Segment { .. }]),
            "byte {offset}: {:?}",
            report.findings
        );
        assert!(mend(&fs, &report).is_empty());
        fs.flip_bit(&data, offset, 1);
    }
    fs.remove(&data).unwrap();
    let report = look(&fs);
    assert!(matches!(report.findings[..], [Finding::Segment { .. }]));
    assert_eq!(report.worst(), Some(Severity::Damaged));
    assert_eq!(report.segments.len(), 1, "the other one is whole");
}

#[test]
fn damaged_copy_of_the_checkpoint_is_found_and_written_again() {
    for nth in 0..2 {
        let fs = closed_store(7);
        let path = blobs(&fs, "checkpoint-").remove(nth);
        fs.flip_bit(&path, 30, 1);
        let report = look(&fs);
        let found = &report.findings[..];
        assert!(matches!(found, [Finding::CheckpointCopy { .. }]), "{found:?}");
        assert_eq!(report.checkpoint_items, Some(3));
        assert_eq!(mend(&fs, &report), [Repair::CheckpointCopied { name: name_of(&path) }]);
        assert!(look(&fs).findings.is_empty());
        assert!(open(&fs).opened.checkpoint_restored.is_none());
    }
}

#[test]
fn checkpoint_without_a_good_copy_is_found_and_cannot_be_repaired() {
    let fs = closed_store(7);
    blobs(&fs, "checkpoint-").iter().for_each(|path| fs.flip_bit(path, 30, 1));
    let report = look(&fs);
    assert!(matches!(report.findings[..], [Finding::Checkpoint { .. }]), "{:?}", report.findings);
    assert!(!report.findings[0].is_repairable());
    assert!(mend(&fs, &report).is_empty());
}

#[test]
fn log_is_cut_at_the_damage_and_what_is_lost_is_said() {
    let fs = FaultyFs::new(8);
    let store = open(&fs);
    store.fill(1, 6, 3000);
    store.close();
    fs.flip_bit(&log_files(&fs)[0], 2 * 4096 + 500, 3);
    assert!(try_open(&fs).is_err());
    let report = look(&fs);
    let damaged = |each: &Finding| matches!(each, Finding::Log { why: LogError::Damaged { .. } });
    let finding = report.findings.iter().find(|each| damaged(each)).unwrap();
    assert!(finding.repair_loses());
    let done = mend(&fs, &report);
    match done[..] {
        [
            Repair::LogCut { first, last, frames, .. },
            Repair::LogAccepted { first: from, last: to },
        ] => {
            assert_eq!((first.0, last.0, frames), (3, 6, 4));
            assert_eq!((from.0, to.0), (3, 6));
        }
        _ => panic!("{done:?}"),
    }
    let store = open(&fs);
    assert_eq!(store.seqs(1), [1, 2]);
    assert!(store.opened.jump.is_some(), "no position is given twice");
    store.fill(1, 1, 10);
    store.close();
    assert!(look(&fs).findings.is_empty());
}

#[test]
fn nothing_is_repaired_that_was_taken_out_of_the_report() {
    let fs = FaultyFs::new(9);
    let store = open(&fs);
    store.fill(1, 6, 3000);
    store.close();
    fs.flip_bit(&log_files(&fs)[0], 2 * 4096 + 500, 3);
    let mut report = look(&fs);
    report.findings.retain(|finding| !finding.repair_loses());
    assert!(mend(&fs, &report).is_empty());
    assert!(try_open(&fs).is_err());
}

#[test]
fn log_that_is_older_than_the_manifest_is_accepted_only_when_asked() {
    let fs = FaultyFs::new(10);
    let store = open(&fs);
    store.fill(1, 3, 500);
    store.journal.flush();
    let log = log_files(&fs).remove(0);
    let old = fs.dump(&log).unwrap();
    store.fill(1, 5, 500);
    store.close();
    fs.overwrite(&log, 0, &old);
    let report = look(&fs);
    let behind = report.findings.iter().any(
        |each| matches!(each, Finding::LogBehind { known, next } if (known.0, next.0) == (8, 4)),
    );
    assert!(behind, "{:?}", report.findings);
    assert!(try_open(&fs).is_err());
    let done = mend(&fs, &report);
    assert!(
        matches!(done[..], [Repair::LogAccepted { first, last }] if (first.0, last.0) == (4, 8)),
        "{done:?}"
    );
    assert_eq!(open(&fs).seqs(1), [1, 2, 3]);
}

#[test]
fn damaged_manifest_is_replaced_by_its_copy() {
    for nth in 0..2 {
        let fs = closed_store(11);
        let path = blobs(&fs, "manifest-").remove(nth);
        fs.flip_bit(&path, 30, 1);
        let report = look(&fs);
        let found = &report.findings[..];
        assert!(matches!(found, [Finding::Manifest { is_copy: true, .. }]), "{found:?}");
        assert_eq!(report.worst(), Some(Severity::Repairable));
        assert_eq!(mend(&fs, &report), [Repair::ManifestCopied { name: name_of(&path) }]);
        assert!(look(&fs).findings.is_empty());
        let store = open(&fs);
        assert!(store.opened.clean);
        assert_eq!((store.seqs(1).len(), store.seqs(2).len()), (21, 14));
    }
}

#[test]
fn l4_swapped_manifests_are_named_and_repaired_by_what_they_hold() {
    let fs = closed_store(12);
    let [older, newer] = blobs(&fs, "manifest-").try_into().expect("two");
    let bytes = (fs.dump(&older).unwrap(), fs.dump(&newer).unwrap());
    fs.overwrite(&newer, 0, &bytes.0);
    fs.overwrite(&older, 0, &bytes.1);
    assert!(try_open(&fs).is_err());
    let report = look(&fs);
    let misnamed =
        |each: &&Finding| matches!(each, Finding::Manifest { why: OpenError::Misnamed { .. }, .. });
    assert_eq!(report.findings.iter().filter(misnamed).count(), 2, "{:?}", report.findings);
    let done = mend(&fs, &report);
    assert!(matches!(&done[..], [Repair::ManifestDropped { .. }]), "{done:?}");
    let store = open(&fs);
    assert_eq!((store.seqs(1).len(), store.seqs(2).len()), (21, 14));
}

#[test]
fn l2_doctor_does_not_promise_that_nothing_flushed_is_in_a_damaged_last_frame() {
    let fs = FaultyFs::new(13);
    let store = open(&fs);
    store.fill(1, 3, 500);
    store.abandon();
    // Flushed and acknowledged, then damaged by the medium: it looks like a torn end.
    fs.flip_bit(&log_files(&fs)[0], 2 * 4096 + 100, 1);
    let report = look(&fs);
    let torn = |each: &&Finding| matches!(each, Finding::TornEnd { .. });
    let finding = report.findings.iter().find(torn).expect("found");
    assert!(finding.advice().contains("a flushed message may be in it"), "{}", finding.advice());
}

#[test]
fn torn_end_is_left_to_opening() {
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
        let report = look(&fs);
        let found = report.findings.iter().any(|each| matches!(each, Finding::TornEnd { .. }));
        assert_eq!(report.worst(), Some(Severity::Info), "{:?}", report.findings);
        assert!(mend(&fs, &report).is_empty());
        assert_eq!(open(&fs).opened.torn.is_some(), found);
        torn += usize::from(found);
    }
    assert!(torn > 2);
}

#[test]
fn newer_versions_are_named_and_left_alone() {
    let fs = closed_store(13);
    let checkpoint = blobs(&fs, "checkpoint-").remove(0);
    fs.overwrite(&checkpoint, 8, &9_u16.to_le_bytes());
    let crc = gapless_journal::checksum(&fs.dump(&checkpoint).unwrap()[..60]);
    fs.overwrite(&checkpoint, 60, &crc.to_le_bytes());
    let report = look(&fs);
    assert!(matches!(report.findings[..], [Finding::Checkpoint { .. }]));
    assert_eq!(report.findings[0].advice(), "use the program that wrote it");
}
