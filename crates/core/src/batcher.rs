//! When gathered messages are sent: the rule of the batching producer (A6).
//!
//! Messages gather into a batch until it is large enough, by count or by bytes, or its
//! first message has waited long enough, whichever comes first. What is gathered and what
//! is on its way count together against the queue's limit; beyond it a message is rejected
//! and nothing is changed. Stopping sends or discards what has gathered, as the caller
//! says, and reports how many; afterwards nothing is taken.
//!
//! The messages themselves are the shell's: it keeps them in the order they were added and
//! hands each batch as many as the effect says.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ack::RejectReason;
use crate::time::Timestamp;

/// How large batches and the queue may become, and how long a message may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatcherLimits {
    /// A batch with this many messages is sent.
    pub batch_count_max: u32,
    /// A batch with this many bytes is sent; a larger single message goes alone.
    pub batch_bytes_max: u64,
    /// A batch whose first message has waited this long is sent.
    pub wait: Duration,
    /// The most messages gathered and on their way together.
    pub queue_count_max: u32,
    /// The most bytes gathered and on their way together.
    pub queue_bytes_max: u64,
}

impl Default for BatcherLimits {
    /// Batches that fill a disk block many times over, a wait too short to notice, and a queue
    /// of a few dozen batches.
    fn default() -> Self {
        Self {
            batch_count_max: 1_000,
            batch_bytes_max: 1 << 20,
            wait: Duration::from_millis(5),
            queue_count_max: 100_000,
            queue_bytes_max: 64 << 20,
        }
    }
}

/// Why limits were refused. No batcher was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatcherLimitsError {
    /// A limit of zero would let nothing through.
    #[error("{limit} is zero: give at least one")]
    Zero {
        /// Which limit it is.
        limit: &'static str,
    },
    /// A batch could never become full, because the queue is full before.
    #[error("{limit} of the batch is above the queue's: raise the queue's or lower the batch's")]
    BatchAboveQueue {
        /// Which limit it is.
        limit: &'static str,
    },
}

/// The number of a batch: 1, 2, 3 … in the order they must be sent.
pub type BatchNumber = u64;

/// Gathers messages into batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batcher {
    limits: BatcherLimits,
    /// What has gathered.
    open: Load,
    /// When the first message of the open batch came.
    since: Timestamp,
    /// The number the open batch will have.
    number: BatchNumber,
    /// What was sent and is not done yet.
    sent: BTreeMap<BatchNumber, Load>,
    /// Open and sent together.
    total: Load,
    stopped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    count: u32,
    bytes: u64,
}

/// What happens to a batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A message comes.
    Add {
        /// How large it is.
        bytes: u64,
    },
    /// Time has passed.
    Tick,
    /// This batch was answered, accepted or not.
    Done(BatchNumber),
    /// No more messages will come.
    Stop {
        /// Whether what has gathered is sent; otherwise it is discarded.
        flush: bool,
    },
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The message is taken, and will be in this batch.
    Queued {
        /// The number of its batch.
        batch: BatchNumber,
    },
    /// The message is refused; nothing is changed.
    Rejected(RejectReason),
    /// The message is refused because the batcher was stopped; nothing is changed.
    Closed,
    /// Send the oldest `count` messages that were not sent yet.
    Flush {
        /// The number under which the answer must be reported.
        batch: BatchNumber,
        /// How many messages it has.
        count: u32,
        /// How many bytes they have.
        bytes: u64,
    },
    /// The batcher has stopped. A stop that flushes reports the flush first.
    Stopped {
        /// How many gathered messages were sent by the stop.
        flushed: u32,
        /// How many gathered messages are discarded by the stop.
        discarded: u32,
    },
    /// After a stop: nothing is on its way any more.
    Drained,
}

impl Batcher {
    /// A batcher without messages.
    pub fn new(limits: BatcherLimits) -> Result<Self, BatcherLimitsError> {
        let zeroes = [
            ("batch count", limits.batch_count_max == 0),
            ("batch bytes", limits.batch_bytes_max == 0),
            ("queue count", limits.queue_count_max == 0),
            ("queue bytes", limits.queue_bytes_max == 0),
        ];
        if let Some((limit, _)) = zeroes.into_iter().find(|(_, zero)| *zero) {
            return Err(BatcherLimitsError::Zero { limit });
        }
        if limits.batch_count_max > limits.queue_count_max {
            return Err(BatcherLimitsError::BatchAboveQueue { limit: "count" });
        }
        if limits.batch_bytes_max > limits.queue_bytes_max {
            return Err(BatcherLimitsError::BatchAboveQueue { limit: "bytes" });
        }
        Ok(Self {
            limits,
            open: Load::default(),
            since: Timestamp(0),
            number: 1,
            sent: BTreeMap::new(),
            total: Load::default(),
            stopped: false,
        })
    }

    /// How many messages are gathered or on their way.
    pub fn queued(&self) -> u32 {
        self.total.count
    }

    /// Takes one step. A `Done` of an unknown batch is ignored: an answer may come twice after a
    /// reconnect.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Add { bytes } => self.add(now, bytes, effects),
            Input::Tick => {
                if self.deadline().is_some_and(|deadline| deadline <= now) {
                    self.flush(effects);
                }
            }
            Input::Done(batch) => {
                if let Some(load) = self.sent.remove(&batch) {
                    self.total.count -= load.count;
                    self.total.bytes -= load.bytes;
                    self.drained(effects);
                }
            }
            Input::Stop { flush } => self.stop(flush, effects),
        }
    }

    /// When the open batch has waited long enough.
    pub fn deadline(&self) -> Option<Timestamp> {
        (self.open.count > 0).then(|| self.since.after(self.limits.wait))
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        let count: u32 = self.sent.values().map(|load| load.count).sum();
        let bytes: u64 = self.sent.values().map(|load| load.bytes).sum();
        assert_eq!(self.total.count, self.open.count + count, "the total counts all");
        assert_eq!(self.total.bytes, self.open.bytes + bytes, "the total counts all");
        assert!(self.total.count <= self.limits.queue_count_max, "the queue is bounded");
        assert!(self.total.bytes <= self.limits.queue_bytes_max, "the queue is bounded");
        assert!(self.open.count < self.limits.batch_count_max, "a full batch is sent");
        assert!(self.open.bytes < self.limits.batch_bytes_max, "a full batch is sent");
        assert!(!self.stopped || self.open.count == 0, "a stopped batcher holds nothing");
    }

    fn add(&mut self, now: Timestamp, bytes: u64, effects: &mut Vec<Effect>) {
        if self.stopped {
            effects.push(Effect::Closed);
            return;
        }
        let max = self.limits.queue_bytes_max;
        if bytes > max {
            effects.push(Effect::Rejected(RejectReason::TooLarge { bytes, max }));
            return;
        }
        if self.total.count >= self.limits.queue_count_max || bytes > max - self.total.bytes {
            effects.push(Effect::Rejected(RejectReason::QueueFull));
            return;
        }
        if self.open.count > 0 && bytes > self.limits.batch_bytes_max - self.open.bytes {
            self.flush(effects);
        }
        if self.open.count == 0 {
            self.since = now;
        }
        for load in [&mut self.open, &mut self.total] {
            load.count += 1;
            load.bytes += bytes;
        }
        effects.push(Effect::Queued { batch: self.number });
        if self.open.count >= self.limits.batch_count_max
            || self.open.bytes >= self.limits.batch_bytes_max
            || self.limits.wait.is_zero()
        {
            self.flush(effects);
        }
    }

    fn flush(&mut self, effects: &mut Vec<Effect>) {
        let Load { count, bytes } = self.open;
        if count > 0 {
            effects.push(Effect::Flush { batch: self.number, count, bytes });
            self.sent.insert(self.number, self.open);
            self.open = Load::default();
            self.number += 1;
        }
    }

    fn stop(&mut self, flush: bool, effects: &mut Vec<Effect>) {
        if self.stopped {
            effects.push(Effect::Closed);
            return;
        }
        let gathered = self.open.count;
        let (flushed, discarded) = if flush { (gathered, 0) } else { (0, gathered) };
        if flush {
            self.flush(effects);
        } else {
            self.total.count -= self.open.count;
            self.total.bytes -= self.open.bytes;
            self.open = Load::default();
        }
        self.stopped = true;
        effects.push(Effect::Stopped { flushed, discarded });
        self.drained(effects);
    }

    fn drained(&self, effects: &mut Vec<Effect>) {
        if self.stopped && self.sent.is_empty() {
            effects.push(Effect::Drained);
        }
    }
}

#[cfg(test)]
#[path = "batcher_tests.rs"]
mod tests;
