//! What changed between two documents, so that a viewer is sent no more than that.
//!
//! A part that is the same is left out. Of a list come the lines that changed or are new,
//! and the order of all lines if that changed; of a series come the new points. So a delta is
//! bounded by the lines that were asked for, however many topics there are.

use serde_json::{Map, Value};

/// Everything in `new` that is not in `old`.
pub(crate) fn delta(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let tick = |document: &Map<String, Value>| document.get("tick").and_then(Value::as_u64);
    let ticks = tick(new).zip(tick(old)).map_or(0, |(new, old)| new.saturating_sub(old));
    let ticks = usize::try_from(ticks).unwrap_or(usize::MAX);
    let mut changed = Map::new();
    for (name, part) in new {
        let part = match (name.as_str(), old.get(name), part) {
            (_, Some(before), part) if before == part => continue,
            ("history", Some(_), Value::Object(series)) => newest_points(series, ticks),
            ("topic", Some(Value::Object(before)), Value::Object(row)) => {
                Value::Object(row_delta(before, row, ticks))
            }
            (_, Some(Value::Object(before)), Value::Object(list)) if list.contains_key("rows") => {
                list_delta(before, list, ticks)
            }
            (_, _, part) => part.clone(),
        };
        changed.insert(name.clone(), part);
    }
    changed
}

fn newest_points(series: &Map<String, Value>, ticks: usize) -> Value {
    let newest = |points: &Value| points.as_array().map(|points| last(points, ticks));
    series.iter().map(|(name, points)| (name.clone(), Value::from(newest(points)))).collect()
}

fn last(points: &[Value], count: usize) -> Vec<Value> {
    points[points.len().saturating_sub(count)..].to_vec()
}

fn list_delta(old: &Map<String, Value>, new: &Map<String, Value>, ticks: usize) -> Value {
    let (old_rows, new_rows) = (rows(old), rows(new));
    let mut changed = Vec::new();
    for row in new_rows {
        let before = old_rows.iter().find(|before| before.get("id") == row.get("id"));
        match (before, row) {
            (Some(before), row) if before == row => {}
            (Some(Value::Object(before)), Value::Object(row)) => {
                changed.push(Value::Object(row_delta(before, row, ticks)));
            }
            (_, row) => changed.push(row.clone()),
        }
    }
    let fields = new.iter().filter(|(name, _)| *name != "rows");
    let mut list: Map<String, Value> =
        fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    list.insert("rows".into(), changed.into());
    let ids = |rows: &[Value]| rows.iter().map(|row| row["id"].clone()).collect::<Vec<_>>();
    let order = ids(new_rows);
    if order != ids(old_rows) {
        list.insert("order".into(), order.into());
    }
    Value::Object(list)
}

fn rows(list: &Map<String, Value>) -> &[Value] {
    list.get("rows").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A line that was sent before: without its series, but with the new points of it.
fn row_delta(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    ticks: usize,
) -> Map<String, Value> {
    let mut row = Map::new();
    for (name, value) in new {
        match value {
            value if name != "id" && old.get(name) == Some(value) => {}
            Value::Array(points) if name == "recent" => {
                row.insert("points".into(), last(points, ticks).into());
            }
            value => {
                row.insert(name.clone(), value.clone());
            }
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn between(old: &Value, new: &Value) -> Value {
        let object = |value: &Value| value.as_object().expect("an object").clone();
        Value::Object(delta(&object(old), &object(new)))
    }

    #[test]
    fn a_part_that_is_the_same_is_left_out() {
        let old = json!({ "tick": 1, "server": { "a": 1 }, "journal": { "b": 1 } });
        let new = json!({ "tick": 2, "server": { "a": 1 }, "journal": { "b": 2 } });
        assert_eq!(between(&old, &new), json!({ "tick": 2, "journal": { "b": 2 } }));
    }

    #[test]
    fn of_a_series_only_new_points_come() {
        let old = json!({ "tick": 3, "history": { "in": [1, 2, 3] } });
        let new = json!({ "tick": 5, "history": { "in": [3, 4, 5] } });
        assert_eq!(between(&old, &new)["history"], json!({ "in": [4, 5] }));
    }

    #[test]
    fn of_a_list_come_changed_lines_and_a_changed_order() {
        let line = |id: u64, next: u64, recent: &[u64]| -> Value {
            json!({ "id": id, "name": format!("t{id}"), "next": next, "recent": recent })
        };
        let at = |tick: u64, total: u64, rows: &[Value]| -> Value {
            json!({ "tick": tick, "topics": { "total": total, "rows": rows } })
        };
        let old = at(1, 2, &[line(1, 1, &[]), line(2, 7, &[6])]);
        let same_order = at(2, 2, &[line(1, 1, &[]), line(2, 9, &[6, 2])]);
        assert_eq!(
            between(&old, &same_order)["topics"],
            json!({ "total": 2, "rows": [{ "id": 2, "next": 9, "points": [2] }] })
        );
        let other_order = at(2, 3, &[line(3, 4, &[3]), line(1, 1, &[])]);
        assert_eq!(
            between(&old, &other_order)["topics"],
            json!({ "total": 3, "rows": [line(3, 4, &[3])], "order": [3, 1] })
        );
    }
}
