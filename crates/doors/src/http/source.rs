//! The paths of the first broker, as they were: `/topic/{name}/…`.

use std::sync::Arc;

use axum::Router;

use crate::http::server::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
