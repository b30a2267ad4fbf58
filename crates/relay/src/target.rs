//! Where rows go: a broker in this process, or one behind the native protocol.

use std::pin::Pin;

use bytes::Bytes;
use gapless_broker::{Atomic, Broker, TopicError};
use gapless_client::{AskError, Client, ErrorCode, PublishError};
use gapless_core::{
    ExpectCell, PubSubError, PublishAck, PublishOptions, Records, RejectReason, TopicName,
    TopicSettings,
};

/// A broker.
#[derive(Clone)]
pub enum Target {
    /// In this process.
    Broker(Broker),
    /// Over a connection.
    Client(Client),
}

/// Why nothing was done, or why that is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Refused; nothing was written.
    #[error("the broker refuses it: {0}")]
    Rejected(RejectReason),
    /// The broker is in trouble or away; what became of it is read from the cell.
    #[error("the broker does not answer: {0}")]
    Trouble(String),
}

/// What is done together.
pub(crate) struct Step {
    pub(crate) parts: Vec<(TopicName, Records)>,
    pub(crate) expect: ExpectCell,
    pub(crate) value: Bytes,
}

/// What becomes of a step that was handed over.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<(), TargetError>> + Send>>;

impl Step {
    pub(crate) fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.parts.iter().map(|(topic, _)| topic)
    }
}

fn trouble(error: &impl ToString) -> TargetError {
    TargetError::Trouble(error.to_string())
}

impl Target {
    pub(crate) async fn cell(&self, name: &str) -> Result<Option<Bytes>, TargetError> {
        match self {
            Self::Broker(broker) => Ok(broker.cell(name.as_bytes())),
            Self::Client(client) => {
                client.cell(name.to_owned()).await.map_err(|error| trouble(&error))
            }
        }
    }

    /// Hands a step over, after those before it; the answer comes when it is on disk.
    pub(crate) fn commit(&self, cell: &str, step: &Step) -> Answer {
        let options = PublishOptions::default();
        match self {
            Self::Broker(broker) => {
                let mut atomic = Atomic::new()
                    .expect_cell(cell.to_owned(), step.expect.clone())
                    .set_cell(cell.to_owned(), step.value.clone());
                for (topic, records) in &step.parts {
                    atomic = atomic.publish_records(topic, records.clone(), None);
                }
                let publishing = broker.commit(atomic, &options);
                Box::pin(async {
                    let acks = publishing.all().await;
                    let acks = acks.map_err(|error: PubSubError| trouble(&error))?;
                    match acks.iter().find_map(PublishAck::rejected) {
                        Some(reason) => Err(TargetError::Rejected(*reason)),
                        None => Ok(()),
                    }
                })
            }
            Self::Client(client) => {
                let mut atomic = gapless_client::Atomic::new();
                atomic = atomic.cell_if(cell.to_owned(), step.expect.clone(), step.value.clone());
                for (topic, records) in &step.parts {
                    for record in records.iter() {
                        atomic = atomic.message(topic, record.to_message(&records.bytes));
                    }
                }
                let committing = client.commit_with(atomic, &options);
                Box::pin(async {
                    match committing.await {
                        Ok(_) => Ok(()),
                        Err(PublishError::Rejected(reason)) => Err(TargetError::Rejected(reason)),
                        Err(error) => Err(trouble(&error)),
                    }
                })
            }
        }
    }

    /// Whether a topic is there.
    pub(crate) async fn has(&self, topic: &TopicName) -> Result<bool, TargetError> {
        match self {
            Self::Broker(broker) => Ok(broker.describe_topic(topic).is_ok()),
            Self::Client(client) => match client.describe_topic(topic).await {
                Ok(_) => Ok(true),
                Err(AskError::Server(told)) if told.code == ErrorCode::UnknownTopic.number() => {
                    Ok(false)
                }
                Err(error) => Err(trouble(&error)),
            },
        }
    }

    pub(crate) async fn create(&self, topic: &TopicName) -> Result<(), TargetError> {
        let settings = TopicSettings::default();
        match self {
            Self::Broker(broker) => {
                let creating = broker.creating_topic(topic, settings);
                let creating = creating.map_err(|error: TopicError| trouble(&error))?;
                creating.await.map(|_| ()).map_err(|error: TopicError| trouble(&error))
            }
            Self::Client(client) => client
                .create_topic(topic, settings)
                .await
                .map(|_| ())
                .map_err(|error| trouble(&error)),
        }
    }

    /// Waits until what was refused for want of room may be tried again.
    pub(crate) async fn room(&self) {
        match self {
            Self::Broker(broker) => broker.room().await,
            // The server lets frames wait by itself.
            Self::Client(_) => {}
        }
    }
}

impl TargetError {
    /// Whether a single message is at fault, and not the broker or its settings.
    pub(crate) fn is_the_messages(&self) -> bool {
        matches!(
            self,
            Self::Rejected(
                RejectReason::InvalidTopic
                    | RejectReason::InvalidPayload
                    | RejectReason::TooLarge { .. }
            )
        )
    }
}
