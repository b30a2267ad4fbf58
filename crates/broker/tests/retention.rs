//! Retention by age, bytes and count (C3, C4): exact for every reader at every moment, and
//! never a silent skip (D10).

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Broker, Delivery, From, block_on};
use gapless_core::{GapReason, Message, PublishOptions, Retention, Seq, Timestamp, TopicSettings};
use gapless_journal::faulty::CrashKind;

fn kept(retention: Retention) -> TopicSettings {
    TopicSettings { retention, ..TopicSettings::default() }
}

fn by_count(count: u64) -> TopicSettings {
    kept(Retention { count: Some(count), ..Retention::default() })
}

fn by_age(ms: u64) -> TopicSettings {
    kept(Retention { age: Some(Duration::from_millis(ms)), ..Retention::default() })
}

fn by_bytes(bytes: u64) -> TopicSettings {
    kept(Retention { bytes: Some(bytes), ..Retention::default() })
}

/// Checks that a reader of everything gets `first..=last` and an account of the rest.
fn check(broker: &Broker, first: u64, last: u64, why: &str) {
    let by_seq =
        drain(&mut broker.subscribe(&pattern("t"), From::Seq(Seq(1))).expect("the store is well"));
    let by_position =
        drain(&mut broker.subscribe(&pattern("*"), From::Beginning).expect("the store is well"));
    for all in [by_seq, by_position] {
        let mut ledger = Ledger::default();
        all.iter().for_each(|delivery| ledger.note(delivery));
        assert_eq!(seqs(&all), (first..=last).collect::<Vec<_>>(), "{why}");
        assert_eq!(ledger.next_of("t"), last + 1, "{why}");
        assert_eq!(ledger.gaps.is_empty(), first == 1, "{why}: {:?}", ledger.gaps);
        assert!(ledger.gaps.iter().all(|gap| gap.reason == GapReason::Retention), "{why}");
    }
    let from_start =
        drain(&mut broker.subscribe(&pattern("t"), From::Beginning).expect("the store is well"));
    assert_eq!(seqs(&from_start), (first..=last).collect::<Vec<_>>(), "{why}");
    assert!(gaps(&from_start).is_empty(), "{why}");
    let described = broker.describe_topic(&name("t")).expect("the store is well");
    assert_eq!((described.first, described.next), (Seq(first), Seq(last + 1)), "{why}");
    if first > 1 {
        assert_eq!(
            broker.read(&name("t"), Seq(first - 1)).expect("the store is well"),
            None,
            "{why}"
        );
    }
    if first <= last {
        assert!(broker.read(&name("t"), Seq(first)).expect("the store is well").is_some(), "{why}");
    }
}

#[test]
fn c4_by_count_no_reader_gets_more_than_the_newest_at_any_moment() {
    let world = World::new(1);
    let mut broker = world.open();
    broker.create_topic(&name("t"), by_count(5)).unwrap();
    for n in 1..=30_u64 {
        text(&broker, "t", format!("{n}"));
        check(&broker, n.saturating_sub(4).max(1), n, &format!("before the keeper, {n}"));
        match n % 10 {
            3 => broker.turn(),
            5 => broker.seal().unwrap(),
            7 => broker = world.crash(broker, CrashKind::Power),
            9 => broker.compact().unwrap(),
            _ => {}
        }
        check(&broker, n.saturating_sub(4).max(1), n, &format!("after, {n}"));
    }
    // Batches are not cut at their borders but where the count says.
    let batch = vec![Message::new("x"); 8];
    broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
    check(&broker, 34, 38, "inside a batch");
    broker.turn();
    broker.compact().unwrap();
    check(&broker, 34, 38, "inside a batch, collected");
}

#[test]
fn c3_a_larger_count_later_does_not_strand_readers() {
    for turns in 0..2 {
        let world = World::new(2);
        let broker = world.open();
        broker.create_topic(&name("t"), by_count(5)).unwrap();
        texts(&broker, "t", 1..=50);
        for _ in 0..turns {
            broker.turn();
        }
        broker.compact().unwrap();
        broker.configure_topic(&name("t"), TopicSettings::default()).unwrap();
        let broker = world.close(broker);
        let mut follower = broker.subscribe(&pattern("t"), From::Seq(Seq(1))).unwrap();
        let mut ledger = Ledger::from("t", 1);
        drain(&mut follower).iter().for_each(|delivery| ledger.note(delivery));
        assert_eq!(ledger.next_of("t"), 51);
    }
}

#[test]
fn c3_smaller_limits_are_in_force_at_once_without_another_publish() {
    let mut world = World::new(3);
    world.options.journal.tail_bytes = 0;
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    for n in 1..=50 {
        text(&broker, "t", format!("{n:>1000}"));
        broker.turn();
    }
    broker.seal().unwrap();
    let before = broker.describe_topic(&name("t")).unwrap();
    assert!((50_000..80_000).contains(&before.bytes), "{before:?}");
    broker.configure_topic(&name("t"), by_bytes(20_000)).unwrap();
    broker.turn();
    let after = broker.describe_topic(&name("t")).unwrap();
    assert!((10_000..=20_000).contains(&after.bytes), "{after:?}");
    broker.configure_topic(&name("t"), by_count(3)).unwrap();
    check(&broker, 48, 50, "configured");
    broker.turn();
    broker.compact().unwrap();
    check(&broker, 48, 50, "collected");
    assert!(broker.journal_stats().segment_bytes < 20_000);
    // A floor that lets the collector delete survives the power going.
    let broker = world.crash(broker, CrashKind::Power);
    check(&broker, 48, 50, "after power loss");
}

#[test]
fn c4_by_age_a_message_is_gone_at_its_millisecond_for_every_reader() {
    for (seal, restart) in [(false, false), (true, false), (false, true), (true, true)] {
        let world = World::new(4);
        let mut broker = world.open();
        broker.create_topic(&name("t"), by_age(1000)).unwrap();
        for n in 1..=5 {
            text(&broker, "t", format!("{n}"));
            world.advance(10);
        }
        if seal {
            broker.seal().unwrap();
        }
        if restart {
            broker = world.crash(broker, CrashKind::Power);
        }
        world.advance(949);
        let why = format!("sealed: {seal}, restarted: {restart}");
        check(&broker, 1, 5, &why);
        // The pattern is asked first: nothing else has raised the floor yet.
        for gone in 1..=5 {
            world.advance(if gone == 1 { 1 } else { 10 });
            let all = drain(&mut broker.subscribe(&pattern("*"), From::Beginning).unwrap());
            assert_eq!(seqs(&all), (gone + 1..=5).collect::<Vec<_>>(), "{why}");
            check(&broker, gone + 1, 5, &why);
        }
        broker.turn();
        broker.compact().unwrap();
        check(&broker, 6, 5, &why);
        assert_eq!(text(&broker, "t", "6").first, Seq(6));
        check(&broker, 6, 6, &why);
    }
}

#[test]
fn c4_by_bytes_the_newest_stay_and_not_less_than_the_limit_allows() {
    for tail_bytes in [0, 8 * 1024, 64 * 1024] {
        let mut world = World::new(5);
        world.options.journal.tail_bytes = tail_bytes;
        let broker = world.open();
        broker.create_topic(&name("t"), by_bytes(30_000)).unwrap();
        for n in 1..=200_u64 {
            text(&broker, "t", format!("{n:>900}"));
            broker.turn();
            let info = broker.describe_topic(&name("t")).unwrap();
            let messages = info.next.distance(info.first);
            // Each takes about 1000 bytes with its header; a limit cuts whole batches.
            assert!(messages <= 33, "{messages} at {n}, tail {tail_bytes}");
            assert!(messages >= n.min(28), "only {messages} at {n}, tail {tail_bytes}");
            if n % 40 == 0 {
                broker.seal().unwrap();
            }
        }
    }
}

#[test]
fn d10_a_follower_whose_place_was_let_go_is_told_by_topic_and_by_pattern() {
    type Letting = (&'static str, TopicSettings, fn(&World), GapReason);
    let ways: [Letting; 3] = [
        ("count", by_count(4), |_| {}, GapReason::Retention),
        ("age", by_age(500), |world| world.advance(500), GapReason::Retention),
        ("purge", TopicSettings::default(), |_| {}, GapReason::Purge),
    ];
    for (way, settings, let_go, reason) in ways {
        for collected in [false, true] {
            let world = World::new(6);
            let broker = world.open();
            broker.create_topic(&name("t"), settings).unwrap();
            broker.create_topic(&name("u"), TopicSettings::default()).unwrap();
            let mut tokens = Vec::new();
            for n in 1..=20 {
                text(&broker, "t", format!("{n}"));
                text(&broker, "u", format!("{n}"));
                if n == 3 {
                    for of in ["t", "*"] {
                        let mut follower = broker.subscribe(&pattern(of), From::Beginning).unwrap();
                        drain(&mut follower);
                        tokens.push((of, follower.token()));
                    }
                }
                if n == 16 {
                    broker.seal().unwrap();
                    let_go(&world);
                }
            }
            if way == "purge" {
                broker.purge(&name("t"), Seq(17)).unwrap();
            }
            if collected {
                broker.turn();
                broker.compact().unwrap();
            }
            let broker = if collected { world.close(broker) } else { broker };
            for &(of, token) in &tokens {
                let why = format!("{way} {of} collected: {collected}");
                let all = drain(&mut broker.subscribe(&pattern(of), From::Token(token)).unwrap());
                let told = gaps(&all);
                assert!(!told.is_empty(), "{why}: a silent skip");
                assert!(told.iter().all(|gap| gap.reason == reason), "{why}: {told:?}");
                let to = told.iter().filter_map(|gap| gap.to).max();
                assert_eq!(to, Some(Seq(16)), "{why}: {told:?}");
                let of_t = all.iter().filter_map(messages_of).filter(|m| m.topic().as_str() == "t");
                let seqs: Vec<u64> = of_t.flat_map(|m| m.iter()).map(|m| m.seq.0).collect();
                assert_eq!(seqs, [17, 18, 19, 20], "{why}");
                let first = all.iter().position(|each| matches!(each, Delivery::Gap(_)));
                let message = all.iter().position(|each| {
                    messages_of(each).is_some_and(|messages| messages.topic().as_str() == "t")
                });
                assert!(first < message, "{why}: reported before what comes after");
            }
        }
    }
}

#[test]
fn o3_the_beginning_of_a_topic_is_what_it_keeps_and_that_of_a_pattern_reports_what_is_gone() {
    let world = World::new(6);
    let broker = world.open();
    broker.create_topic(&name("t"), by_count(2)).unwrap();
    for n in 1..=5 {
        text(&broker, "t", format!("{n}"));
    }
    let alone = drain(&mut broker.subscribe(&pattern("t"), From::Beginning).unwrap());
    assert_eq!((gaps(&alone).len(), bodies(&alone)), (0, vec!["4".into(), "5".into()]));
    let among = drain(&mut broker.subscribe(&pattern("*"), From::Beginning).unwrap());
    let told = gaps(&among);
    assert!(told.iter().all(|gap| gap.reason == GapReason::Retention), "{told:?}");
    assert_eq!(told.last().and_then(|gap| gap.to), Some(Seq(3)));
    assert_eq!(bodies(&among), ["4", "5"]);
}

#[test]
fn c4_time_that_goes_back_neither_loses_nor_revives_messages() {
    let world = World::new(7);
    let broker = world.open();
    broker.create_topic(&name("t"), by_age(1000)).unwrap();
    text(&broker, "t", "1");
    world.advance(1000);
    text(&broker, "t", "2");
    check(&broker, 2, 2, "before");
    // Only the keeper writes floors.
    broker.turn();
    broker.close().unwrap();
    let mut options = world.options;
    options.clock = std::sync::Arc::new(gapless_broker::ManualClock::new(Timestamp(10)));
    let broker = Broker::open(options).unwrap();
    assert_eq!(text(&broker, "t", "3").first, Seq(3));
    check(&broker, 2, 3, "after");
    // Far behind, so that the time follows it.
    assert_eq!(broker.read(&name("t"), Seq(3)).unwrap().unwrap().time, Timestamp(10));
}

#[test]
fn c4_following_past_the_age_is_told_of_the_gap_and_writes_nothing() {
    let world = World::new(43);
    let broker = world.open();
    broker.create_topic(&name("t"), by_age(100)).expect("there is room");
    broker.create_topic(&name("u"), by_age(100)).expect("there is room");
    for body in ["1", "2", "3"] {
        text(&broker, "t", body);
    }
    let mut follower = broker.subscribe(&pattern("t"), From::Seq(Seq(1))).expect("it is there");
    world.advance(100);
    text(&broker, "t", "4");
    let position = broker.journal_stats().bytes;
    let gap = loop {
        match block_on(follower.next()).expect("it is followed") {
            Delivery::Gap(gap) => break gap,
            Delivery::Messages(messages) => panic!("{:?} is past its age", messages.from()),
            Delivery::Live | Delivery::Recovering { .. } => {}
        }
    };
    assert_eq!((gap.from, gap.to), (Some(Seq(1)), Some(Seq(3))));
    assert_eq!(gap.reason, GapReason::Retention);
    let next = loop {
        if let Delivery::Messages(messages) = block_on(follower.next()).expect("it is followed") {
            break (messages.from(), messages.to());
        }
    };
    assert_eq!(next, (Seq(4), Seq(4)));
    let info = broker.describe_topic(&name("t")).expect("it is there");
    assert_eq!((info.first, info.next), (Seq(4), Seq(5)));
    broker.flush();
    assert_eq!(broker.journal_stats().bytes, position, "reading put something into the journal");
    // The keeper does.
    broker.turn();
    broker.flush();
    assert!(broker.journal_stats().bytes > position);
}

#[test]
fn c4_a_look_up_past_the_age_finds_nothing_and_writes_nothing() {
    let world = World::new(41);
    let broker = world.open();
    let retention = Retention { age: Some(Duration::from_millis(100)), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    broker.create_topic(&name("t"), settings).expect("there is room");
    publish(&broker, "t", &Message::new("old").with_key("k"));
    world.advance(99);
    assert!(broker.read(&name("t"), Seq(1)).expect("it can be read").is_some());
    world.advance(1);
    assert_eq!(broker.read(&name("t"), Seq(1)).expect("it can be read"), None);
    assert_eq!(broker.latest(&name("t"), b"k").expect("it can be read"), None);
    assert_eq!(broker.journal_stats().waiting_bytes, 0, "reading puts nothing into the journal");
}
