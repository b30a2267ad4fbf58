//! A data folder of format version 1 with groups, cells and delayed messages in every state
//! that outlives a process. Like its elder (`format_v1.rs`) it was made once, is never made
//! again, and must open for ever.
//!
//! Half of what it tells of is in a checkpoint, the other half in the log only.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/fixture.rs"]
mod fixture;

use std::path::Path;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fixture::{MADE_AT, copy, name};
use gapless_broker::{
    Atomic, Broker, GroupDoing, GroupInfo, Handed, Join, Leased, LetterFilter, ManualClock, Member,
};
use gapless_core::group::Counts;
use gapless_core::{
    Durability, GapReason, GroupSettings, GroupStart, Message, Mode, OnGap, Pattern, Position,
    PublishOptions, RetryPolicy, Seq, Timestamp, TopicName, TopicSettings, Waits,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn after(by: Duration) -> Timestamp {
    MADE_AT.after(by)
}

fn publish(broker: &Broker, topic: &str, message: &Message) {
    let ack = broker.publish(&name(topic), message, &PublishOptions::default()).wait();
    assert!(ack.unwrap().accepted().is_some());
}

/// Messages `work 1`, `work 2` … with three keys by turns.
fn work(broker: &Broker, range: std::ops::RangeInclusive<u64>) {
    for number in range {
        let message = Message::new(format!("work {number}")).with_key(format!("k{}", number % 3));
        publish(broker, "work", &message);
    }
}

fn join(broker: &Broker, group: &str, who: &str, window: u32) -> Member {
    broker.join_group(&name(group), &Join { name: who.to_owned(), window }).unwrap()
}

/// Everything that a member gets now.
fn take(member: &mut Member) -> Vec<Leased> {
    let mut all = Vec::new();
    while let Poll::Ready(handed) = member.poll_next(&mut Context::from_waker(Waker::noop())) {
        if let Handed::Messages(leased) = handed.unwrap() {
            all.push(leased);
        }
    }
    all
}

/// Topic, seq and attempt of each.
fn told(all: &[Leased]) -> Vec<(String, u64, u32)> {
    let one = |leased: &Leased| {
        let (topic, attempt) = (leased.messages().topic().to_string(), leased.attempt());
        let records = leased.messages().records().map(|each| each.seq.0);
        records.map(move |seq| (topic.clone(), seq, attempt)).collect::<Vec<_>>()
    };
    all.iter().flat_map(one).collect()
}

fn seqs(all: &[Leased]) -> Vec<(u64, u32)> {
    told(all).into_iter().map(|(_, seq, attempt)| (seq, attempt)).collect()
}

/// What to ack the message with this seq by.
fn lease(all: &[Leased], seq: u64) -> gapless_core::Lease {
    let find = |leased: &Leased| {
        let at = leased.messages().records().find(|each| each.seq.0 == seq)?.position;
        Some(leased.lease_of(at))
    };
    all.iter().find_map(find).unwrap()
}

fn ack(member: &Member, got: &[Leased], seqs: &[u64]) {
    let leases: Vec<_> = seqs.iter().map(|seq| lease(got, *seq)).collect();
    let outcome = member.ack(&leases).wait().unwrap();
    assert_eq!((outcome.taken as usize, outcome.refused), (seqs.len(), 0));
}

fn nack(member: &Member, got: &[Leased], seq: u64, delay: Option<Duration>, reason: &str) {
    assert_eq!(member.nack(&[lease(got, seq)], delay, reason).wait().unwrap().taken, 1);
}

fn terminate(member: &Member, got: &[Leased], seq: u64, reason: &str) {
    assert_eq!(member.terminate(&[lease(got, seq)], reason).wait().unwrap().taken, 1);
}

fn source(text: &str) -> GroupSettings {
    GroupSettings::new(Pattern::parse(text).unwrap())
}

fn shared() -> GroupSettings {
    let retry = RetryPolicy { waits: Waits::Steps(vec![10 * MINUTE, HOUR]), jitter_percent: 0 };
    GroupSettings { attempts_max: 4, lease: MINUTE, retry, ..source("work") }
}

fn keyed() -> GroupSettings {
    let waits = Waits::Growing { first: 5 * MINUTE, factor: 3, most: HOUR };
    let retry = RetryPolicy { waits, jitter_percent: 0 };
    GroupSettings { mode: Mode::Keyed, retry, durability: Durability::Written, ..source("work") }
}

fn ordered() -> GroupSettings {
    GroupSettings { mode: Mode::Ordered, start: GroupStart::Time(MADE_AT), ..source("jobs.>") }
}

fn moved() -> GroupSettings {
    GroupSettings {
        start: GroupStart::Seq(Seq(3)),
        dead_letters: false,
        on_gap: OnGap::Continue,
        in_flight_max: 7,
        member_in_flight_max: 6,
        open_max: 50,
        ..source("work")
    }
}

fn late() -> GroupSettings {
    GroupSettings { start: GroupStart::Seq(Seq(9)), ..source("work") }
}

/// Everything that an entry or a checkpoint can tell of a group, a cell or a delayed message.
fn make(folder: &Path) {
    let (broker, clock) = fixture::open_at(folder, MADE_AT);
    for topic in ["work", "jobs.a", "jobs.b", "old", "older", "later"] {
        broker.create_topic(&name(topic), TopicSettings::default()).unwrap();
    }
    work(&broker, 1..=10);
    for number in 1..=3 {
        publish(&broker, "jobs.a", &Message::new(format!("a {number}")));
        publish(&broker, "jobs.b", &Message::new(format!("b {number}")));
        publish(&broker, "old", &Message::new(format!("old {number}")));
        publish(&broker, "older", &Message::new(format!("older {number}")));
    }
    let groups = [
        ("shared", shared()),
        ("keyed", keyed()),
        ("ordered", ordered()),
        ("stopped", source("old")),
        ("stopped.before", source("older")),
        ("moved", GroupSettings { in_flight_max: 70, ..moved() }),
        ("gone", source("work")),
        ("gone.later", source("work")),
    ];
    for (group, settings) in groups {
        broker.create_group(&name(group), settings).unwrap();
    }
    make_checkpoint(&broker);
    broker.seal().unwrap();
    clock.advance(Duration::from_secs(1));
    make_log(&broker, &clock);
    broker.close().unwrap();
}

/// What is in the checkpoint.
fn make_checkpoint(broker: &Broker) {
    let mut member = join(broker, "shared", "m1", 8);
    let got = take(&mut member);
    ack(&member, &got, &[1, 3]);
    nack(&member, &got, 2, None, "not yet");
    terminate(&member, &got, 4, "never");
    terminate(&member, &got, 5, "never either");
    nack(&member, &got, 7, Some(Duration::ZERO), "once");
    let again = take(&mut member);
    assert!(seqs(&again).contains(&(7, 2)));
    nack(&member, &again, 7, Some(2 * HOUR), "twice");
    member.leave();
    broker.turn();
    let second = LetterFilter::one(Seq(2));
    assert_eq!(broker.redrive(&name("shared"), &second, None).unwrap().moved, 1);

    let mut member = join(broker, "keyed", "m1", 100);
    let got = take(&mut member);
    assert_eq!(seqs(&got), [(1, 1), (2, 1), (3, 1)], "one of each key");
    ack(&member, &got, &[1]);
    nack(&member, &got, 2, None, "its key waits");
    member.leave();

    let mut member = join(broker, "ordered", "m1", 2);
    let got = take(&mut member);
    ack(&member, &got[..1], &[1]);
    member.leave();

    let mut member = join(broker, "stopped", "m1", 1);
    let got = take(&mut member);
    ack(&member, &got, &[1]);
    member.leave();
    broker.purge(&name("older"), Seq(3)).unwrap();
    let mut member = join(broker, "stopped.before", "m1", 1);
    assert!(take(&mut member).is_empty());
    member.leave();

    broker.pause_group(&name("moved")).unwrap();
    broker.delete_group(&name("gone")).unwrap();
    let cells = Atomic::new().set_cell("kept", "1").set_cell("removed", "2").set_cell("gone", "3");
    broker.commit(cells, &PublishOptions::default()).wait_all().unwrap();
    let gone = Atomic::new().remove_cell("gone");
    broker.commit(gone, &PublishOptions::default()).wait_all().unwrap();
    for (number, at) in [(1, after(Duration::from_secs(2))), (2, after(HOUR)), (3, after(HOUR))] {
        let message = Message::new(format!("later {number}")).with_not_before(at);
        let ack = broker.publish(&name("later"), &message, &PublishOptions::default()).wait();
        assert!(matches!(ack, Ok(gapless_core::PublishAck::Scheduled { .. })));
    }
}

/// What is in the log only.
fn make_log(broker: &Broker, clock: &ManualClock) {
    let mut member = join(broker, "shared", "m2", 5);
    let got = take(&mut member);
    assert_eq!(seqs(&got), [(6, 1), (8, 1), (9, 1), (10, 1), (11, 1)]);
    ack(&member, &got, &[9, 10]);
    terminate(&member, &got, 11, "third");
    terminate(&member, &got, 8, "fourth");
    broker.turn();
    let third = LetterFilter { error: Some("third".to_owned()), ..LetterFilter::all() };
    assert_eq!(broker.remove_dead_letters(&name("shared"), &third).unwrap(), 1);
    // It goes away without a word, with one message.
    drop(member);

    let mut member = join(broker, "keyed", "m2", 100);
    let got = take(&mut member);
    assert_eq!(seqs(&got), [(3, 1), (4, 1)]);
    ack(&member, &got, &[3]);
    nack(&member, &got, 4, Some(HOUR), "its key waits too");
    member.leave();

    let mut member = join(broker, "ordered", "m2", 2);
    let got = take(&mut member);
    assert_eq!(told(&got), [("jobs.b".to_owned(), 1, 1), ("jobs.a".to_owned(), 2, 1)]);
    nack(&member, &got, 1, Some(MINUTE), "nothing passes it");
    member.leave();
    broker.pause_group(&name("ordered")).unwrap();

    broker.purge(&name("old"), Seq(3)).unwrap();
    let mut member = join(broker, "stopped", "m2", 1);
    assert!(take(&mut member).is_empty());
    member.leave();

    broker.resume_group(&name("moved")).unwrap();
    broker.configure_group(&name("moved"), moved()).unwrap();
    broker.reset_group(&name("moved"), GroupStart::Seq(Seq(8)), false).unwrap();
    broker.delete_group(&name("gone.later")).unwrap();
    let step = Atomic::new()
        .publish(&name("jobs.b"), &[Message::new("b 4")])
        .set_cell("offset", "42")
        .remove_cell("removed");
    broker.commit(step, &PublishOptions::default()).wait_all().unwrap();
    let mut cancelling = std::pin::pin!(broker.cancel_delayed(Position(2)));
    let cancelled = loop {
        match cancelling.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(cancelled) => break cancelled.unwrap(),
            Poll::Pending => broker.turn(),
        }
    };
    assert!(cancelled);
    clock.advance(Duration::from_secs(1));
    broker.turn();
    assert_eq!(broker.delayed_len(), 1);

    // Nothing moves this one to the dead letters.
    broker.create_group(&name("late"), late()).unwrap();
    let mut member = join(broker, "late", "m1", 2);
    let got = take(&mut member);
    terminate(&member, &got, 10, "unburied");
    member.leave();
}

fn group(broker: &Broker, group: &str) -> GroupInfo {
    broker.describe_group(&name(group)).unwrap()
}

/// Everything is as it was made.
fn check(folder: &Path) {
    let (broker, clock) = fixture::open_at(folder, after(Duration::from_secs(2)));
    let names: Vec<String> = broker.group_names().iter().map(TopicName::to_string).collect();
    assert_eq!(names, ["keyed", "late", "moved", "ordered", "shared", "stopped", "stopped.before"]);
    assert_eq!(broker.cell(b"kept").as_deref(), Some(&b"1"[..]));
    assert_eq!(broker.cell(b"offset").as_deref(), Some(&b"42"[..]));
    assert_eq!(broker.cells_under(b"").len(), 2, "two others were removed");
    assert_eq!(broker.delayed_len(), 1, "one was published, one cancelled");
    assert_eq!(broker.describe_topic(&name("later")).unwrap().next, Seq(2));
    check_shared(&broker, &clock);
    check_keyed(&broker);
    check_ordered(&broker, &clock);
    check_stopped(&broker, "stopped", ("old", Some(Seq(2))));
    check_stopped(&broker, "stopped.before", ("older", None));
    check_late(&broker);
    check_moved(&broker);
    clock.advance(HOUR);
    broker.turn();
    assert_eq!(broker.delayed_len(), 0);
    let later = broker.read(&name("later"), Seq(2)).unwrap().unwrap();
    assert_eq!(later.message.body.as_deref(), Some(&b"later 3"[..]));
    // Numbers go on where they ended: a topic and a group are from one count.
    let new = broker.create_group(&name("new"), source("work")).unwrap();
    assert_eq!(new.id, NEW_GROUP);
    broker.close().unwrap();
}

/// The number of the first group that is made later. Before came eight topics, with those of
/// delayed messages and of dead letters, nine groups, and the dead letters of one more.
const NEW_GROUP: u64 = 19;

fn check_shared(broker: &Broker, clock: &ManualClock) {
    let info = group(broker, "shared");
    assert_eq!(info.settings, shared());
    assert_eq!((info.state, info.dead_letters), (GroupDoing::Running, 2));
    assert_eq!(info.members, []);
    let letters = broker.dead_letters(&name("shared"), Seq(1), 10).unwrap();
    let story: Vec<_> = letters
        .iter()
        .map(|each| (each.seq.0, each.origin.0, each.attempts, each.error.as_str(), each.died))
        .collect();
    let second = after(Duration::from_secs(1));
    assert_eq!(story, [(1, 4, 1, "never", MADE_AT), (3, 8, 1, "fourth", second)]);
    assert_eq!(letters[0].message, Message::new("work 4").with_key("k1"));
    // What was redriven came as a message of its own, and died again; that letter was removed.
    let redriven = broker.read(&name("work"), Seq(11)).unwrap().unwrap();
    assert_eq!(redriven.message, Message::new("work 5").with_key("k2"));

    let mut member = join(broker, "shared", "n", 100);
    let got = take(&mut member);
    assert_eq!(seqs(&got), [(6, 2)], "what the member that went away had");
    let info = group(broker, "shared");
    assert_eq!(info.counts, Counts { in_flight: 1, parked: 2, ..Counts::default() });
    assert_eq!(info.next_retry, Some(after(10 * MINUTE)));
    clock.advance(10 * MINUTE);
    assert_eq!(member.extend(&[]).taken, 1);
    let got = take(&mut member);
    assert_eq!(seqs(&got), [(2, 2)]);
    clock.advance(2 * HOUR - 10 * MINUTE);
    let got = take(&mut member);
    assert!(seqs(&got).contains(&(7, 3)), "{:?}", seqs(&got));
    // Its third attempt failed: recorded with the reason, and when it failed first.
    terminate(&member, &got, 7, "three times");
    broker.turn();
    let letter = broker.dead_letter(&name("shared"), Seq(5)).unwrap().unwrap();
    assert_eq!((letter.origin, letter.attempts, letter.first_failed), (Seq(7), 3, MADE_AT));
    member.leave();
}

fn check_keyed(broker: &Broker) {
    let info = group(broker, "keyed");
    assert_eq!(info.settings, keyed());
    let mut member = join(broker, "keyed", "n", 100);
    // Both failed keys are due by now, each with its first message; the others wait behind.
    let got = take(&mut member);
    assert_eq!(seqs(&got), [(2, 2), (4, 2), (6, 1)]);
    let info = group(broker, "keyed");
    assert_eq!(info.counts, Counts { in_flight: 3, waiting: 6, ..Counts::default() });
    ack(&member, &got, &[2]);
    assert_eq!(seqs(&take(&mut member)), [(5, 1)], "the next of its key");
    member.leave();
}

fn check_ordered(broker: &Broker, clock: &ManualClock) {
    let info = group(broker, "ordered");
    assert_eq!((info.settings, info.state), (ordered(), GroupDoing::Paused));
    assert_eq!(info.lag, 6);
    broker.resume_group(&name("ordered")).unwrap();
    clock.advance(MINUTE);
    let mut member = join(broker, "ordered", "n", 100);
    let expected = [("b", 1, 2), ("a", 2, 1), ("b", 2, 1), ("a", 3, 1), ("b", 3, 1), ("b", 4, 1)];
    let expected = expected.map(|(topic, seq, attempt)| (format!("jobs.{topic}"), seq, attempt));
    assert_eq!(told(&take(&mut member)), expected);
    member.leave();
}

fn check_stopped(broker: &Broker, stopped: &str, (topic, from): (&str, Option<Seq>)) {
    let info = group(broker, stopped);
    let GroupDoing::Stopped(gap) = info.state else { panic!("{:?}", info.state) };
    assert_eq!((gap.topic, gap.reason), (Some(name(topic)), GapReason::Purge));
    assert_eq!((gap.from, gap.to), (from, Some(Seq(2))));
    broker.resume_group(&name(stopped)).unwrap();
    let mut member = join(broker, stopped, "n", 100);
    assert_eq!(seqs(&take(&mut member)), [(3, 1)]);
    member.leave();
}

fn check_moved(broker: &Broker) {
    let info = group(broker, "moved");
    assert_eq!((info.settings, info.state), (moved(), GroupDoing::Running));
    assert!(info.floor > Position(0));
    let mut member = join(broker, "moved", "n", 100);
    assert_eq!(seqs(&take(&mut member)), [(8, 1), (9, 1), (10, 1), (11, 1)]);
    member.leave();
}

fn check_late(broker: &Broker) {
    assert_eq!(group(broker, "late").settings, late());
    assert_eq!(group(broker, "late").dead_letters, 0);
    let mut member = join(broker, "late", "n", 100);
    assert_eq!(seqs(&take(&mut member)), [(9, 1), (11, 1)]);
    broker.turn();
    let letter = broker.dead_letter(&name("late"), Seq(1)).unwrap().unwrap();
    assert_eq!((letter.origin, letter.error.as_str()), (Seq(10), "unburied"));
    assert_eq!(letter.first_failed, after(Duration::from_secs(2)));
    member.leave();
}

/// What the first opening wrote is read by the second.
fn check_again(folder: &Path) {
    let (broker, _) = fixture::open_at(folder, after(4 * HOUR));
    assert_eq!(group(&broker, "shared").dead_letters, 3);
    assert_eq!(group(&broker, "new").id, NEW_GROUP);
    let mut member = join(&broker, "keyed", "n", 100);
    assert_eq!(seqs(&take(&mut member)), [(4, 2), (5, 1), (6, 1)]);
    drop(member);
    broker.close().unwrap();
}

#[test]
fn a_data_folder_of_version_1_opens_with_all_that_groups_have_done() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture::fixture("v1-groups", make), folder.path());
    check(folder.path());
    check_again(folder.path());
}

#[test]
fn groups_made_now_stand_as_those_of_version_1() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    check(folder.path());
    check_again(folder.path());
}
