//! Jobs over HTTP: submit, look, cancel, retry, forget; following one is in `jobs/follow.rs`,
//! workers that have no connection between their requests are in `jobs/workers.rs`.
//!
//! Fields are the wire's, spelt as everywhere over HTTP (`job_id`). What changes something is
//! answered when it is on disk. A caller sees and changes the jobs of executables that it may
//! submit. Not here: rules.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, FromRequestParts, RawPathParams, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json as JsonAnswer, Router};
use gapless_auth::Caller;
use gapless_core::TopicName;
use gapless_core::job::JobId;
use gapless_core::job::leader::{Filter, Refusal, State as JobState};
use gapless_core::rights::Right;
use gapless_jobs::names::{self, snake};
use gapless_jobs::shown::{JobPage, PAGE_DEFAULT, PAGE_MAX};
use gapless_jobs::visit::VisitError;
use gapless_jobs::wire::{JobRequest, RequestError};
use gapless_jobs::{JobView, JobsError, Leader};
use gapless_protocol::ErrorCode;
use serde::Serialize;
use serde_json::{Value, json};

use crate::http::follow::event_stream::stream_permit;
use crate::http::listener::body::Json;
use crate::http::listener::server::Shared;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

mod follow;
mod workers;

/// Whose job it is, if the request does not say.
const CLIENT_DEFAULT: &str = "http";
/// Longest wait for a result, or for a job to be taken.
const WAIT_MS_MAX: u64 = 60_000;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/jobs", get(list).post(submit))
        .route("/v1/jobs/overview", get(overview))
        .route("/v1/jobs/retry", post(retry_many))
        .route("/v1/jobs/{id}", get(show).delete(forget))
        .route("/v1/jobs/{id}/result", get(result))
        .route("/v1/jobs/{id}/log", get(log))
        .route("/v1/jobs/{id}/follow", get(follow::follow))
        .route("/v1/jobs/{id}/cancel", post(cancel))
        .route("/v1/jobs/{id}/retry", post(retry))
        .merge(workers::routes())
}

/// The id of a job, in the path.
struct JobPath(JobId);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(Problem::bad_request)?;
        let id = params.iter().find(|(name, _)| *name == "id").map_or("", |(_, value)| value);
        id.parse().map(Self).map_err(Problem::bad_request)
    }
}

/// The job in the path, if the caller may submit what it runs. There are no parameters.
struct OneJob {
    leader: Leader,
    job: JobId,
}

impl FromRequestParts<Arc<Shared>> for OneJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let caller = caller_of(parts).await?;
        let JobPath(job) = JobPath::from_request_parts(parts, shared).await?;
        no_params(parts)?;
        let (leader, _) = known(shared, &caller, Right::JobSubmit, job).await?;
        Ok(Self { leader: leader.clone(), job })
    }
}

/// The caller, as the check of rights left it.
async fn caller_of(parts: &mut Parts) -> Result<Caller, Problem> {
    let caller = Extension::<Caller>::from_request_parts(parts, &()).await;
    caller.map(|Extension(caller)| caller).map_err(|why| Problem::new(ErrorCode::Internal, why))
}

fn no_params(parts: &Parts) -> Result<(), Problem> {
    Params::parse(parts.uri.query().unwrap_or("")).finish()
}

/// The leader of jobs in this process.
fn leader(shared: &Shared) -> Result<&Leader, Problem> {
    shared.jobs.as_ref().ok_or_else(|| {
        let detail = "this server leads no jobs (jobs.enabled)";
        Problem::new(ErrorCode::NotOffered, detail).with_status(StatusCode::NOT_FOUND)
    })
}

/// The leader and one of its jobs, if the caller has the right on what it runs.
async fn known<'a>(
    shared: &'a Shared,
    caller: &Caller,
    right: Right,
    job: JobId,
) -> Result<(&'a Leader, JobView), Problem> {
    let leader = leader(shared)?;
    let view = leader.describe(job).await?.ok_or_else(|| unknown(job))?;
    caller.may(right, &exec_of(&view.record.spec.exec)?)?;
    Ok((leader, view))
}

/// The name of an executable, as rules match it.
fn exec_of(exec: &str) -> Result<TopicName, Problem> {
    TopicName::parse(exec).map_err(Problem::bad_request)
}

impl From<JobsError> for Problem {
    fn from(failed: JobsError) -> Self {
        Self::new(ErrorCode::Unavailable, failed)
    }
}

impl From<VisitError> for Problem {
    fn from(failed: VisitError) -> Self {
        let code = match &failed {
            VisitError::Refused(Refusal::Unknown(_)) => ErrorCode::NoSuchJob,
            VisitError::Refused(Refusal::TooMany { .. }) => ErrorCode::LimitReached,
            VisitError::Refused(Refusal::NoTime) => ErrorCode::BadRequest,
            VisitError::Refused(_) | VisitError::Elsewhere { .. } => ErrorCode::JobRefused,
            VisitError::Lost(_) => ErrorCode::ReadFailed,
            VisitError::Closed(_) | VisitError::Leader(_) => ErrorCode::Unavailable,
        };
        Self::new(code, failed)
    }
}

impl From<RequestError> for Problem {
    fn from(wrong: RequestError) -> Self {
        let code = match &wrong {
            RequestError::TooLarge { .. } => ErrorCode::BodyTooLarge,
            RequestError::Json(_) | RequestError::Field { .. } => ErrorCode::BadRequest,
        };
        Self::new(code, wrong)
    }
}

fn shown(value: &impl Serialize) -> JsonAnswer<Value> {
    JsonAnswer(snake(serde_json::to_value(value).expect("what is shown is plain data")))
}

fn unknown(job: JobId) -> Problem {
    VisitError::from(Refusal::Unknown(job)).into()
}

/// How long a request waits for something, at most [`WAIT_MS_MAX`].
fn wait_of(params: &mut Params) -> Result<Duration, Problem> {
    let ms: u64 = params.number("wait_ms")?.unwrap_or(0);
    if ms > WAIT_MS_MAX {
        return Err(Problem::bad_request(format_args!(
            "`wait_ms={ms}` cannot be used: it goes from 0 to {WAIT_MS_MAX}"
        )));
    }
    Ok(Duration::from_millis(ms))
}

async fn submit(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    params: Params,
    Json(given): Json<Value>,
) -> Result<Response, Problem> {
    params.finish()?;
    let leader = leader(&shared)?;
    let mut request = names::request(given)?;
    if request.client_id.is_empty() {
        CLIENT_DEFAULT.clone_into(&mut request.client_id);
    }
    if request.job_id.is_empty() {
        request.job_id = names::new_id().to_string();
    }
    let payload = serde_json::to_vec(&request).expect("a request is plain data");
    let (_, spec) = JobRequest::parse(&payload)?;
    caller.may(Right::JobSubmit, &exec_of(&spec.exec)?)?;
    let known = leader.observe().await?.submit(spec, payload.into()).await?;
    let status = if known { StatusCode::OK } else { StatusCode::CREATED };
    let answer = JsonAnswer(json!({ "job_id": request.job_id, "known": known }));
    Ok((status, answer).into_response())
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let schedules = params.switch("schedules")?.unwrap_or(false);
    let filter = Filter { schedules, ..filter_of(&mut params, &JobState::ALL)? };
    let (_, jobs, next) = page(&shared, &caller, filter, params).await?;
    Ok(shown(&JobPage { jobs: jobs.iter().map(JobView::shown).collect(), next }))
}

/// Which jobs are meant, in one of these states or in any.
fn filter_of(params: &mut Params, states: &[JobState]) -> Result<Filter, Problem> {
    let state = params.text("state")?.map(|word| {
        let known = JobState::from_name(&word).filter(|state| states.contains(state));
        known.ok_or_else(|| {
            let words: Vec<&str> = states.iter().map(|state| state.name()).collect();
            let words = words.join(", ");
            Problem::bad_request(format_args!("`state={word}` is none of: {words}"))
        })
    });
    Ok(Filter {
        state: state.transpose()?,
        exec: params.text("exec")?.map(Into::into),
        client: params.text("client")?.map(Into::into),
        schedules: false,
    })
}

/// A part of these jobs, without those that the caller may not submit, and where the next begins.
async fn page<'a>(
    shared: &'a Shared,
    caller: &Caller,
    filter: Filter,
    mut params: Params,
) -> Result<(&'a Leader, Vec<JobView>, Option<u64>), Problem> {
    let next = params.number("next")?;
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    params.finish()?;
    let leader = leader(shared)?;
    let (mut jobs, next) = leader.list(filter, next, limit).await?;
    jobs.retain(|job| {
        exec_of(&job.record.spec.exec).is_ok_and(|exec| caller.sees(Right::JobSubmit, &exec))
    });
    Ok((leader, jobs, next))
}

/// Tries many jobs again that ended without success: those that are dead, if nothing else is said.
async fn retry_many(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let ended = [JobState::Dead, JobState::Failed, JobState::Cancelled];
    let filter = filter_of(&mut params, &ended)?;
    let filter = Filter { state: filter.state.or(Some(JobState::Dead)), ..filter };
    let (leader, jobs, next) = page(&shared, &caller, filter, params).await?;
    let mut observer = leader.observe().await?;
    let (mut retried, mut refused) = (Vec::new(), Vec::new());
    for job in &jobs {
        let id = job.record.spec.id;
        match observer.retry(id).await {
            Ok(()) => retried.push(id.to_string()),
            // One that another has retried or forgotten meanwhile does not end the others.
            Err(VisitError::Refused(why)) => {
                refused.push(json!({ "job_id": id.to_string(), "why": why.to_string() }));
            }
            Err(failed) => return Err(failed.into()),
        }
    }
    Ok(JsonAnswer(json!({ "retried": retried, "refused": refused, "next": next })))
}

async fn overview(
    State(shared): State<Arc<Shared>>,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    Ok(shown(&leader(&shared)?.overview().await?))
}

async fn show(OneJob { leader, job }: OneJob) -> Result<JsonAnswer<Value>, Problem> {
    Ok(shown(&leader.detail(job).await?.ok_or_else(|| unknown(job))?))
}

/// The result; `202` with the job while it has not ended.
async fn result(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    JobPath(job): JobPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let wait = wait_of(&mut params)?;
    params.finish()?;
    let (leader, view) = known(&shared, &caller, Right::JobSubmit, job).await?;
    if view.shown().ended_ms.is_some() {
        return Ok(shown(&leader.result(&view.record, None).await).into_response());
    }
    let _permit = stream_permit(&shared)?;
    let mut observer = leader.observe().await?;
    let waited = tokio::select! {
        ended = tokio::time::timeout(wait, observer.result(job)) => ended.ok(),
        () = shared.closed() => None,
    };
    match waited {
        Some(ended) => Ok(shown(&ended?).into_response()),
        None => {
            let view = leader.describe(job).await?.ok_or_else(|| unknown(job))?;
            Ok((StatusCode::ACCEPTED, shown(&view.shown())).into_response())
        }
    }
}

async fn log(OneJob { leader, job }: OneJob) -> Result<JsonAnswer<Value>, Problem> {
    Ok(shown(&leader.log(job).await?))
}

async fn cancel(OneJob { leader, job }: OneJob) -> Result<JsonAnswer<Value>, Problem> {
    leader.observe().await?.cancel(job).await?;
    Ok(shown(&leader.describe(job).await?.ok_or_else(|| unknown(job))?.shown()))
}

async fn retry(OneJob { leader, job }: OneJob) -> Result<JsonAnswer<Value>, Problem> {
    leader.observe().await?.retry(job).await?;
    Ok(shown(&leader.describe(job).await?.ok_or_else(|| unknown(job))?.shown()))
}

async fn forget(OneJob { leader, job }: OneJob) -> Result<StatusCode, Problem> {
    leader.observe().await?.forget(job).await?;
    Ok(StatusCode::NO_CONTENT)
}
