//! Blobs that are held for a snapshot, and frames that are recorded while one is taken.
//!
//! A blob that a snapshot names is not deleted while the snapshot lives; it is deleted when the last
//! one that names it is gone. What a crash leaves behind belongs to no manifest, and opening deletes
//! it like any other.
//!
//! The rule of recording: from before a segment is written until the manifest that names it is in
//! force, every frame is kept whole. So whatever the manifest's checkpoint tells of is either in
//! segments or among the recorded frames.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;

use crate::blobs::Blobs;
use crate::log::Lsn;
use crate::manifest::delete;
use crate::marks::lock;

/// Most bytes of frames that are appended while a snapshot is taken; with more it is refused.
pub const RECORDED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Most snapshots at the same time: each holds blobs that nothing else may need.
pub const SNAPSHOTS_MAX: usize = 8;

/// What is held, and what is recorded.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    held: Mutex<Held>,
    recorded: Mutex<Option<Recorded>>,
}

#[derive(Debug, Default)]
struct Held {
    /// How many snapshots name each blob.
    names: BTreeMap<String, usize>,
    snapshots: usize,
    /// Those that nothing else needs: to be deleted when no snapshot names them.
    unneeded: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Recorded {
    frames: Vec<(Lsn, Bytes)>,
    bytes: usize,
}

impl Pins {
    /// Records frames from now on.
    pub(crate) fn record(&self) {
        *lock(&self.recorded) = Some(Recorded::default());
    }

    /// Notes a frame that was appended. One beyond the limit ends the recording.
    pub(crate) fn note(&self, lsn: Lsn, bytes: &Bytes) {
        let mut recorded = lock(&self.recorded);
        let Some(each) = recorded.as_mut() else { return };
        each.bytes += bytes.len();
        each.frames.push((lsn, bytes.clone()));
        if each.bytes > RECORDED_BYTES_MAX {
            *recorded = None;
        }
    }

    /// Ends the recording: the frames since it began, or `None` if there were too many.
    pub(crate) fn recorded(&self) -> Option<Vec<(Lsn, Bytes)>> {
        lock(&self.recorded).take().map(|recorded| recorded.frames)
    }

    /// Holds these blobs; `None` if there are too many snapshots.
    pub(crate) fn hold(self: &Arc<Self>, blobs: &Arc<dyn Blobs>, names: &[String]) -> Option<Pin> {
        let mut held = lock(&self.held);
        if held.snapshots >= SNAPSHOTS_MAX {
            return None;
        }
        held.snapshots += 1;
        for name in names {
            *held.names.entry(name.clone()).or_default() += 1;
        }
        let (pins, blobs) = (Arc::downgrade(self), Arc::clone(blobs));
        Some(Pin { pins, blobs, names: names.to_vec() })
    }

    /// Deletes these blobs, or notes that they can go when no snapshot names them any more.
    pub(crate) fn delete(&self, blobs: &dyn Blobs, names: Vec<String>) {
        let mut held = lock(&self.held);
        let (later, now): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| held.names.contains_key(name));
        held.unneeded.extend(later);
        drop(held);
        now.iter().for_each(|name| delete(blobs, name));
    }

    /// How many snapshots there are, and how many blobs wait for their end.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let held = lock(&self.held);
        (held.snapshots, held.unneeded.len())
    }

    fn release(&self, names: &[String]) -> Vec<String> {
        let mut held = lock(&self.held);
        held.snapshots -= 1;
        let mut unneeded = Vec::new();
        for name in names {
            let Some(count) = held.names.get_mut(name) else { continue };
            *count -= 1;
            if *count == 0 {
                held.names.remove(name);
                unneeded.extend(held.unneeded.take(name));
            }
        }
        unneeded
    }
}

/// Holds blobs until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Weak<Pins>,
    blobs: Arc<dyn Blobs>,
    names: Vec<String>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        // After the journal is gone another owner may need them; its opening decides.
        let Some(pins) = self.pins.upgrade() else { return };
        let unneeded = pins.release(&self.names);
        unneeded.iter().for_each(|name| delete(&*self.blobs, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBlobs;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_a_snapshot_names_is_deleted_when_the_last_one_is_gone() {
        let blobs: Arc<dyn Blobs> = Arc::new(MemoryBlobs::default());
        for name in ["a", "b", "c"] {
            blobs.put(name, b"x").expect("put");
        }
        let pins = Arc::new(Pins::default());
        let first = pins.hold(&blobs, &names(&["a", "b"])).expect("few");
        let second = pins.hold(&blobs, &names(&["b"])).expect("few");
        pins.delete(&*blobs, names(&["a", "b", "c"]));
        assert_eq!(blobs.list("").expect("list"), ["a", "b"]);
        assert_eq!(pins.counts(), (2, 2));
        drop(first);
        assert_eq!(blobs.list("").expect("list"), ["b"]);
        drop(second);
        assert_eq!(blobs.list("").expect("list"), [""; 0]);
        assert_eq!(pins.counts(), (0, 0));
    }

    #[test]
    fn what_is_still_needed_stays_when_a_snapshot_ends() {
        let blobs: Arc<dyn Blobs> = Arc::new(MemoryBlobs::default());
        blobs.put("a", b"x").expect("put");
        let pins = Arc::new(Pins::default());
        drop(pins.hold(&blobs, &names(&["a"])).expect("few"));
        assert_eq!(blobs.list("").expect("list"), ["a"]);
    }

    #[test]
    fn there_are_only_so_many_snapshots() {
        let blobs: Arc<dyn Blobs> = Arc::new(MemoryBlobs::default());
        let pins = Arc::new(Pins::default());
        let mut held: Vec<_> = (0..SNAPSHOTS_MAX).map(|_| pins.hold(&blobs, &[])).collect();
        assert!(held.iter().all(Option::is_some) && pins.hold(&blobs, &[]).is_none());
        held.pop();
        assert!(pins.hold(&blobs, &[]).is_some());
    }

    #[test]
    fn a_recording_that_is_too_large_is_given_up() {
        let pins = Pins::default();
        let half = Bytes::from(vec![0; RECORDED_BYTES_MAX / 2 + 1]);
        pins.note(Lsn(1), &half);
        pins.record();
        pins.note(Lsn(2), &half);
        assert_eq!(lock(&pins.recorded).as_ref().map(|each| each.frames.len()), Some(1));
        pins.note(Lsn(3), &half);
        assert_eq!(pins.recorded(), None);
    }
}
