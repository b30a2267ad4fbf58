//! Which of a connection's subscriptions have something, without asking all of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// The numbers of subscriptions that were woken, and the connection's own waker.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    woken: Vec<u64>,
    waker: Option<Waker>,
}

impl Ready {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the numbers that were woken since the last time, and leaves the waker.
    pub(crate) fn take(&self, waker: &Waker) -> Vec<u64> {
        self.with(|state| {
            if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                state.waker = Some(waker.clone());
            }
            std::mem::take(&mut state.woken)
        })
    }

    /// Wakes the connection, if it was ever polled.
    pub(crate) fn wake(&self) {
        let waker = self.with(|state| state.waker.clone());
        waker.into_iter().for_each(Waker::wake);
    }

    /// Notes that a subscription should be asked, and wakes the connection.
    pub(crate) fn note(&self, subscription: u64) {
        let waker = self.with(|state| {
            state.woken.push(subscription);
            state.waker.clone()
        });
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Wakes one subscription of a connection.
pub(crate) struct SubscriptionWaker {
    pub(crate) ready: Arc<Ready>,
    pub(crate) subscription: u64,
}

impl Wake for SubscriptionWaker {
    fn wake(self: Arc<Self>) {
        self.ready.note(self.subscription);
    }
}
