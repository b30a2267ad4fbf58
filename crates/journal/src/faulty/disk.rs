//! What a disk holds, and what of it a power loss leaves.
//!
//! Every file has two contents: the one that everybody reads, and the one on the platter.
//! Writes go to the first and are noted; a sync carries the noted ones over. The names in
//! folders have the same two layers. A power loss makes the platter the truth, after a
//! random part of what was on its way arrived there.
//!
//! Not here: which calls fail. That is decided by the parent module, before it asks.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// A small generator (splitmix64), so that a seed gives the same disk everywhere.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }
}

/// Names a file whatever its path is.
pub(super) type FileId = u64;

#[derive(Debug, Default)]
struct Content {
    /// What everybody reads.
    seen: Vec<u8>,
    /// What is on the platter.
    platter: Vec<u8>,
    /// Written and not synced, in order.
    pending: Vec<(u64, Vec<u8>)>,
}

/// A change of names that no `sync_dir` made durable yet.
#[derive(Debug)]
enum Change {
    Create(PathBuf, FileId),
    Rename(PathBuf, PathBuf, FileId),
    Remove(PathBuf, FileId),
}

#[derive(Debug, Default)]
pub(super) struct Disk {
    files: BTreeMap<FileId, Content>,
    next_id: FileId,
    names: BTreeMap<PathBuf, FileId>,
    platter_names: BTreeMap<PathBuf, FileId>,
    changes: Vec<Change>,
    /// Folders are durable at once: no code depends on losing one.
    dirs: BTreeSet<PathBuf>,
}

impl Disk {
    pub(super) fn find(&self, path: &Path) -> Option<FileId> {
        self.names.get(path).copied()
    }

    pub(super) fn has_dir(&self, path: &Path) -> bool {
        self.dirs.contains(path)
    }

    pub(super) fn create_dir(&mut self, path: &Path) {
        self.dirs.extend(path.ancestors().map(Path::to_owned));
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &PathBuf> {
        self.names.keys()
    }

    pub(super) fn create(&mut self, path: &Path) -> FileId {
        self.next_id += 1;
        let id = self.next_id;
        self.files.insert(id, Content::default());
        self.names.insert(path.to_owned(), id);
        self.changes.push(Change::Create(path.to_owned(), id));
        id
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, id: FileId) {
        self.names.remove(from);
        self.names.insert(to.to_owned(), id);
        let change = Change::Rename(from.to_owned(), to.to_owned(), id);
        self.changes.push(change);
    }

    pub(super) fn remove(&mut self, path: &Path, id: FileId) {
        self.names.remove(path);
        self.changes.push(Change::Remove(path.to_owned(), id));
    }

    pub(super) fn read(&self, id: FileId) -> &[u8] {
        self.files.get(&id).map_or(&[], |file| &file.seen)
    }

    pub(super) fn write(&mut self, id: FileId, offset: u64, bytes: &[u8]) {
        if let Some(file) = self.files.get_mut(&id).filter(|_| !bytes.is_empty()) {
            put(&mut file.seen, offset, bytes);
            file.pending.push((offset, bytes.to_vec()));
        }
    }

    /// A write of which pieces here and there arrive in the page cache.
    pub(super) fn write_torn(&mut self, id: FileId, at: u64, bytes: &[u8], random: &mut Random) {
        let share = random.below(5);
        for (offset, piece) in pieces(at, bytes, random) {
            if random.below(4) < share {
                self.write(id, offset, piece);
            }
        }
    }

    /// Changes a byte behind everybody's back, as a failing medium does.
    pub(super) fn corrupt(&mut self, id: FileId, offset: u64, change: impl Fn(u8) -> u8) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let index = to_index(offset);
        for content in [&mut file.seen, &mut file.platter] {
            if let Some(byte) = content.get_mut(index) {
                *byte = change(*byte);
            }
        }
        for (start, bytes) in &mut file.pending {
            let within = offset.checked_sub(*start).map(to_index);
            if let Some(byte) = within.and_then(|index| bytes.get_mut(index)) {
                *byte = change(*byte);
            }
        }
    }

    pub(super) fn sync(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            for (offset, bytes) in file.pending.drain(..) {
                put(&mut file.platter, offset, &bytes);
            }
        }
        // As on ext4, a synced file has a name: the one it was created with.
        let created = |change: &Change| matches!(change, Change::Create(_, of) if *of == id);
        if let Some(index) = self.changes.iter().position(created) {
            let change = self.changes.remove(index);
            apply(&mut self.platter_names, &change);
        }
    }

    /// What Linux does when a sync fails: some pages arrived, all count as clean, and
    /// so the next sync has nothing to do.
    pub(super) fn sync_failed(&mut self, id: FileId, random: &mut Random) {
        if let Some(file) = self.files.get_mut(&id) {
            settle(file, random);
        }
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let inside = |path: &Path| path.parent() == Some(dir);
        let names = &mut self.platter_names;
        self.changes.retain(|change| {
            let here = match change {
                Change::Create(path, _) | Change::Remove(path, _) => inside(path),
                Change::Rename(from, to, _) => inside(from) || inside(to),
            };
            if here {
                apply(names, change);
            }
            !here
        });
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names.values().map(|id| self.read(*id).len() as u64).sum()
    }

    /// The power goes: what is seen from now on is what the platter holds.
    pub(super) fn lose_power(&mut self, random: &mut Random) {
        let kept = random.below(self.changes.len() as u64 + 1);
        for change in self.changes.drain(..).take(to_index(kept)) {
            apply(&mut self.platter_names, &change);
        }
        self.names = self.platter_names.clone();
        for file in self.files.values_mut() {
            settle(file, random);
            file.seen = file.platter.clone();
        }
        self.forget_unnamed();
    }

    /// Frees files that have no name and, since the process is gone, no handle.
    pub(super) fn forget_unnamed(&mut self) {
        let mut named: BTreeSet<FileId> = self.names.values().copied().collect();
        named.extend(self.platter_names.values());
        self.files.retain(|id, _| named.contains(id));
    }
}

/// Lets a random choice of the pending pieces arrive on the platter, each on its own, so
/// that writes are torn, lost and reordered.
fn settle(file: &mut Content, random: &mut Random) {
    // Drawn each time, so that all or nothing happens too.
    let share = random.below(5);
    for (at, bytes) in std::mem::take(&mut file.pending) {
        for (offset, piece) in pieces(at, &bytes, random) {
            if random.below(4) < share {
                put(&mut file.platter, offset, piece);
            }
        }
    }
}

/// Splits a write where the disk may tear it: at pages, and sometimes at sectors.
fn pieces<'a>(at: u64, bytes: &'a [u8], random: &mut Random) -> Vec<(u64, &'a [u8])> {
    let step = if random.below(4) == 0 { 512 } else { 4096 };
    let mut pieces = Vec::new();
    let (mut offset, mut rest) = (at, bytes);
    while !rest.is_empty() {
        let len = rest.len().min(to_index(step - offset % step));
        let (piece, after) = rest.split_at(len);
        pieces.push((offset, piece));
        offset += len as u64;
        rest = after;
    }
    pieces
}

fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = to_index(offset);
    let end = start + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}

/// Carries a change out if it still fits: an earlier sync of the file may have overtaken
/// it, and then the name stands for another file.
fn apply(names: &mut BTreeMap<PathBuf, FileId>, change: &Change) {
    match change {
        Change::Create(path, id) => {
            names.insert(path.clone(), *id);
        }
        Change::Rename(from, to, id) => {
            if names.get(from) == Some(id) {
                names.remove(from);
            }
            names.insert(to.clone(), *id);
        }
        Change::Remove(path, id) => {
            if names.get(path) == Some(id) {
                names.remove(path);
            }
        }
    }
}

pub(super) fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("a disk in memory fits in memory")
}
