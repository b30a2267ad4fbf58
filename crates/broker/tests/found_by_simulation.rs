//! What the simulator found, each as a story of its own that is short enough to read.

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Broker, Delivery, From};
use gapless_core::{
    Compaction, DedupWindow, Durability, Expect, Message, PublishOptions, Retention, Seq,
    Timestamp, TopicSettings,
};
use gapless_journal::faulty::CrashKind;

fn compacted() -> TopicSettings {
    TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() }
}

fn create(broker: &Broker, topic: &str, settings: TopicSettings) {
    broker.create_topic(&name(topic), settings).expect("the store is well");
}

fn put(broker: &Broker, topic: &str, key: &'static str) -> u64 {
    publish(broker, topic, &Message::new("value").with_key(key)).first.0
}

/// A world that keeps nothing in memory that is in a segment.
fn without_tail(seed: u64) -> World {
    let mut world = World::new(seed);
    world.options.journal.tail_bytes = 0;
    world
}

/// Two superseded messages become one hole. A reader that saw the first of them must still get a
/// notice of the second.
#[test]
fn a_reader_who_stands_within_a_hole_is_told_of_the_rest() {
    let world = without_tail(1);
    let broker = world.open();
    create(&broker, "k", compacted());
    create(&broker, "other", TopicSettings::default());
    put(&broker, "k", "a");
    text(&broker, "other", "between");
    let mut follower = broker.subscribe(&pattern(">"), From::Beginning).expect("well");
    drain(&mut follower);
    let token = follower.token();
    put(&broker, "k", "a");
    text(&broker, "other", "between");
    put(&broker, "k", "a");
    broker.compact().expect("the disk works");
    for of in [">", "k"] {
        let mut follower = broker.subscribe(&pattern(of), From::Token(token)).expect("well");
        let mut ledger = Ledger::from("k", 2);
        ledger.next.insert("other".to_owned(), 2);
        drain(&mut follower).iter().for_each(|delivery| ledger.note(delivery));
        assert_eq!(ledger.next_of("k"), 4, "{of}");
        assert_eq!(ledger.gaps.len(), 1, "{of}: {:?}", ledger.gaps);
    }
}

/// Memory holds the end of a segment too, and a hole stands there. Who resumes before the hole,
/// without knowing what it has seen of the topic, must get a notice of all of it.
#[test]
fn a_reader_who_resumes_does_not_pass_into_memory_in_the_middle_of_a_hole() {
    for tail_bytes in (500..6_000).step_by(100) {
        let mut world = World::new(1);
        world.options.journal.tail_bytes = tail_bytes;
        // A step of history is one entry.
        world.options.limits.history_step_bytes = 1;
        let broker = world.open();
        create(&broker, "k", compacted());
        create(&broker, "other", TopicSettings::default());
        text(&broker, "other", "x");
        let begin = broker.subscribe(&pattern(">"), From::Now).expect("well").token();
        for _ in 0..4 {
            put(&broker, "k", "a");
            text(&broker, "other", "x".repeat(100));
        }
        broker.seal().expect("the disk works");
        for comes_back in [false, true] {
            let follow = |token| broker.subscribe(&pattern(">"), From::Token(token)).expect("well");
            let (mut ledger, mut follower) = (Ledger::from("other", 2), follow(begin));
            while let Some(delivery) = now(&mut follower) {
                let delivery = delivery.expect("the store is well");
                ledger.note(&delivery);
                if comes_back && !matches!(delivery, Delivery::Recovering { .. } | Delivery::Live) {
                    follower = follow(follower.token());
                }
            }
            let story = format!("tail of {tail_bytes}, {comes_back}: {:?}", ledger.gaps);
            assert_eq!((ledger.next_of("k"), ledger.next_of("other")), (5, 6), "{story}");
        }
    }
}

/// The collector dropped what a floor let go while the floor was only in memory; then the
/// power went, and the topic was back without its messages.
#[test]
fn nothing_is_dropped_before_the_floor_that_lets_it_go_is_safe() {
    let world = without_tail(2);
    let broker = world.open();
    let age = Some(Duration::from_secs(1));
    let retention = Retention { age, ..Retention::default() };
    create(&broker, "t", TopicSettings { retention, ..TopicSettings::default() });
    texts(&broker, "t", 1..=20);
    broker.seal().expect("the disk works");
    world.advance(2_000);
    broker.turn();
    let broker = world.crash(broker, CrashKind::Power);
    create(&broker, "later", TopicSettings::default());
    let forever = Retention::default();
    let settings = TopicSettings { retention: forever, ..TopicSettings::default() };
    broker.configure_topic(&name("t"), settings).expect("the store is well");
    let mut follower = broker.subscribe(&pattern("t"), From::Seq(Seq(1))).expect("well");
    let mut ledger = Ledger::from("t", 1);
    drain(&mut follower).iter().for_each(|delivery| ledger.note(delivery));
    assert_eq!(ledger.next_of("t"), 21);
}

#[test]
fn other_settings_do_not_bring_back_what_the_former_let_go() {
    let world = World::new(3);
    let broker = world.open();
    let retention = Retention { count: Some(2), ..Retention::default() };
    create(&broker, "t", TopicSettings { retention, ..TopicSettings::default() });
    texts(&broker, "t", 1..=5);
    assert_eq!(broker.describe_topic(&name("t")).expect("it is there").first, Seq(4));
    let info = broker.configure_topic(&name("t"), TopicSettings::default());
    assert_eq!(info.expect("the store is well").first, Seq(4));
}

#[test]
fn a_key_whose_messages_are_gone_has_no_last_seq() {
    let world = World::new(4);
    let broker = world.open();
    create(&broker, "t", TopicSettings::default());
    put(&broker, "t", "a");
    broker.seal().expect("the disk works");
    put(&broker, "t", "a");
    broker.purge(&name("t"), Seq(3)).expect("the store is well");
    let options =
        PublishOptions { expect: Some(Expect::KeyLast(Seq(0))), ..PublishOptions::default() };
    let message = Message::new("value").with_key("a");
    let ack = broker.publish(&name("t"), &message, &options).wait().expect("the store is well");
    assert_eq!(accepted(ack).first, Seq(3));
}

/// With a full disk what was accepted could not settle, and a look-up waited for it for ever.
#[test]
fn a_full_disk_holds_up_neither_look_ups_nor_followers() {
    within(PATIENCE, || {
        let world = World::new(5);
        let broker = world.open();
        create(&broker, "t", TopicSettings::default());
        put(&broker, "t", "a");
        put(&broker, "t", "b");
        let mut follower = broker.subscribe(&pattern("t"), From::LastPerKey).expect("well");
        world.fs.set_capacity(Some(0));
        let memory =
            PublishOptions { durability: Some(Durability::Memory), ..PublishOptions::default() };
        let large = Message::new(vec![b'x'; 20_000]).with_key("c");
        while !broker.journal_stats().full {
            drop(broker.publish(&name("t"), &large, &memory));
            broker.turn();
        }
        assert!(broker.latest(&name("t"), b"a").expect("it can be read").is_some());
        let found = seqs(&drain(&mut follower));
        assert_eq!(found[..2], [1, 2]);
        world.fs.set_capacity(None);
        broker.turn();
        put(&broker, "t", "d");
        assert_eq!(drain(&mut follower).len(), 1, "it goes on");
    });
}

#[test]
fn a_floor_within_a_hole_is_raised_to_its_end() {
    let world = without_tail(6);
    let broker = world.open();
    create(&broker, "t", compacted());
    for _ in 0..4 {
        put(&broker, "t", "a");
    }
    broker.compact().expect("the disk works");
    broker.purge(&name("t"), Seq(2)).expect("the store is well");
    assert_eq!(broker.describe_topic(&name("t")).expect("it is there").first, Seq(4));
    let follower = broker.subscribe(&pattern("t"), From::Beginning).expect("well");
    let from = From::Token(follower.token());
    let found = drain(&mut broker.subscribe(&pattern("t"), from).expect("well"));
    assert_eq!((seqs(&found), gaps(&found).len()), (vec![4], 0));
}

/// A hole tells the time of its last message. Those in it that were older and still in memory
/// were handed out past their age (seed 90911).
#[test]
fn a_hole_that_reaches_into_memory_keeps_nothing_past_its_age() {
    let mut world = World::new(9);
    world.options.journal.tail_bytes = 1_800;
    let broker = world.open();
    let retention = Retention { age: Some(Duration::from_secs(45)), ..Retention::default() };
    create(&broker, "t", TopicSettings { retention, ..compacted() });
    for _ in 0..6 {
        put(&broker, "t", "a");
    }
    world.advance(30_000);
    let middle = Timestamp(START.0 + 30_000);
    for _ in 0..2 {
        put(&broker, "t", "a");
    }
    broker.compact().expect("the disk works");
    let followed = |from| seqs(&drain(&mut broker.subscribe(&pattern("t"), from).expect("well")));
    assert!(followed(From::Beginning).contains(&6), "some are in memory still");
    assert_eq!(followed(From::Time(middle)), [7, 8], "as old as asked for");
    world.advance(20_000);
    assert_eq!(followed(From::Beginning), [7, 8], "and not past their age");
}

#[test]
fn who_stops_before_it_was_told_of_a_gap_is_told_when_it_goes_on() {
    let world = World::new(7);
    let broker = world.open();
    create(&broker, "t", TopicSettings::default());
    texts(&broker, "t", 1..=8);
    broker.purge(&name("t"), Seq(5)).expect("the store is well");
    let follower = broker.subscribe(&pattern("t"), From::Seq(Seq(2))).expect("well");
    let from = From::Token(follower.token());
    let found = drain(&mut broker.subscribe(&pattern("t"), from).expect("well"));
    assert!(matches!(&found[..], [Delivery::Gap(gap), ..] if gap.to == Some(Seq(4))), "{found:?}");
    assert_eq!(seqs(&found), [5, 6, 7, 8]);
}

/// Whether an id past its age was still in memory decided whether a larger window knew it.
#[test]
fn a_larger_window_does_not_bring_back_ids_past_their_age() {
    let world = World::new(8);
    let broker = world.open();
    let window = |seconds| TopicSettings {
        dedup: DedupWindow { time: Duration::from_secs(seconds), count: 100 },
        ..TopicSettings::default()
    };
    create(&broker, "t", window(5));
    let message = Message::new("body").with_id("once");
    publish(&broker, "t", &message);
    world.advance(6_000);
    broker.configure_topic(&name("t"), window(120)).expect("the store is well");
    let again = publish(&broker, "t", &message);
    assert_eq!((again.first, again.duplicate), (Seq(2), false));
}
