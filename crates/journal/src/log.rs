//! The log: the newest part of a journal, as numbered frames.
//!
//! A log appends a frame at exactly the place it is given, or says why not; it hands
//! back what it holds when it is taken over; and it forgets what is no longer needed.
//! One append is in flight at a time, so everything here blocks: an append may take 50 ms, and
//! only one that is near ([`LogWriter::is_near`]) is made by threads that have other work. An
//! engine behind a network brings its own runtime.
//!
//! # The contract
//!
//! [`crate::contract::check_log`] proves it for an implementation.
//!
//! - **One run.** Frames are numbered 1, 2, 3 … without a hole. A log holds the run
//!   from `first` up to, not including, `next`.
//! - **One writer.** While a writer lives, a second [`Log::take_over`] either is refused
//!   ([`LogError::Locked`]), or succeeds and fences the first, whose every later call
//!   answers [`AppendError::Fenced`] and changes nothing.
//! - **Terms.** Each take over has a term higher than all before that left a trace.
//! - **Looking changes nothing.** Taking over changes nothing before
//!   [`LogWriter::settle`], so who finds that it cannot go on leaves the log as it was; but a log
//!   that fences the owner before writes down that it did.
//! - **What is replayed stays.** All that a take over hands out survives power loss
//!   once it is settled: no reader acts on a frame that a crash could still take back.
//! - **Exact place.** `append(at)` appends only if `at` is `next`; otherwise
//!   [`AppendError::WrongPlace`], and nothing is changed.
//! - **Written, flushed.** After `append` the frame survives `kill -9`; after `flush`
//!   all frames appended before survive power loss. After a crash the log holds every
//!   flushed frame that was not trimmed, then a prefix, perhaps empty, of the frames
//!   appended after: never a frame without all those before it.
//! - **Dead stays dead.** A frame that a take over did not hand out (a torn end) is
//!   never handed out by a later one.
//! - **Damage is reported.** If a frame is missing that was flushed and later ones prove
//!   it, take over answers [`LogError::Damaged`] and changes nothing.
//!
//! Not here: what is in a frame. To a log it is bytes.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;

/// The number of a frame in its log: 1, 2, 3 …; 0 is not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// No frame; what comes before the first.
    pub const NONE: Self = Self(0);
    /// The first frame of a new log.
    pub const FIRST: Self = Self(1);

    /// The highest number that a frame may have: 2^62 frames are never written, so one that
    /// claims more is damaged.
    pub const MAX: Self = Self(1 << 62);

    /// The number of the frame after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("2^64 frames are never written"))
    }

    /// The number of the frame before this one; [`Lsn::NONE`] stays.
    #[must_use]
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The highest term that a frame may have: a log is taken over less than 2^62 times.
pub(crate) const TERM_MAX: u64 = 1 << 62;

/// What the one who takes over knows from elsewhere (its manifest), since a log need not
/// record its own trimming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// The first frame still needed. All before it were flushed, and their content is
    /// safe elsewhere; those at and after it must be in the log.
    pub first_needed: Lsn,
    /// The last frame that is known to have been flushed, so that it needs no second flush;
    /// [`Lsn::NONE`] if nothing is known.
    pub flushed: Lsn,
    /// The term the taker knows of; the new one is higher, even if the log shows no
    /// trace of it.
    pub term: u64,
}

impl Default for Floor {
    /// The floor of a store that never trimmed anything.
    fn default() -> Self {
        Self { first_needed: Lsn::FIRST, flushed: Lsn::NONE, term: 0 }
    }
}

/// Where the newest part of a journal is kept. See the module for the contract.
pub trait Log: Send + Sync + fmt::Debug {
    /// Becomes the one who may append, and learns where the log stands.
    ///
    /// A torn end is reported, and cut by [`LogWriter::settle`]. On any error the log is unchanged
    /// and its owner still owns it.
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError>;

    /// The names of what lies where a new log would be, of whatever store: nothing may.
    fn remains(&self) -> Result<Vec<String>, LogError> {
        Ok(Vec::new())
    }

    /// Whether an owner that was fenced may live on somewhere without knowing it. Then blobs have
    /// the term in their names, so that none of its leftovers is in the way of the next owner.
    fn is_shared(&self) -> bool {
        false
    }
}

/// What taking over a log gives.
#[derive(Debug)]
pub struct TakeOver {
    /// Appends; owning a log is holding this.
    pub writer: Box<dyn LogWriter>,
    /// Reads what was there at the time of taking over.
    pub reader: Box<dyn LogReader>,
    /// The first frame that can be replayed; equals `next` if there is none.
    pub first: Lsn,
    /// The number of the next frame to be appended.
    pub next: Lsn,
    /// The term of this writer.
    pub term: u64,
    /// What is cut off the end because it was not completely written, if anything.
    pub torn: Option<Torn>,
}

/// An unfinished end that is cut. None of it is known to have been reported as flushed; but if
/// it is one frame that the medium damaged afterwards, it looks the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The frame that was not complete; the next one appended gets its number.
    pub at: Lsn,
    /// How many bytes were dropped, as far as is known.
    pub bytes: u64,
    /// Where it was, for people.
    pub place: String,
}

/// Returned by a visitor that has seen enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop;

/// Reads the frames that were in the log when it was taken over. Meant for opening: it
/// does not see what the writer appends, and what the writer trims it may lose.
pub trait LogReader: Send + fmt::Debug {
    /// Visits each frame from `from` up to the last one seen at take over, in order.
    ///
    /// [`LogError::Trimmed`] before the first visit if `from` is below what is kept;
    /// nothing is visited if it is past the end; [`LogError::Stopped`] if the visitor
    /// stopped. May be called again.
    fn replay(&mut self, from: Lsn, visit: &mut Visit<'_>) -> Result<(), LogError>;
}

/// What [`LogReader::replay`] calls with each frame.
pub type Visit<'a> = dyn FnMut(Lsn, Bytes) -> Result<(), Stop> + 'a;

/// Appends frames. After [`AppendError::Unknown`] every later call answers the same:
/// drop it and take over again, and replay decides what was appended.
pub trait LogWriter: Send + fmt::Debug {
    /// The number of the next frame.
    fn next(&self) -> Lsn;
    /// The largest frame that can be appended, in bytes.
    fn frame_bytes_max(&self) -> usize;
    /// Whether an append is little more than a copy to this machine. Only then may it run in a
    /// thread that serves others; all appends to any other log run in a thread of their own.
    fn is_near(&self) -> bool {
        false
    }
    /// The least time between two appends under load, so that more frames share one.
    fn linger(&self) -> Duration {
        Duration::ZERO
    }
    /// Frames after which what is in them is written out, however small they are: replaying each
    /// takes time.
    fn replayed_frames_max(&self) -> usize {
        usize::MAX
    }
    /// Proves that this writer still owns the log; [`AppendError::Fenced`] if it does not. Nothing
    /// that a manifest no longer needs is deleted before this succeeded after storing it.
    fn confirm(&mut self) -> Result<(), AppendError> {
        Ok(())
    }
    /// Makes what was handed out safe from power loss, and kills what was not. The first
    /// change that taking over makes; appending does it too.
    fn settle(&mut self) -> Result<(), LogError> {
        Ok(())
    }
    /// Appends a frame at exactly this place. When it returns, the frame survives
    /// `kill -9`.
    fn append(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError>;
    /// When it returns, all frames appended so far survive power loss.
    fn flush(&mut self) -> Result<(), AppendError>;
    /// What flushes all frames appended so far while this writer goes on, which then need not wait
    /// for it; `None` if this log has no such way, or has failed.
    fn flush_apart(&self) -> Option<Box<dyn FlushApart>> {
        None
    }
    /// Appends a frame and flushes, in one step where that is faster.
    fn append_flushed(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.append(at, frame)?;
        self.flush()
    }
    /// Appends a frame whose entries free room, flushed: it may use the room that is kept for
    /// such frames when there is no other.
    fn append_freeing(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.append_flushed(at, frame)
    }
    /// Appends neighbouring frames, the first at exactly this place, `flushed` or not: in one step
    /// where that is faster. Returns how many were appended, from the first on, and what stopped it
    /// before the last; after [`AppendError::Unknown`] it is unknown how many more were.
    fn append_all(
        &mut self,
        at: Lsn,
        frames: &[Bytes],
        flushed: bool,
    ) -> (usize, Result<(), AppendError>) {
        let mut lsn = at;
        for (count, frame) in frames.iter().enumerate() {
            if let Err(error) = self.append(lsn, frame) {
                return (count, Err(error));
            }
            lsn = lsn.next();
        }
        (frames.len(), if flushed { self.flush() } else { Ok(()) })
    }
    /// Says that frames below are no longer needed, and gives their room back.
    ///
    /// The caller has recorded `below` as its [`Floor`], durably, before it calls: a log
    /// may drop them at once. Flushes first if `below` is not flushed yet. Beyond the
    /// end it is [`AppendError::WrongPlace`]; below what is kept, nothing happens.
    fn trim(&mut self, below: Lsn) -> Result<(), AppendError>;
    /// Something that makes room ahead of need, to be called from another thread while
    /// this writer appends; `None` if this log has no such work.
    fn preparer(&self) -> Option<Arc<dyn Prepare>>;
}

/// Frames that are to be flushed without their writer.
pub trait FlushApart: Send + fmt::Debug {
    /// When it returns, they survive power loss. If it fails, the writer fails too, if not at once
    /// then before it tells that anything is flushed.
    fn flush(&self) -> Result<(), AppendError>;
}

/// Knows the room of a log, and makes more ahead of need, so that the writer does not wait for
/// it.
pub trait Prepare: Send + Sync + fmt::Debug {
    /// Makes room if there is too little and the disk still has `keep_free` bytes after it; says
    /// whether it did. Call it now and then, from one thread; when nothing is to be done
    /// it costs next to nothing. An error leaves the log as it was.
    ///
    /// Does nothing once the writer is gone. While a call is running, dropping the
    /// writer does not free the log; it ends soon after.
    fn prepare(&self, keep_free: u64) -> io::Result<bool>;
    /// Whether the writer has just taken the last room there was.
    fn is_due(&self) -> bool;
    /// Bytes that can surely be written next, block by block: a quick look.
    fn left(&self) -> u64;
    /// Bytes of the files that the writer has to make to write these frames, in this order;
    /// zero if they fit those that are there.
    fn growth(&self, frames: &mut dyn Iterator<Item = Wanted>) -> u64;
    /// Gives room back to the disk that no frame is in, but for a little.
    fn shrink(&self);
    /// Bytes that the disk has left, beside those of a file that is being made; `u64::MAX` if
    /// that is not known.
    fn free_bytes(&self) -> u64;
}

/// A frame that is to be written.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Its bytes.
    pub bytes: usize,
    /// Whether it may use the room that is kept for frames that free some.
    pub freeing: bool,
}

/// Why nothing was appended, flushed or trimmed, or why that is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// Another took the log over. Nothing was changed, and nothing will be by this
    /// writer.
    #[error("another writer took this log over, its next frame is at least {next}; stop writing")]
    Fenced {
        /// The next frame as far as this writer knows; the new one may be further.
        next: Lsn,
    },
    /// There is no room. Nothing was appended; the same or another frame may be tried
    /// again at the same place.
    #[error("no room left for the log; free some and try again")]
    Full,
    /// There is no file descriptor for another file of the log. Nothing was appended; the same or
    /// another frame may be tried again at the same place.
    #[error("the log cannot take more room now: {0}; it is tried again")]
    Held(#[source] io::Error),
    /// What keeps the log does not answer. The frames may or may not be there; they are kept, and
    /// the same ones must be tried again at the same place, perhaps with more behind them.
    #[error("what keeps the log does not answer: {0}; it is tried again")]
    Unavailable(#[source] io::Error),
    /// The frame can never be appended to this log. Nothing was changed.
    #[error("a frame may have at most {max} bytes; split it")]
    TooLarge {
        /// The most bytes that a frame can have.
        max: usize,
    },
    /// The fate of the frame, or of all that was not flushed, is unknown. The writer
    /// answers this from now on; taking over again and replaying decides.
    #[error("the log may or may not hold the last frames; open it again to find out")]
    Unknown(#[source] io::Error),
    /// The place is not the end of the log. Nothing was changed.
    #[error("the next frame of this log is {next}; append there")]
    WrongPlace {
        /// Where the log ends.
        next: Lsn,
    },
    /// The log may not be written. Nothing was changed.
    #[error("the log may not be written; check the permissions of its folder and the mount")]
    ReadOnly,
}

/// Why a log could not be taken over or read. The log is unchanged in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Another process has it.
    #[error("the log is in use by another process, which holds {}; stop that one first", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A frame that had been flushed is missing or broken.
    #[error(
        "the log is damaged at frame {lsn} ({place}): {why}; restore it, or have the doctor cut it there"
    )]
    Damaged {
        /// Where, for people.
        place: String,
        /// The frame that is gone.
        lsn: Lsn,
        /// How it is known.
        why: String,
    },
    /// It was written by a version that this one does not know.
    #[error(
        "{place} has format version {found}, this program knows {known}; use the program that wrote it"
    )]
    Version {
        /// Where, for people.
        place: String,
        /// The version found.
        found: u16,
        /// The version known.
        known: u16,
    },
    /// It holds frames of another store.
    #[error("{place} belongs to another store; put each store's files into a folder of its own")]
    OtherStore {
        /// Where, for people.
        place: String,
    },
    /// The wanted frame is no longer kept.
    #[error("the log begins at frame {first}; read from there")]
    Trimmed {
        /// The first frame that is kept.
        first: Lsn,
    },
    /// The log may not be written, so it cannot be taken over.
    #[error("{} may not be written: {source}; check its permissions and the mount", path.display())]
    ReadOnly {
        /// What may not be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system failed.
    #[error("cannot {doing} {place}: {source}")]
    Io {
        /// What was tried: "read", "write", …
        doing: &'static str,
        /// Where, for people.
        place: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The visitor asked to stop.
    #[error("replay was stopped by its visitor")]
    Stopped,
}
