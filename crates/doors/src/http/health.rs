//! What monitoring asks: `/metrics`, `/healthz`, `/readyz`, `/about`.

use std::sync::Arc;

use axum::Router;

use crate::http::server::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
