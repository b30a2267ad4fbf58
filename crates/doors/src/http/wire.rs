//! The bytes of a connection, watched from beside hyper.
//!
//! hyper answers a head that it cannot read with a status and nothing else, and one that never
//! ends with nothing at all. Here the first becomes a problem as all errors are, and the
//! server can tell whether the second happened and still say so on the same socket.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use gapless_protocol::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::http::problem::Problem;

/// Longer than any answer that hyper makes by itself.
const OWN_ANSWER_BYTES_MAX: usize = 256;

/// A socket that hyper and the server share.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    /// Whether something came that nobody has dealt with yet: a part of a head.
    unanswered: AtomicBool,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Arc<Self> {
        Arc::new(Self { stream, unanswered: AtomicBool::new(false) })
    }

    /// A request is being answered.
    pub(crate) fn answering(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
    }

    /// Says that the head did not arrive in time, if one began.
    pub(crate) fn tell_timeout(&self, problem: &Problem) {
        if self.unanswered.load(Ordering::Relaxed) {
            // Who does not take these few bytes now is not there to read them.
            let _ = self.stream.try_write(&last_answer(problem));
        }
    }
}

/// hyper's side of a socket.
pub(crate) struct Io {
    wire: Arc<Wire>,
    /// What is left of a problem that stands in for an answer of hyper's own.
    rest: Vec<u8>,
}

impl Io {
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        Self { wire, rest: Vec::new() }
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            ready!(self.wire.stream.poll_write_ready(context))?;
            match self.wire.stream.try_write(&self.rest) {
                Ok(written) => drop(self.rest.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_rest(context))?;
        let bytes = parts.iter().map(|part| part.len()).sum();
        if let [part] = parts
            && let Some(problem) = own_answer(part)
        {
            self.rest = last_answer(&problem);
            // What cannot be written at once is written by the flush that follows.
            let _ = self.poll_rest(context)?;
            return Poll::Ready(Ok(bytes));
        }
        self.wire.answering();
        loop {
            ready!(self.wire.stream.poll_write_ready(context))?;
            match self.wire.stream.try_write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

/// The problem for an answer that hyper made by itself: an error without a body. Nobody else
/// makes such, since all our errors are problems.
fn own_answer(bytes: &[u8]) -> Option<Problem> {
    let within = bytes.len() <= OWN_ANSWER_BYTES_MAX && bytes.ends_with(b"\r\n\r\n");
    if !within || !bytes.starts_with(b"HTTP/1.1 4") && !bytes.starts_with(b"HTTP/1.0 4") {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?.to_ascii_lowercase();
    head.contains("\r\ncontent-length: 0\r\n").then_some(())?;
    match head.get(9..12)? {
        "400" => Some(Problem::bad_request("the request is no HTTP/1.1 that can be read")),
        "414" => Some(
            Problem::new(ErrorCode::HeadTooLarge, "the address is too long")
                .with_status(StatusCode::URI_TOO_LONG),
        ),
        "431" => Some(Problem::new(
            ErrorCode::HeadTooLarge,
            "the request's line and headers are too many or too large",
        )),
        _ => None,
    }
}

/// A problem as the last answer on a connection.
fn last_answer(problem: &Problem) -> Vec<u8> {
    let body = problem.to_json().to_string();
    let status = problem.status;
    let (number, reason) = (status.as_u16(), status.canonical_reason().unwrap_or("Error"));
    format!(
        "HTTP/1.1 {number} {reason}\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &self.wire;
        loop {
            ready!(wire.stream.poll_read_ready(context))?;
            match wire.stream.try_read_buf(buffer) {
                Ok(read) => {
                    wire.unanswered.fetch_or(read > 0, Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_rest(context)
    }

    /// The socket is shut down by the server, which lets the peer read what was said last.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_rest(context)
    }
}
