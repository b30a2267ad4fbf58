//! What clients and fate do, and the rest at the end.

use std::collections::BTreeSet;
use std::time::Duration;

use gapless_core::cluster::{
    ClusterConfig, DeliveryStatus, Identity, LostTarget, Named, NodeStatus, Policy, Sender,
    SubscriberName, SubscriberResult,
};
use gapless_core::{DeliveryPolicy, PartitionBehavior, RejectReason, Status, TopicName};

use super::host::{Session, name};
use super::ledger::records;
use super::network::Later;
use super::{Mutation, World};
use crate::random::Random;
use crate::world::{Checked, broken, ensure};

/// Rounds of rest after which everything must have arrived.
const ROUNDS_MAX: u64 = 400;

/// Receipts come earlier than that.
const RECEIPT_MS_MAX: u32 = 20;

/// Small limits and short times, so that all of them are met.
pub(super) fn config(random: &mut Random) -> ClusterConfig {
    let queue_bytes_max = random.between(1, 8) as usize * 2_000;
    let config = ClusterConfig {
        subscriber_timeout: random.ms(800, 1_500),
        suspended_ttl: random.ms(4_000, 12_000),
        queue_messages_max: random.between(3, 60) as usize,
        queue_bytes_max,
        queues_bytes_max: queue_bytes_max * random.between(1, 6) as usize,
        window_bytes: (random.between(100, 2_000) as usize).min(queue_bytes_max),
        named_ahead_messages: random.between(1, 12) as usize,
        resend_after: random.ms(200, 700),
        interest_max: 1_000,
        nodes_max: 8,
        ..ClusterConfig::default()
    };
    // Not drawn, so that a seed stays the same story.
    let receipt_ms = config.resend_after.subsec_millis() % RECEIPT_MS_MAX;
    ClusterConfig { receipt_after: Duration::from_millis(receipt_ms.into()), ..config }
}

impl World {
    /// Everyone connects.
    pub(super) fn begin(&mut self) -> Checked {
        for from in 0..self.hosts.len() {
            for to in self.others(from) {
                self.after(0, 100, Later::Connect(from, to));
            }
            self.after(0, 300, Later::Topology(from));
        }
        self.pass(50)
    }

    /// One thing happens.
    pub(super) fn act(&mut self) -> Checked {
        let weights = [45, 7, 5, 3, 8, 5, 2, 16, 3, 1, 5, 2, 2, 1, 3, 1];
        let act = self.random.weighted(&weights);
        let index = self.random.index(self.hosts.len());
        if !self.hosts[index].is_running() {
            return Ok(());
        }
        let other = *self.random.pick(&self.others(index));
        self.trace.line(format_args!("{} n{index} act {act}", self.now));
        match act {
            0 => self.publish_some(index),
            1 => self.subscribe(index),
            2 => self.unsubscribe(index),
            3 => self.flicker(index),
            4 => self.connect_named(index),
            5 => self.lose_client(index),
            6 => self.unsubscribe_named(index),
            7 => self.take_some(index),
            8 => {
                self.cut(index, other);
                if self.random.chance(50) {
                    self.cut(other, index);
                }
                Ok(())
            }
            9 => {
                for other in self.others(index) {
                    self.cut(index, other);
                    self.cut(other, index);
                }
                Ok(())
            }
            10 => {
                self.reset(index, other);
                Ok(())
            }
            11 => {
                self.freeze(index);
                Ok(())
            }
            12 => {
                self.counts.restarts += 1;
                self.restart(index);
                Ok(())
            }
            13 => self.leave(index),
            14 => {
                let sessions = self.hosts[index].sessions.values_mut();
                sessions.for_each(|session| session.is_hung = !session.is_hung);
                Ok(())
            }
            _ => {
                let ttl = u64::try_from(self.config.suspended_ttl.as_millis()).expect("short");
                let pause = self.random.below(ttl * 3 / 2);
                self.pass(pause)
            }
        }
    }

    fn publish_some(&mut self, index: usize) -> Checked {
        let subject = self.random.pick(&self.subjects).clone();
        for _ in 0..self.random.between(1, 6) {
            let policy = Policy {
                delivery: if self.random.chance(85) {
                    DeliveryPolicy::AtLeastOnce
                } else {
                    DeliveryPolicy::AtMostOnce
                },
                partition: if self.random.chance(85) {
                    PartitionBehavior::DelayQueue
                } else {
                    PartitionBehavior::Drop
                },
            };
            self.publish(index, &subject, policy)?;
        }
        Ok(())
    }

    /// A publish: accepted for all its targets, or for none.
    fn publish(&mut self, index: usize, subject: &TopicName, policy: Policy) -> Checked {
        self.next_message += 1;
        let (message, count) = (self.next_message, self.random.between(1, 2) as u32);
        let records = records(message, count, self.random.below(60) as usize);
        let report = self.random.chance(20).then(|| {
            self.next_report += 1;
            self.next_report
        });
        let me = self.hosts[index].me().clone();
        let targets = self.hosts[index].node.targets(subject);
        if let Some(report) = report {
            let wait = u64::try_from(self.config.subscriber_timeout.as_millis()).expect("short");
            self.hosts[index].reports.insert(report, self.now + 2 * wait);
        }
        let before = self.hosts[index].node.status();
        let result = self.input(index, |node, now, effects| {
            let was = effects.len();
            let result = node.publish(now, subject, &records, policy, report, effects);
            (result, effects.len() == was, node.status())
        })?;
        let (result, is_silent, mut after) = result;
        self.trace.line(format_args!(
            "{} n{index} publish {message} x{count} on {subject} {policy:?}: {result:?}",
            self.now
        ));
        match result {
            Ok(admitted) => {
                self.counts.accepted += 1;
                let fits = (admitted.nodes + admitted.named) as usize == targets.len();
                ensure(fits, || format!("{admitted:?} of {targets:?}"))?;
                if admitted.delayed > 0 {
                    self.hosts[index].delayed.insert(message);
                }
                if policy.delivery == DeliveryPolicy::AtLeastOnce {
                    self.ledger.accepted(&me, &targets, subject, (message, count));
                }
                Ok(())
            }
            Err(reason) => {
                if let Some(report) = report {
                    self.hosts[index].reports.remove(&report);
                }
                after.counts = before.counts;
                ensure(is_silent && after == before, || format!("{reason:?} changed something"))?;
                match reason {
                    RejectReason::QueueFull => self.counts.queue_full += 1,
                    RejectReason::PartitionDrop => self.counts.partition_drop += 1,
                    _ => return broken(format!("refused as {reason:?}")),
                }
                if self.options.mutation == Some(Mutation::AckBeforeAdmission)
                    && reason == RejectReason::QueueFull
                {
                    self.ledger.accepted(&me, &targets, subject, (message, count));
                }
                Ok(())
            }
        }
    }

    fn subscribe(&mut self, index: usize) -> Checked {
        let pattern = self.random.pick(&self.patterns).clone();
        self.hosts[index].anonymous.push(pattern.clone());
        self.input(index, |node, _, _| node.subscribe(&pattern)).map(|_| ())
    }

    fn unsubscribe(&mut self, index: usize) -> Checked {
        let count = self.hosts[index].anonymous.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.random.index(count);
        let pattern = self.hosts[index].anonymous.swap_remove(at);
        self.input(index, |node, _, _| node.unsubscribe(&pattern))
    }

    /// Subscribes, unsubscribes and subscribes, faster than anything spreads.
    fn flicker(&mut self, index: usize) -> Checked {
        let pattern = self.random.pick(&self.patterns).clone();
        let is_one_burst = self.random.chance(50);
        self.hosts[index].anonymous.push(pattern.clone());
        if is_one_burst {
            return self.input(index, |node, _, _| {
                node.subscribe(&pattern);
                node.unsubscribe(&pattern);
                node.subscribe(&pattern);
            });
        }
        self.input(index, |node, _, _| node.subscribe(&pattern))?;
        self.input(index, |node, _, _| node.unsubscribe(&pattern))?;
        self.input(index, |node, _, _| node.subscribe(&pattern)).map(|_| ())
    }

    fn named(&mut self) -> Named {
        let identity = format!("who.{}", self.random.below(self.identities));
        let identity = Identity::parse(&identity).expect("an identity");
        Named { identity, pattern: self.random.pick(&self.patterns).clone() }
    }

    fn connect_named(&mut self, index: usize) -> Checked {
        let named = self.named();
        self.begin_session(index, &named)
    }

    fn begin_session(&mut self, index: usize, named: &Named) -> Checked {
        self.next_session += 1;
        let session = self.next_session;
        self.trace.line(format_args!("{} n{index} session {session} of {named}", self.now));
        // The mailbox is there before anything can come.
        let found = Session {
            named: named.clone(),
            mailbox: Default::default(),
            overflow: Vec::new(),
            is_hung: self.random.chance(10),
        };
        self.hosts[index].sessions.insert(session, found);
        let result = self.input(index, |node, now, effects| {
            node.subscribe_named(now, named, session, effects)
        })?;
        ensure(result.is_ok(), || format!("{named} is refused: {result:?}"))
    }

    fn any_session(&mut self, index: usize) -> Option<u64> {
        let sessions: Vec<u64> = self.hosts[index].sessions.keys().copied().collect();
        self.random.pick_any(&sessions).copied()
    }

    fn lose_client(&mut self, index: usize) -> Checked {
        let Some(session) = self.any_session(index) else { return Ok(()) };
        self.hosts[index].sessions.remove(&session);
        self.input(index, |node, now, effects| node.away(now, session, effects))
    }

    fn unsubscribe_named(&mut self, index: usize) -> Checked {
        let Some(session) = self.any_session(index) else { return Ok(()) };
        if let Some(found) = self.hosts[index].sessions.remove(&session) {
            self.ledger.unsubscribed.insert(found.named);
        }
        self.input(index, |node, now, effects| node.unsubscribe_named(now, session, effects))
    }

    fn take_some(&mut self, index: usize) -> Checked {
        let Some(session) = self.any_session(index) else { return Ok(()) };
        let is_hung = self.hosts[index].sessions.get(&session).is_none_or(|found| found.is_hung);
        if is_hung {
            return Ok(());
        }
        for _ in 0..self.random.between(1, 8) {
            if !self.take(index, session)? {
                break;
            }
        }
        Ok(())
    }

    fn leave(&mut self, index: usize) -> Checked {
        self.counts.leaves += 1;
        self.input(index, |node, now, effects| node.leave(now, effects))?;
        let me = self.hosts[index].me().clone();
        self.ledger.check_paid(Some(&me))?;
        // Its last words are on their way before it goes.
        self.pass(5)?;
        self.restart(index);
        Ok(())
    }

    /// The anonymous subscribers of a node answer after a while.
    pub(super) fn settle_later(&mut self, index: usize, from: Sender, order: u64) {
        self.next_report += 1;
        let me = self.hosts[index].me().clone();
        self.answers.insert(self.next_report, (me, from, order));
        let wait = u64::try_from(self.config.subscriber_timeout.as_millis()).expect("short");
        self.after(0, wait, Later::Settle(index, self.next_report));
    }

    pub(super) fn settle_now(&mut self, index: usize, answer: u64) -> Checked {
        let Some((me, from, order)) = self.answers.remove(&answer) else { return Ok(()) };
        if *self.hosts[index].me() != me || !self.hosts[index].is_running() {
            return Ok(());
        }
        let subscriber = SubscriberName::Handle { node: Some(name(index)), number: 1 };
        let results = vec![SubscriberResult { subscriber, status: DeliveryStatus::Delivered }];
        self.input(index, |node, _, _| node.settled(&from, order, results))
    }

    /// The network heals and everyone takes what there is: then all debts are paid, and everyone
    /// sees everyone.
    pub(super) fn come_to_rest(&mut self) -> Checked {
        self.is_calm = true;
        self.mend();
        self.rest()?;
        self.ledger.check_paid(None)?;
        for index in 0..self.hosts.len() {
            for subject in self.subjects.clone() {
                let found: BTreeSet<LostTarget> =
                    self.hosts[index].node.targets(&subject).into_iter().collect();
                let wanted = self.wanted(index, &subject);
                ensure(found == wanted, || {
                    format!("n{index} sees {found:?} for {subject}, not {wanted:?}")
                })?;
                let (delivery, partition) = (DeliveryPolicy::AtLeastOnce, PartitionBehavior::Drop);
                let refused = self.counts.partition_drop;
                self.publish(index, &subject, Policy { delivery, partition })?;
                ensure(refused == self.counts.partition_drop, || "all are active".to_owned())?;
                self.rest()?;
            }
        }
        self.pass(5_000)?;
        self.rest()?;
        self.ledger.check_paid(None)?;
        let waiting = self.hosts.iter().find(|host| !host.reports.is_empty());
        ensure(waiting.is_none(), || "a report never came".to_owned())
    }

    /// Who wants a subject, by what clients did.
    fn wanted(&self, index: usize, subject: &TopicName) -> BTreeSet<LostTarget> {
        let mut wanted = BTreeSet::new();
        for (at, host) in self.hosts.iter().enumerate() {
            if at != index && host.anonymous.iter().any(|pattern| pattern.matches(subject)) {
                wanted.insert(LostTarget::Node(name(at)));
            }
            let sessions = host.sessions.values().map(|session| &session.named);
            let sessions = sessions.filter(|named| named.pattern.matches(subject));
            wanted.extend(sessions.cloned().map(LostTarget::Named));
        }
        wanted
    }

    /// Passes time until nothing moves any more.
    fn rest(&mut self) -> Checked {
        for _ in 0..ROUNDS_MAX {
            self.pass(100)?;
            for index in 0..self.hosts.len() {
                let sessions: Vec<u64> = self.hosts[index].sessions.keys().copied().collect();
                for session in sessions {
                    while self.take(index, session)? {}
                }
            }
            self.reconnect_those_away()?;
            let is_idle = self.hosts.iter().all(|host| host.is_up && host.node.is_idle());
            let is_known = self.hosts.iter().all(|host| {
                let status = host.node.status();
                let is_away = status.named.iter().any(|named| named.node.is_none());
                let is_active = |node: &NodeStatus| node.state == Status::Active;
                let all = status.nodes.len() + 1 == self.hosts.len();
                let all = all && status.nodes.iter().all(is_active);
                all && !is_away && status.visible == status.version
            });
            if is_idle && is_known && self.network.is_quiet() {
                return Ok(());
            }
        }
        let status: Vec<_> = self.hosts.iter().map(|host| host.node.status()).collect();
        broken(format!("it does not come to rest: {status:#?}"))
    }

    /// Those that are away come back, somewhere.
    fn reconnect_those_away(&mut self) -> Checked {
        let mut away = BTreeSet::new();
        for host in &self.hosts {
            let named = host.node.status().named.into_iter();
            away.extend(named.filter(|named| named.node.is_none()).map(|named| named.named));
        }
        for named in away {
            let mut sessions = self.hosts.iter().flat_map(|host| host.sessions.values());
            if sessions.any(|session| session.named == named) {
                continue;
            }
            let index = self.random.index(self.hosts.len());
            if self.hosts[index].is_up {
                self.begin_session(index, &named)?;
            }
        }
        Ok(())
    }
}
