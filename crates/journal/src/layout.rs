//! Where a store on a local disk keeps its parts, and who may touch them.
//!
//! A store is a folder with the log in [`LOG_FOLDER`], the blobs in [`BLOBS_FOLDER`], and
//! [`LOCK_NAME`], which is held by the one who has it open. The lock is taken before
//! anything is looked at: opening the blobs removes what was never finished, and a second
//! opener would remove what the first is writing.

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
    frame::{FrameMarks, Secret},
    fs::{Fs, FsLock, create_dir_durably, is_read_only},
    journal::Monotonic,
    log::LogError,
    manifest::Manifest,
    open::{Parts, refuse_remains},
    open_files::OPEN_FILES_MAX,
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
    /// Most files of segments that are open at the same time.
    pub open_files_max: usize,
}

impl Folder {
    /// A store in this folder, with files of the usual size.
    pub fn new(fs: Arc<dyn Fs>, path: impl Into<PathBuf>) -> Self {
        let log = FileLogOptions::default();
        Self { fs, path: path.into(), log, open_files_max: OPEN_FILES_MAX }
    }

    /// The parts to open a journal with. The folder is locked until the journal is gone.
    ///
    /// # Errors
    /// When another process has it open ([`LogError::Locked`]), or it cannot be written.
    pub fn parts(
        &self,
        (new_epoch, new_secret): (Epoch, Secret),
        monotonic: Monotonic,
        flusher_thread: bool,
    ) -> Result<Parts, OpenError> {
        let (fs, path) = (Arc::clone(&self.fs), self.blobs_path());
        let blobs = DirBlobs::with_open_files(fs, path, self.open_files_max);
        // Where the lock was never taken, not even that is left behind.
        if !self.fs.exists(&self.path.join(LOCK_NAME)).unwrap_or(true) {
            self.refuse_remains(&blobs)?;
        }
        let lock = self.lock()?;
        let folder = self.clone();
        Ok(Parts {
            blobs: Arc::new(LockedBlobs { blobs, _lock: lock }),
            log: Box::new(move |marks| Arc::new(folder.file_log(marks))),
            new_epoch,
            new_secret,
            monotonic,
            flusher_thread,
        })
    }

    /// Refuses a folder that has files of a store, but no manifest.
    fn refuse_remains(&self, blobs: &dyn Blobs) -> Result<(), OpenError> {
        if Manifest::names(blobs)?.is_empty() {
            let log = self.file_log(FrameMarks::secret(Secret::new(0)));
            return refuse_remains(blobs, &log);
        }
        Ok(())
    }

    /// Locks the store against everybody else.
    pub(crate) fn lock(&self) -> Result<Box<dyn FsLock>, LogError> {
        let failed = |doing, path: &Path, source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => LogError::Locked { path: path.to_owned() },
            _ if is_read_only(&source) => LogError::ReadOnly { path: path.to_owned(), source },
            _ => LogError::Io { doing, place: path.display().to_string(), source },
        };
        let created = create_dir_durably(&*self.fs, &self.path);
        created.map_err(|e| failed("create", &self.path, e))?;
        let path = self.path.join(LOCK_NAME);
        self.fs.lock(&path).map_err(|error| failed("lock", &path, error))
    }

    pub(crate) fn blobs_path(&self) -> PathBuf {
        self.path.join(BLOBS_FOLDER)
    }

    /// The log of the store whose frames have these marks.
    pub(crate) fn file_log(&self, marks: FrameMarks) -> FileLog {
        let path = self.path.join(LOG_FOLDER);
        FileLog::new(Arc::clone(&self.fs), path, marks, self.log)
    }
}

/// Blobs that keep the store's folder locked as long as they are in use.
#[derive(Debug)]
struct LockedBlobs {
    blobs: DirBlobs,
    _lock: Box<dyn FsLock>,
}

impl Blobs for LockedBlobs {
    fn prepare(&self) -> Result<(), BlobError> {
        self.blobs.prepare()
    }

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
