//! What is answered to a publish or a commit: the seq of every message, or why there is none.
//!
//! Messages that were there already were not stored again; the ack says which, and under what
//! seq, so that a publisher learns the same after a resend as it would have the first time. An
//! ack whose numbers do not add up is refused.
//!
//! Reasons have details that may grow; one that is not known here is kept as it came.

use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::batch::{BATCH_COUNT_MAX, put_varint};
use gapless_core::{Accepted, Position, RejectReason, Seq, Timestamp, TotalLimit};

use crate::frame::FrameLimit;
use crate::verb::{Fields, VerbError, no_subject};
use crate::verbs::publish::COMMIT_PARTS_MAX;
use crate::wire::{List, Reader, at_most, ensure, exists, put_bytes};

/// Longest detail of a rejection that a later version may send, in bytes.
pub const DETAIL_BYTES_MAX: usize = 255;

/// Most bytes of an accepted part without its list.
const PART_BYTES_MAX: usize = 64;
/// Most bytes of one item of that list: an index below [`BATCH_COUNT_MAX`] and a seq.
const KNOWN_BYTES_MAX: usize = 3 + 8;

/// The one reason that may have a detail which is not known here.
const LIMIT_REACHED: u16 = 14;

const ACKS: List = List { field: "acks", item_bytes_min: 4, count_max: COMMIT_PARTS_MAX };
const KNOWN: List = List { field: "known", item_bytes_min: 9, count_max: BATCH_COUNT_MAX as usize };

/// What became of a publish or a commit, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishAck {
    /// One for each part; a single rejection stands for all of them.
    pub parts: Vec<PartAck>,
}

impl PublishAck {
    /// As it is if it fits into a frame; else without the lists that do not fit.
    #[must_use]
    pub fn within(mut self, limit: FrameLimit) -> Self {
        let fixed = self.parts.len() * PART_BYTES_MAX;
        let mut room = limit.payload_bytes("").saturating_sub(fixed);
        for part in &mut self.parts {
            let PartAck::Accepted(PartAccepted { known, .. }) = part else { continue };
            let Known::These(list) = known else { continue };
            match room.checked_sub(list.len() * KNOWN_BYTES_MAX) {
                Some(left) => room = left,
                None => *known = Known::Some,
            }
        }
        self
    }
}

/// What became of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartAck {
    /// Taken; delivery has begun.
    Accepted(PartAccepted),
    /// Kept until it is due; only then does it get its seq.
    Scheduled {
        /// The id by which it can be cancelled until it is due.
        id: Position,
        /// When it will appear in its topic.
        due: Timestamp,
    },
    /// Refused; nothing was written.
    Rejected(Rejection),
}

/// Where the messages of a part stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAccepted {
    /// Numbers and durability. `first` to `last` are those of the new messages; if all were
    /// there already, the lowest and the highest of theirs.
    pub accepted: Accepted,
    /// How many messages the part had; zero for a commit of cells only.
    pub count: u32,
    /// Which of them were there already.
    pub known: Known,
}

/// Which messages of a part were there already, so that they were not stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// None: the seqs of the part run from first to last.
    None,
    /// These, by ascending index in the part, with the seq each has had since then. The others
    /// have the seqs from first to last, in their order.
    These(Vec<(u32, Seq)>),
    /// Some, but the list of them does not fit into the frame.
    Some,
}

impl PartAccepted {
    /// The seq of a message by its index in the part; `None` when there is no such message, or
    /// the server did not say.
    pub fn seq_of(&self, index: u32) -> Option<Seq> {
        if index >= self.count {
            return None;
        }
        let before = match &self.known {
            Known::None => 0,
            Known::These(known) => match known.binary_search_by_key(&index, |(at, _)| *at) {
                Ok(found) => return Some(known[found].1),
                Err(before) => before,
            },
            Known::Some if self.count == 1 => 0,
            Known::Some => return None,
        };
        Some(self.accepted.first.plus(u64::from(index) - before as u64))
    }

    fn check(&self) -> Result<(), VerbError> {
        let Accepted { first, last, position, duplicate, .. } = self.accepted;
        exists(first.0, "first")?;
        exists(last.0, "last")?;
        exists(position.0, "position")?;
        ensure(first <= last, "last")?;
        let span = last.next().distance(first);
        match &self.known {
            Known::None => ensure(!duplicate && span == u64::from(self.count.max(1)), "count"),
            Known::Some => ensure(self.count > 0, "count"),
            Known::These(known) => {
                KNOWN.check(known.len())?;
                let rises = known.windows(2).all(|pair| pair[0].0 < pair[1].0);
                let inside = known.last().is_some_and(|(index, _)| *index < self.count);
                ensure(rises && inside, "known")?;
                known.iter().try_for_each(|(_, seq)| exists(seq.0, "known"))?;
                let fresh = u64::from(self.count) - known.len() as u64;
                let adds_up = if fresh == 0 { duplicate } else { !duplicate && span == fresh };
                ensure(adds_up, "count")
            }
        }
    }
}

/// Why a part was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// For a reason that this version knows.
    Reason(RejectReason),
    /// For one that a later version knows.
    Other {
        /// Its number.
        code: u16,
        /// What it says besides.
        detail: Bytes,
    },
}

impl Rejection {
    /// Its number in the one list.
    pub fn code(&self) -> u16 {
        match self {
            Self::Reason(reason) => reason.code(),
            Self::Other { code, .. } => *code,
        }
    }

    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        let code = payload.u16("reason")?;
        let detail = payload.bytes("detail")?;
        let mut fields = Reader::new(&detail);
        let reason = match code {
            1 => RejectReason::InvalidTopic,
            2 => RejectReason::InvalidPayload,
            3 => RejectReason::NotSerializable,
            4 => RejectReason::QueueFull,
            5 => RejectReason::NoSubscribers,
            6 => RejectReason::PartitionDrop,
            7 => RejectReason::ExpectedSeq { actual: fields.seq("actual")? },
            8 => RejectReason::TooLarge { bytes: fields.u64("bytes")?, max: fields.u64("max")? },
            9 => RejectReason::Expired,
            10 => RejectReason::NotAuthorised,
            11 => RejectReason::UnknownTopic,
            12 => RejectReason::NotDurable,
            13 => RejectReason::LeaseLost,
            14 => {
                let (limit, max) = (fields.u8("limit")?, fields.u64("max")?);
                match TotalLimit::from_code(limit) {
                    Some(limit) => RejectReason::LimitReached { limit, max },
                    None => return Ok(Self::Other { code, detail }),
                }
            }
            15 => RejectReason::ExpectedCell,
            16 => RejectReason::NotSupported,
            code => return Ok(Self::Other { code, detail }),
        };
        fields.finish()?;
        Ok(Self::Reason(reason))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u16_le(self.code());
        match self {
            Self::Reason(RejectReason::ExpectedSeq { actual }) => {
                out.put_u8(8);
                out.put_u64_le(actual.0);
            }
            Self::Reason(RejectReason::TooLarge { bytes, max }) => {
                out.put_u8(16);
                out.put_u64_le(*bytes);
                out.put_u64_le(*max);
            }
            Self::Reason(RejectReason::LimitReached { limit, max }) => {
                out.put_u8(9);
                out.put_u8(limit.code());
                out.put_u64_le(*max);
            }
            Self::Reason(_) => out.put_u8(0),
            Self::Other { detail, .. } => put_bytes(out, detail),
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        match self {
            Self::Reason(RejectReason::ExpectedSeq { actual }) => exists(actual.0, "actual"),
            Self::Reason(_) => Ok(()),
            Self::Other { code, detail } => {
                let known = RejectReason::CODES.iter().any(|(number, _)| number == code);
                // A limit that is not known here came with a reason that is.
                let known = known && *code != LIMIT_REACHED;
                ensure(!known && (1..100).contains(code), "reason")?;
                at_most(DETAIL_BYTES_MAX, detail.len(), "detail")
            }
        }
    }
}

impl PartAck {
    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        match payload.u8("ack")? {
            1 => {}
            2 => {
                let id = payload.position("id")?;
                return Ok(Self::Scheduled { id, due: Timestamp(payload.u64("due")?) });
            }
            3 => return Ok(Self::Rejected(Rejection::take(payload)?)),
            _ => return Err(VerbError::Value { field: "ack" }),
        }
        let (first, last) = (payload.seq("first")?, payload.seq("last")?);
        let position = payload.position("position")?;
        let durability = payload.durability("durability")?;
        let duplicate = payload.flag("duplicate")?;
        let count = payload.u32("count")?;
        let known = match payload.u8("known")? {
            0 => Known::None,
            1 => {
                let count = payload.count(&KNOWN)?;
                let mut known = Vec::with_capacity(count);
                for _ in 0..count {
                    known.push((payload.varint_u32("known")?, payload.seq("known")?));
                }
                Known::These(known)
            }
            2 => Known::Some,
            _ => return Err(VerbError::Value { field: "known" }),
        };
        let accepted = Accepted { first, last, position, durability, duplicate };
        Ok(Self::Accepted(PartAccepted { accepted, count, known }))
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Accepted(PartAccepted { accepted, count, known }) => {
                out.put_u8(1);
                out.put_u64_le(accepted.first.0);
                out.put_u64_le(accepted.last.0);
                out.put_u64_le(accepted.position.0);
                out.put_u8(accepted.durability.code());
                out.put_u8(u8::from(accepted.duplicate));
                out.put_u32_le(*count);
                match known {
                    Known::None => out.put_u8(0),
                    Known::These(known) => {
                        out.put_u8(1);
                        put_varint(out, known.len() as u64);
                        for (index, seq) in known {
                            put_varint(out, u64::from(*index));
                            out.put_u64_le(seq.0);
                        }
                    }
                    Known::Some => out.put_u8(2),
                }
            }
            Self::Scheduled { id, due } => {
                out.put_u8(2);
                out.put_u64_le(id.0);
                out.put_u64_le(due.0);
            }
            Self::Rejected(rejection) => {
                out.put_u8(3);
                rejection.put(out);
            }
        }
    }
}

impl Fields for PublishAck {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let count = payload.count(&ACKS)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(PartAck::take(payload)?);
        }
        Ok(Self { parts })
    }

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.parts.len() as u64);
        self.parts.iter().for_each(|part| part.put(out));
    }

    fn check(&self) -> Result<(), VerbError> {
        ACKS.check(self.parts.len())?;
        ensure(!self.parts.is_empty(), "acks")?;
        for part in &self.parts {
            match part {
                PartAck::Accepted(accepted) => accepted.check()?,
                PartAck::Scheduled { id, .. } => exists(id.0, "id")?,
                PartAck::Rejected(rejection) => {
                    ensure(self.parts.len() == 1, "acks")?;
                    rejection.check()?;
                }
            }
        }
        Ok(())
    }
}
