//! `gapless get`: one message, by its key or its seq.

use clap::{ArgGroup, Args};
use clap_complete::ArgValueCompleter;
use gapless_core::{Seq, TopicName};

use super::Global;
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{asked, with_client};
use crate::show::Shown;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless get prices apples                     the newest message of the key `apples`
  gapless get prices apples --raw               its body alone
  gapless get orders.created --seq 42 --json

Exit code 6 says that there is no such topic or message, or that the key was removed.";

/// Show the newest message of a key, or the message of a seq
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["key", "seq"]))]
pub(crate) struct GetOptions {
    /// Of which topic
    #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
    topic: TopicName,
    /// Of which key
    key: Option<String>,
    /// Of which seq
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seq: Option<u64>,
    /// Print the body only, as it is
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

pub(crate) fn run(options: &GetOptions, global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        let topic = &options.topic;
        let found = match (&options.key, options.seq) {
            (Some(key), _) => client.latest(topic, key.clone()).await,
            (None, seq) => client.read(topic, Seq(seq.unwrap_or(1))).await,
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => return Err(asked(client, error, Some(topic)).await),
        };
        let Some(found) = found else {
            let what = match (&options.key, options.seq) {
                (Some(key), _) => {
                    format!("{topic} has no message of key {key:?}, or it was removed")
                }
                (None, seq) => {
                    format!(
                        "{topic} has no message {}: it is gone or not there yet",
                        seq.unwrap_or(1)
                    )
                }
            };
            return Err(Failure::not_found(what));
        };
        let shown = Shown {
            topic: topic.as_str(),
            seq: found.seq,
            position: found.position,
            time: found.time,
            message: &found.message,
            epoch: None,
        };
        if options.raw {
            out.bytes(found.message.body.as_deref().unwrap_or_default())?;
        } else if out.json {
            out.json_bytes(&shown.json(&[]))?;
        } else {
            out.line(shown.line(out.paint))?;
        }
        Ok(Exit::Ok)
    })
}
