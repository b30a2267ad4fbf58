//! Topics for programs: create, list, describe, configure, delete, purge.

pub(crate) mod atomic;
pub(crate) mod direct;
pub(crate) mod lines;
pub(crate) mod messages;
pub(crate) mod range;
pub(crate) mod request;
pub(crate) mod search;
pub(crate) mod source;

use std::sync::Arc;

use axum::extract::{Extension, FromRequestParts, RawPathParams, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json as JsonAnswer, Router};
use gapless_auth::Caller;
use gapless_broker::TopicError;
use gapless_core::rights::Right;
use gapless_core::{Pattern, Seq, TopicName, TopicSettings};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::listener::body::Json;
use crate::http::listener::server::{Shared, blocking};
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;
use crate::http::values::settings::Changes;
use crate::json as shown;

/// Topics in one answer, at most.
const LIST_MAX: usize = 1000;
/// Topics in one answer, unless the request says otherwise.
const LIST_DEFAULT: usize = 100;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/topics", get(list))
        .route("/v1/topics/{name}", get(describe).put(create).patch(configure).delete(delete))
        .route("/v1/topics/{name}/purge", post(purge))
}

/// The topic that the path names.
pub(crate) struct TopicPath(pub(crate) TopicName);

impl<S: Send + Sync> FromRequestParts<S> for TopicPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(Problem::bad_request)?;
        let name = params.iter().find(|(name, _)| *name == "name").map_or("", |(_, value)| value);
        topic_name(name).map(Self)
    }
}

/// The name of a topic, or a problem that says what is wrong with it.
pub(crate) fn topic_name(text: &str) -> Result<TopicName, Problem> {
    TopicName::parse(text).map_err(|why| {
        Problem::new(
            ErrorCode::InvalidTopic,
            format_args!("{text:?} is not a valid topic name: {why}"),
        )
    })
}

/// A pattern, or a problem that says what is wrong with it.
pub(crate) fn pattern_of(text: &str) -> Result<Pattern, Problem> {
    let refused = |why| {
        let detail = format_args!("{text:?} is not a valid pattern: {why}");
        Problem::new(ErrorCode::BadPattern, detail).with("pattern", text)
    };
    Pattern::parse(text).map_err(refused)
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
    let mut topics = blocking(move || broker.list_topics(&pattern)).await?;
    topics.retain(|info| caller.sees(Right::Read, &info.name));
    if let Some(after) = after {
        topics.retain(|info| info.name > after);
    }
    let more = topics.len() > limit;
    topics.truncate(limit);
    let next = topics.last().filter(|_| more).map(|last| last.name.as_str().to_owned());
    let topics: Vec<Value> = topics.iter().map(shown::topic).collect();
    Ok(JsonAnswer(json!({ "topics": topics, "next": next })))
}

async fn describe(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    let broker = shared.broker.clone();
    let info = blocking(move || broker.describe_topic(&name)).await??;
    Ok(JsonAnswer(shown::topic(&info)))
}

async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(name): TopicPath,
    params: Params,
    Json(changes): Json<Changes>,
) -> Result<Response, Problem> {
    params.finish()?;
    let settings = changes.apply(TopicSettings::default())?;
    let broker = shared.broker.clone();
    let (was_there, info) = blocking(move || {
        // Of two requests that create at the same time both may be answered with `201`; both are
        // right about what exists now.
        let was_there = broker.describe_topic(&name).is_ok();
        if !was_there {
            caller.may_add_topic()?;
        }
        let created = broker.create_topic(&name, settings).map(|info| (was_there, info));
        created.map_err(Problem::from)
    })
    .await??;
    let status = if was_there { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, JsonAnswer(shown::topic(&info))).into_response())
}

async fn configure(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
    Json(changes): Json<Changes>,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    let broker = shared.broker.clone();
    let info = blocking(move || {
        let before = broker.describe_topic(&name)?;
        let settings = changes.apply(before.settings)?;
        broker.configure_topic(&name, settings).map_err(Problem::from)
    });
    Ok(JsonAnswer(shown::topic(&info.await??)))
}

async fn delete(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let broker = shared.broker.clone();
    let deleted = blocking(move || broker.delete_topic(&name)).await?;
    deleted.map_err(|failed| match failed {
        TopicError::Unknown(name) => {
            let detail = format_args!("there is no topic {name}; nothing was deleted");
            Problem::new(ErrorCode::UnknownTopic, detail)
        }
        failed => failed.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

async fn purge(
    State(shared): State<Arc<Shared>>,
    TopicPath(name): TopicPath,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let below = params.number("below")?.map(Seq);
    let all = params.switch("all")?.unwrap_or(false);
    params.finish()?;
    if below.is_some() == all {
        let detail = "say what goes, for ever: `below=1000` (the first seq that stays) or \
                      `all=true`";
        return Err(Problem::bad_request(detail));
    }
    let broker = shared.broker.clone();
    let (gap, info) = blocking(move || {
        let below = match below {
            Some(below) => below,
            None => broker.describe_topic(&name)?.next,
        };
        let gap = broker.purge(&name, below)?;
        broker.describe_topic(&name).map(|info| (gap, info))
    })
    .await??;
    let purged = gap.map_or(0, |gap| gap.count());
    Ok(JsonAnswer(json!({ "purged": purged, "topic": shown::topic(&info) })))
}
