//! A disk in memory that fails on request.
//!
//! [`FaultyFs`] is what tests put in the place of [`crate::fs::DiskFs`]. It can lose
//! power, kill the process, fail, tear, fill up, flip bits, forbid writing and be slow;
//! and it does so as a seed says, without clock or threads of its own, so that every run
//! that fails can be run again.
//!
//! The rule it keeps: it is never kinder than a real disk. Data that was not synced may
//! arrive in any pieces and any order, names that were not synced as any prefix of the
//! changes; a sync that failed has forgotten what it should have written. It is never
//! crueller either: what was synced stays, until a test damages it by name.
//!
//! It is part of the product, not of its tests, so that the crates above can use it.

mod disk;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use self::disk::{Disk, FileId, Random, to_index};
use crate::fs::{EMFILE, Fs, FsFile, FsLock};

/// What a write past the cache has to keep to, in bytes.
const PAGE_BYTES: usize = 4096;

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashKind {
    /// `kill -9`: all that was written is still seen, though not safe from a later power
    /// loss.
    Process,
    /// The power goes: of what was not synced, only random pieces are left.
    Power,
}

/// How long an armed fault lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// One call fails.
    Once,
    /// That call and all after it fail, until [`FaultyFs::disarm`].
    UntilDisarmed,
}

/// A disk in memory with faults. Clones are the same disk, and it outlives crashes.
#[derive(Clone)]
pub struct FaultyFs {
    state: Arc<Mutex<State>>,
}

type Hook = Arc<dyn Fn() + Send + Sync>;

struct State {
    disk: Disk,
    random: Random,
    /// How many crashes there were; handles of an earlier run are dead.
    run: u64,
    /// Between a crash in the middle of a write and [`FaultyFs::crash`].
    down: bool,
    locks: BTreeSet<PathBuf>,
    read_only: bool,
    capacity: Option<u64>,
    /// Files that may be open at a time, how many are, and how many ever were.
    open_files_max: Option<u64>,
    open_files: u64,
    opens: u64,
    read_bytes: u64,
    writes: u64,
    syncs: u64,
    write_fault: Option<Fault>,
    sync_fault: Option<Fault>,
    crash_at_write: Option<u64>,
    on_sync: Option<Hook>,
}

struct Fault {
    /// The count at which it strikes.
    at: u64,
    kind: ErrorKind,
    times: Times,
}

impl fmt::Debug for FaultyFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("FaultyFs")
            .field("run", &state.run)
            .field("down", &state.down)
            .field("writes", &state.writes)
            .field("syncs", &state.syncs)
            .finish_non_exhaustive()
    }
}

impl FaultyFs {
    /// An empty disk whose accidents follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            disk: Disk::default(),
            random: Random::new(seed),
            run: 0,
            down: false,
            locks: BTreeSet::new(),
            read_only: false,
            capacity: None,
            open_files_max: None,
            open_files: 0,
            opens: 0,
            read_bytes: 0,
            writes: 0,
            syncs: 0,
            write_fault: None,
            sync_fault: None,
            crash_at_write: None,
            on_sync: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Ends the run: all handles are dead and all locks free. Armed faults are gone too,
    /// except the capacity and the read-only mode, which belong to the disk.
    pub fn crash(&self, kind: CrashKind) {
        let state = &mut *self.state();
        match kind {
            CrashKind::Process => state.disk.forget_unnamed(),
            CrashKind::Power => state.disk.lose_power(&mut state.random),
        }
        state.run += 1;
        state.down = false;
        state.locks.clear();
        state.write_fault = None;
        state.sync_fault = None;
        state.crash_at_write = None;
    }

    /// Makes the nth write from now fail (1 is the next) after a random part of it was
    /// done.
    pub fn fail_write(&self, nth: u64, kind: ErrorKind, times: Times) {
        let mut state = self.state();
        let at = state.writes + nth;
        state.write_fault = Some(Fault { at, kind, times });
    }

    /// Makes the nth sync from now fail (1 is the next), of a file or a folder. What it
    /// should have made durable never will be, unless it is written again.
    pub fn fail_sync(&self, nth: u64, kind: ErrorKind, times: Times) {
        let mut state = self.state();
        let at = state.syncs + nth;
        state.sync_fault = Some(Fault { at, kind, times });
    }

    /// Does the nth write from now in part, then fails every call until
    /// [`FaultyFs::crash`].
    pub fn crash_after_writes(&self, nth: u64) {
        let mut state = self.state();
        state.crash_at_write = Some(state.writes + nth);
    }

    /// Ends the faults armed for writes and syncs, and a crash that was still to come.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.write_fault = None;
        state.sync_fault = None;
        state.crash_at_write = None;
    }

    /// Sets how many bytes all files together may have. Less than there is takes nothing
    /// away.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Sets how many files may be open at a time, locks included. More than that are refused
    /// as a process with too many file descriptors is.
    pub fn set_open_files_max(&self, max: Option<u64>) {
        self.state().open_files_max = max;
    }

    /// How many files are open, locks included.
    #[must_use]
    pub fn open_files(&self) -> u64 {
        self.state().open_files
    }

    /// How often a file was opened.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.state().opens
    }

    /// Forbids or allows all changes.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    /// Calls this within every sync, before it takes effect: to wait there is to be a
    /// slow disk.
    pub fn on_sync(&self, hook: Option<Hook>) {
        self.state().on_sync = hook;
    }

    /// Damages one bit (0 to 7) of a file, in all layers. Panics if the file does not
    /// exist or is shorter, since then the test is wrong.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) {
        self.change_byte(path, offset, |byte| byte ^ (1 << (bit % 8)));
    }

    /// Replaces bytes of a file, in all layers, as one would with an editor. Panics as
    /// [`FaultyFs::flip_bit`] does.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) {
        for (offset, new) in (offset..).zip(bytes) {
            self.change_byte(path, offset, |_| *new);
        }
    }

    fn change_byte(&self, path: &Path, offset: u64, change: impl Fn(u8) -> u8) {
        let mut state = self.state();
        let id = state.disk.find(path).expect("the file to damage exists");
        assert!(to_index(offset) < state.disk.read(id).len(), "nothing there to damage");
        state.disk.corrupt(id, offset, change);
    }

    /// How many bytes were read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.state().read_bytes
    }

    /// How many writes there were, failed ones included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// How many syncs there were, of files and folders, failed ones included.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// How many bytes all files together have.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state().disk.used_bytes()
    }

    /// All files and their lengths, sorted by path.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state();
        let names = state.disk.names();
        let sized = names.map(|path| {
            let id = state.disk.find(path).expect("a listed name is there");
            (path.clone(), state.disk.read(id).len() as u64)
        });
        sized.collect()
    }

    /// What a file holds, as everybody sees it now.
    #[must_use]
    pub fn dump(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        let id = state.disk.find(path)?;
        Some(state.disk.read(id).to_vec())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere must not hide its own message behind ours.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.down {
            return Err(crashed());
        }
        Ok(state)
    }

    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.up()?;
        if state.read_only {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Ok(state)
    }

    fn handle(&self, state: &mut State, id: FileId, may_write: bool) -> Arc<dyn FsFile> {
        let past_cache = AtomicBool::new(false);
        state.open_files += 1;
        state.opens += 1;
        Arc::new(FaultyFile { fs: self.clone(), id, run: state.run, may_write, past_cache })
    }

    /// Counts a sync, lets the hook see it, and says whether it fails.
    fn begin_sync(&self, run: Option<u64>) -> io::Result<Option<ErrorKind>> {
        let hook = {
            let mut state = self.up()?;
            state.syncs += 1;
            state.on_sync.clone()
        };
        if let Some(hook) = hook {
            hook();
        }
        let mut state = self.up()?;
        if run.is_some_and(|run| run != state.run) {
            return Err(crashed());
        }
        let count = state.syncs;
        Ok(struck(&mut state.sync_fault, count))
    }
}

impl Fs for FaultyFs {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        let mut state = self.writable()?;
        state.has_descriptor()?;
        let id = state.disk.find(path).ok_or(ErrorKind::NotFound)?;
        Ok(self.handle(&mut state, id, true))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        let mut state = self.up()?;
        state.has_descriptor()?;
        let id = state.disk.find(path).ok_or(ErrorKind::NotFound)?;
        Ok(self.handle(&mut state, id, false))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        let mut state = self.writable()?;
        state.has_descriptor()?;
        if state.disk.find(path).is_some() || state.disk.has_dir(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        if !path.parent().is_some_and(|dir| state.disk.has_dir(dir)) {
            return Err(ErrorKind::NotFound.into());
        }
        let id = state.disk.create(path);
        Ok(self.handle(&mut state, id, true))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.writable()?;
        let id = state.disk.find(from).ok_or(ErrorKind::NotFound)?;
        state.disk.rename(from, to, id);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.writable()?;
        let id = state.disk.find(path).ok_or(ErrorKind::NotFound)?;
        state.disk.remove(path, id);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.up()?;
        if !state.disk.has_dir(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let inside = state.disk.names().filter(|path| path.parent() == Some(dir));
        let names = inside.filter_map(|path| path.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.up()?;
        if state.disk.has_dir(dir) {
            return Ok(());
        }
        if state.read_only {
            return Err(ErrorKind::PermissionDenied.into());
        }
        state.disk.create_dir(dir);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // A folder is opened to be flushed.
        self.up()?.has_descriptor()?;
        if let Some(kind) = self.begin_sync(None)? {
            return Err(kind.into());
        }
        self.up()?.disk.sync_dir(dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FsLock>> {
        let mut state = self.writable()?;
        if !path.parent().is_some_and(|dir| state.disk.has_dir(dir)) {
            return Err(ErrorKind::NotFound.into());
        }
        state.has_descriptor()?;
        if !state.locks.insert(path.to_owned()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.open_files += 1;
        if state.disk.find(path).is_none() {
            state.disk.create(path);
        }
        Ok(Box::new(FaultyLock { fs: self.clone(), path: path.to_owned(), run: state.run }))
    }

    fn free_bytes(&self, _dir: &Path) -> u64 {
        let state = self.state();
        state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.disk.used_bytes()))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.up()?;
        Ok(state.disk.find(path).is_some() || state.disk.has_dir(path))
    }
}

#[derive(Debug)]
struct FaultyFile {
    fs: FaultyFs,
    id: FileId,
    run: u64,
    may_write: bool,
    /// Writes are to go past a cache; there is none here, but it is held to the rule.
    past_cache: AtomicBool,
}

impl FaultyFile {
    fn alive<'a>(&self, state: MutexGuard<'a, State>) -> io::Result<MutexGuard<'a, State>> {
        if state.run != self.run {
            return Err(crashed());
        }
        Ok(state)
    }
}

impl FsFile for FaultyFile {
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        // Some of it is in memory, some is not.
        let cached = !(offset / PAGE_BYTES as u64).is_multiple_of(3);
        if cached {
            self.read_exact_at(buf, offset)?;
        }
        Ok(cached)
    }

    fn write_past_cache(&self, past: bool) -> bool {
        self.past_cache.store(past, Ordering::Relaxed);
        past
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.alive(self.fs.up()?)?;
        let content = state.disk.read(self.id);
        let rest = content.get(to_index(offset)..).unwrap_or(&[]);
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        state.read_bytes += len as u64;
        Ok(len)
    }

    fn write_all_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut guard = self.alive(self.fs.writable()?)?;
        if !self.may_write {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let whole_pages = |part: &&[u8]| {
            part.len().is_multiple_of(PAGE_BYTES) && part.as_ptr().addr().is_multiple_of(PAGE_BYTES)
        };
        if self.past_cache.load(Ordering::Relaxed)
            && !(offset.is_multiple_of(PAGE_BYTES as u64) && parts.iter().all(whole_pages))
        {
            return Err(ErrorKind::InvalidInput.into());
        }
        let state = &mut *guard;
        state.writes += 1;
        let mut bytes = parts.concat();
        if state.crash_at_write == Some(state.writes) {
            state.down = true;
            let State { disk, random, .. } = state;
            disk.write_torn(self.id, offset, &bytes, random);
            return Err(crashed());
        }
        if let Some(kind) = struck(&mut state.write_fault, state.writes) {
            let State { disk, random, .. } = state;
            disk.write_torn(self.id, offset, &bytes, random);
            return Err(kind.into());
        }
        let room = state
            .capacity
            .map_or(u64::MAX, |capacity| capacity.saturating_sub(state.disk.used_bytes()));
        let len = state.disk.read(self.id).len() as u64;
        let fits = len.saturating_add(room).saturating_sub(offset);
        let full = (bytes.len() as u64) > fits;
        if full {
            bytes.truncate(to_index(fits));
        }
        state.disk.write(self.id, offset, &bytes);
        if full {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let failure = self.fs.begin_sync(Some(self.run))?;
        let mut guard = self.alive(self.fs.up()?)?;
        let State { disk, random, .. } = &mut *guard;
        if let Some(kind) = failure {
            disk.sync_failed(self.id, random);
            return Err(kind.into());
        }
        disk.sync(self.id);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.alive(self.fs.up()?)?;
        Ok(state.disk.read(self.id).len() as u64)
    }
}

#[derive(Debug)]
struct FaultyLock {
    fs: FaultyFs,
    path: PathBuf,
    run: u64,
}

impl FsLock for FaultyLock {}

impl Drop for FaultyLock {
    fn drop(&mut self) {
        let mut state = self.fs.state();
        state.open_files -= 1;
        if state.run == self.run {
            state.locks.remove(&self.path);
        }
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.fs.state().open_files -= 1;
    }
}

impl State {
    /// Refuses as the system does when too many files are open.
    fn has_descriptor(&self) -> io::Result<()> {
        match self.open_files_max {
            Some(max) if self.open_files >= max => Err(io::Error::from_raw_os_error(EMFILE)),
            _ => Ok(()),
        }
    }
}

/// Whether an armed fault strikes at this count; one that strikes once is gone then.
fn struck(fault: &mut Option<Fault>, count: u64) -> Option<ErrorKind> {
    let armed = fault.as_ref()?;
    if count < armed.at {
        return None;
    }
    let kind = armed.kind;
    if armed.times == Times::Once {
        *fault = None;
    }
    Some(kind)
}

fn crashed() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, "the faulty disk has crashed")
}
