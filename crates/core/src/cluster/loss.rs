//! What was lost since the last look, added up: one event per target and reason, not per message.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::event::{ClusterEvent, Lost, LostReason, LostTarget};
use crate::name::TopicName;

/// Most subjects that one event names; the messages of the others are in its total.
pub const LOST_SUBJECTS_MAX: usize = 100;

#[derive(Debug, Default)]
struct Tally {
    subjects: BTreeMap<TopicName, u64>,
    messages: u64,
}

/// Losses that no event has named yet.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<(LostTarget, LostReason), Tally>);

impl Losses {
    pub(super) fn add(
        &mut self,
        target: LostTarget,
        reason: LostReason,
        subject: &TopicName,
        messages: usize,
    ) {
        let tally = self.0.entry((target, reason)).or_default();
        tally.messages += messages as u64;
        if let Some(count) = tally.subjects.get_mut(subject) {
            *count += messages as u64;
        } else if tally.subjects.len() < LOST_SUBJECTS_MAX {
            tally.subjects.insert(subject.clone(), messages as u64);
        }
    }

    /// The events.
    pub(super) fn take(&mut self) -> Vec<ClusterEvent> {
        let losses = core::mem::take(&mut self.0).into_iter();
        losses.map(|((target, reason), tally)| tally.event(target, reason)).collect()
    }
}

impl Tally {
    fn event(self, target: LostTarget, reason: LostReason) -> ClusterEvent {
        let subjects = self.subjects.into_iter().collect();
        ClusterEvent::Lost(Lost { target, subjects, messages: self.messages, reason })
    }
}
