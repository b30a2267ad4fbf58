//! What a group has read and not handed out yet, as shared buffers, and how leased messages
//! are found in it.
//!
//! It has a limit in bytes. Of what is beyond it the group's machine remembers the places, and
//! it is read again by seq, in large steps, when its turn comes. What was used longest ago goes
//! first; of what was never used the newest, since messages are mostly wanted in order. So a
//! message is read about twice, however many wait before it and however few are handed out at
//! a time.

mod buffer;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use gapless_core::group::{Granted, Offered};
use gapless_core::{Lease, Seq, Timestamp, TopicId, TopicName};

use crate::read::delivery::Messages;
use buffer::{Buffer, Picked};

pub(crate) use buffer::KeyHash;

/// Bytes of messages that are handed out together: more are another hand-out.
const PICK_BYTES_MAX: usize = 1024 * 1024;

/// A buffer's name: its topic, and the last seq it accounts for.
type Name = (TopicId, Seq);

#[derive(Default)]
pub(crate) struct ReadAhead {
    /// Those of a topic do not overlap.
    buffers: BTreeMap<Name, Buffer>,
    /// What goes first when it is too much: by last use, then the newest first.
    order: BTreeSet<(u64, Reverse<Name>)>,
    bytes: usize,
    uses: u64,
}

impl ReadAhead {
    /// Keeps what was read of the source, and returns which messages it holds: neighbours as
    /// one run, unless keys matter, for which a hash is given. Others go if there are more than
    /// `bytes_max`.
    pub(crate) fn push(
        &mut self,
        topic: TopicId,
        messages: &Messages,
        hash: Option<KeyHash<'_>>,
        bytes_max: usize,
    ) -> Vec<Offered> {
        let range = (messages.from(), messages.to());
        let mut buffer = Buffer::new(messages.topic().clone(), range, messages.parts().to_vec());
        let runs = buffer.offer(topic, hash);
        buffer.left = Some(runs.iter().map(|run| run.count).sum());
        if buffer.left != Some(0) {
            self.insert(topic, buffer, bytes_max);
        }
        runs
    }

    /// Keeps what was read again: these seqs, `wanted` among them. Others go if there are more
    /// than `bytes_max`.
    pub(crate) fn restore(
        &mut self,
        (topic, name): (TopicId, TopicName),
        wanted: Seq,
        (first, last): (Seq, Seq),
        parts: Vec<Bytes>,
        bytes_max: usize,
    ) {
        // Some of it may be in memory already.
        let before = self.buffers.range((topic, Seq(0))..(topic, wanted)).next_back();
        let next = self.buffers.range((topic, wanted)..=(topic, Seq(u64::MAX))).next();
        let first = before.map_or(first, |((_, end), _)| first.max(end.next()));
        let last = next.map_or(last, |(_, next)| last.min(next.first.prev()));
        if first <= last {
            self.uses += 1;
            let mut buffer = Buffer::new(name, (first, last), parts);
            buffer.used = self.uses;
            self.insert(topic, buffer, bytes_max);
        }
    }

    /// The first seq from here on that is in memory.
    pub(crate) fn next_held(&self, topic: TopicId, seq: Seq) -> Option<Seq> {
        let mut after = self.buffers.range((topic, seq)..=(topic, Seq(u64::MAX)));
        after.next().map(|(_, buffer)| buffer.first.max(seq))
    }

    fn insert(&mut self, topic: TopicId, buffer: Buffer, bytes_max: usize) {
        let name = (topic, buffer.last);
        self.bytes += buffer.bytes();
        self.order.insert((buffer.used, Reverse(name)));
        if let Some(before) = self.buffers.insert(name, buffer) {
            self.bytes -= before.bytes();
        }
        while self.bytes > bytes_max {
            let mut oldest = self.order.iter().filter(|(_, Reverse(each))| *each != name);
            let Some(&(_, Reverse(oldest))) = oldest.next() else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, name: Name) {
        if let Some(buffer) = self.buffers.remove(&name) {
            self.bytes -= buffer.bytes();
            self.order.remove(&(buffer.used, Reverse(name)));
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes messages of the first grants that are of one topic and attempt. Returns whether the
    /// hand-out is complete; if not, the first grant that is left must be read again.
    pub(crate) fn pick(&mut self, grants: &mut VecDeque<Granted>, picking: &mut Picking) -> bool {
        while let Some(grant) = grants.front().copied() {
            let first = *picking.taken.first().unwrap_or(&grant);
            if !is_like(&first, &grant) || picking.picked.bytes() >= PICK_BYTES_MAX {
                break;
            }
            let Some(at) = self.holding(grant.topic, grant.seq) else { return false };
            let from = picking.taken.len();
            let buffer = self.buffers.get_mut(&at).expect("it was just found");
            // A batch that lies in two buffers is handed out in two steps.
            if from > 0 && buffer.batch_of(grant.seq) <= picking.picked.last_first {
                break;
            }
            take_grants(buffer, grants, &mut picking.taken);
            let taken = &picking.taken[from..];
            let ranges: Vec<(Seq, Seq)> =
                taken.iter().map(|each| (each.seq, last_seq(each))).collect();
            let is_last = grants.front().is_none_or(|next| !is_like(&first, next));
            buffer.pick(&ranges, (from == 0, is_last), &mut picking.picked);
            picking.name.get_or_insert_with(|| buffer.name.clone());
            self.used(at, taken.iter().map(|each| each.lease.count()).sum());
        }
        true
    }

    /// The buffer that accounts for a seq.
    fn holding(&self, topic: TopicId, seq: Seq) -> Option<Name> {
        let after = self.buffers.range((topic, seq)..=(topic, Seq(u64::MAX))).next();
        after.filter(|(_, buffer)| buffer.holds(seq)).map(|(name, _)| *name)
    }

    /// Notes that messages of a buffer were handed out. With the last of them it goes.
    fn used(&mut self, name: Name, count: u64) {
        self.uses += 1;
        let Some(buffer) = self.buffers.get_mut(&name) else { return };
        buffer.left = buffer.left.map(|left| left.saturating_sub(count));
        if buffer.left == Some(0) {
            return self.remove(name);
        }
        self.order.remove(&(buffer.used, Reverse(name)));
        buffer.used = self.uses;
        self.order.insert((self.uses, Reverse(name)));
    }
}

/// A hand-out that is being put together.
#[derive(Default)]
pub(crate) struct Picking {
    taken: Vec<Granted>,
    picked: Picked,
    name: Option<TopicName>,
}

impl Picking {
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// What it is put together of.
    pub(crate) fn taken(&self) -> &[Granted] {
        &self.taken
    }

    /// Gives it up; the grants are to be picked again.
    pub(crate) fn give_up(self) -> Vec<Granted> {
        self.taken
    }

    /// The messages, and what they were granted by; nothing if nothing was picked.
    pub(crate) fn finish(self, now: Timestamp) -> Option<(Messages, Vec<Granted>)> {
        let (first, last) = (self.taken.first()?.seq, last_seq(self.taken.last()?));
        let wanted = self.taken.iter().map(|each| each.lease.count()).sum();
        Some((self.picked.finish(self.name?, (first, last), wanted, now), self.taken))
    }
}

/// Whether two grants may be handed out together.
fn is_like(first: &Granted, other: &Granted) -> bool {
    first.topic == other.topic && first.lease.attempt == other.lease.attempt
}

/// Takes the grants that lie in a buffer off the front; of one that reaches beyond it the rest
/// stays.
fn take_grants(buffer: &Buffer, grants: &mut VecDeque<Granted>, taken: &mut Vec<Granted>) {
    let Some(first) = grants.front().copied() else { return };
    let fits = |each: &Granted| is_like(&first, each) && buffer.holds(each.seq);
    while let Some(grant) = grants.front().copied().filter(fits) {
        grants.pop_front();
        if last_seq(&grant) <= buffer.last {
            taken.push(grant);
            continue;
        }
        let (front, rest) = split(grant, buffer.last.next().distance(grant.seq));
        taken.push(front);
        grants.push_front(rest);
    }
}

/// The last seq of a grant.
pub(crate) fn last_seq(grant: &Granted) -> Seq {
    grant.seq.plus(grant.lease.count() - 1)
}

/// The first `count` messages of a grant, fewer than it has, and the others.
pub(crate) fn split(grant: Granted, count: u64) -> (Granted, Granted) {
    let next = grant.lease.first.plus(count);
    let front = Lease { last: next.prev(), ..grant.lease };
    let rest = Lease { first: next, ..grant.lease };
    let seq = grant.seq.plus(count);
    (Granted { lease: front, ..grant }, Granted { lease: rest, seq, ..grant })
}
