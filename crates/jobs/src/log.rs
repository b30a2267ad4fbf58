//! What running jobs wrote lately: for those who look before the result is there.
//!
//! Kept in memory only, with a limit for each job and for all; what is older is dropped first. When
//! a job ends, its result has what it wrote, and nothing is kept here.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use gapless_core::job::JobId;

/// Most bytes that are kept of one job.
const JOB_BYTES_MAX: usize = 64 * 1024;
/// Most bytes that are kept of all jobs.
const ALL_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Longest piece: a longer one is refused.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Logs {
    by_job: BTreeMap<JobId, Log>,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Log {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// Whether older pieces were dropped.
    pub(crate) shortened: bool,
}

impl Log {
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
        while self.bytes > JOB_BYTES_MAX
            && self.pieces.len() > 1
            && let Some(oldest) = self.pieces.pop_front()
        {
            self.bytes -= oldest.len();
            self.shortened = true;
        }
    }
}

impl Logs {
    pub(crate) fn of(&self, job: JobId) -> Option<&Log> {
        self.by_job.get(&job)
    }

    pub(crate) fn push(&mut self, job: JobId, piece: Bytes) {
        let log = self.by_job.entry(job).or_default();
        let before = log.bytes;
        log.push(piece);
        self.bytes = self.bytes + log.bytes - before;
        // Another job gives way: one that writes much keeps its own part in any case.
        while self.bytes > ALL_BYTES_MAX {
            let other = self.by_job.iter().find(|(id, log)| **id != job && log.bytes > 0);
            let Some((id, _)) = other.map(|(id, log)| (*id, log.bytes)) else { return };
            let log = self.by_job.get_mut(&id).expect("it was just found");
            self.bytes -= std::mem::take(&mut log.bytes);
            log.pieces.clear();
            log.shortened = true;
        }
    }

    pub(crate) fn forget(&mut self, job: JobId) {
        if let Some(log) = self.by_job.remove(&job) {
            self.bytes -= log.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pieces_of_a_job_stay_and_all_jobs_have_a_limit() {
        let mut logs = Logs::default();
        let piece = Bytes::from(vec![b'x'; 1024]);
        for _ in 0..100 {
            logs.push(JobId(1), piece.clone());
        }
        let log = logs.of(JobId(1)).expect("it wrote");
        assert_eq!((log.bytes, log.shortened), (JOB_BYTES_MAX, true));
        for job in 2..2_000 {
            (0..64).for_each(|_| logs.push(JobId(job), piece.clone()));
        }
        assert!(logs.bytes <= ALL_BYTES_MAX);
        assert_eq!(logs.of(JobId(1_999)).expect("it wrote").bytes, JOB_BYTES_MAX);
        (1..2_000).for_each(|job| logs.forget(JobId(job)));
        assert_eq!(logs.bytes, 0);
    }
}
