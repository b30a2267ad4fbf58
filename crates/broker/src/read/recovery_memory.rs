//! The memory of history that was read and is not delivered yet, over all subscribers.
//!
//! A step counts from when it is asked for until the last part of it is dropped, which is when it
//! was sent: a subscriber that takes nothing holds its step. With it count the steps that are read
//! ahead. A step is as large as it leaves free for others, so those that hold theirs for long
//! leave something for the next. When nothing is left, steps are as small as is worth reading:
//! no reader waits for others, which may hold what they have for as long as they like.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use gapless_journal::STEPS_AHEAD;

use crate::limits::Limits;

/// The smallest step of history: below it the wake-ups cost more than the reading.
const STEP_BYTES_MIN: usize = 32 * 1024;

/// Steps in memory for each that is handed out: itself, and those that are read ahead.
const STEPS_COUNTED: usize = 1 + STEPS_AHEAD;

/// How much history is in memory.
#[derive(Debug, Default)]
pub(crate) struct RecoveryMemory {
    used: AtomicUsize,
}

impl RecoveryMemory {
    /// How many bytes are in memory, steps that are read ahead included.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How many bytes a subscriber reads in one go.
    fn step(&self, limits: &Limits) -> usize {
        let free = limits.recovery_bytes_max.saturating_sub(self.used());
        (free / (2 * STEPS_COUNTED)).max(STEP_BYTES_MIN).min(limits.history_step_bytes)
    }

    /// Counts a step that is about to be read, until it is counted as it was read, or is not wanted
    /// any more: many that begin together do not all get what is free.
    pub(crate) fn reserve(self: &Arc<Self>, limits: &Limits) -> Reserved {
        Reserved(self.add(self.step(limits) * STEPS_COUNTED))
    }

    fn add(self: &Arc<Self>, bytes: usize) -> Arc<CountedStep> {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(CountedStep { bytes, memory: Arc::clone(self) })
    }

    /// Counts a step that is handed out, until all parts of it are dropped.
    pub(crate) fn count(self: &Arc<Self>, parts: Vec<Bytes>) -> Vec<Bytes> {
        let step = self.add(parts.iter().map(Bytes::len).sum::<usize>() * STEPS_COUNTED);
        let counted = |bytes| Bytes::from_owner(Part { bytes, _step: Arc::clone(&step) });
        parts.into_iter().map(counted).collect()
    }
}

/// A step that is being read.
pub(crate) struct Reserved(Arc<CountedStep>);

impl Reserved {
    /// How many bytes it may have.
    pub(crate) fn step(&self) -> usize {
        self.0.bytes / STEPS_COUNTED
    }
}

/// A step of history that counts until it is dropped.
struct CountedStep {
    bytes: usize,
    memory: Arc<RecoveryMemory>,
}

impl Drop for CountedStep {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Part {
    bytes: Bytes,
    _step: Arc<CountedStep>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m6_history_that_is_held_counts_until_the_last_part_is_dropped() {
        let limits = Limits { recovery_bytes_max: 16 * 1024 * 1024, ..Limits::default() };
        let memory = Arc::new(RecoveryMemory::default());
        let read = |bytes: usize| vec![Bytes::from(vec![0; bytes / 2]), vec![0; bytes / 2].into()];
        let mut held = Vec::new();
        // However many hold theirs, steps become small before the limit is reached.
        while memory.step(&limits) > STEP_BYTES_MIN {
            held.push(memory.count(read(memory.step(&limits))));
            assert!(memory.used() <= limits.recovery_bytes_max);
        }
        assert!(held.len() > 4, "{}", held.len());
        let first = held[0][0].slice(1..2);
        let before = memory.used();
        held.remove(0);
        assert_eq!(memory.used(), before, "a part of it is still held");
        drop(first);
        assert!(memory.used() < before && memory.step(&limits) > STEP_BYTES_MIN);
        drop(held);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn m6_many_that_begin_to_read_together_do_not_all_get_what_is_free() {
        let limits = Limits { recovery_bytes_max: 16 * 1024 * 1024, ..Limits::default() };
        let memory = Arc::new(RecoveryMemory::default());
        let began: Vec<Reserved> = (0..100).map(|_| memory.reserve(&limits)).collect();
        assert_eq!((began[0].step(), began[99].step()), (1024 * 1024, STEP_BYTES_MIN));
        let smallest = STEPS_COUNTED * STEP_BYTES_MIN;
        assert!(memory.used() <= limits.recovery_bytes_max + 100 * smallest);
        drop(began);
        assert_eq!(memory.used(), 0);
    }
}
