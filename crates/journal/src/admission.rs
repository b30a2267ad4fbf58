//! Whether there is room for another append.
//!
//! The rule: what is let in can be written. An append is let in if it and all before it fit the
//! log's files, or the disk has room for the files that the writer would have to make; messages
//! only if the disk also keeps enough to write what is in no segment yet once more, since only
//! then the log can be trimmed. What does not fit is refused before anything happened.
//!
//! Entries that free room may use what is kept for them when there is no other.
//!
//! Nothing here waits, since an append may begin within any call of the disk. It only
//! looks at numbers; files are made by the writer in its turn, and by the keeper ahead of need. If
//! the system refused the last one, for want of file descriptors for instance, only what fits the
//! files that are there is let in until one could be made.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::BeginError;
use crate::frame::extent;
use crate::fs::is_full;
use crate::gather::Gather;
use crate::journal::Inner;
use crate::marks::lock;

/// The share of the reserve, one in so many, that may be written to the log before it is looked
/// again how much the disk has left.
const LOOK_SHARE: u64 = 4;

/// What an append is for, which decides about the room it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Messages, which become part of a segment.
    Messages,
    /// Other entries.
    Notes,
    /// Entries that free room.
    Freeing,
}

/// Why the last file of the log could not be made.
#[derive(Clone, Debug)]
struct Held {
    why: Arc<str>,
    /// If the disk was full: how many bytes it had left. With more, another may succeed.
    full_at: Option<u64>,
}

/// What is known about room.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Bytes of the largest append that was refused for want of room; zero if there is room.
    refused: AtomicUsize,
    held: Mutex<Option<Held>>,
    /// Whether `held` has something.
    is_held: AtomicBool,
    /// Bytes that the disk had left when it was last looked.
    free_bytes: AtomicU64,
    /// Bytes written to the log since the opening.
    written: AtomicU64,
    /// Something died since it was last tried to write out what is in memory.
    died: AtomicBool,
}

impl Admission {
    pub(crate) fn new() -> Self {
        Self {
            refused: AtomicUsize::new(0),
            held: Mutex::default(),
            is_held: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            written: AtomicU64::new(0),
            died: AtomicBool::new(false),
        }
    }

    pub(crate) fn note_dead(&self) {
        self.died.store(true, Ordering::Release);
    }

    /// Whether another file of the log may be made, as far as is known.
    fn may_grow(&self) -> bool {
        if !self.is_held.load(Ordering::Acquire) {
            return true;
        }
        let free = self.free_bytes.load(Ordering::Acquire);
        lock(&self.held).as_ref().is_none_or(|held| held.full_at.is_some_and(|at| free > at))
    }
}

impl Inner {
    /// Whether the log takes no more, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.blocked.load(Ordering::Acquire) || self.is_stuck()
    }

    /// Whether appends are refused for want of room.
    pub(crate) fn is_stuck(&self) -> bool {
        self.admission.refused.load(Ordering::Acquire) > 0
    }

    /// The gathering frame if it has room for an append of so many bytes, and whether that is in
    /// what is kept for entries that free room.
    pub(crate) fn admit(
        &self,
        bytes: usize,
        to: Use,
    ) -> Result<(MutexGuard<'_, Gather>, bool), BeginError> {
        // What frees room takes the usual one first.
        let usual = if to == Use::Freeing { Use::Notes } else { to };
        let mut gather = lock(&self.gather);
        if self.has_room(&gather, bytes, usual) {
            return Ok((gather, false));
        }
        drop(gather);
        self.look_at_disk();
        gather = lock(&self.gather);
        if self.has_room(&gather, bytes, usual) {
            return Ok((gather, false));
        }
        if usual != to && self.has_room(&gather, bytes, to) {
            return Ok((gather, true));
        }
        drop(gather);
        Err(self.no_room(bytes))
    }

    /// Whether the log and the disk have room for so many bytes more.
    fn has_room(&self, gather: &Gather, bytes: usize, to: Use) -> bool {
        let Some(prepare) = &self.prepare else { return true };
        let (waiting, frames) = gather.unwritten();
        let messages = if to == Use::Messages { bytes } else { 0 };
        let unsealed = self.unsealed.load(Ordering::Acquire) + (waiting + messages) as u64;
        let keep = if to == Use::Freeing { 0 } else { self.keep_free(unsealed) };
        let free = self.free_bytes();
        if to == Use::Messages && free < keep {
            return false;
        }
        // Mostly all of it fits the file that is written; then this is enough.
        let at_most = (waiting + bytes) as u64 + (frames as u64 + 1) * extent(0);
        if at_most <= prepare.left() {
            return true;
        }
        let growth = prepare.growth(&mut gather.wanted(bytes, to == Use::Freeing));
        growth == 0 || (self.admission.may_grow() && free >= growth.saturating_add(keep))
    }

    /// Bytes that the disk must have left so that `unsealed` bytes can become a segment with its
    /// index, with a checkpoint and a manifest.
    fn keep_free(&self, unsealed: u64) -> u64 {
        // It is written twice.
        let checkpoint = 2 * self.checkpoint_bytes.load(Ordering::Relaxed);
        let segment = unsealed.saturating_add(unsealed / 2);
        segment.saturating_add(checkpoint).saturating_add(self.options.reserve_bytes)
    }

    /// Why an append is refused for which there is no room.
    fn no_room(&self, bytes: usize) -> BeginError {
        let held = lock(&self.admission.held).clone().filter(|held| held.full_at.is_none());
        if self.admission.refused.fetch_max(bytes.max(1), Ordering::AcqRel) == 0 {
            match &held {
                Some(held) => tracing::warn!(why = %held.why, "the log cannot take more room"),
                None => tracing::warn!("the disk is full: publishing waits for room"),
            }
        }
        held.map_or(BeginError::Full, |held| BeginError::Held { why: held.why })
    }

    /// Looks again whether there is room for what was refused.
    pub(crate) fn look_for_room(&self) {
        let refused = self.admission.refused.load(Ordering::Acquire);
        if refused == 0 {
            return;
        }
        self.look_at_disk();
        if self.has_room(&lock(&self.gather), refused, Use::Messages) {
            self.admission.refused.store(0, Ordering::Release);
            tracing::info!("there is room again: publishing goes on");
        }
    }

    /// Makes room ahead of need, so that no append has to wait for it.
    pub(crate) fn prepare_room(&self) {
        let Some(prepare) = &self.prepare else { return };
        let unsealed = self.unsealed.load(Ordering::Acquire);
        let waiting = lock(&self.gather).unwritten().0 as u64;
        let prepared = prepare.prepare(self.keep_free(unsealed + waiting));
        self.note_held(prepared.err().as_ref());
        self.look_at_disk();
    }

    /// Notes whether a file of the log could be made.
    pub(crate) fn note_held(&self, error: Option<&std::io::Error>) {
        if error.is_none() && !self.admission.is_held.load(Ordering::Acquire) {
            return;
        }
        let free = || self.prepare.as_ref().map_or(u64::MAX, |prepare| prepare.free_bytes());
        let held = error.map(|error| Held {
            why: Arc::from(error.to_string()),
            full_at: is_full(error).then(free),
        });
        let mut now = lock(&self.admission.held);
        if let (None, Some(held)) = (&*now, &held) {
            tracing::debug!(why = %held.why, "a file of the log cannot be made");
        }
        self.admission.is_held.store(held.is_some(), Ordering::Release);
        *now = held;
    }

    /// What may help when there is no room: the log keeps no files that it does not use.
    pub(crate) fn give_spare_room(&self) {
        let Some(prepare) = &self.prepare else { return };
        let gather = lock(&self.gather);
        // What is let in may rely on them.
        if gather.is_idle() {
            prepare.shrink();
        }
        drop(gather);
        self.look_at_disk();
    }

    /// Whether the disk has not even room for another segment of the usual size: then whatever
    /// frees some is worth its while.
    pub(crate) fn is_tight(&self) -> bool {
        let unsealed = self.unsealed.load(Ordering::Acquire);
        self.is_stuck()
            || self.free_bytes() < self.keep_free(unsealed.saturating_add(self.options.seal_bytes))
    }

    /// Whether writing out what is in memory only may help: the log takes no more, or soon will
    /// not, and its room is not free before.
    pub(crate) fn is_seal_of_use(&self) -> bool {
        let unsealed = lock(&self.tail).unsealed_log_bytes();
        // Not for less than what is written with it.
        let worth = self.options.reserve_bytes.max(self.checkpoint_bytes.load(Ordering::Relaxed));
        let soon = unsealed >= worth && self.is_tight();
        if unsealed == 0 || !(self.is_stuck() || soon) {
            return false;
        }
        let needed = self.keep_free(self.unsealed.load(Ordering::Acquire));
        let fits = self.free_bytes() >= needed - self.options.reserve_bytes / 2;
        // What died may make it smaller than it looks.
        self.admission.died.swap(false, Ordering::AcqRel) || fits
    }

    /// Notes that the log has grown by so many bytes.
    pub(crate) fn note_log_bytes(&self, bytes: u64) {
        let before = self.admission.written.fetch_add(bytes, Ordering::Relaxed);
        let step = (self.options.reserve_bytes / LOOK_SHARE).max(1);
        if before / step != (before + bytes) / step {
            self.look_at_disk();
        }
    }

    /// Bytes written to the log since the opening.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.admission.written.load(Ordering::Relaxed)
    }

    /// Bytes that the disk had left when it was last looked.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.admission.free_bytes.load(Ordering::Acquire)
    }

    fn look_at_disk(&self) {
        if let Some(prepare) = &self.prepare {
            self.admission.free_bytes.store(prepare.free_bytes(), Ordering::Release);
        }
    }
}
