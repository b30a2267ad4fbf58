//! Several things done together: all of them or none, whatever crashes (design section 2).

mod common;

use common::*;
use gapless_broker::{Atomic, Broker};
use gapless_core::{
    Expect, ExpectCell, Message, PublishAck, PublishOptions, RejectReason, Seq, TopicSettings,
    TotalLimit,
};
use gapless_journal::faulty::CrashKind;

fn two_topics(broker: &Broker) {
    broker
        .create_topics(&[name("a"), name("b")], TopicSettings::default())
        .expect("the store is well");
}

fn lasts(broker: &Broker) -> (u64, u64, Option<Vec<u8>>) {
    let next = |topic: &str| broker.describe_topic(&name(topic)).expect("it is there").next.0;
    (next("a") - 1, next("b") - 1, broker.cell(b"cursor").map(|value| value.to_vec()))
}

#[test]
fn f2_topics_and_cells_written_together_are_there_together() {
    let world = World::new(1);
    let mut broker = world.open();
    two_topics(&broker);
    let plain = PublishOptions::default();
    let atomic = Atomic::new()
        .publish(&name("b"), &[Message::new("b1"), Message::new("b2")])
        .publish(&name("a"), &[Message::new("a1")])
        .set_cell("cursor", "7")
        .set_cell("empty", "");
    let acks = broker.commit(atomic, &plain).wait_all().unwrap();
    let places: Vec<_> = acks.into_iter().map(|ack| accepted(ack).last.0).collect();
    assert_eq!(places, [2, 1], "one ack for each part, in the order they were given");
    for round in 0..3 {
        assert_eq!(lasts(&broker), (1, 2, Some(b"7".to_vec())), "round {round}");
        assert_eq!(broker.cell(b"empty").as_deref(), Some(&b""[..]));
        assert_eq!(broker.cell(b"nothing"), None);
        broker = world.crash(broker, CrashKind::Power);
        broker.seal().unwrap();
    }
    let remove = Atomic::new().remove_cell("cursor");
    accepted(broker.commit(remove, &plain).wait().unwrap());
    for _ in 0..3 {
        assert_eq!(lasts(&broker), (1, 2, None));
        broker = world.close(broker);
        broker.seal().unwrap();
    }
}

#[test]
fn a3_one_wrong_part_leaves_all_untouched() {
    let world = World::new(2);
    let broker = world.open();
    two_topics(&broker);
    let plain = PublishOptions::default();
    broker.commit(Atomic::new().set_cell("cursor", "old"), &plain).wait().unwrap();
    texts(&broker, "a", 1..=2);
    let before = lasts(&broker);
    let one = || [Message::new("x").with_id("same")];
    let both = |expect_a, expect_b| {
        Atomic::new()
            .publish_if(&name("a"), &one(), Expect::TopicLast(Seq(expect_a)))
            .publish_if(&name("b"), &one(), Expect::TopicLast(Seq(expect_b)))
            .set_cell("cursor", "new")
    };
    for (wrong, actual) in [(both(2, 5), 0), (both(1, 0), 2), (both(9, 9), 2)] {
        let got = reason(broker.commit(wrong, &plain).wait().unwrap());
        assert_eq!(got, RejectReason::ExpectedSeq { actual: Seq(actual) });
        assert_eq!(lasts(&broker), before);
    }
    let too_large = Atomic::new()
        .publish(&name("a"), &one())
        .publish(&name("b"), &[Message::new(vec![0; 5 << 20])])
        .set_cell("cursor", "new");
    let got = reason(broker.commit(too_large, &plain).wait().unwrap());
    assert!(matches!(got, RejectReason::TooLarge { .. }), "{got:?}");
    assert_eq!(lasts(&broker), before);
    // The id was not remembered from any of these, so nothing is taken for a duplicate.
    let acks = broker.commit(both(2, 0), &plain).wait_all().unwrap();
    assert!(acks.into_iter().all(|ack| !accepted(ack).duplicate));
    assert_eq!(lasts(&broker), (3, 1, Some(b"new".to_vec())));
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(lasts(&broker), (3, 1, Some(b"new".to_vec())));
}

#[test]
fn f3_parts_and_cells_have_limits() {
    let mut world = World::new(3);
    world.options.limits.cells_max = 2;
    world.options.limits.cell_bytes_max = 10;
    let broker = world.open();
    two_topics(&broker);
    let plain = PublishOptions::default();
    let twice = Atomic::new()
        .publish(&name("a"), &[Message::new("1")])
        .publish(&name("a"), &[Message::new("2")]);
    let bad = [
        (twice, RejectReason::InvalidPayload),
        (Atomic::new().set_cell("", "x"), RejectReason::InvalidPayload),
        (Atomic::new().set_cell("c", vec![0; 11]), RejectReason::TooLarge { bytes: 11, max: 10 }),
        (Atomic::new().publish(&name("a"), &[]), RejectReason::InvalidPayload),
        (
            Atomic::new().set_cell("1", "").set_cell("2", "").set_cell("3", ""),
            RejectReason::LimitReached { limit: TotalLimit::Cells, max: 2 },
        ),
    ];
    for (atomic, why) in bad {
        assert_eq!(reason(broker.commit(atomic, &plain).wait().unwrap()), why);
        assert_eq!(lasts(&broker), (0, 0, None));
    }
    for value in ["1", "2", "3"] {
        let both = Atomic::new().set_cell("1", value).set_cell("2", value);
        assert!(broker.commit(both, &plain).is_accepted(), "cells that are there may change");
    }
    let swap = Atomic::new().remove_cell("1").set_cell("3", "x");
    assert!(broker.commit(swap, &plain).is_accepted(), "a removed cell makes room");
    assert_eq!((broker.cell(b"1"), broker.cell(b"3").as_deref()), (None, Some(&b"x"[..])));
    accepted(broker.commit(Atomic::new().remove_cell("2"), &plain).wait().unwrap());
    for round in 0..10_u8 {
        let fresh = Atomic::new().set_cell(vec![round], "x");
        assert!(broker.commit(fresh, &plain).is_accepted(), "removed cells do not add up");
        let gone = Atomic::new().remove_cell(vec![round]);
        assert!(broker.commit(gone, &plain).is_accepted());
        broker.turn();
    }
}

#[test]
fn f2_a_power_loss_at_any_write_leaves_all_parts_or_none() {
    for at in 1..40 {
        let world = World::new(at);
        let broker = world.open();
        two_topics(&broker);
        let plain = PublishOptions::default();
        world.fs.crash_after_writes(at);
        for n in 1..=30_u64 {
            let atomic = Atomic::new()
                .publish(&name("a"), &[Message::new(vec![1; 500])])
                .publish(&name("b"), &[Message::new(vec![2; 3000])])
                .set_cell("cursor", n.to_string());
            if broker.commit(atomic, &plain).wait().is_err() {
                break;
            }
        }
        let broker = world.crash(broker, CrashKind::Power);
        let (a, b, cursor) = lasts(&broker);
        assert_eq!(a, b, "write {at}");
        let cursor = cursor.map_or(0, |text| String::from_utf8(text).unwrap().parse().unwrap());
        assert_eq!(a, cursor, "write {at}");
    }
}

#[test]
fn f3_commits_over_the_same_topics_in_any_order_never_wait_for_each_other() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        two_topics(&broker);
        std::thread::scope(|scope| {
            for (first, second) in [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")] {
                let broker = &broker;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let atomic = Atomic::new()
                            .publish(&name(first), &[Message::new("x")])
                            .publish(&name(second), &[Message::new("y")]);
                        let acks = broker.commit(atomic, &PublishOptions::default());
                        assert_eq!(acks.wait_all().unwrap().len(), 2);
                    }
                });
            }
        });
        assert_eq!(lasts(&broker), (200, 200, None));
        broker.close().unwrap();
    });
}

#[test]
fn h1_all_cells_together_have_a_limit_in_bytes_which_holds_after_a_restart() {
    let mut world = World::new(4);
    world.options.limits.cells_bytes_max = 1000;
    let broker = world.open();
    let plain = PublishOptions::default();
    let set = |broker: &Broker, name: &'static str, bytes: usize| {
        broker.commit(Atomic::new().set_cell(name, vec![0; bytes]), &plain).wait().unwrap()
    };
    let full = RejectReason::LimitReached { limit: TotalLimit::CellBytes, max: 1000 };
    accepted(set(&broker, "a", 900));
    assert_eq!(reason(set(&broker, "b", 100)), full);
    accepted(set(&broker, "a", 500));
    accepted(set(&broker, "b", 400));
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(reason(set(&broker, "c", 200)), full);
    broker.commit(Atomic::new().remove_cell("a"), &plain).wait().unwrap();
    accepted(set(&broker, "c", 200));
}

fn rejected(ack: &PublishAck) -> RejectReason {
    *ack.rejected().expect("it is refused")
}

#[test]
fn b10_a_step_on_condition_of_a_cell_happens_only_while_the_cell_is_so() {
    let world = World::new(9);
    let broker = world.open();
    two_topics(&broker);
    let plain = PublishOptions::default();
    let step = |expect: ExpectCell, value: &'static str| {
        let atomic = Atomic::new().publish(&name("a"), &[Message::new(value)]);
        let atomic = atomic.expect_cell("$relay", expect).set_cell("$relay", value);
        broker.commit(atomic, &plain).wait().unwrap()
    };
    accepted(step(ExpectCell::Absent, "1"));
    assert_eq!(rejected(&step(ExpectCell::Absent, "2")), RejectReason::ExpectedCell);
    assert_eq!(rejected(&step(ExpectCell::Value("0".into()), "2")), RejectReason::ExpectedCell);
    accepted(step(ExpectCell::Value("1".into()), "2"));
    assert_eq!(lasts(&broker).0, 2, "what was refused wrote nothing");
    assert_eq!(broker.cell(b"$relay").as_deref(), Some(&b"2"[..]));
}

#[test]
fn b10_of_many_steps_on_one_condition_exactly_one_happens() {
    let world = World::new(10);
    let broker = world.open();
    two_topics(&broker);
    let plain = PublishOptions::default();
    for round in 0..50_u32 {
        let old = broker.cell(b"$relay").map_or(ExpectCell::Absent, ExpectCell::Value);
        let won: usize = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..4_u32)
                .map(|relay| {
                    let (broker, old) = (&broker, old.clone());
                    let atomic = Atomic::new()
                        .publish(&name("a"), &[Message::new(format!("{round} {relay}"))])
                        .expect_cell("$relay", old)
                        .set_cell("$relay", format!("{round} {relay}"));
                    scope.spawn(move || {
                        broker.commit(atomic, &plain).wait().unwrap().accepted().is_some()
                    })
                })
                .collect();
            tries.into_iter().map(|each| usize::from(each.join().unwrap())).sum()
        });
        assert_eq!(won, 1, "round {round}");
    }
    assert_eq!(lasts(&broker).0, 50);
}

#[test]
fn b10_a_cell_of_the_system_is_never_written_without_a_condition() {
    let world = World::new(11);
    let broker = world.open();
    let plain = PublishOptions::default();
    let plainly = broker.commit(Atomic::new().set_cell("$relay", "1"), &plain).wait().unwrap();
    assert_eq!(rejected(&plainly), RejectReason::NotAuthorised);
    assert_eq!(broker.cell(b"$relay"), None);
}
