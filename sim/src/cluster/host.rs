//! A node with what a broker has around it: subscribers and mailboxes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gapless_core::cluster::{
    ClusterConfig, ClusterEvent, Delivery, Incarnation, Item, LostReason, LostTarget, Named, Node,
    NodeName, Sender,
};
use gapless_core::{Pattern, Timestamp, TopicName};

use super::ledger::number_of;
use super::{Mutation, World};
use crate::world::{Checked, broken, ensure};

/// A message in the mailbox of a session.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) from: Sender,
    pub(super) order: u64,
    pub(super) message: u64,
    pub(super) count: u32,
    pub(super) subject: TopicName,
}

/// A stay of a named subscription.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) named: Named,
    pub(super) mailbox: VecDeque<Mail>,
    /// Mail that was dropped and is not told yet.
    pub(super) overflow: Vec<Mail>,
    /// Whether it takes nothing for now.
    pub(super) is_hung: bool,
}

/// A node and its surroundings.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) node: Node,
    /// How far its clock is ahead, in ms.
    skew: u64,
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
    pub(super) anonymous: Vec<Pattern>,
    pub(super) sessions: BTreeMap<u64, Session>,
    /// What was delivered, for the mutation without memory of it.
    pub(super) seen: BTreeSet<(Sender, u64)>,
    /// Messages that were published when a target was suspended.
    pub(super) delayed: BTreeSet<u64>,
    /// Reports that are awaited, and until when.
    pub(super) reports: BTreeMap<u64, u64>,
}

pub(super) fn name(index: usize) -> NodeName {
    NodeName::parse(&format!("n{index}")).expect("a name")
}

pub(super) fn index_of(name: &NodeName) -> usize {
    name.as_str()[1..].parse().expect("a name of a host")
}

impl Host {
    pub(super) fn new(index: usize, life: u64, skew: u64, config: ClusterConfig) -> Self {
        Self {
            node: Node::new(config, name(index), Incarnation(life)),
            skew,
            is_up: true,
            is_frozen: false,
            anonymous: Vec::new(),
            sessions: BTreeMap::new(),
            seen: BTreeSet::new(),
            delayed: BTreeSet::new(),
            reports: BTreeMap::new(),
        }
    }

    pub(super) fn me(&self) -> &Sender {
        self.node.me()
    }

    /// The next life: nothing of this one is left.
    pub(super) fn restart(&mut self, index: usize, config: ClusterConfig) {
        *self = Self::new(index, self.me().incarnation.0 + 1, self.skew, config);
        self.is_up = false;
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    /// The time that its clock shows.
    pub(super) fn time(&self, now: u64) -> Timestamp {
        Timestamp(now + self.skew)
    }

    /// When its machine wants to be called.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.node.deadline().map(|at| at.0.saturating_sub(self.skew))
    }

    /// What an item would be delivered as.
    pub(super) fn delivery_of(&self, item: &Item) -> Delivery {
        let named = item.sessions.iter().filter_map(|session| {
            self.sessions.get(session).map(|found| (found.named.clone(), *session))
        });
        Delivery {
            subject: item.subject.clone(),
            records: item.records.clone(),
            age_ms: item.age_ms,
            anonymous: item.anonymous,
            named: named.collect(),
            report: false,
        }
    }
}

impl World {
    /// Puts messages into the mailboxes of a host.
    pub(super) fn deliver(
        &mut self,
        index: usize,
        from: &Sender,
        order: u64,
        delivery: &Delivery,
    ) -> Checked {
        let Some(message) = number_of(&delivery.records) else {
            return broken("a delivery without a message");
        };
        if self.options.mutation == Some(Mutation::NoDedup) {
            self.hosts[index].seen.insert((from.clone(), order));
        }
        let subject = &delivery.subject;
        let me = self.hosts[index].me().clone();
        if delivery.anonymous {
            self.counts.delivered += 1;
            self.ledger.delivered(from, &me, subject, message)?;
        }
        let mailbox_max = self.mailbox_max;
        for (named, session) in &delivery.named {
            let Some(found) = self.hosts[index].sessions.get_mut(session) else {
                return broken(format!("{message} for {named}, who is not here"));
            };
            let fits = found.named == *named && named.pattern.matches(subject);
            ensure(fits, || format!("{message} on {subject} is not for {named}"))?;
            self.ledger.mailed(from, *session, subject, message)?;
            let (from, subject) = (from.clone(), subject.clone());
            let count = delivery.records.count;
            found.mailbox.push_back(Mail { from, order, message, count, subject });
            if found.mailbox.len() > mailbox_max {
                found.overflow.extend(found.mailbox.pop_front());
            }
        }
        if delivery.report {
            let from = from.clone();
            self.settle_later(index, from, order);
        }
        Ok(())
    }

    /// Tells the node of a host what overflowed.
    pub(super) fn overflow(&mut self, index: usize) -> Checked {
        let sessions = self.hosts[index].sessions.iter_mut();
        let lost: Vec<(u64, Named, Mail)> = sessions
            .flat_map(|(session, found)| {
                let (session, named) = (*session, found.named.clone());
                found.overflow.drain(..).map(move |mail| (session, named.clone(), mail))
            })
            .collect();
        for (session, named, mail) in lost {
            self.counts.overflowed += u64::from(mail.count);
            let target = LostTarget::Named(named);
            self.ledger.pay(&mail.from, target.clone(), &mail.subject, mail.message);
            self.unnamed = Some((target, u64::from(mail.count)));
            let lost = [(mail.subject, u64::from(mail.count))];
            self.input(index, |node, now, _| {
                node.taken(now, session, &mail.from, mail.order, &lost);
            })?;
            ensure(self.unnamed.is_none(), || "no event names what overflowed".to_owned())?;
        }
        Ok(())
    }

    /// A session takes the oldest message in its mailbox; whether there was one.
    pub(super) fn take(&mut self, index: usize, session: u64) -> Checked<bool> {
        let Some(found) = self.hosts[index].sessions.get_mut(&session) else { return Ok(false) };
        let Some(mail) = found.mailbox.pop_front() else { return Ok(false) };
        let named = found.named.clone();
        self.trace.line(format_args!("{} n{index} {session} takes {}", self.now, mail.message));
        self.counts.taken += 1;
        if self.ledger.taken(&mail.from, &named, &mail.subject, mail.message) {
            self.counts.taken_again += 1;
        }
        self.input(index, |node, now, _| node.taken(now, session, &mail.from, mail.order, &[]))?;
        Ok(true)
    }

    /// A node says that something happened.
    pub(super) fn event(&mut self, index: usize, event: &ClusterEvent) -> Checked {
        let me = self.hosts[index].me().clone();
        match event {
            ClusterEvent::Lost(lost) if lost.reason == LostReason::Overflow => {
                let told = Some((lost.target.clone(), lost.messages));
                ensure(self.unnamed.take() == told, || format!("{lost:?} did not overflow"))
            }
            // At most once is not owed.
            ClusterEvent::Lost(lost) if lost.reason == LostReason::NotQueued => Ok(()),
            ClusterEvent::Lost(lost) => {
                self.counts.lost += lost.messages;
                self.ledger.lost(&me, lost)
            }
            ClusterEvent::NamedEnded { named } => self.ledger.ended(&me, named),
            ClusterEvent::NodeRemoved { .. } | ClusterEvent::NamedRemoved { .. } => {
                self.counts.removed += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
