//! Memory for a million topics, and for millions of stored messages.
//!
//! Each measurement runs in a process of its own, which is this program again: so nothing
//! that another one left in the heap is counted. A child prints one line of JSON.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::Subcommand;
use gapless_bench::process::{resident_bytes, resident_bytes_max};
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::JournalOptions;
use gapless_core::{Durability, TopicName, TopicSettings};
use serde_json::{Value, json};

use super::store::{Fill, Folder, Result, open, topic};

/// Topics made with one flush.
const TOPICS_AT_ONCE: u64 = 10_000;

/// What `Limits::topics_max` says about the cost of a topic.
const TOPIC_BYTES_GOAL: f64 = 512.0;

/// A stored message costs no memory; this is for the index of its segment, and for the noise.
const STORED_BYTES_GOAL: f64 = 2.0;

/// With fewer messages the heap's own coming and going is larger than what is looked for.
const MESSAGES_FOR_GOAL: u64 = 10_000_000;

/// Bytes of a stored message.
const MESSAGE_BYTES: usize = 128;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How many topics.
    pub(crate) topics: u64,
    /// How many stored messages.
    pub(crate) messages: u64,
}

/// What a child measures.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Child {
    /// Makes topics.
    Topics {
        /// How many.
        count: u64,
    },
    /// Opens a store again.
    Reopen,
    /// Stores messages and seals them.
    Messages {
        /// How many.
        count: u64,
    },
}

/// Every case, as a table.
///
/// # Errors
/// When a child ends with one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new("resident memory");
    let folder = Folder::fresh(dir, "topics")?;
    let count = options.topics;
    let made = child(folder.path(), &["topics", &count.to_string()])?;
    table.push(topics_row(format!("a topic, of {count}"), &made, count)?);
    let again = child(folder.path(), &["reopen"])?;
    table.push(topics_row(format!("a topic, of {count}, opened again"), &again, count)?);
    drop(folder);

    let folder = Folder::fresh(dir, "messages")?;
    let count = options.messages;
    let stored = child(folder.path(), &["messages", &count.to_string()])?;
    table.push(messages_row(format!("a stored message of 128 B, of {count}"), &stored, count)?);
    let again = child(folder.path(), &["reopen"])?;
    table.push(
        Row::new("the same store, opened again", Figure::bytes(number(&again, "after")?))
            .beside("before", Figure::bytes(number(&again, "before")?))
            .beside("took", Figure::micros(number(&again, "seconds")? * 1e6)),
    );
    Ok(table)
}

fn topics_row(work: String, measured: &Value, count: u64) -> Result<Row> {
    let (before, after) = (number(measured, "before")?, number(measured, "after")?);
    Ok(Row::new(work, Figure::bytes((after - before) / count as f64))
        .goal(Goal::FigureAtMost(TOPIC_BYTES_GOAL))
        .beside("before", Figure::bytes(before))
        .beside("after", Figure::bytes(after))
        .beside("at most", Figure::bytes(number(measured, "most")?))
        .beside("took", Figure::micros(number(measured, "seconds")? * 1e6)))
}

/// What a message costs is told from the last three quarters of them: by then the tail and
/// the buffers are as full as they will ever be.
fn messages_row(work: String, measured: &Value, count: u64) -> Result<Row> {
    let (quarter, after) = (number(measured, "quarter")?, number(measured, "after")?);
    let each = (after - quarter) / (count as f64 * 0.75);
    let row = Row::new(work, Figure::bytes(each.max(0.0)))
        .beside("before", Figure::bytes(number(measured, "before")?))
        .beside("after a quarter", Figure::bytes(quarter))
        .beside("after", Figure::bytes(after))
        .beside("at most", Figure::bytes(number(measured, "most")?))
        .beside("tail", Figure::bytes(number(measured, "tail")?))
        .beside("took", Figure::micros(number(measured, "seconds")? * 1e6));
    let has_goal = count >= MESSAGES_FOR_GOAL;
    Ok(if has_goal { row.goal(Goal::FigureAtMost(STORED_BYTES_GOAL)) } else { row })
}

fn child(folder: &Path, arguments: &[&str]) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .arg("--dir")
        .arg(folder)
        .arg("memory-child")
        .args(arguments)
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("measuring {} failed: {said}", arguments.join(" ")).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn number(measured: &Value, name: &str) -> Result<f64> {
    let found = measured[name].as_f64();
    found.ok_or_else(|| format!("the child did not tell {name}").into())
}

/// The child's own work, in the folder itself.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run_child(folder: &Path, child: Child) -> Result<Value> {
    let before = resident_bytes()?;
    let started = Instant::now();
    let broker = open(folder)?;
    let mut quarter = 0;
    match child {
        Child::Topics { count } => {
            for from in (0..count).step_by(TOPICS_AT_ONCE as usize) {
                let name =
                    |number| TopicName::parse(&format!("tenant.{}.topic.{number}", number % 97));
                let to = count.min(from + TOPICS_AT_ONCE);
                let names = (from..to).map(name).collect::<std::result::Result<Vec<_>, _>>()?;
                broker.create_topics(&names, TopicSettings::default())?;
            }
        }
        Child::Reopen => {}
        Child::Messages { count } => {
            let topic = topic(&broker, Durability::Written)?;
            let fill = |messages: u64| Fill {
                message_bytes: MESSAGE_BYTES,
                batch: 64,
                bytes: messages * MESSAGE_BYTES as u64,
            };
            fill(count / 4).publish(&broker, std::slice::from_ref(&topic))?;
            broker.seal()?;
            quarter = resident_bytes()?;
            fill(count - count / 4).publish(&broker, &[topic])?;
            broker.seal()?;
        }
    }
    let measured = json!({
        "before": before,
        "quarter": quarter,
        "after": resident_bytes()?,
        "most": resident_bytes_max()?,
        "tail": JournalOptions::default().tail_bytes,
        "seconds": started.elapsed().as_secs_f64(),
    });
    broker.close()?;
    Ok(measured)
}
