//! A socket of a load generator: it blocks, reads much at once, and looks at little.
//!
//! What the bytes mean is a [`Dialect`]'s. It is called once per read, not once per message,
//! so that a call through a pointer costs nothing that could be seen.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use gapless_bench::buffer::PageBuffer;

use super::tls::Stream;
use crate::benches::store::Result;

/// Nothing that is waited for takes longer; a run that hangs ends with an error.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Bytes that can be read at once. Read into at a page's beginning where nothing is left over.
const READ_BYTES: usize = 512 * 1024;

/// A read into less room than this is not worth its call: what is left over is moved first.
const ROOM_BYTES_MIN: usize = 128 * 1024;

/// No item of any protocol here is larger.
const ITEM_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Is handed bytes, one message after another.
type Each<'a> = &'a mut dyn FnMut(&[u8]);

/// What came on a link, counted.
#[derive(Default)]
pub(super) struct Seen<'a> {
    /// Answers to publishes or other questions.
    pub(super) answers: u64,
    /// Messages that were delivered.
    pub(super) messages: u64,
    /// Is handed the body of each delivered message.
    pub(super) each: Option<Each<'a>>,
}

impl<'a> Seen<'a> {
    /// Counts, and hands out each message.
    pub(super) fn with(each: Each<'a>) -> Self {
        Self { answers: 0, messages: 0, each: Some(each) }
    }
}

/// What the bytes of a connection mean, as far as a load generator must know.
pub(super) trait Dialect: Send {
    /// Takes whole items from the front, counts them, and tells how many bytes they were.
    ///
    /// # Errors
    /// When the server refused something or lost messages: no figure is made of that.
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize>;

    /// Adds what must be sent so that more comes: credit, or the next question.
    fn owes(&mut self, _out: &mut Vec<u8>) {}
}

/// A socket, what was read from it and not looked at, and what the bytes mean.
pub(super) struct Link {
    stream: Stream,
    buffer: PageBuffer,
    from: usize,
    to: usize,
    out: Vec<u8>,
    pub(super) dialect: Box<dyn Dialect>,
    /// Where answers to this link go, in protocols where that must be said.
    pub(super) inbox: String,
}

impl Link {
    /// A connection on which nothing was said.
    pub(super) fn open(address: SocketAddr, dialect: Box<dyn Dialect>) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let stream = Stream::on(stream, address)?;
        let (buffer, out, inbox) = (PageBuffer::zeroed(0), Vec::new(), String::new());
        Ok(Self { stream, buffer, from: 0, to: 0, out, dialect, inbox })
    }

    /// Gives the memory back, so that an idle connection costs this side nothing.
    #[must_use]
    pub(super) fn shrunk(mut self) -> Self {
        // What is left unread is of no interest on a connection on which nothing happens.
        (self.buffer, self.from, self.to) = (PageBuffer::zeroed(0), 0, 0);
        self
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// A handle by which another thread can close this link.
    pub(super) fn closer(&self) -> Result<TcpStream> {
        Ok(self.stream.tcp().try_clone()?)
    }

    /// Reads once, unless a whole item is there already; counts all that is whole, and sends
    /// what is owed for it.
    pub(super) fn receive(&mut self, seen: &mut Seen<'_>) -> Result<()> {
        self.receive_only(seen)?;
        self.out.clear();
        self.dialect.owes(&mut self.out);
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
        }
        Ok(())
    }

    /// The same from one who never stops: nothing is sent back.
    pub(super) fn receive_only(&mut self, seen: &mut Seen<'_>) -> Result<()> {
        let mut taken = self.take(seen)?;
        while taken == 0 {
            self.fill()?;
            taken = self.take(seen)?;
        }
        Ok(())
    }

    /// Reads until so many answers came.
    pub(super) fn answers(&mut self, count: u64) -> Result<()> {
        let mut seen = Seen::default();
        while seen.answers < count {
            self.receive(&mut seen)?;
        }
        Ok(())
    }

    /// Hands unread bytes to `read`, which tells how many it took with what it made of them,
    /// or nothing if it needs more. For what is asked before anything is measured.
    pub(super) fn parse<T>(
        &mut self,
        mut read: impl FnMut(&[u8]) -> Result<Option<(usize, T)>>,
    ) -> Result<T> {
        loop {
            if let Some((taken, value)) = read(&self.buffer.as_slice()[self.from..self.to])? {
                self.from += taken;
                return Ok(value);
            }
            self.fill()?;
        }
    }

    fn take(&mut self, seen: &mut Seen<'_>) -> Result<usize> {
        let unread = &self.buffer.as_slice()[self.from..self.to];
        if unread.is_empty() {
            return Ok(0);
        }
        let taken = self.dialect.take(unread, seen)?;
        self.from += taken;
        Ok(taken)
    }

    fn fill(&mut self) -> Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.buffer.as_slice().len() - self.to < ROOM_BYTES_MIN {
            self.make_room()?;
        }
        let read = self.stream.read(&mut self.buffer.as_mut_slice()[self.to..])?;
        if read == 0 {
            return Err("the server closed the connection".into());
        }
        self.to += read;
        Ok(())
    }

    fn make_room(&mut self) -> Result<()> {
        let left = self.to - self.from;
        if left > ITEM_BYTES_MAX {
            return Err("the server sends something without end".into());
        }
        if left + ROOM_BYTES_MIN > self.buffer.as_slice().len() {
            let mut larger = PageBuffer::zeroed((2 * left).max(READ_BYTES));
            larger.as_mut_slice()[..left]
                .copy_from_slice(&self.buffer.as_slice()[self.from..self.to]);
            self.buffer = larger;
        } else {
            self.buffer.as_mut_slice().copy_within(self.from..self.to, 0);
        }
        (self.from, self.to) = (0, left);
        Ok(())
    }
}

/// Publishes made beforehand, all of the same size, handed out in turn.
pub(super) struct Ring {
    bytes: PageBuffer,
    frame_bytes: usize,
    count: usize,
    next: usize,
    /// Messages in each.
    pub(super) batch: u64,
}

impl Ring {
    /// `count` publishes; `frame` makes the one of a number, counted from 1.
    pub(super) fn new(
        count: usize,
        batch: usize,
        mut frame: impl FnMut(usize) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let frame_bytes = frame(1)?.len();
        let mut bytes = PageBuffer::zeroed(frame_bytes * count);
        for (number, place) in bytes.as_mut_slice().chunks_exact_mut(frame_bytes).enumerate() {
            place.copy_from_slice(&frame(number + 1)?);
        }
        Ok(Self { bytes, frame_bytes, count, next: 0, batch: batch as u64 })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The next `count` publishes, or fewer where the ring ends: at least one.
    pub(super) fn take(&mut self, count: usize) -> (&[u8], usize) {
        let count = count.clamp(1, self.count - self.next);
        let from = self.next * self.frame_bytes;
        self.next = (self.next + count) % self.count;
        (&self.bytes.as_slice()[from..from + count * self.frame_bytes], count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Items are a byte of length and so many bytes.
    struct Lengths;

    impl Dialect for Lengths {
        fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
            let mut at = 0;
            while let Some(item) = bytes.get(at).and_then(|&len| bytes.get(at..=at + len as usize))
            {
                seen.messages += 1;
                if let Some(each) = &mut seen.each {
                    each(&item[1..]);
                }
                at += item.len();
            }
            Ok(at)
        }
    }

    #[test]
    fn items_are_taken_whole_however_the_bytes_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for part in [&b"\x03ab"[..], b"c\x01", b"d\x02ef\x00"] {
                stream.write_all(part).unwrap();
            }
        });
        let mut link = Link::open(address, Box::new(Lengths)).unwrap();
        let mut bodies = Vec::new();
        let mut each = |body: &[u8]| bodies.push(body.to_vec());
        let mut seen = Seen::with(&mut each);
        while seen.messages < 4 {
            link.receive(&mut seen).unwrap();
        }
        assert_eq!(bodies, [&b"abc"[..], b"d", b"ef", b""]);
        assert!(link.receive(&mut Seen::default()).is_err());
        server.join().unwrap();
    }

    #[test]
    fn a_ring_hands_out_whole_publishes_in_turn() {
        let mut ring = Ring::new(3, 2, |number| Ok(vec![number as u8; 4])).unwrap();
        assert_eq!(ring.take(2), (&[1, 1, 1, 1, 2, 2, 2, 2][..], 2));
        assert_eq!(ring.take(2), (&[3; 4][..], 1));
        assert_eq!(ring.take(9).1, 3);
    }
}
