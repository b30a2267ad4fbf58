//! A message that waits: shared by all queues it is in.

use alloc::sync::Arc;

use crate::batch::Records;
use crate::name::TopicName;
use crate::time::Timestamp;

/// What a queued message costs beside its bytes, in bytes: its places in queues and its header.
const OVERHEAD_BYTES: usize = 128;

/// One publish.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) subject: TopicName,
    pub(super) records: Records,
    /// When it was admitted.
    pub(super) at: Timestamp,
}

pub(super) type Shared = Arc<Message>;

impl Message {
    /// How many messages it counts as.
    pub(super) fn count(&self) -> usize {
        self.records.count as usize
    }

    /// The bytes that it counts as, in each queue.
    pub(super) fn cost(&self) -> usize {
        cost(&self.subject, &self.records)
    }
}

/// The bytes that a publish counts as.
pub(super) fn cost(subject: &TopicName, records: &Records) -> usize {
    OVERHEAD_BYTES + subject.as_str().len() + records.bytes.len()
}
