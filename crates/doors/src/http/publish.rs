//! What a publish asks for beside its body, and what it is answered.
//!
//! Everything can be said in the address or in headers, whichever suits the client: `key` or
//! `Gapless-Key`, and so on. What is said twice is taken from the address.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use gapless_broker::{Broker, Publishing};
use gapless_core::{
    Durability, Expect, Message, PublishAck, PublishOptions, RejectReason, Seq, Timestamp,
    TopicName, TopicSettings,
};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::params::{Params, switch_of, text_of};
use crate::http::problem::Problem;
use crate::http::server::{Shared, blocking};
use crate::http::shown::CONTENT_TYPE;

/// What the names of all our headers begin with.
const PREFIX: &str = "gapless-";
/// What the names of a message's own headers begin with.
pub(crate) const HEADER_PREFIX: &str = "gapless-header-";

/// How long a publish waits for room in the journal before it is refused with `QueueFull`.
const ROOM_WAIT: Duration = Duration::from_secs(2);

/// What a publish asks for, beside its body.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// A message without a body.
    pub(crate) message: Message,
    pub(crate) options: PublishOptions,
    /// Whether to create the topic if it is not there.
    pub(crate) create: bool,
}

impl Wishes {
    /// Reads what a request says about the message that is its body.
    pub(crate) fn read(
        headers: &HeaderMap,
        params: &mut Params,
        now: Timestamp,
    ) -> Result<Self, Problem> {
        let mut wishes = Self::read_options(headers, params)?;
        let mut given = Given { headers, params };
        let message = &mut wishes.message;
        message.key = given.bytes("key")?;
        message.id = given.bytes("id")?;
        message.ttl = given.number("ttl_ms")?.map(Duration::from_millis);
        let delay = given.number("delay_ms")?.map(|ms| now.after(Duration::from_millis(ms)));
        let at = given.number("at_ms")?.map(Timestamp);
        message.not_before = one_of("delay_ms", delay, "at_ms", at)?;
        let topic_last = given.number("expect_seq")?.map(|seq| Expect::TopicLast(Seq(seq)));
        let key_last = given.number("expect_key_seq")?.map(|seq| Expect::KeyLast(Seq(seq)));
        wishes.options.expect = one_of("expect_seq", topic_last, "expect_key_seq", key_last)?;
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            message.headers.push((CONTENT_TYPE.into(), share(kind)));
        }
        for (name, value) in headers {
            if let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) {
                message.headers.push((name.into(), share(value)));
            }
        }
        for pair in given.params.every("header") {
            let at = pair
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(|| Problem::bad_request("a header is given as header=name=value"))?;
            message.headers.push((text_of("header", &pair[..at])?, pair.slice(at + 1..)));
        }
        message.validate_parts()?;
        Ok(wishes)
    }

    /// Reads what a request says about all its messages together.
    pub(crate) fn read_options(headers: &HeaderMap, params: &mut Params) -> Result<Self, Problem> {
        let mut given = Given { headers, params };
        let mut wishes = Self::default();
        if let Some(word) = given.text("durability")? {
            let durability = Durability::from_name(&word).ok_or_else(|| {
                Problem::bad_request("durability is one of memory, written and flushed")
            })?;
            wishes.options.durability = Some(durability);
        }
        if let Some(word) = given.text("require_subscribers")? {
            wishes.options.require_subscribers = Some(switch_of("require_subscribers", &word)?);
        }
        wishes.create = given.params.switch("create")?.unwrap_or(false);
        Ok(wishes)
    }
}

trait ValidateParts {
    fn validate_parts(&self) -> Result<(), Problem>;
}

impl ValidateParts for Message {
    /// Whether all but the body, which is yet to come, keeps its limits.
    fn validate_parts(&self) -> Result<(), Problem> {
        let with_body = Self { body: Some(Bytes::new()), ..self.clone() };
        with_body.validate().map_err(|why| Problem::new(ErrorCode::InvalidPayload, why))
    }
}

/// The parameters and headers of a request, asked together.
struct Given<'a> {
    headers: &'a HeaderMap,
    params: &'a mut Params,
}

impl Given<'_> {
    fn bytes(&mut self, name: &'static str) -> Result<Option<Bytes>, Problem> {
        if let Some(value) = self.params.bytes(name)? {
            return Ok(Some(value));
        }
        let header = format!("{PREFIX}{}", name.replace('_', "-"));
        let header = HeaderName::from_bytes(header.as_bytes()).expect("our names are names");
        Ok(self.headers.get(header).map(share))
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        self.bytes(name)?.map(|value| text_of(name, &value)).transpose()
    }

    fn number(&mut self, name: &'static str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.parse().map_err(|_| {
            Problem::bad_request(format_args!("`{name}` is {text:?}; it is a whole number"))
        });
        number.map(Some)
    }
}

fn share(value: &axum::http::HeaderValue) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

/// The one of two that was given.
pub(crate) fn one_of<T>(
    first_name: &str,
    first: Option<T>,
    second_name: &str,
    second: Option<T>,
) -> Result<Option<T>, Problem> {
    match (first, second) {
        (Some(_), Some(_)) => Err(Problem::bad_request(format_args!(
            "give `{first_name}` or `{second_name}`, not both"
        ))),
        (first, second) => Ok(first.or(second)),
    }
}

/// Publishes one message, and waits for room and for its durability.
pub(crate) async fn publish(
    shared: &Shared,
    topic: &TopicName,
    message: Message,
    options: PublishOptions,
) -> Result<PublishAck, Problem> {
    let message = Arc::new(message);
    let ack = with_room(&shared.broker, || start(&shared.broker, topic, &message, options)).await?;
    match ack {
        PublishAck::Rejected(reason) => Err(rejected(&shared.broker, topic, reason)),
        ack => Ok(ack),
    }
}

async fn start(
    broker: &Broker,
    topic: &TopicName,
    message: &Arc<Message>,
    options: PublishOptions,
) -> Result<Publishing, Problem> {
    // What the newest of a key is may have to be looked up on the disk.
    if !matches!(options.expect, Some(Expect::KeyLast(_))) {
        return Ok(broker.publish(topic, message, &options));
    }
    let (broker, topic, message) = (broker.clone(), topic.clone(), Arc::clone(message));
    blocking(move || broker.publish(&topic, &message, &options)).await
}

/// Starts a publish until the journal has room for it or too much time has passed.
pub(crate) async fn with_room<F>(
    broker: &Broker,
    mut start: impl FnMut() -> F,
) -> Result<PublishAck, Problem>
where
    F: Future<Output = Result<Publishing, Problem>>,
{
    let trying = async {
        loop {
            let publishing = start().await?;
            if publishing.rejected_with() != Some(RejectReason::QueueFull) {
                return Ok(publishing.await?);
            }
            broker.room().await;
        }
    };
    let full = || Err(RejectReason::QueueFull.into());
    tokio::time::timeout(ROOM_WAIT, trying).await.unwrap_or_else(|_| full())
}

/// The problem of a refused publish. Nobody follows a topic that is not there: then that is
/// what must be said.
pub(crate) fn rejected(broker: &Broker, topic: &TopicName, reason: RejectReason) -> Problem {
    let missing = match reason {
        RejectReason::UnknownTopic => true,
        RejectReason::NoSubscribers => broker.describe_topic(topic).is_err(),
        _ => false,
    };
    if !missing {
        return reason.into();
    }
    Problem::new(
        ErrorCode::UnknownTopic,
        format_args!(
            "there is no topic {topic}; make it with PUT /v1/topics/{topic}, or add create=true"
        ),
    )
}

/// Makes the topic if it is not there.
pub(crate) async fn create_if_missing(shared: &Shared, topic: &TopicName) -> Result<(), Problem> {
    let (broker, topic) = (shared.broker.clone(), topic.clone());
    blocking(move || {
        if broker.describe_topic(&topic).is_err() {
            broker.create_topic(&topic, TopicSettings::default())?;
        }
        Ok(())
    })
    .await?
}

/// The ack of one message.
pub(crate) fn ack_json(topic: &TopicName, ack: &PublishAck) -> Value {
    match ack {
        PublishAck::Accepted(accepted) => json!({
            "topic": topic.as_str(),
            "seq": accepted.last.0,
            "position": accepted.position.0,
            "durability": accepted.durability.name(),
            "duplicate": accepted.duplicate,
        }),
        PublishAck::Scheduled { id, due } => json!({
            "topic": topic.as_str(),
            "delayed": id.0,
            "due_ms": due.0,
        }),
        PublishAck::Rejected(reason) => Problem::from(*reason).to_json(),
    }
}

/// The ack as an answer: made, there already, or taken for later.
pub(crate) fn ack_answer(topic: &TopicName, ack: &PublishAck) -> Response {
    let status = match ack {
        PublishAck::Accepted(accepted) if accepted.duplicate => StatusCode::OK,
        PublishAck::Accepted(_) => StatusCode::CREATED,
        _ => StatusCode::ACCEPTED,
    };
    (status, axum::Json(ack_json(topic, ack))).into_response()
}
