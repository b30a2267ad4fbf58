//! The verbs of groups: examples, arbitrary ones, and their meaning as JSON.

use std::time::Duration;

use bytes::Bytes;
use gapless_core::group::Counts;
use gapless_core::{
    Durability, GapReason, GroupSettings, GroupStart, Lease, Message, Mode, OnGap, Position,
    PublishOptions, RetryPolicy, Seq, Timestamp, Waits,
};
use gapless_protocol::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{any, hex, meaning, samples};

fn lease(first: u64, last: u64, attempt: u32) -> Lease {
    Lease { first: Position(first), last: Position(last), attempt }
}

fn settings() -> GroupSettings {
    let steps = vec![Duration::from_secs(1), Duration::from_secs(60)];
    GroupSettings {
        mode: Mode::Keyed,
        start: GroupStart::Time(Timestamp(1_700_000_000_000)),
        lease: Duration::from_secs(10),
        attempts_max: 3,
        retry: RetryPolicy { waits: Waits::Steps(steps), jitter_percent: 10 },
        dead_letters: false,
        on_gap: OnGap::Continue,
        in_flight_max: 1000,
        member_in_flight_max: 100,
        open_max: 10_000,
        durability: Durability::Written,
        ..GroupSettings::new(samples::pattern("orders.>"))
    }
}

fn info(name: &str, doing: GroupDoing) -> GroupInfo {
    GroupInfo {
        name: samples::name(name),
        id: 9,
        settings: settings(),
        state: doing,
        floor: Position(1000),
        frontier: Position(1042),
        lag: 42,
        lag_exact: true,
        counts: Counts { ready: 1, waiting: 2, parked: 3, in_flight: 4, dying: 5 },
        oldest_age: Some(Duration::from_millis(1500)),
        next_retry: Some(Timestamp(1_700_000_001_000)),
        dead_letters: 6,
        redriving: true,
        totals: GroupTotals {
            delivered: 10,
            redelivered: 2,
            acked: 7,
            nacked: 1,
            expired: 1,
            buried: 6,
            dropped: 0,
            lost: 3,
        },
        members: vec![MemberInfo {
            id: 4,
            window: 100,
            in_flight: 4,
            active: true,
            name: "billing-1".into(),
        }],
        why: "It moves.".into(),
    }
}

fn letter() -> Letter {
    Letter {
        seq: Seq(6),
        topic: samples::name("orders.created"),
        origin: Seq(42),
        attempts: 3,
        error: "no such customer".into(),
        first_failed: Timestamp(1_700_000_000_000),
        died: Timestamp(1_700_000_060_000),
        records: samples::records(&[Message::new("{}").with_key("order-1")]),
    }
}

/// One example or more of each.
pub(crate) fn all() -> Vec<(&'static str, Verb)> {
    let (member, group) = (3, samples::name("billing"));
    let one = |text: &str| Some(Message::new(text.to_owned()));
    let gap = GapNotice {
        topic: Some(samples::name("orders.created")),
        from: Some(Seq(17)),
        to: Some(Seq(20)),
        positions: None,
        reason: GapReason::Retention,
    };
    let error = ErrorAnswer::new(ErrorCode::GroupDeleted, "group billing was deleted");
    let batches =
        [samples::batch(42, &[one("a"), None, one("b")]), samples::batch(45, &[one("c")])];
    let leased = GroupMessages {
        member,
        topic: samples::name("orders.created"),
        deadline: Timestamp(1_700_000_030_000),
        leases: vec![lease(1042, 1042, 2), lease(1044, 1045, 1)],
        batches: batches.into_iter().collect(),
    };
    let leases = vec![lease(1042, 1042, 2), lease(1044, 2000, 1)];
    let acks = vec![StepAck { member, leases: leases.clone() }];
    let part = CommitPart {
        topic: samples::name("bills"),
        expect: None,
        records: samples::records(&[Message::new("paid")]),
    };
    let commit = Commit {
        options: PublishOptions { durability: Some(Durability::Flushed), ..Default::default() },
        parts: vec![part],
        cells: vec![CellWrite {
            name: "total".into(),
            value: Some("12".into()),
            expect: ExpectCell::Anything,
        }],
    };
    let filter = LetterFilter {
        from: Some(Seq(1)),
        to: Some(Seq(9)),
        topic: Some(samples::pattern("orders.*")),
        error: Some("customer".into()),
        key: Some("order-1".into()),
    };
    let reset = |to, force| GroupReset { group: samples::name("billing"), to, force };
    let confirm = Confirm::Durable;
    let reason = String::from("no such customer");
    let plain = GroupSettings::new(samples::pattern("orders.created"));
    let stopped = GroupDoing::Stopped(gap.clone());
    let idle = GroupInfo {
        settings: plain.clone(),
        oldest_age: None,
        next_retry: None,
        members: Vec::new(),
        ..info("idle", GroupDoing::Paused)
    };
    vec![
        (
            "group-join",
            GroupJoin { group: group.clone(), name: "billing-1".into(), window: 100 }.into(),
        ),
        ("group-joined", GroupJoined { member, id: 4, mode: Mode::Keyed, lease_ms: 10_000 }.into()),
        ("group-leave", GroupLeave { member }.into()),
        ("group-left", GroupLeft { member, error: None }.into()),
        ("group-left-by-the-server", GroupLeft { member, error: Some(error) }.into()),
        ("group-messages", leased.into()),
        ("group-ack", GroupAck { member, confirm, which: Which::Leases(leases.clone()) }.into()),
        (
            "group-ack-through",
            GroupAck { member, confirm: Confirm::Nothing, which: Which::Through(Position(1045)) }
                .into(),
        ),
        (
            "group-nack",
            GroupNack {
                member,
                confirm,
                delay_ms: Some(5000),
                reason: reason.clone(),
                leases: leases.clone(),
            }
            .into(),
        ),
        (
            "group-nack-by-schedule",
            GroupNack {
                member,
                confirm: Confirm::Counted,
                delay_ms: None,
                reason: String::new(),
                leases: vec![lease(1042, 1042, 2)],
            }
            .into(),
        ),
        (
            "group-extend",
            GroupExtend { member, confirm: Confirm::Counted, leases: Vec::new() }.into(),
        ),
        ("group-terminate", GroupTerminate { member, confirm, reason, leases }.into()),
        ("group-step", GroupStep { acks: acks.clone(), commit }.into()),
        ("group-step-of-acks", GroupStep { acks, commit: Commit::default() }.into()),
        ("group-done", GroupDone { taken: 958, refused: 1, deadline: None }.into()),
        (
            "group-done-extended",
            GroupDone { taken: 4, refused: 0, deadline: Some(Timestamp(1_700_000_040_000)) }.into(),
        ),
        ("group-credit", GroupCredit { member, window: 50 }.into()),
        ("group-role", GroupRole { member, active: true }.into()),
        ("group-gap", GroupGap { member, gap: gap.clone() }.into()),
        (
            "group-gap-of-a-pattern",
            GroupGap { member, gap: GapNotice { topic: None, from: None, to: None, ..gap } }.into(),
        ),
        ("group-create", GroupCreate { group: group.clone(), settings: plain }.into()),
        ("group-configure", GroupConfigure { group: group.clone(), settings: settings() }.into()),
        ("group-describe", GroupDescribe { group: group.clone() }.into()),
        (
            "group-list",
            GroupList { pattern: samples::pattern(">"), after: Some(group.clone()), limit: 100 }
                .into(),
        ),
        ("group-delete", GroupDelete { group: group.clone() }.into()),
        ("group-pause", GroupPause { group: group.clone() }.into()),
        ("group-resume", GroupResume { group: group.clone() }.into()),
        ("group-reset", reset(GroupStart::Seq(Seq(17)), true).into()),
        ("group-reset-to-now", reset(GroupStart::Now, false).into()),
        ("group-info", info("billing", GroupDoing::Running).into()),
        (
            "group-infos",
            GroupInfos { groups: vec![info("billing", stopped), idle], more: true }.into(),
        ),
        ("letter-list", LetterList { group: group.clone(), from: Seq(1), limit: 100 }.into()),
        ("letter-read", LetterRead { group: group.clone(), seq: Seq(6) }.into()),
        (
            "letter-redrive",
            LetterRedrive { group: group.clone(), filter: filter.clone(), rate: Some(10) }.into(),
        ),
        (
            "letter-redrive-all",
            LetterRedrive { group: group.clone(), filter: LetterFilter::default(), rate: None }
                .into(),
        ),
        ("letter-remove", LetterRemove { group, filter }.into()),
        ("letters", Letters { letters: vec![letter()], more: false }.into()),
        ("letters-moved", LettersMoved { count: 6, goes_on: true }.into()),
    ]
}

fn leases() -> impl Strategy<Value = Vec<Lease>> {
    vec((0..1000_u64, 0..300_u64, any::<u32>()), 1..20).prop_map(|steps| {
        let mut next = 0;
        let mut leases = Vec::new();
        for (skipped, more, attempt) in steps {
            let first = next + skipped;
            leases.push(lease(first, first + more, attempt));
            next = first + more + 1;
        }
        leases
    })
}

fn confirm() -> impl Strategy<Value = Confirm> {
    prop_oneof![Just(Confirm::Nothing), Just(Confirm::Counted), Just(Confirm::Durable)]
}

fn start() -> impl Strategy<Value = GroupStart> {
    prop_oneof![
        Just(GroupStart::Beginning),
        Just(GroupStart::Now),
        any::number().prop_map(|seq| GroupStart::Seq(Seq(seq))),
        any::number().prop_map(|position| GroupStart::Position(Position(position))),
        any::<u64>().prop_map(|time| GroupStart::Time(Timestamp(time))),
    ]
}

fn any_settings() -> impl Strategy<Value = GroupSettings> {
    let numbers = (10..600_000_000_u64, 1..1_000_000_u32, 1..10_000_000_u32);
    (any::pattern(), start(), numbers, any::<(bool, bool, bool)>()).prop_map(
        |(source, start, (lease_ms, attempts_max, max), (a, b, c))| GroupSettings {
            start,
            mode: if a { Mode::Ordered } else { Mode::Shared },
            lease: Duration::from_millis(lease_ms),
            attempts_max,
            in_flight_max: max,
            open_max: max,
            dead_letters: b,
            on_gap: if c { OnGap::Stop } else { OnGap::Continue },
            ..GroupSettings::new(source)
        },
    )
}

fn lost() -> impl Strategy<Value = GapNotice> {
    let seqs = (option::of(any::number()), option::of(any::number()));
    (option::of(any::topic()), 1..=255_u8, seqs).prop_map(|(topic, reason, (from, to))| {
        let (from, to) = match (from, to) {
            (Some(a), Some(b)) => (Some(a.min(b)), Some(a.max(b))),
            other => other,
        };
        GapNotice {
            topic,
            from: from.map(Seq),
            to: to.map(Seq),
            positions: None,
            reason: GapReason::from_code(reason),
        }
    })
}

fn any_info() -> impl Strategy<Value = GroupInfo> {
    let doing = prop_oneof![
        Just(GroupDoing::Running),
        Just(GroupDoing::Paused),
        lost().prop_map(GroupDoing::Stopped),
    ];
    let member = (any::<(u64, u32, u64, bool)>(), "\\PC{0,20}").prop_map(
        |((id, window, in_flight, active), name)| MemberInfo {
            id,
            window,
            in_flight,
            active,
            name,
        },
    );
    let numbers = (any::number(), any::number(), any::<(u64, bool, bool)>());
    let maybe = (any::<Option<u64>>(), any::<Option<u64>>());
    let rest = (vec(member, 0..4), "\\PC{0,60}", any::<[u64; 5]>());
    (any::topic(), any_settings(), doing, numbers, maybe, rest).prop_map(
        |(name, settings, doing, (floor, frontier, (lag, a, b)), maybe, (members, why, c))| {
            GroupInfo {
                name,
                settings,
                state: doing,
                floor: Position(floor),
                frontier: Position(frontier),
                lag,
                lag_exact: a,
                redriving: b,
                oldest_age: maybe.0.map(Duration::from_millis),
                next_retry: maybe.1.map(Timestamp),
                counts: Counts {
                    ready: c[0],
                    waiting: c[1],
                    parked: c[2],
                    in_flight: c[3],
                    dying: c[4],
                },
                members,
                why,
                ..info("x", GroupDoing::Running)
            }
        },
    )
}

fn filter() -> impl Strategy<Value = LetterFilter> {
    let seqs = (option::of(any::number()), option::of(any::number()));
    let words = (option::of(any::pattern()), option::of("\\PC{0,20}"), option::of(any::bytes(9)));
    (seqs, words).prop_map(|((from, to), (topic, error, key))| LetterFilter {
        from: from.map(Seq),
        to: to.map(Seq),
        topic,
        error,
        key,
    })
}

fn any_letter() -> impl Strategy<Value = Letter> {
    let numbers = (any::number(), any::number(), any::<(u32, u64, u64)>());
    (numbers, any::topic(), "\\PC{0,40}", any::message()).prop_map(
        |((seq, origin, (attempts, first, died)), topic, error, message)| Letter {
            seq: Seq(seq),
            topic,
            origin: Seq(origin),
            attempts,
            error,
            first_failed: Timestamp(first),
            died: Timestamp(died),
            records: samples::records(&[message]),
        },
    )
}

/// Leased messages of several batches, with leases that name some of them.
pub(crate) fn leased() -> impl Strategy<Value = GroupMessages> {
    let parts = (any::messages(), vec(any::<bool>(), 64), any::<(u64, u32)>());
    parts.prop_map(|(messages, wanted, (deadline, attempt))| {
        let mut leases: Vec<Lease> = Vec::new();
        let views = messages.batches.iter().collect::<Vec<_>>();
        let mut index = 0;
        for batch in &views {
            for record in batch.records() {
                let position = batch.header().position.0 + u64::from(record.offset);
                index += 1;
                if wanted[index % wanted.len()] {
                    match leases.last_mut() {
                        Some(last) if last.last.0 + 1 == position => last.last.0 = position,
                        _ => leases.push(lease(position, position, attempt)),
                    }
                }
            }
        }
        if leases.is_empty() {
            leases.push(lease(1, 1, attempt));
        }
        let (topic, batches) = (messages.topic, messages.batches);
        GroupMessages { member: 3, topic, deadline: Timestamp(deadline), leases, batches }
    })
}

fn of_members() -> impl Strategy<Value = Verb> {
    let error = option::of("\\PC{0,20}")
        .prop_map(|text| text.map(|text| ErrorAnswer::new(ErrorCode::ShuttingDown, &text)));
    let which = prop_oneof![
        leases().prop_map(Which::Leases),
        any::number().prop_map(|position| Which::Through(Position(position))),
    ];
    let acks = vec((any::<u64>(), leases()), 1..4);
    prop_oneof![
        (any::topic(), "\\PC{0,30}", any::<u32>()).prop_map(|(group, name, window)| GroupJoin {
            group,
            name,
            window
        }
        .into()),
        any::<(u64, u64, u64)>().prop_map(|(member, id, lease_ms)| GroupJoined {
            member,
            id,
            mode: Mode::Shared,
            lease_ms
        }
        .into()),
        any::<u64>().prop_map(|member| GroupLeave { member }.into()),
        (any::<u64>(), error).prop_map(|(member, error)| GroupLeft { member, error }.into()),
        leased().prop_map(Verb::from),
        (any::<u64>(), confirm(), which).prop_map(|(member, confirm, which)| GroupAck {
            member,
            confirm,
            which
        }
        .into()),
        (any::<(u64, Option<u64>)>(), confirm(), "\\PC{0,30}", leases()).prop_map(
            |((member, delay_ms), confirm, reason, leases)| {
                GroupNack { member, confirm, delay_ms, reason, leases }.into()
            }
        ),
        (any::<u64>(), confirm(), option::of(leases())).prop_map(|(member, confirm, leases)| {
            GroupExtend { member, confirm, leases: leases.unwrap_or_default() }.into()
        }),
        (any::<u64>(), confirm(), "\\PC{0,30}", leases()).prop_map(
            |(member, confirm, reason, leases)| {
                GroupTerminate { member, confirm, reason, leases }.into()
            }
        ),
        (acks, any::commit(), any::<bool>()).prop_map(|(acks, commit, alone)| {
            let ack = |(member, leases)| StepAck { member, leases };
            let commit = if alone { Commit::default() } else { commit };
            GroupStep { acks: acks.into_iter().map(ack).collect(), commit }.into()
        }),
        any::<(u64, u64, Option<u64>)>().prop_map(|(taken, refused, deadline)| GroupDone {
            taken,
            refused,
            deadline: deadline.map(Timestamp)
        }
        .into()),
        any::<(u64, u32)>().prop_map(|(member, window)| GroupCredit { member, window }.into()),
        any::<(u64, bool)>().prop_map(|(member, active)| GroupRole { member, active }.into()),
        (any::<u64>(), lost()).prop_map(|(member, gap)| GroupGap { member, gap }.into()),
    ]
}

fn of_admins() -> impl Strategy<Value = Verb> {
    prop_oneof![
        (any::topic(), any_settings()).prop_map(|(group, settings)| GroupCreate {
            group,
            settings
        }
        .into()),
        (any::topic(), any_settings()).prop_map(|(group, settings)| GroupConfigure {
            group,
            settings
        }
        .into()),
        any::topic().prop_map(|group| GroupDescribe { group }.into()),
        (any::pattern(), option::of(any::topic()), 1..=u32::MAX)
            .prop_map(|(pattern, after, limit)| GroupList { pattern, after, limit }.into()),
        any::topic().prop_map(|group| GroupDelete { group }.into()),
        any::topic().prop_map(|group| GroupPause { group }.into()),
        any::topic().prop_map(|group| GroupResume { group }.into()),
        (any::topic(), start(), any::<bool>()).prop_map(|(group, to, force)| GroupReset {
            group,
            to,
            force
        }
        .into()),
        any_info().prop_map(Verb::from),
        (vec(any_info(), 0..3), any::<bool>()).prop_map(|(groups, more)| GroupInfos {
            groups,
            more
        }
        .into()),
        (any::topic(), any::number(), 1..=u32::MAX).prop_map(|(group, from, limit)| LetterList {
            group,
            from: Seq(from),
            limit
        }
        .into()),
        (any::topic(), any::number())
            .prop_map(|(group, seq)| LetterRead { group, seq: Seq(seq) }.into()),
        (any::topic(), filter(), option::of(1..=u32::MAX))
            .prop_map(|(group, filter, rate)| LetterRedrive { group, filter, rate }.into()),
        (any::topic(), filter()).prop_map(|(group, filter)| LetterRemove { group, filter }.into()),
        (vec(any_letter(), 0..4), any::<bool>()).prop_map(|(letters, more)| Letters {
            letters,
            more
        }
        .into()),
        any::<(u64, bool)>().prop_map(|(count, goes_on)| LettersMoved { count, goes_on }.into()),
    ]
}

/// Any verb of groups.
pub(crate) fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![of_members().boxed(), of_admins().boxed()]
}

fn show_leases(leases: &[Lease]) -> Value {
    leases.iter().map(|each| json!([each.first.0, each.last.0, each.attempt])).collect()
}

fn show_confirm(confirm: Confirm) -> &'static str {
    match confirm {
        Confirm::Nothing => "nothing",
        Confirm::Counted => "counted",
        Confirm::Durable => "durable",
    }
}

fn show_start(start: GroupStart) -> Value {
    match start {
        GroupStart::Beginning => json!("beginning"),
        GroupStart::Now => json!("now"),
        GroupStart::Seq(seq) => json!({ "seq": seq.0 }),
        GroupStart::Position(position) => json!({ "position": position.0 }),
        GroupStart::Time(time) => json!({ "time": time.0 }),
    }
}

fn show_settings(s: &GroupSettings) -> Value {
    let waits = match &s.retry.waits {
        Waits::Steps(steps) => {
            json!({ "steps_ms": steps.iter().map(|it| it.as_millis()).collect::<Vec<_>>() })
        }
        Waits::Growing { first, factor, most } => json!({
            "first_ms": first.as_millis(), "factor": factor, "most_ms": most.as_millis(),
        }),
    };
    json!({
        "source": s.source.as_str(), "mode": s.mode.name(), "start": show_start(s.start),
        "lease_ms": s.lease.as_millis(), "attempts_max": s.attempts_max,
        "retry": { "waits": waits, "jitter_percent": s.retry.jitter_percent },
        "dead_letters": s.dead_letters, "on_gap": s.on_gap.name(),
        "in_flight_max": s.in_flight_max, "member_in_flight_max": s.member_in_flight_max,
        "open_max": s.open_max, "durability": s.durability.name(),
    })
}

fn show_lost(gap: &GapNotice) -> Value {
    json!({
        "topic": gap.topic.as_ref().map(|topic| topic.as_str()), "reason": gap.reason.code(),
        "from": gap.from.map(|seq| seq.0), "to": gap.to.map(|seq| seq.0),
    })
}

fn show_info(v: &GroupInfo) -> Value {
    let doing = match &v.state {
        GroupDoing::Running => json!("running"),
        GroupDoing::Paused => json!("paused"),
        GroupDoing::Stopped(gap) => json!({ "stopped": show_lost(gap) }),
    };
    let member = |it: &MemberInfo| {
        json!({
            "id": it.id, "window": it.window, "in_flight": it.in_flight, "active": it.active,
            "name": it.name,
        })
    };
    let (c, t) = (&v.counts, &v.totals);
    json!({
        "name": v.name.as_str(), "id": v.id, "settings": show_settings(&v.settings),
        "doing": doing, "floor": v.floor.0, "frontier": v.frontier.0, "lag": v.lag,
        "lag_exact": v.lag_exact,
        "counts": [c.ready, c.waiting, c.parked, c.in_flight, c.dying],
        "oldest_ms": v.oldest_age.map(|age| age.as_millis() as u64),
        "next_retry": v.next_retry.map(|time| time.0),
        "dead_letters": v.dead_letters, "redriving": v.redriving,
        "totals": [
            t.delivered, t.redelivered, t.acked, t.nacked, t.expired, t.buried, t.dropped, t.lost
        ],
        "members": v.members.iter().map(member).collect::<Vec<_>>(), "why": v.why,
    })
}

fn show_filter(f: &LetterFilter) -> Value {
    json!({
        "from": f.from.map(|seq| seq.0), "to": f.to.map(|seq| seq.0),
        "topic": f.topic.as_ref().map(|it| it.as_str()), "error": f.error,
        "key": f.key.as_ref().map(|key: &Bytes| hex(key)),
    })
}

fn show_letter(v: &Letter) -> Value {
    json!({
        "seq": v.seq.0, "topic": v.topic.as_str(), "origin": v.origin.0, "attempts": v.attempts,
        "error": v.error, "first_failed": v.first_failed.0, "died": v.died.0,
        "messages": meaning::messages(&v.records),
    })
}

/// The fields of a verb of groups.
pub(crate) fn meaning(verb: &Verb) -> Value {
    match verb {
        Verb::GroupJoin(v) => json!({ "name": v.name, "window": v.window }),
        Verb::GroupJoined(v) => json!({
            "member": v.member, "id": v.id, "mode": v.mode.name(), "lease_ms": v.lease_ms,
        }),
        Verb::GroupLeave(v) => json!({ "member": v.member }),
        Verb::GroupLeft(v) => {
            json!({ "member": v.member, "error": v.error.as_ref().map(meaning::error) })
        }
        Verb::GroupMessages(v) => json!({
            "member": v.member, "deadline": v.deadline.0, "leases": show_leases(&v.leases),
            "batches": v.batches.iter().map(|each| meaning::batch(&each)).collect::<Vec<_>>(),
        }),
        Verb::GroupAck(v) => json!({
            "member": v.member, "confirm": show_confirm(v.confirm),
            "which": match &v.which {
                Which::Leases(leases) => json!({ "leases": show_leases(leases) }),
                Which::Through(position) => json!({ "through": position.0 }),
            },
        }),
        Verb::GroupNack(v) => json!({
            "member": v.member, "confirm": show_confirm(v.confirm), "delay_ms": v.delay_ms,
            "reason": v.reason, "leases": show_leases(&v.leases),
        }),
        Verb::GroupExtend(v) => json!({
            "member": v.member, "confirm": show_confirm(v.confirm),
            "leases": show_leases(&v.leases),
        }),
        Verb::GroupTerminate(v) => json!({
            "member": v.member, "confirm": show_confirm(v.confirm), "reason": v.reason,
            "leases": show_leases(&v.leases),
        }),
        Verb::GroupStep(v) => {
            let ack =
                |ack: &StepAck| json!({ "member": ack.member, "leases": show_leases(&ack.leases) });
            json!({
                "acks": v.acks.iter().map(ack).collect::<Vec<_>>(),
                "commit": meaning::commit(&v.commit),
            })
        }
        Verb::GroupDone(v) => json!({
            "taken": v.taken, "refused": v.refused, "deadline": v.deadline.map(|time| time.0),
        }),
        Verb::GroupCredit(v) => json!({ "member": v.member, "window": v.window }),
        Verb::GroupRole(v) => json!({ "member": v.member, "active": v.active }),
        Verb::GroupGap(v) => json!({ "member": v.member, "gap": show_lost(&v.gap) }),
        Verb::GroupCreate(v) => json!({ "settings": show_settings(&v.settings) }),
        Verb::GroupConfigure(v) => json!({ "settings": show_settings(&v.settings) }),
        Verb::GroupDescribe(_)
        | Verb::GroupDelete(_)
        | Verb::GroupPause(_)
        | Verb::GroupResume(_) => json!({}),
        Verb::GroupList(v) => {
            json!({ "limit": v.limit, "after": v.after.as_ref().map(|name| name.as_str()) })
        }
        Verb::GroupReset(v) => json!({ "to": show_start(v.to), "force": v.force }),
        Verb::GroupInfo(v) => show_info(v),
        Verb::GroupInfos(v) => {
            json!({ "more": v.more, "groups": v.groups.iter().map(show_info).collect::<Vec<_>>() })
        }
        Verb::LetterList(v) => json!({ "from": v.from.0, "limit": v.limit }),
        Verb::LetterRead(v) => json!({ "seq": v.seq.0 }),
        Verb::LetterRedrive(v) => json!({ "filter": show_filter(&v.filter), "rate": v.rate }),
        Verb::LetterRemove(v) => json!({ "filter": show_filter(&v.filter) }),
        Verb::Letters(v) => json!({
            "more": v.more, "letters": v.letters.iter().map(show_letter).collect::<Vec<_>>(),
        }),
        Verb::LettersMoved(v) => json!({ "count": v.count, "goes_on": v.goes_on }),
        other => panic!("{} has no meaning here yet", other.kind().name()),
    }
}
