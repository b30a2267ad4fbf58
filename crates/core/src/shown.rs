//! What every API shows of topics, groups and messages: one type for each, used by the broker,
//! the wire protocol, the clients and the HTTP API.
//!
//! Plain data without rules. How it is encoded as bytes or JSON is decided elsewhere.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::batch::Record;
use crate::gap::GapReason;
use crate::group::{Counts, GroupSettings, GroupTotals};
use crate::id::{Position, Seq};
use crate::message::Message;
use crate::name::TopicName;
use crate::settings::TopicSettings;
use crate::time::Timestamp;
use crate::token::Token;

/// A message with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Its place in its topic.
    pub seq: Seq,
    /// Its place in the journal.
    pub position: Position,
    /// When it was accepted.
    pub time: Timestamp,
    /// What was sent.
    pub message: Message,
}

/// A message with its numbers, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredRef<'a> {
    /// Its place in its topic.
    pub seq: Seq,
    /// Its place in the journal.
    pub position: Position,
    /// When it was accepted.
    pub time: Timestamp,
    /// What was sent, as stored.
    pub record: Record<'a>,
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFrom {
    /// With the oldest message that is kept.
    Beginning,
    /// With this seq of the topic.
    Seq(Seq),
    /// After this position: everything up to and with it was seen.
    Token(Token),
    /// With the first message accepted at this time or later.
    Time(Timestamp),
    /// With the next message to come.
    Now,
    /// With the newest message of each key, then with what comes after.
    LastPerKey,
}

/// Numbers of a topic that a reader will not get, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapNotice {
    /// The topic; `None` when it is about all topics of the subscription.
    pub topic: Option<TopicName>,
    /// The first seq that is missing, if it is known. A subscriber of a pattern may have seen
    /// some of those before `to`; then it is not.
    pub from: Option<Seq>,
    /// The last seq that is missing, if the gap is one of seqs.
    pub to: Option<Seq>,
    /// The first and the last position that this notice accounts for, if known.
    pub positions: Option<(Position, Position)>,
    /// Why they are missing.
    pub reason: GapReason,
}

impl GapNotice {
    /// The topic that a reader knew by this name was deleted; the one that has the name now was
    /// created at the last of these positions.
    pub fn deleted(topic: Option<TopicName>, positions: (Position, Position)) -> Self {
        let reason = GapReason::Deleted;
        Self { topic, from: None, to: None, positions: Some(positions), reason }
    }
}

/// A topic as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// Its number, which no other topic ever has.
    pub id: u64,
    /// The first seq that can be read.
    pub first: Seq,
    /// The next seq.
    pub next: Seq,
    /// Bytes kept, about.
    pub bytes: u64,
    /// Its settings.
    pub settings: TopicSettings,
}

/// A group as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub name: TopicName,
    /// Its number, which no other group or topic ever has.
    pub id: u64,
    /// Its settings.
    pub settings: GroupSettings,
    /// What it is doing.
    pub state: GroupDoing,
    /// Everything up to here is done.
    pub floor: Position,
    /// Everything up to here was read.
    pub frontier: Position,
    /// Messages of the source that are not done.
    pub lag: u64,
    /// Whether the lag is counted, or at most what it says.
    pub lag_exact: bool,
    /// What was read and is not done.
    pub counts: Counts,
    /// How old the oldest message is that is not done.
    pub oldest_age: Option<Duration>,
    /// When the next message that failed is tried again.
    pub next_retry: Option<Timestamp>,
    /// Dead letters that wait to be redriven or removed.
    pub dead_letters: u64,
    /// Whether dead letters are being redriven in the background.
    pub redriving: bool,
    /// What happened since the broker was opened.
    pub totals: GroupTotals,
    /// Its members, or the first of them.
    pub members: Vec<MemberInfo>,
    /// Why it does not move, or that it does, for people.
    pub why: String,
}

/// What a group is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupDoing {
    /// It hands out.
    Running,
    /// It was paused.
    Paused,
    /// A gap stopped it (D10).
    Stopped(GapNotice),
}

impl GroupDoing {
    /// The word users see, the same in every API.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped(_) => "stopped",
        }
    }
}

/// A member of a group as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its number in the group.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Most messages in flight with it.
    pub window: u32,
    /// Messages in flight with it.
    pub in_flight: u64,
    /// Whether it gets messages; a standby of an ordered group does not.
    pub active: bool,
}
