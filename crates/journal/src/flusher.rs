//! The one who writes: takes what has gathered, appends it, flushes it, raises the marks.
//!
//! While one turn flushes, the next frame gathers: group commit. The order inside a turn is
//! fixed: write, flush if anything in it asked for that, show the entries to their sinks,
//! raise the marks (acks go out), wake the readers. A failed write or flush ends the
//! journal: after it the kernel may have dropped what it could not write, so a second try
//! could succeed without the data. A full disk is no failure: nothing was written, and the
//! same frames are tried again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gapless_core::Durability;

use crate::error::Failure;
use crate::gather::Frame;
use crate::journal::Inner;
use crate::log::{AppendError, LogWriter, Lsn};
use crate::marks::lock;

impl Inner {
    /// One turn. Only the leader calls it (see [`crate::marks`]).
    pub(crate) fn turn(&self) {
        let mut writer = lock(&self.writer);
        let mut frames = lock(&self.gather).take();
        if frames.is_empty() {
            return;
        }
        let began = (self.monotonic)();
        let (written, stop) = append_all(&mut **writer, &mut frames);
        if !frames.is_empty() {
            lock(&self.gather).put_back(frames);
        }
        self.full.store(matches!(stop, Some(AppendError::Full)), Ordering::Release);
        if let Some(last) = written.last() {
            let last = last.lsn;
            let required = written.iter().map(|frame| frame.required).max();
            let flushed = if required == Some(Durability::Flushed) {
                if let Err(error) = writer.flush() {
                    return self.fail(error);
                }
                self.stats.note_flush((self.monotonic)().saturating_sub(began));
                last
            } else {
                Lsn(0)
            };
            drop(writer);
            self.settle(&written, last, flushed);
        }
        match stop {
            None | Some(AppendError::Full) => {}
            Some(error) => self.fail(error),
        }
    }

    fn settle(&self, written: &[Frame], last: Lsn, flushed: Lsn) {
        let mut tail = lock(&self.tail);
        for frame in written {
            tail.push_settled(frame);
            self.stats.note_frame(frame.bytes.len());
        }
        drop(tail);
        let mut wakers = Vec::new();
        written.iter().for_each(|frame| frame.settle(&mut wakers));
        self.pattern_readers_to_wake(&mut wakers);
        self.marks.raise(last, flushed);
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.marks.room_made();
    }

    /// Flushes what is written so far, whether or not anybody asked for it.
    pub(crate) fn flush_written(&self) {
        self.marks.take_turn(|| {
            self.turn();
            let written = self.marks.written();
            if self.marks.failure().is_some() || self.marks.flushed() >= written {
                return;
            }
            match lock(&self.writer).flush() {
                Ok(()) => self.marks.raise(written, written),
                Err(error) => self.fail(error),
            }
        });
    }

    fn fail(&self, error: AppendError) {
        let failure = match error {
            AppendError::Fenced { next } => Failure::Fenced { next },
            other => Failure::Poisoned { why: Arc::from(other.to_string()) },
        };
        tracing::error!(%failure, "the journal takes no more appends");
        self.marks.fail(failure);
    }
}

/// Appends frames until one does not go; those that did are returned, the rest stays.
fn append_all(
    writer: &mut dyn LogWriter,
    frames: &mut VecDeque<Frame>,
) -> (Vec<Frame>, Option<AppendError>) {
    let mut written = Vec::with_capacity(frames.len());
    while let Some(frame) = frames.pop_front() {
        match writer.append(frame.lsn, &frame.bytes) {
            Ok(()) => written.push(frame),
            Err(error) => {
                frames.push_front(frame);
                return (written, Some(error));
            }
        }
    }
    (written, None)
}
