//! Groups as the page sees them: the lines that are asked for, looked up when they are.
//!
//! A look at a group is a look into its topics, so only those that are shown are looked at,
//! however many there are.

use gapless_broker::Broker;
use serde_json::{Map, Value, json};

use crate::http::page::document::page_of;
use crate::http::page::view::View;
use crate::json;

/// What the view wants to see of groups.
pub(crate) fn parts(broker: &Broker, view: &View) -> Map<String, Value> {
    let mut parts = Map::new();
    if view.groups {
        parts.insert("groups".into(), list(broker, view));
    }
    if let Some(name) = &view.group {
        let group = broker.describe_group(name).ok();
        parts.insert("group".into(), group.as_ref().map(json::group).into());
    }
    parts
}

fn list(broker: &Broker, view: &View) -> Value {
    let mut names = broker.group_names();
    let total = names.len();
    names.retain(|name| view.filter.matches(name));
    let (page, pages) = page_of(names.len(), view);
    let shown = names.iter().skip((page - 1) * view.rows).take(view.rows);
    // One that was deleted meanwhile is not there.
    let rows = shown.filter_map(|name| broker.describe_group(name).ok());
    let rows: Vec<Value> = rows.map(|info| json::group_summary(&info)).collect();
    json!({
        "total": total, "matching": names.len(), "page": page, "pages": pages, "rows": rows,
    })
}
