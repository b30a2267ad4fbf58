//! Work in the background: writing out segments and checkpoints, trimming the log, dropping
//! what is dead, making room ahead.
//!
//! The order makes every step safe to lose: first new blobs are made durable, then a new
//! manifest names them, and only then is deleted what the old manifest alone named. A crash
//! in between leaves blobs that belong to nothing; opening deletes them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use gapless_core::{Batch, Entry, EntryHeader, EntryKind, Position, Seq, Timestamp, TopicId};

use crate::blobs::{BlobError, Blobs};
use crate::checkpoint::{CheckpointWriter, Head, copy_name};
use crate::collector::{Compactor, Dropper};
use crate::error::{Failure, OpenError, ReadError};
use crate::journal::{Inner, Journal, Sealed};
use crate::log::AppendError;
use crate::manifest::{CHECKPOINT_PREFIX, Manifest, SEGMENT_PREFIX, delete};
use crate::marks::lock;
use crate::segment::{Segment, SegmentWriter};
use crate::state::State;
use crate::tail::TailFrame;

/// Bytes of a segment after which it is looked again whether the log has room ahead.
const PREPARE_STEP_BYTES: u64 = 8 * 1024 * 1024;

/// Segments that are written one after the other before the keeper looks at anything else.
const SEALS_MAX: usize = 4;

/// The blob that only holds room, to be given up when there is no other.
pub(crate) const BALLAST_NAME: &str = "reserve";

/// The share of the reserve that it holds: one in so many.
const BALLAST_SHARE: u64 = 4;

/// Why keeping did not get done. The store is as it was and goes on; it is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The store of blobs did not take it.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// A segment could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The manifest could not be written.
    #[error(transparent)]
    Manifest(#[from] OpenError),
    /// The log did not take the flush or the trim.
    #[error("the log cannot be trimmed: {0}")]
    Log(AppendError),
    /// The journal takes no more appends.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The disk is full, so what is in memory cannot be made durable first.
    #[error("the disk is full")]
    Full,
}

impl KeepError {
    /// Whether it was for want of room.
    fn is_full(&self) -> bool {
        match self {
            Self::Blobs(error) | Self::Manifest(OpenError::Blobs(error)) => {
                matches!(error, BlobError::Full)
            }
            Self::Full => true,
            _ => false,
        }
    }
}

/// What [`Journal::keep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// A segment and a checkpoint were written and the log was trimmed.
    pub sealed: bool,
    /// Dead data was dropped or segments were merged; there may be more to do.
    pub collected: bool,
}

impl Journal {
    /// Does what is due. Call it now and then, from one thread.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn keep(&self, state: &dyn State, now: Timestamp) -> Result<Kept, KeepError> {
        let inner = &*self.inner;
        let kept = inner.keep(state, now);
        // Nothing goes before the manifest that lets it go has its copy.
        let has_copy = lock(&inner.unneeded).is_empty();
        if has_copy && !matches!(&kept, Err(error) if error.is_full()) {
            inner.hold_ballast();
            return kept;
        }
        // What frees room needs a little itself.
        if !inner.drop_ballast() {
            return kept;
        }
        inner.keep(state, now)
    }

    /// Writes everything in memory out as a segment, with a checkpoint, now.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn seal(&self, state: &dyn State, now: Timestamp) -> Result<(), KeepError> {
        self.inner.seal(u64::MAX, state, now)
    }

    /// Rewrites all segments without what is dead, superseded keys included, now.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn compact(&self, state: &dyn State, now: Timestamp) -> Result<(), KeepError> {
        self.inner.seal(u64::MAX, state, now)?;
        self.inner.rewrite_all(state, now)
    }

    /// Ends cleanly: everything is flushed, and the next opening knows it.
    ///
    /// # Errors
    /// When the last manifest could not be written: the next opening will replay more.
    pub fn close(&self) -> Result<(), KeepError> {
        let inner = &self.inner;
        let end = || inner.flush_all().and_then(|()| inner.store_clean_manifest());
        let mut result = end();
        if matches!(&result, Err(error) if error.is_full()) && inner.drop_ballast() {
            result = end();
        }
        self.stop();
        result
    }
}

impl Inner {
    fn keep(&self, state: &dyn State, now: Timestamp) -> Result<Kept, KeepError> {
        self.prepare_room();
        if self.is_stuck() {
            self.give_spare_room();
        }
        if self.blocked.load(Ordering::Acquire) || self.marks.flushed() < self.marks.written() {
            self.flush_written();
        }
        self.copy_manifest()?;
        let mut kept = Kept::default();
        for _ in 0..SEALS_MAX {
            if !self.is_seal_due() && !self.is_seal_of_use() {
                break;
            }
            self.seal(self.seal_log_bytes(), state, now)?;
            kept.sealed = true;
        }
        // Each piece leaves one segment without anything dead.
        for _ in 0..=self.segments().len() {
            if !self.dead.swap(false, Ordering::AcqRel) {
                break;
            }
            let collected = self.collect(state, now);
            // There may be more to do; and what failed is tried again.
            if !matches!(collected, Ok(false)) {
                self.dead.store(true, Ordering::Release);
            }
            kept.collected |= collected?;
            // Appends wait for the room; else the next turn is soon enough.
            if !self.is_tight() {
                break;
            }
        }
        kept.collected |= self.compact_quiet(state, now)?;
        self.look_for_room();
        self.evict(state);
        Ok(kept)
    }

    /// Holds a little room for the manifests that say what may go.
    fn hold_ballast(&self) {
        let held = self.ballast.load(Ordering::Relaxed) || !self.blobs.has_bounded_room();
        if held || self.is_stuck() {
            return;
        }
        let bytes = vec![0; (self.options.reserve_bytes / BALLAST_SHARE) as usize];
        match self.blobs.put(BALLAST_NAME, &bytes) {
            Ok(_) => self.ballast.store(true, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "no room to hold by yet"),
        }
    }

    /// Gives it up; tells whether there was any.
    fn drop_ballast(&self) -> bool {
        let held = self.ballast.swap(false, Ordering::Relaxed);
        if held {
            delete(&*self.blobs, BALLAST_NAME);
        }
        held
    }

    /// Bytes of the log that are written out at a time, so that memory is given back in steps of
    /// that size.
    fn seal_log_bytes(&self) -> u64 {
        let large = self.checkpoint_bytes.load(Ordering::Relaxed);
        // Not more than appends may leave in memory, or they would wait for ever.
        self.options.seal_bytes.max(large).min(self.options.unsealed_bytes_max / 2).max(1)
    }

    /// Whether enough has gathered in memory that it should be written out.
    fn is_seal_due(&self) -> bool {
        let tail = lock(&self.tail);
        tail.unsealed_log_bytes() >= self.seal_log_bytes()
            || tail.unsealed_frames() >= self.replayed_frames_max
    }

    /// Writes what is in memory only, but not much more than so many bytes of the log, into a
    /// segment, the state into a checkpoint, and trims the log of both.
    pub(crate) fn seal(
        &self,
        log_bytes: u64,
        state: &dyn State,
        now: Timestamp,
    ) -> Result<(), KeepError> {
        self.seal_to(&mut lock(&self.manifest), log_bytes, (state, now))
    }

    /// Does the same in the middle of other work of the keeper, when it is due, and that work had
    /// as much time as the last segment took. What cannot be written now is left for later.
    pub(crate) fn seal_meanwhile(&self, manifest: &mut Manifest, at: (&dyn State, Timestamp)) {
        let sealed = lock(&self.sealed);
        let is_early = (self.monotonic)() < sealed.ended + sealed.took;
        drop(sealed);
        if is_early || !self.is_seal_due() || self.is_tight() {
            return;
        }
        if let Err(error) = self.seal_to(manifest, self.seal_log_bytes(), at) {
            tracing::debug!(%error, "a segment has to wait for the end of other work");
        }
    }

    pub(crate) fn seal_to(
        &self,
        manifest: &mut Manifest,
        log_bytes: u64,
        (state, now): (&dyn State, Timestamp),
    ) -> Result<(), KeepError> {
        self.flush_all()?;
        let flushed = self.marks.flushed();
        let mut frames = lock(&self.tail).unsealed(log_bytes);
        frames.retain(|frame| frame.lsn <= flushed);
        let Some(last) = frames.last() else { return Ok(()) };
        let (last_lsn, last_position) = (last.lsn, last.last);
        let mut fresh = Fresh::new(&*self.blobs);
        let name = fresh.segment(manifest);
        let began = (self.monotonic)();
        let hurried = self.is_seal_due() && lock(&self.sealed).leaves_little_time(began);
        let segment = self.write_segment((name, hurried), &frames, last_position, (state, now))?;
        let ended = (self.monotonic)();
        *lock(&self.sealed) = Sealed { took: ended.saturating_sub(began), ended, hurried };
        drop(frames);
        let checkpoint = fresh.checkpoint(manifest);
        let head =
            Head { epoch: self.epoch.0, replay_from: last_lsn.next(), sealed: last_position };
        self.write_checkpoint(&checkpoint, head, state)?;
        let mut next = manifest.clone();
        next.segments.extend(segment.iter().map(|segment| segment.meta().clone()));
        let old = next.checkpoint.replace(checkpoint.into());
        next.sealed = last_position;
        next.replay_from = last_lsn.next();
        let unneeded = old.map(|old| vec![copy_name(&old), old.to_string()]).unwrap_or_default();
        let copied = self.install(manifest, next, fresh, unneeded)?;
        if let Some(segment) = segment {
            self.swap_segments(|segments| segments.push(Arc::new(segment)));
        }
        lock(&self.tail).seal(last_position);
        self.note_unsealed();
        self.marks.room_made();
        self.evict(state);
        self.dead.store(true, Ordering::Release);
        if copied {
            self.delete_unneeded();
            lock(&self.writer).trim(manifest.replay_from).map_err(KeepError::Log)?;
        }
        Ok(())
    }

    /// Makes `next` the manifest in force, noting how far the log is known to reach. With
    /// it, the `fresh` blobs belong to the store, and those that are `unneeded` do not: they
    /// can be deleted when it has its copy, which is reported.
    pub(crate) fn install(
        &self,
        manifest: &mut Manifest,
        mut next: Manifest,
        fresh: Fresh<'_>,
        unneeded: Vec<String>,
    ) -> Result<bool, KeepError> {
        let gather = lock(&self.gather);
        next.last_position = gather.next_position().prev();
        next.last_time = gather.last_time().0;
        drop(gather);
        next.log_end = self.marks.flushed();
        next.clean = false;
        let stored = next.store(&*self.blobs);
        // Never the same number twice: the one that could not be stored may be there.
        manifest.number = next.number;
        let copied = match stored {
            Ok(copied) => copied,
            Err(OpenError::TakenOver { .. }) => {
                // Its blobs are no longer in force, whatever they are; the next opening looks.
                fresh.keep();
                return Err(self.taken_over());
            }
            Err(error) => {
                // Unless it is certain that no manifest names them, they must stay.
                if !matches!(self.blobs.open(&next.name()), Err(BlobError::Missing { .. })) {
                    fresh.keep();
                }
                return Err(error.into());
            }
        };
        fresh.keep();
        *manifest = next;
        lock(&self.unneeded).extend(unneeded);
        Ok(copied && self.is_confirmed()?)
    }

    /// Whether it is certain that the manifest just stored counts, so that what it does not need may
    /// go. If the log does not answer it is not, and is tried again later.
    fn is_confirmed(&self) -> Result<bool, KeepError> {
        match self.confirm() {
            Ok(()) => Ok(true),
            Err(AppendError::Unavailable(_)) => Ok(false),
            Err(error) => Err(KeepError::Log(error)),
        }
    }

    /// Another owner wrote a manifest: this journal has failed.
    fn taken_over(&self) -> KeepError {
        let failure = Failure::Fenced { next: self.marks.flushed().next() };
        self.fail(AppendError::Fenced { next: self.marks.flushed().next() });
        KeepError::Failed(failure)
    }

    /// Deletes what no manifest names any more.
    pub(crate) fn delete_unneeded(&self) {
        let names = std::mem::take(&mut *lock(&self.unneeded));
        self.pins.delete(&*self.blobs, names);
    }

    /// Tries again to give the manifest a copy, if something waits for it to be deleted.
    fn copy_manifest(&self) -> Result<(), KeepError> {
        if lock(&self.unneeded).is_empty() {
            return Ok(());
        }
        let mut manifest = lock(&self.manifest);
        let copied = match manifest.store(&*self.blobs) {
            Err(OpenError::TakenOver { .. }) => return Err(self.taken_over()),
            stored => stored?,
        };
        if copied && self.is_confirmed()? {
            self.delete_unneeded();
        }
        Ok(())
    }

    fn store_clean_manifest(&self) -> Result<(), KeepError> {
        let mut manifest = lock(&self.manifest);
        let mut next = manifest.clone();
        let gather = lock(&self.gather);
        next.last_position = gather.next_position().prev();
        next.last_time = gather.last_time().0;
        next.clean = gather.waiting_bytes() == 0;
        drop(gather);
        next.log_end = self.marks.flushed();
        let stored = next.store(&*self.blobs);
        manifest.number = next.number;
        stored?;
        *manifest = next;
        Ok(())
    }

    /// Flushes everything appended so far, or says why that cannot be.
    pub(crate) fn flush_all(&self) -> Result<(), KeepError> {
        self.flush_written();
        match self.marks.failure() {
            Some(failure) => Err(failure.into()),
            None if self.blocked.load(Ordering::Acquire) => Err(KeepError::Full),
            None => Ok(()),
        }
    }

    fn write_segment(
        &self,
        (name, hurried): (String, bool),
        frames: &[TailFrame],
        last: Position,
        (state, now): (&dyn State, Timestamp),
    ) -> Result<Option<Segment>, KeepError> {
        let mut batches = sorted_batches(frames);
        if batches.is_empty() {
            return Ok(None);
        }
        let mut dropper = Dropper::new(state, now);
        let compactor = Compactor::over_batches(self.epoch.0, &batches, &mut dropper);
        let mut writer = self.segment_writer(name)?;
        if hurried {
            writer.read_rarely();
        }
        let empty = writer.bytes();
        let mut prepare_at = PREPARE_STEP_BYTES;
        for (_, _, bytes) in &mut batches {
            // Appends go on meanwhile.
            if writer.bytes() >= prepare_at {
                prepare_at = writer.bytes() + PREPARE_STEP_BYTES;
                self.prepare_room();
            }
            let batch = Entry::take_trusted(bytes).ok().and_then(Batch::new);
            let batch = batch.expect("the frame was made of whole entries");
            dropper.write(&batch, &compactor, &mut writer)?;
        }
        dropper.finish(&mut writer)?;
        if writer.bytes() == empty {
            return Ok(None);
        }
        Ok(Some(writer.finish(last)?))
    }

    pub(crate) fn segment_writer(&self, name: String) -> Result<SegmentWriter<'_>, BlobError> {
        SegmentWriter::create(&*self.blobs, name, self.epoch.0, self.options.block_bytes)
    }

    fn write_checkpoint(&self, name: &str, head: Head, state: &dyn State) -> Result<(), KeepError> {
        let mut writer = CheckpointWriter::create(&*self.blobs, name, head)?;
        state.checkpoint(&mut |item| writer.item(item))?;
        // Items may tell of entries that gathered meanwhile: these must be in the log
        // before the checkpoint counts.
        self.flush_all()?;
        let bytes = writer.finish()?;
        self.checkpoint_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn swap_segments(&self, change: impl FnOnce(&mut Vec<Arc<Segment>>)) {
        let mut segments = self.segments.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut changed = segments.to_vec();
        change(&mut changed);
        *segments = Arc::new(changed);
    }

    /// Drops from memory what is in segments and over the budget.
    pub(crate) fn evict(&self, state: &dyn State) {
        let evicted = lock(&self.tail).evict(self.options.tail_bytes);
        self.tell_evicted(evicted, state);
    }

    /// Tells topics what of them is no longer in memory.
    pub(crate) fn tell_evicted(&self, evicted: Vec<TailFrame>, state: &dyn State) {
        for frame in evicted {
            let mut told = None;
            for (header, _) in entries(&frame.bytes) {
                if header.kind == EntryKind::Batch && told != Some(header.topic) {
                    told = Some(header.topic);
                    state.evicted(header.topic, frame.lsn);
                }
            }
        }
    }

    pub(crate) fn note_unsealed(&self) {
        let tail = lock(&self.tail);
        let (unsealed, log) = (tail.unsealed_memory_bytes(), tail.unsealed_log_bytes());
        drop(tail);
        self.unsealed.store(unsealed, Ordering::Release);
        self.unsealed_log.store(log, Ordering::Release);
    }
}

/// Names for blobs in the making, and their removal if they come to nothing: a full disk
/// would else be filled further by each try. A name is never given twice.
pub(crate) struct Fresh<'a> {
    blobs: &'a dyn Blobs,
    names: Vec<String>,
}

impl<'a> Fresh<'a> {
    pub(crate) fn new(blobs: &'a dyn Blobs) -> Self {
        Self { blobs, names: Vec::new() }
    }

    pub(crate) fn segment(&mut self, manifest: &mut Manifest) -> String {
        let name = next_name(SEGMENT_PREFIX, manifest);
        self.names.push(format!("{name}.data"));
        self.names.push(format!("{name}.index"));
        name
    }

    fn checkpoint(&mut self, manifest: &mut Manifest) -> String {
        let name = next_name(CHECKPOINT_PREFIX, manifest);
        self.names.push(name.clone());
        self.names.push(copy_name(&name));
        name
    }

    /// A manifest names them now, or may.
    fn keep(mut self) {
        self.names.clear();
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| delete(self.blobs, name));
    }
}

fn next_name(prefix: &str, manifest: &mut Manifest) -> String {
    let name = format!("{prefix}{:020}", manifest.next_name);
    manifest.next_name += 1;
    name
}

/// The entries of a frame, with where each begins and ends.
pub(crate) fn entries(
    bytes: &Bytes,
) -> impl Iterator<Item = (EntryHeader, std::ops::Range<usize>)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (header, len) = EntryHeader::read(&bytes[at..]).ok()?;
        let range = at..at + len;
        at += len;
        Some((header, range))
    })
}

fn sorted_batches(frames: &[TailFrame]) -> Vec<(TopicId, Seq, Bytes)> {
    let mut batches = Vec::new();
    for frame in frames {
        for (header, range) in entries(&frame.bytes) {
            if header.kind == EntryKind::Batch {
                batches.push((header.topic, header.seq, frame.bytes.slice(range)));
            }
        }
    }
    batches.sort_by_key(|(topic, seq, _)| (*topic, *seq));
    batches
}
