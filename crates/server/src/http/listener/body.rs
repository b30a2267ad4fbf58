//! The body of a request: within its size, within its time, within the memory of all.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use gapless_protocol::ErrorCode;
use hyper::body::{Frame, SizeHint};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::time::Sleep;

use crate::Budget;
use crate::budget::{OutOfMemory, Share};
use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;

/// A whole body, no larger than the options allow.
pub(crate) struct Whole(pub(crate) Bytes);

impl FromRequest<Arc<Shared>> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Problem> {
        read(request.into_body(), shared).await.map(Self)
    }
}

/// A body that is JSON; nothing at all is the default.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<Shared>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let Whole(bytes) = Whole::from_request(request, shared).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

/// Reads a JSON object, and says where it is wrong.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // serde would also accept an array with the members in their order; refuse that.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::bad_request("the body is a JSON array; send an object"));
    }
    serde_json::from_slice(bytes).map_err(|why| {
        let detail = format!("the body is not the JSON that is asked for: {}", in_words(&why));
        Problem::bad_request(detail).with("line", why.line()).with("column", why.column())
    })
}

/// What is wrong with JSON, in words of JSON rather than of Rust.
pub(crate) fn in_words(why: &serde_json::Error) -> String {
    let text = why.to_string();
    let Some((found, expected)) = text.split_once(", expected ") else { return text };
    let (expected, place) = match expected.split_once(" at line ") {
        Some((expected, place)) => (expected, format!(" at line {place}")),
        None => (expected, String::new()),
    };
    let found = match found {
        "invalid type: sequence" => "invalid type: array",
        "invalid type: map" => "invalid type: object",
        found => found,
    };
    let expected = match expected {
        "u64" => "a whole number from 0",
        "u32" => "a whole number from 0 to 4294967295",
        "u8" => "a whole number from 0 to 255",
        "a sequence" => "an array",
        "a map" => "an object",
        structure if structure.starts_with("struct ") => "an object",
        expected => expected,
    };
    format!("{found}, expected {expected}{place}")
}

/// Reads a body to its end. A body of one piece is not copied. What is returned counts in the
/// budget until the last part of it is dropped.
pub(crate) async fn read<B: Incoming>(body: B, shared: &Shared) -> Result<Bytes, Problem> {
    let bytes_max = shared.options.body_bytes_max;
    let too_large = || {
        let detail = format_args!("the body has more than {bytes_max} bytes");
        Problem::new(ErrorCode::BodyTooLarge, detail).with("max", bytes_max)
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut upload = Upload::new(body, &shared.options.memory);
    let Some(first) = upload.next().await? else { return Ok(Bytes::new()) };
    if first.len() > bytes_max {
        return Err(too_large());
    }
    upload.hold(first.len()).await?;
    let Some(second) = upload.next().await? else { return Ok(upload.counted(first)) };
    // It grows with what has come: a length is a promise.
    let mut whole = BytesMut::from(&first[..]);
    drop(first);
    let mut next = Some(second);
    while let Some(piece) = next {
        let bytes = whole.len() + piece.len();
        if bytes > bytes_max {
            return Err(too_large());
        }
        upload.hold(bytes).await?;
        whole.extend_from_slice(&piece);
        upload.hold(whole.capacity()).await?;
        next = upload.next().await?;
    }
    Ok(upload.counted(whole.freeze()))
}

/// A body that is being read, and what is held of it meanwhile.
pub(crate) struct Upload<B = Body> {
    frames: Frames<B>,
    share: Share,
    /// The piece that came last, until it may be held.
    arrived: Share,
    /// When what is held is looked at: it may not be held for long while memory is short.
    due: Option<Pin<Box<Sleep>>>,
}

impl<B: Incoming> Upload<B> {
    pub(crate) fn new(body: B, memory: &Budget) -> Self {
        let (share, arrived) = (memory.share(), memory.share());
        Self { frames: Frames(body), share, arrived, due: None }
    }

    /// The next piece; `None` at the end. It can be called off without loss.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let piece = self.next_piece().await?;
        self.arrived.set(piece.as_ref().map_or(0, Bytes::len));
        Ok(piece)
    }

    async fn next_piece(&mut self) -> Result<Option<Bytes>, Problem> {
        let Self { frames, share, due, .. } = self;
        let Some(due) = due else { return frames.next().await };
        loop {
            tokio::select! {
                biased;
                piece = frames.next() => return piece,
                () = due.as_mut() => {
                    if share.budget().is_short() {
                        return Err(out_of_memory(&share.budget().out_of_memory()));
                    }
                    let again = due.deadline() + share.budget().patience();
                    due.as_mut().reset(again);
                }
            }
        }
    }

    /// Waits until so many bytes may be held in all.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), Problem> {
        self.share.grow(bytes).await.map_err(|short| out_of_memory(&short))?;
        self.arrived.set(0);
        self.watch();
        Ok(())
    }

    /// Says how many bytes are held now, of something new.
    pub(crate) fn holds(&mut self, bytes: usize) {
        self.share.set(bytes);
        self.due = None;
        self.watch();
    }

    fn watch(&mut self) {
        let patience = self.share.budget().patience();
        if !self.share.is_counted() {
            self.due = None;
        } else if self.due.is_none() {
            self.due = Some(Box::pin(tokio::time::sleep(patience)));
        }
    }

    /// The bytes of the whole body, which count until they are dropped.
    fn counted(self, bytes: Bytes) -> Bytes {
        struct Counted(Bytes, #[expect(dead_code, reason = "gives back when dropped")] Share);
        impl AsRef<[u8]> for Counted {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        if self.share.is_counted() { Bytes::from_owner(Counted(bytes, self.share)) } else { bytes }
    }
}

/// The problem for a request that exceeds the memory for bodies.
pub(crate) fn out_of_memory(short: &OutOfMemory) -> Problem {
    Problem::new(ErrorCode::OutOfMemory, short)
}

/// A body that is read here.
pub(crate) trait Incoming: HttpBody<Data = Bytes, Error = axum::Error> + Unpin {}

impl<B: HttpBody<Data = Bytes, Error = axum::Error> + Unpin> Incoming for B {}

/// The pieces of a body, as they come.
struct Frames<B>(B);

impl<B: Incoming> Frames<B> {
    /// The next piece; `None` at the end. Trailers are passed over.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            let polled =
                std::future::poll_fn(|context| Pin::new(&mut self.0).poll_frame(context)).await;
            match polled {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_) => {}
                },
                Some(Err(failed)) => return Err(broken(&failed)),
            }
        }
    }
}

fn broken(failed: &axum::Error) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(failed);
    while let Some(error) = cause {
        if error.is::<TooSlow>() {
            return Problem::new(ErrorCode::RequestTimeout, error);
        }
        cause = error.source();
    }
    Problem::bad_request(format_args!("the body cannot be read: {failed}"))
}

/// Gives every body its time: as a whole, or from piece to piece if it is a stream of lines.
pub(crate) fn in_time(request: Request, limit: Duration) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    let each_piece = is_lines(request.headers());
    request.map(|inner| Body::new(InTime { each_piece, ..InTime::new(inner, limit) }))
}

/// Whether a body is said to be JSON values, one a line.
pub(crate) fn is_lines(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind.is_some_and(|kind| {
        ["application/x-ndjson", "application/ndjson", "application/jsonl"]
            .iter()
            .any(|lines| kind.eq_ignore_ascii_case(lines))
    })
}

/// A body that fails when it does not arrive in time. The timer is created when the body first has
/// to be waited for, which is rare.
pub(crate) struct InTime<B> {
    inner: B,
    limit: Duration,
    each_piece: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> InTime<B> {
    /// A body that must be there, as a whole, within this time.
    pub(crate) fn new(inner: B, limit: Duration) -> Self {
        Self { inner, limit, each_piece: false, timer: None }
    }
}

/// That a body did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive within {} s", .0.as_secs_f32())]
struct TooSlow(Duration);

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for InTime<B>
where
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            if self.each_piece {
                self.timer = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(context).map(|()| Some(Err(axum::Error::new(TooSlow(limit)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
