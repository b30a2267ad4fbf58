//! What monitoring asks: `/metrics`, `/healthz`, `/readyz`, `/about`; and the description of
//! all paths, `/openapi.json`.
//!
//! `/healthz` says that the process answers, `/readyz` that it takes messages. The second is
//! a problem while the store is being opened, and for good once its journal has failed.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use gapless_broker::{Broker, BrokerState};
use gapless_core::Pattern;
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::answers::{journal_json, state_name};
use crate::http::problem::Problem;
use crate::http::server::{Shared, blocking};

/// The description of all paths, as a test holds it against the running server.
const OPENAPI: &str = include_str!("../../../../docs/openapi.json");

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/about", get(about))
        .route("/v1/server", get(server))
        .route("/openapi.json", get(openapi))
}

/// The paths that are answered while the store is being opened.
pub(crate) fn routes_before_opening() -> Router {
    let opening = || async {
        Problem::new(ErrorCode::NotStarted, "the store is being opened; ask again in a moment")
    };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/openapi.json", get(openapi))
        .fallback(opening)
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Result<&'static str, Problem> {
    match shared.broker.state() {
        BrokerState::Listening | BrokerState::Online => Ok("ready\n"),
        BrokerState::Starting => Err(Problem::new(ErrorCode::NotStarted, "the store is opening")),
        BrokerState::Error => Err(Problem::new(
            ErrorCode::Poisoned,
            "the journal has failed or is closed; start the server again",
        )),
    }
}

async fn openapi() -> Response {
    let json = HeaderValue::from_static("application/json");
    (StatusCode::OK, [(header::CONTENT_TYPE, json)], OPENAPI).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let Some(recorder) = shared.metrics.clone() else {
        let detail = "no recorder of metrics is installed in this process";
        return Err(Problem::new(ErrorCode::NotOffered, detail).with_status(StatusCode::NOT_FOUND));
    };
    let memory = &shared.options.memory;
    metrics::gauge!("gapless_memory_bytes").set(memory.used() as f64);
    metrics::gauge!("gapless_memory_bytes_max").set(memory.bytes_max() as f64);
    let (broker, max) = (shared.broker.clone(), shared.options.metrics_topics_max);
    let text = blocking(move || {
        let mut text = recorder.render();
        put_topics(&mut text, &broker, max);
        text
    });
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text.await?).into_response())
}

/// Numbers of each topic, as long as there are not too many for whoever keeps them.
fn put_topics(text: &mut String, broker: &Broker, max: usize) {
    let everything = Pattern::parse(">").expect("`>` is a pattern");
    let topics = broker.list_topics(&everything);
    let left_out = if topics.len() > max { topics.len() } else { 0 };
    let mut gauge = |name: &str, help: &str, rows: &mut dyn Iterator<Item = (String, u64)>| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in rows {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    gauge(
        "gapless_topics_left_out",
        "topics without metrics of their own, because they are too many",
        &mut [(String::new(), left_out as u64)].into_iter(),
    );
    if left_out > 0 {
        return;
    }
    let label = |name: &str| {
        // A name has no control characters, and no backslash.
        format!("{{topic=\"{}\"}}", name.replace('"', "\\\""))
    };
    let mut each = |name: &str, help: &str, value: &dyn Fn(&gapless_broker::TopicInfo) -> u64| {
        let rows = topics.iter().map(|topic| (label(topic.name.as_str()), value(topic)));
        gauge(name, help, &mut rows.into_iter());
    };
    each("gapless_topic_first_seq", "first seq that can be read", &|topic| topic.first.0);
    each("gapless_topic_next_seq", "next seq", &|topic| topic.next.0);
    each("gapless_topic_bytes", "bytes kept, about", &|topic| topic.bytes);
}

async fn about(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(about_json(&shared))
}

/// Who this is and how it is.
pub(crate) fn about_json(shared: &Shared) -> Value {
    let broker = &shared.broker;
    json!({
        "name": "gapless",
        "version": env!("CARGO_PKG_VERSION"),
        "state": state_name(broker.state()),
        "epoch": broker.epoch().to_string(),
        "time_ms": broker.now().0,
        "since_ms": shared.since.0,
    })
}

async fn server(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let broker = &shared.broker;
    let journal = broker.journal_stats();
    let mut value = about_json(&shared);
    value["subscriptions"] = broker.subscribers().len().into();
    value["delayed"] = broker.delayed_len().into();
    value["streams"] = (shared.options.streams_max - shared.streams.available_permits()).into();
    value["journal"] = journal_json(&journal);
    value["journal"]["waiting_bytes"] = journal.waiting_bytes.into();
    value["journal"]["recovery_waiting"] = journal.recovery_waiting.into();
    Json(value)
}
