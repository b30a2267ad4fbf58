//! Examines a store in a folder without changing it, and repairs it when told to.
//!
//! [`examine`] reads every byte of the store, by the same code that opens it, and says what
//! it found instead of acting on it. It takes no lock: of a store that somebody writes to,
//! the newest part may look unfinished.
//!
//! [`repair`] does what the findings it is given allow, and answers what was lost by it.
//! Whoever wants less takes findings out of the report before. What it cannot do is bring
//! back bytes: for that there are backups.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use gapless_core::{Epoch, Position};

use crate::blobs::{Blob, BlobError, BlobWriter, Blobs, check_name};
use crate::checkpoint::read_checkpoint;
use crate::dir_blobs::DirBlobs;
use crate::error::{OpenError, ReadError};
use crate::file_log::Examination;
use crate::fs::{Fs, FsFile, is_read_only};
use crate::layout::{Folder, LOCK_NAME, LOG_FOLDER};
use crate::log::{LogError, Lsn};
use crate::manifest::Manifest;
use crate::open::{floor_of, orphans};
use crate::segment::{Segment, SegmentMeta};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know. Opening deals with it by itself.
    Info,
    /// Something is wrong that can be made good without losing anything.
    Repairable,
    /// Something is lost, or the store does not open.
    Damaged,
}

/// One thing that was found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// The folder holds no store.
    NoStore,
    /// A manifest cannot be used.
    Manifest {
        /// Its name.
        name: String,
        /// What is wrong.
        why: OpenError,
        /// The older manifest that could take its place, if it is the newest and there is
        /// one that can be opened.
        fallback: Option<Box<Fallback>>,
    },
    /// The checkpoint cannot be used.
    Checkpoint {
        /// Its name.
        name: String,
        /// What is wrong.
        why: OpenError,
    },
    /// The index of a segment is missing or damaged. The data is whole.
    Index {
        /// Which segment.
        segment: SegmentMeta,
        /// What is wrong.
        why: String,
    },
    /// The data of a segment is damaged or missing.
    Segment {
        /// Which segment.
        segment: SegmentMeta,
        /// What is wrong.
        why: ReadError,
    },
    /// A blob that nothing names.
    Orphan {
        /// Its name.
        name: String,
    },
    /// The end of the log is unfinished; opening cuts it.
    TornEnd {
        /// The frame that is not complete.
        at: Lsn,
        /// How many bytes are dropped.
        bytes: u64,
    },
    /// The log would not open.
    Log {
        /// Why not.
        why: LogError,
    },
    /// The log ends before a frame that the manifest knows to have been flushed.
    LogBehind {
        /// The last frame the manifest knows of.
        known: Lsn,
        /// The first one that is not there.
        next: Lsn,
    },
    /// The store was not closed; positions will jump when it is opened.
    NotClosed,
    /// Every part is whole, but the log cannot be applied to the state: opening refuses it.
    State {
        /// Why not.
        why: OpenError,
    },
}

/// What falling back to an older manifest means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The manifest to use.
    pub manifest: Manifest,
    /// Segments that it does not name. What they hold is lost, unless the log has it.
    pub unnamed: Vec<String>,
    /// The first frame that the log still has for it.
    pub log_first: Lsn,
    /// Where the log ends.
    pub log_next: Lsn,
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::NoStore | Self::TornEnd { .. } | Self::NotClosed => Severity::Info,
            Self::Orphan { .. } => Severity::Info,
            Self::Index { .. } => Severity::Repairable,
            Self::Manifest { .. }
            | Self::Checkpoint { .. }
            | Self::Segment { .. }
            | Self::Log { .. }
            | Self::LogBehind { .. }
            | Self::State { .. } => Severity::Damaged,
        }
    }

    /// Whether [`repair`] can do something about it.
    pub fn is_repairable(&self) -> bool {
        match self {
            Self::Index { .. } | Self::Orphan { .. } | Self::LogBehind { .. } => true,
            Self::Log { why } => matches!(why, LogError::Damaged { .. }),
            Self::Manifest { fallback, .. } => fallback.is_some(),
            _ => false,
        }
    }

    /// Whether its repair gives something up for good.
    pub fn repair_loses(&self) -> bool {
        self.is_repairable() && self.severity() == Severity::Damaged
    }

    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::NoStore => "check the path; opening makes a new store here",
            Self::Manifest { why: OpenError::Version { .. }, .. }
            | Self::Checkpoint { why: OpenError::Version { .. }, .. }
            | Self::Segment { why: ReadError::Version { .. }, .. }
            | Self::Log { why: LogError::Version { .. } } => "use the program that wrote it",
            Self::Manifest { fallback: Some(_), .. } => {
                "restore it from a backup; or repair falls back to the one before, and what was \
                 sealed since is lost unless the log has it"
            }
            Self::Manifest { fallback: None, .. } => {
                "restore the folder of blobs from a backup, together with the log"
            }
            Self::Checkpoint { .. } => "restore it from a backup; nothing else holds it",
            Self::Index { .. } => "nothing is lost; opening or repair makes it anew",
            Self::Segment { .. } => {
                "restore this file from a backup; until then reading there fails, and the rest \
                 can be read"
            }
            Self::Orphan { .. } => "nothing needs it; opening or repair deletes it",
            Self::TornEnd { .. } => {
                "nothing that was acknowledged as flushed is in it; opening cuts it"
            }
            Self::Log { why: LogError::Damaged { .. } } => {
                "restore the log from a backup; or repair cuts it there, and this frame and all \
                 after it are lost"
            }
            Self::Log { why: LogError::OtherStore { .. } } => {
                "put each store's log back into its own folder"
            }
            Self::Log { .. } => "make the log readable, then examine again",
            Self::LogBehind { .. } => {
                "restore the right log; or repair accepts this one, and the frames in between \
                 are lost"
            }
            Self::NotClosed => "nothing; positions jump at the next opening",
            Self::State { .. } => {
                "the files are whole: keep a copy of the folder, report this, and restore from a \
                 backup to go on"
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStore => write!(f, "there is no store in this folder"),
            Self::Manifest { why, .. } | Self::Checkpoint { why, .. } => why.fmt(f),
            Self::Index { segment, why } => write!(f, "{}: {why}", segment.index_name()),
            Self::Segment { why, .. } => why.fmt(f),
            Self::Orphan { name } => write!(f, "{name} belongs to nothing"),
            Self::TornEnd { at, bytes } => {
                write!(f, "the log ends in an unfinished frame {at} ({bytes} bytes)")
            }
            Self::Log { why } => why.fmt(f),
            Self::LogBehind { known, next } => {
                write!(f, "frame {known} had been flushed, but the log ends before frame {next}")
            }
            Self::NotClosed => write!(f, "the store was not closed, or is open now"),
            Self::State { why } => why.fmt(f),
        }
    }
}

/// What is in a store.
#[derive(Debug, Default)]
pub struct Report {
    /// The store's own id, if a manifest could be read.
    pub epoch: Option<Epoch>,
    /// The manifests, oldest first, and whether each can be used.
    pub manifests: Vec<(String, bool)>,
    /// The manifest that the rest was compared with: the newest, or its fallback.
    pub manifest: Option<Manifest>,
    /// How many items the checkpoint has, if it can be used.
    pub checkpoint_items: Option<u64>,
    /// The log, if it could be looked at.
    pub log: Option<Examination>,
    /// The segments whose data is whole, and how many batches each has.
    pub segments: Vec<(SegmentMeta, u64)>,
    /// Bytes of all segments that the manifest names.
    pub segment_bytes: u64,
    /// What is wrong or worth knowing.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst of the findings; `None` when there is none.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(Finding::severity).max()
    }
}

/// Reads the whole store and says what is in it. `progress` is told how many bytes of
/// segments are checked, and how many there are.
///
/// # Errors
/// When the folder cannot be read at all. What is wrong inside is in the report.
pub fn examine(folder: &Folder, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, OpenError> {
    let blobs = ReadBlobs::of(folder);
    let mut report = Report::default();
    let names = if folder.fs.exists(&blobs.dir).map_err(|source| unreadable(&blobs, source))? {
        Manifest::names(&blobs)?
    } else {
        Vec::new()
    };
    let Some(manifest) = choose_manifest(folder, &blobs, &names, &mut report)? else {
        return Ok(report);
    };
    report.epoch = Some(Epoch(manifest.epoch));
    examine_checkpoint(&blobs, &manifest, &mut report);
    examine_segments(&blobs, &manifest, &mut report, progress);
    // Of a store whose newest manifest is damaged nobody knows what belongs to nothing.
    if report.manifests.last().is_some_and(|(_, good)| *good) {
        let orphans = orphans(&blobs, &manifest)?;
        report.findings.extend(orphans.into_iter().map(|name| Finding::Orphan { name }));
        examine_log(folder, &manifest, &mut report);
    }
    report.manifest = Some(manifest);
    Ok(report)
}

/// Reads all manifests; gives the newest, or what could take its place.
fn choose_manifest(
    folder: &Folder,
    blobs: &ReadBlobs,
    names: &[String],
    report: &mut Report,
) -> Result<Option<Manifest>, OpenError> {
    let Some((newest, older)) = names.split_last() else {
        report.findings.push(Finding::NoStore);
        return Ok(None);
    };
    let mut usable = None;
    for name in older {
        let loaded = Manifest::load(blobs, name);
        report.manifests.push((name.clone(), loaded.is_ok()));
        match loaded {
            Ok(manifest) => usable = Some(manifest),
            Err(why) => {
                report.findings.push(Finding::Manifest { name: name.clone(), why, fallback: None });
            }
        }
    }
    match Manifest::load(blobs, newest) {
        Ok(manifest) => {
            report.manifests.push((newest.clone(), true));
            Ok(Some(manifest))
        }
        Err(why) => {
            report.manifests.push((newest.clone(), false));
            let damaged = matches!(why, OpenError::Damaged { .. });
            let fallback = usable.clone().filter(|_| damaged);
            let fallback = fallback.and_then(|manifest| fall_back(folder, blobs, manifest));
            let (name, fallback) = (newest.clone(), fallback.map(Box::new));
            report.findings.push(Finding::Manifest { name, why, fallback });
            Ok(usable)
        }
    }
}

/// What falling back to this manifest would mean; `None` when it could not be opened.
fn fall_back(folder: &Folder, blobs: &ReadBlobs, manifest: Manifest) -> Option<Fallback> {
    let whole = |meta: &SegmentMeta| {
        blobs.open(&meta.data_name()).is_ok_and(|data| data.len() == meta.bytes)
    };
    if !manifest.segments.iter().all(whole) {
        return None;
    }
    if let Some(name) = &manifest.checkpoint {
        read_checkpoint(blobs, name, &mut |_| Ok(())).ok()?;
    }
    let log = examine_log_of(folder, &manifest).ok()?;
    if log.refused.is_some() || log.next <= manifest.log_end {
        return None;
    }
    let unnamed = orphans(blobs, &manifest).ok()?;
    Some(Fallback { manifest, unnamed, log_first: log.first, log_next: log.next })
}

fn examine_checkpoint(blobs: &ReadBlobs, manifest: &Manifest, report: &mut Report) {
    let Some(name) = &manifest.checkpoint else { return };
    let mut items = 0;
    let read = read_checkpoint(blobs, name, &mut |_| {
        items += 1;
        Ok(())
    });
    match read {
        Ok(()) => report.checkpoint_items = Some(items),
        Err(why) => {
            let name = name.to_string();
            report.findings.push(Finding::Checkpoint { name, why });
        }
    }
}

fn examine_segments(
    blobs: &ReadBlobs,
    manifest: &Manifest,
    report: &mut Report,
    progress: &mut dyn FnMut(u64, u64),
) {
    let total: u64 = manifest.segments.iter().map(|meta| meta.bytes).sum();
    report.segment_bytes = total;
    let mut done = 0;
    for meta in &manifest.segments {
        let mut within = |bytes: u64| progress(done + bytes, total);
        match Segment::examine(blobs, meta, &mut within) {
            Ok(examined) => {
                report.segments.push((meta.clone(), examined.batches));
                if let Some(why) = examined.index_fault {
                    report.findings.push(Finding::Index { segment: meta.clone(), why });
                }
            }
            Err(why) => report.findings.push(Finding::Segment { segment: meta.clone(), why }),
        }
        done += meta.bytes;
        progress(done, total);
    }
}

fn examine_log(folder: &Folder, manifest: &Manifest, report: &mut Report) {
    let mut log = match examine_log_of(folder, manifest) {
        Ok(log) => log,
        Err(why) => return report.findings.push(Finding::Log { why }),
    };
    if let Some(why) = log.refused.take() {
        report.findings.push(Finding::Log { why });
    } else if log.next <= manifest.log_end {
        report.findings.push(Finding::LogBehind { known: manifest.log_end, next: log.next });
    }
    if let Some(torn) = &log.torn {
        report.findings.push(Finding::TornEnd { at: torn.at, bytes: torn.bytes });
    }
    if !manifest.clean || log.next != manifest.log_end.next() {
        report.findings.push(Finding::NotClosed);
    }
    report.log = Some(log);
}

fn examine_log_of(folder: &Folder, manifest: &Manifest) -> Result<Examination, LogError> {
    folder.file_log(Epoch(manifest.epoch)).examine(floor_of(manifest))
}

/// What [`repair`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// An index was made anew. Nothing is lost.
    IndexRebuilt {
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
            Self::IndexRebuilt { name } => write!(f, "made {name} anew; nothing is lost"),
            Self::OrphanDeleted { name } => write!(f, "deleted {name}, which nothing needed"),
            Self::LogCut { first, last, frames, bytes } => write!(
                f,
                "cut the log: frames {first} to {last} are lost ({frames} found, {bytes} bytes)"
            ),
            Self::LogAccepted { first, last } => {
                write!(f, "the store goes on without frames {first} to {last}; they are lost")
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
    let _lock = folder.lock()?;
    // Whoever opened it without this folder's lock holds that of the log.
    let log_lock = folder.path.join(LOG_FOLDER).join(LOCK_NAME);
    if let Err(error) = folder.fs.lock(&log_lock)
        && error.kind() == io::ErrorKind::WouldBlock
    {
        return Err(LogError::Locked { path: log_lock }.into());
    }
    let blobs = DirBlobs::new(Arc::clone(&folder.fs), folder.blobs_path())?;
    let mut done = Vec::new();
    let mut log_end = None;
    for finding in &report.findings {
        match finding {
            Finding::Index { segment, .. } => {
                // Its rows may be damaged where opening does not look.
                blobs.delete(&segment.index_name())?;
                Segment::open(&blobs, segment.clone(), |_| {}).map_err(|error| {
                    let (name, why) = (segment.data_name(), error.to_string());
                    OpenError::Damaged { name, why }
                })?;
                done.push(Repair::IndexRebuilt { name: segment.index_name() });
            }
            Finding::Orphan { name } => {
                blobs.delete(name)?;
                done.push(Repair::OrphanDeleted { name: name.clone() });
            }
            Finding::Log { why: LogError::Damaged { lsn, .. } } => {
                let Some(epoch) = report.epoch else { continue };
                let cut = folder.file_log(epoch).cut(*lsn)?;
                let (frames, bytes, last) = (cut.frames, cut.bytes, cut.last);
                done.push(Repair::LogCut { first: *lsn, last, frames, bytes });
                log_end = Some(lsn.before());
            }
            Finding::LogBehind { next, .. } => log_end = Some(next.before()),
            Finding::Manifest { name, fallback: Some(fallback), .. } => {
                done.push(drop_manifest(&blobs, name, fallback)?);
            }
            _ => {}
        }
    }
    if let Some(end) = log_end {
        done.extend(accept_log(&blobs, end)?);
    }
    Ok(done)
}

/// Puts a manifest aside, and stores the one before it as the newest.
fn drop_manifest(blobs: &dyn Blobs, name: &str, fallback: &Fallback) -> Result<Repair, OpenError> {
    let kept_as = format!("damaged-{name}");
    blobs.put(&kept_as, &blobs.read(name)?)?;
    let number = name.rsplit('-').next().and_then(|number| number.parse::<u64>().ok());
    let mut manifest = fallback.manifest.clone();
    manifest.number = manifest.number.max(number.unwrap_or(0)) + 1;
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
    manifest.number += 1;
    manifest.log_end = end;
    manifest.clean = false;
    manifest.store(blobs)?;
    Ok(Some(Repair::LogAccepted { first: end.next(), last: known }))
}

fn unreadable(blobs: &ReadBlobs, source: io::Error) -> OpenError {
    let name = blobs.dir.display().to_string();
    OpenError::Blobs(blob_error("look for", &name, source))
}

/// Blobs in a folder that may not be changed, or is somebody else's.
#[derive(Debug)]
pub(crate) struct ReadBlobs {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
}

impl ReadBlobs {
    pub(crate) fn of(folder: &Folder) -> Self {
        Self { fs: Arc::clone(&folder.fs), dir: folder.blobs_path() }
    }
}

impl Blobs for ReadBlobs {
    fn create(&self, _: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        Err(BlobError::ReadOnly)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        check_name(name)?;
        let failed = |source| blob_error("open", name, source);
        let file = self.fs.open_read(&self.dir.join(name)).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        Ok(Arc::new(ReadBlob { name: name.to_owned(), len, file }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let failed = |source| blob_error("list", prefix, source);
        let mut names = self.fs.list(&self.dir).map_err(failed)?;
        names.retain(|name| name.starts_with(prefix) && !name.starts_with('.'));
        Ok(names)
    }

    fn delete(&self, _: &str) -> Result<(), BlobError> {
        Err(BlobError::ReadOnly)
    }
}

#[derive(Debug)]
struct ReadBlob {
    name: String,
    len: u64,
    file: Arc<dyn FsFile>,
}

impl Blob for ReadBlob {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let done = self.file.read_exact_at(buf, offset);
        done.map_err(|source| blob_error("read", &self.name, source))
    }
}

fn blob_error(doing: &'static str, name: &str, source: io::Error) -> BlobError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => BlobError::Missing { name },
        _ if is_read_only(&source) => BlobError::ReadOnly,
        _ => BlobError::Io { doing, name, source },
    }
}
