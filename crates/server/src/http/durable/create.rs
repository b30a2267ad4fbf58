//! Creating and deleting streams.
//!
//! The topic comes first, then its cell and first messages in one append. A crash between
//! them leaves a topic without a cell; the same PUT, sent again, then finishes the work, since PUT
//! also gives a type to topics that were created through other APIs. That changes what others
//! created, so it needs the rights to change it; `create` alone is enough for a new topic only.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use gapless_auth::Caller;
use gapless_broker::{Atomic, TopicError};
use gapless_core::rights::Right;
use gapless_core::{Records, TopicName, TopicSettings};
use gapless_protocol::ErrorCode;

use super::answer::{CLOSED, FORK, NEXT_OFFSET, Refusal, set};
use super::append::{is_closing, room};
use super::expiry::Expiry;
use super::media::MediaType;
use super::name::topic_of;
use super::offset::Offset;
use super::streams::{Change, Meta, Stream, find, remove};
use crate::answers;
use crate::http::listener::server::{Shared, blocking};
use crate::http::values::problem::Problem;

/// How often creation is retried because another request deletes the same stream meanwhile, or the
/// journal has no room.
const TRIES: usize = 8;

enum Made {
    New(Change),
    /// It is there, and as wanted.
    Same,
    Gone,
}

/// `PUT`: creates a stream, or says that it exists already.
pub(super) async fn create(
    shared: &Arc<Shared>,
    caller: &Caller,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, Refusal> {
    let name = topic_of(uri.path())?;
    if headers.keys().any(|name| name.as_str().starts_with(FORK)) {
        let why = "forks are not offered";
        return Err(Refusal::new(ErrorCode::NotOffered, StatusCode::NOT_IMPLEMENTED, why));
    }
    let media = MediaType::of(headers)?.unwrap_or_default();
    let expiry = Expiry::of(headers)?;
    let records = media.messages(body)?;
    let meta = Meta::new(&name, media, expiry, is_closing(headers));
    if let Some(records) = &records {
        caller.may(Right::Publish, &name).map_err(Problem::from)?;
        let messages = u64::from(records.count);
        caller.charge(messages, body.len() as u64).map_err(Problem::from)?;
    }
    // The number of the topic that this request created.
    let mut created = None;
    for _ in 0..TRIES {
        let stream = match find(shared, &name).await {
            Ok((stream, _)) => stream,
            Err(_) => {
                created = make_topic(shared, caller, &name).await?.or(created);
                find(shared, &name).await?.0
            }
        };
        if created != Some(stream.id) {
            may_declare(caller, &stream, &meta)?;
        }
        let status = match declare(shared, &stream, &meta, records.as_ref()) {
            Made::New(change) => {
                if !change.publishing.is_accepted() && room(shared, &change.publishing).await {
                    continue;
                }
                stream.done(change).await?;
                StatusCode::CREATED
            }
            Made::Same => {
                is_same(&stream, &meta)?;
                stream.settle(&shared.broker).await?;
                StatusCode::OK
            }
            Made::Gone => continue,
        };
        let place = find(shared, &name).await?.1;
        let mut response = status.into_response();
        let answer = response.headers_mut();
        set(answer, "content-type", stream.lock().meta.media.as_str());
        set(answer, NEXT_OFFSET, Offset { topic: stream.id, next: place.next });
        if meta.closed {
            set(answer, CLOSED, true);
        }
        if status == StatusCode::CREATED {
            set(answer, "location", location(uri, headers));
        }
        return Ok(response);
    }
    let why = "the stream is deleted again and again, or the journal has no room";
    Err(Problem::new(ErrorCode::Unavailable, why).into())
}

/// Creates the topic; its number, unless it was there.
async fn make_topic(
    shared: &Shared,
    caller: &Caller,
    name: &TopicName,
) -> Result<Option<u64>, Refusal> {
    let counted = caller.clone();
    blocking(move || counted.may_add_topic()).await?.map_err(Problem::from)?;
    let failed = |error: TopicError| Problem::from(answers::topic_error(&error));
    match shared.broker.creating_topic(name, TopicSettings::default()) {
        Ok(creating) => {
            let new = creating.new_id();
            creating.await.map_err(failed)?;
            Ok(new)
        }
        Err(TopicError::Exists(_)) => Ok(None),
        Err(error) => Err(failed(error).into()),
    }
}

/// Whether a stream that this request did not create may be given what it asks for. One that has its
/// cell stays as it is.
fn may_declare(caller: &Caller, stream: &Stream, meta: &Meta) -> Result<(), Problem> {
    if stream.lock().declared {
        return Ok(());
    }
    caller.may(Right::Configure, &stream.name)?;
    if meta.expiry != Expiry::Never {
        caller.may(Right::Delete, &stream.name)?;
    }
    Ok(())
}

/// Gives a topic its cell and first messages, unless it has one.
fn declare(shared: &Shared, stream: &Stream, meta: &Meta, records: Option<&Records>) -> Made {
    let mut state = stream.lock();
    if state.gone {
        return Made::Gone;
    }
    if state.declared {
        stream.used(&shared.broker, &mut state);
        return Made::Same;
    }
    let mut atomic = Atomic::new();
    if let Some(records) = records {
        atomic = atomic.publish_records(&stream.name, records.clone(), None);
    }
    let change = stream.commit(&shared.broker, &mut state, atomic, Some(meta.clone()));
    stream.used(&shared.broker, &mut state);
    let deadline = state.deadline().filter(|_| state.declared);
    drop(state);
    shared.durable.watch(stream, deadline);
    Made::New(change)
}

fn is_same(stream: &Stream, wanted: &Meta) -> Result<(), Refusal> {
    let state = stream.lock();
    let there = &state.meta;
    let differs = if !there.media.is_same(&wanted.media) {
        "another content type"
    } else if !there.expiry.is_same(&wanted.expiry) {
        "another time to live or end"
    } else if there.closed != wanted.closed {
        if there.closed { "been closed" } else { "not been closed" }
    } else {
        return Ok(());
    };
    let why = format!("the stream is there, and has {differs}");
    let mut refusal = Refusal::new(ErrorCode::TopicExists, StatusCode::CONFLICT, why);
    if there.closed {
        refusal = refusal.with(CLOSED, true);
    }
    Err(refusal)
}

/// The stream's own address, as the client spelled it.
fn location(uri: &Uri, headers: &HeaderMap) -> String {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = match text(header::HeaderName::from_static("x-forwarded-proto")) {
        Some("https") => "https",
        _ => "http",
    };
    match text(header::HOST) {
        Some(host) => format!("{scheme}://{host}{}", uri.path()),
        None => uri.path().to_owned(),
    }
}

/// `DELETE`: deletes a stream with all it holds.
pub(super) async fn delete(shared: &Arc<Shared>, uri: &Uri) -> Result<Response, Refusal> {
    let name = topic_of(uri.path())?;
    let (stream, _) = find(shared, &name).await?;
    remove(shared, &stream, false).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
