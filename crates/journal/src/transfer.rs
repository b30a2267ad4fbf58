//! Writing a snapshot as a store of its own, in a folder or on any engine.
//!
//! The manifest comes last: what is left behind by a copy that did not end has no manifest, and no
//! opener takes it for a store. Each blob is checked against its checksum, where one is known, before
//! it gets its name.
//!
//! The copy is the same store at an earlier moment. Opening it begins an opening of its own, and
//! positions jump unless the source had been closed cleanly: so cursors of what the source did after
//! the snapshot are noticed (`core/openings.rs`, `docs/adr/0006`).

use std::io;
use std::sync::Arc;

use crate::blobs::{Blob, BlobError, BlobWriter, Blobs, Created};
use crate::dir_blobs::DirBlobs;
use crate::error::OpenError;
use crate::layout::Folder;
use crate::log::{AppendError, Floor, Log, Lsn};
use crate::manifest::Manifest;
use crate::open::remains;
use crate::snapshot::Snapshot;

/// Bytes that are read at once.
const STEP_BYTES: usize = 4 * 1024 * 1024;

/// How large a blob is, and the checksum of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Its length.
    pub bytes: u64,
    /// The CRC-32C of all of them.
    pub crc32c: u32,
}

/// Why a store was not copied. What was written so far has no manifest, so it is not a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The target is not empty. Nothing was changed.
    #[error("there is something already ({}); name an empty place", names_of(found))]
    NotEmpty {
        /// What is there.
        found: Vec<String>,
    },
    /// A blob is not what it was when its checksum was taken.
    #[error("{name} is damaged: it has {found}, not {expected}")]
    Changed {
        /// The blob.
        name: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A blob could not be read or written.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// The manifest could not be written, or the log not taken.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log did not take the frames.
    #[error("the log of the copy cannot be written: {0}")]
    Append(AppendError),
}

impl CopyError {
    /// Whether what is copied was no longer there: the snapshot has ended.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Blobs(BlobError::Missing { .. }))
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes and checksum {:08x}", self.bytes, self.crc32c)
    }
}

impl Snapshot {
    /// Writes it as a store in a folder, which is locked meanwhile.
    ///
    /// # Errors
    /// Says why not; see [`CopyError`].
    pub fn write_to_folder(
        &self,
        folder: &Folder,
        sum_of: &dyn Fn(&str) -> Option<Sum>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CopyError> {
        let _lock = folder.lock().map_err(OpenError::from)?;
        let blobs = DirBlobs::new(Arc::clone(&folder.fs), folder.blobs_path());
        self.write_to(&blobs, &folder.file_log(self.marks()), sum_of, progress)
    }

    /// Writes it to an empty place. `sum_of` knows what blobs should be, `progress` is told of the
    /// bytes that were copied.
    ///
    /// # Errors
    /// Says why not; see [`CopyError`].
    pub fn write_to(
        &self,
        blobs: &dyn Blobs,
        log: &dyn Log,
        sum_of: &dyn Fn(&str) -> Option<Sum>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CopyError> {
        let mut found = Manifest::names(blobs)?;
        found.extend(remains(blobs, log)?);
        if !found.is_empty() {
            return Err(CopyError::NotEmpty { found });
        }
        let mut manifest = self.manifest().clone();
        let first = manifest.replay_from;
        let floor = Floor { first_needed: first, flushed: Lsn::NONE, term: manifest.term };
        let mut taken = log.take_over(floor).map_err(OpenError::from)?;
        blobs.prepare()?;
        for name in self.names() {
            let source = self.blobs().open(&name)?;
            copy_blob((&name, &*source), blobs, sum_of(&name), progress)?;
        }
        taken.writer.settle().map_err(OpenError::from)?;
        let frames: Vec<_> = self.frames().iter().map(|(_, bytes)| bytes.clone()).collect();
        if !frames.is_empty() {
            taken.writer.append_all(first, &frames, true).1.map_err(CopyError::Append)?;
            progress(frames.iter().map(|bytes| bytes.len() as u64).sum());
        }
        manifest.term = taken.term;
        manifest.store(blobs)?;
        Ok(())
    }
}

/// Copies a blob, and tells its sum. One that is not as it should be gets no name.
///
/// # Errors
/// When it cannot be read or written, has another sum than expected, or its name is taken.
pub fn copy_blob(
    (name, source): (&str, &dyn Blob),
    target: &dyn Blobs,
    expected: Option<Sum>,
    progress: &mut dyn FnMut(u64),
) -> Result<Sum, CopyError> {
    let mut writer = target.create(name)?;
    writer.read_rarely();
    let sum = read_all(source, &mut |bytes| {
        writer.write(bytes)?;
        progress(bytes.len() as u64);
        Ok(())
    })?;
    expect(name, sum, expected)?;
    finish(writer, name)?;
    Ok(sum)
}

/// The sum of a blob, by reading all of it.
///
/// # Errors
/// When it cannot be read.
pub fn sum_of(blob: &dyn Blob) -> Result<Sum, BlobError> {
    read_all(blob, &mut |_| Ok(()))
}

/// Refuses a blob that is not as it should be.
///
/// # Errors
/// [`CopyError::Changed`] if it is not.
pub fn expect(name: &str, found: Sum, expected: Option<Sum>) -> Result<(), CopyError> {
    match expected {
        Some(expected) if expected != found => Err(CopyError::Changed {
            name: name.to_owned(),
            found: found.to_string(),
            expected: expected.to_string(),
        }),
        _ => Ok(()),
    }
}

fn finish(writer: Box<dyn BlobWriter>, name: &str) -> Result<(), CopyError> {
    match writer.finish()? {
        Created::New => Ok(()),
        Created::AlreadyThere => {
            let source = io::ErrorKind::AlreadyExists.into();
            Err(BlobError::Io { doing: "name", name: name.to_owned(), source }.into())
        }
    }
}

fn read_all(
    blob: &dyn Blob,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), BlobError>,
) -> Result<Sum, BlobError> {
    let (len, mut at, mut crc) = (blob.len(), 0, 0);
    let mut buffer = vec![0; STEP_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
    while at < len {
        let step = buffer.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        let bytes = &mut buffer[..step];
        blob.read_at(bytes, at)?;
        crc = crc32c::crc32c_append(crc, bytes);
        visit(bytes)?;
        at += step as u64;
    }
    Ok(Sum { bytes: len, crc32c: crc })
}

/// How many names a message lists.
const NAMES_MAX: usize = 3;

fn names_of(found: &[String]) -> String {
    let (some, rest) = found.split_at(found.len().min(NAMES_MAX));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    some.join(", ") + &more
}
