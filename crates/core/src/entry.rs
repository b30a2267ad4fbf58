//! The bytes of an entry: a header of 64 bytes and a body.
//!
//! One layout serves every kind, on the wire, in memory and on disk, so that bytes are encoded
//! once. The header has a checksum of its own, so that numbers given late (seq, position, time) do
//! not touch the body's checksum, which its maker has computed. `docs/format.md` shows the layout.
//! The checksum function is handed in: this crate has none.

use bytes::{BufMut, Bytes};

use crate::id::{Position, Seq, TopicId};
use crate::time::Timestamp;

/// The length of every entry's header.
pub const ENTRY_HEADER_BYTES: usize = 64;
/// The version of the layout that this program writes.
pub const ENTRY_VERSION: u8 = 1;
/// Longest entry, header included; longer ones are refused before memory is taken.
pub const ENTRY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Computes the CRC-32C of some bytes.
pub type Checksum = fn(&[u8]) -> u32;

/// What an entry records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// Messages of one topic, numbered one after the other.
    Batch = 1,
    /// A topic was created or configured; the body holds name and settings.
    TopicSet = 2,
    /// A topic and all its messages are gone.
    TopicDelete = 3,
    /// Messages below `seq` are gone; `flags` holds the reason, `count` is unused.
    Floor = 4,
    /// A delayed message (`seq` in the topic of delayed ones) was published or cancelled.
    DelayDone = 5,
    /// A named value changed: a group's cursor, an outbox offset.
    Cell = 6,
    /// What happened to a group: changes as in [`crate::group::op`]; `topic` is its number.
    Group = 7,
}

impl EntryKind {
    /// The kind of this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Batch,
            2 => Self::TopicSet,
            3 => Self::TopicDelete,
            4 => Self::Floor,
            5 => Self::DelayDone,
            6 => Self::Cell,
            7 => Self::Group,
            _ => return None,
        })
    }
}

/// Why some bytes are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The bytes end before the entry does.
    #[error("the entry is cut short")]
    Short,
    /// A checksum is wrong.
    #[error("the entry's checksum does not fit its bytes")]
    Checksum,
    /// The entry has a kind or version of a newer program.
    #[error("entry of kind {kind}, version {version}: written by a newer program")]
    Unknown {
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
    },
    /// The length is impossible.
    #[error("an entry cannot have {bytes} bytes")]
    Length {
        /// What it says.
        bytes: usize,
    },
}

/// The numbers of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    /// What the entry records.
    pub kind: EntryKind,
    /// Depends on the kind; for batches see [`crate::batch`].
    pub flags: u16,
    /// The topic it belongs to; zero for cells.
    pub topic: TopicId,
    /// The seq of the first message, or what the kind says.
    pub seq: Seq,
    /// The position of the first message, or of the entry.
    pub position: Position,
    /// When it was accepted.
    pub time: Timestamp,
    /// How many seqs it accounts for, from `seq` on.
    pub span: u32,
    /// How many messages are in the body; less than `span` when some are gone.
    pub count: u32,
    /// The shortest time to live among its messages in ms; zero when none has one.
    pub ttl_min_ms: u32,
}

impl EntryHeader {
    /// A header of this kind with every number at zero.
    pub fn new(kind: EntryKind) -> Self {
        Self {
            kind,
            flags: 0,
            topic: TopicId(0),
            seq: Seq(0),
            position: Position(0),
            time: Timestamp(0),
            span: 0,
            count: 0,
            ttl_min_ms: 0,
        }
    }

    /// The last seq it accounts for.
    pub fn last_seq(&self) -> Seq {
        self.seq.plus(u64::from(self.span.saturating_sub(1)))
    }

    /// How many positions it takes: one for each seq, at least one. A batch of which nothing
    /// is left takes one: it may stand for several, and what lay between them is not its.
    pub fn positions(&self) -> u64 {
        let hole = self.kind == EntryKind::Batch && self.count == 0;
        if hole { 1 } else { u64::from(self.span.max(1)) }
    }

    /// The last position it takes.
    pub fn last_position(&self) -> Position {
        self.position.plus(self.positions() - 1)
    }

    /// Writes header and body to `out`. `body_crc` is the body's checksum.
    pub fn put(&self, out: &mut impl BufMut, body: &[u8], body_crc: u32, checksum: Checksum) {
        out.put_slice(&self.bytes(body.len(), body_crc, checksum));
        out.put_slice(body);
    }

    /// The 64 bytes that stand before a body of `body_bytes` with this checksum.
    pub fn bytes(
        &self,
        body_bytes: usize,
        body_crc: u32,
        checksum: Checksum,
    ) -> [u8; ENTRY_HEADER_BYTES] {
        let len = u32::try_from(ENTRY_HEADER_BYTES + body_bytes)
            .expect("an entry is shorter than ENTRY_BYTES_MAX");
        let mut header = [0; ENTRY_HEADER_BYTES];
        let mut rest = &mut header[8..];
        rest.put_u8(self.kind as u8);
        rest.put_u8(ENTRY_VERSION);
        rest.put_u16_le(self.flags);
        rest.put_u32_le(body_crc);
        rest.put_u64_le(self.topic.0);
        rest.put_u64_le(self.seq.0);
        rest.put_u64_le(self.position.0);
        rest.put_u64_le(self.time.0);
        rest.put_u32_le(self.span);
        rest.put_u32_le(self.count);
        rest.put_u32_le(self.ttl_min_ms);
        let header_crc = checksum(&header[8..]);
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..8].copy_from_slice(&header_crc.to_le_bytes());
        header
    }

    /// Reads the numbers and the whole entry's length, without looking at any checksum.
    ///
    /// # Errors
    /// [`EntryError::Short`] when the header is not all there, otherwise what is wrong.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), EntryError> {
        // An array, so that the places below need no check at run time.
        let Some(header) = bytes.first_chunk::<ENTRY_HEADER_BYTES>() else {
            return Err(EntryError::Short);
        };
        let u32_at = |at: usize| u32::from_le_bytes(array_at(header, at));
        let u64_at = |at: usize| u64::from_le_bytes(array_at(header, at));
        let len = u32_at(0) as usize;
        if !(ENTRY_HEADER_BYTES..=ENTRY_BYTES_MAX).contains(&len) {
            return Err(EntryError::Length { bytes: len });
        }
        let (kind, version) = (header[8], header[9]);
        let known = EntryKind::from_number(kind).filter(|_| version == ENTRY_VERSION);
        let Some(kind) = known else { return Err(EntryError::Unknown { kind, version }) };
        let read = Self {
            kind,
            flags: u16::from_le_bytes(array_at(header, 10)),
            topic: TopicId(u64_at(16)),
            seq: Seq(u64_at(24)),
            position: Position(u64_at(32)),
            time: Timestamp(u64_at(40)),
            span: u32_at(48),
            count: u32_at(52),
            ttl_min_ms: u32_at(56),
        };
        Ok((read, len))
    }
}

/// The bytes of a field of the header.
#[inline]
fn array_at<const N: usize>(header: &[u8; ENTRY_HEADER_BYTES], at: usize) -> [u8; N] {
    core::array::from_fn(|index| header[at + index])
}

/// One entry: its numbers, and its bytes, which are shared and not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The numbers, read from the bytes.
    pub header: EntryHeader,
    /// Header and body as stored.
    pub bytes: Bytes,
}

impl Entry {
    /// Takes the first entry off `bytes`, checking it against its checksums.
    ///
    /// # Errors
    /// Says what is wrong; `bytes` is then unchanged.
    pub fn take(bytes: &mut Bytes, checksum: Checksum) -> Result<Self, EntryError> {
        Self::verify(bytes, checksum)?;
        Self::take_trusted(bytes)
    }

    /// Takes the first entry off `bytes` that were checked before, as those in memory were.
    ///
    /// # Errors
    /// When the bytes are not a valid entry; checksums are not verified.
    pub fn take_trusted(bytes: &mut Bytes) -> Result<Self, EntryError> {
        let (header, len) = EntryHeader::read(bytes)?;
        if bytes.len() < len {
            return Err(EntryError::Short);
        }
        Ok(Self { header, bytes: bytes.split_to(len) })
    }

    /// Checks the first entry of `bytes` and returns its length.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn verify(bytes: &[u8], checksum: Checksum) -> Result<usize, EntryError> {
        if bytes.len() < ENTRY_HEADER_BYTES {
            return Err(EntryError::Short);
        }
        let stored = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if stored != checksum(&bytes[8..ENTRY_HEADER_BYTES]) {
            return Err(EntryError::Checksum);
        }
        let (_, len) = EntryHeader::read(bytes)?;
        let Some(body) = bytes.get(ENTRY_HEADER_BYTES..len) else { return Err(EntryError::Short) };
        let stored = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        if stored != checksum(body) {
            return Err(EntryError::Checksum);
        }
        Ok(len)
    }

    /// What stands after the header.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(ENTRY_HEADER_BYTES..)
    }
}
