//! Every log of this crate keeps the contract, and the one in memory fails as it is told.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use gapless_journal::{
    FrameMarks, Secret,
    contract::check_log,
    faulty::FaultyFs,
    file_log::{FileLog, FileLogOptions},
    fs::DiskFs,
    log::{AppendError, Floor, Log, Lsn, TakeOver},
    memory::{AppendFault, MemoryLog},
};

/// Small files, so that every check crosses from one to the next.
const SMALL: FileLogOptions =
    FileLogOptions { first_file_bytes: 16 * 1024, file_bytes_max: 256 * 1024 };

fn marks() -> FrameMarks {
    FrameMarks::secret(Secret::new(7))
}

#[test]
fn log_in_files_on_disk_keeps_the_contract() {
    let root = tempfile::tempdir().expect("temp dir");
    let count = std::cell::Cell::new(0);
    check_log(|| {
        count.set(count.get() + 1);
        let dir = root.path().join(format!("{}/log", count.get()));
        FileLog::new(Arc::new(DiskFs), dir, marks(), SMALL)
    });
}

#[test]
fn log_in_files_of_the_default_size_keeps_the_contract() {
    let root = tempfile::tempdir().expect("temp dir");
    let count = std::cell::Cell::new(0);
    check_log(|| {
        count.set(count.get() + 1);
        let dir = root.path().join(format!("{}/log", count.get()));
        FileLog::new(Arc::new(DiskFs), dir, marks(), FileLogOptions::default())
    });
}

#[test]
fn log_in_files_on_a_faulty_disk_keeps_the_contract() {
    check_log(|| FileLog::new(Arc::new(FaultyFs::new(1)), PathBuf::from("/log"), marks(), SMALL));
}

#[test]
fn log_in_memory_keeps_the_contract() {
    check_log(MemoryLog::new);
}

fn frame(n: u8) -> Bytes {
    Bytes::from(vec![n; 3])
}

fn frames(taken: &mut TakeOver) -> Vec<u8> {
    let mut all = Vec::new();
    let done = taken.reader.replay(taken.first, &mut |_, frame| {
        all.push(frame[0]);
        Ok(())
    });
    done.expect("replay");
    all
}

#[test]
fn log_in_memory_that_was_full_takes_the_same_frame_later() {
    let log = MemoryLog::new();
    let mut taken = log.take_over(Floor::default()).expect("take over");
    log.fail_next_append(AppendFault::Full);
    let full = taken.writer.append(Lsn(1), &frame(1));
    assert!(matches!(full, Err(AppendError::Full)), "{full:?}");
    taken.writer.append(Lsn(1), &frame(1)).expect("room again");
    taken.writer.append(Lsn(2), &frame(2)).expect("append");
    let mut taken = log.take_over(Floor::default()).expect("take over");
    assert_eq!(frames(&mut taken), [1, 2]);
}

#[test]
fn lost_answer_of_a_log_in_memory_is_decided_by_replay() {
    for (fault, found) in
        [(AppendFault::UnknownStored, &[1, 2][..]), (AppendFault::UnknownLost, &[1])]
    {
        let log = MemoryLog::new();
        let mut taken = log.take_over(Floor::default()).expect("take over");
        taken.writer.append(Lsn(1), &frame(1)).expect("append");
        log.fail_next_append(fault);
        for _ in 0..2 {
            let unknown = taken.writer.append(Lsn(2), &frame(2));
            assert!(matches!(unknown, Err(AppendError::Unknown(_))), "{unknown:?}");
        }
        let mut taken = log.take_over(Floor::default()).expect("take over");
        assert_eq!(frames(&mut taken), found);
    }
}

#[test]
fn fenced_writer_of_a_log_in_memory_stays_fenced() {
    let log = MemoryLog::new();
    let mut taken = log.take_over(Floor::default()).expect("take over");
    log.fail_next_append(AppendFault::Fenced);
    for _ in 0..2 {
        let fenced = taken.writer.append(Lsn(1), &frame(1));
        assert!(matches!(fenced, Err(AppendError::Fenced { .. })), "{fenced:?}");
    }
    let mut taken = log.take_over(Floor::default()).expect("take over");
    assert!(frames(&mut taken).is_empty());
}
