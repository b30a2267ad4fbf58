//! The socket below HTTP, encrypted or not. hyper's side owns it while the connection lasts, and gives it
//! back for the last words of the server.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::forward::Duplex;
use crate::read_ahead::ReadAhead;

/// See the head of the file.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<ReadAhead>>),
    Forwarded(Box<dyn Duplex>),
}

impl Socket {
    pub(crate) fn tls(stream: TlsStream<ReadAhead>) -> Self {
        Self::Tls(Box::new(stream))
    }

    /// Reads what there is, and tells how much; zero is the end. A read that finds less than there is
    /// room for notes that the socket is empty, so that the next one waits without asking the system.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = buffer.filled().len();
        ready!(match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
            Self::Forwarded(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        })?;
        Poll::Ready(Ok(buffer.filled().len() - before))
    }

    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(context, parts),
            Self::Forwarded(stream) => Pin::new(&mut **stream).poll_write_vectored(context, parts),
        }
    }

    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
            Self::Forwarded(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            Self::Forwarded(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }

    /// Writes what is taken at once.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) {
        let mut context = Context::from_waker(Waker::noop());
        // Who does not take these few bytes now is not there to read them.
        let _ = self.poll_write(&mut context, &[IoSlice::new(bytes)]);
        let _ = self.poll_flush(&mut context);
    }
}
