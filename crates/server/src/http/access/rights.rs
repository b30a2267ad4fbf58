//! Which right each path needs. A path that is not in the table is refused.
//!
//! What a request asks for beyond its path (topics in a body, a pattern in the address, the source
//! of a group) is checked where it is read; the table says so, and a test goes through all of it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use gapless_auth::{Caller, Denied, Lost, OverQuota};
use gapless_core::TopicName;
use gapless_core::rights::Right;
use gapless_protocol::ErrorCode;
use hyper::body::{Frame, SizeHint};
use serde_json::json;

use crate::http::follow::event_stream::{EVENT_STREAM, put_event};
use crate::http::values::problem::Problem;

/// What a path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, not even a proof: it shows nothing of what is stored.
    Nothing,
    /// That the caller is let in at all.
    Proof,
    /// A right on the topic or group that the path names.
    Named(Right),
    /// An area of the server.
    Area(&'static str),
    /// What is asked for is in the body or the address; its handler checks it.
    Handler,
}

use Need::{Area, Handler, Named, Nothing, Proof};

/// Every path with its methods and what they need. `ANY` stands for all methods.
pub(crate) const NEEDS: &[(&str, &str, Need)] = &[
    // The page is public; its state as JSON is checked by the handler.
    ("/", "GET", Nothing),
    ("/page/{version}/{*name}", "GET", Nothing),
    ("/favicon.ico", "GET", Nothing),
    ("/healthz", "GET", Nothing),
    ("/readyz", "GET", Nothing),
    ("/openapi.json", "GET", Nothing),
    ("/about", "GET", Proof),
    ("/metrics", "GET", Area("server")),
    ("/v1/server", "GET", Area("server")),
    ("/v1/cluster", "GET", Area("server")),
    ("/v1/cluster/leave", "POST", Area("cluster")),
    ("/v1/backups", "POST", Area("backup")),
    ("/v1/backups/{id}", "DELETE", Area("backup")),
    ("/v1/backups/{id}/state", "GET", Area("backup")),
    ("/v1/backups/{id}/blobs/{blob}", "GET", Area("backup")),
    ("/v1/backups/{id}/blobs/{blob}/checksum", "GET", Area("backup")),
    ("/v1/state/live", "GET", Area("server")),
    ("/v1/state/history", "GET", Area("server")),
    ("/v1/clients/{session}", "DELETE", Area("clients.close")),
    ("/v1/auth/login", "POST", Nothing),
    ("/v1/auth/logout", "POST", Nothing),
    ("/v1/auth", "POST", Handler),
    ("/topic/{name}/create", "ANY", Named(Right::Create)),
    ("/topic/{name}/config", "GET", Handler),
    ("/topic/{name}/config", "POST", Handler),
    ("/topic/{name}/push", "ANY", Named(Right::Publish)),
    ("/topic/{name}/subscribe", "GET", Named(Right::Subscribe)),
    ("/v1/topics", "GET", Handler),
    ("/v1/topics/{name}", "GET", Named(Right::Read)),
    ("/v1/topics/{name}", "PUT", Named(Right::Create)),
    ("/v1/topics/{name}", "PATCH", Named(Right::Configure)),
    ("/v1/topics/{name}", "DELETE", Named(Right::Delete)),
    ("/v1/topics/{name}/purge", "POST", Named(Right::Delete)),
    ("/v1/topics/{name}/messages", "POST", Named(Right::Publish)),
    ("/v1/topics/{name}/messages", "GET", Named(Right::Read)),
    ("/v1/topics/{name}/messages/{seq}", "GET", Named(Right::Read)),
    ("/v1/topics/{name}/messages/{seq}/body", "GET", Named(Right::Read)),
    ("/v1/topics/{name}/messages/{seq}/explain", "GET", Named(Right::Read)),
    ("/v1/topics/{name}/latest", "GET", Named(Right::Read)),
    ("/v1/topics/{name}/latest/body", "GET", Named(Right::Read)),
    ("/v1/topics/{name}/follow", "GET", Named(Right::Subscribe)),
    ("/v1/follow", "GET", Handler),
    ("/v1/request/{name}", "POST", Named(Right::Publish)),
    ("/v1/delayed/{id}", "DELETE", Handler),
    ("/v1/atomic", "POST", Handler),
    ("/v1/stream/{*path}", "ANY", Handler),
    ("/v1/groups", "GET", Handler),
    ("/v1/groups/{name}", "ANY", Named(Right::Group)),
    ("/v1/groups/{name}/pause", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/resume", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/reset", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/fetch", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/ack", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/nack", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/terminate", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/extend", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/commit", "POST", Named(Right::Group)),
    ("/v1/groups/{name}/members/{member}", "DELETE", Named(Right::Group)),
    ("/v1/groups/{name}/dead-letters", "ANY", Named(Right::Dlq)),
    ("/v1/groups/{name}/dead-letters/redrive", "POST", Named(Right::Dlq)),
    ("/v1/groups/{name}/dead-letters/{seq}", "ANY", Named(Right::Dlq)),
    // What a job runs is in the body or in the leader's state: job.submit, and job.work of workers.
    ("/v1/jobs", "ANY", Handler),
    ("/v1/jobs/overview", "GET", Area("server")),
    ("/v1/jobs/retry", "POST", Handler),
    ("/v1/jobs/{id}", "ANY", Handler),
    ("/v1/jobs/{id}/result", "GET", Handler),
    ("/v1/jobs/{id}/log", "GET", Handler),
    ("/v1/jobs/{id}/follow", "GET", Handler),
    ("/v1/jobs/{id}/cancel", "POST", Handler),
    ("/v1/jobs/{id}/retry", "POST", Handler),
    ("/v1/workers/{name}/take", "POST", Handler),
    ("/v1/workers/{name}/extend", "POST", Handler),
    ("/v1/workers/{name}/output", "POST", Handler),
    ("/v1/workers/{name}/complete", "POST", Handler),
    ("/v1/workers/{name}/fail", "POST", Handler),
];

/// Requests that are answered when something happens, which may be long after they were allowed.
const LONG_POLLS: &[(&str, &str)] = &[
    ("/v1/topics/{name}/messages", "GET"),
    ("/v1/request/{name}", "POST"),
    ("/v1/stream/{*path}", "GET"),
    ("/v1/groups/{name}/fetch", "POST"),
    ("/v1/jobs/{id}/result", "GET"),
    ("/v1/workers/{name}/take", "POST"),
];

/// What a path needs for a method; `None` when the table has no entry.
pub(crate) fn need(path: &str, method: &Method) -> Option<Need> {
    // A HEAD is a GET whose body is not sent.
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let fits =
        |(of, with, _): &&(&str, &str, Need)| *of == path && (*with == "ANY" || *with == method);
    NEEDS.iter().find(fits).map(|(_, _, need)| *need)
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (right, on) = (denied.right.name(), denied.on.clone());
        Self::new(ErrorCode::NotAuthorised, denied).with("right", right).with("on", on)
    }
}

impl From<OverQuota> for Problem {
    fn from(over: OverQuota) -> Self {
        let ms = u64::try_from(over.retry_after.as_millis()).unwrap_or(u64::MAX);
        let (what, limit) = (over.what, over.limit);
        Self::new(ErrorCode::QuotaExceeded, over)
            .with("quota", what)
            .with("limit", limit)
            .with("retry_after_ms", ms)
    }
}

impl From<Lost> for Problem {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Proof(refused) => Self::new(ErrorCode::NotAuthenticated, refused),
            Lost::Right(denied) => denied.into(),
        }
    }
}

/// Around each path: lets pass what the caller may do, and ends answers that it may not have any
/// more.
pub(crate) async fn gate(
    path: MatchedPath,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let mut response = check(&path, params, request, next).await;
    // The answer carries what it is counted by, and what the log says of it.
    response.extensions_mut().insert(Answered { route: Route::Found(path), caller });
    response
}

/// Which route answered a request, and whose it was.
#[derive(Clone)]
pub(crate) struct Answered {
    pub(crate) route: Route,
    pub(crate) caller: Option<Caller>,
}

/// A path of the API with its placeholders.
#[derive(Clone)]
pub(crate) enum Route {
    /// As the router found it.
    Found(MatchedPath),
    /// Of a request that needs no router.
    Known(&'static str),
}

impl Route {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Found(path) => path.as_str(),
            Self::Known(path) => path,
        }
    }
}

/// What a request does to topics, groups or the server; the log says so.
const ADMIN_REQUESTS: &[(&str, &str, &str)] = &[
    ("/v1/topics/{name}", "PUT", "create topic"),
    ("/topic/{name}/create", "GET", "create topic"),
    ("/topic/{name}/create", "POST", "create topic"),
    ("/v1/topics/{name}", "PATCH", "configure topic"),
    ("/topic/{name}/config", "POST", "configure topic"),
    ("/v1/topics/{name}", "DELETE", "delete topic"),
    ("/v1/topics/{name}/purge", "POST", "purge topic"),
    ("/v1/groups/{name}", "PUT", "create group"),
    ("/v1/groups/{name}", "PATCH", "configure group"),
    ("/v1/groups/{name}", "DELETE", "delete group"),
    ("/v1/groups/{name}/pause", "POST", "pause group"),
    ("/v1/groups/{name}/resume", "POST", "resume group"),
    ("/v1/groups/{name}/reset", "POST", "reset group"),
    ("/v1/groups/{name}/dead-letters", "DELETE", "remove dead letters"),
    ("/v1/groups/{name}/dead-letters/{seq}", "DELETE", "remove dead letters"),
    ("/v1/groups/{name}/dead-letters/redrive", "POST", "redrive dead letters"),
    ("/v1/cluster/leave", "POST", "leave cluster"),
];

fn log_admin_request(
    path: &MatchedPath,
    method: &Method,
    params: &Result<RawPathParams, RawPathParamsRejection>,
    caller: &Caller,
) {
    let is_it = |row: &&(&str, &str, &str)| row.0 == path.as_str() && row.1 == method.as_str();
    let Some((_, _, action)) = ADMIN_REQUESTS.iter().find(is_it) else { return };
    let name = params
        .as_ref()
        .ok()
        .and_then(|params| params.iter().find(|(name, _)| *name == "name").map(|(_, name)| name));
    caller.acts(action, name.unwrap_or_default());
}

async fn check(
    path: &MatchedPath,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let Some(need) = need(path.as_str(), request.method()) else {
        // axum answers a method that the path does not have.
        let known = NEEDS.iter().any(|(of, _, _)| *of == path.as_str());
        if known {
            return next.run(request).await;
        }
        let detail = "no right is declared for this path";
        return Problem::new(ErrorCode::NotAuthorised, detail).into_response();
    };
    let caller = request.extensions().get::<Caller>().cloned();
    let checked = match (need, &caller) {
        (Nothing, _) => Ok(()),
        // A request without a caller was let through, since its path needs no right.
        (_, None) => Err(not_authenticated()),
        (Proof | Handler, Some(_)) => Ok(()),
        (Area(area), Some(caller)) => caller.may_area(area).map_err(Problem::from),
        (Named(right), Some(caller)) => {
            let params = params.as_ref().map_err(Problem::bad_request);
            params.and_then(|params| {
                let name = params.iter().find(|(name, _)| *name == "name");
                match name.map(|(_, name)| TopicName::parse(name)) {
                    Some(Ok(name)) => Ok(caller.may(right, &name)?),
                    // A text that is not a valid name is refused by the handler, with the reason.
                    _ => Ok(()),
                }
            })
        }
    };
    if let Err(problem) = checked {
        return problem.into_response();
    }
    if let Some(caller) = &caller {
        log_admin_request(path, request.method(), &params, caller);
    }
    let Some(caller) = caller.filter(Caller::may_lose) else { return next.run(request).await };
    let waits = LONG_POLLS.contains(&(path.as_str(), request.method().as_str()));
    let running = next.run(request);
    if !waits {
        return guarded(running.await, caller);
    }
    // A handler that is dropped leaves things as they are when a client goes away.
    let response = tokio::select! {
        biased;
        lost = caller.clone().lost() => return Problem::from(lost).into_response(),
        response = running => response,
    };
    // What the handler was allowed may have been taken away since the last look.
    match caller.clone().lost().now_or_never() {
        Some(lost) => Problem::from(lost).into_response(),
        None => guarded(response, caller),
    }
}

/// The problem of a request without a proof where one is required.
pub(crate) fn not_authenticated() -> Problem {
    let detail = "authentication is required: use a token, a certificate or a login";
    Problem::new(ErrorCode::NotAuthenticated, detail)
}

/// An answer whose body ends when its caller may not have it any more. One that is whole goes as it
/// is.
fn guarded(response: Response, caller: Caller) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let events = kind.is_some_and(|kind| kind.as_bytes() == EVENT_STREAM.as_bytes());
    let lost = Box::pin(caller.lost());
    response.map(|body| Body::new(Guarded { body, lost, events, between: true, over: false }))
}

struct Guarded {
    body: Body,
    lost: Pin<Box<dyn Future<Output = Lost> + Send>>,
    /// Whether it is a stream of events, whose reader can be sent the reason.
    events: bool,
    /// Whether what was sent last ends an event.
    between: bool,
    over: bool,
}

/// The end of a stream whose right was taken away, as an event.
fn last_event(lost: &Lost) -> Bytes {
    let mut out = Vec::new();
    let code = match lost {
        Lost::Proof(_) => ErrorCode::NotAuthenticated,
        Lost::Right(_) => ErrorCode::NotAuthorised,
    };
    let facts = json!({ "code": code.number(), "detail": lost.to_string() });
    put_event(&mut out, Some("failed"), None, &facts.to_string());
    out.into()
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(lost) = self.lost.as_mut().poll(context) {
            self.over = true;
            // In the middle of an event the reason would be taken for a part of it.
            let tells = self.events && self.between;
            return Poll::Ready(tells.then(|| Ok(Frame::data(last_event(&lost)))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.between = data.ends_with(b"\n\n");
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_the_description_has_a_need() {
        let text = include_str!("../../../../../docs/openapi.json");
        let described: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let paths = described["paths"].as_object().expect("paths");
        assert!(paths.len() > 30);
        for (path, methods) in paths {
            // The description names parameters, and cannot say that one takes the rest.
            let table = path.replace("{path}", "{*path}");
            for method in methods.as_object().expect("methods").keys() {
                let Ok(method) = Method::from_bytes(method.to_ascii_uppercase().as_bytes()) else {
                    continue;
                };
                let standard =
                    [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE];
                if standard.contains(&method) {
                    let need = need(&table, &method);
                    let need = need.unwrap_or_else(|| panic!("{method} {path} has no check"));
                    says_how_it_refuses(&described, path, &method, need);
                }
            }
        }
    }

    /// The description has the answers to those who may not.
    fn says_how_it_refuses(root: &serde_json::Value, path: &str, method: &Method, need: Need) {
        let operation = &root["paths"][path][method.as_str().to_ascii_lowercase()];
        let refers = |status: &str, to: &str| {
            let to = format!("#/components/responses/{to}");
            assert!(root.pointer(&to[1..]).is_some_and(|it| it["content"].is_object()), "{to}");
            operation["responses"][status]["$ref"] == to.as_str()
        };
        let (proof, right) = (refers("401", "NotAuthenticated"), refers("403", "NotAuthorised"));
        assert_eq!(proof, need != Nothing, "401 of {method} {path}");
        assert_eq!(right, !matches!(need, Nothing | Proof), "403 of {method} {path}");
        let open = operation["security"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(open, need == Nothing, "{method} {path} needs a proof, or not");
        let quotas = refers("429", "QuotaExceeded");
        let publishes = matches!(need, Named(Right::Publish | Right::Subscribe | Right::Create));
        assert!(quotas || !publishes, "429 of {method} {path}");
    }

    #[test]
    fn a_path_that_nobody_thought_of_has_no_need_and_is_refused() {
        assert_eq!(need("/v1/new", &Method::GET), None);
        assert_eq!(need("/v1/topics/{name}", &Method::POST), None);
        assert_eq!(need("/v1/topics/{name}", &Method::HEAD), Some(Named(Right::Read)));
    }
}
