//! The bytes of a connection, watched from beside hyper.
//!
//! hyper answers a head that it cannot read with a status and nothing else, and one that never
//! ends with nothing at all. Here the first becomes a problem as all errors are, and the
//! server can tell whether the second happened and still say so on the same socket.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use gapless_protocol::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::http::problem::Problem;

/// Longer than any answer that hyper makes by itself.
const OWN_ANSWER_BYTES_MAX: usize = 256;

/// Bytes of a request's line that are looked at to say what is wrong with it.
const LINE_BYTES_MAX: usize = 2048;

/// A socket that hyper and the server share.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    /// Whether something came that nobody has dealt with yet: a part of a head.
    unanswered: AtomicBool,
    /// The byte of the last request's address that must be escaped, and behind it its place;
    /// 0 for none. It is looked for where a head seems to begin, and used in an error only.
    unescaped: AtomicU32,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Arc<Self> {
        Arc::new(Self { stream, unanswered: AtomicBool::new(false), unescaped: AtomicU32::new(0) })
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
            && let Some(problem) = own_answer(part, self.wire.unescaped.load(Ordering::Relaxed))
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
fn own_answer(bytes: &[u8], unescaped: u32) -> Option<Problem> {
    let within = bytes.len() <= OWN_ANSWER_BYTES_MAX && bytes.ends_with(b"\r\n\r\n");
    if !within || !bytes.starts_with(b"HTTP/1.1 4") && !bytes.starts_with(b"HTTP/1.0 4") {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?.to_ascii_lowercase();
    head.contains("\r\ncontent-length: 0\r\n").then_some(())?;
    match head.get(9..12)? {
        "400" if unescaped != 0 => {
            let [byte, place @ ..] = unescaped.to_be_bytes();
            let place = place.iter().fold(0, |place, byte| place << 8 | u32::from(*byte));
            Some(Problem::bad_request(format_args!(
                "byte {place} of the address is {:?}, which must be escaped: write %{byte:02X}",
                char::from(byte)
            )))
        }
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

/// The first byte in the address of a request that may not stand there as it is, and its place.
fn unescaped(head: &[u8]) -> u32 {
    let head = &head[..head.len().min(LINE_BYTES_MAX)];
    let line = memchr::memchr2(b'\r', b'\n', head).map_or(head, |end| &head[..end]);
    let Some(begin) = memchr::memchr(b' ', line) else { return 0 };
    let address = &line[begin + 1..];
    let end = memchr::memmem::rfind(address, b" HTTP/").unwrap_or(address.len());
    let must = |byte: &u8| matches!(byte, b'"' | b'<' | b'>' | b'`' | 0..=b' ' | 0x7f);
    let Some(at) = address[..end].iter().position(must) else { return 0 };
    u32::from(address[at]) << 24 | (at as u32 + 1)
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
                    if read > 0 && !wire.unanswered.swap(true, Ordering::Relaxed) {
                        let filled = buffer.filled();
                        let unescaped = unescaped(&filled[filled.len() - read..]);
                        wire.unescaped.store(unescaped, Ordering::Relaxed);
                    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_must_be_escaped_is_found_in_the_address_only() {
        let found = |line: &str| {
            let found = unescaped(line.as_bytes());
            (found != 0).then_some((char::from((found >> 24) as u8), found & 0xff_ffff))
        };
        assert_eq!(found("GET /v1/topics?pattern=o.> HTTP/1.1\r\nHost: <x>\r\n"), Some(('>', 22)));
        assert_eq!(found("GET /a b HTTP/1.1\r\n"), Some((' ', 3)));
        assert_eq!(found("GET /a?\"b\""), Some(('"', 4)));
        for fine in ["", "GET", "GET /a{|}~%20 HTTP/1.1\r\nX: \"<\"\r\n", "\r\n<"] {
            assert_eq!(found(fine), None, "{fine}");
        }
    }
}
