//! The handle that users hold: cheap to clone, and all of it leads to the one driver.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless_core::cluster::Identity;
use gapless_core::{
    BatcherLimits, BatcherLimitsError, EncodeError, Link, LinkLimits, Message, Pattern,
    PublishOptions, Registry, RejectReason, StartFrom as From, TopicName,
};
use gapless_protocol::{Features, FrameLimit, Hello, VERSION, Verb};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::address::Address;
use crate::batching::BatchingProducer;
use crate::clock::Clock;
use crate::driver::{ASKS_MAX, Driver, Parts};
use crate::error::{ConnectError, GaveUp, PublishError, SubscriptionError};
use crate::feed::Feed;
use crate::inbox::{Command, Inbox, Load, NewFollow};
use crate::options::{ClientLimits, ConnectOptions};
use crate::publish::{
    Atomic, Committing, IdSource, Outgoing, Publishing, Reporting, committing, publishing, random,
};
use crate::subscription::Subscription;
use crate::tls::TlsError;
use crate::typed;

/// How a client is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// A connection is being established.
    Connecting,
    /// The server has said welcome.
    Online,
    /// There is no connection; another is tried soon.
    Offline,
    /// The client was closed, or has given up for this reason. Nothing changes any more.
    Closed(Option<GaveUp>),
}

/// What was left when a client ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Publishes that were sent and not answered: they may have happened or not.
    pub unknown: u32,
    /// Publishes that were never sent.
    pub unsent: u32,
}

/// A client of a gapless server.
///
/// Clones share one connection. When the last of them is gone, and every [`Subscription`]
/// and [`BatchingProducer`], the client ends by itself; [`Client::close`] returns what was left.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    inbox: Arc<Inbox>,
    ids: IdSource,
    limits: ClientLimits,
    registry: Arc<Registry>,
    state: watch::Receiver<State>,
    trouble: Arc<Mutex<Option<String>>>,
    asks: Semaphore,
    members: AtomicU64,
    clock: Clock,
    driver: Mutex<Option<JoinHandle<CloseReport>>>,
}

impl Client {
    /// Connects, and waits for the first welcome.
    ///
    /// # Errors
    /// When the options cannot be used, a server refuses the client for good, or none says
    /// welcome in time.
    pub async fn connect(options: ConnectOptions) -> Result<Self, ConnectError> {
        let client = Self::connect_lazy(options)?;
        let mut state = client.state();
        let decided = state.wait_for(|state| matches!(state, State::Online | State::Closed(_)));
        let decided = timeout(client.limits().connect_wait, decided).await;
        let decided = decided.map(|state| state.map(|state| *state));
        match decided {
            Ok(Ok(state)) => match state {
                State::Closed(Some(GaveUp::Tls)) => {
                    let why = client.last_trouble().unwrap_or_default();
                    Err(ConnectError::Tls(TlsError::Handshake(why)))
                }
                State::Closed(why) => Err(ConnectError::GaveUp(why.unwrap_or(GaveUp::Other))),
                _ => Ok(()),
            },
            _ => {
                let last = client.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner);
                Err(ConnectError::TimedOut { last: last.clone() })
            }
        }?;
        Ok(client)
    }

    /// Creates a client that connects in the background. What is published and asked for waits
    /// for the connection. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When the options cannot be used.
    pub fn connect_lazy(options: ConnectOptions) -> Result<Self, ConnectError> {
        let ConnectOptions { addresses, name, token, tls, backoff, limits, ids, registry } =
            options;
        let tls = tls.map(|tls| tls.build()).transpose()?;
        let addresses: Vec<Address> =
            addresses.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        check(&limits)?;
        let (version_min, version_max) = (VERSION, VERSION);
        let features = Features(Features::GROUPS.0 | Features::RETRY_AFTER.0);
        let extension = bytes::Bytes::new();
        let (client_name, token) = (name, token.map(|secret| secret.0));
        let hello = Hello { version_min, version_max, features, client_name, token, extension };
        let none = gapless_protocol::Ids::NONE;
        Verb::from(hello.clone())
            .encode(none, FrameLimit::MAX, &mut bytes::BytesMut::new())
            .map_err(ConnectError::Hello)?;
        // Twice the limits: when the client is closed, what waits in line joins the rest.
        let link_limits = LinkLimits {
            publish_count_max: limits.in_flight_count.saturating_mul(2),
            publish_bytes_max: limits.in_flight_bytes.saturating_mul(2),
            subscription_count_max: limits.subscriptions,
            welcome_wait: limits.welcome_wait,
        };
        let link = Link::new(addresses.len(), backoff, random(), link_limits)?;
        let own = Load { count: limits.in_flight_count, bytes: limits.in_flight_bytes };
        let inbox = Arc::new(Inbox::new(own));
        let (state, states) = watch::channel(State::Connecting);
        let trouble = Arc::default();
        let clock = Clock::start();
        let parts = Parts {
            clock,
            inbox: Arc::clone(&inbox),
            addresses,
            tls,
            hello,
            limits,
            registry: Arc::clone(&registry),
            state,
            trouble: Arc::clone(&trouble),
            link,
        };
        let driver = tokio::spawn(Driver::new(parts).run());
        let inner = Inner {
            inbox,
            ids: IdSource::new(ids),
            limits,
            registry,
            state: states,
            trouble,
            asks: Semaphore::new(ASKS_MAX),
            members: AtomicU64::new(1),
            clock,
            driver: Mutex::new(Some(driver)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Publishes a message. It enters now, in the order of the calls; the future is its ack,
    /// so that many can be on their way at once.
    ///
    /// When the limits of what is unanswered are reached it waits in line; when the line is
    /// full too it is rejected ([`RejectReason::QueueFull`]). Callers that publish much without
    /// awaiting acks wait for [`Client::ready`] in between.
    ///
    /// A message without an id gets one (see [`crate::Ids`]), so that a durable topic stores
    /// it once, however often it has to be sent.
    pub fn publish(&self, topic: &TopicName, message: Message) -> Publishing {
        self.publish_with(topic, message, &PublishOptions::default())
    }

    /// As [`Client::publish`], with options of its own.
    pub fn publish_with(
        &self,
        topic: &TopicName,
        message: Message,
        options: &PublishOptions,
    ) -> Publishing {
        self.publish_batch(topic, vec![message], options)
    }

    /// Publishes messages that are accepted together or not at all.
    pub fn publish_batch(
        &self,
        topic: &TopicName,
        messages: Vec<Message>,
        options: &PublishOptions,
    ) -> Publishing {
        let outgoing = Outgoing::publish((topic, options), messages, &self.inner.ids);
        publishing(outgoing, |outgoing| self.inner.inbox.publish(outgoing))
    }

    /// Publishes to a volatile subject or topic, and asks who takes it (A8). The report comes after
    /// the ack, when each subscriber has taken it, is gone, or had its time.
    pub fn publish_reported(
        &self,
        topic: &TopicName,
        message: Message,
        options: &PublishOptions,
    ) -> (Publishing, Reporting) {
        let options = PublishOptions { report: true, ..*options };
        let mut outgoing = Outgoing::publish((topic, &options), vec![message], &self.inner.ids);
        let (sender, report) = oneshot::channel();
        if let Ok(outgoing) = &mut outgoing {
            outgoing.report = Some(sender);
        }
        (publishing(outgoing, |outgoing| self.inner.inbox.publish(outgoing)), Reporting { report })
    }

    /// Publishes a value of a type that is registered (A12).
    pub fn publish_typed<T: Any>(&self, topic: &TopicName, payload: &T) -> Publishing {
        match self.message(payload) {
            Ok(message) => self.publish(topic, message),
            Err(error) => {
                let reason = PublishError::Rejected(RejectReason::from(error));
                publishing(Err(reason), |_| ())
            }
        }
    }

    /// The message that carries a value of a type that is registered, to be given a key and
    /// the like before it is published.
    ///
    /// # Errors
    /// When the type is not registered or cannot be serialised.
    pub fn message<T: Any>(&self, payload: &T) -> Result<Message, EncodeError> {
        typed::encode(&self.inner.registry, payload)
    }

    /// Does several things together: after a crash all are there, or none. One with cells is
    /// not sent again after a lost connection.
    pub fn commit(&self, atomic: Atomic) -> Committing {
        self.commit_with(atomic, &PublishOptions::default())
    }

    /// As [`Client::commit`], with options of its own; expectations are given per topic.
    pub fn commit_with(&self, atomic: Atomic, options: &PublishOptions) -> Committing {
        let outgoing = Outgoing::commit(atomic, options, &self.inner.ids);
        committing(outgoing, |outgoing| self.inner.inbox.publish(outgoing))
    }

    /// Waits until a publish would not have to wait in line.
    pub async fn ready(&self) {
        self.inner.inbox.has_room().await;
    }

    /// Gathers messages for a topic into batches (A6).
    ///
    /// # Errors
    /// When the limits make no sense.
    pub fn batching(
        &self,
        topic: &TopicName,
        limits: BatcherLimits,
        options: &PublishOptions,
    ) -> Result<BatchingProducer, BatcherLimitsError> {
        BatchingProducer::new(self.clone(), topic.clone(), limits, *options)
    }

    /// Follows a topic or a pattern from some place on, and waits until the server has taken
    /// it: what is published after that is seen.
    ///
    /// # Errors
    /// When the text is not a valid pattern, or the server refuses or does not answer in time.
    pub async fn subscribe(
        &self,
        pattern: impl AsRef<str>,
        from: From,
    ) -> Result<Subscription, SubscriptionError> {
        let subscription = self.subscribe_lazy(pattern, from)?;
        self.confirm(subscription).await
    }

    /// Waits until the server has taken it.
    async fn confirm(&self, subscription: Subscription) -> Result<Subscription, SubscriptionError> {
        match timeout(self.inner.limits.answer_wait, subscription.confirmed()).await {
            Ok(Ok(())) => Ok(subscription),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(SubscriptionError::TimedOut),
        }
    }

    /// As [`Client::subscribe`], without waiting: a refusal comes as the first item.
    ///
    /// # Errors
    /// When the text is not a valid pattern, or the client is closed.
    pub fn subscribe_lazy(
        &self,
        pattern: impl AsRef<str>,
        from: From,
    ) -> Result<Subscription, SubscriptionError> {
        self.follow(pattern.as_ref(), from, None)
    }

    /// Follows volatile subjects under a name, which outlives connections: after a lost one, and on
    /// another node of the cluster, it goes on with what was held for it. The newest subscription of
    /// a name counts, an older one ends. What was not sent to it is held for a while also when it is
    /// dropped; [`Subscription::unsubscribe`] ends it for good.
    ///
    /// # Errors
    /// When the text is not a valid pattern, the server is in no cluster, or it does not answer in
    /// time.
    pub async fn subscribe_as(
        &self,
        identity: &Identity,
        pattern: impl AsRef<str>,
    ) -> Result<Subscription, SubscriptionError> {
        let subscription = self.follow(pattern.as_ref(), From::Now, Some(identity.clone()))?;
        self.confirm(subscription).await
    }

    fn follow(
        &self,
        pattern: &str,
        from: From,
        identity: Option<Identity>,
    ) -> Result<Subscription, SubscriptionError> {
        let pattern = Pattern::parse(pattern)?;
        let feed = Arc::new(Feed::new(self.inner.limits.window));
        let follow = NewFollow { feed: Arc::clone(&feed), pattern, from, identity };
        if !self.inner.inbox.send(Command::Follow(follow)) {
            return Err(SubscriptionError::Closed);
        }
        Ok(Subscription::new(feed, from, self.clone()))
    }

    /// The types that can travel.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// How the client is doing, now and from now on.
    pub fn state(&self) -> watch::Receiver<State> {
        self.inner.state.clone()
    }

    /// What went wrong last with a connection, for people.
    pub fn last_trouble(&self) -> Option<String> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the client: takes nothing more, waits at most so long for what is unanswered,
    /// says bye, and reports what was left. Subscriptions end. All clones are closed too; only the
    /// first call to close returns what was left.
    pub async fn close(&self, wait: Duration) -> CloseReport {
        self.inner.inbox.stop(wait);
        let driver = self.inner.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = driver {
            return driver.await.unwrap_or_default();
        }
        let mut state = self.state();
        // An error is a driver that is gone, which is closed too.
        let _ = state.wait_for(|state| matches!(state, State::Closed(_))).await;
        CloseReport::default()
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inner.inbox
    }

    pub(crate) fn limits(&self) -> &ClientLimits {
        &self.inner.limits
    }

    pub(crate) fn asks(&self) -> &Semaphore {
        &self.inner.asks
    }

    /// The number of a new membership, which no other has.
    pub(crate) fn next_member(&self) -> u64 {
        self.inner.members.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.inner.clock
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.inbox.stop(self.limits.drop_wait);
    }
}

fn check(limits: &ClientLimits) -> Result<(), ConnectError> {
    let zeroes = [
        ("window messages", limits.window.messages == 0),
        ("window bytes", limits.window.bytes == 0),
        ("ping every", limits.ping_every.is_zero()),
        ("publish wait", limits.publish_wait.is_zero()),
    ];
    match zeroes.into_iter().find(|(_, zero)| *zero) {
        Some((limit, _)) => Err(ConnectError::Zero { limit }),
        None => Ok(()),
    }
}
