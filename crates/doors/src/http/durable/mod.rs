//! The Durable Streams protocol under `/v1/stream/…`: each stream is a topic.
//!
//! The protocol is one of bytes, offsets and producers over plain HTTP. A message of the
//! topic is what one append brought (each value of it, if the stream is JSON); an offset
//! stands between two messages. What is not here: forks and webhook subscriptions, which are
//! answered with 501.

mod answer;
mod append;
mod create;
mod expiry;
mod media;
mod name;
mod offset;
mod producer;
mod read;
mod sse;
mod streams;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use gapless_protocol::ErrorCode;

use self::answer::{Refusal, set};
use crate::http::problem::Problem;
use crate::http::server::Shared;

pub(crate) use self::streams::{Streams, sweep};

const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, OPTIONS";

/// What scripts of other origins may send.
const REQUEST_HEADERS: &str = "content-type, authorization, if-none-match, stream-seq, stream-ttl, \
     stream-expires-at, stream-closed, producer-id, producer-epoch, producer-seq, cache-control";

/// What scripts of other origins may see.
const ANSWER_HEADERS: &str = "stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, \
     stream-ttl, stream-expires-at, stream-sse-data-encoding, producer-epoch, producer-seq, \
     producer-expected-seq, producer-received-seq, etag, location";

/// How long a browser need not ask again what it may send.
const PREFLIGHT_SECS: u64 = 600;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/stream/{*path}", any(handle))
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let answered = Box::pin(dispatch(&shared, request)).await;
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    protect(&shared, origin, response.headers_mut());
    response
}

async fn dispatch(shared: &Arc<Shared>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let (uri, headers) = (&parts.uri, &parts.headers);
    match parts.method {
        Method::GET => read::read(shared, uri, headers).await,
        Method::HEAD => read::head(shared, uri).await,
        Method::PUT => {
            let body = whole(shared, body).await?;
            create::create(shared, uri, headers, &body).await
        }
        Method::POST => {
            let body = whole(shared, body).await?;
            append::append(shared, uri, headers, body).await
        }
        Method::DELETE => create::delete(shared, uri).await,
        Method::OPTIONS => Ok(preflight()),
        _ => {
            let why = format!("a stream knows {METHODS}");
            let status = StatusCode::METHOD_NOT_ALLOWED;
            Err(Refusal::new(ErrorCode::BadPayload, status, why).with("allow", METHODS))
        }
    }
}

/// The whole body of a request, if it is small and quick enough.
async fn whole(shared: &Shared, body: Body) -> Result<Bytes, Refusal> {
    let max = shared.options.body_bytes_max;
    match tokio::time::timeout(shared.options.body_timeout, to_bytes(body, max)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => {
            let why = format!("the body is over {max} bytes, or was cut short");
            Err(Problem::new(ErrorCode::TooLarge, why).into())
        }
        Err(_) => Err(Problem::new(ErrorCode::IdleTimeout, "the body took too long").into()),
    }
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    set(headers, "allow", METHODS);
    set(headers, "access-control-allow-methods", METHODS);
    set(headers, "access-control-allow-headers", REQUEST_HEADERS);
    set(headers, "access-control-max-age", PREFLIGHT_SECS);
    response
}

/// What every answer carries: bodies are data and nothing else, and other origins see them
/// only where the configuration says so.
fn protect(shared: &Shared, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
    set(headers, "x-content-type-options", "nosniff");
    let allowed = origin.filter(|origin| {
        let is_allowed =
            |allowed: &String| allowed == "*" || allowed.as_bytes() == origin.as_bytes();
        shared.options.cors_origins.iter().any(is_allowed)
    });
    let policy =
        if shared.options.cors_origins.is_empty() { "same-origin" } else { "cross-origin" };
    set(headers, "cross-origin-resource-policy", policy);
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        set(headers, "access-control-expose-headers", ANSWER_HEADERS);
    }
}
