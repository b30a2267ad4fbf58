//! Requests at a node that shares its store with others and does not own it.
//!
//! What is about the node is answered by it. Everything else is passed on to the owner, a request at
//! a time, with streaming bodies both ways. A connection of a client has one to the owner, which is used
//! again for its next request. A request that may have reached the owner is never sent twice.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Version, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use gapless_broker::Broker;
use gapless_protocol::ErrorCode;
use gapless_protocol::link::ClientApi;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;

use crate::forward::{ForwardedFrom, Routes, Way, splice};
use crate::http::listener::around::around_before;
use crate::http::listener::server::{Certificate, Paths, Peer};
use crate::http::values::problem::Problem;
use crate::http::watch::health;

/// Paths about the node, whose answer needs a right.
const OWN_PATHS: [&str; 4] = ["/metrics", "/about", "/v1/cluster", "/v1/cluster/leave"];
/// Headers that are about one connection.
const OF_CONNECTION: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];
/// How long after an answer the connection to the owner may take to be of use again.
const READY_WAIT: Duration = Duration::from_millis(5);

/// What a listener that shares its store shows of its own node.
pub struct Node<'a> {
    /// Its own broker, which has nothing of the users.
    pub broker: &'a Broker,
    /// What is recorded for Prometheus.
    pub metrics: Option<PrometheusHandle>,
    /// Whether clients must prove who they are.
    pub asks: bool,
}

/// The connection to the owner of one client's connection, while no request uses it.
#[derive(Default)]
pub(crate) struct Upstream(Mutex<Option<SendRequest<Body>>>);

impl Upstream {
    async fn take(&self) -> Option<SendRequest<Body>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut sender = taken.filter(|sender| !sender.is_closed())?;
        let ready = tokio::time::timeout(READY_WAIT, sender.ready()).await;
        matches!(ready, Ok(Ok(()))).then_some(sender)
    }

    fn put(&self, sender: SendRequest<Body>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }
}

/// All requests of a node that does not own the store.
pub(crate) struct Front {
    routes: Routes,
    paths: Weak<Paths>,
    /// What is about the node.
    own: Router,
    asks: bool,
}

impl Front {
    pub(crate) fn new(routes: Routes, paths: Weak<Paths>, own: Router, asks: bool) -> Self {
        Self { routes, paths, own, asks }
    }

    pub(crate) fn router(self) -> Router {
        Router::new().fallback(answer).with_state(Arc::new(self)).layer(from_fn(around_before))
    }
}

async fn answer(State(front): State<Arc<Front>>, request: Request) -> Response {
    let path = request.uri().path();
    match path {
        "/healthz" => health::healthz().await.into_response(),
        "/openapi.json" => health::openapi().await,
        "/readyz" if front.routes.is_known() => "ready\n".into_response(),
        "/readyz" => no_owner().into_response(),
        _ if OWN_PATHS.contains(&path) => front.about_node(request).await,
        _ => front.forward(request).await,
    }
}

fn no_owner() -> Problem {
    Problem::new(ErrorCode::Unavailable, crate::forward::NoOwner)
}

impl Front {
    /// Answers about the node, if the owner says that this client may know it.
    async fn about_node(&self, request: Request) -> Response {
        if self.asks {
            if request.method() != Method::GET && request.method() != Method::HEAD {
                let why = "where clients must prove who they are, this is asked of the owner by \
                           its name: gapless cluster leave --node NAME";
                return Problem::new(ErrorCode::NotOffered, why).into_response();
            }
            let path = if request.uri().path() == "/about" { "/about" } else { "/v1/cluster" };
            let mut asked = Request::new(Body::empty());
            *asked.uri_mut() = axum::http::Uri::from_static(path);
            *asked.headers_mut() = request.headers().clone();
            for name in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::IF_NONE_MATCH] {
                asked.headers_mut().remove(name);
            }
            asked.extensions_mut().clone_from(request.extensions());
            let allowed = self.forward(asked).await;
            if !allowed.status().is_success() {
                return allowed;
            }
        }
        infallible(tower::ServiceExt::oneshot(self.own.clone(), request).await)
    }

    /// Passes a request on to the owner, and its answer back.
    async fn forward(&self, mut request: Request) -> Response {
        let upstream = request.extensions().get::<Arc<Upstream>>().cloned().unwrap_or_default();
        let address = request.extensions().get::<Peer>().map(|peer| peer.address.to_string());
        let certificate = request.extensions().get::<Arc<Certificate>>();
        let from = ForwardedFrom {
            address: address.unwrap_or_default(),
            certificate: certificate.map(|certificate| certificate.0.clone()),
            peer: None,
        };
        let until = self.routes.until();
        let to_client = request
            .headers()
            .contains_key(header::UPGRADE)
            .then(|| hyper::upgrade::on(&mut request));
        prepare(&mut request, to_client.is_some());
        let method = request.method().clone();
        loop {
            let mut sender = match upstream.take().await {
                Some(sender) => sender,
                None => match self.connect(&from, until).await {
                    Ok(Connected::There(sender)) => sender,
                    Ok(Connected::Here(router)) => {
                        let answer = tower::ServiceExt::oneshot(router, request).await;
                        return infallible(answer);
                    }
                    Err(problem) => return problem.into_response(),
                },
            };
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    upstream.put(sender);
                    return self.answered(answer, to_client);
                }
                Err(mut failed) => {
                    // Only what was not sent at all is sent again.
                    let Some(back) = failed.take_message() else {
                        return broken(&method, failed.error()).into_response();
                    };
                    drop(failed);
                    request = back;
                    if !self.routes.pause(until).await {
                        return no_owner().into_response();
                    }
                }
            }
        }
    }

    fn answered(
        &self,
        mut answer: hyper::Response<Incoming>,
        to_client: Option<hyper::upgrade::OnUpgrade>,
    ) -> Response {
        let switches = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        if let Some(to_client) = to_client.filter(|_| switches) {
            let to_owner = hyper::upgrade::on(&mut answer);
            tokio::spawn(async move {
                if let (Ok(client), Ok(owner)) = tokio::join!(to_client, to_owner) {
                    splice(TokioIo::new(client), TokioIo::new(owner)).await;
                }
            });
        }
        if !switches {
            without_connection(answer.headers_mut());
        }
        answer.map(Body::new)
    }

    async fn connect(&self, from: &ForwardedFrom, until: Instant) -> Result<Connected, Problem> {
        loop {
            let way = self.routes.way(ClientApi::Http, from, until).await;
            let passed = match way.map_err(|_| no_owner())? {
                Way::There(passed) => passed,
                Way::Here(_) => {
                    let all = self.paths.upgrade().and_then(|paths| paths.all());
                    if let Some(serving) = all {
                        return Ok(Connected::Here(serving.router));
                    }
                    if !self.routes.pause(until).await {
                        return Err(no_owner());
                    }
                    continue;
                }
            };
            let io = TokioIo::new(self.routes.pass_apart(passed));
            if let Ok((sender, connection)) = http1::handshake(io).await {
                // How it ends is seen by the requests.
                tokio::spawn(async move { drop(connection.with_upgrades().await) });
                return Ok(Connected::There(sender));
            }
        }
    }
}

enum Connected {
    Here(Router),
    There(SendRequest<Body>),
}

fn infallible(answer: Result<Response, Infallible>) -> Response {
    match answer {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

/// What a request was answered when the connection to the owner broke.
fn broken(method: &Method, error: &hyper::Error) -> Problem {
    let why = format!("the owner of the store ended before it answered: {error}");
    match *method {
        // Reading does nothing, so it may be said that nothing was done.
        Method::GET | Method::HEAD => Problem::new(ErrorCode::Unavailable, why),
        _ => Problem::new(ErrorCode::Fenced, why),
    }
}

/// Makes a request one of this node.
fn prepare(request: &mut Request, upgrades: bool) {
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    // The client is told to go on when its body is asked for.
    headers.remove(header::EXPECT);
    if !upgrades {
        without_connection(headers);
        headers.remove(header::UPGRADE);
    }
}

/// Takes out what is about one connection, and what that names.
fn without_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_one_connection_is_not_passed_on() {
        let request = Request::builder()
            .header("Connection", "keep-alive, X-Mine")
            .header("X-Mine", "1")
            .header("X-Other", "2")
            .header("Transfer-Encoding", "chunked")
            .header("Expect", "100-continue");
        let mut request = request.body(Body::empty()).expect("a request");
        prepare(&mut request, false);
        let names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-other"]);
        let request = Request::builder().header("Connection", "Upgrade").header("Upgrade", "x");
        let mut request = request.body(Body::empty()).expect("a request");
        prepare(&mut request, true);
        assert_eq!(request.headers().len(), 2, "an upgrade is passed on");
    }
}
