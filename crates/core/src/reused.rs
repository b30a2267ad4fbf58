//! Names that belonged to another topic before, and since when.
//!
//! A topic that is created under the name of a deleted one is another topic: its seqs begin at
//! one. A reader that goes on by a position must notice that. The rule: a reader whose place is
//! before the creation of such a topic is notified, once its place reaches the creation, that
//! the earlier topic was deleted. A reader that stands after the creation is not.
//!
//! Not here: when a reader reaches a position (`sweep.rs`).

use alloc::collections::BTreeMap;
use core::ops::Bound::{Excluded, Included};

use crate::id::{Position, TopicId};
use crate::name::TopicName;

/// Names that are remembered; past it the one whose last change is the oldest is forgotten. A
/// topic that is created under a forgotten name counts as the first of that name.
pub const REUSED_MAX: usize = 16_384;

/// What is known of a name that belonged to a topic that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Where the topic was deleted; where the next one was created, if there is one.
    pub at: Position,
    /// The topic that has the name since then, if there is one.
    pub by: Option<TopicId>,
}

/// The names of deleted topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReusedNames {
    names: BTreeMap<TopicName, Reuse>,
    /// Each entry has a position of its own.
    by_position: BTreeMap<Position, TopicName>,
}

impl ReusedNames {
    /// A topic of this name was deleted.
    pub fn deleted(&mut self, name: &TopicName, at: Position) {
        self.restore(name.clone(), Reuse { at, by: None });
    }

    /// A topic of this name was created; whether another had the name before.
    pub fn created(&mut self, name: &TopicName, at: Position, by: TopicId) -> bool {
        let is_reused = self.names.contains_key(name);
        if is_reused {
            self.restore(name.clone(), Reuse { at, by: Some(by) });
        }
        is_reused
    }

    /// Takes over what is known of a name, unless something newer is.
    pub fn restore(&mut self, name: TopicName, reuse: Reuse) {
        if let Some(known) = self.names.get(&name).copied() {
            if known.at >= reuse.at {
                return;
            }
            self.by_position.remove(&known.at);
        }
        self.by_position.insert(reuse.at, name.clone());
        self.names.insert(name, reuse);
        if self.names.len() > REUSED_MAX
            && let Some((_, oldest)) = self.by_position.pop_first()
        {
            self.names.remove(&oldest);
        }
    }

    /// The creation that a reader who has seen everything up to `place` must be notified of,
    /// before it goes on in this topic of this name.
    pub fn created_after(
        &self,
        name: &TopicName,
        topic: TopicId,
        place: Position,
    ) -> Option<Position> {
        let reuse = self.names.get(name)?;
        (reuse.by == Some(topic) && reuse.at > place).then_some(reuse.at)
    }

    /// The creations between two positions, both included, in their order.
    pub fn created_between(
        &self,
        first: Position,
        last: Position,
    ) -> impl Iterator<Item = (&TopicName, Position, TopicId)> {
        // An empty range has no place in a map.
        let last = last.max(first.prev());
        let between = self.by_position.range((Included(first), Excluded(last.next())));
        between.filter_map(|(at, name)| Some((name, *at, self.names.get(name)?.by?)))
    }

    /// The last position at which a name changed its topic.
    pub fn newest(&self) -> Position {
        self.by_position.last_key_value().map_or(Position(0), |(at, _)| *at)
    }

    /// All that is remembered, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicName, &Reuse)> {
        self.names.iter()
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        assert_eq!(self.names.len(), self.by_position.len(), "each name has one place");
        assert!(self.names.len() <= REUSED_MAX, "what is remembered has a bound");
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    fn name(text: &str) -> TopicName {
        TopicName::parse(text).unwrap()
    }

    #[test]
    fn o6_only_a_reader_before_the_creation_of_a_successor_is_notified() {
        let mut names = ReusedNames::default();
        assert!(!names.created(&name("a"), Position(1), TopicId(1)));
        assert_eq!(names.created_after(&name("a"), TopicId(2), Position(0)), None);
        names.deleted(&name("a"), Position(5));
        assert_eq!(names.created_after(&name("a"), TopicId(2), Position(0)), None);
        assert!(names.created(&name("a"), Position(9), TopicId(2)));
        assert_eq!(names.created_after(&name("a"), TopicId(2), Position(8)), Some(Position(9)));
        assert_eq!(names.created_after(&name("a"), TopicId(2), Position(9)), None);
        // The deleted one, of which messages may still be on their way, is not the new one.
        assert_eq!(names.created_after(&name("a"), TopicId(1), Position(8)), None);
        names.check();
    }

    #[test]
    fn creations_come_in_the_order_of_their_positions() {
        let mut names = ReusedNames::default();
        for (at, text) in [(1, "a"), (2, "b"), (3, "c")] {
            names.deleted(&name(text), Position(at));
        }
        names.created(&name("c"), Position(4), TopicId(4));
        names.created(&name("a"), Position(6), TopicId(5));
        let between = |first, last| -> Vec<u64> {
            names.created_between(Position(first), Position(last)).map(|(_, at, _)| at.0).collect()
        };
        assert_eq!(between(1, 9), [4, 6]);
        assert_eq!(between(5, 9), [6]);
        assert_eq!(between(1, 5), [4]);
        assert_eq!(names.newest(), Position(6));
        names.check();
    }

    #[test]
    fn a_replay_of_what_is_known_changes_nothing() {
        let mut names = ReusedNames::default();
        names.deleted(&name("a"), Position(5));
        names.created(&name("a"), Position(9), TopicId(2));
        let before = names.clone();
        names.deleted(&name("a"), Position(5));
        names.created(&name("a"), Position(9), TopicId(2));
        assert_eq!(names, before);
    }

    #[test]
    fn only_so_many_names_are_remembered() {
        let mut names = ReusedNames::default();
        for at in 0..=REUSED_MAX as u64 {
            names.deleted(&name(&format!("t{at}")), Position(at + 1));
        }
        names.check();
        assert_eq!(names.iter().count(), REUSED_MAX);
        assert!(!names.created(&name("t0"), Position(1 << 30), TopicId(1)));
        assert!(names.created(&name("t1"), Position(1 << 30), TopicId(1)));
    }
}
