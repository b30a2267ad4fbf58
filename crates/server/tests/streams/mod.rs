//! A broker behind an HTTP API that can be restarted, and a reader of Server-Sent Events by
//! hand, which keeps the last id as a browser does.
//!
//! The reader blocks, with a deadline: a test that waits for what never comes ends with a
//! sentence and does not hang.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gapless_broker::{Broker, BrokerOptions};
use gapless_core::{Durability, Message, PublishOptions, TopicName, TopicSettings};
use gapless_server::http::{HttpListener, HttpOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything takes on a loaded machine; only a failing test waits for it.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

type Change = Box<dyn Fn(&mut HttpOptions, &mut BrokerOptions) + Send + Sync>;

/// A broker with an HTTP API on a free port.
pub struct Server {
    pub runtime: Runtime,
    open: Option<(Broker, HttpListener)>,
    pub address: SocketAddr,
    change: Change,
    folder: TempDir,
}

impl Server {
    pub fn open() -> Self {
        Self::with(|_, _| ())
    }

    pub fn with(
        change: impl Fn(&mut HttpOptions, &mut BrokerOptions) + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = gapless_server::runtime().expect("a runtime");
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { runtime, open: None, address, change: Box::new(change), folder };
        server.start();
        server
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn start(&mut self) {
        let mut options = HttpOptions::default();
        let mut broker_options = BrokerOptions::new(self.data());
        broker_options.defaults.durability = Durability::Written;
        (self.change)(&mut options, &mut broker_options);
        let broker = Broker::open(broker_options).expect("a broker");
        let address = self.address.to_string();
        let listener = HttpListener::open(broker.clone(), options, &address);
        let listener = self.runtime.block_on(listener).expect("a listener");
        self.address = listener.address();
        self.open = Some((broker, listener));
    }

    pub fn stop(&mut self) {
        let (broker, listener) = self.open.take().expect("it runs");
        let closed = async { tokio::time::timeout(DEADLINE, listener.close()).await };
        self.runtime.block_on(closed).expect("the listener closes in time");
        broker.close().expect("a clean end");
    }

    pub fn broker(&self) -> &Broker {
        &self.open.as_ref().expect("it runs").0
    }

    pub fn create(&self, topic: &str) {
        self.create_with(topic, TopicSettings::default());
    }

    pub fn create_with(&self, topic: &str, settings: TopicSettings) {
        self.broker().create_topic(&name(topic), settings).expect("a topic");
    }

    /// Publishes some messages as one batch.
    pub fn publish(&self, topic: &str, messages: &[Message]) {
        let options = PublishOptions::default();
        let done = self.broker().publish_batch(&name(topic), messages, &options);
        assert!(done.wait().expect("an ack").accepted().is_some());
    }

    /// Publishes numbered texts, in batches of several sizes.
    pub fn fill(&self, topic: &str, count: usize) {
        let mut number = 0;
        let mut size = 1;
        while number < count {
            let end = count.min(number + size);
            let batch: Vec<Message> =
                (number..end).map(|each| Message::new(format!("{topic} {each}"))).collect();
            self.publish(topic, &batch);
            (number, size) = (end, size % 5 + 1);
        }
    }

    /// Follows; the answer must be a stream.
    pub fn follow(&self, path: &str) -> Stream {
        let stream = Stream::open(self.address, path, None);
        assert_eq!(stream.status, 200, "{}", stream.head);
        stream
    }

    /// Comes back as a browser does, with the last id it saw.
    pub fn resume(&self, path: &str, last_id: &str) -> Stream {
        let stream = Stream::open(self.address, path, Some(last_id));
        assert_eq!(stream.status, 200, "{}", stream.head);
        stream
    }

    /// Asks until something is true, and fails when it does not become so.
    pub fn until(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is(self) {
            assert!(Instant::now() < deadline, "it did not happen in time: {what}");
            std::thread::yield_now();
        }
    }
}

/// An event as a browser would hand it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub event: String,
    pub data: String,
    /// The last id when it came.
    pub id: String,
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).expect("JSON")
    }

    pub fn seq(&self) -> u64 {
        self.json()["seq"].as_u64().expect("a seq")
    }

    pub fn text(&self) -> String {
        self.json()["text"].as_str().expect("a text").to_owned()
    }

    pub fn is_message(&self) -> bool {
        self.event == "message"
    }
}

/// A stream of events, read by hand.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    raw: Vec<u8>,
    text: String,
    ended: bool,
    events: VecDeque<Event>,
    pub status: u16,
    pub head: String,
    pub last_id: String,
    pub comments: Vec<String>,
    pub retry_ms: Option<u64>,
}

/// Sends a request and reads the head of its answer; the rest is left in the buffer.
pub fn request(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> (TcpStream, String, Vec<u8>) {
    try_request(address, path, headers).expect("an answer in time")
}

fn try_request(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> std::io::Result<(TcpStream, String, Vec<u8>)> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(DEADLINE))?;
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    socket.write_all((head + "\r\n").as_bytes())?;
    let mut raw = Vec::new();
    loop {
        if let Some(end) = raw.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = raw.split_off(end + 4);
            return Ok((socket, String::from_utf8(raw).expect("a head"), rest));
        }
        let mut chunk = [0; 4096];
        match socket.read(&mut chunk)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => raw.extend_from_slice(&chunk[..read]),
        }
    }
}

impl Stream {
    pub fn open(address: SocketAddr, path: &str, last_id: Option<&str>) -> Self {
        Self::try_open(address, path, last_id).expect("an answer in time")
    }

    /// Fails when the server is not there, or goes before it has answered.
    pub fn try_open(
        address: SocketAddr,
        path: &str,
        last_id: Option<&str>,
    ) -> std::io::Result<Self> {
        let headers = [("Last-Event-ID", last_id.unwrap_or_default())];
        let headers = if last_id.is_some() { &headers[..] } else { &[] };
        let (socket, head, raw) = try_request(address, path, headers)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Self {
            socket,
            raw,
            text: String::new(),
            ended: false,
            events: VecDeque::new(),
            status: status.expect("a status"),
            head,
            last_id: last_id.unwrap_or_default().to_owned(),
            comments: Vec::new(),
            retry_ms: None,
        })
    }

    /// The body of an answer that is not a stream, with its content length.
    pub fn body(mut self) -> Value {
        let length = self.head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
        });
        let length = length.expect("a content length");
        while self.raw.len() < length {
            assert!(self.read(), "the whole body");
        }
        serde_json::from_slice(&self.raw[..length]).expect("JSON")
    }

    /// Reads what there is, at least something; false at the end.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        match self.socket.read(&mut chunk) {
            Ok(0) => false,
            Ok(read) => {
                self.raw.extend_from_slice(&chunk[..read]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came in time: {error}"),
        }
    }

    /// Takes whole chunks of the body out of the buffer.
    fn unchunk(&mut self) {
        loop {
            let Some(end) = self.raw.windows(2).position(|two| two == b"\r\n") else { return };
            let size = std::str::from_utf8(&self.raw[..end]).expect("a chunk's size");
            let size = usize::from_str_radix(size, 16).expect("a chunk's size");
            let whole = end + 2 + size + 2;
            if self.raw.len() < whole {
                return;
            }
            let data = &self.raw[end + 2..end + 2 + size];
            self.text += std::str::from_utf8(data).expect("frames end between characters");
            self.ended |= size == 0;
            self.raw.drain(..whole);
        }
    }

    fn parse(&mut self) {
        while let Some(end) = self.text.find("\n\n") {
            let block: String = self.text.drain(..end + 2).collect();
            let mut event = "message".to_owned();
            let mut data: Option<String> = None;
            for line in block.lines() {
                let (field, value) = line.split_once(':').unwrap_or((line, ""));
                let value = value.strip_prefix(' ').unwrap_or(value);
                match field {
                    "" => self.comments.extend((!line.is_empty()).then(|| value.to_owned())),
                    "event" => event = value.to_owned(),
                    "id" => self.last_id = value.to_owned(),
                    "retry" => self.retry_ms = value.parse().ok(),
                    "data" => match &mut data {
                        Some(data) => *data += &format!("\n{value}"),
                        None => data = Some(value.to_owned()),
                    },
                    other => panic!("a field of events: {other:?}"),
                }
            }
            let id = self.last_id.clone();
            self.events.extend(data.map(|data| Event { event, data, id }));
        }
    }

    /// Reads until something new came: an event, a comment, the end. False at the end.
    pub fn step(&mut self) -> bool {
        if !self.read() {
            self.ended = true;
        }
        self.unchunk();
        self.parse();
        !self.ended
    }

    /// The next event; `None` when the server has ended the stream.
    pub fn next_or_end(&mut self) -> Option<Event> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            assert!(Instant::now() < deadline, "only comments came, and no event");
            self.unchunk();
            self.parse();
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.ended || !self.step() && self.events.is_empty() {
                return None;
            }
        }
    }

    pub fn next(&mut self) -> Event {
        self.next_or_end().expect("the stream goes on")
    }

    /// The next message, skipping other events.
    pub fn message(&mut self) -> Event {
        loop {
            let event = self.next();
            if event.is_message() {
                return event;
            }
        }
    }

    /// The next event of this name; there must be no message before it.
    pub fn told(&mut self, name: &str) -> Event {
        loop {
            let event = self.next();
            if event.event == name {
                return event;
            }
            assert!(!event.is_message(), "{name} comes before {event:?}");
        }
    }
}

/// Adds up what a follower of one topic receives: every seq by exactly one event.
#[derive(Debug)]
pub struct Ledger {
    pub next: u64,
    pub messages: Vec<(u64, String)>,
    pub skipped: u64,
    pub gaps: Vec<Value>,
}

impl Ledger {
    pub fn from(next: u64) -> Self {
        Self { next, messages: Vec::new(), skipped: 0, gaps: Vec::new() }
    }

    pub fn take(&mut self, event: &Event) {
        let range = |next: u64| {
            let facts = event.json();
            assert_eq!(facts["from"].as_u64(), Some(next), "no hole, no overlap: {facts}");
            (facts["to"].as_u64().expect("a last seq"), facts)
        };
        match event.event.as_str() {
            "message" => {
                assert_eq!(event.seq(), self.next, "no hole, no repeat: {event:?}");
                self.messages.push((self.next, event.data.clone()));
                self.next += 1;
            }
            "skipped" => {
                let (to, _) = range(self.next);
                self.skipped += to + 1 - self.next;
                self.next = to + 1;
            }
            "gap" => {
                let (to, facts) = range(self.next);
                self.gaps.push(facts);
                self.next = to + 1;
            }
            _ => {}
        }
    }
}
