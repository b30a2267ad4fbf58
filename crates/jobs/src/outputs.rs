//! Output archives that are too large for a frame: they go to an object store, and the result says
//! where.
//!
//! An archive's name is the token of its attempt (the leader's store, the job, the attempt). So an
//! attempt that does not count any more may leave an archive, but the result that counts never
//! names it. The reference has size and SHA-256 too: a fetch gives exactly what the attempt stored,
//! or an error.
//!
//! A store is a folder, or an S3 bucket (`s3://bucket/prefix`; keys, region and endpoint by the usual
//! variables `AWS_…`). Old archives in a folder are removed by its workers; in a bucket that is up
//! to a lifecycle rule.

use std::path::Path as FilePath;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::clock;
use crate::wire::{JobResult, OutputRef};

/// How long storing or fetching an archive may take.
const STORE_WAIT: Duration = Duration::from_secs(300);
/// After so long, a request to a bucket that failed is not sent again.
const RETRY_WAIT: Duration = Duration::from_secs(60);
/// Largest archive that is fetched, in bytes.
const FETCH_BYTES_MAX: u64 = 1 << 30;
/// The end of an archive's name.
const ENDING: &str = ".zip";

/// Where archives go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outputs {
    url: Url,
    /// How long archives stay in a folder.
    keep: Duration,
}

/// Why an archive was not stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// The place cannot be one; nothing was tried.
    #[error("{place:?} cannot hold output files: {why}")]
    Place {
        /// What was given.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store failed. A fetch can be tried again; a store may have left a part behind.
    #[error("the store of output files failed: {0}")]
    Store(#[from] object_store::Error),
    /// It took too long.
    #[error("the store of output files took longer than {} s", STORE_WAIT.as_secs())]
    Slow,
    /// It is larger than what is fetched.
    #[error("the archive has {0} bytes: at most {FETCH_BYTES_MAX} are fetched")]
    TooLarge(u64),
    /// What is there now is not what the attempt stored.
    #[error("what is stored at {0} is not what the job left: size or SHA-256 differ")]
    Differs(String),
}

impl Outputs {
    /// A folder, or a URL that begins with `s3://` or `file://`. Archives stay in folders this long.
    ///
    /// # Errors
    /// When it can be neither.
    pub fn new(place: &str, keep: Duration) -> Result<Self, OutputsError> {
        let wrong =
            |why: &str| OutputsError::Place { place: place.to_owned(), why: why.to_owned() };
        let url = if place.contains("://") {
            Url::parse(place).map_err(|error| wrong(&error.to_string()))?
        } else {
            let whole = std::path::absolute(FilePath::new(place));
            let whole = whole.map_err(|error| wrong(&error.to_string()))?;
            Url::from_directory_path(whole).map_err(|()| wrong("it is not a path"))?
        };
        open(&url)?;
        Ok(Self { url, keep })
    }

    /// Stores what an attempt left. Old archives in a folder are removed.
    pub(crate) async fn put(
        &self,
        of: &JobResult,
        archive: Vec<u8>,
    ) -> Result<OutputRef, OutputsError> {
        let name = name_of(of);
        let mut url = self.url.clone();
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().push(&name);
        }
        let (bytes, sha256) = (archive.len() as u64, digest(&archive));
        let (store, path) = open(&url)?;
        if url.scheme() == "file" {
            self.sweep(&*store).await;
        }
        let put = store.put(&path, archive.into());
        tokio::time::timeout(STORE_WAIT, put).await.map_err(|_| OutputsError::Slow)??;
        Ok(OutputRef { url: url.into(), bytes, sha256 })
    }

    /// Removes old archives from a folder; whatever else is in it stays.
    async fn sweep(&self, store: &dyn ObjectStore) {
        let Ok(folder) = Path::from_url_path(self.url.path()) else { return };
        let mut all = store.list(Some(&folder));
        while let Some(Ok(each)) = all.next().await {
            let ours = each.location.filename().is_some_and(is_archive);
            if ours && clock::age(each.last_modified.into()) > self.keep {
                // Another worker of the same folder may have removed it.
                let _ = store.delete(&each.location).await;
            }
        }
    }
}

/// Fetches what a result refers to.
///
/// # Errors
/// When it cannot be reached, is too large, or is not what was stored.
pub async fn fetch(reference: &OutputRef) -> Result<Vec<u8>, OutputsError> {
    if reference.bytes > FETCH_BYTES_MAX {
        return Err(OutputsError::TooLarge(reference.bytes));
    }
    let differs = || OutputsError::Differs(reference.url.clone());
    let url = Url::parse(&reference.url).map_err(|error| OutputsError::Place {
        place: reference.url.clone(),
        why: error.to_string(),
    })?;
    let (store, path) = open(&url)?;
    let get = async {
        let found = store.get(&path).await?;
        // Looked at before anything is read into memory.
        if found.meta.size != reference.bytes {
            return Err(differs());
        }
        Ok(found.bytes().await?.to_vec())
    };
    let archive = tokio::time::timeout(STORE_WAIT, get).await.map_err(|_| OutputsError::Slow)??;
    if digest(&archive) != reference.sha256 {
        return Err(differs());
    }
    Ok(archive)
}

/// The store of a URL, and the place in it.
fn open(url: &Url) -> Result<(Box<dyn ObjectStore>, Path), OutputsError> {
    let wrong = |why: String| OutputsError::Place { place: url.to_string(), why };
    let path = Path::from_url_path(url.path()).map_err(|error| wrong(error.to_string()))?;
    match url.scheme() {
        "file" => Ok((Box::new(LocalFileSystem::new().with_fsync(true)), path)),
        "s3" => {
            // One is needed before the first TLS connection; another part may have chosen already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let client = ClientOptions::new().with_timeout(STORE_WAIT);
            let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
            let retry = RetryConfig { retry_timeout: RETRY_WAIT, ..RetryConfig::default() };
            let store = AmazonS3Builder::from_env()
                .with_url(url.as_str())
                .with_client_options(client)
                .with_allow_http(allow_http)
                .with_retry(retry)
                .build()?;
            Ok((Box::new(store), path))
        }
        other => Err(wrong(format!("{other} is not known: give a folder or s3://bucket/prefix"))),
    }
}

/// The name of an attempt's archive.
fn name_of(result: &JobResult) -> String {
    let epoch = result.epoch.as_deref().unwrap_or("0");
    format!("{epoch}-{}-{}{ENDING}", result.job_id, result.attempt.unwrap_or(0))
}

fn is_archive(name: &str) -> bool {
    let parts = || {
        let (front, attempt) = name.strip_suffix(ENDING)?.rsplit_once('-')?;
        let (epoch, job) = front.split_once('-')?;
        job.parse::<gapless_core::job::JobId>().ok()?;
        let hex = |part: &str| u64::from_str_radix(part, 16).is_ok();
        (epoch.split('.').all(hex) && attempt.parse::<u32>().is_ok()).then_some(())
    };
    parts().is_some()
}

fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(3600);

    fn attempt(number: u32) -> JobResult {
        JobResult {
            job_id: gapless_core::job::JobId(7).to_string(),
            attempt: Some(number),
            epoch: Some("0000abcd.2f".to_owned()),
            ..JobResult::default()
        }
    }

    #[tokio::test]
    async fn e10_each_attempt_has_an_archive_of_its_own_and_a_changed_one_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("made later");
        let outputs = Outputs::new(&place.to_string_lossy(), KEEP).expect("a folder");
        let first = outputs.put(&attempt(1), b"one".to_vec()).await.expect("stored");
        let second = outputs.put(&attempt(2), b"two".to_vec()).await.expect("stored");
        assert_eq!(fetch(&first).await.expect("it is there"), b"one");
        assert_eq!(fetch(&second).await.expect("it is there"), b"two");
        assert!(second.url.ends_with(&format!("0000abcd.2f-{}-2.zip", attempt(2).job_id)));
        // Another attempt's archive, or another size, never passes for this one's.
        for other in [
            OutputRef { url: second.url.clone(), ..first.clone() },
            OutputRef { bytes: 4, ..first.clone() },
        ] {
            assert!(matches!(fetch(&other).await, Err(OutputsError::Differs(_))), "{other:?}");
        }
        let gone = OutputRef { url: format!("{}x", first.url), ..first.clone() };
        assert!(matches!(fetch(&gone).await, Err(OutputsError::Store(_))));
        let huge = OutputRef { bytes: FETCH_BYTES_MAX + 1, ..first };
        assert!(matches!(fetch(&huge).await, Err(OutputsError::TooLarge(_))));
    }

    #[tokio::test]
    async fn old_archives_of_a_folder_are_removed_and_other_files_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().to_string_lossy().into_owned();
        std::fs::write(folder.path().join("mine.zip"), "mine").expect("written");
        let long = Outputs::new(&place, KEEP).expect("a folder");
        let old = long.put(&attempt(1), b"one".to_vec()).await.expect("stored");
        let young = long.put(&attempt(2), b"two".to_vec()).await.expect("stored");
        assert!(fetch(&old).await.is_ok() && fetch(&young).await.is_ok());
        let short = Outputs::new(&place, Duration::ZERO).expect("a folder");
        short.put(&attempt(3), b"three".to_vec()).await.expect("stored");
        let mut left: Vec<_> = std::fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        left.sort();
        assert_eq!(left, [name_of(&attempt(3)), "mine.zip".to_owned()]);
    }

    #[test]
    fn places_that_are_none_are_refused() {
        for wrong in ["http://host/x", "s3://", "ftp://x/y", "memory://x"] {
            assert!(Outputs::new(wrong, KEEP).is_err(), "{wrong}");
        }
        assert!(Outputs::new("s3://bucket/some/prefix", KEEP).is_ok());
        assert!(Outputs::new("outputs", KEEP).is_ok());
    }
}
