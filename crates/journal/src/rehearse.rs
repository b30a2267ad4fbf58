//! Runs the replay of an opening over a folder without opening it: checkpoint, then log, by
//! the same code. Nothing is written and no lock is taken, so it can be asked of a store that
//! does not open, and of one that a server has open.

use crate::checkpoint::read_checkpoint;
use crate::doctor::{ReadBlobs, marks_of};
use crate::error::OpenError;
use crate::layout::Folder;
use crate::manifest::Manifest;
use crate::open::{Opened, floor_of, replay};
use crate::state::Recover;

/// How often it begins again because a server replaced what it was reading.
const ATTEMPTS_MAX: usize = 8;

/// Gives a new state what opening would give it.
///
/// # Errors
/// Says why the store would not open. A folder without a store is fine.
pub fn rehearse<S: Recover + Default>(folder: &Folder) -> Result<(), OpenError> {
    let blobs = ReadBlobs::of(folder);
    let mut attempts = 1;
    loop {
        let Some(manifest) = Manifest::newest(&blobs)? else { return Ok(()) };
        let done = rehearse_with(folder, &manifest, &mut S::default());
        let newest = Manifest::newest(&blobs)?;
        let replaced = newest.is_some_and(|newest| newest.number > manifest.number);
        if done.is_ok() || !replaced || attempts == ATTEMPTS_MAX {
            return done;
        }
        attempts += 1;
    }
}

fn rehearse_with(
    folder: &Folder,
    manifest: &Manifest,
    state: &mut dyn Recover,
) -> Result<(), OpenError> {
    if let Some(name) = &manifest.checkpoint {
        let whose = (&**name, manifest.epoch);
        read_checkpoint(&ReadBlobs::of(folder), whose, &mut |item| state.restore(item))?;
    }
    let log = folder.file_log(marks_of(manifest));
    let mut reader = log.read_only(floor_of(manifest))?;
    replay(&mut *reader, manifest, state, &mut Opened::of(manifest))?;
    Ok(())
}
