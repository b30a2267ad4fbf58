//! Single messages for programs: published, found by seq and by key, taken back.
//!
//! Many at once are in `lines` and `atomic`,
//! ranges in `range`.

use std::sync::Arc;

use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use gapless_auth::Caller;
use gapless_broker::Delivered;
use gapless_core::rights::Right;
use gapless_core::{Position, RejectReason, Seq, TopicName};
use gapless_protocol::ErrorCode;
use serde_json::Value;

use crate::http::listener::body;
use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::TopicPath;
use crate::http::topics::{lines, range};
use crate::http::values::params::{Params, number_of};
use crate::http::values::problem::Problem;
use crate::http::values::publish::{
    HEADER_PREFIX, Wishes, ack_answer, create_if_missing, publish_reported, rejected,
};
use crate::json;
use crate::json::message::{CONTENT_TYPE, Shown};

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/topics/{name}/messages", post(publish_one).get(range::read))
        .route("/v1/topics/{name}/messages/{seq}", get(read))
        .route("/v1/topics/{name}/messages/{seq}/body", get(read_body))
        .route("/v1/topics/{name}/messages/{seq}/explain", get(explain))
        .route("/v1/topics/{name}/latest", get(latest))
        .route("/v1/topics/{name}/latest/body", get(latest_body))
        .route("/v1/delayed/{id}", delete(cancel))
}

async fn publish_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(topic): TopicPath,
    params: Params,
    request: Request,
) -> Result<Response, Problem> {
    if body::is_lines(request.headers()) {
        return publish_lines(shared, caller, (topic, params), request).await;
    }
    let (parts, body) = request.into_parts();
    publish_read((&*shared, &caller), (&topic, params), &parts.headers, body).await
}

/// Publishes the message that is the body of a request.
pub(crate) async fn publish_read(
    (shared, caller): (&Shared, &Caller),
    (topic, mut params): (&TopicName, Params),
    headers: &HeaderMap,
    body: impl body::Incoming,
) -> Result<Response, Problem> {
    let wishes = Wishes::read(headers, &mut params, shared.broker.now())?;
    let tombstone = params.switch("tombstone")?.unwrap_or(false);
    params.finish()?;
    let mut message = wishes.message;
    let bytes = body::read(body, shared).await?;
    if tombstone && (message.key.is_none() || !bytes.is_empty()) {
        return Err(Problem::bad_request("a tombstone has a key and no body"));
    }
    caller.charge(1, bytes.len() as u64)?;
    message.body = (!tombstone).then_some(bytes);
    if wishes.create {
        create_if_missing(caller.clone(), topic).await?;
    }
    let (ack, report) = publish_reported(shared, topic, message, wishes.options).await?;
    let report = match report {
        Some(report) => Some(report.await),
        None => None,
    };
    Ok(ack_answer(topic, &ack, report.as_ref()))
}

async fn publish_lines(
    shared: Arc<Shared>,
    caller: Caller,
    (topic, mut params): (TopicName, Params),
    request: Request,
) -> Result<Response, Problem> {
    let wishes = Wishes::read_options(request.headers(), &mut params)?;
    let each = params.switch("answer_each")?.unwrap_or(false);
    params.finish()?;
    if wishes.create {
        create_if_missing(caller.clone(), &topic).await?;
    } else if wishes.options.require_subscribers.is_none() && !shared.broker.has_topic(&topic) {
        // Refused once instead of for every line. A publish to a subject without a topic must say
        // whether it needs subscribers.
        return Err(rejected(&shared.broker, &topic, RejectReason::UnknownTopic));
    }
    Ok(lines::take(shared, caller, (topic, wishes.options), request, each).await)
}

async fn read(
    State(shared): State<Arc<Shared>>,
    TopicPath(topic): TopicPath,
    path: SeqPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish()?;
    let found = find(&shared, &topic, Wanted::Seq(path.0)).await?;
    Ok(shown(&shared, &topic, &found))
}

/// Where a message is, and how far the groups that the caller sees are with it.
async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(topic): TopicPath,
    path: SeqPath,
    params: Params,
) -> Result<Json<Value>, Problem> {
    params.finish()?;
    let broker = shared.broker.clone();
    let explained = blocking(move || broker.explain(&topic, path.0)).await??;
    Ok(Json(json::explained(&explained, |group| caller.sees(Right::Group, group))))
}

async fn read_body(
    State(shared): State<Arc<Shared>>,
    TopicPath(topic): TopicPath,
    path: SeqPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish()?;
    find(&shared, &topic, Wanted::Seq(path.0)).await.map(raw)
}

async fn latest(
    State(shared): State<Arc<Shared>>,
    TopicPath(topic): TopicPath,
    params: Params,
) -> Result<Response, Problem> {
    let found = find(&shared, &topic, Wanted::key(params)?).await?;
    Ok(shown(&shared, &topic, &found))
}

async fn latest_body(
    State(shared): State<Arc<Shared>>,
    TopicPath(topic): TopicPath,
    params: Params,
) -> Result<Response, Problem> {
    find(&shared, &topic, Wanted::key(params)?).await.map(raw)
}

async fn cancel(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let id = number_of("id", &id)?;
    blocking(move || match caller.broker().delayed_topic(Position(id))? {
        Some(topic) => Ok(caller.may(Right::Publish, &topic)?),
        None => Ok::<_, Problem>(()),
    })
    .await??;
    if shared.broker.cancel_delayed(Position(id)).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    let detail = "no message of this id waits for its time: it has appeared, or was taken back";
    Err(Problem::new(ErrorCode::NoSuchMessage, detail))
}

/// The seq that the path names.
pub(crate) struct SeqPath(pub(crate) Seq);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for SeqPath {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Self, Problem> {
        let params = axum::extract::RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(Problem::bad_request)?;
        let seq = params.iter().find(|(name, _)| *name == "seq").map_or("", |(_, value)| value);
        let number = seq.parse().map_err(|_| {
            Problem::bad_request(format_args!(
                "{seq:?} is not a valid seq; they are 1, 2, 3 and so on"
            ))
        });
        number.map(|number| Self(Seq(number)))
    }
}

enum Wanted {
    Seq(Seq),
    Key(Bytes),
}

impl Wanted {
    fn key(mut params: Params) -> Result<Self, Problem> {
        let key = params.bytes("key")?;
        params.finish()?;
        let key = key.ok_or_else(|| Problem::bad_request("say which key: ?key=…"))?;
        Ok(Self::Key(key))
    }
}

async fn find(shared: &Shared, topic: &TopicName, wanted: Wanted) -> Result<Delivered, Problem> {
    let (broker, name) = (shared.broker.clone(), topic.clone());
    let (found, what) = blocking(move || match wanted {
        Wanted::Seq(seq) => (broker.read(&name, seq), format!("of seq {seq}")),
        Wanted::Key(key) => {
            (broker.latest(&name, &key), format!("of key {:?}", String::from_utf8_lossy(&key)))
        }
    })
    .await?;
    found?.ok_or_else(|| {
        let detail = format_args!("{topic} has no message {what}, or not any more");
        Problem::new(ErrorCode::NoSuchMessage, detail)
    })
}

fn shown(shared: &Shared, topic: &TopicName, found: &Delivered) -> Response {
    let mut out = Vec::with_capacity(256 + found.message.body.as_ref().map_or(0, Bytes::len));
    Shown::of(topic, Some(shared.broker.epoch()), found).put(&mut out);
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], out).into_response()
}

/// The body as it was sent, with everything else in headers.
pub(crate) fn raw(found: Delivered) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    let number = |number: u64| HeaderValue::from(number);
    headers.insert("gapless-seq", number(found.seq.0));
    headers.insert("gapless-position", number(found.position.0));
    headers.insert("gapless-time-ms", number(found.time.0));
    let message = found.message;
    let mut put = |name: &str, value: &[u8]| {
        // What does not fit into a header of HTTP is in the JSON form of the message.
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    };
    if let Some(key) = &message.key {
        put("gapless-key", key);
    }
    if let Some(id) = &message.id {
        put("gapless-id", id);
    }
    for (name, value) in &message.headers {
        match name.as_str() {
            CONTENT_TYPE => put(CONTENT_TYPE, value),
            name => put(&format!("{HEADER_PREFIX}{name}"), value),
        }
    }
    if !headers.contains_key(header::CONTENT_TYPE) {
        let bytes = HeaderValue::from_static("application/octet-stream");
        headers.insert(header::CONTENT_TYPE, bytes);
    }
    let status = if message.body.is_some() { StatusCode::OK } else { StatusCode::NO_CONTENT };
    (status, headers, message.body.unwrap_or_default()).into_response()
}
