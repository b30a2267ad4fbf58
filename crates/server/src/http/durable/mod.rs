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
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use gapless_auth::Caller;
use gapless_core::rights::Right;
use gapless_protocol::ErrorCode;

use self::answer::{Refusal, set};
use crate::http::listener::body;
use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;

pub(crate) use self::streams::{Streams, sweep};

const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, OPTIONS";

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/stream/{*path}", any(handle))
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let answered = Box::pin(dispatch(&shared, request)).await;
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    // Other origins get bodies only where they may.
    let headers = response.headers_mut();
    let is_own = shared.options.cors_origins.is_empty();
    let policy = if is_own { "same-origin" } else { "cross-origin" };
    set(headers, "cross-origin-resource-policy", policy);
    response
}

async fn dispatch(shared: &Arc<Shared>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let (uri, headers) = (&parts.uri, &parts.headers);
    let caller = parts.extensions.get::<Caller>();
    let unchecked = || Problem::new(ErrorCode::Internal, "the sender was not checked");
    let caller = caller.ok_or_else(unchecked)?;
    let may = |right: Right| match name::topic_of(uri.path()) {
        Ok(name) => caller.may(right, &name).map_err(Problem::from),
        // A path that is not a valid name is refused below, with the reason.
        Err(_) => Ok(()),
    };
    // What a request asks for beyond its method is checked where it is read.
    match parts.method {
        Method::GET => may(Right::Subscribe)?,
        Method::HEAD => may(Right::Read)?,
        Method::PUT => may(Right::Create)?,
        Method::POST => may(Right::Publish)?,
        Method::DELETE => may(Right::Delete)?,
        _ => {}
    }
    match parts.method {
        Method::GET => read::read(shared, uri, headers).await,
        Method::HEAD => read::head(shared, uri).await,
        Method::PUT => {
            let body = body::read(body, shared).await?;
            create::create(shared, caller, uri, headers, &body).await
        }
        Method::POST => {
            let body = body::read(body, shared).await?;
            append::append(shared, caller, uri, headers, body).await
        }
        Method::DELETE => create::delete(shared, uri).await,
        _ => {
            let why = format!("a stream knows {METHODS}");
            let status = StatusCode::METHOD_NOT_ALLOWED;
            Err(Refusal::new(ErrorCode::MethodNotAllowed, status, why).with("allow", METHODS))
        }
    }
}
