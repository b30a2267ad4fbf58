//! Verbs of members of groups: join, be handed leased messages, say what became of them.
//!
//! A lease names neighbours by position; every position between its ends is one message of
//! it. Lists of leases are sorted and encoded as distances, so that an ack of thousands of messages
//! is a few bytes, and one frame can end what several frames brought. Messages are batches as they
//! are stored: the leases say which of their messages are meant, the others are not.
//!
//! What a group is and how it stands is in `group_admin.rs`.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::batch::put_varint;
use gapless_core::{
    Batches, EntryError, GapNotice, GapReason, Lease, Mode, Position, Seq, Timestamp, TopicName,
};

use crate::field::{Field, Item};
use crate::verb::{Fields, VerbError};
use crate::verbs::publish::Commit;
use crate::verbs::session::{ErrorAnswer, NAME_TEXT_BYTES_MAX};
use crate::wire::{List, NUMBER_MAX, Reader, at_most, ensure, exists};

/// Most leases that one frame names; each may be of many messages.
pub const LEASES_MAX: usize = 65_536;
/// Longest reason of a nack or a terminate, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;
/// Most bytes of one lease in a list.
pub const LEASE_BYTES_MAX: usize = 25;
/// Most members whose leases one step acks.
pub const STEP_ACKS_MAX: usize = 1024;

const LEASES: List = List { field: "leases", item_bytes_min: 3, count_max: LEASES_MAX };

/// As distances: the leases rise.
impl Field for Vec<Lease> {
    fn take(payload: &mut Reader, _: &'static str) -> Result<Self, VerbError> {
        let field = LEASES.field;
        let count = payload.count(&LEASES)?;
        let mut leases = Self::with_capacity(count);
        // The first position that the next lease may begin with.
        let mut least = 0_u64;
        for _ in 0..count {
            let skipped = payload.varint(field)?;
            let more = payload.varint(field)?;
            let attempt = payload.varint_u32(field)?;
            let first = least.checked_add(skipped).filter(|first| *first <= NUMBER_MAX);
            let first = first.ok_or(VerbError::Value { field })?;
            let last = first.checked_add(more).filter(|last| *last <= NUMBER_MAX);
            let last = last.ok_or(VerbError::Value { field })?;
            least = last + 1;
            leases.push(Lease { first: Position(first), last: Position(last), attempt });
        }
        Ok(leases)
    }

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.len() as u64);
        let mut least = 0;
        for lease in self {
            put_varint(out, lease.first.0.saturating_sub(least));
            put_varint(out, lease.last.0.saturating_sub(lease.first.0));
            put_varint(out, u64::from(lease.attempt));
            least = lease.last.0.saturating_add(1);
        }
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        LEASES.check(self.len())?;
        for lease in self {
            ensure(lease.first <= lease.last && lease.last.0 <= NUMBER_MAX, field)?;
        }
        ensure(self.windows(2).all(|pair| pair[0].last < pair[1].first), field)
    }
}

plain! {
    /// Becomes a member of a group. Answered by [`GroupJoined`]; then messages come.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupJoin[
        /// Which group.
        group: TopicName
    ] {
        /// What the member is called, for people.
        name: String,
        /// Most messages in flight with it.
        window: u32,
    } |it: &Self| at_most(NAME_TEXT_BYTES_MAX, it.name.len(), "name");

    /// The membership is accepted; everything of it comes after this.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GroupJoined {
        /// The number of the membership on this connection.
        member: u64,
        /// The member's number in its group, as others see it.
        id: u64,
        /// Which member gets which message.
        mode: Mode,
        /// How long a message may be worked on before it must be acked or extended.
        lease_ms: u64,
    };

    /// Ends a membership: what it holds goes to others and does not count as failed. Answered by
    /// [`GroupLeft`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GroupLeave {
        /// Which membership.
        member: u64,
    };

    /// A membership is ended; nothing of it comes after this.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupLeft {
        /// Which membership.
        member: u64,
        /// Why the server ended it; `None` when the client asked for it.
        error: Option<ErrorAnswer>,
    };

    /// How many messages may be in flight with a member from now on. Not answered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GroupCredit {
        /// Which membership.
        member: u64,
        /// Most messages in flight with it.
        window: u32,
    };

    /// In mode ordered: whether this member gets the messages now, or stands by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GroupRole {
        /// Which membership.
        member: u64,
        /// Whether it gets the messages.
        active: bool,
    };
}

/// Messages of one topic that the member has to say something about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMessages {
    /// Which membership.
    pub member: u64,
    /// Where they were published.
    pub topic: TopicName,
    /// Until when they must be acked or extended, by the server's clock.
    pub deadline: Timestamp,
    /// Which of the messages are handed out, and in which attempt; rising.
    pub leases: Vec<Lease>,
    /// The batches as stored; what no lease names is not part of it.
    pub batches: Batches,
}

impl GroupMessages {
    /// How many messages are handed out.
    pub fn count(&self) -> u64 {
        self.leases.iter().map(Lease::count).sum()
    }
}

impl Fields for GroupMessages {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let topic = TopicName::parse(subject)?;
        let member = payload.u64("member")?;
        let deadline = Timestamp(payload.u64("deadline")?);
        let leases = Field::take(payload, "leases")?;
        let batches = Batches::parse(payload.rest()).map_err(|error| match error {
            EntryError::Short => VerbError::Short { field: "batches" },
            _ => VerbError::Value { field: "batches" },
        })?;
        Ok(Self { member, topic, deadline, leases, batches })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        out.put_u64_le(self.deadline.0);
        self.leases.put(out);
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        self.batches.parts().for_each(each);
    }

    fn check(&self) -> Result<(), VerbError> {
        self.leases.check("leases")?;
        ensure(!self.leases.is_empty(), "leases")?;
        ensure(self.batches.are_within(Seq(0), Seq(NUMBER_MAX)), "batches")
    }
}

/// When a member is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Confirm {
    /// Not at all, unless it is wrong.
    Nothing,
    /// As soon as it is counted.
    Counted,
    /// When it is as durable as the group's settings ask.
    #[default]
    Durable,
}

impl Field for Confirm {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        match payload.u8(field)? {
            0 => Ok(Self::Nothing),
            1 => Ok(Self::Counted),
            2 => Ok(Self::Durable),
            _ => Err(VerbError::Value { field }),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(match self {
            Self::Nothing => 0,
            Self::Counted => 1,
            Self::Durable => 2,
        });
    }
}

/// Which of the messages that a member holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// These; rising.
    Leases(Vec<Lease>),
    /// All that it holds up to this position.
    Through(Position),
}

impl Field for Which {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        match payload.u8(field)? {
            1 => Field::take(payload, "leases").map(Self::Leases),
            2 => Field::take(payload, "through").map(Self::Through),
            _ => Err(VerbError::Value { field }),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Leases(leases) => {
                out.put_u8(1);
                leases.put(out);
            }
            Self::Through(position) => {
                out.put_u8(2);
                position.put(out);
            }
        }
    }

    fn check(&self, _: &'static str) -> Result<(), VerbError> {
        match self {
            Self::Leases(leases) => leases.check("leases"),
            Self::Through(position) => position.check("through"),
        }
    }
}

plain! {
    /// Messages are done. Answered by [`GroupDone`], if asked for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupAck {
        /// Which membership.
        member: u64,
        /// When to answer.
        confirm: Confirm,
        /// Which messages.
        which: Which,
    };

    /// Messages could not be done and are to come again. Answered by [`GroupDone`], if asked for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupNack {
        /// Which membership.
        member: u64,
        /// When to answer.
        confirm: Confirm,
        /// How long to wait before they come again; by the group's schedule if it does not say.
        delay_ms: Option<u64> = "delay",
        /// What was wrong, for people and for the dead letter.
        reason: String,
        /// Which messages; rising.
        leases: Vec<Lease>,
    } |it: &Self| at_most(REASON_BYTES_MAX, it.reason.len(), "reason");

    /// Messages could not be done and never will be: they go to the dead letters. Answered by
    /// [`GroupDone`], if asked for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupTerminate {
        /// Which membership.
        member: u64,
        /// When to answer.
        confirm: Confirm,
        /// What was wrong, for people and for the dead letter.
        reason: String,
        /// Which messages; rising.
        leases: Vec<Lease>,
    } |it: &Self| at_most(REASON_BYTES_MAX, it.reason.len(), "reason");

    /// Messages need more time: another lease from now on. Answered by [`GroupDone`], if asked
    /// for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupExtend {
        /// Which membership.
        member: u64,
        /// When to answer; an extension is never durable.
        confirm: Confirm,
        /// Which messages; none means all that it holds.
        leases: Vec<Lease>,
    };

    /// What became of what a member said, in messages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    GroupDone {
        /// Counted.
        taken: u64,
        /// Not counted: they are not with this member any more.
        refused: u64,
        /// Of an extension: until when the leases last now.
        deadline: Option<Timestamp>,
    };
}

/// Acks, messages for any topics, and cells: after a crash all are there, or none. If one of
/// the leases is lost, all of it is rejected. Answered by [`PublishAck`](crate::PublishAck) as
/// a commit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStep {
    /// What is acked; at least one.
    pub acks: Vec<StepAck>,
    /// What is written with it; may be nothing.
    pub commit: Commit,
}

/// What one member acks in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepAck {
    /// Which membership.
    pub member: u64,
    /// Which messages; rising, at least one.
    pub leases: Vec<Lease>,
}

row! {
    StepAck { member, leases } |it: &Self| ensure(!it.leases.is_empty(), "leases");
}

impl Item for StepAck {
    const LIST: List = List { field: "acks", item_bytes_min: 9, count_max: STEP_ACKS_MAX };
}

impl Fields for GroupStep {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let acks = Field::take(payload, "acks")?;
        Ok(Self { acks, commit: Fields::take(subject, payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        self.acks.put(out);
        self.commit.put(out);
    }

    fn check(&self) -> Result<(), VerbError> {
        self.acks.check("acks")?;
        ensure(!self.acks.is_empty(), "acks")?;
        self.commit.check_fields()
    }
}

/// Messages of the group's source are gone that it had not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupGap {
    /// Which membership.
    pub member: u64,
    /// What is gone.
    pub gap: GapNotice,
}

/// Reads all of a notice but its topic, which is the subject of some verbs, and positions,
/// which a group does not have.
pub(crate) fn take_lost(
    topic: Option<TopicName>,
    payload: &mut Reader,
) -> Result<GapNotice, VerbError> {
    let reason = GapReason::from_code(payload.u8("reason")?);
    let flags = payload.u8("flags")?;
    ensure(flags & !3 == 0, "flags")?;
    let from = if flags & 1 != 0 { Some(payload.seq("from")?) } else { None };
    let to = if flags & 2 != 0 { Some(payload.seq("to")?) } else { None };
    Ok(GapNotice { topic, from, to, positions: None, reason })
}

pub(crate) fn put_lost(gap: &GapNotice, out: &mut BytesMut) {
    out.put_u8(gap.reason.code());
    out.put_u8(u8::from(gap.from.is_some()) | u8::from(gap.to.is_some()) << 1);
    for seq in [gap.from, gap.to].into_iter().flatten() {
        out.put_u64_le(seq.0);
    }
}

pub(crate) fn check_lost(gap: &GapNotice) -> Result<(), VerbError> {
    ensure(gap.reason.code() != 0, "reason")?;
    for seq in [gap.from, gap.to].into_iter().flatten() {
        exists(seq.0, "from")?;
    }
    match (gap.from, gap.to) {
        (Some(from), Some(to)) => ensure(from <= to, "to"),
        _ => Ok(()),
    }
}

impl Fields for GroupGap {
    fn subject(&self) -> &str {
        self.gap.topic.as_ref().map_or("", TopicName::as_str)
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let topic = if subject.is_empty() { None } else { Some(TopicName::parse(subject)?) };
        let member = payload.u64("member")?;
        Ok(Self { member, gap: take_lost(topic, payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        put_lost(&self.gap, out);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_lost(&self.gap)
    }
}
