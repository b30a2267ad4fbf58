//! A log in the files of a folder.
//!
//! A few files of zeros, `00000001.log` …, are written from the front in aligned blocks,
//! flushed, and used again for ever once all their frames are trimmed. There is no file
//! that says where the log begins or ends: frames do (see `frame.rs`), together
//! with the [`Floor`] that the one who opens knows from its manifest. `LOCK` keeps a
//! second process out.
//!
//! The rules:
//! - what is dead stays dead: frames of an end that was cut, or of a file's earlier life,
//!   are recognised by number, term and link, and never replayed;
//! - a frame that had been flushed and is gone refuses to open; only an end that was
//!   never confirmed is cut, and that is reported;
//! - what is handed out at opening is written and flushed once more when it is settled, since the
//!   process before may have died without flushing, or after its flush had failed.
//!
//! Where things are: `scan` finds what is alive, `writer` appends, `apart` flushes beside it,
//! `room` makes and recycles files, `reader` replays, `doctor` examines and cuts.

mod apart;
mod doctor;
mod reader;
mod room;
mod scan;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

pub use self::doctor::{Cut, Examination, ExaminedFile};
use self::{
    reader::Reader,
    room::{Room, zeros},
    scan::{Analysis, Found, Scan, Wanted, scan},
    writer::{AT_ONCE_BYTES_MAX, Used, Writer},
};
use crate::{
    frame::{BLOCK_BYTES, FrameMarks, HEADER_BYTES},
    fs::{self, Fs, FsFile, FsLock, is_read_only},
    log::{Floor, Log, LogError, Lsn, TERM_MAX, TakeOver},
    pages::Pages,
};

const LOCK_NAME: &str = "LOCK";

/// How large the files of a log are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLogOptions {
    /// The first file; each later one is twice as large, so that a small store is small.
    pub first_file_bytes: u64,
    /// The largest file, which also bounds a frame.
    pub file_bytes_max: u64,
}

impl Default for FileLogOptions {
    fn default() -> Self {
        Self { first_file_bytes: 4 * 1024 * 1024, file_bytes_max: 64 * 1024 * 1024 }
    }
}

impl FileLogOptions {
    /// The largest payload: one that fills the largest file.
    fn frame_bytes_max(self) -> usize {
        let blocks = self.file_bytes_max.max(BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
        // The length field of a header has 32 bits.
        let bytes = blocks.min(u64::from(u32::MAX)) - HEADER_BYTES as u64;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// A log in a folder. It is only touched by [`Log::take_over`] and the doctor's calls.
#[derive(Debug, Clone)]
pub struct FileLog {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    marks: FrameMarks,
    options: FileLogOptions,
}

/// One of the files.
#[derive(Debug)]
struct LogFile {
    number: u64,
    /// How much of it can hold frames.
    bytes: u64,
    file: Arc<dyn FsFile>,
    /// Held while it is flushed; set for ever when that failed.
    is_lost: Mutex<bool>,
}

impl LogFile {
    fn new(number: u64, bytes: u64, file: Arc<dyn FsFile>) -> Self {
        Self { number, bytes, file, is_lost: Mutex::new(false) }
    }

    fn name(&self) -> String {
        file_name(self.number)
    }
}

fn file_name(number: u64) -> String {
    format!("{number:08}.log")
}

impl FileLog {
    /// A log in this folder, which need not exist yet.
    ///
    /// `marks` tell the frames of the store from all other bytes.
    #[must_use]
    pub fn new(fs: Arc<dyn Fs>, dir: PathBuf, marks: FrameMarks, options: FileLogOptions) -> Self {
        Self { fs, dir, marks, options }
    }

    fn wanted(&self, first: Lsn, payloads: bool) -> Wanted {
        Wanted { marks: self.marks, first: first.max(Lsn::FIRST), payloads }
    }

    fn in_dir(&self, doing: &'static str) -> impl FnOnce(io::Error) -> LogError {
        let dir = self.dir.display().to_string();
        move |source| io_error(doing, &dir, source)
    }

    fn exists(&self) -> Result<bool, LogError> {
        self.fs.exists(&self.dir).map_err(self.in_dir("look for"))
    }

    fn create(&self) -> Result<(), LogError> {
        let done = fs::create_dir_durably(&*self.fs, &self.dir);
        done.map_err(self.in_dir("create"))
    }

    fn lock(&self) -> Result<Box<dyn FsLock>, LogError> {
        let path = self.dir.join(LOCK_NAME);
        self.fs.lock(&path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => LogError::Locked { path },
            _ => io_error("lock", &path.display().to_string(), error),
        })
    }

    /// The same, but leaves no trace where it was never taken.
    fn lock_if_there(&self) -> Result<Option<Box<dyn FsLock>>, LogError> {
        let there = self.fs.exists(&self.dir.join(LOCK_NAME)).map_err(self.in_dir("look for"))?;
        there.then(|| self.lock()).transpose()
    }

    /// Opens the files of the log, in the order of their numbers.
    fn files(&self, read_only: bool) -> Result<Vec<Arc<LogFile>>, LogError> {
        let mut files = Vec::new();
        for name in self.names()? {
            let Some(number) = name.strip_suffix(".log").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let path = self.dir.join(&name);
            let open = || {
                let file = match read_only {
                    true => self.fs.open_read(&path)?,
                    false => self.fs.open(&path)?,
                };
                let bytes = file.len()? / BLOCK_BYTES * BLOCK_BYTES;
                Ok(Arc::new(LogFile::new(number, bytes, file)))
            };
            files.push(open().map_err(|source| io_error("open", &name, source))?);
        }
        files.sort_by_key(|file| file.number);
        Ok(files)
    }

    /// The files in the folder; none if there is no folder.
    fn names(&self) -> Result<Vec<String>, LogError> {
        match self.exists()? {
            true => self.fs.list(&self.dir).map_err(self.in_dir("list")),
            false => Ok(Vec::new()),
        }
    }

    /// Removes files whose making never ended.
    fn tidy_up(&self) -> Result<(), LogError> {
        for name in self.names()?.iter().filter(|name| name.ends_with(".new")) {
            let done = self.fs.remove(&self.dir.join(name));
            done.map_err(|source| io_error("remove", name, source))?;
        }
        Ok(())
    }

    /// Kills all frames from `at` on that have a header, and the broken one behind the
    /// last frame that counts. Killing one is safe at any moment, in any order: they are
    /// all dead already, or the doctor was asked to drop them.
    fn wipe(&self, scan: &Scan, analysis: &Analysis, at: Lsn) -> Result<Vec<Found>, LogError> {
        let dead = scan.found.iter().filter(|found| found.header.lsn >= at);
        let dead: Vec<Found> = dead.cloned().collect();
        let mut places: Vec<_> = dead.iter().map(|found| (found.file, found.offset)).collect();
        let starts = (0..scan.files.len()).map(|file| (file, 0));
        let broken = starts.chain(analysis.place_of_next());
        places.extend(broken.filter(|place| scan.is_broken(*place)));
        for (file, offset) in &places {
            let file = &scan.files[*file];
            let done = file.file.write_all_at(&[zeros(BLOCK_BYTES)], *offset);
            done.map_err(|source| io_error("write", &file.name(), source))?;
        }
        sync_files(scan, places.iter().map(|(file, _)| *file))?;
        Ok(dead)
    }

    /// Writes and flushes what is alive and was perhaps not flushed. A flush alone would
    /// not do: one that failed before has left pages that look clean.
    fn make_durable(&self, scan: &Scan, analysis: &Analysis) -> Result<(), LogError> {
        let doubtful = || {
            let live = analysis.live.iter();
            live.filter(|found| found.header.lsn > analysis.flushed)
        };
        for found in doubtful() {
            let file = &scan.files[found.file];
            let rewrite = || {
                let bytes = usize::try_from(found.header.extent()).map_err(io::Error::other)?;
                let mut frame = vec![0; bytes];
                file.file.read_exact_at(&mut frame, found.offset)?;
                file.file.write_all_at(&[&frame], found.offset)
            };
            rewrite().map_err(|source| io_error("write", &file.name(), source))?;
        }
        sync_files(scan, doubtful().map(|found| found.file))?;
        self.fs.sync_dir(&self.dir).map_err(self.in_dir("flush"))
    }
}

/// What was found at taking over, until it is acted on.
#[derive(Debug)]
struct Unsettled {
    log: FileLog,
    /// Whether the log is locked: a new one has nothing to lock yet.
    locked: bool,
    scan: Scan,
    analysis: Analysis,
}

impl Unsettled {
    /// Acts on it. Gives the lock if there was none before.
    fn settle(&self) -> Result<Option<Box<dyn FsLock>>, LogError> {
        let Self { log, scan, analysis, .. } = self;
        let lock = match self.locked {
            true => None,
            false => {
                log.create()?;
                Some(log.lock()?)
            }
        };
        log.tidy_up()?;
        // Before anything is appended: a dead frame that lacks a block could be completed
        // by a new one whose beginning is lost.
        log.wipe(scan, analysis, analysis.next)?;
        log.make_durable(scan, analysis)?;
        Ok(lock)
    }
}

impl Log for FileLog {
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError> {
        let lock = self.lock_if_there()?;
        let locked = lock.is_some();
        let scan = scan(self.files(false)?, self.wanted(floor.first_needed, true))?;
        let mut analysis = Analysis::of(&scan, floor);
        if let Some(refused) = analysis.refused.take() {
            return Err(refused);
        }
        let Some(term) = analysis.term.checked_add(1).filter(|term| *term <= TERM_MAX) else {
            let why = format!("the manifest names the term {}, which no log has", floor.term);
            let place = self.dir.display().to_string();
            return Err(LogError::Damaged { place, lsn: analysis.next, why });
        };
        let first = Arc::new(AtomicU64::new(analysis.first.0));
        let reader = Reader::new(&analysis, Arc::clone(&first));
        let (used, free) = share_out(&scan, &analysis);
        let (fs, dir) = (Arc::clone(&self.fs), self.dir.clone());
        let room = Room::new(fs, dir, self.options, lock, &scan.files, free);
        let last = analysis.last();
        let (link, offset) = last.map_or((0, 0), |last| (last.crc, last.end()));
        let (first_found, next, torn) = (analysis.first, analysis.next, analysis.torn.take());
        let writer = Writer {
            room: Arc::new(room),
            secret: self.marks.secret,
            term,
            next,
            flushed: next.before(),
            link,
            used,
            offset,
            dirty: Vec::new(),
            flushed_apart: Arc::default(),
            begun: false,
            first,
            pages: Pages::new(AT_ONCE_BYTES_MAX),
            failed: false,
            unsettled: Some(Unsettled { log: self.clone(), locked, scan, analysis }),
        };
        writer.note_left();
        Ok(TakeOver {
            writer: Box::new(writer),
            reader: Box::new(reader),
            first: first_found,
            next,
            term,
            torn,
        })
    }

    fn remains(&self) -> Result<Vec<String>, LogError> {
        let mut names = self.names()?;
        names.retain(|name| name.ends_with(".log"));
        Ok(names)
    }
}

/// Which files hold what is needed, in the order of their frames, and which are free.
fn share_out(scan: &Scan, analysis: &Analysis) -> (VecDeque<Used>, Vec<Arc<LogFile>>) {
    let mut used: VecDeque<(usize, Lsn)> = VecDeque::new();
    for found in analysis.anchor.iter().chain(&analysis.live) {
        match used.back_mut() {
            Some((file, last)) if *file == found.file => *last = found.header.lsn,
            _ => used.push_back((found.file, found.header.lsn)),
        }
    }
    let is_used = |index: usize| used.iter().any(|(file, _)| *file == index);
    let files = scan.files.iter().enumerate();
    let free = files.filter(|(index, file)| !is_used(*index) && file.bytes > 0);
    let free = free.map(|(_, file)| Arc::clone(file)).collect();
    let with_file = |(file, last): &(usize, Lsn)| {
        let file = Arc::clone(&scan.files[*file]);
        Used { file, last: *last, is_reserve: false }
    };
    (used.iter().map(with_file).collect(), free)
}

/// Flushes each of these files once.
fn sync_files(scan: &Scan, files: impl Iterator<Item = usize>) -> Result<(), LogError> {
    let mut files: Vec<usize> = files.collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let file = &scan.files[file];
        let done = file.file.sync();
        done.map_err(|source| io_error("flush", &file.name(), source))?;
    }
    Ok(())
}

fn io_error(doing: &'static str, place: &str, source: io::Error) -> LogError {
    if is_read_only(&source) {
        return LogError::ReadOnly { path: place.into(), source };
    }
    LogError::Io { doing, place: place.to_owned(), source }
}
