//! Creates manifest and checkpoint again from what is left of a store: segments, log, and the
//! checkpoint if one can be read.
//!
//! The rule: nothing is deleted, and what is damaged is put aside under another name. The
//! manifest comes last, so a rebuild that does not end leaves the folder as hopeless as it was,
//! and can be begun again. What no file holds any more is reported, not guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use gapless_core::{Entry, Epoch, Position, Seq, Timestamp, TopicId};

use super::repair::lock;
use crate::blobs::{BlobError, Blobs};
use crate::checkpoint::{Checkpoint, CheckpointWriter, Head, read_head};
use crate::dir_blobs::DirBlobs;
use crate::error::OpenError;
use crate::frame::{FrameMarks, Secret};
use crate::layout::Folder;
use crate::log::{Floor, LogError, Lsn};
use crate::manifest::{CHECKPOINT_PREFIX, DAMAGED_PREFIX, Manifest, SEGMENT_PREFIX, number_in};
use crate::segment::{self, DATA_ENDING, SegmentMeta};
use crate::state::{ItemWriter, Recover};

/// The state above a journal, while it is rebuilt. First it is given the items of a checkpoint,
/// if there is one, then what is in segments, then the entries of the log.
pub trait Rebuild: Recover {
    /// What the segments hold of a topic. Without a checkpoint this may be all that is known of
    /// it; `whole` says that there was one, so that a topic it does not name was deleted.
    fn history(&mut self, topic: TopicHistory, whole: bool);

    /// Writes every item of the state.
    ///
    /// # Errors
    /// Only those of `write`, handed through.
    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError>;
}

/// What segments hold of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicHistory {
    /// The topic.
    pub topic: TopicId,
    /// The first seq.
    pub first: Seq,
    /// The last seq.
    pub last: Seq,
    /// The position of the last message.
    pub position: Position,
    /// The time of the first batch.
    pub oldest: Timestamp,
}

/// What [`rebuild`] found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The checkpoint that could be read. Without one, only what the log still tells of topics'
    /// names and settings, groups and cells is there again.
    pub checkpoint: Option<String>,
    /// Whether the store's own id is a new one, since nothing held it. Cursors do not fit it.
    pub new_epoch: bool,
    /// How many segments were taken in.
    pub segments: usize,
    /// Segments that were left out, and why.
    pub left_out: Vec<(String, String)>,
    /// How many frames of the log were read.
    pub frames: u64,
    /// What was put aside, by its new name.
    pub put_aside: Vec<String>,
}

impl fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rebuilt from {} segments and {} frames", self.segments, self.frames)?;
        match &self.checkpoint {
            Some(name) => writeln!(f, "the state is from {name} and the log; none of it is lost")?,
            None => writeln!(
                f,
                "no checkpoint could be read: names and settings of topics, groups, cells and \
                 remembered ids are lost unless the log still tells of them"
            )?,
        }
        if self.new_epoch {
            writeln!(f, "the store's id is lost; it has a new one, and cursors begin again")?;
        }
        for (name, why) in &self.left_out {
            writeln!(f, "{name} was left out and stays: {why}")?;
        }
        for name in &self.put_aside {
            writeln!(f, "what was damaged is kept as {name}")?;
        }
        Ok(())
    }
}

/// Rebuilds the store in this folder, which is locked meanwhile. `new` is for what it may have
/// lost for good.
///
/// # Errors
/// Says why not. The store is as it was, but for blobs that nothing names.
pub fn rebuild(
    folder: &Folder,
    new: (Epoch, Secret),
    state: &mut dyn Rebuild,
) -> Result<Rebuilt, OpenError> {
    let _lock = lock(folder)?;
    let blobs = DirBlobs::new(Arc::clone(&folder.fs), folder.blobs_path());
    blobs.prepare()?;
    let mut done = Rebuilt::default();
    let manifests = Manifest::names(&blobs)?;
    let held = manifests.iter().filter_map(|name| Manifest::load_any(&blobs, name).ok());
    let base = held.max_by_key(|manifest| manifest.number);
    let epoch = base.as_ref().map(|base| base.epoch).or(epoch_left(&blobs)?);
    done.new_epoch = epoch.is_none();
    let mut manifest = Manifest {
        epoch: epoch.unwrap_or(new.0.0),
        checkpoint: None,
        segments: Vec::new(),
        clean: false,
        ..base.clone().unwrap_or_else(|| Manifest::fresh(new.0.0, new.1))
    };

    let checkpoint = restore(&blobs, base.as_ref(), manifest.epoch, state)?;
    let topics = take_in_segments(&blobs, base.as_ref(), &mut manifest, &mut done)?;
    let in_segments = manifest.segments.last().map_or(Position(0), |segment| segment.last);
    manifest.sealed = checkpoint.as_ref().map_or(in_segments, |(_, head)| head.sealed);
    for topic in topics.into_values() {
        state.history(topic, checkpoint.is_some());
    }
    let needed = checkpoint.as_ref().map(|(_, head)| head.replay_from);
    done.checkpoint = checkpoint.map(|(name, _)| name);
    let known = base.as_ref().is_some_and(|base| base.secret.is_some());
    let marks = folder.file_log(manifest.marks(new.1)).learn_marks(known)?;
    replay_log(folder, marks, needed, &mut manifest, (state, &mut done))?;
    manifest.last_position = manifest.last_position.max(in_segments).max(manifest.sealed);

    let numbers =
        manifests.iter().chain(&blobs.list(DAMAGED_PREFIX)?).filter_map(|n| number_in(n)).max();
    manifest.number = manifest.number.max(numbers.unwrap_or(0));
    let mut names = blobs.list(SEGMENT_PREFIX)?;
    names.extend(blobs.list(CHECKPOINT_PREFIX)?);
    let highest = names.iter().filter_map(|name| number_in(name)).max();
    manifest.next_name = manifest.next_name.max(highest.map_or(1, |highest| highest + 1));
    let name = format!("{CHECKPOINT_PREFIX}{:020}", manifest.next_name);
    manifest.next_name += 1;
    let (replay_from, sealed) = (manifest.replay_from, manifest.sealed);
    let head = Head { epoch: manifest.epoch, replay_from, sealed };
    let mut writer = CheckpointWriter::create(&blobs, &name, head)?;
    state.checkpoint(&mut |item| writer.item(item))?;
    writer.finish()?;
    manifest.checkpoint = Some(name.into());
    for name in &manifests {
        let aside = format!("{DAMAGED_PREFIX}{name}");
        blobs.put(&aside, &blobs.read(name)?)?;
        done.put_aside.push(aside);
    }
    manifest.store(&blobs)?;
    Ok(done)
}

/// The epoch that checkpoints or segments tell, newest first.
fn epoch_left(blobs: &dyn Blobs) -> Result<Option<u64>, OpenError> {
    for name in blobs.list(CHECKPOINT_PREFIX)?.iter().rev() {
        let head = blobs.read(name).ok().and_then(|bytes| read_head(name, &bytes).ok());
        if let Some(head) = head.and_then(|(head, _)| head) {
            return Ok(Some(head.epoch));
        }
    }
    let names = blobs.list(SEGMENT_PREFIX)?;
    let data = names.iter().rev().filter(|name| name.ends_with(DATA_ENDING));
    Ok(data.filter_map(|name| segment::epoch_of(blobs, name).ok()).next())
}

/// Gives the state the newest checkpoint that can be read; tells its name, and where it ends.
fn restore(
    blobs: &dyn Blobs,
    base: Option<&Manifest>,
    epoch: u64,
    state: &mut dyn Rebuild,
) -> Result<Option<(String, Head)>, OpenError> {
    let mut names = blobs.list(CHECKPOINT_PREFIX)?;
    names.iter_mut().for_each(|name| name.truncate(CHECKPOINT_PREFIX.len() + 20));
    names.dedup();
    for name in names.into_iter().rev() {
        let Ok(checkpoint) = Checkpoint::load(blobs, &name, epoch) else { continue };
        // Of version 1 only a manifest knows where it ends.
        let named = base.filter(|base| base.checkpoint.as_deref() == Some(&*name));
        let told =
            named.map(|base| Head { epoch, replay_from: base.replay_from, sealed: base.sealed });
        let Some(head) = checkpoint.head.or(told) else { continue };
        for item in checkpoint.items {
            let refused = |why| OpenError::Damaged { name: name.clone(), why };
            state.restore(item).map_err(refused)?;
        }
        return Ok(Some((name, head)));
    }
    Ok(None)
}

/// Takes in the segments of this store that do not say the same twice: those that the manifest
/// named, then the newest of the others, since a merged one is newer than what it was made of.
fn take_in_segments(
    blobs: &dyn Blobs,
    base: Option<&Manifest>,
    manifest: &mut Manifest,
    done: &mut Rebuilt,
) -> Result<BTreeMap<TopicId, TopicHistory>, OpenError> {
    let named = |stem: &str| base.and_then(|base| base.segments.iter().find(|s| &*s.name == stem));
    let mut stems: Vec<String> = blobs.list(SEGMENT_PREFIX)?;
    stems.retain(|name| name.ends_with(DATA_ENDING));
    stems.iter_mut().for_each(|name| name.truncate(name.len() - DATA_ENDING.len()));
    stems.sort_by_key(|stem| std::cmp::Reverse((named(stem).is_some(), number_in(stem))));
    let mut topics = BTreeMap::new();
    let mut taken: Vec<SegmentMeta> = Vec::new();
    for stem in stems {
        let name = format!("{stem}{DATA_ENDING}");
        let mut leave_out = |why: String| done.left_out.push((name.clone(), why));
        match segment::epoch_of(blobs, &name) {
            Ok(epoch) if epoch == manifest.epoch => {}
            Ok(_) => {
                leave_out("it belongs to another store".to_owned());
                continue;
            }
            Err(error) => {
                leave_out(error.to_string());
                continue;
            }
        }
        let surveyed = match segment::survey(blobs, &stem) {
            Ok(surveyed) => surveyed,
            Err(error) => {
                match named(&stem) {
                    // As opening takes it: what is whole in it can be read.
                    Some(named) => taken.push(named.clone()),
                    None => leave_out(error.to_string()),
                }
                continue;
            }
        };
        let Some((mut meta, found)) = surveyed else { continue };
        meta.last = named(&stem).map_or(meta.last, |named| named.last.max(meta.last));
        let same = taken.iter().find(|other| meta.first <= other.last && other.first <= meta.last);
        if let Some(other) = same {
            leave_out(format!("{} holds the same positions", other.name));
            continue;
        }
        for topic in found {
            let known = topics.entry(topic.topic).or_insert(topic);
            known.first = known.first.min(topic.first);
            known.last = known.last.max(topic.last);
            known.position = known.position.max(topic.position);
            known.oldest = known.oldest.min(topic.oldest);
        }
        taken.push(meta);
    }
    taken.sort_by_key(|meta| meta.first);
    done.segments = taken.len();
    manifest.segments = taken;
    Ok(topics)
}

/// Gives the state all entries that the log still has, and notes in the manifest where it has
/// to be replayed from.
fn replay_log(
    folder: &Folder,
    marks: FrameMarks,
    needed: Option<Lsn>,
    manifest: &mut Manifest,
    (state, done): (&mut dyn Rebuild, &mut Rebuilt),
) -> Result<(), OpenError> {
    let log = folder.file_log(marks);
    let Some(first) = log.last_run()? else {
        manifest.replay_from = needed.unwrap_or(manifest.replay_from);
        manifest.log_end = manifest.replay_from.before();
        return Ok(());
    };
    manifest.secret = marks.secret_from.map(|_| marks.secret);
    manifest.secret_from = marks.secret_from.unwrap_or(Lsn::FIRST);
    if let Some(needed) = needed.filter(|needed| first > *needed) {
        let why = format!("frames from {needed} to {} are missing", first.before());
        let place = folder.path.join(crate::layout::LOG_FOLDER).display().to_string();
        return Err(LogError::Damaged { place, lsn: needed, why }.into());
    }
    let from = needed.unwrap_or(first);
    let floor = Floor { first_needed: from, flushed: Lsn::NONE, term: manifest.term };
    let mut fault = None;
    let (mut replay_from, mut end) = (None, from.before());
    let sealed = manifest.sealed;
    log.read_only(floor)?.replay(from, &mut |lsn, mut frame: Bytes| {
        let mut last = Position(0);
        while !frame.is_empty() && fault.is_none() {
            match Entry::take_trusted(&mut frame) {
                Ok(entry) => {
                    last = entry.header.last_position();
                    manifest.last_time = manifest.last_time.max(entry.header.time);
                    fault = state.replay(lsn, entry).err();
                }
                Err(why) => fault = Some(why.to_string()),
            }
        }
        manifest.last_position = manifest.last_position.max(last);
        if last > sealed {
            replay_from.get_or_insert(lsn);
        }
        (end, done.frames) = (lsn, done.frames + 1);
        Ok(())
    })?;
    if let Some(why) = fault {
        return Err(OpenError::BadState { position: manifest.last_position, why });
    }
    manifest.replay_from = needed.or(replay_from).unwrap_or(end.next());
    manifest.log_end = end;
    Ok(())
}
