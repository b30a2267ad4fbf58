//! How a frame of a [`crate::file_log::FileLog`] looks in a file.
//!
//! A frame begins at a block boundary with a header of [`HEADER_BYTES`], then the payload,
//! then zeros up to the next boundary. Little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic |
//! | 8..10 | format version |
//! | 10..12 | zero |
//! | 12..16 | CRC-32C of the header without this field |
//! | 16..20 | CRC-32C of the payload |
//! | 20..24 | payload length |
//! | 24..32 | lsn |
//! | 32..40 | term of the writer |
//! | 40..48 | flushed: the highest lsn known flushed when this was written |
//! | 48..56 | mark: the store's secret, or what version 1 made of its epoch |
//! | 56..60 | link: the header CRC of the frame before; 0 if there was none |
//! | 60..64 | zero |
//!
//! The rule: a header is believed if its CRC is right, and a payload if its CRC is too.
//! The link makes the frames a chain, so that a remain of an older attempt can never
//! stand in for a frame that was written after it. The mark tells frames from messages that
//! look like frames: what a client sends lies in the files too, block after block.
//!
//! Not here: which frames are alive. That needs all of them, see [`crate::file_log`].

use std::fmt;

use crate::log::Lsn;

/// How many bytes a header has. The payload behind it starts at a multiple of a cache
/// line, as the caller's buffers do, so that copies into the page cache stay fast.
pub(crate) const HEADER_BYTES: usize = 64;

/// Frames begin at multiples of this: what the page cache and most disks write as one.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The version this program writes, and the only one it reads.
pub(crate) const VERSION: u16 = 1;

pub(crate) const MAGIC: [u8; 8] = *b"gaplessF";

/// What a file begins with that never held a frame. It is not a header, and the first frame is
/// written over it.
pub(crate) const UNUSED: &[u8; 16] = b"gapless: unused\n";

/// What stands before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
    pub(crate) lsn: Lsn,
    pub(crate) term: u64,
    pub(crate) flushed: Lsn,
    pub(crate) mark: u64,
    pub(crate) link: u32,
}

/// The number in every frame that a store writes: random, in the manifest and the log only, so
/// that no client can make a message look like a frame. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub(crate) u64);

impl Secret {
    /// This number, which must be random. Zero is what most bytes of a file are, and no secret.
    pub fn new(random: u64) -> Self {
        Self(if random == 0 { u64::MAX } else { random })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Which frames belong to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMarks {
    /// In all frames that are written.
    pub secret: Secret,
    /// In the frames that version 1 wrote. Clients can compute it from the epoch.
    pub public: u64,
    /// The first frame with the secret; those before it have the public mark. `None` if all
    /// frames that are there were written by version 1.
    pub secret_from: Option<Lsn>,
}

impl FrameMarks {
    /// The marks of a store whose frames all have the secret.
    pub fn secret(secret: Secret) -> Self {
        Self { secret, public: secret.0, secret_from: Some(Lsn::FIRST) }
    }

    /// Whether this is the secret, so that only this store can have written it.
    fn is_secret(&self, mark: u64) -> bool {
        self.secret_from.is_some() && mark == self.secret.0
    }

    /// Whether a header has the secret.
    pub(crate) fn proves(&self, header: &Header) -> bool {
        self.is_secret(header.mark)
    }

    /// Whether a header is one that version 1 may have written, or a client may have forged.
    pub(crate) fn allows(&self, header: &Header) -> bool {
        header.mark == self.public && self.secret_from.is_none_or(|from| header.lsn < from)
    }
}

/// What the beginning of a block turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A header, and its CRC, to which the next frame links.
    Header(Header, u32),
    /// A header of a version that is not known here, and whether it has the secret.
    Version(u16, bool),
    /// Something that was a header once, and is broken.
    Broken,
    /// No header: zeros, or the inside of some frame.
    Nothing,
}

impl Header {
    /// The bytes to write, and the CRC to which the next frame links.
    pub(crate) fn encode(&self) -> ([u8; HEADER_BYTES], u32) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.term.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.flushed.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.mark.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.link.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        (bytes, crc)
    }

    /// How many bytes the frame takes in a file, padding included.
    pub(crate) fn extent(&self) -> u64 {
        extent(self.payload_bytes as usize)
    }
}

/// How many bytes a frame with such a payload takes in a file, padding included.
pub(crate) fn extent(payload_bytes: usize) -> u64 {
    ((HEADER_BYTES + payload_bytes) as u64).next_multiple_of(BLOCK_BYTES)
}

/// Looks at the beginning of a block. The marks are only used to tell broken headers from
/// other bytes: headers of any store are returned.
pub(crate) fn parse(block: &[u8], marks: &FrameMarks) -> Parsed {
    let Some((bytes, _)) = block.split_first_chunk::<HEADER_BYTES>() else {
        return Parsed::Nothing;
    };
    let magic = bytes[0..8] == MAGIC;
    let header = Header {
        payload_crc: number_u32(bytes, 16),
        payload_bytes: number_u32(bytes, 20),
        lsn: Lsn(number_u64(bytes, 24)),
        term: number_u64(bytes, 32),
        flushed: Lsn(number_u64(bytes, 40)),
        mark: number_u64(bytes, 48),
        link: number_u32(bytes, 56),
    };
    if !magic && !marks.is_secret(header.mark) && !marks.allows(&header) {
        return Parsed::Nothing;
    }
    let crc = number_u32(bytes, 12);
    if !magic || crc != header_crc(bytes) {
        // Also with another magic, when the mark is ours: a flipped bit there must not
        // make a frame vanish without a word.
        return Parsed::Broken;
    }
    match u16::from_le_bytes([bytes[8], bytes[9]]) {
        VERSION => Parsed::Header(header, crc),
        other => Parsed::Version(other, marks.proves(&header)),
    }
}

fn header_crc(bytes: &[u8; HEADER_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

fn number_u32(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn number_u64(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// A header of another version with a right CRC, for tests of those who must refuse it.
#[cfg(test)]
pub(crate) fn with_version(mut bytes: [u8; HEADER_BYTES], version: u16) -> [u8; HEADER_BYTES] {
    bytes[8..10].copy_from_slice(&version.to_le_bytes());
    let crc = header_crc(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret(0x0123_4567_89ab_cdef);

    fn marks() -> FrameMarks {
        FrameMarks::secret(SECRET)
    }

    fn header() -> Header {
        Header {
            payload_bytes: 5000,
            payload_crc: 0xdead_beef,
            lsn: Lsn(7),
            term: 3,
            flushed: Lsn(6),
            mark: SECRET.0,
            link: 42,
        }
    }

    #[test]
    fn header_comes_back_and_keeps_its_place_in_the_file() {
        let (bytes, crc) = header().encode();
        assert_eq!(parse(&bytes, &marks()), Parsed::Header(header(), crc));
        assert_eq!(&bytes[..12], b"gaplessF\x01\0\0\0");
        assert_eq!(&bytes[24..28], &[7, 0, 0, 0]);
        assert_eq!(&bytes[60..], &[0; 4]);
        assert_eq!(crc, 0x755a_171c, "the format is frozen");
        assert_eq!(header().extent(), 8192);
        assert_eq!(extent(0), 4096);
        assert_eq!(extent(4096 - 64), 4096);
        assert_eq!(extent(4096 - 63), 8192);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (bytes, _) = header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bad, &marks()), Parsed::Broken, "bit {bit}");
        }
    }

    #[test]
    fn secret_is_never_printed() {
        let marks = FrameMarks { public: 1, ..marks() };
        let text = format!("{marks:?} {marks:#?}");
        assert!(!text.contains("81985529216486895") && !text.contains("cdef"), "{text}");
    }

    #[test]
    fn other_bytes_are_nothing_and_other_versions_are_told() {
        let (bytes, _) = header().encode();
        assert_eq!(parse(&[0; 4096], &marks()), Parsed::Nothing);
        assert_eq!(parse(&[0; 4096], &FrameMarks::secret(Secret::new(0))), Parsed::Nothing);
        assert_eq!(parse(&[0xab; 4096], &marks()), Parsed::Nothing);
        assert_eq!(parse(&bytes[..63], &marks()), Parsed::Nothing);
        assert_eq!(parse(&with_version(bytes, 9), &marks()), Parsed::Version(9, true));
    }
}
