//! What monitoring asks: `/metrics`, `/healthz`, `/readyz`, `/about`; and the description of
//! all paths, `/openapi.json`.
//!
//! `/healthz` says that the process answers, `/readyz` that it takes messages. The second is
//! a problem while the store is being opened, and for good once its journal has failed.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gapless_broker::BrokerState;
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::answers::{journal_json, state_name};
use crate::cluster;
use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;
use crate::http::watch::metrics;

/// The description of all paths, as a test holds it against the running server.
const OPENAPI: &str = include_str!("../../../../../docs/openapi.json");

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics::show))
        .route("/about", get(about))
        .route("/v1/server", get(server))
        .route("/v1/cluster", get(cluster_status))
        .route("/v1/cluster/leave", post(cluster_leave))
        .route("/openapi.json", get(openapi))
}

/// The paths about a node of a cluster, whichever node owns the store.
pub(crate) fn routes_of_node() -> Router<Arc<Shared>> {
    Router::new()
        .route("/metrics", get(metrics::show))
        .route("/about", get(about))
        .route("/v1/cluster", get(cluster_status))
        .route("/v1/cluster/leave", post(cluster_leave))
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

pub(crate) async fn healthz() -> &'static str {
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

pub(crate) async fn openapi() -> Response {
    let json = HeaderValue::from_static("application/json");
    (StatusCode::OK, [(header::CONTENT_TYPE, json)], OPENAPI).into_response()
}

async fn about(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(about_json(&shared))
}

/// The server's version and state.
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

async fn cluster_status(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(cluster::status(&shared.broker))
}

async fn cluster_leave(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(cluster::leave(&shared.broker))
}
