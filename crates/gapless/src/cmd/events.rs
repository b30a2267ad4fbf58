//! `gapless events`: what the broker says about itself.

use clap::Args;
use gapless_client::From;
use gapless_core::Pattern;
use serde_json::Value;

use super::Global;
use super::subscribe::{Only, Plan, Show, follow};
use crate::exit::{Done, Failure};
use crate::output::Output;
use crate::remote::with_client;
use crate::show::readable;

const EXAMPLES: &str = "\
Examples:
  gapless events                                everything that happens
  gapless events 'topic.>'                      topics created, changed, trimmed, deleted
  gapless events publish.rejected --json
  gapless events --count 1                      wait for the next one

docs/events.md lists them all. An event without subscribers is not created, so that there is no
history: it begins now.";

/// Follow what the broker says about itself
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsOptions {
    /// Which events, with or without $events. in front
    #[arg(default_value = ">")]
    pattern: String,
    /// End after so many events
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

pub(crate) fn run(options: &EventsOptions, global: &Global, out: &mut Output) -> Done {
    let named = options.pattern.strip_prefix("$events.").unwrap_or(&options.pattern);
    let pattern = Pattern::parse(&format!("$events.{named}"))
        .map_err(|error| Failure::words(error).hint("write it like 'topic.>' or topic.created"))?;
    let plan = Plan {
        await_visible: None,
        identity: None,
        wanted: vec![(pattern, From::Now)],
        count: options.count,
        follow: true,
        save: None,
        show: Show::Events,
        only: Only::default(),
    };
    with_client(global, out, async |client, out| follow(client, &plan, out).await)
}

/// An event on a line: as it is for programs, in words for people.
pub(crate) fn event_line(body: &[u8], out: &Output) -> String {
    if out.json {
        return readable(body);
    }
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else { return readable(body) };
    let time = fields.get("time_ms").and_then(Value::as_u64).map(gapless_core::calendar::format);
    let event = fields.get("event").and_then(Value::as_str).unwrap_or("?");
    let mut line = format!("{} {}", out.paint.dim(time.unwrap_or_default()), out.paint.cyan(event));
    for (name, value) in &fields {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if name != "event" && name != "time_ms" {
            line +=
                &format!(" {}{}", out.paint.dim(format!("{name}=")), readable(value.as_bytes()));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_in_words_or_as_it_is() {
        let body = br#"{"event":"topic.created","time_ms":0,"topic":"orders"}"#;
        let people = event_line(body, &Output::new(false, false));
        assert_eq!(people, "1970-01-01T00:00:00.000Z topic.created topic=orders");
        let programs = event_line(body, &Output::new(true, false));
        assert_eq!(programs.as_bytes(), body);
        assert_eq!(event_line(b"no json", &Output::new(false, false)), "no json");
    }
}
