//! A log and blobs in memory, shared by all clones.
//!
//! They keep the contracts of [`crate::log`] and [`crate::blobs`] the way a distributed
//! engine would: no opener is locked out, a later taker fences the earlier one, and the
//! answer to an append can get lost. Tests of what stands above use them for speed and
//! for these answers, which files do not give.
//!
//! Not here: durability. All that a process can lose is its writer.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use crate::{
    blobs::{Blob, BlobError, BlobWriter, Blobs, Created, check_name},
    log::{AppendError, Floor, Log, LogError, LogReader, LogWriter, Lsn, Prepare, TakeOver, Visit},
};

/// The largest frame of a [`MemoryLog`], in bytes: as large as a [`crate::file_log`]
/// takes by default, so that tests meet one limit.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024 - 64;

/// What the next append of a [`MemoryLog`] shall answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFault {
    /// [`AppendError::Full`]; nothing is stored.
    Full,
    /// [`AppendError::Unknown`], and the frame is stored: the answer got lost.
    UnknownStored,
    /// [`AppendError::Unknown`], and the frame is not stored: the question got lost.
    UnknownLost,
    /// [`AppendError::Fenced`], as if another had taken over.
    Fenced,
}

/// A log in memory. Clones are the same log.
#[derive(Debug, Clone, Default)]
pub struct MemoryLog {
    state: Arc<Mutex<LogState>>,
}

#[derive(Default)]
struct LogState {
    frames: VecDeque<Bytes>,
    /// How many frames were trimmed, so the number of the first kept one is one more.
    trimmed: u64,
    /// The term of the one who may append.
    term: u64,
    fault: Option<AppendFault>,
}

impl LogState {
    fn first(&self) -> Lsn {
        Lsn(self.trimmed + 1)
    }

    fn next(&self) -> Lsn {
        Lsn(self.trimmed + 1 + self.frames.len() as u64)
    }

    fn trim(&mut self, below: Lsn) {
        let dead = below.0.saturating_sub(self.first().0);
        let dead = usize::try_from(dead).map_or(self.frames.len(), |n| n.min(self.frames.len()));
        self.frames.drain(..dead);
        self.trimmed += dead as u64;
    }
}

impl fmt::Debug for LogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogState")
            .field("first", &self.first())
            .field("next", &self.next())
            .field("term", &self.term)
            .finish()
    }
}

impl MemoryLog {
    /// An empty log without an owner.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the next append answer this, once.
    pub fn fail_next_append(&self, fault: AppendFault) {
        lock(&self.state).fault = Some(fault);
    }
}

impl Log for MemoryLog {
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError> {
        let mut state = lock(&self.state);
        if state.frames.is_empty() && state.next() < floor.first_needed {
            state.trimmed = floor.first_needed.before().0;
        }
        if state.first() > floor.first_needed {
            return Err(LogError::Damaged {
                place: "memory".to_owned(),
                lsn: floor.first_needed,
                why: format!("the log begins at frame {}", state.first()),
            });
        }
        state.trim(floor.first_needed);
        if state.next() < floor.first_needed {
            state.trimmed = floor.first_needed.before().0;
        }
        state.term = state.term.max(floor.term) + 1;
        let frames: Vec<Bytes> = state.frames.iter().cloned().collect();
        Ok(TakeOver {
            writer: Box::new(MemoryLogWriter {
                state: Arc::clone(&self.state),
                term: state.term,
                next: state.next(),
                failed: None,
            }),
            reader: Box::new(MemoryLogReader { first: state.first(), frames }),
            first: state.first(),
            next: state.next(),
            term: state.term,
            torn: None,
        })
    }
}

#[derive(Debug)]
struct MemoryLogReader {
    first: Lsn,
    frames: Vec<Bytes>,
}

impl LogReader for MemoryLogReader {
    fn replay(&mut self, from: Lsn, visit: &mut Visit<'_>) -> Result<(), LogError> {
        if from < self.first {
            return Err(LogError::Trimmed { first: self.first });
        }
        let skip = usize::try_from(from.0 - self.first.0).unwrap_or(usize::MAX);
        let mut lsn = from;
        for frame in self.frames.iter().skip(skip) {
            visit(lsn, frame.clone()).map_err(|_| LogError::Stopped)?;
            lsn = lsn.next();
        }
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryLogWriter {
    state: Arc<Mutex<LogState>>,
    term: u64,
    next: Lsn,
    /// What this writer answers for ever, once it failed.
    failed: Option<AppendFault>,
}

impl MemoryLogWriter {
    /// The shared log, if this writer still owns it.
    fn owned(&self) -> Result<MutexGuard<'_, LogState>, AppendError> {
        let state = lock(&self.state);
        match self.failed {
            None | Some(AppendFault::Full) if state.term == self.term => Ok(state),
            Some(AppendFault::UnknownStored | AppendFault::UnknownLost) => Err(unknown()),
            _ => Err(AppendError::Fenced { next: self.next }),
        }
    }
}

impl LogWriter for MemoryLogWriter {
    fn next(&self) -> Lsn {
        self.next
    }

    fn frame_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }

    fn is_near(&self) -> bool {
        true
    }

    fn append(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        let mut state = self.owned()?;
        if at != self.next {
            return Err(AppendError::WrongPlace { next: self.next });
        }
        if frame.len() > FRAME_BYTES_MAX {
            return Err(AppendError::TooLarge { max: FRAME_BYTES_MAX });
        }
        let fault = state.fault.take();
        if matches!(fault, None | Some(AppendFault::UnknownStored)) {
            state.frames.push_back(frame.clone());
        }
        drop(state);
        self.failed = fault;
        match fault {
            None => {
                self.next = at.next();
                Ok(())
            }
            Some(AppendFault::Full) => Err(AppendError::Full),
            Some(AppendFault::Fenced) => Err(AppendError::Fenced { next: self.next }),
            Some(AppendFault::UnknownStored | AppendFault::UnknownLost) => Err(unknown()),
        }
    }

    fn flush(&mut self) -> Result<(), AppendError> {
        self.owned().map(drop)
    }

    fn trim(&mut self, below: Lsn) -> Result<(), AppendError> {
        let mut state = self.owned()?;
        if below > self.next {
            return Err(AppendError::WrongPlace { next: self.next });
        }
        state.trim(below);
        Ok(())
    }

    fn preparer(&self) -> Option<Arc<dyn Prepare>> {
        None
    }
}

/// How the next blob begun in a [`MemoryBlobs`] shall fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateFault {
    /// Beginning answers [`BlobError::Full`].
    Full,
    /// Finishing answers [`BlobError::Io`], and the blob is not there.
    FinishLost,
    /// Finishing answers [`BlobError::Io`], and the blob is there.
    FinishStored,
}

/// Blobs in memory. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryBlobs {
    state: Arc<Mutex<BlobsState>>,
}

#[derive(Default)]
struct BlobsState {
    blobs: BTreeMap<String, Bytes>,
    fault: Option<CreateFault>,
}

impl fmt::Debug for MemoryBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.state).blobs.keys()).finish()
    }
}

impl MemoryBlobs {
    /// A store without blobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the next blob begun fail like this, once.
    pub fn fail_next_create(&self, fault: CreateFault) {
        lock(&self.state).fault = Some(fault);
    }
}

impl Blobs for MemoryBlobs {
    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        check_name(name)?;
        let fault = lock(&self.state).fault.take();
        if fault == Some(CreateFault::Full) {
            return Err(BlobError::Full);
        }
        Ok(Box::new(MemoryBlobWriter {
            state: Arc::clone(&self.state),
            name: name.to_owned(),
            bytes: Vec::new(),
            fault,
        }))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        let bytes = lock(&self.state).blobs.get(name).cloned();
        let bytes = bytes.ok_or_else(|| BlobError::Missing { name: name.to_owned() })?;
        Ok(Arc::new(MemoryBlob { name: name.to_owned(), bytes }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let state = lock(&self.state);
        let names = state.blobs.keys();
        Ok(names.filter(|n| n.starts_with(prefix)).cloned().collect())
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        lock(&self.state).blobs.remove(name);
        Ok(())
    }
}

struct MemoryBlobWriter {
    state: Arc<Mutex<BlobsState>>,
    name: String,
    bytes: Vec<u8>,
    fault: Option<CreateFault>,
}

impl fmt::Debug for MemoryBlobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBlobWriter({})", self.name)
    }
}

impl BlobWriter for MemoryBlobWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Created, BlobError> {
        let this = *self;
        let failed = BlobError::Io {
            doing: "finish",
            name: this.name.clone(),
            source: io::ErrorKind::TimedOut.into(),
        };
        if this.fault == Some(CreateFault::FinishLost) {
            return Err(failed);
        }
        let mut state = lock(&this.state);
        if state.blobs.contains_key(&this.name) {
            return Ok(Created::AlreadyThere);
        }
        state.blobs.insert(this.name, this.bytes.into());
        match this.fault {
            Some(_) => Err(failed),
            None => Ok(Created::New),
        }
    }
}

#[derive(Debug)]
struct MemoryBlob {
    name: String,
    bytes: Bytes,
}

impl Blob for MemoryBlob {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let range = usize::try_from(offset)
            .ok()
            .and_then(|start| Some(start..start.checked_add(buf.len())?))
            .and_then(|range| self.bytes.get(range));
        let found = range.ok_or_else(|| BlobError::Io {
            doing: "read",
            name: self.name.clone(),
            source: io::ErrorKind::UnexpectedEof.into(),
        })?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> Result<bool, BlobError> {
        self.read_at(buf, offset).map(|()| true)
    }
}

fn unknown() -> AppendError {
    AppendError::Unknown(io::ErrorKind::TimedOut.into())
}

/// Locks; a panic of another test thread leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
