//! Blobs: immutable, named objects, where segments and checkpoints are kept.
//!
//! A blob appears whole or not at all, is never changed, and its name is given once: of
//! several who create one name, one wins and the others learn it. That is all the
//! agreement that those who share a store need from it.
//!
//! Creating streams, since segments are large; everything blocks, as in [`crate::log`].
//! [`crate::contract::check_blobs`] proves this contract for an implementation.
//!
//! Not here: what a name means, and when a blob may be deleted.

use std::{fmt::Debug, io, sync::Arc};

use bytes::Bytes;

/// The most bytes a name may have: the least that file systems allow, with room for what
/// an implementation adds.
pub const NAME_BYTES_MAX: usize = 200;
/// Bytes that a read from a disk of this machine gets about as fast as one.
pub const STEP_BYTES_NEAR: usize = 4 * 1024;

/// A store of blobs.
pub trait Blobs: Send + Sync + Debug {
    /// How many blobs are opened at the same time, when many are needed: more than one where each
    /// opening waits for a network.
    fn opened_at_once(&self) -> usize {
        1
    }

    /// Whether a full store is met by a blob that holds room, to be given up in need.
    fn has_bounded_room(&self) -> bool {
        true
    }

    /// Gets ready for blobs to be made: the first change to the store. Removes what was never
    /// finished by those before.
    fn prepare(&self) -> Result<(), BlobError> {
        Ok(())
    }

    /// Begins a blob. Nothing is visible under the name before
    /// [`BlobWriter::finish`], and nothing ever if the writer is dropped.
    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError>;

    /// Opens a blob to read from it, as often as liked, from any thread.
    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError>;

    /// The names that begin with `prefix`, sorted. Finished blobs only.
    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError>;

    /// Deletes a blob; fine if there is none. Those who have it open may go on reading
    /// (an implementation that cannot promise this answers [`BlobError::Missing`] to
    /// them). Power loss may bring it back, never a part of it.
    fn delete(&self, name: &str) -> Result<(), BlobError>;

    /// Reads a whole blob, for small ones.
    fn read(&self, name: &str) -> Result<Bytes, BlobError> {
        let blob = self.open(name)?;
        let len = usize::try_from(blob.len()).map_err(|_| BlobError::Io {
            doing: "hold in memory",
            name: name.to_owned(),
            source: io::ErrorKind::OutOfMemory.into(),
        })?;
        let mut bytes = vec![0; len];
        blob.read_at(&mut bytes, 0)?;
        Ok(bytes.into())
    }

    /// Creates a whole blob, for small ones.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<Created, BlobError> {
        let mut writer = self.create(name)?;
        writer.write(bytes)?;
        writer.finish()
    }
}

/// A blob in the making.
pub trait BlobWriter: Send + Debug {
    /// Adds bytes at the end. After an error only dropping makes sense.
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError>;
    /// Says that the blob will hardly be read soon: memory in which the store would
    /// keep a copy can serve others. A hint.
    fn read_rarely(&mut self) {}
    /// Gives the blob its name. When it returns [`Created::New`], the whole blob is
    /// visible and survives power loss. After an error the blob may or may not be there,
    /// whole: [`Blobs::open`] tells.
    fn finish(self: Box<Self>) -> Result<Created, BlobError>;
}

/// Whether a blob was made, or another had the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is there now, durably.
    New,
    /// The name was taken; that blob is as it was, and what was written is dropped.
    AlreadyThere,
}

/// A blob that is open.
#[expect(clippy::len_without_is_empty, reason = "no reader asks whether a blob is empty")]
pub trait Blob: Send + Sync + Debug {
    /// How many bytes it has.
    fn len(&self) -> u64;
    /// Fills `buf` from `offset` on; a range that is not wholly inside is an error, since
    /// the caller has the range from an index and so something is wrong.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError>;
    /// As many bytes are read about as fast as one: a look-up reads that much at once instead of
    /// many small ranges.
    fn step_bytes(&self) -> usize {
        STEP_BYTES_NEAR
    }
    /// The same if it can be done at once, from memory: true if it was. Never waits.
    fn read_cached_at(&self, _buf: &mut [u8], _offset: u64) -> Result<bool, BlobError> {
        Ok(false)
    }
}

/// Why a blob was not made, read, listed or deleted. No blob is changed in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// There is no such blob.
    #[error("there is no blob {name}")]
    Missing {
        /// The wanted name.
        name: String,
    },
    /// There is no room; what was begun is dropped.
    #[error("no room left for blobs; free some and try again")]
    Full,
    /// Blobs may not be made or deleted here.
    #[error("blobs may not be written here; check the permissions of the folder and the mount")]
    ReadOnly,
    /// The name cannot be used: see [`check_name`].
    #[error(
        "{name:?} cannot name a blob; use 1 to 200 of a-z A-Z 0-9 . _ -, not beginning with a dot"
    )]
    BadName {
        /// The refused name.
        name: String,
    },
    /// The system failed.
    #[error("cannot {doing} blob {name}: {source}")]
    Io {
        /// What was tried: "read", "write", …
        doing: &'static str,
        /// Which blob.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Refuses names that not every store can keep: a name is 1 to [`NAME_BYTES_MAX`] ASCII
/// letters, digits, `.`, `_`, `-`, and does not begin with a dot.
pub fn check_name(name: &str) -> Result<(), BlobError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let good = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(allowed);
    if good { Ok(()) } else { Err(BlobError::BadName { name: name.to_owned() }) }
}
