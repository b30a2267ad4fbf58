//! What holds for all paths: which requests are admitted, and what every answer has.
//!
//! It is one layer of functions rather than a layer for each, since a layer moves the request
//! into another allocation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::access::authorization;
use crate::http::listener::server::Shared;
use crate::http::listener::{body, origin};
use crate::http::values::problem::Problem;
use crate::http::values::{problem, publish};

/// Around all paths of a listener that has its broker.
pub(crate) async fn around(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let checked = match check(&shared, &request) {
        Ok(()) => match authorization::let_in(&shared, &mut request) {
            Ok(()) => Ok(()),
            Err(kept) => Err(kept.answer().await),
        },
        Err(problem) => Err(problem.into_response()),
    };
    let response = match checked {
        Ok(()) => next.run(body::in_time(request, shared.options.body_timeout)).await,
        Err(response) => response,
    };
    let mut response = problem::of_every_error(&method, response).await;
    origin::make_inert(response.headers_mut());
    response
}

/// Around the few paths that are answered before that.
pub(crate) async fn around_before(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let response = match problem::check_address(request.uri()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    problem::of_every_error(&method, response).await
}

/// What every request must keep.
pub(crate) fn check<B>(shared: &Shared, request: &hyper::Request<B>) -> Result<(), Problem> {
    problem::check_address(request.uri())?;
    origin::check(request, &shared.options.cors_origins)?;
    publish::check_headers(request)
}
