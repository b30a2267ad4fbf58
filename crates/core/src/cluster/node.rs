//! One node of a cluster: its inputs, and what is to be done about them.
//!
//! Inputs change the state at once; frames go out when [`Node::settle`] is called, once after a
//! burst of inputs: first reports, then interest, then messages. So a subject that a request names
//! for its reply is known where the request arrives, and many changes make few frames.
//!
//! The files: `subscribe` for what this node's subscribers do, `publish` for admission, `placing` for
//! where named subscriptions are, `frames` for what arrives, `world` for links, membership and time,
//! `pump` for what is sent, `check` for what must always hold.

mod check;
mod frames;
mod placing;
mod publish;
mod pump;
mod subscribe;
mod world;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

pub use publish::{Admitted, Policy};

use super::config::ClusterConfig;
use super::event::{ClusterEvent, LostReason, LostTarget};
use super::frame::Frame;
use super::interest::Interest;
use super::loss::Losses;
use super::name::{Incarnation, Named, NodeName, Sender};
use super::named::{NamedId, Table};
use super::outbound::Outbound;
use super::peer::{ME, NodeId, Peer};
use super::report::DeliveryReport;
use super::reports::Reports;
use super::status::{ClusterStatus, Counts, NAMED_SHOWN_MAX, NamedStatus, NodeStatus, QueueStatus};
use super::topics::{Topics, TopicsCounted};
use crate::batch::Records;
use crate::name::TopicName;
use crate::subscriber::Status;
use crate::time::Timestamp;
use crate::trie::SubscriptionIndex;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a frame over the link to a node; if there is none any more, drop it.
    Send {
        /// To which node.
        to: NodeName,
        /// What.
        frame: Frame,
    },
    /// Put messages into mailboxes of this node.
    Deliver {
        /// Which node sent them; this one for its own named subscriptions.
        from: Sender,
        /// Their place in its order: greater than before, for each subscriber. To be named when
        /// they are taken, and when their report is settled.
        order: u64,
        /// What, and for whom.
        delivery: Delivery,
    },
    /// End a named subscription at this node. Nothing is expected back.
    EndNamed {
        /// Which.
        named: Named,
        /// The number of its stay.
        session: u64,
        /// Why.
        reason: EndReason,
    },
    /// Tell a publisher what became of its publish at other nodes and at named subscriptions.
    Reported {
        /// The id under which it asked.
        report: u64,
        /// What became of it.
        results: DeliveryReport,
    },
    /// Publish an event.
    Event(ClusterEvent),
    /// Wake those who wait until this version of the interest is known everywhere. It may be one that
    /// was known before, if a node came that did not know it.
    Visible {
        /// Which version.
        version: u64,
    },
}

/// Messages for subscribers of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Their subject.
    pub subject: TopicName,
    /// The messages.
    pub records: Records,
    /// How long the sender has held them, in ms: times to live began that long ago.
    pub age_ms: u64,
    /// Whether they are for the anonymous subscribers that match the subject.
    pub anonymous: bool,
    /// Named subscriptions they are for, with the number of the stay.
    pub named: Vec<(Named, u64)>,
    /// Whether the sender wants to know what became of them at the anonymous subscribers.
    pub report: bool,
}

/// Why a named subscription ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The same identity subscribed later, at this or another node.
    TakenOver {
        /// At which node.
        by: NodeName,
    },
}

/// Why a named subscription was refused. Nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamedError {
    /// Names that begin with `$` belong to one node.
    #[error("a pattern that begins with '$' is of one node only: subscribe without an identity")]
    SystemName,
    /// The node has too many patterns and named subscriptions.
    #[error("the node has {max} patterns and named subscriptions: end some, or raise interest_max")]
    TooMany {
        /// How many it may have.
        max: usize,
    },
    /// The node has left the cluster.
    #[error("the node has left the cluster: connect to another one")]
    Left,
}

/// Who a message may be for, in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The anonymous subscribers of another node.
    Node(NodeId),
    /// A named subscription, wherever it is.
    Named(NamedId),
}

/// One node of a cluster.
#[derive(Debug)]
pub struct Node {
    config: ClusterConfig,
    me: Sender,
    has_left: bool,
    interest: Interest,
    peers: BTreeMap<NodeId, Peer>,
    ids: BTreeMap<NodeName, NodeId>,
    peers_made: u32,
    named: Table,
    /// Named subscriptions that are nowhere.
    away: usize,
    index: SubscriptionIndex<Target>,
    /// The way to the named subscriptions of this node.
    local: Outbound,
    reports: Reports,
    losses: Losses,
    /// Bytes in all queues.
    queued_bytes: usize,
    /// How many publishes were admitted: their order.
    admissions: u64,
    probes: u64,
    /// The version of the interest that was visible when that was looked at last.
    visible: u64,
    /// Events since the last settling.
    events: Vec<ClusterEvent>,
    counts: Counts,
    topics: Topics,
    /// Reused by each publish.
    matched: Vec<Target>,
}

impl Node {
    /// A node that knows no other.
    pub fn new(config: ClusterConfig, me: NodeName, incarnation: Incarnation) -> Self {
        Self {
            config,
            me: Sender { node: me, incarnation },
            has_left: false,
            interest: Interest::default(),
            peers: BTreeMap::new(),
            ids: BTreeMap::new(),
            peers_made: 0,
            named: Table::default(),
            away: 0,
            index: SubscriptionIndex::new(),
            local: Outbound::new(Timestamp(0)),
            reports: Reports::default(),
            losses: Losses::default(),
            queued_bytes: 0,
            admissions: 0,
            probes: 0,
            visible: 0,
            events: Vec::new(),
            counts: Counts::default(),
            topics: Topics::default(),
            matched: Vec::new(),
        }
    }

    /// Its name and life.
    pub fn me(&self) -> &Sender {
        &self.me
    }

    /// Its times and limits.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Whether a publish to this subject concerns other nodes or named subscriptions.
    pub fn wants(&self, subject: &TopicName) -> bool {
        self.index.matches_any(subject)
    }

    /// Whether there is any subject that other nodes or named subscriptions want.
    pub fn has_targets(&self) -> bool {
        !self.index.is_empty()
    }

    /// Who a publish to this subject would go to, beside this node's anonymous subscribers.
    pub fn targets(&self, subject: &TopicName) -> Vec<LostTarget> {
        let mut targets = BTreeSet::new();
        self.index.for_each_match(subject, |target| {
            targets.insert(*target);
        });
        let name = |target| match target {
            Target::Node(id) => self.name_of(id).map(LostTarget::Node),
            Target::Named(id) => {
                self.named.get(id).map(|holding| LostTarget::Named(holding.named.clone()))
            }
        };
        targets.into_iter().filter_map(name).collect()
    }

    /// The version of this node's interest that every node of the cluster has seen.
    pub fn visible(&self) -> u64 {
        let seen = self.peers.values().filter(|peer| must_see(peer)).map(|peer| peer.seen);
        seen.min().unwrap_or(u64::MAX).min(self.interest.version())
    }

    /// The same, for those who wait: when it has risen, [`Effect::Visible`] says so.
    pub fn watch_visible(&mut self) -> u64 {
        self.visible = self.visible();
        self.visible
    }

    /// The nodes that have not seen this version yet.
    pub fn unseen(&self, version: u64) -> Vec<NodeName> {
        let peers = self.peers.values().filter(|peer| must_see(peer) && peer.seen < version);
        peers.map(|peer| peer.name.clone()).collect()
    }

    /// Whether nothing waits for a node or named subscription that can be reached.
    pub fn is_idle(&self) -> bool {
        let nodes = self.peers.values().filter(|peer| peer.is_active());
        let mut nodes = nodes.map(|peer| peer.out.bytes);
        let placed = self.named.iter().filter(|(_, holding)| {
            holding.place.is_some_and(|place| self.is_reachable(place.node))
        });
        let mut named = placed.map(|(_, holding)| holding.bytes);
        nodes.all(|bytes| bytes == 0) && named.all(|bytes| bytes == 0)
    }

    /// How it and its cluster are doing.
    pub fn status(&self) -> ClusterStatus {
        let (patterns, sessions) = self.interest.len();
        let mut named: Vec<NamedStatus> = Vec::new();
        for suspended in [true, false] {
            let those = self.named.iter().filter(|(_, holding)| holding.is_active() != suspended);
            named.extend(those.take(NAMED_SHOWN_MAX - named.len()).map(|(_, holding)| {
                let queue = QueueStatus {
                    messages: holding.messages,
                    bytes: holding.bytes,
                    oldest: holding.held.front().map(|held| held.message.at),
                };
                let node = holding.place.and_then(|place| self.name_of(place.node));
                let named = holding.named.clone();
                NamedStatus { named, node, state: holding.state.status(), queue }
            }));
        }
        let node = |peer: &Peer| NodeStatus {
            node: peer.name.clone(),
            incarnation: peer.incarnation,
            is_live: peer.is_live,
            has_left: peer.has_left,
            has_link: peer.has_link,
            state: peer.state.status(),
            patterns: peer.view.patterns.len(),
            sessions: peer.view.sessions.len(),
            interest_seen: peer.seen,
            queue: QueueStatus {
                messages: peer.out.messages,
                bytes: peer.out.bytes,
                oldest: peer.out.oldest(),
            },
            sent_bytes: peer.out.sent_bytes,
        };
        ClusterStatus {
            me: self.me.node.clone(),
            incarnation: self.me.incarnation,
            has_left: self.has_left,
            version: self.interest.version(),
            visible: self.visible(),
            patterns,
            sessions,
            nodes: self.peers.values().map(node).collect(),
            named,
            named_total: self.named.len(),
            queued_bytes: self.queued_bytes,
            counts: self.counts,
        }
    }

    /// What was counted of single topics.
    pub fn topics_counted(&self) -> TopicsCounted {
        self.topics.counted()
    }

    /// Whether a place can be delivered to.
    fn is_reachable(&self, node: NodeId) -> bool {
        node == ME || self.peers.get(&node).is_some_and(Peer::is_active)
    }

    /// The way to a node.
    fn lane(&mut self, node: NodeId) -> Option<&mut Outbound> {
        if node == ME {
            return Some(&mut self.local);
        }
        self.peers.get_mut(&node).map(|peer| &mut peer.out)
    }

    fn name_of(&self, node: NodeId) -> Option<NodeName> {
        if node == ME {
            return Some(self.me.node.clone());
        }
        self.peers.get(&node).map(|peer| peer.name.clone())
    }

    /// Notes messages that are lost.
    fn lose(&mut self, target: LostTarget, reason: LostReason, subject: &TopicName, count: usize) {
        let messages = count as u64;
        self.counts.messages_lost += messages;
        self.topics.count_again(subject, messages, |counts| counts.lost += messages);
        self.losses.add(target, reason, subject, count);
    }
}

/// Whether a node counts when the spread of interest is looked at.
fn must_see(peer: &Peer) -> bool {
    // One that is away may be alive and have publishers, until it is given up.
    let is_known = peer.is_live || peer.has_link || peer.state.status() != Status::Removed;
    is_known && !peer.has_left
}
