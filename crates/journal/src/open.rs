//! Opening a store: manifest, checkpoint, then the log from where these end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use bytes::Bytes;
use gapless_core::{Entry, EntryKind, Epoch, Position, Timestamp};

use crate::blobs::{BlobError, Blobs};
use crate::checkpoint::read_checkpoint;
use crate::error::{OpenError, ReadError};
use crate::gather::Gather;
use crate::journal::{Inner, Journal, Monotonic, Stats, append_bytes_max};
use crate::log::{Floor, Log, LogError, LogReader, Lsn, Stop, TakeOver, Torn};
use crate::manifest::{CHECKPOINT_PREFIX, Jump, Manifest, SEGMENT_PREFIX};
use crate::marks::Marks;
use crate::options::JournalOptions;
use crate::pool::Pool;
use crate::segment::Segment;
use crate::state::Recover;
use crate::tail::{Tail, TailFrame};

/// How far positions jump after an unclean end. More than can have been visible without
/// being flushed (see [`crate::flusher`]), so that no position is ever given twice.
pub(crate) const JUMP_POSITIONS: u64 = 1 << 24;

/// What a store is made of, and what it may not take from the world by itself.
pub struct Parts {
    /// Where segments, checkpoints and manifests are kept.
    pub blobs: Arc<dyn Blobs>,
    /// Makes the log of the store with this epoch.
    pub log: Box<dyn FnOnce(Epoch) -> Arc<dyn Log> + Send>,
    /// The epoch to use if the store is new: a random number.
    pub new_epoch: Epoch,
    /// A clock for measuring.
    pub monotonic: Monotonic,
    /// Whether a thread flushes. Without, somebody calls [`Journal::turn`].
    pub flusher_thread: bool,
}

/// What opening found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whether the store was made just now.
    pub created: bool,
    /// Whether it had been closed cleanly.
    pub clean: bool,
    /// What was cut off the log's end.
    pub torn: Option<Torn>,
    /// How many frames were replayed.
    pub frames_replayed: u64,
    /// How many bytes these had.
    pub bytes_replayed: u64,
    /// Indexes that had to be made anew, and why.
    pub indexes_rebuilt: Vec<(String, String)>,
    /// Positions that were skipped because the last end was unclean.
    pub jump: Option<Jump>,
    /// Blobs that belonged to nothing and were deleted.
    pub orphans: Vec<String>,
    /// The time of the newest entry.
    pub last_time: Timestamp,
}

impl Opened {
    /// An opening of the store with this manifest, before anything was found.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        Self {
            created: false,
            clean: false,
            torn: None,
            frames_replayed: 0,
            bytes_replayed: 0,
            indexes_rebuilt: Vec::new(),
            jump: None,
            orphans: Vec::new(),
            last_time: manifest.last_time,
        }
    }
}

impl Journal {
    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// Says why not; see [`OpenError`].
    pub fn open(
        parts: Parts,
        options: JournalOptions,
        state: &mut dyn Recover,
    ) -> Result<(Self, Opened), OpenError> {
        let blobs = parts.blobs;
        let (mut manifest, created) = first_manifest(&*blobs, parts.new_epoch)?;
        let epoch = Epoch(manifest.epoch);
        let log = (parts.log)(epoch);
        let taken = take_over(&*log, &*blobs, &mut manifest)?;
        if taken.next <= manifest.log_end {
            let log = taken.next.before();
            return Err(OpenError::CheckpointAhead { checkpoint: manifest.log_end, log });
        }
        let mut opened = Opened {
            created,
            clean: manifest.clean && taken.next == manifest.log_end.next(),
            torn: taken.torn,
            ..Opened::of(&manifest)
        };
        let segments = open_segments(&*blobs, &manifest, &mut opened)?;
        if let Some(name) = &manifest.checkpoint {
            read_checkpoint(&*blobs, name, &mut |item| state.restore(item))?;
        }
        let mut reader = taken.reader;
        let tail = replay(&mut *reader, &manifest, state, &mut opened)?;
        let last = tail.last().max(manifest.last_position);
        let mut next = last.next();
        if !opened.clean {
            next = last.plus(JUMP_POSITIONS);
            let jump = Jump { last, next };
            manifest.note_jump(jump);
            opened.jump = Some(jump);
        }
        manifest.term = taken.term;
        manifest.clean = false;
        manifest.number += 1;
        manifest.last_position = next.prev();
        manifest.log_end = taken.next.before();
        manifest.store(&*blobs)?;
        // Last, so that a store that does not open keeps everything for the doctor.
        opened.orphans = remove_orphans(&*blobs, &manifest)?;

        let marks = Arc::new(Marks::default());
        marks.start(taken.next.before());
        let frame_bytes = options.frame_bytes.min(taken.writer.frame_bytes_max());
        let gather = Gather::new(frame_bytes, taken.next, next, opened.last_time);
        let inner = Arc::new(Inner {
            epoch,
            marks,
            gather: Mutex::new(gather),
            append_bytes_max: append_bytes_max(taken.writer.frame_bytes_max()),
            prepare: taken.writer.preparer(),
            writer: Mutex::new(taken.writer),
            tail: Mutex::new(tail),
            readers: Mutex::default(),
            segments: RwLock::new(Arc::new(segments)),
            blobs,
            pool: Pool::new(options.recovery_threads),
            full: AtomicBool::new(false),
            stats: Stats::default(),
            monotonic: parts.monotonic,
            manifest: Mutex::new(manifest),
            checkpoint_bytes: AtomicU64::new(0),
            sealed: Mutex::default(),
            unsealed: AtomicU64::new(0),
            flushed_position: AtomicU64::new(next.prev().0),
            dead: AtomicBool::new(true),
            options,
        });
        inner.note_unsealed();
        let flusher = parts.flusher_thread.then(|| spawn_flusher(&inner)).transpose()?;
        Ok((Self { inner, flusher: Mutex::new(flusher) }, opened))
    }
}

fn spawn_flusher(inner: &Arc<Inner>) -> Result<std::thread::JoinHandle<()>, OpenError> {
    let inner = Arc::clone(inner);
    let serve = move || inner.marks.serve(|| inner.turn_of_flusher());
    std::thread::Builder::new().name("flusher".to_owned()).spawn(serve).map_err(|source| {
        OpenError::Log(LogError::Io { doing: "start", place: "the flusher".to_owned(), source })
    })
}

/// The newest manifest, or that of a new store, and whether it is one.
fn first_manifest(blobs: &dyn Blobs, epoch: Epoch) -> Result<(Manifest, bool), OpenError> {
    if let Some(manifest) = Manifest::newest(blobs)? {
        return Ok((manifest, false));
    }
    let fresh = Manifest::fresh(epoch.0);
    fresh.store(blobs)?;
    Ok((fresh, true))
}

/// Takes the log over as the manifest says. Another owner may have written a newer manifest
/// until just before; then that one counts, and what it names must not be lost.
fn take_over(
    log: &dyn Log,
    blobs: &dyn Blobs,
    manifest: &mut Manifest,
) -> Result<TakeOver, OpenError> {
    loop {
        let taken = log.take_over(floor_of(manifest));
        if matches!(taken, Err(LogError::Locked { .. })) {
            return Ok(taken?);
        }
        match Manifest::newest(blobs)? {
            Some(newer) if newer.number > manifest.number && newer.epoch == manifest.epoch => {
                *manifest = newer;
            }
            _ => return Ok(taken?),
        }
    }
}

/// The blobs that no manifest names: what a crash left behind.
pub(crate) fn orphans(blobs: &dyn Blobs, manifest: &Manifest) -> Result<Vec<String>, BlobError> {
    let mut known: BTreeSet<String> =
        manifest.segments.iter().map(|each| each.data_name()).collect();
    known.extend(manifest.segments.iter().map(|each| each.index_name()));
    known.extend(manifest.checkpoint.iter().map(|name| name.to_string()));
    let mut orphans = blobs.list(SEGMENT_PREFIX)?;
    orphans.extend(blobs.list(CHECKPOINT_PREFIX)?);
    orphans.retain(|name| !known.contains(name));
    Ok(orphans)
}

fn remove_orphans(blobs: &dyn Blobs, manifest: &Manifest) -> Result<Vec<String>, OpenError> {
    let orphans = orphans(blobs, manifest)?;
    for name in &orphans {
        blobs.delete(name)?;
    }
    Ok(orphans)
}

fn open_segments(
    blobs: &dyn Blobs,
    manifest: &Manifest,
    opened: &mut Opened,
) -> Result<Vec<Arc<Segment>>, OpenError> {
    let mut segments = Vec::with_capacity(manifest.segments.len());
    for meta in &manifest.segments {
        let rebuilt = |why: &str| {
            tracing::warn!(segment = &*meta.name, why, "made an index anew");
            opened.indexes_rebuilt.push((meta.index_name(), why.to_owned()));
        };
        let segment = Segment::open(blobs, meta.clone(), rebuilt).map_err(|error| match error {
            ReadError::Damaged { name, offset, why } => OpenError::Damaged {
                name: name.to_string(),
                why: format!("at byte {offset}: {why}"),
            },
            ReadError::Version { name, found, known } => {
                OpenError::Version { name: name.to_string(), found, known }
            }
            ReadError::Blobs(error) => match &*error {
                BlobError::Missing { name } => {
                    OpenError::Damaged { name: name.clone(), why: "it is missing".to_owned() }
                }
                other => OpenError::Damaged { name: meta.data_name(), why: other.to_string() },
            },
            other => OpenError::Damaged { name: meta.data_name(), why: other.to_string() },
        })?;
        segments.push(Arc::new(segment));
    }
    Ok(segments)
}

/// Applies the log to the state, and fills the tail with it.
pub(crate) fn replay(
    reader: &mut dyn LogReader,
    manifest: &Manifest,
    state: &mut dyn Recover,
    opened: &mut Opened,
) -> Result<Tail, OpenError> {
    let mut tail = Tail::new(manifest.sealed);
    let mut fault = None;
    let visited = reader.replay(manifest.replay_from, &mut |lsn, bytes: Bytes| match replay_frame(
        lsn, &bytes, state, opened,
    ) {
        Ok(Some((last, has_messages))) => {
            tail.push(TailFrame::new(lsn, last, bytes, has_messages));
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => {
            fault = Some(error);
            Err(Stop)
        }
    });
    match (fault, visited) {
        (Some(error), _) => return Err(error),
        (None, Err(error)) => return Err(error.into()),
        (None, Ok(())) => {}
    }
    let position = tail.last().max(manifest.last_position).next();
    state.finish().map_err(|why| OpenError::BadState { position, why })?;
    Ok(tail)
}

/// What a manifest knows of its log.
pub(crate) fn floor_of(manifest: &Manifest) -> Floor {
    Floor { first_needed: manifest.replay_from, flushed: manifest.log_end, term: manifest.term }
}

/// Applies a frame; tells the last position in it, and whether messages are.
fn replay_frame(
    lsn: Lsn,
    bytes: &Bytes,
    state: &mut dyn Recover,
    opened: &mut Opened,
) -> Result<Option<(Position, bool)>, OpenError> {
    opened.frames_replayed += 1;
    opened.bytes_replayed += bytes.len() as u64;
    let mut through = None;
    let mut has_messages = false;
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        // The frame's own checksum was checked when the log was taken over.
        let entry =
            Entry::take_trusted(&mut rest).map_err(|why| OpenError::BadEntry { lsn, why })?;
        let (position, last) = (entry.header.position, entry.header.last_position());
        opened.last_time = opened.last_time.max(entry.header.time);
        has_messages |= entry.header.kind == EntryKind::Batch;
        through = Some((last, has_messages));
        state.replay(lsn, entry).map_err(|why| OpenError::BadState { position, why })?;
    }
    Ok(through)
}
