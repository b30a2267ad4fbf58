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

use crate::verb::{Fields, VerbError, no_subject};
use crate::verbs::publish::Commit;
use crate::verbs::session::{ErrorAnswer, NAME_TEXT_BYTES_MAX};
use crate::wire::{List, NUMBER_MAX, Reader, at_most, ensure, exists, put_bytes};

/// Most leases that one frame names; each may be of many messages.
pub const LEASES_MAX: usize = 65_536;
/// Longest reason of a nack or a terminate, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;
/// Most bytes of one lease in a list.
pub const LEASE_BYTES_MAX: usize = 25;
/// Most members whose leases one step acks.
pub const STEP_ACKS_MAX: usize = 1024;

const LEASES: List = List { field: "leases", item_bytes_min: 3, count_max: LEASES_MAX };
const ACKS: List = List { field: "acks", item_bytes_min: 9, count_max: STEP_ACKS_MAX };

fn take_leases(payload: &mut Reader) -> Result<Vec<Lease>, VerbError> {
    let field = LEASES.field;
    let count = payload.count(&LEASES)?;
    let mut leases = Vec::with_capacity(count);
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

/// The leases rise: `check_leases` was there before.
fn put_leases(out: &mut BytesMut, leases: &[Lease]) {
    put_varint(out, leases.len() as u64);
    let mut least = 0;
    for lease in leases {
        put_varint(out, lease.first.0.saturating_sub(least));
        put_varint(out, lease.last.0.saturating_sub(lease.first.0));
        put_varint(out, u64::from(lease.attempt));
        least = lease.last.0.saturating_add(1);
    }
}

fn check_leases(leases: &[Lease]) -> Result<(), VerbError> {
    LEASES.check(leases.len())?;
    for lease in leases {
        ensure(lease.first <= lease.last && lease.last.0 <= NUMBER_MAX, "leases")?;
    }
    ensure(leases.windows(2).all(|pair| pair[0].last < pair[1].first), "leases")
}

/// Becomes a member of a group. Answered by [`GroupJoined`]; then messages come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupJoin {
    /// Which group.
    pub group: TopicName,
    /// What the member is called, for people.
    pub name: String,
    /// Most messages in flight with it.
    pub window: u32,
}

impl Fields for GroupJoin {
    fn subject(&self) -> &str {
        self.group.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let group = TopicName::parse(subject)?;
        Ok(Self { group, name: payload.text("name")?, window: payload.u32("window")? })
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.name.as_bytes());
        out.put_u32_le(self.window);
    }

    fn check(&self) -> Result<(), VerbError> {
        at_most(NAME_TEXT_BYTES_MAX, self.name.len(), "name")
    }
}

/// The membership is accepted; everything of it comes after this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupJoined {
    /// The number of the membership on this connection.
    pub member: u64,
    /// The member's number in its group, as others see it.
    pub id: u64,
    /// Which member gets which message.
    pub mode: Mode,
    /// How long a message may be worked on before it must be acked or extended.
    pub lease_ms: u64,
}

impl Fields for GroupJoined {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let (member, id) = (payload.u64("member")?, payload.u64("id")?);
        let mode =
            Mode::from_code(payload.u8("mode")?).ok_or(VerbError::Value { field: "mode" })?;
        Ok(Self { member, id, mode, lease_ms: payload.u64("lease_ms")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        out.put_u64_le(self.id);
        out.put_u8(self.mode.code());
        out.put_u64_le(self.lease_ms);
    }
}

/// Ends a membership: what it holds goes to others and does not count as failed. Answered by
/// [`GroupLeft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLeave {
    /// Which membership.
    pub member: u64,
}

impl Fields for GroupLeave {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { member: payload.u64("member")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
    }
}

/// A membership is ended; nothing of it comes after this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLeft {
    /// Which membership.
    pub member: u64,
    /// Why the server ended it; `None` when the client asked for it.
    pub error: Option<ErrorAnswer>,
}

impl Fields for GroupLeft {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let member = payload.u64("member")?;
        let failed = payload.flag("error")?;
        let error = if failed { Some(ErrorAnswer::take_fields(payload)?) } else { None };
        Ok(Self { member, error })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        out.put_u8(u8::from(self.error.is_some()));
        if let Some(error) = &self.error {
            error.put_fields(out);
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        self.error.as_ref().map_or(Ok(()), ErrorAnswer::check_fields)
    }
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
        let leases = take_leases(payload)?;
        let batches = Batches::parse(payload.rest()).map_err(|error| match error {
            EntryError::Short => VerbError::Short { field: "batches" },
            _ => VerbError::Value { field: "batches" },
        })?;
        Ok(Self { member, topic, deadline, leases, batches })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        out.put_u64_le(self.deadline.0);
        put_leases(out, &self.leases);
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        self.batches.parts().for_each(each);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_leases(&self.leases)?;
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

impl Confirm {
    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        match payload.u8("confirm")? {
            0 => Ok(Self::Nothing),
            1 => Ok(Self::Counted),
            2 => Ok(Self::Durable),
            _ => Err(VerbError::Value { field: "confirm" }),
        }
    }

    fn put(self, out: &mut BytesMut) {
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

/// Messages are done. Answered by [`GroupDone`], if asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAck {
    /// Which membership.
    pub member: u64,
    /// When to answer.
    pub confirm: Confirm,
    /// Which messages.
    pub which: Which,
}

impl Fields for GroupAck {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let member = payload.u64("member")?;
        let confirm = Confirm::take(payload)?;
        let which = match payload.u8("which")? {
            1 => Which::Leases(take_leases(payload)?),
            2 => Which::Through(payload.position("through")?),
            _ => return Err(VerbError::Value { field: "which" }),
        };
        Ok(Self { member, confirm, which })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        self.confirm.put(out);
        match &self.which {
            Which::Leases(leases) => {
                out.put_u8(1);
                put_leases(out, leases);
            }
            Which::Through(position) => {
                out.put_u8(2);
                out.put_u64_le(position.0);
            }
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        match &self.which {
            Which::Leases(leases) => check_leases(leases),
            Which::Through(position) => exists(position.0, "through"),
        }
    }
}

/// Messages could not be done and are to come again. Answered by [`GroupDone`], if asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupNack {
    /// Which membership.
    pub member: u64,
    /// When to answer.
    pub confirm: Confirm,
    /// How long to wait before they come again; by the group's schedule if it does not say.
    pub delay_ms: Option<u64>,
    /// What was wrong, for people and for the dead letter.
    pub reason: String,
    /// Which messages; rising.
    pub leases: Vec<Lease>,
}

impl Fields for GroupNack {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let member = payload.u64("member")?;
        let confirm = Confirm::take(payload)?;
        let delay_ms = if payload.flag("delay")? { Some(payload.u64("delay")?) } else { None };
        let reason = payload.text("reason")?;
        Ok(Self { member, confirm, delay_ms, reason, leases: take_leases(payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        self.confirm.put(out);
        out.put_u8(u8::from(self.delay_ms.is_some()));
        if let Some(delay) = self.delay_ms {
            out.put_u64_le(delay);
        }
        put_bytes(out, self.reason.as_bytes());
        put_leases(out, &self.leases);
    }

    fn check(&self) -> Result<(), VerbError> {
        at_most(REASON_BYTES_MAX, self.reason.len(), "reason")?;
        check_leases(&self.leases)
    }
}

/// Messages could not be done and never will be: they go to the dead letters. Answered by
/// [`GroupDone`], if asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTerminate {
    /// Which membership.
    pub member: u64,
    /// When to answer.
    pub confirm: Confirm,
    /// What was wrong, for people and for the dead letter.
    pub reason: String,
    /// Which messages; rising.
    pub leases: Vec<Lease>,
}

impl Fields for GroupTerminate {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let member = payload.u64("member")?;
        let confirm = Confirm::take(payload)?;
        let reason = payload.text("reason")?;
        Ok(Self { member, confirm, reason, leases: take_leases(payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        self.confirm.put(out);
        put_bytes(out, self.reason.as_bytes());
        put_leases(out, &self.leases);
    }

    fn check(&self) -> Result<(), VerbError> {
        at_most(REASON_BYTES_MAX, self.reason.len(), "reason")?;
        check_leases(&self.leases)
    }
}

/// Messages need more time: another lease from now on. Answered by [`GroupDone`], if asked
/// for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupExtend {
    /// Which membership.
    pub member: u64,
    /// When to answer; an extension is never durable.
    pub confirm: Confirm,
    /// Which messages; none means all that it holds.
    pub leases: Vec<Lease>,
}

impl Fields for GroupExtend {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let member = payload.u64("member")?;
        Ok(Self { member, confirm: Confirm::take(payload)?, leases: take_leases(payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        self.confirm.put(out);
        put_leases(out, &self.leases);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_leases(&self.leases)
    }
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

impl Fields for GroupStep {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let count = payload.count(&ACKS)?;
        let mut acks = Vec::with_capacity(count);
        for _ in 0..count {
            acks.push(StepAck { member: payload.u64("member")?, leases: take_leases(payload)? });
        }
        Ok(Self { acks, commit: Commit::take(subject, payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.acks.len() as u64);
        for ack in &self.acks {
            out.put_u64_le(ack.member);
            put_leases(out, &ack.leases);
        }
        self.commit.put(out);
    }

    fn check(&self) -> Result<(), VerbError> {
        ACKS.check(self.acks.len())?;
        ensure(!self.acks.is_empty(), "acks")?;
        for ack in &self.acks {
            check_leases(&ack.leases)?;
            ensure(!ack.leases.is_empty(), "leases")?;
        }
        self.commit.check_fields()
    }
}

/// What became of what a member said, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupDone {
    /// Counted.
    pub taken: u64,
    /// Not counted: they are not with this member any more.
    pub refused: u64,
    /// Of an extension: until when the leases last now.
    pub deadline: Option<Timestamp>,
}

impl Fields for GroupDone {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let (taken, refused) = (payload.u64("taken")?, payload.u64("refused")?);
        let extended = payload.flag("deadline")?;
        let deadline = if extended { Some(Timestamp(payload.u64("deadline")?)) } else { None };
        Ok(Self { taken, refused, deadline })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.taken);
        out.put_u64_le(self.refused);
        out.put_u8(u8::from(self.deadline.is_some()));
        if let Some(deadline) = self.deadline {
            out.put_u64_le(deadline.0);
        }
    }
}

/// How many messages may be in flight with a member from now on. Not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCredit {
    /// Which membership.
    pub member: u64,
    /// Most messages in flight with it.
    pub window: u32,
}

impl Fields for GroupCredit {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { member: payload.u64("member")?, window: payload.u32("window")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        out.put_u32_le(self.window);
    }
}

/// In mode ordered: whether this member gets the messages now, or stands by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRole {
    /// Which membership.
    pub member: u64,
    /// Whether it gets the messages.
    pub active: bool,
}

impl Fields for GroupRole {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { member: payload.u64("member")?, active: payload.flag("active")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.member);
        out.put_u8(u8::from(self.active));
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
