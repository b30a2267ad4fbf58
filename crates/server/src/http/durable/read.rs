//! Reading streams: what there is, and waiting for more (`live=long-poll`).
//!
//! A reader asks by offset, and gets messages from there on, up to a limit. Offsets stand
//! between messages, so no answer ends inside one. What is gone is reported (410), never skipped.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use gapless_broker::{Delivery, FollowError, From as Begin, Messages, Subscription, TopicPlace};
use gapless_core::{Pattern, Seq};
use gapless_protocol::ErrorCode;

use super::answer::{CLOSED, CURSOR, NEXT_OFFSET, Refusal, UP_TO_DATE, set, unknown};
use super::expiry::{EXPIRES_AT, Expiry, TTL};
use super::name::topic_of;
use super::offset::{Asked, Live, Offset, Start, cursor};
use super::sse;
use super::streams::{Stream, find};
use crate::answers;
use crate::http::listener::server::{Shared, blocking};
use crate::http::values::problem::Problem;

/// Bytes of messages in one answer: past it the answer ends after the message that is under
/// way, so it may have one message more.
const ANSWER_BYTES: usize = 1024 * 1024;

/// How long an answer may take to be read from history.
const READ_WAIT: Duration = Duration::from_secs(30);

/// For answers that can only grow: a cache has to ask again.
const ASK_AGAIN: &str = "private, no-cache";

/// For answers that never change. Private, since the server does not know whether a stream is
/// public.
const KEEP: &str = "private, max-age=60, stale-while-revalidate=300";

const NEVER_KEEP: &str = "no-store";

/// Messages of a stream, up to `next`.
pub(super) struct Chunk {
    pub(super) bodies: Vec<Bytes>,
    pub(super) next: Seq,
    bytes: usize,
}

impl Chunk {
    pub(super) fn at(next: Seq) -> Self {
        Self { bodies: Vec::new(), next, bytes: 0 }
    }

    /// Takes messages until there are enough.
    fn take(&mut self, messages: &Messages) {
        self.take_up_to(messages, ANSWER_BYTES);
    }

    /// Takes all messages of a step.
    pub(super) fn take_all(&mut self, messages: &Messages) {
        self.take_up_to(messages, usize::MAX);
    }

    fn take_up_to(&mut self, messages: &Messages, bytes_max: usize) {
        for message in messages.iter() {
            if self.bytes >= bytes_max {
                return;
            }
            if let Some(body) = message.message.body {
                self.bytes += body.len();
                self.bodies.push(body);
            }
            self.next = message.seq.next();
        }
        // Past what was compacted or has expired at the end.
        self.next = messages.to().next();
    }

    fn is_full(&self) -> bool {
        self.bytes >= ANSWER_BYTES
    }
}

/// `HEAD`: what a stream is, and where it ends. It counts as no use.
pub(super) async fn head(shared: &Arc<Shared>, uri: &Uri) -> Result<Response, Refusal> {
    let name = topic_of(uri.path())?;
    let (stream, _) = find(shared, &name).await?;
    let closed = stream.is_closed(&shared.broker).await?;
    let place = find(shared, &name).await?.1;
    let mut response = StatusCode::OK.into_response();
    let headers = response.headers_mut();
    let state = stream.lock();
    set(headers, "content-type", state.meta.media.as_str());
    set(headers, NEXT_OFFSET, Offset { topic: stream.id, next: place.next });
    set(headers, "cache-control", NEVER_KEEP);
    match &state.meta.expiry {
        Expiry::Never => {}
        Expiry::Idle { secs } => set(headers, TTL, secs),
        Expiry::At { text, .. } => set(headers, EXPIRES_AT, text),
    }
    if closed {
        set(headers, CLOSED, true);
    }
    Ok(response)
}

/// `GET`: reads a stream.
pub(super) async fn read(
    shared: &Arc<Shared>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    let name = topic_of(uri.path())?;
    let asked = Asked::parse(uri.query().unwrap_or_default())?;
    let (stream, _) = find(shared, &name).await?;
    stream.used(&shared.broker, &mut stream.lock());
    // In this order: once it is closed, nothing comes behind what is there now.
    let closed = stream.is_closed(&shared.broker).await?;
    let place = find(shared, &name).await?.1;
    let from = begin(&asked, &stream, place)?;
    match asked.live {
        Live::Sse => sse::open(shared, &stream, from, &asked).await,
        Live::LongPoll if from >= place.next && !closed => {
            long_poll(shared, &stream, from, &asked).await
        }
        _ => {
            let may_skip = asked.start == Start::Beginning;
            let chunk = if is_known(headers, &tag(&stream, from, place.next, closed)) {
                // The reader has all of it: no look-up is needed.
                Chunk::at(place.next)
            } else {
                let reading = catch_up(shared, &stream, (from, place.next), may_skip);
                let late = |_| Problem::new(ErrorCode::TimedOut, "history was not read in time");
                tokio::time::timeout(READ_WAIT, reading).await.map_err(late)??
            };
            let up_to_date = chunk.next >= place.next;
            Ok(answer(shared, &stream, &asked, headers, (from, &chunk), up_to_date, closed))
        }
    }
}

/// The first seq that a reader wants.
fn begin(asked: &Asked, stream: &Stream, place: TopicPlace) -> Result<Seq, Refusal> {
    let offset = match asked.start {
        Start::Beginning => return Ok(place.first),
        Start::Now => return Ok(place.next),
        Start::At(offset) => offset,
    };
    if offset.topic < stream.id {
        return Err(gone(stream, place.first, "the offset is one of a stream that was deleted"));
    }
    if offset.topic > stream.id || offset.next > place.next {
        let why = "the offset is not there yet: use one that an answer gave";
        return Err(Refusal::new(ErrorCode::Ahead, StatusCode::BAD_REQUEST, why));
    }
    if offset.next < place.first {
        let why = "what stood there is gone: it was older than the stream keeps";
        return Err(gone(stream, place.first, why));
    }
    Ok(offset.next)
}

/// That a place can no longer be read, and the first one that can.
fn gone(stream: &Stream, first: Seq, why: &str) -> Refusal {
    let refusal = Refusal::new(ErrorCode::TopicDeleted, StatusCode::GONE, why);
    refusal.with(NEXT_OFFSET, Offset { topic: stream.id, next: first })
}

/// Subscribes to the topic of this very stream.
pub(super) async fn subscribe(
    shared: &Shared,
    stream: &Stream,
    from: Seq,
) -> Result<Subscription, Refusal> {
    let (broker, name, id) = (shared.broker.clone(), stream.name.clone(), stream.id);
    let made = blocking(move || {
        let made = broker.subscribe(&Pattern::literal(&name), Begin::Seq(from));
        // Looked at after subscribing, so that no other topic of the name can be in between.
        let is_same = broker.topic_place(&name).is_ok_and(|place| place.id == id);
        (made, is_same)
    });
    match made.await? {
        (_, false) => Err(unknown()),
        (Ok(subscription), true) => Ok(subscription),
        (Err(error), true) => Err(Problem::from(answers::subscribe_error(&error)).into()),
    }
}

pub(super) fn follow_refusal(error: &FollowError) -> Refusal {
    match error {
        FollowError::Deleted(_) => unknown(),
        error => Problem::from(answers::follow_error(error)).into(),
    }
}

/// Messages from a place on that are there, up to the limit of an answer.
async fn catch_up(
    shared: &Shared,
    stream: &Stream,
    (from, end): (Seq, Seq),
    may_skip: bool,
) -> Result<Chunk, Refusal> {
    let mut chunk = Chunk::at(from);
    if from >= end {
        return Ok(chunk);
    }
    let mut subscription = subscribe(shared, stream, from).await?;
    while chunk.next < end && !chunk.is_full() {
        match subscription.next().await {
            Ok(Delivery::Messages(messages)) => chunk.take(&messages),
            Ok(Delivery::Gap(gap)) => {
                let after = gap.to.map_or(chunk.next, Seq::next);
                if chunk.bodies.is_empty() && !may_skip {
                    let why = format!("what stood there is gone: {}", gap.reason.name());
                    return Err(gone(stream, after, &why));
                }
                if !chunk.bodies.is_empty() {
                    break;
                }
                chunk.next = after;
            }
            Ok(Delivery::Recovering { .. } | Delivery::Live) => {}
            Err(error) => return Err(follow_refusal(&error)),
        }
    }
    Ok(chunk)
}

/// Waits for messages behind the end of a stream.
async fn long_poll(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    from: Seq,
    asked: &Asked,
) -> Result<Response, Refusal> {
    let Ok(_permit) = shared.streams.try_acquire() else { return Err(too_many()) };
    let mut changed = stream.changed.subscribe();
    let mut subscription = subscribe(shared, stream, from).await?;
    let mut chunk = Chunk::at(from);
    let waiting = async {
        // Once before waiting: it may have been closed since it was looked at.
        while !stream.is_closed(&shared.broker).await? || is_behind(shared, stream, from)? {
            tokio::select! {
                delivery = subscription.next() => match delivery {
                    Ok(Delivery::Messages(messages)) => {
                        chunk.take(&messages);
                        return Ok(());
                    }
                    Ok(Delivery::Gap(_)) => return Ok(()),
                    Ok(Delivery::Recovering { .. } | Delivery::Live) => {}
                    Err(error) => return Err(follow_refusal(&error)),
                },
                _ = changed.changed() => {}
                () = shared.closed() => return Ok(()),
            }
        }
        Ok(())
    };
    if let Ok(waited) = tokio::time::timeout(shared.options.long_poll, waiting).await {
        waited?;
    }
    stream.used(&shared.broker, &mut stream.lock());
    let closed = stream.is_closed(&shared.broker).await?;
    let place = find(shared, &stream.name).await?.1;
    let up_to_date = chunk.next >= place.next;
    Ok(answer(shared, stream, asked, &HeaderMap::new(), (from, &chunk), up_to_date, closed))
}

/// Whether there is something to read at a place.
pub(super) fn is_behind(shared: &Shared, stream: &Stream, at: Seq) -> Result<bool, Refusal> {
    let place = shared.broker.topic_place(&stream.name).map_err(|_| unknown())?;
    Ok(at < place.next)
}

pub(super) fn too_many() -> Refusal {
    let why = "there are as many open streams as there may be: come back later";
    Problem::new(ErrorCode::TooManySubscriptions, why).into()
}

/// The tag of an answer. What lies between two offsets never changes; closing changes the
/// answer without a byte more.
fn tag(stream: &Stream, from: Seq, next: Seq, closed: bool) -> String {
    let end = if closed { "closed" } else { "open" };
    format!("\"{:x}-{:x}-{:x}-{end}\"", stream.id, from.0, next.0)
}

/// Whether a request says that its sender has the answer with this tag.
fn is_known(request: &HeaderMap, tag: &str) -> bool {
    let known = request.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    known.is_some_and(|known| {
        known.split(',').any(|each| each.trim().trim_start_matches("W/") == tag)
    })
}

/// Messages as an answer, or that there are none.
fn answer(
    shared: &Shared,
    stream: &Stream,
    asked: &Asked,
    request: &HeaderMap,
    (from, chunk): (Seq, &Chunk),
    up_to_date: bool,
    closed: bool,
) -> Response {
    let live = asked.live != Live::No;
    let media = stream.lock().meta.media.clone();
    let closed = closed && up_to_date;
    let tag = tag(stream, from, chunk.next, closed);
    let nothing = live && chunk.bodies.is_empty();
    let mut response = if is_known(request, &tag) && asked.start != Start::Now {
        StatusCode::NOT_MODIFIED.into_response()
    } else if nothing {
        StatusCode::NO_CONTENT.into_response()
    } else {
        let mut response = Response::new(Body::from(media.body(&chunk.bodies)));
        set(response.headers_mut(), "content-type", media.as_str());
        response
    };
    let headers = response.headers_mut();
    let keep = match asked.start {
        Start::Now => NEVER_KEEP,
        _ if nothing => NEVER_KEEP,
        _ if live || !up_to_date => KEEP,
        _ => ASK_AGAIN,
    };
    set(headers, "cache-control", keep);
    if asked.start != Start::Now && !nothing {
        set(headers, "etag", tag);
    }
    set(headers, NEXT_OFFSET, Offset { topic: stream.id, next: chunk.next });
    if up_to_date {
        set(headers, UP_TO_DATE, true);
    }
    if closed {
        set(headers, CLOSED, true);
    } else if live {
        set(headers, CURSOR, cursor(shared.broker.now(), asked.cursor));
    }
    response
}
