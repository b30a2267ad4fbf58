//! A broker on a full disk: what lets something go passes, gives its room back, and then
//! publishing goes on; and no call waits for an answer meanwhile.

mod common;

use std::future::Future;
use std::time::Duration;

use common::*;
use gapless_broker::{Broker, TopicError};
use gapless_core::{GroupSettings, Retention};
use gapless_core::{
    Message, Position, PubSubError, PublishAck, PublishOptions, Seq, TopicSettings,
};
use gapless_journal::faulty::CrashKind;

fn plain() -> PublishOptions {
    PublishOptions::default()
}

/// Publishes to `topics` in turn until the disk is full. Each publish has its answer.
fn fill_up(broker: &Broker, topics: &[&str]) {
    for n in 0..5000 {
        let topic = name(topics[n % topics.len()]);
        let publishing = broker.publish(&topic, &Message::new(vec![b'x'; 3000]), &plain());
        broker.turn();
        match now_of(publishing).expect("each has its answer at once") {
            Ok(PublishAck::Accepted(_)) => {}
            Ok(PublishAck::Rejected(gapless_core::RejectReason::QueueFull)) => {}
            // The turn may have made room.
            Err(PubSubError::StorageFull) if broker.journal_stats().full => return,
            Err(PubSubError::StorageFull) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("the disk is never full");
}

/// What a publish came to, if it is known.
fn now_of(publishing: gapless_broker::Publishing) -> Option<Result<PublishAck, PubSubError>> {
    let mut publishing = std::pin::pin!(publishing);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match publishing.as_mut().poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

/// A broker with topics a and b, a group with a dead letter and a delayed message, on a disk
/// that a and b have filled.
fn full(world: &World) -> (Broker, Position) {
    let broker = world.open();
    for topic in ["a", "b", "c"] {
        broker.create_topic(&name(topic), TopicSettings::default()).expect("the store is well");
    }
    let settings = GroupSettings::new(pattern("c"));
    broker.create_group(&name("g"), settings).expect("the store is well");
    let later = Message::new("later").with_not_before(broker.now().after(HOUR));
    let PublishAck::Scheduled { id, .. } =
        broker.publish(&name("c"), &later, &plain()).wait().expect("the store is well")
    else {
        panic!("it is scheduled");
    };
    broker.turn();
    world.fs.set_capacity(Some(world.fs.used_bytes() + 900 * 1024));
    fill_up(&broker, &["a", "b"]);
    assert!(broker.journal_stats().full);
    (broker, id)
}

const HOUR: Duration = Duration::from_secs(3600);

/// Lets the keeper do its work, then publishes, and sees that all of it is there after a crash.
fn goes_on(world: &World, broker: Broker) {
    (0..20).for_each(|_| broker.turn());
    assert!(!broker.journal_stats().full, "{} bytes used", world.fs.used_bytes());
    for _ in 0..20 {
        let publishing = broker.publish(&name("c"), &Message::new(vec![b'y'; 3000]), &plain());
        broker.turn();
        accepted(publishing.wait().expect("the store is well"));
    }
    let next = broker.describe_topic(&name("c")).expect("the store is well").next;
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.describe_topic(&name("c")).expect("the store is well").next, next);
}

#[test]
fn h4_purge_passes_and_gives_room_back() {
    let world = World::new(1);
    let (broker, _) = full(&world);
    let next = broker.describe_topic(&name("a")).unwrap().next;
    assert!(broker.purge(&name("a"), next).unwrap().is_some());
    goes_on(&world, broker);
}

#[test]
fn h4_deleting_a_topic_passes_and_gives_room_back() {
    let world = World::new(2);
    let (broker, _) = full(&world);
    broker.delete_topic(&name("a")).unwrap();
    goes_on(&world, broker);
}

#[test]
fn h4_shorter_retention_passes_and_gives_room_back() {
    let world = World::new(3);
    let (broker, _) = full(&world);
    let retention = Retention { bytes: Some(10_000), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    broker.configure_topic(&name("a"), settings).unwrap();
    goes_on(&world, broker);
}

#[test]
fn h4_other_deletions_pass_and_what_takes_room_does_not() {
    let world = World::new(4);
    let (broker, id) = full(&world);
    // To the last byte, also of the log's last file.
    world.fs.set_capacity(Some(world.fs.used_bytes()));
    loop {
        let cell = gapless_broker::Atomic::new().set_cell("cell", vec![b'z'; 2000]);
        match broker.commit(cell, &plain()).wait() {
            Ok(PublishAck::Accepted(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break assert_eq!(error, PubSubError::StorageFull),
        }
    }
    let durable = TopicSettings {
        durability: Some(gapless_core::Durability::Flushed),
        ..TopicSettings::default()
    };
    let refused = broker.configure_topic(&name("c"), durable);
    assert!(matches!(refused, Err(TopicError::System_(PubSubError::StorageFull))), "{refused:?}");
    let refused = broker.create_topic(&name("d"), TopicSettings::default());
    assert!(matches!(refused, Err(TopicError::System_(PubSubError::StorageFull))), "{refused:?}");
    let longer = Retention { age: Some(HOUR), ..Retention::default() };
    let settings = TopicSettings { retention: longer, ..TopicSettings::default() };
    broker.configure_topic(&name("c"), settings).unwrap();
    // Nothing flushes here but turns.
    let mut cancelling = Box::pin(broker.cancel_delayed(id));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(cancelling.as_mut().poll(&mut context).is_pending());
    broker.turn();
    let cancelled = cancelling.as_mut().poll(&mut context);
    assert!(matches!(cancelled, std::task::Poll::Ready(Ok(true))), "{cancelled:?}");
    drop(cancelling);
    broker.delete_group(&name("g")).unwrap();
    let removed = broker.commit(gapless_broker::Atomic::new().remove_cell("cell"), &plain());
    assert!(removed.wait().is_ok());
    broker.purge(&name("a"), Seq(10)).unwrap();
    // Segments go as a whole: there is no room to write what is left of one.
    broker.delete_topic(&name("a")).unwrap();
    broker.delete_topic(&name("b")).unwrap();
    goes_on(&world, broker);
}
