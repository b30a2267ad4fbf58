//! `gapless status`: open the store, show what is in it, close it.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use gapless_broker::{Broker, BrokerOptions, Opened, TopicInfo};
use gapless_core::Pattern;
use serde_json::{Value, json};

use super::{Done, human_bytes};

/// Topics shown to people; `--json` shows them all.
const TOPICS_SHOWN: usize = 20;

pub(crate) fn run(data: &Path, as_json: bool, out: &mut dyn Write) -> Done {
    let broker = Broker::open(BrokerOptions::new(data))?;
    let topics = broker.list_topics(&Pattern::parse(">")?);
    let opened = broker.opened().clone();
    if as_json {
        writeln!(out, "{:#}", to_json(data, &broker, &opened, &topics))?;
    } else {
        print(data, &broker, &opened, &topics, out)?;
    }
    broker.close()?;
    Ok(ExitCode::SUCCESS)
}

fn to_json(data: &Path, broker: &Broker, opened: &Opened, topics: &[TopicInfo]) -> Value {
    let stats = broker.journal_stats();
    let topic = |topic: &TopicInfo| {
        json!({
            "name": topic.name.as_str(),
            "first": topic.first.0,
            "next": topic.next.0,
            "bytes": topic.bytes,
            "storage": topic.settings.storage.name(),
        })
    };
    json!({
        "data": data.display().to_string(),
        "epoch": broker.epoch().to_string(),
        "created": opened.created,
        "clean": opened.clean,
        "torn_frame": opened.torn.as_ref().map(|torn| torn.at.0),
        "frames_replayed": opened.frames_replayed,
        "indexes_rebuilt": opened.indexes_rebuilt.len(),
        "segments": stats.segments,
        "segment_bytes": stats.segment_bytes,
        "topics": topics.iter().map(topic).collect::<Vec<_>>(),
    })
}

fn print(
    data: &Path,
    broker: &Broker,
    opened: &Opened,
    topics: &[TopicInfo],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let stats = broker.journal_stats();
    let made = if opened.created { "made just now" } else { "opened" };
    writeln!(out, "data folder  {} ({made})", data.display())?;
    writeln!(out, "epoch        {}", broker.epoch())?;
    let end = if opened.clean { "clean" } else { "unclean; nothing acknowledged was lost" };
    writeln!(out, "last end     {end}")?;
    if let Some(torn) = &opened.torn {
        writeln!(out, "torn end     frame {} was not complete and was cut", torn.at)?;
    }
    let bytes = human_bytes(stats.segment_bytes);
    writeln!(out, "segments     {} ({bytes})", stats.segments)?;
    writeln!(out, "topics       {}", topics.len())?;
    for topic in topics.iter().take(TOPICS_SHOWN) {
        let count = topic.next.distance(topic.first);
        let bytes = human_bytes(topic.bytes);
        writeln!(out, "  {:<40} {count:>12} messages {bytes:>12}", topic.name.as_str())?;
    }
    if topics.len() > TOPICS_SHOWN {
        writeln!(out, "  … and {} more; --json shows all", topics.len() - TOPICS_SHOWN)?;
    }
    if opened.created {
        writeln!(out, "\nThe store is empty. `cargo run -p gapless-broker --example embedded`")?;
        writeln!(out, "shows how a program publishes and follows.")?;
    }
    Ok(())
}
