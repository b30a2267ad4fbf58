//! What happens in a cluster, for those who watch it (A11), and what was lost.

use alloc::vec::Vec;

use super::name::{Incarnation, Named, NodeName};
use crate::name::TopicName;
use crate::subscriber::FailReason;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterEvent {
    /// A node is known that was not.
    NodeJoined {
        /// Which.
        node: NodeName,
        /// Its life.
        incarnation: Incarnation,
    },
    /// The membership does not list it any more. Nothing else follows from that: a node that
    /// cannot be reached is suspended, and removed when its time is up.
    NodeGone {
        /// Which.
        node: NodeName,
    },
    /// It left by itself.
    NodeLeft {
        /// Which.
        node: NodeName,
    },
    /// It began a new life: the subscriptions of the old one are gone.
    NodeRestarted {
        /// Which.
        node: NodeName,
        /// Its new life.
        incarnation: Incarnation,
    },
    /// Nothing is sent to it for now; at-least-once messages are held.
    NodeSuspended {
        /// Which.
        node: NodeName,
        /// Why.
        reason: FailReason,
    },
    /// It is sent to again.
    NodeResumed {
        /// Which.
        node: NodeName,
    },
    /// It was suspended for too long; its subscriptions are forgotten.
    NodeRemoved {
        /// Which.
        node: NodeName,
        /// Why it was suspended.
        reason: FailReason,
    },
    /// It is not taken into account: there are too many nodes.
    NodeRefused {
        /// Which.
        node: NodeName,
    },
    /// Part of its interest is not taken into account: there is too much of it.
    InterestRefused {
        /// Which node, possibly this one.
        node: NodeName,
    },
    /// A named subscription is at a node, for the first time or after another one.
    NamedPlaced {
        /// Which.
        named: Named,
        /// Where.
        node: NodeName,
    },
    /// It is nowhere, or takes nothing; messages for it are held.
    NamedSuspended {
        /// Which.
        named: Named,
        /// Why.
        reason: FailReason,
    },
    /// It is back.
    NamedResumed {
        /// Which.
        named: Named,
        /// Where.
        node: NodeName,
    },
    /// It was suspended for too long; what was held for it is lost.
    NamedRemoved {
        /// Which.
        named: Named,
        /// Why it was suspended.
        reason: FailReason,
    },
    /// It unsubscribed.
    NamedEnded {
        /// Which.
        named: Named,
    },
    /// Messages are lost that were accepted.
    Lost(Lost),
}

impl ClusterEvent {
    /// The subject of the event, without the `$events.` before it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NodeJoined { .. } => "cluster.node-joined",
            Self::NodeGone { .. } => "cluster.node-gone",
            Self::NodeLeft { .. } => "cluster.node-left",
            Self::NodeRestarted { .. } => "cluster.node-restarted",
            Self::NodeSuspended { .. } => "cluster.node-suspended",
            Self::NodeResumed { .. } => "cluster.node-resumed",
            Self::NodeRemoved { .. } => "cluster.node-removed",
            Self::NodeRefused { .. } => "cluster.node-refused",
            Self::InterestRefused { .. } => "cluster.interest-refused",
            Self::NamedPlaced { .. } => "cluster.subscriber-placed",
            Self::NamedSuspended { .. } => "cluster.subscriber-suspended",
            Self::NamedResumed { .. } => "cluster.subscriber-resumed",
            Self::NamedRemoved { .. } => "cluster.subscriber-removed",
            Self::NamedEnded { .. } => "cluster.subscriber-ended",
            Self::Lost(_) => "delivery.lost",
        }
    }
}

/// Messages that were accepted and are not known to have arrived, and are tried no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// For whom they were.
    pub target: LostTarget,
    /// Messages of each subject, for at most [`LOST_SUBJECTS_MAX`](super::LOST_SUBJECTS_MAX)
    /// subjects.
    pub subjects: Vec<(TopicName, u64)>,
    /// Messages of all subjects.
    pub messages: u64,
    /// Why.
    pub reason: LostReason,
}

/// For whom a lost message was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LostTarget {
    /// The anonymous subscribers of a node.
    Node(NodeName),
    /// A named subscription.
    Named(Named),
}

/// Why messages are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostReason {
    /// The target was suspended for longer than `suspended_ttl`.
    Expired,
    /// Its node began a new life.
    Restarted,
    /// Its node left.
    Left,
    /// This node leaves, and holds them in memory only.
    Leaving,
    /// A named subscription took them too slowly: its mailbox overflowed.
    Overflow,
    /// They were to be delivered at most once, and could not be sent at once.
    NotQueued,
}

impl LostReason {
    /// The word users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Restarted => "restarted",
            Self::Left => "left",
            Self::Leaving => "leaving",
            Self::Overflow => "overflow",
            Self::NotQueued => "not-queued",
        }
    }
}
