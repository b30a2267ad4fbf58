//! Blobs as objects of a store.
//!
//! A small blob is one create-if-absent. A large one is sent in parts while it is written, and
//! appears when the last part is there; that step overwrites, so before it is looked whether the name
//! is taken. That is enough, since names of large blobs have the term of their owner in them: no two
//! processes ever make the same one.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use bytes::{Bytes, BytesMut};
use gapless_journal::blobs::{Blob, BlobError, BlobWriter, Blobs, Created, check_name};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use crate::cache::Cache;
use crate::remote::{Remote, Trouble};

/// Bytes of a part; a blob that has no more is sent in one.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts that are under way at the same time.
const PARTS_AT_ONCE: usize = 3;
/// Blobs that are opened at the same time.
const OPENED_AT_ONCE: usize = 16;
/// Bytes that a range request brings about as fast as one.
pub(crate) const STEP_BYTES: usize = 256 * 1024;
/// What the names of segments begin with: those are kept in the cache.
const CACHED_PREFIX: &str = "segment-";

/// Blobs in a folder of an object store.
#[derive(Clone, Debug)]
pub struct ObjectBlobs {
    remote: Remote,
    folder: String,
    cache: Option<Arc<Cache>>,
}

impl ObjectBlobs {
    pub(crate) fn new(remote: Remote, folder: String, cache: Option<Arc<Cache>>) -> Self {
        Self { remote, folder, cache }
    }

    fn path(&self, name: &str) -> Path {
        self.remote.path(&self.folder, name)
    }

    /// Creates a small blob. A try whose answer was lost may have made it.
    fn create_whole(&self, name: &str, payload: &PutPayload) -> Result<Created, BlobError> {
        let path = self.path(name);
        let at_most = self.remote.spans.blob_request;
        let mut unclear = false;
        let created = self.remote.retry(|| {
            let created = self.remote.create_within(at_most, &path, payload.clone());
            unclear |= matches!(created, Err(Trouble::Unclear(_)));
            created
        });
        match created {
            Ok(()) => Ok(Created::New),
            Err(Trouble::Taken) if unclear => {
                let found = self.remote.retry(|| self.remote.get(at_most, &path, None));
                let found = found.map_err(failed("read", name))?;
                let ours = found == Bytes::from(payload.clone());
                Ok(if ours { Created::New } else { Created::AlreadyThere })
            }
            Err(Trouble::Taken) => Ok(Created::AlreadyThere),
            Err(trouble) => Err(failed("create", name)(trouble)),
        }
    }
}

fn failed(doing: &'static str, name: &str) -> impl FnOnce(Trouble) -> BlobError {
    let name = name.to_owned();
    move |trouble| match trouble {
        Trouble::Missing => BlobError::Missing { name },
        other => BlobError::Io { doing, name, source: other.into_io() },
    }
}

impl Blobs for ObjectBlobs {
    fn opened_at_once(&self) -> usize {
        OPENED_AT_ONCE
    }

    fn has_bounded_room(&self) -> bool {
        false
    }

    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        check_name(name)?;
        let (blobs, name) = (self.clone(), name.to_owned());
        Ok(Box::new(Writer { blobs, name, gathered: BytesMut::new(), large: None }))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        let path = self.path(name);
        let size = self.remote.retry(|| self.remote.size(&path)).map_err(failed("open", name))?;
        let cache = self.cache.clone().filter(|_| name.starts_with(CACHED_PREFIX));
        let remote = self.remote.clone();
        Ok(Arc::new(ObjectBlob { remote, cache, name: name.to_owned(), path, size }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let listed = self.remote.retry(|| self.remote.list(&self.folder, None));
        let listed = listed.map_err(failed("list", prefix))?;
        let names = listed.into_iter().map(|each| each.name);
        Ok(names.filter(|name| name.starts_with(prefix)).collect())
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        let path = self.path(name);
        self.remote.retry(|| self.remote.delete(&path)).map_err(failed("delete", name))
    }

    fn read(&self, name: &str) -> Result<Bytes, BlobError> {
        let (path, at_most) = (self.path(name), self.remote.spans.blob_request);
        self.remote.retry(|| self.remote.get(at_most, &path, None)).map_err(failed("read", name))
    }
}

/// A blob of several parts that is being sent.
struct Large {
    upload: Arc<Mutex<Option<Box<dyn MultipartUpload>>>>,
    /// Tells how each part under way ended.
    parts: VecDeque<mpsc::Receiver<Result<(), Trouble>>>,
}

struct Writer {
    blobs: ObjectBlobs,
    name: String,
    gathered: BytesMut,
    large: Option<Large>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({})", self.name)
    }
}

impl Writer {
    fn failed(&self, doing: &'static str) -> impl FnOnce(Trouble) -> BlobError {
        failed(doing, &self.name)
    }

    /// Sends what has gathered as a part.
    fn send_part(&mut self) -> Result<(), BlobError> {
        let remote = self.blobs.remote.clone();
        let at_most = remote.spans.blob_request;
        if self.large.is_none() {
            let path = self.blobs.path(&self.name);
            let begun = remote.retry(|| {
                let (store, path) = (Arc::clone(remote.store()), path.clone());
                remote.wait(at_most, async move {
                    store.put_multipart(&path).await.map_err(Trouble::of)
                })
            });
            let upload = Arc::new(Mutex::new(Some(begun.map_err(self.failed("create"))?)));
            self.large = Some(Large { upload, parts: VecDeque::new() });
        }
        let Some(large) = &mut self.large else { return Ok(()) };
        let payload = PutPayload::from(std::mem::take(&mut self.gathered).freeze());
        let part = {
            let mut upload = large.upload.lock().unwrap_or_else(PoisonError::into_inner);
            upload.as_mut().map(|upload| upload.put_part(payload))
        };
        let Some(part) = part else { return Ok(()) };
        let (answer, answered) = mpsc::sync_channel(1);
        remote.spawn(async move {
            let sent = match tokio::time::timeout(at_most, part).await {
                Ok(sent) => sent.map_err(Trouble::of),
                Err(_) => Err(Trouble::Unclear(io::ErrorKind::TimedOut.into())),
            };
            let _ = answer.send(sent);
        });
        large.parts.push_back(answered);
        if large.parts.len() >= PARTS_AT_ONCE {
            self.wait_for_part()?;
        }
        Ok(())
    }

    /// Waits for the oldest part under way; tells whether there was one.
    fn wait_for_part(&mut self) -> Result<bool, BlobError> {
        let Some(part) = self.large.as_mut().and_then(|large| large.parts.pop_front()) else {
            return Ok(false);
        };
        let gone = |_| Err(Trouble::Unclear(io::Error::other("the runtime has ended")));
        part.recv().unwrap_or_else(gone).map_err(self.failed("write"))?;
        Ok(true)
    }

    fn finish_large(&mut self) -> Result<Created, BlobError> {
        if !self.gathered.is_empty() {
            self.send_part()?;
        }
        while self.wait_for_part()? {}
        let remote = self.blobs.remote.clone();
        let path = self.blobs.path(&self.name);
        match remote.retry(|| remote.size(&path)) {
            Ok(_) => return Ok(Created::AlreadyThere),
            Err(Trouble::Missing) => {}
            Err(trouble) => return Err(self.failed("finish")(trouble)),
        }
        let upload = self
            .large
            .take()
            .and_then(|large| large.upload.lock().unwrap_or_else(PoisonError::into_inner).take());
        let Some(mut upload) = upload else { return Ok(Created::New) };
        let done = remote.wait(remote.spans.blob_request, async move {
            upload.complete().await.map(drop).map_err(Trouble::of)
        });
        match done {
            Ok(()) => Ok(Created::New),
            // The answer may have been lost: whole is whole.
            Err(trouble) => match remote.retry(|| remote.size(&path)) {
                Ok(_) => Ok(Created::New),
                Err(_) => Err(self.failed("finish")(trouble)),
            },
        }
    }
}

impl BlobWriter for Writer {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobError> {
        while self.gathered.len() + bytes.len() > PART_BYTES {
            let (now, later) = bytes.split_at(PART_BYTES - self.gathered.len());
            self.gathered.extend_from_slice(now);
            self.send_part()?;
            bytes = later;
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Created, BlobError> {
        if self.large.is_some() {
            return self.finish_large();
        }
        let payload = PutPayload::from(std::mem::take(&mut self.gathered).freeze());
        self.blobs.create_whole(&self.name, &payload)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(large) = self.large.take() else { return };
        let upload = large.upload.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut upload) = upload {
            self.blobs.remote.spawn(async move {
                // A lifecycle rule of the bucket removes what stays.
                let _ = upload.abort().await;
            });
        }
    }
}

#[derive(Debug)]
struct ObjectBlob {
    remote: Remote,
    cache: Option<Arc<Cache>>,
    name: String,
    path: Path,
    size: u64,
}

impl ObjectBlob {
    fn fetch(&self, from: u64, to: u64) -> Result<Bytes, BlobError> {
        let at_most = self.remote.spans.blob_request;
        let get = || self.remote.get(at_most, &self.path, Some(from..to));
        let bytes = self.remote.retry(get).map_err(failed("read", &self.name))?;
        if bytes.len() as u64 == to - from {
            return Ok(bytes);
        }
        let source = io::ErrorKind::UnexpectedEof.into();
        Err(BlobError::Io { doing: "read", name: self.name.clone(), source })
    }
}

impl Blob for ObjectBlob {
    fn len(&self) -> u64 {
        self.size
    }

    fn step_bytes(&self) -> usize {
        STEP_BYTES
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.size);
        let Some(end) = end else {
            let source = io::ErrorKind::UnexpectedEof.into();
            return Err(BlobError::Io { doing: "read", name: self.name.clone(), source });
        };
        if buf.is_empty() {
            return Ok(());
        }
        let Some(cache) = &self.cache else {
            buf.copy_from_slice(&self.fetch(offset, end)?);
            return Ok(());
        };
        let step = STEP_BYTES as u64;
        let mut at = offset;
        while at < end {
            let piece = at / step;
            let (first, last) = (piece * step, ((piece + 1) * step).min(self.size));
            let bytes = cache.get(&self.name, piece, || self.fetch(first, last))?;
            let upto = end.min(last);
            let to = &mut buf[(at - offset) as usize..(upto - offset) as usize];
            to.copy_from_slice(&bytes[(at - first) as usize..(upto - first) as usize]);
            at = upto;
        }
        Ok(())
    }
}
