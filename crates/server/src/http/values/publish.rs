//! What a publish asks for beside its body, and what it is answered.
//!
//! Everything can be given in the address or in headers, whichever suits the client: `key` or
//! `Gapless-Key`, and so on. What is given in both is refused, and so is a header of ours that
//! does not exist: a misspelt condition must not publish without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use gapless_auth::Caller;
use gapless_broker::{Broker, Publishing, Reporting};
use gapless_core::cluster::DeliveryReport;
use gapless_core::rights::Right;
use gapless_core::trace::{TRACEPARENT, TraceContext};
use gapless_core::{
    Accepted, DeliveryPolicy, Durability, Expect, Message, PartitionBehavior, Position, PublishAck,
    PublishOptions, RejectReason, Seq, Timestamp, TopicName, TopicSettings,
};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::listener::server::{Shared, blocking};
use crate::http::values::incoming::KEY_MISSING;
use crate::http::values::params::{Params, number_of, switch_of, text_of};
use crate::http::values::problem::Problem;
use crate::json::message::CONTENT_TYPE;

/// What a tracing system adds to a `traceparent`.
const TRACESTATE: &str = "tracestate";

/// What the names of all our headers begin with.
const PREFIX: &str = "gapless-";
/// What the names of a message's own headers begin with.
pub(crate) const HEADER_PREFIX: &str = "gapless-header-";

/// How like a known header (1 is the same) another must be to be taken for its misspelling.
const LIKENESS_MIN: f64 = 0.8;

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
        let mut given = Given::new(headers, params);
        if given.is_nothing() && !headers.contains_key(header::CONTENT_TYPE) {
            return Ok(Self::default());
        }
        let mut wishes = Self::options(&mut given)?;
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
        let report = given.text("report")?.map(|word| switch_of("report", &word)).transpose()?;
        wishes.options.report = report.unwrap_or(false);
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            message.headers.push((CONTENT_TYPE.into(), share(kind)));
        }
        for (name, value) in headers {
            if let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) {
                message.headers.push((name.into(), share(value)));
            }
        }
        carry_trace(headers, message);
        for pair in given.params.every("header") {
            let at = pair
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(|| Problem::bad_request("a header is given as header=name=value"))?;
            message.headers.push((text_of("header", &pair[..at])?, pair.slice(at + 1..)));
        }
        given.finish(|name| name.starts_with(HEADER_PREFIX))?;
        message.validate_parts()?;
        if message.key.is_none() && key_last.is_some() {
            return Err(Problem::bad_request(KEY_MISSING));
        }
        Ok(wishes)
    }

    /// Reads what a request says about all its messages together.
    pub(crate) fn read_options(headers: &HeaderMap, params: &mut Params) -> Result<Self, Problem> {
        let mut given = Given::new(headers, params);
        let wishes = Self::options(&mut given)?;
        given.finish(|_| false)?;
        Ok(wishes)
    }

    fn options(given: &mut Given<'_>) -> Result<Self, Problem> {
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
        if let Some(word) = given.text("delivery")? {
            let delivery = DeliveryPolicy::from_name(&word).ok_or_else(|| {
                Problem::bad_request("delivery is one of at-most-once and at-least-once")
            })?;
            wishes.options.delivery = Some(delivery);
        }
        if let Some(word) = given.text("partition")? {
            let partition = PartitionBehavior::from_name(&word)
                .ok_or_else(|| Problem::bad_request("partition is one of delay-queue and drop"))?;
            wishes.options.partition = Some(partition);
        }
        wishes.create = given.params.switch("create")?.unwrap_or(false);
        Ok(wishes)
    }
}

/// Takes the trace of a request over to its message, unless the message has one of its own.
fn carry_trace(headers: &HeaderMap, message: &mut Message) {
    let parent = headers.get(TRACEPARENT).filter(|_| message.header(TRACEPARENT).is_none());
    let is_one = |value: &&HeaderValue| TraceContext::parse(value.as_bytes()).is_some();
    let Some(parent) = parent.filter(is_one) else { return };
    message.headers.push((TRACEPARENT.into(), share(parent)));
    if let Some(state) = headers.get(TRACESTATE) {
        message.headers.push((TRACESTATE.into(), share(state)));
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

/// Refuses our headers on all paths that do not read them, where they would have no effect.
pub(crate) fn check_headers<B>(request: &Request<B>) -> Result<(), Problem> {
    let Some(name) = request.headers().keys().find(|name| is_ours(name)) else { return Ok(()) };
    let path = request.uri().path().strip_prefix("/v1/topics/");
    let topic = path.and_then(|path| path.strip_suffix("/messages"));
    let reads = request.method() == Method::POST && topic.is_some_and(|name| !name.contains('/'));
    if reads {
        return Ok(());
    }
    Err(Problem::bad_request(format_args!(
        "the header `{}` has no effect here, only with POST /v1/topics/{{name}}/messages",
        shown(name.as_str())
    )))
}

/// The parameters and headers of a request, asked together.
struct Given<'a> {
    headers: &'a HeaderMap,
    params: &'a mut Params,
    /// Whether the request has headers of ours at all; most have none.
    has_ours: bool,
    /// What was asked for.
    known: Vec<&'static str>,
}

impl<'a> Given<'a> {
    fn new(headers: &'a HeaderMap, params: &'a mut Params) -> Self {
        let has_ours = headers.keys().any(is_ours);
        Self { headers, params, has_ours, known: Vec::new() }
    }

    /// Whether nothing of ours is asked for.
    fn is_nothing(&self) -> bool {
        !self.has_ours && self.params.is_empty()
    }

    fn bytes(&mut self, name: &'static str) -> Result<Option<Bytes>, Problem> {
        let in_address = self.params.bytes(name)?;
        if !self.has_ours {
            return Ok(in_address);
        }
        self.known.push(name);
        let header = header_of(name);
        let mut values = self.headers.get_all(&header).iter();
        let (first, second) = (values.next().map(share), values.next());
        let header = shown(&header);
        if second.is_some() {
            let detail = format!("the header `{header}` is given more than once");
            return Err(Problem::bad_request(detail));
        }
        one_of(name, in_address, &header, first)
    }

    /// That no header of ours is left over but those that `others` knows.
    fn finish(self, others: impl Fn(&str) -> bool) -> Result<(), Problem> {
        let known: Vec<String> = self.known.iter().map(|name| header_of(name)).collect();
        let is_left = |name: &&HeaderName| {
            is_ours(name)
                && !others(name.as_str())
                && !known.iter().any(|known| name.as_str() == known)
        };
        let Some(left) = self.headers.keys().find(is_left) else { return Ok(()) };
        let likeness = |known: &&String| {
            strsim::jaro_winkler(&known[PREFIX.len()..], &left.as_str()[PREFIX.len()..])
        };
        let likest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let hint = match likest.filter(|known| likeness(known) >= LIKENESS_MIN) {
            Some(meant) => format!("did you mean `{}`?", shown(meant)),
            None => {
                let known: Vec<String> = known.iter().map(|known| shown(known)).collect();
                format!("these are: {}", known.join(", "))
            }
        };
        let left = shown(left.as_str());
        Err(Problem::bad_request(format_args!("there is no header `{left}` here; {hint}")))
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        self.bytes(name)?.map(|value| text_of(name, &value)).transpose()
    }

    fn number(&mut self, name: &'static str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        number_of(name, &text).map(Some)
    }
}

fn share(value: &HeaderValue) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with(PREFIX)
}

/// The header that stands for a parameter.
fn header_of(parameter: &str) -> String {
    format!("{PREFIX}{}", parameter.replace('_', "-"))
}

/// A header's name as people write it.
fn shown(name: &str) -> String {
    let words = name.split('-').map(|word| match word.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    });
    words.collect::<Vec<_>>().join("-")
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
    Ok(publish_reported(shared, topic, message, options).await?.0)
}

/// As [`publish`], with the report that was asked for.
pub(crate) async fn publish_reported(
    shared: &Shared,
    topic: &TopicName,
    message: Message,
    options: PublishOptions,
) -> Result<(PublishAck, Option<Reporting>), Problem> {
    let message = Arc::new(message);
    let starting = || start(&shared.broker, topic, &message, options);
    let mut publishing = with_room(&shared.broker, starting).await?;
    let report = publishing.take_report();
    let others = Counted::one_more(&shared.publishing);
    if others.others > 0 {
        // One write or flush is for all of them, and none does its own.
        publishing.gather();
    }
    let ack = match publishing.await? {
        PublishAck::Rejected(reason) => return Err(rejected(&shared.broker, topic, reason)),
        PublishAck::Accepted(accepted) if accepted.duplicate => {
            let position = position_of(&shared.broker, topic, accepted.last).await?;
            PublishAck::Accepted(Accepted { position, ..accepted })
        }
        ack => ack,
    };
    Ok((ack, report))
}

/// That a publish waits for its durability, for as long as it is held.
struct Counted<'a> {
    all: &'a AtomicUsize,
    /// How many did when it began.
    others: usize,
}

impl<'a> Counted<'a> {
    fn one_more(all: &'a AtomicUsize) -> Self {
        Self { all, others: all.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a message is that was published before; 0 if it is gone, or cannot be read now.
async fn position_of(broker: &Broker, topic: &TopicName, seq: Seq) -> Result<Position, Problem> {
    let (broker, topic) = (broker.clone(), topic.clone());
    let found = blocking(move || broker.read(&topic, seq)).await?;
    Ok(found.ok().flatten().map_or(Position(0), |found| found.position))
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
async fn with_room<F>(broker: &Broker, mut start: impl FnMut() -> F) -> Result<Publishing, Problem>
where
    F: Future<Output = Result<Publishing, Problem>>,
{
    let publishing = start().await?;
    if !publishing.needs_room() {
        return Ok(publishing);
    }
    let trying = async {
        loop {
            broker.room().await;
            let publishing = start().await?;
            if !publishing.needs_room() {
                return Ok(publishing);
            }
        }
    };
    let full = || Err(RejectReason::QueueFull.into());
    tokio::time::timeout(ROOM_WAIT, trying).await.unwrap_or_else(|_| full())
}

/// The problem of a refused publish. A topic that does not exist has no followers either: then
/// that is the reason.
pub(crate) fn rejected(broker: &Broker, topic: &TopicName, reason: RejectReason) -> Problem {
    let missing = match reason {
        RejectReason::UnknownTopic => true,
        RejectReason::NoSubscribers => !broker.has_topic(topic),
        _ => false,
    };
    if !missing {
        return reason.into();
    }
    unknown_topic(topic)
}

/// That a topic does not exist, and what creates it.
pub(crate) fn unknown_topic(topic: &TopicName) -> Problem {
    Problem::new(
        ErrorCode::UnknownTopic,
        format_args!(
            "there is no topic {topic}; PUT /v1/topics/{topic} creates it, and so does publishing \
             with POST /v1/topics/{topic}/messages?create=true"
        ),
    )
}

/// Creates the topic if it does not exist.
pub(crate) async fn create_if_missing(caller: Caller, topic: &TopicName) -> Result<(), Problem> {
    let topic = topic.clone();
    blocking(move || {
        let broker = caller.broker();
        if !broker.has_topic(&topic) {
            caller.may(Right::Create, &topic)?;
            caller.may_add_topic()?;
            broker.create_topic(&topic, TopicSettings::default())?;
        }
        Ok(())
    })
    .await?
}

/// Where the last message of an ack is; `null` if it was published before and is not looked up,
/// or gone.
pub(crate) fn position_json(accepted: &Accepted) -> Value {
    let unknown = accepted.duplicate && accepted.position == Position(0);
    if unknown { Value::Null } else { accepted.position.0.into() }
}

/// The ack of one message.
pub(crate) fn ack_json(topic: &TopicName, ack: &PublishAck) -> Value {
    match ack {
        PublishAck::Accepted(accepted) => json!({
            "topic": topic.as_str(),
            "seq": accepted.last.0,
            "position": position_json(accepted),
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

/// The ack as an answer: accepted, known already, or scheduled. With a report, if there is one.
pub(crate) fn ack_answer(
    topic: &TopicName,
    ack: &PublishAck,
    report: Option<&DeliveryReport>,
) -> Response {
    let status = match ack {
        PublishAck::Accepted(accepted) if accepted.duplicate => StatusCode::OK,
        PublishAck::Accepted(_) => StatusCode::CREATED,
        _ => StatusCode::ACCEPTED,
    };
    if let (PublishAck::Accepted(accepted), None) = (ack, report) {
        let json = HeaderValue::from_static("application/json");
        return (status, [(header::CONTENT_TYPE, json)], accepted_json(topic, accepted))
            .into_response();
    }
    let mut answer = ack_json(topic, ack);
    if let Some(report) = report {
        answer["report"] = crate::json::report(report);
    }
    (status, axum::Json(answer)).into_response()
}

/// The same bytes as [`ack_json`] has, without a tree of values.
fn accepted_json(topic: &TopicName, accepted: &Accepted) -> String {
    let position = position_json(accepted);
    let topic = Value::from(topic.as_str());
    let Accepted { last, durability, duplicate, .. } = accepted;
    format!(
        r#"{{"duplicate":{duplicate},"durability":"{}","position":{position},"seq":{},"topic":{topic}}}"#,
        durability.name(),
        last.0
    )
}
