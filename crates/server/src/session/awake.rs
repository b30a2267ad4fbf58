//! Keeping the processors awake between messages: the shortest round trip, paid for with processor
//! time.
//!
//! A processor with nothing to do goes to sleep, and waking it can take longer than all else
//! that happens to a message; on a virtual machine it does by far. For a time after each
//! message, one thread per processor spins, at the lowest priority, so that real work goes first.
//! When no message comes, they sleep.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most threads that keep processors awake.
const THREADS_MAX: usize = 64;
/// The lowest priority there is.
#[cfg(target_os = "linux")]
const NICE: i32 = 19;

/// The threads, for as long as this lives.
pub(crate) struct Awake {
    state: Arc<State>,
}

struct State {
    time: Duration,
    /// Rises with everything that happens.
    events: AtomicU64,
    /// Some thread sleeps and must be woken at the next event.
    asleep: AtomicBool,
    closed: Mutex<bool>,
    woken: Condvar,
}

impl Awake {
    /// Keeps processors awake for so long after each event; not at all if that is zero.
    pub(crate) fn new(time: Duration) -> std::io::Result<Option<Self>> {
        if time.is_zero() {
            return Ok(None);
        }
        let state = Arc::new(State {
            time,
            events: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            closed: Mutex::new(false),
            woken: Condvar::new(),
        });
        let awake = Self { state };
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        for number in 0..count {
            let state = Arc::clone(&awake.state);
            let name = format!("awake-{number}");
            std::thread::Builder::new().name(name).spawn(move || state.serve())?;
        }
        Ok(Some(awake))
    }

    /// Something happened; more may happen soon.
    pub(crate) fn touch(&self) {
        self.state.events.fetch_add(1, Ordering::Relaxed);
        if self.state.asleep.swap(false, Ordering::AcqRel) {
            drop(self.state.closed());
            self.state.woken.notify_all();
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        *self.state.closed() = true;
        self.state.woken.notify_all();
    }
}

impl State {
    fn closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        // Without it all works, only at the cost of others.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICE);
        let mut seen = 0;
        loop {
            let mut closed = self.closed();
            loop {
                if *closed {
                    return;
                }
                // Set before it looks: an event in between is either seen or wakes it.
                self.asleep.store(true, Ordering::Release);
                if self.events.load(Ordering::Acquire) != seen {
                    break;
                }
                closed = self.woken.wait(closed).unwrap_or_else(PoisonError::into_inner);
            }
            drop(closed);
            seen = self.stay_awake();
        }
    }

    /// Spins until no event came for `time`; returns the number of the last event it saw.
    fn stay_awake(&self) -> u64 {
        let mut seen = self.events.load(Ordering::Relaxed);
        let mut until = Instant::now() + self.time;
        loop {
            let now = Instant::now();
            let events = self.events.load(Ordering::Relaxed);
            if events != seen {
                (seen, until) = (events, now + self.time);
            } else if now >= until {
                return seen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long something may take to happen.
    const DEADLINE: Duration = Duration::from_secs(30);

    fn wait_until(is: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is() {
            assert!(Instant::now() < deadline, "it did not happen in time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn nothing_is_kept_awake_for_no_time() {
        assert!(Awake::new(Duration::ZERO).unwrap().is_none());
    }

    #[test]
    fn threads_wake_for_events_sleep_after_them_and_end_with_it() {
        let awake = Awake::new(Duration::from_millis(1)).unwrap().unwrap();
        let state = Arc::clone(&awake.state);
        let threads = Arc::strong_count(&state) - 2;
        for _ in 0..20 {
            wait_until(|| state.asleep.load(Ordering::Acquire));
            awake.touch();
        }
        assert!(threads >= 1);
        drop(awake);
        wait_until(|| Arc::strong_count(&state) == 1);
    }
}
