//! Where a follower may begin and what it is handed (D3, D4, D5, C8).

mod common;

use common::*;
use gapless_broker::{
    Broker, BrokerState, Delivery, FollowError, From, SubscribeError, SubscriberState,
};
use gapless_core::{Message, PublishOptions, Seq, StartError, Storage, Timestamp, TopicSettings};
use gapless_journal::faulty::CrashKind;
use std::time::Duration;

/// A world whose history lies in segments only, once it is sealed.
fn without_tail(seed: u64) -> World {
    let mut world = World::new(seed);
    world.options.journal.tail_bytes = 0;
    world
}

fn start(broker: &Broker, of: &str, from: From) -> Vec<Delivery> {
    drain(&mut broker.subscribe(&pattern(of), from).expect("the store is well"))
}

#[test]
fn d4_recovery_is_announced_then_comes_history_then_live() {
    let world = without_tail(1);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=20);
    broker.seal().unwrap();
    for of in ["t", "*"] {
        let mut follower = broker.subscribe(&pattern(of), From::Beginning).unwrap();
        assert_eq!(follower.state(), SubscriberState::Connected);
        let Delivery::Recovering { from, to } = next(&mut follower) else { panic!("{of}") };
        assert!(from <= to && to >= 20, "{of}: {from} to {to}");
        if of == "t" {
            assert_eq!((from, to), (1, 20));
        }
        assert_eq!(follower.state(), SubscriberState::Recovering);
        let all = until_live(&mut follower);
        assert_eq!(seqs(&all), (1..=20).collect::<Vec<_>>());
        assert!(gaps(&all).is_empty());
        assert_eq!(follower.state(), SubscriberState::Online);
        text(&broker, "t", "live");
        assert_eq!(bodies(&drain(&mut follower)), ["live"]);
        broker.purge(&name("t"), Seq(1)).unwrap();
        drop(follower);
        let last = broker.describe_topic(&name("t")).unwrap().next;
        assert!(last > Seq(21));
        // The next kind of follower finds the same twenty.
        broker.delete_topic(&name("t")).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        texts(&broker, "t", 1..=20);
        broker.seal().unwrap();
    }
}

#[test]
fn d5_states_of_broker_and_subscribers_are_seen_from_outside() {
    let world = without_tail(2);
    let broker = world.open();
    assert_eq!(broker.state(), BrokerState::Listening);
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    assert_eq!(broker.state(), BrokerState::Online);
    texts(&broker, "t", 1..=3);
    broker.seal().unwrap();
    let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    let info = |id: u64| broker.subscribers().into_iter().find(|each| each.id == id);
    let id = follower.id();
    let seen = info(id).unwrap();
    assert_eq!((seen.pattern.as_str(), seen.state), ("t", SubscriberState::Connected));
    next(&mut follower);
    assert_eq!(info(id).unwrap().state, SubscriberState::Recovering);
    until_live(&mut follower);
    let seen = info(id).unwrap();
    assert_eq!((seen.state, seen.place), (SubscriberState::Online, 3));
    assert!(seen.recovery_steps >= 1);
    drop(follower);
    assert_eq!(info(id), None, "who is gone is not counted any more");
    let handle = broker.clone();
    broker.close().unwrap();
    assert_eq!(handle.state(), BrokerState::Error);
}

#[test]
fn d3_a_follower_begins_at_the_seq_it_names_and_not_beyond_the_end() {
    for history in [false, true] {
        let world = without_tail(3);
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let batch: Vec<Message> = (1..=10).map(|n| Message::new(format!("{n}"))).collect();
        broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
        if history {
            broker.seal().unwrap();
        }
        for wanted in 0..=11_u64 {
            let found = start(&broker, "t", From::Seq(Seq(wanted)));
            assert_eq!(seqs(&found), (wanted.max(1)..=10).collect::<Vec<_>>(), "{wanted}");
            assert!(matches!(found.last(), Some(Delivery::Live)));
        }
        let ahead = broker.subscribe(&pattern("t"), From::Seq(Seq(12))).map(drop);
        let wanted = StartError::Ahead { wanted: Seq(12), next: Seq(11) };
        assert!(matches!(ahead, Err(SubscribeError::Start(error)) if error == wanted));
        assert_eq!(start(&broker, "t", From::Now).len(), 1);
        assert_eq!(broker.subscribers().len(), 0, "a refused one leaves nothing behind");
    }
}

#[test]
fn d3_a_follower_begins_at_the_time_it_names() {
    let world = without_tail(4);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    for n in 1..=9_u64 {
        text(&broker, "t", format!("{n}"));
        world.advance(10);
        if n % 4 == 0 {
            // Some in segments, some in memory.
            broker.seal().unwrap();
        }
    }
    for ms in 0..=100_u64 {
        let from = From::Time(Timestamp(START.0 + ms));
        let first = ms.div_ceil(10) + 1;
        assert_eq!(seqs(&start(&broker, "t", from)), (first..=9).collect::<Vec<_>>(), "{ms}");
    }
    assert_eq!(seqs(&start(&broker, "t", From::Time(Timestamp(0)))).len(), 9);
    let mut late = broker.subscribe(&pattern("t"), From::Time(Timestamp::NEVER)).unwrap();
    drain(&mut late);
    text(&broker, "t", "10");
    assert_eq!(bodies(&drain(&mut late)), ["10"]);
}

#[test]
fn d3_seq_and_key_need_one_topic_that_is_there_and_a_time_existing_ones() {
    let world = World::new(5);
    let broker = world.open();
    broker.create_topic(&name("t.a"), TopicSettings::default()).unwrap();
    for from in [From::Seq(Seq(1)), From::Time(START), From::LastPerKey] {
        let time = matches!(from, From::Time(_));
        for of in if time { &["nothing"][..] } else { &["t.*", "nothing"] } {
            let refused = broker.subscribe(&pattern(of), from).map(drop);
            assert!(matches!(refused, Err(SubscribeError::NeedsTopic(_))), "{of} {from:?}");
        }
        drop(broker.subscribe(&pattern("t.a"), from).unwrap());
    }
    assert_eq!(broker.subscribers().len(), 0);
}

#[test]
fn a_pattern_begins_at_a_time_with_what_its_topics_accepted_from_then_on() {
    for history in [false, true] {
        let mut world = World::new(5);
        world.options.journal.tail_bytes = if history { 0 } else { 1 << 20 };
        let broker = world.open();
        let volatile = TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() };
        broker.create_topic(&name("t.memory"), volatile).unwrap();
        for topic in ["t.a", "t.b", "other"] {
            broker.create_topic(&name(topic), TopicSettings::default()).unwrap();
        }
        for number in 0..6 {
            let topic = ["t.a", "t.b", "other"][number % 3];
            text(&broker, topic, number.to_string());
            text(&broker, "t.memory", "x");
            world.clock.advance(Duration::from_millis(10));
        }
        if history {
            broker.seal().unwrap();
        }
        let from = |ms: u64| {
            let from = From::Time(Timestamp(START.0 + ms));
            let mut follower = broker.subscribe(&pattern("t.*"), from).unwrap();
            bodies(&drain(&mut follower))
        };
        assert_eq!(from(0), ["0", "1", "3", "4"], "history: {history}");
        assert_eq!(from(5), ["1", "3", "4"]);
        assert_eq!(from(30), ["3", "4"]);
        assert_eq!(from(1000), [""; 0]);
    }
}

#[test]
fn c5_from_the_last_of_each_key_comes_the_newest_of_each_and_then_everything_new() {
    for history in [false, true] {
        let world = without_tail(6);
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let keyed = |key: &str, text: &str| Message::new(text.to_owned()).with_key(key.to_owned());
        for (key, text) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("b", "b2")] {
            publish(&broker, "t", &keyed(key, text));
        }
        publish(&broker, "t", &Message::tombstone("c"));
        text(&broker, "t", "without key");
        let batch = [keyed("d", "d1"), keyed("d", "d2"), keyed("e", "e1")];
        broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
        if history {
            broker.seal().unwrap();
        }
        let mut follower = broker.subscribe(&pattern("t"), From::LastPerKey).unwrap();
        let mut ledger = Ledger::from("t", 1);
        let all = drain(&mut follower);
        all.iter().for_each(|delivery| ledger.note(delivery));
        assert_eq!(bodies(&all), ["a2", "b2", "d2", "e1"], "history: {history}");
        assert_eq!(ledger.next_of("t"), 11, "the rest is accounted for");
        for n in ["a3", "a4"] {
            publish(&broker, "t", &keyed("a", n));
        }
        text(&broker, "t", "also without key");
        assert_eq!(bodies(&drain(&mut follower)), ["a3", "a4", "also without key"]);
    }
}

#[test]
fn c8_messages_wait_and_each_follower_goes_at_its_own_speed() {
    let world = World::new(7);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=3);
    let mut quick = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    let mut slow = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    let mut seen = Vec::new();
    for n in 4..=300 {
        text(&broker, "t", format!("body-{n} {}", "x".repeat(500)));
        broker.turn();
        seen.extend(seqs(&drain(&mut quick)));
    }
    assert_eq!(seen, (1..=300).collect::<Vec<_>>());
    assert_eq!(seqs(&drain(&mut slow)), (1..=300).collect::<Vec<_>>());
}

#[test]
fn f2_history_that_is_damaged_is_an_error_and_nothing_is_skipped() {
    let world = without_tail(8);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    for n in 1..=50 {
        text(&broker, "t", format!("body-{n} {}", "x".repeat(200)));
    }
    broker.seal().unwrap();
    let files = world.fs.files();
    let (data, len) = files
        .into_iter()
        .find(|(path, _)| path.to_string_lossy().ends_with(".data"))
        .expect("a segment was written");
    world.fs.flip_bit(&data, len / 2, 3);
    for of in ["t", "*"] {
        let mut follower = broker.subscribe(&pattern(of), From::Beginning).unwrap();
        let mut ledger = Ledger::default();
        let mut failed = 0;
        for _ in 0..100 {
            match now(&mut follower) {
                Some(Ok(delivery)) => ledger.note(&delivery),
                Some(Err(FollowError::Read(_))) => failed += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(failed > 10, "asked again it says so again");
        assert!(ledger.next_of("t") < 50 && ledger.gaps.is_empty(), "{ledger:?}");
    }
    let broker = world.crash(broker, CrashKind::Process);
    assert_eq!(text(&broker, "t", "goes on").first, Seq(51));
}

#[test]
fn f3_a_follower_that_left_while_waiting_leaves_nothing_behind() {
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};
    struct Idle;
    impl Wake for Idle {
        fn wake(self: Arc<Self>) {}
    }
    let world = World::new(9);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let idle = Arc::new(Idle);
    let waker = Waker::from(Arc::clone(&idle));
    for of in ["t", ">"] {
        for _ in 0..100 {
            let mut follower = broker.subscribe(&pattern(of), From::Now).unwrap();
            while follower.poll_next(&mut Context::from_waker(&waker)).is_ready() {}
        }
        assert_eq!(Arc::strong_count(&idle), 2, "{of}: wakers of those who left are kept");
    }
}

#[test]
fn o2_history_in_memory_comes_before_live_and_only_history_on_disk_is_announced() {
    let world = World::new(46);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    texts(&broker, "t", 1..=3);
    let steps = |broker: &Broker| -> Vec<&str> {
        let mut follower = broker.subscribe(&pattern("t"), From::Beginning).expect("it is there");
        let step = |delivery: &Delivery| match delivery {
            Delivery::Recovering { .. } => "recovering",
            Delivery::Messages(_) => "messages",
            Delivery::Live => "live",
            Delivery::Gap(_) => "gap",
        };
        drain(&mut follower).iter().map(step).collect()
    };
    assert_eq!(steps(&broker), ["messages", "live"]);
    broker.seal().expect("there is room");
    broker.close().expect("there is room");
    assert_eq!(steps(&world.open()), ["recovering", "messages", "live"]);
}
