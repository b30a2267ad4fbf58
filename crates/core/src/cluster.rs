//! Pub/sub over nodes: what one node of a cluster decides (A1, A5, A7 to A10).
//!
//! A [`Node`] knows which other nodes want which subjects (their *interest*), admits a publish to
//! all its targets or to none, numbers and resends what it sends to each node, removes repeats of
//! what it receives, and holds what cannot be delivered now. What it gives up it names in an event.
//! The rules are those of `docs/adr/0016-cluster-pubsub.md`.
//!
//! Everything that one node says to another goes over the one link that it opened, in order; the
//! same link in the other direction is a link of its own. Sockets, bytes, membership, mailboxes
//! and the clock are not here.

mod config;
mod endpoint;
mod event;
mod frame;
mod interest;
mod loss;
mod message;
mod name;
mod named;
mod node;
mod outbound;
mod peer;
mod report;
mod reports;
mod status;
#[cfg(test)]
mod tests;
mod topics;

pub use config::{ClusterConfig, ClusterConfigError};
pub use event::{ClusterEvent, Lost, LostReason, LostTarget};
pub use frame::{
    Change, FRAME_BYTES_MAX, FRAME_ITEMS_MAX, FULL_ENTRIES_MAX, Frame, Item, ItemResult, Taken,
};
pub use loss::LOST_SUBJECTS_MAX;
pub use name::{
    Claim, ClusterNameError, IDENTITY_BYTES_MAX, Identity, Incarnation, NODE_NAME_BYTES_MAX, Named,
    NodeName, Sender,
};
pub use node::{Admitted, Delivery, Effect, EndReason, NamedError, Node, Policy};
pub use report::{
    DeliveryReport, DeliveryStatus, REPORT_FAILED_MAX, RESULTS_MAX, SubscriberName,
    SubscriberResult,
};
pub use reports::REPORTS_MAX;
pub use status::{ClusterStatus, Counts, NAMED_SHOWN_MAX, NamedStatus, NodeStatus, QueueStatus};
pub use topics::{TOPICS_COUNTED_MAX, TopicCounts, TopicsCounted};
