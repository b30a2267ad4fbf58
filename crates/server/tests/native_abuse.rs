//! F3: whatever comes in, the listener answers or ends that connection, and serves the others.

mod common;

use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::*;
use gapless_core::{Message, Position, PublishOptions, Seq, TopicSettings};
use gapless_protocol::*;

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Sends bytes that may be refused in the middle; the end of the connection is awaited.
fn send_and_end(mut peer: Peer, bytes: &[u8]) -> Vec<Verb> {
    let mut sent = 0;
    while sent < bytes.len() {
        match peer.socket.write(&bytes[sent..]) {
            Ok(written) => sent += written,
            Err(_) => break,
        }
    }
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| peer.socket.end_writing()));
    peer.rest()
}

#[test]
fn f3_rubbish_is_answered_with_an_error_or_the_end() {
    let server = Server::open();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..60 {
        let rubbish: Vec<u8> = (0..1 + dice.next() % 5000).map(|_| dice.next() as u8).collect();
        let peer = match round % 4 {
            0 => server.silent(),
            1 => server.silent_unix(),
            2 => server.peer(),
            _ => server.unix_peer(),
        };
        for verb in send_and_end(peer, &rubbish) {
            assert!(matches!(verb, Verb::Error(_)), "{verb:?}");
        }
    }
    send_and_end(server.silent(), b"GET / HTTP/1.1\r\nHost: gapless\r\n\r\n");
    server.still_works();
}

type Change = fn(&mut BytesMut);

#[test]
fn f3_lengths_that_are_too_large_or_disagree_end_the_connection_with_the_reason() {
    let server = Server::with(|options, _| options.frame_bytes_max = 10_000);
    let whole = |peer: &mut Peer| peer.frame(Ping { echo: "12345678".into() }).1;
    let cases: [(Change, ErrorCode); 6] = [
        (|frame| frame[..4].copy_from_slice(&u32::MAX.to_le_bytes()), ErrorCode::FrameTooLarge),
        (|frame| frame[..4].copy_from_slice(&10_000_u32.to_le_bytes()), ErrorCode::FrameTooLarge),
        (|frame| frame[..4].copy_from_slice(&0_u32.to_le_bytes()), ErrorCode::BadFrame),
        (|frame| frame[0] += 1, ErrorCode::BadFrame),
        (|frame| frame[37] = 200, ErrorCode::BadFrame),
        (|frame| frame[39] += 1, ErrorCode::BadFrame),
    ];
    for (change, expected) in cases {
        for mut peer in [server.peer(), server.unix_peer()] {
            let mut frame = whole(&mut peer);
            change(&mut frame);
            frame.extend_from_slice(&[0; 3000]);
            peer.send_bytes(&frame);
            let (verb, corr) = peer.verb_or_end().expect("the reason comes before the end");
            assert_eq!((code(&verb), corr), (expected, [0; 16]));
            assert!(peer.rest().is_empty());
        }
    }
    server.still_works();
}

#[test]
fn f3_half_a_frame_and_then_silence_ends_by_the_idle_timeout() {
    let server = Server::with(|options, _| options.idle_timeout = Duration::from_millis(300));
    let mut peer = server.peer();
    let (_, frame) = peer.frame(publish("a", &[Message::new(vec![0; 100_000])]));
    peer.send_bytes(&frame[..50_000]);
    peer.ends_with(ErrorCode::IdleTimeout);
    server.still_works();
}

#[test]
fn e2_a_frame_may_come_in_any_pieces() {
    let server = Server::open();
    let mut peer = server.peer();
    let (id, frame) = peer.frame(create("pieces"));
    for byte in frame.chunks(1) {
        peer.send_bytes(byte);
    }
    assert!(matches!(peer.answer(id), Verb::TopicInfo(_)));
    let (first, mut two) = peer.frame(Ping::default());
    let (second, more) = peer.frame(Ping::default());
    two.extend_from_slice(&more);
    peer.send_bytes(&two);
    assert!(matches!(peer.answer(first), Verb::Pong(_)));
    assert!(matches!(peer.answer(second), Verb::Pong(_)));
    let large = publish("pieces", &[Message::new(vec![1; 3 << 20])]);
    accepted(&peer.ask(large));
    server.still_works();
}

fn raw(kind: u8, id: [u8; 16], subject: &str, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let ids = Ids::question(id);
    let head = Head { kind, ids, subject, payload_bytes: payload.len() };
    head.encode(FrameLimit::MAX, &mut out).expect("a head");
    out.extend_from_slice(payload);
    out
}

#[test]
fn f3_every_kind_that_is_not_for_clients_is_refused_by_number_and_the_connection_goes_on() {
    let server = Server::open();
    let mut peer = server.peer();
    for kind in 0..=255_u8 {
        let expected = match Kind::from_number(kind) {
            None => ErrorCode::UnknownKind,
            Some(known) if known.is_of_jobs() => ErrorCode::NotOffered,
            Some(known) if !known.side().is_clients() => ErrorCode::UnexpectedKind,
            Some(_) => continue,
        };
        for payload in [&[][..], &[0; 40]] {
            let id = peer.id();
            peer.send_bytes(&raw(kind, id, "", payload));
            let answer = peer.answer(id);
            assert_eq!(code(&answer), expected, "kind {kind}");
        }
    }
    server.still_works();
}

/// One of each thing that a client may ask after its hello.
fn questions() -> Vec<Verb> {
    let two = [Message::new("a").with_key("k").with_id("i"), Message::tombstone("k")];
    let commit = Commit {
        options: PublishOptions::default(),
        parts: vec![CommitPart { topic: name("abused"), expect: None, records: records(&two) }],
        cells: vec![CellWrite {
            name: "cell".into(),
            value: Some("v".into()),
            expect: ExpectCell::Anything,
        }],
    };
    let topic = || name("abused");
    let nowhere = Token { epoch: gapless_core::Epoch(0), position: Position(0) };
    vec![
        Ping { echo: "echo".into() }.into(),
        TopicCreate { topic: topic(), settings: TopicSettings::default() }.into(),
        TopicConfigure { topic: topic(), settings: TopicSettings::default() }.into(),
        TopicDescribe { topic: topic() }.into(),
        TopicList { pattern: pattern("abused.>"), after: Some(name("abused.a")), limit: 3 }.into(),
        TopicDelete { topic: name("not.there") }.into(),
        TopicPurge { topic: topic(), below: Seq(1) }.into(),
        publish("abused", &two).into(),
        Publish {
            not_before: Some(gapless_core::Timestamp(9)),
            ..publish("abused", &[Message::new("x")])
        }
        .into(),
        commit.into(),
        CancelDelayed { id: Position(7) }.into(),
        Subscribe { credit_messages: 1, credit_bytes: 1, ..subscribe("abused", StartFrom::Now) }
            .into(),
        subscribe("abused", StartFrom::Token(nowhere)).into(),
        Unsubscribe { subscription: 1, hold: false }.into(),
        Get { topic: topic(), key: "k".into() }.into(),
        Read { topic: topic(), seq: Seq(1) }.into(),
        CellRead { name: "cell".into() }.into(),
        Clients { after: 0, limit: 1 }.into(),
        Stats.into(),
    ]
}

/// Sends a frame with each of these payloads; each must have exactly one answer.
fn each_is_answered(peer: &mut Peer, frame: &Frame, payloads: &[Vec<u8>]) {
    let subject = std::str::from_utf8(&frame.subject).expect("text");
    let mut waiting = std::collections::BTreeSet::new();
    for some in payloads.chunks(50) {
        let mut out = BytesMut::new();
        for payload in some {
            let id = peer.id();
            waiting.insert(id);
            out.extend_from_slice(&raw(frame.kind, id, subject, payload));
        }
        peer.send_bytes(&out);
        while !waiting.is_empty() {
            let (verb, corr) = peer.verb_or_end().expect("the connection goes on");
            if corr != [0; 16] {
                assert!(waiting.remove(&corr), "one answer each: {verb:?}");
            }
        }
    }
}

#[test]
fn f3_broken_payloads_of_every_verb_are_answered_and_the_connection_goes_on() {
    let server = Server::with(|options, _| options.subscriptions_max = 100_000);
    server.create("abused");
    server.fill("abused", 3);
    for verb in questions() {
        let mut peer = server.peer();
        let (_, mut bytes) = peer.frame(verb);
        let frame = Decoder::new(FrameLimit::MAX).decode(&mut bytes).expect("good").expect("whole");
        let payload = frame.payload.to_vec();
        let mut broken: Vec<Vec<u8>> =
            (0..payload.len()).map(|len| payload[..len].to_vec()).collect();
        for bit in 0..payload.len() * 8 {
            let mut flipped = payload.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            broken.push(flipped);
        }
        broken.push([&payload[..], &[0]].concat());
        broken.push(vec![0xff; 300]);
        each_is_answered(&mut peer, &frame, &broken);
        // A subject that is none, or that the kind does not have.
        for subject in ["..", "a b", "\u{1}", "*.*.>.x", "$events.x"] {
            let id = peer.id();
            peer.send_bytes(&raw(frame.kind, id, subject, &payload));
            peer.answer(id);
        }
        assert!(matches!(peer.ask(Ping::default()), Verb::Pong(_)));
    }
    server.still_works();
}

#[test]
fn f3_broken_frames_that_have_no_answer_are_errors_or_nothing() {
    let server = Server::open();
    let mut peer = server.peer();
    let credit = [1_u8; 20];
    for len in 0..20 {
        let id = peer.id();
        peer.send_bytes(&raw(Kind::Credit.number(), id, "", &credit[..len]));
        assert_eq!(code(&peer.answer(id)), ErrorCode::BadPayload);
    }
    for kind in [Kind::Pong, Kind::Bye] {
        let id = peer.id();
        peer.send_bytes(&raw(kind.number(), id, "", &[0; 100]));
        assert_eq!(code(&peer.answer(id)), ErrorCode::BadPayload);
    }
    let subject = Bytes::from_static(&[0xff, 0xfe]);
    let frame = Frame {
        kind: Kind::TopicDescribe.number(),
        msg_id: peer.id(),
        corr_id: [0; 16],
        subject,
        payload: Bytes::new(),
    };
    let mut out = BytesMut::new();
    if frame.encode(FrameLimit::MAX, &mut out).is_ok() {
        peer.send_bytes(&out);
        code(&peer.answer(frame.msg_id));
    }
    server.still_works();
}

#[test]
fn f3_broken_hellos_are_told_what_is_wrong_and_left() {
    let server = Server::open();
    let mut maker = server.silent();
    let (_, mut bytes) = maker.frame(Hello { token: Some("t".into()), ..hello() });
    let frame = Decoder::new(FrameLimit::MAX).decode(&mut bytes).expect("good").expect("whole");
    for len in 0..frame.payload.len() {
        let mut peer = server.silent();
        let id = peer.id();
        peer.send_bytes(&raw(frame.kind, id, "", &frame.payload[..len]));
        assert_eq!(code(&peer.answer(id)), ErrorCode::BadPayload);
        assert!(peer.rest().is_empty());
    }
    server.still_works();
}

#[test]
fn a_publisher_that_never_reads_its_acks_is_made_to_wait_and_loses_nothing() {
    let server = Server::with(|options, _| {
        options.output_bytes_max = 16 * 1024;
        options.in_flight_bytes_max = 16 * 1024;
    });
    server.create("pushed");
    let mut peer = server.unix_peer();
    peer.socket.set_timeouts(DEADLINE, Duration::from_secs(1));
    let mut ids = Vec::new();
    // Until the socket takes nothing for a second: that is the back-pressure.
    let rest = 'full: loop {
        assert!(ids.len() < 200_000, "one side must stop reading");
        let (id, frame) = peer.frame(publish("pushed", &[Message::new(vec![5; 200])]));
        ids.push(id);
        let mut sent = 0;
        while sent < frame.len() {
            match peer.socket.write(&frame[sent..]) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    break 'full frame.freeze().slice(sent..);
                }
                Err(error) => panic!("the connection goes on: {error}"),
            }
        }
    };
    server.still_works();
    let mut rest = Some(rest);
    let sent = ids.len();
    for (seq, id) in (1..).zip(ids) {
        // Reading makes room for what could not be sent.
        if seq == sent as u64 {
            rest.take().into_iter().for_each(|rest| peer.send_bytes(&rest));
        }
        assert_eq!(accepted(&peer.answer(id)).accepted.first, Seq(seq));
    }
    server.still_works();
}

#[test]
fn f3_a_crowd_of_publishers_above_the_common_limit_all_get_their_acks() {
    let server = Server::with(|options, _| {
        options.in_flight_bytes_max = 64 * 1024;
        options.in_flight_total_bytes_max = 64 * 1024;
    });
    server.create("crowd");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut peer = server.peer();
                let one = [Message::new(vec![1; 10_000])];
                let ids: Vec<_> = (0..50).map(|_| peer.send(publish("crowd", &one))).collect();
                for id in ids {
                    accepted(&peer.answer(id));
                }
            });
        }
    });
    let info = server.broker.describe_topic(&name("crowd")).expect("a topic");
    assert_eq!(info.next, Seq(401));
    server.still_works();
}

#[test]
fn a_publish_waits_for_a_journal_that_is_full_and_is_not_refused() {
    let server = Server::with(|_, broker| {
        broker.journal.waiting_bytes_max = 64 * 1024;
    });
    server.create("busy");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut peer = server.peer();
                let one = [Message::new(vec![1; 20_000])];
                let ids: Vec<_> = (0..50).map(|_| peer.send(publish("busy", &one))).collect();
                for id in ids {
                    accepted(&peer.answer(id));
                }
            });
        }
    });
    server.still_works();
}

#[test]
fn f3_connections_that_vanish_in_the_middle_leave_nothing_behind() {
    let server = Server::open();
    server.create("gone");
    let mut dice = Dice(42);
    for _ in 0..50 {
        let mut peer =
            if dice.next().is_multiple_of(2) { server.peer() } else { server.unix_peer() };
        peer.follow(subscribe("gone", StartFrom::Beginning));
        let (_, frame) = peer.frame(publish("gone", &[Message::new(vec![0; 5000])]));
        for _ in 0..dice.next() % 5 {
            peer.send_bytes(&frame);
        }
        let cut = dice.next() as usize % frame.len();
        peer.send_bytes(&frame[..cut]);
    }
    server.until("all are gone", |server| server.listener().connections() == 0);
    server.until("no subscriber is left", |server| server.broker.subscribers().is_empty());
    server.still_works();
}
