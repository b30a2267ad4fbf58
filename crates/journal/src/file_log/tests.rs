//! What only a log in files can show: crashes, damage, full disks, recycled files.

mod crashes;
mod forged;

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::*;
use crate::{
    faulty::{CrashKind, FaultyFs, Times},
    frame::{Header, Secret, with_version},
    log::{AppendError, LogWriter},
};

const EPOCH: u64 = 0x5eed;
const BLOCK: u64 = BLOCK_BYTES;

/// Files of four blocks, so that tests know where each frame is.
const FOUR_BLOCKS: FileLogOptions =
    FileLogOptions { first_file_bytes: 4 * BLOCK, file_bytes_max: 4 * BLOCK };

fn marks() -> FrameMarks {
    FrameMarks::secret(Secret::new(EPOCH))
}

fn log(fs: &FaultyFs) -> FileLog {
    FileLog::new(Arc::new(fs.clone()), "/log".into(), marks(), FOUR_BLOCKS)
}

fn take_over(fs: &FaultyFs, first_needed: u64) -> Result<TakeOver, LogError> {
    settled(log(fs).take_over(floor(first_needed))?)
}

fn settled(mut taken: TakeOver) -> Result<TakeOver, LogError> {
    taken.writer.settle()?;
    Ok(taken)
}

fn floor(first_needed: u64) -> Floor {
    Floor { first_needed: Lsn(first_needed), ..Floor::default() }
}

fn path(number: u64) -> PathBuf {
    Path::new("/log").join(format!("{number:08}.log"))
}

/// A frame of so many blocks that says who wrote it.
fn frame(text: &str, blocks: usize) -> Bytes {
    let bytes = blocks * BLOCK as usize - HEADER_BYTES;
    text.bytes().cycle().take(bytes).collect()
}

fn append(writer: &mut dyn LogWriter, text: &str) {
    let next = writer.next();
    writer.append(next, &frame(text, 1)).expect("append");
}

/// All that is replayed, by the first letter of each frame.
fn replayed(fs: &FaultyFs, first_needed: u64) -> String {
    let mut taken = take_over(fs, first_needed).expect("take over");
    letters(&mut taken)
}

fn letters(taken: &mut TakeOver) -> String {
    let mut all = String::new();
    let done = taken.reader.replay(taken.first, &mut |_, frame| {
        all.push(char::from(frame[0]));
        Ok(())
    });
    done.expect("replay");
    all
}

/// A log whose flushed frames are these letters, one block each.
fn log_of(letters: &str) -> FaultyFs {
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    for letter in letters.chars() {
        append(&mut *taken.writer, &letter.to_string());
        taken.writer.flush().expect("flush");
    }
    fs
}

#[test]
fn torn_end_is_cut_and_told_once() {
    let fs = log_of("abc");
    // A flipped bit in the payload of the last frame looks the same as a torn write.
    fs.flip_bit(&path(1), 2 * BLOCK + 100, 0);
    let examined = log(&fs).examine(floor(1)).expect("examine");
    assert_eq!((examined.next, examined.refused.is_none()), (Lsn(3), true));
    assert_eq!(examined.files[0].broken, 1);

    let mut taken = take_over(&fs, 1).expect("take over");
    let torn = taken.torn.clone().expect("torn");
    assert_eq!((torn.at, torn.bytes), (Lsn(3), BLOCK));
    assert_eq!(torn.place, "00000001.log at byte 8192");
    assert_eq!(letters(&mut taken), "ab");
    append(&mut *taken.writer, "C");
    drop(taken);
    let mut taken = take_over(&fs, 1).expect("take over");
    assert_eq!(taken.torn, None);
    assert_eq!(letters(&mut taken), "abC");
}

#[test]
fn broken_header_at_the_end_is_not_lost_in_silence() {
    for bit in [0, 8 * 8, 24 * 8, 63 * 8] {
        let fs = log_of("abc");
        fs.flip_bit(&path(1), 2 * BLOCK + bit / 8, 0);
        let taken = take_over(&fs, 1).expect("take over");
        assert_eq!(taken.torn.expect("told").at, Lsn(3), "bit {bit}");
    }
}

#[test]
fn damage_before_the_end_refuses_and_says_where_and_changes_nothing() {
    // In the header or the payload, in the first file or the next, or a whole block gone.
    for (at, lsn, zero) in [(0, 1, false), (BLOCK + 70, 2, false), (2 * BLOCK, 3, true)] {
        let fs = log_of("abcdef");
        match zero {
            true => fs.overwrite(&path(1), at, &[0; BLOCK as usize]),
            false => fs.flip_bit(&path(1), at, 3),
        }
        let before = (fs.dump(&path(1)), fs.dump(&path(2)));
        for _ in 0..2 {
            let refused = take_over(&fs, 1).expect_err("damaged");
            match &refused {
                LogError::Damaged { lsn: found, .. } => assert_eq!(*found, Lsn(lsn)),
                other => panic!("{other}"),
            }
        }
        assert_eq!(before, (fs.dump(&path(1)), fs.dump(&path(2))));
        // The part behind the damage alone is fine.
        assert_eq!(replayed(&fs, lsn + 1), "abcdef"[lsn as usize..]);
    }
}

#[test]
fn lost_file_is_damage() {
    let fs = log_of("abcdefghij");
    fs.remove(&path(2)).expect("remove");
    let refused = take_over(&fs, 1).expect_err("damaged");
    assert!(matches!(refused, LogError::Damaged { lsn: Lsn(5), .. }), "{refused}");
    fs.remove(&path(1)).expect("remove");
    let refused = take_over(&fs, 1).expect_err("damaged");
    assert!(matches!(refused, LogError::Damaged { lsn: Lsn(1), .. }), "{refused}");
}

#[test]
fn doctor_cuts_at_the_damage_and_tells_what_was_lost() {
    let fs = log_of("abcdef");
    fs.flip_bit(&path(1), BLOCK + 70, 3);
    let examined = log(&fs).examine(floor(1)).expect("examine");
    assert!(matches!(examined.refused, Some(LogError::Damaged { lsn: Lsn(2), .. })));
    assert_eq!(examined.files[0].live, 1);
    let cut = log(&fs).cut(Lsn(2)).expect("cut");
    assert_eq!((cut.frames, cut.bytes, cut.last), (5, 5 * BLOCK, Lsn(6)));
    let mut taken = take_over(&fs, 1).expect("take over");
    assert_eq!(taken.torn, None);
    assert_eq!(letters(&mut taken), "a");
    append(&mut *taken.writer, "B");
    drop(taken);
    assert_eq!(replayed(&fs, 1), "aB");
}

#[test]
fn files_are_recycled_and_their_old_frames_never_replayed() {
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    let preparer = taken.writer.preparer().expect("files are prepared");
    let mut kept = 1;
    for n in 1..=200 {
        preparer.prepare(0).expect("prepare");
        append(&mut *taken.writer, "x");
        if n % 5 == 0 {
            taken.writer.flush().expect("flush");
            kept = n - 2;
            taken.writer.trim(Lsn(kept)).expect("trim");
            // At each of these moments a kill must show exactly what is kept.
            let examined = log(&fs).examine(floor(kept)).expect("examine");
            assert_eq!((examined.first, examined.next), (Lsn(kept), Lsn(n + 1)));
            assert!(examined.torn.is_none(), "after {n}: {:?}", examined.torn);
        }
    }
    drop(taken);
    assert!(fs.files().len() <= 6, "four, the reserve and the lock: {:?}", fs.files());
    assert_eq!(replayed(&fs, kept), "xxx");
}

#[test]
fn trimming_removes_no_file_and_the_next_preparation_does() {
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    let preparer = taken.writer.preparer().expect("files are prepared");
    for _ in 0..100 {
        append(&mut *taken.writer, "x");
    }
    taken.writer.flush().expect("flush");
    let before = fs.files().len();
    taken.writer.trim(Lsn(100)).expect("trim");
    // Appends wait for the writer, and so would wait for the file system here.
    assert_eq!(fs.files().len(), before);
    preparer.prepare(0).expect("prepare");
    let left = fs.files().len();
    assert!(left <= 12, "eight, one in use, a few, and the lock: {:?}", fs.files());
    drop(taken);
    assert_eq!(replayed(&fs, 100), "x");
}

#[test]
fn opening_reads_only_files_that_can_hold_what_is_needed() {
    // Four frames in each of four files; i is the last one that is not needed. One more file
    // was made ahead, and one as the reserve.
    let fs = log_of("abcdefghijklmnop");
    let taken = take_over(&fs, 1).expect("take over");
    taken.writer.preparer().expect("files are prepared").prepare(0).expect("prepare");
    drop(taken);
    let before = fs.read_bytes();
    assert_eq!(replayed(&fs, 10), "jklmnop");
    // The last frame is read once more: it is not known that it was flushed.
    let heads = 6 * HEADER_BYTES as u64;
    assert_eq!(fs.read_bytes() - before, heads + 2 * 4 * BLOCK + BLOCK);
}

#[test]
fn all_files_are_read_when_the_beginning_of_what_is_needed_is_not_sure() {
    // The frame before it is broken, its file begins with zeros, or that file is gone: what
    // was flushed is found all the same, or the damage is reported.
    let fs = log_of("abcdefghijklmnop");
    fs.flip_bit(&path(3), 100, 0);
    assert_eq!(replayed(&fs, 10), "jklmnop");
    fs.overwrite(&path(3), 0, &[0; BLOCK as usize]);
    assert_eq!(replayed(&fs, 10), "jklmnop");
    fs.overwrite(&path(4), 0, &[0; BLOCK as usize]);
    let refused = take_over(&fs, 10).expect_err("damaged");
    assert!(matches!(refused, LogError::Damaged { lsn: Lsn(13), .. }), "{refused}");
    let fs = log_of("abcdefghijklmnop");
    fs.remove(&path(3)).expect("remove");
    let refused = take_over(&fs, 10).expect_err("damaged");
    assert!(matches!(refused, LogError::Damaged { lsn: Lsn(10), .. }), "{refused}");
}

#[test]
fn first_frame_of_a_file_is_flushed_before_the_second_is_written() {
    // Else a file that is used again could look as in its last life after a power loss, and
    // hide what was written behind.
    let fs = log_of("abcd");
    let mut taken = take_over(&fs, 1).expect("take over");
    append(&mut *taken.writer, "e");
    let syncs = fs.syncs();
    append(&mut *taken.writer, "f");
    assert_eq!(fs.syncs() - syncs, 1);
    append(&mut *taken.writer, "g");
    assert_eq!(fs.syncs() - syncs, 1);
    append(&mut *taken.writer, "h");
    append(&mut *taken.writer, "i");
    fs.fail_sync(1, ErrorKind::Other, Times::Once);
    let unknown = taken.writer.append(Lsn(10), &frame("j", 1));
    assert!(matches!(unknown, Err(AppendError::Unknown(_))), "{unknown:?}");
}

#[test]
fn remains_of_a_cut_end_never_come_back() {
    // Frames 1 a, 2 b, and then c d e, of which c is lost. What was cut is put back by
    // hand afterwards, as if wiping it had been lost, so only term and link are left to
    // tell that it is dead.
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    for letter in ["a", "b"] {
        append(&mut *taken.writer, letter);
    }
    taken.writer.flush().expect("flush");
    for letter in ["c", "d", "e"] {
        append(&mut *taken.writer, letter);
    }
    drop(taken);
    fs.overwrite(&path(1), 2 * BLOCK, &[0; BLOCK as usize]);
    let d = fs.dump(&path(1)).expect("file")[3 * BLOCK as usize..].to_vec();
    let e = fs.dump(&path(2)).expect("file")[..BLOCK as usize].to_vec();

    let mut taken = take_over(&fs, 1).expect("take over");
    assert_eq!(taken.torn.clone().expect("torn").at, Lsn(3));
    append(&mut *taken.writer, "C");
    drop(taken);
    let put_back = || {
        fs.overwrite(&path(1), 3 * BLOCK, &d);
        fs.overwrite(&path(2), 0, &e);
    };
    put_back();
    // C is directly followed by the old d, whose number is right, and then by the old e.
    assert_eq!(replayed(&fs, 1), "abC");
    let mut taken = take_over(&fs, 1).expect("take over");
    append(&mut *taken.writer, "D");
    taken.writer.flush().expect("flush");
    drop(taken);
    fs.overwrite(&path(2), 0, &e);
    assert_eq!(replayed(&fs, 1), "abCD");
    // Also if the frames between are trimmed, so that the floor is the old frame's number.
    fs.overwrite(&path(2), 0, &e);
    assert_eq!(replayed(&fs, 5), "");
}

#[test]
fn dead_frame_is_not_completed_by_a_new_one_whose_beginning_is_lost() {
    // Frame b lacks its second block and is cut. The frame written in its place has the
    // same second block, and of it only that one reaches the disk. (Found by the random
    // lives, when ends were cut by term and link alone.)
    let fs = log_of("a");
    let mut taken = take_over(&fs, 1).expect("take over");
    taken.writer.append(Lsn(2), &frame("b", 2)).expect("append");
    drop(taken);
    let second = fs.dump(&path(1)).expect("file")[2 * BLOCK as usize..3 * BLOCK as usize].to_vec();
    fs.overwrite(&path(1), 2 * BLOCK, &[0; BLOCK as usize]);
    assert_eq!(replayed(&fs, 1), "a");
    fs.overwrite(&path(1), 2 * BLOCK, &second);
    assert_eq!(replayed(&fs, 1), "a");
}

#[test]
fn remains_are_dead_even_when_their_term_is_right() {
    // The same place, number and term, but another history: the link differs.
    let fs = log_of("ab");
    let other = log_of("aBc");
    let c = other.dump(&path(1)).expect("file")[2 * BLOCK as usize..3 * BLOCK as usize].to_vec();
    fs.overwrite(&path(1), 2 * BLOCK, &c);
    let refused = take_over(&fs, 1);
    // It is not replayed. (It says nothing of frame 3, so it does not prove damage.)
    assert_eq!(letters(&mut refused.expect("take over")), "ab");
}

#[test]
fn second_process_is_locked_out_until_the_first_ends() {
    let fs = FaultyFs::new(1);
    let taken = take_over(&fs, 1).expect("first");
    let preparer = taken.writer.preparer();
    let refused = take_over(&fs, 1).expect_err("second");
    assert!(matches!(&refused, LogError::Locked { path } if path.ends_with("LOCK")), "{refused}");
    assert!(refused.to_string().contains("/log/LOCK"), "{refused}");
    drop(taken);
    take_over(&fs, 1).expect("a preparer alone holds nothing");
    drop(preparer);
}

#[test]
fn full_disk_and_then_room_again_loses_nothing() {
    let fs = log_of("abcd");
    let mut taken = take_over(&fs, 1).expect("take over");
    fs.set_capacity(Some(fs.used_bytes() + 3 * BLOCK));
    for _ in 0..3 {
        let full = taken.writer.append(Lsn(5), &frame("e", 1));
        assert!(matches!(full, Err(AppendError::Full)), "{full:?}");
        let prepare = taken.writer.preparer().expect("preparer").prepare(0);
        assert_eq!(prepare.expect_err("full").kind(), ErrorKind::StorageFull);
    }
    assert_eq!(fs.files().len(), 2, "nothing half made is left: {:?}", fs.files());
    fs.set_capacity(None);
    append(&mut *taken.writer, "e");
    taken.writer.flush().expect("flush");
    drop(taken);
    assert_eq!(replayed(&fs, 1), "abcde");
}

#[test]
fn frame_that_had_no_room_is_never_found_later() {
    // The write fails for want of room after a part of it was done, any part.
    for seed in 0..100 {
        let fs = FaultyFs::new(seed);
        let mut taken = take_over(&fs, 1).expect("new log");
        append(&mut *taken.writer, "a");
        taken.writer.flush().expect("flush");
        fs.fail_write(1, ErrorKind::StorageFull, Times::Once);
        let full = taken.writer.append(Lsn(2), &frame("b", 3));
        assert!(matches!(full, Err(AppendError::Full)), "{full:?}");
        if seed % 3 == 0 {
            append(&mut *taken.writer, "B");
            taken.writer.flush().expect("flush");
        }
        match seed % 2 {
            0 => fs.crash(CrashKind::Process),
            _ => fs.crash(CrashKind::Power),
        }
        let expected = if seed % 3 == 0 { "aB" } else { "a" };
        assert_eq!(replayed(&fs, 1), expected, "seed {seed}");
    }
}

#[test]
fn failed_write_leaves_the_fate_open_and_the_writer_dead() {
    for seed in 0..50 {
        let fs = FaultyFs::new(seed);
        let mut taken = take_over(&fs, 1).expect("new log");
        append(&mut *taken.writer, "a");
        fs.fail_write(1, ErrorKind::Other, Times::Once);
        let unknown = taken.writer.append(Lsn(2), &frame("b", 2));
        assert!(matches!(unknown, Err(AppendError::Unknown(_))), "{unknown:?}");
        let later = taken.writer.append(Lsn(2), &frame("b", 2));
        assert!(matches!(later, Err(AppendError::Unknown(_))), "{later:?}");
        drop(taken);
        let found = replayed(&fs, 1);
        assert!(["a", "ab"].contains(&found.as_str()), "{found}");
    }
}

#[test]
fn failed_flush_poisons_the_writer_and_what_replay_shows_is_safe() {
    for seed in 0..50 {
        let fs = FaultyFs::new(seed);
        let mut taken = take_over(&fs, 1).expect("new log");
        append(&mut *taken.writer, "a");
        taken.writer.flush().expect("flush");
        append(&mut *taken.writer, "b");
        fs.fail_sync(1, ErrorKind::Other, Times::Once);
        for _ in 0..2 {
            let failed = taken.writer.flush();
            assert!(matches!(failed, Err(AppendError::Unknown(_))), "{failed:?}");
        }
        assert!(taken.writer.flush_apart().is_none(), "nothing can be flushed apart either");
        let append = taken.writer.append(Lsn(3), &frame("c", 1));
        assert!(matches!(append, Err(AppendError::Unknown(_))), "{append:?}");
        let trim = taken.writer.trim(Lsn(2));
        assert!(matches!(trim, Err(AppendError::Unknown(_))), "{trim:?}");
        drop(taken);
        // The page cache still shows b, though the disk may not have it: a reader that is shown
        // it may act on it, so opening must have made it safe.
        assert_eq!(replayed(&fs, 1), "ab");
        fs.crash(CrashKind::Power);
        assert_eq!(replayed(&fs, 1), "ab", "seed {seed}");
    }
}

#[test]
fn what_is_flushed_apart_survives_power_loss_and_what_came_after_it_is_not_taken_for_flushed() {
    for seed in 0..50 {
        let fs = FaultyFs::new(seed);
        let mut taken = take_over(&fs, 1).expect("new log");
        for letter in ["a", "b", "c", "d", "e"] {
            append(&mut *taken.writer, letter);
        }
        let apart = taken.writer.flush_apart().expect("files can be flushed apart");
        append(&mut *taken.writer, "f");
        apart.flush().expect("flush");
        let syncs = fs.syncs();
        append(&mut *taken.writer, "g");
        taken.writer.flush().expect("flush");
        assert!(fs.syncs() > syncs, "f and g are not flushed yet");
        append(&mut *taken.writer, "h");
        drop(taken);
        fs.crash(CrashKind::Power);
        let found = replayed(&fs, 1);
        assert!(["abcdefg", "abcdefgh"].contains(&found.as_str()), "seed {seed}: {found}");
    }
}

#[test]
fn a_file_whose_disk_was_full_for_a_frame_written_and_flushed_in_one_step_can_be_flushed_again() {
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    append(&mut *taken.writer, "a");
    taken.writer.flush().expect("flush");
    fs.fail_write(1, ErrorKind::StorageFull, Times::Once);
    let full = taken.writer.append_flushed(Lsn(2), &frame("b", 1));
    assert!(matches!(full, Err(AppendError::Full)), "{full:?}");
    taken.writer.append_flushed(Lsn(2), &frame("b", 1)).expect("there is room again");
    drop(taken);
    fs.crash(CrashKind::Power);
    assert_eq!(replayed(&fs, 1), "ab");
}

#[test]
fn a_flush_apart_that_failed_fails_the_writer_though_the_disk_says_so_once_only() {
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    append(&mut *taken.writer, "a");
    taken.writer.flush().expect("flush");
    append(&mut *taken.writer, "b");
    let apart = taken.writer.flush_apart().expect("files can be flushed apart");
    fs.fail_sync(1, ErrorKind::Other, Times::Once);
    assert!(matches!(apart.flush(), Err(AppendError::Unknown(_))));
    let flushed = taken.writer.flush();
    assert!(matches!(flushed, Err(AppendError::Unknown(_))), "{flushed:?}");
    let append = taken.writer.append(Lsn(3), &frame("c", 1));
    assert!(matches!(append, Err(AppendError::Unknown(_))), "{append:?}");
}

#[test]
fn what_a_killed_process_wrote_is_safe_once_it_was_replayed() {
    for seed in 0..50 {
        let fs = FaultyFs::new(seed);
        let mut taken = take_over(&fs, 1).expect("new log");
        for letter in ["a", "b", "c", "d", "e", "f"] {
            append(&mut *taken.writer, letter);
        }
        fs.crash(CrashKind::Process);
        assert_eq!(replayed(&fs, 1), "abcdef");
        fs.crash(CrashKind::Power);
        assert_eq!(replayed(&fs, 1), "abcdef", "seed {seed}");
    }
}

#[test]
fn what_is_known_to_be_flushed_is_not_written_again() {
    let fs = FaultyFs::new(1);
    let mut taken = take_over(&fs, 1).expect("new log");
    for letter in ["a", "b", "c"] {
        append(&mut *taken.writer, letter);
    }
    taken.writer.flush().expect("flush");
    drop(taken);
    for (flushed, again) in [(3, 0), (1, 2), (0, 3)] {
        let writes = fs.writes();
        let floor = Floor { flushed: Lsn(flushed), ..floor(1) };
        let mut taken = settled(log(&fs).take_over(floor).expect("take over")).expect("settled");
        assert_eq!((fs.writes() - writes, letters(&mut taken).as_str()), (again, "abc"));
    }
}

#[test]
fn read_only_folder_is_refused_to_take_over_and_can_be_examined() {
    let fs = log_of("ab");
    let mut taken = take_over(&fs, 1).expect("take over");
    fs.set_read_only(true);
    let refused = taken.writer.append(Lsn(3), &frame("c", 1));
    assert!(matches!(refused, Err(AppendError::ReadOnly)), "{refused:?}");
    drop(taken);
    let refused = take_over(&fs, 1).expect_err("read only");
    assert!(matches!(refused, LogError::ReadOnly { .. }), "{refused}");
    let examined = log(&fs).examine(floor(1)).expect("examine");
    assert_eq!((examined.first, examined.next), (Lsn(1), Lsn(3)));
}

#[test]
fn other_version_is_refused_wherever_a_frame_can_be() {
    for (file, block) in [(1, 1), (2, 0)] {
        let fs = log_of("abcde");
        let newer = fs.dump(&path(1)).expect("file");
        let head = newer[..HEADER_BYTES].try_into().expect("a header");
        if block == 1 {
            // Behind a, as if the rest had been written by a newer program.
            fs.remove(&path(2)).expect("remove");
            fs.overwrite(&path(1), BLOCK, &[0; 3 * BLOCK as usize]);
        }
        fs.overwrite(&path(file), block * BLOCK, &with_version(head, 2));
        let refused = take_over(&fs, 1).expect_err("newer");
        assert!(matches!(refused, LogError::Version { found: 2, known: 1, .. }), "{refused}");
    }
}

#[test]
fn log_of_another_store_is_refused() {
    let fs = log_of("abc");
    let other = FileLog::new(
        Arc::new(fs.clone()),
        "/log".into(),
        FrameMarks::secret(Secret::new(0xbad)),
        FOUR_BLOCKS,
    );
    let refused = other.take_over(floor(1)).expect_err("another store");
    assert!(
        matches!(&refused, LogError::OtherStore { place } if place.contains("00000001.log")),
        "{refused}"
    );
    assert!(!refused.to_string().contains("5eed"), "secrets are not printed: {refused}");
    let refused = other.cut(Lsn(1)).expect_err("another store");
    assert!(matches!(refused, LogError::OtherStore { .. }), "{refused}");
    assert_eq!(replayed(&fs, 1), "abc");
}

#[test]
fn message_that_looks_like_a_frame_of_another_store_is_just_bytes() {
    let fs = log_of("a");
    let mut taken = take_over(&fs, 1).expect("take over");
    let other = Header {
        payload_bytes: 0,
        payload_crc: 0,
        lsn: Lsn(9),
        term: 9,
        flushed: Lsn(8),
        mark: 0xbad,
        link: 0,
    };
    let mut body = frame("b", 2).to_vec();
    body[BLOCK as usize - HEADER_BYTES..][..HEADER_BYTES].copy_from_slice(&other.encode().0);
    taken.writer.append(Lsn(2), &body.into()).expect("append");
    drop(taken);
    fs.flip_bit(&path(1), BLOCK + 100, 1);
    assert_eq!(replayed(&fs, 1), "a");
}

#[test]
fn files_made_ahead_double_up_to_the_maximum() {
    let (fs, mut taken) = small_log();
    let preparer = taken.writer.preparer().expect("a preparer");
    for n in 1..=30 {
        taken.writer.append(Lsn(n), &frame("a", 1)).expect("append");
        let due = preparer.is_due();
        assert_eq!(preparer.prepare(0).expect("room"), due, "frame {n}");
        assert!(!preparer.is_due(), "a file is free again");
    }
    assert_eq!(blocks(&fs), [2, 2, 4, 8, 16, 16, 0], "by number, the second as reserve, the lock");
}

#[test]
fn a_frame_that_has_to_wait_for_a_file_gets_a_small_one_that_fits() {
    let (fs, mut taken) = small_log();
    for (n, blocks) in [(1, 1), (2, 15), (3, 2), (4, 2)] {
        taken.writer.append(Lsn(n), &frame("a", blocks)).expect("append");
    }
    assert_eq!(blocks(&fs), [2, 15, 2, 2, 0], "by number, and the lock");
}

#[test]
fn a_file_system_that_wants_no_zeros_past_its_cache_gets_them_through_it() {
    let (fs, mut taken) = small_log();
    fs.fail_write(1, ErrorKind::InvalidInput, Times::Once);
    taken.writer.append(Lsn(1), &frame("a", 1)).expect("append");
    assert_eq!(blocks(&fs), [2, 0], "by number, and the lock");
    drop(taken);
    assert_eq!(replayed(&fs, 1), "a");
}

/// An empty log whose files have 2 to 16 blocks.
fn small_log() -> (FaultyFs, TakeOver) {
    let options = FileLogOptions { first_file_bytes: 2 * BLOCK, file_bytes_max: 16 * BLOCK };
    let fs = FaultyFs::new(1);
    let log = FileLog::new(Arc::new(fs.clone()), "/log".into(), marks(), options);
    (fs, settled(log.take_over(floor(1)).expect("new log")).expect("settled"))
}

/// How many blocks each file has.
fn blocks(fs: &FaultyFs) -> Vec<u64> {
    fs.files().iter().map(|(_, bytes)| bytes / BLOCK).collect()
}

#[test]
fn trim_flushes_what_it_lets_go_of() {
    // What is below a floor was flushed: else frames could be lost before it, and the
    // end of the log would be below its beginning.
    for seed in 0..20 {
        let fs = FaultyFs::new(seed);
        let mut taken = take_over(&fs, 1).expect("new log");
        append(&mut *taken.writer, "a");
        append(&mut *taken.writer, "b");
        taken.writer.trim(Lsn(2)).expect("trim");
        fs.crash(CrashKind::Power);
        assert_eq!(replayed(&fs, 1), "ab", "seed {seed}");
    }
}

#[test]
fn frame_flushed_in_one_step_takes_those_before_it_along() {
    // The last is too large for one step.
    for (before, blocks) in [("", 1), ("a", 1), ("aa", 3), ("", 20), ("a", 20)] {
        for seed in 0..20 {
            let fs = FaultyFs::new(seed);
            let options = FileLogOptions { file_bytes_max: 32 * BLOCK, ..FOUR_BLOCKS };
            let log = FileLog::new(Arc::new(fs.clone()), "/log".into(), marks(), options);
            let mut taken = log.take_over(floor(1)).expect("new log");
            before.chars().for_each(|_| append(&mut *taken.writer, "a"));
            let next = taken.writer.next();
            taken.writer.append_flushed(next, &frame("b", blocks)).expect("append");
            append(&mut *taken.writer, "c");
            fs.crash(CrashKind::Power);
            let kept = letters(&mut log.take_over(floor(1)).expect("take over"));
            let lost = kept.strip_prefix(&format!("{before}b"));
            assert!(lost.is_some_and(|rest| rest.is_empty() || rest == "c"), "seed {seed}: {kept}");
        }
    }
}

#[test]
fn flush_syncs_one_file_and_append_is_one_write() {
    let fs = log_of("a");
    let mut taken = take_over(&fs, 1).expect("take over");
    let (writes, syncs) = (fs.writes(), fs.syncs());
    append(&mut *taken.writer, "b");
    append(&mut *taken.writer, "c");
    taken.writer.flush().expect("flush");
    taken.writer.flush().expect("flush of nothing");
    assert_eq!((fs.writes() - writes, fs.syncs() - syncs), (2, 1));
}
