//! Every question of the native protocol and its answer.

mod common;

use std::time::Duration;

use bytes::BytesMut;
use common::*;
use gapless_core::{
    Durability, Expect, Message, PublishOptions, RejectReason, Retention, Seq, Storage, Timestamp,
    TopicSettings, TotalLimit,
};
use gapless_protocol::*;

#[test]
fn topics_are_made_set_looked_at_listed_purged_and_deleted() {
    let server = Server::open();
    let mut peer = server.peer();
    let Verb::TopicInfo(made) = peer.ask(create("orders.a")) else { panic!("an info") };
    assert_eq!((made.name.as_str(), made.next), ("orders.a", Seq(1)));
    assert!(matches!(peer.ask(create("orders.a")), Verb::TopicInfo(same) if same == made));
    let settings = TopicSettings {
        retention: Retention { count: Some(5), ..Retention::default() },
        ..TopicSettings::default()
    };
    let other = TopicCreate { settings, ..create("orders.a") };
    assert_eq!(code(&peer.ask(other)), ErrorCode::TopicExists);
    let set = TopicConfigure { topic: name("orders.a"), settings };
    let Verb::TopicInfo(set) = peer.ask(set) else { panic!("an info") };
    assert_eq!(set.settings, settings);
    let volatile = TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() };
    let set = TopicConfigure { topic: name("orders.a"), settings: volatile };
    assert_eq!(code(&peer.ask(set)), ErrorCode::StorageFixed);
    assert_eq!(code(&peer.ask(create("$own"))), ErrorCode::ReservedName);

    peer.ask(create("orders.b"));
    peer.ask(create("users.a"));
    let list = TopicList { pattern: pattern("orders.>"), after: None, limit: 1 };
    let Verb::TopicInfos(page) = peer.ask(list.clone()) else { panic!("a page") };
    assert_eq!((page.topics[0].name.as_str(), page.more), ("orders.a", true));
    let list = TopicList { after: Some(name("orders.a")), ..list };
    let Verb::TopicInfos(page) = peer.ask(list) else { panic!("a page") };
    assert_eq!((page.topics[0].name.as_str(), page.more), ("orders.b", false));

    for body in ["1", "2", "3"] {
        accepted(&peer.ask(publish("orders.b", &[Message::new(body)])));
    }
    let purge = |below| TopicPurge { topic: name("orders.b"), below: Seq(below) };
    assert_eq!(peer.ask(purge(3)), Verb::from(Done));
    assert_eq!(code(&peer.ask(purge(9))), ErrorCode::Ahead);
    let Verb::TopicInfo(info) = peer.ask(TopicDescribe { topic: name("orders.b") }) else {
        panic!("an info")
    };
    assert_eq!((info.first, info.next), (Seq(3), Seq(4)));
    assert_eq!(peer.ask(TopicDelete { topic: name("orders.b") }), Verb::from(Done));
    for gone in [
        Verb::from(TopicDescribe { topic: name("orders.b") }),
        TopicDelete { topic: name("orders.b") }.into(),
        purge(1).into(),
    ] {
        assert_eq!(code(&peer.ask(gone)), ErrorCode::UnknownTopic);
    }
    server.still_works();
}

#[test]
fn a_topic_takes_messages_that_are_sent_right_behind_the_question_that_makes_it() {
    let server = Server::open();
    let mut peer = server.peer();
    let (mut wire, mut ids) = (BytesMut::new(), Vec::new());
    for number in 0..50 {
        let topic = format!("made.{number}");
        let verbs: [Verb; 2] =
            [create(&topic).into(), publish(&topic, &[Message::new("first")]).into()];
        for verb in verbs {
            let (id, frame) = peer.frame(verb);
            wire.extend_from_slice(&frame);
            ids.push(id);
        }
    }
    peer.send_bytes(&wire);
    for pair in ids.chunks_exact(2) {
        assert!(matches!(peer.answer(pair[0]), Verb::TopicInfo(_)));
        assert_eq!(accepted(&peer.answer(pair[1])).accepted.first, Seq(1));
    }
    server.still_works();
}

#[test]
fn publishes_are_numbered_in_the_order_they_were_sent() {
    let server = Server::open();
    server.create("numbers");
    let mut peer = server.peer();
    let ids: Vec<_> = (0..300)
        .map(|number| peer.send(publish("numbers", &[Message::new(format!("{number}"))])))
        .collect();
    for (seq, id) in (1..).zip(ids) {
        let ack = peer.answer(id);
        let ack = accepted(&ack);
        assert_eq!((ack.accepted.first, ack.accepted.last), (Seq(seq), Seq(seq)));
        assert_eq!((ack.count, &ack.known, ack.accepted.duplicate), (1, &Known::None, false));
    }
    server.still_works();
}

#[test]
fn f3_among_publishes_that_came_together_each_gets_its_own_answer() {
    let server = Server::open();
    let mut peer = server.peer();
    let settings = TopicSettings { max_message_bytes: Some(100), ..TopicSettings::default() };
    peer.ask(TopicCreate { settings, ..create("t") });
    // In one write, so that they arrive together.
    let (mut wire, mut ids) = (BytesMut::new(), Vec::new());
    let large = "x".repeat(101);
    let bodies = ["a", "b", large.as_str(), "c", "d"];
    let first = Message::new("first").with_id("1");
    let messages =
        [first.clone()].into_iter().chain(bodies.map(|body| Message::new(body.to_owned())));
    for message in messages.chain([first]) {
        let (id, frame) = peer.frame(publish("t", &[message]));
        wire.extend_from_slice(&frame);
        ids.push(id);
    }
    peer.send_bytes(&wire);
    let answers: Vec<Verb> = ids.into_iter().map(|id| peer.answer(id)).collect();
    for (index, seq) in [(0, 1), (1, 2), (2, 3), (4, 4), (5, 5)] {
        let ack = accepted(&answers[index]);
        assert_eq!((ack.accepted.first, ack.known.clone()), (Seq(seq), Known::None), "{index}");
    }
    assert_eq!(rejected(&answers[3]), RejectReason::TooLarge { bytes: 101, max: 100 });
    assert_eq!(accepted(&answers[6]).known, Known::These(vec![(0, Seq(1))]));
    server.still_works();
}

#[test]
fn who_gives_a_publish_no_id_gets_no_answer_to_it() {
    let server = Server::open();
    server.create("t");
    let mut peer = server.peer();
    let mut wire = BytesMut::new();
    for topic in ["t", "unknown", "t", "t"] {
        let publish = Verb::from(publish(topic, &[Message::new("x")]));
        publish.encode(Ids::NONE, FrameLimit::MAX, &mut wire).unwrap();
    }
    peer.send_bytes(&wire);
    // Answers come in order, so nothing came before this one.
    let id = peer.send(publish("t", &[Message::new("with id")]));
    let (answer, to) = peer.verb_or_end().unwrap();
    assert_eq!((to, accepted(&answer).accepted.first), (id, Seq(4)));
    server.still_works();
}

#[test]
fn a_batch_gets_seqs_in_a_row_and_the_safety_it_asked_for() {
    let server = Server::open();
    server.create("safe");
    let mut peer = server.unix_peer();
    let three: Vec<Message> = ["a", "b", "c"].map(Message::new).into();
    let mut next = 1;
    for durability in [Durability::Memory, Durability::Written, Durability::Flushed] {
        let options = PublishOptions { durability: Some(durability), ..PublishOptions::default() };
        let ack = peer.ask(Publish { options, ..publish("safe", &three) });
        let ack = accepted(&ack);
        assert_eq!((ack.accepted.first, ack.accepted.last), (Seq(next), Seq(next + 2)));
        assert!(ack.accepted.durability >= durability);
        assert_eq!(ack.seq_of(1), Some(Seq(next + 1)));
        next += 3;
    }
    server.still_works();
}

#[test]
fn a3_what_is_wrong_with_a_publish_is_a_rejection_and_no_error() {
    let server = Server::open();
    server.create("strict");
    let volatile = TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() };
    server.broker.create_topic(&name("volatile"), volatile).unwrap();
    let mut peer = server.peer();
    let one = [Message::new("x").with_key("k")];
    let with = |expect| PublishOptions { expect: Some(expect), ..PublishOptions::default() };
    let wrong = Publish { options: with(Expect::TopicLast(Seq(9))), ..publish("strict", &one) };
    assert_eq!(rejected(&peer.ask(wrong)), RejectReason::ExpectedSeq { actual: Seq(0) });
    let right = Publish { options: with(Expect::TopicLast(Seq(0))), ..publish("strict", &one) };
    accepted(&peer.ask(right.clone()));
    assert_eq!(rejected(&peer.ask(right)), RejectReason::ExpectedSeq { actual: Seq(1) });
    let key = Publish { options: with(Expect::KeyLast(Seq(1))), ..publish("strict", &one) };
    assert_eq!(accepted(&peer.ask(key)).accepted.last, Seq(2));
    let wanted = PublishOptions { require_subscribers: Some(true), ..PublishOptions::default() };
    let alone = Publish { options: wanted, ..publish("strict", &one) };
    assert_eq!(rejected(&peer.ask(alone)), RejectReason::NoSubscribers);
    assert_eq!(rejected(&peer.ask(publish("$own", &one))), RejectReason::InvalidTopic);
    // O4: a misspelt topic is named as such.
    assert_eq!(rejected(&peer.ask(publish("nowhere", &one))), RejectReason::UnknownTopic);
    // V7: a volatile topic does not promise what it cannot keep.
    let flushed =
        PublishOptions { durability: Some(Durability::Flushed), ..PublishOptions::default() };
    let flushed = Publish { options: flushed, ..publish("volatile", &one) };
    assert_eq!(rejected(&peer.ask(flushed)), RejectReason::NotDurable);
    let later = server.broker.now().after(Duration::from_secs(3600));
    let delayed = Publish { not_before: Some(later), ..publish("nowhere", &one) };
    assert_eq!(rejected(&peer.ask(delayed)), RejectReason::UnknownTopic);
    let delayed = Publish { not_before: Some(later), ..publish("volatile", &one) };
    assert_eq!(rejected(&peer.ask(delayed)), RejectReason::NotDurable);
    // Subjects without a topic live in memory only, for those who follow them now.
    let mut follower = server.peer();
    follower.follow(subscribe("nowhere", StartFrom::Now));
    let two = [Message::new("1"), Message::new("2")];
    assert_eq!(accepted(&peer.ask(publish("nowhere", &two))).count, 2);
    drop(follower);
    assert_eq!(accepted(&peer.ask(publish("volatile", &two))).count, 2);
    server.still_works();
}

#[test]
fn f2_the_same_id_is_stored_once_and_the_ack_says_so() {
    let server = Server::open();
    server.create("once");
    let mut peer = server.peer();
    let message = |id: &str| Message::new(id.to_owned()).with_id(id.to_owned());
    let first = accepted(&peer.ask(publish("once", &[message("a")]))).clone();
    let again = accepted(&peer.ask(publish("once", &[message("a")]))).clone();
    assert!(!first.accepted.duplicate && again.accepted.duplicate);
    assert_eq!((again.seq_of(0), first.seq_of(0)), (Some(Seq(1)), Some(Seq(1))));
    let mixed = accepted(&peer.ask(publish("once", &[message("a"), message("b")]))).clone();
    assert_eq!((mixed.accepted.first, mixed.accepted.last), (Seq(2), Seq(2)));
    assert_ne!(mixed.known, Known::None);
    server.still_works();
}

#[test]
fn a_delayed_message_waits_and_can_be_taken_back_once() {
    let server = Server::open();
    server.create("later");
    let mut peer = server.peer();
    let due = server.broker.now().after(Duration::from_secs(3600));
    let delayed = Publish { not_before: Some(due), ..publish("later", &[Message::new("x")]) };
    let Verb::PublishAck(ack) = peer.ask(delayed) else { panic!("an ack") };
    let [PartAck::Scheduled { id, due: told }] = ack.parts[..] else { panic!("{ack:?}") };
    assert_eq!(told, due);
    assert_eq!(peer.ask(CancelDelayed { id }), Verb::from(Cancelled { was_waiting: true }));
    assert_eq!(peer.ask(CancelDelayed { id }), Verb::from(Cancelled { was_waiting: false }));
    let past = Publish { not_before: Some(Timestamp(1)), ..publish("later", &[Message::new("y")]) };
    assert_eq!(accepted(&peer.ask(past)).accepted.last, Seq(1));
    server.still_works();
}

#[test]
fn f3_more_delayed_messages_and_cells_than_allowed_are_rejected_at_once() {
    let server = Server::with(|_, broker| {
        broker.limits.delayed_max = 1;
        broker.limits.cells_max = 1;
    });
    server.create("later");
    let mut peer = server.peer();
    let due = server.broker.now().after(Duration::from_secs(3600));
    let delayed = Publish { not_before: Some(due), ..publish("later", &[Message::new("x")]) };
    assert!(matches!(peer.ask(delayed.clone()), Verb::PublishAck(_)));
    let reached = |limit| RejectReason::LimitReached { limit, max: 1 };
    assert_eq!(rejected(&peer.ask(delayed)), reached(TotalLimit::Delayed));
    let cell = |name: &'static str| Commit {
        cells: vec![CellWrite {
            name: name.into(),
            value: Some("1".into()),
            expect: ExpectCell::Anything,
        }],
        ..Commit::default()
    };
    accepted(&peer.ask(cell("one")));
    assert_eq!(rejected(&peer.ask(cell("two"))), reached(TotalLimit::Cells));
    server.still_works();
}

#[test]
fn f2_a_commit_is_all_or_nothing_with_its_cells() {
    let server = Server::open();
    server.create("left");
    server.create("right");
    let mut peer = server.peer();
    let part = |topic: &str, expect, count: usize| CommitPart {
        topic: name(topic),
        expect,
        records: records(&vec![Message::new("x"); count]),
    };
    let commit = |expect| Commit {
        options: PublishOptions::default(),
        parts: vec![part("left", expect, 2), part("right", None, 1)],
        cells: vec![CellWrite {
            name: "cursor".into(),
            value: Some("7".into()),
            expect: ExpectCell::Anything,
        }],
    };
    let cell = |name: &'static str| CellRead { name: name.into() };
    let wrong = peer.ask(commit(Some(Expect::TopicLast(Seq(5)))));
    assert_eq!(rejected(&wrong), RejectReason::ExpectedSeq { actual: Seq(0) });
    assert_eq!(peer.ask(cell("cursor")), Verb::from(CellValue { value: None }));
    let Verb::PublishAck(ack) = peer.ask(commit(Some(Expect::TopicLast(Seq(0))))) else {
        panic!("an ack")
    };
    let [PartAck::Accepted(left), PartAck::Accepted(right)] = &ack.parts[..] else {
        panic!("two parts: {ack:?}")
    };
    assert_eq!((left.accepted.last, right.accepted.last), (Seq(2), Seq(1)));
    assert_eq!(peer.ask(cell("cursor")), Verb::from(CellValue { value: Some("7".into()) }));
    let only = Commit {
        cells: vec![CellWrite { name: "cursor".into(), value: None, expect: ExpectCell::Anything }],
        ..Commit::default()
    };
    assert_eq!(accepted(&peer.ask(only)).accepted.first, Seq(0));
    assert_eq!(peer.ask(cell("cursor")), Verb::from(CellValue { value: None }));
    let twice = Commit { parts: vec![part("left", None, 1); 2], ..Commit::default() };
    rejected(&peer.ask(twice));
    let unknown = Commit { parts: vec![part("unknown", None, 1)], ..Commit::default() };
    assert_eq!(rejected(&peer.ask(unknown)), RejectReason::UnknownTopic);
    server.still_works();
}

#[test]
fn messages_are_found_by_key_and_by_seq_or_not_at_all() {
    let server = Server::open();
    server.create("keys");
    let mut peer = server.peer();
    for body in ["old", "new"] {
        peer.ask(publish("keys", &[Message::new(body).with_key("k").with_header("h", "v")]));
    }
    let get = |key: &'static str| Get { topic: name("keys"), key: key.into() };
    let Verb::Found(found) = peer.ask(get("k")) else { panic!("found") };
    let record = found.records.iter().next().expect("one");
    assert_eq!((found.seq, record.body), (Seq(2), Some(&b"new"[..])));
    assert_eq!(record.to_message(&found.records.bytes).header("h").unwrap(), "v");
    assert_eq!(peer.ask(get("none")), Verb::from(NotFound));
    let read = |seq| Read { topic: name("keys"), seq: Seq(seq) };
    let Verb::Found(found) = peer.ask(read(1)) else { panic!("found") };
    assert_eq!(found.records.iter().next().expect("one").body, Some(&b"old"[..]));
    assert_eq!(peer.ask(read(3)), Verb::from(NotFound));
    let elsewhere = Read { topic: name("nowhere"), seq: Seq(1) };
    assert_eq!(code(&peer.ask(elsewhere)), ErrorCode::UnknownTopic);
    server.still_works();
}

#[test]
fn d5_stats_are_json_with_the_servers_state() {
    let server = Server::open();
    let mut peer = server.peer();
    let Verb::StatsText(stats) = peer.ask(Stats) else { panic!("stats") };
    let stats: serde_json::Value = serde_json::from_str(&stats.json).expect("JSON");
    assert_eq!(stats["connections"], 1);
    assert_eq!(stats["epoch"], server.broker.epoch().to_string());
    assert!(stats["state"].is_string());
    server.still_works();
}

#[test]
fn v8_an_ack_names_every_message_that_was_there_already() {
    let server = Server::open();
    server.create("known");
    server.create("other");
    let mut peer = server.peer();
    let with = |ids: &[&'static str]| -> Vec<Message> {
        ids.iter().map(|id| Message::new(*id).with_id(*id)).collect()
    };
    accepted(&peer.ask(publish("known", &with(&["a", "b"]))));
    let again = peer.ask(publish("known", &with(&["x", "a", "y", "b"])));
    let again = accepted(&again);
    assert_eq!(again.known, Known::These(vec![(1, Seq(1)), (3, Seq(2))]));
    let seqs: Vec<_> = (0..4).map(|index| again.seq_of(index).unwrap().0).collect();
    assert_eq!(seqs, [3, 1, 4, 2]);
    assert!(!again.accepted.duplicate);
    let all = peer.ask(publish("known", &with(&["y", "a"])));
    let all = accepted(&all);
    assert_eq!(all.known, Known::These(vec![(0, Seq(4)), (1, Seq(1))]));
    assert!(all.accepted.duplicate);
    // The same for each part of a commit.
    let part = |topic, ids: &[&'static str]| CommitPart {
        topic: name(topic),
        expect: None,
        records: records(&with(ids)),
    };
    let parts = vec![part("other", &["a", "b"]), part("known", &["n", "x"])];
    let commit = Commit { options: PublishOptions::default(), parts, cells: vec![] };
    let Verb::PublishAck(ack) = peer.ask(commit) else { panic!("an ack") };
    let known: Vec<_> = ack
        .parts
        .iter()
        .map(|part| match part {
            PartAck::Accepted(part) => part.known.clone(),
            other => panic!("accepted: {other:?}"),
        })
        .collect();
    assert_eq!(known, [Known::None, Known::These(vec![(1, Seq(3))])]);
}

#[test]
fn v8_a_list_that_does_not_fit_into_a_frame_is_left_out() {
    let server = Server::with(|options, _| options.frame_bytes_max = 8192);
    server.create("known");
    let mut peer = server.peer();
    let many: Vec<Message> =
        (0..800_u16).map(|id| Message::new("").with_id(id.to_le_bytes().to_vec())).collect();
    accepted(&peer.ask(publish("known", &many)));
    let again = peer.ask(publish("known", &many));
    assert_eq!(accepted(&again).known, Known::Some);
    let some = peer.ask(publish("known", &many[..600]));
    assert!(matches!(&accepted(&some).known, Known::These(known) if known.len() == 600));
}

#[test]
fn e2_what_follows_a_publish_that_expects_the_last_seq_of_a_key_stays_behind_it() {
    let server = Server::open();
    server.create("strict");
    let mut peer = server.peer();
    let keyed = [Message::new("x").with_key("k")];
    let expecting = |seq| {
        let options =
            PublishOptions { expect: Some(Expect::KeyLast(Seq(seq))), ..PublishOptions::default() };
        Publish { options, ..publish("strict", &keyed) }
    };
    let part = |seq| CommitPart {
        topic: name("strict"),
        expect: Some(Expect::KeyLast(Seq(seq))),
        records: records(&keyed),
    };
    let commit = Commit { parts: vec![part(2)], ..Commit::default() };
    // All at once, without waiting for an answer.
    let ids = [
        peer.send(expecting(0)),
        peer.send(publish("strict", &keyed)),
        peer.send(commit),
        peer.send(expecting(2)),
        peer.send(publish("strict", &keyed)),
    ];
    let answers = ids.map(|id| peer.answer(id));
    let seqs = [0, 1, 2, 4].map(|at| accepted(&answers[at]).accepted.last);
    assert_eq!(seqs, [Seq(1), Seq(2), Seq(3), Seq(4)]);
    assert_eq!(rejected(&answers[3]), RejectReason::ExpectedSeq { actual: Seq(3) });
    server.still_works();
}
