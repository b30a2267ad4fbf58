//! Samples the state of the server for all open pages, and only while one is open.
//!
//! However many pages are open, there is one sample per interval. Sampling may take at most
//! a twentieth of one core: when there is so much to read that it takes long, it is done less
//! often. When the last one has looked away for a while it stops and forgets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless_broker::Broker;
use gapless_jobs::Leader;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::http::listener::options::HttpOptions;
use crate::http::page::sampling::Sampling;
use crate::session::sessions::Sessions;

/// A reading that took some time is followed by at least so many times as much without one.
const REST: u32 = 20;

/// What is looked at beside the broker: who is connected at each listener, the outbox and the jobs
/// of this process.
pub(crate) type Sources =
    (Vec<(&'static str, Sessions)>, Option<watch::Receiver<Value>>, Option<Leader>);

/// The one sampler of a listener.
pub(crate) struct Sampler {
    broker: Broker,
    listeners: Vec<(&'static str, Sessions)>,
    /// How the outbox stands that this process moves, if it moves one.
    outbox: Option<watch::Receiver<Value>>,
    /// Who leads jobs here, if this process does.
    jobs: Option<Leader>,
    interval: Duration,
    linger: Duration,
    sampling: Mutex<Sampling>,
    looks: Mutex<Looks>,
    wake: Notify,
    /// The number of the last tick.
    ticks: watch::Sender<u64>,
    closing: watch::Receiver<bool>,
}

#[derive(Default)]
struct Looks {
    viewers: usize,
    /// When the state was last asked for, by the broker's clock.
    last: Duration,
}

/// A viewer of the state, until it is dropped.
pub(crate) struct Viewer {
    sampler: Arc<Sampler>,
    ticks: watch::Receiver<u64>,
}

impl Viewer {
    /// Waits for the next tick.
    pub(crate) async fn tick(&mut self) {
        // The sender is in the sampler, which this viewer holds.
        let _ = self.ticks.changed().await;
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut looks = self.sampler.looks();
        looks.viewers -= 1;
        looks.last = self.sampler.broker.monotonic();
    }
}

impl Sampler {
    pub(crate) fn new(
        broker: Broker,
        (listeners, outbox, jobs): Sources,
        options: &HttpOptions,
        closing: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            broker,
            listeners,
            outbox,
            jobs,
            interval: options.sample_interval,
            linger: options.sample_linger,
            sampling: Mutex::default(),
            looks: Mutex::default(),
            wake: Notify::new(),
            ticks: watch::Sender::new(0),
            closing,
        })
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was seen last. Not for holding long.
    pub(crate) fn sampling(&self) -> MutexGuard<'_, Sampling> {
        self.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the outbox stands; null without one.
    pub(crate) fn outbox(&self) -> Value {
        self.outbox.as_ref().map_or(Value::Null, |state| state.borrow().clone())
    }

    /// Reads how jobs stand. A leader that does not answer for an interval is not waited for: what
    /// was read before stays.
    pub(crate) async fn read_jobs(&self) {
        let Some(leader) = &self.jobs else { return };
        if let Ok(Ok(overview)) = tokio::time::timeout(self.interval, leader.overview()).await {
            self.sampling().jobs.read(overview);
        }
    }

    /// How many look now.
    pub(crate) fn viewers(&self) -> usize {
        self.looks().viewers
    }

    /// Adds a viewer.
    pub(crate) fn view(self: &Arc<Self>) -> Viewer {
        self.looks().viewers += 1;
        self.looked();
        Viewer { sampler: Arc::clone(self), ticks: self.ticks.subscribe() }
    }

    /// One request for the state. May block for as long as a reading takes.
    pub(crate) fn glance(&self) {
        self.looked();
        let mut sampling = self.sampling();
        let age = self.broker.monotonic().saturating_sub(sampling.read_at);
        if sampling.points.len() == 0 || age >= sampling.cost * REST {
            sampling.read(&self.broker, &self.listeners);
        }
    }

    fn looked(&self) {
        self.looks().last = self.broker.monotonic();
        self.wake.notify_one();
    }

    /// Samples while the page is open somewhere, until the listener closes.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut closing = self.closing.clone();
        loop {
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => return,
                () = self.wake.notified() => {}
            }
            while self.is_looked_at() {
                self.read_jobs().await;
                let sampler = Arc::clone(&self);
                let ticked = tokio::task::spawn_blocking(move || sampler.tick()).await;
                // The runtime reports a panic in it; the next tick tries again.
                let cost = ticked.unwrap_or(self.interval);
                let rest = self.interval.max(cost * REST);
                let closed = closing.wait_for(|closing| *closing);
                if tokio::time::timeout(rest, closed).await.is_ok() {
                    return;
                }
            }
            let mut sampling = self.sampling();
            // Under the lock: a viewer registers first and reads then.
            if !self.is_looked_at() {
                sampling.forget();
            }
        }
    }

    /// Whether there are viewers, or were a short while ago.
    fn is_looked_at(&self) -> bool {
        let looks = self.looks();
        let away = self.broker.monotonic().saturating_sub(looks.last);
        looks.viewers > 0 || away < self.linger
    }

    fn tick(&self) -> Duration {
        let mut sampling = self.sampling();
        sampling.tick(&self.broker, &self.listeners);
        let (tick, cost) = (sampling.tick, sampling.cost);
        drop(sampling);
        self.ticks.send_replace(tick);
        cost
    }
}
