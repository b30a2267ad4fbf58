//! `gapless doctor`: it finds what is wrong, and repairs only on request.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_broker::{Broker, BrokerOptions};
use gapless_core::{Durability, Entry, EntryHeader, EntryKind, Epoch, TopicId};
use gapless_journal::fs::DiskFs;
use gapless_journal::layout::Folder;
use gapless_journal::{Journal, JournalOptions, Lsn, Recover, Secret};

use crate::support::{DEADLINE, Ran, Server, alone};

/// A folder with segments, closed cleanly.
fn stored() -> Server {
    let settings = ["journal.seal_bytes=1048576", "journal.tail_bytes=65536"];
    let mut server = Server::with(&settings);
    let body = "x".repeat(1000);
    server.run(&["pub", "t", &body, "--count", "3000", "--create"]).ok();
    // Segments are written beside publishing, and a clean end does not wait for them.
    let deadline = Instant::now() + DEADLINE;
    while find_blob(&server, ".index").is_none() {
        assert!(Instant::now() < deadline, "no segment is written");
        std::thread::yield_now();
    }
    assert_eq!(server.stop(), Some(0));
    server
}

fn doctor(data: &Path, words: &[&str]) -> Ran {
    let data = data.display().to_string();
    alone(&[&["doctor", "--data", &data][..], words].concat())
}

/// The first blob whose name ends so.
fn blob(server: &Server, end: &str) -> PathBuf {
    find_blob(server, end).expect("there is such a blob")
}

fn find_blob(server: &Server, end: &str) -> Option<PathBuf> {
    let blobs = fs::read_dir(server.data().join("blobs")).expect("there are blobs");
    let mut names: Vec<PathBuf> = blobs.flatten().map(|each| each.path()).collect();
    names.sort();
    names.into_iter().find(|path| path.display().to_string().ends_with(end))
}

/// The file of the log that holds these bytes, and where.
fn in_log(server: &Server, bytes: &[u8]) -> (PathBuf, usize) {
    let files = fs::read_dir(server.data().join("log")).expect("there is a log");
    let mut found = files.flatten().filter_map(|each| {
        let content = fs::read(each.path()).ok()?;
        let at = content.windows(bytes.len()).position(|part| part == bytes)?;
        Some((each.path(), at))
    });
    found.next().expect("what was acknowledged is in the log")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("it can be read");
    bytes[at] ^= 0xff;
    fs::write(path, bytes).expect("it can be written");
}

#[test]
fn a_whole_folder_is_exit_0() {
    let server = stored();
    let ran = doctor(&server.data(), &[]).ok();
    ran.shows("No damage found.").shows("segments  ");
    let ran = doctor(&server.data(), &["--json"]).ok();
    assert_eq!(ran.json()[0]["worst"], serde_json::Value::Null);
    doctor(&server.data(), &["--repair"]).ok().shows("nothing was repaired");
}

#[test]
fn no_store_is_exit_6() {
    let folder = tempfile::tempdir().unwrap();
    doctor(folder.path(), &[]).exits(6).says("--data DIR");
    // Looking must not make a store.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_lost_index_is_made_anew_only_when_asked() {
    let server = stored();
    let index = blob(&server, ".index");
    fs::remove_file(&index).unwrap();
    let ran = doctor(&server.data(), &[]).exits(3);
    ran.shows("can be repaired without loss").shows("gapless doctor --repair");
    assert!(!index.exists());
    doctor(&server.data(), &["--repair"]).ok().shows("rebuilt");
    assert!(index.exists());
    doctor(&server.data(), &[]).ok();
}

#[test]
fn damaged_data_is_exit_3_and_stays_what_it_is() {
    let server = stored();
    let data = blob(&server, ".data");
    flip(&data, 5_000);
    let ran = doctor(&server.data(), &[]).exits(3);
    ran.shows("damaged").shows("restore this file from a backup");
    let ran = doctor(&server.data(), &["--json"]).exits(3);
    assert_eq!(ran.json()[0]["worst"], "damaged");
    assert_eq!(ran.json()[0]["findings"][0]["repairable"], false);
    doctor(&server.data(), &["--repair", "--yes"]).exits(3);
}

#[test]
fn what_gives_something_up_needs_a_yes() {
    // A byte of a frame in the middle of the log goes bad: what follows it was flushed, so
    // that cutting it off would lose what was acknowledged.
    let mut server = Server::start();
    for body in ["first", "second", "third"] {
        server.run(&["pub", "t", body, "--create"]).ok();
    }
    server.kill();
    let (log, at) = in_log(&server, b"second");
    flip(&log, at);
    let ran = doctor(&server.data(), &["--json"]).exits(3);
    assert_eq!(ran.json()[0]["findings"][0]["repair_loses"], true);
    let before = fs::read(&log).unwrap();
    let ran = doctor(&server.data(), &["--repair"]).exits(3);
    ran.says("--yes allows them").shows("nothing was repaired");
    assert!(fs::read(&log).unwrap() == before, "nothing was changed");
    let ran = doctor(&server.data(), &["--repair", "--yes"]).ok();
    ran.shows("cut the log: frames 3 to 4 are lost").shows("No damage found.");
    server.crash_and_restart();
    server.run(&["sub", "t", "--no-follow"]).ok().prints(&["t 1 - first"]);
    doctor(&server.data(), &["--yes"]).exits(2).says("--repair");
}

#[test]
fn a_killed_server_leaves_no_damage() {
    let mut server = Server::start();
    server.run(&["pub", "t", "x", "--create"]).ok();
    server.crash_and_restart();
    doctor(&server.data(), &[]).ok().shows("was not closed, or is open now");
}

/// A state above a journal that takes whatever there is.
struct Anything;

impl Recover for Anything {
    fn restore(&mut self, _: bytes::Bytes) -> Result<(), String> {
        Ok(())
    }

    fn replay(&mut self, _: Lsn, _: Entry) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn c1_the_doctor_refuses_what_opening_refuses_although_every_file_is_whole() {
    let mut server = Server::start();
    server.run(&["pub", "t", "a", "--create"]).ok();
    assert_eq!(server.stop(), Some(0));
    let data = server.data();
    // A change of a group that never was.
    let folder = Folder::new(Arc::new(DiskFs), &data);
    let parts =
        folder.parts((Epoch(1), Secret::new(1)), Arc::new(|| Duration::ZERO), false).unwrap();
    let (journal, _) = Journal::open(parts, JournalOptions::small(), &mut Anything).unwrap();
    let header = EntryHeader { topic: TopicId(77), ..EntryHeader::new(EntryKind::Group) };
    let mut append = journal.begin(128).unwrap();
    const PAUSED: u8 = 6;
    append.entry(header, &[PAUSED]);
    append.finish(Durability::Flushed, Durability::Flushed).wait().unwrap();
    journal.close().unwrap();
    drop(journal);

    let refused = Broker::open(BrokerOptions::new(&data)).err().expect("nothing explains it");
    let before = fs::read_dir(data.join("blobs")).unwrap().count();
    let ran = doctor(&data, &[]).exits(3);
    ran.shows("damaged").shows(&refused.to_string()).shows("report this");
    doctor(&data, &["--repair", "--yes"]).exits(3).shows("nothing was repaired");
    assert_eq!(fs::read_dir(data.join("blobs")).unwrap().count(), before);
}

#[test]
fn c3_a_folder_without_its_manifests_is_refused_and_nothing_in_it_is_touched() {
    let server = stored();
    let data = server.data();
    for entry in fs::read_dir(data.join("blobs")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("manifest-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let all = || -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for folder in [data.clone(), data.join("blobs"), data.join("log")] {
            for entry in fs::read_dir(folder)
                .expect("the folder")
                .flatten()
                .filter(|each| each.path().is_file())
            {
                found.push((entry.path(), fs::read(entry.path()).unwrap()));
            }
        }
        found.sort();
        found
    };
    let before = all();
    let folder = data.display().to_string();
    let serve = ["serve", "--data", &folder, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    alone(&serve).exits(1).says("segment-").says("doctor");
    doctor(&data, &[]).exits(3).shows("there is no manifest").shows("--rebuild");
    assert!(all() == before, "something was touched");
    // The same without the log: then it looked like an empty folder once.
    fs::remove_dir_all(data.join("log")).unwrap();
    alone(&serve).exits(1).says("segment-");
    assert!(find_blob(&server, ".data").is_some(), "the messages are still there");
}

#[test]
fn m3_a_store_without_manifests_is_rebuilt_with_everything_in_it() {
    let server = stored();
    let data = server.data();
    doctor(&data, &["--rebuild"]).exits(1).says("nothing to rebuild");
    for entry in fs::read_dir(data.join("blobs")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("manifest-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    doctor(&data, &["--rebuild"]).ok().shows("none of it is lost").shows("1 topics");
    let broker = Broker::open(BrokerOptions::new(&data)).unwrap();
    let topic = gapless_core::TopicName::parse("t").unwrap();
    assert_eq!(broker.describe_topic(&topic).unwrap().next, gapless_core::Seq(3001));
    broker.close().unwrap();
}

#[test]
fn an_upgrade_is_checked_without_changing_a_byte() {
    let server = stored();
    let ran = doctor(&server.data(), &["--check-upgrade"]).ok();
    ran.shows("changes no format").shows("manifest");
    // A store of version 1, as older programs wrote it.
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../broker/tests/fixtures/v1");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("v1");
    copy_folder(&old, &copy);
    let before = content(&copy);
    let ran = doctor(&copy, &["--check-upgrade"]).ok();
    ran.shows("version 1").shows("manifests get version 2").shows("opens the store");
    assert!(content(&copy) == before, "nothing is changed");
    // One of a version that is not known yet.
    let names = fs::read_dir(server.data().join("blobs")).unwrap().flatten();
    for path in
        names.map(|each| each.path()).filter(|path| path.display().to_string().contains("segment"))
    {
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 9;
        fs::write(&path, bytes).unwrap();
    }
    let ran = doctor(&server.data(), &["--check-upgrade"]).exits(3);
    ran.shows("version 9").shows("cannot open the store");
    let json = doctor(&server.data(), &["--check-upgrade", "--json"]).exits(3).json().remove(0);
    assert_eq!(json["opens"], false);
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for each in fs::read_dir(from).expect("the folder").flatten() {
        let to = to.join(each.file_name());
        if each.path().is_dir() {
            copy_folder(&each.path(), &to);
        } else {
            fs::copy(each.path(), to).expect("a copy");
        }
    }
}

/// Every file with its bytes, in the order of their names.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for each in fs::read_dir(folder).expect("the folder").flatten() {
        if each.path().is_dir() {
            all.extend(content(&each.path()));
        } else {
            all.push((each.path(), fs::read(each.path()).expect("the file")));
        }
    }
    all.sort();
    all
}
