//! The files of a log that hold nothing needed: where the next frames can go.
//!
//! A file is made once, as zeros behind a mark, flushed, and only then given its real name;
//! so a file with a real name is complete, and writing to it later moves no metadata, which
//! halves the time of a flush. Files are used again for ever. Each is twice as large as the
//! one before up to a maximum, so that a small store stays small.
//!
//! One small file is kept by as a reserve, for frames that free room: when the disk is full,
//! nothing else could say what may go. And a file is only made while the disk keeps the room
//! that others need, to write what the log holds once more, as segments: else it could never
//! be trimmed.
//!
//! The writer and the one who prepares share [`Room`], from different threads; the mutex
//! is held for moments only, never while anything is written.

use std::{
    cell::Cell,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{FileLogOptions, LogFile, file_name};
use crate::{
    frame::{BLOCK_BYTES, UNUSED, extent},
    fs::{Fs, FsLock, write_pages_at},
    log::{Prepare, Wanted},
};

/// How many free files are kept; more only hold room after a time of long logs.
const FREE_FILES_MAX: usize = 8;

/// Bytes of the reserve at most, and of the first file if that is smaller. A frame takes a block
/// at least, so hundreds of them fit.
const RESERVE_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of a file that is made while a frame waits for it, unless the frame is larger.
const MADE_NOW_BYTES_MAX: u64 = 4 * 1024 * 1024;

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

fn reserve_bytes(options: &FileLogOptions) -> u64 {
    options.first_file_bytes.min(RESERVE_BYTES_MAX).next_multiple_of(BLOCK_BYTES)
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
    /// Bytes left in the file that is written, for any frame and for those that free room.
    left: Arc<AtomicU64>,
    left_freeing: AtomicU64,
    /// Bytes that are still to be written of files that are being made.
    making: AtomicU64,
    /// Set when the writer goes, so that preparing ends soon.
    closing: AtomicBool,
    /// None before the log is settled, if it is new.
    lock: Mutex<Option<Box<dyn FsLock>>>,
}

#[derive(Debug)]
struct Files {
    free: Vec<Arc<LogFile>>,
    /// Free files that are not kept, until they are removed.
    surplus: Vec<Arc<LogFile>>,
    /// For frames that free room.
    reserve: Option<Arc<LogFile>>,
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
        mut free: Vec<Arc<LogFile>>,
    ) -> Self {
        let same = free.iter().position(|file| file.bytes == reserve_bytes(&options));
        let reserve = same.map(|index| free.remove(index));
        let highest = all.iter().map(|file| file.number).max();
        Self {
            fs,
            dir,
            options,
            files: Mutex::new(Files {
                free,
                surplus: Vec::new(),
                reserve,
                next_number: highest.unwrap_or(0) + 1,
                count: u32::try_from(all.len()).unwrap_or(u32::MAX),
            }),
            due: Arc::new(AtomicBool::new(false)),
            left: Arc::new(AtomicU64::new(0)),
            left_freeing: AtomicU64::new(0),
            making: AtomicU64::new(0),
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

    /// Notes how much is left of the file that is written.
    pub(super) fn note_left(&self, bytes: u64, is_reserve: bool) {
        self.left.store(if is_reserve { 0 } else { bytes }, Ordering::Release);
        self.left_freeing.store(bytes, Ordering::Release);
    }

    /// The file that is kept for frames that free room, if it has so many bytes.
    pub(super) fn take_reserve(&self, bytes_min: u64) -> Option<Arc<LogFile>> {
        let mut files = self.files();
        self.due.store(true, Ordering::Relaxed);
        files.reserve.take_if(|file| file.bytes >= bytes_min)
    }

    /// A free file with at least so many bytes.
    pub(super) fn take_free(&self, bytes_min: u64) -> Option<Arc<LogFile>> {
        let mut files = self.files();
        let free = files.free.iter().enumerate();
        // The largest: it lasts longest, and the small ones of the beginning get out of use.
        let largest = free.max_by_key(|(_, file)| file.bytes);
        let largest = largest.filter(|(_, file)| file.bytes >= bytes_min).map(|(index, _)| index);
        let taken = largest.map(|index| files.free.swap_remove(index));
        self.due.store(files.free.is_empty(), Ordering::Relaxed);
        taken
    }

    /// A new file with at least so many bytes, no larger than it must be, since an append waits.
    pub(super) fn make_now(&self, bytes_min: u64) -> io::Result<Arc<LogFile>> {
        self.make(self.bytes_for(bytes_min), &|| false)
    }

    /// Takes back a file that holds nothing needed any more. One too many is removed by the next
    /// preparation: that may take long, and appends wait for this.
    pub(super) fn give_back(&self, file: Arc<LogFile>) {
        let mut files = self.files();
        if files.reserve.is_none() && file.bytes == reserve_bytes(&self.options) {
            files.reserve = Some(file);
            return;
        }
        files.free.push(file);
        // The largest are kept: they last longest.
        files.free.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        files.keep_free(FREE_FILES_MAX);
    }

    /// Removes the files that are not kept; no lock is held meanwhile.
    fn remove_surplus(&self) {
        let surplus = std::mem::take(&mut self.files().surplus);
        for file in surplus {
            let is_removed = self.fs.remove(&self.dir.join(file.name())).is_ok();
            let mut files = self.files();
            if is_removed {
                files.count -= 1;
            } else {
                files.free.push(file);
            }
        }
    }

    /// Bytes that the disk has left for others than a file that is being made.
    fn free_bytes(&self) -> u64 {
        match self.fs.free_bytes(&self.dir) {
            u64::MAX => u64::MAX,
            free => free.saturating_sub(self.making.load(Ordering::Acquire)),
        }
    }

    /// How large a file is made for a frame of so many bytes while others wait for it.
    fn bytes_for(&self, bytes_min: u64) -> u64 {
        let small = self.options.first_file_bytes.min(MADE_NOW_BYTES_MAX);
        small.max(bytes_min).next_multiple_of(BLOCK_BYTES)
    }

    /// Bytes of the files that the writer would make for these frames.
    fn growth(&self, frames: &mut dyn Iterator<Item = Wanted>) -> u64 {
        let files = self.files();
        let mut free: Vec<u64> = files.free.iter().map(|file| file.bytes).collect();
        let mut reserve = files.reserve.as_ref().map(|file| file.bytes);
        drop(files);
        free.sort_unstable();
        let mut left = self.left.load(Ordering::Acquire);
        let mut left_freeing = self.left_freeing.load(Ordering::Acquire);
        let mut growth = 0;
        for Wanted { bytes, freeing } in frames {
            let bytes = extent(bytes);
            let here = if freeing { left_freeing } else { left };
            if bytes <= here {
                left = left.saturating_sub(bytes);
                left_freeing -= bytes;
            } else if let Some(largest) = free.pop_if(|largest| *largest >= bytes) {
                (left, left_freeing) = (largest - bytes, largest - bytes);
            } else if let Some(whole) = reserve.take_if(|whole| freeing && *whole >= bytes) {
                (left, left_freeing) = (0, whole - bytes);
            } else {
                let made = self.bytes_for(bytes);
                growth += made;
                (left, left_freeing) = (made - bytes, made - bytes);
            }
        }
        growth
    }

    /// How large a file is best made when no append waits for it.
    fn next_file_bytes(&self) -> u64 {
        let files = self.files();
        let count = files.count - u32::from(files.reserve.is_some());
        drop(files);
        let doubled = self.options.first_file_bytes << count.min(16);
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
        let left = Cell::new(bytes);
        self.making.fetch_add(bytes, Ordering::AcqRel);
        let made = self.make_as(&temp, number, (bytes, &left), stop);
        self.making.fetch_sub(left.get(), Ordering::AcqRel);
        match &made {
            Ok(_) => self.files().count += 1,
            // It may hold the very room that is missing. If even this fails, opening
            // the log again removes it, or uses it.
            Err(_) => {
                let _ = self.fs.remove(&temp);
                let _ = self.fs.remove(&self.dir.join(file_name(number)));
            }
        }
        made
    }

    fn make_as(
        &self,
        temp: &std::path::Path,
        number: u64,
        (bytes, to_write): (u64, &Cell<u64>),
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
            self.making.fetch_sub(end - offset, Ordering::AcqRel);
            to_write.set(bytes - end);
            offset = end;
        }
        file.write_past_cache(false);
        let made = LogFile::new(number, bytes, file);
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
    left: Arc<AtomicU64>,
}

impl Preparer {
    pub(super) fn new(room: &Arc<Room>) -> Self {
        let (due, left) = (Arc::clone(&room.due), Arc::clone(&room.left));
        Self { room: Arc::downgrade(room), due, left }
    }
}

impl Files {
    /// Keeps so many of the free files, in the order they stand.
    fn keep_free(&mut self, count: usize) {
        let kept = count.min(self.free.len());
        self.surplus.extend(self.free.drain(kept..));
    }
}

impl Prepare for Preparer {
    fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    fn prepare(&self, keep_free: u64) -> io::Result<bool> {
        let Some(room) = self.room.upgrade() else {
            return Ok(false);
        };
        // If it fails it is tried again at the next call, but not at once for ever.
        room.due.store(false, Ordering::Relaxed);
        let closing = || room.closing.load(Ordering::Relaxed);
        if closing() {
            return Ok(false);
        }
        let made = room.prepare(keep_free, &closing);
        if closing() { Ok(false) } else { made }
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    fn growth(&self, frames: &mut dyn Iterator<Item = Wanted>) -> u64 {
        self.room.upgrade().map_or(0, |room| room.growth(frames))
    }

    fn shrink(&self) {
        let Some(room) = self.room.upgrade() else { return };
        let mut files = room.files();
        files.free.sort_by_key(|file| file.bytes);
        files.keep_free(1);
        drop(files);
        room.remove_surplus();
    }

    fn free_bytes(&self) -> u64 {
        self.room.upgrade().map_or(u64::MAX, |room| room.free_bytes())
    }
}

impl Room {
    /// Makes sure that there is a reserve and a free file.
    fn prepare(&self, keep_free: u64, stop: &dyn Fn() -> bool) -> io::Result<bool> {
        self.remove_surplus();
        let mut made = false;
        if self.files().reserve.is_none() {
            let reserve = self.make(reserve_bytes(&self.options), stop)?;
            self.files().reserve = Some(reserve);
            made = true;
        }
        if self.files().free.is_empty() {
            let free = self.free_bytes();
            let fits = |bytes: &u64| free >= keep_free.saturating_add(*bytes);
            // A small one if there is no room for a large one.
            let wanted = [self.next_file_bytes(), self.bytes_for(0)].into_iter().find(fits);
            if let Some(bytes) = wanted {
                let file = self.make(bytes, stop)?;
                self.files().free.push(file);
                made = true;
            }
        }
        Ok(made)
    }
}
