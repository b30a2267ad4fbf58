//! Where named subscriptions are, and what that means for what is held for them.
//!
//! The place of one is the greatest claim that any node makes now, this one included. A claim of
//! this node that is not the greatest is given up. Without a claim it is away, and suspended.

use alloc::vec::Vec;

use super::{Effect, EndReason, Node, Target};
use crate::cluster::event::{ClusterEvent, LostReason, LostTarget};
use crate::cluster::name::{Claim, Named};
use crate::cluster::named::NamedId;
use crate::cluster::peer::{ME, NodeId};
use crate::cluster::report::DeliveryStatus;
use crate::subscriber::{self, FailReason, Status, Subscriber};
use crate::time::Timestamp;

impl Node {
    /// A node says that a named subscription is with it.
    pub(super) fn claim(
        &mut self,
        now: Timestamp,
        (node, named): (NodeId, &Named),
        claim: Claim,
        effects: &mut Vec<Effect>,
    ) {
        let id = self.named.id(named).unwrap_or_else(|| {
            let id = self.named.add(named, now, self.config.suspended_ttl);
            let added = self.index.insert(&named.pattern, Target::Named(id));
            debug_assert!(added.is_ok(), "an id is new");
            id
        });
        if let Some(holding) = self.named.get_mut(id) {
            holding.claim(claim, node);
        }
        self.place(now, id, FailReason::SubscriberUnreachable, effects);
    }

    /// A node does not say so any more: its connection is lost, or the node is.
    pub(super) fn unclaim(
        &mut self,
        now: Timestamp,
        (node, named): (NodeId, &Named),
        session: u64,
        reason: FailReason,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = self.named.id(named) else { return };
        if let Some(holding) = self.named.get_mut(id) {
            holding.unclaim(node, session);
        }
        self.place(now, id, reason, effects);
    }

    /// It unsubscribed at a node: unless another one still has it, nothing is held for it.
    pub(super) fn end(
        &mut self,
        now: Timestamp,
        (node, named): (NodeId, &Named),
        session: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = self.named.id(named) else { return };
        let Some(holding) = self.named.get_mut(id) else { return };
        holding.unclaim(node, session);
        if holding.has_claims() {
            self.place(now, id, FailReason::SubscriberUnreachable, effects);
        } else {
            self.events.push(ClusterEvent::NamedEnded { named: named.clone() });
            self.forget_named(id, None);
        }
    }

    /// Moves it to where the greatest claim says. `reason` is why it would be nowhere.
    fn place(
        &mut self,
        now: Timestamp,
        id: NamedId,
        reason: FailReason,
        effects: &mut Vec<Effect>,
    ) {
        let Some(holding) = self.named.get_mut(id) else { return };
        let (old, new) = (holding.place, holding.best_place());
        if old != new {
            self.with_lane(id, |holding| holding.move_to(now, new));
            self.note_move(now, id, (old.map(|old| old.node), new.map(|new| new.node)), reason);
        }
        self.yield_claims(now, id, effects);
        self.arm(id);
    }

    fn note_move(
        &mut self,
        now: Timestamp,
        id: NamedId,
        (old, new): (Option<NodeId>, Option<NodeId>),
        reason: FailReason,
    ) {
        let Some(holding) = self.named.get(id) else { return };
        let (named, is_active) = (holding.named.clone(), holding.is_active());
        let Some(node) = new else {
            self.away += 1;
            self.step_named(now, id, subscriber::Input::Failed { reason });
            if self.away > self.config.interest_max {
                self.remove_named(id, reason);
            }
            return;
        };
        let is_new = old.is_none() && is_active;
        if old.is_none() && !is_active {
            self.away -= 1;
        }
        if (is_new || old.is_some_and(|old| old != node))
            && let Some(node) = self.name_of(node)
        {
            self.events.push(ClusterEvent::NamedPlaced { named, node });
        }
        self.step_named(now, id, subscriber::Input::NodeBack);
    }

    /// Gives up sessions of this node that another claim has won against.
    fn yield_claims(&mut self, now: Timestamp, id: NamedId, effects: &mut Vec<Effect>) {
        let Some(holding) = self.named.get_mut(id) else { return };
        let Some((best, _)) = holding.best().cloned() else { return };
        let named = holding.named.clone();
        for session in holding.sessions_at(ME) {
            if best.node == self.me.node && best.session == session {
                continue;
            }
            holding.unclaim(ME, session);
            self.interest.remove_session(now, session, false);
            self.peers.values_mut().for_each(|peer| peer.inbound.session_gone(session));
            let reason = EndReason::TakenOver { by: best.node.clone() };
            effects.push(Effect::EndNamed { named: named.clone(), session, reason });
        }
    }

    /// Takes a step of its state.
    pub(super) fn step_named(&mut self, now: Timestamp, id: NamedId, input: subscriber::Input) {
        let Some(holding) = self.named.get_mut(id) else { return };
        let mut steps = Vec::new();
        holding.state.step(now, input, &mut steps);
        let (named, place) = (holding.named.clone(), holding.place);
        for step in steps {
            match step {
                subscriber::Effect::Suspended { reason } => {
                    let named = named.clone();
                    self.events.push(ClusterEvent::NamedSuspended { named, reason });
                }
                subscriber::Effect::Resumed => {
                    if let Some(node) = place.and_then(|place| self.name_of(place.node)) {
                        let named = named.clone();
                        self.events.push(ClusterEvent::NamedResumed { named, node });
                    }
                }
                subscriber::Effect::Removed { reason } => self.remove_named(id, reason),
            }
        }
    }

    /// Its time is up: what is held for it is lost. If it is still somewhere, it goes on from now.
    pub(super) fn remove_named(&mut self, id: NamedId, reason: FailReason) {
        let Some(holding) = self.named.get_mut(id) else { return };
        let named = holding.named.clone();
        self.events.push(ClusterEvent::NamedRemoved { named, reason });
        if holding.has_claims() {
            holding.state = Subscriber::new(self.config.suspended_ttl);
            self.lose_held(id, Some(LostReason::Expired));
        } else {
            self.forget_named(id, Some(LostReason::Expired));
        }
    }

    /// Forgets it; with a reason, what is held for it is lost.
    pub(super) fn forget_named(&mut self, id: NamedId, reason: Option<LostReason>) {
        self.lose_held(id, reason);
        let Some(holding) = self.named.remove(id) else { return };
        if holding.place.is_none() {
            self.away -= 1;
        }
        let removed = self.index.remove(&holding.named.pattern, &Target::Named(id));
        debug_assert!(removed.is_ok(), "what is named is in the index");
    }

    /// Drops what is held for it.
    pub(super) fn lose_held(&mut self, id: NamedId, reason: Option<LostReason>) {
        let Some(holding) = self.named.get(id) else { return };
        let target = LostTarget::Named(holding.named.clone());
        let Some((held, freed)) = self.with_lane(id, |holding| holding.clear()) else { return };
        self.queued_bytes -= freed;
        for held in held {
            if let Some(reason) = reason {
                self.lose(target.clone(), reason, &held.message.subject, held.message.count());
            }
            if let Some(report) = held.report {
                self.reports.named_done(report, id, DeliveryStatus::SubscriberUnreachable);
            }
        }
    }

    /// A session has taken something.
    pub(super) fn release(
        &mut self,
        now: Timestamp,
        id: NamedId,
        session: u64,
        (upto, lost): (u64, u64),
    ) {
        let released = self.with_lane(id, |holding| holding.taken(now, session, upto, lost));
        let Some(released) = released else { return };
        self.queued_bytes -= released.bytes;
        let status =
            if released.is_lossy { DeliveryStatus::OtherError } else { DeliveryStatus::Delivered };
        for report in released.reports {
            self.reports.named_done(report, id, status);
        }
        if released.is_progress {
            self.step_named(now, id, subscriber::Input::Delivered);
            self.arm(id);
        }
    }

    /// Changes a record, and keeps in step which lane has it to send from.
    pub(super) fn with_lane<T>(
        &mut self,
        id: NamedId,
        change: impl FnOnce(&mut crate::cluster::named::Holding) -> T,
    ) -> Option<T> {
        let ahead = self.config.named_ahead_messages;
        let holding = self.named.get_mut(id)?;
        let ready = |holding: &crate::cluster::named::Holding| {
            holding.place.map(|place| place.node).zip(holding.ready(ahead))
        };
        let before = ready(holding);
        let result = change(holding);
        let after = ready(holding);
        if before != after {
            if let Some((node, admission)) = before
                && let Some(lane) = self.lane(node)
            {
                lane.ready.remove(&(admission, id));
            }
            if let Some((node, admission)) = after
                && let Some(lane) = self.lane(node)
            {
                lane.ready.insert((admission, id));
            }
        }
        Some(result)
    }

    /// Sets its timer.
    pub(super) fn arm(&mut self, id: NamedId) {
        let Some(holding) = self.named.get(id) else { return };
        let since = holding.place.and_then(|place| self.reachable_since(place.node));
        let due = holding.due(self.config.subscriber_timeout, since);
        self.named.arm(id, due);
    }

    /// Asks the node of one that takes nothing: its reports may have been lost.
    fn probe_place(&mut self, id: NamedId) {
        let place = self.named.get(id).and_then(|holding| holding.place);
        if let Some(peer) = place.and_then(|place| self.peers.get_mut(&place.node))
            && peer.probe.is_none()
        {
            self.probes += 1;
            peer.probe = Some((self.probes, None));
        }
    }

    fn reachable_since(&self, node: NodeId) -> Option<Timestamp> {
        if node == ME {
            return Some(Timestamp(0));
        }
        self.peers.get(&node).filter(|peer| peer.is_active()).map(|peer| peer.active_since)
    }

    /// Looks at those whose time has come.
    pub(super) fn tick_named(&mut self, now: Timestamp) {
        while let Some(id) = self.named.pop_due(now) {
            self.step_named(now, id, subscriber::Input::Tick);
            let Some(holding) = self.named.get(id) else { continue };
            let since = holding.place.and_then(|place| self.reachable_since(place.node));
            let due = holding.due(self.config.subscriber_timeout, since);
            let is_silent = holding.state.status() == Status::Active;
            if is_silent && due.is_some_and(|due| due <= now) {
                let reason = FailReason::Timeout;
                self.step_named(now, id, subscriber::Input::Failed { reason });
                self.probe_place(id);
            }
            self.arm(id);
        }
    }
}
