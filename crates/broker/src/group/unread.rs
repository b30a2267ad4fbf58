//! What is leased to a member and was not handed out to it yet.
//!
//! The rule: a message that was never handed out cannot be done. A member that names such a
//! message, or all up to some position, means an earlier lease of it, or of others; so acks and
//! nacks never cover these. They are known to the group, under its lock, since a call may come from
//! another thread than the one that takes messages.

use std::collections::VecDeque;

use gapless_core::group::Granted;
use gapless_core::{Lease, Position};

use crate::group::read_ahead::{Picking, split};

/// Leases of a member that it does not know of yet; both parts rise, one after the other.
#[derive(Default)]
pub(crate) struct Unread {
    /// What of it is read and goes out with the next.
    pub(crate) picking: Picking,
    /// Still to be read.
    pub(crate) grants: VecDeque<Granted>,
    /// Leases that ended in the group when these were taken.
    voided: u64,
}

impl Unread {
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.picking.is_empty()
    }

    /// Takes over what was leased in one step, in the order of positions.
    pub(crate) fn fill(&mut self, grants: VecDeque<Granted>, voided: u64) {
        debug_assert!(self.is_empty(), "more is leased when all is handed out");
        let mut pairs = grants.iter().zip(grants.iter().skip(1));
        debug_assert!(pairs.all(|(one, next)| one.lease.last < next.lease.first));
        (self.grants, self.voided) = (grants, voided);
    }

    /// When leases ended in the group since the last look, drops those that are not held any more.
    pub(crate) fn keep_held(&mut self, voided: u64, is_held: impl Fn(&Lease) -> bool) {
        if std::mem::replace(&mut self.voided, voided) != voided {
            let picked = std::mem::take(&mut self.picking).give_up();
            picked.into_iter().rev().for_each(|grant| self.grants.push_front(grant));
            self.grants.retain(|grant| is_held(&grant.lease));
        }
    }

    /// Takes the first `count` messages off the first grant that is still to be read.
    pub(crate) fn drop_first(&mut self, count: u64) -> Option<Granted> {
        let grant = self.grants.pop_front()?;
        if count >= grant.lease.count() {
            return Some(grant);
        }
        let (front, rest) = split(grant, count);
        self.grants.push_front(rest);
        Some(front)
    }

    /// The leases that begin at or before `through`, rising.
    pub(crate) fn through(&self, through: Position) -> Vec<Lease> {
        self.from(Position(0)).take_while(|lease| lease.first <= through).collect()
    }

    /// Whether one of these is named by a lease.
    pub(crate) fn overlaps(&self, lease: &Lease) -> bool {
        self.from(lease.first).next().is_some_and(|each| each.first <= lease.last)
    }

    /// What leases name beside these, and how many of these they name.
    pub(crate) fn without(&self, leases: &[Lease]) -> (Vec<Lease>, u64) {
        let (mut kept, mut unread) = (Vec::with_capacity(leases.len()), 0);
        for lease in leases {
            let mut first = lease.first;
            for each in self.from(lease.first).take_while(|each| each.first <= lease.last) {
                if first < each.first {
                    kept.push(Lease { first, last: each.first.prev(), ..*lease });
                }
                let last = each.last.min(lease.last);
                unread += last.next().distance(each.first.max(lease.first));
                first = last.next();
            }
            if first <= lease.last {
                kept.push(Lease { first, ..*lease });
            }
        }
        (kept, unread)
    }

    /// The leases that do not end before `at`, rising.
    fn from(&self, at: Position) -> impl Iterator<Item = Lease> + '_ {
        let is_before = |grant: &Granted| grant.lease.last < at;
        let picked = self.picking.taken();
        let picked = &picked[picked.partition_point(is_before)..];
        let left = self.grants.range(self.grants.partition_point(is_before)..);
        picked.iter().chain(left).map(|grant| grant.lease)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gapless_core::{MemberId, Seq, Timestamp, TopicId};
    use proptest::prelude::*;

    use super::*;

    fn lease(first: u64, last: u64) -> Lease {
        Lease { first: Position(first), last: Position(last), attempt: 1 }
    }

    fn unread(ranges: &[(u64, u64)]) -> Unread {
        let grant = |&(first, last): &(u64, u64)| Granted {
            member: MemberId(1),
            lease: lease(first, last),
            topic: TopicId(1),
            seq: Seq(first),
            deadline: Timestamp(0),
        };
        let mut unread = Unread::default();
        unread.fill(ranges.iter().map(grant).collect(), 0);
        unread
    }

    #[test]
    fn of_a_lease_only_what_was_handed_out_counts() {
        let unread = unread(&[(3, 4), (7, 7)]);
        let (kept, count) = unread.without(&[lease(1, 9), lease(4, 4), lease(8, 9)]);
        assert_eq!(kept, [lease(1, 2), lease(5, 6), lease(8, 9), lease(8, 9)]);
        assert_eq!(count, 4);
    }

    proptest! {
        /// What is kept and what is unread are the lease, each message once.
        #[test]
        fn a_lease_is_what_counts_and_what_does_not(
            sizes in prop::collection::vec((0_u64..3, 1_u64..4), 0..8), first in 1_u64..20,
            count in 1_u64..20,
        ) {
            let mut at = 1;
            let ranges: Vec<(u64, u64)> = sizes.iter().map(|(skip, count)| {
                let first = at + skip;
                at = first + count;
                (first, at - 1)
            }).collect();
            let mine: BTreeSet<u64> = ranges.iter().flat_map(|each| each.0..=each.1).collect();
            let (unread, named) = (unread(&ranges), lease(first, first + count - 1));
            let (kept, refused) = unread.without(&[named]);
            let positions = |lease: &Lease| lease.first.0..=lease.last.0;
            let wanted: Vec<u64> = positions(&named).filter(|each| !mine.contains(each)).collect();
            prop_assert_eq!(kept.iter().flat_map(positions).collect::<Vec<_>>(), wanted);
            prop_assert_eq!(refused, count - kept.iter().map(Lease::count).sum::<u64>());
            prop_assert_eq!(unread.overlaps(&named), refused > 0);
        }
    }
}
