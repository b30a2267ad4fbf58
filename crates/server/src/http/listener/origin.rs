//! Which web pages may use the server.
//!
//! A browser sends requests for any page to any server it can reach, a server on the same
//! machine too. So a request that changes something is refused when the browser says that it comes
//! from another origin, unless that origin is allowed. Programs other than browsers send no origin,
//! and are not checked.
//!
//! Browsers send the origin of a request in `Sec-Fetch-Site`, but only to https and to this
//! machine; to other names over plain http they say it in `Origin`, and never for a `GET` without
//! CORS. Such a `GET` that changes something is refused to all browsers, since an address that was
//! typed looks the same as an image in a hostile page. That [`host`](crate::http::listener::host) is ours
//! is known by then.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use gapless_protocol::ErrorCode;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

/// What a browser says about the origin of a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Types that browsers show or save, and never run, if they may not guess.
const INERT: [&[u8]; 5] = [
    b"application/json",
    b"application/problem+json",
    b"application/x-ndjson",
    b"text/event-stream",
    b"text/plain",
];

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
pub(crate) fn check<B>(request: &Request<B>, allowed: &[String]) -> Result<(), Problem> {
    if !changes(request) || is_own(request) {
        return Ok(());
    }
    let origin = request.headers().get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let is_allowed = |origin: &str| allowed.iter().any(|each| each == "*" || each == origin);
    // A page of any origin may ask without naming it; then only `*` will do.
    if is_allowed(origin.unwrap_or("null")) {
        return Ok(());
    }
    let detail = match origin {
        Some(origin) => {
            format!("pages of {origin} may not do this; http.cors_origins lists those that may")
        }
        None => "the browser does not say which page asks, and a GET that changes something \
                 needs that: use http://localhost on the server's own machine, https, POST or PUT"
            .to_owned(),
    };
    Err(Problem::new(ErrorCode::NotAuthorised, detail))
}

/// Keeps published content from acting as a page of this server, whatever its type: a script in it
/// would run as part of the server's own page.
pub(crate) fn make_inert(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_data = INERT.iter().any(|inert| kind.starts_with(inert));
    if !is_data && !headers.contains_key(header::CONTENT_SECURITY_POLICY) {
        let sandbox = HeaderValue::from_static("sandbox");
        headers.insert(header::CONTENT_SECURITY_POLICY, sandbox);
    }
}

/// Whether a request may change something.
fn changes<B>(request: &Request<B>) -> bool {
    is_changing_get(request)
        || ![Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method())
        || request.headers().contains_key(header::UPGRADE)
}

/// The source's paths change things by `GET` too, and so does following a topic that is created if
/// it is missing.
fn is_changing_get<B>(request: &Request<B>) -> bool {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return false;
    }
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or(""));
    let of_source = match path.strip_prefix("/topic/").and_then(|path| path.rsplit('/').next()) {
        Some("create" | "push") => true,
        Some("config") => !query.is_empty(),
        _ => false,
    };
    of_source || !matches!(Params::parse(query).bytes("anyway"), Ok(None))
}

/// Whether no page, or one of this server, asks.
fn is_own<B>(request: &Request<B>) -> bool {
    let header = |name: HeaderName| {
        let value = request.headers().get(name);
        value.map(|value| value.to_str().unwrap_or("null"))
    };
    match (header(FETCH_SITE), header(header::ORIGIN)) {
        (Some("same-origin" | "none"), _) => true,
        (Some(_), _) => false,
        (None, Some(origin)) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            host == header(header::HOST)
        }
        (None, None) => {
            // All browsers call themselves that; a page cannot change it for another origin.
            let agent = header(header::USER_AGENT);
            let is_browser = agent.is_some_and(|agent| agent.starts_with("Mozilla/"))
                || header(header::REFERER).is_some();
            !(is_browser && is_changing_get(request))
        }
    }
}
