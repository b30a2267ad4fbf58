//! Replays what was alive when the log was taken over.
//!
//! It knows from the scan where each frame is, and checks each once more as it reads it:
//! what it hands out is right, or it says that it is not. It holds no lock; once the
//! writer trims, what it has not read yet may be written over, which it also notices.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{
    LogFile, io_error,
    scan::{Analysis, Found, Scan},
};
use crate::{
    frame::{BLOCK_BYTES, HEADER_BYTES},
    log::{LogError, LogReader, Lsn, Visit},
};

#[derive(Debug)]
pub(super) struct Reader {
    files: Vec<Arc<LogFile>>,
    live: Vec<Found>,
    /// The number of the first in `live`.
    begin: Lsn,
    /// The first frame that the writer still keeps.
    kept: Arc<AtomicU64>,
}

impl Reader {
    pub(super) fn new(scan: &Scan, analysis: &Analysis, kept: Arc<AtomicU64>) -> Self {
        Self { files: scan.files.clone(), live: analysis.live.clone(), begin: analysis.first, kept }
    }

    fn check_kept(&self, lsn: Lsn) -> Result<(), LogError> {
        let first = Lsn(self.kept.load(Ordering::Acquire));
        if lsn < first {
            return Err(LogError::Trimmed { first });
        }
        Ok(())
    }

    fn read(&self, found: &Found) -> Result<Bytes, LogError> {
        let file = &self.files[found.file];
        let failed = |source| io_error("read", &file.name(), source);
        let payload = read_payload(file, found).map_err(failed)?;
        if crc32c::crc32c(&payload) == found.header.payload_crc {
            return Ok(payload);
        }
        self.check_kept(found.header.lsn)?;
        Err(LogError::Damaged {
            place: format!("{} at byte {}", file.name(), found.offset),
            lsn: found.header.lsn,
            why: "its bytes changed while the log was open".to_owned(),
        })
    }
}

impl LogReader for Reader {
    fn replay(&mut self, from: Lsn, visit: &mut Visit<'_>) -> Result<(), LogError> {
        self.check_kept(from.max(Lsn::FIRST))?;
        let skip = usize::try_from(from.0.saturating_sub(self.begin.0)).unwrap_or(usize::MAX);
        for found in self.live.iter().skip(skip) {
            let payload = self.read(found)?;
            visit(found.header.lsn, payload).map_err(|_| LogError::Stopped)?;
        }
        Ok(())
    }
}

/// Reads a payload into memory whose address equals the offset in the file modulo a
/// page, as far as it has pages at all: copies between other addresses can be many times
/// slower.
fn read_payload(file: &LogFile, found: &Found) -> io::Result<Bytes> {
    let len = found.header.payload_bytes as usize;
    let offset = found.offset + HEADER_BYTES as u64;
    let page = BLOCK_BYTES as usize;
    if len < page {
        let mut memory = vec![0; len];
        file.file.read_exact_at(&mut memory, offset)?;
        return Ok(memory.into());
    }
    let mut memory = vec![0; len + page];
    let to_page = memory.as_ptr().align_offset(page) % page;
    let start = (to_page + HEADER_BYTES) % page;
    file.file.read_exact_at(&mut memory[start..start + len], offset)?;
    Ok(Bytes::from(memory).slice(start..start + len))
}
