//! Arbitrary verbs, well formed.

use std::time::Duration;

use bytes::Bytes;
use gapless_core::cluster::{DeliveryReport, DeliveryStatus, Identity, NodeName, SubscriberName};
use gapless_core::{
    Accepted, Batch, Compaction, DedupWindow, DeliveryPolicy, Durability, Epoch, Expect, Fate,
    GapReason, Message, PartitionBehavior, Pattern, Position, PublishOptions, Records,
    RejectReason, Retention, Seq, Storage, Timestamp, TopicName, TopicSettings, TotalLimit,
};
use gapless_protocol::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::samples;

pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..1000_u64, 0..=NUMBER_MAX]
}

pub(crate) fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=max).prop_map(Bytes::from)
}

pub(crate) fn topic() -> impl Strategy<Value = TopicName> {
    "[a-zäß0-9_-]{1,8}(\\.[a-z0-9]{1,8}){0,3}".prop_map(|text| samples::name(&text))
}

pub(crate) fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        topic().prop_map(|name| Pattern::literal(&name)),
        "[a-z]{1,8}\\.\\*(\\.[a-z]{1,4})?".prop_map(|text| samples::pattern(&text)),
        "([a-z]{1,8}\\.)?>".prop_map(|text| samples::pattern(&text)),
    ]
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let headers = vec(("[a-z]{0,6}", bytes(8)), 0..3);
    let parts = (option::of(bytes(12)), headers, option::of(bytes(40)));
    let wishes = (option::of(vec(any::<u8>(), 1..20)), option::of(1..u64::from(u32::MAX)));
    (parts, wishes).prop_map(|((key, headers, body), (id, ttl))| {
        let body = if key.is_none() { Some(body.unwrap_or_default()) } else { body };
        let id = id.map(Bytes::from);
        let ttl = ttl.map(Duration::from_millis);
        Message { key, headers, body, id, ttl, not_before: None }
    })
}

pub(crate) fn records() -> impl Strategy<Value = Records> {
    vec(message(), 1..6).prop_map(|messages| samples::records(&messages))
}

/// A stored batch at this seq, with holes or without.
pub(crate) fn batch(first: u64, span_max: usize) -> impl Strategy<Value = Batch> {
    let gone = prop_oneof![3 => Just(false), 1 => Just(true)];
    vec((message(), gone), 1..=span_max).prop_map(move |messages| {
        let kept = |(message, gone): (Message, bool)| (!gone).then_some(message);
        samples::batch(first, &messages.into_iter().map(kept).collect::<Vec<_>>())
    })
}

/// A delivery of several batches with seqs missing between some of them, cut at both ends.
pub(crate) fn messages() -> impl Strategy<Value = Messages> {
    let parts = vec((batch(1, 6), 0..3_u64), 0..5);
    (parts, 1..1000_u64, topic(), 0..3_u64, 0..3_u64).prop_map(
        |(parts, first, topic, low, high)| {
            let mut next = first;
            let mut batches = Vec::new();
            for (part, holes) in parts {
                let moved: Vec<Option<Message>> = (0..part.header().span)
                    .map(|offset| {
                        let record = part.records().find(|record| record.offset == offset)?;
                        Some(part.message(&record))
                    })
                    .collect();
                let moved = samples::batch(next, &moved);
                next = moved.last().next().0 + holes;
                batches.push(moved);
            }
            let (mut from, mut to) = (first, next.max(first));
            if let (Some(front), Some(back)) = (batches.first(), batches.last()) {
                from = (first + low).min(front.last().0);
                to = (next - 1).saturating_sub(high).max(back.first().0).max(from);
            }
            let last_position = Position(to + 1000);
            let (from, to) = (Seq(from), Seq(to));
            let batches = batches.into_iter().collect();
            Messages { subscription: 3, topic, from, to, last_position, batches }
        },
    )
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![Just(Durability::Memory), Just(Durability::Written), Just(Durability::Flushed)]
}

fn delivery() -> impl Strategy<Value = DeliveryPolicy> {
    prop_oneof![Just(DeliveryPolicy::AtMostOnce), Just(DeliveryPolicy::AtLeastOnce)]
}

fn partition() -> impl Strategy<Value = PartitionBehavior> {
    prop_oneof![Just(PartitionBehavior::DelayQueue), Just(PartitionBehavior::Drop)]
}

fn expect() -> impl Strategy<Value = Option<Expect>> {
    option::of(prop_oneof![
        number().prop_map(|seq| Expect::TopicLast(Seq(seq))),
        number().prop_map(|seq| Expect::KeyLast(Seq(seq))),
    ])
}

fn options() -> impl Strategy<Value = PublishOptions> {
    let wishes = (option::of(durability()), option::of(delivery()), option::of(partition()));
    (wishes, any::<Option<bool>>(), expect(), any::<bool>()).prop_map(
        |((durability, delivery, partition), require_subscribers, expect, report)| PublishOptions {
            durability,
            delivery,
            partition,
            require_subscribers,
            expect,
            report,
        },
    )
}

fn settings() -> impl Strategy<Value = TopicSettings> {
    let ms = || (1..u64::MAX).prop_map(Duration::from_millis);
    let retention = (option::of(ms()), option::of(1..u64::MAX), option::of(1..u64::MAX));
    let wishes = (option::of(durability()), option::of(delivery()), option::of(partition()));
    let rest = (
        option::of(ms()),
        ms(),
        0..=gapless_core::DEDUP_COUNT_MAX,
        any::<Option<bool>>(),
        option::of(1..u32::MAX),
    );
    (any::<bool>(), retention, wishes, rest).prop_map(
        |(volatile, (age, bytes, count), (durability, delivery, partition), rest)| TopicSettings {
            storage: if volatile { Storage::Volatile } else { Storage::Durable },
            durability: if volatile { None } else { durability },
            retention: Retention { age, bytes, count },
            compaction: rest.0.map(|tombstone_grace| Compaction { tombstone_grace }),
            dedup: DedupWindow { time: rest.1, count: rest.2 },
            delivery,
            partition,
            require_subscribers: rest.3,
            max_message_bytes: rest.4,
        },
    )
}

fn token() -> impl Strategy<Value = Token> {
    (any::<u64>(), number())
        .prop_map(|(epoch, position)| Token { epoch: Epoch(epoch), position: Position(position) })
}

fn error() -> impl Strategy<Value = ErrorAnswer> {
    (any::<u16>(), any::<bool>(), "\\PC{0,40}").prop_map(|(code, unknown, message)| {
        let fate = if unknown { Fate::Unknown } else { Fate::DidNotHappen };
        ErrorAnswer { code, fate, message, retry_after_ms: None }
    })
}

fn info() -> impl Strategy<Value = TopicInfo> {
    (topic(), any::<u64>(), number(), number(), any::<u64>(), settings()).prop_map(
        |(name, id, first, next, bytes, settings)| TopicInfo {
            name,
            id,
            first: Seq(first),
            next: Seq(next),
            bytes,
            settings,
        },
    )
}

fn accepted() -> impl Strategy<Value = PartAccepted> {
    let fresh_and_known = (1..20_u64, vec((0..3_u32, number()), 0..4));
    let numbers = (1..1_000_000_u64, number(), durability());
    (numbers, fresh_and_known, any::<bool>()).prop_map(
        |((first, position, durability), (fresh, known), all)| {
            let mut index = 0;
            let mut these = Vec::new();
            for (step, seq) in known {
                these.push((index + step, Seq(seq)));
                index += step + 1;
            }
            let all = all && !these.is_empty();
            if all {
                (0_u32..).zip(&mut these).for_each(|(index, each)| each.0 = index);
            }
            let fresh = if all { 0 } else { fresh.max(u64::from(index)) };
            let count = (fresh as usize + these.len()) as u32;
            let last = first + fresh.max(1) - 1;
            let accepted = Accepted {
                first: Seq(first),
                last: Seq(last),
                position: Position(position),
                durability,
                duplicate: all,
            };
            let known = if these.is_empty() { Known::None } else { Known::These(these) };
            PartAccepted { accepted, count, known }
        },
    )
}

fn rejection() -> impl Strategy<Value = Rejection> {
    let unknown = RejectReason::CODES.iter().map(|(code, _)| code + 1).max().unwrap_or(1);
    prop_oneof![
        Just(Rejection::Reason(RejectReason::QueueFull)),
        Just(Rejection::Reason(RejectReason::NotDurable)),
        number().prop_map(|seq| Rejection::Reason(RejectReason::ExpectedSeq { actual: Seq(seq) })),
        any::<(u64, u64)>()
            .prop_map(|(bytes, max)| Rejection::Reason(RejectReason::TooLarge { bytes, max })),
        any::<u64>().prop_map(|max| {
            let limit = TotalLimit::CellBytes;
            Rejection::Reason(RejectReason::LimitReached { limit, max })
        }),
        (unknown..100, bytes(20)).prop_map(|(code, detail)| Rejection::Other { code, detail }),
    ]
}

fn acks() -> impl Strategy<Value = PublishAck> {
    let part = || {
        prop_oneof![
            accepted().prop_map(PartAck::Accepted),
            (number(), any::<u64>())
                .prop_map(|(id, due)| PartAck::Scheduled { id: Position(id), due: Timestamp(due) }),
        ]
    };
    prop_oneof![
        vec(part(), 1..5).prop_map(|parts| PublishAck { parts }),
        rejection().prop_map(|it| PublishAck { parts: vec![PartAck::Rejected(it)] }),
    ]
}

pub(crate) fn commit() -> impl Strategy<Value = Commit> {
    let part = (topic(), expect(), records()).prop_map(|(topic, expect, records)| CommitPart {
        topic,
        expect,
        records,
    });
    let expect = prop_oneof![
        Just(ExpectCell::Anything),
        Just(ExpectCell::Absent),
        bytes(30).prop_map(ExpectCell::Value),
    ];
    let cell = (vec(any::<u8>(), 1..20), option::of(bytes(30)), expect)
        .prop_map(|(name, value, expect)| CellWrite { name: name.into(), value, expect });
    (options(), vec(part, 0..4), vec(cell, 1..4)).prop_map(|(options, parts, cells)| {
        let options = PublishOptions { expect: None, ..options };
        Commit { options, parts, cells }
    })
}

fn start() -> impl Strategy<Value = StartFrom> {
    prop_oneof![
        Just(StartFrom::Beginning),
        number().prop_map(|seq| StartFrom::Seq(Seq(seq))),
        token().prop_map(StartFrom::Token),
        any::<u64>().prop_map(|time| StartFrom::Time(Timestamp(time))),
        Just(StartFrom::Now),
        Just(StartFrom::LastPerKey),
    ]
}

fn gap() -> impl Strategy<Value = SubscriptionGap> {
    let places = (option::of(number()), option::of(number()), option::of((number(), number())));
    (any::<u64>(), option::of(topic()), places, 1..=255_u8, token()).prop_map(
        |(subscription, topic, (from, to, positions), reason, token)| {
            let (from, to) = match (from, to) {
                (Some(a), Some(b)) => (Some(a.min(b)), Some(a.max(b))),
                other => other,
            };
            let gap = GapNotice {
                topic,
                from: from.map(Seq),
                to: to.map(Seq),
                positions: positions.map(|(first, last)| (Position(first), Position(last))),
                reason: GapReason::from_code(reason),
            };
            SubscriptionGap { subscription, gap, token }
        },
    )
}

fn state() -> impl Strategy<Value = ClientState> {
    prop_oneof![
        Just(ClientState::Connected),
        Just(ClientState::Recovering),
        Just(ClientState::Online),
        Just(ClientState::Offline),
    ]
}

fn client() -> impl Strategy<Value = ClientInfo> {
    let place = prop_oneof![
        number().prop_map(|seq| Place::Seq(Seq(seq))),
        number().prop_map(|position| Place::Position(Position(position))),
    ];
    let follow = (any::<u64>(), state(), place, any::<u64>(), pattern()).prop_map(
        |(subscription, state, place, recovery_steps, pattern)| FollowInfo {
            subscription,
            state,
            place,
            recovery_steps,
            pattern,
        },
    );
    let text = || "\\PC{0,20}";
    let numbers = any::<(u64, u64, u64, u32, bool)>();
    let membership = (numbers, topic(), text()).prop_map(
        |((membership, id, in_flight, window, active), group, name)| MembershipInfo {
            membership,
            id,
            in_flight,
            window,
            active,
            group,
            name,
        },
    );
    let lists = (vec(follow, 0..3), vec(membership, 0..3));
    (any::<(u64, u64)>(), state(), text(), text(), lists).prop_map(
        |((session, since), state, name, address, (follows, memberships))| {
            let since = Timestamp(since);
            ClientInfo { session, since, state, name, address, follows, memberships }
        },
    )
}

fn session() -> impl Strategy<Value = Verb> {
    let hello = (1..9_u16, 0..9_u16, any::<u64>(), "\\PC{0,30}", option::of(bytes(40)), bytes(9));
    let limits = (any::<(u32, u64, u32)>(), any::<(u32, u64, u32)>());
    let welcome = (any::<(u16, u64, u64, u64)>(), "\\PC{0,30}", "\\PC{0,9}", limits);
    prop_oneof![
        hello.prop_map(|(min, more, features, client_name, token, extension)| {
            let (version_min, version_max) = (min, min + more);
            let features = Features(features);
            Hello { version_min, version_max, features, client_name, token, extension }.into()
        }),
        welcome.prop_map(|((version, features, epoch, session), server_name, text, (a, b))| {
            let limits = Limits {
                frame_bytes: a.0,
                in_flight_bytes: a.1,
                subscriptions: a.2,
                credit_messages: b.0,
                credit_bytes: b.1,
                idle_ms: b.2,
            };
            let (features, epoch) = (Features(features), Epoch(epoch));
            let server_version = text;
            Welcome { version, features, server_name, server_version, epoch, session, limits }
                .into()
        }),
        (error(), option::of(any::<u32>()))
            .prop_map(|(error, retry_after_ms)| { ErrorAnswer { retry_after_ms, ..error }.into() }),
        bytes(64).prop_map(|echo| Ping { echo }.into()),
        bytes(64).prop_map(|echo| Pong { echo }.into()),
        any::<(u8, u32)>().prop_map(|(reason, grace_ms)| Drain {
            reason: DrainReason(reason),
            grace_ms
        }
        .into()),
        Just(Bye.into()),
    ]
}

fn topics() -> impl Strategy<Value = Verb> {
    prop_oneof![
        (topic(), settings()).prop_map(|(topic, settings)| TopicCreate { topic, settings }.into()),
        (topic(), settings())
            .prop_map(|(topic, settings)| TopicConfigure { topic, settings }.into()),
        topic().prop_map(|topic| TopicDescribe { topic }.into()),
        (pattern(), option::of(topic()), 1..=u32::MAX)
            .prop_map(|(pattern, after, limit)| TopicList { pattern, after, limit }.into()),
        topic().prop_map(|topic| TopicDelete { topic }.into()),
        (topic(), number()).prop_map(|(topic, seq)| TopicPurge { topic, below: Seq(seq) }.into()),
        info().prop_map(Verb::from),
        (vec(info(), 0..4), any::<bool>())
            .prop_map(|(topics, more)| TopicInfos { topics, more }.into()),
        Just(Done.into()),
    ]
}

fn publishing() -> impl Strategy<Value = Verb> {
    prop_oneof![
        (topic(), options(), option::of(any::<u64>()), records()).prop_map(
            |(topic, options, time, records)| {
                let not_before = time.filter(|_| records.count == 1).map(Timestamp);
                Publish { topic, options, not_before, records }.into()
            }
        ),
        acks().prop_map(Verb::from),
        commit().prop_map(Verb::from),
        number().prop_map(|id| CancelDelayed { id: Position(id) }.into()),
        any::<bool>().prop_map(|was_waiting| Cancelled { was_waiting }.into()),
        report().prop_map(Verb::from),
    ]
}

fn identity() -> impl Strategy<Value = Identity> {
    "[a-z]{1,8}(\\.[a-z]{1,8})?".prop_map(|text| Identity::parse(&text).expect("an identity"))
}

fn node() -> impl Strategy<Value = NodeName> {
    "[a-z]{1,8}".prop_map(|text| NodeName::parse(&text).expect("a name"))
}

fn report() -> impl Strategy<Value = DeliveryReport> {
    let subscriber = prop_oneof![
        (option::of(node()), any::<u64>())
            .prop_map(|(node, number)| SubscriberName::Handle { node, number }),
        identity().prop_map(SubscriberName::Identity),
        node().prop_map(SubscriberName::Node),
    ];
    let status = (1..=4_u8).prop_map(|code| DeliveryStatus::from_code(code).expect("a status"));
    (vec((subscriber, status), 0..5), any::<(u16, u16)>()).prop_map(
        |(all, (delivered, unnamed))| {
            let (delivered, unnamed) = (delivered.into(), unnamed.into());
            let mut report = DeliveryReport { delivered, unnamed, ..DeliveryReport::default() };
            all.into_iter().for_each(|(subscriber, status)| report.add(subscriber, status));
            report
        },
    )
}

fn following() -> impl Strategy<Value = Verb> {
    let place = || (any::<u64>(), token());
    let range = (any::<bool>(), number(), number()).prop_map(|(seqs, from, to)| {
        if seqs {
            PlaceRange::Seqs(Seq(from), Seq(to))
        } else {
            PlaceRange::Positions(Position(from), Position(to))
        }
    });
    prop_oneof![
        (pattern(), any::<(u32, u64)>(), start(), option::of(identity())).prop_map(
            |(pattern, credit, from, identity)| {
                let (credit_messages, credit_bytes) = credit;
                Subscribe { pattern, credit_messages, credit_bytes, from, identity }.into()
            }
        ),
        place().prop_map(|(subscription, token)| Subscribed { subscription, token }.into()),
        any::<(u64, bool)>()
            .prop_map(|(subscription, hold)| Unsubscribe { subscription, hold }.into()),
        place().prop_map(|(subscription, token)| Unsubscribed { subscription, token }.into()),
        messages().prop_map(Verb::from),
        (any::<u64>(), range).prop_map(|(subscription, range)| RecoveryResponse {
            subscription,
            range
        }
        .into()),
        place().prop_map(|(subscription, token)| RecoveryComplete { subscription, token }.into()),
        gap().prop_map(Verb::from),
        any::<(u64, u32, u64)>().prop_map(|(subscription, messages, bytes)| {
            Credit { subscription, messages, bytes }.into()
        }),
        (place(), error()).prop_map(|((subscription, token), error)| {
            Ended { subscription, token, error }.into()
        }),
        (0..=AWAIT_VISIBLE_MS_MAX).prop_map(|wait_ms| AwaitVisible { wait_ms }.into()),
        (vec(node(), 0..5), any::<bool>())
            .prop_map(|(nodes, named)| Visible::unseen(nodes, named).into()),
    ]
}

fn looking() -> impl Strategy<Value = Verb> {
    prop_oneof![
        (topic(), bytes(60)).prop_map(|(topic, key)| Get { topic, key }.into()),
        (topic(), number()).prop_map(|(topic, seq)| Read { topic, seq: Seq(seq) }.into()),
        (number(), number(), any::<u64>(), message()).prop_map(|(seq, position, time, message)| {
            let records = samples::records(&[message]);
            let (seq, position, time) = (Seq(seq), Position(position), Timestamp(time));
            Found { seq, position, time, records }.into()
        }),
        Just(NotFound.into()),
        vec(any::<u8>(), 1..255).prop_map(|name| CellRead { name: name.into() }.into()),
        option::of(bytes(80)).prop_map(|value| CellValue { value }.into()),
        (any::<u64>(), 1..=u32::MAX).prop_map(|(after, limit)| Clients { after, limit }.into()),
        (vec(client(), 0..3), any::<bool>()).prop_map(|(clients, more)| ClientList {
            clients,
            more
        }
        .into()),
        (1..u64::MAX).prop_map(|session| ClientClose { session }.into()),
        Just(Stats.into()),
        "\\PC{0,60}".prop_map(|json| StatsText { json }.into()),
        "\\PC{0,60}".prop_map(|json| Auth { json }.into()),
        "\\PC{0,60}".prop_map(|json| AuthAnswer { json }.into()),
        "\\PC{0,60}".prop_map(|json| Cluster { json }.into()),
        "\\PC{0,60}".prop_map(|json| ClusterAnswer { json }.into()),
        (topic(), number()).prop_map(|(topic, seq)| Explain { topic, seq: Seq(seq) }.into()),
        "\\PC{0,60}".prop_map(|json| Explained { json }.into()),
    ]
}

/// Any verb.
pub(crate) fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        session().boxed(),
        topics().boxed(),
        publishing().boxed(),
        following().boxed(),
        looking().boxed(),
        super::groups::verb().boxed(),
    ]
}
