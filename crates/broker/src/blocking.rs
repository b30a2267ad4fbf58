//! Blocking forms of what is a future: for embedders without a runtime, and for threads that may
//! wait. Nothing here may be called inside a poll, nor under a lock.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use gapless_core::{Position, PubSubError};

use crate::broker::Broker;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the future is done: for embedders without a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Broker {
    /// As [`Broker::cancel_delayed`]; blocks until it is done.
    ///
    /// # Errors
    /// When the system is in trouble.
    pub fn cancel_delayed_blocking(&self, id: Position) -> Result<bool, PubSubError> {
        block_on(self.cancel_delayed(id))
    }
}
