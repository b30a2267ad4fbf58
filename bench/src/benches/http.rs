//! Over HTTP, beside the native API of the same server in the same run.
//!
//! The generator sends requests made beforehand on a bare socket, as that of the native API
//! does, and looks at nothing but the answers' heads and the last line. The column that is the
//! hardware's elsewhere is the native API's here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::process::load_average;
use gapless_bench::samples::Samples;
use gapless_bench::table::{Figure, Row, Table};
use gapless_core::{Durability, TopicName, TopicSettings};

use super::size_name;
use super::store::{Folder, Result};
use super::wire::client::Client;
use super::wire::frames::Publishes;
use super::wire::publish::{Bound, flood};
use super::wire::server::Server;
use super::wire::{BATCH, MESSAGE_BYTES, Meter};

/// Nothing that is waited for here takes longer; a bench that hangs ends with an error.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Messages in flight at the native API.
const IN_FLIGHT: usize = 4096;
/// Bytes of lines that are sent at once: a chunk of the body.
const CHUNK_BYTES: usize = 128 * 1024;
/// A case ends when it has sent so many bytes.
const BYTES_MAX: u64 = 2_000_000_000;

/// For how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Seconds for each case, and as many for what it is held against.
    pub(crate) seconds: f64,
}

/// Every case, as a table.
///
/// # Errors
/// When a server, a socket or the disk answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new(
        "over HTTP (TCP on loopback); the hardware is the native API of the same server",
    );
    let limit = Duration::from_secs_f64(options.seconds);
    for durability in [Durability::Memory, Durability::Flushed] {
        let folder = Folder::fresh(dir, "http-publish")?;
        let server = Server::broker(folder.path())?;
        for size in [MESSAGE_BYTES, 1024] {
            let topic = TopicName::parse(&format!("bench.{size}"))?;
            let settings =
                TopicSettings { durability: Some(durability), ..TopicSettings::default() };
            Client::connect(server.address())?.create(&topic, settings)?;
            let case = Case { server: &server, topic: &topic, durability, size, limit };
            for body in [Body::Text, Body::Json] {
                table.push(case.lines(body)?);
            }
            table.push(case.one_at_a_time()?.notes(format!("load {:.1}", load_average()?)));
        }
        server.end()?;
    }
    Ok(table)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Text,
    Json,
}

struct Case<'a> {
    server: &'a Server,
    topic: &'a TopicName,
    durability: Durability,
    size: usize,
    limit: Duration,
}

impl Case<'_> {
    /// One request of many lines, beside batches in flight.
    fn lines(&self, body: Body) -> Result<Row> {
        let mut frames = Publishes::new(self.topic, self.size, BATCH, IN_FLIGHT / BATCH)?;
        let frames_max = BYTES_MAX / frames.frame_bytes() as u64;
        let bound = Bound { time: self.limit, frames: frames_max };
        let mut client = Client::connect(self.server.address())?;
        let meter = Meter::start(self.server)?;
        let native = flood(&mut client, &mut frames, IN_FLIGHT / BATCH, bound)? * BATCH as u64;
        let native_cost = meter.stop(self.server)?;
        let meter = Meter::start(self.server)?;
        let messages = self.stream_lines(body)?;
        let cost = meter.stop(self.server)?;
        let kind = if body == Body::Text { "text" } else { "JSON" };
        let (durability, size) = (self.durability, size_name(self.size));
        let work = format!("publish, {durability}, {size} of {kind}, lines of one request");
        let row = Row::new(work, cost.per_second(messages)).against(native_cost.per_second(native));
        Ok(cost.beside(row, messages))
    }

    /// Sends lines for the time given; tells how many were accepted.
    fn stream_lines(&self, body: Body) -> Result<u64> {
        let line = line(body, self.size);
        let mut lines = line.repeat(CHUNK_BYTES / line.len());
        let chunk = [format!("{:x}\r\n", lines.len()).as_bytes(), &lines, b"\r\n"].concat();
        lines.clear();
        let mut stream = connect(self.server.http()?)?;
        let head = format!(
            "POST /v1/topics/{}/messages HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n",
            self.topic
        );
        stream.write_all(head.as_bytes())?;
        let answers = stream.try_clone()?;
        thread::scope(|scope| {
            let answers = scope.spawn(move || accepted(answers));
            let started = Instant::now();
            let mut left = BYTES_MAX;
            while started.elapsed() < self.limit && left > 0 {
                stream.write_all(&chunk)?;
                left = left.saturating_sub(chunk.len() as u64);
            }
            stream.write_all(b"0\r\n\r\n")?;
            answers.join().unwrap_or_else(|_| Err("the reader of answers panicked".into()))
        })
    }

    /// One request after the other on one connection, beside frames.
    fn one_at_a_time(&self) -> Result<Row> {
        let mut frames = Publishes::new(self.topic, self.size, 1, 1)?;
        let mut client = Client::connect(self.server.address())?;
        let native = self.each(|| {
            client.send(frames.take(1).0)?;
            client.acks().map(|_| ())
        })?;
        let request = [
            format!(
                "POST /v1/topics/{}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
                self.topic, self.size
            )
            .into_bytes(),
            vec![b'x'; self.size],
        ]
        .concat();
        let mut stream = BufReader::new(connect(self.server.http()?)?);
        let meter = Meter::start(self.server)?;
        let samples = self.each(|| {
            stream.get_mut().write_all(&request)?;
            answer(&mut stream)
        })?;
        let cost = meter.stop(self.server)?;
        let (rate, floor) = (samples.rate(0), native.rate(0));
        let (durability, size) = (self.durability, size_name(self.size));
        let row = Row::new(format!("ack p50, {durability}, {size}"), Figure::micros(rate.p50_us))
            .against(Figure::micros(floor.p50_us))
            .beside("p99", Figure::micros(rate.p99_us))
            .beside("native p99", Figure::micros(floor.p99_us));
        Ok(cost.beside(row, samples.steps()))
    }

    fn each(&self, mut once: impl FnMut() -> Result<()>) -> Result<Samples> {
        let mut samples = Samples::default();
        let started = Instant::now();
        while started.elapsed() < self.limit && !samples.is_full() {
            let begun = Instant::now();
            once()?;
            samples.note(begun.elapsed());
        }
        samples.spend(started.elapsed());
        Ok(samples)
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    Ok(stream)
}

/// A message as a line, with a body of so many bytes.
fn line(body: Body, size: usize) -> Vec<u8> {
    match body {
        Body::Text => format!("{{\"text\":\"{}\"}}\n", "x".repeat(size)),
        Body::Json => {
            let data = "x".repeat(size.saturating_sub("{\"n\":1,\"data\":\"\"}".len()));
            format!("{{\"json\":{{\"n\":1,\"data\":\"{data}\"}}}}\n")
        }
    }
    .into_bytes()
}

/// Reads answers to their end; tells how many messages the last of them counts.
fn accepted(stream: TcpStream) -> Result<u64> {
    let mut last = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with("HTTP/1.1 ") && !line.starts_with("HTTP/1.1 200") {
            return Err(format!("the server answers {line}").into());
        }
        if line.starts_with('{') {
            last = line;
        }
        if last.contains("\"end\":true") {
            break;
        }
    }
    let end: serde_json::Value = serde_json::from_str(&last)?;
    match (end["accepted"].as_u64(), end["refused"].as_u64()) {
        (Some(accepted), Some(0)) => Ok(accepted),
        _ => Err(format!("the answers end with {last}").into()),
    }
}

/// Reads one answer.
fn answer(stream: &mut BufReader<TcpStream>) -> Result<()> {
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        if line.starts_with("HTTP/1.1 ") && !line.starts_with("HTTP/1.1 201") {
            return Err(format!("the server answers {line}").into());
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(())
}
