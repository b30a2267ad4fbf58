//! Whether there is room for another append.
//!
//! The rule: what is let in can be written. So an append is let in only if the log's files have
//! room for it and for all before it, without making another; and if the disk has room left to
//! write what is in no segment yet once more, since only then the log can be trimmed. What does
//! not fit is refused before anything happened, and the next turn tries to make room.
//!
//! Entries that free room may use what is kept for them when there is no other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::BeginError;
use crate::frame::extent;
use crate::fs::is_full;
use crate::gather::Gather;
use crate::journal::Inner;
use crate::marks::{Turn, lock};

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

/// Why the log takes no more room.
#[derive(Clone, Debug)]
enum Stuck {
    Full,
    Held(Arc<str>),
}

/// What is known about room.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Bytes of the largest append that was refused since it was last tried to make room.
    wanted: AtomicUsize,
    /// The same since there was room.
    refused: AtomicUsize,
    /// Held by the one who makes room.
    growing: Mutex<()>,
    stuck: Mutex<Option<Stuck>>,
    /// Whether `stuck` has something.
    is_stuck: AtomicBool,
    /// Bytes that the disk had left when it was last looked.
    free_bytes: AtomicU64,
    /// Bytes written since.
    written: AtomicU64,
    /// Something died since it was last tried to write out what is in memory.
    died: AtomicBool,
}

impl Admission {
    pub(crate) fn new() -> Self {
        Self {
            wanted: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            growing: Mutex::default(),
            stuck: Mutex::default(),
            is_stuck: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            written: AtomicU64::new(0),
            died: AtomicBool::new(false),
        }
    }

    pub(crate) fn note_dead(&self) {
        self.died.store(true, Ordering::Release);
    }
}

impl Inner {
    /// Whether the disk is full, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
            || matches!(&*lock(&self.admission.stuck), Some(Stuck::Full))
    }

    /// Looks again whether there is room, after some may have been made.
    pub(crate) fn look_for_room(&self) {
        if self.is_stuck() {
            let refused = self.admission.refused.load(Ordering::Acquire).max(1);
            self.admission.wanted.fetch_max(refused, Ordering::AcqRel);
            self.marks.kick();
        }
    }

    /// Whether appends are refused for want of room.
    pub(crate) fn is_stuck(&self) -> bool {
        self.admission.is_stuck.load(Ordering::Acquire)
    }

    /// Whether the log and the disk have room for so many bytes more.
    pub(crate) fn has_room(&self, gather: &Gather, bytes: usize, to: Use) -> bool {
        let Some(prepare) = &self.prepare else { return true };
        let (waiting, frames) = gather.unwritten();
        if to == Use::Messages {
            let unsealed = self.unsealed.load(Ordering::Acquire) + (waiting + bytes) as u64;
            if self.free_bytes() < self.keep_free(unsealed) {
                return false;
            }
        }
        // Mostly all of it fits the file that is written; then this is enough.
        let at_most = (waiting + bytes) as u64 + (frames as u64 + 1) * extent(0);
        at_most <= prepare.left() || prepare.has_room(&mut gather.wanted(bytes, to == Use::Freeing))
    }

    /// Bytes that the disk must have left so that `unsealed` bytes can become a segment with its
    /// index, with a checkpoint and a manifest.
    fn keep_free(&self, unsealed: u64) -> u64 {
        // It is written twice.
        let checkpoint = 2 * self.checkpoint_bytes.load(Ordering::Relaxed);
        let segment = unsealed.saturating_add(unsealed / 2);
        segment.saturating_add(checkpoint).saturating_add(self.options.reserve_bytes)
    }

    /// What somebody is told for whom there is no room; the next turn tries to make some.
    pub(crate) fn no_room(&self, bytes: usize, waiting: u64) -> BeginError {
        self.admission.wanted.fetch_max(bytes.max(1), Ordering::AcqRel);
        self.admission.refused.fetch_max(bytes, Ordering::AcqRel);
        self.marks.kick();
        match &*lock(&self.admission.stuck) {
            None => BeginError::Busy { waiting },
            Some(Stuck::Full) => BeginError::Full,
            Some(Stuck::Held(why)) => BeginError::Held { why: Arc::clone(why) },
        }
    }

    /// Makes room if somebody was refused for want of it.
    pub(crate) fn make_wanted_room(&self) -> Turn {
        match self.admission.wanted.swap(0, Ordering::AcqRel) {
            0 => Turn::Done,
            bytes => self.make_room_for(bytes),
        }
    }

    /// Makes room for an append of so many bytes, if there is none.
    pub(crate) fn make_room_for(&self, bytes: usize) -> Turn {
        let _one_at_a_time = lock(&self.admission.growing);
        self.look_at_disk();
        if self.has_room(&lock(&self.gather), bytes, Use::Messages) {
            self.set_stuck(None);
            return Turn::Done;
        }
        match self.grow(bytes) {
            Ok(()) => {
                self.set_stuck(None);
                Turn::Done
            }
            Err(error) => {
                self.set_stuck(Some(&error));
                Turn::Full
            }
        }
    }

    /// Makes room for so many bytes, on the disk's conditions.
    pub(crate) fn grow(&self, bytes: usize) -> std::io::Result<()> {
        let Some(prepare) = &self.prepare else { return Ok(()) };
        let waiting = lock(&self.gather).unwritten().0;
        let unsealed = self.unsealed.load(Ordering::Acquire) + (waiting + bytes) as u64;
        prepare.grow(bytes, self.keep_free(unsealed))?;
        self.look_at_disk();
        Ok(())
    }

    /// Makes room ahead of need, so that no append has to wait for it.
    pub(crate) fn prepare_room(&self) {
        let Some(prepare) = &self.prepare else { return };
        let unsealed = self.unsealed.load(Ordering::Acquire);
        match prepare.prepare(self.keep_free(unsealed)) {
            Ok(_) => {}
            // Those who need it will say so.
            Err(error) if is_full(&error) => tracing::debug!("no room to make ahead of need"),
            Err(error) => tracing::warn!(%error, "cannot make room for the log ahead of need"),
        }
        self.look_at_disk();
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
        self.is_stuck() || self.free_bytes() < self.keep_free(unsealed + self.options.seal_bytes)
    }

    /// Whether writing out what is in memory only may help: the log takes no more, and its room
    /// is not free before.
    pub(crate) fn is_seal_of_use(&self) -> bool {
        if !self.is_stuck() || lock(&self.tail).unsealed_log_bytes() == 0 {
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

    /// Bytes that the disk had left when it was last looked.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.admission.free_bytes.load(Ordering::Acquire)
    }

    fn look_at_disk(&self) {
        if let Some(prepare) = &self.prepare {
            self.admission.free_bytes.store(prepare.free_bytes(), Ordering::Release);
        }
    }

    fn set_stuck(&self, error: Option<&std::io::Error>) {
        let now = error.map(|error| match is_full(error) {
            true => Stuck::Full,
            false => Stuck::Held(Arc::from(error.to_string())),
        });
        let mut stuck = lock(&self.admission.stuck);
        let changed = stuck.is_some() != now.is_some();
        if changed {
            match &now {
                Some(Stuck::Full) => tracing::warn!("the disk is full: publishing waits for room"),
                Some(Stuck::Held(why)) => tracing::warn!(%why, "the log cannot take more room"),
                None => tracing::info!("there is room again: publishing goes on"),
            }
        }
        if now.is_none() {
            self.admission.refused.store(0, Ordering::Release);
        }
        self.admission.is_stuck.store(now.is_some(), Ordering::Release);
        *stuck = now;
        drop(stuck);
        // Those who wait for room are let in, or told that there is none.
        self.marks.room_made();
    }
}
