//! Delivery inside one program, without disk, threads or `std` (A13).
//!
//! The smallest broker there is: subscribe, unsubscribe, publish, poll. A publish is
//! accepted and put into the queue of every subscriber that matches, or rejected and put
//! into none: a subscriber whose queue is full rejects it for all, so that no subscriber misses
//! what others got. A subscriber that unsubscribes loses what was waiting for it.
//!
//! It keeps no history, and so has no cursors and remembers no message ids: that is what
//! the broker is for.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::ack::{Accepted, PublishAck, RejectReason};
use crate::id::{Position, Seq};
use crate::message::Message;
use crate::name::TopicName;
use crate::options::Durability;
use crate::pattern::Pattern;
use crate::settings::DedupWindow;
use crate::time::Timestamp;
use crate::topic::{self, Topic};
use crate::trie::{SubscribeError, SubscriptionIndex, UnsubscribeError};

/// A receiver of messages; the caller chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub u64);

/// How much may be held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalLimits {
    /// The most messages that wait for one subscriber.
    pub queue_count_max: usize,
    /// The most topics that are counted; messages to further ones are rejected, since
    /// publishers choose names and memory is bounded.
    pub topics_max: usize,
}

impl Default for LocalLimits {
    /// Small enough for a small machine.
    fn default() -> Self {
        Self { queue_count_max: 1_024, topics_max: 65_536 }
    }
}

/// A message as its subscriber gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The topic it was published to.
    pub topic: TopicName,
    /// Its seq in that topic.
    pub seq: Seq,
    /// The message.
    pub message: Message,
}

/// Local subscribers and what waits for them.
#[derive(Debug)]
pub struct Local {
    limits: LocalLimits,
    index: SubscriptionIndex<SubscriberId>,
    inboxes: BTreeMap<SubscriberId, Inbox>,
    topics: BTreeMap<TopicName, Topic>,
    position: Position,
    /// Reused by each publish.
    matched: Vec<SubscriberId>,
    effects: Vec<topic::Effect>,
}

#[derive(Debug, Default)]
struct Inbox {
    subscriptions: usize,
    /// What waits, and until when it may be delivered.
    waiting: VecDeque<(Timestamp, Delivery)>,
}

impl Local {
    /// No subscribers, nothing published.
    pub fn new(limits: LocalLimits) -> Self {
        Self {
            limits,
            index: SubscriptionIndex::new(),
            inboxes: BTreeMap::new(),
            topics: BTreeMap::new(),
            position: Position(0),
            matched: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Adds a subscription. A subscriber with several matching patterns gets each message
    /// once.
    pub fn subscribe(&mut self, id: SubscriberId, pattern: &Pattern) -> Result<(), SubscribeError> {
        self.index.insert(pattern, id)?;
        self.inboxes.entry(id).or_default().subscriptions += 1;
        Ok(())
    }

    /// Removes a subscription. What waits and is matched by no other subscription of the
    /// same subscriber is dropped: nothing is delivered without a subscription.
    pub fn unsubscribe(
        &mut self,
        id: SubscriberId,
        pattern: &Pattern,
    ) -> Result<(), UnsubscribeError> {
        self.index.remove(pattern, &id)?;
        let inbox = self.inboxes.get_mut(&id).expect("a subscriber has an inbox");
        inbox.subscriptions -= 1;
        if inbox.subscriptions == 0 {
            self.inboxes.remove(&id);
            return Ok(());
        }
        let index = &self.index;
        inbox.waiting.retain(|(_, delivery)| {
            let mut follows = false;
            index.for_each_match(&delivery.topic, |other| follows |= *other == id);
            follows
        });
        Ok(())
    }

    /// Publishes one message to all matching subscribers, or to none.
    pub fn publish(&mut self, now: Timestamp, topic: &TopicName, message: &Message) -> PublishAck {
        match self.try_publish(now, topic, message) {
            Ok(accepted) => PublishAck::Accepted(accepted),
            Err(reason) => PublishAck::Rejected(reason),
        }
    }

    /// The next message that waits for a subscriber; expired ones are passed over.
    pub fn poll(&mut self, now: Timestamp, id: SubscriberId) -> Option<Delivery> {
        let waiting = &mut self.inboxes.get_mut(&id)?.waiting;
        loop {
            let (expiry, delivery) = waiting.pop_front()?;
            if now < expiry {
                return Some(delivery);
            }
        }
    }

    /// Asserts what must always be true; walks everything.
    pub fn check(&self) {
        self.index.check();
        let subscriptions: usize = self.inboxes.values().map(|inbox| inbox.subscriptions).sum();
        assert_eq!(subscriptions, self.index.len(), "an inbox for each subscriber");
        for inbox in self.inboxes.values() {
            assert!(inbox.subscriptions > 0, "no inbox without a subscription");
            assert!(inbox.waiting.len() <= self.limits.queue_count_max, "queues are bounded");
        }
        self.topics.values().for_each(Topic::check);
    }

    fn try_publish(
        &mut self,
        now: Timestamp,
        name: &TopicName,
        message: &Message,
    ) -> Result<Accepted, RejectReason> {
        message.validate().map_err(|_| RejectReason::InvalidPayload)?;
        if message.not_before.is_some_and(|due| due > now) {
            return Err(RejectReason::NotDurable);
        }
        self.find_matched(name)?;
        if !self.topics.contains_key(name) {
            if self.topics.len() >= self.limits.topics_max {
                return Err(RejectReason::QueueFull);
            }
            self.topics.insert(name.clone(), Topic::new(DedupWindow::OFF));
        }
        let topic = self.topics.get_mut(name).expect("the topic was just made");
        let offer = topic::Input::Offer { count: 1, ids: &[], expect: None, key_last: None };
        self.effects.clear();
        topic.step(now, offer, &mut self.effects);
        let [topic::Effect::Accepted { first: seq, .. }] = self.effects[..] else {
            unreachable!("an offer that expects nothing is accepted");
        };
        self.position = self.position.next();
        self.deliver(now, &Delivery { topic: name.clone(), seq, message: message.clone() });
        let (position, durability) = (self.position, Durability::Memory);
        Ok(Accepted { first: seq, last: seq, position, durability, duplicate: false })
    }

    /// Finds the subscribers that get a message on this topic, and whether each has room.
    fn find_matched(&mut self, name: &TopicName) -> Result<(), RejectReason> {
        self.matched.clear();
        let matched = &mut self.matched;
        self.index.for_each_match(name, |id| matched.push(*id));
        matched.sort_unstable();
        matched.dedup();
        if matched.is_empty() {
            return Err(RejectReason::NoSubscribers);
        }
        let waiting = |id| self.inboxes.get(id).map_or(0, |inbox| inbox.waiting.len());
        if matched.iter().any(|id| waiting(id) >= self.limits.queue_count_max) {
            return Err(RejectReason::QueueFull);
        }
        Ok(())
    }

    fn deliver(&mut self, now: Timestamp, delivery: &Delivery) {
        let expiry = delivery.message.ttl.map_or(Timestamp::NEVER, |ttl| now.after(ttl));
        for id in &self.matched {
            let inbox = self.inboxes.get_mut(id).expect("a subscriber has an inbox");
            inbox.waiting.push_back((expiry, delivery.clone()));
        }
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
