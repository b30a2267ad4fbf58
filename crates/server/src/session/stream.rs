//! A connection's byte stream, TCP with or without TLS, Unix, or by another node, read only when there is
//! something to read.
//!
//! A buffer is taken after the socket says it is readable, so that an idle connection holds
//! none. Little is read on the stack and copied, so that no more is taken than has come.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use gapless_protocol::link::UnixPeer;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::certificate;
use crate::forward::Duplex;
use crate::read_ahead::ReadAhead;

/// Bytes that are read on the stack, at most.
pub(crate) const STACK_BYTES: usize = 2 * 1024;

/// Either kind of socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<ReadAhead>>),
    Forwarded(Box<Forwarded>),
}

/// A client of another node, which knows who it is.
pub(crate) struct Forwarded {
    pub(crate) bytes: Box<dyn Duplex>,
    pub(crate) certificate: Option<String>,
    pub(crate) peer: Option<UnixPeer>,
}

impl fmt::Debug for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { certificate, peer, .. } = self;
        f.debug_struct("Forwarded").field("certificate", certificate).field("peer", peer).finish()
    }
}

impl Stream {
    /// Waits until something can be read, and reads up to `bytes` of it. Zero is the end.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        if let Self::Tls(stream) = self {
            return poll_decrypted(Pin::new(&mut **stream), context, into, bytes);
        }
        if let Self::Forwarded(stream) = self {
            return poll_forwarded(&mut stream.bytes, context, into, bytes);
        }
        // Less than there was room for means that the socket is empty. These reads note that, so that
        // the next one waits without asking the system.
        if bytes <= STACK_BYTES {
            let mut small = [MaybeUninit::uninit(); STACK_BYTES];
            let mut read = ReadBuf::uninit(&mut small[..bytes]);
            ready!(self.poll_read_into(context, &mut read))?;
            into.extend_from_slice(read.filled());
            return Poll::Ready(Ok(read.filled().len()));
        }
        // Nothing is taken for what has not come.
        ready!(self.poll_readable(context))?;
        into.reserve(bytes);
        match self {
            Self::Tcp(stream) => pin!(stream.read_buf(into)).poll(context),
            Self::Unix(stream) => pin!(stream.read_buf(into)).poll(context),
            Self::Tls(_) | Self::Forwarded(_) => {
                Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
            }
        }
    }

    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Unix(stream) => stream.poll_read_ready(context),
            Self::Tls(_) | Self::Forwarded(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(context, into),
            Self::Forwarded(stream) => Pin::new(&mut stream.bytes).poll_read(context, into),
        }
    }

    /// The user of the process at the other end, and that of the server; known of Unix sockets only.
    pub(crate) fn peer(&self) -> Option<UnixPeer> {
        match self {
            Self::Tcp(_) | Self::Tls(_) => None,
            Self::Unix(stream) => {
                let own = rustix::process::geteuid().as_raw();
                stream.peer_cred().ok().map(|peer| UnixPeer { uid: peer.uid(), own })
            }
            Self::Forwarded(stream) => stream.peer,
        }
    }

    /// The name in the client's certificate, which TLS has verified.
    pub(crate) fn certificate(&self) -> Option<String> {
        match self {
            Self::Tls(stream) => {
                certificate::name(stream.get_ref().1.peer_certificates()?.first()?)
            }
            Self::Forwarded(stream) => stream.certificate.clone(),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// Its bytes alone.
    pub(crate) fn into_bytes(self) -> Box<dyn Duplex> {
        match self {
            Self::Tcp(stream) => Box::new(stream),
            Self::Unix(stream) => Box::new(stream),
            Self::Tls(stream) => stream,
            Self::Forwarded(stream) => stream.bytes,
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(context, parts),
            Self::Forwarded(stream) => {
                Pin::new(&mut stream.bytes).poll_write_vectored(context, parts)
            }
        }
    }

    /// Writes what was encrypted and is not written yet.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
            Self::Forwarded(stream) => Pin::new(&mut stream.bytes).poll_flush(context),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            Self::Forwarded(stream) => Pin::new(&mut stream.bytes).poll_shutdown(context),
        }
    }
}

/// Reads up to `bytes`; the first of them on the stack, so that no buffer is taken for what does not
/// come.
fn poll_forwarded(
    stream: &mut Box<dyn Duplex>,
    context: &mut Context<'_>,
    into: &mut BytesMut,
    bytes: usize,
) -> Poll<io::Result<usize>> {
    let mut small = [MaybeUninit::uninit(); STACK_BYTES];
    let mut read = ReadBuf::uninit(&mut small[..bytes.min(STACK_BYTES)]);
    ready!(Pin::new(&mut *stream).poll_read(context, &mut read))?;
    let first = read.filled().len();
    into.extend_from_slice(read.filled());
    if first < STACK_BYTES || bytes == first {
        return Poll::Ready(Ok(first));
    }
    into.reserve(bytes - first);
    match pin!(stream.read_buf(into)).poll(context) {
        Poll::Ready(Ok(more)) => Poll::Ready(Ok(first + more)),
        // What came before is handled first; an error is there the next time too.
        Poll::Ready(Err(_)) | Poll::Pending => Poll::Ready(Ok(first)),
    }
}

/// Takes up to `bytes` of what was decrypted, of several records if they are there. No buffer is taken
/// for what does not come.
fn poll_decrypted(
    mut stream: Pin<&mut TlsStream<ReadAhead>>,
    context: &mut Context<'_>,
    into: &mut BytesMut,
    bytes: usize,
) -> Poll<io::Result<usize>> {
    let mut total = 0;
    while total < bytes {
        let taken = match stream.as_mut().poll_fill_buf(context) {
            Poll::Ready(Ok(came)) => {
                let taken = came.len().min(bytes - total);
                into.extend_from_slice(&came[..taken]);
                taken
            }
            // A peer that ends without the last word of TLS is gone all the same.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Poll::Pending if total == 0 => return Poll::Pending,
            Poll::Ready(Err(error)) if total == 0 => return Poll::Ready(Err(error)),
            // What came before is handled first; the error is there the next time too.
            Poll::Pending | Poll::Ready(Err(_)) => 0,
        };
        if taken == 0 {
            break;
        }
        stream.as_mut().consume(taken);
        total += taken;
    }
    Poll::Ready(Ok(total))
}
