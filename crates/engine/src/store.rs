//! A store on object storage as a whole: what is where, who may open it, how it is looked after.
//!
//! `gapless.json` says how many journals there are; each has a folder `j/0000` with its `log`, its
//! `blobs` and `beat`, which the owner writes now and then so that others see that it lives. Nothing
//! relies on the beat.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use gapless_core::Epoch;
use gapless_journal::{FrameMarks, Monotonic, Parts, Secret};
use object_store::path::Path;
use object_store::{ObjectStore, PutPayload};

use crate::blobs::ObjectBlobs;
use crate::cache::Cache;
use crate::check;
use crate::clock::{MachineTime, Time};
use crate::log::ObjectLog;
use crate::place;
use crate::remote::{Remote, Spans, Trouble};

/// The object that says what a store is.
pub(crate) const ROOT_NAME: &str = "gapless.json";
/// The member of it that a backup has.
const BACKUP: &str = "backup";
/// The version of how a store is laid out.
const FORMAT: u64 = 1;
/// The object that the owner of a journal writes now and then.
const BEAT_NAME: &str = "beat";
/// Most journals of a store: their numbers have four digits.
pub const JOURNALS_MAX: u16 = 9999;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Every span.
    pub spans: Spans,
    /// How many journals it has if it is new; one that is there must have as many.
    pub journals: u16,
    /// Whether it is made if it is new.
    pub create: bool,
    /// A folder for pieces of segments, and how many bytes may be there.
    pub cache: Option<(PathBuf, u64)>,
    /// The clock; another one in tests.
    pub time: Arc<dyn Time>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let time = Arc::new(MachineTime::default());
        Self { spans: Spans::default(), journals: 1, create: true, cache: None, time }
    }
}

/// Why a store cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It is no URL of a store.
    #[error("{url:?} cannot be a store: {why}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// It does not answer, or refuses.
    #[error(
        "the store at {place} cannot be used: {why}; check address, credentials and permissions"
    )]
    Unreachable {
        /// Where.
        place: String,
        /// What was said last.
        why: String,
    },
    /// There is none.
    #[error("there is no store at {place}")]
    NoStore {
        /// Where.
        place: String,
    },
    /// Two could create the same name.
    #[error(
        "the store at {place} does not enforce create-if-absent: {why}. Two servers could overwrite \
         each other's messages there, so nothing is served from it; use a store with conditional \
         writes (S3, GCS, Azure, R2, MinIO, a local folder)"
    )]
    NotEnforced {
        /// Where.
        place: String,
        /// What was seen.
        why: String,
    },
    /// It was made with another number of journals.
    #[error("the store has {found} journals, not {wanted}: the number is fixed when it is made")]
    Journals {
        /// How many it has.
        found: u64,
        /// How many were asked for.
        wanted: u16,
    },
    /// It was made by another version, or is something else.
    #[error("{place}/{ROOT_NAME} is not of a store that this version knows: {why}")]
    Format {
        /// Where.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// It is a backup.
    #[error("{place} is a backup, and a server would change it; restore it: gapless restore")]
    IsBackup {
        /// Where.
        place: String,
    },
    /// The cache cannot be made.
    #[error("the cache {folder} cannot be used: {source}", folder = folder.display())]
    Cache {
        /// Its folder.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system failed.
    #[error("the store cannot be used: {0}")]
    Io(#[from] std::io::Error),
}

/// A store.
#[derive(Clone, Debug)]
pub struct Store {
    remote: Remote,
    cache: Option<Arc<Cache>>,
}

impl Store {
    /// Reaches the store at a URL, makes it if it is new, and proves that it enforces
    /// create-if-absent.
    ///
    /// # Errors
    /// Says why it cannot be used, and what to do.
    pub fn open(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let (store, prefix) = place::open(url, options.spans.blob_request)?;
        Self::open_on(store, prefix, options)
    }

    /// The same for any object store, below a prefix.
    ///
    /// # Errors
    /// Says why it cannot be used, and what to do.
    pub fn open_on(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let StoreOptions { spans, journals, create, cache, time } = options;
        let remote = Remote::new(store, prefix, spans, time)?;
        check::race(&remote)?;
        make_root(&remote, journals, create)?;
        let open_cache = |(folder, bytes): (PathBuf, u64)| {
            let opened = Cache::open(&folder, bytes);
            opened.map(Arc::new).map_err(|source| StoreError::Cache { folder, source })
        };
        let cache = cache.filter(|(_, bytes)| *bytes > 0).map(open_cache).transpose()?;
        Ok(Self { remote, cache })
    }

    /// The log of a journal whose frames have these marks.
    pub fn log(&self, journal: u16, marks: &FrameMarks) -> ObjectLog {
        ObjectLog::new(self.remote.clone(), format!("{}/log", folder(journal)), marks)
    }

    /// The blobs of a journal.
    pub fn blobs(&self, journal: u16) -> ObjectBlobs {
        let folder = format!("{}/blobs", folder(journal));
        ObjectBlobs::new(self.remote.clone(), folder, self.cache.clone())
    }

    /// What a journal is opened with.
    pub fn parts(
        &self,
        journal: u16,
        (new_epoch, new_secret): (Epoch, Secret),
        monotonic: Monotonic,
        flusher_thread: bool,
    ) -> Parts {
        let store = self.clone();
        Parts {
            blobs: Arc::new(self.blobs(journal)),
            log: Box::new(move |marks| store.log(journal, &marks).shared()),
            new_epoch,
            new_secret,
            monotonic,
            flusher_thread,
        }
    }

    /// Waits until what is being deleted is gone, but not for long.
    pub fn wait_for_deletes(&self) {
        self.remote.wait_for_deletes();
    }

    /// Shows others that the owner lives. Failing does no harm.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn beat(&self, journal: u16, owner: &str) -> Result<(), StoreError> {
        self.say(journal, owner, false)
    }

    /// Shows others that the owner has closed the journal, so that they need not wait. Failing does no
    /// harm.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn release(&self, journal: u16, owner: &str) -> Result<(), StoreError> {
        self.say(journal, owner, true)
    }

    fn say(&self, journal: u16, owner: &str, released: bool) -> Result<(), StoreError> {
        let nonce = format!("{:016x}", self.remote.time.nonce());
        let text = serde_json::json!({ "owner": owner, "nonce": nonce, "released": released });
        let path = self.remote.path(&folder(journal), BEAT_NAME);
        let payload = PutPayload::from(text.to_string());
        self.remote.overwrite(&path, payload).map_err(|trouble| unreachable(&self.remote, trouble))
    }

    /// Watches whether the owner of a journal lives.
    pub fn watch(&self, journal: u16) -> Watch {
        let log = self.log(journal, &FrameMarks::secret(Secret::new(0)));
        let beat = self.remote.path(&folder(journal), BEAT_NAME);
        Watch { remote: self.remote.clone(), log, beat, newest: 0, seen: None }
    }
}

/// Looks for signs of life of an owner.
#[derive(Debug)]
pub struct Watch {
    remote: Remote,
    log: ObjectLog,
    beat: Path,
    newest: u64,
    seen: Option<Bytes>,
}

impl Watch {
    /// Whether there is a sign of life that was not there at the last look.
    ///
    /// # Errors
    /// When the store does not answer; then nothing is known.
    pub fn look(&mut self) -> Result<bool, StoreError> {
        let newer = match self.remote.size(&self.log.path(self.newest + 1)) {
            Err(Trouble::Missing) if self.newest > 0 => Vec::new(),
            Ok(_) | Err(Trouble::Missing) => {
                let after = Some(self.newest).filter(|newest| *newest > 0);
                let listed = self.log.numbers_after(after);
                listed.map_err(|trouble| unreachable(&self.remote, trouble))?
            }
            Err(trouble) => return Err(unreachable(&self.remote, trouble)),
        };
        let beat = match self.remote.get(self.remote.spans.request, &self.beat, None) {
            Ok(beat) => Some(beat),
            Err(Trouble::Missing) => None,
            Err(trouble) => return Err(unreachable(&self.remote, trouble)),
        };
        let alive = !newer.is_empty() || beat != self.seen;
        self.newest = newer.last().copied().unwrap_or(self.newest);
        self.seen = beat;
        Ok(alive)
    }

    /// Whether the owner said that it closed the journal, as far as was seen.
    pub fn is_released(&self) -> bool {
        let beat = self.seen.as_deref().and_then(|beat| serde_json::from_slice(beat).ok());
        beat.is_some_and(|beat: serde_json::Value| beat["released"] == true)
    }

    /// Whether the store has a log at all, as far as was seen.
    pub fn has_owner(&self) -> bool {
        self.newest > 0
    }
}

/// The folder of a journal.
pub(crate) fn folder(journal: u16) -> String {
    format!("j/{journal:04}")
}

pub(crate) fn unreachable(remote: &Remote, trouble: Trouble) -> StoreError {
    StoreError::Unreachable { place: format!("{remote:?}"), why: trouble.into_io().to_string() }
}

/// What the root of a backup says.
pub(crate) fn root_of_backup() -> String {
    serde_json::json!({ "format": FORMAT, "journals": 1, BACKUP: true }).to_string()
}

/// Whether this is the root of a backup.
pub(crate) fn is_backup(root: &[u8]) -> bool {
    let root: Option<serde_json::Value> = serde_json::from_slice(root).ok();
    root.is_some_and(|root| root[BACKUP].as_bool() == Some(true))
}

/// Makes the object that says what the store is, or checks the one that is there.
fn make_root(remote: &Remote, journals: u16, create: bool) -> Result<(), StoreError> {
    let path = remote.path("", ROOT_NAME);
    let text = serde_json::json!({ "format": FORMAT, "journals": journals }).to_string();
    let payload = PutPayload::from(text);
    if create {
        match remote.retry(|| remote.create(&path, payload.clone())) {
            Ok(()) => return Ok(()),
            Err(Trouble::Taken) => {}
            Err(trouble) => return Err(unreachable(remote, trouble)),
        }
    }
    let found = remote.retry(|| remote.get(remote.spans.request, &path, None));
    let found = found.map_err(|trouble| match trouble {
        Trouble::Missing => StoreError::NoStore { place: format!("{remote:?}") },
        other => unreachable(remote, other),
    })?;
    let strange = |why: String| StoreError::Format { place: format!("{remote:?}"), why };
    let root: serde_json::Value =
        serde_json::from_slice(&found).map_err(|error| strange(error.to_string()))?;
    if root[BACKUP].as_bool() == Some(true) {
        return Err(StoreError::IsBackup { place: format!("{remote:?}") });
    }
    match (root["format"].as_u64(), root["journals"].as_u64()) {
        (Some(FORMAT), Some(found)) if found == u64::from(journals) => Ok(()),
        (Some(FORMAT), Some(found)) => Err(StoreError::Journals { found, wanted: journals }),
        (Some(other), _) => Err(strange(format!("it has format {other}, this is {FORMAT}"))),
        (None, _) => Err(strange("it names no format".to_owned())),
    }
}
