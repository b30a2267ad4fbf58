//! Which versions of the format a store's files have, and what this program does with them.
//!
//! Every kind of file begins with eight bytes of its own and a version. Only these are read; whether
//! the rest is whole is what [`super::examine`] says. Of a log file its first frame counts.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;

use crate::checkpoint::{self, CHECKPOINT_VERSION};
use crate::frame;
use crate::index::{self, INDEX_VERSION};
use crate::layout::{BLOBS_FOLDER, Folder, LOG_FOLDER};
use crate::manifest::{self, MANIFEST_VERSION};
use crate::segment::{self, SEGMENT_VERSION};

/// Bytes of a file that say what it is.
const HEAD_BYTES: usize = 10;

/// Files of one kind and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatFound {
    /// What they are, as `manifest`.
    pub kind: &'static str,
    /// Their version.
    pub version: u16,
    /// How many there are.
    pub files: u64,
    /// The versions that this program reads.
    pub reads: RangeInclusive<u16>,
    /// The version that it writes.
    pub writes: u16,
}

impl FormatFound {
    /// Whether this program can read them.
    pub fn is_read(&self) -> bool {
        self.reads.contains(&self.version)
    }

    /// Whether new ones of their kind have another version, so that an older program may not be able
    /// to open the store once this one has written to it.
    pub fn is_raised(&self) -> bool {
        self.version < self.writes
    }
}

struct Kind {
    name: &'static str,
    begins: [u8; 8],
    reads: RangeInclusive<u16>,
    writes: u16,
}

fn kinds() -> [Kind; 5] {
    let kind = |name, begins, reads: RangeInclusive<u16>| {
        let writes = *reads.end();
        Kind { name, begins, reads, writes }
    };
    [
        kind("manifest", manifest::MAGIC.to_le_bytes(), 1..=MANIFEST_VERSION),
        kind("checkpoint", *checkpoint::MAGIC, 1..=CHECKPOINT_VERSION),
        kind("segment", *segment::MAGIC, SEGMENT_VERSION..=SEGMENT_VERSION),
        kind("index", index::MAGIC.to_le_bytes(), INDEX_VERSION..=INDEX_VERSION),
        kind("log", frame::MAGIC, frame::VERSION..=frame::VERSION),
    ]
}

/// The versions of the files in a store's folder, by kind. Files that are none of a store, or not
/// used yet, are left out. Nothing is changed.
///
/// # Errors
/// When the folder cannot be read.
pub fn formats(folder: &Folder) -> io::Result<Vec<FormatFound>> {
    let kinds = kinds();
    let mut found: BTreeMap<(usize, u16), u64> = BTreeMap::new();
    for part in [BLOBS_FOLDER, LOG_FOLDER] {
        let dir = folder.path.join(part);
        if !folder.fs.exists(&dir)? {
            continue;
        }
        for name in folder.fs.list(&dir)? {
            let mut head = [0; HEAD_BYTES];
            let file = match folder.fs.open_read(&dir.join(&name)) {
                Ok(file) => file,
                // A server that runs deletes files.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if file.len()? < HEAD_BYTES as u64 {
                continue;
            }
            file.read_exact_at(&mut head, 0)?;
            let is = |kind: &Kind| head[..8] == kind.begins;
            if let Some(kind) = kinds.iter().position(is) {
                let version = u16::from_le_bytes([head[8], head[9]]);
                *found.entry((kind, version)).or_default() += 1;
            }
        }
    }
    let shown = found.into_iter().map(|((kind, version), files)| {
        let Kind { name, reads, writes, .. } = &kinds[kind];
        FormatFound { kind: name, version, files, reads: reads.clone(), writes: *writes }
    });
    Ok(shown.collect())
}
