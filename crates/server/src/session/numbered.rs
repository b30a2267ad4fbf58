//! A small sorted map keyed by connection-local number: subscriptions, memberships.
//!
//! Most clients have one. A tree takes room for eleven at once, which would be more than all
//! else that an idle connection costs; here the first takes room for itself alone. Numbers are
//! given in order and never again, so adding is appending, and finding halves a sorted list.

/// A list sorted by number.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    items: Vec<(u64, T)>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

impl<T> Numbered<T> {
    /// Adds one; its number is above all before it.
    pub(crate) fn add(&mut self, number: u64, item: T) {
        debug_assert!(self.items.last().is_none_or(|(last, _)| *last < number));
        if self.items.is_empty() {
            self.items.reserve_exact(1);
        }
        self.items.push((number, item));
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.items.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.find(number).map(|at| &self.items[at].1)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.find(number).map(|at| &mut self.items[at].1)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        self.find(number).map(|at| self.items.remove(at).1)
    }

    pub(crate) fn clear(&mut self) {
        self.items = Vec::new();
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, T)> {
        self.items.iter()
    }
}

impl<T> IntoIterator for Numbered<T> {
    type Item = (u64, T);
    type IntoIter = std::vec::IntoIter<(u64, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_number_until_it_is_removed() {
        let mut all = Numbered::default();
        for number in [1, 2, 5, 9] {
            all.add(number, number * 10);
        }
        assert_eq!((all.get(5), all.get(3)), (Some(&50), None));
        *all.get_mut(9).unwrap() += 1;
        assert_eq!((all.remove(2), all.remove(2), all.len()), (Some(20), None, 3));
        all.add(10, 100);
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [(1, 10), (5, 50), (9, 91), (10, 100)]);
    }

    #[test]
    fn the_first_takes_room_for_itself_alone() {
        let mut all = Numbered::default();
        assert_eq!(all.items.capacity(), 0);
        all.add(1, [0_u64; 4]);
        assert_eq!(all.items.capacity(), 1);
    }
}
