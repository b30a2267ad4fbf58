//! Where a store is: a URL.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use crate::store::StoreError;

/// How long a connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// The object store of a URL, and the place in it. `s3://bucket/prefix` (keys, region and endpoint by
/// the usual variables `AWS_…`), `file:///folder`, or `memory:` for one that ends with the process.
pub(crate) fn open(
    place: &str,
    request_max: Duration,
) -> Result<(Arc<dyn ObjectStore>, Path), StoreError> {
    let wrong = |why: String| StoreError::Url { url: place.to_owned(), why };
    if place == "memory:" {
        return Ok((Arc::new(InMemory::new()), Path::default()));
    }
    let url = Url::parse(place).map_err(|error| wrong(error.to_string()))?;
    match url.scheme() {
        "file" => {
            let no_path = |()| wrong("it is not a path of this machine".to_owned());
            let folder: PathBuf = url.to_file_path().map_err(no_path)?;
            let unusable = |why: String| StoreError::Unreachable { place: place.to_owned(), why };
            std::fs::create_dir_all(&folder).map_err(|error| unusable(error.to_string()))?;
            let store = LocalFileSystem::new_with_prefix(&folder)
                .map_err(|error| unusable(error.to_string()))?;
            Ok((Arc::new(store.with_fsync(true)), Path::default()))
        }
        "s3" => {
            // One is needed before the first TLS connection; another part may have chosen already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let client =
                ClientOptions::new().with_timeout(request_max).with_connect_timeout(CONNECT_WAIT);
            let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
            // What is sent again, and when, is decided here and not below: an answer that says
            // "taken" must be known to belong to the first try or to a later one.
            let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
            let store = AmazonS3Builder::from_env()
                .with_url(url.as_str())
                .with_client_options(client)
                .with_allow_http(allow_http)
                .with_retry(retry)
                .build()
                .map_err(|error| wrong(error.to_string()))?;
            let path = Path::from_url_path(url.path()).map_err(|error| wrong(error.to_string()))?;
            Ok((Arc::new(store), path))
        }
        other => {
            let known = "use s3://bucket/prefix, file:///folder or memory:";
            Err(wrong(format!("{other} is not known; {known}")))
        }
    }
}
