//! Opening a store: manifest, checkpoint, then the log from where these end.
//!
//! The rule: first everything is read and checked, and only then the first byte is written. A
//! refusal leaves the folder as it was, so a restart loop uses nothing up, and a repair
//! finds what the opener found.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use bytes::Bytes;
use gapless_core::openings::Openings;
use gapless_core::{Entry, EntryKind, Epoch, Position, Timestamp};

use crate::admission::Admission;
use crate::blobs::{BlobError, Blobs};
use crate::checkpoint::Checkpoint;
use crate::error::{OpenError, ReadError};
use crate::frame::{FrameMarks, Secret};
use crate::gather::Gather;
use crate::journal::{Inner, Journal, Monotonic, Stats, append_bytes_max};
use crate::keeper::BALLAST_NAME;
use crate::log::{AppendError, Floor, Log, LogError, LogReader, Lsn, Stop, TakeOver, Torn};
use crate::manifest::{CHECKPOINT_PREFIX, DAMAGED_PREFIX, Jump, Manifest, SEGMENT_PREFIX, delete};
use crate::marks::Marks;
use crate::options::JournalOptions;
use crate::orphans::Orphans;
use crate::pacing::Pacing;
use crate::pool::Pool;
use crate::segment::{Segment, SegmentMeta, Unopened};
use crate::state::Recover;
use crate::tail::{Tail, TailFrame};

/// How far positions jump after an unclean end. More than can have been visible without
/// being flushed (see [`crate::flusher`]), so that no position is ever given twice.
pub(crate) const JUMP_POSITIONS: u64 = 1 << 24;

/// Names that an owner of a shared store can give are numbered in so many bits; the term is above.
const NAMES_PER_TERM_BITS: u32 = 32;

/// What a store is made of, and what it may not take from the world by itself.
pub struct Parts {
    /// Where segments, checkpoints and manifests are kept.
    pub blobs: Arc<dyn Blobs>,
    /// Makes the log of the store whose frames have these marks.
    pub log: Box<dyn FnOnce(FrameMarks) -> Arc<dyn Log> + Send>,
    /// A random number: the epoch if the store is new, and in its lower half the id of this
    /// opening.
    pub new_epoch: Epoch,
    /// What its frames carry if the store is new or has none yet: another random number.
    pub new_secret: Secret,
    /// A clock for measuring.
    pub monotonic: Monotonic,
    /// Whether a thread flushes. Without one, the caller calls [`Journal::turn`].
    pub flusher_thread: bool,
}

/// What opening found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whether the store was made just now.
    pub created: bool,
    /// Whether it had been closed cleanly.
    pub clean: bool,
    /// The term of this owner of the log: higher than that of every owner before.
    pub term: u64,
    /// What was cut off the log's end.
    pub torn: Option<Torn>,
    /// How many frames were replayed.
    pub frames_replayed: u64,
    /// How many bytes these had.
    pub bytes_replayed: u64,
    /// Indexes that had to be rebuilt, and why.
    pub indexes_rebuilt: Vec<(String, String)>,
    /// Positions that were skipped because the last end was unclean.
    pub jump: Option<Jump>,
    /// Blobs that belonged to nothing and were deleted.
    pub orphans: Vec<String>,
    /// Blobs that look like a part of another store; they were left alone.
    pub foreign: Vec<String>,
    /// The newest manifest and what is wrong with it, if its copy was used.
    pub passed_over: Option<(String, String)>,
    /// The one of a checkpoint's two blobs that was written again from the other, and why.
    pub checkpoint_restored: Option<(String, String)>,
    /// The time of the newest entry.
    pub last_time: Timestamp,
}

impl Opened {
    /// An opening of the store with this manifest, before anything was found.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        Self {
            created: false,
            clean: false,
            term: manifest.term,
            torn: None,
            frames_replayed: 0,
            bytes_replayed: 0,
            indexes_rebuilt: Vec::new(),
            jump: None,
            orphans: Vec::new(),
            foreign: Vec::new(),
            passed_over: None,
            checkpoint_restored: None,
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
        let chosen = Manifest::choose(&*blobs)?;
        let created = chosen.is_none();
        let (mut manifest, passed_over) = match chosen {
            Some(chosen) => (chosen.manifest, chosen.passed_over),
            None => (Manifest::fresh(parts.new_epoch.0, parts.new_secret), None),
        };
        let log = (parts.log)(manifest.marks(parts.new_secret));
        let is_shared = log.is_shared();
        if created {
            refuse_remains(&*blobs, &*log)?;
        }
        let mut taken = take_over(&*log, &*blobs, &mut manifest)?;
        let epoch = Epoch(manifest.epoch);
        if taken.next <= manifest.log_end {
            let log = taken.next.before();
            return Err(OpenError::CheckpointAhead { checkpoint: manifest.log_end, log });
        }
        let mut opened = Opened {
            created,
            clean: manifest.clean && taken.next == manifest.log_end.next(),
            term: taken.term,
            torn: taken.torn.take(),
            passed_over,
            ..Opened::of(&manifest)
        };
        let checkpoint = restore(&*blobs, &manifest, state)?;
        let found = find_segments(&*blobs, &manifest)?;
        let tail = replay(&mut *taken.reader, &manifest, state, &mut opened)?;
        let last = tail.last().max(manifest.last_position);
        let orphans = Orphans::find(&*blobs, &manifest)?;
        orphans.refuse_ahead(&*blobs, last)?;

        // Nothing was changed up to here.
        blobs.prepare()?;
        taken.writer.settle()?;
        if let Some(checkpoint) = checkpoint {
            checkpoint.restore_lost(&*blobs)?;
            opened.checkpoint_restored = checkpoint.lost;
        }
        let segments = open_segments(&*blobs, found, &mut opened)?;
        let mut openings = Openings::new(epoch, std::mem::take(&mut manifest.openings));
        let mut next = last.next();
        if !opened.clean {
            next = last.plus(JUMP_POSITIONS);
            // The manifest also counts positions that were given and not flushed yet; of those of this
            // opening only what was replayed survived.
            let base = openings.list().last().map_or(Position(0), |opening| opening.first.prev());
            let jump = Jump { last: tail.last().max(base), next };
            manifest.note_jump(jump);
            opened.jump = Some(jump);
        }
        if !created {
            openings.begin(parts.new_epoch.opening(), next);
        }
        manifest.openings = openings.list().to_vec();
        if manifest.secret.is_none() {
            manifest.secret = Some(parts.new_secret);
            manifest.secret_from = taken.next;
        }
        manifest.term = taken.term;
        manifest.clean = false;
        manifest.last_position = next.prev();
        manifest.log_end = taken.next.before();
        // A name is never given twice, also not one of a blob that stays.
        manifest.next_name = manifest.next_name.max(orphans.next_name);
        if is_shared {
            manifest.next_name = manifest.next_name.max(taken.term << NAMES_PER_TERM_BITS);
        }
        let copied = store_in_need(&mut manifest, &*blobs)?;
        // Before anything is deleted: another may have taken over since.
        taken.writer.confirm().map_err(not_confirmed)?;
        opened.foreign = orphans.foreign;
        if copied && !created {
            opened.orphans = orphans.ours;
            opened.orphans.iter().for_each(|name| delete(&*blobs, name));
        }

        let marks = Arc::new(Marks::new(options.full_retry));
        marks.start(taken.next.before());
        let frame_bytes = options.frame_bytes.min(taken.writer.frame_bytes_max());
        let gather = Gather::new(frame_bytes, taken.next, next, opened.last_time);
        let inner = Arc::new(Inner {
            epoch,
            openings,
            marks,
            gather: Mutex::new(gather),
            append_bytes_max: append_bytes_max(taken.writer.frame_bytes_max()),
            is_near: taken.writer.is_near(),
            linger: taken.writer.linger(),
            replayed_frames_max: taken.writer.replayed_frames_max(),
            unavailable: Mutex::default(),
            prepare: taken.writer.preparer(),
            writer: Mutex::new(taken.writer),
            tail: Mutex::new(tail),
            readers: Mutex::default(),
            segments: RwLock::new(Arc::new(segments)),
            blobs,
            pool: Pool::new(options.recovery_threads),
            admission: Admission::new(),
            pacing: Pacing::new(parts.flusher_thread),
            blocked: AtomicBool::new(false),
            blocked_tries: AtomicU64::new(0),
            ballast: AtomicBool::new(false),
            stats: Stats::default(),
            monotonic: parts.monotonic,
            jumps: manifest.jumps.clone(),
            manifest: Mutex::new(manifest),
            unneeded: Mutex::default(),
            pins: Arc::default(),
            checkpoint_bytes: AtomicU64::new(0),
            sealed: Mutex::default(),
            unsealed: AtomicU64::new(0),
            unsealed_log: AtomicU64::new(0),
            flushed_position: AtomicU64::new(next.prev().0),
            dead: AtomicBool::new(true),
            quiet: Mutex::default(),
            options,
        });
        inner.note_unsealed();
        let flusher = parts.flusher_thread.then(|| spawn_flusher(&inner)).transpose()?;
        Ok((Self { inner, flusher: Mutex::new(flusher) }, opened))
    }
}

fn not_confirmed(error: AppendError) -> OpenError {
    match error {
        AppendError::Fenced { .. } => OpenError::TakenOver { name: "the log".to_owned() },
        AppendError::Unavailable(source) => {
            OpenError::Log(LogError::Io { doing: "confirm", place: "the log".to_owned(), source })
        }
        other => {
            let source = std::io::Error::other(other.to_string());
            OpenError::Log(LogError::Io { doing: "confirm", place: "the log".to_owned(), source })
        }
    }
}

/// Stores a manifest; on a full disk in the room that is kept for it.
fn store_in_need(manifest: &mut Manifest, blobs: &dyn Blobs) -> Result<bool, OpenError> {
    match manifest.store(blobs) {
        Err(OpenError::Blobs(BlobError::Full)) => {
            blobs.delete(BALLAST_NAME)?;
            manifest.store(blobs)
        }
        stored => stored,
    }
}

fn spawn_flusher(inner: &Arc<Inner>) -> Result<std::thread::JoinHandle<()>, OpenError> {
    let inner = Arc::clone(inner);
    let serve = move || inner.marks.serve(|| inner.turn_of_flusher());
    std::thread::Builder::new().name("flusher".to_owned()).spawn(serve).map_err(|source| {
        OpenError::Log(LogError::Io { doing: "start", place: "the flusher".to_owned(), source })
    })
}

/// Refuses to create a store where files of one lie: they may be all that is left of it.
pub(crate) fn refuse_remains(blobs: &dyn Blobs, log: &dyn Log) -> Result<(), OpenError> {
    let found = remains(blobs, log)?;
    if found.is_empty() { Ok(()) } else { Err(OpenError::Remains { found }) }
}

/// What a store without a manifest has left behind.
pub(crate) fn remains(blobs: &dyn Blobs, log: &dyn Log) -> Result<Vec<String>, OpenError> {
    let mut found = log.remains()?;
    for prefix in [SEGMENT_PREFIX, CHECKPOINT_PREFIX, DAMAGED_PREFIX] {
        found.extend(blobs.list(prefix)?);
    }
    Ok(found)
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

/// Reads the checkpoint, if there is one, into the state.
fn restore(
    blobs: &dyn Blobs,
    manifest: &Manifest,
    state: &mut dyn Recover,
) -> Result<Option<Checkpoint>, OpenError> {
    let Some(name) = &manifest.checkpoint else { return Ok(None) };
    let checkpoint = Checkpoint::load(blobs, name, manifest.epoch)?;
    for item in &checkpoint.items {
        let refused = |why| OpenError::Damaged { name: name.to_string(), why };
        state.restore(item.clone()).map_err(refused)?;
    }
    Ok(Some(checkpoint))
}

fn find_segments(blobs: &dyn Blobs, manifest: &Manifest) -> Result<Vec<Unopened>, OpenError> {
    let find = |meta: &SegmentMeta| {
        Segment::find(blobs, meta.clone(), manifest.epoch).map_err(|error| unreadable(meta, error))
    };
    let (segments, at_once) = (&manifest.segments, blobs.opened_at_once().max(1));
    if at_once == 1 {
        return segments.iter().map(find).collect();
    }
    let share = segments.len().div_ceil(at_once).max(1);
    let find_share = |share| -> Result<Vec<_>, _> { <[_]>::iter(share).map(find).collect() };
    std::thread::scope(|scope| {
        let started: Vec<_> =
            segments.chunks(share).map(|share| scope.spawn(move || find_share(share))).collect();
        let mut found = Vec::with_capacity(segments.len());
        for each in started {
            found.extend(each.join().expect("opening a segment does not panic")?);
        }
        Ok(found)
    })
}

fn open_segments(
    blobs: &dyn Blobs,
    found: Vec<Unopened>,
    opened: &mut Opened,
) -> Result<Vec<Arc<Segment>>, OpenError> {
    let mut segments = Vec::with_capacity(found.len());
    for each in found {
        let meta = each.meta().clone();
        let (segment, rebuilt) = each.open(blobs).map_err(|error| unreadable(&meta, error))?;
        if let Some(why) = rebuilt {
            tracing::warn!(segment = &*meta.name, why, "rebuilt an index");
            opened.indexes_rebuilt.push((meta.index_name(), why));
        }
        segments.push(Arc::new(segment));
    }
    Ok(segments)
}

fn unreadable(meta: &SegmentMeta, error: ReadError) -> OpenError {
    match error {
        ReadError::Damaged { name, offset, why } => {
            OpenError::Damaged { name: name.to_string(), why: format!("at byte {offset}: {why}") }
        }
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
    }
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
