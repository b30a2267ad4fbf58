//! A subscription: a place in a sequence, and the async edge around it.
//!
//! It has no queue of its own. Each step looks where it stands: in memory, in history,
//! before a gap, or at the end, where it waits. So a slow one falls back into history by itself and
//! comes back by itself, without slowing others.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::cluster::DeliveryStatus;
use gapless_core::{Pattern, Position, Token, TopicName};

use crate::broker::{Inner, Owner};
use crate::error::FollowError;
use crate::figures::metrics::Sample;
use crate::read::delivery::{Delivery, Messages};
use crate::read::follow_pattern::PatternFollower;
use crate::read::follow_topic::TopicFollower;
use crate::volatile::named::NamedFollower;
use crate::volatile::spread::Told;

/// What a subscriber is doing (D5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SubscriberState {
    /// It is there but has not asked for anything yet.
    Connected = 0,
    /// It reads history.
    Recovering = 1,
    /// It is live.
    Online = 2,
    /// It is gone.
    Offline = 3,
}

/// A subscriber as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberInfo {
    /// Its number.
    pub id: u64,
    /// What it follows.
    pub pattern: String,
    /// What it is doing.
    pub state: SubscriberState,
    /// The last place it was handed: a seq of its topic, or a position for a pattern.
    pub place: u64,
    /// How many steps of history it was handed.
    pub recovery_steps: u64,
    /// How far the history goes that it reads or read last: a seq or a position, as `place`.
    pub recovery_to: u64,
    /// Bytes of history that were read for it.
    pub recovered_bytes: u64,
    /// Messages it was handed, history and live.
    pub delivered_messages: u64,
    /// Bytes of these.
    pub delivered_bytes: u64,
}

/// The part of a subscription that others may look at.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) pattern: Pattern,
    /// Whether it is the server's own, which no list and no number has.
    unlisted: bool,
    /// Whether it follows one topic by its seqs.
    pub(crate) by_topic: bool,
    /// Whether other nodes of a cluster are to know what it follows.
    pub(crate) spreads: bool,
    pub(crate) told: Mutex<Told>,
    state: AtomicU8,
    pub(crate) place: AtomicU64,
    pub(crate) recovery_steps: AtomicU64,
    recovery_to: AtomicU64,
    pub(crate) recovered_bytes: AtomicU64,
    pub(crate) delivered_messages: AtomicU64,
    pub(crate) delivered_bytes: AtomicU64,
}

impl Shared {
    pub(crate) fn new(id: u64, pattern: Pattern) -> Self {
        let state = AtomicU8::new(SubscriberState::Connected as u8);
        Self {
            id,
            pattern,
            unlisted: false,
            by_topic: false,
            spreads: false,
            told: Mutex::default(),
            state,
            place: AtomicU64::new(0),
            recovery_steps: AtomicU64::new(0),
            recovery_to: AtomicU64::new(0),
            recovered_bytes: AtomicU64::new(0),
            delivered_messages: AtomicU64::new(0),
            delivered_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn unlisted(id: u64, pattern: Pattern) -> Self {
        Self { unlisted: true, ..Self::new(id, pattern) }
    }

    /// Counts a step of history, in numbers and in the memory that all steps share.
    pub(crate) fn recovered(&self, inner: &Inner, parts: Vec<Bytes>) -> Vec<Bytes> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.recovery_steps.fetch_add(1, Ordering::Relaxed);
        self.recovered_bytes.fetch_add(bytes, Ordering::Relaxed);
        inner.metrics.recovered_bytes.increment(bytes);
        inner.recovery_memory.count(parts)
    }

    pub(crate) fn info(&self) -> SubscriberInfo {
        let state = match self.state.load(Ordering::Relaxed) {
            0 => SubscriberState::Connected,
            1 => SubscriberState::Recovering,
            2 => SubscriberState::Online,
            _ => SubscriberState::Offline,
        };
        SubscriberInfo {
            id: self.id,
            pattern: self.pattern.as_str().to_owned(),
            state,
            place: self.place.load(Ordering::Relaxed),
            recovery_steps: self.recovery_steps.load(Ordering::Relaxed),
            recovery_to: self.recovery_to.load(Ordering::Relaxed),
            recovered_bytes: self.recovered_bytes.load(Ordering::Relaxed),
            delivered_messages: self.delivered_messages.load(Ordering::Relaxed),
            delivered_bytes: self.delivered_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Follows one topic, or all that match a pattern. Dropping it unsubscribes.
pub struct Subscription {
    inner: Arc<Owner>,
    shared: Arc<Shared>,
    pub(crate) follower: Follower,
    /// Which of its deliveries are timed.
    sample: Sample,
}

pub(crate) enum Follower {
    Topic(Box<TopicFollower>),
    Pattern(Box<PatternFollower>),
    Named(Box<NamedFollower>),
}

impl Follower {
    /// Asserts what must always be true of its place.
    pub(crate) fn check(&self) {
        match self {
            Self::Topic(follower) => follower.check(),
            Self::Pattern(follower) => follower.check(),
            Self::Named(_) => {}
        }
    }
}

impl Subscription {
    pub(crate) fn new(inner: Arc<Owner>, shared: Arc<Shared>, follower: Follower) -> Self {
        Self { inner, shared, follower, sample: Sample::default() }
    }

    /// Its number, as in [`SubscriberInfo`].
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// What it follows.
    pub fn pattern(&self) -> &Pattern {
        &self.shared.pattern
    }

    /// Whether it follows one topic by its seqs, and not a pattern by positions.
    pub fn follows_topic(&self) -> bool {
        matches!(self.follower, Follower::Topic(_))
    }

    /// What it is doing.
    pub fn state(&self) -> SubscriberState {
        self.shared.info().state
    }

    /// Everything up to here was handed out; a subscription that begins with this token
    /// goes on where this one stands.
    pub fn token(&self) -> Token {
        let position = match &self.follower {
            Follower::Topic(follower) => follower.handed_out(),
            Follower::Pattern(follower) => follower.handed_out(),
            Follower::Named(follower) => follower.handed_out(),
        };
        Token { epoch: self.inner.journal.epoch(), position }
    }

    /// The next step. Waits if there is nothing yet.
    ///
    /// # Errors
    /// When the topic is deleted, the broker closed, or history damaged. Nothing is skipped:
    /// asked again, it tries the same step.
    pub async fn next(&mut self) -> Result<Delivery, FollowError> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Subscription::next`], for callers that poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Delivery, FollowError>> {
        let polled = match &mut self.follower {
            Follower::Topic(follower) => follower.poll(&self.inner, &self.shared, context),
            Follower::Pattern(follower) => follower.poll(&self.inner, &self.shared, context),
            Follower::Named(follower) => follower.poll(&self.inner, &self.shared, context),
        };
        if let Poll::Ready(Ok(delivery)) = &polled
            && !self.shared.unlisted
        {
            self.note(delivery);
        }
        polled
    }

    fn note(&mut self, delivery: &Delivery) {
        let metrics = &self.inner.metrics;
        match delivery {
            Delivery::Recovering { from, to } => {
                self.set_state(SubscriberState::Recovering);
                self.shared.recovery_to.store(*to, Ordering::Relaxed);
                metrics.recoveries_started.increment(1);
                let fields = [
                    ("subscriber", self.shared.id.into()),
                    ("pattern", self.shared.pattern.as_str().into()),
                    ("from", (*from).into()),
                    ("to", (*to).into()),
                ];
                self.inner.emit("recovery.started", &fields);
                let (subscriber, pattern) = (self.shared.id, self.shared.pattern.as_str());
                tracing::debug!(subscriber, pattern, from, to, "a subscriber reads history");
            }
            Delivery::Live => {
                if self.set_state(SubscriberState::Online) == SubscriberState::Recovering as u8 {
                    metrics.recoveries_done.increment(1);
                    let fields = [
                        ("subscriber", self.shared.id.into()),
                        ("pattern", self.shared.pattern.as_str().into()),
                    ];
                    self.inner.emit("recovery.done", &fields);
                    let (subscriber, pattern) = (self.shared.id, self.shared.pattern.as_str());
                    tracing::debug!(subscriber, pattern, "a subscriber is live again");
                }
            }
            Delivery::Messages(messages) => {
                let bytes = messages.bytes() as u64;
                metrics.delivered_batches.increment(1);
                metrics.delivered_bytes.increment(bytes);
                if self.shared.by_topic {
                    let (id, to) = (self.shared.id, messages.to());
                    self.inner.reports.followed(id, to, DeliveryStatus::Delivered);
                }
                // Only this task writes these, so an addition that others could see half is not needed.
                let add = |to: &AtomicU64, more: u64| {
                    to.store(to.load(Ordering::Relaxed) + more, Ordering::Relaxed);
                };
                let count = messages.handed_out();
                add(&self.shared.delivered_bytes, bytes);
                add(&self.shared.delivered_messages, count);
                self.count_out(messages, count);
                let online = SubscriberState::Online as u8;
                let live = self.shared.state.load(Ordering::Relaxed) == online;
                // How long history lay there says nothing about the server.
                if live && self.sample.is_due() {
                    metrics.delivery_subscriber_seconds.record(messages.age());
                }
                if let Some(traces) = self.inner.traces.get() {
                    traces.delivered(self.shared.id, messages, live);
                }
            }
            Delivery::Gap(gap) => {
                metrics.gap(gap.reason);
                if let Some(to) = gap.to.filter(|_| self.shared.by_topic) {
                    let id = self.shared.id;
                    self.inner.reports.followed(id, to, DeliveryStatus::OtherError);
                }
                let fields = [
                    ("subscriber", self.shared.id.into()),
                    ("topic", gap.topic.as_ref().map(TopicName::as_str).into()),
                    ("from", gap.from.map(|seq| seq.0).into()),
                    ("to", gap.to.map(|seq| seq.0).into()),
                    ("reason", gap.reason.name().into()),
                ];
                self.inner.emit("delivery.gap", &fields);
            }
        }
    }

    /// Counts what was handed out, also at its topic if that has a place in memory.
    fn count_out(&self, messages: &Messages, count: u64) {
        self.inner.flow.add_out(count);
        match &self.follower {
            Follower::Topic(follower) => follower.cell().count_out(count),
            _ => {
                let cell = self.inner.topics.find(messages.topic());
                cell.iter().for_each(|cell| cell.count_out(count));
            }
        }
    }

    fn set_state(&self, state: SubscriberState) -> u8 {
        let before = self.shared.state.swap(state as u8, Ordering::Relaxed);
        let recovering = SubscriberState::Recovering as u8;
        match (before == recovering, state as u8 == recovering) {
            (false, true) => self.inner.count_recovering(1),
            (true, false) => self.inner.count_recovering(-1),
            _ => {}
        }
        before
    }
}

impl futures_core::Stream for Subscription {
    type Item = Result<Delivery, FollowError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Subscription::poll_next(self.get_mut(), context).map(Some)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.set_state(SubscriberState::Offline);
        match &self.follower {
            Follower::Topic(follower) => follower.leave(&self.shared),
            Follower::Pattern(follower) => follower.leave(&self.inner, &self.shared),
            Follower::Named(follower) => follower.leave(&self.inner, &self.shared),
        }
        if self.shared.unlisted {
            self.inner.listeners.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.inner.unsubscribed(self.shared.id);
            self.inner.tell_unfollowed(&self.shared);
            self.inner.reports.unfollowed(self.shared.id);
        }
    }
}

/// The place a position token stands for when nothing was seen yet.
pub(crate) const NOTHING_SEEN: Position = Position(0);
