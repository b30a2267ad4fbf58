//! Messages past their time to live: not delivered, and their numbers accounted for (D10).

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Delivery, From};
use gapless_core::{Compaction, Message, PublishOptions, Seq, TopicSettings};
use gapless_journal::faulty::CrashKind;

fn short(body: &str) -> Message {
    Message::new(body.to_owned()).with_ttl(Duration::from_millis(100))
}

/// Checks that a follower from the beginning gets `wanted` and an account of `through` seqs.
fn check(broker: &gapless_broker::Broker, of: &str, wanted: &[u64], through: u64) {
    let mut follower = broker.subscribe(&pattern(of), From::Beginning).expect("the store is well");
    let all = drain(&mut follower);
    let mut ledger = Ledger::default();
    all.iter().for_each(|delivery| ledger.note(delivery));
    assert_eq!(seqs(&all), wanted, "{of}");
    assert_eq!(ledger.next_of("t"), through + 1, "{of}: every seq is accounted for");
}

#[test]
fn d10_an_expired_message_is_a_hole_that_is_accounted_for() {
    let world = World::new(1);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let batch = [Message::new("1"), short("2"), Message::new("3")];
    broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
    publish(&broker, "t", &short("4"));
    publish(&broker, "t", &Message::new("5"));
    publish(&broker, "t", &short("6").with_key("k"));
    check(&broker, "t", &[1, 2, 3, 4, 5, 6], 6);
    world.advance(99);
    check(&broker, "*", &[1, 2, 3, 4, 5, 6], 6);
    assert!(broker.latest(&name("t"), b"k").unwrap().is_some());
    world.advance(1);
    for round in 0..4 {
        check(&broker, "t", &[1, 3, 5], 6);
        check(&broker, "*", &[1, 3, 5], 6);
        assert_eq!(broker.read(&name("t"), Seq(4)).unwrap(), None);
        assert_eq!(broker.latest(&name("t"), b"k").unwrap(), None);
        assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(7));
        broker = match round {
            0 => world.crash(broker, CrashKind::Power),
            1 => {
                broker.seal().unwrap();
                world.close(broker)
            }
            // Now the disk is freed of them too; their numbers stay taken.
            _ => {
                broker.compact().unwrap();
                world.close(broker)
            }
        };
    }
    assert_eq!(publish(&broker, "t", &Message::new("7")).first, Seq(7));
}

#[test]
fn d10_a_live_follower_that_looks_late_gets_the_number_but_not_the_message() {
    let world = World::new(2);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let mut followers = ["t", ">"].map(|of| broker.subscribe(&pattern(of), From::Now).unwrap());
    followers.iter_mut().for_each(|follower| drop(drain(follower)));
    publish(&broker, "t", &short("1"));
    world.advance(100);
    for follower in &mut followers {
        let late = drain(follower);
        let [Delivery::Messages(messages)] = &late[..] else { panic!("{late:?}") };
        assert_eq!((messages.from(), messages.to()), (Seq(1), Seq(1)));
        assert_eq!((messages.iter().count(), messages.count()), (0, 0));
        assert_eq!(messages.batches().count(), 0);
    }
    publish(&broker, "t", &Message::new("2"));
    for follower in &mut followers {
        assert_eq!(seqs(&drain(follower)), [2]);
    }
}

#[test]
fn d10_when_all_of_a_topic_has_expired_and_is_collected_the_reader_still_gets_an_account() {
    let world = World::new(3);
    let broker = world.open();
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..Default::default() };
    broker.create_topic(&name("t"), settings).unwrap();
    for _ in 0..30 {
        publish(&broker, "t", &short("x"));
    }
    world.advance(1000);
    broker.compact().unwrap();
    broker.compact().unwrap();
    let broker = world.close(broker);
    check(&broker, "t", &[], 30);
    assert_eq!(publish(&broker, "t", &Message::new("y")).first, Seq(31));
    check(&broker, "t", &[31], 31);
    check(&broker, ">", &[31], 31);
}

#[test]
fn a1_a_volatile_message_that_has_expired_in_the_mailbox_is_not_delivered() {
    let world = World::new(4);
    let broker = world.open();
    let mut follower = broker.subscribe(&pattern("subject"), From::Now).unwrap();
    drain(&mut follower);
    publish(&broker, "subject", &short("late"));
    publish(&broker, "subject", &Message::new("kept"));
    world.advance(100);
    assert_eq!(bodies(&drain(&mut follower)), ["kept"]);
}
