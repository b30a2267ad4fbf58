//! `gapless backup`, `restore` and `verify`: copies of a store with checksums.

use clap::Args;
use gapless_broker::{Clock, SystemClock, check_snapshot};
use gapless_engine::{BackupError, Index};
use gapless_journal::doctor::{Severity, examine};
use gapless_journal::fs::DiskFs;
use gapless_journal::layout::Folder;
use serde_json::json;
use std::sync::Arc;

use super::Global;
use crate::copying::{self, HTTP_DEFAULT, Place, Source, backup_failure};
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, human_bytes, human_number};
use crate::progress::{Progress, bytes_bar};

const BACKUP_EXAMPLES: &str = "\
Examples:
  gapless backup /backups/orders                          of the server on this machine
  gapless backup s3://bucket/backups --from http://10.0.0.3:4280
  gapless backup /backups/orders --from gapless-data      of a data folder whose server is stopped

The server goes on meanwhile; the backup holds all that was acknowledged before it began. Into a
place with a backup of the same store only what is new is copied; the one before stays whole until
the new one is. Needs the right admin on backup.";

/// Copy the store of a running server, with checksums
#[derive(Debug, Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(crate) struct BackupOptions {
    /// A folder, or s3://bucket/prefix: empty, or with a backup of the same store
    to: String,
    /// The HTTP address of the server, a data folder that is not in use, or a store on object storage
    #[arg(long, value_name = "PLACE", default_value = HTTP_DEFAULT)]
    from: String,
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  gapless restore /backups/orders gapless-data            then: gapless serve
  gapless restore s3://bucket/backups s3://bucket/store   then: gapless serve --store s3://bucket/store

The target must be empty. Every blob is checked against its checksum before it gets its name, and
what did not end is not taken for a store. Cursors of what came after the backup are noticed when
they are used: their readers get a gap notice, not other messages.";

/// Create a store from a backup
#[derive(Debug, Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct RestoreOptions {
    /// The backup: a folder, or s3://bucket/prefix
    from: String,
    /// An empty data folder, or s3://bucket/prefix
    to: String,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  gapless verify /backups/orders            every checksum, and that it would open
  gapless verify gapless-data               a data folder that was copied
  gapless verify s3://bucket/store --json   a store on object storage

Nothing is changed. Exit code 3 means that damage was found, 6 that there is nothing.";

/// Read all of a backup or of a copy of a store, and say whether it is whole
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyOptions {
    /// A backup, a data folder, or a store on object storage
    place: String,
}

/// Shows how far a copy is.
pub(crate) struct Copying {
    progress: Progress,
    label: &'static str,
    done: u64,
    total: u64,
}

impl Copying {
    pub(crate) fn new(label: &'static str, total: u64, out: &Output) -> Self {
        let progress = Progress::new(out.quiet || out.json);
        Self { progress, label, done: 0, total }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let (label, done, total) = (self.label, self.done, self.total.max(self.done));
        self.progress.update(|elapsed| bytes_bar(label, done, total, elapsed));
    }
}

pub(crate) fn backup(options: &BackupOptions, global: &Global, out: &mut Output) -> Done {
    let (from, to) = (Place::parse(&options.from), Place::parse(&options.to));
    let backup = copying::backup_at(&to)?;
    let source = Source::open(&from, global)?;
    let mut copying = Copying::new("backup", source.bytes()?, out);
    let now = SystemClock::default().now().0;
    let taken = backup
        .take(&source.snapshot, now, &|name| source.sum_of(name), &mut |bytes| copying.add(bytes))
        .map_err(backup_failure)?;
    drop(copying);
    if out.json {
        out.json_line(&json!({
            "backup": to.to_string(), "from": from.to_string(),
            "store": source.snapshot.epoch().to_string(), "taken_ms": taken.index.taken_ms,
            "blobs": taken.index.sums.len(), "bytes": taken.index.bytes(),
            "copied_blobs": taken.copied.0, "copied_bytes": taken.copied.1,
            "kept_blobs": taken.kept.0, "kept_bytes": taken.kept.1, "deleted": taken.deleted,
        }))?;
    } else {
        let bytes = human_bytes(taken.index.bytes());
        out.line(format_args!("backed up {from} to {to}: {bytes}"))?;
        let (copied, kept) = (taken.copied, taken.kept);
        let (copied_bytes, kept_bytes) = (human_bytes(copied.1), human_bytes(kept.1));
        let (copied, kept) = (human_number(copied.0), human_number(kept.0));
        out.line(format_args!(
            "  copied {copied} blobs, {copied_bytes}; {kept} were there, {kept_bytes}"
        ))?;
    }
    Ok(Exit::Ok)
}

pub(crate) fn restore(options: &RestoreOptions, out: &mut Output) -> Done {
    let (from, to) = (Place::parse(&options.from), Place::parse(&options.to));
    let (snapshot, index) = copying::backup_at(&from)?.snapshot().map_err(backup_failure)?;
    let mut copying = Copying::new("restore", index.bytes(), out);
    let sum_of = |name: &str| index.sums.get(name).copied();
    copying::write(&snapshot, &to, &sum_of, &mut |bytes| copying.add(bytes))?;
    drop(copying);
    print_done("restored", (&from, &to), &index, out)
}

fn print_done(done: &str, (from, to): (&Place, &Place), index: &Index, out: &mut Output) -> Done {
    if out.json {
        out.json_line(&json!({
            "done": done, "from": from.to_string(), "to": to.to_string(),
            "store": format!("{:016x}", index.epoch), "taken_ms": index.taken_ms,
            "blobs": index.sums.len(), "bytes": index.bytes(),
        }))?;
    } else {
        let bytes = human_bytes(index.bytes());
        out.line(format_args!("{done} {from} to {to}: {bytes}"))?;
    }
    Ok(Exit::Ok)
}

pub(crate) fn verify(options: &VerifyOptions, out: &mut Output) -> Done {
    let place = Place::parse(&options.place);
    if let Place::Folder(path) = &place
        && !place.has_objects()
    {
        return verify_folder(&Folder::new(Arc::new(DiskFs), path), out);
    }
    let backup = copying::backup_at(&place)?;
    let index = match backup.index() {
        Ok(index) => index,
        Err(BackupError::IsStore { .. }) => return verify_store(&place, out),
        Err(error) => return Err(backup_failure(error)),
    };
    // Once for the checksums, once as an opening reads it.
    let mut copying = Copying::new("verify", 2 * index.bytes(), out);
    let (snapshot, index, left) =
        backup.verify(&mut |bytes| copying.add(bytes)).map_err(backup_failure)?;
    check(&snapshot, &mut copying)?;
    drop(copying);
    if out.json {
        out.json_line(&json!({
            "backup": place.to_string(), "whole": true, "taken_ms": index.taken_ms,
            "store": format!("{:016x}", index.epoch), "blobs": index.sums.len(),
            "bytes": index.bytes(), "unfinished": left,
        }))?;
        return Ok(Exit::Ok);
    }
    let bytes = human_bytes(index.bytes());
    let blobs = human_number(index.sums.len() as u64);
    out.line(format_args!("{place} is whole: {blobs} blobs, {bytes}"))?;
    if !left.is_empty() {
        let left = human_number(left.len() as u64);
        out.line(format_args!("  {left} blobs are of a backup that was not finished"))?;
    }
    Ok(Exit::Ok)
}

fn check(snapshot: &gapless_journal::Snapshot, copying: &mut Copying) -> Result<(), Failure> {
    let mut before = 0;
    let checked = check_snapshot(snapshot, &mut |done, _| {
        copying.add(done.saturating_sub(before));
        before = done;
    });
    checked.map_err(|error| Failure::new(Exit::Damage, error))
}

/// A store on object storage: its newest state, read to the last byte.
fn verify_store(place: &Place, out: &mut Output) -> Done {
    let from = Place::Url(place.url()?);
    let source = copying::open_store(&from, false)?;
    let snapshot = source.snapshot(0).map_err(|error| Failure::new(Exit::Damage, error))?;
    let bytes: u64 = snapshot.manifest().segments.iter().map(|segment| segment.bytes).sum();
    let mut copying = Copying::new("verify", bytes, out);
    check(&snapshot, &mut copying)?;
    drop(copying);
    print_whole(place, snapshot.manifest().segments.len() as u64, bytes, out)
}

fn verify_folder(folder: &Folder, out: &mut Output) -> Done {
    let mut copying = Copying::new("verify", 0, out);
    let mut before = 0;
    let report = examine(folder, &mut |done, total| {
        copying.total = total;
        copying.add(done.saturating_sub(before));
        before = done;
    });
    drop(copying);
    let at = folder.path.display();
    let report = report.map_err(|error| Failure::failed(format!("{at}: {error}")))?;
    if report.manifest.is_none() {
        return Err(Failure::not_found(format!("there is no whole store in {at}")));
    }
    if report.worst() >= Some(Severity::Repairable) {
        let bad = report.findings.iter().find(|each| each.severity() > Severity::Info);
        let what = bad.map(ToString::to_string).unwrap_or_default();
        return Err(Failure::new(Exit::Damage, what).hint("see all of it: gapless doctor --data"));
    }
    if let Err(error) = gapless_broker::rehearse(folder) {
        return Err(Failure::new(Exit::Damage, error));
    }
    let place = Place::Folder(folder.path.clone());
    print_whole(&place, report.segments.len() as u64, report.segment_bytes, out)
}

fn print_whole(place: &Place, segments: u64, bytes: u64, out: &mut Output) -> Done {
    if out.json {
        out.json_line(&json!({
            "store": place.to_string(), "whole": true, "segments": segments, "bytes": bytes,
        }))?;
    } else {
        let (segments, bytes) = (human_number(segments), human_bytes(bytes));
        out.line(format_args!("{place} is whole: {segments} segments, {bytes}"))?;
    }
    Ok(Exit::Ok)
}
