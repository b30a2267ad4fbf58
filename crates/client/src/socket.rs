//! A connection's byte stream: TCP with or without TLS, or Unix.
//!
//! Nothing is read before the socket says that there is something, so that an idle
//! connection holds no buffer.

use std::io::{self, IoSlice};

use bytes::BytesMut;
use gapless_protocol::{OUTPUT_PARTS_MAX, Output};
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
        while out.bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); OUTPUT_PARTS_MAX];
            let mut count = 0;
            for (slice, part) in slices.iter_mut().zip(out.parts(usize::MAX)) {
                *slice = IoSlice::new(part);
                count += 1;
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
