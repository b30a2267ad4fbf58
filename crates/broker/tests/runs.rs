//! Single publishes that are joined into one batch: only their speed shows it.

mod common;

use common::*;
use gapless_broker::{Broker, From};
use gapless_core::{
    Accepted, Durability, Expect, Message, PublishOptions, Records, RecordsBuilder, Seq,
    TopicSettings,
};
use gapless_journal::faulty::CrashKind;
use proptest::prelude::*;

fn records(messages: &[Message]) -> Records {
    let mut records = RecordsBuilder::default();
    messages.iter().for_each(|message| records.push(message).expect("a good message"));
    records.finish()
}

fn run(broker: &Broker, topic: &str, messages: &[Message]) -> Vec<Accepted> {
    let publishing =
        broker.publish_run(&name(topic), records(messages), &PublishOptions::default());
    let acks =
        publishing.expect("all of them can be taken").wait_all().expect("the system is well");
    acks.into_iter().map(accepted).collect()
}

/// A few ids, so that some come twice; and none.
fn any_message() -> impl Strategy<Value = Message> {
    (0..12_u8, "[a-z]{0,8}").prop_map(|(id, body)| match id {
        0..6 => Message::new(body).with_id(format!("id-{id}")),
        6..9 => Message::new(body).with_key(format!("key-{id}")),
        _ => Message::new(body),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn f2_publishes_taken_together_get_the_acks_they_would_get_alone(
        runs in prop::collection::vec(prop::collection::vec(any_message(), 1..20), 1..6),
        is_volatile: bool,
    ) {
        let settings = if is_volatile { volatile() } else { TopicSettings::default() };
        let (together, alone) = (World::new(1).open(), World::new(2).open());
        for broker in [&together, &alone] {
            broker.create_topic(&name("t"), settings).unwrap();
        }
        for messages in &runs {
            let gathered = run(&together, "t", messages);
            let single: Vec<_> = messages.iter().map(|each| publish(&alone, "t", each)).collect();
            let numbers = |acks: &[Accepted]| -> Vec<_> {
                acks.iter().map(|ack| (ack.first, ack.last, ack.durability, ack.duplicate)).collect()
            };
            prop_assert_eq!(numbers(&gathered), numbers(&single));
        }
        let stored = |broker: &Broker| {
            let mut all = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
            let steps = drain(&mut all);
            (seqs(&steps), bodies(&steps))
        };
        prop_assert_eq!(stored(&together), stored(&alone));
    }
}

#[test]
fn f3_acks_of_a_run_name_places_at_which_a_follower_goes_on() {
    let world = World::new(3);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let messages: Vec<_> = (1..=5).map(|number| Message::new(format!("{number}"))).collect();
    let acks = run(&broker, "t", &messages);
    let broker = world.crash(broker, CrashKind::Power);
    for ack in acks {
        assert_eq!(ack.durability, Durability::Flushed);
        let position = ack.position;
        let token = gapless_core::Token { epoch: broker.epoch(), position };
        let mut rest = broker.subscribe(&pattern("t"), From::Token(token)).unwrap();
        let after: Vec<u64> = (ack.first.0 + 1..=5).collect();
        assert_eq!(seqs(&drain(&mut rest)), after);
    }
}

#[test]
fn a3_a_run_of_which_one_cannot_be_taken_changes_nothing_and_counts_nothing() {
    let world = World::new(4);
    let broker = world.open();
    let small = TopicSettings { max_message_bytes: Some(10), ..TopicSettings::default() };
    broker.create_topic(&name("t"), small).unwrap();
    let mut events = broker.subscribe(&pattern("$events.publish.>"), From::Now).unwrap();
    let plain = PublishOptions::default();
    let two = [Message::new("small"), Message::new("larger than it may be")];
    for topic in ["t", "nobody", "$own"] {
        assert!(broker.publish_run(&name(topic), records(&two), &plain).is_none(), "{topic}");
    }
    let expecting = PublishOptions { expect: Some(Expect::TopicLast(Seq(0))), ..plain };
    assert!(broker.publish_run(&name("t"), records(&two[..1]), &expecting).is_none());
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(1));
    assert_eq!(bodies(&drain(&mut events)), [""; 0]);
}
