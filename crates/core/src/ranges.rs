//! A set of numbers kept as ranges: neighbours merge, so that a set without holes is one range.

use alloc::collections::BTreeMap;

/// Numbers, as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// First to last, both included.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl Ranges {
    /// No numbers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many ranges they take.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, from the lowest, both ends included.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(first, last)| (*first, *last))
    }

    /// The lowest range.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first_key_value().map(|(first, last)| (*first, *last))
    }

    /// The first range that ends at `from` or later.
    pub fn next_from(&self, from: u64) -> Option<(u64, u64)> {
        let at = self.ranges.range(..=from).next_back().filter(|(_, last)| **last >= from);
        at.or_else(|| self.ranges.range(from..).next()).map(|(first, last)| (*first, *last))
    }

    /// Whether this number is among them.
    pub fn contains(&self, number: u64) -> bool {
        self.next_from(number).is_some_and(|(first, _)| first <= number)
    }

    /// Adds all from `first` to `last`, both included; nothing if `last` is lower.
    pub fn insert(&mut self, first: u64, last: u64) {
        if last < first {
            return;
        }
        let (mut from, mut to) = (first, last);
        // Ranges that overlap or touch it are merged.
        while let Some((begin, end)) = self.next_from(from.saturating_sub(1)) {
            if begin > to.saturating_add(1) {
                break;
            }
            self.ranges.remove(&begin);
            self.count -= end - begin + 1;
            from = from.min(begin);
            to = to.max(end);
        }
        self.ranges.insert(from, to);
        self.count += to - from + 1;
    }

    /// Removes all up to and with `last`.
    pub fn remove_through(&mut self, last: u64) {
        while let Some((&begin, &end)) = self.ranges.first_key_value() {
            if begin > last {
                return;
            }
            self.ranges.remove(&begin);
            self.count -= end.min(last) - begin + 1;
            if end > last {
                self.ranges.insert(last + 1, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_and_overlaps_become_one_range() {
        let mut ranges = Ranges::new();
        ranges.insert(5, 6);
        ranges.insert(9, 9);
        ranges.insert(7, 8);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), vec![(5, 9)]);
        ranges.insert(20, 30);
        ranges.insert(3, 25);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), vec![(3, 30)]);
        ranges.insert(u64::MAX, u64::MAX);
        assert_eq!(ranges.count(), 29);
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(changes in proptest::collection::vec((0..3_u8, 0..60_u64, 0..8_u64), 0..40)) {
            let mut ranges = Ranges::new();
            let mut set = BTreeSet::new();
            for (what, first, more) in changes {
                if what == 0 {
                    ranges.remove_through(first);
                    set.retain(|number| *number > first);
                } else {
                    ranges.insert(first, first + more);
                    set.extend(first..=first + more);
                }
                let told: BTreeSet<u64> = ranges.iter().flat_map(|(a, b)| a..=b).collect();
                prop_assert_eq!(&told, &set);
                prop_assert_eq!(ranges.count(), set.len() as u64);
                for number in 0..70 {
                    prop_assert_eq!(ranges.contains(number), set.contains(&number));
                }
                let apart = ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 + 1 < b.0);
                prop_assert!(apart);
            }
        }
    }
}
