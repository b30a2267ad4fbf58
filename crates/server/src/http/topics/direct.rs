//! One small message by `POST`, without the router: what services send most.
//!
//! The router and what is around it move a request through half a dozen allocations, which together
//! cost more than the publish. Such a request is recognised by its head and goes the same way without
//! them: the same checks, in the same order, and the same handler. What is not as plain (browsers of
//! other origins, lines, large or unmeasured bodies, escapes in the name) takes the router.

use std::sync::Arc;

use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use gapless_auth::{Caller, Places};
use gapless_core::rights::Right;
use hyper::Request;
use hyper::body::Incoming;

use crate::budget::SMALL_BYTES;
use crate::http::access::authorization::{self, Proven};
use crate::http::access::rights::{self, Answered, Route};
use crate::http::listener::around;
use crate::http::listener::server::{Certificate, Shared};
use crate::http::listener::{body, origin};
use crate::http::topics::messages::publish_read;
use crate::http::topics::topic_name;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

/// The path of these requests.
const ROUTE: &str = "/v1/topics/{name}/messages";

/// Whether a request is one of these.
pub(crate) fn is_direct<B: hyper::body::Body>(request: &Request<B>) -> bool {
    let bytes = request.body().size_hint().exact();
    let query = request.uri().query().unwrap_or("");
    *request.method() == Method::POST
        && name_in(request.uri().path()).is_some()
        && bytes.is_some_and(|bytes| bytes <= SMALL_BYTES as u64)
        // A ticket is taken out of the address, however it is written there.
        && !query.contains("icket")
        && !query.contains('%')
        && !request.headers().contains_key(header::ORIGIN)
        && !body::is_lines(request.headers())
}

/// The name of the topic in such a path, if it is written plainly.
fn name_in(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/v1/topics/")?.strip_suffix("/messages")?;
    (!name.is_empty() && !name.bytes().any(|byte| matches!(byte, b'/' | b'%'))).then_some(name)
}

/// Publishes it, and answers.
pub(crate) async fn publish(
    shared: &Shared,
    (from, certificate): ((Arc<str>, &Places), Option<&Arc<Certificate>>),
    request: Request<Incoming>,
) -> Response {
    let mut caller = None;
    let published = try_publish(shared, (from, certificate), &mut caller, request).await;
    let mut response = published.unwrap_or_else(IntoResponse::into_response);
    origin::make_inert(response.headers_mut());
    response.extensions_mut().insert(Answered { route: Route::Known(ROUTE), caller });
    response
}

async fn try_publish(
    shared: &Shared,
    (from, certificate): ((Arc<str>, &Places), Option<&Arc<Certificate>>),
    known: &mut Option<Caller>,
    request: Request<Incoming>,
) -> Result<Response, Problem> {
    around::check(shared, &request)?;
    let (parts, body) = request.into_parts();
    let proven = Proven { headers: &parts.headers, ticket: None, certificate };
    let from = (from.0, Some(from.1));
    let caller = match authorization::caller_of(shared, &proven, from) {
        Ok(caller) => caller.ok_or_else(rights::not_authenticated)?,
        Err(kept) => return Ok(kept.answer().await),
    };
    let caller = known.insert(caller);
    let name = name_in(parts.uri.path()).unwrap_or("");
    let topic = topic_name(name)?;
    caller.may(Right::Publish, &topic)?;
    let params = Params::parse(parts.uri.query().unwrap_or(""));
    let body = body::InTime::new(body, shared.options.body_timeout);
    publish_read((shared, caller), (&topic, params), &parts.headers, body).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(head: &str, headers: &[(&str, &str)], body: &str) -> Request<Body> {
        let (method, uri) = head.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    }

    #[test]
    fn only_a_plain_publish_of_a_small_message_goes_without_the_router() {
        let path = "POST /v1/topics/orders.eu/messages";
        assert!(is_direct(&request(path, &[], "hello")));
        assert!(is_direct(&request(
            &format!("{path}?key=7&create=true"),
            &[("gapless-id", "1")],
            ""
        )));
        for (head, headers) in [
            ("GET /v1/topics/orders/messages", &[][..]),
            ("POST /v1/topics/orders/messages/7", &[]),
            ("POST /v1/topics/a/b/messages", &[]),
            ("POST /v1/topics//messages", &[]),
            ("POST /v1/topics/a%2Eb/messages", &[]),
            ("POST /v1/topics/orders/messages?ticket=x", &[]),
            ("POST /v1/topics/orders/messages?%74icket=x", &[]),
            (path, &[("origin", "http://a")]),
            (path, &[("content-type", "application/x-ndjson")]),
        ] {
            assert!(!is_direct(&request(head, headers, "hello")), "{head}");
        }
        assert!(!is_direct(&request(path, &[], &"x".repeat(SMALL_BYTES + 1))));
    }
}
