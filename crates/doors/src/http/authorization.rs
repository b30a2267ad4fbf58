//! Credentials of requests: none are checked yet, so none are accepted.
//!
//! A server that ignored them would be trusted with what it does not do. A proxy that checks
//! credentials itself removes them before it passes the request on.

use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gapless_protocol::ErrorCode;

use crate::http::problem::Problem;

/// Refuses a request that has an `Authorization` header.
pub(crate) async fn guard(request: Request, next: Next) -> Response {
    if !request.headers().contains_key(header::AUTHORIZATION) {
        return next.run(request).await;
    }
    Problem::new(
        ErrorCode::NotAuthenticated,
        "this server checks no credentials yet, so it accepts none: send no Authorization header, \
         and let only trusted clients reach the server",
    )
    .into_response()
}
