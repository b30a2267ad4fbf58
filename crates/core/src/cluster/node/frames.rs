//! What other nodes say.
//!
//! Frames of a life that is over are dropped; the first frame of a new life ends the old one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::subscribe::is_system;
use super::{Delivery, Effect, Node, Target};
use crate::cluster::endpoint::Number;
use crate::cluster::event::{ClusterEvent, LostReason};
use crate::cluster::frame::{Change, Frame, Item, ItemResult, Taken};
use crate::cluster::interest::Step;
use crate::cluster::name::{Claim, Named, Sender};
use crate::cluster::peer::{InterestDue, NodeId};
use crate::cluster::topics::TopicCounts;
use crate::pattern::Pattern;
use crate::subscriber::{self, FailReason};
use crate::time::Timestamp;

impl Node {
    /// A frame arrived from a node.
    pub fn frame(
        &mut self,
        now: Timestamp,
        from: &Sender,
        frame: Frame,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = self.meet(now, &from.node, from.incarnation, effects) else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match frame {
            Frame::Interest { base, version, changes } => {
                self.changes(now, id, (base, version), changes, effects);
            }
            Frame::InterestFull { version, part, last, entries } => {
                self.part(now, id, (version, part, last), entries, effects);
            }
            Frame::InterestAsk => peer.interest_due = InterestDue::All,
            Frame::Deliver { base, first, items } => {
                self.items(now, id, from, (base, first), items, effects);
            }
            Frame::Report { received, interest_seen, taken, results } => {
                peer.seen = interest_seen.min(self.interest.version());
                let freed = peer.out.received(now, received);
                self.queued_bytes -= freed;
                self.taken_at(now, id, &taken);
                self.results(id, results);
            }
            Frame::Probe(number) => {
                // One who asks may have missed reports.
                peer.inbound.say_all();
                peer.answer = Some(number);
            }
            Frame::Probed(number) => {
                let is_answer = peer.probe.is_some_and(|(probe, _)| probe == number);
                if is_answer && peer.has_link {
                    peer.probe = None;
                    self.revive(now, id);
                    self.step_peer(now, id, subscriber::Input::NodeBack, effects);
                }
            }
            Frame::Leave => {
                peer.has_left = true;
                self.events.push(ClusterEvent::NodeLeft { node: from.node.clone() });
                self.forget_subscriptions(now, id, LostReason::Left, effects);
            }
        }
    }

    fn changes(
        &mut self,
        now: Timestamp,
        id: NodeId,
        (base, version): (u64, u64),
        changes: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.inbound.is_due = true;
        match peer.view.step(base, version) {
            Step::Known => {}
            Step::Hole => peer.ask(),
            Step::Next => {
                peer.view.version = Some(version);
                for change in changes {
                    self.change(now, id, change, effects);
                }
            }
        }
    }

    fn part(
        &mut self,
        now: Timestamp,
        id: NodeId,
        (version, part, last): (u64, u32, bool),
        entries: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) {
        let max = self.config.interest_max;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.inbound.is_due = true;
        if peer.view.version.is_some_and(|known| version < known) {
            return;
        }
        match peer.view.part((version, part, last), entries, max) {
            Err(_) => peer.ask(),
            Ok(None) => {}
            Ok(Some(entries)) => {
                peer.view.version = Some(version);
                peer.view.is_refused = false;
                peer.asked = None;
                self.revive(now, id);
                self.replace(now, id, entries, effects);
            }
        }
    }

    /// Makes what is known of a node's interest the same as `entries`.
    fn replace(
        &mut self,
        now: Timestamp,
        id: NodeId,
        entries: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get(&id) else { return };
        let mut old_patterns: BTreeSet<Pattern> = peer.view.patterns.clone();
        let mut old_sessions: BTreeMap<u64, Named> =
            peer.view.sessions.iter().map(|(at, (named, _))| (*at, named.clone())).collect();
        let (mut new, mut ended) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Change::Add(pattern) => {
                    if !old_patterns.remove(&pattern) {
                        new.push(Change::Add(pattern));
                    }
                }
                Change::Here { named, time, session } => {
                    if old_sessions.remove(&session).is_none() {
                        new.push(Change::Here { named, time, session });
                    }
                }
                Change::Ended { session } => ended.push(session),
                Change::Remove(_) | Change::Away { .. } => {}
            }
        }
        // What goes makes room first; sessions come before others go, so that a subscription that
        // only has a new session is not suspended in between.
        let removed = old_patterns.into_iter().map(Change::Remove);
        removed.for_each(|change| self.change(now, id, change, effects));
        new.into_iter().for_each(|change| self.change(now, id, change, effects));
        for session in ended {
            if old_sessions.remove(&session).is_some() {
                self.change(now, id, Change::Ended { session }, effects);
            }
        }
        for session in old_sessions.into_keys() {
            self.change(now, id, Change::Away { session }, effects);
        }
    }

    /// One step of a node's interest.
    fn change(&mut self, now: Timestamp, id: NodeId, change: Change, effects: &mut Vec<Effect>) {
        let max = self.config.interest_max;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match change {
            Change::Add(pattern) => {
                if is_system(&pattern) {
                    return;
                }
                if peer.view.total() >= max {
                    self.refuse_interest(id);
                } else if peer.view.patterns.insert(pattern.clone()) {
                    let added = self.index.insert(&pattern, Target::Node(id));
                    debug_assert!(added.is_ok(), "the view and the index agree");
                }
            }
            Change::Remove(pattern) => {
                if peer.view.patterns.remove(&pattern) {
                    let removed = self.index.remove(&pattern, &Target::Node(id));
                    debug_assert!(removed.is_ok(), "the view and the index agree");
                }
            }
            Change::Here { named, time, session } => {
                if is_system(&named.pattern) {
                    return;
                }
                if peer.view.total() >= max {
                    self.refuse_interest(id);
                    return;
                }
                peer.view.sessions.insert(session, (named.clone(), time));
                let claim = Claim { time, node: peer.name.clone(), session };
                self.claim(now, (id, &named), claim, effects);
            }
            Change::Away { session } => {
                if let Some((named, _)) = peer.view.sessions.remove(&session) {
                    let reason = FailReason::SubscriberUnreachable;
                    self.unclaim(now, (id, &named), session, reason, effects);
                }
            }
            Change::Ended { session } => {
                if let Some((named, _)) = peer.view.sessions.remove(&session) {
                    self.end(now, (id, &named), session, effects);
                }
            }
        }
    }

    /// A node wants more than is taken into account; said once.
    fn refuse_interest(&mut self, id: NodeId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !core::mem::replace(&mut peer.view.is_refused, true) {
            let node = peer.name.clone();
            self.events.push(ClusterEvent::InterestRefused { node });
        }
    }

    /// Items of a node: what is new is delivered.
    fn items(
        &mut self,
        now: Timestamp,
        id: NodeId,
        from: &Sender,
        (base, first): (u64, u64),
        items: Vec<Item>,
        effects: &mut Vec<Effect>,
    ) {
        let due = now.after(self.config.receipt_after);
        let unsaid_max = self.config.window_bytes / 4;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.inbound.skip_to(base);
        for (number, item) in (first..).zip(items) {
            match peer.inbound.number(number) {
                Number::Hole => return,
                Number::Repeat => self.counts.items_repeated += 1,
                Number::Next => {
                    self.counts.items_received += 1;
                    peer.inbound.came(due, item.records.bytes.len(), unsaid_max);
                    let messages = u64::from(item.records.count);
                    let add = |counts: &mut TopicCounts| counts.received += messages;
                    self.topics.count(now, &item.subject, messages, add);
                    let mut named = Vec::new();
                    for session in item.sessions {
                        if let Some(name) = self.interest.session(session)
                            && peer.inbound.is_new_to(session, item.order)
                        {
                            named.push((name.clone(), session));
                        }
                    }
                    if !item.anonymous && named.is_empty() {
                        continue;
                    }
                    let delivery = Delivery {
                        subject: item.subject,
                        records: item.records,
                        age_ms: item.age_ms,
                        anonymous: item.anonymous,
                        named,
                        report: item.report && item.anonymous,
                    };
                    let order = item.order;
                    effects.push(Effect::Deliver { from: from.clone(), order, delivery });
                }
            }
        }
    }

    fn taken_at(&mut self, now: Timestamp, id: NodeId, taken: &[Taken]) {
        for taken in taken {
            let Some(peer) = self.peers.get(&id) else { return };
            let named = peer.view.sessions.get(&taken.session).map(|(named, _)| named);
            if let Some(named) = named.and_then(|named| self.named.id(named)) {
                self.release(now, named, taken.session, (taken.upto, taken.lost));
            }
        }
    }

    fn results(&mut self, id: NodeId, results: Vec<ItemResult>) {
        for result in results {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            let reports = &mut peer.out.reports;
            if let Ok(at) = reports.binary_search_by_key(&result.order, |(order, _)| *order)
                && let Some((_, report)) = reports.remove(at)
            {
                self.reports.node_reported(report, id, result.results);
            }
        }
    }
}
