//! What was seen of the server lately: the last reading of everything, and series of points.
//!
//! Plain code without a clock of its own: [`crate::http::page::sampler`] says when to read.
//! A *reading* brings all numbers up to date; a *tick* is a reading that also ends an
//! interval, so that what came in it is a point of every series.

use std::time::Duration;

use gapless_broker::{Broker, DeliveryCounts, FlushTimes, JournalStats, SubscriberState};

use crate::http::page::clients::Clients;
use crate::http::page::events::Events;
use crate::http::page::jobs::Jobs;
use crate::http::page::process::Process;
use crate::http::page::ring::Ring;
use crate::http::page::sampler::Sources;
use crate::http::page::topics::{RATE_POINTS, Topic, Topics};

/// Points of the charts: five minutes.
pub(crate) const HISTORY_POINTS: usize = 300;
/// Points over which flush times are counted: a minute.
const FLUSH_POINTS: usize = 60;

/// What happened between two ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Point {
    /// When it ended, in ms since 1970.
    pub(crate) end_ms: u64,
    pub(crate) seconds: f64,
    pub(crate) messages_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) messages_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) recovered_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) flush_p50_us: Option<u64>,
    pub(crate) flush_p99_us: Option<u64>,
    pub(crate) recovering: usize,
    pub(crate) memory_bytes: Option<u64>,
}

/// The last reading, and what came before it.
pub(crate) struct Sampling {
    pub(crate) topics: Topics,
    pub(crate) clients: Clients,
    pub(crate) events: Events,
    pub(crate) jobs: Jobs,
    pub(crate) journal: JournalStats,
    pub(crate) delivery: DeliveryCounts,
    pub(crate) process: Process,
    pub(crate) points: Ring<Point>,
    /// Flush times at the last ticks, so that a difference of two is a window.
    flushes: Ring<FlushTimes>,
    pub(crate) flush_times: FlushTimes,
    /// The number of ticks. It is not reset when sampling restarts.
    pub(crate) tick: u64,
    /// When the last tick and the last reading were.
    ticked_at: Option<Duration>,
    pub(crate) read_at: Duration,
    /// What the last reading took.
    pub(crate) cost: Duration,
    delivery_at_tick: DeliveryCounts,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            topics: Topics::default(),
            clients: Clients::default(),
            events: Events::default(),
            jobs: Jobs::default(),
            journal: JournalStats::default(),
            delivery: DeliveryCounts::default(),
            process: Process::default(),
            points: Ring::new(HISTORY_POINTS),
            flushes: Ring::new(FLUSH_POINTS + 1),
            flush_times: FlushTimes::default(),
            tick: 0,
            ticked_at: None,
            read_at: Duration::ZERO,
            cost: Duration::ZERO,
            delivery_at_tick: DeliveryCounts::default(),
        }
    }
}

impl Sampling {
    /// Brings everything up to date.
    pub(crate) fn read(&mut self, broker: &Broker, sources: &Sources) {
        let began = broker.monotonic();
        self.topics.read(broker.topic_counts());
        self.events.read();
        self.clients.read(broker.subscribers(), &sources.listeners, self.tick);
        self.journal = broker.journal_stats();
        self.delivery = broker.delivery_counts();
        self.flush_times = broker.flush_times();
        self.process.read(sources.data.as_deref(), self.tick);
        self.read_at = broker.monotonic();
        self.cost = self.read_at.saturating_sub(began);
    }

    /// Brings everything up to date and ends an interval.
    pub(crate) fn tick(&mut self, broker: &Broker, sources: &Sources) {
        self.events.listen(broker);
        self.read(broker, sources);
        self.tick += 1;
        let began = self.ticked_at.replace(self.read_at);
        if let Some(began) = began {
            self.topics.tick();
            let took = self.read_at.saturating_sub(began);
            self.points.push(self.point(broker.now().0, took));
            self.jobs.tick(took.as_secs_f64());
        }
        self.delivery_at_tick = self.delivery;
        self.flushes.push(self.flush_times.clone());
        let began = broker.monotonic();
        self.topics.take_sizes(broker, self.tick);
        self.cost += broker.monotonic().saturating_sub(began);
    }

    fn point(&self, end_ms: u64, took: Duration) -> Point {
        let came = self.topics.came();
        let delivered = |counts: &DeliveryCounts| counts.delivered_bytes;
        let recovered = |counts: &DeliveryCounts| counts.recovered_bytes;
        let (now, then) = (&self.delivery, &self.delivery_at_tick);
        let last = self.flushes.newest(1).next();
        let flushed = last.map(|last| self.flush_times.since(last)).unwrap_or_default();
        Point {
            end_ms,
            seconds: took.as_secs_f64(),
            messages_in: came.messages,
            bytes_in: came.bytes,
            messages_out: came.out,
            bytes_out: delivered(now).saturating_sub(delivered(then)),
            recovered_bytes: recovered(now).saturating_sub(recovered(then)),
            flushes: flushed.count(),
            flush_p50_us: flushed.quantile(0.5).map(micros),
            flush_p99_us: flushed.quantile(0.99).map(micros),
            recovering: self.clients.count(SubscriberState::Recovering),
            memory_bytes: self.process.memory_bytes,
        }
    }

    /// The flushes of the last minute, as far as it was watched; all there were otherwise.
    pub(crate) fn flushed_lately(&self) -> FlushTimes {
        match self.flushes.oldest() {
            Some(oldest) if self.points.len() > 0 => self.flush_times.since(oldest),
            _ => self.flush_times.clone(),
        }
    }

    /// A number of the last few points per second; `None` while nothing was watched.
    pub(crate) fn rate(&self, of: impl Fn(&Point) -> u64) -> Option<f64> {
        let seconds: f64 = self.points.newest(RATE_POINTS).map(|point| point.seconds).sum();
        let sum: u64 = self.points.newest(RATE_POINTS).map(of).sum();
        (seconds > 0.0).then(|| sum as f64 / seconds)
    }

    /// Messages in, bytes in and messages out per second of a topic; `None` while nothing was
    /// watched.
    pub(crate) fn rates_of(&self, topic: &Topic) -> Option<[f64; 3]> {
        let points = if topic.has_series() { RATE_POINTS } else { 1 };
        let seconds: f64 = self.points.newest(points).map(|point| point.seconds).sum();
        let lately = topic.lately(self.points.len());
        let flow = [lately.messages, lately.bytes, lately.out];
        (seconds > 0.0).then(|| flow.map(|number| number as f64 / seconds))
    }

    /// Forgets the samples, since there are no viewers any more.
    pub(crate) fn forget(&mut self) {
        let (tick, mut events) = (self.tick, std::mem::take(&mut self.events));
        events.stop();
        *self = Self { tick, events, ..Self::default() };
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
