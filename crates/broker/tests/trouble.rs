//! System trouble is a `PubSubError`, a refusal is a `Rejected`; the two never mix (A3, A4).

mod common;

use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::*;
use gapless_broker::{
    Atomic, Broker, BrokerState, Clock, FollowError, From, SubscribeError, SystemClock, TopicError,
    block_on,
};
use gapless_core::{Fate, Message, PubSubError, PublishOptions, RejectReason, Seq, TopicSettings};
use gapless_journal::faulty::{CrashKind, Times};

fn plain() -> PublishOptions {
    PublishOptions::default()
}

#[test]
fn a4_l5_a_failed_flush_poisons_and_later_calls_get_the_reason() {
    let world = World::new(1);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    text(&broker, "t", "safe");
    assert_eq!(broker.state(), BrokerState::Online);
    let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    assert_eq!(bodies(&drain(&mut follower)), ["safe"]);
    world.fs.fail_sync(1, ErrorKind::Other, Times::Once);
    let error = broker.publish(&name("t"), &Message::new("doubt"), &plain()).wait().unwrap_err();
    assert_eq!((error.clone(), error.fate()), (PubSubError::Poisoned, Fate::Unknown));
    assert_eq!(broker.state(), BrokerState::Error);
    // It was not visible, because it is unknown whether it is on the disk.
    assert!(now(&mut follower).is_none());
    // L5: later callers get the reason, and that nothing of theirs was begun.
    let failed = (PubSubError::JournalFailed, Fate::DidNotHappen);
    let error = broker.publish(&name("t"), &Message::new("late"), &plain()).wait().unwrap_err();
    assert_eq!((error.clone(), error.fate()), failed);
    let error = broker.commit(Atomic::new().set_cell("c", "v"), &plain()).wait().unwrap_err();
    assert_eq!((error.clone(), error.fate()), failed);
    assert_eq!(broker.cell(b"c"), None);
    let refused = broker.create_topic(&name("u"), TopicSettings::default());
    assert!(matches!(refused, Err(TopicError::System_(_))), "{refused:?}");
    assert!(broker.seal().is_err());
    let mut history = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    assert_eq!(bodies(&drain(&mut history)), ["safe"], "reading goes on");
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(
        broker.read(&name("t"), Seq(1)).unwrap().map(|m| body(&m.message)),
        Some("safe".into())
    );
    let last = broker.describe_topic(&name("t")).unwrap().next.0 - 1;
    assert_eq!(text(&broker, "t", "again").first, Seq(last + 1));
}

#[test]
fn a4_everybody_in_the_failed_flush_is_told_and_nobody_hangs() {
    within(PATIENCE, || {
        let world = World::new(2);
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let all: Vec<_> = (0..5)
            .map(|n| broker.publish(&name("t"), &Message::new(format!("{n}")), &plain()))
            .collect();
        world.fs.fail_write(1, ErrorKind::Other, Times::UntilDisarmed);
        broker.turn();
        for publishing in all {
            assert_eq!(block_on(publishing).unwrap_err(), PubSubError::Poisoned);
        }
        let asked = broker.latest(&name("t"), b"key");
        assert!(asked.is_ok(), "what was flushed before can be asked for: {asked:?}");
        assert!(broker.close().is_err());
    });
}

#[test]
fn a4_a_full_disk_is_trouble_until_there_is_room_and_nothing_accepted_is_lost() {
    let world = World::new(3);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    world.fs.set_capacity(Some(world.fs.used_bytes()));
    let mut waiting = Vec::new();
    let error = loop {
        let publishing = broker.publish(&name("t"), &Message::new(vec![0; 4000]), &plain());
        if publishing.is_accepted() {
            waiting.push(publishing);
            broker.turn();
            assert!(waiting.len() < 1000, "the disk is never full");
        } else {
            break publishing.wait().unwrap_err();
        }
    };
    assert_eq!((error.clone(), error.fate()), (PubSubError::StorageFull, Fate::DidNotHappen));
    assert!(broker.journal_stats().full);
    world.fs.set_capacity(None);
    broker.turn();
    let count = waiting.len() as u64;
    for publishing in waiting {
        accepted(publishing.wait().unwrap());
    }
    assert_eq!(text(&broker, "t", "room").first, Seq(count + 1));
    assert!(!broker.journal_stats().full);
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(count + 2));
}

#[test]
fn a3_a_busy_journal_is_queue_full_and_room_tells_when_to_try_again() {
    let world = World::new(4);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let message = Message::new(vec![0; 1000]);
    let mut waiting = Vec::new();
    loop {
        let publishing = broker.publish(&name("t"), &message, &plain());
        if !publishing.is_accepted() {
            assert_eq!(reason(publishing.wait().unwrap()), RejectReason::QueueFull);
            break;
        }
        waiting.push(publishing);
        assert!(waiting.len() < 1000, "memory is bounded");
    }
    let stats = broker.journal_stats();
    assert!(stats.waiting_bytes <= 64 * 1024, "{stats:?}");
    let mut room = pin!(broker.room());
    let mut context = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut context).is_pending());
    broker.turn();
    assert_eq!(room.as_mut().poll(&mut context), Poll::Ready(()));
    assert!(broker.publish(&name("t"), &message, &plain()).is_accepted());
    let count = waiting.len() as u64;
    for (n, publishing) in waiting.into_iter().enumerate() {
        assert_eq!(accepted(publishing.wait().unwrap()).first, Seq(n as u64 + 1));
    }
    broker.turn();
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(count + 2));
}

#[test]
fn f3_publishers_that_wait_for_room_all_get_through() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let message = Message::new(vec![0; 8000]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = None;
                    for _ in 0..100 {
                        loop {
                            let publishing = broker.publish(&name("t"), &message, &plain());
                            if publishing.is_accepted() {
                                last = Some(publishing);
                                break;
                            }
                            block_on(broker.room());
                        }
                    }
                    last.unwrap().wait().unwrap();
                });
            }
        });
        assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(401));
        broker.close().unwrap();
    });
}

#[test]
fn a4_a_closed_broker_answers_every_verb_with_trouble() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("d"), TopicSettings::default()).unwrap();
        broker.create_topic(&name("v"), volatile()).unwrap();
        text(&broker, "d", "x");
        let followers = ["d", "v", ">", "subject"].map(|of| {
            let mut follower = broker.subscribe(&pattern(of), From::Now).unwrap();
            until_live(&mut follower);
            // Each waits in a thread of its own when the broker closes.
            std::thread::spawn(move || step(&mut follower))
        });
        let ready = |broker: &Broker| {
            broker
                .subscribers()
                .iter()
                .filter(|each| each.state == gapless_broker::SubscriberState::Online)
                .count()
        };
        until("all are online", || ready(&broker) == 4);
        let handle = broker.clone();
        broker.close().unwrap();
        for follower in followers {
            let ended = follower.join().unwrap();
            assert!(matches!(ended, Err(FollowError::Closed)), "{ended:?}");
        }
        assert_eq!(handle.state(), BrokerState::Error);
        for topic in ["d", "v", "subject"] {
            let careless = PublishOptions { require_subscribers: Some(false), ..plain() };
            let error = handle.publish(&name(topic), &Message::new("x"), &careless).wait();
            assert_eq!(error.unwrap_err(), PubSubError::Stopped, "{topic}");
        }
        let soon = SystemClock::default().now().after(Duration::from_secs(60));
        let later = Message::new("x").with_not_before(soon);
        let error = handle.publish(&name("d"), &later, &plain()).wait();
        assert_eq!(error.unwrap_err(), PubSubError::Stopped);
        let error = handle.commit(Atomic::new().set_cell("c", "v"), &plain()).wait();
        assert_eq!(error.unwrap_err(), PubSubError::Stopped);
        for settings in [TopicSettings::default(), volatile()] {
            let made = handle.create_topic(&name("new"), settings);
            assert!(matches!(made, Err(TopicError::System_(PubSubError::Stopped))), "{made:?}");
        }
        let subscribed = handle.subscribe(&pattern("d"), From::Now).map(drop);
        assert!(matches!(subscribed, Err(SubscribeError::Closed)), "{subscribed:?}");
        block_on(handle.room());
    });
}
