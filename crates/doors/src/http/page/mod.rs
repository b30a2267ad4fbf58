//! The page at `/`, and the state of the server that it shows.

use std::sync::Arc;

use axum::Router;

use crate::http::server::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
