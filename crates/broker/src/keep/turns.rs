//! A thread that takes turns: now and then, when its next deadline comes, and when it is woken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::broker::Inner;
use crate::topic::live_topic::lock;

/// The thread, and how to wake and end it.
#[derive(Default)]
pub(crate) struct Turns {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Signal {
    /// Set from a wake until the turn it asked for begins, so that only one is asked for.
    asked: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    woken: bool,
    stopped: bool,
    /// Turns that have begun, and those that are over.
    begun: u64,
    done: u64,
}

impl Turns {
    /// Starts the thread. A turn returns how long it may wait for the next one.
    pub(crate) fn start(
        &self,
        name: &str,
        inner: &Arc<Inner>,
        mut turn: impl FnMut(&Inner) -> Duration + Send + 'static,
    ) -> std::io::Result<()> {
        // Until the last handle stops it, see `Owner`.
        let (signal, inner) = (Arc::clone(&self.signal), Arc::clone(inner));
        let serve = move || {
            loop {
                lock(&signal.state).begun += 1;
                signal.asked.store(false, Ordering::Release);
                let wait = turn(&inner);
                let mut state = lock(&signal.state);
                state.done = state.begun;
                signal.changed.notify_all();
                let idle = |state: &mut State| !state.woken && !state.stopped;
                let waited = signal.changed.wait_timeout_while(state, wait, idle);
                let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if state.stopped {
                    return;
                }
                state.woken = false;
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Asks for a turn soon.
    pub(crate) fn wake(&self) {
        if self.signal.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        lock(&self.signal.state).woken = true;
        self.signal.changed.notify_all();
    }

    /// Asks for a turn and blocks until one is over that began after this; for `most` at most.
    /// Returns false at once if there is no thread: then the caller has to do what it would do.
    pub(crate) fn take_one(&self, most: Duration) -> bool {
        if lock(&self.thread).is_none() {
            return false;
        }
        let state = lock(&self.signal.state);
        let wanted = state.begun + 1;
        drop(state);
        self.wake();
        let state = lock(&self.signal.state);
        let waits = |state: &mut State| !state.stopped && state.done < wanted;
        drop(self.signal.changed.wait_timeout_while(state, most, waits));
        true
    }

    /// Ends the thread after its turn.
    pub(crate) fn stop(&self) {
        lock(&self.signal.state).stopped = true;
        self.signal.changed.notify_all();
        let Some(thread) = lock(&self.thread).take() else { return };
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!(thread = name, "a thread of the broker panicked");
        }
    }
}
