//! The one who writes: takes what has gathered, appends it, flushes it, raises the marks.
//!
//! While one turn flushes, the next frame gathers: group commit. The order inside a turn is
//! fixed: write, flush if anything in it asked for that, show the entries to their sinks,
//! raise the marks (acks go out), wake the readers. A failed write or flush ends the
//! journal: after it the kernel may have dropped what it could not write, so a second try
//! could succeed without the data. A full disk is not a failure: nothing was written, and the
//! same frames are tried again. It is rare too, since what is let in has room in files that
//! are there (see `admission.rs`); but a disk that copies on write may need more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::{Durability, Position};

use crate::error::Failure;
use crate::frame::extent;
use crate::gather::Frame;
use crate::journal::Inner;
use crate::log::{AppendError, LogWriter, Lsn};
use crate::marks::{Turn, lock};
use crate::open::JUMP_POSITIONS;

/// Positions that may be visible without being flushed. Half a jump: the other half is for
/// those that were given and are not written yet (see [`crate::journal::Journal::begin`]).
const UNFLUSHED_POSITIONS_MAX: u64 = JUMP_POSITIONS / 2;

/// Tries to write the same frames, one after the other with a rest between, before those who
/// wait for them are answered that it is not known when.
const BLOCKED_TRIES_MAX: u64 = 100;

impl Inner {
    /// One turn. Only the leader calls it (see [`crate::marks`]).
    pub(crate) fn turn(&self) -> Turn {
        if self.marks.failure().is_some() {
            return Turn::Done;
        }
        let turned = self.write_gathered();
        if self.marks.awaits_flush() {
            // Of what was written before, by a ticket that put nothing into this turn.
            self.flush_log();
        }
        self.look_for_room();
        // Also when nothing had gathered: room may have been made just before an append
        // began to wait for it. Not when there is none, or it would be woken for nothing.
        let unsealed = self.unsealed.load(Ordering::Acquire);
        if turned == Turn::Done && unsealed <= self.options.unsealed_bytes_max {
            self.marks.room_made();
        }
        turned
    }

    /// A turn of the flusher's thread, which goes on by itself as long as publishes come that
    /// are to be flushed: those who wait need not wake it again.
    pub(crate) fn turn_of_flusher(&self) -> Turn {
        match self.turn_paced() {
            Turn::Done if lock(&self.gather).wants_flush() => Turn::More,
            turned => turned,
        }
    }

    /// A turn of those who can rest after it.
    pub(crate) fn turn_paced(&self) -> Turn {
        let (before, began) = (self.log_bytes(), (self.monotonic)());
        match self.turn() {
            Turn::Done => {
                let written = self.log_bytes() - before;
                let took = (self.monotonic)().saturating_sub(began);
                // After an append the next one waits a little, so that more gathers for it.
                let linger = match written {
                    0 => Duration::ZERO,
                    _ => self.linger.saturating_sub(took),
                };
                match self.rest_after(written).max(linger) {
                    rest if rest.is_zero() => Turn::Done,
                    rest => Turn::Rest(rest),
                }
            }
            turned => turned,
        }
    }

    fn write_gathered(&self) -> Turn {
        let mut writer = lock(&self.writer);
        let mut frames = lock(&self.gather).take();
        if frames.is_empty() {
            return Turn::Done;
        }
        let began = (self.monotonic)();
        let at_once = frames.len() == 1 && self.must_flush(frames.make_contiguous());
        let (written, stop) = append_all(&mut **writer, &mut frames, at_once);
        let last_waiting = frames.back().map(|frame| frame.lsn);
        lock(&self.gather).put_back(frames);
        self.note_log_bytes(written.iter().map(|frame| extent(frame.bytes.len())).sum());
        let blocked = stop.as_ref().is_some_and(is_passing);
        if let Some(AppendError::Held(error)) = &stop {
            self.note_held(Some(error));
        }
        self.note_unavailable(stop.as_ref());
        self.note_blocked(blocked.then_some(last_waiting).flatten(), stop.as_ref());
        if let Some(last) = written.last() {
            let flushed = if self.must_flush(&written) {
                if let Err(error) = writer.flush() {
                    self.fail(error);
                    return Turn::Done;
                }
                self.flushed_position.store(last.last.0, Ordering::Release);
                let took = (self.monotonic)().saturating_sub(began);
                self.stats.note_flush(took);
                let slow = self.options.slow_flush;
                if took >= slow && !slow.is_zero() {
                    let (ms, frames) = (took.as_millis() as u64, written.len());
                    tracing::warn!(ms, frames, "a flush was slow; publishers waited for it");
                }
                last.lsn
            } else {
                Lsn::NONE
            };
            drop(writer);
            self.settle(&written, last.lsn, flushed);
        }
        match stop {
            None => Turn::Done,
            Some(error) if is_passing(&error) => Turn::Full,
            Some(error) => {
                self.fail(error);
                Turn::Done
            }
        }
    }

    /// Notes whether the disk refused what was let in. When it does so for long, those who wait
    /// for frames through `last` are answered.
    fn note_blocked(&self, last: Option<Lsn>, stop: Option<&AppendError>) {
        self.blocked.store(last.is_some(), Ordering::Release);
        let Some(last) = last else {
            self.blocked_tries.store(0, Ordering::Relaxed);
            return;
        };
        let tries = self.blocked_tries.fetch_add(1, Ordering::Relaxed) + 1;
        // A log that does not answer has tried for long by itself.
        if tries >= BLOCKED_TRIES_MAX || matches!(stop, Some(AppendError::Unavailable(_))) {
            self.marks.give_up(last);
        }
    }

    /// Whether a flush was asked for, or so many positions would be visible without
    /// one that a crash could take back more than a jump skips.
    fn must_flush(&self, written: &[Frame]) -> bool {
        let flushed = Position(self.flushed_position.load(Ordering::Acquire));
        let far = |frame: &Frame| frame.last.distance(flushed) > UNFLUSHED_POSITIONS_MAX;
        written.iter().any(|frame| frame.required == Durability::Flushed || far(frame))
    }

    fn settle(&self, written: &[Frame], last: Lsn, flushed: Lsn) {
        let mut tail = lock(&self.tail);
        for frame in written {
            tail.push_settled(frame);
            self.pins.note(frame.lsn, &frame.bytes);
            self.stats.note_frame(frame.bytes.len());
        }
        drop(tail);
        self.note_unsealed();
        let mut wakers = Vec::new();
        written.iter().for_each(|frame| frame.settle(&mut wakers));
        self.pattern_readers_to_wake(&mut wakers);
        self.marks.raise(last, flushed);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// Writes what has gathered and flushes what is written so far, whether or not it was asked
    /// for it. Those who only write do not wait for the flush.
    pub(crate) fn flush_written(&self) {
        self.marks.take_turn(|| self.turn());
        // In this order: what the marks tell of is in the tail, and what is there is in the log.
        let written = self.marks.written();
        let last = lock(&self.tail).last();
        if self.marks.failure().is_some() || self.marks.flushed() >= written {
            return;
        }
        let writer = lock(&self.writer);
        let apart = writer.flush_apart();
        drop(writer);
        let flushed = match apart {
            Some(apart) => apart.flush(),
            None => lock(&self.writer).flush(),
        };
        match flushed {
            Ok(()) => {
                self.flushed_position.fetch_max(last.0, Ordering::AcqRel);
                self.marks.raise(written, written);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Flushes what is written so far. Only the leader calls it.
    pub(crate) fn flush_log(&self) {
        let written = self.marks.written();
        if self.marks.failure().is_some() || self.marks.flushed() >= written {
            return;
        }
        let last = lock(&self.tail).last();
        match lock(&self.writer).flush() {
            Ok(()) => {
                self.flushed_position.fetch_max(last.0, Ordering::AcqRel);
                self.marks.raise(written, written);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Tells, once each time, that what keeps the log does not answer, and that it does again.
    fn note_unavailable(&self, stop: Option<&AppendError>) {
        let now = match stop {
            Some(AppendError::Unavailable(error)) => Some(Arc::from(error.to_string())),
            _ => None,
        };
        let mut unavailable = lock(&self.unavailable);
        match (&*unavailable, &now) {
            (None, Some(error)) => tracing::warn!(
                %error, "what keeps the log does not answer; publishes wait until it does"
            ),
            (Some(_), None) => tracing::info!("what keeps the log answers again"),
            _ => {}
        }
        *unavailable = now;
    }

    /// Asks the log whether this journal still owns it.
    pub(crate) fn confirm(&self) -> Result<(), AppendError> {
        let confirmed = lock(&self.writer).confirm();
        if let Err(AppendError::Fenced { next }) = confirmed {
            self.fail(AppendError::Fenced { next });
        }
        confirmed
    }

    pub(crate) fn fail(&self, error: AppendError) {
        let failure = match error {
            AppendError::Fenced { next } => Failure::Fenced { next },
            other => Failure::Poisoned { why: Arc::from(other.to_string()) },
        };
        tracing::error!(%failure, "the journal takes no more appends");
        self.marks.fail(failure);
    }
}

/// Whether the same frames are to be tried again.
fn is_passing(error: &AppendError) -> bool {
    matches!(error, AppendError::Full | AppendError::Held(_) | AppendError::Unavailable(_))
}

/// Appends frames, `flushed` or not, until one does not go; those that did are returned, the
/// rest stays.
fn append_all(
    writer: &mut dyn LogWriter,
    frames: &mut VecDeque<Frame>,
    flushed: bool,
) -> (Vec<Frame>, Option<AppendError>) {
    let mut written = Vec::with_capacity(frames.len());
    while let Some(first) = frames.front() {
        let at = first.lsn;
        let (count, done) = if first.freeing {
            let done = writer.append_freeing(at, &first.bytes);
            (usize::from(done.is_ok()), done)
        } else if flushed {
            let done = writer.append_flushed(at, &first.bytes);
            (usize::from(done.is_ok()), done)
        } else {
            let run = frames.iter().take_while(|frame| !frame.freeing);
            let run: Vec<Bytes> = run.map(|frame| frame.bytes.clone()).collect();
            writer.append_all(at, &run, false)
        };
        written.extend(frames.drain(..count));
        if let Err(error) = done {
            return (written, Some(error));
        }
    }
    (written, None)
}
