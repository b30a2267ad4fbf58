//! Frames that a client forged: with the mark of version 1, which everybody can compute, and
//! with numbers that no log has.

use super::*;

const PUBLIC: u64 = 0x0b11c;

/// A log that version 1 wrote.
fn written_by_v1(fs: &FaultyFs) -> FileLog {
    let marks = FrameMarks::secret(Secret::new(PUBLIC));
    FileLog::new(Arc::new(fs.clone()), "/log".into(), marks, FOUR_BLOCKS)
}

/// The same log, as it is found by a store that has a secret now.
fn migrating(fs: &FaultyFs, secret_from: Option<u64>) -> FileLog {
    let secret_from = secret_from.map(Lsn);
    let marks = FrameMarks { secret: Secret::new(EPOCH), public: PUBLIC, secret_from };
    FileLog::new(Arc::new(fs.clone()), "/log".into(), marks, FOUR_BLOCKS)
}

fn forged(lsn: u64, term: u64, flushed: u64, link: u32) -> ([u8; HEADER_BYTES], u32) {
    let header = Header {
        payload_bytes: 0,
        payload_crc: 0,
        lsn: Lsn(lsn),
        term,
        flushed: Lsn(flushed),
        mark: PUBLIC,
        link,
    };
    header.encode()
}

/// A frame of two or three blocks with forged frames where its later blocks begin.
fn body_with(forged: &[[u8; HEADER_BYTES]]) -> Bytes {
    let mut body = frame("x", 1 + forged.len()).to_vec();
    for (nth, header) in forged.iter().enumerate() {
        body[(nth + 1) * BLOCK as usize - HEADER_BYTES..][..HEADER_BYTES].copy_from_slice(header);
    }
    body.into()
}

#[test]
fn c2_frames_of_version_1_are_read_and_those_forged_inside_dead_ones_are_not() {
    // The file with the anchor begins with a dead frame whose inside is the client's: a frame
    // with the anchor's number and a high term, and one that follows it.
    let (anchor, crc) = forged(2, 9, 1, 0);
    let (next, _) = forged(3, 9, 2, crc);
    let fs = FaultyFs::new(1);
    let mut taken = settled(written_by_v1(&fs).take_over(floor(1)).expect("new")).expect("new");
    taken.writer.append(Lsn(1), &body_with(&[anchor, next])).expect("append");
    append(&mut *taken.writer, "b");
    append(&mut *taken.writer, "c");
    taken.writer.flush().expect("flush");
    drop(taken);
    let examined = migrating(&fs, None).examine(floor(3)).expect("examine");
    let mut taken = settled(migrating(&fs, None).take_over(floor(3)).expect("taken")).expect("s");
    assert_eq!(letters(&mut taken), "c");
    assert_eq!((examined.next, examined.term + 1), (taken.next, taken.term));
    // What is written now has the secret, and goes on from the old frames.
    append(&mut *taken.writer, "d");
    append(&mut *taken.writer, "e");
    taken.writer.flush().expect("flush");
    drop(taken);
    let mut taken = migrating(&fs, Some(4)).take_over(floor(3)).expect("taken");
    assert_eq!(letters(&mut taken), "cde");
    // An old frame where a new one must be is dead.
    drop(taken);
    assert_eq!(migrating(&fs, Some(3)).examine(floor(3)).expect("examine").next, Lsn(3));
}

#[test]
fn c2_what_a_client_left_behind_in_a_file_of_version_1_that_is_used_again_is_dead() {
    // The first life of the file ends in forged frames; the second overwrites its beginning, so
    // that its last frame is followed by them, block by block.
    for forged in [forged(9, u64::MAX, 0, 0), forged(1 << 40, 1, 1 << 39, 0), forged(9, 1, 0, 7)] {
        let fs = FaultyFs::new(1);
        let mut taken = settled(written_by_v1(&fs).take_over(floor(1)).expect("n")).expect("n");
        taken.writer.append(Lsn(1), &body_with(&[forged.0; 3])).expect("append");
        for letter in ["b", "c", "d", "e"] {
            append(&mut *taken.writer, letter);
        }
        taken.writer.trim(Lsn(6)).expect("trim");
        for letter in ["f", "g", "h"] {
            append(&mut *taken.writer, letter);
        }
        taken.writer.flush().expect("flush");
        drop(taken);
        let dump = fs.dump(&path(1)).expect("the first file");
        assert_eq!(&dump[3 * BLOCK as usize..][..HEADER_BYTES], forged.0, "it is still there");
        let taken = migrating(&fs, None).take_over(floor(6)).expect("opens");
        assert_eq!((taken.next, taken.term), (Lsn(9), 2));
    }
}

#[test]
fn damage_in_a_log_of_version_1_is_still_noticed() {
    let fs = FaultyFs::new(1);
    let mut taken = settled(written_by_v1(&fs).take_over(floor(1)).expect("new")).expect("new");
    for letter in ["a", "b", "c", "d"] {
        append(&mut *taken.writer, letter);
        taken.writer.flush().expect("flush");
    }
    drop(taken);
    for at in [BLOCK + 3, BLOCK + 100] {
        fs.flip_bit(&path(1), at, 1);
        let refused = migrating(&fs, None).take_over(floor(1)).expect_err("damaged");
        assert!(matches!(refused, LogError::Damaged { lsn: Lsn(2), .. }), "{refused}");
        fs.flip_bit(&path(1), at, 1);
    }
}

#[test]
fn c2_numbers_that_no_log_reaches_are_damage_and_never_wrap() {
    for (lsn, term) in [(2, u64::MAX), (u64::MAX, 1), (2, (1 << 62) + 1)] {
        let fs = log_of("a");
        let header = Header {
            payload_bytes: 0,
            payload_crc: 0,
            lsn: Lsn(lsn),
            term,
            flushed: Lsn(1),
            mark: EPOCH,
            link: 0,
        };
        fs.overwrite(&path(1), BLOCK, &header.encode().0);
        let refused = take_over(&fs, 1).expect_err("damaged");
        assert!(matches!(&refused, LogError::Damaged { .. }), "{refused}");
        let examined = log(&fs).examine(floor(1)).expect("examine");
        assert!(examined.refused.is_some(), "the doctor sees it too");
        log(&fs).cut(Lsn(lsn)).expect("cut");
        assert_eq!(replayed(&fs, 1), "a");
    }
    let fs = log_of("a");
    let known = Floor { term: u64::MAX, ..floor(1) };
    let refused = log(&fs).take_over(known).expect_err("damaged");
    assert!(matches!(&refused, LogError::Damaged { .. }), "{refused}");
}

#[test]
fn taking_over_changes_nothing_before_it_is_settled() {
    let fs = log_of("abc");
    fs.flip_bit(&path(1), 2 * BLOCK + 100, 0);
    let left = Path::new("/log").join("00000009.new");
    fs.create(&left).expect("a file in the making");
    let before = (fs.dump(&path(1)), fs.writes());
    let mut taken = log(&fs).take_over(floor(1)).expect("take over");
    assert_eq!(letters(&mut taken), "ab");
    assert_eq!((fs.dump(&path(1)), fs.writes()), before);
    assert!(fs.exists(&left).expect("look"));
    let mut taken = {
        drop(taken);
        take_over(&fs, 1).expect("take over")
    };
    assert!(fs.writes() > before.1 && !fs.exists(&left).expect("look"));
    assert_eq!(letters(&mut taken), "ab");
}
