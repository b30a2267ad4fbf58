//! Reading what is stored, and what that does to those who are live.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::samples::Samples;
use gapless_bench::table::{Figure, Goal, Row};
use gapless_core::{Durability, TopicName, TopicSettings};
use gapless_protocol::{Kind, StartFrom};

use super::client::Client;
use super::frames::{Publishes, empty, publish_one};
use super::live::following;
use super::publish::{Bound, flood};
use super::raw::Wish;
use super::server::Server;
use super::{BATCH, MESSAGE_BYTES, Meter, Options, Part};
use crate::benches::pace::{Pace, age};
use crate::benches::store::{Folder, Result};

/// Who recovers at the same time.
const READERS: usize = 4;

/// Rounds alone, and as many beside readers: they take turns, to see the same weather.
const ROUNDS: u32 = 2;

/// A round of live messages has so many times the seconds of a case: a p99 needs many.
const LIVE_CASES: f64 = 2.0;

/// How much later live messages may be while others recover.
const LATER_GOAL: f64 = 1.5;

/// Messages in flight while a store is filled.
const FILL_IN_FLIGHT: usize = 4096;

/// Filling takes no longer than this.
const FILL_TIME: Duration = Duration::from_secs(600);

/// Bytes that a bare reader is sent before it begins again.
const RAW_SOURCE_BYTES: u64 = 256 * 1024 * 1024;

/// Bytes of a bare message around its body, about as many as of a publish.
const RAW_EXTRA_BYTES: usize = 12;

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
    let folder = Folder::fresh(dir, "wire-stored")?;
    let server = Server::broker(folder.path())?;
    let mut stored = TopicName::parse("stored")?;
    for batch in [BATCH, 1] {
        if batch == BATCH && !options.has(Part::CatchUp) {
            continue;
        }
        stored = TopicName::parse(&format!("stored.{batch}"))?;
        let count = fill(&server, &stored, batch, options.messages)?;
        if options.has(Part::CatchUp) {
            show(catch_up((&server, raw), &stored, batch, count)?);
        }
    }
    if options.has(Part::Recover) {
        let live = TopicName::parse("live")?;
        Client::connect(server.address())?.create(&live, written())?;
        show(beside_recovery(&server, (&live, &stored), options)?);
        show(raw_beside_sources(raw, options)?);
    }
    server.end()
}

fn written() -> TopicSettings {
    TopicSettings { durability: Some(Durability::Written), ..TopicSettings::default() }
}

/// Stores whole batches; tells how many messages that came to.
fn fill(server: &Server, topic: &TopicName, batch: usize, messages: u64) -> Result<u64> {
    let mut client = Client::connect(server.address())?;
    client.create(topic, written())?;
    let window = FILL_IN_FLIGHT / batch;
    let mut frames = Publishes::new(topic, MESSAGE_BYTES, batch, window)?;
    let bound = Bound { time: FILL_TIME, frames: messages.div_ceil(batch as u64) };
    Ok(flood(&mut client, &mut frames, window, bound)? * batch as u64)
}

fn catch_up(
    (server, raw): (&Server, &Server),
    topic: &TopicName,
    batch: usize,
    count: u64,
) -> Result<Row> {
    let mut client = Client::connect(server.address())?;
    let meter = Meter::start(server)?;
    let mut follower = client.follow(topic, StartFrom::Beginning)?;
    while follower.seq < count {
        client.deliveries(&mut follower, |_| {})?;
    }
    let cost = meter.stop(server)?;
    if follower.messages != count {
        return Err(format!("{count} were stored, {} came", follower.messages).into());
    }
    let mut source = Wish::Source { bytes: follower.wire_bytes }.connect(raw)?;
    let started = Instant::now();
    while source.drop_bytes()? > 0 {}
    let floor = started.elapsed().as_secs_f64();
    let wire_bytes = follower.wire_bytes as f64;
    let how = if batch > 1 { format!("batches of {batch}") } else { "one by one".to_owned() };
    let work = format!("catch-up of {count}, 128 B, published {how}");
    let row = Row::new(work, cost.per_second(count))
        .against(Figure::per_second(count as f64 / floor))
        .beside("wire", Figure::bytes_per_second(wire_bytes / cost.took.as_secs_f64()))
        .beside("bare", Figure::bytes_per_second(wire_bytes / floor));
    Ok(cost.beside(row, count))
}

fn pace(options: &Options) -> Pace {
    let (bytes, spin) = (MESSAGE_BYTES, options.spin);
    Pace { per_second: 1000.0, seconds: options.seconds * LIVE_CASES, bytes, spin }
}

fn beside_recovery(
    server: &Server,
    (live, stored): (&TopicName, &TopicName),
    options: &Options,
) -> Result<Row> {
    let recovered = AtomicU64::new(0);
    let recover = |stop: &AtomicBool| -> Result<()> {
        while !stop.load(Ordering::Acquire) {
            let mut client = Client::connect(server.address())?;
            let mut follower = client.follow(stored, StartFrom::Beginning)?;
            while !follower.is_live && !stop.load(Ordering::Acquire) {
                client.deliveries(&mut follower, |_| {})?;
            }
            recovered.fetch_add(follower.messages, Ordering::Relaxed);
        }
        Ok(())
    };
    let paced = |pace: &Pace| paced(server, live, pace);
    let rounds = Rounds::measure(&pace(options), paced, recover)?;
    let per_second = recovered.into_inner() as f64 / rounds.beside_took.as_secs_f64();
    Ok(rounds
        .row("live p99 at 1,000/s while 4 clients recover, written")
        .goal(Goal::AtMost(LATER_GOAL))
        .beside("recovered", Figure::per_second(per_second)))
}

/// The same through a bare relay, beside bare readers: what the machine makes of it.
fn raw_beside_sources(raw: &Server, options: &Options) -> Result<Row> {
    let bytes = AtomicU64::new(0);
    let read = |stop: &AtomicBool| -> Result<()> {
        while !stop.load(Ordering::Acquire) {
            let mut client = Wish::Source { bytes: RAW_SOURCE_BYTES }.connect(raw)?;
            loop {
                let read = client.drop_bytes()? as u64;
                bytes.fetch_add(read, Ordering::Relaxed);
                if read == 0 || stop.load(Ordering::Acquire) {
                    break;
                }
            }
        }
        Ok(())
    };
    let rounds = Rounds::measure(&pace(options), |pace| raw_paced(raw, pace), read)?;
    let per_second = bytes.into_inner() as f64 / rounds.beside_took.as_secs_f64();
    Ok(rounds
        .row("the same through a bare relay, beside 4 bare readers")
        .beside("read", Figure::bytes_per_second(per_second)))
}

/// How late messages were, alone and beside others.
struct Rounds {
    alone: Samples,
    beside: Samples,
    beside_took: Duration,
}

impl Rounds {
    fn measure(
        pace: &Pace,
        paced: impl Fn(&Pace) -> Result<Samples>,
        read: impl Fn(&AtomicBool) -> Result<()> + Sync,
    ) -> Result<Self> {
        paced(&Pace { seconds: 0.2, ..*pace })?;
        let (alone, beside) = (Samples::default(), Samples::default());
        let mut rounds = Self { alone, beside, beside_took: Duration::ZERO };
        for _ in 0..ROUNDS {
            rounds.alone.join(paced(pace)?);
            let started = Instant::now();
            let stop = AtomicBool::new(false);
            let samples = thread::scope(|scope| {
                let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(|| read(&stop))).collect();
                let samples = paced(pace);
                stop.store(true, Ordering::Release);
                for reader in readers {
                    reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))?;
                }
                samples
            })?;
            rounds.beside_took += started.elapsed();
            rounds.beside.join(samples);
        }
        Ok(rounds)
    }

    fn row(&self, work: &str) -> Row {
        let (alone, beside) = (self.alone.rate(0), self.beside.rate(0));
        Row::new(work, Figure::micros(beside.p99_us))
            .against(Figure::micros(alone.p99_us))
            .beside("p50", Figure::micros(beside.p50_us))
            .beside("p50 alone", Figure::micros(alone.p50_us))
    }
}

/// Publishes at a pace to one follower; tells how late each delivery was. The publisher does
/// not wait for its acks: a message is due when it is due, whatever became of the one before.
fn paced(server: &Server, live: &TopicName, pace: &Pace) -> Result<Samples> {
    let mut publisher = Client::connect(server.address())?;
    let mut acked = publisher.reader()?;
    let (mut client, mut follower) = following(server, live)?;
    let epoch = Instant::now();
    let mut samples = Samples::default();
    thread::scope(|scope| {
        let reader = scope.spawn(move || -> Result<Samples> {
            while follower.messages < pace.messages() {
                client.deliveries(&mut follower, |batch| note(&mut samples, batch, epoch))?;
            }
            Ok(samples)
        });
        let acks = scope.spawn(move || -> Result<()> {
            let mut missing = pace.messages();
            while missing > 0 {
                missing = missing.saturating_sub(acked.acks()? as u64);
            }
            Ok(())
        });
        pace.each(epoch, |body| Ok(publisher.send(&publish_one(live, body)?)?))?;
        acks.join().unwrap_or_else(|_| Err("the reader of acks panicked".into()))?;
        reader.join().unwrap_or_else(|_| Err("the reader panicked".into()))
    })
}

fn raw_paced(raw: &Server, pace: &Pace) -> Result<Samples> {
    let mut reader = Wish::Join.connect(raw)?;
    let mut publisher = Wish::Relay.connect(raw)?;
    let epoch = Instant::now();
    let mut samples = Samples::default();
    thread::scope(|scope| {
        let reader = scope.spawn(move || -> Result<Samples> {
            while samples.steps() < pace.messages() {
                let open = reader.frames(|seen| {
                    note(&mut samples, seen.bytes, epoch);
                    Ok(())
                })?;
                if !open {
                    return Err("the relay closed the connection".into());
                }
            }
            Ok(samples)
        });
        pace.each(epoch, |body| {
            let mut frame = empty(Kind::Messages, RAW_EXTRA_BYTES + body.len());
            let at = frame.len() - body.len();
            frame[at..].copy_from_slice(&body);
            Ok(publisher.send(&frame)?)
        })?;
        reader.join().unwrap_or_else(|_| Err("the reader panicked".into()))
    })
}

/// The body is the end of what came.
fn note(samples: &mut Samples, bytes: &[u8], epoch: Instant) {
    let body = bytes.len().checked_sub(MESSAGE_BYTES).and_then(|at| bytes.get(at..));
    samples.note(body.and_then(|body| age(body, epoch)).unwrap_or_default());
}
