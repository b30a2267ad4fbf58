//! The files of a log that hold nothing needed: where the next frames can go.
//!
//! A file is made once, as zeros behind a mark, flushed, and only then given its real name;
//! so a file with a real name is complete, and writing to it later moves no metadata, which
//! halves the time of a flush. Files are used again for ever. Each is twice as large as the
//! one before up to a maximum, so that a small store stays small.
//!
//! The writer and the one who prepares share [`Room`], from different threads; the mutex
//! is held for moments only, never while anything is written.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{FileLogOptions, LogFile};
use crate::{
    frame::{BLOCK_BYTES, UNUSED},
    fs::{Fs, FsLock, write_pages_at},
    log::Prepare,
};

/// How many free files are kept; more only hold room after a time of long logs.
const FREE_FILES_MAX: usize = 8;

/// How much is zeroed between two flushes, in bytes: small steps keep the disk's queue
/// short for the flushes of the log itself, which happen meanwhile.
const ZERO_STEP_BYTES: u64 = 1024 * 1024;

/// Bytes to write from; page-aligned since copies from elsewhere can be much slower, and writes
/// past the cache are refused.
#[repr(align(4096))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

static ZEROS: Aligned<{ 64 * 1024 }> = Aligned([0; 64 * 1024]);

/// The first block of a file that was never used.
static UNUSED_BLOCK: Aligned<{ BLOCK_BYTES as usize }> = {
    let mut block = [0; BLOCK_BYTES as usize];
    block.split_at_mut(UNUSED.len()).0.copy_from_slice(UNUSED);
    Aligned(block)
};

/// At most a block of zeros.
pub(super) fn zeros(bytes: u64) -> &'static [u8] {
    debug_assert!(bytes <= BLOCK_BYTES, "a frame is padded by less than a block");
    &ZEROS.0[..bytes as usize]
}

/// What the writer and the preparer share. The log is locked while it lives.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) fs: Arc<dyn Fs>,
    pub(super) dir: PathBuf,
    options: FileLogOptions,
    files: Mutex<Files>,
    /// Set when the last free file was taken, until another is being made.
    due: Arc<AtomicBool>,
    /// Set when the writer goes, so that preparing ends soon.
    closing: AtomicBool,
    /// None before the log is settled, if it is new.
    lock: Mutex<Option<Box<dyn FsLock>>>,
}

#[derive(Debug)]
struct Files {
    free: Vec<Arc<LogFile>>,
    next_number: u64,
    /// How many files there are, free or not.
    count: u32,
}

impl Room {
    pub(super) fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        options: FileLogOptions,
        lock: Option<Box<dyn FsLock>>,
        all: &[Arc<LogFile>],
        free: Vec<Arc<LogFile>>,
    ) -> Self {
        let highest = all.iter().map(|file| file.number).max();
        Self {
            fs,
            dir,
            options,
            files: Mutex::new(Files {
                free,
                next_number: highest.unwrap_or(0) + 1,
                count: u32::try_from(all.len()).unwrap_or(u32::MAX),
            }),
            due: Arc::new(AtomicBool::new(false)),
            closing: AtomicBool::new(false),
            lock: Mutex::new(lock),
        }
    }

    pub(super) fn options(&self) -> FileLogOptions {
        self.options
    }

    /// Keeps the log locked for as long as this lives.
    pub(super) fn hold(&self, lock: Box<dyn FsLock>) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// A file with at least so many bytes: a free one, else a new one, no larger than it must
    /// be, since somebody waits.
    pub(super) fn take(&self, bytes_min: u64) -> io::Result<Arc<LogFile>> {
        {
            let mut files = self.files();
            let fitting = |(_, file): &(usize, &Arc<LogFile>)| file.bytes >= bytes_min;
            let free = files.free.iter().enumerate().filter(fitting);
            // The largest: it lasts longest, and the small ones of the beginning get out of use.
            let largest = free.max_by_key(|(_, file)| file.bytes).map(|(index, _)| index);
            let taken = largest.map(|index| files.free.swap_remove(index));
            self.due.store(files.free.is_empty(), Ordering::Relaxed);
            if let Some(file) = taken {
                return Ok(file);
            }
        }
        self.make(self.options.first_file_bytes.max(bytes_min), &|| false)
    }

    /// Takes back a file that holds nothing needed any more.
    pub(super) fn give_back(&self, file: Arc<LogFile>) {
        let mut files = self.files();
        files.free.push(file);
        if files.free.len() <= FREE_FILES_MAX {
            return;
        }
        files.free.sort_by_key(|file| file.bytes);
        let surplus = files.free.remove(0);
        if self.fs.remove(&self.dir.join(surplus.name())).is_ok() {
            files.count -= 1;
        } else {
            files.free.push(surplus);
        }
    }

    /// How large a file is best made when nobody waits for it.
    fn next_file_bytes(&self) -> u64 {
        let doubled = self.options.first_file_bytes << self.files().count.min(16);
        doubled.min(self.options.file_bytes_max)
    }

    /// Makes a file of zeros. `stop` is asked now and then.
    fn make(&self, bytes: u64, stop: &dyn Fn() -> bool) -> io::Result<Arc<LogFile>> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        let number = {
            let mut files = self.files();
            files.next_number += 1;
            files.next_number - 1
        };
        let temp = self.dir.join(format!("{number:08}.new"));
        let made = self.make_as(&temp, number, bytes, stop);
        match &made {
            Ok(_) => self.files().count += 1,
            // It may hold the very room that is missing. If even this fails, opening
            // the log again removes it.
            Err(_) => drop(self.fs.remove(&temp)),
        }
        made
    }

    fn make_as(
        &self,
        temp: &std::path::Path,
        number: u64,
        bytes: u64,
        stop: &dyn Fn() -> bool,
    ) -> io::Result<Arc<LogFile>> {
        let file = self.fs.create(temp)?;
        // Pages for zeros would cost far more than the zeros (see `docs/adr/0011`).
        let mut past_cache = file.write_past_cache(true);
        let mut offset = 0;
        while offset < bytes {
            if stop() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let end = bytes.min(offset + ZERO_STEP_BYTES);
            let mut parts: Vec<&[u8]> = Vec::new();
            let mut left = end - offset;
            if offset == 0 {
                parts.push(&UNUSED_BLOCK.0);
                left -= BLOCK_BYTES;
            }
            while left > 0 {
                let len = left.min(ZEROS.0.len() as u64);
                parts.push(&ZEROS.0[..len as usize]);
                left -= len;
            }
            write_pages_at(&*file, &mut past_cache, &parts, offset)?;
            file.sync()?;
            offset = end;
        }
        file.write_past_cache(false);
        let made = LogFile { number, bytes, file };
        self.fs.rename(temp, &self.dir.join(made.name()))?;
        // Before any frame in it can be reported as flushed.
        self.fs.sync_dir(&self.dir)?;
        Ok(Arc::new(made))
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        // Nothing that can panic happens under this lock.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps one free file ready. It does not keep the log locked, except while it works.
#[derive(Debug)]
pub(super) struct Preparer {
    room: Weak<Room>,
    due: Arc<AtomicBool>,
}

impl Preparer {
    pub(super) fn new(room: &Arc<Room>) -> Self {
        Self { room: Arc::downgrade(room), due: Arc::clone(&room.due) }
    }
}

impl Prepare for Preparer {
    fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    fn prepare(&self) -> io::Result<bool> {
        let Some(room) = self.room.upgrade() else {
            return Ok(false);
        };
        // If it fails it is tried again at the next call, but not at once for ever.
        room.due.store(false, Ordering::Relaxed);
        let closing = || room.closing.load(Ordering::Relaxed);
        if closing() || !room.files().free.is_empty() {
            return Ok(false);
        }
        match room.make(room.next_file_bytes(), &closing) {
            Ok(file) => {
                room.files().free.push(file);
                Ok(true)
            }
            Err(_) if closing() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
