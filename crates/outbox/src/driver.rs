//! The work of a connection: done in the task that waits for an answer, while there is one.
//!
//! A task of its own does it else, and takes in notifications. If that task did all of it, two
//! tasks would wake each other for every few rows, mostly on different threads: a quarter of what
//! it costs to move rows was that.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often both are polled before other tasks get a turn.
const ROUNDS_MAX: u32 = 32;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The work of one connection.
pub(crate) struct Driver {
    /// `None` when the connection has ended.
    work: Mutex<Option<Work>>,
    /// Whether a task that waits for an answer does it. Only one does: the connection wakes the
    /// task that polled it last.
    taken: AtomicBool,
    /// The task that does it else.
    background: AtomicWaker,
}

impl Driver {
    pub(crate) fn new(work: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            work: Mutex::new(Some(Box::pin(work))),
            taken: AtomicBool::new(false),
            background: AtomicWaker::new(),
        })
    }

    /// Does the work while no other task does, until the connection ends.
    pub(crate) async fn run(self: Arc<Self>) {
        std::future::poll_fn(|context| {
            self.background.register(context.waker());
            self.poll(context, || !self.taken.load(Ordering::SeqCst))
        })
        .await;
    }

    /// Waits for an answer, and does the work meanwhile.
    pub(crate) async fn driving<T>(&self, answer: impl Future<Output = T>) -> T {
        if self.taken.swap(true, Ordering::SeqCst) {
            return answer.await;
        }
        let _place = Place(self);
        let mut answer = std::pin::pin!(answer);
        let turns = Arc::new(Turns::default());
        let waker = Waker::from(Arc::clone(&turns));
        std::future::poll_fn(|context| {
            turns.task.register(context.waker());
            for _ in 0..ROUNDS_MAX {
                turns.begin();
                let inner = &mut Context::from_waker(&waker);
                let _ = self.poll(inner, || true);
                if let Poll::Ready(answer) = answer.as_mut().poll(inner) {
                    return Poll::Ready(answer);
                }
                if !turns.end() {
                    return Poll::Pending;
                }
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Polls the work, if it may then: that is asked under the lock, so that of two tasks the one
    /// that took the work is the last to poll it.
    fn poll(&self, context: &mut Context<'_>, may: impl Fn() -> bool) -> Poll<()> {
        let Ok(mut work) = self.work.lock() else { return Poll::Ready(()) };
        if !may() {
            return Poll::Pending;
        }
        match work.as_mut().map(|work| work.as_mut().poll(context)) {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(())) | None => {
                *work = None;
                Poll::Ready(())
            }
        }
    }
}

/// The place of the task that does the work; when it leaves, also because the answer was given
/// up, the background goes on.
struct Place<'a>(&'a Driver);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::SeqCst);
        self.0.background.wake();
    }
}

/// Wake-ups: those that come while both are polled lead to another round, not through the
/// scheduler.
#[derive(Default)]
struct Turns {
    task: AtomicWaker,
    woken: AtomicBool,
    polling: AtomicBool,
}

impl Turns {
    fn begin(&self) {
        self.polling.store(true, Ordering::SeqCst);
        self.woken.store(false, Ordering::SeqCst);
    }

    /// Whether something happened since it began. If not, the task is woken from now on.
    fn end(&self) -> bool {
        self.polling.store(false, Ordering::SeqCst);
        self.woken.load(Ordering::SeqCst)
    }
}

impl Wake for Turns {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.polling.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    /// Work that hands on a number of things, one at a time, through a channel of that size.
    fn world(count: u32) -> (Arc<Driver>, mpsc::Receiver<u32>) {
        let (send, receive) = mpsc::channel(1);
        let work = async move {
            for number in 0..count {
                // The test may have given it up.
                let _ = send.send(number).await;
            }
        };
        (Driver::new(work), receive)
    }

    async fn all(mut receive: mpsc::Receiver<u32>) -> u32 {
        let mut count = 0;
        while receive.recv().await.is_some() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn an_answer_comes_without_a_task_in_the_background() {
        let (driver, receive) = world(1_000);
        assert_eq!(driver.driving(all(receive)).await, 1_000);
    }

    #[tokio::test]
    async fn the_background_goes_on_when_an_answer_is_given_up() {
        let (driver, mut receive) = world(1_000);
        let background = tokio::spawn(Arc::clone(&driver).run());
        let first = driver.driving(receive.recv());
        assert_eq!(first.await, Some(0));
        let never = driver.driving(std::future::pending::<()>());
        assert!(tokio::time::timeout(std::time::Duration::ZERO, never).await.is_err());
        assert_eq!(all(receive).await, 999);
        background.await.expect("it ended");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answers_of_several_tasks_come_all() {
        let (send, mut receive) = mpsc::channel::<tokio::sync::oneshot::Sender<()>>(1);
        let driver = Driver::new(async move {
            while let Some(reply) = receive.recv().await {
                tokio::task::yield_now().await;
                let _ = reply.send(());
            }
        });
        let background = tokio::spawn(Arc::clone(&driver).run());
        let asking = (0..4).map(|_| {
            let (driver, send) = (Arc::clone(&driver), send.clone());
            tokio::spawn(async move {
                for _ in 0..500 {
                    let (reply, answer) = tokio::sync::oneshot::channel();
                    send.send(reply).await.expect("the work goes on");
                    driver.driving(answer).await.expect("an answer");
                }
            })
        });
        for task in asking.collect::<Vec<_>>() {
            task.await.expect("all were answered");
        }
        drop(send);
        background.await.expect("it ended");
    }
}
