//! Workers over HTTP: take, extend, write, complete, fail.
//!
//! A worker is a name, of an identity. A take waits for a job; a second one under the same name takes the
//! place of the first. Every other request names the attempt it is about, and an attempt that does not count
//! any more is answered with `409`: stop it.

use std::sync::Arc;

use axum::extract::{Extension, FromRequest, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json as JsonAnswer, Router};
use gapless_auth::Caller;
use gapless_core::TopicName;
use gapless_core::job::leader::{ASSIGN_PREFIX, Outcome};
use gapless_core::job::record::WorkerId;
use gapless_core::job::{JobId, Token};
use gapless_core::rights::Right;
use gapless_jobs::names::{pascal, snake};
use gapless_jobs::session::origin_of;
use gapless_jobs::visit::{Heard, PIECE_BYTES_MAX, Said};
use gapless_jobs::wire::{
    AttemptRef, JobProgress, JobRequest, JobResult, Status, Stream, epoch_of, message_bytes_max,
};
use gapless_jobs::{JobView, Leader};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use super::{caller_of, known, leader, no_params, wait_of};
use crate::http::follow::event_stream::stream_permit;
use crate::http::listener::body::Json;
use crate::http::listener::server::Shared;
use crate::http::topics::{TopicPath, pattern_of};
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/workers/{name}/take", post(take))
        .route("/v1/workers/{name}/extend", post(extend))
        .route("/v1/workers/{name}/output", post(output))
        .route("/v1/workers/{name}/complete", post(complete))
        .route("/v1/workers/{name}/fail", post(fail))
}

async fn take(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(name): TopicPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let wait = wait_of(&mut params)?;
    let exec = params.text("exec")?.unwrap_or_else(|| "*".to_owned());
    params.finish()?;
    caller.may_all(Right::JobWork, &pattern_of(&exec)?)?;
    let pattern = pattern_of(&format!("{ASSIGN_PREFIX}{exec}"))?;
    let _permit = stream_permit(&shared)?;
    let leader = leader(&shared)?;
    let taken = tokio::select! {
        taken = leader.take(worker_of(&caller, &name), pattern, wait) => taken?,
        () = shared.closed() => None,
    };
    let Some((token, request)) = taken else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let mut request: JobRequest = serde_json::from_slice(&request)
        .map_err(|error| Problem::new(ErrorCode::Internal, error))?;
    request.attempt = Some(token.attempt);
    request.epoch = Some(epoch_of(leader.epoch(), token));
    request.lease_ms = Some(leader.lease().as_millis() as u64);
    let job = serde_json::to_value(request).expect("a request is plain data");
    Ok(JsonAnswer(snake(job)).into_response())
}

/// A worker is its name, on behalf of the caller: another identity's worker of that name is another.
fn worker_of(caller: &Caller, name: &TopicName) -> WorkerId {
    WorkerId { name: name.as_str().into(), origin: origin_of(caller.name(), "") }
}

/// What a worker says of an attempt: its token, and the rest.
struct Spoken {
    leader: Leader,
    view: JobView,
    worker: WorkerId,
    token: Token,
    fields: Value,
}

impl FromRequest<Arc<Shared>> for Spoken {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = caller_of(&mut parts).await?;
        let TopicPath(worker) = TopicPath::from_request_parts(&mut parts, shared).await?;
        no_params(&parts)?;
        let request = Request::from_parts(parts, body);
        let Json(given) = Json::<Value>::from_request(request, shared).await?;
        let fields = pascal(given);
        let job = fields["JobId"].as_str().unwrap_or_default();
        let job: JobId = job.parse().map_err(Problem::bad_request)?;
        let attempt = fields["Attempt"].as_u64().and_then(|number| u32::try_from(number).ok());
        let attempt = attempt.ok_or_else(|| Problem::bad_request("`attempt` is missing"))?;
        let (leader, view) = known(shared, &caller, Right::JobWork, job).await?;
        let token = match fields["Epoch"].as_str().map(str::to_owned) {
            None => Token { job, number: view.record.number, attempt },
            Some(epoch) => {
                let named = AttemptRef { job_id: job.to_string(), attempt, epoch };
                named.token(leader.epoch()).ok_or_else(stale)?
            }
        };
        let worker = worker_of(&caller, &worker);
        Ok(Self { leader: leader.clone(), view, worker, token, fields })
    }
}

impl Spoken {
    async fn say(self, said: Said) -> Result<JsonAnswer<Value>, Problem> {
        match self.leader.speak(self.worker, self.token, said).await? {
            Heard::Counts => {
                let lease_ms = self.leader.lease().as_millis() as u64;
                Ok(JsonAnswer(json!({ "lease_ms": lease_ms, "cancelled": false })))
            }
            Heard::Cancelled => Ok(JsonAnswer(json!({ "lease_ms": 0, "cancelled": true }))),
            Heard::Stale => Err(stale()),
        }
    }

    /// The attempt is over. Whose job it was is the leader's to say, not the worker's.
    async fn over(mut self, status: Status) -> Result<JsonAnswer<Value>, Problem> {
        let spec = &self.view.record.spec;
        let fields = self.fields.as_object_mut().expect("it has a job id");
        fields.insert("ClientId".to_owned(), json!(&*spec.client));
        fields.insert("ExecName".to_owned(), json!(&*spec.exec));
        fields.insert("Epoch".to_owned(), json!(epoch_of(self.leader.epoch(), self.token)));
        fields.insert("Status".to_owned(), json!(status));
        let result: JobResult =
            serde_json::from_value(self.fields.take()).map_err(Problem::bad_request)?;
        let outcome = match status {
            Status::Ok => Outcome::Succeeded,
            _ => Outcome::Failed { again: result.retryable },
        };
        let stored = serde_json::to_vec(&result).expect("a result is plain data");
        let (bytes, max) = (stored.len(), message_bytes_max());
        if bytes > max {
            let detail = format_args!("the result has {bytes} bytes; at most {max} are taken");
            return Err(Problem::new(ErrorCode::BodyTooLarge, detail));
        }
        self.say(Said::Over(outcome, stored.into())).await
    }
}

fn stale() -> Problem {
    Problem::new(ErrorCode::StaleAttempt, "stop the attempt, and forget its outcome")
}

async fn extend(spoken: Spoken) -> Result<JsonAnswer<Value>, Problem> {
    spoken.say(Said::Extend).await
}

async fn output(spoken: Spoken) -> Result<JsonAnswer<Value>, Problem> {
    let text = spoken.fields["Text"].as_str().unwrap_or_default();
    let stream = match spoken.fields["Stream"].as_str() {
        None | Some("stdout") => Stream::Stdout,
        Some("stderr") => Stream::Stderr,
        Some(_) => return Err(Problem::bad_request("`stream` is stdout or stderr")),
    };
    let piece = JobProgress {
        job_id: spoken.token.job.to_string(),
        attempt: spoken.token.attempt,
        epoch: epoch_of(spoken.leader.epoch(), spoken.token),
        stream,
        text: text.to_owned(),
    };
    let piece = serde_json::to_vec(&piece).expect("a piece is plain data");
    if piece.len() > PIECE_BYTES_MAX {
        let detail = format_args!("a piece has at most {PIECE_BYTES_MAX} bytes as JSON: send less");
        return Err(Problem::new(ErrorCode::BodyTooLarge, detail));
    }
    spoken.say(Said::Wrote(piece.into())).await
}

async fn complete(spoken: Spoken) -> Result<JsonAnswer<Value>, Problem> {
    spoken.over(Status::Ok).await
}

async fn fail(spoken: Spoken) -> Result<JsonAnswer<Value>, Problem> {
    spoken.over(Status::Failed).await
}
