//! A clock that jumps ahead for a while, or is set back: what is published after it is right
//! again, at once and over restarts.

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Broker, From};
use gapless_core::{Message, PublishOptions, Retention, Seq, Timestamp, TopicSettings};
use gapless_journal::faulty::CrashKind;

const DAY: u64 = 24 * 60 * 60 * 1000;
const YEARS: u64 = 10 * 365 * DAY;

/// A store that had a message stamped ten years ahead, and whose clock is right again.
fn after_the_jump(world: &World, settings: TopicSettings) -> Broker {
    let broker = world.open();
    broker.create_topic(&name("t"), settings).expect("the store is well");
    text(&broker, "t", "before");
    world.advance(YEARS);
    text(&broker, "t", "ahead");
    world.clock.set(Timestamp(START.0 + 1000));
    text(&broker, "t", "after");
    broker
}

fn time_of(broker: &Broker, seq: u64) -> u64 {
    broker.read(&name("t"), Seq(seq)).expect("the store is well").expect("it is there").time.0
}

#[test]
fn m1_times_are_right_again_after_a_jump_ahead_also_over_restarts() {
    let world = World::new(1);
    let broker = after_the_jump(&world, TopicSettings::default());
    assert_eq!(time_of(&broker, 2), START.0 + YEARS);
    assert_eq!(time_of(&broker, 3), START.0 + 1000);
    assert_eq!(broker.journal_stats().time_steps_back, 1, "it is counted");
    broker.seal().unwrap();
    let broker = world.crash(broker, CrashKind::Process);
    text(&broker, "t", "later");
    assert_eq!(time_of(&broker, 4), START.0 + 1000);
}

#[test]
fn m1_a_restart_while_the_clock_is_ahead_spoils_nothing() {
    let world = World::new(2);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    world.advance(YEARS);
    text(&broker, "t", "ahead");
    broker.close().unwrap();
    world.clock.set(START);
    let broker = world.open();
    text(&broker, "t", "after");
    assert_eq!(time_of(&broker, 2), START.0);
}

#[test]
fn m1_a_time_to_live_counts_from_the_right_time() {
    for back in [YEARS, 2 * DAY] {
        let world = World::new(3);
        world.advance(3 * DAY);
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        if back == YEARS {
            world.advance(YEARS);
        }
        text(&broker, "t", "first");
        let now = broker.now().0 - back;
        world.clock.set(Timestamp(now));
        let short = Message::new("short").with_ttl(Duration::from_secs(1));
        publish(&broker, "t", &short);
        assert!(broker.read(&name("t"), Seq(2)).unwrap().is_some());
        world.advance(1000);
        assert!(broker.read(&name("t"), Seq(2)).unwrap().is_none(), "after {back} ms back");
    }
}

#[test]
fn m1_retention_by_age_removes_what_is_old_behind_a_message_from_the_future() {
    for sealed in [false, true] {
        let world = World::new(4);
        let age = Some(Duration::from_millis(DAY));
        let retention = Retention { age, ..Retention::default() };
        let settings = TopicSettings { retention, ..TopicSettings::default() };
        let broker = world.open();
        broker.create_topic(&name("t"), settings).unwrap();
        world.advance(YEARS);
        text(&broker, "t", "ahead");
        world.clock.set(START);
        text(&broker, "t", "after");
        if sealed {
            broker.seal().unwrap();
        }
        broker.turn();
        world.advance(DAY / 2);
        text(&broker, "t", "young");
        broker.turn();
        assert_eq!(
            broker.describe_topic(&name("t")).unwrap().first,
            Seq(1),
            "nothing is a day old"
        );
        world.advance(DAY / 2 + 1);
        broker.turn();
        let info = broker.describe_topic(&name("t")).unwrap();
        assert_eq!((info.first, info.next), (Seq(3), Seq(4)), "sealed: {sealed}");
        world.advance(DAY);
        broker.turn();
        assert_eq!(broker.describe_topic(&name("t")).unwrap().first, Seq(4));
    }
}

#[test]
fn m1_look_ups_by_time_pass_over_what_a_wrong_clock_stamped() {
    for sealed in [false, true] {
        let world = World::new(5);
        let broker = after_the_jump(&world, TopicSettings::default());
        if sealed {
            broker.seal().unwrap();
        }
        let from = From::Time(Timestamp(START.0 + 500));
        let mut follower = broker.subscribe(&pattern("t"), from).unwrap();
        assert_eq!(bodies(&drain(&mut follower)), ["after"], "sealed: {sealed}");
        let from = From::Time(Timestamp(START.0 + YEARS));
        let mut follower = broker.subscribe(&pattern("t"), from).unwrap();
        assert_eq!(bodies(&drain(&mut follower)), ["ahead", "after"]);
    }
}

#[test]
fn m1_ids_are_remembered_as_long_as_the_window_says() {
    let world = World::new(6);
    let broker = after_the_jump(&world, TopicSettings::default());
    let window = TopicSettings::default().dedup.time;
    let once = Message::new("once").with_id("id");
    let first = publish(&broker, "t", &once);
    assert!(publish(&broker, "t", &once).duplicate);
    world.clock.advance(window + Duration::from_millis(1));
    let again = publish(&broker, "t", &once);
    assert!(!again.duplicate && again.first > first.first);
}

#[test]
fn m1_delayed_messages_come_when_the_clock_says_so() {
    let world = World::new(7);
    let broker = after_the_jump(&world, TopicSettings::default());
    let due = broker.now().after(Duration::from_secs(10));
    let later = Message::new("later").with_not_before(due);
    broker.publish(&name("t"), &later, &PublishOptions::default()).wait().unwrap();
    world.advance(9_999);
    broker.turn();
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(4));
    world.advance(1);
    // The first may only find that the log needs another file.
    (0..2).for_each(|_| broker.turn());
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(5));
}

#[test]
fn m1_a_small_step_back_leaves_times_in_order() {
    let world = World::new(8);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    world.advance(30_000);
    text(&broker, "t", "1");
    world.clock.set(START);
    text(&broker, "t", "2");
    assert_eq!((time_of(&broker, 1), time_of(&broker, 2)), (START.0 + 30_000, START.0 + 30_000));
    assert_eq!(broker.journal_stats().time_steps_back, 0);
}
