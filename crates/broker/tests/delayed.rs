//! Delayed messages: kept until they are due, published exactly once (design section 1).

mod common;

use std::io::ErrorKind;
use std::time::Duration;

use common::*;
use gapless_broker::{Broker, Clock, From, SystemClock, block_on};
use gapless_core::{
    Message, Position, PublishAck, PublishOptions, RejectReason, Seq, Timestamp, TopicSettings,
    TotalLimit,
};
use gapless_journal::faulty::{CrashKind, Times};

fn after(ms: u64) -> Timestamp {
    START.after(Duration::from_millis(ms))
}

fn later(body: &str, ms: u64) -> Message {
    Message::new(body.to_owned()).with_not_before(after(ms))
}

fn schedule(broker: &Broker, topic: &str, message: &Message) -> Position {
    match broker
        .publish(&name(topic), message, &PublishOptions::default())
        .wait()
        .expect("the store is well")
    {
        PublishAck::Scheduled { id, due } => {
            assert_eq!(Some(due), message.not_before);
            id
        }
        other => panic!("{other:?}"),
    }
}

fn all_of(broker: &Broker, topic: &str) -> Vec<String> {
    let mut follower =
        broker.subscribe(&pattern(topic), From::Beginning).expect("the store is well");
    bodies(&drain(&mut follower))
}

/// Lets the keeper publish what is due, and flushes that.
fn turn(broker: &Broker) {
    broker.turn();
    broker.turn();
}

#[test]
fn f2_a_delayed_message_appears_once_when_it_is_due_whatever_ends_in_between() {
    for end in 0..5 {
        let world = World::new(end);
        let mut broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let message = later("x", 1000).with_key("k").with_header("h", "v").with_id("id");
        schedule(&broker, "t", &message);
        assert_eq!(broker.delayed_len(), 1);
        let again = |broker: Broker| match end {
            0 => broker,
            1 => world.close(broker),
            2 => world.crash(broker, CrashKind::Power),
            3 => {
                broker.seal().unwrap();
                world.crash(broker, CrashKind::Process)
            }
            _ => {
                broker.compact().unwrap();
                world.close(broker)
            }
        };
        broker = again(broker);
        world.advance(999);
        turn(&broker);
        assert_eq!((all_of(&broker, "t").len(), broker.delayed_len()), (0, 1));
        broker = again(broker);
        world.advance(1);
        turn(&broker);
        assert_eq!(broker.delayed_len(), 0, "end {end}");
        broker = again(broker);
        turn(&broker);
        let found = broker.read(&name("t"), Seq(1)).unwrap().unwrap();
        assert_eq!(found.message, Message { not_before: None, ..message });
        assert_eq!(all_of(&broker, "t"), ["x"], "end {end}");
    }
}

#[test]
fn a_delayed_messages_come_in_the_order_of_their_time_and_get_their_seq_only_then() {
    let world = World::new(10);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    for (body, ms) in [("c", 300), ("a", 100), ("b1", 200), ("b2", 200)] {
        schedule(&broker, "t", &later(body, ms));
    }
    assert_eq!(text(&broker, "t", "at once").first, Seq(1));
    world.advance(250);
    turn(&broker);
    assert_eq!(all_of(&broker, "t"), ["at once", "a", "b1", "b2"]);
    world.advance(250);
    turn(&broker);
    assert_eq!(all_of(&broker, "t"), ["at once", "a", "b1", "b2", "c"]);
    // What is due already is not delayed.
    let ack = publish(&broker, "t", &later("past", 1));
    assert_eq!(ack.first, Seq(6));
}

#[test]
fn a_delayed_message_can_be_cancelled_until_it_is_due() {
    let world = World::new(11);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    assert!(!drive(&broker, broker.cancel_delayed(Position(1))).unwrap());
    let ids = [100, 200, 300].map(|ms| schedule(&broker, "t", &later(&ms.to_string(), ms)));
    assert_eq!(broker.delayed_topic(ids[1]).unwrap(), Some(name("t")));
    assert!(drive(&broker, broker.cancel_delayed(ids[1])).unwrap());
    assert_eq!(broker.delayed_topic(ids[1]).unwrap(), None);
    assert!(!drive(&broker, broker.cancel_delayed(ids[1])).unwrap());
    broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.delayed_len(), 2);
    world.advance(1000);
    turn(&broker);
    assert!(!drive(&broker, broker.cancel_delayed(ids[0])).unwrap());
    assert_eq!(all_of(&broker, "t"), ["100", "300"]);
}

#[test]
fn f2_a_message_is_either_cancelled_or_published_never_both() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let clock = SystemClock::default();
        let mut cancelled = 0;
        const COUNT: usize = 200;
        for n in 0..COUNT {
            let due = clock.now().after(Duration::from_millis(2 + n as u64 % 3));
            let message = Message::new("x").with_not_before(due);
            let ack = broker.publish(&name("t"), &message, &PublishOptions::default()).wait();
            let id = match ack.unwrap() {
                PublishAck::Scheduled { id, .. } => id,
                // The thread was away for so long that it was due at once.
                PublishAck::Accepted(_) => continue,
                other => panic!("{other:?}"),
            };
            until("it is due", || clock.now() >= due);
            cancelled += usize::from(block_on(broker.cancel_delayed(id)).unwrap());
        }
        until("none waits", || broker.delayed_len() == 0);
        broker.flush();
        let published = broker.describe_topic(&name("t")).unwrap().next.0 - 1;
        assert_eq!(published as usize + cancelled, COUNT);
        broker.close().unwrap();
    });
}

#[test]
fn a_time_to_live_counts_from_when_the_message_appears() {
    let world = World::new(12);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let ttl = Duration::from_millis(50);
    schedule(&broker, "t", &later("x", 1000).with_ttl(ttl));
    world.advance(1000);
    turn(&broker);
    assert_eq!(all_of(&broker, "t"), ["x"]);
    assert_eq!(broker.read(&name("t"), Seq(1)).unwrap().unwrap().message.ttl, Some(ttl));
    world.advance(50);
    assert_eq!(all_of(&broker, "t"), [""; 0]);
}

#[test]
fn a_scheduled_twice_with_one_id_appears_once_and_ids_of_two_topics_are_two() {
    let world = World::new(13);
    let broker = world.open();
    broker.create_topics(&[name("t"), name("u")], TopicSettings::default()).unwrap();
    let message = later("x", 100).with_id("id");
    let first = schedule(&broker, "t", &message);
    assert_eq!(schedule(&broker, "t", &message), first);
    assert_ne!(schedule(&broker, "u", &message), first);
    world.advance(100);
    turn(&broker);
    assert_eq!((all_of(&broker, "t"), all_of(&broker, "u")), (vec!["x".into()], vec!["x".into()]));
    assert!(publish(&broker, "t", &Message::new("x").with_id("id")).duplicate);
}

#[test]
fn f3_headers_of_the_broker_cannot_be_forged() {
    let world = World::new(14);
    let broker = world.open();
    broker.create_topics(&[name("t"), name("secret")], TopicSettings::default()).unwrap();
    let forged = later("x", 100).with_header("gapless-delayed-topic", "secret");
    let refused = refusal(&broker, "t", &forged, &PublishOptions::default());
    assert_eq!(refused, RejectReason::InvalidPayload);
    assert_eq!(broker.delayed_len(), 0);
}

#[test]
fn f3_delayed_messages_are_bounded_in_number_and_time() {
    let mut world = World::new(15);
    world.options.limits.delayed_max = 2;
    world.options.limits.delay_max = Duration::from_secs(10);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let plain = PublishOptions::default();
    let far = refusal(&broker, "t", &later("x", 10_001), &plain);
    assert_eq!(far, RejectReason::InvalidPayload);
    let ids = ["a", "b"].map(|body| schedule(&broker, "t", &later(body, 10_000)));
    assert_eq!(
        refusal(&broker, "t", &later("c", 1), &plain),
        RejectReason::LimitReached { limit: TotalLimit::Delayed, max: 2 }
    );
    assert!(drive(&broker, broker.cancel_delayed(ids[0])).unwrap());
    schedule(&broker, "t", &later("c", 1));
}

#[test]
fn f3_a_delayed_message_whose_topic_is_gone_or_refuses_it_is_dropped_with_an_event() {
    let world = World::new(16);
    let broker = world.open();
    broker.create_topics(&[name("gone"), name("narrow")], TopicSettings::default()).unwrap();
    schedule(&broker, "gone", &later("x", 100));
    schedule(&broker, "narrow", &later("too long", 100));
    broker.delete_topic(&name("gone")).unwrap();
    let narrow = TopicSettings { max_message_bytes: Some(3), ..TopicSettings::default() };
    broker.configure_topic(&name("narrow"), narrow).unwrap();
    let mut events = broker.subscribe(&pattern("$events.delayed.*"), From::Now).unwrap();
    drain(&mut events);
    world.advance(100);
    turn(&broker);
    assert_eq!(broker.delayed_len(), 0, "it must not be tried for ever");
    let told = bodies(&drain(&mut events));
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("\"topic\":\"gone\"") && told[1].contains("\"topic\":\"narrow\""));
}

#[test]
fn f3_many_that_are_due_while_nothing_can_be_written_wait_without_a_hang() {
    within(PATIENCE, || {
        let world = World::new(17);
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        for n in 0..600 {
            schedule(&broker, "t", &later(&format!("{n} {}", "x".repeat(500)), 100));
            broker.turn();
        }
        world.advance(100);
        // More is due than fits into what may wait: the rest follows turn by turn.
        for _ in 0..50 {
            broker.turn();
        }
        assert_eq!((broker.delayed_len(), all_of(&broker, "t").len()), (0, 600));

        for _ in 0..300 {
            schedule(&broker, "t", &later("y", 200));
        }
        world.fs.fail_sync(1, ErrorKind::Other, Times::UntilDisarmed);
        world.advance(100);
        turn(&broker);
        let broker = world.crash(broker, CrashKind::Power);
        turn(&broker);
        turn(&broker);
        assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(901));
    });
}

#[test]
fn f2_messages_delayed_by_many_threads_at_once_all_appear() {
    within(PATIENCE, || {
        for _ in 0..10 {
            let folder = tempfile::tempdir().unwrap();
            let broker = Broker::open(on_disk(folder.path())).unwrap();
            broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
            let due = SystemClock::default().now().after(Duration::from_millis(20));
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        let message = Message::new("x").with_not_before(due);
                        broker
                            .publish(&name("t"), &message, &PublishOptions::default())
                            .wait()
                            .unwrap();
                    });
                }
            });
            until("all appear", || broker.describe_topic(&name("t")).unwrap().next == Seq(9));
            broker.close().unwrap();
        }
    });
}
