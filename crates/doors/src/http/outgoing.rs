//! The body of a response on its way out: no more of it is made than the client takes.
//!
//! hyper would gather several pieces before it waits for the socket. Here the next piece is asked
//! for only when the ones before are (nearly) written, so that a stream to a client that does not
//! read costs one piece. What is made and not written is counted in the budget by the [`Wire`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::http::event_stream::FRAME_BYTES;
use crate::http::wire::{Answering, Wire};

/// A body that waits for the socket.
pub(crate) struct Outgoing {
    inner: Body,
    wire: Arc<Wire>,
    /// Until the body is done, what is read belongs to its request.
    _answering: Answering,
}

impl Outgoing {
    pub(crate) fn new(inner: Body, wire: Arc<Wire>, answering: Answering) -> Self {
        Self { inner, wire, _answering: answering }
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.wire.poll_sent(FRAME_BYTES, context).is_pending() {
            return Poll::Pending;
        }
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.wire.made(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
