//! Publishing as fast as it goes, and one at a time.

use std::time::{Duration, Instant};

use super::link::{Link, Ring, Seen};
use super::systems::{Store, System};
use crate::benches::store::Result;

/// Bytes written at once, if one publish is not larger.
const WRITE_BYTES: usize = 64 * 1024;

/// When a flood ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) time: Duration,
    pub(super) publishes: u64,
}

impl Bound {
    pub(super) fn time(time: Duration) -> Self {
        Self { time, publishes: u64::MAX }
    }
}

/// How many publishes may be without answer, and how few there are when more are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) most: usize,
    pub(super) refill_at: usize,
}

impl Window {
    /// As many as make a pipe full, for servers that answer though no client waits for it.
    pub(super) fn wide(ring: &Ring) -> Self {
        const BYTES: usize = 2 * 1024 * 1024;
        let most = (BYTES / ring.frame_bytes()).clamp(2, ring.count());
        Self { most, refill_at: most / 2 }
    }

    /// Exactly so many at each time.
    pub(super) fn exactly(most: usize) -> Self {
        Self { most, refill_at: most - 1 }
    }
}

/// A publisher on a link.
pub(super) struct Publisher<'a> {
    pub(super) system: &'a dyn System,
    pub(super) store: Store,
    pub(super) link: Link,
    pub(super) ring: Ring,
    in_flight: usize,
    /// When an answer came last, while some were awaited, and the longest time without one.
    last_answer: Option<Instant>,
    longest_gap: Duration,
}

impl<'a> Publisher<'a> {
    pub(super) fn new(system: &'a dyn System, store: Store, link: Link, ring: Ring) -> Self {
        let (last_answer, longest_gap) = (None, Duration::ZERO);
        Self { system, store, link, ring, in_flight: 0, last_answer, longest_gap }
    }

    /// The longest time between two reads of answers, from the first one on.
    pub(super) fn longest_gap(&self) -> Duration {
        self.longest_gap
    }

    /// Publishes as much as goes until the bound, and waits for all answers; tells how many
    /// messages that were.
    pub(super) fn flood(&mut self, window: Window, bound: Bound) -> Result<u64> {
        let started = Instant::now();
        let mut sent = 0;
        while sent < bound.publishes && started.elapsed() < bound.time {
            let left = usize::try_from(bound.publishes - sent).unwrap_or(usize::MAX);
            sent += self.write(window, left)? as u64;
        }
        self.settle()?;
        Ok(sent * self.ring.batch)
    }

    /// One write, after making room for it in the window; tells how many publishes it was.
    pub(super) fn write(&mut self, window: Window, most: usize) -> Result<usize> {
        let answers = self.system.answers(self.store);
        if answers && self.in_flight >= window.most {
            while self.in_flight > window.refill_at {
                self.receive()?;
            }
        }
        let per_write = (WRITE_BYTES / self.ring.frame_bytes()).max(1);
        let room = if answers { window.most - self.in_flight } else { usize::MAX };
        let (bytes, count) = self.ring.take(per_write.min(room).min(most));
        self.link.send(bytes)?;
        if answers {
            self.in_flight += count;
        }
        Ok(count)
    }

    /// Waits until the server has dealt with all that was sent.
    pub(super) fn settle(&mut self) -> Result<()> {
        while self.in_flight > 0 {
            self.receive()?;
        }
        if self.system.answers(self.store) { Ok(()) } else { self.system.barrier(&mut self.link) }
    }

    fn receive(&mut self) -> Result<()> {
        let mut seen = Seen::default();
        self.link.receive(&mut seen)?;
        self.in_flight = self
            .in_flight
            .checked_sub(usize::try_from(seen.answers)?)
            .ok_or("more answers than publishes")?;
        let now = Instant::now();
        let gap = self.last_answer.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.longest_gap = self.longest_gap.max(gap);
        Ok(())
    }

    /// One publish after another, each after the answer of the one before; tells how many
    /// microseconds each took.
    pub(super) fn one_at_a_time(&mut self, time: Duration) -> Result<Vec<f64>> {
        let started = Instant::now();
        let mut micros = Vec::new();
        let mut before = started;
        while before - started < time || micros.is_empty() {
            let (bytes, _) = self.ring.take(1);
            self.link.send(bytes)?;
            self.link.answers(1)?;
            let now = Instant::now();
            micros.push((now - before).as_secs_f64() * 1e6);
            before = now;
        }
        Ok(micros)
    }
}
