//! What is counted of each request: how many by route and class of status, and how long each took.
//!
//! A route is a path of the API with its placeholders, so there are only as many rows as the API has
//! paths. What no route answered (an unknown path, a refused host or origin, a failed login) counts
//! as `other`. The handles are looked up under a lock that is shared, and written only when
//! a route is asked for the first time: a request pays for a look-up and two additions.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use axum::response::Response;
use gapless_auth::Caller;
use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};

use crate::http::access::rights::Answered;
use crate::http::values::problem::Why;

const TOTAL: &str = "gapless_http_requests_total";
const SECONDS: &str = "gapless_http_request_seconds";

/// Upper bounds for a histogram of `gapless_http_request_seconds`, in seconds: from an answer out of
/// memory to a long poll that waits for its minute.
pub const HTTP_SECONDS_BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 10.0, 60.0,
];

/// What the paths of logins and identities begin with.
const AUTH: &str = "/v1/auth";

/// The route of what no route answered.
const OTHER: &str = "other";

/// The classes of status codes, from 1xx on.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted of one route.
struct Route {
    name: Arc<str>,
    by_class: [std::sync::OnceLock<Counter>; CLASSES.len()],
    seconds: Histogram,
}

impl Route {
    fn new(name: &str) -> Self {
        let name: Arc<str> = name.into();
        let seconds = histogram!(SECONDS, "route" => Arc::clone(&name));
        Self { name, by_class: Default::default(), seconds }
    }

    fn note(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        // Shown from the first on: most routes have one or two classes.
        let count = self.by_class[class].get_or_init(
            || counter!(TOTAL, "route" => Arc::clone(&self.name), "status" => CLASSES[class]),
        );
        count.increment(1);
        self.seconds.record(took);
    }
}

/// The counters of a listener.
#[derive(Default)]
pub(crate) struct Requests {
    routes: RwLock<HashMap<String, Arc<Route>>>,
    /// Whether each request is a line of the log.
    access_log: bool,
}

impl Requests {
    /// Says what is counted; to be called before anything is.
    pub(crate) fn new(access_log: bool) -> Self {
        describe_counter!(TOTAL, "Requests answered, by route and class of the status code.");
        describe_histogram!(
            SECONDS,
            "From a request's head until the head of its answer, by route."
        );
        Self { access_log, ..Self::default() }
    }

    /// A request begins.
    pub(crate) fn begin<B>(&self, request: &axum::http::Request<B>, peer: SocketAddr) -> Begun {
        // The address is looked at again only when there is something to say of it: cheap to keep.
        let (method, uri) = (request.method().clone(), request.uri().clone());
        Begun { at: Instant::now(), method, uri, peer }
    }

    /// Counts an answer, of which the body may still follow; and logs what was refused, or all.
    pub(crate) fn end(&self, begun: &Begun, answer: &Response) {
        let (status, took) = (answer.status(), begun.at.elapsed());
        let answered = answer.extensions().get::<Answered>();
        let route = answered.map_or(OTHER, |answered| answered.route.as_str());
        self.route(route).note(status, took);
        let failed = status.is_client_error() || status.is_server_error();
        if !failed && !self.access_log {
            return;
        }
        let who = answered.and_then(|it| it.caller.as_ref()).map_or("", Caller::name);
        // Without the query: tickets are in it.
        let (method, path) = (begun.method.as_str(), begun.uri.path());
        let (from, status) = (begun.peer, status.as_u16());
        if self.access_log {
            let ms = took.as_secs_f64() * 1000.0;
            tracing::info!(target: "access", %from, who, method, path, status, ms, "http");
        }
        let Some(Why { name, detail }) = answer.extensions().get::<Why>().filter(|_| failed) else {
            return;
        };
        // What is said about a request to log in may repeat a part of it.
        let why = if path.starts_with(AUTH) { "" } else { &**detail };
        let error = *name;
        if status >= 500 {
            tracing::warn!(
                target: "clients",
                %from, who, method, path, status, error, why, "request failed"
            );
        } else {
            tracing::info!(
                target: "clients",
                %from, who, method, path, status, error, why, "request refused"
            );
        }
    }

    fn route(&self, name: &str) -> Arc<Route> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = routes.get(name) {
            return Arc::clone(route);
        }
        drop(routes);
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let route = routes.entry(name.to_owned()).or_insert_with(|| Arc::new(Route::new(name)));
        Arc::clone(route)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Begun {
    at: Instant,
    method: Method,
    uri: axum::http::Uri,
    peer: SocketAddr,
}
