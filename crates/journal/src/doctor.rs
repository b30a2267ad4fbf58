//! Examines a store in a folder without changing it, and repairs it on request.
//!
//! [`examine`] reads every byte of the store, by the same code that opens it, and says what
//! it found instead of acting on it. It takes no lock: of a store that is written to,
//! the newest part may look unfinished.
//!
//! [`repair()`] does what the findings it is given allow, and answers what was lost by it.
//! A caller that wants less takes findings out of the report before. What it cannot do is bring
//! back bytes: for that there are backups.

mod formats;
mod rebuild;
mod repair;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use gapless_core::{Entry, Epoch, Position};

pub use self::formats::{FormatFound, formats};
pub use self::rebuild::{Rebuild, Rebuilt, TopicHistory, rebuild};
pub use self::repair::{Repair, repair};
use crate::blobs::{Blob, BlobError, BlobWriter, Blobs, check_name};
use crate::checkpoint::{Checkpoint, copy_name};
use crate::error::{OpenError, ReadError};
use crate::file_log::Examination;
use crate::frame::{FrameMarks, Secret};
use crate::fs::{Fs, FsFile, is_read_only};
use crate::layout::Folder;
use crate::log::{LogError, Lsn};
use crate::manifest::Manifest;
use crate::open::{floor_of, remains};
use crate::orphans::Orphans;
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
    /// The folder holds files of a store, but no manifest: the store does not open, and no new
    /// one is created here.
    Remains {
        /// Their names.
        found: Vec<String>,
    },
    /// A manifest cannot be used.
    Manifest {
        /// Its name.
        name: String,
        /// What is wrong.
        why: OpenError,
        /// The older manifest that could take its place, if it is the newest and there is
        /// one that can be opened.
        fallback: Option<Box<Fallback>>,
        /// Whether it is one of two that say the same, so that opening does without it.
        is_copy: bool,
    },
    /// One of the checkpoint's two blobs is missing or damaged. The other is whole.
    CheckpointCopy {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
        /// The checkpoint that the manifest names, and the store's epoch.
        of: (String, Epoch),
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
    /// A blob that looks like a part of another store.
    Foreign {
        /// Its name.
        name: String,
    },
    /// A segment holds what neither manifest nor log knows of.
    SegmentAhead {
        /// What opening says.
        why: OpenError,
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
            Self::Orphan { .. } | Self::Foreign { .. } => Severity::Info,
            Self::Index { .. } | Self::CheckpointCopy { .. } => Severity::Repairable,
            Self::Manifest { is_copy: true, .. } => Severity::Repairable,
            Self::Remains { .. }
            | Self::SegmentAhead { .. }
            | Self::Manifest { .. }
            | Self::Checkpoint { .. }
            | Self::Segment { .. }
            | Self::Log { .. }
            | Self::LogBehind { .. }
            | Self::State { .. } => Severity::Damaged,
        }
    }

    /// Whether [`repair()`] can do something about it.
    pub fn is_repairable(&self) -> bool {
        match self {
            Self::Index { .. } | Self::Orphan { .. } | Self::LogBehind { .. } => true,
            Self::CheckpointCopy { .. } => true,
            Self::Log { why } => matches!(why, LogError::Damaged { .. }),
            Self::Manifest { fallback, .. } => fallback.is_some(),
            _ => false,
        }
    }

    /// Whether [`rebuild()`] can do something about it.
    pub fn rebuild_helps(&self) -> bool {
        match self {
            Self::Remains { .. } | Self::SegmentAhead { .. } => true,
            Self::Manifest { why, is_copy, .. } => {
                !is_copy && !matches!(why, OpenError::Version { .. })
            }
            Self::Checkpoint { why, .. } => !matches!(why, OpenError::Version { .. }),
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
            Self::NoStore => "check the path; opening creates a new store here",
            Self::Remains { .. } => {
                "put the manifests and the log back from a backup; or `gapless doctor --rebuild` \
                 creates them again from what is here"
            }
            Self::SegmentAhead { .. } => {
                "restore manifests and log that are as new as it; or `gapless doctor --rebuild` \
                 takes it in"
            }
            Self::Foreign { .. } => "opening leaves it alone; move it to where it belongs",
            Self::Manifest { why: OpenError::Version { .. }, .. }
            | Self::Checkpoint { why: OpenError::Version { .. }, .. }
            | Self::Segment { why: ReadError::Version { .. }, .. }
            | Self::Log { why: LogError::Version { .. } } => "use the program that wrote it",
            Self::Manifest { is_copy: true, .. } => {
                "nothing is lost: there are always two that say the same; opening or repair writes \
                 it again"
            }
            Self::Manifest { fallback: Some(_), .. } => {
                "restore it from a backup; or repair falls back to the one before, and what was \
                 sealed since is lost unless the log has it"
            }
            Self::Manifest { fallback: None, .. } => {
                "restore the folder of blobs from a backup, together with the log; or `gapless \
                 doctor --rebuild` creates the manifest again from what is here"
            }
            Self::Checkpoint { .. } => {
                "restore it from a backup; or `gapless doctor --rebuild` creates it again without \
                 what only it held"
            }
            Self::CheckpointCopy { .. } => "nothing is lost; repair writes it again from the other",
            Self::Index { .. } => {
                "nothing is lost; repair rebuilds it from the data, and so does opening if it is \
                 missing or its header is damaged; until then reading there fails"
            }
            Self::Segment { .. } => {
                "restore this file from a backup; until then reading there fails, and the rest \
                 can be read"
            }
            Self::Orphan { .. } => "nothing needs it; opening or repair deletes it",
            Self::TornEnd { .. } => {
                "opening cuts it. If a crash left it, nothing in it was acknowledged as flushed; if \
                 the disk damaged it later, that cannot be told apart, and a flushed message may \
                 be in it: then restore the log from a backup"
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
            Self::Remains { found } => {
                write!(f, "there is no manifest, but {} files of a store", found.len())
            }
            Self::CheckpointCopy { name, why, .. } => {
                write!(f, "{name}, one of two copies of the checkpoint: {why}")
            }
            Self::SegmentAhead { why } => why.fmt(f),
            Self::Foreign { name } => write!(f, "{name} looks like a part of another store"),
            Self::Index { segment, why } => write!(f, "{}: {why}", segment.index_name()),
            Self::Segment { why, .. } => why.fmt(f),
            Self::Orphan { name } => write!(f, "{name} belongs to nothing"),
            Self::TornEnd { at, bytes } => {
                write!(f, "the log ends in an unfinished or damaged frame {at} ({bytes} bytes)")
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
    /// Whether opening would take this manifest, the newest one or its copy.
    fn opens_by(&self, manifest: &Manifest) -> bool {
        let newest_is_good = self.manifests.last().is_some_and(|(_, good)| *good);
        let copy = |each: &Finding| matches!(each, Finding::Manifest { is_copy: true, .. });
        newest_is_good || (manifest.secret.is_some() && self.findings.iter().any(copy))
    }

    /// The worst of the findings; `None` when there is none.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(Finding::severity).max()
    }
}

/// Reads the whole store and says what is in it. `progress` gets how many bytes of
/// segments are checked, and how many there are.
///
/// # Errors
/// When the folder cannot be read at all. What is wrong inside is in the report.
pub fn examine(folder: &Folder, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, OpenError> {
    let blobs = ReadBlobs::of(folder);
    let mut report = Report::default();
    let names = Manifest::names(&blobs)?;
    let Some(manifest) = choose_manifest(folder, &blobs, &names, &mut report)? else {
        if names.is_empty() {
            let found = found_without_manifest(folder, &blobs)?;
            let nothing = found.is_empty();
            let remains = Finding::Remains { found };
            report.findings.push(if nothing { Finding::NoStore } else { remains });
        }
        return Ok(report);
    };
    report.epoch = Some(Epoch(manifest.epoch));
    examine_checkpoint(&blobs, &manifest, &mut report);
    examine_segments(&blobs, &manifest, &mut report, progress);
    // Of a store whose newest manifest is damaged it is not known which blobs are unused.
    if report.opens_by(&manifest) {
        examine_orphans(folder, &blobs, &manifest, &mut report)?;
        examine_log(folder, &manifest, &mut report);
    }
    report.manifest = Some(manifest);
    Ok(report)
}

/// Files of a store where there is no manifest.
fn found_without_manifest(folder: &Folder, blobs: &ReadBlobs) -> Result<Vec<String>, OpenError> {
    let log = folder.file_log(FrameMarks::secret(Secret::new(0)));
    remains(blobs, &log)
}

/// Reads all manifests; gives the one that opening takes, or what could take its place.
fn choose_manifest(
    folder: &Folder,
    blobs: &ReadBlobs,
    names: &[String],
    report: &mut Report,
) -> Result<Option<Manifest>, OpenError> {
    let taken = Manifest::newest(blobs).ok().flatten();
    let mut usable: Option<Manifest> = None;
    for name in names {
        let loaded = Manifest::load(blobs, name);
        report.manifests.push((name.clone(), loaded.is_ok()));
        // One that only has a wrong name can still take the place of another.
        let held = Manifest::load_any(blobs, name).ok();
        usable = usable.into_iter().chain(held).max_by_key(|manifest| manifest.number);
        if let Err(why) = loaded {
            let is_copy = taken.as_ref().is_some_and(|taken| taken.secret.is_some());
            report.findings.push(Finding::Manifest {
                name: name.clone(),
                why,
                fallback: None,
                is_copy,
            });
        }
    }
    if taken.is_some() {
        return Ok(taken);
    }
    let last = report.findings.iter_mut().rev().find_map(|finding| match finding {
        Finding::Manifest { why, fallback, .. } => Some((why, fallback)),
        _ => None,
    });
    if let Some((why, fallback)) = last
        && !matches!(why, OpenError::Version { .. })
    {
        let found = usable.clone().and_then(|manifest| fall_back(folder, blobs, manifest));
        *fallback = found.map(Box::new);
    }
    Ok(usable)
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
        Checkpoint::load(blobs, name, manifest.epoch).ok()?;
    }
    let log = examine_log_of(folder, &manifest).ok()?;
    if log.refused.is_some() || log.next <= manifest.log_end {
        return None;
    }
    let orphans = Orphans::find(blobs, &manifest).ok()?;
    let unnamed = orphans.ours.into_iter().chain(orphans.foreign).collect();
    Some(Fallback { manifest, unnamed, log_first: log.first, log_next: log.next })
}

fn examine_checkpoint(blobs: &ReadBlobs, manifest: &Manifest, report: &mut Report) {
    let Some(name) = &manifest.checkpoint else { return };
    let both = [name.to_string(), copy_name(name)];
    let [main, copy] =
        both.each_ref().map(|each| Checkpoint::load_one(blobs, each, manifest.epoch));
    report.checkpoint_items =
        main.as_ref().or(copy.as_ref()).ok().map(|whole| whole.items.len() as u64);
    let of = (name.to_string(), Epoch(manifest.epoch));
    match (main, copy) {
        (Ok(_), Ok(_)) => {}
        // Version 1 wrote one; opening writes the other.
        (Ok(_), Err(OpenError::Blobs(BlobError::Missing { .. }))) if manifest.secret.is_none() => {}
        (Ok(_), Err(why)) => {
            let [_, name] = both;
            report.findings.push(Finding::CheckpointCopy { name, why: why.to_string(), of });
        }
        (Err(why), Ok(_)) if !matches!(why, OpenError::Version { .. }) => {
            let [name, _] = both;
            report.findings.push(Finding::CheckpointCopy { name, why: why.to_string(), of });
        }
        (Err(why), _) => {
            let [name, _] = both;
            report.findings.push(Finding::Checkpoint { name, why });
        }
    }
}

fn examine_orphans(
    folder: &Folder,
    blobs: &ReadBlobs,
    manifest: &Manifest,
    report: &mut Report,
) -> Result<(), OpenError> {
    let orphans = Orphans::find(blobs, manifest)?;
    if !orphans.ours.is_empty()
        && let Ok(last) = last_position(folder, manifest)
        && let Err(why) = orphans.refuse_ahead(blobs, last)
    {
        report.findings.push(Finding::SegmentAhead { why });
        return Ok(());
    }
    report.findings.extend(orphans.ours.into_iter().map(|name| Finding::Orphan { name }));
    report.findings.extend(orphans.foreign.into_iter().map(|name| Finding::Foreign { name }));
    Ok(())
}

/// The last position that manifest and log know of, as opening would find it.
fn last_position(folder: &Folder, manifest: &Manifest) -> Result<Position, LogError> {
    let log = folder.file_log(marks_of(manifest));
    let mut last = manifest.last_position;
    log.read_only(floor_of(manifest))?.replay(manifest.replay_from, &mut |_, mut frame| {
        while let Ok(entry) = Entry::take_trusted(&mut frame) {
            last = last.max(entry.header.last_position());
        }
        Ok(())
    })?;
    Ok(last)
}

/// The marks of a store that is not changed; one of version 1 needs no new secret for that.
pub(crate) fn marks_of(manifest: &Manifest) -> FrameMarks {
    manifest.marks(Secret::new(0))
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
    folder.file_log(marks_of(manifest)).examine(floor_of(manifest))
}

/// Blobs in a folder that may not be changed, or belongs to another process.
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
        let at = self.dir.display().to_string();
        if !self.fs.exists(&self.dir).map_err(|source| blob_error("look for", &at, source))? {
            return Ok(Vec::new());
        }
        let mut names = self.fs.list(&self.dir).map_err(|e| blob_error("list", &at, e))?;
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
