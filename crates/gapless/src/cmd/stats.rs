//! `gapless stats`: numbers about the server, once or again and again.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use gapless_broker::{Clock, SystemClock};
use gapless_client::Client;
use serde_json::{Map, Value};
use tokio::time::{MissedTickBehavior, interval};

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, human_bytes, human_number};
use crate::remote::{Interrupt, asked, with_client};
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless stats
  gapless stats --json | jq .journal.flush_us_mean
  gapless stats --watch                         every second, with rates; Ctrl-C ends it
  gapless stats --watch 10s --json >> stats.ndjson
  gapless stats --watch 1s --count 5
  gapless stats --server unix:/srv/gapless/gapless.sock

See it live, with topics, groups and clients: gapless top";

/// Show numbers about the server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatsOptions {
    /// Show them again and again, with what changed in a second
    #[arg(long, short, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s")]
    #[arg(value_parser = values::duration)]
    watch: Option<Duration>,
    /// End after so many times
    #[arg(long, short = 'n', requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

pub(crate) fn run(options: &StatsOptions, global: &Global, out: &mut Output) -> Done {
    if options.watch.is_some_and(|every| every.is_zero()) {
        return Err(Failure::words("--watch is 1ms at least"));
    }
    with_client(global, out, async |client, out| {
        if let Some(every) = options.watch {
            return watch(client, every, options.count.unwrap_or(u64::MAX), out).await;
        }
        let stats = ask(client).await?;
        if out.json {
            out.json_line(&Value::Object(stats))?;
        } else {
            let mut lines = Vec::new();
            flatten("", &stats, &mut lines);
            for (name, value) in lines {
                out.line(format_args!("{name:<24} {value}"))?;
            }
        }
        Ok(Exit::Ok)
    })
}

async fn ask(client: &Client) -> Result<Map<String, Value>, Failure> {
    let text = match client.stats().await {
        Ok(text) => text,
        Err(error) => return Err(asked(client, error, None).await),
    };
    let Ok(Value::Object(stats)) = serde_json::from_str(&text) else {
        return Err(Failure::failed("the server's numbers cannot be read"));
    };
    Ok(stats)
}

/// Prints them until it is interrupted, or `count` times.
async fn watch(client: &Client, every: Duration, count: u64, out: &mut Output) -> Done {
    let mut interrupt = Interrupt::listen()?;
    let mut every = interval(every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let clock = SystemClock::default();
    let screen = io::stdout().is_terminal();
    let mut before: Option<(Duration, HashMap<String, f64>)> = None;
    for round in 0..count {
        let stats = tokio::select! {
            biased;
            () = interrupt.came() => return Ok(Exit::Ok),
            stats = async { every.tick().await; ask(client).await } => stats?,
        };
        if out.json {
            let mut stats = stats;
            stats.insert("time_ms".into(), clock.now().0.into());
            out.json_line(&Value::Object(stats))?;
        } else {
            let now = clock.monotonic();
            let mut lines = Vec::new();
            flatten("", &stats, &mut lines);
            let mut numbers = HashMap::new();
            flat_numbers("", &stats, &mut numbers);
            let mut table = Table::new(&["NAME", ">VALUE", ">PER SECOND"]);
            for (name, value) in lines {
                let rate = rate(&name, now, &numbers, before.as_ref());
                table.row(vec![name, value, rate]);
            }
            match (screen, round) {
                (true, _) => out.bytes(b"\x1b[H\x1b[2J")?,
                (false, 0) => {}
                (false, _) => out.line("")?,
            }
            out.table(&table)?;
            before = Some((now, numbers));
        }
        out.flush()?;
    }
    Ok(Exit::Ok)
}

/// What a number grew by in a second; nothing for what did not grow.
fn rate(
    name: &str,
    now: Duration,
    numbers: &HashMap<String, f64>,
    before: Option<&(Duration, HashMap<String, f64>)>,
) -> String {
    let more = before.and_then(|(then, known)| {
        let seconds = now.checked_sub(*then)?.as_secs_f64();
        let more = numbers.get(name)? - known.get(name)?;
        (more > 0.0 && seconds > 0.0).then(|| more / seconds)
    });
    match more {
        Some(rate) if name.ends_with("bytes") => human_bytes(rate as u64),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => human_number(rate as u64),
        None => String::new(),
    }
}

fn flat_numbers(above: &str, fields: &Map<String, Value>, numbers: &mut HashMap<String, f64>) {
    for (name, value) in fields {
        let full = format!("{above}{name}");
        match value {
            Value::Object(inner) => flat_numbers(&format!("{full}."), inner, numbers),
            value => {
                if let Some(number) = value.as_f64() {
                    numbers.insert(full, number);
                }
            }
        }
    }
}

fn flatten(above: &str, fields: &Map<String, Value>, lines: &mut Vec<(String, String)>) {
    for (name, value) in fields {
        let full = format!("{above}{name}");
        match value {
            Value::Object(inner) => flatten(&format!("{full}."), inner, lines),
            Value::Number(number) => {
                let text = match number.as_u64() {
                    Some(bytes) if name.ends_with("bytes") => human_bytes(bytes),
                    Some(number) => human_number(number),
                    None => number.to_string(),
                };
                lines.push((full, text));
            }
            Value::String(text) => lines.push((full, text.clone())),
            other => lines.push((full, other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_flattened_and_readable() {
        let json =
            serde_json::json!({ "a": { "bytes": 2048, "full": false }, "n": 1234, "s": "x" });
        let mut lines = Vec::new();
        flatten("", json.as_object().unwrap(), &mut lines);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            lines,
            [
                pair("a.bytes", "2.0 KiB"),
                pair("a.full", "false"),
                pair("n", "1 234"),
                pair("s", "x")
            ]
        );
    }

    #[test]
    fn only_what_grew_has_a_rate() {
        let numbers = |value: f64| HashMap::from([("a.bytes".to_owned(), value)]);
        let before = (Duration::from_secs(1), numbers(1024.0));
        let at = Duration::from_secs(3);
        assert_eq!(rate("a.bytes", at, &numbers(5120.0), Some(&before)), "2.0 KiB");
        assert_eq!(rate("a.bytes", at, &numbers(1024.0), Some(&before)), "");
        assert_eq!(rate("a.bytes", at, &numbers(1.0), Some(&before)), "");
        assert_eq!(rate("a.bytes", at, &numbers(1.0), None), "");
        assert_eq!(rate("other", at, &numbers(1.0), Some(&before)), "");
    }
}
