//! The page at `/`, and the state of the server that it shows.
//!
//! `GET /` answers people with the page and programs with the state as JSON; `/v1/state/live`
//! is the same state as it changes; `/v1/state/history` is the last hour. All come from one
//! [`sampler`], which while no page is open reads a few totals only. The page's own files are in
//! `files/` and are served as they are.

mod assets;
mod clients;
mod delta;
mod document;
mod events;
mod groups;
mod jobs;
mod may;
mod process;
mod ring;
mod sampler;
mod sampling;
pub(crate) mod timeline;
mod topics;
mod view;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json as JsonAnswer, Router};
use futures_util::stream::unfold;
use gapless_auth::Caller;
use gapless_protocol::ErrorCode;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use crate::http::follow::event_stream::stream_permit;
use crate::http::listener::server::{Shared, blocking};
use crate::http::page::document::document;
use crate::http::page::view::{View, ViewQuery};
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

use sampler::Viewer;

pub(crate) use sampler::{Sampler, Sources};

/// How soon a browser comes back when the stream broke.
const RETRY: Duration = Duration::from_secs(1);

type Parts = Map<String, Value>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(home))
        .route("/page/{version}/{*name}", get(assets::file))
        .route("/favicon.ico", get(assets::icon))
        .route("/v1/state/live", get(live))
        .route("/v1/state/history", get(history))
}

async fn home(
    State(shared): State<Arc<Shared>>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
    query: Result<Query<ViewQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    if !wants_json(&headers) {
        return Ok(assets::page(&headers));
    }
    // The page itself shows nothing; what it shows needs a caller.
    let detail = "authentication is required: use a token, a certificate or a login";
    let Extension(caller) =
        caller.ok_or_else(|| Problem::new(ErrorCode::NotAuthenticated, detail))?;
    caller.may_area("server")?;
    let view = parse(query)?;
    shared.sampler.read_jobs().await;
    let parts = blocking(move || {
        let _viewer = shared.sampler.view();
        shared.sampler.glance();
        render(&shared, &view, &caller)
    })
    .await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    Ok((headers, Value::Object(parts).to_string()).into_response())
}

/// The last hour, in steps of ten seconds.
async fn history(
    State(shared): State<Arc<Shared>>,
    params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    Ok(JsonAnswer(shared.sampler.history()))
}

async fn live(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<ViewQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let view = parse(query)?;
    let permit = stream_permit(&shared)?;
    let viewer = shared.sampler.view();
    let watching = Watching { shared, caller, view, viewer, known: None, _permit: permit };
    let changes = unfold(watching, |watching| async {
        let (event, watching) = watching.next().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    Ok(Sse::new(changes).keep_alive(KeepAlive::new()).into_response())
}

/// A viewer, and what it was sent last.
struct Watching {
    shared: Arc<Shared>,
    caller: Caller,
    view: View,
    viewer: Viewer,
    known: Option<Parts>,
    _permit: OwnedSemaphorePermit,
}

impl Watching {
    /// The state, and then what changed at each tick; `None` when the listener closes. A viewer
    /// that takes long gets fewer and larger changes, and nothing waits for it.
    async fn next(mut self) -> Option<(Event, Self)> {
        if self.known.is_some() {
            tokio::select! {
                () = self.viewer.tick() => {}
                () = self.shared.closed() => return None,
            }
        }
        let (shared, view) = (Arc::clone(&self.shared), self.view.clone());
        let mut caller = self.caller.clone();
        let is_first = self.known.is_none();
        if is_first {
            shared.sampler.read_jobs().await;
        }
        let rendered = blocking(move || {
            if is_first {
                shared.sampler.glance();
            }
            // Rights may have changed; a caller whose proof is not good any more ends elsewhere.
            let _ = caller.refresh();
            render(&shared, &view, &caller)
        });
        let parts = rendered.await.ok()?;
        let event = match &self.known {
            None => Event::default().event("full").retry(RETRY).data(text(&parts)),
            Some(known) => Event::default().event("delta").data(text(&delta::delta(known, &parts))),
        };
        self.known = Some(parts);
        Some((event, self))
    }
}

fn render(shared: &Shared, view: &View, caller: &Caller) -> Parts {
    document(&shared.broker, &shared.sampler, shared.since, (view, caller))
}

fn text(parts: &Parts) -> String {
    // A map of JSON values with text for keys is always JSON.
    serde_json::to_string(parts).unwrap_or_default()
}

fn parse(query: Result<Query<ViewQuery>, QueryRejection>) -> Result<View, Problem> {
    let Query(query) =
        query.map_err(|rejection| Problem::new(ErrorCode::BadPayload, rejection.body_text()))?;
    query.parse()
}

/// Whether JSON is wanted rather than the page: it must be named, since browsers and curl
/// take anything.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut json, mut html) = (0.0, 0.0);
    for each in accepted.flat_map(|value| value.split(',')) {
        let mut parts = each.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        match kind.as_str() {
            "application/json" => json = quality.unwrap_or(1.0),
            "text/html" | "application/xhtml+xml" => html = quality.unwrap_or(1.0),
            _ => {}
        }
    }
    json > html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_sent_to_those_who_name_it_and_do_not_prefer_the_page() {
        let wants = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().expect("a header"));
            wants_json(&headers)
        };
        assert!(wants("application/json"));
        assert!(wants("Application/JSON; charset=utf-8, */*;q=0.1"));
        assert!(wants("text/html;q=0.5, application/json;q=0.9"));
        assert!(!wants("*/*"));
        assert!(!wants("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(!wants("text/html, application/json;q=0.9"));
        assert!(!wants("application/json;q=0"));
        assert!(!wants_json(&HeaderMap::new()));
    }
}
