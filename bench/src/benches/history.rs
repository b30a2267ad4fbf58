//! Reading what is stored and no longer in memory, beside reading a file.
//!
//! The store is filled, sealed and opened again, so that nothing is left in memory, and read
//! once before it is measured, so that its files are in the page cache. Every body is touched.
//! Beside it stands a bare read from the page cache in steps as large as the broker's.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use gapless_bench::hardware::page_cache_read;
use gapless_bench::process::cpu_time;
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::{Broker, BrokerOptions, Delivery, From, Limits, block_on};
use gapless_core::{Durability, Pattern, TopicName};

use super::live::{each_body, touch};
use super::publish::per_message;
use super::size_name;
use super::store::{Fill, Folder, Result, options, topics};

/// Topics that are written by turns.
const TOPICS: usize = 1000;

/// Bytes that stay in memory: as good as nothing.
const TAIL_BYTES: u64 = 64 * 1024;

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Bytes of all bodies of a store.
    pub(crate) bytes: u64,
    /// Sizes of messages.
    pub(crate) sizes: Vec<usize>,
    /// Messages of a batch, as they were published.
    pub(crate) batches: Vec<usize>,
    /// A store is read over and over for so many seconds, and once at least.
    pub(crate) seconds: f64,
    /// Only one topic, by records: to be looked at with a profiler.
    pub(crate) only_one_topic: bool,
}

/// How messages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// As messages of their own, with [`gapless_broker::Messages::iter`].
    Messages,
    /// As records inside their batches.
    Records,
}

/// Every case, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new("read history, in the process, from the page cache");
    for &message_bytes in &options.sizes {
        for &batch in &options.batches {
            let fill = Fill { message_bytes, batch, bytes: options.bytes };
            one_topic(dir, options, fill, &mut table)?;
        }
    }
    if options.only_one_topic {
        return Ok(table);
    }
    for &message_bytes in &options.sizes {
        let fill = Fill { message_bytes, batch: 1, bytes: options.bytes };
        many_topics(dir, options, fill, &mut table)?;
    }
    Ok(table)
}

fn one_topic(dir: &Path, options: &Options, fill: Fill, table: &mut Table) -> Result<()> {
    let folder = Folder::fresh(dir, "history")?;
    let (broker, topics) = stored(folder.path(), fill, 1)?;
    let looks: &[Look] =
        if options.only_one_topic { &[Look::Records] } else { &[Look::Messages, Look::Records] };
    for &look in looks {
        let read = Reading::over(options.seconds, || {
            read_to(&broker, &Pattern::literal(&topics[0]), fill.messages(), look)
        })?;
        let work = format!("one topic, {}, {}", fill_name(fill), look.name());
        let row = read.row(work, fill, page_cache_read(dir, step_bytes())?);
        let has_goal = fill.message_bytes == 1024;
        table.push(if has_goal { row.goal(Goal::AtLeast(0.5)) } else { row });
    }
    Ok(broker.close()?)
}

fn many_topics(dir: &Path, options: &Options, fill: Fill, table: &mut Table) -> Result<()> {
    let folder = Folder::fresh(dir, "history")?;
    // Each topic gets as many as any other, so that one knows when it is read.
    let round = (TOPICS * fill.message_bytes) as u64;
    let fill = Fill { bytes: (fill.bytes / round).max(1) * round, ..fill };
    let (broker, topics) = stored(folder.path(), fill, TOPICS)?;
    let each = fill.messages() / TOPICS as u64;
    let one_by_one = Reading::over(options.seconds, || {
        let read = |topic| read_to(&broker, &Pattern::literal(topic), each, Look::Records);
        topics.iter().try_for_each(read)
    })?;
    let work = format!("{TOPICS} topics by turns, one by one, {}", fill_name(fill));
    table.push(one_by_one.row(work, fill, page_cache_read(dir, step_bytes())?));
    let pattern = Pattern::parse("bench.>")?;
    let as_pattern = Reading::over(options.seconds, || {
        read_to(&broker, &pattern, fill.messages(), Look::Records)
    })?;
    let work = format!("{TOPICS} topics by turns, as a pattern, {}", fill_name(fill));
    table.push(as_pattern.row(work, fill, page_cache_read(dir, step_bytes())?));
    Ok(broker.close()?)
}

/// A store whose messages are all in segments and not in memory.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn stored(folder: &Path, fill: Fill, count: usize) -> Result<(Broker, Vec<TopicName>)> {
    let broker = Broker::open(small_tail(folder))?;
    let topics = topics(&broker, "bench", count, Durability::Written)?;
    fill.publish(&broker, &topics)?;
    broker.seal()?;
    broker.close()?;
    Ok((Broker::open(small_tail(folder))?, topics))
}

fn small_tail(folder: &Path) -> BrokerOptions {
    let mut options = options(folder);
    options.journal.tail_bytes = TAIL_BYTES;
    options
}

/// Reads so many messages from the beginning on and touches all of them.
///
/// # Errors
/// When the subscription ends, or tells of a gap.
pub(crate) fn read_to(broker: &Broker, pattern: &Pattern, messages: u64, look: Look) -> Result<()> {
    let mut subscription = broker.subscribe(pattern, From::Beginning)?;
    let (mut count, mut sum) = (0, 0);
    while count < messages {
        match block_on(subscription.next())? {
            Delivery::Messages(found) if look == Look::Messages => {
                for delivered in found.iter() {
                    sum ^= touch(delivered.message.body.as_deref().unwrap_or_default());
                    count += 1;
                }
            }
            Delivery::Messages(found) => count += each_body(&found, &mut |body| sum ^= touch(body)),
            Delivery::Gap(gap) => return Err(format!("a gap: {gap:?}").into()),
            Delivery::Live | Delivery::Recovering { .. } => {}
        }
    }
    black_box(sum);
    Ok(())
}

/// Passes over a whole store.
struct Reading {
    passes: u32,
    took: Duration,
    cpu: Duration,
}

impl Reading {
    fn over(seconds: f64, mut pass: impl FnMut() -> Result<()>) -> Result<Self> {
        pass()?;
        let (cpu, started) = (cpu_time()?, Instant::now());
        let mut passes = 0;
        while passes == 0 || started.elapsed().as_secs_f64() < seconds {
            pass()?;
            passes += 1;
        }
        let took = started.elapsed();
        Ok(Self { passes, took, cpu: cpu_time()?.saturating_sub(cpu) })
    }

    fn row(&self, work: String, fill: Fill, page_cache_bytes_per_second: f64) -> Row {
        let messages = fill.messages() * u64::from(self.passes);
        let per_second = messages as f64 / self.took.as_secs_f64();
        Row::new(work, Figure::bytes_per_second(per_second * fill.message_bytes as f64))
            .against(Figure::bytes_per_second(page_cache_bytes_per_second))
            .beside("rate", Figure::per_second(per_second))
            .beside("cpu/msg", Figure::micros(per_message(self.cpu, messages)))
            .beside("passes", Figure::count(f64::from(self.passes)))
    }
}

impl Look {
    fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Records => "records",
        }
    }
}

/// The bytes of history that one subscriber is handed in one step.
fn step_bytes() -> usize {
    Limits::default().history_step_bytes
}

fn fill_name(fill: Fill) -> String {
    let size = size_name(fill.message_bytes);
    if fill.batch == 1 { size } else { format!("{size} in batches of {}", fill.batch) }
}
