//! Creating and deleting streams.
//!
//! The topic comes first, then its cell and first messages in one append. A crash between
//! them leaves a topic without a cell; the same PUT, sent again, then finishes the work, since PUT
//! also gives a type to topics that were created through other APIs.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use gapless_broker::{Atomic, TopicError};
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
use crate::http::problem::Problem;
use crate::http::server::{Shared, blocking};

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
    for _ in 0..TRIES {
        let stream = match find(shared, &name).await {
            Ok((stream, _)) => stream,
            Err(_) => {
                make_topic(shared, &name).await?;
                find(shared, &name).await?.0
            }
        };
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

async fn make_topic(shared: &Arc<Shared>, name: &TopicName) -> Result<(), Refusal> {
    let (broker, name) = (shared.broker.clone(), name.clone());
    let made = blocking(move || broker.create_topic(&name, TopicSettings::default()).map(drop));
    match made.await? {
        Ok(()) | Err(TopicError::Exists(_)) => Ok(()),
        Err(error) => Err(Problem::from(answers::topic_error(&error)).into()),
    }
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
