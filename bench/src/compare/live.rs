//! Live deliveries: as many as go without loss, and how long there and back takes.
//!
//! The publisher stays at most a few megabytes ahead of the slowest subscriber, because what
//! a server does when a subscriber cannot follow (drop, cut off, hold the publisher) differs, and
//! would be measured instead. One thread publishes and one reads all subscribers, always the
//! one that is furthest behind: so two threads suffice, and it never waits for what is not on
//! its way.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Link, Seen, WAIT_MAX};
use super::load::{Publisher, Window};
use super::publish::{BATCH, publisher};
use super::report::{Counts, Measured};
use super::run::{Meter, Run, Stage};
use super::stats::per_mille;
use super::systems::{Contender, Store, System};
use crate::benches::size_name;
use crate::benches::store::Result;

/// Bytes of a message, as in the goals of the design.
pub(super) const MESSAGE_BYTES: usize = 128;

/// How far a publisher may be ahead of the slowest subscriber: less than any server here
/// allows before it drops.
const AHEAD_BYTES: usize = 2 * 1024 * 1024;

/// The same for all subscribers together: what waits for many is bounded too.
const AHEAD_OF_ALL_BYTES: usize = 256 * 1024 * 1024;

/// Stands for "not known yet" where a number of messages is meant.
const UNKNOWN: u64 = u64::MAX;

/// Every shape.
pub(super) fn shapes(run: &mut Run<'_>) -> Result<()> {
    for (publishers, each, bytes) in run.plan.shapes.clone() {
        let size = size_name(bytes);
        let title = format!("live {publishers} → {}, {size}", publishers * each);
        run.alternate(
            (&title, run.plan.rounds),
            Contender::all(Store::Live, Some(BATCH)),
            |run, contender| {
                let stage = run.stage(contender)?;
                let shape = (publishers, each, bytes);
                let measured = deliver(&stage, contender, shape, run.plan.time)?;
                run.add("live", (&title, Counts::PerSecond), contender, measured);
                Ok(())
            },
        )?;
    }
    Ok(())
}

/// How far the slowest subscriber is, for the publisher to wait for.
#[derive(Default)]
struct Gate {
    received: AtomicU64,
    wanted: Mutex<u64>,
    passed: Condvar,
}

impl Gate {
    /// Tells how far the slowest is.
    fn raise(&self, received: u64) {
        self.received.store(received, Ordering::Release);
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted != 0 && *wanted <= received {
            self.passed.notify_one();
        }
    }

    /// Waits until all have received so many.
    fn wait(&self, wanted: u64) -> Result<()> {
        if self.received.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let mut waits = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        *waits = wanted;
        let behind = |_: &mut u64| self.received.load(Ordering::Acquire) < wanted;
        let (mut waits, late) = self
            .passed
            .wait_timeout_while(waits, WAIT_MAX, behind)
            .unwrap_or_else(PoisonError::into_inner);
        *waits = 0;
        if late.timed_out() {
            Err("subscribers do not get what was published".into())
        } else {
            Ok(())
        }
    }
}

pub(super) fn deliver(
    stage: &Stage,
    contender: &Contender,
    (publishers, each, bytes): (usize, usize, usize),
    time: Duration,
) -> Result<Measured> {
    let (system, address) = (contender.who.system(), stage.server.address());
    let topics: Vec<String> = (0..publishers).map(|number| format!("live.{number}")).collect();
    let publishing = topics.iter().map(|topic| publisher(address, contender, bytes, topic));
    let mut publishing = publishing.collect::<Result<Vec<_>>>()?;
    let mut following = Vec::new();
    for topic in topics.iter().flat_map(|topic| vec![topic; each]) {
        following.push(follower(system, address, topic)?);
    }
    let meter = Meter::start(&stage.server)?;
    let delivered = flow(&mut publishing, following, time)?;
    meter.rate(&stage.server, delivered)
}

/// A link that follows a topic.
pub(super) fn follower(system: &dyn System, address: SocketAddr, topic: &str) -> Result<Link> {
    let mut link = system.connect(address)?;
    system.follow(&mut link, topic)?;
    Ok(link)
}

/// As much as goes without loss; tells how many messages were delivered, when all were.
pub(super) fn flow(
    publishing: &mut [Publisher<'_>],
    following: Vec<Link>,
    time: Duration,
) -> Result<u64> {
    let mut following: Vec<(Link, u64)> = following.into_iter().map(|link| (link, 0)).collect();
    let ahead = AHEAD_BYTES.min(AHEAD_OF_ALL_BYTES / following.len().max(1));
    let (gate, total) = (Gate::default(), AtomicU64::new(UNKNOWN));
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&mut following, &gate, &total));
        // An error of the reader says more than that the publisher waits for it in vain.
        let published = publish_all(publishing, (&gate, ahead), &total, time);
        let read = reader.join().unwrap_or_else(|_| Err("the reader panicked".into()))?;
        published.map(|()| read)
    })
}

/// Publishes a write's worth on each link in turn until time is over.
fn publish_all(
    publishers: &mut [Publisher<'_>],
    (gate, ahead_bytes): (&Gate, usize),
    total: &AtomicU64,
    time: Duration,
) -> Result<()> {
    let ring = &publishers[0].ring;
    let ahead = (ahead_bytes / ring.frame_bytes()).max(2) as u64 * ring.batch;
    let window = Window::wide(ring);
    let per_turn = (window.most / 4).min(ahead_bytes / ring.frame_bytes() / 2).max(1);
    let started = Instant::now();
    let mut published = 0;
    let mut is_last = false;
    while !is_last {
        gate.wait((published + per_turn as u64 * publishers[0].ring.batch).saturating_sub(ahead))?;
        is_last = started.elapsed() >= time;
        published += per_turn as u64 * publishers[0].ring.batch;
        if is_last {
            // Told before the last ones go out, so that no subscriber waits for more behind them.
            total.store(published, Ordering::Release);
        }
        for publisher in &mut *publishers {
            let mut left = per_turn;
            while left > 0 {
                left -= publisher.write(window, left)?;
            }
        }
    }
    publishers.iter_mut().try_for_each(Publisher::settle)
}

/// Reads until each link got as many as there are, which becomes known at the end.
fn read_all(links: &mut [(Link, u64)], gate: &Gate, total: &AtomicU64) -> Result<u64> {
    loop {
        let slowest = links.iter_mut().min_by_key(|(_, received)| *received);
        let (link, received) = slowest.ok_or("there is no follower")?;
        if *received >= total.load(Ordering::Acquire) {
            return Ok(links.iter().map(|(_, received)| received).sum());
        }
        let mut seen = Seen::default();
        link.receive(&mut seen)?;
        *received += seen.messages;
        gate.raise(links.iter().map(|(_, received)| *received).min().unwrap_or_default());
    }
}

/// One message to another client and one back, one at a time.
pub(super) fn round_trips(run: &mut Run<'_>) -> Result<()> {
    let what = format!("round trip, {}", size_name(MESSAGE_BYTES));
    let rounds = run.plan.rounds;
    run.alternate((&what, rounds), Contender::all_and_awake(Store::Live), |run, contender| {
        let stage = run.stage(contender)?;
        let meter = Meter::start(&stage.server)?;
        let mut micros = there_and_back(&stage, contender, run.plan.time * 2)?;
        let cost = meter.cost(&stage.server, micros.len() as u64)?;
        micros.sort_unstable_by(f64::total_cmp);
        for (name, mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
            let measured = Measured { figure: per_mille(&micros, mille), ..cost };
            let title = format!("{what}: {name}");
            run.add("round-trip", (&title, Counts::Micros), contender, measured);
        }
        Ok(())
    })
}

/// One who publishes on one topic and follows another.
struct Talker<'a> {
    publisher: Publisher<'a>,
    /// Where one connection cannot do both.
    follower: Option<Link>,
}

impl Talker<'_> {
    fn new(stage: &Stage, contender: &Contender, to: &str, from: &str) -> Result<Self> {
        let system: &dyn System = contender.who.system();
        let address = stage.server.address();
        let mut publisher = publisher(address, contender, MESSAGE_BYTES, to)?;
        system.create(&mut publisher.link, from, contender.store)?;
        let follower = if system.is_two_way() {
            system.follow(&mut publisher.link, from)?;
            None
        } else {
            Some(follower(system, address, from)?)
        };
        Ok(Self { publisher, follower })
    }

    fn send(&mut self) -> Result<()> {
        let (bytes, _) = self.publisher.ring.take(1);
        self.publisher.link.send(bytes)
    }

    /// Waits for a message. Answers to what was sent are taken on the way.
    fn receive(&mut self) -> Result<()> {
        let mut seen = Seen::default();
        let link = self.follower.as_mut().unwrap_or(&mut self.publisher.link);
        while seen.messages == 0 {
            link.receive(&mut seen)?;
        }
        Ok(())
    }

    /// Takes the answer to what was sent, where it comes on a connection of its own.
    fn take_answer(&mut self) -> Result<()> {
        if self.follower.is_some() { self.publisher.link.answers(1) } else { Ok(()) }
    }
}

fn there_and_back(stage: &Stage, contender: &Contender, time: Duration) -> Result<Vec<f64>> {
    let mut asks = Talker::new(stage, contender, "there", "back")?;
    let mut echoes = Talker::new(stage, contender, "back", "there")?;
    let total = AtomicU64::new(UNKNOWN);
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<()> {
            let mut done = 0;
            while done < total.load(Ordering::Acquire) {
                echoes.receive()?;
                // Counted before the answer goes out: the other side may tell the end then.
                done += 1;
                echoes.send()?;
                echoes.take_answer()?;
            }
            Ok(())
        });
        let mut micros = Vec::new();
        let started = Instant::now();
        let mut is_last = false;
        while !is_last {
            is_last = started.elapsed() >= time;
            if is_last {
                total.store(micros.len() as u64 + 1, Ordering::Release);
            }
            let before = Instant::now();
            asks.send()?;
            asks.receive()?;
            micros.push(before.elapsed().as_secs_f64() * 1e6);
            asks.take_answer()?;
        }
        echo.join().unwrap_or_else(|_| Err("the echo panicked".into()))?;
        Ok(micros)
    })
}
