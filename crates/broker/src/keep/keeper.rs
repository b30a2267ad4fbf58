//! What no caller waits for: writing segments, merging them, and retention.
//!
//! It has a thread that gives way to all others. What must happen in time is in `timers.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::broker::Inner;
use crate::topic::live_topic::lock;

/// The `nice` value of this thread: when the processors are busy, threads that publish, flush and
/// deliver go first. It still gets a tenth of what one of them gets, and when it falls behind for
/// long, publishers wait for it.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Starts the keeper's thread.
pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<()> {
    let mut is_first = true;
    inner.keeper.start("keeper", inner, move |inner| {
        if std::mem::take(&mut is_first) {
            yield_to_others();
        }
        inner.keep();
        inner.limits.keep_interval
    })
}

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
        self.metrics.recovery_bytes.set(self.recovery_memory.used() as f64);
        let stats = self.journal.stats();
        let steps = stats.time_steps_back;
        if self.clock_steps_told.swap(steps, Ordering::Relaxed) < steps {
            self.emit("clock.stepped-back", &[("steps", steps.into())]);
        }
        self.metrics.journal(&stats);
    }
}
