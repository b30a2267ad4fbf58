//! The state above a store whose manifest or checkpoint is lost, rebuilt from what segments and log
//! still hold.
//!
//! With a checkpoint it is all there, and nothing here is needed. Without one the log may begin
//! in the middle: topics of which only messages are left get a name that says so, and the default
//! settings. What was lost is reported by name.

use std::collections::BTreeSet;
use std::fmt;

use bytes::{BufMut, Bytes};
use gapless_core::{Entry, EntryKind, GapReason, Seq, Topic, TopicId, TopicName, TopicSettings};
use gapless_journal::blobs::BlobError;
use gapless_journal::doctor::{Rebuild, Rebuilt, TopicHistory};
use gapless_journal::layout::Folder;
use gapless_journal::{ItemWriter, Lsn, OpenError, Recover};

use crate::clock::{random_epoch, random_secret};
use crate::keep::recover::{Recovering, take_named, write_items};

/// What topics are called whose names are lost; their number follows.
const NAMELESS: &str = "recovered.topic-";

/// What rebuilding found, and what it could not find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The journal's part.
    pub journal: Rebuilt,
    /// Topics whose names and settings are lost, by the names they have now.
    pub nameless: Vec<String>,
    /// Topics that are there.
    pub topics: usize,
    /// Groups that are there.
    pub groups: usize,
    /// Cells that are there.
    pub cells: usize,
    /// Groups of which only a part was found, so that they are not there: their numbers.
    pub groups_lost: Vec<u64>,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.journal.fmt(f)?;
        let Self { topics, groups, cells, .. } = self;
        write!(f, "there are {topics} topics, {groups} groups and {cells} cells")?;
        for name in &self.nameless {
            write!(f, "\nthe name and the settings of a topic are lost; it is now {name}")?;
        }
        for id in &self.groups_lost {
            write!(f, "\nthe log has changes of group {id}, but not its creation; it is lost")?;
        }
        Ok(())
    }
}

/// Rebuilds manifest and checkpoint of the store in this folder.
///
/// # Errors
/// Says why not. Then nothing was lost that was there.
pub fn rebuild(folder: &Folder) -> Result<Recovered, OpenError> {
    let mut state = Rebuilding::default();
    let new = (random_epoch(), random_secret());
    let journal = gapless_journal::doctor::rebuild(folder, new, &mut state)?;
    Ok(Recovered {
        journal,
        nameless: state.nameless.iter().map(|id| format!("{NAMELESS}{id}")).collect(),
        topics: state.inner.topics.all().len(),
        groups: state.inner.groups.all().len(),
        cells: state.inner.cells.len(),
        groups_lost: state.groups_lost.iter().map(|id| id.0).collect(),
    })
}

#[derive(Default)]
struct Rebuilding {
    inner: Recovering,
    /// Topics of which only messages are known so far.
    nameless: BTreeSet<TopicId>,
    groups_lost: BTreeSet<TopicId>,
    /// Whether there was a checkpoint: then the log begins where that ends.
    whole: bool,
}

impl Rebuilding {
    /// Adds a topic that nothing names.
    fn add_nameless(&mut self, id: TopicId, first: Seq) -> Result<(), String> {
        let name =
            TopicName::parse(&format!("{NAMELESS}{id}")).map_err(|error| error.to_string())?;
        let cell = self.inner.add_topic(id, name, TopicSettings::default());
        cell.lock().machine = numbers(first, first, &TopicSettings::default())?;
        self.nameless.insert(id);
        Ok(())
    }

    /// A batch must begin where its topic ends; a log that begins in the middle cannot know.
    fn make_way(&mut self, id: TopicId, first: Seq) -> Result<(), String> {
        let Some(cell) = self.inner.topics.by_id(id) else {
            return if self.inner.deleted.contains(&id) {
                Ok(())
            } else {
                self.add_nameless(id, first)
            };
        };
        let mut state = cell.lock();
        if state.machine.next() < first {
            let kept = if state.machine.next() == Seq(1) { first } else { state.machine.first() };
            state.machine = numbers(kept, first, &state.settings)?;
        }
        Ok(())
    }

    /// Gives a topic its name and settings, also if its messages are known already.
    fn name_topic(&mut self, entry: &Entry) -> Result<(), String> {
        let id = entry.header.topic;
        let (name, settings) = take_named(&mut &entry.body()[..])?;
        let Some(old) = self.inner.topics.by_id(id) else { return Ok(()) };
        if !self.nameless.remove(&id) {
            // Also if it is older than the newest message.
            old.lock().settings = self.inner.topics.share(settings);
            return Ok(());
        }
        self.inner.topics.remove(&old);
        let cell = self.inner.add_topic(id, name, settings);
        let (old, mut state) = (old.lock(), cell.lock());
        state.machine = numbers(old.machine.first(), old.machine.next(), &settings)?;
        state.as_of = old.as_of;
        state.oldest_time = old.oldest_time;
        Ok(())
    }
}

/// The numbers of a topic that keeps what is from `first` up to before `next`.
fn numbers(first: Seq, next: Seq, settings: &TopicSettings) -> Result<Topic, String> {
    let mut bytes = vec![1, GapReason::Retention.code()];
    for number in [first.0, next.0, next.0 - 1] {
        bytes.put_u64_le(number);
    }
    bytes.put_u64_le(u64::try_from(settings.dedup.time.as_millis()).unwrap_or(u64::MAX));
    bytes.put_u32_le(settings.dedup.count);
    Topic::decode(&bytes).map_err(|error| error.to_string())
}

impl Recover for Rebuilding {
    fn restore(&mut self, item: Bytes) -> Result<(), String> {
        self.whole = true;
        self.inner.restore(item)
    }

    fn replay(&mut self, lsn: Lsn, entry: Entry) -> Result<(), String> {
        if self.whole {
            return self.inner.replay(lsn, entry);
        }
        let id = entry.header.topic;
        match entry.header.kind {
            EntryKind::Batch | EntryKind::Floor => self.make_way(id, entry.header.seq)?,
            EntryKind::TopicSet => self.name_topic(&entry)?,
            EntryKind::TopicDelete => drop(self.nameless.remove(&id)),
            _ => {}
        }
        let is_group = entry.header.kind == EntryKind::Group;
        self.inner.replay(lsn, entry)?;
        if is_group && self.inner.groups.by_id(id).is_none() && !self.inner.deleted.contains(&id) {
            self.groups_lost.insert(id);
        } else if is_group {
            self.groups_lost.remove(&id);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        if self.whole { self.inner.finish() } else { Ok(()) }
    }
}

impl Rebuild for Rebuilding {
    fn history(&mut self, topic: TopicHistory, whole: bool) {
        // With a checkpoint, what it does not name was deleted.
        if whole || self.add_nameless(topic.topic, topic.first).is_err() {
            return;
        }
        if let Some(cell) = self.inner.topics.by_id(topic.topic) {
            let mut state = cell.lock();
            if let Ok(machine) = numbers(topic.first, topic.last.next(), &state.settings) {
                state.machine = machine;
            }
            state.as_of = topic.position;
            state.oldest_time = topic.oldest;
        }
    }

    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError> {
        let Recovering { topics, groups, cells, .. } = &self.inner;
        let reused = || topics.reused(|names| names.clone());
        write_items(topics.last_id(), &topics.all(), &groups.all(), || cells.clone(), reused, write)
    }
}
