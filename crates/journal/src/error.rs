//! What can go wrong with a journal, one type per operation.

use std::sync::Arc;

use gapless_core::{EntryError, Position, Seq, TopicId};

use crate::blobs::BlobError;
use crate::log::{LogError, Lsn};

/// Why nothing was appended. The journal is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// Too much waits to be written; try again when there is room.
    #[error("{waiting} bytes wait to be written; try again in a moment")]
    Busy {
        /// How many bytes wait.
        waiting: u64,
    },
    /// The disk is full.
    #[error("the disk is full; make room, then publishing goes on by itself")]
    Full,
    /// The log cannot take more room for another reason, such as too many open files.
    #[error("the log cannot take more now: {why}; it goes on by itself when that passes")]
    Held {
        /// What the system said.
        why: Arc<str>,
    },
    /// What keeps the log does not answer.
    #[error("what keeps the log does not answer: {why}; it goes on by itself when that passes")]
    Unavailable {
        /// What was said last.
        why: Arc<str>,
    },
    /// The append is larger than a frame may be.
    #[error("an append of {bytes} bytes is too large; at most {max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most a frame can hold.
        max: usize,
    },
    /// The journal does not take appends any more.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why a journal stopped taking appends, for good until it is opened again. What was
/// appended and not yet confirmed may or may not be there when it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A write or a flush failed; trying again could lose data, so it is not tried.
    #[error("the journal stopped after a failed write: {why}; restart to see what is kept")]
    Poisoned {
        /// What the disk said.
        why: Arc<str>,
    },
    /// The disk did not take what was appended, again and again, or what keeps the log does not
    /// answer. It is kept in memory, and written when that passes; until then it is not certain. The
    /// journal itself goes on.
    #[error("what was appended is not written yet: the disk is full, or the store does not answer")]
    Unwritten,
    /// Another process has taken over the log.
    #[error("another owner has taken over this journal (its next frame is {next})")]
    Fenced {
        /// Where the other one is.
        next: Lsn,
    },
    /// It was closed by its owner.
    #[error("the journal is closed")]
    Closed,
}

/// Why history could not be read. Nothing was skipped.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// A segment is damaged here.
    #[error("{name} is damaged at byte {offset}: {why}; run `gapless doctor`")]
    Damaged {
        /// The blob.
        name: Arc<str>,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// A segment was written by a newer program.
    #[error("{name} has format version {found}; this program knows up to {known}; use a newer one")]
    Version {
        /// The blob.
        name: Arc<str>,
        /// Its version.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// The store of segments did not answer.
    #[error("history cannot be read: {0}")]
    Blobs(Arc<BlobError>),
    /// Too many requests wait; try again.
    #[error("{max} requests for history wait already; try again in a moment")]
    Busy {
        /// How many may wait.
        max: usize,
    },
    /// The segments do not hold what the topic says they do.
    #[error("topic {topic} should have {seq} in its history, but it is not there")]
    Missing {
        /// The topic.
        topic: TopicId,
        /// The first seq that is not there.
        seq: Seq,
    },
    /// The disk is full, and what was asked for is on its way there.
    #[error("the disk is full and the answer is not on it yet; make room, then ask again")]
    Full,
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

impl From<BlobError> for ReadError {
    fn from(error: BlobError) -> Self {
        Self::Blobs(Arc::new(error))
    }
}

/// Why a journal did not open. Nothing in the folder was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The blobs refused.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// A manifest or checkpoint is damaged.
    #[error("{name} is damaged: {why}; run `gapless doctor` to see what can be saved")]
    Damaged {
        /// The blob.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A manifest has the name of another: the files were renamed, swapped or copied.
    #[error(
        "{name} is {holds} by what it holds: it was renamed or copied; give the manifests their \
         own names back, or run `gapless doctor`"
    )]
    Misnamed {
        /// The blob.
        name: String,
        /// The name it should have.
        holds: String,
    },
    /// Another process took the store over while this one opened it. Opening again finds what it
    /// did.
    #[error("another process took the store over while it was opened ({name}); open it again")]
    TakenOver {
        /// The manifest that it stored, or the log.
        name: String,
    },
    /// There is no manifest, but files of a store. A new store is never created among them.
    #[error(
        "there is no manifest here, but files of a store ({}); put its manifests and log back, or \
         see what `gapless doctor --rebuild` can do; for a new store name an empty folder",
        some_of(found)
    )]
    Remains {
        /// Their names, sorted.
        found: Vec<String>,
    },
    /// A segment holds messages that neither manifest nor log knows of: these are older.
    #[error(
        "{name} holds messages up to position {last}, but manifest and log end at {known}: they \
         are older than it; restore the right ones, or see what `gapless doctor --rebuild` can do"
    )]
    SegmentAhead {
        /// The segment's data.
        name: String,
        /// The last position in it.
        last: Position,
        /// The last position that manifest and log know of.
        known: Position,
    },
    /// A blob was written by a newer program.
    #[error("{name} has format version {found}; this program knows up to {known}; use a newer one")]
    Version {
        /// The blob.
        name: String,
        /// Its version.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// The checkpoint tells of entries that the log does not have: the log was replaced by
    /// an older one, or lost.
    #[error(
        "the checkpoint knows of frame {checkpoint}, but the log ends at {log}: the log is older \
         than the checkpoint; restore the right log, or run `gapless doctor`"
    )]
    CheckpointAhead {
        /// Where the checkpoint begins to rely on the log.
        checkpoint: Lsn,
        /// Where the log ends.
        log: Lsn,
    },
    /// A frame holds something that is not an entry.
    #[error("frame {lsn} of the log holds a bad entry: {why}")]
    BadEntry {
        /// The frame.
        lsn: Lsn,
        /// What is wrong.
        why: EntryError,
    },
    /// An entry cannot be applied.
    #[error("the entry at position {position} cannot be applied: {why}")]
    BadState {
        /// Where.
        position: Position,
        /// What is wrong.
        why: String,
    },
}

/// How many names a message lists.
const NAMES_MAX: usize = 8;

fn some_of(names: &[String]) -> String {
    let (some, rest) = names.split_at(names.len().min(NAMES_MAX));
    match rest.len() {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}
