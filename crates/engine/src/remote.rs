//! Requests to the object store, one at a time, from threads that block.
//!
//! The store speaks async, the journal's traits block (`docs/adr/0001`): each request runs as a task
//! on a small runtime of its own, and its caller waits for the answer. Every request has a deadline.
//! What an error means is decided here, once: the name is taken, nothing is there, it cannot be done
//! this way at all, or it is unclear what happened.
//!
//! Not here: what may be concluded from an unclear answer (`rule.rs`).

use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tokio::runtime::Runtime;

use crate::clock::{Moment, Time};

/// Threads of the runtime: requests wait, they do not compute.
const THREADS: usize = 2;
/// Objects that are deleted at the same time.
const DELETES_AT_ONCE: usize = 16;

/// Every span of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spans {
    /// How long one request for the log may take.
    pub request: Duration,
    /// How long one request for a blob, or for a part of one, may take.
    pub blob_request: Duration,
    /// For how long a request that failed is sent again before its caller is told.
    pub retry: Duration,
    /// The first pause between two tries; each is twice the one before.
    pub pause_min: Duration,
    /// The longest pause between two tries.
    pub pause_max: Duration,
    /// From raising the floor until objects below it are deleted. Must be several times as long as
    /// `request`.
    pub trim_wait: Duration,
    /// The least time between two appends under load: more frames share an object then.
    pub linger: Duration,
}

impl Default for Spans {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(10),
            blob_request: Duration::from_secs(60),
            retry: Duration::from_secs(10),
            pause_min: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
            trim_wait: Duration::from_secs(60),
            linger: Duration::from_millis(20),
        }
    }
}

/// Why a request was not done.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The name is taken.
    Taken,
    /// Nothing has this name.
    Missing,
    /// The store does not do this, or the request is wrong.
    Refused(io::Error),
    /// The store did not answer, or not usefully: it may have been done or not.
    Unclear(io::Error),
}

impl Trouble {
    pub(crate) fn of(error: object_store::Error) -> Self {
        use object_store::Error as E;
        match error {
            E::AlreadyExists { .. } | E::Precondition { .. } => Self::Taken,
            E::NotFound { .. } => Self::Missing,
            E::NotSupported { .. }
            | E::NotImplemented { .. }
            | E::InvalidPath { .. }
            | E::UnknownConfigurationKey { .. } => {
                Self::Refused(io::Error::new(io::ErrorKind::Unsupported, error.to_string()))
            }
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                Self::Unclear(io::Error::new(io::ErrorKind::PermissionDenied, error.to_string()))
            }
            other => Self::Unclear(io::Error::other(told(&other))),
        }
    }

    /// The same as the system would say it.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Taken => io::ErrorKind::AlreadyExists.into(),
            Self::Missing => io::ErrorKind::NotFound.into(),
            Self::Refused(error) | Self::Unclear(error) => error,
        }
    }
}

/// An error with what is behind it, on one line.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

/// The runtime, which may be dropped in any thread.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// An object store, below a prefix.
#[derive(Clone)]
pub(crate) struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    threads: Arc<Threads>,
    /// How many deletes run in the background.
    deleting: Arc<(Mutex<usize>, Condvar)>,
    pub(crate) spans: Spans,
    pub(crate) time: Arc<dyn Time>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.store, self.prefix)
    }
}

/// An object that was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The last part of its name.
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

impl Remote {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        spans: Spans,
        time: Arc<dyn Time>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("store")
            .enable_all()
            .build()?;
        let threads = Arc::new(Threads(Some(runtime)));
        Ok(Self { store, prefix, threads, deleting: Arc::default(), spans, time })
    }

    pub(crate) fn path(&self, folder: &str, name: &str) -> Path {
        let parts = self.prefix.parts().map(|part| part.as_ref().to_owned());
        let parts: Vec<String> =
            parts.chain(folder.split('/').map(str::to_owned)).chain([name.to_owned()]).collect();
        Path::from_iter(parts.into_iter().filter(|part| !part.is_empty()))
    }

    /// Runs a future on the runtime and blocks until it is done, at most so long.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        at_most: Duration,
        future: impl Future<Output = Result<T, Trouble>> + Send + 'static,
    ) -> Result<T, Trouble> {
        let (answer, answered) = mpsc::sync_channel(1);
        let late = move |_| {
            let why = format!("no answer within {} s", at_most.as_secs());
            Err(Trouble::Unclear(io::Error::new(io::ErrorKind::TimedOut, why)))
        };
        self.spawn(async move {
            let result = tokio::time::timeout(at_most, future).await.unwrap_or_else(late);
            // If the receiver is gone, the result is not needed.
            let _ = answer.send(result);
        });
        let gone = || io::Error::other("the runtime of the store has ended");
        answered.recv().unwrap_or_else(|_| Err(Trouble::Unclear(gone())))
    }

    /// Runs a future in the background.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.threads.0 {
            runtime.spawn(future);
        }
    }

    /// Creates an object; one try.
    pub(crate) fn create(&self, path: &Path, payload: PutPayload) -> Result<(), Trouble> {
        self.create_within(self.spans.request, path, payload)
    }

    pub(crate) fn create_within(
        &self,
        at_most: Duration,
        path: &Path,
        payload: PutPayload,
    ) -> Result<(), Trouble> {
        let (store, path) = (Arc::clone(&self.store), path.clone());
        self.wait(at_most, async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            store.put_opts(&path, payload, options).await.map(drop).map_err(Trouble::of)
        })
    }

    /// Creates several objects at the same time; one try for each.
    pub(crate) fn create_all(
        &self,
        objects: Vec<(Path, PutPayload)>,
    ) -> Result<Vec<Result<(), Trouble>>, Trouble> {
        let store = Arc::clone(&self.store);
        let at_most = self.spans.request;
        self.wait(at_most + at_most, async move {
            let creating = objects.into_iter().map(|(path, payload)| {
                let store = Arc::clone(&store);
                async move {
                    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                    let put = store.put_opts(&path, payload, options);
                    match tokio::time::timeout(at_most, put).await {
                        Ok(done) => done.map(drop).map_err(Trouble::of),
                        Err(_) => Err(Trouble::Unclear(io::ErrorKind::TimedOut.into())),
                    }
                }
            });
            Ok(futures_util::future::join_all(creating).await)
        })
    }

    /// Writes an object whether or not there is one; one try. Only for what nothing relies on.
    pub(crate) fn overwrite(&self, path: &Path, payload: PutPayload) -> Result<(), Trouble> {
        let (store, path) = (Arc::clone(&self.store), path.clone());
        self.wait(self.spans.request, async move {
            store.put(&path, payload).await.map(drop).map_err(Trouble::of)
        })
    }

    /// Reads an object, or a range of it; one try.
    pub(crate) fn get(
        &self,
        at_most: Duration,
        path: &Path,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, Trouble> {
        let (store, path) = (Arc::clone(&self.store), path.clone());
        self.wait(at_most, async move { fetch(&*store, &path, range).await })
    }

    /// The bytes of several objects, in this order, so many at a time; each is asked for again until
    /// it is answered, or for too long.
    pub(crate) fn get_all(&self, paths: &[Path], at_once: usize) -> Result<Vec<Bytes>, Trouble> {
        let mut found: Vec<Option<Bytes>> = vec![None; paths.len()];
        let mut tries = self.tries();
        loop {
            let open: Vec<usize> = (0..paths.len()).filter(|at| found[*at].is_none()).collect();
            let wanted = open.iter().map(|at| paths[*at].clone()).collect();
            let mut unclear = None;
            for (at, answer) in open.into_iter().zip(self.get_each(wanted, at_once)?) {
                match answer {
                    Ok(bytes) => found[at] = Some(bytes),
                    Err(Trouble::Unclear(error)) => unclear = Some(error),
                    Err(trouble) => return Err(trouble),
                }
            }
            match unclear {
                None => return Ok(found.into_iter().flatten().collect()),
                Some(error) if !tries.again() => return Err(Trouble::Unclear(error)),
                Some(_) => {}
            }
        }
    }

    /// The answers for several objects, in this order; one try for each.
    fn get_each(
        &self,
        paths: Vec<Path>,
        at_once: usize,
    ) -> Result<Vec<Result<Bytes, Trouble>>, Trouble> {
        let store = Arc::clone(&self.store);
        let rounds = u32::try_from(paths.len().div_ceil(at_once)).unwrap_or(u32::MAX);
        self.wait(self.spans.blob_request.saturating_mul(rounds.max(1)), async move {
            let fetched = paths.into_iter().map(|path| {
                let store = Arc::clone(&store);
                async move { fetch(&*store, &path, None).await }
            });
            Ok(futures_util::stream::iter(fetched).buffered(at_once).collect().await)
        })
    }

    /// How large an object is; one try.
    pub(crate) fn size(&self, path: &Path) -> Result<u64, Trouble> {
        let (store, path) = (Arc::clone(&self.store), path.clone());
        self.wait(self.spans.request, async move {
            store.head(&path).await.map(|meta| meta.size).map_err(Trouble::of)
        })
    }

    /// What is in a folder after this name, sorted; one try.
    pub(crate) fn list(&self, folder: &str, after: Option<&str>) -> Result<Vec<Listed>, Trouble> {
        let store = Arc::clone(&self.store);
        let parent = self.path(folder, "");
        let offset = after.map(|name| self.path(folder, name));
        self.wait(self.spans.blob_request, async move {
            let all = match &offset {
                Some(offset) => store.list_with_offset(Some(&parent), offset),
                None => store.list(Some(&parent)),
            };
            let depth = parent.parts().count() + 1;
            let mut found: Vec<Listed> = all
                .map_err(Trouble::of)
                .try_filter_map(|meta| async move {
                    let direct = meta.location.parts().count() == depth;
                    let name = meta.location.filename().map(str::to_owned);
                    Ok(name.filter(|_| direct).map(|name| Listed { name, bytes: meta.size }))
                })
                .try_collect()
                .await?;
            found.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(found)
        })
    }

    /// Deletes an object; fine if there is none. One try.
    pub(crate) fn delete(&self, path: &Path) -> Result<(), Trouble> {
        let (store, path) = (Arc::clone(&self.store), path.clone());
        self.wait(self.spans.request, async move { remove(&*store, &path).await })
    }

    /// Deletes objects some time; what fails stays.
    pub(crate) fn delete_later(&self, paths: Vec<Path>) {
        let store = Arc::clone(&self.store);
        let deleting = Deleting::begin(&self.deleting);
        self.spawn(async move {
            let _until_done = deleting;
            let removed = paths.into_iter().map(|path| {
                let store = Arc::clone(&store);
                async move {
                    if let Err(trouble) = remove(&*store, &path).await {
                        let error = trouble.into_io();
                        tracing::debug!(%path, %error, "an object that is not needed stays");
                    }
                }
            });
            futures_util::stream::iter(removed).for_each_concurrent(DELETES_AT_ONCE, |f| f).await;
        });
    }

    /// Waits until the deletes under way are done, but not for long.
    pub(crate) fn wait_for_deletes(&self) {
        let (count, ended) = &*self.deleting;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let at_most = self.spans.request;
        drop(ended.wait_timeout_while(count, at_most, |count| *count > 0));
    }

    /// Sends a request until it is answered, or for too long.
    pub(crate) fn retry<T>(
        &self,
        mut request: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut tries = self.tries();
        loop {
            match request() {
                Err(Trouble::Unclear(error)) => {
                    if !tries.again() {
                        return Err(Trouble::Unclear(error));
                    }
                    tracing::debug!(%error, "a request to the store is sent again");
                }
                answer => return answer,
            }
        }
    }

    pub(crate) fn tries(&self) -> Tries<'_> {
        Tries { remote: self, began: self.time.now(), pause: self.spans.pause_min }
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }
}

/// Counts as under way until it is dropped.
struct Deleting(Arc<(Mutex<usize>, Condvar)>);

impl Deleting {
    fn begin(all: &Arc<(Mutex<usize>, Condvar)>) -> Self {
        *all.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(Arc::clone(all))
    }
}

impl Drop for Deleting {
    fn drop(&mut self) {
        let (count, ended) = &*self.0;
        *count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_all();
    }
}

/// The tries of one request.
pub(crate) struct Tries<'a> {
    remote: &'a Remote,
    began: Moment,
    pause: Duration,
}

impl Tries<'_> {
    /// Pauses before the next try; false if there have been tries for long enough.
    pub(crate) fn again(&mut self) -> bool {
        let Remote { spans, time, .. } = self.remote;
        if time.since(self.began) + self.pause > spans.retry {
            return false;
        }
        time.pause(self.pause);
        self.pause = (self.pause * 2).min(spans.pause_max);
        true
    }
}

async fn fetch(
    store: &dyn ObjectStore,
    path: &Path,
    range: Option<Range<u64>>,
) -> Result<Bytes, Trouble> {
    let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
    let found = store.get_opts(path, options).await.map_err(Trouble::of)?;
    found.bytes().await.map_err(Trouble::of)
}

async fn remove(store: &dyn ObjectStore, path: &Path) -> Result<(), Trouble> {
    match store.delete(path).await.map_err(Trouble::of) {
        Err(Trouble::Missing) => Ok(()),
        other => other,
    }
}
