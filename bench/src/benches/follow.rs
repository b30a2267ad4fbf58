//! Following live: how much is delivered, and how long after it was due.
//!
//! One thread publishes, one drives all followers. Beside the throughput stands what the
//! disk takes in chunks of the journal's size; beside the latency, a bare write (and flush)
//! and one wake-up, which is the least that any broker with a thread of its own must pay.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::hardware::{Flush, RawWrites, wake_round_trip};
use gapless_bench::process::cpu_time;
use gapless_bench::samples::{Rate, Samples};
use gapless_bench::table::{Figure, Row, Table};
use gapless_broker::{Broker, JournalStats};
use gapless_core::{Durability, PublishOptions, TopicName};

use super::live::{UNKNOWN, drive, subscribe, touch};
use super::pace::{Pace, age};
use super::publish::{BLOCK_BYTES, CHUNK_BYTES_MAX, flush_for, per_message};
use super::store::{Folder, IN_FLIGHT, Result, message, open, topic};
use super::window::Window;

/// Bytes of a message, as in the goals of the design.
const MESSAGE_BYTES: usize = 128;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Seconds for each case.
    pub(crate) seconds: f64,
    /// A case ends when it has published so many bytes.
    pub(crate) bytes_max: u64,
    /// How many followers.
    pub(crate) followers: Vec<usize>,
    /// Whether the paced publisher never rests.
    pub(crate) spin: bool,
}

/// Every case, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new("follow live, in the process, 128 B");
    let disk = &mut RawWrites::new(dir, BLOCK_BYTES, Flush::Each)?;
    for durability in [Durability::Written, Durability::Flushed] {
        for batch in [1, 64] {
            for &followers in &options.followers {
                table.push(throughput((dir, disk), options, durability, (batch, followers))?);
            }
        }
    }
    for durability in [Durability::Written, Durability::Flushed] {
        let floor = Floor::measure(disk, durability, options.seconds / 2.0)?;
        for &followers in &options.followers {
            table.push(latency(dir, options, &floor, followers)?);
        }
    }
    Ok(table)
}

fn throughput(
    (dir, disk): (&Path, &mut RawWrites),
    options: &Options,
    durability: Durability,
    (batch, count): (usize, usize),
) -> Result<Row> {
    let folder = Folder::fresh(dir, "follow")?;
    let broker = open(folder.path())?;
    let topic = topic(&broker, durability)?;
    let mut followers = subscribe(&broker, &topic, count)?;
    let wanted = AtomicU64::new(UNKNOWN);
    let mut sum = 0;
    let (cpu, started) = (cpu_time()?, Instant::now());
    let delivered = thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let published = publish_for(&broker, &topic, batch, options);
            // Also after an error, so that the followers do not wait for ever.
            wanted.store(*published.as_ref().unwrap_or(&0), Ordering::Release);
            published
        });
        let delivered = drive(&mut followers, &wanted, |body| sum ^= touch(body));
        publisher.join().unwrap_or_else(|_| Err("the publisher panicked".into()))?;
        delivered
    })?;
    let took = started.elapsed().as_secs_f64();
    let cpu = cpu_time()?.saturating_sub(cpu);
    black_box(sum);
    drop(followers);
    let bound = disk_deliveries(disk, options, durability, (&broker.journal_stats(), delivered))?;
    broker.close()?;
    let grouped = if batch > 1 { format!(", batches of {batch}") } else { String::new() };
    let work = format!("1 to {count}, {durability}{grouped}");
    Ok(Row::new(work, Figure::per_second(delivered as f64 / took))
        .against(Figure::per_second(bound))
        .beside("published", Figure::per_second(delivered as f64 / count as f64 / took))
        .beside("bytes", Figure::bytes_per_second((delivered * MESSAGE_BYTES as u64) as f64 / took))
        .beside("cpu/delivery", Figure::micros(per_message(cpu, delivered))))
}

/// Deliveries per second if nothing but the disk took time: it writes chunks of the mean
/// size that the journal wrote, each with the share of deliveries it had.
fn disk_deliveries(
    writes: &mut RawWrites,
    options: &Options,
    durability: Durability,
    (stats, delivered): (&JournalStats, u64),
) -> Result<f64> {
    let chunks = if durability == Durability::Flushed { stats.flushes } else { stats.frames };
    let mean = usize::try_from(stats.bytes / chunks.max(1)).unwrap_or(usize::MAX);
    let chunk_bytes = mean.clamp(1, CHUNK_BYTES_MAX).next_multiple_of(BLOCK_BYTES);
    writes.restart(chunk_bytes, flush_for(durability))?;
    writes.run(options.seconds / 2.0)?;
    Ok(writes.rate().per_second * delivered as f64 / chunks.max(1) as f64)
}

/// As much as goes; tells how many messages went.
fn publish_for(broker: &Broker, topic: &TopicName, batch: usize, options: &Options) -> Result<u64> {
    let messages = vec![message(MESSAGE_BYTES); batch];
    let publish_options = PublishOptions::default();
    let mut window = Window::new(broker, (IN_FLIGHT / batch).max(2));
    let limit = Duration::from_secs_f64(options.seconds);
    let started = Instant::now();
    let mut published = 0;
    while started.elapsed() < limit && published * (MESSAGE_BYTES as u64) < options.bytes_max {
        for _ in 0..(64 / batch).max(1) {
            window.publish(|broker| broker.publish_batch(topic, &messages, &publish_options))?;
            published += batch as u64;
        }
    }
    window.drain()?;
    Ok(published)
}

/// The least that a delivery can take here.
pub(crate) struct Floor {
    durability: Durability,
    write: Rate,
    wake: Rate,
}

impl Floor {
    /// Measures the disk and the wake-ups.
    ///
    /// # Errors
    /// When the disk answers one.
    pub(crate) fn measure(
        writes: &mut RawWrites,
        durability: Durability,
        seconds: f64,
    ) -> Result<Self> {
        writes.restart(BLOCK_BYTES, flush_for(durability))?;
        writes.run(seconds)?;
        let wake = wake_round_trip(seconds);
        Ok(Self { durability, write: writes.rate(), wake })
    }

    /// A write (and flush), then one wake-up: half of one there and back.
    fn p50_us(&self) -> f64 {
        self.write.p50_us + self.wake.p50_us / 2.0
    }

    fn p99_us(&self) -> f64 {
        self.write.p99_us + self.wake.p99_us / 2.0
    }
}

fn latency(dir: &Path, options: &Options, floor: &Floor, count: usize) -> Result<Row> {
    let folder = Folder::fresh(dir, "latency")?;
    let broker = open(folder.path())?;
    let topic = topic(&broker, floor.durability)?;
    let pace = Pace {
        per_second: 1000.0,
        seconds: options.seconds,
        bytes: MESSAGE_BYTES,
        spin: options.spin,
    };
    let warm_up = Pace { seconds: 0.2, ..pace };
    paced(&broker, &topic, &warm_up, count)?;
    let cpu = cpu_time()?;
    let samples = paced(&broker, &topic, &pace, count)?;
    let cpu = cpu_time()?.saturating_sub(cpu);
    broker.close()?;
    let rate = samples.rate(MESSAGE_BYTES);
    let work = format!("latency at 1,000/s, 1 to {count}, {}", floor.durability);
    Ok(Row::new(work, Figure::micros(rate.p50_us))
        .against(Figure::micros(floor.p50_us()))
        .beside("p99", Figure::micros(rate.p99_us))
        .beside("floor p99", Figure::micros(floor.p99_us()))
        .beside("cpu/delivery", Figure::micros(per_message(cpu, samples.steps()))))
}

/// Publishes at a pace to so many followers; tells how late each delivery was.
///
/// # Errors
/// When the broker answers one.
pub(crate) fn paced(
    broker: &Broker,
    topic: &TopicName,
    pace: &Pace,
    count: usize,
) -> Result<Samples> {
    let mut followers = subscribe(broker, topic, count)?;
    let wanted = AtomicU64::new(pace.messages());
    let (epoch, mut samples) = (Instant::now(), Samples::default());
    thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let published = pace.publish(broker, topic, epoch);
            if published.is_err() {
                wanted.store(0, Ordering::Release);
            }
            published
        });
        drive(&mut followers, &wanted, |body| {
            samples.note(age(body, epoch).unwrap_or_default());
        })?;
        publisher.join().unwrap_or_else(|_| Err("the publisher panicked".into()))
    })?;
    samples.spend(epoch.elapsed());
    Ok(samples)
}
