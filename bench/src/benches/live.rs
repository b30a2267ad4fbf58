//! Many followers on one thread, as an async runtime has them.
//!
//! Each follower that is woken is polled once and goes to the end of the line if it got
//! something: so all get their turn, and a thread is woken once for many of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use gapless_broker::{Broker, Delivery, From, Messages, Subscription};
use gapless_core::{Pattern, TopicName};

use super::store::Result;

/// Followers look whether they are done at least this often.
const LOOK: Duration = Duration::from_millis(20);

/// Stands for "not known yet" where a number of messages is meant.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// The followers whose turn it is.
struct Line {
    woken: Mutex<VecDeque<usize>>,
    thread: Thread,
}

/// Puts one follower into the line.
struct Ticket {
    line: Arc<Line>,
    follower: usize,
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.line.push(self.follower);
        self.line.thread.unpark();
    }
}

impl Line {
    fn push(&self, follower: usize) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.push_back(follower);
    }

    fn pop(&self) -> Option<usize> {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.pop_front()
    }
}

/// Subscribes `count` followers to what comes from now on, each told to be live already.
///
/// # Errors
/// When the broker refuses one.
pub(crate) fn subscribe(
    broker: &Broker,
    topic: &TopicName,
    count: usize,
) -> Result<Vec<Subscription>> {
    let pattern = Pattern::literal(topic);
    let followers = (0..count).map(|_| broker.subscribe(&pattern, From::Now));
    Ok(followers.collect::<std::result::Result<Vec<_>, _>>()?)
}

/// Drives the followers in this thread until each got as many messages as `wanted` says,
/// which may become known later. Hands every body to `visit`; tells how many there were.
///
/// # Errors
/// When a follower ends, or is told of a gap.
pub(crate) fn drive(
    followers: &mut [Subscription],
    wanted: &AtomicU64,
    mut visit: impl FnMut(&[u8]),
) -> Result<u64> {
    let line = Arc::new(Line {
        woken: Mutex::new((0..followers.len()).collect()),
        thread: thread::current(),
    });
    let waker = |follower| {
        let line = Arc::clone(&line);
        Waker::from(Arc::new(Ticket { line, follower }))
    };
    let wakers: Vec<Waker> = (0..followers.len()).map(waker).collect();
    let mut delivered = 0_u64;
    loop {
        let Some(turn) = line.pop() else {
            let each = wanted.load(Ordering::Acquire);
            if each != UNKNOWN && delivered >= each * followers.len() as u64 {
                return Ok(delivered);
            }
            thread::park_timeout(LOOK);
            continue;
        };
        let mut context = Context::from_waker(&wakers[turn]);
        match followers[turn].poll_next(&mut context) {
            Poll::Pending => continue,
            Poll::Ready(Err(error)) => return Err(error.into()),
            Poll::Ready(Ok(Delivery::Messages(messages))) => {
                delivered += each_body(&messages, &mut visit);
            }
            Poll::Ready(Ok(Delivery::Gap(gap))) => return Err(format!("a gap: {gap:?}").into()),
            Poll::Ready(Ok(Delivery::Live | Delivery::Recovering { .. })) => {}
        }
        line.push(turn);
    }
}

/// Hands every body to `visit` without making messages of them; tells how many there were.
pub(crate) fn each_body(messages: &Messages, visit: &mut impl FnMut(&[u8])) -> u64 {
    let mut count = 0;
    for delivered in messages.records() {
        visit(delivered.record.body.unwrap_or_default());
        count += 1;
    }
    count
}

/// Looks at one byte of each cache line, so that the bytes are really there.
pub(crate) fn touch(body: &[u8]) -> u8 {
    body.iter().step_by(64).fold(0, |sum, byte| sum ^ byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_reads_every_cache_line() {
        let mut body = vec![0; 200];
        body[128] = 7;
        assert_eq!(touch(&body), 7);
        assert_eq!(touch(&[]), 0);
    }
}
