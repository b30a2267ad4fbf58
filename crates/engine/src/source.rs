//! A running server as the source of a copy, over its HTTP API (`/v1/backups`).
//!
//! The server takes a snapshot and holds its files until the copy ends, or until it has not been asked
//! for a while. Blobs are read in ranges; the server knows their checksums, so that what is there
//! already need not be sent.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use gapless_journal::blobs::{Blob, BlobError, BlobWriter, Blobs};
use gapless_journal::{Snapshot, Sum};
use reqwest::{Certificate, Client, Identity, Method, StatusCode};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::backup::BackupError;
use crate::clock::{MachineTime, Time};
use crate::store::StoreError;

/// How long a request may take. Taking a snapshot writes out what is in memory.
const REQUEST_WAIT: Duration = Duration::from_secs(120);
/// How often a request that was not answered is sent again.
const TRIES_MAX: u32 = 4;
/// The pause before it is sent again, times the tries before.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes that are asked for at once; the server sends no more.
pub(crate) const RANGE_BYTES: usize = 4 * 1024 * 1024;

/// How a server is reached.
#[derive(Clone, Default)]
pub struct ServerAccess {
    /// The token to send.
    pub token: Option<String>,
    /// Authorities to trust instead of the system's (PEM).
    pub authorities: Option<Vec<u8>>,
    /// A certificate and its key (PEM) that prove who asks.
    pub identity: Option<Vec<u8>>,
}

impl fmt::Debug for ServerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerAccess")
    }
}

/// A snapshot that a server holds.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    base: String,
    id: String,
    client: Client,
    token: Option<String>,
    sizes: BTreeMap<String, u64>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.0.base)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.id.is_empty() {
            // The server would end it by itself some time later.
            let _ = self.ask(Method::DELETE, &format!("/v1/backups/{}", self.id));
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What a server answered, or why it did not.
enum Answer {
    Body(Bytes),
    Refused(StatusCode, String),
}

impl Server {
    /// Asks the server for a snapshot.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    pub fn snapshot(url: &str, access: &ServerAccess) -> Result<(Self, Snapshot), BackupError> {
        let base = url.trim_end_matches('/').to_owned();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("copy")
            .enable_all()
            .build()
            .map_err(StoreError::Io)?;
        let client = client(url, access)?;
        let (id, sizes) = (String::new(), BTreeMap::new());
        let token = access.token.clone();
        let mut inner = Inner { base, id, client, token, sizes, runtime: Some(runtime) };
        let place = inner.base.clone();
        let unreachable = |why: String| StoreError::Unreachable { place: place.clone(), why };
        // Sent once: each answer holds files.
        let bytes = match inner.ask(Method::POST, "/v1/backups").map_err(&unreachable)? {
            Answer::Body(bytes) => bytes,
            Answer::Refused(status, why) => {
                return Err(unreachable(format!("{status}: {why}")).into());
            }
        };
        let strange = || unreachable("its answer cannot be read".to_owned());
        let answer: Value = serde_json::from_slice(&bytes).map_err(|_| strange())?;
        inner.id = answer["id"].as_str().ok_or_else(strange)?.to_owned();
        for blob in answer["blobs"].as_array().ok_or_else(strange)? {
            let name = blob["name"].as_str().ok_or_else(strange)?;
            inner.sizes.insert(name.to_owned(), blob["bytes"].as_u64().ok_or_else(strange)?);
        }
        let state_bytes = answer["state_bytes"].as_u64().ok_or_else(strange)?;
        let server = Self(Arc::new(inner));
        let path = server.path("/state");
        let mut state = vec![0; usize::try_from(state_bytes).map_err(|_| strange())?];
        server.read("the snapshot's state", &path, &mut state, 0)?;
        let snapshot = Snapshot::decode(&state.into(), Arc::new(server.clone()))?;
        Ok((server, snapshot))
    }

    /// The sum of a blob, as the server computes it.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn sum_of(&self, name: &str) -> Result<Sum, BackupError> {
        let bytes = self.get(name, &self.path(&format!("/blobs/{name}/checksum")))?;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let crc = answer["crc32c"].as_str().and_then(|crc| u32::from_str_radix(crc, 16).ok());
        match (answer["bytes"].as_u64(), crc) {
            (Some(bytes), Some(crc32c)) => Ok(Sum { bytes, crc32c }),
            _ => Err(failed("sum", name, "the answer cannot be read").into()),
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/backups/{}{rest}", self.0.id)
    }

    /// Asks until it is answered, or for too long.
    fn get(&self, name: &str, path: &str) -> Result<Bytes, BlobError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let why = match self.0.ask(Method::GET, path) {
                Ok(Answer::Body(bytes)) => return Ok(bytes),
                Ok(Answer::Refused(StatusCode::NOT_FOUND, _)) => {
                    return Err(BlobError::Missing { name: name.to_owned() });
                }
                Ok(Answer::Refused(status, why)) if !status.is_server_error() => {
                    return Err(failed("read", name, &format!("{status}: {why}")));
                }
                Ok(Answer::Refused(status, why)) => format!("{status}: {why}"),
                Err(why) => why,
            };
            if tries == TRIES_MAX {
                return Err(failed("read", name, &why));
            }
            MachineTime::default().pause(PAUSE * tries);
        }
    }

    /// Fills the buffer from this place on.
    fn read(&self, name: &str, path: &str, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let mut at = offset;
        for part in buf.chunks_mut(RANGE_BYTES) {
            let range = format!("{path}?from={at}&bytes={}", part.len());
            let bytes = self.get(name, &range)?;
            if bytes.len() != part.len() {
                return Err(failed("read", name, "it is shorter than the server said"));
            }
            part.copy_from_slice(&bytes);
            at += part.len() as u64;
        }
        Ok(())
    }
}

impl Inner {
    fn ask(&self, method: Method, path: &str) -> Result<Answer, String> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let runtime = self.runtime.as_ref().ok_or("it has ended")?;
        let (send, answered) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            let asked = async {
                let answer = request.send().await?;
                let status = answer.status();
                Ok::<_, reqwest::Error>((status, answer.bytes().await?))
            };
            // If the receiver is gone, the answer is not needed.
            let _ = send.send(asked.await);
        });
        let (status, body) = match answered.recv() {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(crate::remote::told(&error)),
            Err(_) => return Err("the runtime has ended".to_owned()),
        };
        if status.is_success() {
            return Ok(Answer::Body(body));
        }
        let problem: Option<Value> = serde_json::from_slice(&body).ok();
        let detail = problem.and_then(|problem| Some(problem["detail"].as_str()?.to_owned()));
        let detail = detail.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        Ok(Answer::Refused(status, detail))
    }
}

fn client(url: &str, access: &ServerAccess) -> Result<Client, StoreError> {
    let wrong = |error: reqwest::Error| StoreError::Url {
        url: url.to_owned(),
        why: crate::remote::told(&error),
    };
    // One is needed before the first TLS connection; another part may have chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder().timeout(REQUEST_WAIT);
    if let Some(pem) = &access.authorities {
        let trusted = Certificate::from_pem_bundle(pem).map_err(wrong)?;
        builder = builder.tls_certs_only(trusted);
    }
    if let Some(pem) = &access.identity {
        builder = builder.identity(Identity::from_pem(pem).map_err(wrong)?);
    }
    builder.build().map_err(wrong)
}

fn failed(doing: &'static str, name: &str, why: &str) -> BlobError {
    BlobError::Io { doing, name: name.to_owned(), source: io::Error::other(why.to_owned()) }
}

impl Blobs for Server {
    fn create(&self, _: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        Err(BlobError::ReadOnly)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        let missing = || BlobError::Missing { name: name.to_owned() };
        let len = *self.0.sizes.get(name).ok_or_else(missing)?;
        Ok(Arc::new(ServerBlob { server: self.clone(), name: name.to_owned(), len }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        let names = self.0.sizes.keys().filter(|name| name.starts_with(prefix));
        Ok(names.cloned().collect())
    }

    fn delete(&self, _: &str) -> Result<(), BlobError> {
        Err(BlobError::ReadOnly)
    }
}

#[derive(Debug)]
struct ServerBlob {
    server: Server,
    name: String,
    len: u64,
}

impl Blob for ServerBlob {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let path = self.server.path(&format!("/blobs/{}", self.name));
        self.server.read(&self.name, &path, buf, offset)
    }
}
