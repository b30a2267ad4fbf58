//! What can go wrong at the broker's handle, one type per operation.

use crate::volatile::spread::NamedRefused;
use gapless_core::cluster::NodeName;
use gapless_core::{
    GroupSettingsError, NameError, Pattern, PatternError, PubSubError, RejectReason, Seq,
    SettingsError, StartError, TopicName,
};
use gapless_journal::{BeginError, Failure, KeepError, OpenError, ReadError};

/// Why a topic was not created, changed, trimmed or deleted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TopicError {
    /// There is no such topic. Nothing was changed.
    #[error("there is no topic {0}; create it with `gapless topic create {0}`")]
    Unknown(TopicName),
    /// A topic of this name is there with other settings. It was not changed.
    #[error("topic {0} exists with other settings; change them with `configure`")]
    Exists(TopicName),
    /// The name is kept for the broker itself. Nothing was changed.
    #[error("names that begin with `$` are the broker's own; choose another for {0}")]
    System(TopicName),
    /// The settings make no sense. Nothing was changed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Whether a topic is durable or volatile cannot be changed. Nothing was changed.
    #[error("topic {0} cannot change between durable and volatile; create a new one")]
    Storage(TopicName),
    /// There are as many topics as there may be. Nothing was changed.
    #[error("there are {max} topics already, which is the limit")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// A seq that is not there yet was named. Nothing was changed.
    #[error("the topic's next seq is {next}; it cannot be trimmed below {wanted}")]
    Ahead {
        /// What was asked for.
        wanted: Seq,
        /// What comes next.
        next: Seq,
    },
    /// History could not be read. Nothing was changed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The system is in trouble.
    #[error(transparent)]
    System_(#[from] PubSubError),
}

/// Why a subscription was refused. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The pattern is none.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A seq or the latest per key makes sense for one existing topic only, and a time for
    /// existing topics.
    #[error("{0} is not one existing topic; start at the beginning, now, or a position")]
    NeedsTopic(String),
    /// The seq is not there yet.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A named subscription needs a cluster, even if it has one node.
    #[error("an identity needs a cluster: start the server with `--node NAME`")]
    NeedsCluster,
    /// The subjects stay on their node, so that a name that may move cannot follow them.
    #[error("{0} does not leave its node: follow it without an identity")]
    NotSpread(Pattern),
    /// The topic keeps its messages, for cursors and groups.
    #[error("{0} is a durable topic: follow it from a cursor or in a group, not by an identity")]
    Durable(Pattern),
    /// The cluster did not take a named subscription.
    #[error(transparent)]
    Named(#[from] NamedRefused),
    /// There are as many subscriptions as there may be.
    #[error("there are {max} subscriptions already, which is the limit")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// History could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The broker is closed.
    #[error("the broker is closed")]
    Closed,
}

/// Why a subscription ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FollowError {
    /// The topic was deleted.
    #[error("topic {0} was deleted")]
    Deleted(TopicName),
    /// History could not be read; the subscription stands where it stood, and may be asked
    /// again.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The identity subscribed again, and the newest subscription of a name is the one that counts.
    #[error("the identity subscribed again on node {by}, which took over this subscription")]
    TakenOver {
        /// Where.
        by: NodeName,
    },
    /// The broker is closed.
    #[error("the broker is closed")]
    Closed,
}

/// Why a group was not created, changed, joined or described. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupError {
    /// There is no such group.
    #[error("there is no group {0}; create it with `gapless group create {0}`")]
    Unknown(TopicName),
    /// A group of this name is there with other settings.
    #[error("group {0} exists with other settings; change them with `configure`")]
    Exists(TopicName),
    /// The name is kept for the broker itself, or too long for a topic of dead letters.
    #[error("{0} cannot be a group's name: it must not begin with `$`, nor be over 249 bytes")]
    Name(TopicName),
    /// The settings make no sense.
    #[error(transparent)]
    Settings(#[from] GroupSettingsError),
    /// Source and mode are what a group is.
    #[error("group {0} cannot change its source or mode; create a new one")]
    Fixed(TopicName),
    /// The group has members, which would lose what they hold.
    #[error("group {group} has {members} members; let them leave first, or force it")]
    Active {
        /// The group.
        group: TopicName,
        /// How many.
        members: usize,
    },
    /// A seq makes sense for one existing topic only.
    #[error("{0} is not an existing topic; begin at the beginning, now, a position or a time")]
    NeedsTopic(String),
    /// There are as many groups as there may be.
    #[error("there are {max} groups already, which is the limit")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The group has as many members as it may have.
    #[error("the group has {max} members already, which is the limit")]
    TooManyMembers {
        /// The limit.
        max: usize,
    },
    /// The topic that a dead letter came from is gone, so it cannot go back there.
    #[error(
        "topic {topic} is gone, so dead letter {seq} cannot be redriven; create the topic again"
    )]
    NoOrigin {
        /// The topic.
        topic: TopicName,
        /// The letter.
        seq: Seq,
    },
    /// History could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A topic said no.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// Messages were refused by their topic.
    #[error("refused: {0}")]
    Rejected(RejectReason),
    /// The system is in trouble.
    #[error(transparent)]
    System(#[from] PubSubError),
}

/// Why a member got nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MemberError {
    /// The group was deleted.
    #[error("group {0} was deleted")]
    Deleted(TopicName),
    /// History could not be read; asked again, it tries the same.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The broker is closed.
    #[error("the broker is closed")]
    Closed,
}

/// Why a broker did not open.
#[derive(Debug, thiserror::Error)]
pub enum BrokerOpenError {
    /// The journal did not open.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a broker did not close cleanly. What was acknowledged is safe all the same; the
/// next opening takes a little longer.
#[derive(Debug, thiserror::Error)]
#[error("the store was not closed cleanly: {0}")]
pub struct CloseError(#[from] pub(crate) KeepError);

/// The answer to a publisher when the journal takes nothing: a reason to wait, or an error.
pub(crate) fn refused(error: BeginError) -> Result<RejectReason, PubSubError> {
    match error {
        BeginError::Busy { .. } => Ok(RejectReason::QueueFull),
        BeginError::TooLarge { bytes, max } => {
            Ok(RejectReason::TooLarge { bytes: bytes as u64, max: max as u64 })
        }
        other => Err(begin_error(other)),
    }
}

/// The error for a caller when the journal takes nothing.
pub(crate) fn begin_error(error: BeginError) -> PubSubError {
    match error {
        BeginError::Full | BeginError::Held { .. } => PubSubError::StorageFull,
        BeginError::Failed(Failure::Closed) => PubSubError::Stopped,
        BeginError::Failed(Failure::Poisoned { .. }) => PubSubError::JournalFailed,
        BeginError::Failed(Failure::Fenced { .. } | Failure::Unwritten)
        | BeginError::Unavailable { .. }
        | BeginError::Busy { .. } => PubSubError::Unavailable,
        // What is appended in parts is bounded by the broker's limits, which are below a frame.
        too_large @ BeginError::TooLarge { .. } => PubSubError::Internal(too_large.to_string()),
    }
}

/// The error for a publisher when something that the publish depends on is not certain to be
/// durable: nothing of the message itself was written.
pub(crate) fn not_begun(error: PubSubError) -> PubSubError {
    match error {
        PubSubError::Poisoned => PubSubError::JournalFailed,
        PubSubError::TimedOut => PubSubError::StorageFull,
        PubSubError::Fenced => PubSubError::Unavailable,
        other => other,
    }
}

/// The error for a publisher whose message was taken but never confirmed.
pub(crate) fn unconfirmed(failure: &Failure) -> PubSubError {
    match failure {
        Failure::Fenced { .. } => PubSubError::Fenced,
        Failure::Unwritten => PubSubError::TimedOut,
        Failure::Poisoned { .. } | Failure::Closed => PubSubError::Poisoned,
    }
}
