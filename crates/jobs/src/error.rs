//! Why the leader of jobs could not do something.

use gapless_broker::{FollowError, SubscribeError, TopicError};
use gapless_core::PubSubError;
use gapless_core::job::record::RecordError;

/// Why the leader could not start, or had to stop. Jobs that were accepted are kept.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// A topic of the jobs could not be created.
    #[error("cannot create the topics of jobs: {0}")]
    Topics(#[from] TopicError),
    /// What is known of jobs could not be read.
    #[error("cannot read jobs: {0}")]
    Subscribe(#[from] SubscribeError),
    /// What is known of jobs could not be read.
    #[error("cannot read jobs: {0}")]
    Follow(#[from] FollowError),
    /// The record of a job cannot be understood.
    #[error("job record {seq} cannot be read: {source}")]
    Record {
        /// Its seq in the topic of records.
        seq: u64,
        /// What is wrong with it.
        source: RecordError,
    },
    /// The journal did not take the change.
    #[error("a change of jobs could not be stored: {0}")]
    Store(String),
    /// The broker is in trouble.
    #[error(transparent)]
    Broker(#[from] PubSubError),
    /// The leader has stopped.
    #[error("the leader of jobs has stopped")]
    Stopped,
}
