//! The last hour in steps of ten seconds, whether or not a page is open: at nine o'clock one sees
//! half past eight. With longer steps it is a longer time.
//!
//! Plain code without a clock: [`crate::http::page::sampler`] says when a step ends. A step is read
//! from totals, never from every topic, and takes a fixed number of bytes; the oldest makes room for
//! the newest. A step that took longer (the machine slept, or was overloaded) says so by its times,
//! so that a chart shows the hole instead of a guess.

use std::time::Duration;

use gapless_broker::{Broker, FlushTimes};
use serde_json::{Map, Value, json};

use crate::http::page::ring::Ring;
use crate::http::page::sampling::micros;
use crate::process;

/// How long a step takes, unless the options say otherwise.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// Steps that are kept: an hour of steps of ten seconds.
const STEPS_MAX: usize = 360;
/// What all steps take together, in bytes, whatever the server does.
#[cfg(test)]
const BYTES_MAX: usize = 64 * 1024;

/// What happened in one step.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// When it ended, in ms since 1970.
    end_ms: u64,
    took_ms: u32,
    messages_in: u64,
    bytes_in: u64,
    messages_out: u64,
    bytes_out: u64,
    recovered_bytes: u64,
    flushes: u32,
    flush_p50_us: Option<u32>,
    flush_p99_us: Option<u32>,
    memory_bytes: Option<u64>,
    subscriptions: u32,
}

/// Totals at the end of a step.
#[derive(Clone, Debug, Default)]
struct Totals {
    at: Duration,
    messages_in: u64,
    bytes_in: u64,
    messages_out: u64,
    bytes_out: u64,
    recovered_bytes: u64,
    flushes: FlushTimes,
}

/// The hour.
pub(crate) struct Timeline {
    steps: Ring<Step>,
    last: Option<Totals>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { steps: Ring::new(STEPS_MAX), last: None }
    }
}

impl Timeline {
    /// Ends a step: what was counted since the last one is its content. The first call only begins.
    pub(crate) fn step(&mut self, broker: &Broker) {
        let now = totals(broker);
        let Some(then) = self.last.replace(now.clone()) else { return };
        let took_ms = now.at.saturating_sub(then.at).as_millis();
        let flushed = now.flushes.since(&then.flushes);
        let short = |time: Duration| u32::try_from(micros(time)).unwrap_or(u32::MAX);
        self.steps.push(Step {
            end_ms: broker.now().0,
            took_ms: u32::try_from(took_ms).unwrap_or(u32::MAX).max(1),
            messages_in: now.messages_in.saturating_sub(then.messages_in),
            bytes_in: now.bytes_in.saturating_sub(then.bytes_in),
            messages_out: now.messages_out.saturating_sub(then.messages_out),
            bytes_out: now.bytes_out.saturating_sub(then.bytes_out),
            recovered_bytes: now.recovered_bytes.saturating_sub(then.recovered_bytes),
            flushes: u32::try_from(flushed.count()).unwrap_or(u32::MAX),
            flush_p50_us: flushed.quantile(0.5).map(short),
            flush_p99_us: flushed.quantile(0.99).map(short),
            memory_bytes: process::resident_bytes(),
            subscriptions: u32::try_from(broker.subscriber_count()).unwrap_or(u32::MAX),
        });
    }

    /// As columns, with how long a step takes: the times at which steps ended and how long they took,
    /// then a list per figure.
    pub(crate) fn shown(&self, step: Duration) -> Map<String, Value> {
        let column = |of: &dyn Fn(&Step) -> Value| self.steps.iter().map(of).collect::<Value>();
        let per_second = |of: fn(&Step) -> u64| {
            column(&|step| {
                let rate = of(step) as f64 * 1000.0 / f64::from(step.took_ms);
                json!((rate * 10.0).round() / 10.0)
            })
        };
        let mut shown = Map::new();
        shown.insert("step_ms".into(), json!(step.as_millis() as u64));
        shown.insert("steps_max".into(), json!(STEPS_MAX));
        let columns = [
            ("end_ms", column(&|step| step.end_ms.into())),
            ("took_ms", column(&|step| step.took_ms.into())),
            ("messages_in", per_second(|step| step.messages_in)),
            ("bytes_in", per_second(|step| step.bytes_in)),
            ("messages_out", per_second(|step| step.messages_out)),
            ("bytes_out", per_second(|step| step.bytes_out)),
            ("recovered_bytes", per_second(|step| step.recovered_bytes)),
            ("flushes", per_second(|step| u64::from(step.flushes))),
            ("flush_p50_us", column(&|step| step.flush_p50_us.into())),
            ("flush_p99_us", column(&|step| step.flush_p99_us.into())),
            ("memory_bytes", column(&|step| step.memory_bytes.into())),
            ("subscriptions", column(&|step| step.subscriptions.into())),
        ];
        shown.extend(columns.map(|(name, points)| (name.to_owned(), points)));
        shown
    }
}

fn totals(broker: &Broker) -> Totals {
    let (flow, delivered) = (broker.flow_counts(), broker.delivery_counts());
    Totals {
        at: broker.monotonic(),
        messages_in: flow.messages_in,
        bytes_in: flow.bytes_in,
        messages_out: flow.messages_out,
        bytes_out: delivered.delivered_bytes,
        recovered_bytes: delivered.recovered_bytes,
        flushes: broker.flush_times(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_broker::BrokerOptions;
    use gapless_core::{Message, PublishOptions, TopicName, TopicSettings};

    #[test]
    fn an_hour_takes_a_fixed_number_of_bytes() {
        assert!(STEPS_MAX * size_of::<Step>() <= BYTES_MAX);
        assert_eq!(STEP * u32::try_from(STEPS_MAX).unwrap(), Duration::from_secs(3600));
    }

    #[test]
    fn a_step_has_what_was_published_in_it_and_old_steps_go() {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(BrokerOptions::new(folder.path().join("data"))).unwrap();
        let topic = TopicName::parse("t").unwrap();
        broker.create_topic(&topic, TopicSettings::default()).unwrap();
        let mut timeline = Timeline::default();
        timeline.step(&broker);
        assert_eq!(timeline.shown(STEP)["messages_in"], json!([]), "the first step has begun");
        let messages = vec![Message::new("x"); 5];
        broker.publish_batch(&topic, &messages, &PublishOptions::default()).wait().unwrap();
        timeline.step(&broker);
        assert!(timeline.shown(STEP)["messages_in"][0].as_f64().unwrap() > 0.0);
        assert!(timeline.shown(STEP)["flush_p50_us"][0].is_u64());
        for _ in 0..STEPS_MAX {
            timeline.step(&broker);
        }
        let shown = timeline.shown(STEP);
        assert_eq!(shown["end_ms"].as_array().unwrap().len(), STEPS_MAX);
        assert_eq!(shown["messages_in"][0], 0.0, "the step with the messages is gone");
        assert_eq!(shown["flush_p50_us"][0], Value::Null, "no flush is not a flush of 0 µs");
    }
}
