//! Replays what was alive when the log was taken over: the scan has read it, checked it
//! and kept it in memory. What the writer has trimmed since is refused all the same.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::scan::{Analysis, Found};
use crate::log::{LogError, LogReader, Lsn, Visit};

#[derive(Debug)]
pub(super) struct Reader {
    live: Vec<Found>,
    /// The number of the first in `live`.
    begin: Lsn,
    /// The first frame that the writer still keeps.
    kept: Arc<AtomicU64>,
}

impl Reader {
    pub(super) fn new(analysis: &Analysis, kept: Arc<AtomicU64>) -> Self {
        Self { live: analysis.live.clone(), begin: analysis.first, kept }
    }

    fn check_kept(&self, lsn: Lsn) -> Result<(), LogError> {
        let first = Lsn(self.kept.load(Ordering::Acquire));
        if lsn < first {
            return Err(LogError::Trimmed { first });
        }
        Ok(())
    }
}

impl LogReader for Reader {
    fn replay(&mut self, from: Lsn, visit: &mut Visit<'_>) -> Result<(), LogError> {
        self.check_kept(from.max(Lsn::FIRST))?;
        let skip = usize::try_from(from.0.saturating_sub(self.begin.0)).unwrap_or(usize::MAX);
        for found in self.live.iter().skip(skip) {
            let payload = found.payload.clone().expect("what is alive was kept");
            visit(found.header.lsn, payload).map_err(|_| LogError::Stopped)?;
        }
        Ok(())
    }
}
