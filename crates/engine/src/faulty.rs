//! An object store that fails on demand, over any other: for tests and simulation.
//!
//! What becomes of each request is asked of a function, so that tests decide: it passes, it is never
//! done, or it is done and the answer is lost; perhaps late.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An object is written.
    Put,
    /// An object was written, and the answer is on its way. Its fate is decided already.
    PutAnswer,
    /// An object, a range or its size is read.
    Get,
    /// Names are listed.
    List,
    /// An object is deleted.
    Delete,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// How long it takes before anything is done.
    pub delay: Duration,
    /// The question gets lost: nothing is done, and an error comes back.
    pub lost: bool,
    /// It is done, and the answer gets lost: an error comes back.
    pub unanswered: bool,
}

/// Decides about each request.
pub type Fates = Arc<dyn Fn(Request, &Path) -> Fate + Send + Sync>;

/// The store that fails.
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    fates: Fates,
    careless: bool,
}

impl FaultyStore {
    /// This store, with faults.
    pub fn new(inner: Arc<dyn ObjectStore>, fates: Fates) -> Self {
        Self { inner, fates, careless: false }
    }

    /// This store, which lets everybody create a name, as some that speak S3 do.
    pub fn careless(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, fates: Arc::new(|_, _| Fate::default()), careless: true }
    }

    /// Lets the time of a request pass; an error if it is lost.
    async fn before(&self, request: Request, path: &Path) -> Result<Fate> {
        let fate = (self.fates)(request, path);
        if !fate.delay.is_zero() {
            tokio::time::sleep(fate.delay).await;
        }
        if fate.lost { Err(lost("the question")) } else { Ok(fate) }
    }
}

fn lost(what: &str) -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: format!("{what} was lost").into() }
}

fn answer<T>(fate: Fate, result: Result<T>) -> Result<T> {
    if fate.unanswered { Err(lost("the answer")) } else { result }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner)
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with faults", self.inner)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, to: &Path, bytes: PutPayload, how: PutOptions) -> Result<PutResult> {
        let fate = self.before(Request::Put, to).await?;
        let mut how = how;
        if self.careless {
            how.mode = PutMode::Overwrite;
        }
        let put = self.inner.put_opts(to, bytes, how).await;
        (self.fates)(Request::PutAnswer, to);
        answer(fate, put)
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let fate = self.before(Request::Put, to).await?;
        answer(fate, self.inner.put_multipart_opts(to, how).await)
    }

    async fn get_opts(&self, from: &Path, how: GetOptions) -> Result<GetResult> {
        let fate = self.before(Request::Get, from).await?;
        answer(fate, self.inner.get_opts(from, how).await)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fates = Arc::clone(&self.fates);
        let kept = paths.map(move |path| {
            let path = path?;
            if fates(Request::Delete, &path).lost { Err(lost("the question")) } else { Ok(path) }
        });
        self.inner.delete_stream(kept.boxed())
    }

    fn list(&self, under: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let fate = (self.fates)(Request::List, under.unwrap_or(&Path::default()));
        if fate.lost || fate.unanswered {
            return futures_util::stream::iter([Err(lost("the answer"))]).boxed();
        }
        self.inner.list(under)
    }

    fn list_with_offset(
        &self,
        under: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let fate = (self.fates)(Request::List, under.unwrap_or(&Path::default()));
        if fate.lost || fate.unanswered {
            return futures_util::stream::iter([Err(lost("the answer"))]).boxed();
        }
        self.inner.list_with_offset(under, offset)
    }

    async fn list_with_delimiter(&self, under: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(under).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}
