//! Publishing in the process, beside what the disk does for a program that only writes.
//!
//! One at a time is about latency: each publish waits for its ack, and beside it stands a
//! bare write (and flush) of as many blocks as the journal writes for such a message, in
//! rounds that take turns. Many in flight is about throughput: beside it stands a bare write
//! (and flush) of chunks as large as the journal's were in that very round.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::hardware::{Flush, RawWrites};
use gapless_bench::process::cpu_time;
use gapless_bench::samples::Samples;
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::{Broker, JournalStats};
use gapless_core::{Durability, PublishOptions, TopicName};

use super::size_name;
use super::store::{Folder, IN_FLIGHT, Result, message, open, topic};
use super::window::{Window, publish_and_wait};

/// The journal writes whole blocks of this many bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// A frame's header and a batch's, about: what a message takes in its block besides itself.
const OVERHEAD_BYTES: usize = 160;

/// The largest chunk that is written bare.
pub(crate) const CHUNK_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Messages of a batch, where batches are measured.
const BATCH: usize = 64;

/// Threads that publish one at a time, together.
const CROWD: usize = 16;

/// Rounds of ours and of the disk's that take turns.
const ROUNDS: u32 = 4;

/// At least so long is published before it is measured: a new store makes its log's files
/// as it first needs them, and the system gets the memory for them.
const WARM_UP_SECONDS: f64 = 2.0;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Seconds for each case; the disk's own figure takes as long again.
    pub(crate) seconds: f64,
    /// A case ends when it has published so many bytes.
    pub(crate) bytes_max: u64,
    /// Sizes of messages.
    pub(crate) sizes: Vec<usize>,
    /// Only many in flight and of one durability: to be looked at with a profiler.
    pub(crate) only_in_flight: Option<Durability>,
}

/// Every case, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new("publish, in the process");
    let disk = &mut RawWrites::new(dir, BLOCK_BYTES, Flush::Each)?;
    if let Some(durability) = options.only_in_flight {
        for &bytes in &options.sizes {
            table.push(in_flight((dir, disk), options, (bytes, 1), durability)?);
        }
        return Ok(table);
    }
    let all = [Durability::Flushed, Durability::Written, Durability::Memory];
    for durability in all {
        for &bytes in &options.sizes {
            table.push(one_at_a_time((dir, disk), options, bytes, durability)?);
        }
    }
    for durability in all {
        for &bytes in &options.sizes {
            for batch in [1, BATCH] {
                table.push(in_flight((dir, disk), options, (bytes, batch), durability)?);
            }
        }
    }
    for &bytes in &options.sizes {
        table.push(crowd((dir, disk), options, bytes)?);
    }
    Ok(table)
}

fn one_at_a_time(
    (dir, raw): (&Path, &mut RawWrites),
    options: &Options,
    bytes: usize,
    durability: Durability,
) -> Result<Row> {
    let folder = Folder::fresh(dir, "one-at-a-time")?;
    let broker = open(folder.path())?;
    let topic = topic(&broker, durability)?;
    let chunk_bytes = (bytes + OVERHEAD_BYTES).next_multiple_of(BLOCK_BYTES);
    raw.restart(chunk_bytes, flush_for(durability))?;
    let seconds = options.seconds / f64::from(ROUNDS);
    let bytes_max = options.bytes_max / u64::from(ROUNDS);
    let (mut samples, mut cpu) = (Samples::default(), Duration::ZERO);
    publish_for(&broker, &topic, bytes, (seconds / 4.0, bytes_max))?;
    for _ in 0..ROUNDS {
        raw.run(seconds)?;
        let before = cpu_time()?;
        samples.join(publish_for(&broker, &topic, bytes, (seconds, bytes_max))?);
        cpu += cpu_time()?.saturating_sub(before);
    }
    broker.close()?;
    let (ours, raw) = (samples.rate(bytes), raw.rate());
    let work = format!("one at a time, {durability}, {}", size_name(bytes));
    let row = Row::new(work, Figure::micros(ours.p50_us))
        .beside("p99", Figure::micros(ours.p99_us))
        .beside("rate", Figure::per_second(ours.per_second))
        .beside("cpu/msg", Figure::micros(per_message(cpu, samples.steps())));
    Ok(match durability {
        Durability::Flushed => row
            .against(Figure::micros(raw.p50_us))
            .goal(Goal::AtMost(1.3))
            .beside("raw p99", Figure::micros(raw.p99_us))
            .beside("raw rate", Figure::per_second(raw.per_second)),
        Durability::Written => row.against(Figure::micros(raw.p50_us)),
        Durability::Memory => row,
    })
}

/// One at a time until time or bytes run out.
fn publish_for(
    broker: &Broker,
    topic: &TopicName,
    bytes: usize,
    (seconds, bytes_max): (f64, u64),
) -> Result<Samples> {
    let message = message(bytes);
    let publish_options = PublishOptions::default();
    let limit = Duration::from_secs_f64(seconds);
    let mut samples = Samples::default();
    let started = Instant::now();
    let mut before = started;
    loop {
        publish_and_wait(broker, |broker| broker.publish(topic, &message, &publish_options))?;
        let after = Instant::now();
        samples.note(after - before);
        before = after;
        if after - started >= limit || samples.steps() * bytes as u64 >= bytes_max {
            samples.spend(after - started);
            return Ok(samples);
        }
    }
}

fn in_flight(
    (dir, raw): (&Path, &mut RawWrites),
    options: &Options,
    (bytes, batch): (usize, usize),
    durability: Durability,
) -> Result<Row> {
    let folder = Folder::fresh(dir, "in-flight")?;
    let broker = open(folder.path())?;
    let topic = topic(&broker, durability)?;
    let seconds = options.seconds / 2.0;
    let shape = Shape { bytes, batch, durability };
    shape.publish_for(&broker, &topic, (seconds.max(WARM_UP_SECONDS), options.bytes_max / 2))?;
    let (mut ours, mut raw_bytes, mut raw_seconds) = (Total::default(), 0.0, 0.0);
    for _ in 0..2 {
        let round = shape.publish_for(&broker, &topic, (seconds, options.bytes_max / 2))?;
        raw.restart(round.chunk_bytes(), flush_for(durability))?;
        raw.run(seconds)?;
        raw_bytes += raw.rate().bytes_per_second * seconds;
        raw_seconds += seconds;
        ours.add(&round);
    }
    broker.close()?;
    let grouped = if batch > 1 { format!(" in batches of {batch}") } else { String::new() };
    let work = format!("{IN_FLIGHT} in flight, {durability}, {}{grouped}", size_name(bytes));
    let seconds = ours.took.as_secs_f64();
    let row =
        Row::new(work, Figure::bytes_per_second((ours.messages * bytes as u64) as f64 / seconds))
            .against(Figure::bytes_per_second(raw_bytes / raw_seconds))
            .beside("rate", Figure::per_second(ours.messages as f64 / seconds))
            .beside("cpu/msg", Figure::micros(per_message(ours.cpu, ours.messages)))
            .beside("journal", Figure::bytes_per_second(ours.journal_bytes as f64 / seconds))
            .beside("chunk", Figure::bytes(ours.chunk_bytes() as f64))
            .beside("chunks", Figure::per_second(ours.chunks as f64 / seconds))
            .beside("refused", Figure::count(ours.retries as f64));
    let has_goal = bytes == 1024 && durability == Durability::Flushed;
    Ok(if has_goal { row.goal(Goal::AtLeast(0.5)) } else { row })
}

/// What is published with many in flight.
struct Shape {
    bytes: usize,
    batch: usize,
    durability: Durability,
}

/// What that came to.
#[derive(Debug, Default)]
struct Total {
    messages: u64,
    retries: u64,
    took: Duration,
    cpu: Duration,
    journal_bytes: u64,
    chunks: u64,
}

impl Total {
    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.retries += other.retries;
        self.took += other.took;
        self.cpu += other.cpu;
        self.journal_bytes += other.journal_bytes;
        self.chunks += other.chunks;
    }

    /// The mean chunk, in whole blocks and within bounds.
    fn chunk_bytes(&self) -> usize {
        let mean = usize::try_from(self.journal_bytes / self.chunks.max(1)).unwrap_or(usize::MAX);
        mean.clamp(1, CHUNK_BYTES_MAX).next_multiple_of(BLOCK_BYTES)
    }
}

impl Shape {
    fn publish_for(
        &self,
        broker: &Broker,
        topic: &TopicName,
        (seconds, bytes_max): (f64, u64),
    ) -> Result<Total> {
        let batch = vec![message(self.bytes); self.batch];
        let publish_options = PublishOptions::default();
        let mut window = Window::new(broker, (IN_FLIGHT / self.batch).max(2));
        let limit = Duration::from_secs_f64(seconds);
        let (cpu, stats) = (cpu_time()?, broker.journal_stats());
        let mut messages = 0;
        let started = Instant::now();
        while started.elapsed() < limit && messages * (self.bytes as u64) < bytes_max {
            // Not each time to the clock, which costs as much as a tenth of a publish.
            for _ in 0..(64 / self.batch).max(1) {
                window.publish(|broker| broker.publish_batch(topic, &batch, &publish_options))?;
                messages += self.batch as u64;
            }
        }
        window.drain()?;
        let took = started.elapsed();
        let after = broker.journal_stats();
        Ok(Total {
            messages,
            retries: window.retries,
            took,
            cpu: cpu_time()?.saturating_sub(cpu),
            journal_bytes: after.bytes - stats.bytes,
            chunks: self.chunks(&after) - self.chunks(&stats),
        })
    }

    /// What the disk was asked for as one: a flush, or where there are none a write.
    fn chunks(&self, stats: &JournalStats) -> u64 {
        match self.durability {
            Durability::Flushed => stats.flushes,
            Durability::Written | Durability::Memory => stats.frames,
        }
    }
}

fn crowd((dir, raw): (&Path, &mut RawWrites), options: &Options, bytes: usize) -> Result<Row> {
    let folder = Folder::fresh(dir, "crowd")?;
    let broker = open(folder.path())?;
    let topic = topic(&broker, Durability::Flushed)?;
    let chunk_bytes = (bytes + OVERHEAD_BYTES).next_multiple_of(BLOCK_BYTES);
    raw.restart(chunk_bytes, Flush::Each)?;
    let seconds = options.seconds / f64::from(ROUNDS);
    let bounds = (seconds, options.bytes_max / u64::from(ROUNDS) / CROWD as u64);
    let (mut all, mut cpu, mut took) = (Samples::default(), Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        raw.run(seconds)?;
        let (before, started) = (cpu_time()?, Instant::now());
        let threads: Vec<Result<Samples>> = thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| publish_for(&broker, &topic, bytes, bounds));
            let handles: Vec<_> = (0..CROWD).map(spawn).collect();
            let join = |handle: thread::ScopedJoinHandle<'_, Result<Samples>>| {
                handle.join().unwrap_or_else(|_| Err("a publisher panicked".into()))
            };
            handles.into_iter().map(join).collect()
        });
        took += started.elapsed();
        cpu += cpu_time()?.saturating_sub(before);
        for samples in threads {
            all.join(samples?);
        }
    }
    broker.close()?;
    let (ours, raw) = (all.rate(bytes), raw.rate());
    let work = format!("{CROWD} threads, one at a time each, flushed, {}", size_name(bytes));
    let per_second = all.steps() as f64 / took.as_secs_f64();
    Ok(Row::new(work, Figure::per_second(per_second))
        .against(Figure::per_second(raw.per_second))
        .beside("p50", Figure::micros(ours.p50_us))
        .beside("p99", Figure::micros(ours.p99_us))
        .beside("cpu/msg", Figure::micros(per_message(cpu, all.steps()))))
}

/// How the disk is used for as much as this durability asks.
pub(crate) fn flush_for(durability: Durability) -> Flush {
    match durability {
        Durability::Flushed => Flush::Each,
        Durability::Written | Durability::Memory => Flush::Never,
    }
}

/// Microseconds of CPU time for each message.
pub(crate) fn per_message(cpu: Duration, messages: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / messages.max(1) as f64
}
