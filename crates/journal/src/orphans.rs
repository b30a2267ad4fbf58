//! Blobs that the manifest does not name.
//!
//! Most were left by a crash, and opening deletes them. But a blob is deleted only if it is
//! certain that nothing is lost by that: it is of this store, and what it holds the store has
//! elsewhere. One of another store is left alone. One that holds messages beyond the end of
//! manifest and log means that these are older than it, and the store does not open.

use std::collections::BTreeSet;

use gapless_core::Position;

use crate::blobs::Blobs;
use crate::checkpoint::{copy_name, read_head};
use crate::error::OpenError;
use crate::manifest::{CHECKPOINT_PREFIX, Manifest, SEGMENT_PREFIX, number_in};
use crate::segment::{self, DATA_ENDING, INDEX_ENDING};

/// What was found beside the manifest's blobs.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// Those of this store.
    pub(crate) ours: Vec<String>,
    /// Those of others, or whose owner is not known.
    pub(crate) foreign: Vec<String>,
    /// The first number that no blob has in its name.
    pub(crate) next_name: u64,
}

impl Orphans {
    pub(crate) fn find(blobs: &dyn Blobs, manifest: &Manifest) -> Result<Self, OpenError> {
        let mut known = BTreeSet::new();
        for segment in &manifest.segments {
            known.insert(segment.data_name());
            known.insert(segment.index_name());
        }
        if let Some(name) = &manifest.checkpoint {
            known.insert(name.to_string());
            known.insert(copy_name(name));
        }
        let mut names = blobs.list(SEGMENT_PREFIX)?;
        names.extend(blobs.list(CHECKPOINT_PREFIX)?);
        let mut orphans = Self::default();
        for name in names {
            let after = number_in(&name).and_then(|number| number.checked_add(1));
            orphans.next_name = orphans.next_name.max(after.unwrap_or(0));
            if known.contains(&name) {
                continue;
            }
            match is_ours(blobs, &name, manifest.epoch) {
                true => orphans.ours.push(name),
                false => orphans.foreign.push(name),
            }
        }
        Ok(orphans)
    }

    /// Refuses if one of them holds what the store does not know of.
    pub(crate) fn refuse_ahead(&self, blobs: &dyn Blobs, known: Position) -> Result<(), OpenError> {
        for name in self.ours.iter().filter(|name| name.ends_with(DATA_ENDING)) {
            let last = segment::last_position(blobs, name);
            // What cannot be read holds nothing that could be saved by refusing.
            if let Ok(Some(last)) = last
                && last > known
            {
                return Err(OpenError::SegmentAhead { name: name.clone(), last, known });
            }
        }
        Ok(())
    }
}

/// Whether this store wrote the blob. The index of a segment is whose its data is.
fn is_ours(blobs: &dyn Blobs, name: &str, epoch: u64) -> bool {
    if name.starts_with(CHECKPOINT_PREFIX) {
        let head = blobs.read(name).ok().and_then(|bytes| read_head(name, &bytes).ok());
        return head.and_then(|(head, _)| head).is_some_and(|head| head.epoch == epoch);
    }
    let data = match name.strip_suffix(INDEX_ENDING) {
        Some(stem) => format!("{stem}{DATA_ENDING}"),
        None => name.to_owned(),
    };
    match segment::epoch_of(blobs, &data) {
        Ok(found) => found == epoch,
        // An index without data is of no use.
        Err(_) => name.ends_with(INDEX_ENDING) && blobs.open(&data).is_err(),
    }
}
