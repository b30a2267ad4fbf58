//! The socket below HTTP, encrypted or not, as it is used from two sides: by hyper, and for the last
//! words of the server. Only one of them uses it at a time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::read_ahead::ReadAhead;

/// See the head of the file.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Mutex<Box<TlsStream<ReadAhead>>>),
}

impl Socket {
    pub(crate) fn tls(stream: TlsStream<ReadAhead>) -> Self {
        Self::Tls(Mutex::new(Box::new(stream)))
    }

    /// Reads what there is, and tells how much; zero is the end.
    pub(crate) fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => loop {
                ready!(stream.poll_read_ready(context))?;
                match stream.try_read_buf(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return Poll::Ready(read),
                }
            },
            Self::Tls(stream) => {
                let before = buffer.filled().len();
                ready!(pinned(&mut lock(stream)).poll_read(context, buffer))?;
                Poll::Ready(Ok(buffer.filled().len() - before))
            }
        }
    }

    pub(crate) fn poll_write(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => loop {
                ready!(stream.poll_write_ready(context))?;
                match stream.try_write_vectored(parts) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => return Poll::Ready(written),
                }
            },
            Self::Tls(stream) => pinned(&mut lock(stream)).poll_write_vectored(context, parts),
        }
    }

    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => pinned(&mut lock(stream)).poll_flush(context),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => pinned(&mut lock(stream)).poll_shutdown(context),
        }
    }

    /// Writes what is taken at once.
    pub(crate) fn try_write(&self, bytes: &[u8]) {
        let mut context = Context::from_waker(Waker::noop());
        // Who does not take these few bytes now is not there to read them.
        let _ = self.poll_write(&mut context, &[IoSlice::new(bytes)]);
        let _ = self.poll_flush(&mut context);
    }
}

fn lock(stream: &Mutex<Box<TlsStream<ReadAhead>>>) -> MutexGuard<'_, Box<TlsStream<ReadAhead>>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pinned(stream: &mut Box<TlsStream<ReadAhead>>) -> Pin<&mut TlsStream<ReadAhead>> {
    Pin::new(&mut **stream)
}
