//! Blobs as files in a folder.
//!
//! A blob is written under a temporary name, flushed, renamed, and the folder is
//! flushed: so a name that is there stands for a whole blob, whatever happens. What a
//! crash leaves under temporary names is removed when the folder is next prepared. However many
//! blobs are in use, few of their files are open (see `open_files.rs`).
//!
//! One process owns the folder (the process that opens it holds the lock of the log), so
//! create-if-absent is a check under a mutex here, and not in the file system, whose
//! rename replaces.

use std::{
    fmt,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    blobs::{Blob, BlobError, BlobWriter, Blobs, Created, check_name},
    fs::{Fs, FsFile, create_dir_durably, is_full, is_read_only, write_pages_at},
    open_files::{File, OPEN_FILES_MAX, OpenFiles},
    pages::Pages,
};

/// How much is gathered before it is written, in bytes: large enough that the calls cost
/// nothing, small enough that several writers at once do not matter.
const BUFFER_BYTES: usize = 1024 * 1024;

/// How much is written between two flushes, in bytes: in one flush at the end, a large
/// blob would keep the disk busy while the log waits with a flush of its own.
const SYNC_STEP_BYTES: u64 = 8 * 1024 * 1024;

/// What names of blobs in the making begin with; [`check_name`] refuses such names.
const TEMP_PREFIX: &str = ".new-";

/// A folder of blobs. Clones share it.
#[derive(Debug, Clone)]
pub struct DirBlobs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Held from looking whether a name is free until it is taken.
    naming: Mutex<()>,
    temp_next: AtomicU64,
    /// What is being read.
    files: Arc<OpenFiles>,
}

impl DirBlobs {
    /// A folder of blobs, which need not exist before [`Blobs::prepare`].
    pub fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self::with_open_files(fs, dir, OPEN_FILES_MAX)
    }

    /// The same; at most `open_files_max` files that are read are open at a time.
    pub fn with_open_files(fs: Arc<dyn Fs>, dir: PathBuf, open_files_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                files: OpenFiles::new(Arc::clone(&fs), open_files_max),
                fs,
                dir,
                naming: Mutex::new(()),
                temp_next: AtomicU64::new(1),
            }),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.dir.join(name)
    }
}

impl Blobs for DirBlobs {
    fn prepare(&self) -> Result<(), BlobError> {
        let Shared { fs, dir, .. } = &*self.shared;
        let at = |doing| {
            let name = dir.display().to_string();
            move |source| blob_error(doing, &name, source)
        };
        create_dir_durably(&**fs, dir).map_err(at("create the folder of"))?;
        for name in fs.list(dir).map_err(at("list"))? {
            if name.starts_with(TEMP_PREFIX) {
                fs.remove(&dir.join(&name)).map_err(at("tidy up"))?;
            }
        }
        Ok(())
    }

    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        check_name(name)?;
        let number = self.shared.temp_next.fetch_add(1, Ordering::Relaxed);
        let temp = self.path(&format!("{TEMP_PREFIX}{number}"));
        let failed = |source| blob_error("begin", name, source);
        let file = self.shared.fs.create(&temp).map_err(failed)?;
        Ok(Box::new(DirBlobWriter {
            shared: Arc::clone(&self.shared),
            name: name.to_owned(),
            temp: Some(temp),
            file,
            written: 0,
            past_cache: false,
            buffer: Pages::new(BUFFER_BYTES),
        }))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        check_name(name)?;
        let failed = |source| blob_error("open", name, source);
        let file = self.shared.files.open(self.path(name)).map_err(failed)?;
        let len = file.with(|file| file.len()).map_err(failed)?;
        Ok(Arc::new(DirBlob { name: name.to_owned(), len, file }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let Shared { fs, dir, .. } = &*self.shared;
        let at = dir.display().to_string();
        if !fs.exists(dir).map_err(|source| blob_error("look for", &at, source))? {
            return Ok(Vec::new());
        }
        let mut names = fs.list(dir).map_err(|source| blob_error("list", &at, source))?;
        names.retain(|name| name.starts_with(prefix) && !name.starts_with('.'));
        Ok(names)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        check_name(name)?;
        match self.shared.files.remove(&self.path(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map_err(|source| blob_error("delete", name, source)),
        }
    }
}

struct DirBlobWriter {
    shared: Arc<Shared>,
    name: String,
    /// The unfinished file; `None` once it has its real name.
    temp: Option<PathBuf>,
    file: Arc<dyn FsFile>,
    written: u64,
    /// Whether writes go past the system's cache.
    past_cache: bool,
    buffer: Pages,
}

impl fmt::Debug for DirBlobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirBlobWriter({})", self.name)
    }
}

impl DirBlobWriter {
    fn write_out(&mut self) -> Result<(), BlobError> {
        if self.past_cache && !self.buffer.is_full() {
            // The end need not be a whole page.
            self.past_cache = self.file.write_past_cache(false);
        }
        let bytes = self.buffer.bytes();
        let done = write_pages_at(&*self.file, &mut self.past_cache, &[bytes], self.written);
        done.map_err(|source| blob_error("write", &self.name, source))?;
        self.written += bytes.len() as u64;
        self.buffer.clear();
        // Past the cache, it is on its way already.
        if self.written.is_multiple_of(SYNC_STEP_BYTES) && !self.past_cache {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), BlobError> {
        let done = self.file.sync();
        done.map_err(|source| blob_error("flush", &self.name, source))
    }

    /// Gives the flushed file its name, unless the name is taken.
    fn take_name(&mut self, temp: &Path) -> io::Result<Created> {
        let Shared { fs, dir, .. } = &*self.shared;
        let path = dir.join(&self.name);
        let naming = self.shared.naming.lock();
        let _naming = naming.unwrap_or_else(PoisonError::into_inner);
        if fs.exists(&path)? {
            // It may be there only since a moment, and callers that hear of it may rely on it.
            fs.sync_dir(dir)?;
            return Ok(Created::AlreadyThere);
        }
        fs.rename(temp, &path)?;
        self.temp = None;
        fs.sync_dir(dir)?;
        Ok(Created::New)
    }
}

impl BlobWriter for DirBlobWriter {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobError> {
        while !bytes.is_empty() {
            let taken = self.buffer.fill(bytes);
            bytes = &bytes[taken..];
            if self.buffer.is_full() {
                self.write_out()?;
            }
        }
        Ok(())
    }

    fn read_rarely(&mut self) {
        self.past_cache = self.file.write_past_cache(true);
    }

    fn finish(mut self: Box<Self>) -> Result<Created, BlobError> {
        if !self.buffer.bytes().is_empty() {
            self.write_out()?;
        }
        self.sync()?;
        let temp = self.temp.clone().expect("only finish takes the name");
        let done = self.take_name(&temp);
        done.map_err(|source| blob_error("finish", &self.name, source))
    }
}

impl Drop for DirBlobWriter {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            // What cannot be removed now is removed when the folder is next opened.
            let _ = self.shared.fs.remove(temp);
        }
    }
}

#[derive(Debug)]
struct DirBlob {
    name: String,
    len: u64,
    file: Arc<File>,
}

impl Blob for DirBlob {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let done = self.file.with(|file| file.read_exact_at(buf, offset));
        done.map_err(|source| blob_error("read", &self.name, source))
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> Result<bool, BlobError> {
        let done = self.file.with(|file| file.read_cached_at(buf, offset));
        done.map_err(|source| blob_error("read", &self.name, source))
    }
}

fn blob_error(doing: &'static str, name: &str, source: io::Error) -> BlobError {
    let name = name.to_owned();
    match source.kind() {
        ErrorKind::NotFound => BlobError::Missing { name },
        _ if is_full(&source) => BlobError::Full,
        _ if is_read_only(&source) => BlobError::ReadOnly,
        _ => BlobError::Io { doing, name, source },
    }
}
