//! Links, membership, new lives, leaving, and time.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Effect, Node, Target};
use crate::cluster::event::{ClusterEvent, LostReason, LostTarget};
use crate::cluster::frame::Frame;
use crate::cluster::interest::{Interest, View};
use crate::cluster::name::{Incarnation, NodeName};
use crate::cluster::named::NamedId;
use crate::cluster::peer::{InterestDue, NodeId, Peer};
use crate::cluster::report::DeliveryStatus;
use crate::subscriber::{self, FailReason, Status, Subscriber};
use crate::time::Timestamp;

impl Node {
    /// The membership's whole list of nodes. One that is missing is not given up for that: links
    /// and time decide.
    pub fn topology(
        &mut self,
        now: Timestamp,
        live: &[(NodeName, Incarnation)],
        effects: &mut Vec<Effect>,
    ) {
        let mut listed = BTreeSet::new();
        for (node, incarnation) in live {
            if let Some(id) = self.meet(now, node, *incarnation, effects) {
                listed.insert(id);
            }
        }
        for (id, peer) in &mut self.peers {
            let is_live = listed.contains(id);
            if peer.is_live && !is_live {
                self.events.push(ClusterEvent::NodeGone { node: peer.name.clone() });
            }
            peer.is_live = is_live;
        }
    }

    /// This node's link to another one is up. If it had one before, that is down.
    pub fn link_up(
        &mut self,
        now: Timestamp,
        node: &NodeName,
        incarnation: Incarnation,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = self.meet(now, node, incarnation, effects) else { return };
        self.link_down(now, node, effects);
        self.revive(now, id);
        self.probes += 1;
        let (version, probe) = (self.interest.version(), self.probes);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.has_link = true;
        peer.probe = Some((probe, None));
        let has_all = version > 0 && peer.seen == version;
        peer.interest_due = if has_all { InterestDue::Stand } else { InterestDue::All };
        peer.inbound.say_all();
        peer.out.rewind(now);
        if peer.view.version.is_none() {
            peer.ask();
        }
        if peer.asked.is_some() {
            peer.asked = Some(Timestamp(0));
        }
    }

    /// This node's link to another one is down.
    pub fn link_down(&mut self, now: Timestamp, node: &NodeName, effects: &mut Vec<Effect>) {
        let Some(id) = self.ids.get(node).copied() else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.has_link {
            peer.has_link = false;
            peer.probe = None;
            let reason = FailReason::NodeUnreachable;
            self.step_peer(now, id, subscriber::Input::Failed { reason }, effects);
        }
    }

    /// Leaves the cluster: says so to all, and gives up what is held. To lose nothing, wait until
    /// [`Node::is_idle`] before.
    pub fn leave(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        // What came is said before the goodbye, so that its senders do not take it for lost.
        self.peers.values_mut().for_each(|peer| peer.inbound.say_all());
        self.settle(now, effects);
        for peer in self.peers.values().filter(|peer| peer.has_link) {
            effects.push(Effect::Send { to: peer.name.clone(), frame: Frame::Leave });
        }
        let ids: Vec<NodeId> = self.peers.keys().copied().collect();
        for id in ids {
            self.forget_subscriptions(now, id, LostReason::Leaving, effects);
        }
        let named: Vec<NamedId> = self.named.iter().map(|(id, _)| id).collect();
        for id in named {
            self.forget_named(id, Some(LostReason::Leaving));
        }
        self.has_left = true;
        self.peers.clear();
        self.ids.clear();
        self.interest = Interest::default();
        self.flush(effects);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let ids: Vec<NodeId> = self.peers.keys().copied().collect();
        for id in ids {
            self.tick_peer(now, id, effects);
        }
        self.tick_named(now);
        let (peers, me) = (&self.peers, &self.me);
        self.reports.expire(now, |id| {
            let peer = peers.get(&id).map(|peer| &peer.name);
            Some(peer.unwrap_or(&me.node).clone())
        });
        self.settle(now, effects);
    }

    /// When [`Node::tick`] is to be called at the latest.
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.has_left {
            return None;
        }
        let (resend, timeout) = (self.config.resend_after, self.config.subscriber_timeout);
        let peers = self.peers.values().filter_map(|peer| peer.due(resend, timeout));
        peers.chain(self.named.deadline()).chain(self.reports.deadline()).min()
    }

    fn tick_peer(&mut self, now: Timestamp, id: NodeId, effects: &mut Vec<Effect>) {
        let (resend, timeout) = (self.config.resend_after, self.config.subscriber_timeout);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.has_left {
            return;
        }
        while peer.out.reports.front().is_some_and(|(_, id)| !self.reports.is_pending(*id)) {
            peer.out.reports.pop_front();
        }
        if peer.has_link && peer.is_active() && !peer.out.sent.is_empty() {
            if peer.out.progress_at.after(timeout) <= now {
                self.probes += 1;
                peer.probe = Some((self.probes, None));
                let input = subscriber::Input::Failed { reason: FailReason::Timeout };
                self.step_peer(now, id, input, effects);
            } else if peer.out.resent_at.after(resend) <= now {
                peer.out.rewind(now);
            }
        }
        self.step_peer(now, id, subscriber::Input::Tick, effects);
    }

    /// The node with this name, in this life: known, or made known now. None if it is this node,
    /// if the life is over, or if there are too many.
    pub(super) fn meet(
        &mut self,
        now: Timestamp,
        node: &NodeName,
        incarnation: Incarnation,
        effects: &mut Vec<Effect>,
    ) -> Option<NodeId> {
        if self.has_left || *node == self.me.node {
            return None;
        }
        let Some(id) = self.ids.get(node).copied() else {
            return self.add_peer(now, node, incarnation, effects);
        };
        let peer = self.peers.get(&id)?;
        if incarnation < peer.incarnation || (incarnation == peer.incarnation && peer.has_left) {
            return None;
        }
        if incarnation > peer.incarnation {
            self.restart(now, id, incarnation, effects);
        }
        Some(id)
    }

    fn add_peer(
        &mut self,
        now: Timestamp,
        node: &NodeName,
        incarnation: Incarnation,
        effects: &mut Vec<Effect>,
    ) -> Option<NodeId> {
        if self.peers.len() >= self.config.nodes_max {
            let old = self.peers.iter().find(|(_, peer)| peer.is_forgettable());
            let Some((old, name)) = old.map(|(id, peer)| (*id, peer.name.clone())) else {
                self.events.push(ClusterEvent::NodeRefused { node: node.clone() });
                return None;
            };
            self.peers.remove(&old);
            self.ids.remove(&name);
        }
        self.peers_made += 1;
        let id = NodeId(self.peers_made);
        let peer = Peer::new(node.clone(), incarnation, now, self.config.suspended_ttl);
        self.peers.insert(id, peer);
        self.ids.insert(node.clone(), id);
        self.events.push(ClusterEvent::NodeJoined { node: node.clone(), incarnation });
        self.suspend_new(now, id, effects);
        Some(id)
    }

    /// A node is not delivered to before it has answered.
    fn suspend_new(&mut self, now: Timestamp, id: NodeId, effects: &mut Vec<Effect>) {
        let reason = FailReason::NodeUnreachable;
        self.step_peer(now, id, subscriber::Input::Failed { reason }, effects);
    }

    /// A node began a new life: nothing of the old one counts.
    fn restart(
        &mut self,
        now: Timestamp,
        id: NodeId,
        incarnation: Incarnation,
        effects: &mut Vec<Effect>,
    ) {
        self.forget_subscriptions(now, id, LostReason::Restarted, effects);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (name, is_live) = (peer.name.clone(), peer.is_live);
        *peer = Peer::new(name.clone(), incarnation, now, self.config.suspended_ttl);
        peer.is_live = is_live;
        self.events.push(ClusterEvent::NodeRestarted { node: name, incarnation });
        self.suspend_new(now, id, effects);
    }

    /// A node that was removed shows a sign of life: it is suspended again, from now.
    pub(super) fn revive(&mut self, now: Timestamp, id: NodeId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.state.status() != Status::Removed {
            return;
        }
        peer.state = Subscriber::new(self.config.suspended_ttl);
        if peer.view.version.is_none() {
            peer.ask();
        }
        let reason = FailReason::NodeUnreachable;
        peer.state.step(now, subscriber::Input::Failed { reason }, &mut Vec::new());
        self.events.push(ClusterEvent::NodeSuspended { node: peer.name.clone(), reason });
    }

    /// Takes a step of a node's state.
    pub(super) fn step_peer(
        &mut self,
        now: Timestamp,
        id: NodeId,
        input: subscriber::Input,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut steps = Vec::new();
        peer.state.step(now, input, &mut steps);
        let node = peer.name.clone();
        for step in steps {
            match step {
                subscriber::Effect::Suspended { reason } => {
                    self.drop_once(id);
                    self.events.push(ClusterEvent::NodeSuspended { node: node.clone(), reason });
                }
                subscriber::Effect::Resumed => {
                    self.events.push(ClusterEvent::NodeResumed { node: node.clone() });
                    self.resume(now, id);
                }
                subscriber::Effect::Removed { reason } => {
                    self.events.push(ClusterEvent::NodeRemoved { node: node.clone(), reason });
                    self.forget_subscriptions(now, id, LostReason::Expired, effects);
                }
            }
        }
    }

    /// A node is delivered to again, from the first item that it has not received.
    fn resume(&mut self, now: Timestamp, id: NodeId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.probe = None;
        peer.active_since = now;
        peer.out.rewind(now);
        peer.out.progress_at = now;
        let named = peer.view.sessions.values().map(|(named, _)| named);
        let named: Vec<NamedId> = named.filter_map(|named| self.named.id(named)).collect();
        named.into_iter().for_each(|id| self.arm(id));
    }

    /// At-most-once messages do not wait for a node to come back.
    fn drop_once(&mut self, id: NodeId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let out = &mut peer.out;
        let kept = core::mem::take(&mut out.waiting).into_iter();
        let (once, kept): (Vec<_>, Vec<_>) = kept.partition(|waiting| waiting.is_once);
        out.waiting = kept.into();
        for waiting in once {
            out.waiting_bytes -= waiting.message.cost();
            self.queued_bytes -= out.uncharge(&waiting.message);
            self.counts.messages_unknown += waiting.message.count() as u64;
        }
        for sent in out.sent.iter_mut().filter(|sent| sent.is_once) {
            self.counts.messages_unknown += sent.message.count() as u64;
            // The number is still to be received; there is nothing behind it any more.
            (sent.is_once, sent.anonymous) = (false, false);
            sent.named.clear();
        }
    }

    /// Forgets what subscribes at a node: messages for anonymous subscribers are lost, named
    /// subscriptions are away, or lost as well if the node was suspended for as long as they may be.
    pub(super) fn forget_subscriptions(
        &mut self,
        now: Timestamp,
        id: NodeId,
        reason: LostReason,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (name, view) = (peer.name.clone(), core::mem::take(&mut peer.view));
        peer.asked = None;
        let View { patterns, sessions, .. } = view;
        for pattern in &patterns {
            let removed = self.index.remove(pattern, &Target::Node(id));
            debug_assert!(removed.is_ok(), "the view and the index agree");
        }
        for (session, (named, _)) in sessions {
            let why = FailReason::NodeUnreachable;
            self.unclaim(now, (id, &named), session, why, effects);
            if reason == LostReason::Expired
                && let Some(named) = self.named.id(&named)
                && self.named.get(named).is_some_and(|holding| !holding.has_claims())
            {
                self.remove_named(named, why);
            }
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (lost, freed) = peer.out.clear();
        self.queued_bytes -= freed;
        for (message, report) in lost {
            let target = LostTarget::Node(name.clone());
            self.lose(target, reason, &message.subject, message.count());
            if let Some(report) = report {
                let status = DeliveryStatus::SubscriberUnreachable;
                self.reports.node_failed(report, id, &name, status);
            }
        }
    }
}
