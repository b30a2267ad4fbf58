//! The Durable Streams protocol under `/v1/stream/…`: each stream is a topic.

use std::sync::Arc;

use axum::Router;

use crate::http::server::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
