//! Publishing with acks: one at a time, and many in flight.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::hardware::{Flush, RawWrites};
use gapless_bench::samples::{Rate, Samples};
use gapless_bench::table::{Figure, Row};
use gapless_core::{Durability, TopicName, TopicSettings};

use super::client::Client;
use super::frames::Publishes;
use super::raw::Wish;
use super::server::Server;
use super::{BATCH, Cost, MESSAGE_BYTES, Meter, Options};
use crate::benches::publish::BLOCK_BYTES;
use crate::benches::size_name;
use crate::benches::store::{Folder, Result};

/// Messages in flight and messages of a frame.
const SHAPES: [(usize, usize); 4] = [(1, 1), (256, 1), (4096, 1), (4096, BATCH)];

/// Bytes that the sink takes at once.
const SINK_BYTES: usize = 256 * 1024;

/// When a flood ends.
#[derive(Clone, Copy)]
pub(in crate::benches) struct Bound {
    pub(in crate::benches) time: Duration,
    pub(in crate::benches) frames: u64,
}

impl Bound {
    pub(super) fn of(options: &Options, frame_bytes: usize) -> Self {
        let frames = (options.bytes_max / frame_bytes as u64).max(1);
        Self { time: options.limit(), frames }
    }
}

/// What a generator reaches against a thread that only reads.
///
/// # Errors
/// When a socket answers one.
pub(super) fn generator_alone(options: &Options) -> Result<Row> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut frames = Publishes::new(&TopicName::parse("bench")?, MESSAGE_BYTES, 1, 4096)?;
    let mut sent = 0;
    let started = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let sink = scope.spawn(move || -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut buffer = vec![0; SINK_BYTES];
            while stream.read(&mut buffer)? > 0 {}
            Ok(())
        });
        let mut client = Client::bare(address)?;
        while started.elapsed() < options.limit() {
            let (bytes, count) = frames.take(256);
            client.send(bytes)?;
            sent += count;
        }
        client.finish()?;
        sink.join().unwrap_or_else(|_| Err("the sink panicked".into()))
    })?;
    let per_second = sent as f64 / started.elapsed().as_secs_f64();
    let bytes = per_second * frames.frame_bytes() as f64;
    Ok(Row::new("the generator alone, into a sink, 128 B", Figure::per_second(per_second))
        .beside("bytes", Figure::bytes_per_second(bytes)))
}

/// Every case.
///
/// # Errors
/// When a server, a socket or the disk answers one.
pub(super) fn run(
    dir: &Path,
    raw: &Server,
    options: &Options,
    show: &mut impl FnMut(Row),
) -> Result<()> {
    for durability in [Durability::Memory, Durability::Written, Durability::Flushed] {
        let folder = Folder::fresh(dir, "wire-publish")?;
        let server = Server::broker(folder.path())?;
        for &size in &options.sizes {
            let topic = TopicName::parse(&format!("bench.{size}"))?;
            let settings =
                TopicSettings { durability: Some(durability), ..TopicSettings::default() };
            Client::connect(server.address())?.create(&topic, settings)?;
            let flush = (durability == Durability::Flushed)
                .then(|| flush_rate(dir, options.seconds))
                .transpose()?;
            for (in_flight, batch) in SHAPES {
                let mut frames = Publishes::new(&topic, size, batch, in_flight / batch)?;
                let case = Case { durability, size, in_flight, batch, flush };
                show(if in_flight == 1 {
                    case.one_at_a_time((&server, raw), &mut frames, options)?
                } else {
                    case.many((&server, raw), &mut frames, options)?
                });
            }
        }
        server.end()?;
    }
    Ok(())
}

fn flush_rate(dir: &Path, seconds: f64) -> Result<Rate> {
    let mut writes = RawWrites::new(dir, BLOCK_BYTES, Flush::Each)?;
    writes.run(seconds)?;
    Ok(writes.rate())
}

struct Case {
    durability: Durability,
    size: usize,
    in_flight: usize,
    batch: usize,
    /// A bare write and flush, where acks wait for one.
    flush: Option<Rate>,
}

impl Case {
    fn work(&self) -> String {
        let (durability, size) = (self.durability, size_name(self.size));
        match (self.in_flight, self.batch) {
            (1, _) => format!("ack p50, {durability}, {size}"),
            (many, 1) => format!("publish, {durability}, {size}, {many} in flight"),
            (many, batch) => {
                format!("publish, {durability}, {size}, {many} in flight, batches of {batch}")
            }
        }
    }

    fn one_at_a_time(
        &self,
        (server, raw): (&Server, &Server),
        frames: &mut Publishes,
        options: &Options,
    ) -> Result<Row> {
        let answer = Wish::Answer { bytes: frames.frame_bytes() as u64 };
        let floor = each(&mut answer.connect(raw)?, frames, options.limit())?.rate(0);
        let mut client = Client::connect(server.address())?;
        let meter = Meter::start(server)?;
        let samples = each(&mut client, frames, options.limit())?;
        let cost = meter.stop(server)?;
        let rate = samples.rate(0);
        let flush = |of: fn(&Rate) -> f64| self.flush.as_ref().map_or(0.0, of);
        let p50 = floor.p50_us + flush(|flush| flush.p50_us);
        let p99 = floor.p99_us + flush(|flush| flush.p99_us);
        let row = Row::new(self.work(), Figure::micros(rate.p50_us))
            .against(Figure::micros(p50))
            .beside("p99", Figure::micros(rate.p99_us))
            .beside("floor p99", Figure::micros(p99));
        Ok(cost.beside(row, samples.steps()))
    }

    fn many(
        &self,
        (server, raw): (&Server, &Server),
        frames: &mut Publishes,
        options: &Options,
    ) -> Result<Row> {
        let bound = Bound::of(options, frames.frame_bytes());
        let window = self.in_flight / self.batch;
        let answer = Wish::Answer { bytes: frames.frame_bytes() as u64 };
        let (floor, floor_cost) = self.flood(raw, answer.connect(raw)?, frames, window, bound)?;
        let client = Client::connect(server.address())?;
        let (messages, cost) = self.flood(server, client, frames, window, bound)?;
        let bytes = (messages * self.size as u64) as f64 / cost.took.as_secs_f64();
        let row = Row::new(self.work(), cost.per_second(messages))
            .against(floor_cost.per_second(floor))
            .beside("bytes", Figure::bytes_per_second(bytes));
        let row = cost.beside(row, messages);
        Ok(match &self.flush {
            Some(flush) => row.beside("bare flushes", Figure::per_second(flush.per_second)),
            None => row,
        })
    }

    fn flood(
        &self,
        server: &Server,
        mut client: Client,
        frames: &mut Publishes,
        window: usize,
        bound: Bound,
    ) -> Result<(u64, Cost)> {
        let meter = Meter::start(server)?;
        let sent = flood(&mut client, frames, window, bound)?;
        Ok((sent * self.batch as u64, meter.stop(server)?))
    }
}

/// One frame after another, each after the ack of the one before.
fn each(client: &mut Client, frames: &mut Publishes, limit: Duration) -> Result<Samples> {
    let mut samples = Samples::default();
    let started = Instant::now();
    while started.elapsed() < limit && !samples.is_full() {
        let begun = Instant::now();
        client.send(frames.take(1).0)?;
        client.acks()?;
        samples.note(begun.elapsed());
    }
    samples.spend(started.elapsed());
    Ok(samples)
}

/// As much as goes with so many frames in flight, until all are answered; tells how many.
pub(in crate::benches) fn flood(
    client: &mut Client,
    frames: &mut Publishes,
    window: usize,
    bound: Bound,
) -> Result<u64> {
    let started = Instant::now();
    let (mut in_flight, mut sent) = (0, 0);
    loop {
        if sent < bound.frames && started.elapsed() < bound.time {
            while in_flight < window {
                let (bytes, count) = frames.take(window - in_flight);
                client.send(bytes)?;
                in_flight += count;
                sent += count as u64;
            }
        }
        if in_flight == 0 {
            return Ok(sent);
        }
        in_flight -= client.acks()?;
    }
}
