//! A message id is stored once: the second publish is answered with the first one's seq
//! (F2, F3), however often the broker ended in between.

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Atomic, Broker, From};
use gapless_core::{
    Accepted, DedupWindow, Durability, Expect, Message, PublishOptions, RejectReason, Seq,
    TopicSettings,
};
use gapless_journal::faulty::CrashKind;

fn with_id(id: &str) -> Message {
    Message::new(format!("body of {id}")).with_id(id.to_owned())
}

fn batch(broker: &Broker, topic: &str, ids: &[&str]) -> Accepted {
    let messages: Vec<Message> = ids.iter().map(|id| with_id(id)).collect();
    let ack = broker.publish_batch(&name(topic), &messages, &PublishOptions::default());
    accepted(ack.wait().expect("the system is well"))
}

fn window(ms: u64, count: u32) -> TopicSettings {
    let dedup = DedupWindow { time: Duration::from_millis(ms), count };
    TopicSettings { dedup, ..TopicSettings::default() }
}

#[test]
fn f2_a_duplicate_is_answered_with_the_first_ones_seq_after_every_kind_of_end() {
    let world = World::new(1);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=3);
    let first = publish(&broker, "t", &with_id("a"));
    assert_eq!((first.first, first.duplicate), (Seq(4), false));
    for round in 0..6 {
        let again = publish(&broker, "t", &with_id("a"));
        assert_eq!((again.first, again.last, again.duplicate), (Seq(4), Seq(4), true), "{round}");
        assert_eq!(again.durability, Durability::Flushed);
        let next = broker.describe_topic(&name("t")).unwrap().next;
        assert_eq!(next, Seq(5), "nothing was stored again");
        broker = match round {
            // From the log; then from a checkpoint; then from both.
            0 => world.crash(broker, CrashKind::Power),
            1 => world.close(broker),
            2 => {
                broker.seal().unwrap();
                world.crash(broker, CrashKind::Power)
            }
            3 => {
                broker.compact().unwrap();
                world.close(broker)
            }
            _ => world.crash(broker, CrashKind::Process),
        };
    }
    assert!(!publish(&broker, "t", &with_id("b")).duplicate);
}

#[test]
fn f2_a_batch_passes_over_its_duplicates_and_numbers_the_rest_without_a_hole() {
    for settings in [TopicSettings::default(), volatile()] {
        let world = World::new(2);
        let broker = world.open();
        broker.create_topic(&name("t"), settings).unwrap();
        batch(&broker, "t", &["a", "b"]);
        let mixed = batch(&broker, "t", &["b", "c", "a", "d"]);
        assert_eq!((mixed.first, mixed.last, mixed.duplicate), (Seq(3), Seq(4), false));
        let inside = batch(&broker, "t", &["e", "e", "f", "e"]);
        assert_eq!((inside.first, inside.last), (Seq(5), Seq(6)));
        let all = batch(&broker, "t", &["c", "a", "f"]);
        assert_eq!((all.first, all.last, all.duplicate), (Seq(1), Seq(6), true));
        let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
        let found = drain(&mut follower);
        let expected = ["a", "b", "c", "d", "e", "f"].map(|id| format!("body of {id}"));
        assert_eq!(bodies(&found), expected);
        assert_eq!(seqs(&found), [1, 2, 3, 4, 5, 6]);
        assert_eq!(publish(&broker, "t", &with_id("g")).first, Seq(7));
        assert_eq!(bodies(&drain(&mut follower)), ["body of g"]);
    }
}

#[test]
fn f2_the_same_mixed_batch_is_the_same_after_replay() {
    let world = World::new(3);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    batch(&broker, "t", &["a", "b"]);
    batch(&broker, "t", &["b", "c", "c", "d"]);
    let broker = world.crash(broker, CrashKind::Power);
    for (id, seq) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        let again = publish(&broker, "t", &with_id(id));
        assert_eq!((again.first, again.duplicate), (Seq(seq), true), "{id}");
    }
}

#[test]
fn f3_an_id_is_forgotten_after_its_time_also_when_that_passed_while_away() {
    for restart in [false, true] {
        let world = World::new(4);
        let mut broker = world.open();
        broker.create_topic(&name("t"), window(1000, 100)).unwrap();
        publish(&broker, "t", &with_id("a"));
        world.advance(999);
        assert!(publish(&broker, "t", &with_id("a")).duplicate);
        world.advance(1);
        if restart {
            broker = world.close(broker);
        }
        let again = publish(&broker, "t", &with_id("a"));
        assert_eq!((again.first, again.duplicate), (Seq(2), false), "restart: {restart}");
    }
}

#[test]
fn f3_only_so_many_ids_are_remembered() {
    let world = World::new(5);
    let mut broker = world.open();
    broker.create_topic(&name("t"), window(60_000, 3)).unwrap();
    for id in ["a", "b", "c", "d"] {
        publish(&broker, "t", &with_id(id));
    }
    broker = world.crash(broker, CrashKind::Power);
    for id in ["b", "c", "d"] {
        assert!(publish(&broker, "t", &with_id(id)).duplicate, "{id}");
    }
    assert!(!publish(&broker, "t", &with_id("a")).duplicate);
    assert!(!publish(&broker, "t", &with_id("b")).duplicate, "the oldest went for the newest");
}

#[test]
fn f3_a_topic_without_a_window_takes_everything() {
    let world = World::new(6);
    let broker = world.open();
    let off = TopicSettings { dedup: DedupWindow::OFF, ..TopicSettings::default() };
    broker.create_topic(&name("t"), off).unwrap();
    assert_eq!(batch(&broker, "t", &["a", "a", "a"]).last, Seq(3));
}

#[test]
fn f2_a_duplicates_ack_waits_until_the_first_one_is_as_safe() {
    let world = World::new(7);
    let broker = world.open();
    let quick = TopicSettings { durability: Some(Durability::Memory), ..TopicSettings::default() };
    broker.create_topic(&name("t"), quick).unwrap();
    let first = publish(&broker, "t", &with_id("a"));
    assert_eq!(first.durability, Durability::Memory);
    let safe = PublishOptions { durability: Some(Durability::Flushed), ..Default::default() };
    let again = broker.publish(&name("t"), &with_id("a"), &safe).wait().unwrap();
    let again = accepted(again);
    assert_eq!((again.first, again.duplicate), (Seq(1), true));
    assert_eq!(again.durability, Durability::Flushed);
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(2));
}

#[test]
fn f2_a_duplicate_of_what_was_written_only_is_flushed_before_its_ack_says_so() {
    let world = World::new(8);
    let broker = world.open();
    let written = TopicSettings { durability: Some(Durability::Written), ..Default::default() };
    broker.create_topic(&name("t"), written).unwrap();
    publish(&broker, "t", &with_id("a"));
    let safe = PublishOptions { durability: Some(Durability::Flushed), ..Default::default() };
    let again = within(PATIENCE, move || {
        let again = accepted(broker.publish(&name("t"), &with_id("a"), &safe).wait().unwrap());
        (world.crash(broker, CrashKind::Power), again)
    });
    assert_eq!(again.1.durability, Durability::Flushed);
    assert_eq!(again.0.describe_topic(&name("t")).unwrap().next, Seq(2));
}

#[test]
fn f2_the_retry_of_a_conditional_publish_gets_its_first_answer() {
    let world = World::new(9);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let expect = Some(Expect::TopicLast(Seq(0)));
    let options = PublishOptions { expect, ..PublishOptions::default() };
    for duplicate in [false, true] {
        let ack = broker.publish(&name("t"), &with_id("a"), &options).wait().unwrap();
        let ack = accepted(ack);
        assert_eq!((ack.first, ack.duplicate), (Seq(1), duplicate));
    }
    let refused = refusal(&broker, "t", &with_id("b"), &options);
    assert_eq!(refused, RejectReason::ExpectedSeq { actual: Seq(1) });
}

#[test]
fn f2_a_duplicate_part_does_not_keep_the_other_parts_from_happening() {
    let world = World::new(10);
    let broker = world.open();
    broker.create_topics(&[name("a"), name("b")], TopicSettings::default()).unwrap();
    publish(&broker, "a", &with_id("known"));
    let atomic = Atomic::new()
        .publish(&name("a"), &[with_id("known")])
        .publish(&name("b"), &[with_id("known")])
        .set_cell("c", "set");
    let acks = broker.commit(atomic, &PublishOptions::default()).wait_all().unwrap();
    let acks: Vec<_> = acks.into_iter().map(accepted).collect();
    assert_eq!((acks[0].first, acks[0].duplicate), (Seq(1), true));
    assert_eq!((acks[1].first, acks[1].duplicate), (Seq(1), false));
    assert_eq!(broker.cell(b"c").as_deref(), Some(&b"set"[..]));
}

#[test]
fn f2_of_many_publishers_with_one_id_exactly_one_is_first() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        for round in 1..=20_u64 {
            let id = format!("id-{round}");
            let acks: Vec<Accepted> = std::thread::scope(|scope| {
                let one = || publish(&broker, "t", &with_id(&id));
                let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
                all.into_iter().map(|each| each.join().unwrap()).collect()
            });
            assert!(acks.iter().all(|ack| ack.first == Seq(round)));
            assert_eq!(acks.iter().filter(|ack| !ack.duplicate).count(), 1);
        }
        broker.close().unwrap();
    });
}
