//! Frames between nodes: there and back, what cannot be read, how much they cost, and the examples in
//! `docs/link-vectors.json`.
//!
//! New examples are written by `GAPLESS_WRITE_VECTORS=1 cargo test -p gapless-protocol --test link`.
//! Those that are there are never changed.

use std::path::{Path, PathBuf};
use std::{env, fs};

use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::cluster::{
    Change, DeliveryStatus, Frame, Identity, Incarnation, Item, ItemResult, Named, NodeName,
    SubscriberName, SubscriberResult, Taken,
};
use gapless_core::{Message, Pattern, Records, RecordsBuilder, Timestamp, TopicName};
use gapless_protocol::VerbError;
use gapless_protocol::link::{
    ClientApi, DELIVER_ITEMS_MAX, LINK_FRAME_BYTES_MAX, LINK_HANDSHAKE_BYTES_MAX, LINK_HEAD_BYTES,
    LinkChallenge, LinkClient, LinkDecoder, LinkError, LinkFrame, LinkHello, LinkIdentity,
    LinkKind, LinkRefusal, NONCE_BYTES, PROOF_BYTES, RefusalReason, UnixPeer,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn node(name: &str) -> NodeName {
    NodeName::parse(name).expect("a name")
}

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("a pattern")
}

fn records(bodies: &[&[u8]]) -> Records {
    let mut records = RecordsBuilder::default();
    for body in bodies {
        records.push(&Message::new(body.to_vec())).expect("a message");
    }
    records.finish()
}

fn item(subject: &str, body: &[u8]) -> Item {
    Item {
        subject: TopicName::parse(subject).expect("a name"),
        records: records(&[body]),
        order: 0,
        age_ms: 0,
        anonymous: true,
        sessions: Vec::new(),
        report: false,
    }
}

fn deliver(first: u64, items: Vec<Item>) -> LinkFrame {
    LinkFrame::Node(Frame::Deliver { base: first, first, items })
}

fn who(name: &str) -> LinkIdentity {
    LinkIdentity {
        cluster: "shop".into(),
        node: node(name),
        incarnation: Incarnation(1_795_000_000_000),
        address: "10.0.0.1:4282".into(),
        nonce: [7; NONCE_BYTES],
    }
}

/// One example of each kind, and of what differs inside a kind.
fn samples() -> Vec<(&'static str, LinkFrame)> {
    let named = Named {
        identity: Identity::parse("billing.eu").expect("one"),
        pattern: pattern("orders.>"),
    };
    let result = |subscriber, status| SubscriberResult { subscriber, status };
    let results = vec![
        result(
            SubscriberName::Handle { node: Some(node("b")), number: 9 },
            DeliveryStatus::Delivered,
        ),
        result(SubscriberName::Identity(named.identity.clone()), DeliveryStatus::Timeout),
        result(SubscriberName::Node(node("c")), DeliveryStatus::SubscriberUnreachable),
        result(SubscriberName::Handle { node: None, number: 1 }, DeliveryStatus::OtherError),
    ];
    let held = Item {
        age_ms: 1_500,
        anonymous: false,
        sessions: vec![3, 900],
        report: true,
        records: records(&[b"two", b"messages"]),
        ..item("orders.paid", b"")
    };
    vec![
        ("hello", LinkFrame::Hello(LinkHello { version_min: 1, version_max: 2, who: who("a") })),
        ("challenge", LinkFrame::Challenge(LinkChallenge { version: 1, who: who("b") })),
        ("proof", LinkFrame::Proof([1; PROOF_BYTES])),
        ("accepted", LinkFrame::Accepted([2; PROOF_BYTES])),
        (
            "refused",
            LinkFrame::Refused(LinkRefusal {
                reason: RefusalReason::WrongSecret,
                text: "no".into(),
            }),
        ),
        ("ping", LinkFrame::Ping),
        ("pong", LinkFrame::Pong),
        ("gossip", LinkFrame::Gossip(Bytes::from_static(b"any bytes"))),
        (
            "interest",
            LinkFrame::Node(Frame::Interest {
                base: 6,
                version: 9,
                changes: vec![
                    Change::Add(pattern("orders.*")),
                    Change::Remove(pattern("mails")),
                    Change::Here { named, time: Timestamp(1_795_000_000_123), session: 17 },
                    Change::Away { session: 300 },
                    Change::Ended { session: 16 },
                ],
            }),
        ),
        (
            "interest-full",
            LinkFrame::Node(Frame::InterestFull {
                version: 9,
                part: 0,
                last: true,
                entries: vec![Change::Add(pattern(">"))],
            }),
        ),
        ("interest-ask", LinkFrame::Node(Frame::InterestAsk)),
        (
            "deliver",
            LinkFrame::Node(Frame::Deliver {
                base: 41,
                first: 42,
                items: vec![
                    item("orders.created", b"first"),
                    item("orders.created", b"second"),
                    held,
                ],
            }),
        ),
        (
            "report",
            LinkFrame::Node(Frame::Report {
                received: 41,
                interest_seen: 9,
                taken: vec![Taken { session: 17, upto: 40, lost: 2 }],
                results: vec![ItemResult { order: 44, results }],
            }),
        ),
        ("probe", LinkFrame::Node(Frame::Probe(5))),
        ("probed", LinkFrame::Node(Frame::Probed(5))),
        ("leave", LinkFrame::Node(Frame::Leave)),
        ("note", LinkFrame::Note(Bytes::from_static(b"what a node says of itself"))),
        (
            "forward",
            LinkFrame::Forward(LinkHello { version_min: 1, version_max: 1, who: who("a") }),
        ),
        (
            "client",
            LinkFrame::Client(LinkClient {
                api: ClientApi::Native,
                address: "10.0.0.9:50123".into(),
                certificate: Some("shop".into()),
                peer: Some(UnixPeer { uid: 1000, own: 33 }),
            }),
        ),
    ]
}

fn encode(frame: &LinkFrame) -> BytesMut {
    let mut out = BytesMut::new();
    frame.encode(&mut out).expect("it is valid");
    out
}

fn decode(bytes: &[u8]) -> Result<Option<LinkFrame>, LinkError> {
    LinkDecoder::ESTABLISHED.decode(&mut BytesMut::from(bytes))
}

fn malformed(kind: LinkKind, body: &[u8]) -> VerbError {
    let mut bytes = BytesMut::new();
    bytes.put_u32_le(body.len() as u32 + 1);
    bytes.put_u8(kind.number());
    bytes.put_slice(body);
    match decode(&bytes) {
        Err(LinkError::Malformed { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_has_an_example_that_goes_there_and_back() {
    let samples = samples();
    let kinds: Vec<LinkKind> = samples.iter().map(|(_, frame)| frame.kind()).collect();
    assert_eq!(kinds, LinkKind::ALL);
    for (name, frame) in &samples {
        let mut bytes = encode(frame);
        bytes.put_slice(b"more");
        assert_eq!(LinkDecoder::ESTABLISHED.decode(&mut bytes), Ok(Some(frame.clone())), "{name}");
        assert_eq!(&bytes[..], b"more", "{name}");
    }
}

#[test]
fn a_frame_that_is_cut_is_waited_for_or_malformed_and_never_another() {
    for (name, frame) in samples() {
        let bytes = encode(&frame);
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), Ok(None), "{name} cut at {end}");
            let missing = LinkDecoder::ESTABLISHED.missing(&bytes[..end]).expect("a part of one");
            assert!(missing > 0 && missing <= bytes.len(), "{name} cut at {end}");
            if end > LINK_HEAD_BYTES {
                let mut short = BytesMut::from(&bytes[..end]);
                short[..4].copy_from_slice(&(end as u32 - 4).to_le_bytes());
                assert_ne!(decode(&short), Ok(Some(frame.clone())), "{name} cut at {end}");
            }
        }
    }
}

#[test]
fn f3_lengths_are_refused_as_soon_as_they_are_seen() {
    let mut long = BytesMut::new();
    long.put_u32_le(LINK_FRAME_BYTES_MAX as u32);
    let too_large = |bytes, max| Err(LinkError::TooLarge { bytes, max });
    assert_eq!(decode(&long), too_large(LINK_FRAME_BYTES_MAX + 4, LINK_FRAME_BYTES_MAX));
    assert_eq!(decode(&[0, 0, 0, 0]), Err(LinkError::Empty));
    let mut hello = BytesMut::new();
    hello.put_u32_le(LINK_HANDSHAKE_BYTES_MAX as u32);
    let max = LINK_HANDSHAKE_BYTES_MAX;
    let read = LinkDecoder::HANDSHAKE.decode(&mut hello);
    assert_eq!(read, too_large(max + 4, max), "who has proved nothing sends small frames");
    assert_eq!(decode(b"GET / HTTP/1.1"), Err(LinkError::UnknownKind { kind: b'/' }));
    assert_eq!(decode(&[255, 255, 255, 0, 1]), Err(LinkError::UnknownKind { kind: 1 }));
}

#[test]
fn f3_counts_are_believed_as_far_as_the_bytes_reach() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0x0f];
    for (kind, head) in [
        (LinkKind::Interest, &[1, 2][..]),
        (LinkKind::InterestFull, &[1, 0, 1]),
        (LinkKind::Deliver, &[1, 1]),
        (LinkKind::Report, &[1, 1]),
        (LinkKind::Report, &[1, 1, 0]),
        (LinkKind::Report, &[1, 1, 0, 1, 1]),
    ] {
        let error = malformed(kind, &[head, &huge].concat());
        assert!(matches!(error, VerbError::Short { .. }), "{kind:?}: {error:?}");
    }
}

#[test]
fn what_a_kind_does_not_allow_is_malformed() {
    let value = |field| VerbError::Value { field };
    assert_eq!(malformed(LinkKind::Ping, &[1]), VerbError::Trailing { bytes: 1 });
    assert_eq!(malformed(LinkKind::Refused, &[0]), value("reason"));
    assert_eq!(malformed(LinkKind::Interest, &[1, 2, 1, 9, 0]), value("change"));
    // The first item has a subject, a flag that exists, and a message.
    assert_eq!(malformed(LinkKind::Deliver, &[1, 1, 1, 2, 0]), value("subject"));
    assert_eq!(malformed(LinkKind::Deliver, &[1, 1, 1, 0x40, 0]), value("item"));
    assert_eq!(malformed(LinkKind::Deliver, &[1, 1, 1, 3, 1, b'x', 0]), value("records"));
    // The same subject twice in a row is said once.
    let twice = [1, 1, 2, 3, 1, b'x', 4, 3, 4, 0, b'm', 3, 1, b'x', 4, 3, 4, 0, b'm'];
    assert_eq!(malformed(LinkKind::Deliver, &twice), value("subject"));
    let status = [1, 1, 0, 1, 5, 1, 9, 2, 1, b'x'];
    assert_eq!(malformed(LinkKind::Report, &status), value("status"));
}

#[test]
fn nothing_is_written_that_a_peer_would_refuse() {
    let many = vec![item("x", b"m"); DELIVER_ITEMS_MAX + 1];
    let empty = Item { records: Records::default(), ..item("x", b"m") };
    for frame in [deliver(1, many), deliver(1, vec![empty]), deliver(u64::MAX, Vec::new())] {
        let mut out = BytesMut::from(&b"before"[..]);
        assert!(matches!(frame.encode(&mut out), Err(LinkError::Malformed { .. })));
        assert_eq!(&out[..], b"before");
    }
    let large = vec![item("x", &vec![0; LINK_FRAME_BYTES_MAX / 2]); 2];
    let mut out = BytesMut::new();
    assert!(matches!(deliver(1, large).encode(&mut out), Err(LinkError::TooLarge { .. })));
    assert!(out.is_empty());
}

#[test]
fn a7_messages_of_128_bytes_cost_at_most_a_tenth_more_on_a_busy_link() {
    let items: Vec<Item> = (0..100)
        .map(|order| Item { order: 5_000_000 + 3 * order, ..item("prices.eur.usd", &[b'x'; 128]) })
        .collect();
    let bytes = encode(&deliver(1_000_000, items)).len();
    // Of the tenth some is left for reports, interest and gossip.
    assert!(bytes * 100 <= 128 * 100 * 107, "{bytes} bytes for 100 messages");
}

fn any_name() -> impl Strategy<Value = TopicName> {
    "[a-c]{1,2}(\\.[a-c]{1,2}){0,2}".prop_map(|text| TopicName::parse(&text).expect("a name"))
}

fn any_item() -> impl Strategy<Value = Item> {
    let bodies = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..4);
    let flags = (any::<bool>(), any::<bool>());
    let age = prop_oneof![Just(0_u64), any::<u64>()];
    let place = (prop_oneof![0..9_u64, any::<u64>()], age);
    (any_name(), bodies, prop::collection::vec(any::<u64>(), 0..4), flags, place).prop_map(
        |(subject, bodies, sessions, (anonymous, report), (order, age_ms))| {
            let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
            let records = records(&bodies);
            Item { subject, records, order, age_ms, anonymous, sessions, report }
        },
    )
}

fn any_frame() -> impl Strategy<Value = LinkFrame> {
    let number = || 0..=gapless_protocol::NUMBER_MAX;
    let deliver = (any::<u64>(), number(), prop::collection::vec(any_item(), 0..12))
        .prop_map(|(base, first, items)| Frame::Deliver { base, first, items });
    let change = prop_oneof![
        any_name().prop_map(|name| Change::Add(Pattern::literal(&name))),
        any_name().prop_map(|name| Change::Remove(Pattern::literal(&name))),
        any::<u64>().prop_map(|session| Change::Away { session }),
        any::<u64>().prop_map(|session| Change::Ended { session }),
        ("[a-z]{1,9}", any_name(), any::<u64>(), any::<u64>()).prop_map(
            |(who, name, time, session)| {
                let identity = Identity::parse(&who).expect("an identity");
                let named = Named { identity, pattern: Pattern::literal(&name) };
                Change::Here { named, time: Timestamp(time), session }
            }
        ),
    ];
    let interest = (any::<u64>(), any::<u64>(), prop::collection::vec(change, 0..9))
        .prop_map(|(base, version, changes)| Frame::Interest { base, version, changes });
    let taken = (any::<u64>(), any::<u64>(), any::<u64>())
        .prop_map(|(session, upto, lost)| Taken { session, upto, lost });
    let report = (any::<u64>(), any::<u64>(), prop::collection::vec(taken, 0..9)).prop_map(
        |(received, interest_seen, taken)| Frame::Report {
            received,
            interest_seen,
            taken,
            results: Vec::new(),
        },
    );
    prop_oneof![deliver, interest, report].prop_map(LinkFrame::Node)
}

proptest! {
    #[test]
    fn frames_go_there_and_back_in_any_pieces(
        frames in prop::collection::vec(any_frame(), 1..6),
        pieces in 1_usize..50,
    ) {
        let mut wire = BytesMut::new();
        for frame in &frames {
            frame.encode(&mut wire).expect("it is valid");
        }
        let (mut read, mut seen) = (BytesMut::new(), Vec::new());
        for piece in wire.chunks(pieces) {
            read.extend_from_slice(piece);
            while let Some(frame) = LinkDecoder::ESTABLISHED.decode(&mut read).expect("valid") {
                seen.push(frame);
            }
        }
        prop_assert_eq!(seen, frames);
    }

    #[test]
    fn f3_no_bytes_upset_the_decoder_and_a_value_has_one_encoding(
        frame in any_frame(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = encode(&frame);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(Some(read)) = decode(&bytes) {
            let again = encode(&read);
            prop_assert_eq!(&again[..], &bytes[..again.len()]);
        }
    }
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/link-vectors.json")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_example_of_the_documentation_reads_and_writes_as_it_says() {
    let made: Vec<Value> = samples()
        .iter()
        .map(|(name, frame)| {
            let (kind, bytes) = (frame.kind(), encode(frame));
            json!({ "name": name, "kind": kind.name(), "number": kind.number(), "frame": hex(&bytes) })
        })
        .collect();
    if env::var_os("GAPLESS_WRITE_VECTORS").is_some() {
        let lines: Vec<String> = made.iter().map(|each| format!("  {each}")).collect();
        fs::write(vectors(), format!("[\n{}\n]\n", lines.join(",\n"))).expect("written");
    }
    let there: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(vectors()).expect("vectors")).expect("a list");
    assert_eq!(there, made, "see the head of this file");
}

#[test]
fn the_page_shows_every_kind_of_a_link() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let page = fs::read_to_string(path).expect("the page");
    let (_, after) = page.split_once("\n### Kinds of links\n").expect("the heading");
    let rows = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let shown: Vec<String> = rows
        .map(|row| {
            row.trim_matches('|').split('|').take(2).map(str::trim).collect::<Vec<_>>().join(" ")
        })
        .collect();
    let is: Vec<String> =
        LinkKind::ALL.iter().map(|kind| format!("{} {}", kind.number(), kind.name())).collect();
    assert_eq!(shown, is);
}
