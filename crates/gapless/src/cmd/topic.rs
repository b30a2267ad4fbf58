//! `gapless topic`: creates, lists, shows, sets, purges and removes topics.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use clap_complete::ArgValueCompleter;
use gapless_client::{AskError, Client, TopicInfo};
use gapless_core::settings::Compaction;
use gapless_core::{Durability, Pattern, Seq, Storage, TopicName, TopicSettings};
use gapless_server::json as shown;
use serde_json::json;

use super::Global;
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, ask, human_bytes, human_duration, human_number};
use crate::remote::{asked, with_client};
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless topic create orders.created --retention-age 30d
  gapless topic ls 'orders.>'
  gapless topic show orders.created
  gapless topic set orders.created --retention-bytes 1GiB --no-retention-age
  gapless topic purge orders.created --below 1000
  gapless topic rm orders.created";

const CREATE_EXAMPLES: &str = "\
Examples:
  gapless topic create orders.created
  gapless topic create audit --retention-age 90d --retention-bytes 10GiB
  gapless topic create prices --compact --tombstone-grace 1d
  gapless topic create cursors.mouse --volatile --retention-count 1000

A topic that is there with equal settings is fine; with other settings it is exit code 5.";

const SET_EXAMPLES: &str = "\
Examples:
  gapless topic set orders.created --retention-age 7d
  gapless topic set orders.created --no-retention-age --retention-count 100000
  gapless topic set prices --no-compact --durability written

What is not named stays as it is. Durable and volatile cannot be changed into each other.";

/// Topics asked for at a time.
const PAGE: u32 = 500;

/// Create, list, show, set, purge and remove topics
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopicOptions {
    #[command(subcommand)]
    command: TopicCommand,
}

#[derive(Debug, Subcommand)]
enum TopicCommand {
    /// Create a topic
    #[command(after_help = CREATE_EXAMPLES, visible_alias = "add")]
    Create {
        /// Its name, as orders.eu.created
        #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
        name: TopicName,
        /// Keep messages in memory only: fast, bounded, gone with the server
        #[arg(long)]
        volatile: bool,
        #[command(flatten)]
        given: Given,
    },
    /// List topics
    #[command(after_help = "Examples:\n  gapless topic ls\n  gapless topic ls 'orders.>' --json")]
    #[command(visible_alias = "list")]
    Ls {
        /// Which topics
        #[arg(default_value = ">", value_parser = values::pattern)]
        pattern: Pattern,
    },
    /// Show what a topic is and holds
    #[command(after_help = "Examples:\n  gapless topic show orders.created")]
    #[command(visible_alias = "info")]
    Show {
        /// Which topic
        #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
        name: TopicName,
    },
    /// Change settings; what is not named stays as it is
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// Which topic
        #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
        name: TopicName,
        #[command(flatten)]
        given: Given,
        #[command(flatten)]
        removed: Removed,
    },
    /// Remove a topic with all its messages
    #[command(after_help = "Examples:\n  gapless topic rm orders.created\n  gapless topic rm \
                            orders.created --yes     without asking")]
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Which topic
        #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
        name: TopicName,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Remove messages of a topic, for ever
    #[command(after_help = "Examples:\n  gapless topic purge orders.created --below 1000     \
                            1000 is the first that stays\n  gapless topic purge orders.created \
                            --all --yes     without asking\n\nSeqs are not given again: what is \
                            published next goes on.")]
    #[command(group = ArgGroup::new("which").required(true).args(["below", "all"]))]
    Purge {
        /// Which topic
        #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
        name: TopicName,
        /// The first seq that stays
        #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
        below: Option<u64>,
        /// All messages; asks first
        #[arg(long)]
        all: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Settings that are given.
#[derive(Debug, Default, Args)]
struct Given {
    /// Keep messages at most so long, as 30d
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    retention_age: Option<Duration>,
    /// Keep at most so much, as 1GiB
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    retention_bytes: Option<u64>,
    /// Keep at most so many
    #[arg(long, value_name = "COUNT")]
    retention_count: Option<u64>,
    /// Keep only the latest message of each key
    #[arg(long)]
    compact: bool,
    /// How long the removal of a key stays readable [default: 1d]; implies --compact
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    tombstone_grace: Option<Duration>,
    /// How safe messages must be before their ack
    #[arg(long, value_parser = values::durability())]
    durability: Option<Durability>,
    /// How long message ids are remembered [default: 2m]; 0s for not at all
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    dedup_time: Option<Duration>,
    /// How many message ids are remembered [default: 100000]; 0 for none
    #[arg(long, value_name = "COUNT")]
    dedup_count: Option<u32>,
    /// The largest message, as 64KiB
    #[arg(long, value_name = "SIZE", value_parser = values::small_size)]
    max_message_bytes: Option<u32>,
}

/// Settings that are taken away.
#[derive(Debug, Default, Args)]
struct Removed {
    /// Keep messages however old they are
    #[arg(long, conflicts_with = "retention_age")]
    no_retention_age: bool,
    /// Keep messages however large they are together
    #[arg(long, conflicts_with = "retention_bytes")]
    no_retention_bytes: bool,
    /// Keep messages however many they are
    #[arg(long, conflicts_with = "retention_count")]
    no_retention_count: bool,
    /// Keep all messages of each key
    #[arg(long, conflicts_with_all = ["compact", "tombstone_grace"])]
    no_compact: bool,
    /// Leave the durability to the server's default
    #[arg(long, conflicts_with = "durability")]
    no_durability: bool,
    /// Leave the largest message to the server's limit
    #[arg(long, conflicts_with = "max_message_bytes")]
    no_max_message_bytes: bool,
}

impl Given {
    fn apply(&self, settings: &mut TopicSettings) {
        let retention = &mut settings.retention;
        retention.age = self.retention_age.or(retention.age);
        retention.bytes = self.retention_bytes.or(retention.bytes);
        retention.count = self.retention_count.or(retention.count);
        if self.compact || self.tombstone_grace.is_some() {
            let compaction = settings.compaction.get_or_insert_with(Compaction::default);
            compaction.tombstone_grace = self.tombstone_grace.unwrap_or(compaction.tombstone_grace);
        }
        settings.durability = self.durability.or(settings.durability);
        settings.dedup.time = self.dedup_time.unwrap_or(settings.dedup.time);
        settings.dedup.count = self.dedup_count.unwrap_or(settings.dedup.count);
        settings.max_message_bytes = self.max_message_bytes.or(settings.max_message_bytes);
    }
}

impl Removed {
    fn apply(&self, settings: &mut TopicSettings) {
        let keep = |removed: bool| !removed;
        settings.retention.age = settings.retention.age.filter(|_| keep(self.no_retention_age));
        settings.retention.bytes =
            settings.retention.bytes.filter(|_| keep(self.no_retention_bytes));
        settings.retention.count =
            settings.retention.count.filter(|_| keep(self.no_retention_count));
        settings.compaction = settings.compaction.filter(|_| keep(self.no_compact));
        settings.durability = settings.durability.filter(|_| keep(self.no_durability));
        settings.max_message_bytes =
            settings.max_message_bytes.filter(|_| keep(self.no_max_message_bytes));
    }
}

pub(crate) fn run(options: TopicOptions, global: &Global, out: &mut Output) -> Done {
    match options.command {
        TopicCommand::Create { name, volatile, given } => {
            let mut settings = TopicSettings::default();
            if volatile {
                settings.storage = Storage::Volatile;
            }
            given.apply(&mut settings);
            settings.validate().map_err(Failure::words)?;
            with_client(global, out, async |client, out| {
                let was_there = client.describe_topic(&name).await.is_ok();
                let info =
                    or_failure(client, &name, client.create_topic(&name, settings).await).await?;
                let what = if was_there { "is there already" } else { "created" };
                let text = format!("topic {name} {what} ({})", summary(&info.settings));
                let mut value = shown::topic(&info);
                value["created"] = (!was_there).into();
                out.result(&value, text)?;
                Ok(Exit::Ok)
            })
        }
        TopicCommand::Ls { pattern } => {
            with_client(global, out, async |client, out| list(client, &pattern, out).await)
        }
        TopicCommand::Show { name } => with_client(global, out, async |client, out| {
            let info = or_failure(client, &name, client.describe_topic(&name).await).await?;
            if out.json {
                out.json_line(&shown::topic(&info))?;
            } else {
                for (label, value) in describe(&info) {
                    out.line(format_args!("{label:<18} {value}"))?;
                }
            }
            Ok(Exit::Ok)
        }),
        TopicCommand::Set { name, given, removed } => {
            with_client(global, out, async |client, out| {
                let before = or_failure(client, &name, client.describe_topic(&name).await).await?;
                let mut settings = before.settings;
                removed.apply(&mut settings);
                given.apply(&mut settings);
                settings.validate().map_err(Failure::words)?;
                let set = client.configure_topic(&name, settings).await;
                let info = or_failure(client, &name, set).await?;
                let text = if info.settings == before.settings {
                    format!("topic {name} is as it was")
                } else {
                    format!("topic {name} is set: {}", summary(&info.settings))
                };
                out.result(&shown::topic(&info), text)?;
                Ok(Exit::Ok)
            })
        }
        TopicCommand::Rm { name, yes } => remove(&name, yes, global, out),
        TopicCommand::Purge { name, below, yes, .. } => {
            purge(&name, below.map(Seq), yes, global, out)
        }
    }
}

async fn or_failure<T>(
    client: &Client,
    topic: &TopicName,
    answer: Result<T, AskError>,
) -> Result<T, Failure> {
    match answer {
        Ok(value) => Ok(value),
        Err(error) => Err(asked(client, error, Some(topic)).await),
    }
}

fn remove(name: &TopicName, yes: bool, global: &Global, out: &mut Output) -> Done {
    if !yes && !out.can_ask() {
        return Err(Failure::words(format!("{name} would be removed with all its messages"))
            .hint("say that you mean it: --yes"));
    }
    with_client(global, out, async |client, out| {
        let info = or_failure(client, name, client.describe_topic(name).await).await?;
        let messages = human_number(count(&info));
        if !yes && !ask(&format!("Remove {name} with {messages} messages, for good?"))? {
            return Err(Failure::failed("nothing was removed"));
        }
        or_failure(client, name, client.delete_topic(name).await).await?;
        let value = json!({ "topic": name.as_str(), "removed": true });
        out.result(&value, format_args!("topic {name} is gone, with {messages} messages"))?;
        Ok(Exit::Ok)
    })
}

fn purge(
    name: &TopicName,
    below: Option<Seq>,
    yes: bool,
    global: &Global,
    out: &mut Output,
) -> Done {
    let sure = yes || below.is_some();
    if !sure && !out.can_ask() {
        return Err(Failure::words(format!("all messages of {name} would be removed"))
            .hint("say that you mean it: --yes"));
    }
    with_client(global, out, async |client, out| {
        let before = or_failure(client, name, client.describe_topic(name).await).await?;
        let messages = human_number(count(&before));
        if !sure && !ask(&format!("Remove all {messages} messages of {name}, for good?"))? {
            return Err(Failure::failed("nothing was removed"));
        }
        let below = below.unwrap_or(before.next);
        or_failure(client, name, client.purge_topic(name, below).await).await?;
        let gone = below.distance(before.first);
        let value = json!({ "topic": name.as_str(), "below": below.0, "purged": gone });
        out.result(&value, format!("{} messages of {name} are gone", human_number(gone)))?;
        Ok(Exit::Ok)
    })
}

async fn list(client: &Client, pattern: &Pattern, out: &mut Output) -> Done {
    let mut table = Table::new(&["TOPIC", ">MESSAGES", ">FIRST", ">LAST", ">SIZE", "SETTINGS"]);
    let mut after: Option<TopicName> = None;
    let mut topics: u64 = 0;
    loop {
        let page = match client.topics(pattern, after.as_ref(), PAGE).await {
            Ok(page) => page,
            Err(error) => return Err(asked(client, error, None).await),
        };
        for info in &page.topics {
            topics += 1;
            if out.json {
                out.json_line(&shown::topic(info))?;
            } else {
                table.row(vec![
                    info.name.to_string(),
                    human_number(count(info)),
                    info.first.to_string(),
                    info.next.prev().to_string(),
                    human_bytes(info.bytes),
                    summary(&info.settings),
                ]);
            }
        }
        after = page.topics.last().map(|info| info.name.clone());
        if !page.more || after.is_none() {
            break;
        }
    }
    if topics == 0 {
        out.note(format_args!(
            "no topic matches {pattern}; create one with: gapless topic create NAME"
        ));
    } else if !out.json {
        out.table(&table)?;
    }
    Ok(Exit::Ok)
}

/// How many seqs can be read; compaction may have left fewer messages.
fn count(info: &TopicInfo) -> u64 {
    info.next.distance(info.first)
}

/// The settings that differ from the default, as they are typed.
pub(super) fn summary(settings: &TopicSettings) -> String {
    let mut parts = vec![settings.storage.name().to_owned()];
    if let Some(age) = settings.retention.age {
        parts.push(format!("age {}", human_duration(age)));
    }
    if let Some(bytes) = settings.retention.bytes {
        parts.push(format!("bytes {}", human_bytes(bytes)));
    }
    if let Some(count) = settings.retention.count {
        parts.push(format!("count {}", human_number(count)));
    }
    if settings.compaction.is_some() {
        parts.push("compacted".to_owned());
    }
    if let Some(durability) = settings.durability {
        parts.push(durability.name().to_owned());
    }
    parts.join(", ")
}

fn describe(info: &TopicInfo) -> Vec<(&'static str, String)> {
    let settings = &info.settings;
    let none = || "no limit".to_owned();
    let compaction = settings.compaction.map_or_else(
        || "no".to_owned(),
        |each| format!("yes, removals stay for {}", human_duration(each.tombstone_grace)),
    );
    let durability = settings.durability.map_or("the server's default", |each| each.name());
    let dedup = if settings.dedup.time.is_zero() || settings.dedup.count == 0 {
        "no".to_owned()
    } else {
        let (time, count) = (human_duration(settings.dedup.time), settings.dedup.count.into());
        format!("{} ids for {time}", human_number(count))
    };
    vec![
        ("topic", info.name.to_string()),
        ("kind", settings.storage.name().to_owned()),
        ("messages", human_number(count(info))),
        ("first seq", info.first.to_string()),
        ("last seq", info.next.prev().to_string()),
        ("size", human_bytes(info.bytes)),
        ("retention age", settings.retention.age.map_or_else(none, human_duration)),
        ("retention bytes", settings.retention.bytes.map_or_else(none, human_bytes)),
        ("retention count", settings.retention.count.map_or_else(none, human_number)),
        ("compacted", compaction),
        ("durability", durability.to_owned()),
        ("remembers", dedup),
        (
            "largest message",
            settings.max_message_bytes.map_or_else(
                || "the server's limit (limits.message_bytes_max)".to_owned(),
                |bytes| human_bytes(bytes.into()),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(settings: TopicSettings) -> TopicInfo {
        let name = TopicName::parse("orders").unwrap();
        TopicInfo { name, id: 1, first: Seq(3), next: Seq(10), bytes: 2048, settings }
    }

    #[test]
    fn set_changes_only_what_is_given() {
        let mut settings = TopicSettings::default();
        settings.retention.age = Some(Duration::from_secs(60));
        settings.durability = Some(Durability::Written);
        let before = settings;
        Given::default().apply(&mut settings);
        Removed::default().apply(&mut settings);
        assert_eq!(settings, before);
        let removed = Removed { no_retention_age: true, no_durability: true, ..Removed::default() };
        let given = Given {
            retention_count: Some(5),
            tombstone_grace: Some(Duration::from_secs(1)),
            ..Given::default()
        };
        removed.apply(&mut settings);
        given.apply(&mut settings);
        assert_eq!(settings.retention.age, None);
        assert_eq!(settings.retention.count, Some(5));
        assert_eq!(settings.durability, None);
        assert_eq!(settings.compaction.unwrap().tombstone_grace, Duration::from_secs(1));
        // A second --compact keeps the grace that was set.
        Given { compact: true, ..Given::default() }.apply(&mut settings);
        assert_eq!(settings.compaction.unwrap().tombstone_grace, Duration::from_secs(1));
    }

    #[test]
    fn a_topic_is_described_in_words_that_can_be_typed() {
        let mut settings = TopicSettings::default();
        settings.retention.age = Some(Duration::from_secs(30 * 86_400));
        settings.compaction = Some(Compaction::default());
        assert_eq!(summary(&settings), "durable, age 30d, compacted");
        let lines = describe(&info(settings));
        let line = |label: &str| lines.iter().find(|(name, _)| *name == label).unwrap().1.clone();
        assert_eq!(line("messages"), "7");
        assert_eq!(line("last seq"), "9");
        assert_eq!(line("retention age"), "30d");
        assert_eq!(line("remembers"), "100 000 ids for 2m");
    }
}
