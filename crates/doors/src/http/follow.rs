//! Following topics and patterns: Server-Sent Events and WebSocket.

use std::sync::Arc;

use axum::Router;

use crate::http::server::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
