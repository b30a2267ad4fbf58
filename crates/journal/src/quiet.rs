//! Compaction of topics that are too quiet for it to come about by itself.
//!
//! Superseded messages go when a segment is written or merged, which in a quiet store may be
//! never. So twice in [`JournalOptions::compact_within`] the keeper looks: what was in memory only
//! at the look before is written out if a compacted topic is in it, segments with superseded
//! messages are written again without them, and what was in memory at the look before leaves it,
//! since readers of it would still be handed everything. A store that is busy has done all of this
//! by then, and the look finds nothing.
//!
//! [`JournalOptions::compact_within`]: crate::JournalOptions::compact_within

use gapless_core::{EntryKind, Position, Timestamp, TopicId};

use crate::collector::{Compactor, Dropper};
use crate::journal::Inner;
use crate::keeper::{KeepError, entries};
use crate::marks::lock;
use crate::state::{Policy, State};

/// When the next look is due, and what the last one saw.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// None before the first call.
    due: Option<Timestamp>,
    /// The last position when it looked last.
    mark: Position,
    /// The number of the next blob when it looked last: no other number, no other segments.
    next_name: u64,
    /// Until when tombstones may come to their end in segments that do not change.
    until: Timestamp,
}

impl Inner {
    /// Looks if it is time to; returns whether segments were changed.
    pub(crate) fn compact_quiet(
        &self,
        state: &dyn State,
        now: Timestamp,
    ) -> Result<bool, KeepError> {
        let pause = self.options.compact_within / 2;
        if pause.is_zero() {
            return Ok(false);
        }
        let mut quiet = lock(&self.quiet);
        let last = lock(&self.tail).last();
        // A clock that was set back makes it early, not late.
        match quiet.due {
            Some(due) if now < due && due <= now.after(pause) => return Ok(false),
            None => {
                *quiet = Quiet { due: Some(now.after(pause)), mark: last, ..Quiet::default() };
                return Ok(false);
            }
            Some(_) => {}
        }
        let mark = quiet.mark;
        let mut changed = false;
        if self.is_old_compacted(mark, state) {
            self.seal(u64::MAX, state, now)?;
            changed = true;
        }
        if lock(&self.manifest).next_name != quiet.next_name || now <= quiet.until {
            let (rewritten, until) = self.compact_segments(state, now)?;
            changed |= rewritten;
            quiet.until = quiet.until.max(until);
            quiet.next_name = lock(&self.manifest).next_name;
        }
        let evicted = lock(&self.tail).evict_through(mark);
        self.tell_evicted(evicted, state);
        // Only now: what failed is tried again by the next turn.
        (quiet.due, quiet.mark) = (Some(now.after(pause)), last);
        Ok(changed)
    }

    /// Whether messages of a compacted topic are in memory only, and were at the last look.
    fn is_old_compacted(&self, mark: Position, state: &dyn State) -> bool {
        let frames = lock(&self.tail).unsealed(u64::MAX);
        let old = frames.iter().take_while(|frame| frame.last <= mark);
        let mut known: Option<(TopicId, bool)> = None;
        old.flat_map(|frame| entries(&frame.bytes)).any(|(header, _)| {
            if header.kind != EntryKind::Batch {
                return false;
            }
            if known.is_none_or(|(topic, _)| topic != header.topic) {
                let policy = state.policy(header.topic);
                let compacted = matches!(policy, Policy::Kept { compaction: Some(_), .. });
                known = Some((header.topic, compacted));
            }
            known.is_some_and(|(_, compacted)| compacted)
        })
    }

    /// Writes segments with superseded messages again without them, the smallest first, up to the
    /// bytes of one merged segment. Returns whether there were any, and until when more may become
    /// so.
    fn compact_segments(
        &self,
        state: &dyn State,
        now: Timestamp,
    ) -> Result<(bool, Timestamp), KeepError> {
        let segments = self.segments();
        let mut dropper = Dropper::new(state, now);
        let mut compactor = Compactor::default();
        let dead = self.dead_bytes(&segments, &mut dropper, &mut compactor)?;
        let until = dead
            .grace_max
            .map_or(Timestamp(0), |grace| now.after(grace).after(self.options.compact_within));
        let mut chosen: Vec<usize> =
            (0..segments.len()).filter(|&at| dead.superseded[at] > 0).collect();
        chosen.sort_unstable_by_key(|&at| segments[at].meta().bytes);
        let mut left = self.options.merged_bytes_max;
        let mut rewritten = false;
        for at in chosen {
            let Some(rest) = left.checked_sub(segments[at].meta().bytes) else { break };
            left = rest;
            self.rewrite(&segments[at..=at], &mut dropper, &compactor)?;
            rewritten = true;
        }
        Ok((rewritten, until))
    }
}
