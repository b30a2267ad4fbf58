//! Topics for programs: create, list, describe, configure, delete, purge.

use std::sync::Arc;

use axum::Router;

use crate::http::server::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
