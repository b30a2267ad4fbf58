//! Name to topic, number to topic. A million idle topics cost memory only.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gapless_core::{Pattern, Position, ReusedNames, Timestamp, TopicId, TopicName, TopicSettings};

use crate::topic::live_topic::{LiveTopic, lock};

/// All topics of a broker.
#[derive(Default)]
pub(crate) struct Topics {
    maps: RwLock<Maps>,
    /// Topics in which retention has work to do.
    pub(crate) trims: Arc<Mutex<Vec<TopicId>>>,
    reused: Mutex<ReusedNames>,
    /// The position of the last change of these, so that most readers need not lock them.
    newest_reuse: AtomicU64,
}

#[derive(Default)]
struct Maps {
    by_name: HashSet<Named>,
    by_id: HashSet<Numbered>,
    next_id: u64,
    aged: BTreeSet<TopicId>,
    /// How many are the broker's own.
    system: usize,
    /// Topics whose deletion is not flushed yet: a crash may bring them back.
    leaving: BTreeMap<TopicId, Arc<LiveTopic>>,
    /// Settings that many topics share are kept once.
    common: Arc<TopicSettings>,
}

/// A topic, found by its name. A set of these has each name once, in the topic itself.
struct Named(Arc<LiveTopic>);

/// A topic, found by its number.
struct Numbered(Arc<LiveTopic>);

impl Borrow<TopicName> for Named {
    fn borrow(&self) -> &TopicName {
        &self.0.name
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

impl Borrow<TopicId> for Numbered {
    fn borrow(&self) -> &TopicId {
        &self.0.id
    }
}

impl Hash for Numbered {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl PartialEq for Numbered {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Numbered {}

impl Topics {
    fn read<T>(&self, with: impl FnOnce(&Maps) -> T) -> T {
        with(&self.maps.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, with: impl FnOnce(&mut Maps) -> T) -> T {
        with(&mut self.maps.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks into, or changes, what is known of names that belonged to deleted topics.
    pub(crate) fn reused<T>(&self, with: impl FnOnce(&mut ReusedNames) -> T) -> T {
        let mut names = lock(&self.reused);
        let done = with(&mut names);
        names.check();
        self.newest_reuse.store(names.newest().0, Ordering::Release);
        done
    }

    /// Whether a name may have changed its topic at this position or later.
    pub(crate) fn may_be_reused_from(&self, position: Position) -> bool {
        self.newest_reuse.load(Ordering::Acquire) >= position.0
    }

    pub(crate) fn find(&self, name: &TopicName) -> Option<Arc<LiveTopic>> {
        self.read(|maps| maps.by_name.get(name).map(|each| Arc::clone(&each.0)))
    }

    pub(crate) fn by_id(&self, id: TopicId) -> Option<Arc<LiveTopic>> {
        self.read(|maps| maps.by_id.get(&id).map(|each| Arc::clone(&each.0)))
    }

    pub(crate) fn len(&self) -> usize {
        self.read(|maps| maps.by_name.len())
    }

    /// How many there are without the broker's own.
    pub(crate) fn users(&self) -> usize {
        self.read(|maps| maps.by_name.len() - maps.system)
    }

    /// A number that no topic had before.
    pub(crate) fn new_id(&self) -> TopicId {
        self.write(|maps| {
            maps.next_id += 1;
            TopicId(maps.next_id)
        })
    }

    /// The highest number given so far.
    pub(crate) fn last_id(&self) -> TopicId {
        self.read(|maps| TopicId(maps.next_id))
    }

    pub(crate) fn note_id(&self, id: TopicId) {
        self.write(|maps| maps.next_id = maps.next_id.max(id.0));
    }

    /// The settings, shared with other topics that have the same.
    pub(crate) fn share(&self, settings: TopicSettings) -> Arc<TopicSettings> {
        self.write(|maps| {
            if *maps.common != settings {
                maps.common = Arc::new(settings);
            }
            Arc::clone(&maps.common)
        })
    }

    /// Adds a topic. A name belongs to the topic of the highest number: a replay may come to one
    /// that was deleted, and has to delete it again, when the next of that name is there.
    pub(crate) fn insert(&self, cell: Arc<LiveTopic>) {
        self.write(|maps| {
            maps.next_id = maps.next_id.max(cell.id.0);
            if cell.lock().settings.retention.age.is_some() {
                maps.aged.insert(cell.id);
            }
            let named = maps.by_name.get(&cell.name).map(|each| each.0.id);
            if named.is_none_or(|id| id <= cell.id) {
                maps.by_name.replace(Named(Arc::clone(&cell)));
            }
            maps.system += usize::from(named.is_none() && cell.name.is_system());
            maps.by_id.replace(Numbered(cell));
        });
    }

    /// The topic of this number, also while its deletion is not flushed yet.
    pub(crate) fn by_id_or_leaving(&self, id: TopicId) -> Option<Arc<LiveTopic>> {
        self.read(|maps| {
            let here = maps.by_id.get(&id).map(|each| &each.0);
            here.or_else(|| maps.leaving.get(&id)).cloned()
        })
    }

    /// Takes a topic out whose deletion is written down; [`Topics::left`] says that it is
    /// flushed.
    pub(crate) fn leave(&self, cell: &LiveTopic) {
        self.write(|maps| {
            if let Some(Numbered(cell)) = maps.by_id.take(&cell.id) {
                maps.leaving.insert(cell.id, cell);
            }
            maps.aged.remove(&cell.id);
            if maps.by_name.get(&cell.name).is_some_and(|each| each.0.id == cell.id) {
                maps.by_name.remove(&cell.name);
                maps.system -= usize::from(cell.name.is_system());
            }
        });
    }

    /// The deletion of a topic is flushed.
    pub(crate) fn left(&self, id: TopicId) {
        self.write(|maps| maps.leaving.remove(&id));
    }

    /// Takes a topic out of which nothing can come back.
    pub(crate) fn remove(&self, cell: &LiveTopic) {
        self.leave(cell);
        self.left(cell.id);
    }

    /// All topics, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<Arc<LiveTopic>> {
        let mut all: Vec<_> =
            self.read(|maps| maps.by_id.iter().map(|each| Arc::clone(&each.0)).collect());
        all.sort_unstable_by_key(|cell: &Arc<LiveTopic>| cell.id);
        all
    }

    /// Topics with retention by age, as far as their oldest message may be past it.
    pub(crate) fn aged(&self, now: Timestamp) -> Vec<Arc<LiveTopic>> {
        let aged: Vec<TopicId> = self.read(|maps| maps.aged.iter().copied().collect());
        let cells = aged.into_iter().filter_map(|id| self.by_id(id));
        let is_due = |cell: &Arc<LiveTopic>| {
            let state = cell.lock();
            let age = state.settings.retention.age;
            let oldest = state.oldest_time;
            let ahead = oldest != Timestamp::NEVER && oldest.is_ahead_of(now);
            age.is_some_and(|age| ahead || oldest.after(age) <= now)
        };
        cells.filter(is_due).collect()
    }

    /// Remembers which topics have retention by age.
    pub(crate) fn note_age(&self, id: TopicId, aged: bool) {
        self.write(|maps| if aged { maps.aged.insert(id) } else { maps.aged.remove(&id) });
    }

    /// The topics that match, in the order of their numbers.
    pub(crate) fn matching(&self, pattern: &Pattern) -> Vec<Arc<LiveTopic>> {
        if let Some(name) = pattern.as_name() {
            return self.find(&name).into_iter().collect();
        }
        let mut found: Vec<_> = self.read(|maps| {
            let cells = maps.by_id.iter().map(|each| &each.0);
            cells.filter(|cell| pattern.matches(&cell.name)).cloned().collect()
        });
        found.sort_unstable_by_key(|cell: &Arc<LiveTopic>| cell.id);
        found
    }

    /// As [`Topics::matching`], with those whose deletion is not flushed yet: their messages still
    /// come.
    pub(crate) fn matching_or_leaving(&self, pattern: &Pattern) -> Vec<Arc<LiveTopic>> {
        let mut found = self.matching(pattern);
        self.read(|maps| {
            let leaving = maps.leaving.values().filter(|cell| pattern.matches(&cell.name));
            found.extend(leaving.cloned());
        });
        found
    }
}
