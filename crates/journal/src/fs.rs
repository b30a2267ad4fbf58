//! The only access to the local file system.
//!
//! Everything the journal does to files goes through [`Fs`] and [`FsFile`], so that
//! tests can put a disk behind them which tears, loses, corrupts, fills up and slows
//! down ([`crate::faulty`]). [`DiskFs`] is the real one and adds nothing: one call here
//! is one system call, wherever the system allows it.
//!
//! Not here: buffering, retries, paths' meaning. Those who call know what a failure
//! means for their data; this file cannot.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, IoSlice, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// A file system, as much of it as the journal needs: the fewer calls, the fewer
/// faults a test has to be able to make.
pub trait Fs: Send + Sync + Debug {
    /// Opens a file that exists, to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn FsFile>>;
    /// Opens a file that exists, to read only: for examining a store that may not be
    /// changed, or cannot be.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn FsFile>>;
    /// Makes a new, empty file; [`ErrorKind::AlreadyExists`] if the name is taken, so
    /// that nothing is ever overwritten by mistake.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn FsFile>>;
    /// Renames a file, replacing what has the new name. Survives power loss only after
    /// [`Fs::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Those who have it open may go on using it.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The names of the files in a folder, sorted, so that every run sees one order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes a folder and those above it; fine if it is there.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes all creations, renames and removals in this folder survive power loss.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the exclusive lock that this file stands for, making the file if needed;
    /// [`ErrorKind::WouldBlock`] while another holds it. Dropping frees it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn FsLock>>;
    /// Whether a file or folder has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// How many bytes can still be written to the disk that holds this folder; `u64::MAX` if
    /// that is not known.
    fn free_bytes(&self, _dir: &Path) -> u64 {
        u64::MAX
    }
}

/// An open file, used by offsets only, so that readers and the writer share it without
/// sharing a cursor.
pub trait FsFile: Send + Sync + Debug {
    /// Reads what there is at `offset`, perhaps less than asked for; 0 at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Fills `buf` from `offset` on if the system has all of that in memory: true if so. Never
    /// waits for the disk.
    fn read_cached_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<bool> {
        Ok(false)
    }
    /// Writes the parts one after the other from `offset` on, as few calls as possible.
    /// After an error any piece of them may have been written.
    fn write_all_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()>;
    /// Makes all that was written survive power loss (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// Asks that writes go past the memory in which the system keeps files, or through it
    /// again, and tells whether they will go past it. Then each must cover whole pages, in
    /// the file and in memory, or is refused as [`ErrorKind::InvalidInput`].
    fn write_past_cache(&self, _past: bool) -> bool {
        false
    }
    /// Writes whole pages so that they survive power loss when it returns; that says nothing of
    /// what was written before. Fastest if they start at a page in memory too.
    fn write_durable_at(&self, pages: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(&[pages], offset)?;
        self.sync()
    }
    /// How many bytes the file has.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` from `offset` on; [`ErrorKind::UnexpectedEof`] if the file ends
    /// before.
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// A lock that is held until it is dropped.
pub trait FsLock: Send + Sync + Debug {}

/// The file system of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFs;

/// A file and where its cursor stands. Only `write_all_at` uses the cursor, so an
/// append behind the last one is a single `writev`, without a seek before it.
#[derive(Debug)]
struct DiskFile {
    file: File,
    /// `None` when an error left it who knows where.
    cursor: Mutex<Option<u64>>,
}

#[derive(Debug)]
struct DiskLock {
    /// Closing the file frees the lock, also when the process is killed.
    _file: File,
}

impl FsLock for DiskLock {}

impl DiskFile {
    fn shared(file: File) -> Arc<dyn FsFile> {
        Arc::new(Self { file, cursor: Mutex::new(Some(0)) })
    }
}

/// File descriptors kept by for the files of stores, so that a process whose connections have
/// taken all others can still write its log: enough for a log file, a segment with its index,
/// a checkpoint, a manifest, their folders, and a segment that is read.
const SPARE_FILES: usize = 8;

/// The spare descriptors of this process, to which the limit applies as a whole. Filled when a
/// store is locked, given up one by one when the system refuses another, and filled again
/// with the next file that is opened without them.
static SPARES: Mutex<Vec<File>> = Mutex::new(Vec::new());

fn fill_spares() {
    let mut spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner);
    while spares.len() < SPARE_FILES {
        // Any file does; if there is none, all goes on without.
        let Ok(spare) = File::open("/") else { return };
        spares.push(spare);
    }
}

/// Opens a file, with a spare descriptor if the system has no other.
fn with_spare(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    loop {
        match open() {
            Err(error) if is_out_of_files(&error) => {
                let spare = SPARES.lock().unwrap_or_else(PoisonError::into_inner).pop();
                if spare.is_none() {
                    return Err(error);
                }
            }
            Ok(file) => {
                let missing = SPARES.try_lock().is_ok_and(|spares| spares.len() < SPARE_FILES);
                if missing {
                    fill_spares();
                }
                return Ok(file);
            }
            failed => return failed,
        }
    }
}

impl Fs for DiskFs {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        let open = || OpenOptions::new().read(true).write(true).open(path);
        Ok(DiskFile::shared(with_spare(open)?))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        Ok(DiskFile::shared(with_spare(|| File::open(path))?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        let create = || OpenOptions::new().read(true).write(true).create_new(true).open(path);
        Ok(DiskFile::shared(with_spare(create)?))
    }

    #[cfg(target_os = "linux")]
    fn free_bytes(&self, dir: &Path) -> u64 {
        rustix::fs::statvfs(dir)
            .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                // A name that is not UTF-8 is none of ours.
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        with_spare(|| File::open(dir))?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FsLock>> {
        fill_spares();
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(DiskLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }
}

impl FsFile for DiskFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&self.file, buf, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<bool> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        while !buf.is_empty() {
            let bufs = &mut [io::IoSliceMut::new(buf)];
            match preadv2(&self.file, bufs, offset, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                // Not in memory, or a system or file system that cannot tell.
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn write_all_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &self.file;
        if *cursor != Some(offset) {
            file.seek(SeekFrom::Start(offset))?;
        }
        // Unknown until the whole is written: an early return must not leave a wrong one.
        *cursor = None;
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = slices.as_mut_slice();
        // Drops empty parts at the front, which would look like a write of nothing.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let written: usize = parts.iter().map(|part| part.len()).sum();
        *cursor = Some(offset + written as u64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn write_past_cache(&self, past: bool) -> bool {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let set = fcntl_getfl(&self.file).and_then(|mut flags| {
            flags.set(OFlags::DIRECT, past);
            fcntl_setfl(&self.file, flags)
        });
        past && set.is_ok()
    }

    #[cfg(target_os = "linux")]
    fn write_durable_at(&self, pages: &[u8], offset: u64) -> io::Result<()> {
        use rustix::io::{Errno, ReadWriteFlags, pwritev2};
        // One call past the cache, since a write into the cache is only copied to the disk later
        // by the flush, page by page.
        self.write_past_cache(true);
        let bufs = &[IoSlice::new(pages)];
        let written = pwritev2(&self.file, bufs, offset, ReadWriteFlags::DSYNC);
        self.write_past_cache(false);
        match written {
            Ok(bytes) if bytes == pages.len() => Ok(()),
            // Only a part of it; or a system or file system that cannot, or wants it otherwise
            // than in pages. Then all of it goes the usual way.
            Ok(_) | Err(Errno::INTR | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.write_all_at(&[pages], offset)?;
                self.sync()
            }
            Err(error) => Err(error.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Writes whole pages past the cache, if `past`, which turns false when the file system wants
/// it otherwise; then they go through it.
pub(crate) fn write_pages_at(
    file: &dyn FsFile,
    past: &mut bool,
    parts: &[&[u8]],
    offset: u64,
) -> io::Result<()> {
    match file.write_all_at(parts, offset) {
        Err(error) if *past && error.kind() == ErrorKind::InvalidInput => {
            *past = file.write_past_cache(false);
            file.write_all_at(parts, offset)
        }
        done => done,
    }
}

/// Makes a folder and those above it so that it survives power loss: each new name is in a
/// folder that has to be flushed too.
pub(crate) fn create_dir_durably(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let mut new = Vec::new();
    for each in dir.ancestors().take_while(|each| !each.as_os_str().is_empty()) {
        if fs.exists(each)? {
            break;
        }
        new.push(each);
    }
    if new.is_empty() {
        return Ok(());
    }
    fs.create_dir(dir)?;
    for each in new {
        match each.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => fs.sync_dir(parent)?,
            Some(_) => fs.sync_dir(Path::new("."))?,
            None => {}
        }
    }
    Ok(())
}

/// Whether an error says that the disk has no room left, which time or an operator can
/// heal, unlike all others.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// The numbers by which every Unix says that the process, or the system, has too many files
/// open.
pub(crate) const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// Whether an error says that no more files can be opened, which passes when others close.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// Whether an error says that we may not write here at all.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_land_one_after_the_other_wherever_the_cursor_was() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("a");
        let file = DiskFs.create(&path).expect("create");
        file.write_all_at(&[b"", b"ab", b"", b"cd"], 0).expect("write");
        file.write_all_at(&[b"ef"], 4).expect("write behind");
        file.write_all_at(&[b"X"], 1).expect("write before");
        file.write_all_at(&[], 3).expect("write nothing");
        let mut all = [0; 6];
        file.read_exact_at(&mut all, 0).expect("read");
        assert_eq!(&all, b"aXcdef");
        assert_eq!(file.len().expect("len"), 6);
        let past = file.read_exact_at(&mut all, 1).expect_err("too long");
        assert_eq!(past.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn durable_pages_land_between_others_from_anywhere_in_memory() {
        let dir = tempfile::tempdir().expect("temp dir");
        let file = DiskFs.create(&dir.path().join("a")).expect("create");
        file.write_all_at(&[&[b'.'; 4 * 4096]], 0).expect("write");
        let memory = vec![b'x'; 3 * 4096];
        // Both from the start of a page and not: one of the two is refused past the cache.
        let start = memory.as_ptr().align_offset(4096).min(4096);
        for start in [start, start + 1] {
            file.write_durable_at(&memory[start..start + 4096], 2 * 4096).expect("write");
            file.write_all_at(&[b"yy"], 1).expect("write through the cache again");
            let mut all = vec![0; 4 * 4096];
            file.read_exact_at(&mut all, 0).expect("read");
            let expected = [&b".yy"[..], &[b'.'; 8189], &[b'x'; 4096], &[b'.'; 4096]].concat();
            assert!(all == expected, "from {start}");
        }
    }

    #[test]
    fn names_are_never_taken_twice_and_listed_in_order() {
        let dir = tempfile::tempdir().expect("temp dir");
        DiskFs.create(&dir.path().join("b")).expect("b");
        DiskFs.create(&dir.path().join("a")).expect("a");
        DiskFs.create_dir(&dir.path().join("sub/sub")).expect("folder");
        let again = DiskFs.create(&dir.path().join("a")).expect_err("taken");
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(DiskFs.list(dir.path()).expect("list"), ["a", "b"]);
        DiskFs.sync_dir(dir.path()).expect("sync");
    }

    #[test]
    fn l1_every_folder_that_holds_a_new_one_is_flushed() {
        let fs = crate::faulty::FaultyFs::new(1);
        let dir = Path::new("/a/b/c");
        create_dir_durably(&fs, dir).expect("created");
        assert_eq!((fs.syncs(), fs.exists(dir).expect("look")), (3, true));
        create_dir_durably(&fs, dir).expect("there already");
        create_dir_durably(&fs, Path::new("/a/d")).expect("created");
        assert_eq!(fs.syncs(), 4);
        // Also where the name has no folder before it.
        let here = Path::new("relative");
        create_dir_durably(&fs, here).expect("created");
        assert_eq!(fs.syncs(), 5);
    }

    #[test]
    fn a_lock_has_one_holder_at_a_time() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("LOCK");
        let held = DiskFs.lock(&path).expect("first");
        let refused = DiskFs.lock(&path).expect_err("held");
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        drop(held);
        DiskFs.lock(&path).expect("free again");
    }
}
