//! Where a subscriber of this process takes its messages.
//!
//! It has no queue of its own: it asks its subscriptions in turn, and what waits is in their
//! mailboxes, within the limits of the broker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use gapless_broker::{Delivery, FollowError, GapNotice, SubscribeError, Subscription};
use gapless_core::cluster::Identity;
use gapless_core::{DecodeError, Message, Seq};

use super::{PubSubEnvelope, PubSubTopic, SerializationRegistry, SubscriptionError};

/// A message as its subscriber gets it.
#[derive(Clone, Debug)]
pub struct PubSubMessage {
    /// Where it was published.
    pub topic: PubSubTopic,
    /// Its number there, as this node counts.
    pub seq: Seq,
    /// The message.
    pub message: Message,
}

impl PubSubMessage {
    /// The value in it, if it is one of this type.
    ///
    /// # Errors
    /// When it is not.
    pub fn decode<T: std::any::Any>(
        &self,
        registry: &SerializationRegistry,
    ) -> Option<Result<T, DecodeError>> {
        let envelope = PubSubEnvelope::of_message(&self.message).ok()?;
        Some(registry.decode(&envelope))
    }
}

/// What comes out of an inbox.
#[derive(Clone, Debug)]
pub enum Received {
    /// A message.
    Message(PubSubMessage),
    /// Messages of this topic that will not come, and why.
    Gap(PubSubTopic, GapNotice),
    /// A subscription has ended.
    Ended(PubSubTopic, FollowError),
}

/// Where a subscriber takes its messages. Clones are the same.
#[derive(Clone, Default)]
pub struct Inbox {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    follows: Vec<Follow>,
    /// Which of them is asked first: they take turns.
    next: usize,
    /// What was taken from one of them together.
    taken: VecDeque<Received>,
    waker: Option<Waker>,
}

struct Follow {
    topic: PubSubTopic,
    identity: Option<Identity>,
    subscription: Subscription,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an inbox of {}", self.lock().follows.len())
    }
}

impl Inbox {
    /// An inbox that follows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(
        &self,
        topic: &PubSubTopic,
        identity: Option<&Identity>,
        subscribe: impl FnOnce() -> Result<Subscription, SubscribeError>,
    ) -> Result<(), SubscriptionError> {
        let mut state = self.lock();
        if state.position(topic, identity).is_some() {
            return Err(SubscriptionError::AlreadySubscribed(topic.clone()));
        }
        let subscription = subscribe()?;
        let (topic, identity) = (topic.clone(), identity.cloned());
        state.follows.push(Follow { topic, identity, subscription });
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    pub(super) fn remove(
        &self,
        topic: &PubSubTopic,
        identity: Option<&Identity>,
    ) -> Result<(), SubscriptionError> {
        let mut state = self.lock();
        let at = state.position(topic, identity);
        let at = at.ok_or_else(|| SubscriptionError::NotSubscribed(topic.clone()))?;
        let follow = state.follows.remove(at);
        // Nothing is delivered to one who is not subscribed (A1).
        state.taken.retain(|received| *received.topic() != *topic);
        drop(state);
        follow.subscription.unsubscribe();
        Ok(())
    }

    /// The next that comes; waits if there is nothing yet.
    pub async fn next(&self) -> Received {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Received> {
        let mut state = self.lock();
        let state = &mut *state;
        loop {
            if let Some(received) = state.taken.pop_front() {
                return Poll::Ready(received);
            }
            let count = state.follows.len();
            let polled = (0..count).find_map(|step| {
                let at = (state.next + step) % count;
                match state.follows[at].subscription.poll_next(context) {
                    Poll::Ready(done) => Some((at, done)),
                    Poll::Pending => None,
                }
            });
            let Some((at, done)) = polled else {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            state.next = at + 1;
            let topic = state.follows[at].topic.clone();
            match done {
                Ok(Delivery::Messages(messages)) => {
                    let received = messages.iter().map(|each| {
                        let (topic, seq) = (topic.clone(), each.seq);
                        Received::Message(PubSubMessage { topic, seq, message: each.message })
                    });
                    state.taken.extend(received);
                }
                Ok(Delivery::Gap(gap)) => return Poll::Ready(Received::Gap(topic, gap)),
                Ok(Delivery::Recovering { .. } | Delivery::Live) => {}
                Err(error) => {
                    state.follows.remove(at);
                    return Poll::Ready(Received::Ended(topic, error));
                }
            }
        }
    }
}

impl Received {
    fn topic(&self) -> &PubSubTopic {
        match self {
            Self::Message(message) => &message.topic,
            Self::Gap(topic, _) | Self::Ended(topic, _) => topic,
        }
    }
}

impl State {
    fn position(&self, topic: &PubSubTopic, identity: Option<&Identity>) -> Option<usize> {
        let is_same =
            |follow: &Follow| follow.topic == *topic && follow.identity.as_ref() == identity;
        self.follows.iter().position(is_same)
    }
}
