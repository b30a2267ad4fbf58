//! The newest batches of a topic, as they became visible: a queue that is small while it has
//! one, since most of many topics have no more.

use std::collections::VecDeque;

use bytes::Bytes;
use gapless_core::Seq;
use gapless_journal::Lsn;

/// Neighbouring batches that became visible together.
pub(crate) struct Slice {
    pub(crate) first: Seq,
    pub(crate) lsn: Lsn,
    pub(crate) bytes: Bytes,
}

/// Slices, oldest first.
pub(crate) enum Slices {
    One(Slice),
    /// Any other number of them.
    Many(VecDeque<Slice>),
}

impl Default for Slices {
    fn default() -> Self {
        Self::Many(VecDeque::new())
    }
}

impl Slices {
    pub(crate) fn push(&mut self, slice: Slice) {
        match self {
            Self::Many(many) if many.is_empty() => *self = Self::One(slice),
            Self::Many(many) => many.push_back(slice),
            Self::One(_) => {
                let first = self.pop();
                *self = Self::Many(first.into_iter().chain([slice]).collect());
            }
        }
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<Slice> {
        if let Self::Many(many) = self
            && many.len() > 1
        {
            return many.pop_front();
        }
        // The last one takes the queue's memory with it.
        match std::mem::take(self) {
            Self::One(slice) => Some(slice),
            Self::Many(mut many) => many.pop_front(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(many) => many.len(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Slice> {
        match self {
            Self::One(slice) => (index == 0).then_some(slice),
            Self::Many(many) => many.get(index),
        }
    }

    /// All of them from this one on.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &Slice> {
        (index..self.len()).map_while(|index| self.get(index))
    }

    /// Where the slice is that holds this seq, or the first one if all come after it.
    pub(crate) fn find(&self, seq: Seq) -> usize {
        let after = match self {
            Self::One(_) => 0,
            Self::Many(many) => many.partition_point(|slice| slice.first <= seq),
        };
        after.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(seq: u64) -> Slice {
        Slice { first: Seq(seq), lsn: Lsn(seq), bytes: Bytes::new() }
    }

    #[test]
    fn slices_come_out_in_order_whatever_their_number() {
        for count in 0..5 {
            let mut slices = Slices::default();
            (1..=count).for_each(|seq| slices.push(slice(seq * 10)));
            assert_eq!(slices.len() as u64, count);
            for seq in 0..60 {
                let expected = (seq / 10).min(count).saturating_sub(1);
                assert_eq!(slices.find(Seq(seq)) as u64, expected, "{seq} of {count}");
            }
            for seq in 1..=count {
                assert_eq!(slices.from(0).count() as u64, count + 1 - seq);
                assert_eq!(slices.pop().map(|slice| slice.lsn), Some(Lsn(seq * 10)));
            }
            assert!(slices.pop().is_none() && slices.get(0).is_none());
        }
    }

    #[test]
    fn one_slice_needs_no_memory_of_its_own() {
        assert_eq!(size_of::<Slices>(), size_of::<Slice>());
    }
}
