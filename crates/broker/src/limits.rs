//! Every maximum of a broker, with its unit and its reason.

use std::time::Duration;

/// Limits of a broker. The defaults suit a server of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most topics: each costs about half a kilobyte of memory.
    pub topics_max: usize,
    /// Most subscriptions at the same time.
    pub subscriptions_max: usize,
    /// Most bytes of one message, key and headers included: with its wrapping it fits into a
    /// frame of the native protocol, which has at most 4 MiB.
    pub message_bytes_max: usize,
    /// Bytes a live subscriber is handed in one step: large enough to be efficient, small
    /// enough that others get their turn.
    pub step_bytes: usize,
    /// Bytes of history read for one subscriber in one go, at most; a large one is worth
    /// its wake-ups.
    pub history_step_bytes: usize,
    /// Bytes of history in memory for all recovering subscribers together, until it is delivered;
    /// the more there are, the smaller their steps.
    pub recovery_bytes_max: usize,
    /// Bytes that wait for one subscriber of volatile subjects; past it the oldest go, and
    /// the subscriber gets a gap notice.
    pub mailbox_bytes_max: usize,
    /// Messages that wait for one subscriber of volatile subjects.
    pub mailbox_messages_max: usize,
    /// Bytes a volatile topic keeps in memory, unless its retention says less.
    pub volatile_topic_bytes_max: u64,
    /// Bytes that all volatile topics keep in memory together; past it a publish that would add to
    /// it is refused.
    pub volatile_bytes_max: u64,
    /// Bytes that wait for all subscribers of volatile subjects together; past it each keeps only
    /// its newest message, and gets a gap notice.
    pub mailboxes_bytes_max: usize,
    /// Delivery reports that may be open: each costs some 300 bytes and 100 for each subscriber.
    pub reports_max: usize,
    /// Messages that may wait for their time, over all topics: each costs some 60 bytes.
    pub delayed_max: usize,
    /// How far ahead a message may be delayed.
    pub delay_max: Duration,
    /// Most groups: each costs about a kilobyte, and what is open in it.
    pub groups_max: usize,
    /// Most members of one group.
    pub members_max: usize,
    /// Bytes that one group keeps of what it has read ahead; beyond it only the places are
    /// remembered, and messages are read again when their turn comes.
    pub group_read_ahead_bytes_max: usize,
    /// Most named cells.
    pub cells_max: usize,
    /// Most bytes of the names and values of all cells together: they are in memory.
    pub cells_bytes_max: u64,
    /// Most bytes of a cell's value.
    pub cell_bytes_max: usize,
    /// How often the keeper and the timers look for work, at the latest.
    pub keep_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            topics_max: 10_000_000,
            subscriptions_max: 1_000_000,
            message_bytes_max: 4 * 1024 * 1024 - 64 * 1024,
            step_bytes: 256 * 1024,
            history_step_bytes: 1024 * 1024,
            recovery_bytes_max: 256 * 1024 * 1024,
            mailbox_bytes_max: 8 * 1024 * 1024,
            mailbox_messages_max: 65_536,
            volatile_topic_bytes_max: 4 * 1024 * 1024,
            volatile_bytes_max: 512 * 1024 * 1024,
            mailboxes_bytes_max: 512 * 1024 * 1024,
            reports_max: 65_536,
            delayed_max: 10_000_000,
            delay_max: Duration::from_secs(366 * 24 * 60 * 60),
            groups_max: 100_000,
            members_max: 10_000,
            group_read_ahead_bytes_max: 32 * 1024 * 1024,
            cells_max: 1_000_000,
            cells_bytes_max: 256 * 1024 * 1024,
            cell_bytes_max: 64 * 1024,
            keep_interval: Duration::from_millis(100),
        }
    }
}
