//! What every log and every blob store must do, as checks that can be run.
//!
//! A new engine is right for gapless when [`check_log`] and [`check_blobs`] pass for it;
//! there is nothing about engines in the broker beyond what they ask. They panic with
//! the broken promise, so they are called from a test.
//!
//! Not here: crashes. What survives one is promised by the traits too, but only the
//! engine's own tests can make one happen.

use bytes::Bytes;

use crate::{
    blobs::{BlobError, Blobs, Created, NAME_BYTES_MAX},
    log::{AppendError, Floor, Log, LogError, LogReader, Lsn, Stop, TakeOver},
};

/// Checks a log; `make` gives a new, empty one each time, on the same kind of medium.
pub fn check_log<L: Log>(make: impl Fn() -> L) {
    empty_log_begins_at_one(&make());
    frames_come_back_as_they_were(&make());
    only_the_exact_place_is_appended_to(&make());
    second_taker_is_locked_out_or_fences_the_first(&make());
    terms_rise(&make());
    replay_begins_where_asked_and_ends_at_take_over(&make());
    trimmed_frames_are_gone_and_the_rest_stays(&make());
    log_that_lost_its_past_continues_at_the_floor(&make());
    too_large_frame_is_refused(&make());
    preparing_changes_nothing_to_see(&make());
}

/// Checks a blob store; `make` gives a new, empty one each time.
pub fn check_blobs<B: Blobs>(make: impl Fn() -> B) {
    blob_appears_whole_at_finish(&make());
    dropped_writer_leaves_nothing(&make());
    first_of_a_name_wins(&make());
    ranges_are_exact(&make());
    large_blob_streams(&make());
    blob_that_is_read_rarely_is_like_any_other(&make());
    list_is_sorted_by_prefix(&make());
    delete_is_idempotent(&make());
    bad_names_are_refused(&make());
}

fn floor(first_needed: u64) -> Floor {
    Floor { first_needed: Lsn(first_needed), ..Floor::default() }
}

fn open(log: &dyn Log, first_needed: u64) -> TakeOver {
    let taken = log.take_over(floor(first_needed));
    let mut taken = taken.expect("a log without an owner can be taken over");
    taken.writer.settle().expect("a log that was taken over can be settled");
    taken
}

fn append(taken: &mut TakeOver, frame: &Bytes) -> Lsn {
    let at = taken.writer.next();
    taken.writer.append(at, frame).expect("append at the end");
    assert_eq!(taken.writer.next(), at.next(), "each append moves the end by one");
    at
}

fn replay(reader: &mut dyn LogReader, from: u64) -> Vec<(u64, Bytes)> {
    let mut frames = Vec::new();
    let done = reader.replay(Lsn(from), &mut |lsn, frame| {
        frames.push((lsn.0, frame));
        Ok(())
    });
    done.expect("replay of what is kept");
    frames
}

fn text(n: u64) -> Bytes {
    Bytes::from(format!("frame {n}"))
}

fn empty_log_begins_at_one(log: &dyn Log) {
    let mut taken = open(log, 1);
    assert_eq!((taken.first, taken.next), (Lsn::FIRST, Lsn::FIRST));
    assert_eq!(taken.writer.next(), Lsn::FIRST);
    assert_eq!(taken.torn, None);
    assert!(taken.term > 0, "0 is the term before the first");
    assert!(replay(&mut *taken.reader, 1).is_empty());
    taken.writer.flush().expect("a flush of nothing");
}

fn frames_come_back_as_they_were(log: &dyn Log) {
    let sizes = [0, 1, 4031, 4032, 4033, 10_000, 200_000, 1];
    let bytes = |size: usize| (0..size).map(|i| (i % 251) as u8).collect::<Bytes>();
    let mut expected = Vec::new();
    let mut taken = open(log, 1);
    for size in sizes {
        let lsn = append(&mut taken, &bytes(size));
        expected.push((lsn.0, bytes(size)));
    }
    taken.writer.flush().expect("flush");
    for size in sizes {
        let lsn = taken.writer.next();
        taken.writer.append_flushed(lsn, &bytes(size)).expect("append and flush");
        assert_eq!(taken.writer.next(), lsn.next(), "each append moves the end by one");
        expected.push((lsn.0, bytes(size)));
    }
    drop(taken);
    for _ in 0..2 {
        let mut taken = open(log, 1);
        assert_eq!((taken.first, taken.next), (Lsn(1), Lsn(17)));
        assert_eq!(taken.torn, None, "a log that was closed well has no torn end");
        assert!(replay(&mut *taken.reader, 1) == expected, "frames differ");
        assert!(replay(&mut *taken.reader, 1) == expected, "a second time");
    }
}

fn only_the_exact_place_is_appended_to(log: &dyn Log) {
    let mut taken = open(log, 1);
    append(&mut taken, &text(1));
    for wrong in [0, 1, 3, u64::MAX] {
        let refused = taken.writer.append(Lsn(wrong), &text(9));
        let is_refused = |refused: Result<(), AppendError>| {
            let told = matches!(refused, Err(AppendError::WrongPlace { next: Lsn(2) }));
            assert!(told, "append at {wrong}: {refused:?}");
        };
        is_refused(refused);
        is_refused(taken.writer.append_flushed(Lsn(wrong), &text(9)));
    }
    append(&mut taken, &text(2));
    drop(taken);
    let mut taken = open(log, 1);
    let frames = replay(&mut *taken.reader, 1);
    assert_eq!(frames, [(1, text(1)), (2, text(2))]);
}

fn second_taker_is_locked_out_or_fences_the_first(log: &dyn Log) {
    let mut first = open(log, 1);
    append(&mut first, &text(1));
    match log.take_over(floor(1)) {
        Err(LogError::Locked { .. }) => {
            append(&mut first, &text(2));
        }
        Err(other) => panic!("neither locked out nor fencing: {other}"),
        Ok(mut second) => {
            assert_eq!(second.next, Lsn(2));
            for _ in 0..2 {
                let append = first.writer.append(Lsn(2), &text(99));
                assert!(matches!(append, Err(AppendError::Fenced { .. })), "{append:?}");
                let flush = first.writer.flush();
                assert!(matches!(flush, Err(AppendError::Fenced { .. })), "{flush:?}");
                let trim = first.writer.trim(Lsn(2));
                assert!(matches!(trim, Err(AppendError::Fenced { .. })), "{trim:?}");
            }
            append(&mut second, &text(2));
        }
    }
    drop(first);
    let mut third = open(log, 1);
    let frames = replay(&mut *third.reader, 1);
    assert_eq!(frames, [(1, text(1)), (2, text(2))]);
}

fn terms_rise(log: &dyn Log) {
    let mut first = open(log, 1);
    append(&mut first, &text(1));
    let first_term = first.term;
    drop(first);
    let mut second = open(log, 1);
    assert!(second.term > first_term);
    append(&mut second, &text(2));
    let known = second.term + 100;
    drop(second);
    let told = log.take_over(Floor { term: known, ..Floor::default() });
    assert!(told.expect("take over").term > known);
}

fn replay_begins_where_asked_and_ends_at_take_over(log: &dyn Log) {
    let mut taken = open(log, 1);
    for n in 1..=5 {
        append(&mut taken, &text(n));
    }
    assert!(replay(&mut *taken.reader, 1).is_empty(), "appended after take over");
    drop(taken);
    let mut taken = open(log, 1);
    append(&mut taken, &text(6));
    let numbers = |frames: Vec<(u64, Bytes)>| frames.iter().map(|f| f.0).collect::<Vec<_>>();
    assert_eq!(numbers(replay(&mut *taken.reader, 3)), [3, 4, 5]);
    assert!(replay(&mut *taken.reader, 6).is_empty());
    assert!(replay(&mut *taken.reader, 60).is_empty());
    let mut seen = 0;
    let stopped = taken.reader.replay(Lsn(1), &mut |lsn, _| {
        seen = lsn.0;
        if lsn == Lsn(2) { Err(Stop) } else { Ok(()) }
    });
    assert!(matches!(stopped, Err(LogError::Stopped)), "{stopped:?}");
    assert_eq!(seen, 2, "nothing is visited after a stop");
}

fn trimmed_frames_are_gone_and_the_rest_stays(log: &dyn Log) {
    let mut taken = open(log, 1);
    for n in 1..=9 {
        append(&mut taken, &text(n));
    }
    taken.writer.trim(Lsn(4)).expect("trim");
    taken.writer.trim(Lsn(2)).expect("trim of what is gone");
    let past = taken.writer.trim(Lsn(11));
    assert!(matches!(past, Err(AppendError::WrongPlace { next: Lsn(10) })), "{past:?}");
    drop(taken);

    let mut taken = open(log, 4);
    assert_eq!((taken.first, taken.next), (Lsn(4), Lsn(10)));
    let below = taken.reader.replay(Lsn(3), &mut |_, _| panic!("a trimmed frame"));
    assert!(matches!(below, Err(LogError::Trimmed { first: Lsn(4) })), "{below:?}");
    let frames = replay(&mut *taken.reader, 4);
    assert_eq!(frames, (4..=9).map(|n| (n, text(n))).collect::<Vec<_>>());
    taken.writer.trim(Lsn(10)).expect("trim of all");
    drop(taken);

    let mut taken = open(log, 10);
    assert_eq!((taken.first, taken.next), (Lsn(10), Lsn(10)));
    assert!(replay(&mut *taken.reader, 10).is_empty());
    append(&mut taken, &text(10));
    drop(taken);
    let mut taken = open(log, 10);
    assert_eq!(replay(&mut *taken.reader, 10), [(10, text(10))]);
}

fn log_that_lost_its_past_continues_at_the_floor(log: &dyn Log) {
    let mut taken = open(log, 50);
    assert_eq!((taken.first, taken.next), (Lsn(50), Lsn(50)));
    append(&mut taken, &text(50));
    drop(taken);
    // What is below a floor counts as trimmed, also if the log still has it.
    let mut taken = open(log, 70);
    assert_eq!((taken.first, taken.next), (Lsn(70), Lsn(70)));
    append(&mut taken, &text(70));
    drop(taken);
    let mut taken = open(log, 70);
    assert_eq!(replay(&mut *taken.reader, 70), [(70, text(70))]);
}

fn too_large_frame_is_refused(log: &dyn Log) {
    let mut taken = open(log, 1);
    let max = taken.writer.frame_bytes_max();
    let refused = taken.writer.append(Lsn(1), &vec![0; max + 1].into());
    assert!(matches!(refused, Err(AppendError::TooLarge { max: m }) if m == max), "{refused:?}");
    append(&mut taken, &vec![7; max].into());
    drop(taken);
    let mut taken = open(log, 1);
    let frames = replay(&mut *taken.reader, 1);
    assert!(frames == [(1, Bytes::from(vec![7; max]))], "the largest frame");
}

fn preparing_changes_nothing_to_see(log: &dyn Log) {
    let mut taken = open(log, 1);
    let preparer = taken.writer.preparer();
    for n in 1..=20 {
        if let Some(preparer) = &preparer {
            preparer.prepare(0).expect("there is room");
        }
        append(&mut taken, &vec![n as u8; 30_000].into());
    }
    drop(taken);
    if let Some(preparer) = &preparer {
        assert!(!preparer.prepare(0).expect("nothing to do"), "prepared without need");
    }
    let mut taken = open(log, 1);
    assert_eq!(replay(&mut *taken.reader, 1).len(), 20);
}

fn missing(blobs: &dyn Blobs, name: &str) -> bool {
    matches!(blobs.open(name), Err(BlobError::Missing { name: n }) if n == name)
}

fn blob_appears_whole_at_finish(blobs: &dyn Blobs) {
    let mut writer = blobs.create("a").expect("create");
    writer.write(b"one ").expect("write");
    writer.write(b"").expect("write nothing");
    writer.write(b"two").expect("write");
    assert!(missing(blobs, "a"), "visible before it is finished");
    assert!(blobs.list("").expect("list").is_empty());
    assert_eq!(writer.finish().expect("finish"), Created::New);
    assert_eq!(blobs.read("a").expect("read"), &b"one two"[..]);
    assert_eq!(blobs.put("empty", b"").expect("put"), Created::New);
    assert_eq!(blobs.open("empty").expect("open").len(), 0);
    assert!(blobs.read("empty").expect("read").is_empty());
}

fn dropped_writer_leaves_nothing(blobs: &dyn Blobs) {
    let mut writer = blobs.create("a").expect("create");
    writer.write(b"x").expect("write");
    drop(writer);
    assert!(missing(blobs, "a"));
    assert!(blobs.list("").expect("list").is_empty());
}

fn first_of_a_name_wins(blobs: &dyn Blobs) {
    let mut early = blobs.create("a").expect("create");
    let mut late = blobs.create("a").expect("two may try");
    early.write(b"early").expect("write");
    late.write(b"late").expect("write");
    assert_eq!(late.finish().expect("finish"), Created::New);
    assert_eq!(early.finish().expect("finish"), Created::AlreadyThere);
    assert_eq!(blobs.put("a", b"later").expect("put"), Created::AlreadyThere);
    assert_eq!(blobs.read("a").expect("read"), &b"late"[..]);
    assert_eq!(blobs.list("").expect("list"), ["a"]);
}

fn ranges_are_exact(blobs: &dyn Blobs) {
    blobs.put("a", b"0123456789").expect("put");
    let blob = blobs.open("a").expect("open");
    assert_eq!(blob.len(), 10);
    let mut buf = [0; 4];
    blob.read_at(&mut buf, 3).expect("inside");
    assert_eq!(&buf, b"3456");
    blob.read_at(&mut buf, 6).expect("up to the end");
    assert_eq!(&buf, b"6789");
    blob.read_at(&mut buf, 7).expect_err("over the end");
    blob.read_at(&mut buf, u64::MAX / 4).expect_err("far over the end");
    buf = [0; 4];
    // Whether it is in memory is up to the system; but then it is the same.
    assert!(!blob.read_cached_at(&mut buf, 3).expect("inside") || &buf == b"3456");
    let over = blob.read_cached_at(&mut buf, 7);
    assert!(!matches!(over, Ok(true)), "over the end there is nothing in memory either");
}

fn large_blob_streams(blobs: &dyn Blobs) {
    let piece: Vec<u8> = (0..700_001).map(|i| (i % 253) as u8).collect();
    let mut writer = blobs.create("large").expect("create");
    for _ in 0..4 {
        writer.write(&piece).expect("write");
    }
    writer.finish().expect("finish");
    assert!(blobs.read("large").expect("read") == piece.repeat(4), "bytes differ");
}

fn blob_that_is_read_rarely_is_like_any_other(blobs: &dyn Blobs) {
    const MIB: usize = 1024 * 1024;
    for (number, bytes) in [1, 4096, MIB, MIB + 4096, 3 * MIB + 77].into_iter().enumerate() {
        let body: Vec<u8> = (0..bytes).map(|at| (at / 7 % 251) as u8).collect();
        let name = format!("rare-{number}");
        let mut writer = blobs.create(&name).expect("create");
        writer.write(&body[..bytes / 3]).expect("write");
        writer.read_rarely();
        writer.write(&body[bytes / 3..]).expect("write");
        assert_eq!(writer.finish().expect("finish"), Created::New);
        assert!(blobs.read(&name).expect("read") == body, "{bytes} bytes come back as they were");
    }
}

fn list_is_sorted_by_prefix(blobs: &dyn Blobs) {
    for name in ["s-2", "c-1", "s-10", "s-1"] {
        blobs.put(name, name.as_bytes()).expect("put");
    }
    assert_eq!(blobs.list("s-").expect("list"), ["s-1", "s-10", "s-2"]);
    assert_eq!(blobs.list("").expect("list"), ["c-1", "s-1", "s-10", "s-2"]);
    assert!(blobs.list("x").expect("list").is_empty());
}

fn delete_is_idempotent(blobs: &dyn Blobs) {
    blobs.put("a", b"abc").expect("put");
    let reader = blobs.open("a").expect("open");
    blobs.delete("a").expect("delete");
    blobs.delete("a").expect("delete again");
    assert!(missing(blobs, "a"));
    let mut buf = [0; 3];
    match reader.read_at(&mut buf, 0) {
        Ok(()) => assert_eq!(&buf, b"abc"),
        Err(BlobError::Missing { .. }) => {}
        Err(other) => panic!("a reader of a deleted blob: {other}"),
    }
    assert_eq!(blobs.put("a", b"new").expect("put"), Created::New);
    assert_eq!(blobs.read("a").expect("read"), &b"new"[..]);
}

fn bad_names_are_refused(blobs: &dyn Blobs) {
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for name in ["", ".", "..", ".a", "a/b", "../a", "a\0", "ä", "a b", &long] {
        let refused = blobs.create(name);
        assert!(matches!(refused, Err(BlobError::BadName { .. })), "{name:?}");
    }
    let longest = "x".repeat(NAME_BYTES_MAX);
    assert_eq!(blobs.put(&longest, b"x").expect("put"), Created::New);
    assert_eq!(blobs.list("").expect("list"), [longest]);
}
