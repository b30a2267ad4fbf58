//! The state of a store on object storage, read without owning it.
//!
//! Its owner may go on meanwhile: manifest and log are read first, and if something they need is gone
//! by the time it is copied, the copy begins again with what is the newest then.

use std::sync::Arc;

use bytes::Bytes;
use gapless_journal::log::{Floor, LogError};
use gapless_journal::{Lsn, Manifest, OpenError, Secret, Snapshot, SnapshotError};

use crate::log::{ObjectLog, last_run};
use crate::store::Store;

/// How often it is read again because its owner replaced what was being read.
const TRIES_MAX: usize = 8;

impl Store {
    /// The newest state of a journal. Nothing holds its blobs: its owner may delete them.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn snapshot(&self, journal: u16) -> Result<Snapshot, SnapshotError> {
        let blobs = self.blobs(journal);
        let mut tries = 0;
        loop {
            tries += 1;
            let manifest = Manifest::newest(&blobs)?.ok_or(SnapshotError::NoStore)?;
            let number = manifest.number;
            let error = match self.snapshot_of(journal, manifest) {
                Ok(snapshot) => return Ok(snapshot),
                Err(error) => error,
            };
            let replaced = Manifest::newest(&blobs)?.is_some_and(|newest| newest.number > number);
            if !replaced || tries == TRIES_MAX {
                return Err(error);
            }
        }
    }

    fn snapshot_of(&self, journal: u16, manifest: Manifest) -> Result<Snapshot, SnapshotError> {
        let marks = manifest.marks(Secret::new(0));
        let floor = Floor { first_needed: manifest.replay_from, ..Floor::default() };
        let frames = self.log(journal, &marks).read_from(floor).map_err(OpenError::from)?;
        Snapshot::of(manifest, frames, Arc::new(self.blobs(journal)))
    }
}

impl ObjectLog {
    /// The frames from the floor on, without taking the log over.
    fn read_from(&self, floor: Floor) -> Result<Vec<(Lsn, Bytes)>, LogError> {
        let numbers = self.remote.retry(|| self.numbers_after(None)).map_err(self.io("list"))?;
        let past = self.read_needed(last_run(&numbers), floor)?.1;
        Ok(past.into_frames(floor.first_needed))
    }
}
