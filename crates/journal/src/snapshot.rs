//! A consistent state of a store: a manifest, the blobs that it names, and the frames of the log
//! behind it.
//!
//! Taken from a journal that runs, from a folder that is not open, or read from its bytes. A journal
//! that runs writes out what is in memory, records what is appended meanwhile (`pins.rs`), and holds
//! the blobs until the snapshot is dropped; publishing goes on.
//!
//! What holds of every snapshot: all entries through its last frame are in its segments or frames,
//! everything that was acknowledged before it was asked for is among them, and nothing is without all
//! that came before it.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use gapless_core::{Epoch, Timestamp};

use crate::blobs::Blobs;
use crate::checkpoint::{copy_name, read_checkpoint};
use crate::doctor::{ReadBlobs, marks_of};
use crate::error::{OpenError, ReadError};
use crate::frame::FrameMarks;
use crate::fs::FsLock;
use crate::journal::Journal;
use crate::keeper::KeepError;
use crate::layout::Folder;
use crate::log::{LogError, LogReader, Lsn, Visit};
use crate::manifest::Manifest;
use crate::marks::lock;
use crate::open::{Opened, floor_of, replay};
use crate::pins::{Pin, RECORDED_BYTES_MAX, SNAPSHOTS_MAX};
use crate::segment::Segment;
use crate::state::{Recover, State};

const MAGIC: u64 = u64::from_le_bytes(*b"gaplsnp\n");
/// The version of the bytes of a snapshot's state.
pub const SNAPSHOT_VERSION: u16 = 1;

/// Why there is no snapshot. The store is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// What is in memory could not be written out.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// There are too many.
    #[error("{SNAPSHOTS_MAX} snapshots are held already; end one first")]
    TooMany,
    /// More was appended meanwhile than is kept for a snapshot.
    #[error("more than {RECORDED_BYTES_MAX} bytes were appended while it was taken; try again")]
    TooBusy,
    /// The folder holds no store, or one that cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no store.
    #[error("there is no store here")]
    NoStore,
    /// The bytes are no snapshot, or damaged.
    #[error("the state of the snapshot is damaged: {0}")]
    Damaged(&'static str),
    /// The store was last written by a version that knew no secret.
    #[error("the store has the format of version 1; open it once with this version first")]
    OldFormat,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Snapshot {
    manifest: Manifest,
    frames: Vec<(Lsn, Bytes)>,
    /// Where its blobs are.
    blobs: Arc<dyn Blobs>,
    _held: Option<Held>,
}

/// What keeps the blobs where they are.
#[derive(Debug)]
enum Held {
    Pin(#[expect(dead_code, reason = "held until it is dropped")] Pin),
    Lock(#[expect(dead_code, reason = "held until it is dropped")] Box<dyn FsLock>),
}

impl Journal {
    /// Takes a snapshot; its blobs stay while it lives. Publishing goes on meanwhile.
    ///
    /// # Errors
    /// Says why not; see [`SnapshotError`].
    pub fn snapshot(&self, state: &dyn State, now: Timestamp) -> Result<Snapshot, SnapshotError> {
        let inner = &*self.inner;
        let mut manifest = lock(&inner.manifest);
        inner.pins.record();
        let sealed = inner.seal_to(&mut manifest, u64::MAX, (state, now));
        // Those that the manifest's checkpoint may tell of were flushed before it was stored.
        let flushed = inner.marks.flushed();
        let recorded = inner.pins.recorded();
        sealed?;
        let mut frames = recorded.ok_or(SnapshotError::TooBusy)?;
        frames.retain(|(lsn, _)| (manifest.replay_from..=flushed).contains(lsn));
        let blobs = Arc::clone(&inner.blobs);
        let snapshot = Snapshot::new(manifest.clone(), frames, blobs, None)?;
        let pin = inner.pins.hold(&inner.blobs, &snapshot.names());
        let pin = pin.ok_or(SnapshotError::TooMany)?;
        Ok(Snapshot { _held: Some(Held::Pin(pin)), ..snapshot })
    }

    /// How many snapshots are held, and how many blobs are kept only for them.
    pub fn snapshots(&self) -> (usize, usize) {
        self.inner.pins.counts()
    }
}

impl Folder {
    /// The state of a store that is not open. It is locked until the snapshot is dropped, and not
    /// changed.
    ///
    /// # Errors
    /// When there is none, it is open elsewhere, or damaged.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let blobs: Arc<dyn Blobs> = Arc::new(ReadBlobs::of(self));
        if Manifest::names(&*blobs)?.is_empty() {
            return Err(SnapshotError::NoStore);
        }
        let lock = self.lock().map_err(OpenError::from)?;
        let manifest = Manifest::newest(&*blobs)?.ok_or(SnapshotError::NoStore)?;
        let log = self.file_log(marks_of(&manifest));
        let mut reader = log.read_only(floor_of(&manifest)).map_err(OpenError::from)?;
        let mut frames = Vec::new();
        let visited = reader.replay(manifest.replay_from, &mut |lsn, bytes| {
            frames.push((lsn, bytes));
            Ok(())
        });
        visited.map_err(OpenError::from)?;
        Snapshot::new(manifest, frames, blobs, Some(Held::Lock(lock)))
    }
}

impl Snapshot {
    fn new(
        mut manifest: Manifest,
        frames: Vec<(Lsn, Bytes)>,
        blobs: Arc<dyn Blobs>,
        held: Option<Held>,
    ) -> Result<Self, SnapshotError> {
        if manifest.secret.is_none() {
            return Err(SnapshotError::OldFormat);
        }
        let end = frames.last().map_or(manifest.replay_from.before(), |(lsn, _)| *lsn);
        // Of a journal that runs, more may have been flushed since.
        let clean = manifest.clean && manifest.log_end == end;
        if end < manifest.log_end {
            let log = end;
            return Err(OpenError::CheckpointAhead { checkpoint: manifest.log_end, log }.into());
        }
        (manifest.log_end, manifest.clean) = (end, clean);
        // Wherever its frames are written, all of them get the secret.
        manifest.secret_from = manifest.secret_from.min(manifest.replay_from);
        Ok(Self { manifest, frames, blobs, _held: held })
    }

    /// A snapshot of these parts, for one who read them elsewhere.
    ///
    /// # Errors
    /// When the frames do not reach as far as the manifest says.
    pub fn of(
        manifest: Manifest,
        frames: Vec<(Lsn, Bytes)>,
        blobs: Arc<dyn Blobs>,
    ) -> Result<Self, SnapshotError> {
        Self::new(manifest, frames, blobs, None)
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The frames behind the manifest, in order.
    pub fn frames(&self) -> &[(Lsn, Bytes)] {
        &self.frames
    }

    /// Where its blobs are.
    pub fn blobs(&self) -> &Arc<dyn Blobs> {
        &self.blobs
    }

    /// The store's own id.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.manifest.epoch)
    }

    /// What the frames carry, wherever they are written.
    pub fn marks(&self) -> FrameMarks {
        marks_of(&self.manifest)
    }

    /// The blobs that it needs, each once.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for segment in &self.manifest.segments {
            names.push(segment.data_name());
            names.push(segment.index_name());
        }
        if let Some(checkpoint) = &self.manifest.checkpoint {
            names.push(checkpoint.to_string());
            names.push(copy_name(checkpoint));
        }
        names
    }

    /// All of it but the blobs, as bytes.
    pub fn encode(&self) -> Bytes {
        let manifest = self.manifest.encode();
        let frames: usize = self.frames.iter().map(|(_, bytes)| bytes.len() + 4).sum();
        let mut out = Vec::with_capacity(32 + manifest.len() + frames);
        out.put_u64_le(MAGIC);
        out.put_u16_le(SNAPSHOT_VERSION);
        out.put_u32_le(u32::try_from(manifest.len()).expect("a manifest is small"));
        out.put_slice(&manifest);
        out.put_u32_le(u32::try_from(self.frames.len()).expect("there are few frames"));
        for (_, bytes) in &self.frames {
            out.put_u32_le(u32::try_from(bytes.len()).expect("a frame is shorter than 4 GiB"));
            out.put_slice(bytes);
        }
        out.put_u32_le(crc32c::crc32c(&out));
        out.into()
    }

    /// The snapshot of these bytes, whose blobs are there.
    ///
    /// # Errors
    /// When the bytes are damaged, or of another version.
    pub fn decode(bytes: &Bytes, blobs: Arc<dyn Blobs>) -> Result<Self, SnapshotError> {
        use SnapshotError::Damaged;
        const CUT: SnapshotError = Damaged("it is cut short");
        let cut = |_| CUT;
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(CUT)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(Damaged("its checksum does not fit"));
        }
        let mut rest = bytes.slice(..body.len());
        if rest.try_get_u64_le().map_err(cut)? != MAGIC {
            return Err(Damaged("it is no state of a snapshot"));
        }
        let found = rest.try_get_u16_le().map_err(cut)?;
        if found != SNAPSHOT_VERSION {
            let (name, known) = ("the snapshot".to_owned(), SNAPSHOT_VERSION);
            return Err(OpenError::Version { name, found, known }.into());
        }
        let part = |rest: &mut Bytes| {
            let len = rest.try_get_u32_le().map_err(cut)? as usize;
            if len > rest.len() { Err(CUT) } else { Ok(rest.split_to(len)) }
        };
        let manifest = Manifest::decode_as("the snapshot's manifest", &part(&mut rest)?)?;
        let count = rest.try_get_u32_le().map_err(cut)?;
        let mut frames = Vec::new();
        let mut lsn = manifest.replay_from;
        for _ in 0..count {
            frames.push((lsn, part(&mut rest)?));
            lsn = lsn.next();
        }
        if !rest.is_empty() {
            return Err(Damaged("there is more in it than it says"));
        }
        Self::new(manifest, frames, blobs, None)
    }

    /// Reads and checks everything as an opening would, segments to the last byte, and changes
    /// nothing. `progress` is told how many bytes of how many are done.
    ///
    /// # Errors
    /// Says what is wrong first.
    pub fn check<S: Recover + Default>(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), OpenError> {
        let Self { manifest, blobs, .. } = self;
        let mut state = S::default();
        if let Some(name) = &manifest.checkpoint {
            let whose = (&**name, manifest.epoch);
            read_checkpoint(&**blobs, whose, &mut |item| state.restore(item))?;
        }
        let mut reader = Frames(&self.frames);
        replay(&mut reader, manifest, &mut state, &mut Opened::of(manifest))?;
        let total = manifest.segments.iter().map(|segment| segment.bytes).sum();
        let mut done = 0;
        for meta in &manifest.segments {
            let mut within = |bytes: u64| progress(done + bytes, total);
            let damaged = |why: String| OpenError::Damaged { name: meta.data_name(), why };
            let examined = Segment::examine(&**blobs, meta, &mut within);
            let examined = examined.map_err(|error: ReadError| damaged(error.to_string()))?;
            if let Some(why) = examined.index_fault {
                return Err(OpenError::Damaged { name: meta.index_name(), why });
            }
            done += meta.bytes;
        }
        Ok(())
    }
}

/// Frames in memory, as an opening reads them.
#[derive(Debug)]
struct Frames<'a>(&'a [(Lsn, Bytes)]);

impl LogReader for Frames<'_> {
    fn replay(&mut self, from: Lsn, visit: &mut Visit<'_>) -> Result<(), LogError> {
        for (lsn, bytes) in self.0.iter().filter(|(lsn, _)| *lsn >= from) {
            visit(*lsn, bytes.clone()).map_err(|_| LogError::Stopped)?;
        }
        Ok(())
    }
}
