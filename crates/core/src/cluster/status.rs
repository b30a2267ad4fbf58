//! How a node and its cluster are doing, as plain values.

use alloc::vec::Vec;

use super::name::{Incarnation, Named, NodeName};
use crate::subscriber::Status;
use crate::time::Timestamp;

/// Most named subscriptions that a status lists.
pub const NAMED_SHOWN_MAX: usize = 1_000;

/// The cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// This node.
    pub me: NodeName,
    /// Its life.
    pub incarnation: Incarnation,
    /// Whether it has left.
    pub has_left: bool,
    /// The version of its interest.
    pub version: u64,
    /// The version that all live nodes have seen.
    pub visible: u64,
    /// Patterns of its anonymous subscribers that are spread.
    pub patterns: usize,
    /// Named subscriptions at it.
    pub sessions: usize,
    /// The other nodes.
    pub nodes: Vec<NodeStatus>,
    /// Named subscriptions, wherever they are: suspended ones first, at most [`NAMED_SHOWN_MAX`].
    pub named: Vec<NamedStatus>,
    /// How many named subscriptions there are.
    pub named_total: usize,
    /// Bytes in all queues.
    pub queued_bytes: usize,
    /// What was counted since the start.
    pub counts: Counts,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its name.
    pub node: NodeName,
    /// Its life.
    pub incarnation: Incarnation,
    /// Whether the membership lists it.
    pub is_live: bool,
    /// Whether it has left.
    pub has_left: bool,
    /// Whether this node's link to it is up.
    pub has_link: bool,
    /// Whether it is delivered to.
    pub state: Status,
    /// Patterns of its anonymous subscribers.
    pub patterns: usize,
    /// Named subscriptions at it.
    pub sessions: usize,
    /// The version of this node's interest that it knows.
    pub interest_seen: u64,
    /// What waits for its anonymous subscribers.
    pub queue: QueueStatus,
    /// Bytes that were sent and are not received yet.
    pub sent_bytes: usize,
}

/// A named subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedStatus {
    /// Which.
    pub named: Named,
    /// Where it is.
    pub node: Option<NodeName>,
    /// Whether it is delivered to.
    pub state: Status,
    /// What it has not taken yet.
    pub queue: QueueStatus,
}

/// A queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Messages in it.
    pub messages: usize,
    /// Their bytes, with what they cost beside.
    pub bytes: usize,
    /// When the oldest was admitted.
    pub oldest: Option<Timestamp>,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items sent for the first time.
    pub items_sent: u64,
    /// Items sent again.
    pub items_resent: u64,
    /// Items received for the first time.
    pub items_received: u64,
    /// Items received again, and not delivered again.
    pub items_repeated: u64,
    /// Messages that events named as lost.
    pub messages_lost: u64,
    /// At-most-once messages that were in flight when their link broke: whether they arrived is
    /// not known.
    pub messages_unknown: u64,
    /// Publishes refused because a queue was full.
    pub queue_full: u64,
    /// Publishes refused because a target was suspended.
    pub partition_drop: u64,
}
