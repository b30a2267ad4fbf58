//! Closing a client: one that follows over HTTP, a member between requests, or a native connection.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::routing::delete;
use gapless_auth::Caller;
use gapless_protocol::ErrorCode;

use crate::http::listener::server::Shared;
use crate::http::values::params::{Params, number_of};
use crate::http::values::problem::Problem;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/clients/{session}", delete(close))
}

async fn close(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(session): Path<String>,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let number = number_of("session", &session)?;
    if !shared.sampler.sessions().any(|sessions| sessions.close(number)) {
        let detail = format_args!("no client has session {number}; nothing was closed");
        return Err(Problem::new(ErrorCode::UnknownClient, detail));
    }
    caller.audit_change("client closed", &session);
    Ok(StatusCode::NO_CONTENT)
}
