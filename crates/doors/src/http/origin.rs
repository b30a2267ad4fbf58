//! Which web pages may use the server.
//!
//! A browser sends requests for any page to any server it can reach, a server on the same
//! machine too. So whatever changes something is refused when the browser says that another
//! origin asks for it, unless that origin is allowed. Programs that are no browsers say
//! nothing, and are not asked.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gapless_protocol::ErrorCode;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::http::problem::Problem;
use crate::http::server::Shared;

/// What a browser tells about who asks.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Lets pages of these origins read the answers.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let parsed = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
        AllowOrigin::list(parsed)
    };
    CorsLayer::new().allow_origin(allowed).allow_methods(Any).allow_headers(Any).expose_headers(Any)
}

/// Refuses what would change something for a page that may not.
pub(crate) async fn guard(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    if !changes(&request) || is_own(&request) {
        return next.run(request).await;
    }
    let origin = request.headers().get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let allowed = &shared.options.cors_origins;
    let is_allowed = |origin: &str| allowed.iter().any(|each| each == "*" || each == origin);
    // A page of any origin may ask without naming it; then only `*` will do.
    if is_allowed(origin.unwrap_or("null")) {
        return next.run(request).await;
    }
    let origin = origin.unwrap_or("an unnamed origin");
    Problem::new(
        ErrorCode::NotAuthorised,
        format_args!("pages of {origin} may not do this; http.cors_origins lists those that may"),
    )
    .into_response()
}

/// Whether a request may change something: the source's paths do so by `GET` too.
fn changes(request: &Request) -> bool {
    let by_get = || {
        let path = request.uri().path();
        let last = path.rsplit('/').next().unwrap_or("");
        path.starts_with("/topic/") && ["create", "push", "config", "subscribe"].contains(&last)
    };
    let safe = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    !safe || by_get() || request.headers().contains_key(header::UPGRADE)
}

/// Whether no page, or one of this server, asks.
fn is_own(request: &Request) -> bool {
    match request.headers().get(FETCH_SITE).map(HeaderValue::as_bytes) {
        Some(b"same-origin" | b"none") => true,
        Some(_) => false,
        // Older browsers name the origin only.
        None => {
            let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            let origin = request.headers().get(header::ORIGIN);
            origin.is_none_or(|origin| {
                let origin = origin.to_str().unwrap_or("null");
                origin.split_once("://").map(|(_, host)| host) == host
            })
        }
    }
}
