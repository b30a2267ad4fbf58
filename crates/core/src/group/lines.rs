//! Of each key with messages open, where they lie: the first may be handed out, the others
//! stand in line behind it.
//!
//! Every message of a keyed group passes here twice, and keys come in no order: so it is a
//! table by hash. What stands for a key is a hash already, and is used as it is. Nothing
//! depends on the order of the table, and it gives memory back when lines end.

use alloc::collections::VecDeque;
use core::hash::{BuildHasherDefault, Hasher};
use core::num::NonZeroU128;

use hashbrown::HashMap;

use crate::id::Position;

/// Lines that a table has room for before it is worth giving memory back.
const ROOM_MIN: usize = 1024;
/// A table with so many times the room it needs gives back memory.
const ROOM_FACTOR: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    lines: HashMap<NonZeroU128, Line, BuildHasherDefault<Folded>>,
}

/// Messages of one key. Most keys have one, for which nothing is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    head: Position,
    behind: VecDeque<Position>,
}

impl Lines {
    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The first of a key.
    pub(super) fn head(&self, key: NonZeroU128) -> Option<Position> {
        self.lines.get(&key).map(|line| line.head)
    }

    /// Whether a message has another of its key before it.
    pub(super) fn is_behind(&self, key: NonZeroU128, at: Position) -> bool {
        self.head(key).is_some_and(|head| head < at)
    }

    pub(super) fn insert(&mut self, key: NonZeroU128, at: Position) {
        let new = Line { head: at, behind: VecDeque::new() };
        let line = self.lines.entry(key).or_insert(new);
        if at < line.head {
            line.behind.push_front(core::mem::replace(&mut line.head, at));
        } else if at > line.head {
            let place = line.behind.partition_point(|each| *each < at);
            line.behind.insert(place, at);
        }
    }

    /// Takes a message out of its line, and returns the first that is left.
    pub(super) fn remove(&mut self, key: NonZeroU128, at: Position) -> Option<Position> {
        let line = self.lines.get_mut(&key)?;
        if at != line.head {
            if let Ok(place) = line.behind.binary_search(&at) {
                line.behind.remove(place);
            }
            return Some(line.head);
        }
        if let Some(next) = line.behind.pop_front() {
            line.head = next;
            return Some(next);
        }
        self.lines.remove(&key);
        let room = self.lines.capacity();
        if room > ROOM_MIN && room > self.lines.len() * ROOM_FACTOR {
            self.lines.shrink_to(ROOM_MIN.max(self.lines.len() * 2));
        }
        None
    }
}

/// A hash of something that is a hash.
#[derive(Clone, Copy, Debug, Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = (key >> 64) as u64 ^ key as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u128) -> NonZeroU128 {
        NonZeroU128::new(number).expect("tests use good keys")
    }

    #[test]
    fn a_line_is_in_order_whatever_the_order_of_coming() {
        let mut lines = Lines::default();
        for at in [5, 9, 2, 7] {
            lines.insert(key(1), Position(at));
        }
        assert!(!lines.is_behind(key(1), Position(2)));
        assert!(lines.is_behind(key(1), Position(5)));
        assert_eq!(lines.remove(key(1), Position(7)), Some(Position(2)));
        assert_eq!(lines.remove(key(1), Position(2)), Some(Position(5)));
        assert_eq!(lines.remove(key(1), Position(5)), Some(Position(9)));
        assert_eq!(lines.remove(key(1), Position(9)), None);
        assert_eq!(lines, Lines::default());
    }

    #[test]
    fn lines_that_ended_give_their_memory_back() {
        let mut lines = Lines::default();
        (1..=100_000).for_each(|each| lines.insert(key(each), Position(1)));
        assert!(lines.lines.capacity() >= 100_000);
        (1..=100_000).for_each(|each| assert_eq!(lines.remove(key(each), Position(1)), None));
        assert!(lines.lines.capacity() <= 2 * ROOM_MIN, "{}", lines.lines.capacity());
    }
}
