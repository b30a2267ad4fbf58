//! `POST /v1/request/{name}`: sends a request to those who follow a subject, and answers with the
//! first reply.
//!
//! The request is a message with the subject of its answer in the header `reply-to`; that subject is
//! followed before it is sent. Nothing is sent to a subject that has no followers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::header;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use gapless_auth::Caller;
use gapless_broker::{Delivered, Delivery, From, Subscription};
use gapless_core::{Message, Pattern, PublishAck, PublishOptions, RejectReason, TopicName};
use gapless_protocol::ErrorCode;

use crate::answers::follow_error;
use crate::http::follow::event_stream::stream_permit;
use crate::http::listener::body;
use crate::http::listener::server::Shared;
use crate::http::topics::TopicPath;
use crate::http::topics::messages::raw;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;
use crate::http::values::publish::publish;
use crate::json::message::CONTENT_TYPE;

/// The header of a request that names the subject of its answer.
const REPLY_TO: &str = "reply-to";
/// What the subjects of answers begin with.
const REPLIES: &str = "_reply";
/// How long an answer is waited for, unless the request says otherwise.
const WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// How long it may be waited for.
const WAIT_MAX_MS: u64 = 300_000;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/request/{name}", post(request))
}

async fn request(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(subject): TopicPath,
    mut params: Params,
    request: Request,
) -> Result<Response, Problem> {
    let wait = match params.number::<u64>("timeout_ms")? {
        Some(ms @ 1..=WAIT_MAX_MS) => Duration::from_millis(ms),
        Some(_) => {
            let detail = format!("timeout_ms goes from 1 to {WAIT_MAX_MS}");
            return Err(Problem::bad_request(detail).with("parameter", "timeout_ms"));
        }
        None => WAIT_DEFAULT,
    };
    params.finish()?;
    // Those who wait for answers are counted with those who follow.
    let _permit = stream_permit(&shared)?;
    let kind = request.headers().get(header::CONTENT_TYPE).cloned();
    let bytes = body::read(request.into_body(), &shared).await?;
    caller.charge(1, bytes.len() as u64)?;
    let reply_to = reply_subject();
    let mut message = Message::new(bytes);
    let value = Bytes::copy_from_slice(reply_to.as_str().as_bytes());
    message.headers.push((REPLY_TO.to_owned(), value));
    if let Some(kind) = kind {
        let kind = Bytes::copy_from_slice(kind.as_bytes());
        message.headers.push((CONTENT_TYPE.to_owned(), kind));
    }
    let mut answers = shared.broker.subscribe(&Pattern::literal(&reply_to), From::Now)?;
    let asking = async {
        let options =
            PublishOptions { require_subscribers: Some(true), ..PublishOptions::default() };
        send(&shared, &subject, message, options).await?;
        first(&mut answers).await
    };
    let late = || {
        let detail = format!("no answer came in {} ms; it may be carried out", wait.as_millis());
        Err(Problem::new(ErrorCode::TimedOut, detail))
    };
    let answer = tokio::time::timeout(wait, asking).await.unwrap_or_else(|_| late())?;
    Ok(raw(answer))
}

async fn send(
    shared: &Shared,
    subject: &TopicName,
    message: Message,
    options: PublishOptions,
) -> Result<PublishAck, Problem> {
    if !shared.broker.has_topic(subject) {
        // Said here, so that it is not taken for a misspelt topic.
        let publishing = shared.broker.publish(subject, &message, &options);
        if publishing.rejected_with() == Some(RejectReason::NoSubscribers) {
            let detail = format!("there is no responder: nothing follows {subject}");
            return Err(Problem::new(ErrorCode::NoSubscribers, detail));
        }
        return Ok(publishing.await?);
    }
    publish(shared, subject, message, options).await
}

async fn first(answers: &mut Subscription) -> Result<Delivered, Problem> {
    loop {
        let next = answers.next().await.map_err(|ended| Problem::from(follow_error(&ended)))?;
        if let Delivery::Messages(messages) = next
            && let Some(answer) = messages.iter().next()
        {
            return Ok(answer);
        }
    }
}

/// A subject for one answer, which cannot be guessed.
fn reply_subject() -> TopicName {
    let random = [(); 2].map(|()| gapless_broker::random_epoch().0);
    let name = format!("{REPLIES}.{:016x}{:016x}", random[0], random[1]);
    TopicName::parse(&name).expect("letters and digits are a name")
}
