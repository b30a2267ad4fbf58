//! What a node knows of another node.

use core::time::Duration;

use super::endpoint::Inbound;
use super::interest::View;
use super::name::{Incarnation, NodeName};
use super::outbound::Outbound;
use crate::subscriber::{Status, Subscriber};
use crate::time::Timestamp;

/// A node, for short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u32);

/// This node.
pub(super) const ME: NodeId = NodeId(0);

/// What of this node's interest another one is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterestDue {
    /// Only changes.
    Changes,
    /// It had all of it when its link broke: only where it stands.
    Stand,
    /// All of it.
    All,
}

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: NodeName,
    pub(super) incarnation: Incarnation,
    /// Whether the membership lists it.
    pub(super) is_live: bool,
    /// Whether this life of it has left the cluster.
    pub(super) has_left: bool,
    /// Whether this node's link to it is up.
    pub(super) has_link: bool,
    /// Whether its anonymous subscribers are delivered to.
    pub(super) state: Subscriber,
    pub(super) active_since: Timestamp,
    /// The probe that is not answered yet: its number, and when it was sent last.
    pub(super) probe: Option<(u64, Option<Timestamp>)>,
    /// A probe of the other node that is to be answered, when there is a link. The other node
    /// takes the answer only for the link over which it asked.
    pub(super) answer: Option<u64>,

    pub(super) out: Outbound,
    pub(super) inbound: Inbound,

    pub(super) view: View,
    /// When it was asked for its interest; the zero time if it is yet to be asked.
    pub(super) asked: Option<Timestamp>,

    /// The version of this node's interest that it was sent, over the present link.
    pub(super) told: u64,
    /// When it was sent something of it for the last time.
    pub(super) told_at: Timestamp,
    /// The version that it knows.
    pub(super) seen: u64,
    pub(super) interest_due: InterestDue,
}

impl Peer {
    pub(super) fn new(
        name: NodeName,
        incarnation: Incarnation,
        now: Timestamp,
        suspended_ttl: Duration,
    ) -> Self {
        Self {
            name,
            incarnation,
            is_live: false,
            has_left: false,
            has_link: false,
            state: Subscriber::new(suspended_ttl),
            active_since: now,
            probe: None,
            answer: None,
            out: Outbound::new(now),
            inbound: Inbound::new(),
            view: View::default(),
            asked: None,
            told: 0,
            told_at: now,
            seen: 0,
            interest_due: InterestDue::All,
        }
    }

    /// Whether it is delivered to.
    pub(super) fn is_active(&self) -> bool {
        self.state.status() == Status::Active && !self.has_left
    }

    /// Whether it may be forgotten to make room for another.
    pub(super) fn is_forgettable(&self) -> bool {
        let is_over = self.has_left || self.state.status() == Status::Removed;
        is_over && !self.has_link && !self.is_live
    }

    /// Asks for its interest, now and until it comes.
    pub(super) fn ask(&mut self) {
        self.asked.get_or_insert(Timestamp(0));
    }

    /// When something is due: a repeat, a suspension, a removal.
    pub(super) fn due(&self, resend_after: Duration, timeout: Duration) -> Option<Timestamp> {
        let mut due = None;
        let mut at = |time: Timestamp| due = Some(due.map_or(time, |due: Timestamp| due.min(time)));
        if self.has_left {
            return None;
        }
        if let Some(removal) = self.state.deadline() {
            at(removal);
        }
        if self.has_link {
            if let Some(receipt) = self.inbound.due_at {
                at(receipt);
            }
            if let Some(asked) = self.asked {
                at(asked.after(resend_after));
            }
            if self.seen < self.told {
                at(self.told_at.after(resend_after));
            }
            if let Some((_, Some(probed))) = self.probe {
                at(probed.after(resend_after));
            }
            if self.is_active() && !self.out.sent.is_empty() {
                at(self.out.resent_at.after(resend_after));
                at(self.out.progress_at.after(timeout));
            }
        }
        due
    }
}
