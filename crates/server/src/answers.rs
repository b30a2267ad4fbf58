//! The broker's answers as verbs, and its errors as numbers of the one list.

use gapless_auth::CommandError;
use gapless_broker::{
    BrokerState, FollowError, GroupError, JournalStats, MemberError, ReadError, SubscribeError,
    TopicError,
};
use gapless_core::{PubSubError, PublishAck, Seq};
use gapless_protocol::{ErrorAnswer, ErrorCode, Known, PartAccepted, PartAck, Rejection, Verb};

/// An error of the list, with its sentence for people.
pub(crate) fn error(code: ErrorCode, message: &dyn std::fmt::Display) -> ErrorAnswer {
    ErrorAnswer::new(code, &message.to_string())
}

pub(crate) fn topic_error(failed: &TopicError) -> ErrorAnswer {
    let code = match failed {
        TopicError::Unknown(_) => ErrorCode::UnknownTopic,
        TopicError::Exists(_) => ErrorCode::TopicExists,
        TopicError::System(_) => ErrorCode::ReservedName,
        TopicError::Settings(_) => ErrorCode::BadSettings,
        TopicError::Storage(_) => ErrorCode::StorageFixed,
        TopicError::TooMany { .. } => ErrorCode::TooManyTopics,
        TopicError::Ahead { .. } => ErrorCode::Ahead,
        TopicError::Read(read) => read_code(read),
        TopicError::System_(trouble) => ErrorCode::from(trouble),
    };
    error(code, failed)
}

pub(crate) fn subscribe_error(failed: &SubscribeError) -> ErrorAnswer {
    let code = match failed {
        SubscribeError::Pattern(_) => ErrorCode::BadPattern,
        SubscribeError::Name(_) => ErrorCode::InvalidTopic,
        SubscribeError::NeedsTopic(_) => ErrorCode::NeedsTopic,
        SubscribeError::Start(_) => ErrorCode::Ahead,
        SubscribeError::TooMany { .. } => ErrorCode::TooManySubscriptions,
        SubscribeError::NeedsCluster
        | SubscribeError::NotSpread(_)
        | SubscribeError::Durable(_) => ErrorCode::NotSupported,
        SubscribeError::Named(_) => ErrorCode::LimitReached,
        SubscribeError::Read(read) => read_code(read),
        SubscribeError::Closed => ErrorCode::ShuttingDown,
    };
    error(code, failed)
}

pub(crate) fn follow_error(failed: &FollowError) -> ErrorAnswer {
    let code = match failed {
        FollowError::Deleted(_) => ErrorCode::TopicDeleted,
        FollowError::Read(read) => read_code(read),
        FollowError::TakenOver { .. } => ErrorCode::TakenOver,
        FollowError::Closed => ErrorCode::ShuttingDown,
    };
    error(code, failed)
}

pub(crate) fn group_error(failed: &GroupError) -> ErrorAnswer {
    let code = match failed {
        GroupError::Unknown(_) => ErrorCode::UnknownGroup,
        GroupError::Exists(_) => ErrorCode::GroupExists,
        GroupError::Name(_) => ErrorCode::ReservedName,
        GroupError::Settings(_) => ErrorCode::BadSettings,
        GroupError::Fixed(_) => ErrorCode::GroupFixed,
        GroupError::Active { .. } => ErrorCode::GroupActive,
        GroupError::NeedsTopic(_) => ErrorCode::NeedsTopic,
        GroupError::TooManyMembers { .. } => ErrorCode::TooManyMembers,
        GroupError::TooMany { .. } => ErrorCode::TooManyGroups,
        GroupError::NoOrigin { .. } => ErrorCode::NoOrigin,
        GroupError::Read(read) => read_code(read),
        GroupError::Topic(failed) => return topic_error(failed),
        GroupError::Rejected(reason) => ErrorCode::from(reason),
        GroupError::System(trouble) => ErrorCode::from(trouble),
    };
    error(code, failed)
}

pub(crate) fn member_error(failed: &MemberError) -> ErrorAnswer {
    let code = match failed {
        MemberError::Deleted(_) => ErrorCode::GroupDeleted,
        MemberError::Read(read) => read_code(read),
        MemberError::Closed => ErrorCode::ShuttingDown,
    };
    error(code, failed)
}

/// The number of an error of identities and rights.
pub(crate) fn command_code(failed: &CommandError) -> ErrorCode {
    match failed {
        CommandError::Denied(_) => ErrorCode::NotAuthorised,
        CommandError::Bad(_) => ErrorCode::BadRequest,
        CommandError::Unknown(_) => ErrorCode::NoSuchMessage,
        CommandError::TooMany { .. } => ErrorCode::LimitReached,
        CommandError::System(_) => ErrorCode::Internal,
    }
}

pub(crate) fn trouble(failed: &PubSubError) -> ErrorAnswer {
    error(ErrorCode::from(failed), failed)
}

fn read_code(read: &ReadError) -> ErrorCode {
    match read {
        ReadError::Damaged { .. } | ReadError::Missing { .. } => ErrorCode::Damaged,
        ReadError::Closed => ErrorCode::ShuttingDown,
        ReadError::Version { .. }
        | ReadError::Blobs(_)
        | ReadError::Busy { .. }
        | ReadError::Full => ErrorCode::ReadFailed,
    }
}

/// One part's ack; `count` is how many messages the part had, `known` are those of them that
/// were there already.
pub(crate) fn part_ack(ack: &PublishAck, count: u32, known: &[(u32, Seq)]) -> PartAck {
    match ack {
        PublishAck::Accepted(accepted) => {
            let known = match known {
                [] if accepted.duplicate => Known::These(vec![(0, accepted.first)]),
                [] => Known::None,
                known => Known::These(known.to_vec()),
            };
            PartAck::Accepted(PartAccepted { accepted: *accepted, count, known })
        }
        PublishAck::Scheduled { id, due } => PartAck::Scheduled { id: *id, due: *due },
        PublishAck::Rejected(reason) => PartAck::Rejected(Rejection::Reason(*reason)),
    }
}

/// The answer to something that may fail.
pub(crate) fn or_error<T>(result: Result<T, TopicError>, good: impl FnOnce(T) -> Verb) -> Verb {
    match result {
        Ok(value) => good(value),
        Err(failed) => Verb::Error(topic_error(&failed)),
    }
}

/// The name of the broker's state, the same in every API.
pub(crate) fn state_name(state: BrokerState) -> &'static str {
    match state {
        BrokerState::Starting => "starting",
        BrokerState::Listening => "listening",
        BrokerState::Online => "online",
        BrokerState::Error => "error",
    }
}

/// The journal's numbers, under the names that every API uses.
pub(crate) fn journal_json(journal: &JournalStats) -> serde_json::Value {
    serde_json::json!({
        "frames": journal.frames,
        "bytes": journal.bytes,
        "flushes": journal.flushes,
        "flush_us_mean": (journal.flush_time.as_micros() as u64)
            .checked_div(journal.flushes).unwrap_or(0),
        "flush_us_total": journal.flush_time.as_micros() as u64,
        "flush_us_max": journal.flush_time_max.as_micros() as u64,
        "tail_bytes": journal.tail_bytes,
        "segments": journal.segments,
        "segment_bytes": journal.segment_bytes,
        "full": journal.full,
    })
}
