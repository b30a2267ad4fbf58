//! A connection's byte stream, TCP or Unix, read only when there is something to read.
//!
//! A buffer is taken after the socket says it is readable, so that an idle connection holds
//! none. Little is read on the stack and copied, so that no more is taken than has come.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::AsyncWrite;
use tokio::net::{TcpStream, UnixStream};

/// Bytes that are read on the stack, at most.
pub(crate) const STACK_BYTES: usize = 2 * 1024;

/// Either kind of socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Waits until something can be read, and reads up to `bytes` of it. Zero is the end.
    pub(crate) fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            let readable = match self {
                Self::Tcp(stream) => stream.poll_read_ready(context),
                Self::Unix(stream) => stream.poll_read_ready(context),
            };
            match readable {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
            let read = if bytes <= STACK_BYTES {
                let mut small = [0; STACK_BYTES];
                let read = self.try_read(&mut small[..bytes]);
                into.extend_from_slice(&small[..*read.as_ref().unwrap_or(&0)]);
                read
            } else {
                into.reserve(bytes);
                self.try_read_buf(into)
            };
            match read {
                // The readiness was out of date; asking again registers for the next.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// The user of the process at the other end; known of Unix sockets only.
    pub(crate) fn peer_uid(&self) -> Option<u32> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(stream) => stream.peer_cred().ok().map(|peer| peer.uid()),
        }
    }

    /// The name in the client's certificate, which TLS has verified.
    pub(crate) fn certificate(&self) -> Option<String> {
        None
    }

    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(into),
            Self::Unix(stream) => stream.try_read(into),
        }
    }

    fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(into),
            Self::Unix(stream) => stream.try_read_buf(into),
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
        }
    }

    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
