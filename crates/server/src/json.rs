//! What gapless shows as JSON: messages, topics, groups, dead letters and gaps, each in one
//! shape. The HTTP API, the page and the command line all write it with these functions.
//!
//! Times are in ms since 1970 under names that end in `_ms`; a place to resume from is called
//! `cursor`; `null` is what is not known or left to the default.

pub(crate) mod long_body;
pub(crate) mod message;

use gapless_core::cluster::{DeliveryReport, SubscriberName, SubscriberResult};
use gapless_core::time::whole_ms;
use gapless_core::{
    DeadLetter, DeliveryPolicy, Durability, GapNotice, GroupDoing, GroupInfo, GroupSettings,
    GroupStart, MemberInfo, PartitionBehavior, Position, TopicInfo, TopicName, TopicSettings,
    Waits,
};
use serde_json::{Value, json};

pub use message::Shown;

/// Members shown of one group, at most.
const MEMBERS_SHOWN_MAX: usize = 1000;

/// All settings; `null` is what is left to the default.
pub fn topic_settings(settings: &TopicSettings) -> Value {
    json!({
        "storage": settings.storage.name(),
        "durability": settings.durability.map(Durability::name),
        "retention": {
            "age_ms": settings.retention.age.map(whole_ms),
            "bytes": settings.retention.bytes,
            "count": settings.retention.count,
        },
        "compaction": settings.compaction.map(|compaction| json!({
            "tombstone_grace_ms": whole_ms(compaction.tombstone_grace),
        })),
        "dedup": { "time_ms": whole_ms(settings.dedup.time), "count": settings.dedup.count },
        "delivery": settings.delivery.map(DeliveryPolicy::name),
        "partition": settings.partition.map(PartitionBehavior::name),
        "require_subscribers": settings.require_subscribers,
        "max_message_bytes": settings.max_message_bytes,
    })
}

/// A delivery report.
pub fn report(report: &DeliveryReport) -> Value {
    let failed = |failed: &SubscriberResult| {
        let status = failed.status.name();
        match &failed.subscriber {
            SubscriberName::Handle { node: None, number } => {
                json!({ "subscriber": number, "status": status })
            }
            SubscriberName::Handle { node: Some(node), number } => {
                json!({ "node": node.as_str(), "subscriber": number, "status": status })
            }
            SubscriberName::Identity(identity) => {
                json!({ "identity": identity.as_str(), "status": status })
            }
            SubscriberName::Node(node) => json!({ "node": node.as_str(), "status": status }),
        }
    };
    json!({
        "status": report.status.name(),
        "delivered": report.delivered,
        "failed": report.failed.iter().map(failed).collect::<Vec<_>>(),
        "unnamed": report.unnamed,
    })
}

/// A topic as seen from outside.
pub fn topic(info: &TopicInfo) -> Value {
    json!({
        "name": info.name.as_str(),
        "id": info.id,
        "first": info.first.0,
        "next": info.next.0,
        "bytes": info.bytes,
        "settings": topic_settings(&info.settings),
    })
}

/// A group with its settings, members and all numbers.
pub fn group(info: &GroupInfo) -> Value {
    let mut group = group_summary(info);
    let totals = &info.totals;
    let stopped_by = match &info.state {
        GroupDoing::Stopped(notice) => Some(gap(notice)),
        GroupDoing::Running | GroupDoing::Paused => None,
    };
    let more = json!({
        "floor": info.floor.0,
        "frontier": info.frontier.0,
        "gap": stopped_by,
        "redriving": info.redriving,
        "totals": {
            "delivered": totals.delivered,
            "redelivered": totals.redelivered,
            "acked": totals.acked,
            "nacked": totals.nacked,
            "expired": totals.expired,
            "buried": totals.buried,
            "dropped": totals.dropped,
            "lost": totals.lost,
        },
        "members": info.members.iter().take(MEMBERS_SHOWN_MAX).map(member_json).collect::<Vec<_>>(),
        "settings": group_settings(&info.settings),
    });
    if let (Some(group), Value::Object(more)) = (group.as_object_mut(), more) {
        group.extend(more);
    }
    group
}

/// A group as a line of a list.
pub fn group_summary(info: &GroupInfo) -> Value {
    let counts = &info.counts;
    json!({
        "id": info.id,
        "name": info.name.as_str(),
        "source": info.settings.source.as_str(),
        "mode": info.settings.mode.name(),
        "state": info.state.name(),
        "why": info.why,
        "lag": info.lag,
        "lag_exact": info.lag_exact,
        "in_flight": counts.in_flight,
        "ready": counts.ready,
        "waiting": counts.waiting,
        "parked": counts.parked,
        "oldest_age_ms": info.oldest_age.map(whole_ms),
        "next_retry_ms": info.next_retry.map(|time| time.0),
        "redelivered": info.totals.redelivered,
        "dead_letters": info.dead_letters,
        "member_count": info.members.len(),
    })
}

fn member_json(member: &MemberInfo) -> Value {
    json!({
        "id": member.id,
        "name": member.name,
        "window": member.window,
        "in_flight": member.in_flight,
        "active": member.active,
    })
}

/// All settings of a group.
pub fn group_settings(settings: &GroupSettings) -> Value {
    let jitter_percent = settings.retry.jitter_percent;
    let retry = match &settings.retry.waits {
        Waits::Steps(steps) => {
            let steps: Vec<u64> = steps.iter().copied().map(whole_ms).collect();
            json!({ "steps_ms": steps, "jitter_percent": jitter_percent })
        }
        Waits::Growing { first, factor, most } => json!({
            "first_ms": whole_ms(*first),
            "factor": factor,
            "most_ms": whole_ms(*most),
            "jitter_percent": jitter_percent,
        }),
    };
    json!({
        "source": settings.source.as_str(),
        "mode": settings.mode.name(),
        "start": start_text(settings.start),
        "lease_ms": whole_ms(settings.lease),
        "attempts_max": settings.attempts_max,
        "retry": retry,
        "dead_letters": settings.dead_letters,
        "on_gap": settings.on_gap.name(),
        "in_flight_max": settings.in_flight_max,
        "member_in_flight_max": settings.member_in_flight_max,
        "open_max": settings.open_max,
        "durability": settings.durability.name(),
    })
}

fn start_text(start: GroupStart) -> String {
    match start {
        GroupStart::Beginning => "beginning".to_owned(),
        GroupStart::Now => "now".to_owned(),
        GroupStart::Seq(seq) => format!("seq:{seq}"),
        GroupStart::Position(position) => format!("position:{position}"),
        GroupStart::Time(time) => format!("time:{}", time.0),
    }
}

/// Numbers that will not come, and why.
pub fn gap(gap: &GapNotice) -> Value {
    json!({
        "topic": gap.topic.as_ref().map(TopicName::as_str),
        "from": gap.from.map(|seq| seq.0),
        "to": gap.to.map(|seq| seq.0),
        "positions": gap.positions.map(|(from, to)| [from.0, to.0]),
        "reason": gap.reason.name(),
    })
}

/// Appends a dead letter: how it died, and the message as its publisher sent it.
pub fn put_dead_letter(letter: &DeadLetter, out: &mut Vec<u8>) {
    let fields = json!({
        "seq": letter.seq.0,
        "topic": letter.topic.as_str(),
        "origin_seq": letter.origin.0,
        "attempts": letter.attempts,
        "error": letter.error,
        "first_failed_ms": letter.first_failed.0,
        "died_ms": letter.died.0,
    });
    let fields = fields.to_string();
    out.extend_from_slice(&fields.as_bytes()[..fields.len() - 1]);
    let message = &letter.message;
    let shown = Shown {
        topic: letter.topic.as_str(),
        seq: letter.origin,
        position: Position(0),
        token: None,
        time: letter.died,
        key: message.key.as_deref(),
        id: message.id.as_deref(),
        ttl_ms: message.ttl.map(whole_ms),
        headers: &message.headers,
        body: message.body.as_deref(),
        whole: None,
    };
    shown.put_content(out);
    out.push(b'}');
}
