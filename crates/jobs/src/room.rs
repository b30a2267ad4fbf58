//! The memory that a connection of jobs may hold, as the listener counts it.
//!
//! A connection holds what it has read and not understood yet, requests and results that are on
//! their way to the disk, and what it has not written yet. A listener gives one room for each of the
//! three; without a listener nothing is counted.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gapless_core::job::JobId;

/// A part of the memory that connections share.
pub trait Room: Send {
    /// Waits until so many bytes may be held in all, which are counted then.
    ///
    /// # Errors
    /// When that takes too long; says why.
    fn grow(&mut self, bytes: usize) -> impl Future<Output = Result<(), String>> + Send;

    /// Says that so many bytes are held now.
    fn set(&mut self, bytes: usize);
}

/// Room without a limit.
impl Room for () {
    async fn grow(&mut self, _: usize) -> Result<(), String> {
        Ok(())
    }

    fn set(&mut self, _: usize) {}
}

/// What one connection came with that is not answered yet: it is in the leader's memory until then.
pub(crate) struct Owed<R>(Mutex<Inner<R>>);

struct Inner<R> {
    room: R,
    by_job: std::collections::BTreeMap<JobId, usize>,
    bytes: usize,
}

impl<R: Room> Owed<R> {
    pub(crate) fn new(room: R) -> Self {
        Self(Mutex::new(Inner { room, by_job: std::collections::BTreeMap::new(), bytes: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many bytes about this job went to the leader.
    pub(crate) fn add(&self, job: JobId, bytes: usize) {
        let mut inner = self.lock();
        *inner.by_job.entry(job).or_default() += bytes;
        inner.bytes += bytes;
        let held = inner.bytes;
        inner.room.set(held);
    }

    /// The leader has answered about this job.
    pub(crate) fn answered(&self, job: JobId) {
        let mut inner = self.lock();
        if let Some(bytes) = inner.by_job.remove(&job) {
            inner.bytes -= bytes;
            let held = inner.bytes;
            inner.room.set(held);
        }
    }
}
