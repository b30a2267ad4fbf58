//! Frames and verbs both ways, whole and in pieces, and what happens to invalid bytes.

mod common;

use bytes::{Bytes, BytesMut};
use common::{any, encode, frame_of, samples};
use gapless_core::{
    Durability, Expect, Message, MessageError, NameError, PublishOptions, Record, RejectReason,
    Seq, Timestamp,
};
use gapless_protocol::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn ids() -> impl Strategy<Value = Ids> {
    any::<([u8; 16], [u8; 16])>().prop_map(|(msg_id, corr_id)| Ids { msg_id, corr_id })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn c7_every_verb_goes_there_and_back(verb in any::verb(), ids in ids()) {
        let wire = encode(&verb, ids);
        let frame = frame_of(&wire);
        prop_assert_eq!(frame.ids(), ids);
        prop_assert_eq!(Verb::decode(&frame), Ok(verb.clone()));

        let mut back = BytesMut::new();
        frame.encode(FrameLimit::MAX, &mut back).unwrap();
        prop_assert_eq!(&back, &wire);

        // Head and tail apart are the same bytes.
        let mut apart = BytesMut::new();
        let mut tail = Vec::new();
        let mut keep = |part: &Bytes| tail.extend_from_slice(part);
        verb.encode_head(ids, FrameLimit::MAX, &mut apart, &mut keep).unwrap();
        apart.extend_from_slice(&tail);
        prop_assert_eq!(apart, wire);
    }

    #[test]
    fn e2_frames_come_out_of_any_chunks(
        verbs in vec(any::verb(), 1..6),
        cuts in vec(1..50_usize, 1..40),
    ) {
        let mut wire = BytesMut::new();
        for verb in &verbs {
            verb.encode(Ids::NONE, FrameLimit::MAX, &mut wire).unwrap();
        }
        let mut input = BytesMut::new();
        let mut found = Vec::new();
        let mut sizes = cuts.iter().copied().cycle();
        while !wire.is_empty() {
            let size = sizes.next().unwrap().min(wire.len());
            input.extend_from_slice(&wire.split_to(size));
            while let Some(frame) = Decoder::default().decode(&mut input).unwrap() {
                found.push(Verb::decode(&frame).unwrap());
            }
        }
        prop_assert!(input.is_empty());
        prop_assert_eq!(found, verbs);
    }

    #[test]
    fn e2_frames_come_out_byte_by_byte(verb in any::verb()) {
        let wire = encode(&verb, Ids::NONE);
        let mut input = BytesMut::new();
        for (index, byte) in wire.iter().enumerate() {
            let missing = Decoder::default().missing(&input).unwrap();
            prop_assert!(missing > 0 && missing <= wire.len() - index);
            prop_assert_eq!(Decoder::default().decode(&mut input), Ok(None));
            input.extend_from_slice(&[*byte]);
        }
        let frame = Decoder::default().decode(&mut input).unwrap().unwrap();
        prop_assert_eq!(Verb::decode(&frame), Ok(verb));
    }

    #[test]
    fn f3_rubbish_is_refused_without_panic(
        kind in any::<u8>(), subject in vec(any::<u8>(), 0..20), payload in any::bytes(200),
    ) {
        let (msg_id, corr_id) = ([0; 16], [0; 16]);
        let frame = Frame { kind, msg_id, corr_id, subject: subject.into(), payload };
        if let Ok(verb) = Verb::decode(&frame) {
            prop_assert_eq!(verb.kind().number(), kind);
        }
    }

    #[test]
    fn what_is_cut_short_is_refused(verb in any::verb(), at in any::<prop::sample::Index>()) {
        let mut frame = frame_of(&encode(&verb, Ids::NONE));
        prop_assume!(!frame.payload.is_empty());
        frame.payload.truncate(at.index(frame.payload.len()));
        // Some verbs end in bytes of any length; then it is another verb, not this one.
        prop_assert_ne!(Verb::decode(&frame), Ok(verb));
    }
}

fn head(len: u32, subject: u16, payload: Option<u32>) -> BytesMut {
    let mut wire = BytesMut::from(&len.to_le_bytes()[..]);
    wire.extend_from_slice(&[4; 33]);
    wire.extend_from_slice(&subject.to_le_bytes());
    if let Some(payload) = payload {
        wire.extend_from_slice(&vec![b'a'; usize::from(subject)]);
        wire.extend_from_slice(&payload.to_le_bytes());
    }
    wire
}

#[test]
fn e2_a_frame_above_4_mb_is_refused_at_its_fourth_byte() {
    let decoder = Decoder::default();
    let max = FRAME_BYTES_MAX;
    let mut input = BytesMut::from(&(max as u32 - 4).to_le_bytes()[..]);
    assert_eq!(decoder.decode(&mut input), Ok(None));
    assert_eq!(decoder.missing(&input), Ok(max - 4));
    let mut input = BytesMut::from(&(max as u32 - 3).to_le_bytes()[..]);
    let refused = FrameError::TooLarge { bytes: max + 1, max };
    assert_eq!(decoder.decode(&mut input), Err(refused));
    assert_eq!(refused.code(), ErrorCode::FrameTooLarge);
    assert!(!refused.can_go_on());
    let mut input = BytesMut::from(&[0xff; 4][..]);
    assert!(decoder.decode(&mut input).is_err());
}

#[test]
fn a_lower_limit_holds_both_ways() {
    let limit = FrameLimit::at_most(10_000);
    let text = StatsText { json: "x".repeat(10_000 - FRAME_HEAD_BYTES) };
    let mut out = BytesMut::new();
    Verb::from(text.clone()).encode(Ids::NONE, limit, &mut out).unwrap();
    assert_eq!(out.len(), 10_000);
    assert_eq!(limit.payload_bytes(""), text.json.len());
    assert!(Decoder::new(limit).decode(&mut out.clone()).unwrap().is_some());

    let one_more = Verb::from(StatsText { json: text.json + "x" });
    let refused = FrameError::TooLarge { bytes: 10_001, max: 10_000 };
    assert_eq!(one_more.encode(Ids::NONE, limit, &mut out), Err(refused.into()));
    assert_eq!(out.len(), 10_000, "nothing was written");
    let mut wire = encode(&one_more, Ids::NONE);
    assert_eq!(Decoder::new(limit).decode(&mut wire), Err(refused));
    assert_eq!(FrameLimit::at_most(1).bytes(), FRAME_BYTES_MIN);
    assert_eq!(FrameLimit::at_most(usize::MAX).bytes(), FRAME_BYTES_MAX);
}

#[test]
fn e2_lengths_that_disagree_are_refused_as_soon_as_they_are_seen() {
    let decode = |mut wire: BytesMut| Decoder::default().decode(&mut wire);
    assert_eq!(decode(head(38, 0, None)), Err(FrameError::TooShort { len: 38 }));
    assert_eq!(decode(head(100, 256, None)), Err(FrameError::SubjectTooLong { bytes: 256 }));
    let disagree = |len, subject, payload| Err(FrameError::Disagree { len, subject, payload });
    assert_eq!(decode(head(44, 6, None)), disagree(44, 6, 0));
    assert_eq!(decode(head(44, 5, None)), Ok(None));
    assert_eq!(decode(head(50, 5, Some(5))), disagree(50, 5, 5));
    assert_eq!(decode(head(50, 5, Some(7))), disagree(50, 5, 7));
    assert_eq!(decode(head(50, 5, Some(6))), Ok(None));
    assert_eq!(FrameError::TooShort { len: 38 }.code(), ErrorCode::BadFrame);
}

#[test]
fn f3_what_other_protocols_say_first_is_refused() {
    for first in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00", b"CONNECT {}\r\n"] {
        let refused = Decoder::default().decode(&mut BytesMut::from(first));
        assert!(matches!(refused, Err(FrameError::TooLarge { .. })), "{first:?}");
    }
}

#[test]
fn the_payload_is_a_part_of_what_was_read() {
    let mut wire = encode(&Ping { echo: "12345678".into() }.into(), Ids::NONE);
    let range = wire.as_ptr_range();
    let frame = Decoder::default().decode(&mut wire).unwrap().unwrap();
    assert!(range.contains(&frame.payload.as_ptr()));
    let Ok(Verb::Ping(ping)) = Verb::decode(&frame) else { panic!("a ping") };
    assert_eq!(ping.echo.as_ptr(), frame.payload.as_ptr());
}

#[test]
fn one_byte_more_is_refused() {
    // Verbs that end in bytes of any length are left out, and the hello, which a later
    // version may extend.
    let open = [
        Kind::Hello,
        Kind::Ping,
        Kind::Pong,
        Kind::Get,
        Kind::CellRead,
        Kind::CellValue,
        Kind::StatsText,
        Kind::Auth,
        Kind::AuthAnswer,
        Kind::Cluster,
        Kind::ClusterAnswer,
        Kind::Explained,
    ];
    for (name, verb) in samples::all() {
        if open.contains(&verb.kind()) {
            continue;
        }
        let mut frame = frame_of(&encode(&verb, Ids::NONE));
        frame.payload = [&frame.payload[..], &[0]].concat().into();
        assert!(Verb::decode(&frame).is_err(), "{name}");
    }
}

#[test]
fn a_subject_where_none_belongs_is_refused() {
    let mut frame = frame_of(&encode(&Bye.into(), Ids::NONE));
    frame.subject = "orders".into();
    assert_eq!(Verb::decode(&frame), Err(VerbError::Subject));
    frame.subject = Bytes::from_static(&[0xff]);
    assert_eq!(Verb::decode(&frame), Err(VerbError::Text { field: "subject" }));
}

#[test]
fn kinds_that_do_not_exist_are_told_from_those_not_offered() {
    let frame = |kind: u8| Frame { kind, ..frame_of(&encode(&Bye.into(), Ids::NONE)) };
    let unknown = Verb::decode(&frame(255)).unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownKind);
    let reserved = Verb::decode(&frame(Kind::JobSubmit.number())).unwrap_err();
    assert_eq!(reserved, VerbError::NotOffered { kind: Kind::JobSubmit });
    assert_eq!(reserved.code(), ErrorCode::NotOffered);
}

fn publish(messages: &[Message]) -> Publish {
    let options = PublishOptions::default();
    let records = samples::records(messages);
    Publish { topic: samples::name("orders"), options, not_before: None, records }
}

/// The wire of a publish, whatever is wrong with its records.
fn with_records(records: &[u8]) -> Frame {
    let mut frame = frame_of(&encode(&publish(&[Message::new("x")]).into(), Ids::NONE));
    frame.payload = [&[0, 0], records].concat().into();
    frame
}

#[test]
fn a3_a_publish_that_is_no_publish_has_a_reason_to_reject() {
    let mut frame = with_records(&[]);
    let none = Verb::decode(&frame).unwrap_err();
    assert_eq!(none, VerbError::NoMessage);
    assert_eq!(none.reject_reason(), Some(RejectReason::InvalidPayload));
    frame.subject = "a b".into();
    let name = Verb::decode(&frame).unwrap_err();
    assert!(matches!(name, VerbError::Name(NameError::Forbidden { .. })));
    assert_eq!(name.reject_reason(), Some(RejectReason::InvalidTopic));
    let flags = Frame { payload: Bytes::from_static(&[0, 0x80]), ..with_records(&[]) };
    let options = Verb::decode(&flags).unwrap_err();
    assert_eq!(options.code(), ErrorCode::BadPayload);
    assert_eq!(options.reject_reason(), None);
}

#[test]
fn f3_records_keep_the_limits_of_messages() {
    let error = |records: &[u8]| match Verb::decode(&with_records(records)) {
        Err(VerbError::Message { index: 0, error }) => error,
        other => panic!("{other:?}"),
    };
    // Length, flags (body, id), offset, length of the id, body.
    assert_eq!(error(&[4, 4 | 8, 0, 0, b'x']), MessageError::IdLength { bytes: 0 });
    // Length, flags (body, time to live), offset, time to live, body.
    assert_eq!(error(&[4, 4 | 16, 0, 0, b'x']), MessageError::Ttl);
    // Length in two bytes, flags (key), offset, length of the key in two bytes.
    let mut key = vec![0x85, 0x20, 1, 0, 0x81, 0x20];
    key.resize(2 + 0x85 - 0x80 + 0x20 * 128, b'k');
    assert_eq!(error(&key), MessageError::KeyTooLong { bytes: 4097 });
    // 65 headers without name and value.
    let mut headers = vec![0x86, 0x01, 2 | 4, 0, 0x82, 0x01];
    headers.extend([0; 130]);
    assert_eq!(error(&headers), MessageError::Headers { count: 65, bytes: 0 });
}

#[test]
fn a_delayed_publish_has_one_message() {
    let two = publish(&[Message::new("a"), Message::new("b")]);
    let delayed = Publish { not_before: Some(Timestamp(1)), ..two };
    let refused = Verb::from(delayed).encode(Ids::NONE, FrameLimit::MAX, &mut BytesMut::new());
    assert_eq!(refused, Err(VerbError::Value { field: "not_before" }.into()));
}

#[test]
fn an_ack_tells_the_seq_of_every_message() {
    for (name, verb) in samples::all() {
        let Verb::PublishAck(ack) = verb else { continue };
        let PartAck::Accepted(part) = &ack.parts[0] else { continue };
        let seqs: Vec<_> = (0..part.count + 1).map(|at| part.seq_of(at).map(|seq| seq.0)).collect();
        match name {
            "publish-ack" => assert_eq!(seqs, [Some(42), Some(43), Some(44), None]),
            "publish-ack-with-duplicates" => {
                assert_eq!(seqs, [Some(12), Some(42), Some(40), None]);
            }
            "publish-ack-of-a-duplicate" => assert_eq!(seqs, [Some(12), None]),
            "publish-ack-without-a-list" => assert_eq!(seqs, [None; 6]),
            _ => {}
        }
    }
}

#[test]
fn an_ack_that_does_not_add_up_is_refused() {
    let samples = samples::all();
    let find = |name: &str| samples.iter().find(|(each, _)| *each == name).unwrap().1.clone();
    let refused = |verb: &Verb, change: fn(&mut PartAccepted)| {
        let Verb::PublishAck(mut ack) = verb.clone() else { panic!("an ack") };
        let PartAck::Accepted(part) = &mut ack.parts[0] else { panic!("accepted") };
        change(part);
        Verb::from(ack).encode(Ids::NONE, FrameLimit::MAX, &mut BytesMut::new()).is_err()
    };
    let plain = find("publish-ack");
    assert!(!refused(&plain, |_| {}));
    assert!(refused(&plain, |part| part.count = 2));
    assert!(refused(&plain, |part| part.accepted.duplicate = true));
    assert!(refused(&plain, |part| part.accepted.last = Seq(41)));
    let listed = find("publish-ack-with-duplicates");
    assert!(refused(&listed, |part| part.count = 4));
    assert!(refused(&listed, |part| part.known = Known::These(Vec::new())));
}

#[test]
fn a_hello_finds_the_common_version() {
    let hello = |min, max| Hello { version_min: min, version_max: max, ..Hello::default() };
    assert_eq!(hello(1, 1).common_version(), Some(1));
    assert_eq!(hello(1, 9).common_version(), Some(1));
    assert_eq!(hello(2, 9).common_version(), None);
    let both = Features(0b101).common(Features(0b110));
    assert!(both.has(Features(0b100)) && !both.has(Features(1)));
}

#[test]
fn stored_batches_are_told_from_damaged_ones() {
    let batch = samples::batch(1, &[Some(Message::new("hello"))]);
    let mut messages = Messages {
        subscription: 1,
        topic: samples::name("a"),
        from: batch.first(),
        to: batch.last(),
        last_position: batch.header().position,
        batches: [batch.clone()].into_iter().collect(),
    };
    assert_eq!(messages.verify(common::crc32c), Ok(()));
    assert_eq!(
        (messages.credit_messages(), messages.credit_bytes()),
        (1, batch.bytes().len() as u64)
    );
    let mut bytes = batch.bytes().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let entry = gapless_core::Entry { header: *batch.header(), bytes: bytes.into() };
    messages.batches = [gapless_core::Batch::new(entry).unwrap()].into_iter().collect();
    assert_eq!(messages.verify(common::crc32c), Err(gapless_core::EntryError::Checksum));
}

#[test]
fn d3_batches_that_do_not_belong_to_the_range_are_refused() {
    let one = |first: u64| samples::batch(first, &[Some(Message::new("a"))]);
    let refused = |from: u64, to: u64, batches: Vec<gapless_core::Batch>| {
        let (from, to) = (Seq(from), Seq(to));
        let last_position = gapless_core::Position(1);
        let topic = samples::name("a");
        let batches = batches.into_iter().collect();
        let messages = Messages { subscription: 1, topic, from, to, last_position, batches };
        Verb::from(messages).encode(Ids::NONE, FrameLimit::MAX, &mut BytesMut::new()).is_err()
    };
    assert!(!refused(5, 7, vec![one(5), one(7)]));
    assert!(refused(5, 4, vec![]), "the range is empty");
    assert!(refused(5, 7, vec![one(4)]), "before it");
    assert!(refused(5, 7, vec![one(8)]), "behind it");
    assert!(refused(5, 7, vec![one(7), one(5)]), "in another order");
    assert!(refused(5, 7, vec![one(5), one(5)]), "twice");
}

#[test]
fn a_long_error_text_is_cut_between_characters() {
    let error = ErrorAnswer::new(ErrorCode::Internal, &"ä".repeat(600));
    assert_eq!(error.message.len(), 1024);
    let error = ErrorAnswer::new(ErrorCode::Internal, &("x".to_owned() + &"ä".repeat(600)));
    assert_eq!(error.message.len(), 1023);
    assert_eq!(error.known(), Some(ErrorCode::Internal));
}

/// A publish as a run can hold it, or one that it cannot.
fn any_publish() -> impl Strategy<Value = Verb> {
    let plain = (any::message(), 0..3_u8).prop_map(|(message, options)| {
        let message = Message { not_before: None, ..message };
        let durability = [None, Some(Durability::Memory), Some(Durability::Flushed)];
        let options =
            PublishOptions { durability: durability[usize::from(options)], ..Default::default() };
        let (topic, records) = (samples::name("t"), samples::records(&[message]));
        Verb::from(Publish { topic, options, not_before: None, records })
    });
    prop_oneof![12 => plain, 1 => any::verb()]
}

proptest! {
    #[test]
    fn a_run_says_what_its_publishes_say_one_by_one(
        verbs in vec(any_publish(), 0..40),
        cut in 0..100_usize,
    ) {
        let mut input = BytesMut::new();
        for (verb, number) in verbs.iter().zip(1_u128..) {
            verb.encode(Ids::question(number.to_le_bytes()), FrameLimit::MAX, &mut input).unwrap();
        }
        input.truncate(input.len().saturating_sub(cut));
        let mut together = input.clone();
        while !input.is_empty() {
            let run = PublishRun::look(&together, FrameLimit::MAX);
            let count = run.as_ref().map_or(1, |run| run.msg_ids.len());
            let before = input.len();
            let frames: Vec<_> =
                (0..count).map_while(|_| Decoder::default().decode(&mut input).unwrap()).collect();
            if let Some(run) = &run {
                prop_assert!(frames.len() == count && count > 1);
                prop_assert_eq!(run.bytes, before - input.len());
                let mut bodies = run.records.iter();
                for (frame, msg_id) in frames.iter().zip(&run.msg_ids) {
                    prop_assert_eq!(&frame.msg_id, msg_id);
                    let Ok(Verb::Publish(one)) = Verb::decode(frame) else { panic!("a publish") };
                    prop_assert_eq!((&one.topic, &one.options), (&run.topic, &run.options));
                    let (gathered, alone) = (bodies.next().unwrap(), one.records.iter().next().unwrap());
                    let offset = gathered.offset;
                    prop_assert_eq!(gathered, Record { offset, ..alone });
                }
            } else if frames.is_empty() {
                break;
            }
            together = input.clone();
        }
    }
}

#[test]
fn what_is_no_plain_publish_ends_a_run() {
    let publish = |body: &str| Publish {
        topic: samples::name("t"),
        options: PublishOptions::default(),
        not_before: None,
        records: samples::records(&[Message::new(body.to_owned())]),
    };
    let run_of = |verbs: &[Verb]| {
        let mut wire = BytesMut::new();
        verbs.iter().for_each(|verb| verb.encode(Ids::NONE, FrameLimit::MAX, &mut wire).unwrap());
        PublishRun::look(&wire, FrameLimit::MAX).map_or(0, |run| run.msg_ids.len())
    };
    let plain = || Verb::from(publish("x"));
    assert_eq!(run_of(&[plain()]), 0, "one is not a run");
    assert_eq!(run_of(&[plain(), plain(), plain()]), 3);
    let large = "x".repeat(RUN_PAYLOAD_BYTES_MAX);
    let others: [Verb; 7] = [
        Ping { echo: Bytes::new() }.into(),
        Publish { topic: samples::name("u"), ..publish("x") }.into(),
        Publish { not_before: Some(Timestamp(1)), ..publish("x") }.into(),
        Publish {
            options: PublishOptions {
                expect: Some(Expect::TopicLast(Seq(0))),
                ..Default::default()
            },
            ..publish("x")
        }
        .into(),
        Publish { options: PublishOptions { report: true, ..Default::default() }, ..publish("x") }
            .into(),
        Publish {
            records: samples::records(&[Message::new("a"), Message::new("b")]),
            ..publish("x")
        }
        .into(),
        publish(&large).into(),
    ];
    for other in others {
        assert_eq!(run_of(&[plain(), plain(), other.clone(), plain()]), 2, "{other:?}");
        assert_eq!(run_of(&[other, plain(), plain()]), 0);
    }
    let many: Vec<_> = (0..RUN_PUBLISHES_MAX + 1).map(|_| plain()).collect();
    assert_eq!(run_of(&many), RUN_PUBLISHES_MAX);
}
