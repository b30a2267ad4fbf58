//! The newest points of a series, at most so many.

use std::collections::VecDeque;

/// A series that forgets its oldest point when it is full.
#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    points: VecDeque<T>,
    max: usize,
}

impl<T> Ring<T> {
    pub(crate) fn new(max: usize) -> Self {
        Self { points: VecDeque::new(), max }
    }

    pub(crate) fn push(&mut self, point: T) {
        if self.points.len() == self.max {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// All points, oldest first.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.points.iter()
    }

    /// The newest points, oldest first; fewer if there are fewer.
    pub(crate) fn newest(&self, count: usize) -> impl Iterator<Item = &T> {
        self.points.iter().skip(self.points.len().saturating_sub(count))
    }

    pub(crate) fn oldest(&self) -> Option<&T> {
        self.points.front()
    }

    pub(crate) fn len(&self) -> usize {
        self.points.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_forgets_its_oldest_point() {
        let mut ring = Ring::new(3);
        (1..=5).for_each(|point| ring.push(point));
        assert_eq!(ring.iter().copied().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(ring.newest(2).copied().collect::<Vec<_>>(), [4, 5]);
        assert_eq!(ring.newest(9).count(), 3);
        assert_eq!(ring.oldest(), Some(&3));
    }
}
