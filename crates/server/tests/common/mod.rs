//! A listener over a broker in a folder of its own, and a peer that speaks frames by hand.
//!
//! The peer blocks, and reads with a deadline, so that a test that waits for what never comes
//! ends with a sentence and does not hang.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::{
    Durability, Message, Pattern, PublishOptions, Records, RecordsBuilder, TopicName, TopicSettings,
};
use gapless_protocol::*;
use gapless_server::native::{NativeListener, NativeOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything takes on a loaded machine; only a failing test waits for it.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

pub fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("a pattern")
}

pub fn records(messages: &[Message]) -> Records {
    let mut builder = RecordsBuilder::default();
    messages.iter().for_each(|message| builder.push(message).expect("a message"));
    builder.finish()
}

pub fn publish(topic: &str, messages: &[Message]) -> Publish {
    let options = PublishOptions::default();
    Publish { topic: name(topic), options, not_before: None, records: records(messages) }
}

pub fn create(topic: &str) -> TopicCreate {
    TopicCreate { topic: name(topic), settings: TopicSettings::default() }
}

pub fn subscribe(text: &str, from: StartFrom) -> Subscribe {
    let (credit_messages, credit_bytes) = (100_000, 32 << 20);
    let pattern = pattern(text);
    Subscribe { pattern, credit_messages, credit_bytes, from, identity: None }
}

pub fn hello() -> Hello {
    Hello {
        version_min: VERSION,
        version_max: VERSION,
        client_name: "peer".into(),
        features: Features::GROUPS,
        ..Hello::default()
    }
}

/// A broker with a native API on a free port and a Unix socket.
pub struct Server {
    pub runtime: Runtime,
    pub broker: Broker,
    listener: Option<NativeListener>,
    folder: TempDir,
}

impl Server {
    pub fn open() -> Self {
        Self::with(|_, _| ())
    }

    pub fn with(change: impl FnOnce(&mut NativeOptions, &mut BrokerOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = NativeOptions::default();
        let mut broker_options = BrokerOptions::new(folder.path().join("data"));
        broker_options.defaults.durability = Durability::Written;
        change(&mut options, &mut broker_options);
        let broker = Broker::open(broker_options).expect("a broker");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let socket = folder.path().join("socket");
        let open =
            NativeListener::open(broker.clone(), options, Some("127.0.0.1:0"), Some(&socket));
        let listener = runtime.block_on(open).expect("a listener");
        Self { runtime, broker, listener: Some(listener), folder }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn listener(&self) -> &NativeListener {
        self.listener.as_ref().expect("the listener is open")
    }

    /// Closes the listener on another thread.
    pub fn begin_close(&mut self) -> tokio::task::JoinHandle<()> {
        let listener = self.listener.take().expect("the listener is open");
        self.runtime.spawn(listener.close())
    }

    pub fn wait<T>(&self, task: tokio::task::JoinHandle<T>) -> T {
        let done = async { tokio::time::timeout(DEADLINE, task).await };
        self.runtime.block_on(done).expect("it ends in time").expect("it does not panic")
    }

    /// A connection on which nothing was said yet.
    pub fn silent(&self) -> Peer {
        let address = self.listener().tcp_address().expect("it listens on TCP");
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("a socket option");
        Peer::new(Socket::Tcp(stream))
    }

    pub fn silent_unix(&self) -> Peer {
        let stream = UnixStream::connect(self.socket()).expect("a connection");
        Peer::new(Socket::Unix(stream))
    }

    pub fn peer(&self) -> Peer {
        let mut peer = self.silent();
        peer.greet();
        peer
    }

    pub fn unix_peer(&self) -> Peer {
        let mut peer = self.silent_unix();
        peer.greet();
        peer
    }

    pub fn create(&self, topic: &str) {
        self.broker.create_topic(&name(topic), TopicSettings::default()).expect("a topic");
    }

    /// Publishes numbered messages, one by one, past the listener.
    pub fn fill(&self, topic: &str, count: usize) {
        for number in 0..count {
            let message = Message::new(format!("{topic} {number}"));
            let done = self.broker.publish(&name(topic), &message, &PublishOptions::default());
            assert!(done.wait().expect("an ack").accepted().is_some());
        }
    }

    /// A well-behaved client still gets what it asks for, whatever others did.
    pub fn still_works(&self) {
        for mut peer in [self.peer(), self.unix_peer()] {
            assert!(matches!(peer.ask(create("still.works")), Verb::TopicInfo(_)));
            let ack = peer.ask(publish("still.works", &[Message::new("yes")]));
            let seq = accepted(&ack).accepted.last;
            let found = peer.ask(gapless_protocol::Read { topic: name("still.works"), seq });
            let Verb::Found(found) = found else { panic!("found: {found:?}") };
            assert_eq!(found.records.iter().next().expect("one").body, Some(&b"yes"[..]));
        }
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

pub fn accepted(verb: &Verb) -> &PartAccepted {
    match verb {
        Verb::PublishAck(ack) => match &ack.parts[..] {
            [PartAck::Accepted(accepted)] => accepted,
            other => panic!("one accepted part: {other:?}"),
        },
        other => panic!("an ack: {other:?}"),
    }
}

pub fn rejected(verb: &Verb) -> gapless_core::RejectReason {
    match verb {
        Verb::PublishAck(ack) => match &ack.parts[..] {
            [PartAck::Rejected(Rejection::Reason(reason))] => *reason,
            other => panic!("one rejected part: {other:?}"),
        },
        other => panic!("an ack: {other:?}"),
    }
}

pub fn code(verb: &Verb) -> ErrorCode {
    match verb {
        Verb::Error(error) => error.known().expect("a code of the list"),
        other => panic!("an error: {other:?}"),
    }
}

#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    pub fn set_timeouts(&self, read: Duration, write: Duration) {
        let done = match self {
            Self::Tcp(stream) => stream
                .set_read_timeout(Some(read))
                .and_then(|()| stream.set_write_timeout(Some(write))),
            Self::Unix(stream) => stream
                .set_read_timeout(Some(read))
                .and_then(|()| stream.set_write_timeout(Some(write))),
        };
        done.expect("socket options");
    }

    pub fn end_writing(&self) {
        let end = std::net::Shutdown::Write;
        match self {
            Self::Tcp(stream) => stream.shutdown(end),
            Self::Unix(stream) => stream.shutdown(end),
        }
        .expect("a half that can be closed");
    }
}

/// The other side of a connection.
#[derive(Debug)]
pub struct Peer {
    pub socket: Socket,
    input: BytesMut,
    next_id: u128,
    aside: VecDeque<Verb>,
}

impl Peer {
    pub fn new(socket: Socket) -> Self {
        socket.set_timeouts(DEADLINE, DEADLINE);
        Self { socket, input: BytesMut::new(), next_id: 1, aside: VecDeque::new() }
    }

    pub fn greet(&mut self) -> Welcome {
        match self.ask(hello()) {
            Verb::Welcome(welcome) => welcome,
            other => panic!("a welcome: {other:?}"),
        }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        match &mut self.socket {
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Unix(stream) => stream.write_all(bytes),
        }
        .expect("what is sent is taken");
    }

    pub fn id(&mut self) -> [u8; 16] {
        self.next_id += 1;
        self.next_id.to_le_bytes()
    }

    pub fn frame(&mut self, verb: impl Into<Verb>) -> ([u8; 16], BytesMut) {
        let id = self.id();
        let mut out = BytesMut::new();
        verb.into().encode(Ids::question(id), FrameLimit::MAX, &mut out).expect("a frame");
        (id, out)
    }

    /// Sends a verb; its answer will have this id.
    pub fn send(&mut self, verb: impl Into<Verb>) -> [u8; 16] {
        let (id, bytes) = self.frame(verb);
        self.send_bytes(&bytes);
        id
    }

    /// The next frame; `None` at the end.
    pub fn frame_or_end(&mut self) -> Option<Frame> {
        loop {
            let frame = Decoder::new(FrameLimit::MAX).decode(&mut self.input);
            if let Some(frame) = frame.expect("the server sends whole frames") {
                return Some(frame);
            }
            let mut chunk = vec![0; 64 * 1024];
            match self.socket.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.input.is_empty(), "the server ends after whole frames");
                    return None;
                }
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came in time: {error}"),
            }
        }
    }

    pub fn verb_or_end(&mut self) -> Option<(Verb, [u8; 16])> {
        let frame = self.frame_or_end()?;
        Some((Verb::decode(&frame).expect("the server sends verbs"), frame.corr_id))
    }

    /// The next verb of a subscription, or whatever else came unasked.
    pub fn next(&mut self) -> Verb {
        match self.aside.pop_front() {
            Some(verb) => verb,
            None => self.verb_or_end().expect("the connection goes on").0,
        }
    }

    /// Waits for the answer with this id; what comes before it is kept for `next`.
    pub fn answer(&mut self, id: [u8; 16]) -> Verb {
        loop {
            let (verb, corr) = self.verb_or_end().expect("the connection goes on");
            if corr == id {
                return verb;
            }
            self.aside.push_back(verb);
        }
    }

    pub fn ask(&mut self, verb: impl Into<Verb>) -> Verb {
        let id = self.send(verb);
        self.answer(id)
    }

    pub fn follow(&mut self, subscribe: Subscribe) -> u64 {
        match self.ask(subscribe) {
            Verb::Subscribed(subscribed) => subscribed.subscription,
            other => panic!("subscribed: {other:?}"),
        }
    }

    /// Everything that came unasked up to now: a ping is answered behind it.
    pub fn all_there_is(&mut self) -> Vec<Verb> {
        let pong = self.ask(Ping { echo: Bytes::from_static(b"?") });
        assert!(matches!(pong, Verb::Pong(_)), "{pong:?}");
        self.aside.drain(..).collect()
    }

    /// Reads to the end of the connection.
    pub fn rest(&mut self) -> Vec<Verb> {
        let mut rest: Vec<Verb> = self.aside.drain(..).collect();
        while let Some((verb, _)) = self.verb_or_end() {
            rest.push(verb);
        }
        rest
    }

    /// Reads to the end, which must be an error of this code and nothing after it.
    pub fn ends_with(&mut self, expected: ErrorCode) {
        let rest = self.rest();
        assert_eq!(rest.last().map(code), Some(expected), "{rest:?}");
    }
}

/// Adds up what a subscriber of one topic is sent: no hole, no overlap (the rule of D4).
#[derive(Debug, Default)]
pub struct Ledger {
    pub next: u64,
    pub bodies: Vec<(u64, Bytes)>,
    pub gaps: Vec<GapNotice>,
    pub others: Vec<Verb>,
}

impl Ledger {
    pub fn from(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    pub fn take(&mut self, verb: Verb) {
        match verb {
            Verb::Messages(messages) => {
                messages.verify(gapless_broker::checksum).expect("checksums as stored");
                assert_eq!(messages.from.0, self.next, "no hole and no overlap");
                for batch in messages.batches.views() {
                    for record in batch.records() {
                        let seq = batch.seq_of(&record);
                        if messages.from <= seq && seq <= messages.to {
                            let body = Bytes::copy_from_slice(record.body.unwrap_or_default());
                            self.bodies.push((seq.0, body));
                        }
                    }
                }
                self.next = messages.to.0 + 1;
            }
            Verb::Gap(gap) => {
                assert_eq!(gap.gap.from.map(|seq| seq.0), Some(self.next), "no hole, no overlap");
                self.next = gap.gap.to.expect("a last seq").0 + 1;
                self.gaps.push(gap.gap);
            }
            other => self.others.push(other),
        }
    }
}
