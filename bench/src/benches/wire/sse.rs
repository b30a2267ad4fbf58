//! Fan-out over HTTP: one topic to a thousand streams of Server-Sent Events, beside as many
//! followers of the native API, in the same run and from the same server.
//!
//! Messages are published in bursts, and a burst is over when every stream has all of it. One
//! thread reads all sockets in turn, so that the generator costs both APIs alike.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use gapless_bench::table::{Figure, Row};
use gapless_core::{Durability, TopicName, TopicSettings};

use super::client::{Client, Follower};
use super::frames::Publishes;
use super::live::following;
use super::publish::{Bound, flood};
use super::server::Server;
use super::{BATCH, Cost, MESSAGE_BYTES, Meter, Options};
use crate::benches::store::{Folder, Result};

/// How many streams.
const STREAMS: usize = 1000;

/// Nothing that is waited for here takes longer.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What stands once in every message, and in nothing else that is sent.
const MARK: &[u8] = b"\"time_ms\":";

/// Every case.
///
/// # Errors
/// When a server or a socket answers one.
pub(super) fn run(dir: &Path, options: &Options, show: &mut impl FnMut(Row)) -> Result<()> {
    for (batch, burst) in [(1, 1), (1, BATCH), (BATCH, BATCH)] {
        let native = measure::<(Client, Follower)>(dir, (batch, burst), options)?;
        let events = measure::<Events>(dir, (batch, burst), options)?;
        let how = match (batch, burst) {
            (1, 1) => "one at a time".to_owned(),
            (1, _) => format!("bursts of {burst}"),
            _ => format!("batches of {batch}"),
        };
        let work = format!("events to {STREAMS} streams, {how}; beside native followers");
        let (cost, delivered) = events;
        let row = Row::new(work, cost.per_second(delivered)).against(native.0.per_second(native.1));
        let server = Figure::micros(super::per_message(native.0.server, native.1));
        show(cost.beside(row, delivered).beside("server cpu native", server));
    }
    Ok(())
}

/// Someone who follows the topic.
trait Reader: Sized {
    fn open(server: &Server, topic: &TopicName) -> Result<Self>;

    /// Reads until so many messages came, all told.
    fn read_to(&mut self, count: u64) -> Result<()>;
}

impl Reader for (Client, Follower) {
    fn open(server: &Server, topic: &TopicName) -> Result<Self> {
        following(server, topic)
    }

    fn read_to(&mut self, count: u64) -> Result<()> {
        while self.1.messages < count {
            self.0.deliveries(&mut self.1, |_| {})?;
        }
        Ok(())
    }
}

/// A stream of events, of which only the messages are counted.
struct Events {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Bytes at the beginning of the buffer that may be the first part of a mark.
    kept: usize,
    messages: u64,
}

impl Reader for Events {
    fn open(server: &Server, topic: &TopicName) -> Result<Self> {
        let mut socket = TcpStream::connect(server.http()?)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(WAIT_MAX))?;
        let path = format!("/v1/topics/{}/follow?from=now", topic.as_str());
        socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut events = Self { socket, buffer: vec![0; 64 * 1024], kept: 0, messages: 0 };
        let mut seen = Vec::new();
        // It is live when it says so; what is published from then on comes.
        while !contains(&seen, b"event: live") {
            let read = events.socket.read(&mut events.buffer)?;
            if read == 0 {
                return Err(String::from_utf8_lossy(&seen).into_owned().into());
            }
            seen.extend_from_slice(&events.buffer[..read]);
        }
        Ok(events)
    }

    fn read_to(&mut self, count: u64) -> Result<()> {
        while self.messages < count {
            let read = self.socket.read(&mut self.buffer[self.kept..])?;
            if read == 0 {
                return Err("the server ended the stream".into());
            }
            let end = self.kept + read;
            let found = &self.buffer[..end];
            self.messages += found.windows(MARK.len()).filter(|part| *part == MARK).count() as u64;
            self.kept = end.min(MARK.len() - 1);
            self.buffer.copy_within(end - self.kept..end, 0);
        }
        Ok(())
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|each| each == part)
}

/// Bursts until the time is over; the cost, and how many messages were delivered.
fn measure<R: Reader>(
    dir: &Path,
    (batch, burst): (usize, usize),
    options: &Options,
) -> Result<(Cost, u64)> {
    let folder = Folder::fresh(dir, "wire-sse")?;
    let server = Server::broker(folder.path())?;
    let topic = TopicName::parse("bench")?;
    let mut publisher = Client::connect(server.address())?;
    let durability = Some(Durability::Written);
    publisher.create(&topic, TopicSettings { durability, ..TopicSettings::default() })?;
    let readers = (0..STREAMS).map(|_| R::open(&server, &topic));
    let mut readers = readers.collect::<Result<Vec<_>>>()?;
    let frames_each = burst / batch;
    let mut frames = Publishes::new(&topic, MESSAGE_BYTES, batch, frames_each)?;
    let mut published = 0;
    let mut one_burst = |published: &mut u64| -> Result<()> {
        let bound = Bound { time: WAIT_MAX, frames: frames_each as u64 };
        *published += flood(&mut publisher, &mut frames, frames_each, bound)? * batch as u64;
        readers.iter_mut().try_for_each(|reader| reader.read_to(*published))
    };
    one_burst(&mut published)?;
    let (before, started) = (published, Instant::now());
    let meter = Meter::start(&server)?;
    while started.elapsed() < options.limit() {
        one_burst(&mut published)?;
    }
    let cost = meter.stop(&server)?;
    drop(readers);
    server.end()?;
    Ok((cost, (published - before) * STREAMS as u64))
}
