//! Many publishes in flight from one thread, by the smallest executor there is.
//!
//! Acks come in the order of the publishes, so only the oldest is polled, and the others are
//! looked at after it. It is polled as soon as it is the oldest, when it was woken, and not
//! only when the window is full: that is what asks for a flush, and so the next publishes
//! gather while one is under way. A publish that is refused because too much waits to be
//! written goes again when the oldest is done, or, if none is in flight, when there is room.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use gapless_broker::{Broker, Publishing, block_on};
use gapless_core::{PublishAck, RejectReason};

use super::store::Result;

/// Publishes that are not acknowledged yet.
pub(crate) struct Window<'a> {
    broker: &'a Broker,
    in_flight: VecDeque<Publishing>,
    depth: usize,
    waker: Waker,
    unpark: Arc<Unpark>,
    /// Times a publish was refused and had to go again.
    pub(crate) retries: u64,
    /// Publishes that were acknowledged.
    pub(crate) acked: u64,
}

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl<'a> Window<'a> {
    /// A window of at most `depth` publishes, for this thread.
    pub(crate) fn new(broker: &'a Broker, depth: usize) -> Self {
        let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
        Self {
            broker,
            in_flight: VecDeque::with_capacity(depth),
            depth,
            waker: Waker::from(Arc::clone(&unpark)),
            unpark,
            retries: 0,
            acked: 0,
        }
    }

    /// Publishes; waits for the oldest before if the window is full.
    pub(crate) fn publish(&mut self, send: impl Fn(&Broker) -> Publishing) -> Result<()> {
        if self.in_flight.len() >= self.depth {
            self.wait_for_oldest()?;
            self.take_done()?;
        } else if self.unpark.woken.swap(false, Ordering::Acquire) {
            self.take_done()?;
        }
        loop {
            let publishing = send(self.broker);
            if publishing.is_accepted() {
                self.in_flight.push_back(publishing);
                return if self.in_flight.len() == 1 { self.take_done() } else { Ok(()) };
            }
            match publishing.wait()? {
                PublishAck::Rejected(RejectReason::QueueFull) => self.retries += 1,
                other => return Err(format!("not accepted: {other:?}").into()),
            }
            if self.in_flight.is_empty() {
                block_on(self.broker.room());
            } else {
                self.wait_for_oldest()?;
            }
        }
    }

    /// Waits for all.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    fn wait_for_oldest(&mut self) -> Result<()> {
        let Some(mut oldest) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let mut context = Context::from_waker(&self.waker);
        loop {
            match Pin::new(&mut oldest).poll(&mut context) {
                Poll::Ready(ack) => {
                    self.acked += 1;
                    return check(&ack?);
                }
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Takes those that are done, up to the first that is not.
    fn take_done(&mut self) -> Result<()> {
        let mut context = Context::from_waker(&self.waker);
        while let Some(oldest) = self.in_flight.front_mut() {
            match Pin::new(oldest).poll(&mut context) {
                Poll::Ready(ack) => check(&ack?)?,
                Poll::Pending => break,
            }
            self.acked += 1;
            self.in_flight.pop_front();
        }
        Ok(())
    }
}

/// Publishes and waits for the ack, trying again as long as there is no room.
pub(crate) fn publish_and_wait(
    broker: &Broker,
    send: impl Fn(&Broker) -> Publishing,
) -> Result<()> {
    loop {
        let ack = send(broker).wait()?;
        if ack.rejected() == Some(&RejectReason::QueueFull) {
            block_on(broker.room());
            continue;
        }
        return check(&ack);
    }
}

fn check(ack: &PublishAck) -> Result<()> {
    match ack {
        PublishAck::Accepted(_) => Ok(()),
        other => Err(format!("not accepted: {other:?}").into()),
    }
}
