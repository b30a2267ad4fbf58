//! Following topics and patterns: Server-Sent Events and WebSocket.
//!
//! The same paths answer both: a request to upgrade gets a WebSocket. Closing the stream
//! unsubscribes (C1). What is sent is in `events`, how it looks in `sse` and `websocket`.

mod events;
mod sse;
pub(crate) mod start;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::get;
use gapless_broker::{From, Subscription, TopicError};
use gapless_core::{Pattern, TopicName, TopicSettings};
use gapless_protocol::ErrorCode;
use serde::Deserialize;

use crate::answers::{subscribe_error, topic_error};
use crate::http::event_stream::{KeepAlive, event_stream, stream_permit};
use crate::http::follow::events::Events;
use crate::http::follow::sse::{Format, SseFeed};
use crate::http::problem::Problem;
use crate::http::server::Shared;

/// The longest time between two comments that keep a stream alive, in seconds.
const KEEP_ALIVE_SECS_MAX: u64 = 3600;

/// The longest comment that keeps a stream alive, in bytes.
const KEEP_ALIVE_TEXT_BYTES_MAX: usize = 256;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/topic/{name}/subscribe", get(follow_topic))
        .route("/v1/topics/{name}/follow", get(follow_topic))
        .route("/v1/follow", get(follow_pattern))
}

/// What axum makes of the headers of a WebSocket, which most requests do not have.
type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// What may be asked for behind the `?`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct FollowQuery {
    pattern: Option<String>,
    from: Option<String>,
    #[serde(default)]
    format: Format,
    keep_alive_secs: Option<u64>,
    keep_alive_text: Option<String>,
    /// Create the topic if it is missing.
    #[serde(default)]
    anyway: bool,
}

impl FollowQuery {
    fn keep_alive(&self) -> Result<KeepAlive, Problem> {
        if self.keep_alive_secs.is_none() && self.keep_alive_text.is_none() {
            return Ok(KeepAlive::default());
        }
        let secs = self.keep_alive_secs.unwrap_or(KeepAlive::default().every.as_secs());
        if !(1..=KEEP_ALIVE_SECS_MAX).contains(&secs) {
            let detail = format!("keep_alive_secs goes from 1 to {KEEP_ALIVE_SECS_MAX}");
            return Err(refused("keep_alive_secs", detail));
        }
        let text = self.keep_alive_text.as_deref().unwrap_or("keep-alive");
        if text.len() > KEEP_ALIVE_TEXT_BYTES_MAX {
            let detail = format!("keep_alive_text has at most {KEEP_ALIVE_TEXT_BYTES_MAX} bytes");
            return Err(refused("keep_alive_text", detail));
        }
        Ok(KeepAlive::new(Duration::from_secs(secs), text))
    }
}

fn refused(parameter: &str, detail: impl std::fmt::Display) -> Problem {
    Problem::new(ErrorCode::BadPayload, detail).with("parameter", parameter)
}

async fn follow_topic(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    query: Result<Query<FollowQuery>, QueryRejection>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let query = parsed(query)?;
    let name = TopicName::parse(&name)
        .map_err(|failed| Problem::new(ErrorCode::InvalidTopic, failed).with("topic", name))?;
    follow(shared, Wanted::Topic(name), &query, &headers, upgrade).await
}

async fn follow_pattern(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<FollowQuery>, QueryRejection>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let query = parsed(query)?;
    let text = query.pattern.as_deref().ok_or_else(|| {
        refused("pattern", "say what to follow: ?pattern=orders.created or ?pattern=orders.%3E")
    })?;
    let pattern = Pattern::parse(text)
        .map_err(|failed| Problem::new(ErrorCode::BadPattern, failed).with("pattern", text))?;
    follow(shared, Wanted::Pattern(pattern), &query, &headers, upgrade).await
}

fn parsed(query: Result<Query<FollowQuery>, QueryRejection>) -> Result<FollowQuery, Problem> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(Problem::new(ErrorCode::BadPayload, rejection.body_text())),
    }
}

/// What is to be followed.
#[derive(Clone, Debug)]
enum Wanted {
    /// A topic that must be there, or be made.
    Topic(TopicName),
    /// Whatever matches, now and later.
    Pattern(Pattern),
}

async fn follow(
    shared: Arc<Shared>,
    wanted: Wanted,
    query: &FollowQuery,
    headers: &HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let keep_alive = query.keep_alive()?;
    let upgrade = websocket_of(upgrade, headers, &shared)?;
    let from = start::start(headers, query.from.as_deref())?;
    let permit = stream_permit(&shared)?;
    let subscription = subscribe(&shared, wanted, from, query.anyway).await?;
    let events = Events::new(subscription);
    if let Some(upgrade) = upgrade {
        let every = keep_alive.every;
        return Ok(websocket::upgrade(upgrade, shared, permit, every, events));
    }
    let mut feed = SseFeed::new(events, query.format);
    if matches!(from, From::Now | From::Time(_)) {
        feed = feed.telling_place();
    }
    Ok(event_stream(shared, permit, keep_alive, feed))
}

/// The WebSocket, if the request asks for one.
fn websocket_of(
    upgrade: Upgrade,
    headers: &HeaderMap,
    shared: &Shared,
) -> Result<Option<WebSocketUpgrade>, Problem> {
    // Some clients offer other protocols, and are content when that is ignored.
    let asked = headers
        .get(header::UPGRADE)
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !asked {
        return Ok(None);
    }
    websocket::check_origin(headers, &shared.options)?;
    upgrade.map(Some).map_err(|refused| {
        Problem::new(ErrorCode::BadPayload, refused.body_text()).with_status(refused.status())
    })
}

/// Makes a subscription, on a thread where it may wait for the disk.
async fn subscribe(
    shared: &Arc<Shared>,
    wanted: Wanted,
    from: From,
    anyway: bool,
) -> Result<Subscription, Problem> {
    let broker = shared.broker.clone();
    let task = tokio::task::spawn_blocking(move || {
        let pattern = match wanted {
            Wanted::Pattern(pattern) => pattern,
            Wanted::Topic(name) => {
                match broker.describe_topic(&name) {
                    Ok(_) => {}
                    Err(TopicError::Unknown(_)) if anyway => {
                        let made = broker.create_topic(&name, TopicSettings::default());
                        made.map_err(|failed| Problem::from(topic_error(&failed)))?;
                    }
                    Err(failed) => return Err(topic_error(&failed).into()),
                }
                Pattern::literal(&name)
            }
        };
        broker.subscribe(&pattern, from).map_err(|failed| Problem::from(subscribe_error(&failed)))
    });
    // It can only fail by a panic, which is told where it happened.
    task.await.map_err(|failed| Problem::new(ErrorCode::Internal, failed))?
}
