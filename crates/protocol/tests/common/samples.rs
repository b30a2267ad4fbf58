//! One example or more of every verb. They make `docs/protocol-vectors.json`, so that changing
//! one of them changes what other people's clients are tested against: add, do not change.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::cluster::{DeliveryReport, DeliveryStatus, Identity, NodeName, SubscriberName};
use gapless_core::{
    Accepted, Batch, Compaction, DedupWindow, DeliveryPolicy, Durability, Entry, EntryHeader,
    EntryKind, Epoch, Expect, Fate, GapReason, Message, PartitionBehavior, Pattern, Position,
    PublishOptions, Records, RecordsBuilder, RejectReason, Retention, Seq, Storage, Timestamp,
    TopicId, TopicName, TopicSettings,
};
use gapless_protocol::*;

use super::crc32c;

pub(crate) fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

pub(crate) fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("a pattern")
}

pub(crate) fn records(messages: &[Message]) -> Records {
    let mut builder = RecordsBuilder::default();
    messages.iter().for_each(|message| builder.push(message).expect("a message"));
    builder.finish()
}

/// A stored batch. Messages that are `None` are gone.
pub(crate) fn batch(first: u64, messages: &[Option<Message>]) -> Batch {
    let mut builder = RecordsBuilder::default();
    for (index, message) in messages.iter().enumerate() {
        if let Some(message) = message {
            let one = records(std::slice::from_ref(message));
            let record = one.iter().next().expect("one record");
            let offset = u32::try_from(index).expect("small");
            builder.push_record(&gapless_core::Record { offset, ..record });
        }
    }
    let made = builder.finish();
    let span = u32::try_from(messages.len()).expect("small");
    let header = EntryHeader {
        flags: made.flags | if made.count < span { 4 } else { 0 },
        topic: TopicId(7),
        seq: Seq(first),
        position: Position(first + 1000),
        time: Timestamp(1_700_000_000_000),
        span,
        count: made.count,
        ttl_min_ms: made.ttl_min_ms,
        ..EntryHeader::new(EntryKind::Batch)
    };
    let mut bytes = BytesMut::new();
    header.put(&mut bytes, &made.bytes, crc32c(&made.bytes), crc32c);
    Batch::new(Entry { header, bytes: bytes.freeze() }).expect("a batch")
}

pub(crate) fn token() -> Token {
    Token { epoch: Epoch(0x1234_5678_9abc), position: Position(1042) }
}

fn settings() -> TopicSettings {
    TopicSettings {
        storage: Storage::Durable,
        durability: Some(Durability::Written),
        retention: Retention {
            age: Some(Duration::from_secs(3600)),
            bytes: Some(1 << 30),
            count: Some(1_000_000),
        },
        compaction: Some(Compaction { tombstone_grace: Duration::from_secs(60) }),
        dedup: DedupWindow { time: Duration::from_secs(120), count: 1000 },
        delivery: Some(DeliveryPolicy::AtLeastOnce),
        partition: Some(PartitionBehavior::Drop),
        require_subscribers: Some(true),
        max_message_bytes: Some(65_536),
    }
}

fn info(topic: &str) -> TopicInfo {
    TopicInfo {
        name: name(topic),
        id: 7,
        first: Seq(3),
        next: Seq(43),
        bytes: 4096,
        settings: TopicSettings::default(),
    }
}

fn accepted(first: u64, last: u64, duplicate: bool) -> Accepted {
    Accepted {
        first: Seq(first),
        last: Seq(last),
        position: Position(last + 1000),
        durability: Durability::Flushed,
        duplicate,
    }
}

fn ack(part: PartAck) -> Verb {
    PublishAck { parts: vec![part] }.into()
}

fn accept(accepted: Accepted, count: u32, known: Known) -> Verb {
    ack(PartAck::Accepted(PartAccepted { accepted, count, known }))
}

fn reject(rejection: Rejection) -> Verb {
    ack(PartAck::Rejected(rejection))
}

fn message() -> Message {
    Message::new("{\"total\":12}")
        .with_key("order-1")
        .with_id("f81d4fae")
        .with_header("content-type", "application/json")
        .with_ttl(Duration::from_secs(30))
}

fn publish(options: PublishOptions, not_before: Option<Timestamp>, messages: &[Message]) -> Verb {
    let topic = name("orders.created");
    Publish { topic, options, not_before, records: records(messages) }.into()
}

fn subscribe(text: &str, from: StartFrom) -> Verb {
    let (credit_messages, credit_bytes) = (1000, 1 << 20);
    let pattern = pattern(text);
    Subscribe { pattern, credit_messages, credit_bytes, from, identity: None }.into()
}

fn subscribe_named(text: &str, identity: &str) -> Verb {
    let (credit_messages, credit_bytes) = (1000, 1 << 20);
    let (pattern, from) = (pattern(text), StartFrom::Now);
    let identity = Some(Identity::parse(identity).expect("an identity"));
    Subscribe { pattern, credit_messages, credit_bytes, from, identity }.into()
}

fn messages(batches: Vec<Batch>, from: u64, to: u64) -> Verb {
    Messages {
        subscription: 5,
        topic: name("orders.created"),
        from: Seq(from),
        to: Seq(to),
        last_position: Position(to + 1000),
        batches: batches.into_iter().collect(),
    }
    .into()
}

/// Every example, with its name.
pub(crate) fn all() -> Vec<(&'static str, Verb)> {
    let mut all = session();
    all.extend(topics());
    all.extend(publishing());
    all.extend(following());
    all.extend(looking());
    all.extend(super::groups::all());
    all
}

fn session() -> Vec<(&'static str, Verb)> {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        features: Features::NONE,
        client_name: "billing".into(),
        token: None,
        extension: Bytes::new(),
    };
    let newer = Hello {
        version_max: 4,
        features: Features(1 << 40 | 2),
        token: Some(Bytes::from_static(b"secret")),
        extension: Bytes::from_static(&[9, 9]),
        ..hello.clone()
    };
    let limits = Limits {
        frame_bytes: 4 << 20,
        in_flight_bytes: 16 << 20,
        subscriptions: 1000,
        credit_messages: 65_536,
        credit_bytes: 64 << 20,
        idle_ms: 60_000,
    };
    let welcome = Welcome {
        version: 1,
        features: Features::NONE,
        server_name: "gapless".into(),
        server_version: "0.1.0".into(),
        epoch: Epoch(0x1234_5678_9abc),
        session: 17,
        limits,
    };
    let unknown = ErrorAnswer {
        code: 999,
        fate: Fate::Unknown,
        message: "from later".into(),
        retry_after_ms: None,
    };
    let later = ErrorAnswer::new(ErrorCode::QuotaExceeded, "5 messages per second");
    let later = later.retry_after(Duration::from_millis(1_500));
    let echo = Bytes::from_static(b"12345678");
    vec![
        ("hello", hello.into()),
        ("hello-of-a-newer-client", newer.into()),
        ("welcome", welcome.into()),
        ("error", ErrorAnswer::new(ErrorCode::UnknownTopic, "there is no topic x").into()),
        ("error-of-a-newer-server", unknown.into()),
        ("error-to-try-again-after", later.into()),
        ("ping", Ping { echo: echo.clone() }.into()),
        ("pong", Pong { echo }.into()),
        ("drain", Drain { reason: DrainReason::RESTART, grace_ms: 5000 }.into()),
        ("bye", Bye.into()),
    ]
}

fn topics() -> Vec<(&'static str, Verb)> {
    let topic = name("orders.created");
    let volatile = TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() };
    let page = TopicList { pattern: pattern("orders.>"), after: Some(topic.clone()), limit: 100 };
    let infos = TopicInfos { topics: vec![info("orders.a"), info("orders.b")], more: true };
    vec![
        ("topic-create", TopicCreate { topic: topic.clone(), settings: settings() }.into()),
        ("topic-configure", TopicConfigure { topic: topic.clone(), settings: volatile }.into()),
        ("topic-describe", TopicDescribe { topic: topic.clone() }.into()),
        ("topic-list", TopicList { after: None, ..page.clone() }.into()),
        ("topic-list-next-page", page.into()),
        ("topic-delete", TopicDelete { topic: topic.clone() }.into()),
        ("topic-purge", TopicPurge { topic, below: Seq(40) }.into()),
        ("topic-info", TopicInfo { settings: settings(), ..info("orders.created") }.into()),
        ("topic-infos", infos.into()),
        ("done", Done.into()),
    ]
}

fn publishing() -> Vec<(&'static str, Verb)> {
    let all_options = PublishOptions {
        durability: Some(Durability::Flushed),
        delivery: Some(DeliveryPolicy::AtMostOnce),
        partition: Some(PartitionBehavior::DelayQueue),
        require_subscribers: Some(true),
        expect: Some(Expect::TopicLast(Seq(41))),
        report: false,
    };
    let report = PublishOptions { report: true, ..PublishOptions::default() };
    let expect_key =
        PublishOptions { expect: Some(Expect::KeyLast(Seq(0))), ..PublishOptions::default() };
    let none = PublishOptions::default();
    let hello = Message::new("hello");
    let three = [hello.clone(), message(), Message::tombstone("order-2")];
    let commit = Commit {
        options: PublishOptions { durability: Some(Durability::Flushed), ..none },
        parts: vec![
            CommitPart {
                topic: name("orders.created"),
                expect: Some(Expect::TopicLast(Seq(42))),
                records: records(&three),
            },
            CommitPart {
                topic: name("orders.audit"),
                expect: None,
                records: records(std::slice::from_ref(&hello)),
            },
        ],
        cells: vec![
            CellWrite {
                name: "cursor".into(),
                value: Some(Bytes::from_static(&[42, 0])),
                expect: ExpectCell::Anything,
            },
            CellWrite { name: "old".into(), value: None, expect: ExpectCell::Anything },
        ],
    };
    let cells_only = Commit { parts: Vec::new(), ..commit.clone() };
    let old = ExpectCell::Value(Bytes::from_static(&[41, 0]));
    let conditional = Commit {
        cells: vec![
            CellWrite { expect: old, ..commit.cells[0].clone() },
            CellWrite { expect: ExpectCell::Absent, name: "new".into(), value: Some("1".into()) },
        ],
        ..cells_only.clone()
    };
    let part =
        |accepted, count| PartAck::Accepted(PartAccepted { accepted, count, known: Known::None });
    let two = PublishAck {
        parts: vec![part(accepted(43, 45, false), 3), part(accepted(9, 9, false), 1)],
    };
    let these = Known::These(vec![(0, Seq(12)), (2, Seq(40))]);
    let later = Timestamp(1_800_000_000_000);
    let too_large = RejectReason::TooLarge { bytes: 9_000_000, max: 4_000_000 };
    let other = Rejection::Other { code: 77, detail: Bytes::from_static(b"?") };
    vec![
        ("publish", publish(none, None, std::slice::from_ref(&hello))),
        ("publish-with-all-options", publish(all_options, None, &three)),
        ("publish-expecting-no-message-of-a-key", publish(expect_key, None, &[message()])),
        ("publish-delayed", publish(none, Some(later), std::slice::from_ref(&hello))),
        ("publish-with-a-report", publish(report, None, &[hello])),
        ("publish-ack", accept(accepted(42, 44, false), 3, Known::None)),
        ("publish-ack-with-duplicates", accept(accepted(42, 42, false), 3, these)),
        (
            "publish-ack-of-a-duplicate",
            accept(accepted(12, 12, true), 1, Known::These(vec![(0, Seq(12))])),
        ),
        ("publish-ack-without-a-list", accept(accepted(42, 43, false), 5, Known::Some)),
        ("publish-ack-scheduled", ack(PartAck::Scheduled { id: Position(4), due: later })),
        ("publish-ack-rejected", reject(Rejection::Reason(RejectReason::QueueFull))),
        (
            "publish-ack-rejected-expected-seq",
            reject(Rejection::Reason(RejectReason::ExpectedSeq { actual: Seq(44) })),
        ),
        ("publish-ack-rejected-too-large", reject(Rejection::Reason(too_large))),
        ("publish-ack-rejected-by-a-newer-server", reject(other)),
        ("commit", commit.into()),
        ("commit-of-cells", cells_only.into()),
        ("commit-of-cells-on-condition", conditional.into()),
        ("publish-ack-of-a-commit", two.into()),
        (
            "publish-ack-of-a-commit-of-cells",
            accept(Accepted { position: Position(0), ..accepted(0, 0, false) }, 0, Known::None),
        ),
        ("cancel-delayed", CancelDelayed { id: Position(4) }.into()),
        ("cancelled", Cancelled { was_waiting: true }.into()),
        ("delivery-report", DeliveryReport { delivered: 3, ..DeliveryReport::default() }.into()),
        ("delivery-report-of-failures", failures().into()),
    ]
}

fn failures() -> DeliveryReport {
    let node = || NodeName::parse("b").expect("a name");
    let mut report = DeliveryReport { delivered: 200, unnamed: 1, ..DeliveryReport::default() };
    let own = SubscriberName::Handle { node: None, number: 7 };
    report.add(own, DeliveryStatus::OtherError);
    let other = SubscriberName::Handle { node: Some(node()), number: 300 };
    report.add(other, DeliveryStatus::SubscriberUnreachable);
    let identity = Identity::parse("billing.eu").expect("an identity");
    report.add(SubscriberName::Identity(identity), DeliveryStatus::Timeout);
    report.add(SubscriberName::Node(node()), DeliveryStatus::SubscriberUnreachable);
    report
}

fn following() -> Vec<(&'static str, Verb)> {
    let subscription = 5;
    let one = batch(42, &[Some(Message::new("hello")), Some(message())]);
    let holed = batch(44, &[None, Some(Message::tombstone("order-2")), None]);
    let seqs = PlaceRange::Seqs(Seq(1), Seq(41));
    let positions = PlaceRange::Positions(Position(1), Position(1042));
    let told = |gap| SubscriptionGap { subscription, gap, token: token() };
    let seqs_gone = GapNotice {
        topic: Some(name("orders.created")),
        from: Some(Seq(1)),
        to: Some(Seq(2)),
        positions: None,
        reason: GapReason::Retention,
    };
    let of_all = told(GapNotice {
        topic: None,
        from: None,
        to: None,
        positions: Some((Position(0), Position(99))),
        reason: GapReason::Epoch,
    });
    let of_later = told(GapNotice { reason: GapReason::from_code(200), ..seqs_gone.clone() });
    let gap = told(seqs_gone);
    let error = ErrorAnswer::new(ErrorCode::TopicDeleted, "topic orders.created was deleted");
    let unseen = ["b", "node-3"].map(|name| NodeName::parse(name).expect("a name")).to_vec();
    vec![
        ("subscribe-from-the-beginning", subscribe("orders.created", StartFrom::Beginning)),
        ("subscribe-from-a-seq", subscribe("orders.created", StartFrom::Seq(Seq(42)))),
        ("subscribe-from-a-token", subscribe("orders.>", StartFrom::Token(token()))),
        (
            "subscribe-from-a-time",
            subscribe("orders.created", StartFrom::Time(Timestamp(1_700_000_000_000))),
        ),
        ("subscribe-from-now", subscribe("*.created", StartFrom::Now)),
        ("subscribe-to-the-last-per-key", subscribe("orders.created", StartFrom::LastPerKey)),
        ("subscribe-under-an-identity", subscribe_named("orders.*", "billing.eu")),
        ("subscribed", Subscribed { subscription, token: token() }.into()),
        ("unsubscribe", Unsubscribe { subscription, hold: false }.into()),
        ("unsubscribe-and-hold", Unsubscribe { subscription, hold: true }.into()),
        ("unsubscribed", Unsubscribed { subscription, token: token() }.into()),
        ("messages", messages(vec![one.clone()], 42, 43)),
        ("messages-with-holes", messages(vec![one, holed], 43, 45)),
        ("messages-of-none", messages(Vec::new(), 46, 50)),
        ("recovery-response", RecoveryResponse { subscription, range: seqs }.into()),
        (
            "recovery-response-of-a-pattern",
            RecoveryResponse { subscription, range: positions }.into(),
        ),
        ("recovery-complete", RecoveryComplete { subscription, token: token() }.into()),
        ("gap", gap.into()),
        ("gap-of-another-store", of_all.into()),
        ("gap-of-a-newer-server", of_later.into()),
        ("credit", Credit { subscription, messages: 100, bytes: 1 << 16 }.into()),
        ("ended", Ended { subscription, token: token(), error }.into()),
        ("await-visible", AwaitVisible { wait_ms: 5_000 }.into()),
        ("visible-everywhere", Visible::default().into()),
        ("visible-but-for-two", Visible::unseen(unseen.clone(), true).into()),
        ("visible-but-for-two-unnamed", Visible::unseen(unseen, false).into()),
    ]
}

fn looking() -> Vec<(&'static str, Verb)> {
    let topic = name("orders.created");
    let found = Found {
        seq: Seq(42),
        position: Position(1042),
        time: Timestamp(1_700_000_000_000),
        records: records(&[message()]),
    };
    let follow = FollowInfo {
        subscription: 5,
        state: ClientState::Recovering,
        place: Place::Seq(Seq(40)),
        recovery_steps: 3,
        pattern: pattern("orders.created"),
    };
    let other = FollowInfo {
        subscription: 6,
        state: ClientState::Online,
        place: Place::Position(Position(1042)),
        pattern: pattern("orders.>"),
        ..follow
    };
    let client = ClientInfo {
        session: 17,
        since: Timestamp(1_700_000_000_000),
        state: ClientState::Recovering,
        name: "billing".into(),
        address: "127.0.0.1:50000".into(),
        follows: vec![follow, other],
        memberships: Vec::new(),
    };
    let idle = ClientInfo {
        session: 18,
        state: ClientState::Connected,
        address: "unix".into(),
        follows: Vec::new(),
        ..client.clone()
    };
    let membership = MembershipInfo {
        membership: 7,
        id: 3,
        in_flight: 2,
        window: 100,
        active: true,
        group: name("billing"),
        name: "worker-1".into(),
    };
    let standby =
        MembershipInfo { membership: 8, active: false, in_flight: 0, ..membership.clone() };
    let member = ClientInfo {
        state: ClientState::Online,
        memberships: vec![membership, standby],
        ..idle.clone()
    };
    vec![
        ("get", Get { topic: topic.clone(), key: "order-1".into() }.into()),
        ("read", Read { topic: topic.clone(), seq: Seq(42) }.into()),
        ("found", found.into()),
        ("not-found", NotFound.into()),
        ("cell-read", CellRead { name: "cursor".into() }.into()),
        ("cell-value", CellValue { value: Some(Bytes::from_static(&[42, 0])) }.into()),
        ("cell-value-of-none", CellValue { value: None }.into()),
        ("clients", Clients { after: 0, limit: 100 }.into()),
        ("client-close", ClientClose { session: 42 }.into()),
        ("client-list", ClientList { clients: vec![client.clone(), idle], more: false }.into()),
        ("client-list-of-members", ClientList { clients: vec![client, member], more: true }.into()),
        ("stats", Stats.into()),
        ("stats-text", StatsText { json: "{\"topics\":3}".into() }.into()),
        ("auth", Auth { json: "{\"do\":\"who_am_i\"}".into() }.into()),
        ("auth-answer", AuthAnswer { json: "{\"name\":\"shop\"}".into() }.into()),
        ("cluster", Cluster { json: "{\"do\":\"status\"}".into() }.into()),
        ("cluster-answer", ClusterAnswer { json: "{\"node\":\"a\"}".into() }.into()),
        ("explain", Explain { topic, seq: Seq(42) }.into()),
        ("explained", Explained { json: "{\"state\":\"kept\"}".into() }.into()),
    ]
}
