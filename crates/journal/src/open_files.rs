//! A bounded number of open files for any number of blobs.
//!
//! A blob that is read opens its file; when more than [`OpenFiles::max`] are open, one that
//! was not used lately is closed, and opens again when it is next read. So history of any
//! length needs the same few file descriptors.
//!
//! The rule: a file that is deleted while its blob is in use is opened first and stays so
//! until the blob goes, because it could not be opened again.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::fs::{Fs, FsFile};
use crate::marks::lock;

/// Files of blobs that are open at the same time, if nothing else is said: a segment in use
/// needs two, and a few dozen readers of history are rarely in more than as many segments.
pub const OPEN_FILES_MAX: usize = 128;

/// Which files are open.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    fs: Arc<dyn Fs>,
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Those that are open, in the order in which they are looked at to close one.
    open: VecDeque<Weak<File>>,
    /// Those that may be read, by path.
    known: HashMap<PathBuf, Weak<File>>,
}

/// A file that is open while it is used.
#[derive(Debug)]
pub(crate) struct File {
    files: Arc<OpenFiles>,
    path: PathBuf,
    file: Mutex<Option<Arc<dyn FsFile>>>,
    /// Whether it was used since it was last looked at.
    used: AtomicBool,
    /// It has no name any more, so it must stay open.
    pinned: AtomicBool,
}

impl OpenFiles {
    pub(crate) fn new(fs: Arc<dyn Fs>, max: usize) -> Arc<Self> {
        Arc::new(Self { fs, max: max.max(1), state: Mutex::default() })
    }

    /// Opens a file that exists, to read it.
    pub(crate) fn open(self: &Arc<Self>, path: PathBuf) -> io::Result<Arc<File>> {
        let known = lock(&self.state).known.get(&path).and_then(Weak::upgrade);
        let file = known.filter(|file| !file.pinned.load(Ordering::Acquire));
        let file = file.unwrap_or_else(|| {
            Arc::new(File {
                files: Arc::clone(self),
                path: path.clone(),
                file: Mutex::default(),
                used: AtomicBool::new(true),
                pinned: AtomicBool::new(false),
            })
        });
        file.with(|_| Ok(()))?;
        lock(&self.state).known.insert(path, Arc::downgrade(&file));
        Ok(file)
    }

    /// Removes a file. Those who read it go on.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        let known = lock(&self.state).known.get(path).and_then(Weak::upgrade);
        if let Some(file) = known {
            // First, so that it is not closed once it is open.
            file.pinned.store(true, Ordering::Release);
            match file.with(|_| Ok(())) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    file.pinned.store(false, Ordering::Release);
                    return Err(error);
                }
                _ => {}
            }
        }
        self.fs.remove(path)
    }

    /// Notes that a file was opened, and closes others that are too many.
    fn opened(&self, file: &Arc<File>) {
        // Dropped after the lock: the last reference to a file takes it too.
        let mut seen = Vec::new();
        let mut state = lock(&self.state);
        state.open.push_back(Arc::downgrade(file));
        // Each is looked at twice at most: the first time it may only have been used.
        let mut looks = 2 * state.open.len();
        while state.open.len() > self.max && looks > 0 {
            looks -= 1;
            let Some(oldest) = state.open.pop_front() else { break };
            let Some(other) = oldest.upgrade() else { continue };
            if Arc::ptr_eq(&other, file) || other.used.swap(false, Ordering::Relaxed) {
                state.open.push_back(oldest);
            } else if let Ok(mut held) = other.file.try_lock() {
                if !other.pinned.load(Ordering::Acquire) {
                    *held = None;
                }
            } else {
                // It is being opened.
                state.open.push_back(oldest);
            }
            seen.push(other);
        }
        drop(state);
    }
}

impl File {
    /// Does something with the file, which is opened for it if it is not.
    pub(crate) fn with<T>(
        self: &Arc<Self>,
        act: impl FnOnce(&dyn FsFile) -> io::Result<T>,
    ) -> io::Result<T> {
        self.used.store(true, Ordering::Relaxed);
        let mut held = lock(&self.file);
        if let Some(file) = &*held {
            let file = Arc::clone(file);
            drop(held);
            return act(&*file);
        }
        let file = self.files.fs.open_read(&self.path)?;
        *held = Some(Arc::clone(&file));
        drop(held);
        self.files.opened(self);
        act(&*file)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let mut state = lock(&self.files.state);
        if state.known.get(&self.path).is_some_and(|known| known.strong_count() == 0) {
            state.known.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::FaultyFs;

    fn files(max: usize, count: usize) -> (FaultyFs, Arc<OpenFiles>, Vec<PathBuf>) {
        let fs = FaultyFs::new(1);
        fs.create_dir(Path::new("/d")).expect("folder");
        let paths: Vec<_> = (0..count).map(|n| PathBuf::from(format!("/d/{n}"))).collect();
        for (number, path) in paths.iter().enumerate() {
            let file = fs.create(path).expect("create");
            file.write_all_at(&[&[number as u8; 8]], 0).expect("write");
        }
        let open = OpenFiles::new(Arc::new(fs.clone()), max);
        (fs, open, paths)
    }

    fn first_byte(file: &Arc<File>) -> io::Result<u8> {
        let mut byte = [0];
        file.with(|file| file.read_exact_at(&mut byte, 0))?;
        Ok(byte[0])
    }

    #[test]
    fn h5_any_number_of_files_is_read_through_a_few_descriptors() {
        let (fs, open, paths) = files(4, 40);
        let all: Vec<_> = paths.iter().map(|path| open.open(path.clone()).expect("open")).collect();
        for round in 0..3 {
            for (number, file) in all.iter().enumerate() {
                assert_eq!(first_byte(file).expect("read"), number as u8, "round {round}");
                assert!(fs.open_files() <= 4, "{} are open", fs.open_files());
            }
        }
        drop(all);
        assert_eq!(fs.open_files(), 0);
        assert!(lock(&open.state).known.is_empty());
    }

    #[test]
    fn a_file_in_steady_use_stays_open_while_others_come_and_go() {
        let (fs, open, paths) = files(3, 20);
        let all: Vec<_> = paths.iter().map(|path| open.open(path.clone()).expect("open")).collect();
        let before = fs.opens();
        for file in &all[1..] {
            first_byte(&all[0]).expect("read");
            first_byte(file).expect("read");
        }
        assert!(fs.opens() - before <= 25, "{} were opened", fs.opens() - before);
    }

    #[test]
    fn a_removed_file_is_read_to_its_end_by_those_who_have_it() {
        let (fs, open, paths) = files(2, 10);
        let kept = open.open(paths[0].clone()).expect("open");
        for path in &paths[1..] {
            first_byte(&open.open(path.clone()).expect("open")).expect("read");
        }
        open.remove(&paths[0]).expect("remove");
        assert!(!fs.exists(&paths[0]).expect("look"));
        for path in &paths[1..] {
            first_byte(&open.open(path.clone()).expect("open")).expect("read");
            assert_eq!(first_byte(&kept).expect("still there"), 0);
        }
        assert!(open.open(paths[0].clone()).is_err(), "it has no name any more");
    }
}
