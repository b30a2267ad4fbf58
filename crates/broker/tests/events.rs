//! What the broker says about itself on `$events.>` (A11): each kind with its fields.

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{Broker, From, Subscription};
use gapless_core::{Message, PublishOptions, Seq, TopicSettings};
use serde_json::Value;

struct Events(Subscription);

impl Events {
    fn of(broker: &Broker, kinds: &str) -> Self {
        let mut events = broker.subscribe(&pattern(kinds), From::Now).expect("the store is well");
        drain(&mut events);
        Self(events)
    }

    /// What was said since the last time, as subject and fields.
    fn said(&mut self) -> Vec<(String, Value)> {
        let all = drain(&mut self.0);
        let told = all.iter().filter_map(messages_of).map(|messages| {
            let message = messages.iter().next().expect("an event has a body").message;
            let value: Value = serde_json::from_str(&body(&message)).expect("it is JSON");
            let kind = messages.topic().as_str().strip_prefix("$events.").expect("its subject");
            assert_eq!(value["event"], kind);
            assert_eq!(value["time_ms"].as_u64().map(|ms| ms >= START.0), Some(true));
            (kind.to_owned(), value)
        });
        told.collect()
    }

    /// The one thing of this kind that was said since the last time.
    fn one(&mut self, kind: &str) -> Value {
        let said = self.said();
        let mut of_kind = said.iter().filter(|(each, _)| each == kind);
        let first = of_kind.next().unwrap_or_else(|| panic!("no {kind} in {said:?}"));
        assert!(of_kind.next().is_none(), "more than one {kind} in {said:?}");
        first.1.clone()
    }
}

#[test]
fn a11_the_life_of_a_topic_is_told() {
    let world = World::new(1);
    let broker = world.open();
    let mut events = Events::of(&broker, "$events.topic.*");
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    assert_eq!(events.one("topic.created")["topic"], "t");
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    assert!(events.said().is_empty(), "it was there already");
    let narrow = TopicSettings { max_message_bytes: Some(9), ..TopicSettings::default() };
    broker.configure_topic(&name("t"), narrow).unwrap();
    assert_eq!(events.one("topic.configured")["topic"], "t");
    broker.configure_topic(&name("t"), narrow).unwrap();
    assert!(events.said().is_empty(), "nothing was changed");
    texts(&broker, "t", 1..=3);
    broker.purge(&name("t"), Seq(3)).unwrap();
    let trimmed = events.one("topic.trimmed");
    assert_eq!(
        (&trimmed["topic"], &trimmed["from"], &trimmed["to"]),
        (&"t".into(), &1.into(), &2.into())
    );
    assert_eq!(trimmed["reason"], "purge");
    broker.delete_topic(&name("t")).unwrap();
    assert_eq!(events.one("topic.deleted")["topic"], "t");
}

#[test]
fn a11_every_publish_is_told_accepted_or_rejected() {
    let world = World::new(2);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let mut events = Events::of(&broker, "$events.publish.*");
    let batch = [Message::new("1"), Message::new("2")];
    broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
    let told = events.one("publish.accepted");
    assert_eq!(
        (&told["topic"], &told["first"], &told["last"]),
        (&"t".into(), &1.into(), &2.into())
    );
    refusal(&broker, "t", &Message::default(), &PublishOptions::default());
    let told = events.one("publish.rejected");
    assert_eq!((&told["topic"], &told["reason"]), (&"t".into(), &"InvalidPayload".into()));
    refusal(&broker, "nobody", &Message::new("x"), &PublishOptions::default());
    assert_eq!(events.one("publish.rejected")["reason"], "UnknownTopic");
    // Volatile ones too: a subject, and a topic in memory.
    broker.create_topic(&name("v"), volatile()).unwrap();
    text(&broker, "v", "x");
    assert_eq!(events.one("publish.accepted")["topic"], "v");
    // A journal that takes nothing now is a refusal like others.
    while broker
        .publish(&name("t"), &Message::new(vec![0; 900]), &PublishOptions::default())
        .is_accepted()
    {}
    let said = events.said();
    let (kind, last) = said.last().unwrap();
    assert_eq!((kind.as_str(), &last["reason"]), ("publish.rejected", &"QueueFull".into()));
}

#[test]
fn a11_subscriptions_recoveries_and_gaps_are_told() {
    let mut world = World::new(3);
    world.options.journal.tail_bytes = 0;
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=9);
    broker.seal().unwrap();
    broker.purge(&name("t"), Seq(4)).unwrap();
    let mut events = Events::of(&broker, "$events.>");
    events.said();
    let mut follower = broker.subscribe(&pattern("t"), From::Seq(Seq(1))).unwrap();
    let id: Value = follower.id().into();
    let told = events.one("subscription.added");
    assert_eq!((&told["subscriber"], &told["pattern"]), (&id, &"t".into()));
    drain(&mut follower);
    let said = events.said();
    let kinds: Vec<&str> = said.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["delivery.gap", "recovery.started", "recovery.done"]);
    let gap = &said[0].1;
    assert_eq!((&gap["from"], &gap["to"], &gap["reason"]), (&1.into(), &3.into(), &"purge".into()));
    assert_eq!((&gap["subscriber"], &gap["topic"]), (&id, &"t".into()));
    let started = &said[1].1;
    assert_eq!((&started["from"], &started["to"]), (&4.into(), &9.into()));
    assert_eq!((&said[2].1["subscriber"], &said[2].1["pattern"]), (&id, &"t".into()));
    drop(follower);
    assert_eq!(events.one("subscription.removed")["subscriber"], id);
}

#[test]
fn a11_what_the_keeper_does_is_told() {
    let world = World::new(4);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let mut events = Events::of(&broker, "$events.journal.*");
    let mut kinds = std::collections::BTreeSet::new();
    for n in 0..200 {
        text(&broker, "t", format!("{n:>1000}"));
        broker.turn();
        kinds.extend(events.said().into_iter().map(|(kind, _)| kind));
    }
    broker.purge(&name("t"), Seq(190)).unwrap();
    broker.turn();
    kinds.extend(events.said().into_iter().map(|(kind, _)| kind));
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["journal.collected", "journal.sealed"]);
}

#[test]
fn a11_a_delayed_message_without_a_topic_is_told() {
    let world = World::new(5);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let mut events = Events::of(&broker, "$events.delayed.>");
    let later = Message::new("x").with_not_before(START.after(Duration::from_millis(10)));
    broker.publish(&name("t"), &later, &PublishOptions::default()).wait().unwrap();
    broker.delete_topic(&name("t")).unwrap();
    world.advance(10);
    broker.turn();
    let told = events.one("delayed.dropped");
    assert_eq!((&told["topic"], &told["reason"]), (&"t".into(), &"UnknownTopic".into()));
}

#[test]
fn a11_events_are_only_for_those_who_ask_for_them() {
    let world = World::new(6);
    let broker = world.open();
    let mut all = broker.subscribe(&pattern(">"), From::Now).unwrap();
    let mut some = broker.subscribe(&pattern("$events.topic.created"), From::Now).unwrap();
    drain(&mut all);
    drain(&mut some);
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    broker.delete_topic(&name("t")).unwrap();
    assert!(drain(&mut all).is_empty());
    assert_eq!(drain(&mut some).len(), 1);
}

#[test]
fn a11_what_became_of_a_publish_with_a_report_is_told() {
    let world = World::new(8);
    let broker = world.open();
    let mut events = Events::of(&broker, "$events.delivery.*");
    let mut first = broker.subscribe(&pattern("s"), From::Now).expect("a subscription");
    let second = broker.subscribe(&pattern("s"), From::Now).expect("a subscription");
    let asks = PublishOptions { report: true, ..PublishOptions::default() };
    broker.publish(&name("s"), &Message::new("x"), &asks).wait().unwrap();
    drain(&mut first);
    assert!(events.said().is_empty(), "one has not taken it yet");
    drop(second);
    let told = events.one("delivery.failed");
    assert_eq!((&told["topic"], &told["delivered"]), (&"s".into(), &1.into()));
    assert_eq!(told["failed"]["subscriber-unreachable"], 1);
    broker.publish(&name("s"), &Message::new("x"), &asks).wait().unwrap();
    drain(&mut first);
    let told = events.one("delivery.done");
    assert_eq!((&told["topic"], &told["delivered"]), (&"s".into(), &1.into()));
    // A publish that is refused was delivered to none, which is told as a refusal only.
    refusal(&broker, "nobody", &Message::new("x"), &asks);
    assert!(events.said().is_empty());
}
