//! Dead letters, and the atomic step of a member: all of it or nothing.

mod common;

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::*;
use gapless_broker::{Atomic, Broker, Handed, Join, Leased, LetterFilter, Member};
use gapless_core::{
    GroupSettings, Message, PublishAck, PublishOptions, RejectReason, RetryPolicy, Seq,
    TopicSettings,
};
use gapless_journal::faulty::CrashKind;

fn open(world: &World) -> Broker {
    let broker = world.open();
    for topic in ["t", "out"] {
        broker.create_topic(&name(topic), TopicSettings::default()).expect("the broker does it");
    }
    let settings = GroupSettings {
        attempts_max: 2,
        lease: Duration::from_millis(1_000),
        retry: RetryPolicy::at_once(),
        ..GroupSettings::new(pattern("t"))
    };
    broker.create_group(&name("g"), settings).expect("the broker does it");
    broker
}

fn join(broker: &Broker) -> Member {
    broker
        .join_group(&name("g"), &Join { name: "m".to_owned(), window: 100 })
        .expect("the broker does it")
}

fn take(member: &mut Member) -> Vec<Leased> {
    let mut all = Vec::new();
    while let Poll::Ready(handed) = member.poll_next(&mut Context::from_waker(Waker::noop())) {
        if let Handed::Messages(leased) = handed.expect("the broker does it") {
            all.push(leased);
        }
    }
    all
}

/// Lets everything there is fail until it is dead.
fn fail_all(broker: &Broker, member: &mut Member, reason: &str) {
    loop {
        let got = take(member);
        if got.is_empty() {
            return;
        }
        for leased in &got {
            member.nack(leased.leases(), None, reason).wait().expect("the broker does it");
        }
        broker.turn();
    }
}

#[test]
fn a_message_past_its_last_attempt_is_a_dead_letter_with_its_story() {
    let world = World::new(1);
    let broker = open(&world);
    let message = Message::new("poison")
        .with_key("k")
        .with_id("id-1")
        .with_header("colour", "red")
        .with_ttl(Duration::from_secs(60));
    publish(&broker, "t", &message);
    let mut member = join(&broker);
    fail_all(&broker, &mut member, "cannot be eaten");
    let info = broker.describe_group(&name("g")).unwrap();
    assert_eq!((info.dead_letters, info.lag, info.totals.buried), (1, 0, 1));
    let letters = broker.dead_letters(&name("g"), Seq(1), 10).unwrap();
    let letter = &letters[0];
    assert_eq!((&letter.topic, letter.origin, letter.attempts), (&name("t"), Seq(1), 2));
    assert_eq!(letter.error, "cannot be eaten");
    assert_eq!((letter.first_failed, letter.died), (START, START));
    assert_eq!(letter.message, message, "it is as it was sent");
    assert_eq!(broker.dead_letter(&name("g"), Seq(1)).unwrap().as_ref(), Some(letter));
    assert_eq!(broker.dead_letter(&name("g"), Seq(2)).unwrap(), None);
    drop(member);
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.dead_letters(&name("g"), Seq(1), 10).unwrap(), letters);
}

#[test]
fn what_was_terminated_is_dead_at_once_and_what_was_told_off_is_let_go() {
    let world = World::new(2);
    let broker = open(&world);
    texts(&broker, "t", 1..=3);
    let mut member = join(&broker);
    let got = take(&mut member);
    member.terminate(got[0].leases(), "never").wait().unwrap();
    broker.turn();
    assert_eq!(broker.describe_group(&name("g")).unwrap().dead_letters, 3);
    let without = GroupSettings { dead_letters: false, ..broker.list_groups()[0].settings.clone() };
    broker.configure_group(&name("g"), without).unwrap();
    texts(&broker, "t", 4..=4);
    fail_all(&broker, &mut member, "no");
    let info = broker.describe_group(&name("g")).unwrap();
    assert_eq!((info.dead_letters, info.lag, info.totals.dropped), (3, 0, 1));
}

#[test]
fn letters_are_driven_again_and_removed_by_filter() {
    let world = World::new(3);
    let broker = open(&world);
    texts(&broker, "t", 1..=5);
    let mut member = join(&broker);
    fail_all(&broker, &mut member, "first");
    texts(&broker, "t", 6..=9);
    fail_all(&broker, &mut member, "second");
    let by_error =
        |error: &str| LetterFilter { error: Some(error.to_owned()), ..LetterFilter::all() };
    let moved = broker.redrive(&name("g"), &by_error("second"), None).unwrap();
    assert_eq!((moved.moved, moved.goes_on), (4, false));
    let got = take(&mut member);
    assert_eq!(got.iter().map(|each| each.messages().count()).sum::<usize>(), 4);
    assert_eq!(got[0].attempt(), 1, "attempts start again");
    assert_eq!(broker.remove_dead_letters(&name("g"), &LetterFilter::one(Seq(2))).unwrap(), 1);
    let left: Vec<u64> = broker
        .dead_letters(&name("g"), Seq(1), 99)
        .unwrap()
        .iter()
        .map(|each| each.seq.0)
        .collect();
    assert_eq!(left, [1, 3, 4, 5]);
    drop(member);
    broker.seal().unwrap();
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.describe_group(&name("g")).unwrap().dead_letters, 4);
    assert_eq!(broker.redrive(&name("g"), &LetterFilter::all(), None).unwrap().moved, 4);
    let info = broker.describe_topic(&name("$dead.g")).unwrap();
    assert_eq!(info.first, info.next, "the topic of letters forgets what ended");
}

#[test]
fn a_redrive_with_a_rate_goes_on_in_the_background() {
    let world = World::new(4);
    let broker = open(&world);
    texts(&broker, "t", 1..=25);
    let mut member = join(&broker);
    fail_all(&broker, &mut member, "no");
    let driven = broker.redrive(&name("g"), &LetterFilter::all(), Some(100)).unwrap();
    assert!(driven.goes_on);
    let mut left = Vec::new();
    for _ in 0..5 {
        broker.turn();
        left.push(broker.describe_group(&name("g")).unwrap().dead_letters);
        world.advance(100);
    }
    assert_eq!(left, [15, 5, 0, 0, 0], "ten in a tenth of a second");
    assert!(!broker.describe_group(&name("g")).unwrap().redriving);
}

#[test]
fn an_atomic_step_acks_and_publishes_or_does_neither() {
    let world = World::new(5);
    let broker = open(&world);
    texts(&broker, "t", 1..=2);
    let mut member = join(&broker);
    let got = take(&mut member);
    let step = |lease| {
        let atomic = Atomic::new()
            .publish(&name("out"), &[Message::new("made of it")])
            .set_cell("place", "1")
            .ack(&member.handle(), &[lease]);
        broker.commit(atomic, &PublishOptions::default()).wait().unwrap()
    };
    let places: Vec<_> = got[0].messages().iter().map(|each| each.position).collect();
    assert!(matches!(step(got[0].lease_of(places[0])), PublishAck::Accepted(_)));
    let lost = PublishAck::Rejected(RejectReason::LeaseLost);
    assert_eq!(step(got[0].lease_of(places[0])), lost, "it is done already");
    assert_eq!(broker.describe_topic(&name("out")).unwrap().next, Seq(2));
    world.advance(1_001);
    broker.turn();
    assert_eq!(step(got[0].lease_of(places[1])), lost, "its lease ran out");
    assert_eq!(broker.describe_topic(&name("out")).unwrap().next, Seq(2));
    drop(member);
    let broker = world.crash(broker, CrashKind::Power);
    let mut member = join(&broker);
    let again = take(&mut member);
    assert_eq!(again.iter().map(|each| each.messages().count()).sum::<usize>(), 1);
}

#[test]
fn a_full_disk_holds_up_burying_and_not_the_keeper() {
    // However much is written before, at one of them burying is what finds the disk full.
    for filled in 0..40 {
        let world = World::new(9);
        let broker = open(&world);
        publish(&broker, "t", &Message::new("x".repeat(8 * 1024)));
        let mut member = join(&broker);
        let got = take(&mut member);
        world.fs.set_capacity(Some(world.fs.used_bytes()));
        for _ in 0..filled {
            let large = Message::new("x".repeat(8 * 1024));
            drop(broker.publish(&name("out"), &large, &PublishOptions::default()));
            broker.flush();
        }
        if broker.journal_stats().full {
            break;
        }
        if member.terminate(got[0].leases(), "never").wait().is_err() {
            // There was no room even for that.
            break;
        }
        // Who waited for the disk here would wait for ever: the keeper is who makes room.
        let (broker, member) = within(PATIENCE, move || {
            (0..5).for_each(|_| broker.turn());
            (broker, member)
        });
        world.fs.set_capacity(None);
        until("the letter is there", || {
            world.advance(1_000);
            broker.turn();
            broker.dead_letters(&name("g"), Seq(1), 10).is_ok_and(|letters| letters.len() == 1)
        });
        drop(member);
        let broker = world.crash(broker, CrashKind::Power);
        assert_eq!(broker.dead_letters(&name("g"), Seq(1), 10).unwrap().len(), 1);
    }
}

#[test]
fn h4_dead_letters_are_removed_on_a_full_disk() {
    let world = World::new(10);
    let broker = open(&world);
    bury(&broker, 3);
    world.fs.set_capacity(Some(world.fs.used_bytes()));
    broker.turn();
    let large = Message::new("x".repeat(8 * 1024));
    let refused = broker.publish(&name("out"), &large, &PublishOptions::default()).wait();
    assert!(refused.is_err(), "the disk is full");
    let removed = broker.remove_dead_letters(&name("g"), &LetterFilter::default()).unwrap();
    assert_eq!(removed, 3);
    assert!(broker.dead_letters(&name("g"), Seq(1), 10).unwrap().is_empty());
}

/// Buries this many messages.
fn bury(broker: &Broker, count: u64) {
    texts(broker, "t", 1..=count);
    let mut member = join(broker);
    fail_all(broker, &mut member, "no");
    member.leave();
    broker.turn();
    assert_eq!(broker.describe_group(&name("g")).expect("it is there").dead_letters, count);
}

/// The bodies of all messages of `t` from this seq on, in order of their numbers.
fn redriven(broker: &Broker, from: u64) -> Vec<String> {
    let next = broker.describe_topic(&name("t")).expect("it is there").next.0;
    let read =
        |seq| broker.read(&name("t"), Seq(seq)).expect("it can be read").expect("it is there");
    let mut all: Vec<String> = (from..next).map(|seq| body(&read(seq).message)).collect();
    all.sort();
    all
}

#[test]
fn a_redrive_at_a_rate_goes_on_after_every_kind_of_end() {
    // The disk dies at every write there is, and each time every dead letter is redriven once.
    for nth in 1..35 {
        for kind in [CrashKind::Process, CrashKind::Power] {
            let world = World::new(nth);
            let mut broker = open(&world);
            bury(&broker, 9);
            let redriving = broker.redrive(&name("g"), &LetterFilter::all(), Some(10)).unwrap();
            assert_eq!((redriving.moved, redriving.goes_on), (0, true));
            world.fs.crash_after_writes(nth);
            for _ in 0..12 {
                broker.turn();
                world.advance(100);
            }
            broker = world.crash(broker, kind);
            assert!(broker.describe_group(&name("g")).unwrap().redriving || nth > 9);
            until("it is over", || {
                broker.turn();
                world.advance(100);
                !broker.describe_group(&name("g")).unwrap().redriving
            });
            let mut expected: Vec<String> = (1..=9).map(|each| format!("body-{each}")).collect();
            expected.sort();
            assert_eq!(redriven(&broker, 10), expected, "write {nth}, {kind:?}");
            assert_eq!(broker.describe_group(&name("g")).unwrap().dead_letters, 0);
            let broker = world.close(broker);
            assert!(!broker.describe_group(&name("g")).unwrap().redriving, "its end is known too");
        }
    }
}

#[test]
fn a_redrive_keeps_its_wish_over_a_checkpoint_and_can_be_ended() {
    let world = World::new(31);
    let broker = open(&world);
    bury(&broker, 4);
    let which = LetterFilter { from: Some(Seq(2)), to: Some(Seq(9)), ..LetterFilter::all() };
    broker.redrive(&name("g"), &which, Some(1)).unwrap();
    broker.seal().unwrap();
    let broker = world.close(broker);
    assert!(broker.describe_group(&name("g")).unwrap().redriving);
    broker.turn();
    broker.turn();
    assert_eq!(redriven(&broker, 5), ["body-2"], "one per second");
    // Those that died later are not meant.
    let mut member = join(&broker);
    fail_all(&broker, &mut member, "again");
    drop(member);
    world.advance(1_000);
    broker.turn();
    broker.turn();
    assert_eq!(redriven(&broker, 6), ["body-3"]);
    let ended = broker.redrive(&name("g"), &LetterFilter::all(), Some(0)).unwrap();
    assert_eq!((ended.moved, ended.goes_on), (0, false));
    let broker = world.crash(broker, CrashKind::Power);
    assert!(!broker.describe_group(&name("g")).unwrap().redriving);
    world.advance(10_000);
    (0..5).for_each(|_| broker.turn());
    assert_eq!(redriven(&broker, 6), ["body-3"], "it ended");
}
