//! What gapless shows as JSON: messages, topics, groups, dead letters and gaps, each in one
//! shape. The HTTP API, the page and the command line all write it with these functions.
//!
//! Times are in ms since 1970 under names that end in `_ms`; a place to resume from is called
//! `cursor`; `null` is what is not known or left to the default.

pub(crate) mod long_body;
pub(crate) mod message;

use bytes::Bytes;
use gapless_broker::{Explained, GroupExplained, GroupFate, MessageState};
use gapless_core::cluster::{DeliveryReport, SubscriberName, SubscriberResult};
use gapless_core::group::OpenState;
use gapless_core::time::whole_ms;
use gapless_core::{
    DeadLetter, DeliveryPolicy, Durability, Expect, GapNotice, GroupDoing, GroupInfo,
    GroupSettings, GroupStart, MemberInfo, Message, PartitionBehavior, Position, Timestamp,
    TopicInfo, TopicName, TopicSettings, Waits,
};
use serde_json::{Value, json};

pub use message::Shown;

/// Reads a message in the shape in which it is shown: the numbers that a store gave are passed over,
/// any other member that is not known is refused. Gives what it expects, too.
///
/// # Errors
/// What is wrong, in words.
pub fn parse_message(json: &Bytes, now: Timestamp) -> Result<(Message, Option<Expect>), String> {
    crate::http::values::incoming::message(json, now).map_err(|problem| problem.detail)
}

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

/// Where a message is, and how far groups are with it; those that `sees` refuses are left out.
pub fn explained(explained: &Explained, sees: impl Fn(&TopicName) -> bool) -> Value {
    let mut value = json!({
        "topic": explained.topic.as_str(),
        "seq": explained.seq.0,
        "durability": explained.durability.name(),
    });
    match &explained.state {
        MessageState::NotYet { next } => {
            value["state"] = "not_yet".into();
            value["next"] = next.0.into();
        }
        MessageState::Kept { found, flushed, until } => {
            let message = &found.message;
            value["state"] = "kept".into();
            value["position"] = found.position.0.into();
            value["time_ms"] = found.time.0.into();
            value["flushed"] = (*flushed).into();
            value["until_ms"] = until.map(|until| until.0).into();
            value["body_bytes"] = message.body.as_ref().map(Bytes::len).into();
        }
        MessageState::Gone { reason, first } => {
            value["state"] = "gone".into();
            value["reason"] = reason.name().into();
            value["first"] = first.0.into();
        }
    }
    let groups = explained.groups.iter().filter(|group| sees(&group.group));
    value["groups"] = groups.map(explained_group).collect();
    value
}

fn explained_group(group: &GroupExplained) -> Value {
    let mut value = json!({ "group": group.group.as_str(), "doing": group.doing });
    let state = match &group.fate {
        GroupFate::Ahead => "not_read",
        GroupFate::Done => "done",
        GroupFate::Gone => "gone",
        GroupFate::Dead(letter) => {
            value["letter"] = letter.seq.0.into();
            value["attempts"] = letter.attempts.into();
            value["error"] = letter.error.as_str().into();
            value["first_failed_ms"] = letter.first_failed.0.into();
            value["died_ms"] = letter.died.0.into();
            "dead"
        }
        GroupFate::Open(open, member) => {
            value["attempts"] = open.attempts.into();
            if let Some(error) = &open.error {
                value["error"] = error.as_str().into();
                value["first_failed_ms"] = open.first_failed.map(|time| time.0).into();
            }
            match open.state {
                OpenState::Ready => "ready",
                OpenState::Waiting => "waiting",
                OpenState::Parked(due) => {
                    value["due_ms"] = due.0.into();
                    "parked"
                }
                OpenState::Leased(id, until) => {
                    value["member"] = id.0.into();
                    value["member_name"] = member.as_deref().unwrap_or_default().into();
                    value["lease_until_ms"] = until.0.into();
                    "leased"
                }
                OpenState::Dying => "dying",
            }
        }
    };
    value["state"] = state.into();
    value
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
