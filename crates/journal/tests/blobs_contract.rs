//! Every blob store of this crate keeps the contract, and the one in files also keeps it
//! over crashes and on bad disks.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use gapless_journal::{
    blobs::{BlobError, Blobs, Created},
    contract::check_blobs,
    dir_blobs::DirBlobs,
    faulty::{CrashKind, FaultyFs, Times},
    fs::{DiskFs, Fs},
    memory::{CreateFault, MemoryBlobs},
};

fn on(fs: &FaultyFs) -> DirBlobs {
    prepared(DirBlobs::new(Arc::new(fs.clone()), PathBuf::from("/blobs")))
}

fn prepared(blobs: DirBlobs) -> DirBlobs {
    blobs.prepare().expect("prepare");
    blobs
}

#[test]
fn blobs_on_disk_keep_the_contract() {
    let root = tempfile::tempdir().expect("temp dir");
    let count = std::cell::Cell::new(0);
    check_blobs(|| {
        count.set(count.get() + 1);
        let dir = root.path().join(format!("{}/blobs", count.get()));
        prepared(DirBlobs::new(Arc::new(DiskFs), dir))
    });
}

#[test]
fn blobs_on_a_faulty_disk_keep_the_contract() {
    check_blobs(|| on(&FaultyFs::new(1)));
}

#[test]
fn blobs_in_memory_keep_the_contract() {
    check_blobs(MemoryBlobs::new);
}

#[test]
fn finished_blob_survives_power_loss_and_an_unfinished_one_leaves_nothing() {
    for seed in 0..200 {
        let fs = FaultyFs::new(seed);
        let blobs = on(&fs);
        let body = vec![seed as u8; 20_000];
        assert_eq!(blobs.put("done", &body).expect("put"), Created::New);
        let mut begun = blobs.create("begun").expect("create");
        begun.write(&body).expect("write");
        fs.crash_after_writes(1 + seed % 3);
        // May fail or not: what counts is that the name never stands for a part.
        let finished = begun.finish();
        fs.crash(CrashKind::Power);
        let blobs = on(&fs);
        assert_eq!(blobs.read("done").expect("read"), body);
        match blobs.read("begun") {
            Ok(found) => assert_eq!(found, body, "seed {seed}"),
            Err(BlobError::Missing { .. }) => assert!(finished.is_err(), "seed {seed}"),
            Err(other) => panic!("seed {seed}: {other}"),
        }
        let left = fs.list(Path::new("/blobs")).expect("list");
        assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
    }
}

#[test]
fn a_file_system_that_wants_no_writes_past_its_cache_gets_them_through_it() {
    let fs = FaultyFs::new(1);
    let blobs = on(&fs);
    let body = vec![7; 3 * 1024 * 1024 + 5];
    let mut writer = blobs.create("a").expect("create");
    writer.read_rarely();
    fs.fail_write(2, ErrorKind::InvalidInput, Times::Once);
    writer.write(&body).expect("write");
    assert_eq!(writer.finish().expect("finish"), Created::New);
    assert!(blobs.read("a").expect("read") == body);
}

#[test]
fn full_disk_makes_no_blob_and_gives_the_room_back() {
    let fs = FaultyFs::new(1);
    let blobs = on(&fs);
    fs.set_capacity(Some(5000));
    let full = blobs.put("a", &[1; 6000]);
    assert!(matches!(full, Err(BlobError::Full)), "{full:?}");
    assert_eq!(fs.used_bytes(), 0);
    assert_eq!(blobs.put("a", &[1; 4000]).expect("fits"), Created::New);
}

#[test]
fn failed_sync_is_told_and_no_blob_appears() {
    let fs = FaultyFs::new(1);
    let blobs = on(&fs);
    fs.fail_sync(1, ErrorKind::Other, Times::Once);
    let failed = blobs.put("a", b"abc");
    assert!(matches!(failed, Err(BlobError::Io { .. })), "{failed:?}");
    assert!(matches!(blobs.open("a"), Err(BlobError::Missing { .. })));
    assert_eq!(blobs.put("a", b"abc").expect("again"), Created::New);
}

#[test]
fn read_only_folder_is_read_and_not_written() {
    let fs = FaultyFs::new(1);
    on(&fs).put("a", b"abc").expect("put");
    fs.set_read_only(true);
    let blobs = on(&fs);
    assert_eq!(blobs.read("a").expect("read"), &b"abc"[..]);
    let create = blobs.create("b").map(drop);
    assert!(matches!(create, Err(BlobError::ReadOnly)), "{create:?}");
    let delete = blobs.delete("a");
    assert!(matches!(delete, Err(BlobError::ReadOnly)), "{delete:?}");
}

#[test]
fn faults_of_the_memory_store_strike_once() {
    let blobs = MemoryBlobs::new();
    blobs.fail_next_create(CreateFault::Full);
    assert!(matches!(blobs.put("a", b"1"), Err(BlobError::Full)));
    blobs.fail_next_create(CreateFault::FinishLost);
    assert!(matches!(blobs.put("a", b"1"), Err(BlobError::Io { .. })));
    assert!(matches!(blobs.open("a"), Err(BlobError::Missing { .. })));
    blobs.fail_next_create(CreateFault::FinishStored);
    assert!(matches!(blobs.put("a", b"1"), Err(BlobError::Io { .. })));
    assert_eq!(blobs.put("a", b"2").expect("put"), Created::AlreadyThere);
}
