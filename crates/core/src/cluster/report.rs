//! What became of a publish, subscriber by subscriber (A8).
//!
//! A report is asked for by its publisher, and says of each subscriber that the publish was for
//! whether it took the message. A failure in it does not mean that at-least-once has given up: what
//! is held is still tried. Waiting for those who have not answered is in `reports.rs`.

use alloc::vec::Vec;

use crate::cluster::name::{Identity, NodeName};
use crate::options::coded;

/// Most subscribers that a report names as failed: it fits into a frame, and people read it.
pub const REPORT_FAILED_MAX: usize = 1_000;

/// Most subscribers of one node whose results it sends for one item.
pub const RESULTS_MAX: usize = 1_000;

/// What became of one subscriber's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryStatus {
    /// The subscriber took it.
    Delivered,
    /// The subscriber did not take it in time; it may still do so.
    Timeout,
    /// The subscriber was gone before it took it, or its node cannot be reached.
    SubscriberUnreachable,
    /// It was dropped, because too much waited for the subscriber.
    OtherError,
}

coded!(
    DeliveryStatus,
    1 Delivered "delivered",
    2 Timeout "timeout",
    3 SubscriberUnreachable "subscriber-unreachable",
    4 OtherError "other-error"
);

/// Who a message was for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubscriberName {
    /// A subscription of this number on its node; without a node it is on a server that is in no
    /// cluster.
    Handle {
        /// Its node.
        node: Option<NodeName>,
        /// Its number there.
        number: u64,
    },
    /// A named subscriber, on any node or on none.
    Identity(Identity),
    /// All anonymous ones of a node that sent no report in time.
    Node(NodeName),
}

impl core::fmt::Display for SubscriberName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Handle { node: Some(node), number } => write!(f, "{node}/{number}"),
            Self::Handle { node: None, number } => write!(f, "{number}"),
            Self::Identity(identity) => identity.fmt(f),
            Self::Node(node) => write!(f, "{node}/*"),
        }
    }
}

/// What became of a delivery, and whose it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberResult {
    /// Whose.
    pub subscriber: SubscriberName,
    /// What became of it.
    pub status: DeliveryStatus,
}

/// What became of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryReport {
    /// Delivered, if that is what it is for all; else what it was for the first that failed.
    pub status: DeliveryStatus,
    /// How many took it.
    pub delivered: u32,
    /// Those that did not take it, by name; at most [`REPORT_FAILED_MAX`].
    pub failed: Vec<SubscriberResult>,
    /// How many more did not take it.
    pub unnamed: u32,
}

impl Default for DeliveryReport {
    /// Of a publish without subscribers.
    fn default() -> Self {
        Self { status: DeliveryStatus::Delivered, delivered: 0, failed: Vec::new(), unnamed: 0 }
    }
}

impl DeliveryReport {
    /// Adds what became of one subscriber's delivery.
    pub fn add(&mut self, subscriber: SubscriberName, status: DeliveryStatus) {
        if status == DeliveryStatus::Delivered {
            self.delivered += 1;
            return;
        }
        if self.status == DeliveryStatus::Delivered {
            self.status = status;
        }
        if self.failed.len() < REPORT_FAILED_MAX {
            let at = self.failed.partition_point(|report| report.subscriber <= subscriber);
            self.failed.insert(at, SubscriberResult { subscriber, status });
        } else {
            self.unnamed += 1;
        }
    }

    /// Adds what another part of the publish came to.
    pub fn merge(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.unnamed += other.unnamed;
        other.failed.into_iter().for_each(|report| self.add(report.subscriber, report.status));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a8_a_report_is_delivered_only_if_all_took_it() {
        let local = |number| SubscriberName::Handle { node: None, number };
        let mut report = DeliveryReport::default();
        report.add(local(7), DeliveryStatus::Delivered);
        assert_eq!((report.status, report.delivered), (DeliveryStatus::Delivered, 1));
        report.add(local(9), DeliveryStatus::Timeout);
        let mut other = DeliveryReport::default();
        other.add(local(8), DeliveryStatus::OtherError);
        other.add(local(3), DeliveryStatus::Delivered);
        report.merge(other);
        assert_eq!((report.status, report.delivered), (DeliveryStatus::Timeout, 2));
        let failed = [(8, DeliveryStatus::OtherError), (9, DeliveryStatus::Timeout)];
        let failed = failed.map(|(n, status)| SubscriberResult { subscriber: local(n), status });
        assert_eq!(report.failed, failed);
    }

    #[test]
    fn failures_beyond_the_limit_are_counted() {
        let mut report = DeliveryReport::default();
        for number in 0..REPORT_FAILED_MAX as u64 + 2 {
            report.add(SubscriberName::Handle { node: None, number }, DeliveryStatus::Timeout);
        }
        assert_eq!((report.failed.len(), report.unnamed), (REPORT_FAILED_MAX, 2));
    }
}
