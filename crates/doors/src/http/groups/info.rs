//! How a group stands, as JSON: all of it, and the line of a list.

use gapless_broker::{GapNotice, GroupDoing, GroupInfo, MemberInfo};
use gapless_core::TopicName;
use gapless_core::time::whole_ms;
use serde_json::{Value, json};

use super::settings::settings_json;

/// Members shown of one group, at most.
const MEMBERS_SHOWN_MAX: usize = 1000;

/// A group with its settings, members and all numbers.
pub(crate) fn group_json(info: &GroupInfo) -> Value {
    let mut group = summary_json(info);
    let totals = &info.totals;
    let gap = match &info.state {
        GroupDoing::Stopped(gap) => Some(gap_json(gap)),
        GroupDoing::Running | GroupDoing::Paused => None,
    };
    let more = json!({
        "floor": info.floor.0,
        "frontier": info.frontier.0,
        "gap": gap,
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
        "settings": settings_json(&info.settings),
    });
    if let (Some(group), Value::Object(more)) = (group.as_object_mut(), more) {
        group.extend(more);
    }
    group
}

/// A group as a line of a list.
pub(crate) fn summary_json(info: &GroupInfo) -> Value {
    let counts = &info.counts;
    json!({
        "id": info.id,
        "name": info.name.as_str(),
        "source": info.settings.source.as_str(),
        "mode": info.settings.mode.name(),
        "state": match info.state {
            GroupDoing::Running => "running",
            GroupDoing::Paused => "paused",
            GroupDoing::Stopped(_) => "stopped",
        },
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

/// What is gone of a source.
pub(super) fn gap_json(gap: &GapNotice) -> Value {
    json!({
        "topic": gap.topic.as_ref().map(TopicName::as_str),
        "from": gap.from.map(|seq| seq.0),
        "to": gap.to.map(|seq| seq.0),
        "reason": gap.reason.name(),
    })
}
