//! Totals that need no look at every topic: what was accepted, and what was handed out.
//!
//! Cheap enough to be read every few seconds of a store with a million topics.

use std::sync::atomic::{AtomicU64, Ordering};

use gapless_core::{Pattern, TopicName};

use crate::broker::Broker;
use crate::topic::live_topic::lock;

/// What came in and went out since the store was opened, volatile messages included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Messages accepted.
    pub messages_in: u64,
    /// Bytes of them.
    pub bytes_in: u64,
    /// Messages handed to subscribers and members of groups; one that two of them were handed counts
    /// twice.
    pub messages_out: u64,
}

/// A group, without what would need a look into its topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCounts {
    /// Its name.
    pub name: TopicName,
    /// What it reads.
    pub source: Pattern,
    /// Dead letters that wait to be redriven or removed.
    pub dead_letters: u64,
}

/// Where messages are counted, a batch at a time.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    messages_in: AtomicU64,
    bytes_in: AtomicU64,
    messages_out: AtomicU64,
}

impl Flow {
    pub(crate) fn add_in(&self, messages: u32, bytes: usize) {
        self.messages_in.fetch_add(u64::from(messages), Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_out(&self, messages: u64) {
        self.messages_out.fetch_add(messages, Ordering::Relaxed);
    }
}

impl Broker {
    /// What came in and went out.
    pub fn flow_counts(&self) -> FlowCounts {
        let flow = &self.inner.flow;
        FlowCounts {
            messages_in: flow.messages_in.load(Ordering::Relaxed),
            bytes_in: flow.bytes_in.load(Ordering::Relaxed),
            messages_out: flow.messages_out.load(Ordering::Relaxed),
        }
    }

    /// How many subscriptions there are.
    pub fn subscriber_count(&self) -> usize {
        lock(&self.inner.subscribers).len()
    }

    /// All groups, by name.
    pub fn group_counts(&self) -> Vec<GroupCounts> {
        let groups = self.inner.groups.all();
        let counts = groups.iter().map(|group| {
            let source = group.lock().machine.settings().source.clone();
            let dead_letters = self.inner.letters(group);
            GroupCounts { name: group.name.clone(), source, dead_letters }
        });
        counts.collect()
    }
}
