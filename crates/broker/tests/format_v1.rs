//! A data folder of format version 1, made once, must open for ever.
//!
//! It lies in `fixtures/v1` and is never generated again: a program that cannot read it breaks the
//! data of all users. How it was generated is kept below, behind an environment variable, so that
//! the fixture of a next version can be made in the same way. Groups have a folder of their own:
//! `format_v1_groups.rs`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/fixture.rs"]
mod fixture;

use std::path::Path;
use std::time::Duration;

use fixture::{EPOCH, MADE_AT, copy, name};
use gapless_broker::{Atomic, Broker, Delivery, From, block_on};
use gapless_core::{Compaction, Message, Pattern, PublishOptions, Seq, Timestamp, TopicSettings};

fn open(folder: &Path) -> Broker {
    fixture::open_at(folder, MADE_AT).0
}

/// Seq, key and body of a message.
type Row = (u64, Option<Vec<u8>>, Option<Vec<u8>>);

fn bodies(broker: &Broker, topic: &str) -> Vec<Row> {
    let mut follower = broker.subscribe(&Pattern::parse(topic).unwrap(), From::Beginning).unwrap();
    let mut found = Vec::new();
    loop {
        match block_on(follower.next()).unwrap() {
            Delivery::Messages(messages) => {
                let row = |each: gapless_broker::Delivered| {
                    let part = |bytes: Option<bytes::Bytes>| bytes.map(|bytes| bytes.to_vec());
                    (each.seq.0, part(each.message.key), part(each.message.body))
                };
                found.extend(messages.iter().map(row));
            }
            Delivery::Live => return found,
            Delivery::Gap(_) | Delivery::Recovering { .. } => {}
        }
    }
}

/// Everything that an entry, a segment, a checkpoint and a manifest can hold.
fn make(folder: &Path) {
    let broker = open(folder);
    let options = PublishOptions::default();
    broker.create_topic(&name("orders.created"), TopicSettings::default()).unwrap();
    let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(60) });
    let compacted = TopicSettings { compaction, ..TopicSettings::default() };
    broker.create_topic(&name("stock"), compacted).unwrap();
    broker.create_topic(&name("gone"), TopicSettings::default()).unwrap();
    for number in 0..50 {
        let message = Message::new(format!("order {number}"))
            .with_id(format!("id-{number}"))
            .with_header("kind", "fixture");
        broker.publish(&name("orders.created"), &message, &options).wait().unwrap();
        let stock = Message::new(format!("{number}")).with_key(format!("item-{}", number % 5));
        broker.publish(&name("stock"), &stock, &options).wait().unwrap();
    }
    broker.publish(&name("stock"), &Message::tombstone("item-3"), &options).wait().unwrap();
    broker.purge(&name("orders.created"), Seq(6)).unwrap();
    broker.delete_topic(&name("gone")).unwrap();
    broker.seal().unwrap();
    // From here on it is in the log only.
    let batch = [Message::new("a"), Message::new("b").with_ttl(Duration::from_secs(3600))];
    broker.publish_batch(&name("orders.created"), &batch, &options).wait().unwrap();
    let atomic = Atomic::new()
        .publish(&name("stock"), &[Message::new("last").with_key("item-9")])
        .set_cell("offset", "42");
    broker.commit(atomic, &options).wait_all().unwrap();
    let later = Message::new("later").with_not_before(Timestamp(MADE_AT.0 + 60_000));
    broker.publish(&name("orders.created"), &later, &options).wait().unwrap();
    broker.close().unwrap();
}

fn check(folder: &Path) {
    let broker = open(folder);
    assert_eq!(broker.epoch(), EPOCH);
    let orders = bodies(&broker, "orders.created");
    let seqs: Vec<u64> = orders.iter().map(|(seq, _, _)| *seq).collect();
    assert_eq!(seqs, (6..=52).collect::<Vec<_>>());
    assert_eq!(orders[0].2.as_deref(), Some(&b"order 5"[..]));
    assert_eq!(orders[46].2.as_deref(), Some(&b"b"[..]));
    let first = broker.read(&name("orders.created"), Seq(6)).unwrap().unwrap();
    assert_eq!(first.message.header("kind").map(|value| &value[..]), Some(&b"fixture"[..]));
    let stock = bodies(&broker, "stock");
    let keys: Vec<&[u8]> = stock.iter().filter_map(|(_, key, _)| key.as_deref()).collect();
    assert_eq!(keys, [&b"item-0"[..], b"item-1", b"item-2", b"item-4", b"item-3", b"item-9"]);
    assert!(broker.latest(&name("stock"), b"item-3").unwrap().is_none());
    let newest = broker.latest(&name("stock"), b"item-4").unwrap().unwrap();
    assert_eq!(newest.message.body.as_deref(), Some(&b"49"[..]));
    assert_eq!(broker.cell(b"offset").as_deref(), Some(&b"42"[..]));
    assert_eq!(broker.delayed_len(), 1);
    assert!(broker.describe_topic(&name("gone")).is_err());
    // An id of then is still known, and numbers go on where they ended.
    let again = Message::new("order 49").with_id("id-49");
    let options = PublishOptions::default();
    let ack = broker.publish(&name("orders.created"), &again, &options).wait().unwrap();
    assert!(ack.accepted().is_some_and(|ack| ack.duplicate && ack.first == Seq(50)));
    let ack = broker.publish(&name("orders.created"), &Message::new("new"), &options);
    assert_eq!(ack.wait().unwrap().accepted().map(|ack| ack.first), Some(Seq(53)));
    broker.close().unwrap();
}

#[test]
fn a_data_folder_of_version_1_opens_with_everything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture::fixture("v1", make), folder.path());
    check(folder.path());
    check_again(folder.path());
}

/// What the first opening wrote is read by the second.
fn check_again(folder: &Path) {
    let broker = open(folder);
    assert_eq!(bodies(&broker, "orders.created").len(), 48);
    broker.close().unwrap();
}

#[test]
fn a_folder_made_now_holds_the_same_as_the_one_of_version_1() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    check(folder.path());
}
