//! `gapless explain`: where one message is, and how far each group is with it.

use clap::Args;
use clap_complete::ArgValueCompleter;
use gapless_core::{Seq, Timestamp, TopicName, calendar};
use serde_json::Value;

use super::Global;
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Paint, human_bytes, human_number, human_span};
use crate::remote::{asked, with_client};
use crate::show::readable;
use crate::values;
use gapless_broker::{Clock, SystemClock};

const EXAMPLES: &str = "\
Examples:
  gapless explain orders.created 42
  gapless explain orders.created 42 --json | jq '.groups[] | select(.state != \"done\")'

It says when the message was accepted and how safe it is, whether it is kept or why it is gone, and for
every group that reads the topic: not read yet, ready, leased (to whom, until when), waiting for
another attempt, dead, or done. An ack leaves no trace but the place of the group, so that done also
stands for messages before the beginning of a group. Exit code 6 says that the topic or the message
is not there, or not any more.";

/// Show where a message is: accepted, kept or gone, and how far each group is with it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainOptions {
    /// Of which topic
    #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
    topic: TopicName,
    /// Of which seq
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    seq: u64,
}

pub(crate) fn run(options: &ExplainOptions, global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        let text = match client.explain(&options.topic, Seq(options.seq)).await {
            Ok(text) => text,
            Err(error) => return Err(asked(client, error, Some(&options.topic)).await),
        };
        let value: Value = serde_json::from_str(&text)
            .map_err(|_| Failure::failed("what the server explains cannot be read"))?;
        if out.json {
            out.json_line(&value)?;
        } else {
            for line in lines(&value, SystemClock::default().now(), out.paint) {
                out.line(line)?;
            }
        }
        Ok(if value["state"] == "kept" { Exit::Ok } else { Exit::NotFound })
    })
}

fn lines(value: &Value, now: Timestamp, paint: Paint) -> Vec<String> {
    let text = |name: &str| readable(value[name].as_str().unwrap_or("?").as_bytes());
    let number = |name: &str| human_number(value[name].as_u64().unwrap_or_default());
    let title = format!("{} {}", text("topic"), value["seq"]);
    let mut lines = vec![paint.bold(title)];
    let mut line = |name: &str, what: String| lines.push(format!("{name:<10} {what}"));
    match value["state"].as_str() {
        Some("kept") => {
            line("accepted", when(&value["time_ms"], now));
            line("position", value["position"].to_string());
            let safe = match value["flushed"].as_bool() {
                Some(true) => "flushed: it survives a power loss".to_owned(),
                _ => "not flushed yet: a power loss could take it back".to_owned(),
            };
            line("safe", format!("{safe}; the topic asks for {}", text("durability")));
            let until = match &value["until_ms"] {
                Value::Null => "no end by time".to_owned(),
                until => format!("until {}", when(until, now)),
            };
            let body = match value["body_bytes"].as_u64() {
                Some(bytes) => human_bytes(bytes),
                None => "no body: it removes its key".to_owned(),
            };
            line("kept", format!("yes, {until}; {body}"));
        }
        Some("gone") => {
            let reason = match value["reason"].as_str() {
                Some("retention") => "retention: the topic's age, bytes or count let it go",
                Some("purge") => "purge: it was removed by a command",
                Some("compaction") => "compaction: a newer message of its key replaced it",
                Some("expiry") => "expiry: its own time to live is over",
                other => other.unwrap_or("?"),
            };
            line("kept", format!("{}, {reason}", paint.red("gone")));
            line("first", format!("{} is the first that can be read", number("first")));
        }
        _ => line("kept", format!("not there yet; the next seq is {}", number("next"))),
    }
    let groups = value["groups"].as_array().map_or(&[][..], Vec::as_slice);
    if groups.is_empty() && value["state"] != "not_yet" {
        line("groups", "none that you may see reads this topic".to_owned());
    }
    for group in groups {
        let name = readable(group["group"].as_str().unwrap_or("?").as_bytes());
        let doing = match group["doing"].as_str() {
            Some("running") | None => String::new(),
            Some(doing) => format!(" ({doing})"),
        };
        line("group", format!("{}{doing}: {}", paint.cyan(name), fate(group, now)));
    }
    lines
}

/// How far a group is, in words.
fn fate(group: &Value, now: Timestamp) -> String {
    let attempts = group["attempts"].as_u64().unwrap_or_default();
    let tried = match attempts {
        0 => "never delivered".to_owned(),
        1 => "delivered once".to_owned(),
        many => format!("delivered {} times", human_number(many)),
    };
    let error = match group["error"].as_str() {
        Some(error) if !error.is_empty() => format!(", last error: {}", readable(error.as_bytes())),
        _ => String::new(),
    };
    match group["state"].as_str().unwrap_or("?") {
        "not_read" => "not read yet; it comes when the group is there".to_owned(),
        "ready" => format!("ready for the next member that asks, {tried}{error}"),
        "waiting" => format!("waits behind an earlier message of its key, {tried}{error}"),
        "leased" => {
            let name = group["member_name"].as_str().filter(|name| !name.is_empty());
            let member = match name {
                Some(name) => format!("{} (member {})", readable(name.as_bytes()), group["member"]),
                None => format!("member {}", group["member"]),
            };
            let until = when(&group["lease_until_ms"], now);
            format!("leased to {member} until {until}, {tried}{error}")
        }
        "parked" => {
            format!("failed; tried again {}, {tried}{error}", when(&group["due_ms"], now))
        }
        "dying" => format!("failed for the last time, about to be a dead letter, {tried}{error}"),
        "dead" => format!(
            "dead letter {} since {}, {tried}{error}",
            group["letter"],
            when(&group["died_ms"], now)
        ),
        "done" => "done: acked, or before the group's beginning".to_owned(),
        "gone" => "not with it: done, or gone before it came to it".to_owned(),
        other => other.to_owned(),
    }
}

/// A time, and how far it is from now.
fn when(ms: &Value, now: Timestamp) -> String {
    let Some(time) = ms.as_u64().map(Timestamp) else { return "?".to_owned() };
    let (ago, ahead) = (now.since(time), time.since(now));
    let distance = if ahead.is_zero() {
        format!("{} ago", human_span(ago))
    } else {
        format!("in {}", human_span(ahead))
    };
    format!("{} ({distance})", calendar::format(time.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_became_of_a_message_is_told_in_words() {
        let value = json!({
            "topic": "orders", "seq": 7, "state": "kept", "durability": "flushed", "position": 9,
            "time_ms": 1_000, "flushed": true, "until_ms": null, "body_bytes": 5,
            "groups": [
                { "group": "a", "doing": "running", "state": "done" },
                { "group": "b", "doing": "paused", "state": "leased", "member": 3,
                  "member_name": "w1", "lease_until_ms": 9_000, "attempts": 2, "error": "boom\u{1b}" },
            ],
        });
        let text = lines(&value, Timestamp(4_000), Paint::OFF).join("\n");
        assert!(text.contains("accepted   1970-01-01T00:00:01.000Z (3.0s ago)"), "{text}");
        assert!(text.contains("yes, no end by time; 5 B"), "{text}");
        assert!(text.contains("group      a: done"), "{text}");
        assert!(text.contains("b (paused): leased to w1 (member 3) until"), "{text}");
        assert!(text.contains("delivered 2 times, last error: boom\\u{1b}"), "{text}");
        let gone = json!({
            "topic": "t", "seq": 1, "state": "gone", "reason": "purge", "first": 4, "groups": [],
        });
        let text = lines(&gone, Timestamp(0), Paint::OFF).join("\n");
        assert!(text.contains("gone, purge") && text.contains("4 is the first"), "{text}");
    }
}
