//! What of an entry a reader may still be handed.
//!
//! The one rule for every reader: below the floor nothing, even if it is still stored; past its age
//! nothing, whether or not the floor was raised over it yet; of a hole nothing, since nothing
//! is left in it. What may not be handed out is a gap, and the rule says why.
//!
//! Single messages that have expired are left out of what is delivered when it is handed on:
//! their batch still accounts for them. Where a reader stands is in `cursor.rs` and `sweep.rs`.

use core::time::Duration;

use crate::entry::EntryHeader;
use crate::gap::GapReason;
use crate::id::Seq;
use crate::time::Timestamp;

/// What a topic keeps at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The first seq that is kept.
    pub first: Seq,
    /// Why what lay below it is gone.
    pub floor_reason: GapReason,
    /// How long a message is kept, if not for ever.
    pub age: Option<Duration>,
    /// Whether only the newest message of each key is kept.
    pub compacted: bool,
}

/// How seqs of an entry go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All to the end of the entry may be handed out, but for messages that have expired.
    Deliver,
    /// Up to this seq they are gone.
    Gone {
        /// The last of them; not beyond the entry.
        to: Seq,
        /// Why.
        reason: GapReason,
    },
}

impl Kept {
    /// How the seqs of an entry from `from` on, one of them, go on.
    pub fn reach(&self, header: &EntryHeader, from: Seq, now: Timestamp) -> Reach {
        let stored = (header.count > 0).then_some(header.time);
        let Some(reason) = self.gone(from, stored, now) else { return Reach::Deliver };
        let last = header.last_seq();
        let to = if from < self.first { last.min(self.first.prev()) } else { last };
        Reach::Gone { to, reason }
    }

    /// Why a message may not be handed out; `None` when it may. `stored` is when it was accepted,
    /// if it is still stored and has not expired.
    pub fn gone(&self, seq: Seq, stored: Option<Timestamp>, now: Timestamp) -> Option<GapReason> {
        if seq < self.first {
            return Some(self.floor_reason);
        }
        let Some(time) = stored else { return Some(self.hole_reason()) };
        let is_aged = self.age.is_some_and(|age| time.after(age) <= now);
        is_aged.then_some(GapReason::Retention)
    }

    /// Why seqs that are not below the floor are missing. In a compacted topic some of them may
    /// have expired; which is not recorded, so all count as replaced.
    pub fn hole_reason(&self) -> GapReason {
        if self.compacted { GapReason::Compaction } else { GapReason::Expiry }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::entry::EntryKind;

    fn kept(first: u64) -> Kept {
        let age = Some(Duration::from_millis(100));
        Kept { first: Seq(first), floor_reason: GapReason::Purge, age, compacted: true }
    }

    fn header(seq: u64, span: u32, count: u32) -> EntryHeader {
        let time = Timestamp(1_000);
        EntryHeader { seq: Seq(seq), span, count, time, ..EntryHeader::new(EntryKind::Batch) }
    }

    fn gone(to: u64, reason: GapReason) -> Reach {
        Reach::Gone { to: Seq(to), reason }
    }

    #[test]
    fn what_lies_below_the_floor_is_gone_for_the_floors_reason() {
        let now = Timestamp(1_000);
        assert_eq!(kept(5).reach(&header(1, 10, 10), Seq(2), now), gone(4, GapReason::Purge));
        assert_eq!(kept(5).reach(&header(1, 3, 0), Seq(1), now), gone(3, GapReason::Purge));
        assert_eq!(kept(5).reach(&header(1, 10, 10), Seq(5), now), Reach::Deliver);
    }

    #[test]
    fn c4_past_its_age_a_batch_is_gone_before_the_floor_rises() {
        let (kept, header) = (kept(1), header(1, 10, 10));
        assert_eq!(kept.reach(&header, Seq(1), Timestamp(1_099)), Reach::Deliver);
        let aged = kept.reach(&header, Seq(1), Timestamp(1_100));
        assert_eq!(aged, gone(10, GapReason::Retention));
    }

    #[test]
    fn v2_a_hole_is_compaction_only_where_there_is_compaction() {
        let (compacted, hole, now) = (kept(1), header(1, 4, 0), Timestamp(1_000));
        assert_eq!(compacted.reach(&hole, Seq(2), now), gone(4, GapReason::Compaction));
        let plain = Kept { compacted: false, ..compacted };
        assert_eq!(plain.reach(&hole, Seq(2), now), gone(4, GapReason::Expiry));
    }

    #[test]
    fn a_single_message_is_judged_as_its_entry_is() {
        let now = Timestamp(1_050);
        assert_eq!(kept(5).gone(Seq(4), Some(now), now), Some(GapReason::Purge));
        assert_eq!(kept(5).gone(Seq(5), None, now), Some(GapReason::Compaction));
        assert_eq!(kept(5).gone(Seq(5), Some(Timestamp(950)), now), Some(GapReason::Retention));
        assert_eq!(kept(5).gone(Seq(5), Some(Timestamp(951)), now), None);
    }

    proptest! {
        /// From any seq on the answers lead to the end of the entry, and what is kept and there
        /// is never gone.
        #[test]
        fn the_answers_account_for_every_seq_of_an_entry(
            first in 1_u64..20, seq in 1_u64..20, span in 1_u32..10, is_hole: bool,
            now in 900_u64..1_200,
        ) {
            let (kept, now) = (kept(first), Timestamp(now));
            let header = header(seq, span, if is_hole { 0 } else { span });
            let mut from = header.seq;
            let mut steps = 0;
            while from <= header.last_seq() {
                match kept.reach(&header, from, now) {
                    Reach::Deliver => {
                        prop_assert!(from >= kept.first && !is_hole && now.0 < 1_100);
                        break;
                    }
                    Reach::Gone { to, .. } => {
                        prop_assert!(from <= to && to <= header.last_seq());
                        from = to.next();
                    }
                }
                steps += 1;
                prop_assert!(steps <= 2, "the floor, and one more reason");
            }
        }
    }
}
