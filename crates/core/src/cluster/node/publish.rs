//! Publishing: who gets a message, and whether there is room for it everywhere.
//!
//! The decision comes first and is all or nothing: if one target has no room, or is suspended and
//! the publisher does not want to wait for it, nothing is queued for any.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Effect, Node, Target};
use crate::ack::RejectReason;
use crate::batch::Records;
use crate::cluster::event::{LostReason, LostTarget};
use crate::cluster::message::{Message, Shared, cost};
use crate::cluster::named::{Held, NamedId};
use crate::cluster::outbound::Waiting;
use crate::cluster::peer::{ME, NodeId};
use crate::cluster::report::DeliveryStatus;
use crate::name::TopicName;
use crate::options::{DeliveryPolicy, PartitionBehavior};
use crate::time::Timestamp;

/// What a publish asks of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How hard delivery is tried.
    pub delivery: DeliveryPolicy,
    /// What happens when a target is suspended.
    pub partition: PartitionBehavior,
}

/// The targets of a publish that was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Other nodes, for their anonymous subscribers.
    pub nodes: u32,
    /// Named subscriptions, wherever they are.
    pub named: u32,
    /// How many of both are suspended: at least once, it is held for them.
    pub delayed: u32,
}

impl Admitted {
    /// How many targets there are, beside this node's anonymous subscribers.
    pub fn targets(self) -> u32 {
        self.nodes + self.named
    }
}

impl Node {
    /// Admits a publish to all its targets, or to none. What is admitted goes out when the node
    /// settles. With the id of a report, one [`Effect::Reported`] follows, also without targets,
    /// unless the publish is refused.
    ///
    /// # Errors
    /// `QueueFull` or `PartitionDrop`: nothing is sent to any target.
    pub fn publish(
        &mut self,
        now: Timestamp,
        subject: &TopicName,
        records: &Records,
        policy: Policy,
        report: Option<u64>,
        effects: &mut Vec<Effect>,
    ) -> Result<Admitted, RejectReason> {
        let mut matched = core::mem::take(&mut self.matched);
        matched.clear();
        if !subject.is_system() {
            self.index.for_each_match(subject, |target| matched.push(*target));
            matched.sort_unstable();
            matched.dedup();
        }
        let admitted = self.admit(&matched, (subject, records), policy, report);
        let messages = u64::from(records.count);
        if !matched.is_empty() {
            self.topics.count(now, subject, messages, |counts| match admitted {
                Ok(_) => counts.published += messages,
                Err(_) => counts.rejected += messages,
            });
        }
        match admitted {
            Ok(_) => {
                let message =
                    Message { subject: subject.clone(), records: records.clone(), at: now };
                self.queue(now, &matched, &Arc::new(message), policy.delivery, report);
                self.give_reports(effects);
            }
            Err(RejectReason::PartitionDrop) => self.counts.partition_drop += 1,
            Err(_) => self.counts.queue_full += 1,
        }
        self.matched = matched;
        admitted
    }

    /// Decides; changes nothing.
    fn admit(
        &self,
        matched: &[Target],
        (subject, records): (&TopicName, &Records),
        policy: Policy,
        report: Option<u64>,
    ) -> Result<Admitted, RejectReason> {
        let mut admitted = Admitted::default();
        let (count, cost) = (records.count as usize, cost(subject, records));
        let (messages_max, bytes_max) =
            (self.config.queue_messages_max, self.config.queue_bytes_max);
        let mut has_room = true;
        for target in matched {
            let (messages, bytes) = match target {
                Target::Node(id) => {
                    admitted.nodes += 1;
                    self.peers.get(id).map_or((0, 0), |peer| (peer.out.messages, peer.out.bytes))
                }
                Target::Named(id) => {
                    admitted.named += 1;
                    self.named.get(*id).map_or((0, 0), |named| (named.messages, named.bytes))
                }
            };
            admitted.delayed += u32::from(self.is_suspended(*target));
            has_room &= messages + count <= messages_max && bytes + cost <= bytes_max;
        }
        has_room &= self.queued_bytes + cost * matched.len() <= self.config.queues_bytes_max;
        if policy.partition == PartitionBehavior::Drop && admitted.delayed > 0 {
            return Err(RejectReason::PartitionDrop);
        }
        // What is delivered at most once is not queued, so it needs no room.
        let needs_room = policy.delivery == DeliveryPolicy::AtLeastOnce;
        if (needs_room && !has_room) || (report.is_some() && self.reports.is_full()) {
            return Err(RejectReason::QueueFull);
        }
        Ok(admitted)
    }

    fn queue(
        &mut self,
        now: Timestamp,
        matched: &[Target],
        message: &Shared,
        delivery: DeliveryPolicy,
        report: Option<u64>,
    ) {
        self.admissions += 1;
        if let Some(id) = report {
            self.begin_report(now, id, matched);
        }
        if delivery == DeliveryPolicy::AtMostOnce {
            self.queue_once(matched, message, report);
            return;
        }
        let admission = self.admissions;
        for target in matched {
            self.queued_bytes += message.cost();
            let message = message.clone();
            match *target {
                Target::Node(id) => {
                    let peer = self.peers.get_mut(&id).expect("a node in the index is known");
                    let (anonymous, once) = (true, Vec::new());
                    let is_once = false;
                    peer.out.push(Waiting { admission, message, anonymous, once, is_once, report });
                }
                Target::Named(id) => {
                    let held = Held { admission, message, report };
                    self.with_lane(id, |holding| holding.push(held));
                }
            }
        }
    }

    /// Queues a message that is delivered at most once where it can be sent at once; for others
    /// it is lost, and an event says so.
    fn queue_once(&mut self, matched: &[Target], message: &Shared, report: Option<u64>) {
        let mut ways: BTreeMap<NodeId, (bool, Vec<(NamedId, u64)>)> = BTreeMap::new();
        for target in matched {
            match self.once_place(*target, message, ways.len()) {
                Some((node, None)) => ways.entry(node).or_default().0 = true,
                Some((node, Some(session))) => {
                    ways.entry(node).or_default().1.push(session);
                }
                None => self.lose_once(*target, message, report),
            }
        }
        let admission = self.admissions;
        for (node, (anonymous, once)) in ways {
            let message = message.clone();
            self.queued_bytes += message.cost();
            let waiting = Waiting { admission, message, anonymous, once, is_once: true, report };
            self.lane(node).expect("a place is known").push(waiting);
        }
    }

    /// Where a message can be sent at once to a target, if it goes over so many other ways.
    fn once_place(
        &self,
        target: Target,
        message: &Shared,
        ways: usize,
    ) -> Option<(NodeId, Option<(NamedId, u64)>)> {
        if self.is_suspended(target) {
            return None;
        }
        let (node, session) = match target {
            Target::Node(id) => (id, None),
            Target::Named(id) => {
                let holding = self.named.get(id)?;
                let place = holding.place?;
                let ahead = holding.sent_messages + message.count();
                if !holding.is_all_sent() || ahead > self.config.named_ahead_messages {
                    return None;
                }
                (place.node, Some((id, place.session)))
            }
        };
        let cost = message.cost();
        let has_room = self.queued_bytes + cost * (ways + 1) <= self.config.queues_bytes_max;
        let lane = if node == ME { &self.local } else { &self.peers.get(&node)?.out };
        let on_the_way = lane.sent_bytes + lane.waiting_bytes;
        let fits = on_the_way == 0 || on_the_way + cost <= self.config.window_bytes;
        let fits = fits
            && lane.messages + message.count() <= self.config.queue_messages_max
            && lane.bytes + cost <= self.config.queue_bytes_max;
        (has_room && fits).then_some((node, session))
    }

    fn lose_once(&mut self, target: Target, message: &Shared, report: Option<u64>) {
        let status = DeliveryStatus::SubscriberUnreachable;
        let (subject, count) = (&message.subject, message.count());
        match target {
            Target::Node(id) => {
                let Some(name) = self.name_of(id) else { return };
                if let Some(report) = report {
                    self.reports.node_failed(report, id, &name, status);
                }
                self.lose(LostTarget::Node(name), LostReason::NotQueued, subject, count);
            }
            Target::Named(id) => {
                let Some(holding) = self.named.get(id) else { return };
                let target = LostTarget::Named(holding.named.clone());
                if let Some(report) = report {
                    self.reports.named_done(report, id, status);
                }
                self.lose(target, LostReason::NotQueued, subject, count);
            }
        }
    }

    fn begin_report(&mut self, now: Timestamp, id: u64, matched: &[Target]) {
        let (mut nodes, mut named) = (BTreeSet::new(), BTreeMap::new());
        for target in matched {
            match target {
                Target::Node(id) => {
                    nodes.insert(*id);
                }
                Target::Named(id) => {
                    if let Some(holding) = self.named.get(*id) {
                        named.insert(*id, holding.named.identity.clone());
                    }
                }
            }
        }
        // The endpoint waits once; its report takes a while, too.
        let due = now.after(self.config.subscriber_timeout * 2);
        self.reports.begin(id, due, nodes, named);
    }

    /// Whether a target is not delivered to for now.
    fn is_suspended(&self, target: Target) -> bool {
        match target {
            Target::Node(id) => !self.is_reachable(id),
            Target::Named(id) => self.named.get(id).is_none_or(|holding| {
                let place = holding.place.map(|place| place.node);
                !holding.is_active() || !place.is_some_and(|node| self.is_reachable(node))
            }),
        }
    }

    pub(super) fn give_reports(&mut self, effects: &mut Vec<Effect>) {
        for (report, results) in self.reports.take_done() {
            effects.push(Effect::Reported { report, results });
        }
    }
}
