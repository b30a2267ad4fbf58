//! The thread that does what nobody waits for: it keeps the journal, carries out retention,
//! publishes delayed messages when they are due, and lets time go on in groups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::broker::Inner;
use crate::cell::lock;

/// The thread, and how to wake and end it.
#[derive(Default)]
pub(crate) struct Keeper {
    signal: Arc<Signal>,
    /// Set from a wake until the turn it asked for begins, so that only one is asked for.
    asked: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Signal {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Keeper {
    pub(crate) fn start(&self, inner: &Arc<Inner>) -> std::io::Result<()> {
        // Until the last handle stops it, see `Owner`.
        let (signal, inner) = (Arc::clone(&self.signal), Arc::clone(inner));
        let serve = move || {
            yield_to_others();
            loop {
                inner.keeper.asked.store(false, Ordering::Release);
                inner.keep();
                let wait = inner.keeper_wait(inner.clock.now());
                let state = lock(&signal.state);
                let idle = |state: &mut (bool, bool)| !state.0 && !state.1;
                let waited = signal.changed.wait_timeout_while(state, wait, idle);
                let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if state.1 {
                    return;
                }
                state.0 = false;
            }
        };
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(serve)?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Asks for a turn soon.
    pub(crate) fn wake(&self) {
        if self.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        lock(&self.signal.state).0 = true;
        self.signal.changed.notify_all();
    }

    /// Ends the thread after its turn.
    pub(crate) fn stop(&self) {
        lock(&self.signal.state).1 = true;
        self.signal.changed.notify_all();
        let Some(thread) = lock(&self.thread).take() else { return };
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the keeper's thread panicked");
        }
    }
}

/// How much this thread steps back when the processors are busy: those who publish, flush and
/// deliver go first. It still gets a tenth of what one of them gets, and when it falls behind
/// for long, publishers wait for it.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Lets other threads go first.
fn yield_to_others() {
    // Without it all works, only less smoothly.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICE);
}

impl Inner {
    /// One turn of the keeper.
    pub(crate) fn keep(&self) {
        let now = self.clock.now();
        while self.publish_due(now) {}
        self.keep_groups(now);
        for cell in self.topics.aged(now) {
            if let Err(error) = self.enforce_age(&cell, now) {
                tracing::warn!(topic = cell.name.as_str(), %error, "retention must wait");
            }
        }
        self.enforce_sizes(now);
        let one_at_a_time = lock(&self.keeping);
        let kept = self.journal.keep(self, now);
        drop(one_at_a_time);
        match kept {
            Ok(kept) => {
                if kept.sealed {
                    self.emit("journal.sealed", &[]);
                }
                if kept.collected {
                    self.emit("journal.collected", &[]);
                }
            }
            Err(error) => tracing::warn!(%error, "keeping the store must wait"),
        }
        if let Some(failure) = self.journal.failure()
            && !self.failure_told.swap(true, Ordering::Relaxed)
        {
            self.emit("journal.failed", &[("why", failure.to_string().into())]);
        }
        self.metrics.delayed.set(self.delayed_len() as f64);
        self.metrics.volatile_bytes.set(self.volatile_bytes.load(Ordering::Relaxed) as f64);
        self.metrics.cell_bytes.set(self.cell_bytes.load(Ordering::Relaxed) as f64);
        let stats = self.journal.stats();
        let steps = stats.time_steps_back;
        if self.clock_steps_told.swap(steps, Ordering::Relaxed) < steps {
            self.emit("clock.stepped-back", &[("steps", steps.into())]);
        }
        self.metrics.journal(&stats);
    }
}
