//! Appending to streams and closing them.
//!
//! All that can refuse an append is looked at under the stream's lock, and the append is put
//! into the journal under the same lock, together with the cells that make it count once.
//! The ack is awaited outside.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use gapless_auth::Caller;
use gapless_broker::{Atomic, Publishing};
use gapless_core::rights::Right;
use gapless_core::{Records, RejectReason};
use gapless_protocol::ErrorCode;

use super::answer::{CLOSED, NEXT_OFFSET, Refusal, STREAM_SEQ, set, unknown};
use super::media::MediaType;
use super::name::topic_of;
use super::offset::Offset;
use super::producer::{EPOCH, EXPECTED, Place, Producer, RECEIVED, SEQ, Verdict, judge};
use super::streams::{Change, State, Stream, find};
use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;

/// Most bytes of a `Stream-Seq`.
const STREAM_SEQ_BYTES_MAX: usize = 256;

/// How often an append is tried while the journal has no room.
const TRIES: usize = 4;

/// How long an append waits for room in the journal, each time.
const ROOM_WAIT: Duration = Duration::from_secs(2);

/// An append as it came.
struct Append {
    media: Option<MediaType>,
    body: Bytes,
    producer: Option<Producer>,
    stream_seq: Option<String>,
    close: bool,
}

enum Taken {
    /// It is on its way to the disk.
    New(Change),
    /// Its producer sent it before, and this is the newest of that producer.
    Duplicate(Place),
    /// The stream was closed already, which is all that was asked for.
    ClosedBefore,
}

/// Wakes live readers of a stream that was closed, also when the request that waited for the ack is
/// gone.
struct WakeReaders<'a>(&'a Stream);

impl Drop for WakeReaders<'_> {
    fn drop(&mut self) {
        self.0.changed.send_replace(());
    }
}

/// Whether a request closes the stream.
pub(super) fn is_closing(headers: &HeaderMap) -> bool {
    headers.get(CLOSED).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

/// Waits a while for room in the journal, if that is what an append lacked.
pub(super) async fn room(shared: &Shared, publishing: &Publishing) -> bool {
    let full = publishing.rejected_with() == Some(RejectReason::QueueFull);
    full && tokio::time::timeout(ROOM_WAIT, shared.broker.room()).await.is_ok()
}

/// `POST`: appends to a stream, closes it, or both.
pub(super) async fn append(
    shared: &Arc<Shared>,
    caller: &Caller,
    uri: &Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let name = topic_of(uri.path())?;
    let append = Append::of(headers, body)?;
    let (stream, _) = find(shared, &name).await?;
    if append.close && !stream.lock().declared {
        // To close a stream is its writers' part; here it makes one of another protocol's topic.
        caller.may(Right::Configure, &name).map_err(Problem::from)?;
    }
    let records = append.records(&stream)?;
    let messages = records.as_ref().map_or(1, |records| u64::from(records.count));
    caller.charge(messages, append.body.len() as u64).map_err(Problem::from)?;
    let mut tries = 0;
    let taken = loop {
        tries += 1;
        let taken = match take(shared, &stream, &append, records.as_ref()) {
            Ok(taken) => taken,
            Err(refusal) => {
                // What it is refused for may be on its way to the disk only.
                stream.settle(&shared.broker).await?;
                return Err(refusal);
            }
        };
        match &taken {
            Taken::New(change)
                if tries < TRIES
                    && !change.publishing.is_accepted()
                    && room(shared, &change.publishing).await => {}
            _ => break taken,
        }
    };
    let mut status = StatusCode::NO_CONTENT;
    let mut place = append.producer.as_ref().map(|producer| producer.place);
    let mut next = None;
    match taken {
        Taken::New(change) => {
            let _wake = append.close.then(|| WakeReaders(&stream));
            let accepted = stream.done(change).await?;
            if records.is_some() {
                next = Some(accepted.last.next());
                if append.producer.is_some() {
                    status = StatusCode::OK;
                }
            }
        }
        Taken::Duplicate(newest) => {
            place = Some(newest);
            stream.settle(&shared.broker).await?;
        }
        Taken::ClosedBefore => stream.settle(&shared.broker).await?,
    }
    let next = match next {
        Some(next) => next,
        None => find(shared, &name).await?.1.next,
    };
    let mut response = status.into_response();
    let answer = response.headers_mut();
    set(answer, NEXT_OFFSET, Offset { topic: stream.id, next });
    if stream.is_closed(&shared.broker).await? {
        set(answer, CLOSED, true);
    }
    if let Some(place) = place {
        set(answer, EPOCH, place.epoch);
        set(answer, SEQ, place.seq);
    }
    Ok(response)
}

impl Append {
    fn of(headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        let bad = |why: &str| Problem::new(ErrorCode::BadRequest, why);
        let producer = Producer::of(headers)?;
        let close = is_closing(headers);
        if body.is_empty() && !close {
            return Err(bad("the body is empty, and Stream-Closed: true is not there either"));
        }
        let media = MediaType::of(headers)?;
        if media.is_none() && !body.is_empty() {
            return Err(bad("the Content-Type is missing; it must be the stream's"));
        }
        let stream_seq = match headers.get(STREAM_SEQ) {
            None => None,
            Some(value) => match value.to_str() {
                Ok(text) if (1..=STREAM_SEQ_BYTES_MAX).contains(&text.len()) => {
                    Some(text.to_owned())
                }
                _ => return Err(bad("Stream-Seq is 1 to 256 visible ASCII characters")),
            },
        };
        Ok(Self { media, body, producer, stream_seq, close })
    }

    /// The messages of the body, if the stream takes what it is; none if it only closes.
    fn records(&self, stream: &Stream) -> Result<Option<Records>, Refusal> {
        if self.body.is_empty() {
            return Ok(None);
        }
        let media = stream.lock().meta.media.clone();
        if !self.media.as_ref().is_some_and(|own| own.is_same(&media)) {
            let why = format!("the stream is {}, and the body is not", media.as_str());
            return Err(Refusal::new(ErrorCode::BadRequest, StatusCode::CONFLICT, why));
        }
        match media.messages(&self.body)? {
            Some(records) => Ok(Some(records)),
            None => Err(Problem::new(ErrorCode::BadRequest, "the body holds no message").into()),
        }
    }
}

/// Takes an append, or says why not. One step: nothing else happens to the stream meanwhile.
fn take(
    shared: &Shared,
    stream: &Stream,
    append: &Append,
    records: Option<&Records>,
) -> Result<Taken, Refusal> {
    let broker = &shared.broker;
    let mut state = stream.lock();
    if state.gone {
        return Err(unknown());
    }
    let mut is_new_producer = false;
    if let Some(producer) = &append.producer {
        let known = stream.producer(broker, &producer.id);
        is_new_producer = known.is_none();
        match judge(known, producer.place) {
            Verdict::Duplicate(newest) => {
                stream.used(broker, &mut state);
                return Ok(Taken::Duplicate(newest));
            }
            Verdict::Stale { epoch } => {
                let why = format!("the producer has begun epoch {epoch}");
                let refusal = Refusal::new(ErrorCode::Fenced, StatusCode::FORBIDDEN, why);
                return Err(refusal.with(EPOCH, epoch));
            }
            _ if state.meta.closed => return Err(closed(shared, stream)),
            Verdict::NotZero => {
                let why = "a new epoch of a producer begins with Producer-Seq 0";
                return Err(Problem::new(ErrorCode::BadRequest, why).into());
            }
            Verdict::Gap { expected } => {
                let received = producer.place.seq;
                let why = format!("expected Producer-Seq {expected}, and {received} came");
                let refusal = Refusal::new(ErrorCode::ExpectedSeq, StatusCode::CONFLICT, why);
                return Err(refusal.with(EXPECTED, expected).with(RECEIVED, received));
            }
            Verdict::New => {}
        }
    } else if state.meta.closed {
        if append.close && records.is_none() {
            return Ok(Taken::ClosedBefore);
        }
        return Err(closed(shared, stream));
    }
    if let (Some(came), Some(last)) = (&append.stream_seq, &state.meta.stream_seq)
        && came <= last
    {
        let why = format!("Stream-Seq must rise; the last was {last:?}");
        return Err(Refusal::new(ErrorCode::ExpectedSeq, StatusCode::CONFLICT, why));
    }
    if is_new_producer {
        state.count_producer()?;
    }
    let change = put(shared, stream, &mut state, append, records);
    if !change.publishing.is_accepted() && is_new_producer {
        state.uncount_producer();
    }
    stream.used(broker, &mut state);
    Ok(Taken::New(change))
}

/// Puts an append that nothing speaks against into the journal.
fn put(
    shared: &Shared,
    stream: &Stream,
    state: &mut State,
    append: &Append,
    records: Option<&Records>,
) -> Change {
    let mut atomic = Atomic::new();
    if let Some(records) = records {
        atomic = atomic.publish_records(&stream.name, records.clone(), None);
    }
    if let Some(producer) = &append.producer {
        atomic = stream.with_producer(atomic, &producer.id, producer.place);
    }
    // A producer's cell without the stream's would outlive the topic unnoticed.
    let undeclared = append.producer.is_some() && !state.declared;
    if !append.close && append.stream_seq.is_none() && !undeclared {
        return Stream::commit_plain(&shared.broker, state, atomic);
    }
    let mut meta = state.meta.clone();
    meta.closed |= append.close;
    if append.stream_seq.is_some() {
        meta.stream_seq.clone_from(&append.stream_seq);
    }
    stream.commit(&shared.broker, state, atomic, Some(meta))
}

fn closed(shared: &Shared, stream: &Stream) -> Refusal {
    let why = "the stream is closed";
    let refusal = Refusal::new(ErrorCode::ExpectedSeq, StatusCode::CONFLICT, why);
    let refusal = refusal.with(CLOSED, true);
    match shared.broker.topic_place(&stream.name) {
        Ok(place) => refusal.with(NEXT_OFFSET, Offset { topic: stream.id, next: place.next }),
        Err(_) => refusal,
    }
}
