//! The order of one topic: which numbers its messages get, and which are still kept.
//!
//! Seqs are given without holes, each once. A message whose id is remembered is not
//! numbered again but answered with its first seq, and that is looked up before any
//! expectation, so that the retry of a conditional publish gets its first answer. An offer
//! is accepted whole or refused whole; a refused one changes nothing. The floor and the
//! settled mark only rise.
//!
//! The state is small, since there may be a million idle topics. Names, settings other
//! than the dedup window, messages, groups and files are elsewhere: this file only counts.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ack::RejectReason;
use crate::dedup::Dedup;
use crate::gap::{Gap, GapReason};
use crate::id::Seq;
use crate::options::Expect;
use crate::settings::DedupWindow;
use crate::time::{Timestamp, whole_ms};

/// The numbers of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// The first seq that is kept.
    first: Seq,
    /// The seq the next message gets.
    next: Seq,
    /// The last seq that has reached its durability.
    settled: Seq,
    dedup: Option<Box<Dedup>>,
    dedup_time_ms: u64,
    dedup_count: u32,
    floor_reason: GapReason,
}

/// What happens to a topic. Ids come with the index of their message, in ascending order;
/// messages without one are left out, so that they cost nothing.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A publish of `count` messages, all or none.
    Offer {
        /// How many messages there are; at least one.
        count: u32,
        /// The index and id of each message that has an id.
        ids: &'a [(u32, &'a [u8])],
        /// What the publisher expects.
        expect: Option<Expect>,
        /// The last seq of the message's key, for [`Expect::KeyLast`].
        key_last: Option<Seq>,
    },
    /// The journal holds this, from before; what is replayed is settled.
    Replayed {
        /// The seq of the first message.
        first: Seq,
        /// How many messages there are; at least one.
        count: u32,
        /// The index and id of each message that has an id.
        ids: &'a [(u32, &'a [u8])],
        /// When it was accepted: the `now` of that offer.
        time: Timestamp,
    },
    /// Everything below this seq is gone.
    Trim {
        /// The first seq that is kept; the end of the topic if it lies beyond.
        below: Seq,
        /// Why it is gone.
        reason: GapReason,
    },
    /// Everything up to this seq has reached its durability.
    Settled {
        /// The last such seq.
        through: Seq,
    },
    /// The dedup window was changed.
    Window(DedupWindow),
    /// Time has passed: forget the ids that are past their age.
    Tick,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The messages that are not duplicates have these seqs, in their order.
    Accepted {
        /// The seq of the first of them.
        first: Seq,
        /// How many they are; at least one.
        count: u32,
    },
    /// This message is known already. Reported before the acceptance of the others.
    Duplicate {
        /// The message's index in the offer.
        index: u32,
        /// The seq it has had since then.
        seq: Seq,
    },
    /// The offer is refused, and nothing is changed.
    Rejected(RejectReason),
    /// These are no longer kept. The journal must hold the end of this gap, not the request: a
    /// replay may know more messages than existed when the request was made.
    Trimmed(Gap),
    /// Everything up to this seq may be seen.
    Visible {
        /// The last such seq.
        through: Seq,
    },
    /// What was replayed does not continue the topic: the journal is damaged. Nothing is
    /// changed.
    Mismatch {
        /// The seq that should have come.
        expected: Seq,
        /// The seq that came.
        found: Seq,
    },
}

impl Topic {
    /// A topic without messages.
    pub fn new(window: DedupWindow) -> Self {
        Self {
            first: Seq(1),
            next: Seq(1),
            settled: Seq(0),
            dedup: None,
            dedup_time_ms: whole_ms(window.time),
            dedup_count: window.count,
            floor_reason: GapReason::Retention,
        }
    }

    /// The first seq that is kept; the same as [`Topic::next`] when none is.
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The seq the next message gets.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// The last seq that was given out, kept or not; zero if there is none.
    pub fn last(&self) -> Seq {
        self.next.prev()
    }

    /// The last seq that has reached its durability; nothing above it may be seen.
    pub fn settled(&self) -> Seq {
        self.settled
    }

    /// Why what lies below [`Topic::first`] is gone.
    pub fn floor_reason(&self) -> GapReason {
        self.floor_reason
    }

    /// How many ids are remembered.
    pub fn remembered(&self) -> usize {
        self.dedup.as_ref().map_or(0, |dedup| dedup.len())
    }

    /// Takes one step.
    ///
    /// # Panics
    ///
    /// When an offer is empty, ids are out of order or beyond the count, or more is
    /// settled than was given out: only a bug can say so.
    pub fn step(&mut self, now: Timestamp, input: Input<'_>, effects: &mut Vec<Effect>) {
        match input {
            Input::Offer { count, ids, expect, key_last } => {
                check_offer(count, ids);
                match self.violated(expect, key_last) {
                    None => self.accept(now, count, ids, effects),
                    Some(actual) => self.refuse(now, (count, ids), actual, effects),
                }
            }
            Input::Replayed { first, count, ids, time } => {
                check_offer(count, ids);
                self.replay((first, count), ids, time, effects);
            }
            Input::Trim { below, reason } => self.trim(below, reason, effects),
            Input::Settled { through } => {
                assert!(through < self.next, "only what was given out can be settled");
                self.settle(through, effects);
            }
            Input::Window(window) => {
                // What was past its age stays forgotten, whether or not it still was there:
                // else a state rebuilt from the journal would know less than the one that lived.
                self.evict(now);
                self.dedup_time_ms = whole_ms(window.time);
                self.dedup_count = window.count;
                self.evict(now);
            }
            Input::Tick => self.evict(now),
        }
    }

    /// Which messages of an offer are known already, by their index; `None` if what it expects does
    /// not hold, so that nothing of it can be new. An offer that follows at once comes to the same.
    pub fn preview(
        &self,
        now: Timestamp,
        ids: &[(u32, &[u8])],
        expect: Option<Expect>,
        key_last: Option<Seq>,
    ) -> Option<Vec<u32>> {
        if self.violated(expect, key_last).is_some() {
            return None;
        }
        let mut seen = BTreeSet::new();
        // The first of two messages with one id makes the second known.
        let is_known = |id: &[u8], repeated: bool| {
            self.find(now, id).is_some() || (repeated && self.remembers())
        };
        let known = |(index, id): &(u32, &[u8])| {
            let repeated = !seen.insert(id.to_vec());
            is_known(id, repeated).then_some(*index)
        };
        Some(ids.iter().filter_map(known).collect())
    }

    /// When the oldest id is past its age. Only memory waits for it: an id past its age is
    /// never taken for a duplicate.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.dedup.as_ref().and_then(|dedup| dedup.deadline(self.window()))
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        assert!(self.first >= Seq(1), "the first seq is one");
        assert!(self.first <= self.next, "the floor is not beyond the end");
        assert!(self.settled < self.next, "nothing is settled before it is given out");
        if let Some(dedup) = &self.dedup {
            assert!(!dedup.is_empty(), "an empty window holds no memory");
            dedup.check(self.next);
        }
    }

    fn window(&self) -> DedupWindow {
        DedupWindow { time: Duration::from_millis(self.dedup_time_ms), count: self.dedup_count }
    }

    fn remembers(&self) -> bool {
        self.dedup_count > 0 && self.dedup_time_ms > 0
    }

    /// The actual last seq, if it is not the expected one.
    fn violated(&self, expect: Option<Expect>, key_last: Option<Seq>) -> Option<Seq> {
        let (wanted, actual) = match expect? {
            Expect::TopicLast(wanted) => (wanted, self.last()),
            Expect::KeyLast(wanted) => (wanted, key_last.unwrap_or_default()),
        };
        (wanted != actual).then_some(actual)
    }

    fn find(&self, now: Timestamp, id: &[u8]) -> Option<Seq> {
        if !self.remembers() {
            return None;
        }
        self.dedup.as_ref()?.find(now, self.window(), id)
    }

    fn insert(&mut self, now: Timestamp, id: &[u8], seq: Seq) {
        if self.remembers() {
            self.dedup.get_or_insert_default().insert(now, id, seq);
        }
    }

    fn accept(
        &mut self,
        now: Timestamp,
        count: u32,
        ids: &[(u32, &[u8])],
        effects: &mut Vec<Effect>,
    ) {
        let first = self.next;
        let mut known = 0;
        for &(index, id) in ids {
            if let Some(seq) = self.find(now, id) {
                known += 1;
                effects.push(Effect::Duplicate { index, seq });
            } else {
                // Duplicates are passed over, so each one before moves this one down.
                self.insert(now, id, first.plus(u64::from(index - known)));
            }
        }
        let fresh = count - known;
        if fresh > 0 {
            self.next = first.plus(u64::from(fresh));
            self.evict(now);
            effects.push(Effect::Accepted { first, count: fresh });
        }
    }

    /// Refuses an offer whose expectation does not hold, unless it is a retry of what was
    /// accepted when it did.
    fn refuse(
        &self,
        now: Timestamp,
        (count, ids): (u32, &[(u32, &[u8])]),
        actual: Seq,
        effects: &mut Vec<Effect>,
    ) {
        let before = effects.len();
        for &(index, id) in ids {
            if let Some(seq) = self.find(now, id) {
                effects.push(Effect::Duplicate { index, seq });
            }
        }
        if u64::try_from(effects.len() - before) != Ok(u64::from(count)) {
            effects.truncate(before);
            effects.push(Effect::Rejected(RejectReason::ExpectedSeq { actual }));
        }
    }

    fn replay(
        &mut self,
        (first, count): (Seq, u32),
        ids: &[(u32, &[u8])],
        time: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let known = self.next.distance(first);
        if known >= u64::from(count) {
            // A checkpoint that was taken later knows it already.
            return;
        }
        if first != self.next {
            effects.push(Effect::Mismatch { expected: self.next, found: first });
            return;
        }
        for &(index, id) in ids {
            self.insert(time, id, first.plus(u64::from(index)));
        }
        self.next = first.plus(u64::from(count));
        self.evict(time);
        self.settle(self.last(), effects);
    }

    fn trim(&mut self, below: Seq, reason: GapReason, effects: &mut Vec<Effect>) {
        let below = below.min(self.next);
        if below > self.first {
            let gap = Gap { from: self.first, to: below.prev(), reason };
            self.first = below;
            self.floor_reason = reason;
            effects.push(Effect::Trimmed(gap));
        }
    }

    fn settle(&mut self, through: Seq, effects: &mut Vec<Effect>) {
        if through > self.settled {
            self.settled = through;
            effects.push(Effect::Visible { through });
        }
    }

    fn evict(&mut self, now: Timestamp) {
        let window = self.window();
        if let Some(dedup) = &mut self.dedup {
            dedup.evict(now, window);
            if dedup.is_empty() {
                self.dedup = None;
            }
        }
    }
}

fn check_offer(count: u32, ids: &[(u32, &[u8])]) {
    assert!(count > 0, "an offer has at least one message");
    assert!(ids.is_sorted_by(|a, b| a.0 < b.0), "ids come in the order of their messages");
    assert!(ids.last().is_none_or(|(index, _)| *index < count), "every id has a message");
}

mod bytes;
pub use bytes::TopicStateError;

#[cfg(test)]
mod tests;
