//! What must hold for any bytes at all. Each function panics when it does not.
//!
//! They are driven by libFuzzer (`fuzz_targets/`) and, on a stable compiler, by
//! `crates/protocol/tests/corpus.rs`, which includes this file.

use bytes::{Bytes, BytesMut};
use gapless_core::{Position, Record, Records, RecordsBuilder};
use gapless_protocol::{
    Decoder, Frame, FrameLimit, GroupMessages, Kind, Messages, PartAck, PublishRun, SplitLimit,
    Verb, Which, cut_leased, cut_messages, split,
};

/// Frames: decoding takes no memory, goes on after any byte, and can be undone.
pub fn frame(input: &[u8]) {
    let decoder = Decoder::new(FrameLimit::at_most(64 * 1024));
    let mut whole = BytesMut::from(input);
    let mut frames = Vec::new();
    let error = loop {
        let room = whole.capacity();
        match decoder.decode(&mut whole) {
            Ok(Some(frame)) => {
                assert!(frame.bytes() <= room, "a frame is a part of the input");
                frames.push(frame);
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
        assert!(whole.capacity() <= room, "decoding takes no memory");
    };
    if error.is_none() {
        let missing = decoder.missing(&whole).expect("what is left can become a frame");
        assert!(missing > 0 && missing <= 64 * 1024);
    }

    // In pieces whose sizes come from the input itself, the same frames and the same end.
    let mut pieces = BytesMut::new();
    let (mut at, mut again, mut ended) = (0, 0, None);
    while at < input.len() && ended.is_none() {
        let size = usize::from(input[at] % 7) + 1;
        pieces.extend_from_slice(&input[at..(at + size).min(input.len())]);
        at += size;
        ended = loop {
            match decoder.decode(&mut pieces) {
                Ok(Some(frame)) => {
                    assert_eq!(frame, frames[again]);
                    again += 1;
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
    }
    assert_eq!((again, ended), (frames.len(), error));

    let mut back = BytesMut::new();
    for frame in &frames {
        frame.encode(FrameLimit::MAX, &mut back).expect("it was a frame");
    }
    assert_eq!(back, input[..back.len()]);
}

/// Verbs: what can be decoded is encoded to the same bytes, and holds no more items than the
/// payload has bytes.
pub fn verbs(input: &[u8]) {
    let mut wire = BytesMut::from(input);
    while let Ok(Some(frame)) = Decoder::default().decode(&mut wire) {
        verb(&frame);
    }
    run(input);
    run(&input.repeat(3));
    // Most of what a fuzzer makes is no frame: as kind, subject and payload it may be a verb.
    if let [kind, subject, rest @ ..] = input {
        let (subject, payload) = rest.split_at(usize::from(*subject).min(rest.len()));
        verb(&Frame {
            kind: *kind,
            msg_id: [1; 16],
            corr_id: [2; 16],
            subject: Bytes::copy_from_slice(subject),
            payload: Bytes::copy_from_slice(payload),
        });
    }
}

/// Hellos: the first bytes of a stranger. What can be read has its limits, agrees on a version or on
/// none, and does not show its token.
pub fn hello(input: &[u8]) {
    let frame = Frame {
        kind: Kind::Hello.number(),
        msg_id: [1; 16],
        corr_id: [0; 16],
        subject: Bytes::new(),
        payload: Bytes::copy_from_slice(input),
    };
    verb(&frame);
    let Ok(Verb::Hello(hello)) = Verb::decode(&frame) else { return };
    assert!(hello.client_name.len() <= 255 && hello.extension.len() <= 1024);
    if let Some(version) = hello.common_version() {
        assert!((hello.version_min..=hello.version_max).contains(&version));
    }
    let Some(token) = &hello.token else { return };
    assert!(token.len() <= 4096);
    let shown = format!("{hello:?}");
    let secret = format!("{token:?}");
    // Short ones may be a part of anything.
    assert!(secret.len() < 16 || !shown.contains(&secret), "debugging shows the token");
}

/// A run of publishes says what its frames say one by one.
fn run(input: &[u8]) {
    let Some(run) = PublishRun::look(input, FrameLimit::MAX) else { return };
    let mut wire = BytesMut::from(&input[..run.bytes]);
    assert_eq!(run.records.count as usize, run.msg_ids.len());
    for (msg_id, record) in run.msg_ids.iter().zip(run.records.iter()) {
        let frame = Decoder::default().decode(&mut wire).expect("a frame").expect("a whole frame");
        let Ok(Verb::Publish(one)) = Verb::decode(&frame) else { panic!("no publish: {frame:?}") };
        assert_eq!((&frame.msg_id, one.not_before), (msg_id, None));
        assert_eq!((&one.topic, &one.options), (&run.topic, &run.options));
        let offset = record.offset;
        assert_eq!(one.records.iter().next(), Some(Record { offset: 0, ..record }));
        assert!(one.records.count == 1 && offset < run.records.count);
    }
    assert!(wire.is_empty());
}

fn verb(frame: &Frame) {
    let verb = match Verb::decode(frame) {
        Ok(verb) => verb,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(error.code().number() > 0);
            return;
        }
    };
    assert_eq!(verb.kind().number(), frame.kind);
    assert!(items(&verb) <= frame.payload.len(), "a list is no longer than its bytes");
    let mut wire = BytesMut::new();
    verb.encode(frame.ids(), FrameLimit::MAX, &mut wire).expect("what was read can be written");
    let again = Decoder::default().decode(&mut wire).expect("a frame").expect("a whole frame");
    assert_eq!(Verb::decode(&again).as_ref(), Ok(&verb));
    // Settings may leave out what is the default; everything else has one form only.
    let has_settings = matches!(
        verb.kind(),
        Kind::TopicCreate
            | Kind::TopicConfigure
            | Kind::TopicInfo
            | Kind::TopicInfos
            | Kind::GroupCreate
            | Kind::GroupConfigure
            | Kind::GroupInfo
            | Kind::GroupInfos
    );
    assert!(has_settings || again == *frame, "{verb:?}");
    match verb {
        Verb::Messages(messages) => delivery(messages),
        Verb::GroupMessages(messages) => leased(messages),
        _ => {}
    }
}

/// How much room the lists of a verb have, in items.
fn items(verb: &Verb) -> usize {
    match verb {
        Verb::TopicInfos(infos) => infos.topics.capacity(),
        Verb::Commit(commit) => commit.parts.capacity() + commit.cells.capacity(),
        Verb::PublishAck(ack) => {
            let known = |part: &PartAck| match part {
                PartAck::Accepted(part) => match &part.known {
                    gapless_protocol::Known::These(these) => these.capacity(),
                    _ => 0,
                },
                _ => 0,
            };
            ack.parts.capacity() + ack.parts.iter().map(known).sum::<usize>()
        }
        Verb::ClientList(list) => {
            let follows = list.clients.iter().map(|client| client.follows.capacity());
            list.clients.capacity() + follows.sum::<usize>()
        }
        Verb::Messages(messages) => messages.batches.parts().count(),
        Verb::GroupMessages(messages) => {
            messages.batches.parts().count() + messages.leases.capacity()
        }
        Verb::GroupAck(ack) => match &ack.which {
            Which::Leases(leases) => leases.capacity(),
            Which::Through(_) => 0,
        },
        Verb::GroupNack(nack) => nack.leases.capacity(),
        Verb::GroupExtend(extend) => extend.leases.capacity(),
        Verb::GroupTerminate(terminate) => terminate.leases.capacity(),
        Verb::GroupStep(step) => {
            let acks = step.acks.iter().map(|ack| ack.leases.capacity()).sum::<usize>();
            acks + step.acks.capacity()
                + step.commit.parts.capacity()
                + step.commit.cells.capacity()
        }
        Verb::GroupInfo(info) => info.members.capacity(),
        Verb::GroupInfos(infos) => {
            let members = infos.groups.iter().map(|info| info.members.capacity());
            infos.groups.capacity() + members.sum::<usize>()
        }
        Verb::Letters(letters) => letters.letters.capacity(),
        _ => 0,
    }
}

/// Cutting a delivery from outside never panics, and loses no seq.
fn delivery(messages: Messages) {
    let checksum = |_: &[u8]| 0;
    for batch in messages.batches.iter() {
        let limit = SplitLimit { bytes: 128, messages: 3 };
        if let Ok(pieces) = split(&batch, limit, checksum) {
            let mut next = batch.first();
            for piece in &pieces {
                assert_eq!(piece.first(), next);
                next = piece.last().next();
            }
            assert_eq!(next, batch.last().next());
        }
    }
    let (from, to) = (messages.from, messages.to);
    let mut next = from;
    let mut rest = Some(messages);
    let limit = SplitLimit { bytes: 1024, messages: 2 };
    while let Some(messages) = rest.take() {
        let Ok((front, after)) = cut_messages(messages, Position(0), limit, checksum) else {
            return;
        };
        assert_eq!(front.from, next);
        next = front.to.next();
        rest = after;
    }
    assert_eq!(next, to.next());
}

/// Cutting leased messages from outside never panics, ends, and leases each exactly once.
fn leased(messages: GroupMessages) {
    let count = messages.count();
    let (mut seen, mut last) = (0, None);
    let mut rest = Some(messages);
    while let Some(messages) = rest.take() {
        let Ok((front, after)) = cut_leased(messages, 512, |_| 0) else { return };
        assert!(!front.leases.is_empty(), "each frame leads on");
        for lease in &front.leases {
            assert!(last.is_none_or(|last| last < lease.first));
            last = Some(lease.last);
        }
        seen += front.count();
        rest = after;
    }
    assert_eq!(seen, count);
}

/// Core's records: what can be parsed is what its count says, and can be made again.
pub fn records(input: &[u8]) {
    let Ok(parsed) = Records::parse(Bytes::copy_from_slice(input)) else { return };
    assert_eq!(parsed.iter().count(), parsed.count as usize);
    let mut builder = RecordsBuilder::default();
    parsed.iter().for_each(|record: Record<'_>| builder.push_record(&record));
    let made = builder.finish();
    assert!(made.iter().eq(parsed.iter()), "the same records");
    assert_eq!(Records::parse(made.bytes.clone()).as_ref(), Ok(&made));
    assert_eq!((made.count, made.flags), (parsed.count, parsed.flags));
    assert_eq!(made.ttl_min_ms, parsed.ttl_min_ms);
}
