//! Copying a store while it runs: `/v1/backups`.
//!
//! A request takes a snapshot, whose files stay until it is ended or was not asked for in a while;
//! then manifest, log and blobs are read in ranges. All of it needs the right `admin` on `backup`,
//! since it hands out everything that is stored.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json as JsonAnswer, Router};
use bytes::Bytes;
use gapless_broker::{BlobError, Snapshot, SnapshotError, random_epoch, sum_of};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::http::listener::server::{Shared, blocking};
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

/// How long a snapshot is held after it was last asked for.
const IDLE: Duration = Duration::from_secs(300);
/// Most bytes that one request reads.
const RANGE_BYTES_MAX: u64 = 8 * 1024 * 1024;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/backups", post(begin))
        .route("/v1/backups/{id}", axum::routing::delete(end))
        .route("/v1/backups/{id}/state", get(state))
        .route("/v1/backups/{id}/blobs/{blob}", get(blob))
        .route("/v1/backups/{id}/blobs/{blob}/checksum", get(checksum))
}

/// The snapshots that are held for those who copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backups(Arc<Mutex<HashMap<String, Arc<Held>>>>);

#[derive(Debug)]
struct Held {
    snapshot: Snapshot,
    state: Bytes,
    used: Notify,
}

impl Backups {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Held>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str) -> Result<Arc<Held>, Problem> {
        let held = self.lock().get(id).cloned().ok_or_else(|| gone(id))?;
        held.used.notify_one();
        Ok(held)
    }

    /// Holds a snapshot until it is idle for long, or the listener closes.
    fn hold(&self, id: String, held: Held, closed: impl Future<Output = ()> + Send + 'static) {
        let held = Arc::new(held);
        let weak = Arc::downgrade(&held);
        self.lock().insert(id.clone(), held);
        let all = self.clone();
        tokio::spawn(async move {
            tokio::pin!(closed);
            loop {
                let Some(held) = weak.upgrade() else { return };
                let used = tokio::time::timeout(IDLE, held.used.notified());
                let idle = tokio::select! {
                    used = used => used.is_err(),
                    () = &mut closed => true,
                };
                if idle {
                    tracing::warn!(backup = id, "a backup that is not read any more is ended");
                    all.lock().remove(&id);
                    return;
                }
                // One that was ended is not held by this.
                drop(held);
                if !all.lock().contains_key(&id) {
                    return;
                }
            }
        });
    }
}

fn gone(id: &str) -> Problem {
    let detail = format!("there is no backup {id}: it was ended, or was idle for too long");
    Problem::new(ErrorCode::NoSuchPath, detail)
}

fn refused(error: SnapshotError) -> Problem {
    let code = match &error {
        SnapshotError::TooMany => ErrorCode::LimitReached,
        SnapshotError::TooBusy => ErrorCode::OutOfMemory,
        _ => ErrorCode::JournalFailed,
    };
    let problem = Problem::new(code, error);
    if code == ErrorCode::LimitReached {
        return problem.with_status(StatusCode::TOO_MANY_REQUESTS);
    }
    problem
}

fn unread(error: BlobError) -> Problem {
    match error {
        BlobError::Missing { .. } | BlobError::BadName { .. } => {
            Problem::new(ErrorCode::NoSuchPath, error)
        }
        error => Problem::new(ErrorCode::ReadFailed, error),
    }
}

async fn begin(State(shared): State<Arc<Shared>>, params: Params) -> Result<Response, Problem> {
    params.finish()?;
    let broker = shared.broker.clone();
    let taken = blocking(move || {
        let snapshot = broker.snapshot().map_err(refused)?;
        let mut blobs = Vec::new();
        for name in snapshot.names() {
            let bytes = snapshot.blobs().open(&name).map_err(unread)?.len();
            blobs.push(json!({ "name": name, "bytes": bytes }));
        }
        let state = snapshot.encode();
        Ok::<_, Problem>((Held { snapshot, state, used: Notify::new() }, blobs))
    });
    let (held, blobs) = taken.await??;
    let id = format!("{:016x}{:016x}", random_epoch().0, random_epoch().0);
    let answer = json!({
        "id": id, "store": held.snapshot.epoch().to_string(), "state_bytes": held.state.len(),
        "blobs": blobs, "idle_ms": u64::try_from(IDLE.as_millis()).unwrap_or(u64::MAX),
    });
    shared.backups.hold(id, held, shared.closed_later());
    Ok((StatusCode::CREATED, JsonAnswer(answer)).into_response())
}

async fn end(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let held = shared.backups.lock().remove(&id).ok_or_else(|| gone(&id))?;
    held.used.notify_one();
    // Files that only it needed are deleted with it.
    blocking(move || drop(held)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The range that is asked for, of so many bytes.
fn range(mut params: Params, len: u64) -> Result<(u64, usize), Problem> {
    let from = params.parsed::<u64>("from")?.unwrap_or(0);
    let bytes = params.parsed::<u64>("bytes")?.unwrap_or(RANGE_BYTES_MAX);
    params.finish()?;
    if from > len {
        let detail = format!("`from={from}` is beyond its end: it has {len} bytes");
        return Err(Problem::bad_request(detail));
    }
    let bytes = bytes.min(RANGE_BYTES_MAX).min(len - from);
    Ok((from, usize::try_from(bytes).map_err(Problem::bad_request)?))
}

fn octets(bytes: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
}

async fn state(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, Problem> {
    let held = shared.backups.find(&id)?;
    let (from, bytes) = range(params, held.state.len() as u64)?;
    let from = usize::try_from(from).map_err(Problem::bad_request)?;
    Ok(octets(held.state.slice(from..from + bytes)))
}

/// Refuses blobs that the snapshot does not name.
fn named(held: &Held, name: &str) -> Result<(), Problem> {
    match held.snapshot.names().iter().any(|each| each == name) {
        true => Ok(()),
        false => {
            let detail = format!("the backup has no blob {name}");
            Err(Problem::new(ErrorCode::NoSuchPath, detail))
        }
    }
}

async fn blob(
    State(shared): State<Arc<Shared>>,
    Path((id, name)): Path<(String, String)>,
    params: Params,
) -> Result<Response, Problem> {
    let held = shared.backups.find(&id)?;
    named(&held, &name)?;
    let read = blocking(move || {
        let blob = held.snapshot.blobs().open(&name).map_err(unread)?;
        let (from, bytes) = range(params, blob.len())?;
        let mut buffer = vec![0; bytes];
        blob.read_at(&mut buffer, from).map_err(unread)?;
        Ok::<_, Problem>(Bytes::from(buffer))
    });
    Ok(octets(read.await??))
}

async fn checksum(
    State(shared): State<Arc<Shared>>,
    Path((id, name)): Path<(String, String)>,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    let held = shared.backups.find(&id)?;
    named(&held, &name)?;
    let sum = blocking(move || {
        let blob = held.snapshot.blobs().open(&name).map_err(unread)?;
        sum_of(&*blob).map_err(unread)
    });
    let sum = sum.await??;
    let crc = format!("{:08x}", sum.crc32c);
    Ok(JsonAnswer(json!({ "bytes": sum.bytes, "crc32c": crc })))
}
