//! What the journal asks of the layer above it, which keeps the state: the broker.

use std::time::Duration;

use bytes::Bytes;
use gapless_core::{Entry, Seq, TopicId};

use crate::blobs::BlobError;
use crate::log::Lsn;

/// What may be dropped of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The topic is gone with everything in it.
    Gone,
    /// Messages below `floor` are gone. With compaction, of each key only the newest stays,
    /// and a tombstone goes after this grace time.
    Kept {
        /// The first seq that is kept.
        floor: Seq,
        /// The grace time of tombstones, if the topic is compacted.
        compaction: Option<Duration>,
    },
}

/// The state above a journal, while it runs.
pub trait State: Send + Sync {
    /// Writes every item of the state. Publishing goes on meanwhile, so each item says as
    /// of which position it is true.
    ///
    /// # Errors
    /// Only those of `write`, handed through.
    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError>;

    /// What may be dropped of this topic.
    fn policy(&self, topic: TopicId) -> Policy;

    /// Entries of `topic` in the frame `through`, and before it, are no longer in memory.
    fn evicted(&self, topic: TopicId, through: Lsn);
}

/// Takes an item of a checkpoint.
pub type ItemWriter<'a> = dyn FnMut(&[u8]) -> Result<(), BlobError> + 'a;

/// The state above a journal, while it is being opened.
pub trait Recover {
    /// An item of the checkpoint.
    ///
    /// # Errors
    /// Says why it cannot be; the journal does not open then.
    fn restore(&mut self, item: Bytes) -> Result<(), String>;

    /// An entry of the log. What an item's position already covers must change nothing;
    /// batches are to be kept for readers in any case.
    ///
    /// # Errors
    /// Says why it cannot be; the journal does not open then.
    fn replay(&mut self, lsn: Lsn, entry: Entry) -> Result<(), String>;

    /// The last entry was replayed. Nothing of the opening is written before this agrees.
    ///
    /// # Errors
    /// Says what is missing; the journal does not open then.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}
