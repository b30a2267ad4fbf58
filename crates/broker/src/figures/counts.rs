//! Numbers for monitoring: cheap enough to be read of everything once a second.
//!
//! Things are counted where they happen, by their one owner: a topic under its lock, a subscription
//! by the task that polls it. Nothing here is shared between writers, so publishers and followers
//! do not pay for being counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gapless_core::{Position, Seq, TopicName};
use gapless_journal::FlushTimes;

use crate::broker::Broker;
use crate::read::subscription::Shared;
use crate::topic::live_topic::lock;

/// How far a topic is, without what would need a look into segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCounts {
    /// Its number, which no other topic ever has.
    pub id: u64,
    /// Its name.
    pub name: TopicName,
    /// The first seq that can be read.
    pub first: Seq,
    /// The next seq.
    pub next: Seq,
    /// Bytes that became visible in it since the store was opened; what opening replayed is
    /// in it too, so differences are what counts.
    pub bytes_in: u64,
    /// Messages handed to subscribers and members of groups since the store was opened; a message
    /// that two of them were handed counts twice.
    pub messages_out: u64,
}

/// What all subscribers were handed since the store was opened, those included that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Messages handed out.
    pub delivered_messages: u64,
    /// Bytes handed out.
    pub delivered_bytes: u64,
    /// Bytes that were read from history for it.
    pub recovered_bytes: u64,
}

/// What the subscriptions that are gone had been handed.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    delivered_messages: AtomicU64,
    delivered_bytes: AtomicU64,
    recovered_bytes: AtomicU64,
}

impl Gone {
    pub(crate) fn add(&self, shared: &Shared) {
        let info = shared.info();
        self.delivered_messages.fetch_add(info.delivered_messages, Ordering::Relaxed);
        self.delivered_bytes.fetch_add(info.delivered_bytes, Ordering::Relaxed);
        self.recovered_bytes.fetch_add(info.recovered_bytes, Ordering::Relaxed);
    }
}

impl Broker {
    /// How far each topic is, in the order of their numbers; the broker's own included.
    pub fn topic_counts(&self) -> Vec<TopicCounts> {
        let cells = self.inner.topics.all();
        let counts = cells.iter().map(|cell| {
            let state = cell.lock();
            TopicCounts {
                id: cell.id.0,
                name: cell.name.clone(),
                first: state.first(),
                next: state.next(),
                bytes_in: state.bytes_in,
                messages_out: cell.messages_out.load(Ordering::Relaxed),
            }
        });
        counts.collect()
    }

    /// What all subscribers were handed.
    pub fn delivery_counts(&self) -> DeliveryCounts {
        // Under the lock, so that a subscriber that leaves is counted exactly once.
        let subscribers = lock(&self.inner.subscribers);
        let mut counts = DeliveryCounts {
            delivered_messages: self.inner.gone.delivered_messages.load(Ordering::Relaxed),
            delivered_bytes: self.inner.gone.delivered_bytes.load(Ordering::Relaxed),
            recovered_bytes: self.inner.gone.recovered_bytes.load(Ordering::Relaxed),
        };
        for shared in subscribers.values() {
            counts.delivered_messages += shared.delivered_messages.load(Ordering::Relaxed);
            counts.delivered_bytes += shared.delivered_bytes.load(Ordering::Relaxed);
            counts.recovered_bytes += shared.recovered_bytes.load(Ordering::Relaxed);
        }
        counts
    }

    /// Bytes of history in memory that were read for subscribers and are not delivered yet, what is
    /// read ahead included; see [`Limits::recovery_bytes_max`](crate::Limits::recovery_bytes_max).
    pub fn recovery_bytes(&self) -> usize {
        self.inner.recovery_memory.used()
    }

    /// How long flushes took.
    pub fn flush_times(&self) -> FlushTimes {
        self.inner.journal.flush_times()
    }

    /// The position that the next message gets.
    pub fn next_position(&self) -> Position {
        self.inner.journal.next_position()
    }

    /// Time since some moment, for measuring; never goes back.
    pub fn monotonic(&self) -> Duration {
        self.inner.clock.monotonic()
    }

    /// Why the broker takes no more messages, if it does not.
    pub fn failure(&self) -> Option<String> {
        self.inner.journal.failure().map(|failure| failure.to_string())
    }
}
