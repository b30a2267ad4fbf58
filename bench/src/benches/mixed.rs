//! Live deliveries while others read history: how much later they come.
//!
//! Rounds alone and rounds beside readers take turns, so that both see the same weather.
//! The readers have threads of their own and read a long history over and over.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use gapless_bench::samples::Samples;
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::Broker;
use gapless_core::{Durability, Pattern, TopicName, TopicSettings};

use super::follow::paced;
use super::history::{Look, read_to, stored};
use super::pace::Pace;
use super::store::{Fill, Folder, Result};

/// Who reads history.
const READERS: usize = 4;

/// Bytes of a message in the history.
const HISTORY_MESSAGE_BYTES: usize = 1024;

/// Rounds alone, and as many beside readers.
const ROUNDS: u32 = 2;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Seconds alone, and as many beside readers.
    pub(crate) seconds: f64,
    /// Bytes of the history.
    pub(crate) bytes: u64,
    /// Whether the paced publisher never rests.
    pub(crate) spin: bool,
}

/// Both durabilities, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table =
        Table::new("live at 1,000/s beside readers of history, 128 B; p99 alone is the hardware");
    let folder = Folder::fresh(dir, "mixed")?;
    let fill = Fill { message_bytes: HISTORY_MESSAGE_BYTES, batch: 1, bytes: options.bytes };
    let (broker, topics) = stored(folder.path(), fill, 1)?;
    for durability in [Durability::Written, Durability::Flushed] {
        let live = TopicName::parse(&format!("live.{durability}"))?;
        let settings = TopicSettings { durability: Some(durability), ..TopicSettings::default() };
        broker.create_topic(&live, settings)?;
        table.push(one(&broker, options, (&live, durability), (&topics[0], fill))?);
    }
    broker.close()?;
    Ok(table)
}

fn one(
    broker: &Broker,
    options: &Options,
    (live, durability): (&TopicName, Durability),
    (old, fill): (&TopicName, Fill),
) -> Result<Row> {
    let pace = Pace {
        per_second: 1000.0,
        seconds: options.seconds / f64::from(ROUNDS),
        bytes: 128,
        spin: options.spin,
    };
    paced(broker, live, &Pace { seconds: 0.2, ..pace }, 1)?;
    let (mut alone, mut beside) = (Samples::default(), Samples::default());
    let (mut history_bytes, mut history_seconds) = (0, 0.0);
    for _ in 0..ROUNDS {
        alone.join(paced(broker, live, &pace, 1)?);
        let started = Instant::now();
        let (samples, bytes) = paced_beside_readers(broker, live, &pace, (old, fill))?;
        history_seconds += started.elapsed().as_secs_f64();
        history_bytes += bytes;
        beside.join(samples);
    }
    let (alone, beside) = (alone.rate(0), beside.rate(0));
    let work = format!("p99 beside {READERS} readers, {durability}");
    Ok(Row::new(work, Figure::micros(beside.p99_us))
        .against(Figure::micros(alone.p99_us))
        .goal(Goal::AtMost(1.5))
        .beside("p50", Figure::micros(beside.p50_us))
        .beside("p50 alone", Figure::micros(alone.p50_us))
        .beside("history", Figure::bytes_per_second(history_bytes as f64 / history_seconds)))
}

fn paced_beside_readers(
    broker: &Broker,
    live: &TopicName,
    pace: &Pace,
    (old, fill): (&TopicName, Fill),
) -> Result<(Samples, u64)> {
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    // A short part at a time, so that readers end soon after the live ones.
    let part = (fill.messages() / 8).max(1);
    let read = || -> Result<()> {
        while !stop.load(Ordering::Acquire) {
            read_to(broker, &Pattern::literal(old), part, Look::Records)?;
            steps.fetch_add(part, Ordering::Relaxed);
        }
        Ok(())
    };
    let samples = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        let samples = paced(broker, live, pace, 1);
        stop.store(true, Ordering::Release);
        for reader in readers {
            reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))?;
        }
        samples
    })?;
    Ok((samples, steps.into_inner() * fill.message_bytes as u64))
}
