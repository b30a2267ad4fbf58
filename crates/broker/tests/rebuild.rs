//! A store whose manifests, checkpoint or log are lost is put together again from the rest, and
//! what is lost for good is reported by name.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod fixture;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fixture::{EPOCH, MADE_AT, name};
use gapless_broker::{Atomic, Broker, BrokerOptions, Delivery, From, Recovered, block_on, rebuild};
use gapless_core::{Message, Pattern, PublishOptions, TopicSettings};
use gapless_journal::doctor::{Severity, examine};
use gapless_journal::fs::DiskFs;
use gapless_journal::layout::Folder;

const PER_TOPIC: usize = 40;

/// Three topics in two segments and the log; a cell before the seal and one after it.
fn make(path: &Path) {
    let broker = fixture::open_at(path, MADE_AT).0;
    let options = PublishOptions::default();
    let fill = |topic: &str, from: usize, to: usize| {
        for number in from..to {
            let message = Message::new(format!("{topic} {number} {}", "x".repeat(300)));
            broker.publish(&name(topic), &message, &options).wait().unwrap();
        }
    };
    for topic in ["old.quiet", "old.busy"] {
        broker.create_topic(&name(topic), TopicSettings::default()).unwrap();
        fill(topic, 0, 20);
    }
    fill("old.quiet", 20, PER_TOPIC);
    broker.commit(Atomic::new().set_cell("before", "1"), &options).wait_all().unwrap();
    broker.seal().unwrap();
    fill("old.busy", 20, 30);
    broker.seal().unwrap();
    broker.create_topic(&name("new"), TopicSettings::default()).unwrap();
    fill("new", 0, PER_TOPIC);
    fill("old.busy", 30, PER_TOPIC);
    broker.commit(Atomic::new().set_cell("after", "2"), &options).wait_all().unwrap();
    broker.close().unwrap();
}

fn remove(path: &Path, prefix: &str) {
    for entry in fs::read_dir(path.join("blobs")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn damage(path: &Path, prefix: &str) {
    for entry in fs::read_dir(path.join("blobs")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let mut bytes = fs::read(entry.path()).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(entry.path(), bytes).unwrap();
        }
    }
}

/// Rebuilds what does not open, and opens it.
fn rebuilt(path: &Path) -> (Recovered, Broker) {
    assert!(Broker::open(BrokerOptions::new(path)).is_err(), "there is something to rebuild");
    let folder = Folder::new(Arc::new(DiskFs), path);
    let done = rebuild(&folder).unwrap();
    let report = examine(&folder, &mut |_, _| {}).unwrap();
    assert!(report.worst() < Some(Severity::Repairable), "{:?}", report.findings);
    gapless_broker::rehearse(&folder).unwrap();
    (done, fixture::open_at(path, MADE_AT).0)
}

fn count(broker: &Broker, topic: &str) -> usize {
    let mut follower = broker.subscribe(&Pattern::parse(topic).unwrap(), From::Beginning).unwrap();
    let mut found = 0;
    loop {
        match block_on(follower.next()).unwrap() {
            Delivery::Messages(messages) => found += messages.iter().count(),
            Delivery::Live => return found,
            Delivery::Gap(gap) => panic!("{gap:?}"),
            Delivery::Recovering { .. } => {}
        }
    }
}

/// Publishing goes on, over a seal and a restart.
fn goes_on(broker: Broker, path: &Path, topic: &str) {
    let before = count(&broker, topic);
    let options = PublishOptions::default();
    broker.publish(&name(topic), &Message::new("more"), &options).wait().unwrap();
    broker.seal().unwrap();
    broker.close().unwrap();
    let broker = fixture::open_at(path, MADE_AT).0;
    assert_eq!(count(&broker, topic), before + 1);
    broker.close().unwrap();
}

#[test]
fn lost_or_damaged_manifests_cost_nothing() {
    for spoil in [remove, damage] {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        spoil(folder.path(), "manifest-");
        let (done, broker) = rebuilt(folder.path());
        assert!(done.journal.checkpoint.is_some() && !done.journal.new_epoch, "{done}");
        assert!(done.nameless.is_empty() && done.journal.left_out.is_empty(), "{done}");
        assert_eq!(broker.epoch(), EPOCH);
        for topic in ["old.quiet", "old.busy", "new"] {
            assert_eq!(count(&broker, topic), PER_TOPIC, "{topic}");
        }
        assert_eq!(broker.cell(b"before").as_deref(), Some(&b"1"[..]));
        assert_eq!(broker.cell(b"after").as_deref(), Some(&b"2"[..]));
        goes_on(broker, folder.path(), "new");
    }
}

#[test]
fn lost_checkpoints_cost_only_what_the_log_no_longer_tells() {
    for manifests_too in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        damage(folder.path(), "checkpoint-");
        if manifests_too {
            remove(folder.path(), "manifest-");
        }
        let (done, broker) = rebuilt(folder.path());
        assert_eq!(done.journal.checkpoint, None);
        assert!(done.to_string().contains("names and settings of topics"), "{done}");
        // Every message is there, under its topic's name or under one that says it is lost.
        let mut found: Vec<usize> = ["new", "old.quiet", "old.busy"]
            .into_iter()
            .filter(|topic| broker.describe_topic(&name(topic)).is_ok())
            .map(|topic| count(&broker, topic))
            .collect();
        found.extend(done.nameless.iter().map(|topic| count(&broker, topic)));
        assert_eq!(found, [PER_TOPIC; 3], "{done}");
        assert_eq!(count(&broker, "new"), PER_TOPIC);
        assert_eq!(broker.cell(b"after").as_deref(), Some(&b"2"[..]));
        goes_on(broker, folder.path(), "new");
    }
}

#[test]
fn segments_alone_give_back_their_messages() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    remove(folder.path(), "manifest-");
    remove(folder.path(), "checkpoint-");
    fs::remove_dir_all(folder.path().join("log")).unwrap();
    let (done, broker) = rebuilt(folder.path());
    assert_eq!((done.topics, done.nameless.len(), done.journal.segments), (2, 2, 2), "{done}");
    let counts: Vec<usize> = done.nameless.iter().map(|topic| count(&broker, topic)).collect();
    assert_eq!(counts, [PER_TOPIC, 30]);
    assert_eq!(broker.epoch(), EPOCH, "segments tell it");
    goes_on(broker, folder.path(), &done.nameless[0]);
}
