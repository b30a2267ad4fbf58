//! Groups for programs: created, listed, described, configured, paused, reset, deleted.
//!
//! Members take and ack messages in [`fetch`] and [`said`]; dead letters are in [`letters`].

mod fetch;
mod letters;
mod members;
mod said;
mod settings;
mod token;

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json as JsonAnswer, Router};
use gapless_auth::Caller;
use gapless_broker::{Broker, From, GroupError, GroupInfo};
use gapless_core::rights::Right;
use gapless_core::{GroupStart, Position, TopicName};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::follow::start;
use crate::http::listener::body::Json;
use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::{TopicPath, pattern_of, topic_name};
use crate::http::values::params::{Params, number_of};
use crate::http::values::problem::Problem;
use crate::json as shown;

pub(crate) use members::{Members, sweep};
pub(crate) use said::held;
use settings::Changes;

/// Groups in one answer, at most: each takes a look into its topics.
const LIST_MAX: usize = 1000;
/// Groups in one answer, unless the request says otherwise.
const LIST_DEFAULT: usize = 100;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/groups", get(list))
        .route("/v1/groups/{name}", get(describe).put(create).patch(configure).delete(remove))
        .route("/v1/groups/{name}/pause", post(pause))
        .route("/v1/groups/{name}/resume", post(resume))
        .route("/v1/groups/{name}/reset", post(reset))
        .route("/v1/groups/{name}/fetch", post(fetch::fetch))
        .route("/v1/groups/{name}/ack", post(said::ack))
        .route("/v1/groups/{name}/nack", post(said::nack))
        .route("/v1/groups/{name}/terminate", post(said::terminate))
        .route("/v1/groups/{name}/extend", post(said::extend))
        .route("/v1/groups/{name}/commit", post(said::commit))
        .route("/v1/groups/{name}/members/{member}", delete(said::leave))
        .route("/v1/groups/{name}/dead-letters", get(letters::list).delete(letters::remove))
        .route("/v1/groups/{name}/dead-letters/redrive", post(letters::redrive))
        .route("/v1/groups/{name}/dead-letters/{seq}", get(letters::show).delete(letters::end))
}

/// Where a group begins: as a follower does, or after a position.
fn start_of(text: &str) -> Result<GroupStart, Problem> {
    if let Some(position) = text.strip_prefix("position:") {
        let position = number_of("position", position)?;
        return Ok(GroupStart::Position(Position(position)));
    }
    Ok(match start::parse(text)? {
        From::Beginning => GroupStart::Beginning,
        From::Now => GroupStart::Now,
        From::Seq(seq) => GroupStart::Seq(seq),
        From::Time(time) => GroupStart::Time(time),
        From::Token(token) => GroupStart::Position(token.position),
        _ => return Err(Problem::bad_request("a group cannot begin with the latest of each key")),
    })
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let pattern = pattern_of(&params.text("pattern")?.unwrap_or_else(|| ">".into()))?;
    let after = params.text("after")?.map(|after| topic_name(&after)).transpose()?;
    let limit = params.count("limit", LIST_DEFAULT, LIST_MAX)?;
    params.finish()?;
    let broker = shared.broker.clone();
    let answer = blocking(move || {
        let mut names = broker.group_names();
        names.retain(|name| caller.sees(Right::Group, name));
        names.retain(|name| pattern.matches(name) && after.as_ref().is_none_or(|a| name > a));
        let more = names.len() > limit;
        names.truncate(limit);
        let next = names.last().filter(|_| more).map(|last| last.as_str().to_owned());
        // One that was deleted meanwhile is not there.
        let groups = names.iter().filter_map(|name| broker.describe_group(name).ok());
        let groups: Vec<Value> = groups.map(|info| shown::group(&info)).collect();
        json!({ "groups": groups, "next": next })
    });
    Ok(JsonAnswer(answer.await?))
}

async fn describe(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    shown(&shared, move |broker| broker.describe_group(&name)).await
}

async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(name): TopicPath,
    params: Params,
    Json(changes): Json<Changes>,
) -> Result<Response, Problem> {
    params.finish()?;
    let settings = changes.whole()?;
    caller.may_all(Right::Subscribe, &settings.source)?;
    let broker = shared.broker.clone();
    let (was_there, info) = blocking(move || {
        // Of two requests that create at the same time both may be answered with `201`; both are
        // right about what exists now.
        let was_there = broker.describe_group(&name).is_ok();
        broker.create_group(&name, settings).map(|info| (was_there, info))
    })
    .await??;
    let status = if was_there { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, JsonAnswer(shown::group(&info))).into_response())
}

async fn configure(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(name): TopicPath,
    params: Params,
    Json(changes): Json<Changes>,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    let broker = shared.broker.clone();
    let info = blocking(move || {
        let before = broker.describe_group(&name)?.settings;
        caller.may_all(Right::Subscribe, &before.source)?;
        let started = before.start;
        let settings = changes.apply(before)?;
        if settings.start != started {
            let detail = "where a group began stays; reset it to begin elsewhere";
            return Err(Problem::new(ErrorCode::BadSettings, detail));
        }
        broker.configure_group(&name, settings).map_err(Problem::from)
    });
    Ok(JsonAnswer(shown::group(&info.await??)))
}

async fn remove(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let (broker, deleted) = (shared.broker.clone(), name.clone());
    blocking(move || broker.delete_group(&deleted)).await??;
    shared.members.forget_group(&name);
    Ok(StatusCode::NO_CONTENT)
}

async fn pause(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    shown(&shared, move |broker| broker.pause_group(&name)).await
}

async fn resume(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    shown(&shared, move |broker| broker.resume_group(&name)).await
}

async fn reset(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let to = params.text("to")?;
    let force = params.switch("force")?.unwrap_or(false);
    params.finish()?;
    let to = to.ok_or_else(|| {
        Problem::bad_request("say where to: ?to=beginning, now, seq:42, time:… or position:7")
    })?;
    let to = start_of(&to)?;
    shown(&shared, move |broker| broker.reset_group(&name, to, force)).await
}

/// Does something to a group where blocking is allowed, and shows how it stands.
async fn shown(
    shared: &Shared,
    work: impl FnOnce(Broker) -> Result<GroupInfo, GroupError> + Send + 'static,
) -> Result<JsonAnswer<Value>, Problem> {
    let broker = shared.broker.clone();
    Ok(JsonAnswer(shown::group(&blocking(move || work(broker)).await??)))
}

/// A name that a group could have had, for problems.
fn unknown_member(group: &TopicName, member: &str) -> Problem {
    let detail = format_args!("group {group} has no member {member:?} here: it left or expired");
    Problem::new(ErrorCode::UnknownMember, detail)
}
