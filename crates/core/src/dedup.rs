//! The message ids a topic remembers, so that a retry is answered and not repeated.
//!
//! Ids are kept in the order they came, and forgotten from the oldest on, by age and by
//! count. An id past its age is treated as unknown at once, whether or not it has been
//! forgotten yet: so it does not matter when forgetting happens, and a state rebuilt from
//! the journal behaves like the one that lived.
//!
//! Ids are compared whole, not by a hash: two ids that collide would lose a message.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

use crate::id::Seq;
use crate::settings::DedupWindow;
use crate::time::Timestamp;

/// What is known of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    seq: Seq,
    time: Timestamp,
}

/// The ids of one topic. Dropped whole when it is empty, since most topics are idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dedup {
    by_id: BTreeMap<Arc<[u8]>, Known>,
    /// The same ids, oldest first. Times never fall along it.
    by_age: VecDeque<(Known, Arc<[u8]>)>,
}

impl Dedup {
    /// The seq this id was given, if it is still to be remembered.
    pub(crate) fn find(&self, now: Timestamp, window: DedupWindow, id: &[u8]) -> Option<Seq> {
        let known = self.by_id.get(id)?;
        (!is_past(known.time, now, window)).then_some(known.seq)
    }

    /// Remembers an id. One that is present already is remembered again, under its new seq.
    pub(crate) fn insert(&mut self, now: Timestamp, id: &[u8], seq: Seq) {
        // A clock that went back must not break the order by age; and one that was far ahead must
        // not make ids last for ever.
        let newest = self.by_age.back().map_or(now, |(known, _)| known.time);
        if newest.is_ahead_of(now) {
            self.bring_forward(now);
        }
        let known = Known { seq, time: newest.next(now) };
        let id: Arc<[u8]> = Arc::from(id);
        self.by_id.insert(Arc::clone(&id), known);
        self.by_age.push_back((known, id));
    }

    /// Lets what is remembered from a later time than `now` be from now.
    fn bring_forward(&mut self, now: Timestamp) {
        for known in self.by_id.values_mut() {
            known.time = known.time.min(now);
        }
        for (known, _) in &mut self.by_age {
            known.time = known.time.min(now);
        }
    }

    /// Forgets what is past its age or too many.
    pub(crate) fn evict(&mut self, now: Timestamp, window: DedupWindow) {
        let count_max = usize::try_from(window.count).unwrap_or(usize::MAX);
        while let Some((known, _)) = self.by_age.front() {
            if self.by_id.len() <= count_max && !is_past(known.time, now, window) {
                break;
            }
            if let Some((known, id)) = self.by_age.pop_front() {
                // The id may have been remembered again since; then only its old age entry is
                // removed.
                if self.by_id.get(&id) == Some(&known) {
                    self.by_id.remove(&id);
                }
            }
        }
        // A burst must not hold its memory for ever.
        if self.by_age.capacity() > 64 && self.by_age.len() < self.by_age.capacity() / 4 {
            self.by_age.shrink_to(self.by_age.len() * 2);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// When the oldest id is past its age.
    pub(crate) fn deadline(&self, window: DedupWindow) -> Option<Timestamp> {
        self.by_age.front().map(|(known, _)| known.time.after(window.time))
    }

    /// The ids to remember, oldest first, as seq, time and id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seq, Timestamp, &[u8])> {
        self.by_age
            .iter()
            .filter(|(known, id)| self.by_id.get(id) == Some(known))
            .map(|(known, id)| (known.seq, known.time, &id[..]))
    }

    /// Asserts what must always be true of the ids of a topic that has given out the
    /// seqs below `next`.
    pub(crate) fn check(&self, next: Seq) {
        assert!(self.by_id.len() <= self.by_age.len(), "every id has an age");
        assert!(
            self.by_age.iter().is_sorted_by_key(|(known, _)| known.time),
            "ids are in the order of their age"
        );
        assert!(self.by_id.values().all(|known| known.seq < next), "every id has a given seq");
    }
}

fn is_past(time: Timestamp, now: Timestamp, window: DedupWindow) -> bool {
    time.after(window.time) <= now
}
