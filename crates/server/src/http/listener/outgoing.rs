//! The body of a response on its way out: no more of it is produced than the client takes.
//!
//! hyper would gather several pieces before it waits for the socket. Here the next piece is asked
//! for only when the ones before are (nearly) written, so that a stream to a client that does not
//! read costs one piece. What is produced and not written is counted in the budget by the [`Wire`].
//!
//! Over HTTP/2 each answer has a window: it is handed over in pieces, of which hyper asks for the
//! next when the window has room for more than the last. What is not handed over yet is counted
//! here.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::budget::Share;
use crate::http::follow::event_stream::FRAME_BYTES;
use crate::http::listener::http2::Waiting;
use crate::http::listener::wire::{Answering, Wire};

/// Bytes that are handed over at once over HTTP/2: a frame of it.
const PIECE_BYTES: usize = 16 * 1024;

/// A body that waits for the socket.
pub(crate) struct Outgoing {
    inner: Body,
    wire: Arc<Wire>,
    /// Over HTTP/2, what is made and not handed over.
    windowed: Option<Windowed>,
    /// Until the body is done, what is read belongs to its request.
    _answering: Answering,
}

struct Windowed {
    rest: Bytes,
    share: Share,
    waiting: Option<Waiting>,
    /// Whether anything was handed over: the end is only said when that was taken.
    began: bool,
}

impl Outgoing {
    pub(crate) fn new(inner: Body, wire: Arc<Wire>, answering: Answering) -> Self {
        let windowed = wire.streams().map(|_| {
            let share = wire.share();
            Windowed { rest: Bytes::new(), share, waiting: None, began: false }
        });
        Self { inner, wire, windowed, _answering: answering }
    }
}

type Polled = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

impl Windowed {
    /// The next piece; it is asked for when the one before was taken.
    fn poll_piece(
        &mut self,
        inner: &mut Body,
        wire: &Arc<Wire>,
        context: &mut Context<'_>,
    ) -> Polled {
        self.waiting = None;
        if self.rest.is_empty() {
            self.share.set(0);
            let frame = match ready!(Pin::new(inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        self.share.set(self.rest.len());
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        self.waiting = wire.streams().map(|streams| streams.wait(wire));
        self.began = true;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let Self { inner, wire, windowed, .. } = &mut *self;
        if let Some(windowed) = windowed {
            return windowed.poll_piece(inner, wire, context);
        }
        if wire.poll_sent(FRAME_BYTES, context).is_pending() {
            return Poll::Pending;
        }
        let frame = Pin::new(inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            wire.made(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let began = self.windowed.as_ref().is_some_and(|windowed| windowed.began);
        !began && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
