//! The API of distributed pub/sub in a process, under the names of its design (A1 to A6, A8, A12).
//!
//! It is a thin layer: topics and subscribers are the broker's, the rules of other nodes the
//! cluster's. A refusal is a [`PublishAck`], trouble of the system a [`PubSubError`]; the two never
//! mix. Subscribing twice, or unsubscribing what is not subscribed, is an error and changes nothing.

mod inbox;
mod producer;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use gapless_broker::{Broker, From, SubscribeError};
use gapless_core::cluster::ClusterConfig;
use gapless_core::{Message, NameError, Pattern, TopicName};

pub use gapless_broker::{Broker as DeliveryEndpoint, Incoming as DeliverBatchRequest};
pub use gapless_core::cluster::{
    DeliveryReport, DeliveryStatus, Identity, SubscriberName, SubscriberResult,
};
pub use gapless_core::{
    BatcherLimits as BatchingProducerConfig, BatcherLimitsError, DeliveryPolicy,
    Envelope as PubSubEnvelope, PartitionBehavior, PubSubError, PublishAck, PublishOptions,
    Registry as SerializationRegistry, RejectReason as PublishRejectReason,
};
pub use inbox::{Inbox, PubSubMessage, Received};
pub use producer::{BatchingProducer, OnStop, Receipt, StopReport};

/// The two times of the design; everything else of a cluster is in [`ClusterConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PubSubConfig {
    /// How long a subscriber may take for its part of a report.
    pub subscriber_timeout: Duration,
    /// How long a subscriber that cannot be reached is remembered.
    pub suspended_ttl: Duration,
}

impl Default for PubSubConfig {
    fn default() -> Self {
        let ClusterConfig { subscriber_timeout, suspended_ttl, .. } = ClusterConfig::default();
        Self { subscriber_timeout, suspended_ttl }
    }
}

impl std::convert::From<PubSubConfig> for ClusterConfig {
    fn from(config: PubSubConfig) -> Self {
        let PubSubConfig { subscriber_timeout, suspended_ttl } = config;
        Self { subscriber_timeout, suspended_ttl, ..Self::default() }
    }
}

/// A topic: its name, which is good.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PubSubTopic(TopicName);

impl PubSubTopic {
    /// Reads the name of a topic.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn new(name: &str) -> Result<Self, NameError> {
        TopicName::parse(name).map(Self)
    }

    /// Its name.
    pub fn name(&self) -> &TopicName {
        &self.0
    }
}

impl std::fmt::Display for PubSubTopic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Who subscribes.
#[derive(Clone, Debug)]
pub enum PubSubSubscriber {
    /// A handle of this process: it lives and ends with it.
    Local(Inbox),
    /// An identity of the cluster, which takes its messages here from now on. What it has not taken
    /// when it is away is held for it.
    Identity(Identity, Inbox),
}

impl PubSubSubscriber {
    fn parts(&self) -> (Option<&Identity>, &Inbox) {
        match self {
            Self::Local(inbox) => (None, inbox),
            Self::Identity(identity, inbox) => (Some(identity), inbox),
        }
    }
}

/// Why a subscription was not made or ended. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// The subscriber follows the topic already.
    #[error("the subscriber follows {0} already")]
    AlreadySubscribed(PubSubTopic),
    /// The subscriber does not follow the topic.
    #[error("the subscriber does not follow {0}")]
    NotSubscribed(PubSubTopic),
    /// The broker or the cluster refused it.
    #[error(transparent)]
    Refused(#[from] SubscribeError),
}

/// What to publish, and how.
#[derive(Clone, Debug)]
pub struct PublishRequest<T> {
    /// Where.
    pub topic: PubSubTopic,
    /// A value of a type that is registered.
    pub payload: T,
    /// What holds for this publish only.
    pub options: PublishOptions,
}

impl<T> PublishRequest<T> {
    /// A publish without options of its own.
    pub fn new(topic: &PubSubTopic, payload: T) -> Self {
        Self { topic: topic.clone(), payload, options: PublishOptions::default() }
    }
}

/// Several payloads of one publish, in their order.
#[derive(Clone, Debug, Default)]
pub struct PubSubBatch {
    envelopes: Vec<PubSubEnvelope>,
}

impl PubSubBatch {
    /// Adds an envelope.
    pub fn push(&mut self, envelope: PubSubEnvelope) {
        self.envelopes.push(envelope);
    }
}

/// Subscribes and publishes on this node. Clones are the same.
#[derive(Clone)]
pub struct PubSubApi {
    broker: Broker,
    registry: Arc<SerializationRegistry>,
}

impl PubSubApi {
    /// The API of a broker, which is in a cluster or not, with the types that can travel.
    pub fn new(broker: &Broker, registry: SerializationRegistry) -> Self {
        Self { broker: broker.clone(), registry: Arc::new(registry) }
    }

    /// The types that can travel.
    pub fn registry(&self) -> &SerializationRegistry {
        &self.registry
    }

    /// Lets a subscriber follow a topic from now on.
    ///
    /// # Errors
    /// When it does already, or the broker or cluster refuses it.
    pub fn subscribe(
        &self,
        topic: &PubSubTopic,
        subscriber: &PubSubSubscriber,
    ) -> Result<(), SubscriptionError> {
        let (identity, inbox) = subscriber.parts();
        inbox.add(topic, identity, || {
            let pattern = Pattern::literal(&topic.0);
            match identity {
                Some(identity) => self.broker.subscribe_named(identity, &pattern),
                None => self.broker.subscribe(&pattern, From::Now),
            }
        })
    }

    /// Ends that. Nothing is held for an identity any more.
    ///
    /// # Errors
    /// When it does not follow the topic.
    pub fn unsubscribe(
        &self,
        topic: &PubSubTopic,
        subscriber: &PubSubSubscriber,
    ) -> Result<(), SubscriptionError> {
        let (identity, inbox) = subscriber.parts();
        inbox.remove(topic, identity)
    }

    /// Publishes a value.
    ///
    /// # Errors
    /// When the system is in trouble. A refusal is an ack.
    pub async fn publish<T: Any>(
        &self,
        request: PublishRequest<T>,
    ) -> Result<PublishAck, PubSubError> {
        self.publisher().publish(request).await
    }

    /// What publishes and nothing else.
    pub fn publisher(&self) -> PubSubPublisher {
        PubSubPublisher { api: self.clone() }
    }

    /// A producer that gathers values into batches. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When the limits make no sense.
    pub fn batching_producer<T: Any>(
        &self,
        topic: &PubSubTopic,
        config: BatchingProducerConfig,
    ) -> Result<BatchingProducer<T>, BatcherLimitsError> {
        BatchingProducer::new(&self.broker, &self.registry, topic.name(), config)
    }
}

/// Publishes single values and batches.
#[derive(Clone)]
pub struct PubSubPublisher {
    api: PubSubApi,
}

impl PubSubPublisher {
    /// Publishes a value.
    ///
    /// # Errors
    /// When the system is in trouble. A refusal is an ack.
    pub async fn publish<T: Any>(
        &self,
        request: PublishRequest<T>,
    ) -> Result<PublishAck, PubSubError> {
        Ok(self.publish_reported(request).await?.0)
    }

    /// Publishes a value; with `report` among its options, the report of who took it comes with the
    /// ack, when each has taken it, is gone, or had its time.
    ///
    /// # Errors
    /// When the system is in trouble. A refusal is an ack.
    pub async fn publish_reported<T: Any>(
        &self,
        request: PublishRequest<T>,
    ) -> Result<(PublishAck, Option<DeliveryReport>), PubSubError> {
        let PublishRequest { topic, payload, options } = request;
        let message = match self.api.registry.encode(&payload) {
            Ok(envelope) => envelope.into_message(),
            Err(error) => return Ok((PublishAck::Rejected(error.into()), None)),
        };
        let mut publishing = self.api.broker.publish(&topic.0, &message, &options);
        let report = publishing.take_report();
        let ack = publishing.await?;
        match report {
            Some(report) => Ok((ack, Some(report.await))),
            None => Ok((ack, None)),
        }
    }

    /// Publishes a batch: all of it is accepted, in its order, or nothing.
    ///
    /// # Errors
    /// When the system is in trouble. A refusal is an ack.
    pub async fn publish_batch(
        &self,
        topic: &PubSubTopic,
        batch: PubSubBatch,
        options: &PublishOptions,
    ) -> Result<PublishAck, PubSubError> {
        let messages: Vec<Message> =
            batch.envelopes.into_iter().map(PubSubEnvelope::into_message).collect();
        self.api.broker.publish_batch(&topic.0, &messages, options).await
    }
}
