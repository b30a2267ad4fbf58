//! Backups: blobs of a store in an object store or a folder, with a list of their checksums.
//!
//! A backup is `backup.json`, which names everything it needs with lengths and checksums, and the
//! blobs in `j/0000/blobs` as a store has them, plus one with manifest and log (`state-…`). It is whole
//! when `backup.json` names it, and that is written last, in one step.
//!
//! Several backups of one store may follow one another in one place: blobs that are there are not
//! copied again. The one before stays whole until the next one is, so an interrupted backup costs
//! nothing but room, which the next one frees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use gapless_journal::blobs::{BlobError, Blobs};
use gapless_journal::{CopyError, Snapshot, SnapshotError, Sum, copy_blob, expect, sum_of};
use object_store::ObjectStore;
use object_store::path::Path;
use serde_json::{Value, json};

use crate::blobs::ObjectBlobs;
use crate::clock::Time;
use crate::place;
use crate::remote::{Remote, Spans, Trouble};
use crate::store::{self, ROOT_NAME, StoreError, StoreOptions, unreachable};

/// The object that says what a backup has.
const INDEX_NAME: &str = "backup.json";
/// The version of that.
const FORMAT: u64 = 1;
/// What the name of manifest and log begins with.
const STATE_PREFIX: &str = "state-";

/// Why a backup was not taken, or is not good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The place cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is something else.
    #[error("{place} holds a store, not a backup; name another place")]
    IsStore {
        /// Where.
        place: String,
    },
    /// There is none, or it was never finished.
    #[error("there is no backup at {place}{}", begun_text(*begun))]
    NoBackup {
        /// Where.
        place: String,
        /// Whether one was begun.
        begun: bool,
    },
    /// There is one of another store, or of another history of the same.
    #[error("{place} holds a backup of {what}; name another place. It is as it was")]
    Other {
        /// Where.
        place: String,
        /// Of what.
        what: String,
    },
    /// `backup.json` cannot be read.
    #[error("{place}/{INDEX_NAME} cannot be used: {why}")]
    Index {
        /// Where.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// A blob could not be copied, or is not what it was.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// What the backup holds is not a whole state.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

fn begun_text(begun: bool) -> &'static str {
    if begun { ": one was begun and never finished" } else { "" }
}

impl From<BlobError> for BackupError {
    fn from(error: BlobError) -> Self {
        Self::Copy(error.into())
    }
}

/// What a backup has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The id of the store.
    pub epoch: u64,
    /// When it was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// The blob with manifest and log.
    pub state: String,
    /// Every blob.
    pub sums: BTreeMap<String, Sum>,
}

impl Index {
    /// The bytes of all blobs.
    pub fn bytes(&self) -> u64 {
        self.sums.values().map(|sum| sum.bytes).sum()
    }

    fn encode(&self) -> String {
        let blobs: Vec<Value> = self
            .sums
            .iter()
            .map(|(name, sum)| {
                let crc = format!("{:08x}", sum.crc32c);
                json!({ "name": name, "bytes": sum.bytes, "crc32c": crc })
            })
            .collect();
        let epoch = format!("{:016x}", self.epoch);
        let text = json!({
            "format": FORMAT, "store": epoch, "taken_ms": self.taken_ms, "state": self.state,
            "blobs": blobs,
        });
        format!("{text:#}\n")
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let text: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match text["format"].as_u64() {
            Some(FORMAT) => {}
            other => return Err(format!("its format is {other:?}, this version knows {FORMAT}")),
        }
        let missing = |what: &str| format!("it has no {what}");
        let hex = |value: &Value| u64::from_str_radix(value.as_str()?, 16).ok();
        let mut sums = BTreeMap::new();
        for blob in text["blobs"].as_array().ok_or_else(|| missing("blobs"))? {
            let name = blob["name"].as_str().ok_or_else(|| missing("name of a blob"))?;
            let bytes = blob["bytes"].as_u64().ok_or_else(|| missing("length of a blob"))?;
            let crc32c = hex(&blob["crc32c"]).and_then(|crc| u32::try_from(crc).ok());
            let crc32c = crc32c.ok_or_else(|| missing("checksum of a blob"))?;
            sums.insert(name.to_owned(), Sum { bytes, crc32c });
        }
        Ok(Self {
            epoch: hex(&text["store"]).ok_or_else(|| missing("store"))?,
            taken_ms: text["taken_ms"].as_u64().ok_or_else(|| missing("time"))?,
            state: text["state"].as_str().ok_or_else(|| missing("state"))?.to_owned(),
            sums,
        })
    }
}

/// What taking a backup did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What there is now.
    pub index: Index,
    /// Blobs that were copied, and their bytes.
    pub copied: (u64, u64),
    /// Blobs that were there already, and their bytes.
    pub kept: (u64, u64),
    /// Blobs of backups before that were deleted.
    pub deleted: u64,
}

/// A place for backups of one store.
#[derive(Clone, Debug)]
pub struct Backup {
    remote: Remote,
    blobs: Arc<ObjectBlobs>,
}

impl Backup {
    /// The backup at a URL. Nothing is changed yet.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn at(url: &str) -> Result<Self, StoreError> {
        let StoreOptions { spans, time, .. } = StoreOptions::default();
        let (store, prefix) = place::open(url, spans.blob_request)?;
        Self::on(store, prefix, spans, time)
    }

    /// The same on any object store, below a prefix.
    ///
    /// # Errors
    /// When the system fails.
    pub fn on(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        spans: Spans,
        time: Arc<dyn Time>,
    ) -> Result<Self, StoreError> {
        let remote = Remote::new(store, prefix, spans, time)?;
        let folder = format!("{}/blobs", store::folder(0));
        let blobs = Arc::new(ObjectBlobs::new(remote.clone(), folder, None));
        Ok(Self { remote, blobs })
    }

    fn place(&self) -> String {
        format!("{:?}", self.remote)
    }

    fn read(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let path = self.remote.path("", name);
        match self.remote.retry(|| self.remote.get(self.remote.spans.request, &path, None)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Trouble::Missing) => Ok(None),
            Err(trouble) => Err(unreachable(&self.remote, trouble)),
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let path = self.remote.path("", name);
        let written = self.remote.retry(|| self.remote.overwrite(&path, text.to_owned().into()));
        written.map_err(|trouble| unreachable(&self.remote, trouble))
    }

    /// What the finished backup has, and whether a backup was ever begun here.
    fn look(&self) -> Result<(Option<Index>, bool), BackupError> {
        let place = self.place();
        let begun = match self.read(ROOT_NAME)? {
            None => false,
            Some(root) if store::is_backup(&root) => true,
            Some(_) => return Err(BackupError::IsStore { place }),
        };
        let Some(bytes) = self.read(INDEX_NAME)? else { return Ok((None, begun)) };
        let index = Index::decode(&bytes).map_err(|why| BackupError::Index { place, why })?;
        Ok((Some(index), begun))
    }

    /// What the finished backup has.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn index(&self) -> Result<Index, BackupError> {
        let (index, begun) = self.look()?;
        index.ok_or_else(|| BackupError::NoBackup { place: self.place(), begun })
    }

    /// Takes a backup, over the one before if there is one. `source_sum` knows the sums of the
    /// snapshot's blobs; it is asked about those that are here already. `progress` is told of bytes
    /// done, copied or found here.
    ///
    /// # Errors
    /// Says why not; the backup before, if any, is as it was.
    pub fn take(
        &self,
        snapshot: &Snapshot,
        taken_ms: u64,
        source_sum: &dyn Fn(&str) -> Result<Sum, BackupError>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Taken, BackupError> {
        let (before, begun) = self.look()?;
        let epoch = snapshot.epoch();
        if let Some(before) = &before
            && before.epoch != epoch.0
        {
            let what = format!("the store {:016x}, this is {epoch}", before.epoch);
            return Err(BackupError::Other { place: self.place(), what });
        }
        if !begun {
            self.write(ROOT_NAME, &store::root_of_backup())?;
        }
        let before = before.map(|index| index.sums).unwrap_or_default();
        let present: BTreeSet<String> = self.blobs.list("")?.into_iter().collect();
        let (mut sums, mut copied, mut kept) = (BTreeMap::new(), (0, 0), (0, 0));
        for name in snapshot.names() {
            let known = before.get(&name).filter(|_| present.contains(&name));
            let sum = if let Some(known) = known {
                if source_sum(&name)? != *known {
                    let what = format!("another history of this store ({name} differs)");
                    return Err(BackupError::Other { place: self.place(), what });
                }
                kept = (kept.0 + 1, kept.1 + known.bytes);
                progress(known.bytes);
                *known
            } else {
                if present.contains(&name) {
                    // Left by a backup that never ended.
                    self.blobs.delete(&name)?;
                }
                let source = snapshot.blobs().open(&name)?;
                let sum = copy_blob((&name, &*source), &*self.blobs, None, progress)?;
                copied = (copied.0 + 1, copied.1 + sum.bytes);
                sum
            };
            sums.insert(name, sum);
        }
        let state = format!("{STATE_PREFIX}{:016x}", self.remote.time.nonce());
        let bytes = snapshot.encode();
        self.blobs.put(&state, &bytes)?;
        let sum = Sum { bytes: bytes.len() as u64, crc32c: crc32c::crc32c(&bytes) };
        copied = (copied.0 + 1, copied.1 + sum.bytes);
        progress(sum.bytes);
        sums.insert(state.clone(), sum);
        let index = Index { epoch: epoch.0, taken_ms, state, sums };
        self.write(INDEX_NAME, &index.encode())?;
        let mut deleted = 0;
        for name in self.blobs.list("")?.iter().filter(|name| !index.sums.contains_key(*name)) {
            self.blobs.delete(name)?;
            deleted += 1;
        }
        Ok(Taken { index, copied, kept, deleted })
    }

    /// The state that was backed up. Its blobs are not looked at yet.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn snapshot(&self) -> Result<(Snapshot, Index), BackupError> {
        let index = self.index()?;
        let sum = index.sums.get(&index.state).copied();
        let bytes = self.blobs.read(&index.state)?;
        let found = Sum { bytes: bytes.len() as u64, crc32c: crc32c::crc32c(&bytes) };
        expect(&index.state, found, sum)?;
        let blobs = Arc::clone(&self.blobs);
        let snapshot = Snapshot::decode(&bytes, blobs)?;
        let why = match snapshot.names().iter().find(|name| !index.sums.contains_key(*name)) {
            Some(name) => format!("it does not name {name}, which is needed"),
            None if snapshot.epoch().0 != index.epoch => "it is of another store".to_owned(),
            None => return Ok((snapshot, index)),
        };
        Err(BackupError::Index { place: self.place(), why })
    }

    /// Reads every blob and compares it with its checksum. `progress` is told of bytes read. Gives
    /// the state, and the names of blobs that an interrupted backup left.
    ///
    /// # Errors
    /// Says what is wrong first.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Snapshot, Index, Vec<String>), BackupError> {
        let (snapshot, index) = self.snapshot()?;
        for (name, expected) in &index.sums {
            let found = sum_of(&*self.blobs.open(name)?)?;
            progress(found.bytes);
            expect(name, found, Some(*expected))?;
        }
        let mut left = self.blobs.list("")?;
        left.retain(|name| !index.sums.contains_key(name));
        Ok((snapshot, index, left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_a_backup_reads_back() {
        let sum = Sum { bytes: 7, crc32c: 0x00ab_cdef };
        let sums = BTreeMap::from([("segment-1.data".to_owned(), sum)]);
        let index = Index { epoch: 9, taken_ms: 12, state: "state-1".to_owned(), sums };
        assert_eq!(Index::decode(index.encode().as_bytes()), Ok(index.clone()));
        let newer = index.encode().replace("\"format\": 1", "\"format\": 2");
        assert!(Index::decode(newer.as_bytes()).is_err_and(|why| why.contains('2')));
        assert!(Index::decode(b"{").is_err());
    }
}
