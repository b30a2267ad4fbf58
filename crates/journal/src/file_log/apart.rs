//! Flushing what was only written, while the writer goes on.
//!
//! Two rules. A file is flushed by one at a time, because the system tells of a failed write once
//! only: of two flushes, the other would succeed. And a file that could not be flushed can never
//! be flushed again, by any thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::LogFile;
use crate::fs::{is_full, is_read_only};
use crate::log::{AppendError, FlushApart, Lsn};
use crate::marks::lock;

impl LogFile {
    /// Makes what was written to it durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.alone(|_| true, || self.file.sync())
    }

    /// Writes so that it needs no flush. What was refused for want of room can be undone.
    pub(super) fn write_durable_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let is_fatal = |error: &io::Error| !is_full(error) && !is_read_only(error);
        self.alone(is_fatal, || self.file.write_durable_at(bytes, offset))
    }

    fn alone(
        &self,
        is_fatal: impl FnOnce(&io::Error) -> bool,
        flush: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut is_lost = lock(&self.is_lost);
        if *is_lost {
            return Err(io::Error::other("an earlier flush of this file failed"));
        }
        // Also if it panics.
        *is_lost = true;
        let done = flush();
        *is_lost = done.as_ref().is_err_and(is_fatal);
        done
    }
}

/// What was written and not flushed at one moment.
#[derive(Debug)]
pub(super) struct Apart {
    pub(super) files: Vec<Arc<LogFile>>,
    /// The last frame of that.
    pub(super) last: Lsn,
    /// Where the writer looks for the last frame that was flushed apart.
    pub(super) flushed: Arc<AtomicU64>,
}

impl FlushApart for Apart {
    fn flush(&self) -> Result<(), AppendError> {
        self.files.iter().try_for_each(|file| file.sync()).map_err(AppendError::Unknown)?;
        self.flushed.fetch_max(self.last.0, Ordering::AcqRel);
        Ok(())
    }
}
