//! The bytes of an object of the log.
//!
//! A head, the lengths of the frames, the frames, a checksum over all of it. `docs/format.md` has the
//! table.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use gapless_journal::Lsn;
use object_store::PutPayload;

use crate::rule::Mark;

const MAGIC: u64 = u64::from_le_bytes(*b"gaplwal\n");
/// The version of the format.
pub const OBJECT_VERSION: u16 = 1;
/// Bytes before the lengths of the frames.
pub(crate) const HEAD_BYTES: usize = 56;
/// Most frames of an object.
pub(crate) const FRAMES_MAX: usize = 4096;

/// What an object says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) mark: Mark,
    pub(crate) number: u64,
    /// Tells the store that it belongs to.
    pub(crate) store: u64,
    /// The number of the first frame in it, or of the next one if there is none.
    pub(crate) first: Lsn,
    pub(crate) frames: u32,
}

impl Head {
    /// The number of the frame after the last one in it.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.first.0 + u64::from(self.frames))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut rest = bytes;
        let magic = rest.try_get_u64_le().map_err(|_| Fault::CUT)?;
        if magic != MAGIC {
            return Err(Fault::Damaged("it is no object of a log"));
        }
        let version = rest.try_get_u16_le().map_err(|_| Fault::CUT)?;
        if version != OBJECT_VERSION {
            return Err(Fault::Version(version));
        }
        if rest.len() < HEAD_BYTES - 10 {
            return Err(Fault::CUT);
        }
        rest.advance(2);
        let frames = rest.get_u32_le();
        let number = rest.get_u64_le();
        let mark = Mark { term: rest.get_u64_le(), nonce: rest.get_u64_le() };
        let (store, first) = (rest.get_u64_le(), Lsn(rest.get_u64_le()));
        if first > Lsn::MAX || frames as usize > FRAMES_MAX {
            return Err(Fault::Damaged("it has numbers that no log reaches"));
        }
        Ok(Self { mark, number, store, first, frames })
    }
}

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Damaged(&'static str),
    Version(u16),
}

impl Fault {
    const CUT: Self = Self::Damaged("it is cut short");
}

/// The bytes of an object, without a copy of the frames.
pub(crate) fn encode(head: &Head, frames: &[Bytes]) -> PutPayload {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + 4 * frames.len());
    out.put_u64_le(MAGIC);
    out.put_u16_le(OBJECT_VERSION);
    out.put_u16_le(0);
    out.put_u32_le(head.frames);
    for number in [head.number, head.mark.term, head.mark.nonce, head.store, head.first.0] {
        out.put_u64_le(number);
    }
    for frame in frames {
        out.put_u32_le(frame.len() as u32);
    }
    let front = out.freeze();
    let mut crc = crc32c::crc32c(&front);
    for frame in frames {
        crc = crc32c::crc32c_append(crc, frame);
    }
    let end = Bytes::copy_from_slice(&crc.to_le_bytes());
    std::iter::once(front).chain(frames.iter().cloned()).chain([end]).collect()
}

/// The frames of an object, sharing its bytes.
pub(crate) fn decode(bytes: &Bytes) -> Result<(Head, Vec<Bytes>), Fault> {
    let head = Head::decode(bytes)?;
    let Some((body, crc)) = bytes.split_last_chunk::<4>() else { return Err(Fault::CUT) };
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(Fault::Damaged("its checksum does not fit"));
    }
    let mut lengths = body.get(HEAD_BYTES..).ok_or(Fault::CUT)?;
    let mut at = HEAD_BYTES + 4 * head.frames as usize;
    let mut frames = Vec::with_capacity(head.frames as usize);
    for _ in 0..head.frames {
        let len = lengths.try_get_u32_le().map_err(|_| Fault::CUT)? as usize;
        if at + len > body.len() {
            return Err(Fault::CUT);
        }
        frames.push(bytes.slice(at..at + len));
        at += len;
    }
    if at != body.len() {
        return Err(Fault::Damaged("there is more in it than it says"));
    }
    Ok((head, frames))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Head, Vec<Bytes>, Bytes) {
        let frames = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from(vec![7; 300])];
        let mark = Mark { term: 5, nonce: 6 };
        let head = Head { mark, number: 9, store: 11, first: Lsn(40), frames: 3 };
        let bytes = encode(&head, &frames);
        (head, frames, Bytes::from(bytes))
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let (head, frames, bytes) = sample();
        assert_eq!(decode(&bytes), Ok((head, frames)));
        assert_eq!(Head::decode(&bytes[..HEAD_BYTES]), Ok(head));
        assert_eq!(head.end(), Lsn(43));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let (_, _, bytes) = sample();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 8;
            assert!(decode(&damaged.into()).is_err(), "byte {at}");
            assert!(decode(&bytes.slice(..at)).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_version_is_told() {
        let (_, _, bytes) = sample();
        let mut newer = bytes.to_vec();
        newer[8] = 2;
        assert_eq!(decode(&newer.into()), Err(Fault::Version(2)));
    }
}
