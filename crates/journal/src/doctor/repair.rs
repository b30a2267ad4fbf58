//! Does what findings allow, and says what was lost by it.

use std::fmt;
use std::io;
use std::sync::Arc;

use gapless_core::Position;

use super::{Fallback, Finding, Report, marks_of};
use crate::blobs::Blobs;
use crate::checkpoint::{Checkpoint, copy_name};
use crate::dir_blobs::DirBlobs;
use crate::error::OpenError;
use crate::fs::FsLock;
use crate::layout::{Folder, LOCK_NAME, LOG_FOLDER};
use crate::log::{LogError, Lsn};
use crate::manifest::{DAMAGED_PREFIX, Manifest, number_in};
use crate::segment::Segment;

/// What [`repair`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// An index was rebuilt. Nothing is lost.
    IndexRebuilt {
        /// Its name.
        name: String,
    },
    /// One of the checkpoint's two blobs was written again. Nothing is lost.
    CheckpointCopied {
        /// Its name.
        name: String,
    },
    /// A blob that belonged to nothing was deleted.
    OrphanDeleted {
        /// Its name.
        name: String,
    },
    /// The log was cut: these frames, and all that was published in them, are lost.
    LogCut {
        /// The first frame that is lost.
        first: Lsn,
        /// The last one that had left a trace.
        last: Lsn,
        /// How many of them could be found.
        frames: u64,
        /// How many bytes these had.
        bytes: u64,
    },
    /// The store no longer expects these frames of the log; they are lost.
    LogAccepted {
        /// The first frame that is lost.
        first: Lsn,
        /// The last frame that was known to have been flushed.
        last: Lsn,
    },
    /// A damaged manifest was replaced by what its copy says. Nothing is lost.
    ManifestCopied {
        /// The damaged one.
        name: String,
    },
    /// The newest manifest was put aside, and the one before it counts.
    ManifestDropped {
        /// The damaged one.
        name: String,
        /// What it is called now.
        kept_as: String,
        /// The last position that is in segments now; what was sealed after it is lost
        /// unless the log has it.
        sealed: Position,
        /// Segments and checkpoints that belong to nothing now.
        unnamed: Vec<String>,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexRebuilt { name } => write!(f, "rebuilt {name}; nothing is lost"),
            Self::CheckpointCopied { name } => {
                write!(f, "wrote {name} again from the other copy; nothing is lost")
            }
            Self::OrphanDeleted { name } => write!(f, "deleted {name}, which nothing needed"),
            Self::LogCut { first, last, frames, bytes } => write!(
                f,
                "cut the log: frames {first} to {last} are lost ({frames} found, {bytes} bytes)"
            ),
            Self::LogAccepted { first, last } => {
                write!(f, "the store goes on without frames {first} to {last}; they are lost")
            }
            Self::ManifestCopied { name } => {
                write!(f, "replaced {name} by its copy; nothing is lost")
            }
            Self::ManifestDropped { name, kept_as, sealed, unnamed } => write!(
                f,
                "{name} was put aside as {kept_as}; the store goes back to position {sealed} and \
                 what the log has after it, without {} blobs",
                unnamed.len()
            ),
        }
    }
}

/// Repairs what the report's findings allow, and says what was done and lost. The store is
/// locked meanwhile.
///
/// # Errors
/// When the store is in use or cannot be written. What was done before stays done; examine
/// again.
pub fn repair(folder: &Folder, report: &Report) -> Result<Vec<Repair>, OpenError> {
    let _lock = lock(folder)?;
    let blobs = DirBlobs::new(Arc::clone(&folder.fs), folder.blobs_path());
    blobs.prepare()?;
    let mut done = Vec::new();
    let mut log_end = None;
    for finding in &report.findings {
        match finding {
            Finding::Index { segment, .. } => {
                // Its rows may be damaged where opening does not look.
                blobs.delete(&segment.index_name())?;
                let epoch = report.epoch.map_or(0, |epoch| epoch.0);
                Segment::open(&blobs, segment.clone(), epoch).map_err(|error| {
                    let (name, why) = (segment.data_name(), error.to_string());
                    OpenError::Damaged { name, why }
                })?;
                done.push(Repair::IndexRebuilt { name: segment.index_name() });
            }
            Finding::CheckpointCopy { name, of, .. } => {
                done.push(copy_checkpoint(&blobs, name, (&of.0, of.1.0))?);
            }
            Finding::Orphan { name } => {
                blobs.delete(name)?;
                done.push(Repair::OrphanDeleted { name: name.clone() });
            }
            Finding::Log { why: LogError::Damaged { lsn, .. } } => {
                let Some(manifest) = &report.manifest else { continue };
                let cut = folder.file_log(marks_of(manifest)).cut(*lsn)?;
                let (frames, bytes, last) = (cut.frames, cut.bytes, cut.last);
                done.push(Repair::LogCut { first: *lsn, last, frames, bytes });
                log_end = Some(lsn.before());
            }
            Finding::LogBehind { next, .. } => log_end = Some(next.before()),
            Finding::Manifest { name, fallback: Some(fallback), .. } => {
                done.push(drop_manifest(&blobs, name, fallback)?);
            }
            // Written again as the newest two, which removes it.
            Finding::Manifest { name, is_copy: true, .. } => {
                if let Some(mut manifest) = Manifest::newest(&blobs)? {
                    manifest.store(&blobs)?;
                    done.push(Repair::ManifestCopied { name: name.clone() });
                }
            }
            _ => {}
        }
    }
    if let Some(end) = log_end {
        done.extend(accept_log(&blobs, end)?);
    }
    Ok(done)
}

/// Locks the folder, and makes sure that no process has the log without it.
pub(super) fn lock(folder: &Folder) -> Result<Box<dyn FsLock>, OpenError> {
    let lock = folder.lock()?;
    let log_lock = folder.path.join(LOG_FOLDER).join(LOCK_NAME);
    if let Err(error) = folder.fs.lock(&log_lock)
        && error.kind() == io::ErrorKind::WouldBlock
    {
        return Err(LogError::Locked { path: log_lock }.into());
    }
    Ok(lock)
}

/// Writes one of the checkpoint's two blobs again from the other.
fn copy_checkpoint(
    blobs: &dyn Blobs,
    lost: &str,
    (name, epoch): (&str, u64),
) -> Result<Repair, OpenError> {
    let other = if lost == name { copy_name(name) } else { name.to_owned() };
    let mut whole = Checkpoint::load_one(blobs, &other, epoch)?;
    whole.lost = Some((lost.to_owned(), String::new()));
    whole.restore_lost(blobs)?;
    Ok(Repair::CheckpointCopied { name: lost.to_owned() })
}

/// Puts a manifest aside, and stores the one before it as the newest.
fn drop_manifest(blobs: &dyn Blobs, name: &str, fallback: &Fallback) -> Result<Repair, OpenError> {
    let kept_as = format!("{DAMAGED_PREFIX}{name}");
    blobs.put(&kept_as, &blobs.read(name)?)?;
    let mut manifest = fallback.manifest.clone();
    manifest.number = manifest.number.max(number_in(name).unwrap_or(0));
    // Whatever it says, something came after it.
    manifest.clean = false;
    manifest.store(blobs)?;
    blobs.delete(name)?;
    Ok(Repair::ManifestDropped {
        name: name.to_owned(),
        kept_as,
        sealed: fallback.manifest.sealed,
        unnamed: fallback.unnamed.clone(),
    })
}

/// Makes the manifest expect no more of the log than it has.
fn accept_log(blobs: &dyn Blobs, end: Lsn) -> Result<Option<Repair>, OpenError> {
    let Some(mut manifest) = Manifest::newest(blobs)? else { return Ok(None) };
    let known = manifest.log_end;
    if known <= end {
        return Ok(None);
    }
    manifest.log_end = end;
    manifest.clean = false;
    manifest.store(blobs)?;
    Ok(Some(Repair::LogAccepted { first: end.next(), last: known }))
}
