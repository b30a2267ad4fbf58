//! The recovery pool: threads of their own that read history, so that live readers and the
//! flusher are not slowed.
//!
//! A request reads one bounded step. Each reader has one request here, and more only while
//! no other waits ([`Pool::is_idle`]): so the queue is not longer than there are readers, but
//! for a few, and they take turns.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use crate::error::ReadError;
use crate::marks::lock;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    tasks: Mutex<(VecDeque<Task>, bool)>,
    wake: Condvar,
}

/// Threads that run tasks in the order they came.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    inline: bool,
}

impl Pool {
    /// A pool of `threads`; with none, tasks run in the thread that asks for them.
    pub(crate) fn new(threads: usize) -> Self {
        let queue = Arc::new(Queue::default());
        let spawn = |index: usize| {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new()
                .name(format!("recovery-{index}"))
                .spawn(move || serve(&queue))
                .ok()
        };
        let handles: Vec<_> = (0..threads).filter_map(spawn).collect();
        let inline = handles.is_empty();
        Self { queue, threads: Mutex::new(handles), inline }
    }

    /// How many tasks wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.queue.tasks).0.len()
    }

    /// Whether no reader waits for a thread, so that reading ahead delays none. Never
    /// when tasks run in the thread that asks: then it would gain nothing.
    pub(crate) fn is_idle(&self) -> bool {
        !self.inline && self.waiting() == 0
    }

    /// Runs `task` on the pool, unless `max` wait already.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        max: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, refused: None }));
        let filler = Filler(Arc::clone(&slot));
        let task = move || {
            let value = task();
            lock(&filler.0).value = Some(value);
        };
        if self.inline {
            task();
            return Pending(slot);
        }
        let mut tasks = lock(&self.queue.tasks);
        if tasks.0.len() >= max {
            lock(&slot).refused = Some(ReadError::Busy { max });
        } else if !tasks.1 {
            tasks.0.push_back(Box::new(task));
        }
        drop(tasks);
        self.queue.wake.notify_one();
        Pending(slot)
    }

    /// Ends the threads after the tasks they are at; those that wait are dropped.
    pub(crate) fn close(&self) {
        let mut tasks = lock(&self.queue.tasks);
        tasks.1 = true;
        tasks.0.clear();
        drop(tasks);
        self.queue.wake.notify_all();
        for thread in lock(&self.threads).drain(..) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a recovery thread panicked");
            }
        }
    }
}

fn serve(queue: &Queue) {
    let mut tasks = lock(&queue.tasks);
    while !tasks.1 {
        match tasks.0.pop_front() {
            Some(task) => {
                drop(tasks);
                // A task that panics tells its waiter by its end, and the thread goes on.
                if catch_unwind(AssertUnwindSafe(task)).is_err() {
                    tracing::error!("a read of history panicked");
                }
                tasks = lock(&queue.tasks);
            }
            None => tasks = queue.wake.wait(tasks).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    refused: Option<ReadError>,
}

/// Held by a task. Its end, with a value or without, wakes who waits.
struct Filler<T>(Arc<Mutex<Slot<T>>>);

impl<T> Drop for Filler<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        if slot.value.is_none() && slot.refused.is_none() {
            slot.refused = Some(ReadError::Closed);
        }
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The result of a task, when it is there.
pub struct Pending<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Pending<T> {
    type Output = Result<T, ReadError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Ok(value));
        }
        if let Some(refused) = &slot.refused {
            return Poll::Ready(Err(refused.clone()));
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
