//! Frames: the envelope of everything on the wire.
//!
//! `[len:4LE][type:1][msgId:16][corrId:16][subjectLen:2LE][subject:utf8][payloadLen:4LE]
//! [payload]`, where `len` counts the bytes after itself (E2). The three lengths say the same
//! thing twice; a frame in which they disagree is refused, and each is refused as soon as it
//! can be seen, before anything is kept for it. After that it is unknown where the next frame
//! begins, so the connection ends.
//!
//! The decoder takes no memory: subject and payload are slices of what was read. What a frame
//! means is not known here, not even whether its kind exists.

use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::NAME_BYTES_MAX;

use crate::errors::ErrorCode;

/// Longest frame, all of it: the most that one peer can force the other to buffer.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The lowest limit that can be set: hello, error and every other small verb fit into it.
pub const FRAME_BYTES_MIN: usize = 8 * 1024;
/// Bytes of a frame without subject and payload.
pub const FRAME_HEAD_BYTES: usize = 43;
/// Longest subject: a topic name or a pattern.
pub const SUBJECT_BYTES_MAX: usize = NAME_BYTES_MAX;

const LEN_BYTES: usize = 4;
const SUBJECT_LEN_AT: usize = 37;
const SUBJECT_AT: usize = 39;

/// The most bytes of a whole frame on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameLimit(usize);

impl FrameLimit {
    /// As large as the protocol allows.
    pub const MAX: Self = Self(FRAME_BYTES_MAX);

    /// A lower limit; moved into [`FRAME_BYTES_MIN`] to [`FRAME_BYTES_MAX`].
    pub fn at_most(bytes: usize) -> Self {
        Self(bytes.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX))
    }

    /// The limit in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// The most bytes of payload in a frame with this subject.
    pub fn payload_bytes(self, subject: &str) -> usize {
        self.0 - FRAME_HEAD_BYTES - subject.len().min(SUBJECT_BYTES_MAX)
    }
}

impl Default for FrameLimit {
    fn default() -> Self {
        Self::MAX
    }
}

/// The two ids of a frame. Zero stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ids {
    /// Chosen by the sender; an answer refers to it.
    pub msg_id: [u8; 16],
    /// In an answer: the `msg_id` of the question.
    pub corr_id: [u8; 16],
}

impl Ids {
    /// A frame that neither answers nor wants an answer.
    pub const NONE: Self = Self { msg_id: [0; 16], corr_id: [0; 16] };

    /// The ids of a question.
    pub fn question(msg_id: [u8; 16]) -> Self {
        Self { msg_id, corr_id: [0; 16] }
    }

    /// The ids of the answer to a frame.
    pub fn answer_to(question: &Frame) -> Self {
        Self { msg_id: [0; 16], corr_id: question.msg_id }
    }
}

/// One frame, sharing the bytes it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of its kind; see [`crate::Kind`]. It may be one that does not exist.
    pub kind: u8,
    /// Chosen by the sender; an answer refers to it.
    pub msg_id: [u8; 16],
    /// In an answer: the `msg_id` of the question.
    pub corr_id: [u8; 16],
    /// A topic, a pattern, or nothing; that it is UTF-8 is checked by the verb.
    pub subject: Bytes,
    /// What the kind says.
    pub payload: Bytes,
}

/// Why bytes are not a valid frame. The place of the next frame is then unknown, so the connection
/// must end; what was asked before and not answered is as unknown as after any lost
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The length is less than that of an empty frame.
    #[error("a frame says it has {len} bytes after its length: it cannot have fewer than 39")]
    TooShort {
        /// What it says.
        len: usize,
    },
    /// The frame is longer than this connection allows.
    #[error("a frame of {bytes} bytes: send at most {max} in one")]
    TooLarge {
        /// Its whole length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The subject is longer than a name can be.
    #[error("a subject of {bytes} bytes: names and patterns have at most {SUBJECT_BYTES_MAX}")]
    SubjectTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Subject and payload do not end where the frame does.
    #[error("a frame's lengths disagree: {len} in all, {subject} of subject, {payload} of payload")]
    Disagree {
        /// The length of the frame after its first field.
        len: usize,
        /// The length of the subject.
        subject: usize,
        /// The length of the payload as it says; what room is left for it if that is less
        /// than none.
        payload: usize,
    },
}

impl FrameError {
    /// Its number in the one list.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge { .. } => ErrorCode::FrameTooLarge,
            _ => ErrorCode::BadFrame,
        }
    }

    /// Whether the connection can go on: never, since the next frame cannot be found.
    pub fn can_go_on(&self) -> bool {
        false
    }
}

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The number of the kind.
    pub kind: u8,
    /// Both ids.
    pub ids: Ids,
    /// The subject; may be empty.
    pub subject: &'a str,
    /// How many bytes of payload follow.
    pub payload_bytes: usize,
}

impl Head<'_> {
    /// Writes everything but the payload, which the caller sends after it.
    ///
    /// # Errors
    /// When the frame would be refused by its receiver; nothing was written.
    pub fn encode(&self, limit: FrameLimit, out: &mut BytesMut) -> Result<(), FrameError> {
        put_head(self.kind, self.ids, self.subject.as_bytes(), self.payload_bytes, limit, out)
    }
}

fn put_head(
    kind: u8,
    ids: Ids,
    subject: &[u8],
    payload_bytes: usize,
    limit: FrameLimit,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    let subject_bytes = subject.len();
    if subject_bytes > SUBJECT_BYTES_MAX {
        return Err(FrameError::SubjectTooLong { bytes: subject_bytes });
    }
    let bytes = (FRAME_HEAD_BYTES + subject_bytes).saturating_add(payload_bytes);
    if bytes > limit.0 {
        return Err(FrameError::TooLarge { bytes, max: limit.0 });
    }
    // No length below is cut short: a limit never exceeds FRAME_BYTES_MAX.
    out.reserve(FRAME_HEAD_BYTES + subject_bytes);
    out.put_u32_le((bytes - LEN_BYTES) as u32);
    out.put_u8(kind);
    out.put_slice(&ids.msg_id);
    out.put_slice(&ids.corr_id);
    out.put_u16_le(subject_bytes as u16);
    out.put_slice(subject);
    out.put_u32_le(payload_bytes as u32);
    Ok(())
}

/// Writes a frame of which `put` writes the front of the payload; the `payload_bytes` of the
/// head are those that the caller sends after it. Lengths are put in once they are known, so
/// that nothing is written twice. On an error nothing was written.
pub(crate) fn put_frame(
    head: Head<'_>,
    limit: FrameLimit,
    out: &mut BytesMut,
    put: impl FnOnce(&mut BytesMut),
) -> Result<(), FrameError> {
    let begin = out.len();
    let tail_bytes = head.payload_bytes;
    Head { payload_bytes: 0, ..head }.encode(limit, out)?;
    let payload_at = out.len();
    put(out);
    let payload = (out.len() - payload_at).saturating_add(tail_bytes);
    let bytes = (payload_at - begin).saturating_add(payload);
    if bytes > limit.0 {
        out.truncate(begin);
        return Err(FrameError::TooLarge { bytes, max: limit.0 });
    }
    let len = ((bytes - LEN_BYTES) as u32).to_le_bytes();
    out[begin..begin + LEN_BYTES].copy_from_slice(&len);
    out[payload_at - LEN_BYTES..payload_at].copy_from_slice(&(payload as u32).to_le_bytes());
    Ok(())
}

impl Frame {
    /// Both ids.
    pub fn ids(&self) -> Ids {
        Ids { msg_id: self.msg_id, corr_id: self.corr_id }
    }

    /// How many bytes it has on the wire.
    pub fn bytes(&self) -> usize {
        FRAME_HEAD_BYTES + self.subject.len() + self.payload.len()
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// When the frame would be refused by its receiver; nothing was written.
    pub fn encode(&self, limit: FrameLimit, out: &mut BytesMut) -> Result<(), FrameError> {
        put_head(self.kind, self.ids(), &self.subject, self.payload.len(), limit, out)?;
        out.put_slice(&self.payload);
        Ok(())
    }
}

/// Takes frames off what was read. It keeps nothing itself: what is not yet a frame stays in
/// the input, so that it can go on after any byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    limit: FrameLimit,
}

impl Decoder {
    /// A decoder that refuses frames above `limit`.
    pub fn new(limit: FrameLimit) -> Self {
        Self { limit }
    }

    /// The next frame; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When what is there can never become a frame. The input is then unchanged, and the
    /// connection must end.
    pub fn decode(&self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(FrameRef { kind, ids, subject, bytes, .. }) = self.peek(input)? else {
            return Ok(None);
        };
        let subject_end = SUBJECT_AT + subject.len();
        let whole = input.split_to(bytes).freeze();
        Ok(Some(Frame {
            kind,
            msg_id: ids.msg_id,
            corr_id: ids.corr_id,
            subject: whole.slice(SUBJECT_AT..subject_end),
            payload: whole.slice(subject_end + LEN_BYTES..),
        }))
    }

    /// The next frame where it lies; as [`Decoder::decode`].
    pub(crate) fn peek<'a>(&self, input: &'a [u8]) -> Result<Option<FrameRef<'a>>, FrameError> {
        let Some(lengths) = self.look(input)? else { return Ok(None) };
        let Some(whole) = input.get(..lengths.whole) else { return Ok(None) };
        let mut ids = Ids::NONE;
        ids.msg_id.copy_from_slice(&whole[5..21]);
        ids.corr_id.copy_from_slice(&whole[21..SUBJECT_LEN_AT]);
        let subject_end = SUBJECT_AT + lengths.subject;
        Ok(Some(FrameRef {
            kind: whole[LEN_BYTES],
            ids,
            subject: &whole[SUBJECT_AT..subject_end],
            payload: &whole[subject_end + LEN_BYTES..],
            bytes: lengths.whole,
        }))
    }

    /// How many bytes are missing until the next frame is whole, as far as is known: a hint for
    /// reading, never above the limit.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn missing(&self, input: &[u8]) -> Result<usize, FrameError> {
        let whole = self.look(input)?.map_or(FRAME_HEAD_BYTES, |lengths| lengths.whole);
        Ok(whole.saturating_sub(input.len()))
    }

    /// Checks every length that can be seen already.
    fn look(&self, input: &[u8]) -> Result<Option<Lengths>, FrameError> {
        let Some(len) = input.first_chunk().map(|len| u32::from_le_bytes(*len) as usize) else {
            return Ok(None);
        };
        if len < FRAME_HEAD_BYTES - LEN_BYTES {
            return Err(FrameError::TooShort { len });
        }
        let whole = len.saturating_add(LEN_BYTES);
        if whole > self.limit.0 {
            return Err(FrameError::TooLarge { bytes: whole, max: self.limit.0 });
        }
        let Some(&[low, high]) = input.get(SUBJECT_LEN_AT..SUBJECT_AT) else {
            return Ok(Some(Lengths { whole, subject: 0 }));
        };
        let subject = usize::from(u16::from_le_bytes([low, high]));
        if subject > SUBJECT_BYTES_MAX {
            return Err(FrameError::SubjectTooLong { bytes: subject });
        }
        let Some(room) = whole.checked_sub(FRAME_HEAD_BYTES + subject) else {
            return Err(FrameError::Disagree { len, subject, payload: 0 });
        };
        let payload = input.get(SUBJECT_AT + subject..).and_then(<[u8]>::first_chunk);
        if let Some(payload) = payload.map(|payload| u32::from_le_bytes(*payload) as usize)
            && payload != room
        {
            return Err(FrameError::Disagree { len, subject, payload });
        }
        Ok(Some(Lengths { whole, subject }))
    }
}

/// A frame, borrowed from what was read.
pub(crate) struct FrameRef<'a> {
    pub(crate) kind: u8,
    pub(crate) ids: Ids,
    pub(crate) subject: &'a [u8],
    pub(crate) payload: &'a [u8],
    /// How many bytes all of it is.
    pub(crate) bytes: usize,
}

struct Lengths {
    whole: usize,
    subject: usize,
}
