//! Groups (C6, B3): leases, acks, second attempts, keyed and ordered members, restarts.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::*;
use gapless_broker::{Broker, GroupDoing, GroupError, Handed, Join, Leased, Member, MemberError};
use gapless_core::{
    GroupSettings, GroupStart, Message, Mode, OnGap, PublishOptions, Retention, RetryPolicy, Seq,
    TopicSettings, Waits,
};
use gapless_journal::faulty::CrashKind;

fn settings(source: &str, mode: Mode) -> GroupSettings {
    let waits = Waits::Steps(vec![Duration::from_millis(100)]);
    GroupSettings {
        mode,
        lease: Duration::from_millis(1_000),
        attempts_max: 3,
        retry: RetryPolicy { waits, jitter_percent: 0 },
        ..GroupSettings::new(pattern(source))
    }
}

fn open(world: &World, mode: Mode) -> Broker {
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("the broker does it");
    broker.create_group(&name("g"), settings("t", mode)).expect("the broker does it");
    broker
}

fn join(broker: &Broker, who: &str, window: u32) -> Member {
    broker
        .join_group(&name("g"), &Join { name: who.to_owned(), window })
        .expect("the broker does it")
}

/// One step, if there is one without waiting.
fn step(member: &mut Member) -> Option<Result<Handed, MemberError>> {
    match member.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(handed) => Some(handed),
        Poll::Pending => None,
    }
}

/// Everything a member can get now.
fn take(member: &mut Member) -> Vec<Leased> {
    let mut all = Vec::new();
    while let Some(handed) = step(member) {
        if let Handed::Messages(leased) = handed.expect("the broker does it") {
            all.push(leased);
        }
    }
    all
}

fn texts_of(leased: &[Leased]) -> Vec<String> {
    let body = |each: gapless_broker::Delivered| {
        let body = String::from_utf8(each.message.body.expect("the broker does it").to_vec())
            .expect("the broker does it");
        body.trim_start_matches("body-").to_owned()
    };
    leased.iter().flat_map(|leased| leased.messages().iter().map(body)).collect()
}

fn ack(member: &Member, leased: &[Leased]) {
    for each in leased {
        let outcome = member.ack(each.leases()).wait().expect("the broker does it");
        assert_eq!(outcome.refused, 0);
        assert_eq!(outcome.taken as usize, each.messages().count());
    }
}

fn keyed(broker: &Broker, topic: &str, key: &str, body: &str) {
    let message = Message::new(body.to_owned()).with_key(key.to_owned());
    broker
        .publish(&name(topic), &message, &PublishOptions::default())
        .wait()
        .expect("the broker does it");
}

#[test]
fn c6_what_is_acked_is_done_and_what_is_not_comes_again() {
    let world = World::new(1);
    let broker = open(&world, Mode::Shared);
    texts(&broker, "t", 1..=5);
    let mut member = join(&broker, "m", 3);
    let got = take(&mut member);
    assert_eq!(texts_of(&got), ["1", "2", "3"], "no more than its window");
    assert_eq!(got[0].attempt(), 1);
    ack(&member, &got);
    let rest = take(&mut member);
    assert_eq!(texts_of(&rest), ["4", "5"]);
    let info = broker.describe_group(&name("g")).unwrap();
    assert_eq!((info.lag, info.counts.in_flight), (2, 2));
    assert_eq!(info.oldest_age, Some(Duration::ZERO));

    // The lease runs out, and the ack comes too late.
    world.advance(1_001);
    let again = take(&mut member);
    assert_eq!(texts_of(&again), ["4", "5"]);
    assert_eq!(again[0].attempt(), 2);
    let late = member.ack(rest[0].leases()).wait().unwrap();
    assert_eq!((late.taken, late.refused), (0, 2), "a late ack is refused and says so");
    ack(&member, &again);
    let info = broker.describe_group(&name("g")).unwrap();
    assert_eq!((info.lag, info.totals.redelivered, info.totals.acked), (0, 2, 5));
    assert!(info.why.contains("caught up"), "{}", info.why);
}

#[test]
fn c6_acks_survive_a_crash_and_the_unacked_come_again() {
    for kind in [CrashKind::Process, CrashKind::Power] {
        let world = World::new(2);
        let broker = open(&world, Mode::Shared);
        texts(&broker, "t", 1..=6);
        let mut member = join(&broker, "m", 10);
        let got = take(&mut member);
        let each: Vec<_> = got[0].messages().iter().map(|each| each.position).collect();
        for at in [1, 2, 4] {
            member.ack(&[got[0].lease_of(each[at])]).wait().unwrap();
        }
        member.nack(&[got[0].lease_of(each[5])], None, "broken").wait().unwrap();
        std::mem::forget(member);
        let broker = world.crash(broker, kind);
        world.advance(200);
        let mut member = join(&broker, "n", 10);
        let again = take(&mut member);
        assert_eq!(texts_of(&again), ["1", "4", "6"]);
        let attempts: Vec<u32> = again.iter().map(Leased::attempt).collect();
        assert_eq!(attempts.last(), Some(&2), "attempts are counted over a crash");
        ack(&member, &again);
        // A checkpoint tells the same as the log.
        text(&broker, "t", "7");
        broker.seal().unwrap();
        drop(member);
        let broker = world.close(broker);
        let mut member = join(&broker, "o", 10);
        assert_eq!(texts_of(&take(&mut member)), ["7"]);
    }
}

#[test]
fn a_lease_has_another_term_after_every_kind_of_end() {
    let world = World::new(47);
    let mut broker = open(&world, Mode::Shared);
    text(&broker, "t", "one");
    broker.flush();
    let mut terms = Vec::new();
    let ends = [None, Some(CrashKind::Process), Some(CrashKind::Power), None];
    for end in ends {
        let mut member = join(&broker, "m", 1);
        let leased = take(&mut member);
        assert_eq!(leased.len(), 1);
        assert_eq!(leased[0].term(), broker.term());
        terms.push(leased[0].term());
        // It leaves without a word of a failure, so the attempt has the same number again.
        assert_eq!(leased[0].attempt(), 1);
        member.leave();
        broker = match end {
            Some(kind) => world.crash(broker, kind),
            None => {
                broker.close().expect("there is room");
                world.open()
            }
        };
    }
    assert!(terms.is_sorted_by(|before, after| before < after), "{terms:?}");
}

#[test]
fn a_checkpoint_while_messages_are_open_forgets_nothing() {
    let world = World::new(3);
    let broker = open(&world, Mode::Keyed);
    for index in 0..30 {
        keyed(&broker, "t", &format!("k{}", index % 3), &index.to_string());
    }
    let mut member = join(&broker, "m", 2);
    for _ in 0..5 {
        let got = take(&mut member);
        ack(&member, &got);
    }
    let open = broker.describe_group(&name("g")).unwrap().lag;
    assert_eq!(open, 20);
    broker.seal().unwrap();
    std::mem::forget(member);
    let broker = world.crash(broker, CrashKind::Power);
    let mut member = join(&broker, "n", 100);
    let mut seen = Vec::new();
    loop {
        let got = take(&mut member);
        if got.is_empty() {
            break;
        }
        seen.extend(texts_of(&got));
        ack(&member, &got);
    }
    assert_eq!(seen.len(), 20);
    assert_eq!(broker.describe_group(&name("g")).unwrap().lag, 0);
}

#[test]
fn a_member_that_leaves_gives_back_and_one_that_dies_counts() {
    let world = World::new(4);
    let broker = open(&world, Mode::Shared);
    texts(&broker, "t", 1..=2);
    let mut first = join(&broker, "a", 10);
    assert_eq!(take(&mut first).len(), 1);
    first.leave();
    let mut second = join(&broker, "b", 10);
    assert_eq!(take(&mut second)[0].attempt(), 1, "leaving counts for nothing");
    drop(second);
    let mut third = join(&broker, "c", 10);
    assert_eq!(take(&mut third)[0].attempt(), 2, "going without a word counts");
}

#[test]
fn a_lease_that_is_extended_stays() {
    let world = World::new(5);
    let broker = open(&world, Mode::Shared);
    texts(&broker, "t", 1..=2);
    let mut member = join(&broker, "m", 10);
    let got = take(&mut member);
    world.advance(900);
    let extended = member.extend(&[]);
    assert_eq!((extended.taken, extended.refused), (2, 0));
    world.advance(900);
    broker.turn();
    assert!(take(&mut member).is_empty());
    ack(&member, &got);
}

#[test]
fn a_failing_key_is_parked_while_the_others_go_on() {
    let world = World::new(6);
    let broker = open(&world, Mode::Keyed);
    for (key, body) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")] {
        keyed(&broker, "t", key, body);
    }
    text(&broker, "t", "free");
    let mut member = join(&broker, "m", 10);
    let got = take(&mut member);
    assert_eq!(texts_of(&got), ["a1", "b1", "free"], "one of a key at a time");
    let places: Vec<_> = got.iter().flat_map(|each| each.messages().iter()).collect();
    let lease = |at: usize| got[0].lease_of(places[at].position);
    member.nack(&[lease(0)], None, "no").wait().unwrap();
    member.ack(&[lease(1), lease(2)]).wait().unwrap();
    let next = take(&mut member);
    assert_eq!(texts_of(&next), ["b2"]);
    ack(&member, &next);
    let why = broker.describe_group(&name("g")).unwrap().why;
    assert!(why.contains("another attempt"), "{why}");
    world.advance(100);
    let again = take(&mut member);
    assert_eq!((texts_of(&again), again[0].attempt()), (vec!["a1".to_owned()], 2));
    ack(&member, &again);
    assert_eq!(texts_of(&take(&mut member)), ["a2"]);
}

#[test]
fn b8_one_member_is_active_and_the_next_takes_over() {
    let world = World::new(7);
    let broker = open(&world, Mode::Ordered);
    texts(&broker, "t", 1..=6);
    let mut first = join(&broker, "a", 2);
    let mut second = join(&broker, "b", 10);
    assert!(matches!(step(&mut first), Some(Ok(Handed::Active))));
    assert!(matches!(step(&mut second), Some(Ok(Handed::Standby))));
    let got = take(&mut first);
    assert_eq!(texts_of(&got), ["1", "2"]);
    assert!(take(&mut second).is_empty());
    let last = got.last().unwrap().leases().last().unwrap().last;
    assert_eq!(first.commit(last).wait().unwrap().taken, 2);
    let got = take(&mut first);
    assert_eq!(texts_of(&got), ["3", "4"]);
    // It fails at the third, so it begins again there.
    let third = got[0].messages().iter().next().unwrap().position;
    first.nack(&[got[0].lease_of(third)], None, "no").wait().unwrap();
    assert!(take(&mut first).is_empty());
    world.advance(100);
    assert_eq!(texts_of(&take(&mut first)), ["3", "4"]);
    // It hangs; the other takes over, and what it says comes too late.
    world.advance(1_001);
    broker.turn();
    assert!(matches!(step(&mut second), Some(Ok(Handed::Active))));
    assert_eq!(texts_of(&take(&mut second)), ["3", "4", "5", "6"]);
    assert_eq!(first.commit(last.plus(100)).wait().unwrap().taken, 0);
    assert_eq!(second.commit(last.plus(100)).wait().unwrap().taken, 4);
    drop(second);
    assert!(matches!(step(&mut first), Some(Ok(Handed::Standby))));
    assert!(matches!(step(&mut first), Some(Ok(Handed::Active))));
}

#[test]
fn a_group_over_a_pattern_reads_all_its_topics_in_order() {
    let world = World::new(8);
    let broker = world.open();
    for topic in ["p.a", "p.b", "q"] {
        broker.create_topic(&name(topic), TopicSettings::default()).unwrap();
    }
    broker.create_group(&name("g"), settings("p.*", Mode::Shared)).unwrap();
    for index in 1..=3 {
        text(&broker, "p.a", format!("a{index}"));
        text(&broker, "q", "not wanted");
        text(&broker, "p.b", format!("b{index}"));
    }
    let mut member = join(&broker, "m", 4);
    let got = take(&mut member);
    assert_eq!(texts_of(&got), ["a1", "b1", "a2", "b2"]);
    ack(&member, &got[1..]);
    assert_eq!(broker.describe_group(&name("g")).unwrap().lag, 3);
    std::mem::forget(member);
    let broker = world.crash(broker, CrashKind::Process);
    let mut member = join(&broker, "m", 100);
    assert_eq!(texts_of(&take(&mut member)), ["a1", "a3", "b3"]);
}

#[test]
fn pause_holds_and_resume_goes_on_over_a_restart() {
    let world = World::new(9);
    let broker = open(&world, Mode::Shared);
    text(&broker, "t", "1");
    broker.pause_group(&name("g")).unwrap();
    let broker = world.crash(broker, CrashKind::Power);
    let mut member = join(&broker, "m", 10);
    assert!(take(&mut member).is_empty());
    let info = broker.describe_group(&name("g")).unwrap();
    assert_eq!(info.state, GroupDoing::Paused);
    assert!(info.why.contains("paused"));
    broker.resume_group(&name("g")).unwrap();
    assert_eq!(texts_of(&take(&mut member)), ["1"]);
}

#[test]
fn b5_a_reset_is_refused_with_members_unless_forced() {
    let world = World::new(10);
    let broker = open(&world, Mode::Shared);
    texts(&broker, "t", 1..=5);
    let mut member = join(&broker, "m", 10);
    let got = take(&mut member);
    ack(&member, &got);
    let to = GroupStart::Seq(Seq(4));
    let refused = broker.reset_group(&name("g"), to, false);
    assert!(matches!(refused, Err(GroupError::Active { members: 1, .. })));
    broker.reset_group(&name("g"), to, true).unwrap();
    let got = take(&mut member);
    assert_eq!(texts_of(&got), ["4", "5"]);
    broker.reset_group(&name("g"), GroupStart::Beginning, true).unwrap();
    assert_eq!(member.ack(got[0].leases()).wait().unwrap().refused, 2);
    assert_eq!(texts_of(&take(&mut member)), ["1", "2", "3", "4", "5"]);
    drop(member);
    broker.reset_group(&name("g"), GroupStart::Now, false).unwrap();
    let broker = world.crash(broker, CrashKind::Power);
    let mut member = join(&broker, "m", 10);
    assert!(take(&mut member).is_empty());
    text(&broker, "t", "6");
    assert_eq!(texts_of(&take(&mut member)), ["6"]);
    broker.reset_group(&name("g"), GroupStart::Time(START), true).unwrap();
    assert_eq!(take(&mut member).iter().map(|each| each.messages().count()).sum::<usize>(), 6);
}

#[test]
fn d10_a_gap_stops_a_group_or_is_passed_over_as_configured() {
    for on_gap in [OnGap::Stop, OnGap::Continue] {
        let world = World::new(11);
        let broker = world.open();
        let retention = Retention { count: Some(3), ..Retention::default() };
        let topic = TopicSettings { retention, ..TopicSettings::default() };
        broker.create_topic(&name("t"), topic).unwrap();
        let group = GroupSettings { on_gap, ..settings("t", Mode::Shared) };
        broker.create_group(&name("g"), group).unwrap();
        texts(&broker, "t", 1..=10);
        broker.turn();
        let mut member = join(&broker, "m", 10);
        let Some(Ok(Handed::Gap(gap))) = step(&mut member) else { panic!("a gap comes first") };
        assert_eq!((gap.topic, gap.to), (Some(name("t")), Some(Seq(7))));
        if on_gap == OnGap::Stop {
            assert!(take(&mut member).is_empty());
            let info = broker.describe_group(&name("g")).unwrap();
            assert!(matches!(info.state, GroupDoing::Stopped(_)));
            assert!(info.why.contains("gone (retention)"), "{}", info.why);
            broker.resume_group(&name("g")).unwrap();
        }
        assert_eq!(texts_of(&take(&mut member)), ["8", "9", "10"]);
    }
}

#[test]
fn d10_what_was_kept_when_a_group_began_and_goes_unread_is_a_gap() {
    let world = World::new(11);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=10);
    broker.purge(&name("t"), Seq(3)).unwrap();
    for group in ["g", "read"] {
        broker.create_group(&name(group), settings("t", Mode::Shared)).unwrap();
    }
    // One has read them, and gone; the other has never looked.
    let mut member =
        broker.join_group(&name("read"), &Join { name: "m".to_owned(), window: 1 }).unwrap();
    let got = take(&mut member);
    assert_eq!(texts_of(&got), ["3"], "what was gone before does not count as a gap");
    ack(&member, &got);
    member.leave();
    broker.purge(&name("t"), Seq(8)).unwrap();
    for (group, from) in [("g", None), ("read", Some(Seq(4)))] {
        let join = Join { name: "m".to_owned(), window: 1 };
        let mut member = broker.join_group(&name(group), &join).unwrap();
        assert!(take(&mut member).is_empty(), "{group}");
        let info = broker.describe_group(&name(group)).unwrap();
        let GroupDoing::Stopped(gap) = info.state else { panic!("{group}: {:?}", info.state) };
        assert_eq!((gap.from, gap.to), (from, Some(Seq(7))), "{group}");
        broker.resume_group(&name(group)).unwrap();
        assert_eq!(texts_of(&take(&mut member)), ["8"], "{group}: one resume is enough");
    }
}

#[test]
fn a_message_that_expires_is_not_waited_for() {
    let world = World::new(12);
    let broker = open(&world, Mode::Shared);
    let short = Message::new("short").with_ttl(Duration::from_millis(50));
    broker.publish(&name("t"), &short, &PublishOptions::default()).wait().unwrap();
    text(&broker, "t", "long");
    let mut member = join(&broker, "m", 1);
    assert_eq!(texts_of(&take(&mut member)), ["short"]);
    world.advance(1_001);
    broker.turn();
    assert_eq!(texts_of(&take(&mut member)), ["long"]);
    assert_eq!(broker.describe_group(&name("g")).unwrap().counts.open(), 1);
}

#[test]
fn groups_are_made_once_listed_and_deleted() {
    let world = World::new(13);
    let broker = open(&world, Mode::Shared);
    broker.create_group(&name("g"), settings("t", Mode::Shared)).unwrap();
    let other = broker.create_group(&name("g"), settings("t", Mode::Keyed));
    assert!(matches!(other, Err(GroupError::Exists(_))));
    let system = broker.create_group(&name("$g"), settings("t", Mode::Shared));
    assert!(matches!(system, Err(GroupError::Name(_))));
    let fixed = broker.configure_group(&name("g"), settings("t", Mode::Keyed));
    assert!(matches!(fixed, Err(GroupError::Fixed(_))));
    let longer = GroupSettings { attempts_max: 9, ..settings("t", Mode::Shared) };
    assert_eq!(broker.configure_group(&name("g"), longer).unwrap().settings.attempts_max, 9);
    let broker = world.crash(broker, CrashKind::Power);
    assert_eq!(broker.list_groups()[0].settings.attempts_max, 9);
    let mut member = join(&broker, "m", 1);
    broker.delete_group(&name("g")).unwrap();
    assert!(matches!(step(&mut member), Some(Err(MemberError::Deleted(_)))));
    drop(member);
    let broker = world.crash(broker, CrashKind::Power);
    assert!(broker.list_groups().is_empty());
    assert!(matches!(broker.describe_group(&name("g")), Err(GroupError::Unknown(_))));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_stops_waiting_leaves_the_wake_to_the_next() {
    let world = World::new(31);
    let broker = open(&world, Mode::Shared);
    let (mut first, mut second) = (join(&broker, "first", 10), join(&broker, "second", 10));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    // Both wait, then the one that came first gives up.
    {
        let mut waiting = std::pin::pin!(first.next());
        let context = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(context).is_pending());
        assert!(second.poll_next(&mut Context::from_waker(&waker)).is_pending());
    }
    let before = woken.0.load(Ordering::SeqCst);
    publish(&broker, "t", &Message::new("1"));
    assert!(woken.0.load(Ordering::SeqCst) > before, "the other is woken");
    assert_eq!(texts_of(&take(&mut second)), ["1"]);
}

/// Found by the simulator, among members over a faulty disk: seeds 95 and 205.
#[test]
fn a_pause_that_was_told_is_flushed_though_acks_need_not_be() {
    let world = World::new(21);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let durability = gapless_core::Durability::Written;
    let written = GroupSettings { durability, ..settings("t", Mode::Shared) };
    broker.create_group(&name("g"), written).unwrap();
    world.fs.fail_sync(1, std::io::ErrorKind::Other, gapless_journal::faulty::Times::Once);
    let paused = broker.pause_group(&name("g"));
    let broker = world.crash(broker, CrashKind::Power);
    let is_paused = broker.describe_group(&name("g")).unwrap().state == GroupDoing::Paused;
    assert!(is_paused || paused.is_err(), "the answer said that it is paused, and it is not");
}

#[test]
fn what_waits_behind_its_key_is_handed_out_together_when_its_turn_comes() {
    let world = World::new(22);
    let broker = open(&world, Mode::Keyed);
    for _ in 0..50 {
        let message = |key: u64| Message::new("x").with_key(format!("k{key}"));
        let batch: Vec<Message> = (0..10).map(message).collect();
        broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
    }
    let mut member = join(&broker, "m", 100);
    let (mut messages, mut hand_outs) = (0, 0);
    while let Some(Ok(Handed::Messages(leased))) = step(&mut member) {
        hand_outs += 1;
        messages += leased.messages().count();
        ack(&member, std::slice::from_ref(&leased));
    }
    // One of each key at a time; read again one by one, it were many more.
    assert_eq!((messages, hand_outs), (500, 50));
}

/// Works off everything with two members that ack what they hold only when neither gets more;
/// tells how many hand-outs it took, and asserts the order of each key.
fn work_off(broker: &Broker, messages: usize, window: u32) -> usize {
    let mut members = [join(broker, "a", window), join(broker, "b", window)];
    let mut last_of_key = std::collections::BTreeMap::new();
    let (mut done, mut hand_outs) = (0, 0);
    while done < messages {
        let held: Vec<Vec<Leased>> = members.iter_mut().map(take).collect();
        for (member, leased) in members.iter().zip(&held) {
            for delivered in leased.iter().flat_map(|each| each.messages().iter()) {
                let before = last_of_key.insert(delivered.message.key.clone(), delivered.seq);
                assert!(before < Some(delivered.seq), "a key is in order");
                done += 1;
            }
            hand_outs += leased.len();
            ack(member, leased);
        }
        assert!(held.iter().any(|held| !held.is_empty()), "stuck at {done}");
    }
    hand_outs
}

#[test]
fn a_backlog_beyond_what_is_read_ahead_is_handed_out_in_as_large_pieces() {
    const KEYS: u64 = 20;
    const MESSAGES: u64 = 4_000;
    let hand_outs = |read_ahead_bytes: usize| {
        let mut world = World::new(23);
        world.options.limits.group_read_ahead_bytes_max = read_ahead_bytes;
        let broker = open(&world, Mode::Keyed);
        for at in 0..MESSAGES / 100 {
            let message =
                |index| Message::new("x".repeat(50)).with_key(format!("{}", index % KEYS));
            let batch: Vec<Message> = (at * 100..at * 100 + 100).map(message).collect();
            broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
        }
        // Some of it is in segments, some still in memory.
        broker.seal().unwrap();
        work_off(&broker, MESSAGES as usize, 1_000)
    };
    let enough = hand_outs(usize::MAX);
    let little = hand_outs(16 * 1024);
    assert!(little <= enough + enough / 4, "{little} hand-outs instead of {enough}");
}
