//! Groups as the page sees them: the lines that are asked for, looked up when they are.
//!
//! A look at a group is a look into its topics, so only those that are shown are looked at,
//! however many there are.

use std::cmp::Reverse;

use gapless_auth::Caller;
use gapless_broker::{Broker, GroupCounts};
use gapless_core::{GroupDoing, GroupInfo, TopicName};
use serde_json::{Map, Value, json};

use crate::http::page::document::page_of;
use crate::http::page::may;
use crate::http::page::view::View;
use crate::json;

/// Groups that the overview looks at to find those that need attention.
const LOOKED_AT_MAX: usize = 64;
/// Groups that the overview shows.
const ATTENTION_MAX: usize = 8;

/// What the view wants to see of groups.
pub(crate) fn parts(broker: &Broker, view: &View, caller: &Caller) -> Map<String, Value> {
    let mut parts = Map::new();
    if view.overview {
        parts.insert("attention".into(), attention(broker));
    }
    if view.groups {
        parts.insert("groups".into(), list(broker, view));
    }
    if let Some(name) = &view.group {
        let group = broker.describe_group(name).ok();
        let shown = |info: &GroupInfo| {
            let mut shown = json::group(info);
            shown["may"] = may::group(caller, name, &info.settings.source);
            shown
        };
        parts.insert("group".into(), group.as_ref().map(shown).into());
    }
    parts
}

/// The groups that most need a look: those that do not run, then those with dead letters, then those
/// that are furthest behind. Of very many groups only those with the most dead letters are compared.
fn attention(broker: &Broker) -> Value {
    let mut counts = broker.group_counts();
    let (total, dead) = (counts.len(), counts.iter().map(|group| group.dead_letters).sum::<u64>());
    counts.sort_by_key(|group| Reverse(group.dead_letters));
    counts.truncate(LOOKED_AT_MAX);
    let described = counts.iter().filter_map(|group| broker.describe_group(&group.name).ok());
    let mut groups: Vec<GroupInfo> = described.collect();
    groups.sort_by_key(|group| {
        let runs = matches!(group.state, GroupDoing::Running);
        (runs, Reverse(group.dead_letters), Reverse(group.lag))
    });
    let rows: Vec<Value> = groups.iter().take(ATTENTION_MAX).map(json::group_summary).collect();
    json!({ "total": total, "dead_letters": dead, "rows": rows })
}

fn list(broker: &Broker, view: &View) -> Value {
    let topic = view.topic.as_deref().map(TopicName::parse).transpose().ok().flatten();
    let mut groups = broker.group_counts();
    let total = groups.len();
    let wanted = |group: &GroupCounts| match &topic {
        // Those that read the topic that is shown.
        Some(topic) => group.source.matches(topic),
        None => view.filter.matches(&group.name),
    };
    groups.retain(wanted);
    let (page, pages) = page_of(groups.len(), view);
    let shown = groups.iter().skip((page - 1) * view.rows).take(view.rows);
    // One that was deleted meanwhile is not there.
    let rows = shown.filter_map(|group| broker.describe_group(&group.name).ok());
    let rows: Vec<Value> = rows.map(|info| json::group_summary(&info)).collect();
    json!({
        "total": total, "matching": groups.len(), "page": page, "pages": pages, "rows": rows,
    })
}
