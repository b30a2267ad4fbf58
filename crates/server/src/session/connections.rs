//! The number of connections of all listeners together.
//!
//! Each listener has a maximum of its own; this one is for all of them, because they share the file
//! descriptors of the process with the store. A connection past it gets an error and is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A count that listeners share. Clones count together.
#[derive(Clone, Debug)]
pub struct Connections {
    max: usize,
    now: Arc<AtomicUsize>,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Arc<AtomicUsize>);

impl Connections {
    /// At most so many at the same time.
    pub fn at_most(max: usize) -> Self {
        Self { max, now: Arc::default() }
    }

    /// A place for one more, if there is one.
    pub(crate) fn enter(&self) -> Option<Entered> {
        let place = Entered(Arc::clone(&self.now));
        // Counted first, so that two that arrive together do not both get the last one.
        let before = self.now.fetch_add(1, Ordering::AcqRel);
        (before < self.max).then_some(place)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Connections {
    /// As many as each listener allows.
    fn default() -> Self {
        Self::at_most(usize::MAX)
    }
}

impl PartialEq for Connections {
    fn eq(&self, other: &Self) -> bool {
        self.max == other.max
    }
}

impl Eq for Connections {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_count_together_and_a_place_is_free_again() {
        let all = Connections::at_most(2);
        let clone = all.clone();
        let (first, second) = (all.enter(), clone.enter());
        assert!(first.is_some() && second.is_some());
        assert!(all.enter().is_none());
        assert!(all.enter().is_none(), "those refused are not counted");
        drop(first);
        assert!(all.enter().is_some());
    }
}
