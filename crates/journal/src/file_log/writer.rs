//! Appends frames to the files of a log.
//!
//! Each frame is one write at the next block boundary of the current file, or at the
//! beginning of another when it does not fit. The rule: `next`, `link` and the place move
//! only after the write succeeded; and after any failure whose effect is not known, the
//! writer is dead. The first frame of a file is flushed before a second one is written to
//! it, so that after a power loss too the beginning of a file tells of its last use.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{
    LogFile, Unsettled,
    apart::Apart,
    room::{Preparer, Room, zeros},
};
use crate::{
    frame::{BLOCK_BYTES, HEADER_BYTES, Header, Secret, extent},
    fs::{is_full, is_out_of_files, is_read_only},
    log::{AppendError, FlushApart, LogError, LogWriter, Lsn, Prepare},
    pages::Pages,
};

/// Frames up to this many bytes, padding included, are written and flushed in one step.
pub(super) const AT_ONCE_BYTES_MAX: usize = 64 * 1024;

/// A file that holds frames that are needed.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) file: Arc<LogFile>,
    /// The last frame in it; [`Lsn::NONE`] before the first.
    pub(super) last: Lsn,
    /// It was kept for frames that free room, and takes no others.
    pub(super) is_reserve: bool,
}

/// How a frame is written.
#[derive(Clone, Copy, Default)]
struct How {
    /// So that it needs no flush.
    durable: bool,
    /// It may use the reserve.
    freeing: bool,
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) room: Arc<Room>,
    /// What its frames carry.
    pub(super) secret: Secret,
    pub(super) term: u64,
    pub(super) next: Lsn,
    pub(super) flushed: Lsn,
    /// The CRC of the last frame's header.
    pub(super) link: u32,
    /// In the order of their frames; the last one is being written.
    pub(super) used: VecDeque<Used>,
    /// Where in the last file the next frame goes.
    pub(super) offset: u64,
    /// Written to since the last flush.
    pub(super) dirty: Vec<Arc<LogFile>>,
    /// The last frame that was flushed apart from this writer.
    pub(super) flushed_apart: Arc<AtomicU64>,
    /// The last file holds one frame, and that was not flushed yet.
    pub(super) begun: bool,
    /// The first frame that is kept, as the reader must know.
    pub(super) first: Arc<AtomicU64>,
    /// Where a frame is put together that is written and flushed in one step.
    pub(super) pages: Pages,
    /// Set by a failure after which it is not known what the files hold.
    pub(super) failed: bool,
    /// What taking over found and was not acted on yet.
    pub(super) unsettled: Option<Unsettled>,
}

impl Writer {
    fn alive(&self) -> Result<(), AppendError> {
        if self.failed {
            let why = "an earlier write or flush of this log failed";
            return Err(AppendError::Unknown(io::Error::other(why)));
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) -> AppendError {
        self.failed = true;
        AppendError::Unknown(error)
    }

    /// The file that has so many bytes left at `self.offset`. If there is none for want of room
    /// or descriptors, the frame can be tried again.
    fn file_with(&mut self, bytes: u64, freeing: bool) -> Result<Arc<LogFile>, AppendError> {
        if let Some(used) = self.used.back()
            && self.offset + bytes <= used.file.bytes
            && (freeing || !used.is_reserve)
        {
            return Ok(Arc::clone(&used.file));
        }
        let reserve = || if freeing { self.room.take_reserve(bytes) } else { None };
        let (file, is_reserve) = if let Some(file) = self.room.take_free(bytes) {
            (file, false)
        } else if let Some(file) = reserve() {
            (file, true)
        } else {
            let made = self.room.make_now(bytes);
            let file = made.map_err(|error| match () {
                () if is_full(&error) => AppendError::Full,
                () if is_out_of_files(&error) => AppendError::Held(error),
                () if is_read_only(&error) => AppendError::ReadOnly,
                () => self.fail(error),
            })?;
            (file, false)
        };
        // One that was begun for a frame that then failed, and is too small for this one.
        if let Some(unused) = self.used.pop_back_if(|used| used.last == Lsn::NONE) {
            self.room.give_back(unused.file);
        }
        self.used.push_back(Used { file: Arc::clone(&file), last: Lsn::NONE, is_reserve });
        self.offset = 0;
        self.note_left();
        Ok(file)
    }

    /// Tells those who ask for room how much is left of the last file.
    pub(super) fn note_left(&self) {
        if let Some(used) = self.used.back() {
            self.room.note_left(used.file.bytes.saturating_sub(self.offset), used.is_reserve);
        }
    }

    /// After a write for which there was no room: a part of the frame may be there, even
    /// all of it but the padding. It must not be found by the next one to open, also not
    /// after a power loss, before the answer is that nothing was appended.
    fn undo(&mut self, file: &LogFile) -> AppendError {
        let zeroed = file.file.write_all_at(&[zeros(BLOCK_BYTES)], self.offset);
        match zeroed.and_then(|()| file.sync()) {
            Ok(()) => AppendError::Full,
            Err(error) => self.fail(error),
        }
    }

    /// Writes a frame at its place.
    fn write(&mut self, at: Lsn, frame: &Bytes, how: How) -> Result<(), AppendError> {
        self.alive()?;
        self.settle().map_err(|error| self.fail(io::Error::other(error)))?;
        if at != self.next {
            return Err(AppendError::WrongPlace { next: self.next });
        }
        let max = self.frame_bytes_max();
        let payload_bytes = match u32::try_from(frame.len()) {
            Ok(bytes) if frame.len() <= max => bytes,
            _ => return Err(AppendError::TooLarge { max }),
        };
        self.note_apart();
        let bytes = extent(frame.len());
        let file = self.file_with(bytes, how.freeing)?;
        if self.begun && self.offset > 0 {
            self.begun = false;
            file.sync().map_err(|error| self.fail(error))?;
        }
        let header = Header {
            payload_bytes,
            payload_crc: crc32c::crc32c(frame),
            lsn: at,
            term: self.term,
            flushed: self.flushed,
            mark: self.secret.0,
            link: self.link,
        };
        let (head, crc) = header.encode();
        let pad = zeros(bytes - (HEADER_BYTES + frame.len()) as u64);
        let parts: [&[u8]; 3] = [&head, frame, pad];
        let written = if how.durable {
            self.pages.clear();
            for part in parts {
                self.pages.fill(part);
            }
            file.write_durable_at(self.pages.bytes(), self.offset)
        } else {
            file.file.write_all_at(&parts, self.offset)
        };
        match written {
            Ok(()) if how.durable => {}
            Ok(()) => {
                self.begun = self.offset == 0;
                self.mark_dirty(file);
            }
            Err(error) if is_full(&error) => return Err(self.undo(&file)),
            Err(error) if is_read_only(&error) => return Err(AppendError::ReadOnly),
            Err(error) => return Err(self.fail(error)),
        }
        self.offset += bytes;
        self.link = crc;
        self.next = at.next();
        let used = self.used.back_mut().expect("the file just written is used");
        used.last = at;
        self.note_left();
        Ok(())
    }

    fn write_flushed(&mut self, at: Lsn, frame: &Bytes, freeing: bool) -> Result<(), AppendError> {
        // What was only written before must be flushed too, and a copy must be worth it.
        let durable = self.dirty.is_empty() && extent(frame.len()) <= AT_ONCE_BYTES_MAX as u64;
        self.write(at, frame, How { durable, freeing })?;
        self.flush()
    }

    /// Takes note of what was flushed apart.
    fn note_apart(&mut self) {
        let last = Lsn(self.flushed_apart.load(Ordering::Acquire));
        self.flushed = self.flushed.max(last);
        if last == self.next.before() {
            self.dirty.clear();
            self.begun = false;
        }
    }

    fn mark_dirty(&mut self, file: Arc<LogFile>) {
        // Nearly always the same one as before.
        if !self.dirty.iter().any(|dirty| Arc::ptr_eq(dirty, &file)) {
            self.dirty.push(file);
        }
    }
}

impl LogWriter for Writer {
    fn next(&self) -> Lsn {
        self.next
    }

    fn frame_bytes_max(&self) -> usize {
        self.room.options().frame_bytes_max()
    }

    fn is_near(&self) -> bool {
        true
    }

    fn settle(&mut self) -> Result<(), LogError> {
        if let Some(unsettled) = &self.unsettled {
            if let Some(lock) = unsettled.settle()? {
                self.room.hold(lock);
            }
            self.unsettled = None;
        }
        Ok(())
    }

    fn append(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.write(at, frame, How::default())
    }

    fn append_flushed(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.write_flushed(at, frame, false)
    }

    fn append_freeing(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.write_flushed(at, frame, true)
    }

    fn flush(&mut self) -> Result<(), AppendError> {
        self.alive()?;
        for file in std::mem::take(&mut self.dirty) {
            file.sync().map_err(|error| self.fail(error))?;
        }
        self.flushed = self.next.before();
        self.begun = false;
        Ok(())
    }

    fn flush_apart(&self) -> Option<Box<dyn FlushApart>> {
        // A file whose flush failed is not among the dirty ones any more.
        self.alive().ok()?;
        let (files, flushed) = (self.dirty.clone(), Arc::clone(&self.flushed_apart));
        Some(Box::new(Apart { files, last: self.next.before(), flushed }))
    }

    fn trim(&mut self, below: Lsn) -> Result<(), AppendError> {
        self.alive()?;
        self.note_apart();
        if below > self.next {
            return Err(AppendError::WrongPlace { next: self.next });
        }
        if below.before() > self.flushed {
            self.flush()?;
        }
        self.first.fetch_max(below.0, Ordering::Release);
        // The frame just below is kept: what follows must link to it, and by that an
        // opener tells it from older remains.
        let anchor = below.before();
        while self.used.len() > 1 && self.used.front().is_some_and(|used| used.last < anchor) {
            if let Some(used) = self.used.pop_front() {
                self.room.give_back(used.file);
            }
        }
        Ok(())
    }

    fn preparer(&self) -> Option<Arc<dyn Prepare>> {
        Some(Arc::new(Preparer::new(&self.room)))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.room.close();
    }
}
