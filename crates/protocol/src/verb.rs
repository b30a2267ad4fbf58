//! Verbs: what frames mean, tied to their kinds in one list.
//!
//! Decoding checks everything that the protocol says about a verb; so does encoding, with the
//! same function, so that nothing is sent that a peer would refuse. A verb that cannot be
//! decoded is an error for its sender alone: the frame was whole, and the connection goes on.
//!
//! The fields of each verb are in `verbs/`, one file per family.

use bytes::{Bytes, BytesMut};
use gapless_core::{
    BatchError, Fate, GroupSettingsError, MessageError, NameError, PatternError, RejectReason,
    SettingsError, cluster, shown,
};

use crate::errors::ErrorCode;
use crate::frame::{Frame, FrameError, FrameLimit, Head, Ids, put_frame};
use crate::kind::Kind;
use crate::verbs::{ack, follow, group, group_admin, lookup, publish, session, topics, visible};
use crate::wire::{self, Reader};

/// Why a frame is not a valid verb. Nothing was done, and the connection can go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    /// There is no such kind in this version.
    #[error("no frame has kind {kind}")]
    UnknownKind {
        /// Its number.
        kind: u8,
    },
    /// The kind's number is kept for later.
    #[error("frames of kind {} are not offered", kind.name())]
    NotOffered {
        /// The kind.
        kind: Kind,
    },
    /// The payload ends before the field does.
    #[error("the payload ends inside {field}")]
    Short {
        /// Which field.
        field: &'static str,
    },
    /// A varint is not in its shortest form.
    #[error("the length or count of {field} is longer than need be")]
    Overlong {
        /// Which field.
        field: &'static str,
    },
    /// The field has a value it cannot have.
    #[error("{field} has a value that is not allowed")]
    Value {
        /// Which field.
        field: &'static str,
    },
    /// The field is longer than it may be.
    #[error("{field} has {bytes} bytes or items, at most {max} are allowed")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The field should be text and is not UTF-8.
    #[error("{field} is not UTF-8")]
    Text {
        /// Which field.
        field: &'static str,
    },
    /// There is more than the verb has.
    #[error("{bytes} bytes follow the last field")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The verb has no subject, but the frame has.
    #[error("the frame has a subject, but its kind has none")]
    Subject,
    /// A topic name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The subject is not a valid pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The settings cannot be read or make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The settings of a group cannot be read or make no sense.
    #[error(transparent)]
    GroupSettings(#[from] GroupSettingsError),
    /// The messages cannot be read.
    #[error(transparent)]
    Records(#[from] BatchError),
    /// A message breaks a limit.
    #[error("message {index}: {error}")]
    Message {
        /// Which message, from zero.
        index: u32,
        /// What is wrong with it.
        error: MessageError,
    },
    /// There is no message where there must be one.
    #[error("there is no message in it")]
    NoMessage,
}

impl VerbError {
    /// Its number in the one list.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownKind { .. } => ErrorCode::UnknownKind,
            Self::NotOffered { .. } => ErrorCode::NotOffered,
            Self::Name(_) => ErrorCode::InvalidTopic,
            Self::Pattern(_) => ErrorCode::BadPattern,
            Self::Settings(_) | Self::GroupSettings(_) => ErrorCode::BadSettings,
            Self::Records(_) | Self::Message { .. } | Self::NoMessage => ErrorCode::InvalidPayload,
            _ => ErrorCode::BadPayload,
        }
    }

    /// What became of it: nothing was done.
    pub fn fate(&self) -> Fate {
        Fate::DidNotHappen
    }

    /// The reason by which a publish or commit is rejected for it; `None` when it is answered
    /// by an error as everything else is.
    pub fn reject_reason(&self) -> Option<RejectReason> {
        match self.code() {
            ErrorCode::InvalidTopic => Some(RejectReason::InvalidTopic),
            ErrorCode::InvalidPayload => Some(RejectReason::InvalidPayload),
            _ => None,
        }
    }
}

/// Why a verb was not encoded. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// It breaks a rule of its kind; a peer would refuse it.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// It does not fit into a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A verb as fields. Every verb's struct is one.
pub(crate) trait Fields: Sized {
    /// The subject of the frame.
    fn subject(&self) -> &str {
        ""
    }

    /// Reads the fields. Whether the payload has more is looked at by the caller.
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError>;

    /// Writes the fields, but for the tail.
    fn put(&self, out: &mut BytesMut);

    /// The bulk that ends the payload, which need not be copied to be sent.
    fn tail(&self, _each: &mut dyn FnMut(&Bytes)) {}

    /// What reading and writing alike must refuse.
    fn check(&self) -> Result<(), VerbError> {
        Ok(())
    }
}

impl<T: Fields> Fields for alloc::boxed::Box<T> {
    fn subject(&self) -> &str {
        (**self).subject()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        T::take(subject, payload).map(Self::new)
    }

    fn put(&self, out: &mut BytesMut) {
        (**self).put(out);
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        (**self).tail(each);
    }

    fn check(&self) -> Result<(), VerbError> {
        (**self).check()
    }
}

/// The subject of a kind that has none.
pub(crate) fn no_subject(subject: &str) -> Result<(), VerbError> {
    if subject.is_empty() { Ok(()) } else { Err(VerbError::Subject) }
}

fn decode<T: Fields>(frame: &Frame) -> Result<T, VerbError> {
    let subject = wire::text(&frame.subject, "subject")?;
    let mut payload = Reader::new(&frame.payload);
    let fields = T::take(subject, &mut payload)?;
    payload.finish()?;
    fields.check()?;
    Ok(fields)
}

fn encode<T: Fields>(
    fields: &T,
    (kind, ids): (Kind, Ids),
    limit: FrameLimit,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    fields.check()?;
    let mut payload_bytes = 0_usize;
    fields.tail(&mut |part| payload_bytes = payload_bytes.saturating_add(part.len()));
    let head = Head { kind: kind.number(), ids, subject: fields.subject(), payload_bytes };
    put_frame(head, limit, out, |out| fields.put(out))?;
    Ok(())
}

macro_rules! verbs {
    ($($name:ident $family:ident::$fields:ident,)+) => {
        /// What a frame means. One variant for each kind that is not reserved.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Verb {
            $(
                #[doc = concat!("See [`", stringify!($family), "::", stringify!($fields), "`].")]
                $name($family::$fields),
            )+
        }

        impl Verb {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$name(_) => Kind::$name),+ }
            }

            /// Reads a frame. Bulk is shared with it and not copied.
            ///
            /// # Errors
            /// Says what is wrong with it; the connection can go on.
            pub fn decode(frame: &Frame) -> Result<Self, VerbError> {
                let unknown = VerbError::UnknownKind { kind: frame.kind };
                let kind = Kind::from_number(frame.kind).ok_or(unknown)?;
                match kind {
                    $(Kind::$name => decode(frame).map(Self::$name),)+
                    _ => Err(VerbError::NotOffered { kind }),
                }
            }

            /// Writes everything but the bulk at its end, and hands the bulk to `tail`, part
            /// by part: the caller sends those after what was written, without a copy.
            ///
            /// # Errors
            /// When a peer would refuse it; then nothing was written or handed out.
            pub fn encode_head(
                &self,
                ids: Ids,
                limit: FrameLimit,
                out: &mut BytesMut,
                tail: &mut dyn FnMut(&Bytes),
            ) -> Result<(), EncodeError> {
                match self {
                    $(Self::$name(fields) => {
                        encode(fields, (Kind::$name, ids), limit, out)?;
                        fields.tail(tail);
                    })+
                }
                Ok(())
            }
        }

        $(impl From<$family::$fields> for Verb {
            fn from(fields: $family::$fields) -> Self {
                Self::$name(fields)
            }
        })+
    };
}

verbs! {
    Hello session::Hello,
    Welcome session::Welcome,
    Error session::ErrorAnswer,
    Ping session::Ping,
    Pong session::Pong,
    Drain session::Drain,
    Bye session::Bye,
    TopicCreate topics::TopicCreate,
    TopicConfigure topics::TopicConfigure,
    TopicDescribe topics::TopicDescribe,
    TopicList topics::TopicList,
    TopicDelete topics::TopicDelete,
    TopicPurge topics::TopicPurge,
    TopicInfo shown::TopicInfo,
    TopicInfos topics::TopicInfos,
    Done topics::Done,
    Publish publish::Publish,
    PublishAck ack::PublishAck,
    Commit publish::Commit,
    CancelDelayed publish::CancelDelayed,
    Cancelled publish::Cancelled,
    DeliveryReport cluster::DeliveryReport,
    Subscribe follow::Subscribe,
    Subscribed follow::Subscribed,
    Unsubscribe follow::Unsubscribe,
    Unsubscribed follow::Unsubscribed,
    Messages follow::Messages,
    RecoveryResponse follow::RecoveryResponse,
    RecoveryComplete follow::RecoveryComplete,
    Gap follow::SubscriptionGap,
    Credit follow::Credit,
    Ended follow::Ended,
    AwaitVisible visible::AwaitVisible,
    Visible visible::Visible,
    ClientClose lookup::ClientClose,
    Get lookup::Get,
    Read lookup::Read,
    Found lookup::Found,
    NotFound lookup::NotFound,
    CellRead lookup::CellRead,
    CellValue lookup::CellValue,
    Clients lookup::Clients,
    ClientList lookup::ClientList,
    Stats lookup::Stats,
    StatsText lookup::StatsText,
    Auth lookup::Auth,
    AuthAnswer lookup::AuthAnswer,
    Cluster lookup::Cluster,
    ClusterAnswer lookup::ClusterAnswer,
    Explain lookup::Explain,
    Explained lookup::Explained,
    GroupJoin group::GroupJoin,
    GroupJoined group::GroupJoined,
    GroupLeave group::GroupLeave,
    GroupLeft group::GroupLeft,
    GroupMessages group::GroupMessages,
    GroupAck group::GroupAck,
    GroupNack group::GroupNack,
    GroupExtend group::GroupExtend,
    GroupTerminate group::GroupTerminate,
    GroupStep group::GroupStep,
    GroupDone group::GroupDone,
    GroupCredit group::GroupCredit,
    GroupRole group::GroupRole,
    GroupGap group::GroupGap,
    GroupCreate group_admin::GroupCreate,
    GroupConfigure group_admin::GroupConfigure,
    GroupDescribe group_admin::GroupDescribe,
    GroupList group_admin::GroupList,
    GroupDelete group_admin::GroupDelete,
    GroupPause group_admin::GroupPause,
    GroupResume group_admin::GroupResume,
    GroupReset group_admin::GroupReset,
    GroupInfo group_admin::BoxedGroupInfo,
    GroupInfos group_admin::GroupInfos,
    LetterList group_admin::LetterList,
    LetterRead group_admin::LetterRead,
    LetterRedrive group_admin::LetterRedrive,
    LetterRemove group_admin::LetterRemove,
    Letters group_admin::Letters,
    LettersMoved group_admin::LettersMoved,
}

impl From<shown::GroupInfo> for Verb {
    fn from(info: shown::GroupInfo) -> Self {
        Self::GroupInfo(info.into())
    }
}

impl Verb {
    /// Writes the verb as one frame, bulk included.
    ///
    /// # Errors
    /// When a peer would refuse it; then nothing was written.
    pub fn encode(
        &self,
        ids: Ids,
        limit: FrameLimit,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        let mut tail = alloc::vec::Vec::new();
        self.encode_head(ids, limit, out, &mut |part| tail.push(part.clone()))?;
        tail.iter().for_each(|part| out.extend_from_slice(part));
        Ok(())
    }
}
