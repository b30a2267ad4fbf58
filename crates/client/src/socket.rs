//! A connection's byte stream, TCP with or without TLS, or Unix, and what waits to be written
//! to it.
//!
//! Nothing is read before the socket says that there is something, so that an idle
//! connection holds no buffer. Small frames gather in one buffer, large bodies stand between
//! as they are, and all of it goes out in one call.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::address::Address;
use crate::tls::{Tls, TlsSocket};

/// Bytes read at once: many small frames share one block.
const READ_BYTES: usize = 64 * 1024;
/// A block with less room than this is not read into any more.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Bodies up to this are copied: another part of the call costs more than the copy.
pub(crate) const COPIED_BYTES_MAX: usize = 2 * 1024;
/// Parts handed to the kernel in one call.
const PARTS_MAX: usize = 64;

/// One kind of socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    Tls(Box<TlsSocket>),
}

macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            #[cfg(unix)]
            Socket::Unix($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl Socket {
    pub(crate) async fn connect(address: Address, tls: Option<Tls>) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                match tls {
                    None => Ok(Self::Tcp(stream)),
                    Some(tls) => Ok(Self::Tls(Box::new(tls.connect(stream, &address).await?))),
                }
            }
            #[cfg(unix)]
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        either!(self, stream => stream.ready(interest).await)
    }

    /// Reads what is there; `None` when there is nothing at the moment, zero at the end.
    pub(crate) fn read(&self, into: &mut BytesMut) -> io::Result<Option<usize>> {
        if into.capacity() - into.len() < READ_BYTES_MIN {
            into.reserve(READ_BYTES);
        }
        or_later(either!(self, stream => stream.try_read_buf(into)))
    }

    /// Writes what can be written; true when nothing is left.
    pub(crate) fn write(&self, out: &mut Output) -> io::Result<bool> {
        while out.bytes > 0 {
            out.close_small();
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            let count = out.parts.len().min(PARTS_MAX);
            for (slice, part) in slices.iter_mut().zip(&out.parts) {
                *slice = IoSlice::new(part);
            }
            let written = either!(self, stream => stream.try_write_vectored(&slices[..count]));
            match or_later(written)? {
                Some(written) => out.advance(written),
                None => return Ok(false),
            }
        }
        match self {
            Self::Tls(tls) => tls.flush(),
            _ => Ok(true),
        }
    }
}

fn or_later(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes on their way out.
#[derive(Debug, Default)]
pub(crate) struct Output {
    parts: VecDeque<Bytes>,
    small: BytesMut,
    bytes: usize,
}

impl Output {
    /// How many bytes wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what `encode` writes; nothing when it fails.
    pub(crate) fn encode<E>(
        &mut self,
        encode: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.small.len();
        encode(&mut self.small)?;
        self.bytes += self.small.len() - before;
        Ok(())
    }

    /// Adds bytes, sharing those that are large.
    pub(crate) fn put(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len();
        if bytes.len() <= COPIED_BYTES_MAX {
            self.small.extend_from_slice(bytes);
        } else {
            self.close_small();
            self.parts.push_back(bytes.clone());
        }
    }

    fn close_small(&mut self) {
        if !self.small.is_empty() {
            self.parts.push_back(self.small.split().freeze());
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while written > 0 {
            let Some(front) = self.parts.front_mut() else { return };
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.parts.pop_front();
        }
    }
}
