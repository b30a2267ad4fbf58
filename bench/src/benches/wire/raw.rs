//! What any program could do: bytes over a socket, and nothing else.
//!
//! A connection begins with what it wants, as two numbers, and gets one byte when it has it.
//! Each has a thread of its own that blocks: the shape with the fewest wake-ups.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gapless_protocol::Kind;

use super::client::Client;
use super::frames::empty;
use super::server::Server;
use crate::benches::store::Result;

/// Bytes read or written at once.
const IO_BYTES: usize = 256 * 1024;

/// Bytes of a publish's ack without its head, as the broker answers it.
const ACK_PAYLOAD_BYTES: usize = 33;

/// What a connection wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// For each so many bytes that come, one frame in the size of an ack.
    Answer { bytes: u64 },
    /// So many bytes, as fast as they go.
    Source { bytes: u64 },
    /// To get what the next relay is sent.
    Join,
    /// To send to all who have joined.
    Relay,
}

const WISH_BYTES: usize = 16;

impl Wish {
    fn encode(self) -> [u8; WISH_BYTES] {
        let (kind, bytes) = match self {
            Self::Answer { bytes } => (1_u64, bytes),
            Self::Source { bytes } => (2, bytes),
            Self::Join => (3, 0),
            Self::Relay => (4, 0),
        };
        let mut out = [0; WISH_BYTES];
        out[..8].copy_from_slice(&kind.to_le_bytes());
        out[8..].copy_from_slice(&bytes.to_le_bytes());
        out
    }

    fn decode(bytes: [u8; WISH_BYTES]) -> Option<Self> {
        let [kind, bytes] = [0, 8].map(|at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        });
        match kind {
            1 => Some(Self::Answer { bytes: bytes.max(1) }),
            2 => Some(Self::Source { bytes }),
            3 => Some(Self::Join),
            4 => Some(Self::Relay),
            _ => None,
        }
    }

    /// A connection to a bare server that does this.
    pub(super) fn connect(self, server: &Server) -> Result<Client> {
        let mut client = Client::bare(server.address())?;
        client.send(&self.encode())?;
        client.drop_exactly(1)?;
        Ok(client)
    }
}

type Joined = Arc<Mutex<Vec<TcpStream>>>;

/// Serves until `wait` returns.
pub(super) fn serve(
    tell: impl FnOnce(SocketAddr) -> Result<()>,
    wait: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    tell(listener.local_addr()?)?;
    let joined = Joined::default();
    // The thread ends with the process; it owns nothing that must be closed.
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let joined = Arc::clone(&joined);
            thread::spawn(move || {
                // A client that goes away in the midst of it is no trouble of this side.
                let _ = one(stream, &joined);
            });
        }
    });
    wait()
}

fn one(mut stream: TcpStream, joined: &Joined) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wish = [0; WISH_BYTES];
    stream.read_exact(&mut wish)?;
    let Some(wish) = Wish::decode(wish) else { return Ok(()) };
    let mut all = joined.lock().unwrap_or_else(PoisonError::into_inner);
    let mut to = if wish == Wish::Relay { std::mem::take(&mut *all) } else { Vec::new() };
    // Answered while no relay can begin: a client that knows it has joined is among them.
    stream.write_all(&[1])?;
    if wish == Wish::Join {
        all.push(stream);
        return Ok(());
    }
    drop(all);
    match wish {
        Wish::Join => Ok(()),
        Wish::Relay => relay(stream, &mut to),
        Wish::Answer { bytes } => answer(stream, bytes),
        Wish::Source { bytes } => source(stream, bytes),
    }
}

fn answer(mut stream: TcpStream, frame_bytes: u64) -> io::Result<()> {
    let ack = empty(Kind::PublishAck, ACK_PAYLOAD_BYTES);
    let mut buffer = vec![0; IO_BYTES];
    let mut acks = Vec::new();
    let mut left = 0;
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        left += read as u64;
        let whole = left / frame_bytes;
        left %= frame_bytes;
        acks.clear();
        for _ in 0..whole {
            acks.extend_from_slice(&ack);
        }
        stream.write_all(&acks)?;
    }
}

fn source(mut stream: TcpStream, bytes: u64) -> io::Result<()> {
    let buffer = vec![0x5A; IO_BYTES];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(IO_BYTES as u64);
        stream.write_all(&buffer[..part as usize])?;
        left -= part;
    }
    Ok(())
}

fn relay(mut from: TcpStream, to: &mut [TcpStream]) -> io::Result<()> {
    let mut buffer = vec![0; IO_BYTES];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        for stream in to.iter_mut() {
            stream.write_all(&buffer[..read])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_arrives_as_it_was_sent() {
        let wishes =
            [Wish::Answer { bytes: 7 }, Wish::Source { bytes: 9 }, Wish::Join, Wish::Relay];
        for wish in wishes {
            assert_eq!(Wish::decode(wish.encode()), Some(wish));
        }
        assert_eq!(Wish::decode([9; WISH_BYTES]), None);
    }
}
