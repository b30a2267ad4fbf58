//! The paths of the first broker, as they were: `/topic/{name}/…`.
//!
//! Everything can be done from a browser's address bar, so `GET` changes things here; pages
//! of other origins are kept from that in [`origin`](crate::http::listener::origin). Subscribing is
//! where following is.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, FromRequest, Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::get;
use axum::{Json as JsonAnswer, Router};
use bytes::Bytes;
use gapless_auth::Caller;
use gapless_core::rights::Right;
use gapless_core::time::whole_ms;
use gapless_core::{Message, PublishOptions, Retention, TopicName, TopicSettings};
use gapless_protocol::ErrorCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::http::listener::body::{self, Whole};
use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::TopicPath;
use crate::http::values::params::{Params, switch_of};
use crate::http::values::problem::Problem;
use crate::http::values::publish::{ack_answer, publish};
use crate::json::message::CONTENT_TYPE;

/// How long messages are kept where retention is switched on without a time.
const RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/topic/{name}/create", get(create).post(create))
        .route("/topic/{name}/config", get(config).post(config))
        .route("/topic/{name}/push", get(push_by_address).post(push))
}

/// Retention and compaction, as they are asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    retention: Option<RetentionAsked>,
    retention_millis: Option<u64>,
    retention_bytes: Option<u64>,
    retention_count: Option<u64>,
    compaction: Option<bool>,
}

/// A switch, or a time in milliseconds.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "retention is true, false, or a time in milliseconds")]
enum RetentionAsked {
    Switch(bool),
    Millis(u64),
}

impl Asked {
    /// What the address asks for, and what the body does.
    async fn read(request: Request, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let mut params = Params::parse(request.uri().query().unwrap_or(""));
        let mut asked = Self::default();
        if request.method() == Method::POST {
            let Whole(bytes) = Whole::from_request(request, shared).await?;
            if !bytes.is_empty() {
                asked = body::parse(&bytes)?;
            }
        }
        if let Some(text) = params.text("retention")? {
            asked.retention = Some(match text.parse() {
                Ok(millis) => RetentionAsked::Millis(millis),
                Err(_) => RetentionAsked::Switch(switch_of("retention", &text)?),
            });
        }
        asked.retention_millis = params.number("retention_millis")?.or(asked.retention_millis);
        asked.retention_bytes = params.number("retention_bytes")?.or(asked.retention_bytes);
        asked.retention_count = params.number("retention_count")?.or(asked.retention_count);
        asked.compaction = params.switch("compaction")?.or(asked.compaction);
        params.finish()?;
        Ok(asked)
    }

    fn is_nothing(&self) -> bool {
        matches!(
            self,
            Self {
                retention: None,
                retention_millis: None,
                retention_bytes: None,
                retention_count: None,
                compaction: None,
            }
        )
    }

    fn apply(&self, mut settings: TopicSettings) -> TopicSettings {
        let retention = &mut settings.retention;
        match self.retention {
            Some(RetentionAsked::Switch(false)) => *retention = Retention::default(),
            Some(RetentionAsked::Switch(true)) if *retention == Retention::default() => {
                retention.age = Some(RETENTION_DEFAULT);
            }
            // On already.
            None | Some(RetentionAsked::Switch(true)) => {}
            Some(RetentionAsked::Millis(millis)) => {
                retention.age = Some(Duration::from_millis(millis));
            }
        }
        retention.age = self.retention_millis.map(Duration::from_millis).or(retention.age);
        retention.bytes = self.retention_bytes.or(retention.bytes);
        retention.count = self.retention_count.or(retention.count);
        match self.compaction {
            None => {}
            Some(false) => settings.compaction = None,
            Some(true) => {
                settings.compaction.get_or_insert_default();
            }
        }
        settings
    }
}

/// What is in force.
fn in_force(topic: &TopicName, settings: &TopicSettings) -> Value {
    let retention = &settings.retention;
    json!({
        "topic": topic.as_str(),
        "retention": *retention != Retention::default(),
        "retention_millis": retention.age.map(whole_ms),
        "retention_bytes": retention.bytes,
        "retention_count": retention.count,
        "compaction": settings.compaction.is_some(),
    })
}

async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(topic): TopicPath,
    request: Request,
) -> Result<JsonAnswer<Value>, Problem> {
    let asked = Asked::read(request, &shared).await?;
    let broker = shared.broker.clone();
    let info = blocking(move || match broker.describe_topic(&topic) {
        // A reload of the page gets the same answer again.
        Ok(info) if asked.is_nothing() => Ok(info),
        known => {
            if known.is_err() {
                caller.may_add_topic()?;
            }
            let settings = asked.apply(TopicSettings::default());
            broker.create_topic(&topic, settings).map_err(Problem::from)
        }
    })
    .await??;
    Ok(JsonAnswer(in_force(&info.name, &info.settings)))
}

async fn config(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(topic): TopicPath,
    request: Request,
) -> Result<JsonAnswer<Value>, Problem> {
    let asked = Asked::read(request, &shared).await?;
    let right = if asked.is_nothing() { Right::Read } else { Right::Configure };
    caller.may(right, &topic)?;
    let broker = shared.broker.clone();
    let info = blocking(move || {
        let before = broker.describe_topic(&topic)?;
        if asked.is_nothing() {
            return Ok(before);
        }
        broker.configure_topic(&topic, asked.apply(before.settings))
    })
    .await??;
    Ok(JsonAnswer(in_force(&info.name, &info.settings)))
}

/// A message as the source has it: any JSON, and perhaps a key. Without data it removes the
/// key (C5).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pushed<'a> {
    key: Option<Value>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

impl Pushed<'_> {
    fn into_message(self, share: impl Fn(&[u8]) -> Bytes) -> Result<Message, Problem> {
        let data = self.data.filter(|data| data.get() != "null");
        let mut message = match data {
            Some(data) => Message::new(share(data.get().as_bytes()))
                .with_header(CONTENT_TYPE, "application/json"),
            None => Message::default(),
        };
        message.key = match self.key {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) => Some(key.into()),
            Some(Value::Number(key)) => Some(key.to_string().into()),
            Some(_) => return Err(Problem::bad_request("a key is a text or a number")),
        };
        message.validate().map_err(|why| Problem::new(ErrorCode::InvalidPayload, why))?;
        Ok(message)
    }
}

async fn push(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(topic): TopicPath,
    params: Params,
    Whole(bytes): Whole,
) -> Result<Response, Problem> {
    params.finish()?;
    let pushed: Result<Pushed<'_>, _> = serde_json::from_slice(&bytes);
    let pushed = pushed.map_err(|why| {
        let detail = format!("send {{\"key\": …, \"data\": …}}: {}", body::in_words(&why));
        Problem::bad_request(detail).with("line", why.line()).with("column", why.column())
    })?;
    let message = pushed.into_message(|part| bytes.slice_ref(part))?;
    answer(&shared, &caller, &topic, message).await
}

async fn push_by_address(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(topic): TopicPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let text = params.bytes("message")?;
    let key = params.bytes("key")?;
    params.finish()?;
    let text = text.ok_or_else(|| Problem::bad_request("say what to push: ?message=…"))?;
    // In the form of the source, or else a plain text.
    let message = match serde_json::from_slice::<Pushed<'_>>(&text) {
        Ok(pushed) if text.starts_with(b"{") => pushed.into_message(|part| text.slice_ref(part))?,
        _ => Message::new(text),
    };
    let message = Message { key: key.or(message.key), ..message };
    answer(&shared, &caller, &topic, message).await
}

async fn answer(
    shared: &Shared,
    caller: &Caller,
    topic: &TopicName,
    message: Message,
) -> Result<Response, Problem> {
    caller.charge(1, message.body.as_ref().map_or(0, Bytes::len) as u64)?;
    let ack = publish(shared, topic, message, PublishOptions::default()).await?;
    Ok(ack_answer(topic, &ack, None))
}
