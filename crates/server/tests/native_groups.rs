//! Groups over frames: every verb of members, and what becomes of members that go.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use gapless_core::{
    GroupSettings, GroupStart, Lease, Message, Mode, Position, PublishOptions, RejectReason,
    RetryPolicy, Seq, TopicName, Waits,
};
use gapless_protocol::*;

fn settings(source: &str, mode: Mode) -> GroupSettings {
    let waits = Waits::Steps(vec![Duration::ZERO]);
    GroupSettings {
        mode,
        retry: RetryPolicy { waits, jitter_percent: 0 },
        ..GroupSettings::new(pattern(source))
    }
}

fn group(server: &Server, settings: GroupSettings) -> TopicName {
    server.broker.create_group(&name("work"), settings).expect("a group");
    name("work")
}

fn join(peer: &mut Peer, name: &str, window: u32) -> GroupJoined {
    let join = GroupJoin { group: common::name("work"), name: name.into(), window };
    match peer.ask(join) {
        Verb::GroupJoined(joined) => joined,
        other => panic!("joined: {other:?}"),
    }
}

/// The leased messages of a frame: position, attempt and body.
fn handed(messages: &GroupMessages) -> Vec<(Lease, Bytes)> {
    let mut handed = Vec::new();
    for batch in messages.batches.iter() {
        for record in batch.records() {
            let position = batch.header().position.plus(u64::from(record.offset));
            let named = |lease: &&Lease| (lease.first..=lease.last).contains(&position);
            if let Some(lease) = messages.leases.iter().find(named) {
                let one = Lease { first: position, last: position, attempt: lease.attempt };
                handed.push((one, Bytes::copy_from_slice(record.body.unwrap_or_default())));
            }
        }
    }
    handed
}

/// Takes frames until so many messages are there.
fn take(peer: &mut Peer, count: usize) -> Vec<(Lease, Bytes)> {
    let mut all = Vec::new();
    while all.len() < count {
        match peer.next() {
            Verb::GroupMessages(messages) => all.extend(handed(&messages)),
            other => panic!("messages: {other:?}"),
        }
    }
    all
}

fn leases(handed: &[(Lease, Bytes)]) -> Vec<Lease> {
    handed.iter().map(|(lease, _)| *lease).collect()
}

fn ack(member: u64, leases: Vec<Lease>) -> GroupAck {
    GroupAck { member, confirm: Confirm::Durable, which: Which::Leases(leases) }
}

fn done(verb: &Verb) -> (u64, u64) {
    match verb {
        Verb::GroupDone(done) => (done.taken, done.refused),
        other => panic!("done: {other:?}"),
    }
}

#[test]
fn c6_a_member_takes_acks_gives_back_extends_and_ends_messages() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 10);
    group(&server, settings("orders", Mode::Shared));
    let mut peer = server.peer();
    let joined = join(&mut peer, "one", 100);
    assert_eq!((joined.mode, joined.lease_ms), (Mode::Shared, 30_000));
    let member = joined.member;
    let got = take(&mut peer, 10);
    assert_eq!(got[9].1, "orders 9");

    assert_eq!(done(&peer.ask(ack(member, leases(&got[..4])))), (4, 0));
    assert_eq!(done(&peer.ask(ack(member, leases(&got[..4])))), (0, 4), "they are done");
    let through = Which::Through(got[4].0.last);
    let commit = GroupAck { member, confirm: Confirm::Counted, which: through };
    assert_eq!(done(&peer.ask(commit)), (1, 0));
    let extend = GroupExtend { member, confirm: Confirm::Counted, leases: Vec::new() };
    let Verb::GroupDone(extended) = peer.ask(extend) else { panic!("done") };
    assert_eq!(extended.taken, 5);
    assert!(extended.deadline.is_some());

    let nack = GroupNack {
        member,
        confirm: Confirm::Durable,
        delay_ms: Some(0),
        reason: "not yet".into(),
        leases: leases(&got[5..6]),
    };
    assert_eq!(done(&peer.ask(nack)), (1, 0));
    let again = take(&mut peer, 1);
    assert_eq!((again[0].0.attempt, &again[0].1), (2, &got[5].1), "it comes again");

    let terminate = GroupTerminate {
        member,
        confirm: Confirm::Durable,
        reason: "never".into(),
        leases: leases(&again),
    };
    assert_eq!(done(&peer.ask(terminate)), (1, 0));
    server.until("it is a dead letter", |server| {
        server.broker.describe_group(&name("work")).expect("a group").dead_letters == 1
    });

    // What is not answered counts all the same.
    peer.send(GroupAck { confirm: Confirm::Nothing, ..ack(member, leases(&got[6..])) });
    assert!(
        matches!(peer.ask(GroupLeave { member }), Verb::GroupLeft(left) if left.error.is_none())
    );
    let info = server.broker.describe_group(&name("work")).expect("a group");
    assert_eq!((info.lag, info.members.len()), (0, 0));
    assert_eq!(code(&peer.ask(ack(member, leases(&got[..1])))), ErrorCode::UnknownMember);
    assert_eq!(code(&peer.ask(GroupLeave { member })), ErrorCode::UnknownMember);
    server.still_works();
}

#[test]
fn a_window_bounds_what_is_with_a_member_and_can_be_changed() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 20);
    group(&server, settings("orders", Mode::Shared));
    let mut peer = server.peer();
    let member = join(&mut peer, "one", 3).member;
    let got = take(&mut peer, 3);
    assert!(peer.all_there_is().is_empty(), "no more than the window");
    assert_eq!(done(&peer.ask(ack(member, leases(&got)))), (3, 0));
    take(&mut peer, 3);
    assert!(peer.all_there_is().is_empty());
    peer.send(GroupCredit { member, window: 10 });
    take(&mut peer, 7);
    assert!(peer.all_there_is().is_empty());
}

#[test]
fn a_member_whose_connection_is_lost_has_failed_and_one_that_says_bye_has_not() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 4);
    group(&server, settings("orders", Mode::Shared));
    let attempt = |says_bye: bool| {
        let mut peer = server.peer();
        join(&mut peer, "one", 100);
        let got = take(&mut peer, 4);
        if says_bye {
            peer.send(Bye);
            peer.rest();
        }
        drop(peer);
        server.until("it is gone", |server| {
            server.broker.describe_group(&name("work")).expect("a group").members.is_empty()
        });
        got[0].0.attempt
    };
    assert_eq!(attempt(true), 1);
    assert_eq!(attempt(false), 1);
    assert_eq!(attempt(false), 2);
    assert_eq!(attempt(true), 3);
    assert_eq!(attempt(true), 3);
}

#[test]
fn c6_a_lease_that_runs_out_goes_to_another_and_the_late_ack_is_refused() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 2);
    let lease = Duration::from_millis(50);
    group(&server, GroupSettings { lease, ..settings("orders", Mode::Shared) });
    let mut slow = server.peer();
    let member = join(&mut slow, "slow", 100).member;
    let got = take(&mut slow, 2);
    let mut other = server.peer();
    join(&mut other, "other", 100);
    // Whichever of the two gets them, it is the second attempt.
    slow.send(GroupCredit { member, window: 0 });
    let again = take(&mut other, 2);
    assert!(again.iter().all(|(lease, _)| lease.attempt >= 2), "{again:?}");
    assert_eq!(done(&slow.ask(ack(member, leases(&got)))), (0, 2));
}

#[test]
fn ordered_groups_have_one_active_member_and_a_standby_takes_over() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 6);
    group(&server, settings("orders", Mode::Ordered));
    let mut first = server.peer();
    let member = join(&mut first, "first", 3).member;
    assert_eq!(first.next(), GroupRole { member, active: true }.into());
    let got = take(&mut first, 3);
    let mut second = server.peer();
    let standby = join(&mut second, "second", 100).member;
    assert_eq!(second.next(), GroupRole { member: standby, active: false }.into());
    assert!(second.all_there_is().is_empty());
    assert_eq!(done(&first.ask(ack(member, leases(&got[..2])))), (2, 0));
    drop(first);
    assert_eq!(second.next(), GroupRole { member: standby, active: true }.into());
    let rest = take(&mut second, 4);
    let bodies: Vec<&Bytes> = rest.iter().map(|(_, body)| body).collect();
    assert_eq!(bodies, ["orders 2", "orders 3", "orders 4", "orders 5"]);
}

#[test]
fn b3_keyed_members_on_many_connections_see_each_key_in_order_and_one_at_a_time() {
    const MEMBERS: usize = 50;
    const KEYS: usize = 100;
    const PER_KEY: usize = 10;
    let server = Server::open();
    server.create("orders");
    for number in 0..PER_KEY {
        let messages: Vec<Message> = (0..KEYS)
            .map(|key| Message::new(format!("{number}")).with_key(format!("key-{key}")))
            .collect();
        let records = records(&messages);
        let done =
            server.broker.publish_records(&name("orders"), records, &PublishOptions::default());
        assert!(done.wait().expect("an ack").accepted().is_some());
    }
    group(&server, settings("orders", Mode::Keyed));
    let mut peers: Vec<(Peer, u64)> = (0..MEMBERS)
        .map(|number| {
            let mut peer = server.peer();
            let member = join(&mut peer, &format!("m{number}"), 2).member;
            (peer, member)
        })
        .collect();
    let mut next: BTreeMap<Bytes, u32> = BTreeMap::new();
    let mut total = 0;
    while total < KEYS * PER_KEY {
        for (peer, member) in &mut peers {
            for verb in peer.all_there_is() {
                let Verb::GroupMessages(messages) = verb else { panic!("messages: {verb:?}") };
                for batch in messages.batches.iter() {
                    for record in batch.records() {
                        let position = batch.header().position.plus(u64::from(record.offset));
                        let named = |lease: &&Lease| (lease.first..=lease.last).contains(&position);
                        let Some(lease) = messages.leases.iter().find(named) else { continue };
                        let key = Bytes::copy_from_slice(record.key.expect("a key"));
                        let body = std::str::from_utf8(record.body.expect("a body")).expect("text");
                        let place = next.entry(key).or_default();
                        assert_eq!(body.parse::<u32>().expect("a number"), *place);
                        *place += 1;
                        total += 1;
                        let one = Lease { first: position, last: position, attempt: lease.attempt };
                        assert_eq!(done(&peer.ask(ack(*member, vec![one]))), (1, 0));
                    }
                }
            }
        }
    }
    assert_eq!(next.len(), KEYS);
    assert_eq!(server.broker.describe_group(&name("work")).expect("a group").lag, 0);
}

#[test]
fn an_atomic_step_acks_and_publishes_or_does_nothing() {
    let server = Server::open();
    server.create("orders");
    server.create("bills");
    server.fill("orders", 3);
    group(&server, settings("orders", Mode::Shared));
    let mut peer = server.peer();
    let member = join(&mut peer, "one", 100).member;
    let got = take(&mut peer, 3);
    let step = |leases: Vec<Lease>| {
        let records = records(&[Message::new("a bill")]);
        let part = CommitPart { topic: name("bills"), expect: None, records };
        let commit = Commit { parts: vec![part], ..Commit::default() };
        GroupStep { acks: vec![StepAck { member, leases }], commit }
    };
    accepted(&peer.ask(step(leases(&got[..2]))));
    assert_eq!(rejected(&peer.ask(step(leases(&got)))), RejectReason::LeaseLost);
    let info = server.broker.describe_topic(&name("bills")).expect("a topic");
    assert_eq!(info.next, Seq(2), "nothing was written with the lost lease");
    let alone = GroupStep { commit: Commit::default(), ..step(leases(&got[2..])) };
    accepted(&peer.ask(alone));
    assert_eq!(server.broker.describe_group(&name("work")).expect("a group").lag, 0);
    let unknown =
        GroupStep { acks: vec![StepAck { member: 99, leases: leases(&got) }], ..step(vec![]) };
    assert_eq!(code(&peer.ask(unknown)), ErrorCode::UnknownMember);
}

#[test]
fn groups_are_made_looked_at_listed_paused_reset_and_deleted() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 5);
    let mut peer = server.peer();
    let created = settings("orders", Mode::Shared);
    let create = GroupCreate { group: name("work"), settings: created.clone() };
    let Verb::GroupInfo(info) = peer.ask(create.clone()) else { panic!("an info") };
    assert_eq!((info.lag, info.settings == created), (5, true));
    let other = GroupCreate { settings: settings("orders", Mode::Keyed), ..create };
    assert_eq!(code(&peer.ask(other)), ErrorCode::GroupExists);
    let keyed = settings("orders", Mode::Keyed);
    let fixed = GroupConfigure { group: name("work"), settings: keyed };
    assert_eq!(code(&peer.ask(fixed)), ErrorCode::GroupFixed);
    let settings = GroupSettings { attempts_max: 2, ..created };
    let configured = peer.ask(GroupConfigure { group: name("work"), settings });
    assert!(matches!(configured, Verb::GroupInfo(info) if info.settings.attempts_max == 2));

    let member = join(&mut peer, "one", 2).member;
    take(&mut peer, 2);
    let Verb::GroupInfo(info) = peer.ask(GroupDescribe { group: name("work") }) else {
        panic!("an info")
    };
    assert_eq!((info.members.len(), info.counts.in_flight), (1, 2));
    assert_eq!(info.members[0].name, "one");
    let reset = |force| GroupReset { group: name("work"), to: GroupStart::Seq(Seq(4)), force };
    assert_eq!(code(&peer.ask(reset(false))), ErrorCode::GroupActive);
    assert!(matches!(peer.ask(GroupLeave { member }), Verb::GroupLeft(_)));
    assert!(matches!(peer.ask(reset(false)), Verb::GroupInfo(info) if info.lag == 2));
    let paused = peer.ask(GroupPause { group: name("work") });
    assert!(matches!(paused, Verb::GroupInfo(info) if info.state == GroupDoing::Paused));
    let member = join(&mut peer, "two", 100).member;
    assert!(peer.all_there_is().is_empty(), "a paused group hands out nothing");
    assert!(matches!(peer.ask(GroupResume { group: name("work") }), Verb::GroupInfo(_)));
    assert_eq!(take(&mut peer, 2)[0].1, "orders 3");

    let list = GroupList { pattern: pattern(">"), after: None, limit: 10 };
    let Verb::GroupInfos(page) = peer.ask(list) else { panic!("a page") };
    assert_eq!((page.groups.len(), page.more), (1, false));
    assert_eq!(peer.ask(GroupDelete { group: name("work") }), Verb::from(Done));
    let Verb::GroupLeft(left) = peer.next() else { panic!("left") };
    assert_eq!(left.member, member);
    assert_eq!(left.error.and_then(|error| error.known()), Some(ErrorCode::GroupDeleted));
    let gone = peer.ask(GroupDescribe { group: name("work") });
    assert_eq!(code(&gone), ErrorCode::UnknownGroup);
    let join = GroupJoin { group: name("work"), name: String::new(), window: 1 };
    assert_eq!(code(&peer.ask(join)), ErrorCode::UnknownGroup);
}

#[test]
fn dead_letters_are_listed_shown_driven_again_and_removed() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 3);
    group(&server, GroupSettings { attempts_max: 1, ..settings("orders", Mode::Shared) });
    let mut peer = server.peer();
    let member = join(&mut peer, "one", 100).member;
    let got = take(&mut peer, 3);
    let nack = GroupNack {
        member,
        confirm: Confirm::Durable,
        delay_ms: None,
        reason: "no such customer".into(),
        leases: leases(&got),
    };
    assert_eq!(done(&peer.ask(nack)), (3, 0));
    let list = LetterList { group: name("work"), from: Seq(1), limit: 2 };
    server.until("they are buried", |server| {
        server.broker.describe_group(&name("work")).expect("a group").dead_letters == 3
    });
    let Verb::Letters(page) = peer.ask(list.clone()) else { panic!("letters") };
    assert_eq!((page.letters.len(), page.more), (2, true));
    let letter = &page.letters[0];
    assert_eq!((letter.topic.as_str(), letter.origin, letter.attempts), ("orders", Seq(1), 1));
    assert_eq!(letter.error, "no such customer");
    let Verb::Letters(one) = peer.ask(LetterRead { group: name("work"), seq: Seq(2) }) else {
        panic!("letters")
    };
    assert_eq!(one.letters[0].origin, Seq(2));
    assert_eq!(peer.ask(LetterRead { group: name("work"), seq: Seq(99) }), Verb::from(NotFound));

    let filter = LetterFilter { from: Some(Seq(1)), to: Some(Seq(1)), ..LetterFilter::default() };
    let redrive = LetterRedrive { group: name("work"), filter, rate: None };
    let moved = LettersMoved { count: 1, goes_on: false };
    assert_eq!(peer.ask(redrive), moved.into());
    let again = take(&mut peer, 1);
    assert_eq!(again[0].1, "orders 0");
    let remove = LetterRemove { group: name("work"), filter: LetterFilter::default() };
    assert_eq!(peer.ask(remove), LettersMoved { count: 2, goes_on: false }.into());
    let Verb::Letters(none) = peer.ask(list) else { panic!("letters") };
    assert!(none.letters.is_empty() && !none.more);
}

#[test]
fn without_the_feature_frames_of_groups_are_not_offered() {
    let server = Server::open();
    let mut peer = server.silent();
    let hello = Hello { features: Features::NONE, ..hello() };
    assert!(
        matches!(peer.ask(hello), Verb::Welcome(welcome) if welcome.features == Features::NONE)
    );
    let asked = GroupDescribe { group: name("work") };
    assert_eq!(code(&peer.ask(asked)), ErrorCode::NotOffered);
    assert_eq!(code(&peer.ask(GroupLeave { member: 1 })), ErrorCode::NotOffered);
}

#[test]
fn a_delivery_is_cut_to_the_frames_of_the_connection() {
    let server = Server::with(|options, _| options.frame_bytes_max = FRAME_BYTES_MIN);
    server.create("orders");
    let body = "x".repeat(1000);
    for _ in 0..20 {
        let messages = vec![Message::new(body.clone()); 10];
        let sent = server.broker.publish_records(
            &name("orders"),
            records(&messages),
            &PublishOptions::default(),
        );
        assert!(sent.wait().expect("an ack").accepted().is_some());
    }
    let large = Message::new("y".repeat(2 * FRAME_BYTES_MIN));
    let sent = server.broker.publish(&name("orders"), &large, &PublishOptions::default());
    assert!(sent.wait().expect("an ack").accepted().is_some());
    server.fill("orders", 1);
    group(&server, GroupSettings { attempts_max: 1, ..settings("orders", Mode::Shared) });
    let mut peer = server.peer();
    let member = join(&mut peer, "one", 1000).member;
    let got = take(&mut peer, 201);
    assert_eq!(got.len(), 201);
    let positions: std::collections::BTreeSet<Position> =
        got.iter().map(|(lease, _)| lease.first).collect();
    assert_eq!(positions.len(), 201, "each once");
    assert_eq!(done(&peer.ask(ack(member, leases(&got)))), (201, 0));
    // What fits into no frame of this connection has failed, and is not lost.
    server.until("it is a dead letter", |server| {
        server.broker.describe_group(&name("work")).expect("a group").dead_letters == 1
    });
}

#[test]
fn the_list_of_clients_shows_their_memberships_as_long_as_they_last() {
    let server = Server::open();
    server.create("orders");
    group(&server, settings("orders", Mode::Ordered));
    let message = Message::new("one");
    let options = PublishOptions::default();
    server.broker.publish(&name("orders"), &message, &options).wait().expect("it is taken");
    let (mut first, mut second, mut asker) = (server.peer(), server.peer(), server.peer());
    let active = join(&mut first, "a", 10);
    assert!(matches!(first.next(), Verb::GroupRole(GroupRole { active: true, .. })));
    take(&mut first, 1);
    let standby = join(&mut second, "b", 20);
    let mut clients = || match asker.ask(Clients { after: 0, limit: 10 }) {
        Verb::ClientList(list) => list.clients,
        other => panic!("clients: {other:?}"),
    };
    let shown = |membership, id, (in_flight, window, active), member: &str| MembershipInfo {
        membership,
        id,
        in_flight,
        window,
        active,
        group: name("work"),
        name: member.into(),
    };
    let list = clients();
    assert_eq!(list[0].memberships, [shown(active.member, active.id, (1, 10, true), "a")]);
    assert_eq!(list[1].memberships, [shown(standby.member, standby.id, (0, 20, false), "b")]);
    assert_eq!(list[2].memberships, []);
    assert_eq!((list[0].state, list[2].state), (ClientState::Online, ClientState::Connected));
    first.ask(GroupLeave { member: active.member });
    let list = clients();
    assert_eq!(list[0].memberships, []);
    assert!(list[1].memberships[0].active, "it took over");
    server.still_works();
}

#[test]
fn c6_a_lease_from_before_a_restart_is_refused_after_it() {
    let data = tempfile::tempdir().expect("a folder");
    let open = || {
        Server::with(|native, broker| {
            native.drain = Duration::from_millis(100);
            broker.folder = data.path().join("data");
        })
    };
    let mut server = open();
    server.create("orders");
    server.fill("orders", 2);
    group(&server, settings("orders", Mode::Shared));
    let mut before = server.peer();
    let old = join(&mut before, "one", 100);
    let held = take(&mut before, 2);
    // The server ends by itself, so that no attempt counts as failed.
    let closing = server.begin_close();
    server.wait(closing);
    server.broker.clone().close().expect("a clean end");
    drop((before, server));

    let server = open();
    let mut after = server.peer();
    let new = join(&mut after, "one", 100);
    let again = take(&mut after, 2);
    assert_eq!(again, held, "the same messages come, as the same attempt");
    assert_eq!(code(&after.ask(ack(old.member, leases(&held)))), ErrorCode::UnknownMember);
    let step = GroupStep {
        acks: vec![StepAck { member: old.member, leases: leases(&held) }],
        commit: Commit::default(),
    };
    assert_eq!(code(&after.ask(step)), ErrorCode::UnknownMember);
    assert_eq!(server.broker.describe_group(&name("work")).expect("a group").lag, 2);
    assert_eq!(done(&after.ask(ack(new.member, leases(&again)))), (2, 0));
}
