//! Samples the state of the server for all open pages, and a few totals while none is open.
//!
//! However many pages are open, there is one sample per interval. Sampling may take at most
//! a twentieth of one core: when there is so much to read that it takes long, it is done less
//! often. When the last one has looked away for a while it stops and forgets; only the steps of the
//! last hour go on ([`timeline`](crate::http::page::timeline)), from totals.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless_broker::Broker;
use gapless_jobs::Leader;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::http::listener::options::HttpOptions;
use crate::http::page::sampling::Sampling;
use crate::http::page::timeline::Timeline;
use crate::session::sessions::Sessions;

/// A reading that took some time is followed by at least so many times as much without one.
const REST: u32 = 20;

/// What is looked at beside the broker.
pub(crate) struct Sources {
    /// Who is connected at each listener.
    pub(crate) listeners: Vec<(&'static str, Sessions)>,
    /// How the outbox stands that this process moves, if it moves one.
    pub(crate) outbox: Option<watch::Receiver<Value>>,
    /// Who leads jobs here, if this process does.
    pub(crate) jobs: Option<Leader>,
    /// The data folder, for its disk.
    pub(crate) data: Option<PathBuf>,
}

/// The one sampler of a listener.
pub(crate) struct Sampler {
    broker: Broker,
    sources: Sources,
    interval: Duration,
    linger: Duration,
    /// How long a step of the hour takes.
    step: Duration,
    sampling: Mutex<Sampling>,
    timeline: Mutex<Timeline>,
    looks: Mutex<Looks>,
    wake: Notify,
    /// The number of the last tick.
    ticks: watch::Sender<u64>,
    closing: watch::Receiver<bool>,
}

#[derive(Default)]
struct Looks {
    viewers: usize,
    /// When the state was last asked for, by the broker's clock; never so far if there is nothing.
    last: Option<Duration>,
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
        looks.last = Some(self.sampler.broker.monotonic());
    }
}

impl Sampler {
    pub(crate) fn new(
        broker: Broker,
        sources: Sources,
        options: &HttpOptions,
        closing: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            broker,
            sources,
            interval: options.sample_interval,
            linger: options.sample_linger,
            step: options.history_step,
            sampling: Mutex::default(),
            timeline: Mutex::default(),
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

    /// The last hour, as JSON.
    pub(crate) fn history(&self) -> Value {
        Value::Object(self.timeline().shown(self.step))
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clients of each listener.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Sessions> {
        self.sources.listeners.iter().map(|(_, sessions)| sessions)
    }

    /// How the outbox stands; null without one.
    pub(crate) fn outbox(&self) -> Value {
        self.sources.outbox.as_ref().map_or(Value::Null, |state| state.borrow().clone())
    }

    /// Reads how jobs stand. A leader that does not answer for an interval is not waited for: what
    /// was read before stays.
    pub(crate) async fn read_jobs(&self) {
        let Some(leader) = &self.sources.jobs else { return };
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
            sampling.read(&self.broker, &self.sources);
        }
    }

    fn looked(&self) {
        self.looks().last = Some(self.broker.monotonic());
        self.wake.notify_one();
    }

    /// Samples until the listener closes: everything while a page is open, the steps of the hour
    /// always.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut closing = self.closing.clone();
        let mut step_due = Duration::ZERO;
        loop {
            let is_looked_at = self.is_looked_at();
            let rest = if is_looked_at {
                self.read_jobs().await;
                // A reading that panicked is tried again at the next tick.
                let cost = self.blocking(Self::tick).await.unwrap_or(self.interval);
                self.interval.max(cost * REST)
            } else {
                self.forget();
                self.step
            };
            if self.broker.monotonic() >= step_due {
                self.blocking(|sampler| sampler.timeline().step(&sampler.broker)).await;
                step_due = self.broker.monotonic() + self.step;
            }
            let rest = rest.min(step_due.saturating_sub(self.broker.monotonic()));
            let woken = async {
                tokio::select! {
                    _ = closing.wait_for(|closing| *closing) => true,
                    () = self.wake.notified(), if !is_looked_at => false,
                }
            };
            if tokio::time::timeout(rest, woken).await == Ok(true) {
                return;
            }
        }
    }

    /// Runs what may block. The runtime reports a panic in it.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let sampler = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&sampler)).await.ok()
    }

    /// Forgets what was sampled for viewers, since there are none.
    fn forget(&self) {
        let mut sampling = self.sampling();
        // Under the lock: a viewer registers first and reads then.
        if !self.is_looked_at() {
            sampling.forget();
        }
    }

    /// Whether there are viewers, or were a short while ago.
    fn is_looked_at(&self) -> bool {
        let looks = self.looks();
        let away = looks.last.map(|last| self.broker.monotonic().saturating_sub(last));
        looks.viewers > 0 || away.is_some_and(|away| away < self.linger)
    }

    fn tick(&self) -> Duration {
        let mut sampling = self.sampling();
        sampling.tick(&self.broker, &self.sources);
        let (tick, cost) = (sampling.tick, sampling.cost);
        drop(sampling);
        self.ticks.send_replace(tick);
        cost
    }
}
