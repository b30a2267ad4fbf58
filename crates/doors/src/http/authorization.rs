//! Credentials of requests: none are checked yet, so none are accepted.
//!
//! A server that ignored them would be trusted with what it does not do. A proxy that checks
//! credentials itself removes them before it passes the request on.

use axum::http::{HeaderMap, header};
use gapless_protocol::ErrorCode;

use crate::http::problem::Problem;

/// Refuses a request that has an `Authorization` header.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    if !headers.contains_key(header::AUTHORIZATION) {
        return Ok(());
    }
    Err(Problem::new(
        ErrorCode::NotAuthenticated,
        "this server checks no credentials yet, so it accepts none: send no Authorization header, \
         and let only trusted clients reach the server",
    ))
}
