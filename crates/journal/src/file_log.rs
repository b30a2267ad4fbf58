//! In the making.
use std::{path::PathBuf, sync::Arc};
use crate::{fs::Fs, log::{Floor, Log, LogError, TakeOver}};

/// How large the files of a log are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLogOptions {
    /// The size of the first file.
    pub first_file_bytes: u64,
    /// The size of the largest.
    pub file_bytes_max: u64,
}

impl Default for FileLogOptions {
    fn default() -> Self {
        Self { first_file_bytes: 4 << 20, file_bytes_max: 64 << 20 }
    }
}

/// A log in a folder.
#[derive(Debug)]
pub struct FileLog {
    _fs: Arc<dyn Fs>,
}

impl FileLog {
    /// A log in this folder.
    #[must_use]
    pub fn new(fs: Arc<dyn Fs>, _dir: PathBuf, _epoch: u64, _options: FileLogOptions) -> Self {
        Self { _fs: fs }
    }
}

impl Log for FileLog {
    fn take_over(&self, _floor: Floor) -> Result<TakeOver, LogError> {
        Err(LogError::Stopped)
    }
}
