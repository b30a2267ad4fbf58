//! `gapless dlq`: dead letters of a group, listed, shown, redriven, removed.

use bytes::Bytes;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use gapless_client::{DeadLetter, LetterFilter};
use gapless_core::{Pattern, Seq, TopicName};
use gapless_server::json as shown;
use serde_json::json;

use super::Global;
use super::group::or_failure;
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, ask, human_number};
use crate::remote::with_client;
use crate::show::readable;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless dlq ls billing
  gapless dlq show billing 7
  gapless dlq redrive billing --all
  gapless dlq redrive billing --error 'timeout' --rate 10
  gapless dlq rm billing 7

A dead letter is a message that failed too often, or that a member gave up.";

const REDRIVE_EXAMPLES: &str = "\
Examples:
  gapless dlq redrive billing 7                      one of them
  gapless dlq redrive billing --all
  gapless dlq redrive billing --topic 'orders.*' --error timeout
  gapless dlq redrive billing --all --rate 10        ten per second, in the background
  gapless dlq redrive billing --all --rate 0         no more of them

It goes back to the topic it came from, as a new message, in one step with its end as a letter.";

/// Letters asked for at a time.
const PAGE: u32 = 100;

/// List, show, redrive and remove dead letters of a group
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DlqOptions {
    #[command(subcommand)]
    command: DlqCommand,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// List dead letters
    #[command(after_help = "Examples:\n  gapless dlq ls billing\n  gapless dlq ls billing --json \
                            | jq .error")]
    #[command(visible_alias = "list")]
    Ls {
        /// Of which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        group: TopicName,
        /// The first number to show
        #[arg(long, default_value_t = 1, value_name = "SEQ")]
        from: u64,
        /// End after so many
        #[arg(long, short = 'n', default_value_t = 100)]
        count: u64,
    },
    /// Show one dead letter
    #[command(after_help = "Examples:\n  gapless dlq show billing 7")]
    Show {
        /// Of which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        group: TopicName,
        /// Its number
        seq: u64,
    },
    /// Put dead letters back into the topics they came from
    #[command(after_help = REDRIVE_EXAMPLES)]
    Redrive {
        /// Of which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        group: TopicName,
        #[command(flatten)]
        which: WhichLetters,
        /// How many per second, in the background, over restarts too; 0 ends that
        #[arg(long)]
        rate: Option<u32>,
    },
    /// Remove dead letters, for ever
    #[command(
        after_help = "Examples:\n  gapless dlq rm billing 7 --yes\n  gapless dlq rm billing \
                            --all"
    )]
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Of which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        group: TopicName,
        #[command(flatten)]
        which: WhichLetters,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Which dead letters; everything that is given must be true of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct WhichLetters {
    /// The number of one
    seq: Option<u64>,
    /// All of them
    #[arg(long, conflicts_with_all = ["seq", "topic", "error", "key"])]
    all: bool,
    /// Those whose topic matches
    #[arg(long, value_name = "PATTERN", value_parser = values::pattern)]
    topic: Option<Pattern>,
    /// Those whose error contains this text
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Those with this key
    #[arg(long, short)]
    key: Option<String>,
}

impl WhichLetters {
    fn filter(self) -> LetterFilter {
        let seq = self.seq.map(Seq);
        let key = self.key.map(Bytes::from);
        LetterFilter { from: seq, to: seq, topic: self.topic, error: self.error, key }
    }
}

pub(crate) fn run(options: DlqOptions, global: &Global, out: &mut Output) -> Done {
    match options.command {
        DlqCommand::Ls { group, from, count } => list(&group, from, count, global, out),
        DlqCommand::Show { group, seq } => with_client(global, out, async |client, out| {
            let found = client.dead_letter(&group, Seq(seq)).await;
            let Some(letter) = or_failure(client, &group, found).await? else {
                return Err(no_letter(&group, seq));
            };
            show(&letter, out)?;
            Ok(Exit::Ok)
        }),
        DlqCommand::Redrive { group, which, rate } => {
            let (seq, filter) = (which.seq.filter(|_| rate.is_none()), which.filter());
            with_client(global, out, async |client, out| {
                let moved = client.redrive(&group, filter, rate).await;
                let moved = or_failure(client, &group, moved).await?;
                if moved.count == 0
                    && let Some(seq) = seq
                {
                    return Err(no_letter(&group, seq));
                }
                let value = json!({ "redriven": moved.count, "goes_on": moved.goes_on });
                let text = if moved.goes_on {
                    format!(
                        "they are redriven, over restarts too; gapless group show {group} shows \
                         how many are left"
                    )
                } else if rate == Some(0) {
                    "no redrive runs in the background any more".to_owned()
                } else {
                    format!("{} redriven", human_number(moved.count))
                };
                out.result(&value, text)?;
                Ok(Exit::Ok)
            })
        }
        DlqCommand::Rm { group, which, yes } => {
            if !yes && !out.can_ask() {
                return Err(Failure::words("removing dead letters is for good")
                    .hint("add --yes to do it without asking"));
            }
            if !yes && !ask(&format!("Remove these dead letters of {group}, for good?"))? {
                return Err(Failure::failed("nothing was removed"));
            }
            let (seq, filter) = (which.seq, which.filter());
            with_client(global, out, async |client, out| {
                let removed = client.remove_dead_letters(&group, filter).await;
                let removed = or_failure(client, &group, removed).await?;
                if removed == 0
                    && let Some(seq) = seq
                {
                    return Err(no_letter(&group, seq));
                }
                let text = format!("{} removed", human_number(removed));
                out.result(&json!({ "removed": removed }), text)?;
                Ok(Exit::Ok)
            })
        }
    }
}

fn no_letter(group: &TopicName, seq: u64) -> Failure {
    Failure::not_found(format!("group {group} has no dead letter {seq}"))
        .hint(format!("see what there is: gapless dlq ls {group}"))
}

fn list(group: &TopicName, from: u64, count: u64, global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        let mut table = Table::new(&[">SEQ", "TOPIC", ">ORIGIN", ">TRIES", "DIED", "KEY", "ERROR"]);
        let (mut next, mut left) = (Seq(from), count);
        let mut any = false;
        while left > 0 {
            let limit = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
            let page = client.dead_letters(group, next, limit).await;
            let (letters, more) = or_failure(client, group, page).await?;
            for letter in &letters {
                any = true;
                left -= 1;
                next = letter.seq.next();
                if out.json {
                    out.json_bytes(&letter_json(letter))?;
                } else {
                    table.row(row(letter));
                }
            }
            if !more || letters.is_empty() {
                break;
            }
        }
        if !any {
            out.note(format_args!("group {group} has no dead letters"));
        } else if !out.json {
            out.table(&table)?;
        }
        Ok(Exit::Ok)
    })
}

fn row(letter: &DeadLetter) -> Vec<String> {
    vec![
        letter.seq.to_string(),
        letter.topic.to_string(),
        letter.origin.to_string(),
        letter.attempts.to_string(),
        gapless_core::calendar::format(letter.died.0),
        letter.message.key.as_ref().map_or_else(|| "-".to_owned(), |key| readable(key)),
        readable(letter.error.as_bytes()),
    ]
}

fn show(letter: &DeadLetter, out: &mut Output) -> std::io::Result<()> {
    if out.json {
        return out.json_bytes(&letter_json(letter));
    }
    let time = |time: gapless_core::Timestamp| gapless_core::calendar::format(time.0);
    let lines = [
        ("dead letter", letter.seq.to_string()),
        ("topic", letter.topic.to_string()),
        ("seq there", letter.origin.to_string()),
        ("tries", letter.attempts.to_string()),
        ("error", readable(letter.error.as_bytes())),
        ("failed first", time(letter.first_failed)),
        ("failed last", time(letter.died)),
        ("key", letter.message.key.as_ref().map_or_else(|| "-".to_owned(), |key| readable(key))),
    ];
    for (label, value) in lines {
        out.line(format_args!("{label:<18} {value}"))?;
    }
    for (name, value) in &letter.message.headers {
        out.line(format_args!("{:<18} {name}={}", "header", readable(value)))?;
    }
    let body = letter.message.body.as_deref().map_or_else(|| "(removed)".to_owned(), readable);
    out.line(format_args!("{:<18} {body}", "body"))
}

fn letter_json(letter: &DeadLetter) -> Vec<u8> {
    let mut out = Vec::new();
    shown::put_dead_letter(letter, &mut out);
    out
}
