//! What a publish is answered.
//!
//! A [`PublishAck`] is the broker's decision about the message: taken, kept for later, or
//! refused for a reason that lies in the message or its topic (A3). A [`PubSubError`] is
//! trouble of the system, about which the message can do nothing (A4). The two never mix:
//! no reason is in both, and no type holds both.
//!
//! Numbers and names of both come from the one list below. A number once given is never
//! given again, not even after its variant is gone: clients keep them for years.
//! How a listener shows them (status codes and the like) is the listener's business.

use alloc::string::String;

use crate::id::{Position, Seq};
use crate::options::Durability;
use crate::time::Timestamp;

/// The broker's decision about a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishAck {
    /// Taken; delivery has begun.
    Accepted(Accepted),
    /// Kept until it is due; only then does it get its seq.
    Scheduled {
        /// The id by which it can be cancelled until it is due.
        id: Position,
        /// When it will appear in its topic.
        due: Timestamp,
    },
    /// Refused; nothing was written, and nothing is delivered.
    Rejected(RejectReason),
}

impl PublishAck {
    /// The acceptance, if it is one.
    pub fn accepted(&self) -> Option<&Accepted> {
        match self {
            Self::Accepted(accepted) => Some(accepted),
            _ => None,
        }
    }

    /// The reason, if it is a refusal.
    pub fn rejected(&self) -> Option<&RejectReason> {
        match self {
            Self::Rejected(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Where accepted messages stand, and how safe they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The seq of the first message of the publish.
    pub first: Seq,
    /// The seq of the last one; the same as the first for a single message.
    pub last: Seq,
    /// The place of the last one in the journal.
    pub position: Position,
    /// The durability reached by the time of the ack.
    pub durability: Durability,
    /// Whether the message was there already, so that these are the numbers of then.
    pub duplicate: bool,
}

/// Why a message was refused. Nothing is written in any case; sending the same again
/// without changing what the reason names gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RejectReason {
    /// The name is not a valid topic name, or one the caller must not publish to.
    #[error("the topic name is not valid: use tokens joined by dots, without blanks or wildcards")]
    InvalidTopic,
    /// The message cannot be read, or breaks a limit of its parts.
    #[error("the message is not valid: check its key, headers, id and times")]
    InvalidPayload,
    /// No serialiser is registered for the payload's type.
    #[error("the payload cannot be serialised: register a serialiser for its type")]
    NotSerializable,
    /// The place where the message would wait is full.
    #[error("the queue is full: wait for acks, then send again")]
    QueueFull,
    /// The publish asked for subscribers, and the topic has none.
    #[error("the topic has no subscribers: subscribe first, or do not require them")]
    NoSubscribers,
    /// A node that should get the message is unreachable, and the publish chose to drop.
    #[error("a subscriber's node is unreachable: send again later, or choose the delay queue")]
    PartitionDrop,
    /// What the publish expected is no longer true.
    #[error("the last seq is {actual}, not the expected one: read up to it and decide again")]
    ExpectedSeq {
        /// The last seq as it is; zero if there is none.
        actual: Seq,
    },
    /// The message is larger than its topic or the broker allows.
    #[error("the message has {bytes} bytes: make it at most {max}")]
    TooLarge {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        max: u64,
    },
    /// Its expiry had passed before it arrived.
    #[error("the message had expired when it arrived: give it a later expiry")]
    Expired,
    /// The caller may not publish here.
    #[error("not allowed to publish to this topic: ask for the permission")]
    NotAuthorised,
    /// There is no such topic, and publishing does not create it.
    #[error("the topic does not exist, and no subscriber follows that name: create it first")]
    UnknownTopic,
    /// The topic is volatile, but the message needs to be kept: it has a not-before time, or asks
    /// for a durability that memory cannot give.
    #[error("the topic is in memory only: use a durable topic, or ask for no delay and durability")]
    NotDurable,
    /// One of the messages to be acked in the same step is not with this member any more.
    #[error("a lease is lost: the message went to another member or is done; do not repeat")]
    LeaseLost,
    /// A cell is not what the step expected.
    #[error("a cell has another value than the expected one: read it and decide again")]
    ExpectedCell,
    /// A total that the server keeps in memory would go beyond its limit.
    #[error("{limit} ({max}) is reached: remove what is not needed, or raise it")]
    LimitReached {
        /// Which limit.
        limit: TotalLimit,
        /// How much it allows.
        max: u64,
    },
    /// The publish asks for something that only a cluster, or only a volatile subject, can give.
    #[error("delivery and partition need a cluster, and these and report a volatile subject")]
    NotSupported,
}

/// A limit of what a broker keeps in memory for all its users together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TotalLimit {
    /// Bytes of the messages of all volatile topics.
    VolatileBytes = 1,
    /// Named cells.
    Cells = 2,
    /// Bytes of the names and values of all cells.
    CellBytes = 3,
    /// Messages that wait for their time.
    Delayed = 4,
}

impl TotalLimit {
    /// Its number on the wire; never reused.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The limit of this number.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::VolatileBytes, Self::Cells, Self::CellBytes, Self::Delayed]
            .into_iter()
            .find(|limit| limit.code() == code)
    }

    /// The key by which it is configured.
    pub fn key(self) -> &'static str {
        match self {
            Self::VolatileBytes => "limits.volatile_bytes_max",
            Self::Cells => "limits.cells_max",
            Self::CellBytes => "limits.cells_bytes_max",
            Self::Delayed => "limits.delayed_max",
        }
    }
}

impl core::fmt::Display for TotalLimit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.key())
    }
}

/// Trouble of the system. See [`PubSubError::fate`] for what became of the publish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PubSubError {
    /// The system has not been started.
    #[error("the broker is not started: start it first")]
    NotStarted,
    /// The system was stopped before the publish entered it.
    #[error("the broker is stopped: start it again")]
    Stopped,
    /// A flush failed, so that it is unknown what is on the disk.
    #[error("the journal refuses to work after a failed flush: reopen it, then look what is there")]
    Poisoned,
    /// There is no room on the disk, or no file descriptor for more; noticed before anything was
    /// written.
    #[error("the storage takes no more now: make room or shorten retention, then send again")]
    StorageFull,
    /// The owner of the topic cannot be reached; nothing was sent to it.
    #[error("the topic's owner cannot be reached: send again later")]
    Unavailable,
    /// No answer came in time, or the connection ended before it.
    #[error("no answer came in time: send again with the same message id")]
    TimedOut,
    /// Another node owns the journal now; the publish may have been its last.
    #[error("this node no longer owns the journal: send again to the new owner")]
    Fenced,
    /// A fault that should not be.
    #[error("internal fault: {0}; report it")]
    Internal(String),
    /// An earlier write or flush failed, so that nothing was begun.
    #[error("the journal failed before and takes nothing: reopen it, then send again")]
    JournalFailed,
}

/// What became of a publish that ended in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It left no trace; sending again cannot double it.
    DidNotHappen,
    /// It may or may not have happened; only a message id makes sending again safe.
    Unknown,
}

impl PubSubError {
    /// What became of the publish. In doubt it says so.
    pub fn fate(&self) -> Fate {
        match self {
            Self::NotStarted
            | Self::Stopped
            | Self::StorageFull
            | Self::Unavailable
            | Self::JournalFailed => Fate::DidNotHappen,
            Self::Poisoned | Self::TimedOut | Self::Fenced | Self::Internal(_) => Fate::Unknown,
        }
    }
}

macro_rules! numbered {
    ($($type:ident { $($code:literal $variant:ident,)+ })+) => {
        $(impl $type {
            /// Every number and name of this type.
            pub const CODES: &'static [(u16, &'static str)] =
                &[$(($code, stringify!($variant))),+];

            /// The number that stands for it on the wire; never reused.
            pub fn code(&self) -> u16 {
                match self { $(Self::$variant { .. } => $code),+ }
            }

            /// Its name, for logs and for listeners that speak in words; never reused.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => stringify!($variant)),+ }
            }
        })+
    };
}

// The one list. Reasons are below 100, errors from 100 on. Append only.
numbered! {
    RejectReason {
        1 InvalidTopic,
        2 InvalidPayload,
        3 NotSerializable,
        4 QueueFull,
        5 NoSubscribers,
        6 PartitionDrop,
        7 ExpectedSeq,
        8 TooLarge,
        9 Expired,
        10 NotAuthorised,
        11 UnknownTopic,
        12 NotDurable,
        13 LeaseLost,
        14 LimitReached,
        15 ExpectedCell,
        16 NotSupported,
    }
    PubSubError {
        100 NotStarted,
        101 Stopped,
        102 Poisoned,
        103 StorageFull,
        104 Unavailable,
        105 TimedOut,
        106 Fenced,
        107 Internal,
        108 JournalFailed,
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a4_reasons_and_errors_share_no_number_and_no_name() {
        let both = || RejectReason::CODES.iter().chain(PubSubError::CODES);
        let codes: BTreeSet<_> = both().map(|(code, _)| code).collect();
        let names: BTreeSet<_> = both().map(|(_, name)| name).collect();
        assert_eq!(codes.len(), both().count());
        assert_eq!(names.len(), both().count());
        assert!(RejectReason::CODES.iter().all(|(code, _)| *code < 100));
        assert!(PubSubError::CODES.iter().all(|(code, _)| *code >= 100));
    }

    #[test]
    fn a3_the_six_reasons_of_the_source_have_their_names() {
        let names: BTreeSet<_> = RejectReason::CODES.iter().map(|(_, name)| *name).collect();
        for name in [
            "InvalidTopic",
            "InvalidPayload",
            "NotSerializable",
            "QueueFull",
            "NoSubscribers",
            "PartitionDrop",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn code_and_name_agree_with_the_list() {
        let reason = RejectReason::TooLarge { bytes: 9, max: 5 };
        assert!(RejectReason::CODES.contains(&(reason.code(), reason.name())));
        assert_eq!(reason.to_string(), "the message has 9 bytes: make it at most 5");
        let error = PubSubError::Internal("x".into());
        assert!(PubSubError::CODES.contains(&(error.code(), error.name())));
    }

    #[test]
    fn a_failed_flush_leaves_the_fate_unknown() {
        assert_eq!(PubSubError::Poisoned.fate(), Fate::Unknown);
        assert_eq!(PubSubError::StorageFull.fate(), Fate::DidNotHappen);
    }
}
