//! What a group says of itself holds: how durable its acks are, that dead letters are there
//! once they were confirmed, and how much is left to do.

mod common;

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::*;
use gapless_broker::{Atomic, Broker, Handed, Join, LetterFilter, Member};
use gapless_core::{
    Durability, GroupSettings, GroupStart, Lease, Message, Mode, Position, PublishOptions,
    RejectReason, Seq, TopicSettings,
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

/// The next messages of a member, by their bodies, and what to ack them by.
fn handed(member: &mut Member) -> (Vec<String>, Vec<Lease>) {
    loop {
        match member.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Handed::Messages(leased))) => {
                let bodies = leased.messages().iter().map(|each| body(&each.message)).collect();
                return (bodies, leased.leases().to_vec());
            }
            Poll::Ready(other) => drop(other.expect("the group is there")),
            Poll::Pending => return (Vec::new(), Vec::new()),
        }
    }
}

/// Says that it did what it had before, while that is leased to it again and not handed out.
fn says_too_late(broker: &Broker, member: &Member, stale: &[Lease]) {
    let step = Atomic::new().set_cell("c", "v").ack(&member.handle(), stale);
    let told = broker.commit(step, &PublishOptions::default()).wait();
    assert_eq!(reason(told.expect("the broker is well")), RejectReason::LeaseLost);
    for acking in [member.ack(stale), member.nack(stale, None, "no"), member.terminate(stale, "no")]
    {
        let outcome = acking.wait().expect("the broker is well");
        assert_eq!((outcome.taken, outcome.refused), (0, 1), "it was not handed out yet");
    }
}

/// Found by bursts of calls: the ack of a lease from before the reset counted for the same lease
/// after it, and then the message was handed out all the same.
#[test]
fn an_ack_from_before_a_reset_does_not_count_for_what_is_handed_out_after_it() {
    let world = World::new(7);
    let broker = world.open();
    for topic in ["t", "u"] {
        broker.create_topic(&name(topic), TopicSettings::default()).expect("there is room");
        text(&broker, topic, topic);
    }
    let settings =
        GroupSettings { start: GroupStart::Beginning, ..GroupSettings::new(pattern(">")) };
    broker.create_group(&name("g"), settings).expect("there is room");
    let join = Join { name: "m".to_owned(), window: 100 };
    let mut member = broker.join_group(&name("g"), &join).expect("g is there");
    assert_eq!(handed(&mut member).0, ["t"]);
    let (bodies, stale) = handed(&mut member);
    assert_eq!(bodies, ["u"]);
    broker.reset_group(&name("g"), GroupStart::Beginning, true).expect("g is there");
    // Another one reads both and leaves, so that both are leased together.
    let mut other = broker.join_group(&name("g"), &join).expect("g is there");
    assert_eq!([handed(&mut other).0, handed(&mut other).0], [["t"], ["u"]]);
    other.leave();
    assert_eq!(handed(&mut member).0, ["t"]);
    says_too_late(&broker, &member, &stale);
    let (bodies, leases) = handed(&mut member);
    assert_eq!(bodies, ["u"], "it comes again after the reset");
    assert_eq!(member.ack(&leases).wait().expect("the broker is well").taken, 1);
}

/// Found by bursts of calls: two topics are leased together and handed out one after the other, and
/// who committed all it had got so far also ended what it had not got yet.
#[test]
fn a_commit_ends_nothing_that_was_leased_and_not_handed_out() {
    let world = World::new(9);
    let broker = world.open();
    for topic in ["u", "t"] {
        broker.create_topic(&name(topic), TopicSettings::default()).expect("there is room");
    }
    let settings =
        GroupSettings { start: GroupStart::Beginning, ..GroupSettings::new(pattern(">")) };
    broker.create_group(&name("g"), settings).expect("there is room");
    for topic in ["t", "u", "t"] {
        text(&broker, topic, topic);
    }
    let join = Join { name: "m".to_owned(), window: 100 };
    let mut first = broker.join_group(&name("g"), &join).expect("g is there");
    let all = [handed(&mut first).0, handed(&mut first).0, handed(&mut first).0];
    assert_eq!(all, [["t"], ["u"], ["t"]]);
    first.leave();
    // They are read already, so all three are leased in one step.
    let mut member = broker.join_group(&name("g"), &join).expect("g is there");
    assert_eq!(handed(&mut member).0, ["t"]);
    let told = member.commit(Position(u64::MAX)).wait().expect("the broker is well");
    assert_eq!(told.taken, 1, "only one was handed out");
    let broker = world.crash(broker, CrashKind::Power);
    let mut member = broker.join_group(&name("g"), &join).expect("g is there");
    assert_eq!([handed(&mut member).0, handed(&mut member).0], [["u"], ["t"]]);
}

#[test]
fn what_came_back_in_order_is_acked_only_after_it_was_handed_out_again() {
    let world = World::new(8);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    texts(&broker, "t", 1..=2);
    let settings = GroupSettings {
        mode: Mode::Ordered,
        start: GroupStart::Beginning,
        ..GroupSettings::new(pattern("t"))
    };
    broker.create_group(&name("g"), settings).expect("there is room");
    let join = Join { name: "m".to_owned(), window: 100 };
    let mut member = broker.join_group(&name("g"), &join).expect("g is there");
    let (bodies, leases) = handed(&mut member);
    assert_eq!(bodies, ["body-1", "body-2"]);
    let (first, last) = (leases[0].first, leases[leases.len() - 1].last);
    let [failed, stale] = [first, last].map(|at| Lease { first: at, last: at, ..leases[0] });
    member.nack(&[failed], Some(Duration::ZERO), "no").wait().expect("the broker is well");
    let (bodies, again) = handed(&mut member);
    assert_eq!(bodies, ["body-1"], "it is another attempt, so it comes by itself");
    says_too_late(&broker, &member, &[stale]);
    let (bodies, leases) = handed(&mut member);
    assert_eq!(bodies, ["body-2"]);
    for done in [again, leases] {
        assert_eq!(member.ack(&done).wait().expect("the broker is well").taken, 1);
    }
}

/// Every byte of a segment's index is damaged in turn: reading may fail, but a group never reports
/// that nothing is left to do.
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
