//! Volatile topics and subjects (A1): delivered to subscribers, and to no others.

mod common;

use common::*;
use gapless_broker::{Broker, Delivery, From, SubscribeError};
use gapless_core::{
    GapReason, Message, PublishOptions, RejectReason, Seq, TopicSettings, TotalLimit,
};
use gapless_journal::faulty::CrashKind;

#[test]
fn a1_a_subject_reaches_exactly_those_whose_pattern_matches() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::open(on_disk(folder.path())).unwrap();
    let patterns = ["a.b", "a.*", "*.b", "a.>", ">", "*", "a.b.c", "a.*.c", "b.>"];
    let mut followers = patterns.map(|of| {
        let mut follower = broker.subscribe(&pattern(of), From::Now).unwrap();
        until_live(&mut follower);
        follower
    });
    for subject in ["a.b", "a.b.c", "a", "b.x", "c.d.e"] {
        text(&broker, subject, subject);
        for (of, follower) in patterns.iter().zip(&mut followers) {
            let got = now(follower).map(|delivery| delivery.unwrap());
            let matches = pattern(of).matches(&name(subject));
            assert_eq!(got.is_some(), matches, "{subject} to {of}");
            if let Some(Delivery::Messages(messages)) = got {
                assert_eq!(messages.topic().as_str(), subject);
                assert_eq!(messages.iter().next().map(|m| body(&m.message)), Some(subject.into()));
            }
            assert!(now(follower).is_none());
        }
    }
    broker.close().unwrap();
}

#[test]
fn a1_nothing_comes_before_subscribing_and_nothing_after_leaving() {
    let world = World::new(1);
    let broker = world.open();
    let plain = PublishOptions::default();
    let careless = PublishOptions { require_subscribers: Some(false), ..plain };
    let one = |text: &str| Message::new(text.to_owned());
    assert!(broker.publish(&name("s"), &one("early"), &careless).is_accepted());
    let mut follower = broker.subscribe(&pattern("s"), From::Beginning).unwrap();
    let mut other = broker.subscribe(&pattern("s"), From::Now).unwrap();
    text(&broker, "s", "in time");
    assert_eq!(bodies(&drain(&mut follower)), ["in time"]);
    drop(follower);
    text(&broker, "s", "for the other");
    assert_eq!(bodies(&drain(&mut other)), ["in time", "for the other"]);
    drop(other);
    assert_eq!(refusal(&broker, "s", &one("late"), &plain), RejectReason::UnknownTopic);
}

#[test]
fn a_subject_or_pattern_is_followed_at_once_and_a_topic_is_left_to_who_may_block() {
    let world = World::new(1);
    let broker = world.open();
    broker.create_topic(&name("topic"), TopicSettings::default()).unwrap();
    assert!(broker.subscribe_at_once(&pattern("topic"), From::Now).is_none());
    assert!(broker.subscribers().is_empty(), "nothing was done");
    for of in ["subject", "*"] {
        let begun = broker.subscribe_at_once(&pattern(of), From::Now).expect("no topic");
        let mut follower = begun.unwrap();
        until_live(&mut follower);
        text(&broker, "subject", of);
        assert_eq!(bodies(&drain(&mut follower)), [of]);
    }
    let refused = broker.subscribe_at_once(&pattern("*"), From::Seq(Seq(1))).expect("no topic");
    assert!(matches!(refused, Err(SubscribeError::NeedsTopic(_))));
}

#[test]
fn f3_a_mailbox_is_bounded_and_what_it_lost_is_told() {
    for (bytes, messages) in [(2000, 1000), (1 << 20, 5)] {
        let mut world = World::new(2);
        world.options.limits.mailbox_bytes_max = bytes;
        world.options.limits.mailbox_messages_max = messages;
        let broker = world.open();
        let mut slow = broker.subscribe(&pattern("s.*"), From::Now).unwrap();
        drain(&mut slow);
        for n in 1..=100 {
            text(&broker, "s.x", format!("{n}"));
        }
        let all = drain(&mut slow);
        let Delivery::Gap(gap) = &all[0] else { panic!("{all:?}") };
        assert_eq!(gap.reason, GapReason::Slow);
        let (from, to) = gap.positions.unwrap();
        let left = bodies(&all);
        assert!(!left.is_empty() && left.len() < 100);
        let lost = to.0 - from.0 + 1;
        assert_eq!(lost + left.len() as u64, 100, "what is lost and what came is all");
        assert_eq!(left[0], (lost + 1).to_string());
        assert_eq!(left.last().unwrap(), "100");
        text(&broker, "s.x", "101");
        assert_eq!(bodies(&drain(&mut slow)), ["101"], "it goes on without another notice");
    }
}

#[test]
fn f3_a_volatile_topic_keeps_a_little_and_tells_who_was_too_slow() {
    let mut world = World::new(3);
    world.options.limits.volatile_topic_bytes_max = 2000;
    let broker = world.open();
    broker.create_topic(&name("v"), volatile()).unwrap();
    let mut slow = broker.subscribe(&pattern("v"), From::Beginning).unwrap();
    drain(&mut slow);
    texts(&broker, "v", 1..=100);
    let info = broker.describe_topic(&name("v")).unwrap();
    assert!(info.bytes <= 2000 && info.next == Seq(101), "{info:?}");
    let mut ledger = Ledger::from("v", 1);
    let all = drain(&mut slow);
    all.iter().for_each(|delivery| ledger.note(delivery));
    assert_eq!((ledger.next_of("v"), ledger.gaps.len()), (101, 1));
    assert_eq!(ledger.gaps[0].reason, GapReason::Slow);
    assert_eq!(seqs(&all), (info.first.0..=100).collect::<Vec<_>>());
    // A late one gets what is kept.
    let late = drain(&mut broker.subscribe(&pattern("v"), From::Beginning).unwrap());
    assert_eq!(seqs(&late), (info.first.0..=100).collect::<Vec<_>>());
}

#[test]
fn d3_a_volatile_topic_is_resumed_by_token_too() {
    let mut world = World::new(4);
    world.options.limits.step_bytes = 1;
    world.options.limits.volatile_topic_bytes_max = 3000;
    let broker = world.open();
    broker.create_topic(&name("v"), volatile()).unwrap();
    broker.create_topic(&name("noise"), volatile()).unwrap();
    broker.create_topic(&name("d"), TopicSettings::default()).unwrap();
    texts(&broker, "d", 1..=50);
    let mut token = broker.subscribe(&pattern("v"), From::Now).unwrap().token();
    let mut ledger = Ledger::from("v", 1);
    for n in 1..=30 {
        text(&broker, "v", format!("{n}"));
        text(&broker, "noise", "x");
        let mut follower = broker.subscribe(&pattern("v"), From::Token(token)).unwrap();
        for _ in 0..n % 4 {
            let Some(delivery) = now(&mut follower) else { break };
            ledger.note(&delivery.unwrap());
        }
        token = follower.token();
    }
    let mut rest = broker.subscribe(&pattern("v"), From::Token(token)).unwrap();
    drain(&mut rest).iter().for_each(|delivery| ledger.note(delivery));
    assert_eq!((ledger.seen, ledger.gaps.len()), (30, 0), "{:?}", ledger.gaps);
    // A subscriber that stays away for too long gets a gap notice.
    let token = rest.token();
    texts(&broker, "v", 31..=200);
    let all = drain(&mut broker.subscribe(&pattern("v"), From::Token(token)).unwrap());
    assert_eq!(gaps(&all).first().map(|gap| gap.reason), Some(GapReason::Slow));
    // Another life of the process knows nothing of it, and says so.
    let token = rest.token();
    drop(rest);
    let broker = world.close(broker);
    broker.create_topic(&name("v"), volatile()).unwrap();
    text(&broker, "v", "new");
    let all = drain(&mut broker.subscribe(&pattern("v"), From::Token(token)).unwrap());
    assert_eq!(gaps(&all).first().map(|gap| gap.reason), Some(GapReason::Epoch));
    assert_eq!(bodies(&all), ["new"]);
}

#[test]
fn d7_a_pattern_hands_out_durable_messages_even_while_volatile_ones_never_end() {
    let world = World::new(5);
    let broker = world.open();
    broker.create_topic(&name("x.durable"), TopicSettings::default()).unwrap();
    let mut follower = broker.subscribe(&pattern("x.*"), From::Now).unwrap();
    drain(&mut follower);
    texts(&broker, "x.durable", 1..=3);
    let mut durable = 0;
    for n in 0..20 {
        text(&broker, "x.subject", format!("{n}"));
        text(&broker, "x.subject", format!("{n}"));
        if let Some(Ok(Delivery::Messages(messages))) = now(&mut follower) {
            durable += if messages.topic().as_str() == "x.durable" { messages.count() } else { 0 };
        }
    }
    assert_eq!(durable, 3);
    drop(drain(&mut follower));
    text(&broker, "x.subject", "wakes");
    assert_eq!(bodies(&drain(&mut follower)), ["wakes"]);
}

#[test]
fn a1_a_thousand_threads_worth_of_mail_arrives_once_and_in_order() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("s.topic"), volatile()).unwrap();
        let followers: Vec<_> = ["s.*", "s.topic", ">"]
            .map(|of| {
                let mut follower = broker.subscribe(&pattern(of), From::Now).unwrap();
                until_live(&mut follower);
                std::thread::spawn(move || {
                    let mut ledger = Ledger::default();
                    while ledger.next_of("s.topic") <= 2000 {
                        ledger.note(&next(&mut follower));
                    }
                    ledger
                })
            })
            .into();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| texts(&broker, "s.topic", 1..=500));
            }
        });
        for follower in followers {
            let ledger = follower.join().unwrap();
            assert_eq!((ledger.seen, ledger.gaps.len()), (2000, 0));
        }
        broker.close().unwrap();
    });
}

#[test]
fn h1_all_volatile_topics_together_keep_no_more_than_their_limit() {
    let mut world = World::new(31);
    world.options.limits.volatile_topic_bytes_max = 10_000;
    world.options.limits.volatile_bytes_max = 30_000;
    let broker = world.open();
    let plain = PublishOptions::default();
    let message = Message::new(vec![7; 1000]);
    let full = RejectReason::LimitReached { limit: TotalLimit::VolatileBytes, max: 30_000 };
    let mut taken = 0;
    for number in 0..10 {
        let topic = format!("v{number}");
        broker.create_topic(&name(&topic), volatile()).unwrap();
        for _ in 0..20 {
            let publishing = broker.publish(&name(&topic), &message, &plain);
            taken += usize::from(publishing.is_accepted());
        }
    }
    // Three topics are as large as each may be, a fourth got what was left, and all four can go on
    // by replacing what they have. The others get nothing.
    assert_eq!(taken, 80);
    assert_eq!(refusal(&broker, "v9", &message, &plain), full);
    assert!(broker.publish(&name("v0"), &message, &plain).is_accepted());
    // What is deleted makes room.
    broker.delete_topic(&name("v0")).unwrap();
    assert!(broker.publish(&name("v9"), &message, &plain).is_accepted());
}

#[test]
fn o8_a_volatile_topic_is_there_after_a_restart_with_its_settings_and_empty() {
    for sealed in [false, true] {
        for end in 0..3 {
            let world = World::new(6);
            let broker = world.open();
            let first = TopicSettings { max_message_bytes: Some(7), ..volatile() };
            let settings = TopicSettings { max_message_bytes: Some(70), ..volatile() };
            let id = broker.create_topic(&name("v"), first).unwrap().id;
            broker.create_topic(&name("gone"), first).unwrap();
            text(&broker, "v", "1");
            broker.configure_topic(&name("v"), settings).unwrap();
            text(&broker, "v", "a longer one");
            broker.create_topic(&name("d"), TopicSettings::default()).unwrap();
            if sealed {
                text(&broker, "d", "1");
                broker.seal().unwrap();
            }
            broker.delete_topic(&name("gone")).unwrap();
            let broker = match end {
                0 => world.close(broker),
                1 => world.crash(broker, CrashKind::Process),
                _ => world.crash(broker, CrashKind::Power),
            };
            let info = broker.describe_topic(&name("v")).unwrap();
            assert_eq!((info.id, info.settings, info.next), (id, settings, Seq(1)));
            assert!(broker.describe_topic(&name("gone")).is_err(), "deleted stays deleted");
            let mut follower = broker.subscribe(&pattern("v"), From::Beginning).unwrap();
            assert_eq!(text(&broker, "v", "after").first, Seq(1));
            assert_eq!(bodies(&drain(&mut follower)), ["after"]);
        }
    }
}
