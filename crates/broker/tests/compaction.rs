//! Compaction (C5): of each key the latest stays, a keyed message without a body removes
//! the key, numbers stay, and readers get an account of every hole (D10).

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Broker, From};
use gapless_core::{Compaction, Message, Seq, TopicSettings};
use gapless_journal::faulty::CrashKind;

fn compacted(grace_ms: u64) -> TopicSettings {
    let tombstone_grace = Duration::from_millis(grace_ms);
    TopicSettings { compaction: Some(Compaction { tombstone_grace }), ..Default::default() }
}

fn put(broker: &Broker, key: &str, body: impl Into<String>) -> u64 {
    publish(broker, "t", &Message::new(body.into()).with_key(key.to_owned())).first.0
}

/// What readers of everything get, by topic and by pattern, all accounted for.
fn read_both(broker: &Broker) -> [Vec<(u64, String)>; 2] {
    ["t", "*"].map(|of| {
        let mut follower =
            broker.subscribe(&pattern(of), From::Beginning).expect("the store is well");
        let all = drain(&mut follower);
        let mut ledger = Ledger::default();
        all.iter().for_each(|delivery| ledger.note(delivery));
        let next = broker.describe_topic(&name("t")).expect("the store is well").next;
        assert_eq!(ledger.next_of("t"), next.0, "{of}");
        seqs(&all).into_iter().zip(bodies(&all)).collect::<Vec<_>>()
    })
}

/// The same, when nothing of it is in memory: then both are equal.
fn read_all(broker: &Broker) -> Vec<(u64, String)> {
    let [by_topic, by_pattern] = read_both(broker);
    assert_eq!(by_topic, by_pattern);
    by_topic
}

fn latest(broker: &Broker, key: &str) -> Option<String> {
    let found = broker.latest(&name("t"), key.as_bytes()).expect("the store is well");
    found.map(|found| body(&found.message))
}

#[test]
fn c5_only_the_latest_of_each_key_stays_with_its_numbers() {
    let world = World::new(1);
    let mut broker = world.open();
    broker.create_topic(&name("t"), compacted(1000)).unwrap();
    for round in 0..10 {
        for key in ["a", "b", "c"] {
            put(&broker, key, format!("{key}{round}"));
        }
    }
    text(&broker, "t", "without key");
    put(&broker, "a", "a-last");
    broker.compact().unwrap();
    let wanted = vec![
        (29, "b9".to_owned()),
        (30, "c9".to_owned()),
        (31, "without key".to_owned()),
        (32, "a-last".to_owned()),
    ];
    for _ in 0..3 {
        // What is in memory may still be more; after a restart nothing is.
        broker = world.close(broker);
        assert_eq!(read_all(&broker), wanted);
        assert_eq!(latest(&broker, "a"), Some("a-last".into()));
        assert_eq!(latest(&broker, "b"), Some("b9".into()));
        assert_eq!(latest(&broker, "z"), None);
        assert_eq!(broker.read(&name("t"), Seq(5)).unwrap(), None);
        broker.compact().unwrap();
    }
    assert_eq!(put(&broker, "b", "new"), 33);
}

#[test]
fn c5_a_removed_key_is_gone_and_its_removal_is_readable_for_its_grace() {
    let world = World::new(2);
    let mut broker = world.open();
    broker.create_topic(&name("t"), compacted(1000)).unwrap();
    put(&broker, "a", "a1");
    put(&broker, "b", "b1");
    publish(&broker, "t", &Message::tombstone("a"));
    assert_eq!(latest(&broker, "a"), None);
    world.advance(999);
    broker.compact().unwrap();
    broker = world.close(broker);
    assert_eq!(read_all(&broker), [(2, "b1".into()), (3, String::new())], "readers learn of it");
    world.advance(2);
    broker.compact().unwrap();
    broker = world.crash(broker, CrashKind::Power);
    assert_eq!(read_all(&broker), [(2, "b1".into())]);
    assert_eq!((latest(&broker, "a"), latest(&broker, "b")), (None, Some("b1".into())));
    assert_eq!(put(&broker, "a", "a2"), 4);
    assert_eq!(latest(&broker, "a"), Some("a2".into()));
}

#[test]
fn c5_the_keeper_compacts_by_itself_and_the_disk_does_not_grow() {
    let world = World::new(3);
    let broker = world.open();
    broker.create_topic(&name("t"), compacted(1000)).unwrap();
    for n in 0..3000_u64 {
        put(&broker, &format!("key-{}", n % 10), format!("{n:>400}"));
        broker.turn();
    }
    for _ in 0..20 {
        broker.turn();
    }
    let stats = broker.journal_stats();
    assert!(stats.segment_bytes < 400_000, "1.4 MB were written, ten keys are left: {stats:?}");
    for key in 0..10_u64 {
        let last = latest(&broker, &format!("key-{key}")).unwrap();
        assert_eq!(last.trim(), (2990 + key).to_string());
    }
    read_both(&broker);
}

#[test]
fn d10_a_reader_in_the_middle_of_history_that_is_compacted_keeps_its_account() {
    reads_while_compacting("t");
}

#[test]
fn d10_a_pattern_in_the_middle_of_history_that_is_compacted_keeps_its_account() {
    reads_while_compacting("*");
}

fn reads_while_compacting(of: &str) {
    for seed in 0..10 {
        let mut world = World::new(seed);
        world.options.journal.tail_bytes = 0;
        world.options.limits.step_bytes = 700;
        let broker = world.open();
        broker.create_topic(&name("t"), compacted(1000)).expect("the store is well");
        let mut dice = Dice::new(seed);
        let mut followers = [(); 4].map(|()| {
            let follower =
                broker.subscribe(&pattern(of), From::Beginning).expect("the store is well");
            (follower, Ledger::default())
        });
        for n in 0..300_u64 {
            let key = format!("key-{}", dice.roll(20));
            if dice.roll(10) == 0 {
                publish(&broker, "t", &Message::tombstone(key));
            } else {
                put(&broker, &key, format!("{n:>100}"));
            }
            world.advance(dice.roll(20));
            match dice.roll(12) {
                0 => broker.seal().expect("the store is well"),
                1 => broker.compact().expect("the store is well"),
                _ => broker.turn(),
            }
            let (follower, ledger) = &mut followers[dice.roll(4) as usize];
            for _ in 0..dice.roll(4) {
                let Some(delivery) = now(follower) else { break };
                ledger.note(&delivery.expect("the store is well"));
            }
        }
        for (follower, ledger) in &mut followers {
            drain(follower).iter().for_each(|delivery| ledger.note(delivery));
            assert_eq!(ledger.next_of("t"), 301, "seed {seed}");
        }
    }
}

#[test]
fn c5_a_topic_that_is_not_compacted_keeps_every_message_of_a_key() {
    let world = World::new(4);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    for n in 0..20 {
        put(&broker, "same", format!("{n}"));
    }
    broker.compact().unwrap();
    broker = world.close(broker);
    assert_eq!(read_all(&broker).len(), 20);
    // It may be switched on later, and off again.
    broker.configure_topic(&name("t"), compacted(10)).unwrap();
    broker.compact().unwrap();
    broker = world.close(broker);
    assert_eq!(read_all(&broker), [(20, "19".into())]);
    broker.configure_topic(&name("t"), TopicSettings::default()).unwrap();
    put(&broker, "same", "20");
    broker.compact().unwrap();
    broker = world.close(broker);
    assert_eq!(read_all(&broker), [(20, "19".into()), (21, "20".into())]);
}

/// Lets the keeper take a turn every second.
fn turns(world: &World, broker: &Broker, seconds: u64) {
    for _ in 0..seconds {
        world.advance(1000);
        broker.turn();
    }
}

#[test]
fn o1_a_quiet_topic_is_compacted_within_the_time_that_is_set() {
    const WITHIN_SECONDS: u64 = 60;
    let mut world = World::new(44);
    world.options.journal.compact_within = Duration::from_secs(WITHIN_SECONDS);
    let broker = world.open();
    broker.create_topic(&name("t"), compacted(1000)).expect("there is room");
    broker.create_topic(&name("a.other"), TopicSettings::default()).expect("there is room");
    turns(&world, &broker, 1);
    for round in 1..=10 {
        put(&broker, "k", format!("{round}"));
        text(&broker, "a.other", "stays");
    }
    // The latest of a key is right at once, and nothing else is in a hurry.
    assert_eq!(latest(&broker, "k").as_deref(), Some("10"));
    let mut newest = broker.subscribe(&pattern("t"), From::LastPerKey).expect("it is there");
    assert_eq!(seqs(&drain(&mut newest)), [10]);
    drop(newest);
    turns(&world, &broker, 1);
    assert_eq!(read_both(&broker)[0].len(), 10);
    let other = || {
        let follower = broker.subscribe(&pattern("a.other"), From::Beginning);
        seqs(&drain(&mut follower.expect("it is there"))).len()
    };

    turns(&world, &broker, WITHIN_SECONDS);
    assert_eq!(read_all(&broker), [(10, "10".to_owned())]);
    // The older message is in a segment already, which has to be written again.
    put(&broker, "k", "11");
    turns(&world, &broker, WITHIN_SECONDS);
    assert_eq!(read_all(&broker), [(11, "11".to_owned())]);
    // A removal goes when its grace is over and nothing is left that it hides.
    publish(&broker, "t", &Message::tombstone("k"));
    turns(&world, &broker, 2 * WITHIN_SECONDS);
    assert_eq!(read_all(&broker), []);
    assert_eq!(other(), 10);
    // Then nothing is left to do, and nothing is done.
    let segments = |broker: &Broker| {
        let stats = broker.journal_stats();
        (stats.segments, stats.segment_bytes, stats.frames)
    };
    let before = segments(&broker);
    turns(&world, &broker, 3 * WITHIN_SECONDS);
    assert_eq!(segments(&broker), before);
    let broker = world.close(broker);
    assert_eq!((read_all(&broker), latest(&broker, "k")), (Vec::new(), None));
}
