//! What a group knows of messages that it has not read again yet, after a restart.

use alloc::collections::BTreeMap;

use super::op::Failure;
use crate::id::Position;
use crate::ranges::Ranges;

/// What was done, and what failed, beyond the frontier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) done: Ranges,
    /// By the last position: the first one, and what became of them.
    failed: BTreeMap<Position, (Position, Failure)>,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.failed.is_empty()
    }

    pub(super) fn failed(&self) -> impl Iterator<Item = (Position, Position, &Failure)> {
        self.failed.iter().map(|(last, (first, failure))| (*first, *last, failure))
    }

    pub(super) fn add_done(&mut self, first: Position, last: Position) {
        self.done.insert(first.0, last.0);
        self.forget(first, last);
    }

    pub(super) fn add_failed(&mut self, first: Position, last: Position, failure: Failure) {
        self.forget(first, last);
        self.failed.insert(last, (first, failure));
    }

    /// Forgets failures between these; of one that reaches further the rest stays.
    fn forget(&mut self, first: Position, last: Position) {
        while let Some((&end, &(begin, _))) = self.failed.range(first..).next() {
            if begin > last {
                return;
            }
            let (_, failure) = self.failed.remove(&end).expect("it was just seen");
            if begin < first {
                self.failed.insert(first.prev(), (begin, failure.clone()));
            }
            if end > last {
                self.failed.insert(end, (last.next(), failure));
                return;
            }
        }
    }

    /// Forgets all up to here.
    pub(super) fn forget_through(&mut self, through: Position) {
        self.done.remove_through(through.0);
        self.forget(Position(0), through);
    }

    /// How the messages from `from` on go on, up to `to` at most: done, failed, or neither.
    pub(super) fn next(&self, from: Position, to: Position) -> (Position, Known<'_>) {
        let done = self.done.next_from(from.0).map(|(first, last)| (Position(first), last));
        if let Some((first, last)) = done
            && first <= from
        {
            return (Position(last).min(to), Known::Done);
        }
        let until = done.map_or(to, |(first, _)| first.prev().min(to));
        match self.failed.range(from..).next() {
            Some((&last, (first, failure))) if *first <= from => {
                (last.min(until), Known::Failed(failure))
            }
            Some((_, (first, _))) if *first <= until => (first.prev(), Known::Nothing),
            _ => (until, Known::Nothing),
        }
    }
}

/// What is known of a message.
pub(super) enum Known<'a> {
    Nothing,
    Done,
    Failed(&'a Failure),
}
