//! Live deliveries: how many, and how long a message takes from one client to another.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use gapless_bench::samples::{Rate, Samples};
use gapless_bench::table::{Figure, Row};
use gapless_core::{Durability, Storage, TopicName, TopicSettings};
use gapless_protocol::StartFrom;

use super::client::{Client, Follower};
use super::frames::Publishes;
use super::publish::{Bound, flood};
use super::raw::Wish;
use super::server::Server;
use super::{BATCH, Cost, MESSAGE_BYTES, Meter, Options};
use crate::benches::live::UNKNOWN;
use crate::benches::store::{Folder, Result};

/// Messages in flight of the one that publishes.
const IN_FLIGHT: usize = 4096;

/// Where the messages go.
#[derive(Clone, Copy)]
enum Via {
    Topic(Durability),
    Memory,
}

impl Via {
    fn name(self) -> String {
        match self {
            Self::Topic(durability) => durability.to_string(),
            Self::Memory => "volatile".to_owned(),
        }
    }

    fn settings(self) -> TopicSettings {
        match self {
            Self::Topic(durability) => {
                TopicSettings { durability: Some(durability), ..TopicSettings::default() }
            }
            Self::Memory => {
                TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() }
            }
        }
    }
}

/// Every case.
///
/// # Errors
/// When a server or a socket answers one.
pub(super) fn run(
    dir: &Path,
    raw: &Server,
    options: &Options,
    show: &mut impl FnMut(Row),
) -> Result<()> {
    for batch in [1, BATCH] {
        for &count in &options.followers {
            let floor = relay(raw, count, batch, options)?;
            for via in [Via::Memory, Via::Topic(Durability::Written)] {
                show(throughput(dir, via, (count, batch), floor, options)?);
            }
        }
    }
    let floor = raw_round_trips(raw, options)?;
    for via in [Via::Memory, Via::Topic(Durability::Written), Via::Topic(Durability::Flushed)] {
        show(round_trip(dir, via, &floor, options)?);
    }
    Ok(())
}

/// Messages per second that a bare relay delivers.
fn relay(raw: &Server, count: usize, batch: usize, options: &Options) -> Result<f64> {
    let mut frames =
        Publishes::new(&TopicName::parse("bench")?, MESSAGE_BYTES, batch, IN_FLIGHT / batch)?;
    let joined = (0..count).map(|_| Wish::Join.connect(raw)).collect::<Result<Vec<_>>>()?;
    let mut publisher = Wish::Relay.connect(raw)?;
    let started = Instant::now();
    let delivered = thread::scope(|scope| -> Result<u64> {
        let read = |mut client: Client| -> Result<u64> {
            let mut bytes = 0;
            loop {
                match client.drop_bytes()? {
                    0 => return Ok(bytes),
                    read => bytes += read as u64,
                }
            }
        };
        let readers: Vec<_> =
            joined.into_iter().map(|client| scope.spawn(move || read(client))).collect();
        while started.elapsed() < options.limit() {
            publisher.send(frames.take((256 / batch).max(1)).0)?;
        }
        publisher.finish()?;
        let mut delivered = 0;
        for reader in readers {
            delivered += reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))?;
        }
        Ok(delivered)
    })?;
    let messages = delivered as f64 / frames.frame_bytes() as f64 * batch as f64;
    Ok(messages / started.elapsed().as_secs_f64())
}

fn throughput(
    dir: &Path,
    via: Via,
    (count, batch): (usize, usize),
    floor: f64,
    options: &Options,
) -> Result<Row> {
    let folder = Folder::fresh(dir, "wire-live")?;
    let server = Server::broker(folder.path())?;
    let topic = TopicName::parse("bench")?;
    let mut publisher = Client::connect(server.address())?;
    publisher.create(&topic, via.settings())?;
    let followers = (0..count).map(|_| following(&server, &topic)).collect::<Result<Vec<_>>>()?;
    let mut frames = Publishes::new(&topic, MESSAGE_BYTES, batch, IN_FLIGHT / batch)?;
    let bound = Bound::of(options, frames.frame_bytes());
    let wanted = &AtomicU64::new(UNKNOWN);
    let meter = Meter::start(&server)?;
    let (published, read) = thread::scope(|scope| -> Result<_> {
        let read = |(mut client, mut follower): (Client, Follower)| -> Result<Follower> {
            while follower.seq < wanted.load(Ordering::Acquire) {
                client.deliveries(&mut follower, |_| {})?;
            }
            Ok(follower)
        };
        let readers: Vec<_> =
            followers.into_iter().map(|each| scope.spawn(move || read(each))).collect();
        let sent = flood(&mut publisher, &mut frames, IN_FLIGHT / batch, bound)?;
        // How many there will be is not known before they are out; the last frame tells.
        let published = (sent + 1) * batch as u64;
        wanted.store(published, Ordering::Release);
        let last = Bound { frames: 1, ..bound };
        flood(&mut publisher, &mut frames, 1, last)?;
        let mut read = Vec::new();
        for reader in readers {
            read.push(reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))?);
        }
        Ok((published, read))
    })?;
    let cost = meter.stop(&server)?;
    server.end()?;
    let delivered: u64 = read.iter().map(|follower| follower.messages).sum();
    let missed: u64 = read.iter().map(|follower| follower.missed).sum();
    let wire_bytes: u64 = read.iter().map(|follower| follower.wire_bytes).sum();
    let grouped = if batch > 1 { format!(", batches of {batch}") } else { String::new() };
    let work = format!("live 1 to {count}, {}{grouped}", via.name());
    Ok(throughput_row(work, &cost, (published, delivered), floor)
        .beside("wire", Figure::bytes_per_second(wire_bytes as f64 / cost.took.as_secs_f64()))
        .beside("missed", Figure::count(missed as f64)))
}

fn throughput_row(
    work: String,
    cost: &Cost,
    (published, delivered): (u64, u64),
    floor: f64,
) -> Row {
    let row = Row::new(work, cost.per_second(delivered)).against(Figure::per_second(floor));
    cost.beside(row.beside("published", cost.per_second(published)), delivered)
}

/// A client that follows from now on.
pub(super) fn following(server: &Server, topic: &TopicName) -> Result<(Client, Follower)> {
    let mut client = Client::connect(server.address())?;
    let follower = client.follow(topic, StartFrom::Now)?;
    Ok((client, follower))
}

fn raw_round_trips(raw: &Server, options: &Options) -> Result<Rate> {
    let mut frames = Publishes::new(&TopicName::parse("bench")?, MESSAGE_BYTES, 1, 1)?;
    let mut reader = Wish::Join.connect(raw)?;
    let mut publisher = Wish::Relay.connect(raw)?;
    let bytes = frames.frame_bytes();
    let samples = sample(
        options,
        || {
            publisher.send(frames.take(1).0)?;
            reader.drop_exactly(bytes)
        },
        || Ok(()),
    )?;
    Ok(samples.rate(0))
}

fn round_trip(dir: &Path, via: Via, floor: &Rate, options: &Options) -> Result<Row> {
    let folder = Folder::fresh(dir, "wire-trip")?;
    let server = Server::broker(folder.path())?;
    let topic = TopicName::parse("bench")?;
    let publisher = std::cell::RefCell::new(Client::connect(server.address())?);
    publisher.borrow_mut().create(&topic, via.settings())?;
    let (mut client, mut follower) = following(&server, &topic)?;
    let mut frames = Publishes::new(&topic, MESSAGE_BYTES, 1, 1)?;
    let meter = Meter::start(&server)?;
    let there = || {
        publisher.borrow_mut().send(frames.take(1).0)?;
        let before = follower.seq;
        while follower.seq == before {
            client.deliveries(&mut follower, |_| {})?;
        }
        Ok(())
    };
    // The ack is taken too, but is not what is measured.
    let samples = sample(options, there, || publisher.borrow_mut().acks().map(|_| ()))?;
    let cost = meter.stop(&server)?;
    server.end()?;
    let rate = samples.rate(0);
    let row = Row::new(format!("round trip p50, {}", via.name()), Figure::micros(rate.p50_us))
        .against(Figure::micros(floor.p50_us))
        .beside("p99", Figure::micros(rate.p99_us))
        .beside("floor p99", Figure::micros(floor.p99_us));
    Ok(cost.beside(row, samples.steps()))
}

/// Times a step over and over; what is done after each is not timed.
fn sample(
    options: &Options,
    mut step: impl FnMut() -> Result<()>,
    mut after: impl FnMut() -> Result<()>,
) -> Result<Samples> {
    let mut samples = Samples::default();
    let started = Instant::now();
    while started.elapsed() < options.limit() && !samples.is_full() {
        let begun = Instant::now();
        step()?;
        samples.note(begun.elapsed());
        after()?;
    }
    samples.spend(started.elapsed());
    Ok(samples)
}
