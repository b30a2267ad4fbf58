//! Name to group, number to group, and when the next one has something to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gapless_core::{Timestamp, TopicId, TopicName};

use crate::group::LiveGroup;
use crate::topic::live_topic::lock;

/// All groups of a broker.
#[derive(Default)]
pub(crate) struct Groups {
    maps: RwLock<Maps>,
    /// When to check which group; a check may find nothing to do, but is never too late.
    deadlines: Mutex<BTreeSet<(Timestamp, TopicId)>>,
}

#[derive(Default)]
struct Maps {
    by_name: BTreeMap<TopicName, Arc<LiveGroup>>,
    by_id: BTreeMap<TopicId, Arc<LiveGroup>>,
}

impl Groups {
    fn read<T>(&self, with: impl FnOnce(&Maps) -> T) -> T {
        with(&self.maps.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, with: impl FnOnce(&mut Maps) -> T) -> T {
        with(&mut self.maps.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn find(&self, name: &TopicName) -> Option<Arc<LiveGroup>> {
        self.read(|maps| maps.by_name.get(name).cloned())
    }

    pub(crate) fn by_id(&self, id: TopicId) -> Option<Arc<LiveGroup>> {
        self.read(|maps| maps.by_id.get(&id).cloned())
    }

    pub(crate) fn len(&self) -> usize {
        self.read(|maps| maps.by_name.len())
    }

    /// All groups, by name.
    pub(crate) fn all(&self) -> Vec<Arc<LiveGroup>> {
        self.read(|maps| maps.by_name.values().cloned().collect())
    }

    /// Adds a group. A name belongs to the group of the highest number: a replay may come to one
    /// that was deleted, and has to delete it again, when the next of that name is there.
    pub(crate) fn insert(&self, group: Arc<LiveGroup>) {
        self.write(|maps| {
            if maps.by_name.get(&group.name).is_none_or(|each| each.id <= group.id) {
                maps.by_name.insert(group.name.clone(), Arc::clone(&group));
            }
            maps.by_id.insert(group.id, group);
        });
    }

    pub(crate) fn remove(&self, group: &LiveGroup) {
        self.write(|maps| {
            maps.by_id.remove(&group.id);
            if maps.by_name.get(&group.name).is_some_and(|each| each.id == group.id) {
                maps.by_name.remove(&group.name);
            }
        });
    }

    /// Notes that a group has something to do at this time.
    pub(crate) fn note(&self, due: Timestamp, id: TopicId) {
        lock(&self.deadlines).insert((due, id));
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        lock(&self.deadlines).first().map(|(due, _)| *due)
    }

    /// Takes the groups that have something to do now.
    pub(crate) fn take_due(&self, now: Timestamp) -> Vec<Arc<LiveGroup>> {
        let mut deadlines = lock(&self.deadlines);
        let later =
            deadlines.split_off(&(now.after(std::time::Duration::from_millis(1)), TopicId(0)));
        let due = std::mem::replace(&mut *deadlines, later);
        drop(deadlines);
        due.into_iter().filter_map(|(_, id)| self.by_id(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gapless_core::{Group, GroupSettings, Pattern, Position};

    use super::*;

    fn groups(count: u64) -> Groups {
        let groups = Groups::default();
        for number in 1..=count {
            let name = TopicName::parse(&format!("g{number}")).unwrap();
            let settings = GroupSettings::new(Pattern::literal(&name));
            let machine = Group::new(settings, Position(0), Position(0), number);
            let group = LiveGroup::new(TopicId(number), name, machine, Position(0));
            groups.insert(Arc::new(group));
        }
        groups
    }

    fn names(groups: &[Arc<LiveGroup>]) -> Vec<&str> {
        groups.iter().map(|group| group.name.as_str()).collect()
    }

    #[test]
    fn only_groups_with_something_to_do_are_looked_at() {
        let groups = groups(5);
        assert!(groups.take_due(Timestamp(1_000_000)).is_empty());
        groups.note(Timestamp(20), TopicId(2));
        groups.note(Timestamp(10), TopicId(4));
        assert!(groups.take_due(Timestamp(9)).is_empty());
        assert_eq!(names(&groups.take_due(Timestamp(10))), ["g4"]);
        assert_eq!(groups.next_due(), Some(Timestamp(20)));
        assert_eq!(names(&groups.take_due(Timestamp(30))), ["g2"]);
        assert_eq!(groups.next_due(), None);
    }
}
