//! The bytes of a connection, watched from beside hyper, which owns the socket while it lasts.
//!
//! hyper answers a head that it cannot read with a status and nothing else, and one that never
//! ends with nothing at all. Here the first becomes a problem as all errors are, and the
//! server notices the second and still answers on the same socket.
//!
//! Here is also counted what a head that does not end, and an answer that is not taken, hold in
//! memory; and a peer that takes nothing for too long is ended.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::http::StatusCode;
use gapless_protocol::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::Budget;
use crate::budget::Share;
use crate::http::listener::http2::Streams;
use crate::http::listener::server::Peer;
use crate::http::listener::socket::Socket;
use crate::http::values::problem::Problem;
use crate::session::sockets::slow_reader_ended;

/// Longer than any answer that hyper creates by itself.
const OWN_ANSWER_BYTES_MAX: usize = 256;

/// Bytes of a request's line that are looked at to say what is wrong with it.
const LINE_BYTES_MAX: usize = 2048;

/// Bytes that are read at once while memory is short.
const SHORT_READ_BYTES: usize = 4 * 1024;

/// What hyper and the server both know of a connection.
pub(crate) struct Wire {
    /// The socket, when hyper is done with it.
    returned: Mutex<Option<Socket>>,
    /// The requests of HTTP/2; none is HTTP/1.1, whose heads and errors are looked at here.
    streams: Option<Streams>,
    /// Its other end, and whose connection it is.
    peer: Peer,
    /// Whether a part of a head has arrived and is not handled yet.
    unanswered: AtomicBool,
    /// The byte of the last request's address that must be escaped, and behind it its place;
    /// 0 for none. It is looked for where a head seems to begin, and used in an error only.
    unescaped: AtomicU32,
    /// Bytes of a head that is not whole yet.
    head_bytes: AtomicUsize,
    /// How many requests are being answered. Then what is read is their body, which is counted
    /// there.
    answered: AtomicUsize,
    /// Whether it speaks another protocol now.
    upgraded: AtomicBool,
    opened: Instant,
    /// Since when the next head is waited for, in ms after `opened`; it counts while nothing is answered.
    head_since: AtomicU64,
    unsent: Mutex<Unsent>,
    memory: Budget,
}

/// Bytes of answers that are produced and not written.
struct Unsent {
    bytes: usize,
    share: Share,
    /// Wants to know when it is written.
    waker: Option<Waker>,
}

/// That a request is being answered, for as long as it is held.
pub(crate) struct Answering(Arc<Wire>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.awaits_head();
        self.0.answered.fetch_sub(1, Ordering::Relaxed);
        if let Some(streams) = &self.0.streams {
            streams.end();
        }
    }
}

impl Wire {
    pub(crate) fn new(streams: Option<Streams>, peer: Peer, memory: Budget) -> Arc<Self> {
        let unsent = Unsent { bytes: 0, share: memory.share(), waker: None };
        Arc::new(Self {
            returned: Mutex::new(None),
            streams,
            peer,
            unanswered: AtomicBool::new(false),
            unescaped: AtomicU32::new(0),
            head_bytes: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            upgraded: AtomicBool::new(false),
            opened: Instant::now(),
            head_since: AtomicU64::new(0),
            unsent: Mutex::new(unsent),
            memory,
        })
    }

    /// The requests of HTTP/2, if it speaks that.
    pub(crate) fn streams(&self) -> Option<&Streams> {
        self.streams.as_ref()
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.address
    }

    /// A part of the memory of all connections.
    pub(crate) fn share(&self) -> Share {
        self.memory.share()
    }

    /// A request is being answered.
    pub(crate) fn answering(self: &Arc<Self>) -> Answering {
        self.unanswered.store(false, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
        self.answered.fetch_add(1, Ordering::Relaxed);
        if let Some(streams) = &self.streams {
            streams.begin();
        }
        Answering(Arc::clone(self))
    }

    /// The next head is waited for from now on.
    fn awaits_head(&self) {
        let ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.head_since.store(ms, Ordering::Relaxed);
    }

    /// Since when a head is waited for; `None` while a request is answered, or its answer not taken.
    fn head_awaited_since(&self) -> Option<Instant> {
        let is_busy = self.answered.load(Ordering::Relaxed) > 0 || self.unsent().bytes > 0;
        let since = Duration::from_millis(self.head_since.load(Ordering::Relaxed));
        (!is_busy).then(|| self.opened + since)
    }

    /// Resolves when a head was waited for so long. One timer serves all requests of a connection: it
    /// looks when it is due, and no request sets it.
    pub(crate) async fn head_is_late(&self, limit: Duration) {
        loop {
            let due = self.head_awaited_since().unwrap_or_else(Instant::now) + limit;
            tokio::time::sleep_until(due).await;
            let since = self.head_awaited_since();
            if since.is_some_and(|since| Instant::now() >= since + limit) {
                return;
            }
        }
    }

    /// No more heads come.
    pub(crate) fn upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// Whether what is read now is of a head.
    fn reads_head(&self) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        self.streams.is_none() && answered == 0 && !self.upgraded.load(Ordering::Relaxed)
    }

    /// Says that the head did not arrive in time, if one began. To be called when hyper is done.
    pub(crate) fn tell_timeout(&self, problem: &Problem) {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        if self.unanswered.load(Ordering::Relaxed)
            && let Some(socket) = &mut *returned
        {
            socket.try_write(&last_answer(problem));
        }
    }

    /// The socket, if hyper is done with it.
    pub(crate) fn into_socket(self) -> Option<Socket> {
        self.returned.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes of an answer that were produced.
    pub(crate) fn made(&self, bytes: usize) {
        self.unsent().change(|unsent| unsent + bytes);
    }

    /// Counts bytes that were written, of an answer if one is unsent.
    fn sent(&self, bytes: usize) {
        let mut unsent = self.unsent();
        if unsent.bytes == 0 {
            return;
        }
        unsent.change(|unsent| unsent.saturating_sub(bytes));
        if unsent.bytes == 0 {
            drop(unsent);
            self.awaits_head();
        }
    }

    /// Ready when less than so many bytes are to be written.
    pub(crate) fn poll_sent(&self, bytes: usize, context: &Context<'_>) -> Poll<()> {
        let mut unsent = self.unsent();
        if unsent.bytes < bytes {
            return Poll::Ready(());
        }
        unsent.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Unsent {
    fn change(&mut self, bytes: impl FnOnce(usize) -> usize) {
        let before = self.bytes;
        self.bytes = bytes(before);
        self.share.set(self.bytes);
        if self.bytes < before
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// hyper's side of a connection. When it goes, the socket is given back.
pub(crate) struct Io {
    wire: Arc<Wire>,
    /// There until this is dropped.
    socket: Option<Socket>,
    /// What is left of a problem that stands in for an answer of hyper's own.
    rest: Vec<u8>,
    /// What a head that is not whole yet holds.
    head: Share,
    write_timeout: Duration,
    /// Since when the socket takes nothing.
    blocked_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Io {
    pub(crate) fn new(wire: Arc<Wire>, socket: Socket, write_timeout: Duration) -> Self {
        let (head, socket) = (wire.memory.share(), Some(socket));
        let (rest, blocked_since, timer) = (Vec::new(), None, None);
        Self { wire, socket, rest, head, write_timeout, blocked_since, timer }
    }

    /// Called when the socket takes nothing: an error when that has lasted too long.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let now = Instant::now();
        let since = *self.blocked_since.get_or_insert(now);
        let memory = &self.wire.memory;
        loop {
            // While memory is not short, patience is looked at again after as long.
            let patience = if now < since + memory.patience() { since } else { now };
            let next = (patience + memory.patience()).min(since + self.write_timeout);
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let holds = self.wire.unsent().share.is_counted();
            let is_over = now >= since + self.write_timeout;
            if is_over || (now >= since + memory.patience() && holds && memory.is_short()) {
                slow_reader_ended("http", &self.wire.peer().to_string());
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            // It was set when the socket was blocked before.
            timer.as_mut().reset(next);
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Writes what the socket takes; an error when it takes nothing for too long.
    fn poll_socket(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(socket) = &mut self.socket else { return gone() };
        match socket.poll_write(context, parts) {
            Poll::Ready(written) => Poll::Ready(written),
            Poll::Pending => self.poll_patience(context).map(Err),
        }
    }

    fn wrote(&mut self, bytes: usize) {
        self.blocked_since = None;
        self.wire.sent(bytes);
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            let written = self.poll_socket(context, &[IoSlice::new(&rest)]);
            self.rest = rest;
            self.rest.drain(..ready!(written)?);
            self.blocked_since = None;
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
            && self.wire.streams.is_none()
            && let Some(problem) = own_answer(part, self.wire.unescaped.load(Ordering::Relaxed))
        {
            self.rest = last_answer(&problem);
            // What cannot be written at once is written by the flush that follows.
            let _ = self.poll_rest(context)?;
            return Poll::Ready(Ok(bytes));
        }
        self.wire.unanswered.store(false, Ordering::Relaxed);
        let written = ready!(self.poll_socket(context, parts));
        self.wrote(*written.as_ref().unwrap_or(&0));
        Poll::Ready(written)
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        *self.wire.returned.lock().unwrap_or_else(PoisonError::into_inner) = self.socket.take();
    }
}

/// What a use of a socket that was given back comes to; there is none.
fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

/// The problem for an answer that hyper created by itself: an error without a body. Only hyper does
/// so, since all other errors are problems.
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
        "400" => Some(Problem::bad_request("the request is not valid HTTP/1.1")),
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

/// Says why a connection is not served, to one that has said nothing yet.
pub(crate) fn refuse(stream: &TcpStream, problem: &Problem) {
    // A client that does not take these few bytes now is gone.
    let _ = stream.try_write(&last_answer(problem));
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

impl Io {
    /// Counts the bytes of an incomplete head; pending while the budget has no memory for more of
    /// it.
    fn poll_head(&mut self, context: &Context<'_>) -> Poll<()> {
        let bytes = self.wire.head_bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            self.head.set(0);
            return Poll::Ready(());
        }
        self.head.poll_grow(bytes, context)
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_head(context));
        let Self { wire, socket, .. } = &mut *self;
        let Some(socket) = socket else { return gone() };
        let read = if wire.memory.is_short() {
            let mut small = [0; SHORT_READ_BYTES];
            let most = buffer.remaining().min(SHORT_READ_BYTES);
            let mut few = ReadBuf::new(&mut small[..most]);
            let read = ready!(socket.poll_read(context, &mut few))?;
            buffer.put_slice(few.filled());
            read
        } else {
            ready!(socket.poll_read(context, buffer))?
        };
        if read > 0 && !wire.unanswered.swap(true, Ordering::Relaxed) {
            let filled = buffer.filled();
            let unescaped = unescaped(&filled[filled.len() - read..]);
            wire.unescaped.store(unescaped, Ordering::Relaxed);
        }
        if wire.reads_head() {
            wire.head_bytes.fetch_add(read, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
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

    /// hyper flushes when it has written all it has: nothing is unsent then.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.sent(usize::MAX);
        ready!(self.poll_rest(context))?;
        let Some(socket) = &mut self.socket else { return gone() };
        match socket.poll_flush(context) {
            Poll::Ready(flushed) => Poll::Ready(flushed),
            Poll::Pending => self.poll_patience(context).map(Err),
        }
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
