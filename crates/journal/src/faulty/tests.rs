//! Tests of the disk that fails on demand.

use super::*;

const PAGE: usize = 4096;

fn disk(seed: u64) -> (FaultyFs, PathBuf) {
    let fs = FaultyFs::new(seed);
    fs.create_dir(Path::new("/d")).expect("folder");
    (fs, PathBuf::from("/d/a"))
}

fn content_after_power_loss(seed: u64) -> Vec<u8> {
    let (fs, path) = disk(seed);
    let file = fs.create(&path).expect("create");
    file.write_all_at(&[&[1; 4 * PAGE]], 0).expect("write");
    file.sync().expect("sync");
    file.write_all_at(&[&[2; 2 * PAGE], &[3; 2 * PAGE]], 0).expect("write");
    fs.crash(CrashKind::Power);
    fs.dump(&path).expect("synced, so it has a name")
}

#[test]
fn power_loss_tears_what_was_not_synced_and_the_seed_decides_how() {
    let runs: BTreeSet<Vec<u8>> = (0..40).map(content_after_power_loss).collect();
    assert!(runs.len() > 10, "{} different ends", runs.len());
    let torn = |run: &Vec<u8>| run[0] == 1 && run[4 * PAGE - 1] == 3;
    assert!(runs.iter().any(torn), "a later page can survive an earlier one");
    assert!(runs.contains([1; 4 * PAGE].as_slice()), "all can be lost");
    for seed in 0..10 {
        assert_eq!(content_after_power_loss(seed), content_after_power_loss(seed));
    }
}

#[test]
fn a_killed_process_loses_nothing_until_the_power_goes_too() {
    let mut ends = BTreeSet::new();
    for seed in 0..40 {
        let (fs, path) = disk(seed);
        let file = fs.create(&path).expect("create");
        file.sync().expect("sync");
        file.write_all_at(&[b"abc"], 0).expect("write");
        fs.crash(CrashKind::Process);
        assert_eq!(fs.dump(&path).expect("there"), b"abc");
        file.read_at(&mut [0], 0).expect_err("a handle dies with its process");
        fs.crash(CrashKind::Power);
        ends.insert(fs.dump(&path).expect("there"));
    }
    assert_eq!(ends.len(), 2);
}

#[test]
fn names_survive_as_a_prefix_until_the_folder_is_synced() {
    let mut ends = BTreeSet::new();
    for seed in 0..40 {
        let (fs, path) = disk(seed);
        for name in ["b", "c"] {
            fs.create(&path.with_file_name(name)).expect("create");
        }
        let file = fs.create(&path).expect("create");
        file.sync().expect("a synced file has its name");
        fs.rename(&path, &path.with_file_name("z")).expect("rename");
        fs.crash(CrashKind::Power);
        ends.insert(fs.list(Path::new("/d")).expect("list").concat());
        fs.crash(CrashKind::Power);
    }
    let expected = ["a", "ab", "abc", "bcz"].map(str::to_owned);
    assert_eq!(ends, expected.into());

    let (fs, path) = disk(1);
    fs.create(&path).expect("create");
    fs.rename(&path, &path.with_file_name("z")).expect("rename");
    fs.sync_dir(Path::new("/d")).expect("sync");
    fs.crash(CrashKind::Power);
    assert_eq!(fs.list(Path::new("/d")).expect("list"), ["z"]);
}

#[test]
fn a_failed_sync_forgets_what_it_should_have_written() {
    let (fs, path) = disk(3);
    let file = fs.create(&path).expect("create");
    file.write_all_at(&[&[7; 64 * PAGE]], 0).expect("write");
    fs.fail_sync(1, ErrorKind::Other, Times::Once);
    file.sync().expect_err("armed");
    file.sync().expect("a second one has nothing to do");
    assert_eq!(fs.dump(&path).expect("seen"), [7; 64 * PAGE]);
    fs.crash(CrashKind::Power);
    assert_ne!(fs.dump(&path).expect("on disk"), [7; 64 * PAGE]);
}

#[test]
fn a_full_disk_takes_what_fits_and_more_when_there_is_room_again() {
    let (fs, path) = disk(4);
    fs.set_capacity(Some(10));
    let file = fs.create(&path).expect("create");
    let full = file.write_all_at(&[&[1; 12]], 0).expect_err("full");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(fs.used_bytes(), 10);
    file.write_all_at(&[&[2; 10]], 0).expect("no growth");
    fs.set_capacity(None);
    file.write_all_at(&[&[3; 12]], 0).expect("room");
    assert_eq!(fs.files(), [(path, 12)]);
}

#[test]
fn a_crash_within_a_write_ends_everything() {
    let (fs, path) = disk(5);
    let file = fs.create(&path).expect("create");
    let lock = fs.lock(&path.with_file_name("LOCK")).expect("lock");
    fs.crash_after_writes(2);
    file.write_all_at(&[&[1]], 0).expect("first");
    file.write_all_at(&[&[2]], 1).expect_err("second");
    fs.list(Path::new("/d")).expect_err("down");
    fs.crash(CrashKind::Process);
    let held = fs.lock(&path.with_file_name("LOCK")).expect("free after a crash");
    drop(lock);
    fs.lock(&path.with_file_name("LOCK")).expect_err("an old lock frees nothing");
    drop(held);
    assert_eq!(fs.dump(&path).expect("there")[0], 1);
}

#[test]
fn read_only_forbids_changes_and_allows_reading() {
    let (fs, path) = disk(6);
    let file = fs.create(&path).expect("create");
    fs.set_read_only(true);
    let denied = file.write_all_at(&[b"x"], 0).expect_err("write");
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    fs.open(&path).expect_err("open to write");
    fs.open_read(&path).expect("open to read");
    fs.remove(&path).expect_err("remove");
    fs.lock(&path).expect_err("lock");
}

#[test]
fn the_sync_hook_is_called_within_each_sync() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let (fs, path) = disk(7);
    let file = fs.create(&path).expect("create");
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    fs.on_sync(Some(Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    })));
    file.sync().expect("sync");
    fs.sync_dir(Path::new("/d")).expect("sync");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(fs.syncs(), 2);
}
