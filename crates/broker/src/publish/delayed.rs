//! Delayed messages: kept in a topic of the broker's own until they are due.
//!
//! A message with a not-before time is stored in `$delayed` with headers that say where it
//! wants to go and when. In memory there is only its seq and its time. When it is due it is
//! read back and published, in one append with the note that it is done: so it appears exactly
//! once, even after a crash in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::time::whole_ms;
use gapless_core::{
    Message, Position, PubSubError, PublishAck, PublishOptions, RecordsBuilder, RejectReason, Seq,
    Timestamp, TopicName, TopicSettings, TotalLimit,
};

use crate::broker::{Broker, Inner};
use crate::error::{TopicError, not_begun};
use crate::publish::commit::Prepared;
use crate::publish::{Atomic, Publishing};
use crate::topic::live_topic::LiveTopic;

const TOPIC: &str = "$delayed";
const TO: &str = "gapless-delayed-topic";
const DUE: &str = "gapless-delayed-due";
const ID: &str = "gapless-delayed-id";
const TTL: &str = "gapless-delayed-ttl";
/// The reserved prefix of all their names.
const OWN_HEADERS: &str = "gapless-delayed-";
/// The answer to ending a message that does not wait any more. It is never returned to callers.
pub(crate) const NOT_WAITING: RejectReason = RejectReason::Expired;
/// Delayed messages published in one turn of the timers, so that others get theirs.
const DUE_AT_ONCE: usize = 256;

/// What waits, by its seq in the topic of delayed messages and by its time.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    by_seq: BTreeMap<Seq, Timestamp>,
    by_due: BTreeSet<(Timestamp, Seq)>,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    pub(crate) fn contains(&self, seq: Seq) -> bool {
        self.by_seq.contains_key(&seq)
    }

    pub(crate) fn insert(&mut self, seq: Seq, due: Timestamp) {
        self.by_seq.insert(seq, due);
        self.by_due.insert((due, seq));
    }

    pub(crate) fn remove(&mut self, seq: Seq) {
        if let Some(due) = self.by_seq.remove(&seq) {
            self.by_due.remove(&(due, seq));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seq, Timestamp)> + '_ {
        self.by_seq.iter().map(|(seq, due)| (*seq, *due))
    }

    /// Notes when the messages just stored are due.
    pub(crate) fn note(&mut self, records: impl Iterator<Item = (Seq, Option<Timestamp>)>) {
        for (seq, due) in records {
            if let Some(due) = due {
                self.insert(seq, due);
            }
        }
    }
}

impl Broker {
    /// Cancels a delayed message before it is due; `id` is from its ack. Returns whether it was
    /// still waiting.
    ///
    /// # Errors
    /// When the system is in trouble.
    pub async fn cancel_delayed(&self, id: Position) -> Result<bool, PubSubError> {
        let Some(cell) = self.inner.delayed_cell() else { return Ok(false) };
        let seq = Seq(id.0);
        let known = |waiting: &Waiting| waiting.contains(seq);
        if !cell.lock().delayed().is_some_and(known) {
            return Ok(false);
        }
        let atomic = Atomic { delay_done: Some((cell, seq, true)), ..Atomic::default() };
        let ack = self.inner.commit(&mut [], &atomic, &PublishOptions::default()).await?;
        match ack {
            PublishAck::Rejected(RejectReason::QueueFull) => Err(PubSubError::Unavailable),
            PublishAck::Rejected(_) => Ok(false),
            PublishAck::Accepted(_) | PublishAck::Scheduled { .. } => Ok(true),
        }
    }

    /// Where a delayed message wants to go; `None` when no message of this id waits. Blocks.
    ///
    /// # Errors
    /// When what is stored of it cannot be read.
    pub fn delayed_topic(&self, id: Position) -> Result<Option<TopicName>, TopicError> {
        let Some(cell) = self.inner.delayed_cell() else { return Ok(None) };
        let seq = Seq(id.0);
        if !cell.lock().delayed().is_some_and(|waiting| waiting.contains(seq)) {
            return Ok(None);
        }
        let found = self.read(&cell.name, seq)?;
        let target = found.and_then(|found| found.message.header(TO).cloned());
        let target =
            target.and_then(|name| TopicName::parse(std::str::from_utf8(&name).ok()?).ok());
        Ok(target)
    }

    /// How many messages wait for their time.
    pub fn delayed_len(&self) -> usize {
        self.inner.delayed_len()
    }
}

impl Inner {
    pub(crate) fn delayed_len(&self) -> usize {
        let cell = self.delayed_cell();
        cell.and_then(|cell| Some(cell.lock().delayed()?.len())).unwrap_or(0)
    }

    fn delayed_cell(&self) -> Option<Arc<LiveTopic>> {
        self.topics.find(&delayed_name())
    }

    /// Stores a message for later.
    pub(crate) fn schedule(
        &self,
        topic: &TopicName,
        message: &Message,
        due: Timestamp,
        options: &PublishOptions,
    ) -> Publishing {
        if topic.is_system() {
            return self.reject(topic, RejectReason::InvalidTopic);
        }
        if !options.is_in_force() || options.report {
            return self.reject(topic, RejectReason::NotSupported);
        }
        let Some(target) = self.topics.find(topic) else {
            return self.reject(topic, RejectReason::UnknownTopic);
        };
        if !target.lock().is_durable() {
            return self.reject(topic, RejectReason::NotDurable);
        }
        // An expectation would have to hold when it is due, and a failure could not be reported
        // then.
        let late = due > self.clock.now().after(self.limits.delay_max);
        let forged = message.headers.iter().any(|(name, _)| name.starts_with(OWN_HEADERS));
        if message.validate().is_err() || options.expect.is_some() || late || forged {
            return self.reject(topic, RejectReason::InvalidPayload);
        }
        let cell = match self.delayed_topic() {
            Ok(cell) => cell,
            Err(TopicError::System_(error)) => return Publishing::failed(not_begun(error)),
            Err(_) => return self.reject(topic, RejectReason::QueueFull),
        };
        let waiting = cell.lock().delayed().map_or(0, Waiting::len);
        let max = self.limits.delayed_max;
        if waiting >= max {
            let (limit, max) = (TotalLimit::Delayed, max as u64);
            return self.reject(topic, RejectReason::LimitReached { limit, max });
        }
        let mut stored = message.clone();
        stored.not_before = None;
        stored.headers.push((TO.to_owned(), Bytes::copy_from_slice(topic.as_str().as_bytes())));
        stored.headers.push((DUE.to_owned(), Bytes::copy_from_slice(&due.0.to_le_bytes())));
        // The same id may be used in two topics, so the topic is part of it here.
        if let Some(id) = stored.id.take() {
            let scoped = [topic.as_str().as_bytes(), &[0], &id].concat();
            let hash = self.journal.key_hash(&scoped).to_le_bytes();
            stored.id = Some(Bytes::copy_from_slice(&hash));
            stored.headers.push((ID.to_owned(), id));
        }
        // It begins when the message appears, so it must not run out here.
        if let Some(ttl) = stored.ttl.take() {
            let ms = whole_ms(ttl).to_le_bytes();
            stored.headers.push((TTL.to_owned(), Bytes::copy_from_slice(&ms)));
        }
        let mut records = RecordsBuilder::default();
        if records.push(&stored).is_err() {
            return self.reject(topic, RejectReason::InvalidPayload);
        }
        let part = Prepared::new(cell, records.finish(), None);
        let publishing = self.commit(&mut [part], &Atomic::default(), options);
        self.timers.wake();
        publishing.map_acks(|ack| match ack {
            PublishAck::Accepted(accepted) => {
                PublishAck::Scheduled { id: Position(accepted.first.0), due }
            }
            other => other,
        })
    }

    fn delayed_topic(&self) -> Result<Arc<LiveTopic>, TopicError> {
        if let Some(cell) = self.delayed_cell() {
            return Ok(cell);
        }
        self.create_topic(&delayed_name(), TopicSettings::default())
    }

    /// When the next delayed message is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let cell = self.delayed_cell()?;
        let state = cell.lock();
        state.delayed()?.by_due.first().map(|(due, _)| *due)
    }

    /// Publishes what is due. Returns whether there may be more.
    pub(crate) fn publish_due(&self, now: Timestamp) -> bool {
        let Some(cell) = self.delayed_cell() else { return false };
        let due: Vec<(Timestamp, Seq)> = {
            let state = cell.lock();
            let settled = state.machine.settled();
            let Some(waiting) = state.delayed() else { return false };
            let due = waiting.by_due.iter().take_while(|(at, _)| *at <= now);
            due.filter(|(_, seq)| *seq <= settled).take(DUE_AT_ONCE).copied().collect()
        };
        let mut published = 0;
        for (_, seq) in due {
            if !self.publish_one(&cell, seq) {
                break;
            }
            published += 1;
        }
        if published > 0 {
            self.forget_done(&cell, now);
        }
        // What could not be published now is tried in another turn.
        published == DUE_AT_ONCE
    }

    /// Publishes one message; false means that it must be tried again.
    fn publish_one(&self, cell: &Arc<LiveTopic>, seq: Seq) -> bool {
        let message = match self.read_one(cell, seq) {
            Ok(Some(found)) => found.message,
            // Only retention could take it, and this topic has none; so say so and go on.
            Ok(None) => {
                tracing::error!(%seq, "a delayed message is not in its topic any more");
                return self.end_delayed(cell, seq, Vec::new()).is_ok();
            }
            Err(error) => {
                tracing::warn!(%seq, %error, "cannot read a delayed message; will try again");
                return false;
            }
        };
        let target = message.header(TO).and_then(|name| std::str::from_utf8(name).ok());
        let target = target.and_then(|name| TopicName::parse(name).ok());
        let Some(target) = target else {
            return self.end_delayed(cell, seq, Vec::new()).is_ok();
        };
        let mut message = message;
        message.id = message.header(ID).cloned();
        let ttl_ms = message.header(TTL).and_then(|ms| ms[..].try_into().ok());
        message.ttl = ttl_ms.map(|ms| Duration::from_millis(u64::from_le_bytes(ms)));
        message.headers.retain(|(name, _)| !name.starts_with(OWN_HEADERS));
        let mut records = RecordsBuilder::default();
        let reason = match (self.topics.find(&target), records.push(&message)) {
            (Some(topic), Ok(())) if topic.lock().is_durable() => {
                let part = Prepared::new(topic, records.finish(), None);
                match self.end_delayed(cell, seq, vec![part]) {
                    Ok(()) | Err(NOT_WAITING) => return true,
                    Err(RejectReason::QueueFull) => return false,
                    Err(reason) => reason,
                }
            }
            _ => RejectReason::UnknownTopic,
        };
        let name = target.as_str();
        self.emit("delayed.dropped", &[("topic", name.into()), ("reason", reason.name().into())]);
        tracing::warn!(topic = name, %reason, "a delayed message is refused by its topic");
        self.end_delayed(cell, seq, Vec::new()).is_ok()
    }

    /// Ends the wait of a message, together with its publishing. Trouble looks like a queue
    /// that is full: both are a reason to try again.
    fn end_delayed(
        &self,
        cell: &Arc<LiveTopic>,
        seq: Seq,
        mut parts: Vec<Prepared>,
    ) -> Result<(), RejectReason> {
        let done = Some((Arc::clone(cell), seq, false));
        let atomic = Atomic { delay_done: done, ..Atomic::default() };
        // No caller waits for it: the ack was given when it was scheduled.
        let options = PublishOptions { require_subscribers: Some(false), ..Default::default() };
        let publishing = self.commit(&mut parts, &atomic, &options);
        if publishing.is_accepted() {
            return Ok(());
        }
        Err(publishing.rejected_with().unwrap_or(RejectReason::QueueFull))
    }

    /// Lets go of stored messages whose successors are all done.
    fn forget_done(&self, cell: &Arc<LiveTopic>, now: Timestamp) {
        let below = {
            let state = cell.lock();
            let first = state.delayed().and_then(|waiting| waiting.by_seq.keys().next().copied());
            first.unwrap_or(state.next())
        };
        if let Err(error) = self.trim(cell, below, gapless_core::GapReason::Expiry, now) {
            tracing::warn!(%error, "cannot let go of delayed messages that are done");
        }
    }
}

pub(crate) fn delayed_name() -> TopicName {
    TopicName::parse(TOPIC).expect("the name is well formed")
}

/// Finds the due time among encoded headers.
pub(crate) fn due_of(mut headers: &[u8]) -> Option<Timestamp> {
    use gapless_core::batch::{take_bytes, take_varint};
    while !headers.is_empty() {
        let len = take_varint(&mut headers)?;
        let name = take_bytes(&mut headers, len)?;
        let len = take_varint(&mut headers)?;
        let value = take_bytes(&mut headers, len)?;
        if name == DUE.as_bytes() {
            return value.try_into().ok().map(|bytes| Timestamp(u64::from_le_bytes(bytes)));
        }
    }
    None
}
