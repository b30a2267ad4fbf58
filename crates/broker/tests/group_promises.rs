//! What a group says of itself holds: how durable its acks are, that dead letters are there
//! once they were confirmed, and how much is left to do.

mod common;

use std::task::{Context, Poll, Waker};

use common::*;
use gapless_broker::{Atomic, Broker, Handed, Join, LetterFilter, Member};
use gapless_core::{
    Durability, GroupSettings, Lease, Message, Position, PublishOptions, Seq, TopicSettings,
};
use gapless_journal::faulty::CrashKind;

/// Joins `g` and takes what there is.
fn holder(broker: &Broker) -> (Member, Vec<Lease>) {
    let join = Join { name: "m".to_owned(), window: 100 };
    let mut member = broker.join_group(&name("g"), &join).expect("the group is there");
    let mut leases = Vec::new();
    while let Poll::Ready(handed) = member.poll_next(&mut Context::from_waker(Waker::noop())) {
        if let Handed::Messages(leased) = handed.expect("the group is there") {
            leases.extend_from_slice(leased.leases());
        }
    }
    (member, leases)
}

#[test]
fn v4_an_ack_in_an_atomic_step_is_as_durable_as_the_group_asks() {
    let mut world = World::new(1);
    world.options.defaults.durability = Durability::Memory;
    let broker = world.open();
    for topic in ["t", "out"] {
        broker.create_topic(&name(topic), TopicSettings::default()).expect("there is room");
    }
    broker.create_group(&name("g"), GroupSettings::new(pattern("t"))).expect("there is room");
    texts(&broker, "t", 1..=4);
    broker.flush();
    let (member, leases) = holder(&broker);
    let leases: Vec<Lease> = leases
        .iter()
        .flat_map(|lease| (lease.first.0..=lease.last.0).map(|at| (at, lease.attempt)))
        .map(|(at, attempt)| Lease { first: Position(at), last: Position(at), attempt })
        .collect();
    assert_eq!(leases.len(), 4);
    let careless =
        PublishOptions { durability: Some(Durability::Memory), ..PublishOptions::default() };
    let handle = member.handle();
    let steps = [
        (Atomic::new().ack(&handle, &leases[..1]), PublishOptions::default()),
        (Atomic::new().set_cell("c", "v").ack(&handle, &leases[1..2]), careless),
        (
            Atomic::new().publish(&name("out"), &[Message::new("o")]).ack(&handle, &leases[2..3]),
            careless,
        ),
    ];
    for (step, options) in steps {
        let ack = accepted(broker.commit(step, &options).wait().expect("the broker is well"));
        assert_eq!(ack.durability, Durability::Flushed, "it is the group's");
    }
    world.fs.crash(CrashKind::Power);
    drop((handle, member, broker));
    let broker = world.open();
    let (_member, again) = holder(&broker);
    assert_eq!(again.iter().map(Lease::count).sum::<u64>(), 1, "what was acked comes not again");
}

#[test]
fn o5_what_was_terminated_is_a_dead_letter_once_that_is_confirmed() {
    let world = World::new(2);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    broker.create_group(&name("g"), GroupSettings::new(pattern("t"))).expect("there is room");
    texts(&broker, "t", 1..=5);
    let (member, leases) = holder(&broker);
    // No turn of the keeper in between.
    member.terminate(&leases, "never").wait().expect("the broker is well");
    assert_eq!(broker.describe_group(&name("g")).expect("g is there").dead_letters, 5);
    let redriven = broker.redrive(&name("g"), &LetterFilter::all(), None).expect("there is room");
    assert_eq!(redriven.moved, 5);
    let (member, leases) = holder(&broker);
    member.terminate(&leases, "never").wait().expect("the broker is well");
    let letters = broker.dead_letters(&name("g"), Seq(1), 10).expect("g is there");
    assert_eq!(letters.len(), 5);
    let removed = broker.remove_dead_letters(&name("g"), &LetterFilter::all());
    assert_eq!(removed.expect("there is room"), 5);
    assert_eq!(broker.list_groups()[0].dead_letters, 0);
}

/// Every byte of a segment's index is damaged in turn: whatever becomes of reading, nobody is
/// told that nothing is left to do.
#[test]
fn m2_a_group_over_damaged_history_is_not_caught_up() {
    let mut world = World::new(3);
    world.options.journal.tail_bytes = 1;
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    texts(&broker, "t", 1..=20);
    broker.create_group(&name("g"), GroupSettings::new(pattern("t"))).expect("there is room");
    broker.seal().expect("there is room");
    broker.close().expect("the store closes");
    let is_index = |path: &std::path::Path| path.extension().is_some_and(|end| end == "index");
    let files = world.fs.files();
    let (index, bytes) = files.iter().find(|(path, _)| is_index(path)).expect("it was sealed");
    let whole = world.fs.dump(index).expect("it is there");
    let mut unreadable = 0;
    for at in 0..*bytes {
        world.fs.flip_bit(index, at, 0);
        if let Ok(broker) = Broker::open(world.options.clone()) {
            let info = broker.describe_group(&name("g")).expect("g is there");
            assert!(info.lag > 0, "byte {at}: {info:?}");
            assert!(!info.why.contains("caught up"), "byte {at}: {}", info.why);
            if !info.lag_exact {
                unreadable += 1;
                assert!(info.why.contains("cannot be read"), "byte {at}: {}", info.why);
            }
            broker.close().expect("the store closes");
        }
        world.fs.overwrite(index, 0, &whole);
    }
    assert!(unreadable > 0, "some damage cannot be read over");
}

#[test]
fn a_group_whose_source_matches_nothing_says_so() {
    let world = World::new(4);
    let broker = world.open();
    for (group, source) in [("g", "nosuch"), ("h", "no.*")] {
        let made = broker.create_group(&name(group), GroupSettings::new(pattern(source)));
        let told = made.expect("there is room").why;
        assert_eq!(told, format!("No topic matches {source} yet."));
    }
    broker.create_topic(&name("nosuch"), TopicSettings::default()).expect("there is room");
    let info = broker.describe_group(&name("g")).expect("g is there");
    assert!(info.why.contains("caught up"), "{}", info.why);
}
