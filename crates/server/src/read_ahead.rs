//! A socket that is read in large steps for TLS, which asks for 4 KiB at a time.
//!
//! A connection on which little comes holds no buffer: its bytes go straight to what asks for them.
//! Only when that was filled, so that more is likely to be there, is more read at once; what is left of
//! it waits here.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are read at once, at most: two records of TLS, about.
const AHEAD_BYTES: usize = 32 * 1024;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    socket: TcpStream,
    ahead: BytesMut,
    /// Whether what came last filled all that was asked for.
    more: bool,
}

impl ReadAhead {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, ahead: BytesMut::new(), more: false }
    }

    fn hand_out(&mut self, into: &mut ReadBuf<'_>) {
        let count = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
    }

    /// Reads ahead; zero is the end.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            if let Err(error) = ready!(self.socket.poll_read_ready(context)) {
                return Poll::Ready(Err(error));
            }
            self.ahead.reserve(AHEAD_BYTES);
            match self.socket.try_read_buf(&mut self.ahead) {
                // The readiness was out of date; asking again registers for the next.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ahead = BytesMut::new();
                }
                read => return Poll::Ready(read),
            }
        }
    }
}

impl AsyncRead for ReadAhead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.ahead.is_empty() {
            this.hand_out(into);
            return Poll::Ready(Ok(()));
        }
        if !this.more {
            ready!(Pin::new(&mut this.socket).poll_read(context, into))?;
            this.more = into.remaining() == 0;
            return Poll::Ready(Ok(()));
        }
        let Poll::Ready(read) = this.poll_fill(context) else {
            // Nothing came for a while: a quiet connection holds nothing.
            (this.more, this.ahead) = (false, BytesMut::new());
            return Poll::Pending;
        };
        this.more = read? > into.remaining();
        this.hand_out(into);
        if !this.more {
            this.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadAhead {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn every_byte_comes_once_in_order_and_a_quiet_connection_holds_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut writer = TcpStream::connect(address).await.expect("a connection");
        let mut reader = ReadAhead::new(listener.accept().await.expect("a connection").0);
        let sent: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
        let writes = sent.clone();
        let writing = tokio::spawn(async move {
            writer.write_all(&writes).await.expect("written");
            writer
        });
        let mut came = Vec::new();
        // The sizes that TLS asks for, and odd ones.
        for size in [5_usize, 4_096, 1, 4_096, 16_000, 333].into_iter().cycle() {
            if came.len() == sent.len() {
                break;
            }
            let mut part = vec![0; size];
            let count = reader.read(&mut part).await.expect("read");
            assert!(count > 0, "an end before the end");
            came.extend_from_slice(&part[..count]);
        }
        assert!(came == sent, "other bytes");
        let mut writer = writing.await.expect("it is written");
        let mut rest = [0; 4_096];
        let quiet = tokio::select! {
            biased;
            _ = reader.read(&mut rest) => false,
            () = std::future::ready(()) => true,
        };
        assert!(quiet && reader.ahead.capacity() == 0, "{}", reader.ahead.capacity());
        writer.write_all(b"last").await.expect("written");
        writer.shutdown().await.expect("an end");
        let mut last = Vec::new();
        reader.read_to_end(&mut last).await.expect("the end");
        assert_eq!(last, b"last");
    }
}
