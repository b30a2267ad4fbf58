//! What can go wrong, one type per operation. Each says what became of what was asked for.
//!
//! A refusal of the message ([`RejectReason`], A3) and trouble of the system ([`Trouble`], A4)
//! are different variants and never mix.

use std::io;
use std::time::Duration;

use gapless_core::link::Failure;
use gapless_core::{Fate, LinkError, MessageError, PatternError, RejectReason};
use gapless_protocol::{ErrorAnswer, ErrorCode, Rejection};

use crate::address::AddressError;
use crate::tls::TlsError;
use gapless_core::Token;

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// One of the addresses is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The options cannot be used.
    #[error(transparent)]
    Options(#[from] LinkError),
    /// TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A limit of zero would let nothing through.
    #[error("{limit} is zero: give at least one")]
    Zero {
        /// Which limit it is.
        limit: &'static str,
    },
    /// The name, or the token, cannot be sent.
    #[error("the hello cannot be sent: {0}")]
    Hello(gapless_protocol::EncodeError),
    /// Trying again would not help.
    #[error("the server refuses this client: {0}")]
    GaveUp(GaveUp),
    /// No welcome arrived in time.
    #[error("no server said welcome in time, the last attempt: {}", last.as_deref().unwrap_or("under way"))]
    TimedOut {
        /// What came of the last attempt.
        last: Option<String>,
    },
}

/// Why a client has ended by itself: trying again would fail in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum GaveUp {
    /// The server speaks no version that this client speaks.
    #[error("it speaks another version: use a client of the same")]
    VersionMismatch,
    /// The server does not let this client in.
    #[error("it does not let this client in: check the token")]
    NotAuthorised,
    /// It is an HTTP server: gapless has HTTP on another port than its native protocol.
    #[error("it speaks HTTP: use the port of the native protocol, 4281 unless it was set")]
    Http,
    /// One side does not trust the other's certificate, or only one speaks TLS.
    #[error("TLS was not agreed on")]
    Tls,
    /// For another reason that does not pass.
    #[error("it will never let this client in")]
    Other,
}

impl From<Failure> for GaveUp {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::VersionMismatch => Self::VersionMismatch,
            Failure::NotAuthorised => Self::NotAuthorised,
            Failure::OtherProtocol => Self::Http,
            Failure::NotTrusted => Self::Tls,
            _ => Self::Other,
        }
    }
}

/// What the server says went wrong (A4).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error {code}: {message}")]
pub struct Trouble {
    /// The number in the one list of errors.
    pub code: u16,
    /// What became of what was asked for.
    pub fate: Fate,
    /// What happened and what to do, for people.
    pub message: String,
    /// After how long trying again makes sense, if the server says so: of what is over a quota.
    pub retry_after: Option<Duration>,
}

impl Trouble {
    /// The error in the list, if this version knows it.
    pub fn known(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.code)
    }
}

impl From<ErrorAnswer> for Trouble {
    fn from(answer: ErrorAnswer) -> Self {
        let ErrorAnswer { code, fate, message, retry_after_ms } = answer;
        let retry_after = retry_after_ms.map(|ms| Duration::from_millis(u64::from(ms)));
        Self { code, fate, message, retry_after }
    }
}

/// Why a publish was not acknowledged. See [`PublishError::fate`] for what became of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The message was refused; nothing was written.
    #[error("rejected: {0}")]
    Rejected(RejectReason),
    /// The message was refused for a reason that a later version knows; nothing was written.
    #[error("rejected for reason {code}, which this version does not know")]
    RejectedOther {
        /// Its number in the one list.
        code: u16,
    },
    /// The message breaks a limit of its parts; it was not sent.
    #[error("the message is not valid: {0}")]
    Invalid(MessageError),
    /// Trouble of the system.
    #[error(transparent)]
    System(Trouble),
    /// The connection was lost before the answer, and sending again could double it; or the
    /// client has ended.
    #[error("the connection ended before the answer")]
    Disconnected {
        /// What became of it.
        fate: Fate,
    },
    /// No answer came in time, over all connections.
    #[error("no answer came in time")]
    TimedOut {
        /// What became of it.
        fate: Fate,
    },
    /// The client, or the producer, takes nothing any more; it was not sent.
    #[error("the client is closed")]
    Closed,
}

impl PublishError {
    /// What became of the publish. In doubt it says so.
    pub fn fate(&self) -> Fate {
        match self {
            Self::Rejected(_) | Self::RejectedOther { .. } | Self::Invalid(_) | Self::Closed => {
                Fate::DidNotHappen
            }
            Self::System(trouble) => trouble.fate,
            Self::Disconnected { fate } | Self::TimedOut { fate } => *fate,
        }
    }

    /// The reason, if the message was refused (A3); `None` for trouble of the system (A4).
    pub fn reason(&self) -> Option<RejectReason> {
        match self {
            Self::Rejected(reason) => Some(*reason),
            Self::Invalid(_) => Some(RejectReason::InvalidPayload),
            _ => None,
        }
    }
}

impl From<Rejection> for PublishError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Reason(reason) => Self::Rejected(reason),
            Rejection::Other { code, .. } => Self::RejectedOther { code },
        }
    }
}

/// Why a question has no answer. See [`AskError::fate`] for what became of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The server refused it, or failed.
    #[error(transparent)]
    Server(Trouble),
    /// It cannot be sent; nothing was done.
    #[error("it cannot be sent: {0}")]
    Invalid(gapless_protocol::EncodeError),
    /// The connection was lost before the answer, and asking again could do it twice.
    #[error("the connection ended before the answer")]
    Disconnected {
        /// What became of it.
        fate: Fate,
    },
    /// No answer came in time.
    #[error("no answer came in time")]
    TimedOut,
    /// The server answered something else than what was asked.
    #[error("the server answered with something else")]
    Unexpected,
    /// The client takes nothing any more.
    #[error("the client is closed")]
    Closed,
}

impl AskError {
    /// What became of what was asked for. In doubt it says so.
    pub fn fate(&self) -> Fate {
        match self {
            Self::Server(trouble) => trouble.fate,
            Self::Disconnected { fate } => *fate,
            Self::Invalid(_) | Self::Closed => Fate::DidNotHappen,
            Self::TimedOut | Self::Unexpected => Fate::Unknown,
        }
    }
}

/// Why a subscription was refused, or has ended. What was handed out before stays valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriptionError {
    /// The text is not a valid pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The client has as many subscriptions as it may.
    #[error("the client has {max} subscriptions: drop one, or raise the limit")]
    TooMany {
        /// How many it may have.
        max: u32,
    },
    /// The server refused the subscription.
    #[error("refused: {0}")]
    Refused(Trouble),
    /// The server ended the subscription.
    #[error("ended by the server: {trouble}")]
    Ended {
        /// Why.
        trouble: Trouble,
        /// Where it stood: if the trouble passes, another may begin with it.
        token: Token,
    },
    /// What came cannot be read: nothing after it is handed out, so that nothing is skipped.
    #[error("a batch is damaged")]
    Damaged,
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The client has ended by itself.
    #[error("the server refuses this client: {0}")]
    GaveUp(GaveUp),
    /// The client takes nothing any more.
    #[error("the client is closed")]
    Closed,
}

/// Why a group was not joined, a membership has ended, or what a member said has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// The server refused the member.
    #[error("refused: {0}")]
    Refused(Trouble),
    /// The server ended the membership.
    #[error("ended by the server: {0}")]
    Ended(Trouble),
    /// The connection on which the messages were held is gone: they come again, unless what
    /// was said about them arrived.
    #[error("the connection ended, and with it what was held")]
    Lost {
        /// What became of what was said.
        fate: Fate,
    },
    /// The server could not do what was said.
    #[error(transparent)]
    Server(Trouble),
    /// It cannot be sent; nothing was done.
    #[error("it cannot be sent: {0}")]
    Invalid(gapless_protocol::EncodeError),
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The server answered something else than what was said.
    #[error("the server answered with something else")]
    Unexpected,
    /// The client has ended by itself.
    #[error("the server refuses this client: {0}")]
    GaveUp(GaveUp),
    /// The client takes nothing any more.
    #[error("the client is closed")]
    Closed,
}

/// Why a typed payload was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypedError {
    /// The message has no envelope: it was not published as a type.
    #[error("the message has no header {header}: it was not published as a type")]
    NoEnvelope {
        /// The header that is missing or cannot be read.
        header: &'static str,
    },
    /// The payload was not taken out of its envelope.
    #[error(transparent)]
    Decode(#[from] gapless_core::DecodeError),
}

/// What an end of a connection was, for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server speaks HTTP")]
    Http,
    #[error("the server speaks TLS, and this client was not asked to")]
    Tls,
    #[error("the server sent something that is not a valid frame: {0}")]
    Frame(#[from] gapless_protocol::FrameError),
    #[error("the server sent what cannot be read: {0}")]
    Verb(#[from] gapless_protocol::VerbError),
    #[error("the server sent a frame of kind {0} where it has none")]
    Unexpected(&'static str),
    #[error("the server said nothing for too long")]
    Silent,
    #[error("the server shuts down")]
    ShuttingDown,
    #[error("the server sent more than was allowed")]
    TooMuch,
}
