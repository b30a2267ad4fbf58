//! Closing, crashing, opening again (D1, F2): what `opened()` tells and what is there.

mod common;

use common::*;
use gapless_broker::{Broker, BrokerState, Delivery, From};
use gapless_core::{Message, PublishOptions, Seq, TopicSettings};
use gapless_journal::faulty::CrashKind;

#[test]
fn f2_a_clean_close_is_known_and_a_drop_is_like_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let options = on_disk(folder.path());
    let broker = Broker::open(options.clone()).unwrap();
    assert!(broker.opened().created);
    let epoch = broker.epoch();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let before = text(&broker, "t", "1");
    broker.close().unwrap();

    let broker = Broker::open(options.clone()).unwrap();
    let opened = broker.opened().clone();
    assert!(!opened.created && opened.clean && opened.jump.is_none(), "{opened:?}");
    assert_eq!(broker.epoch().store(), epoch.store(), "it is the same store");
    assert_ne!(broker.epoch(), epoch, "at another opening");
    assert_eq!(broker.state(), BrokerState::Listening);
    let after = text(&broker, "t", "2");
    assert_eq!(after.position.0, before.position.0 + 1, "a clean end skips no position");
    drop(broker);

    let broker = Broker::open(options).unwrap();
    let opened = broker.opened().clone();
    assert!(!opened.clean && opened.jump.is_some(), "{opened:?}");
    assert!(opened.frames_replayed >= 1);
    let later = text(&broker, "t", "3");
    assert_eq!(later.first, Seq(3), "seqs have no holes");
    assert!(later.position > after.position);
    let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    assert_eq!(bodies(&until_live(&mut follower)), ["1", "2", "3"]);
    drop(follower);
    broker.close().unwrap();
}

#[test]
fn f1_a_folder_belongs_to_one_broker_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::open(on_disk(folder.path())).unwrap();
    assert!(Broker::open(on_disk(folder.path())).is_err());
    broker.close().unwrap();
    Broker::open(on_disk(folder.path())).unwrap().close().unwrap();
}

#[test]
fn f2_a_message_written_but_not_flushed_is_flushed_by_a_clean_close() {
    let world = World::new(1);
    let broker = world.open();
    let quick = TopicSettings {
        durability: Some(gapless_core::Durability::Memory),
        ..TopicSettings::default()
    };
    broker.create_topic(&name("t"), quick).unwrap();
    texts(&broker, "t", 1..=5);
    broker.close().unwrap();
    world.fs.crash(CrashKind::Power);
    let broker = world.open();
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(6));
}

/// Runs random work with a power loss after every few writes, and checks after each that all
/// that was acknowledged is there, in order, and nothing twice.
#[test]
fn f2_whatever_was_acknowledged_survives_a_power_loss_at_any_write() {
    for seed in 0..15 {
        let mut dice = Dice::new(seed);
        let mut world = World::new(seed);
        world.options.journal.seal_bytes = 8 * 1024;
        world.options.journal.tail_bytes = 4 * 1024;
        let mut broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let mut acked: Vec<(u64, String)> = Vec::new();
        let mut body = 0;
        for round in 0..12 {
            world.fs.crash_after_writes(1 + dice.roll(60));
            loop {
                body += 1;
                let text = format!("{body} {}", "x".repeat(dice.roll(800) as usize));
                let message = Message::new(text.clone());
                let ack = broker.publish(&name("t"), &message, &PublishOptions::default()).wait();
                match ack {
                    Ok(ack) => acked.push((accepted(ack).first.0, text)),
                    Err(_) => break,
                }
                broker.turn();
            }
            broker = world.crash(broker, CrashKind::Power);
            let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
            let all = drain(&mut follower);
            assert!(matches!(all.last(), Some(Delivery::Live)));
            let found: Vec<(u64, String)> = seqs(&all).into_iter().zip(bodies(&all)).collect();
            let whole: Vec<u64> = (1..=found.len() as u64).collect();
            assert_eq!(seqs(&all), whole, "seed {seed} round {round}");
            for (seq, text) in &acked {
                assert_eq!(&found[*seq as usize - 1].1, text, "seed {seed} round {round}");
            }
            // What was not acknowledged may be there; from now on it is.
            let last = acked.last().map_or(0, |(seq, _)| *seq);
            acked.extend(found.into_iter().filter(|(seq, _)| *seq > last));
        }
    }
}
