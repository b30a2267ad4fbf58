//! The manifest: which blobs make up the store, and from where the log must be replayed.
//!
//! Manifests are numbered and never changed. A new state of the store is two new ones, the
//! second a copy of the first under the next number, both durable before anything is deleted
//! or trimmed that they no longer need. The newest one counts, and two are kept. So if that
//! one is damaged, the other says the same; or, after a crash between the two, it is the state
//! before, of which everything is still there.

use std::sync::Arc;

use bytes::{Buf, BufMut};
use gapless_core::openings::Opening;
use gapless_core::{Position, Timestamp};

use crate::blobs::{Blobs, Created};
use crate::error::OpenError;
use crate::frame::{FrameMarks, Secret};
use crate::index::key_hash;
use crate::log::{Lsn, TERM_MAX};
use crate::segment::SegmentMeta;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"gaplman\n");
/// The version of the manifest format. Version 1 had no secret and no copies.
pub const MANIFEST_VERSION: u16 = 2;
const PREFIX: &str = "manifest-";
/// What the names of segments begin with.
pub(crate) const SEGMENT_PREFIX: &str = "segment-";
/// What the names of checkpoints begin with.
pub(crate) const CHECKPOINT_PREFIX: &str = "checkpoint-";
/// What the names of blobs begin with that the doctor put aside.
pub(crate) const DAMAGED_PREFIX: &str = "damaged-";
/// How many jumps are remembered: each is one unclean end, and old cursors are rare.
const JUMPS_MAX: usize = 64;

/// How often each state is written.
const COPIES: usize = 2;

/// Positions that were skipped at an opening after an unclean end: what was visible but not
/// flushed may have had them, so they are never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The last position that survived.
    pub last: Position,
    /// The first position after the jump.
    pub next: Position,
}

/// The manifest that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The newest one that can be used. Its number is at least that of the newest.
    pub(crate) manifest: Manifest,
    /// The newest one and what is wrong with it, if it was passed over.
    pub(crate) passed_over: Option<(String, String)>,
}

/// A state of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its number; one more than the one before.
    pub number: u64,
    /// The store's own id.
    pub epoch: u64,
    /// The term of the owner who wrote it.
    pub term: u64,
    /// The next number for the name of a segment or checkpoint.
    pub next_name: u64,
    /// Everything through this position is in segments.
    pub sealed: Position,
    /// The first frame that is not wholly in segments and checkpoint.
    pub replay_from: Lsn,
    /// The last frame that was flushed when this was written: the log must reach it.
    pub log_end: Lsn,
    /// The last position that was given when this was written.
    pub last_position: Position,
    /// The time of the newest entry when this was written.
    pub last_time: Timestamp,
    /// Set by a clean close: nothing was appended after `log_end`.
    pub clean: bool,
    /// The checkpoint, if there is one.
    pub checkpoint: Option<Arc<str>>,
    /// The segments, in the order of their positions.
    pub segments: Vec<SegmentMeta>,
    /// Positions that were skipped.
    pub jumps: Vec<Jump>,
    /// The openings of the store that are remembered, oldest first; none in one that was
    /// written before there were any.
    pub openings: Vec<Opening>,
    /// What the frames of the log carry; `None` in a manifest of version 1.
    pub secret: Option<Secret>,
    /// The first frame that carries it.
    pub secret_from: Lsn,
}

impl Manifest {
    /// The manifest of a store that has just been made.
    pub(crate) fn fresh(epoch: u64, secret: Secret) -> Self {
        Self {
            number: 0,
            epoch,
            term: 0,
            next_name: 1,
            sealed: Position(0),
            replay_from: Lsn::FIRST,
            log_end: Lsn::NONE,
            last_position: Position(0),
            last_time: Timestamp(0),
            clean: true,
            checkpoint: None,
            segments: Vec::new(),
            jumps: Vec::new(),
            openings: Vec::new(),
            secret: Some(secret),
            secret_from: Lsn::FIRST,
        }
    }

    /// Which frames of the log are the store's. `new` is the secret for one that has none yet.
    pub fn marks(&self, new: Secret) -> FrameMarks {
        FrameMarks {
            secret: self.secret.unwrap_or(new),
            // Not the epoch itself; but clients are shown that, and can do this too.
            public: key_hash(self.epoch, b"log") as u64,
            secret_from: self.secret.map(|_| self.secret_from),
        }
    }

    /// The manifest that counts; `None` when there is none.
    ///
    /// # Errors
    /// When the newest one is of a newer version; or when it is damaged and there is no other
    /// that is known to say the same.
    pub fn newest(blobs: &dyn Blobs) -> Result<Option<Self>, OpenError> {
        Ok(Self::choose(blobs)?.map(|chosen| chosen.manifest))
    }

    /// The same, and whether the newest had to be passed over.
    pub(crate) fn choose(blobs: &dyn Blobs) -> Result<Option<Chosen>, OpenError> {
        let names = blobs.list(PREFIX)?;
        let Some((newest, older)) = names.split_last() else { return Ok(None) };
        let why = match Self::load(blobs, newest) {
            Ok(manifest) => return Ok(Some(Chosen { manifest, passed_over: None })),
            Err(OpenError::Version { name, found, known }) => {
                return Err(OpenError::Version { name, found, known });
            }
            Err(why) => why,
        };
        // Version 1 kept one that forgets what was acknowledged since.
        let other = older.last().and_then(|name| Self::load(blobs, name).ok());
        let Some(mut manifest) = other.filter(|other| other.secret.is_some()) else {
            return Err(why);
        };
        manifest.number = manifest.number.max(number_in(newest).unwrap_or(0));
        Ok(Some(Chosen { manifest, passed_over: Some((newest.clone(), why.to_string())) }))
    }

    /// The names of all manifests, oldest first.
    ///
    /// # Errors
    /// When the blobs cannot be listed.
    pub fn names(blobs: &dyn Blobs) -> Result<Vec<String>, OpenError> {
        Ok(blobs.list(PREFIX)?)
    }

    /// Reads the manifest of this name.
    ///
    /// # Errors
    /// When it is damaged, of a newer version, or has another name than it says.
    pub fn load(blobs: &dyn Blobs, name: &str) -> Result<Self, OpenError> {
        let manifest = Self::load_any(blobs, name)?;
        if number_in(name) != Some(manifest.number) {
            let holds = manifest.name();
            return Err(OpenError::Misnamed { name: name.to_owned(), holds });
        }
        Ok(manifest)
    }

    /// Reads the manifest of this name, whatever name it says it has.
    pub(crate) fn load_any(blobs: &dyn Blobs, name: &str) -> Result<Self, OpenError> {
        Self::decode_as(name, &blobs.read(name)?)
    }

    /// The manifest of these bytes, which were found under this name.
    pub(crate) fn decode_as(name: &str, bytes: &[u8]) -> Result<Self, OpenError> {
        Self::decode(bytes).map_err(|fault| match fault {
            Fault::Damaged(why) => {
                OpenError::Damaged { name: name.to_owned(), why: why.to_owned() }
            }
            Fault::Version(found) => {
                OpenError::Version { name: name.to_owned(), found, known: MANIFEST_VERSION }
            }
        })
    }

    /// The name of its blob.
    pub fn name(&self) -> String {
        format!("{PREFIX}{:020}", self.number)
    }

    /// Makes it durable as the newest one, twice, under the next two numbers. Tells whether the
    /// second is there too: only then may anything be deleted that it does not need, and the
    /// manifests before it are.
    ///
    /// # Errors
    /// When the first cannot be written, or when another process wrote one of its number. Its
    /// number has gone on all the same: the one that failed may be there.
    pub(crate) fn store(&mut self, blobs: &dyn Blobs) -> Result<bool, OpenError> {
        self.put(blobs)?;
        // It counts from here on, so nothing below may look like a failure of it.
        if let Err(error) = self.put(blobs) {
            tracing::warn!(%error, "the manifest has no copy yet; what it replaces stays");
            return Ok(false);
        }
        match blobs.list(PREFIX) {
            Ok(names) => names.iter().rev().skip(COPIES).for_each(|old| delete(blobs, old)),
            Err(error) => tracing::warn!(%error, "old manifests stay"),
        }
        Ok(true)
    }

    fn put(&mut self, blobs: &dyn Blobs) -> Result<(), OpenError> {
        self.number += 1;
        let name = self.name();
        match blobs.put(&name, &self.encode())? {
            Created::New => Ok(()),
            Created::AlreadyThere => Err(OpenError::TakenOver { name }),
        }
    }

    pub(crate) fn note_jump(&mut self, jump: Jump) {
        self.jumps.push(jump);
        let old = self.jumps.len().saturating_sub(JUMPS_MAX);
        self.jumps.drain(..old);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(MAGIC);
        out.put_u16_le(self.secret.map_or(1, |_| MANIFEST_VERSION));
        out.put_u16_le(u16::from(self.clean));
        out.put_u32_le(0);
        for number in [
            self.number,
            self.epoch,
            self.term,
            self.next_name,
            self.sealed.0,
            self.replay_from.0,
            self.log_end.0,
            self.last_position.0,
            self.last_time.0,
        ] {
            out.put_u64_le(number);
        }
        if let Some(secret) = self.secret {
            out.put_u64_le(secret.0);
            out.put_u64_le(self.secret_from.0);
        }
        put_text(&mut out, self.checkpoint.as_deref().unwrap_or_default());
        out.put_u32_le(self.segments.len() as u32);
        for segment in &self.segments {
            put_text(&mut out, &segment.name);
            out.put_u64_le(segment.first.0);
            out.put_u64_le(segment.last.0);
            out.put_u64_le(segment.bytes);
        }
        out.put_u32_le(self.jumps.len() as u32);
        for jump in &self.jumps {
            out.put_u64_le(jump.last.0);
            out.put_u64_le(jump.next.0);
        }
        if self.secret.is_some() {
            out.put_u32_le(self.openings.len() as u32);
            for opening in &self.openings {
                out.put_u32_le(opening.id);
                out.put_u64_le(opening.first.0);
            }
        }
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let Some((body, mut crc)) = bytes.split_last_chunk::<4>().map(|(b, c)| (b, &c[..])) else {
            return Err(Fault::Damaged("it is cut short"));
        };
        if crc.get_u32_le() != crc32c::crc32c(body) {
            return Err(Fault::Damaged("its checksum does not fit"));
        }
        let mut rest = body;
        let (magic, version) = (number(&mut rest)?, rest.try_get_u16_le().map_err(short)?);
        if magic != MAGIC {
            return Err(Fault::Damaged("it is not a manifest"));
        }
        if !(1..=MANIFEST_VERSION).contains(&version) {
            return Err(Fault::Version(version));
        }
        let clean = rest.try_get_u16_le().map_err(short)? == 1;
        rest.try_get_u32_le().map_err(short)?;
        let mut manifest = Self { clean, secret: None, ..Self::fresh(0, Secret::new(0)) };
        manifest.number = number(&mut rest)?;
        manifest.epoch = number(&mut rest)?;
        manifest.term = number(&mut rest)?;
        manifest.next_name = number(&mut rest)?;
        manifest.sealed = Position(number(&mut rest)?);
        manifest.replay_from = Lsn(number(&mut rest)?);
        manifest.log_end = Lsn(number(&mut rest)?);
        manifest.last_position = Position(number(&mut rest)?);
        manifest.last_time = Timestamp(number(&mut rest)?);
        if version > 1 {
            manifest.secret = Some(Secret::new(number(&mut rest)?));
            manifest.secret_from = Lsn(number(&mut rest)?);
        }
        let lsns = [manifest.replay_from, manifest.log_end, manifest.secret_from];
        if lsns.iter().any(|lsn| *lsn > Lsn::MAX) || manifest.term > TERM_MAX {
            return Err(Fault::Damaged("it has numbers that no store reaches"));
        }
        manifest.checkpoint = Some(text(&mut rest)?).filter(|name| !name.is_empty());
        for _ in 0..rest.try_get_u32_le().map_err(short)? {
            manifest.segments.push(SegmentMeta {
                name: text(&mut rest)?,
                first: Position(number(&mut rest)?),
                last: Position(number(&mut rest)?),
                bytes: number(&mut rest)?,
            });
        }
        for _ in 0..rest.try_get_u32_le().map_err(short)? {
            let (last, next) = (Position(number(&mut rest)?), Position(number(&mut rest)?));
            manifest.jumps.push(Jump { last, next });
        }
        if version > 1 {
            for _ in 0..rest.try_get_u32_le().map_err(short)? {
                let id = rest.try_get_u32_le().map_err(short)?;
                manifest.openings.push(Opening { id, first: Position(number(&mut rest)?) });
            }
        }
        Ok(manifest)
    }
}

/// The number that a name ends with.
pub(crate) fn number_in(name: &str) -> Option<u64> {
    let digits = name.rsplit('-').next()?.split('.').next()?;
    digits.parse().ok()
}

/// Deletes a blob that nothing names any more. If that fails, opening deletes it.
pub(crate) fn delete(blobs: &dyn Blobs, name: &str) {
    if let Err(error) = blobs.delete(name) {
        tracing::warn!(name, %error, "a blob that nothing needs stays for now");
    }
}

enum Fault {
    Damaged(&'static str),
    Version(u16),
}

fn short(_: bytes::TryGetError) -> Fault {
    Fault::Damaged("it is cut short")
}

fn number(rest: &mut &[u8]) -> Result<u64, Fault> {
    rest.try_get_u64_le().map_err(short)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.put_u16_le(text.len() as u16);
    out.put_slice(text.as_bytes());
}

fn text(rest: &mut &[u8]) -> Result<Arc<str>, Fault> {
    let len = rest.try_get_u16_le().map_err(short)? as usize;
    let Some((taken, after)) = rest.split_at_checked(len) else {
        return Err(Fault::Damaged("it is cut short"));
    };
    *rest = after;
    let text =
        std::str::from_utf8(taken).map_err(|_| Fault::Damaged("a name is not valid text"))?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest {
            number: 7,
            epoch: 0xfeed,
            checkpoint: Some("checkpoint-3".into()),
            segments: vec![SegmentMeta {
                name: "segment-1".into(),
                first: Position(1),
                last: Position(9),
                bytes: 512,
            }],
            jumps: vec![Jump { last: Position(3), next: Position(9) }],
            openings: vec![Opening { id: 5, first: Position(1) }],
            clean: false,
            ..Manifest::fresh(1, Secret::new(0x1234))
        }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for secret in [None, Some(Secret::new(9))] {
            let mut manifest = Manifest { secret, ..sample() };
            // Version 1 knew of no openings.
            manifest.openings.retain(|_| secret.is_some());
            assert_eq!(Manifest::decode(&manifest.encode()).ok(), Some(manifest));
        }
    }

    #[test]
    fn numbers_that_no_store_reaches_are_damage() {
        let far = Lsn(u64::MAX);
        for manifest in [
            Manifest { term: u64::MAX, ..sample() },
            Manifest { log_end: far, ..sample() },
            Manifest { replay_from: far, ..sample() },
        ] {
            assert!(matches!(Manifest::decode(&manifest.encode()), Err(Fault::Damaged(_))));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(Manifest::decode(&damaged).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
