//! Where a store on a local disk keeps its parts, and who may touch them.
//!
//! A store is a folder with the log in [`LOG_FOLDER`], the blobs in [`BLOBS_FOLDER`], and
//! [`LOCK_NAME`], which is held by the one who has it open. The lock is taken before
//! anything is looked at: opening the blobs removes what was never finished, and whoever
//! comes second would remove it from under the first.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use gapless_core::Epoch;

use crate::{
    blobs::{Blob, BlobError, BlobWriter, Blobs},
    dir_blobs::DirBlobs,
    error::OpenError,
    file_log::{FileLog, FileLogOptions},
    fs::{Fs, FsLock, is_read_only},
    index::key_hash,
    journal::Monotonic,
    log::LogError,
    open::Parts,
};

/// The folder of the log, inside the store's.
pub const LOG_FOLDER: &str = "log";
/// The folder of the blobs, inside the store's.
pub const BLOBS_FOLDER: &str = "blobs";
/// The file that is locked by the one who has the store open.
pub const LOCK_NAME: &str = "LOCK";

/// A store in a folder of a file system.
#[derive(Clone, Debug)]
pub struct Folder {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The store's folder; it need not exist yet.
    pub path: PathBuf,
    /// How large the files of its log are.
    pub log: FileLogOptions,
}

impl Folder {
    /// A store in this folder, with files of the usual size.
    pub fn new(fs: Arc<dyn Fs>, path: impl Into<PathBuf>) -> Self {
        Self { fs, path: path.into(), log: FileLogOptions::default() }
    }

    /// The parts to open a journal with. The folder is locked until the journal is gone.
    ///
    /// # Errors
    /// When somebody has it open ([`LogError::Locked`]), or it cannot be written.
    pub fn parts(
        &self,
        new_epoch: Epoch,
        monotonic: Monotonic,
        flusher_thread: bool,
    ) -> Result<Parts, OpenError> {
        let lock = self.lock()?;
        let blobs = DirBlobs::new(Arc::clone(&self.fs), self.blobs_path())?;
        let folder = self.clone();
        Ok(Parts {
            blobs: Arc::new(LockedBlobs { blobs, _lock: lock }),
            log: Box::new(move |epoch| Arc::new(folder.file_log(epoch))),
            new_epoch,
            monotonic,
            flusher_thread,
        })
    }

    /// Locks the store against everybody else.
    pub(crate) fn lock(&self) -> Result<Box<dyn FsLock>, LogError> {
        let failed = |doing, path: &Path, source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => LogError::Locked { path: path.to_owned() },
            _ if is_read_only(&source) => LogError::ReadOnly { path: path.to_owned() },
            _ => LogError::Io { doing, place: path.display().to_string(), source },
        };
        if !self.fs.exists(&self.path).map_err(|e| failed("look for", &self.path, e))? {
            self.fs.create_dir(&self.path).map_err(|e| failed("make", &self.path, e))?;
        }
        let path = self.path.join(LOCK_NAME);
        self.fs.lock(&path).map_err(|error| failed("lock", &path, error))
    }

    pub(crate) fn blobs_path(&self) -> PathBuf {
        self.path.join(BLOBS_FOLDER)
    }

    /// The log of the store with this epoch.
    pub(crate) fn file_log(&self, epoch: Epoch) -> FileLog {
        let path = self.path.join(LOG_FOLDER);
        FileLog::new(Arc::clone(&self.fs), path, log_epoch(epoch), self.log)
    }
}

/// What stands in frames for the store. Not the epoch itself, which clients are shown.
fn log_epoch(epoch: Epoch) -> u64 {
    key_hash(epoch.0, b"log") as u64
}

/// Blobs that keep the store's folder locked as long as anybody has them.
#[derive(Debug)]
struct LockedBlobs {
    blobs: DirBlobs,
    _lock: Box<dyn FsLock>,
}

impl Blobs for LockedBlobs {
    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        self.blobs.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        self.blobs.open(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        self.blobs.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.blobs.delete(name)
    }
}
