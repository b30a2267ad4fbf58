//! What a publish is answered (A3, A5, D1): numbers, durability, and every reason to refuse.

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Atomic, Broker, From};
use gapless_core::{Durability, Message, PublishOptions, RejectReason, Seq, TopicSettings};
use gapless_journal::faulty::CrashKind;

fn with(durability: Durability) -> PublishOptions {
    PublishOptions { durability: Some(durability), ..PublishOptions::default() }
}

#[test]
fn d1_seqs_rise_in_the_topic_and_positions_over_all_and_both_survive() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::open(on_disk(folder.path())).unwrap();
    broker.create_topics(&[name("a"), name("b")], TopicSettings::default()).unwrap();
    let mut last = text(&broker, "a", "0").position;
    for round in 1..=3_u64 {
        for topic in ["a", "b"] {
            let batch = ["x", "y", "z"].map(Message::new);
            let ack = broker.publish_batch(&name(topic), &batch, &PublishOptions::default());
            let ack = accepted(ack.wait().unwrap());
            let offset = u64::from(topic == "a");
            assert_eq!(ack.first, Seq((round - 1) * 3 + 1 + offset));
            assert_eq!(ack.last, Seq(round * 3 + offset));
            assert!(ack.position.0 >= last.0 + 3, "positions rise over all topics");
            assert_eq!((ack.durability, ack.duplicate), (Durability::Flushed, false));
            let read = broker.read(&name(topic), ack.last).unwrap().unwrap();
            assert_eq!((read.position, body(&read.message)), (ack.position, "z".to_owned()));
            last = ack.position;
        }
        broker.close().unwrap();
        broker = Broker::open(on_disk(folder.path())).unwrap();
    }
    broker.close().unwrap();
}

#[test]
fn c1_everything_of_a_message_comes_out_as_it_went_in() {
    let world = World::new(1);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let message = Message::new(vec![0_u8, 255, 10])
        .with_key("key")
        .with_id("id")
        .with_header("name", "value")
        .with_header("name", "second")
        .with_ttl(Duration::from_secs(60));
    let empty = Message::new("");
    let bare = Message::tombstone("key");
    let all = [message, empty, bare];
    broker.publish_batch(&name("t"), &all, &PublishOptions::default()).wait().unwrap();
    for _ in 0..3 {
        let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
        let found: Vec<Message> =
            delivered(&drain(&mut follower)).into_iter().map(|each| each.message).collect();
        assert_eq!(found, all);
        drop(follower);
        broker.seal().unwrap();
        broker = world.crash(broker, CrashKind::Power);
    }
}

#[test]
fn a5_a_publish_may_ask_for_less_or_more_and_the_topic_keeps_its_own_default() {
    let world = World::new(2);
    let broker = world.open();
    broker.create_topic(&name("safe"), TopicSettings::default()).unwrap();
    let quick = TopicSettings { durability: Some(Durability::Memory), ..TopicSettings::default() };
    broker.create_topic(&name("quick"), quick).unwrap();
    let durability = |topic: &str, options: &PublishOptions| {
        let ack = broker.publish(&name(topic), &Message::new("x"), options).wait().unwrap();
        accepted(ack).durability
    };
    let plain = PublishOptions::default();
    assert_eq!(durability("safe", &plain), Durability::Flushed);
    assert_eq!(durability("safe", &with(Durability::Memory)), Durability::Memory);
    assert_eq!(durability("safe", &plain), Durability::Flushed);
    assert_eq!(durability("quick", &plain), Durability::Memory);
    assert_eq!(durability("quick", &with(Durability::Flushed)), Durability::Flushed);
    assert_eq!(durability("quick", &plain), Durability::Memory);
    assert!(durability("quick", &with(Durability::Written)) >= Durability::Written);
    assert_eq!(broker.describe_topic(&name("quick")).unwrap().settings, quick);
}

#[test]
fn f2_the_ack_tells_the_truth_about_what_survives() {
    for seed in 0..10 {
        let world = World::new(seed);
        let broker = world.open();
        let quick =
            TopicSettings { durability: Some(Durability::Memory), ..TopicSettings::default() };
        broker.create_topic(&name("t"), quick).unwrap();
        let one = |broker: &Broker, body: &str, durability| {
            let options = with(durability);
            accepted(
                broker
                    .publish(&name("t"), &Message::new(body.to_owned()), &options)
                    .wait()
                    .unwrap(),
            )
        };
        one(&broker, "flushed", Durability::Flushed);
        one(&broker, "written", Durability::Written);
        // Written survives the end of the process.
        let broker = world.crash(broker, CrashKind::Process);
        let next = broker.describe_topic(&name("t")).unwrap().next;
        assert_eq!(next, Seq(3));
        one(&broker, "flushed", Durability::Flushed);
        one(&broker, "maybe", Durability::Memory);
        // Flushed survives the end of the power, and what went before it too.
        let broker = world.crash(broker, CrashKind::Power);
        let next = broker.describe_topic(&name("t")).unwrap().next;
        assert!((Seq(4)..=Seq(5)).contains(&next), "{next}");
    }
}

#[test]
fn d2_nothing_is_seen_before_its_topics_durability_is_reached() {
    let world = World::new(3);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let mut by_topic = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    let mut by_pattern = broker.subscribe(&pattern("*"), From::Beginning).unwrap();
    drain(&mut by_topic);
    drain(&mut by_pattern);
    let quick = with(Durability::Memory);
    let publishing = broker.publish(&name("t"), &Message::new("x"), &quick);
    assert!(publishing.is_accepted());
    assert_eq!(accepted(publishing.wait().unwrap()).durability, Durability::Memory);
    assert!(now(&mut by_topic).is_none());
    assert!(now(&mut by_pattern).is_none());
    assert_eq!(broker.read(&name("t"), Seq(1)).unwrap(), None);
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(1));
    broker.turn();
    assert_eq!(bodies(&drain(&mut by_topic)), ["x"]);
    assert_eq!(bodies(&drain(&mut by_pattern)), ["x"]);
}

#[test]
fn a3_messages_that_break_a_limit_of_their_parts_are_invalid_payload() {
    let world = World::new(4);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    broker.create_topic(&name("v"), volatile()).unwrap();
    let long = vec![b'x'; 5000];
    let far = START.after(Duration::from_secs(400 * 24 * 3600));
    let bad = [
        Message::default(),
        Message::new("x").with_key(long),
        Message::new("x").with_id(""),
        Message::new("x").with_id(vec![b'x'; 256]),
        Message::new("x").with_header("h", vec![b'x'; 20_000]),
        Message::new("x").with_ttl(Duration::ZERO),
    ];
    let plain = PublishOptions::default();
    for message in &bad {
        for topic in ["t", "v"] {
            let got = refusal(&broker, topic, message, &plain);
            assert_eq!(got, RejectReason::InvalidPayload, "{message:?}");
        }
        let pair = [Message::new("good"), message.clone()];
        let ack = broker.publish_batch(&name("t"), &pair, &plain).wait().unwrap();
        assert_eq!(reason(ack), RejectReason::InvalidPayload);
    }
    let late = Message::new("x").with_not_before(far);
    assert_eq!(refusal(&broker, "t", &late, &plain), RejectReason::InvalidPayload);
    let none = broker.publish_batch(&name("t"), &[], &plain).wait().unwrap();
    assert_eq!(reason(none), RejectReason::InvalidPayload);
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(1));
}

#[test]
fn a3_a_message_over_the_limit_of_topic_or_broker_is_too_large_and_a_batch_of_small_ones_is_not() {
    let mut world = World::new(5);
    world.options.limits.message_bytes_max = 1000;
    let broker = world.open();
    let narrow = |storage: TopicSettings| TopicSettings { max_message_bytes: Some(100), ..storage };
    let plain = PublishOptions::default();
    for (wide, tight, storage) in [("dw", "dt", TopicSettings::default()), ("vw", "vt", volatile())]
    {
        broker.create_topic(&name(wide), storage).unwrap();
        broker.create_topic(&name(tight), narrow(storage)).unwrap();
        for (topic, max) in [(wide, 1000_u64), (tight, 100)] {
            let fits = Message::new(vec![0; max as usize]);
            assert!(broker.publish(&name(topic), &fits, &plain).is_accepted(), "{topic} {max}");
            let over = Message::new(vec![0; max as usize]).with_key("k");
            let refused = refusal(&broker, topic, &over, &plain);
            assert_eq!(refused, RejectReason::TooLarge { bytes: max + 1, max }, "{topic}");
            // The limit is one of messages, not of batches.
            let small = vec![Message::new(vec![0; 60]); 40];
            let ack = broker.publish_batch(&name(topic), &small, &plain).wait().unwrap();
            assert_eq!(accepted(ack).last.0, 41, "{topic}");
        }
    }
}

#[test]
fn a3_o4_publishing_to_what_is_not_there_has_its_own_reasons() {
    let world = World::new(6);
    let broker = world.open();
    broker.create_topic(&name("v"), volatile()).unwrap();
    let message = Message::new("x");
    let plain = PublishOptions::default();
    // O4: a name without a topic is a volatile subject. Without a follower it is most likely a
    // misspelt topic, unless the publish itself asks for followers.
    assert_eq!(refusal(&broker, "nobody", &message, &plain), RejectReason::UnknownTopic);
    let picky = PublishOptions { require_subscribers: Some(true), ..plain };
    assert_eq!(refusal(&broker, "nobody", &message, &picky), RejectReason::NoSubscribers);
    let careless = PublishOptions { require_subscribers: Some(false), ..plain };
    assert!(broker.publish(&name("nobody"), &message, &careless).is_accepted());
    let safe = PublishOptions { durability: Some(Durability::Flushed), ..careless };
    assert_eq!(refusal(&broker, "nobody", &message, &safe), RejectReason::UnknownTopic);
    let later = Message::new("x").with_not_before(START.after(Duration::from_secs(1)));
    assert_eq!(refusal(&broker, "nobody", &later, &plain), RejectReason::UnknownTopic);
    assert_eq!(refusal(&broker, "v", &later, &plain), RejectReason::NotDurable);
    // V7: what memory cannot give is refused, and not answered with less.
    for durability in [Durability::Written, Durability::Flushed] {
        let safe = PublishOptions { durability: Some(durability), ..plain };
        assert_eq!(refusal(&broker, "v", &message, &safe), RejectReason::NotDurable);
    }
    let memory = PublishOptions { durability: Some(Durability::Memory), ..plain };
    assert!(broker.publish(&name("v"), &message, &memory).is_accepted());
    let atomic = Atomic::new().publish(&name("nobody"), std::slice::from_ref(&message));
    let ack = broker.commit(atomic, &plain).wait().unwrap();
    assert_eq!(reason(ack), RejectReason::UnknownTopic);
    let atomic = Atomic::new().publish(&name("v"), &[message]);
    assert_eq!(reason(broker.commit(atomic, &plain).wait().unwrap()), RejectReason::NotDurable);
}

#[test]
fn a3_who_requires_subscribers_is_refused_without_them() {
    let world = World::new(7);
    let broker = world.open();
    let picky = |storage| TopicSettings { require_subscribers: Some(true), ..storage };
    broker.create_topic(&name("d"), picky(TopicSettings::default())).unwrap();
    broker.create_topic(&name("v"), picky(volatile())).unwrap();
    let plain = PublishOptions::default();
    let message = Message::new("x");
    for topic in ["d", "v"] {
        assert_eq!(refusal(&broker, topic, &message, &plain), RejectReason::NoSubscribers);
        // The publish has the last word (A5).
        let careless = PublishOptions { require_subscribers: Some(false), ..plain };
        assert!(broker.publish(&name(topic), &message, &careless).is_accepted());
        for of in [topic, ">"] {
            let follower = broker.subscribe(&pattern(of), From::Now).unwrap();
            assert!(broker.publish(&name(topic), &message, &plain).is_accepted(), "{topic} {of}");
            drop(follower);
            assert_eq!(refusal(&broker, topic, &message, &plain), RejectReason::NoSubscribers);
        }
    }
}

#[test]
fn a3_nobody_but_the_broker_publishes_under_its_own_names() {
    let world = World::new(8);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let plain = PublishOptions::default();
    let later = Message::new("x").with_not_before(START.after(Duration::from_secs(1)));
    broker.publish(&name("t"), &later, &plain).wait().unwrap();
    let mut events = broker.subscribe(&pattern("$events.>"), From::Now).unwrap();
    let mut delayed = broker.subscribe(&pattern("$delayed"), From::Now).unwrap();
    drain(&mut delayed);
    for own in ["$events.topic.created", "$delayed", "$other"] {
        for message in [&Message::new("x"), &later] {
            assert_eq!(refusal(&broker, own, message, &plain), RejectReason::InvalidTopic, "{own}");
        }
        let atomic = Atomic::new().publish(&name(own), &[Message::new("x")]);
        let ack = broker.commit(atomic, &plain).wait().unwrap();
        assert_eq!(reason(ack), RejectReason::InvalidTopic, "{own}");
    }
    assert_eq!(bodies(&drain(&mut delayed)), [""; 0]);
    let told = bodies(&drain(&mut events));
    assert!(told.iter().all(|event| event.contains("\"event\":")), "{told:?}");
}
