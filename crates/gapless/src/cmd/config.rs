//! `gapless config`: what is in force, and where each value came from.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::Done;
use crate::config::{Config, KEYS};

pub(crate) fn run(config: &Config, as_json: bool, out: &mut dyn Write) -> Done {
    if as_json {
        let row = |name: &'static str| {
            let source = config.source(name).to_string();
            (name.to_owned(), json!({ "value": config.text(name), "source": source }))
        };
        let all: Map<String, Value> = KEYS.iter().map(|key| row(key.name)).collect();
        writeln!(out, "{:#}", Value::Object(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    for key in KEYS {
        let (value, source) = (config.text(key.name), config.source(key.name));
        writeln!(out, "{:<34} {value:<20} # {source}; {}", key.name, key.help)?;
    }
    Ok(ExitCode::SUCCESS)
}
