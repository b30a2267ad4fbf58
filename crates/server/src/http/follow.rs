//! Following topics and patterns: Server-Sent Events and WebSocket.
//!
//! The same paths answer both: a request to upgrade gets a WebSocket. Closing the stream
//! unsubscribes (C1). What is sent is in `events`, how it looks in `sse` and `websocket`.

pub(crate) mod event_stream;
mod events;
mod sse;
pub(crate) mod start;
mod upgrade;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use gapless_auth::Caller;
use gapless_broker::{Broker, From, Subscription, TopicError};
use gapless_core::cluster::Identity;
use gapless_core::rights::Right;
use gapless_core::{Pattern, TopicName, TopicSettings};
use gapless_protocol::{AWAIT_VISIBLE_MS_MAX, ErrorCode};

use crate::cluster;
use crate::http::follow::event_stream::{KeepAlive, event_stream, stream_permit};
use crate::http::follow::events::Events;
use crate::http::follow::sse::{Format, SseFeed};
use crate::http::follow::upgrade::Upgrade;
use crate::http::listener::server::{Peer, Shared, blocking};
use crate::http::topics::pattern_of;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

/// The longest time between two comments that keep a stream alive, in seconds.
const KEEP_ALIVE_SECS_MAX: u64 = 3600;

/// How much of what a client calls itself is kept, in characters.
const AGENT_CHARS_MAX: usize = 64;

/// The longest comment that keeps a stream alive, in bytes.
const KEEP_ALIVE_TEXT_BYTES_MAX: usize = 256;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/topic/{name}/subscribe", get(follow_topic))
        .route("/v1/topics/{name}/follow", get(follow_topic))
        .route("/v1/follow", get(follow_pattern))
}

async fn follow_topic(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    mut params: Params,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let name = TopicName::parse(&name)
        .map_err(|failed| Problem::new(ErrorCode::InvalidTopic, failed).with("topic", name))?;
    let anyway = params.switch("anyway")?.unwrap_or(false);
    let asked = Asked::read(params, &headers, &peer)?;
    let (creator, identity) = (caller.clone(), asked.identity.clone());
    follow(shared, caller, asked, upgrade, move |broker, from| {
        match broker.describe_topic(&name) {
            Ok(_) => {}
            Err(TopicError::Unknown(_)) if anyway => {
                creator.may(Right::Create, &name)?;
                creator.may_add_topic()?;
                broker.create_topic(&name, TopicSettings::default())?;
            }
            Err(failed) => return Err(failed.into()),
        }
        subscribe(broker, &Pattern::literal(&name), from, identity.as_ref())
    })
    .await
}

async fn follow_pattern(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    mut params: Params,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let text = params.text("pattern")?.ok_or_else(|| {
        let detail = "say what to follow: ?pattern=orders.created or ?pattern=orders.%3E";
        refused("pattern", detail)
    })?;
    let pattern = pattern_of(&text)?;
    caller.may_all(Right::Subscribe, &pattern)?;
    let asked = Asked::read(params, &headers, &peer)?;
    let identity = asked.identity.clone();
    let begin = move |broker: &Broker, from| subscribe(broker, &pattern, from, identity.as_ref());
    follow(shared, caller, asked, upgrade, begin).await
}

fn subscribe(
    broker: &Broker,
    pattern: &Pattern,
    from: From,
    identity: Option<&Identity>,
) -> Result<Subscription, Problem> {
    Ok(match identity {
        Some(identity) => broker.subscribe_named(identity, pattern)?,
        None => broker.subscribe(pattern, from)?,
    })
}

/// The parameters of topics and patterns alike.
struct Asked {
    from: From,
    /// The name under which it follows.
    identity: Option<Identity>,
    format: Format,
    keep_alive: KeepAlive,
    /// How long to wait until all nodes of the cluster know it.
    await_visible: Option<Duration>,
    /// The client: its address, and the name it gave.
    peer: String,
    agent: String,
}

impl Asked {
    fn read(mut params: Params, headers: &HeaderMap, peer: &Peer) -> Result<Self, Problem> {
        let identity: Option<Identity> = params.parsed("identity")?;
        let begin = params.text("from")?;
        let from = start::start(headers, begin.as_deref())?;
        // Without a word an identity goes on where it stopped.
        let goes_on = begin.is_none() || matches!(from, From::Now | From::Token(_));
        if identity.is_some() && !goes_on {
            let detail = "an identity goes on where it stopped: leave out `from`";
            return Err(refused("from", detail));
        }
        let format = params.parsed("format")?.unwrap_or_default();
        let keep_alive = keep_alive(&mut params)?;
        let await_visible = await_visible(&mut params)?;
        params.finish()?;
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let agent = agent.unwrap_or_default().chars().take(AGENT_CHARS_MAX).collect();
        let peer = peer.address.to_string();
        Ok(Self { from, identity, format, keep_alive, await_visible, peer, agent })
    }
}

fn keep_alive(params: &mut Params) -> Result<KeepAlive, Problem> {
    let (secs, text) = (params.number("keep_alive_secs")?, params.text("keep_alive_text")?);
    if secs.is_none() && text.is_none() {
        return Ok(KeepAlive::default());
    }
    let secs = secs.unwrap_or(KeepAlive::default().every.as_secs());
    if !(1..=KEEP_ALIVE_SECS_MAX).contains(&secs) {
        let detail = format!("keep_alive_secs goes from 1 to {KEEP_ALIVE_SECS_MAX}");
        return Err(refused("keep_alive_secs", detail));
    }
    let text = text.as_deref().unwrap_or("keep-alive");
    if text.len() > KEEP_ALIVE_TEXT_BYTES_MAX {
        let detail = format!("keep_alive_text has at most {KEEP_ALIVE_TEXT_BYTES_MAX} bytes");
        return Err(refused("keep_alive_text", detail));
    }
    Ok(KeepAlive::new(Duration::from_secs(secs), text))
}

fn await_visible(params: &mut Params) -> Result<Option<Duration>, Problem> {
    let wait = params.number("await_visible_ms")?;
    if wait.is_some_and(|wait| wait > AWAIT_VISIBLE_MS_MAX.into()) {
        let detail = format!("await_visible_ms goes from 0 to {AWAIT_VISIBLE_MS_MAX}");
        return Err(refused("await_visible_ms", detail));
    }
    Ok(wait.map(Duration::from_millis))
}

fn refused(parameter: &str, detail: impl std::fmt::Display) -> Problem {
    Problem::bad_request(detail).with("parameter", parameter)
}

/// Subscribes where waiting for the disk is allowed, and answers with the stream.
async fn follow(
    shared: Arc<Shared>,
    caller: Caller,
    asked: Asked,
    upgrade: Upgrade,
    subscribe: impl FnOnce(&Broker, From) -> Result<Subscription, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    if let Some(identity) = &asked.identity {
        caller.may_follow_as(identity.as_str())?;
    }
    let permit = stream_permit(&shared)?;
    let held = caller.follow()?;
    let (broker, from) = (shared.broker.clone(), asked.from);
    let subscription = blocking(move || subscribe(&broker, from)).await??;
    let session = shared.sessions.new_session(asked.peer, shared.broker.now());
    session.rename(asked.agent);
    let follows = (subscription.id(), subscription.follows_topic());
    let seat = shared.sessions.seat(session, follows);
    let awaited = asked.await_visible.map(|wait| Box::pin(cluster::visible(&caller, wait)) as _);
    let events = Events::new(subscription, (seat, held)).awaiting(awaited);
    if upgrade.is_asked() {
        let every = asked.keep_alive.every;
        return websocket::accept(upgrade, (shared, caller), permit, every, events);
    }
    let mut feed = SseFeed::new(events, asked.format, shared.options.memory.clone());
    if matches!(from, From::Now | From::Time(_)) {
        feed = feed.telling_place();
    }
    Ok(event_stream(shared, permit, asked.keep_alive, feed))
}
