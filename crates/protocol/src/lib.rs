//! The native protocol of gapless: bytes to values and back.
//!
//! A [`Frame`] is the envelope (requirement E2), a [`Verb`] is what is in it. Both go both
//! ways in one place, so that clients, servers and tests cannot disagree. `docs/protocol.md`
//! shows every byte; `docs/protocol-vectors.json` has an example of each verb.
//!
//! ```
//! use bytes::BytesMut;
//! use gapless_protocol::{Decoder, FrameLimit, Ids, Ping, Verb};
//!
//! let ping = Verb::from(Ping { echo: "hello".into() });
//! let mut wire = BytesMut::new();
//! ping.encode(Ids::question([7; 16]), FrameLimit::MAX, &mut wire)?;
//!
//! let frame = Decoder::new(FrameLimit::MAX).decode(&mut wire)?.expect("it is all there");
//! assert_eq!(frame.msg_id, [7; 16]);
//! assert_eq!(Verb::decode(&frame)?, ping);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here opens a socket, waits, or knows a default of the broker: what comes in is
//! whole and checked, or it is refused with a number of the one list ([`ErrorCode`]).
//! Memory is taken for what has arrived, never for what a length promises.
#![no_std]

extern crate alloc;

mod errors;
#[macro_use]
mod field;
mod frame;
#[macro_use]
mod kind;
pub mod link;
mod output;
mod pack;
mod run;
mod split;
mod verb;
pub mod verbs;
mod wire;

pub use errors::ErrorCode;
pub use frame::{
    Decoder, FRAME_BYTES_MAX, FRAME_BYTES_MIN, FRAME_HEAD_BYTES, Frame, FrameError, FrameLimit,
    Head, Ids, SUBJECT_BYTES_MAX,
};
pub use gapless_core::ExpectCell;
pub use gapless_core::StartFrom;
pub use gapless_core::{GapNotice, GroupDoing, GroupInfo, MemberInfo, TopicInfo};
pub use gapless_core::{GroupTotals, LetterFilter, Token};
pub use kind::{Kind, Side};
pub use output::{COPIED_BYTES_MAX, OUTPUT_PARTS_MAX, Output};
pub use pack::{cut_leased, cut_messages};
pub use run::{PublishRun, RUN_PAYLOAD_BYTES_MAX, RUN_PUBLISHES_MAX};
pub use split::{SplitError, SplitLimit, cut, only, split};
pub use verb::{EncodeError, Verb, VerbError};
pub use verbs::ack::{Known, PartAccepted, PartAck, PublishAck, Rejection};
pub use verbs::follow::{
    Credit, Ended, Messages, Place, PlaceRange, RecoveryComplete, RecoveryResponse, Subscribe,
    Subscribed, SubscriptionGap, Unsubscribe, Unsubscribed,
};
pub use verbs::group::{
    Confirm, GroupAck, GroupCredit, GroupDone, GroupExtend, GroupGap, GroupJoin, GroupJoined,
    GroupLeave, GroupLeft, GroupMessages, GroupNack, GroupRole, GroupStep, GroupTerminate, StepAck,
    Which,
};
pub use verbs::group_admin::{
    GroupConfigure, GroupCreate, GroupDelete, GroupDescribe, GroupInfos, GroupList, GroupPause,
    GroupReset, GroupResume, Letter, LetterList, LetterRead, LetterRedrive, LetterRemove, Letters,
    LettersMoved,
};
pub use verbs::lookup::{
    Auth, AuthAnswer, CellRead, CellValue, ClientClose, ClientInfo, ClientList, ClientState,
    Clients, Cluster, ClusterAnswer, Explain, Explained, FollowInfo, Found, Get, MembershipInfo,
    NotFound, Read, Stats, StatsText,
};
pub use verbs::publish::{CancelDelayed, Cancelled, CellWrite, Commit, CommitPart, Publish};
pub use verbs::session::{
    Bye, Drain, DrainReason, ErrorAnswer, Features, Hello, Limits, Ping, Pong, VERSION, Welcome,
};
pub use verbs::topics::{
    Done, TopicConfigure, TopicCreate, TopicDelete, TopicDescribe, TopicInfos, TopicList,
    TopicPurge,
};
pub use verbs::visible::{AWAIT_VISIBLE_MS_MAX, AwaitVisible, UNSEEN_SHOWN_MAX, Visible};
pub use wire::NUMBER_MAX;
