//! `gapless stats`: numbers about the server.

use clap::Args;
use serde_json::{Map, Value};

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, human_bytes, human_number};
use crate::remote::{asked, with_client};

const EXAMPLES: &str = "\
Examples:
  gapless stats
  gapless stats --json | jq .journal.flush_us_mean
  gapless stats --server unix:/srv/gapless/gapless.sock";

/// Show numbers about the server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatsOptions {}

pub(crate) fn run(global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        let text = match client.stats().await {
            Ok(text) => text,
            Err(error) => return Err(asked(client, error, None).await),
        };
        let Ok(Value::Object(stats)) = serde_json::from_str(&text) else {
            return Err(Failure::failed("the server's numbers cannot be read"));
        };
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
}
