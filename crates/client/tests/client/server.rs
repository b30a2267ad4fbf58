//! A server of the native protocol, driven by hand, frame by frame.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use gapless_client::{
    Backoff, Client, ClientLimits, ConnectOptions, Durability, Epoch, Position, Seq,
};
use gapless_core::entry::Entry;
use gapless_core::{Accepted, Batch, EntryHeader, EntryKind, Message, RecordsBuilder, Timestamp};
use gapless_protocol::{
    Decoder, Frame, FrameLimit, Hello, Ids, Known, Limits, Messages, PartAccepted, PartAck,
    Publish, PublishAck, Subscribe, Subscribed, Token, VERSION, Verb, Welcome,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;

pub(crate) const EPOCH: Epoch = Epoch(7);
/// How long a test waits for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// How long a test waits for something that must not happen.
pub(crate) const BRIEF: Duration = Duration::from_millis(60);

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A socket that listens.
pub(crate) enum Server {
    Tcp(TcpListener),
    Unix(UnixListener, String),
}

impl Server {
    pub(crate) async fn tcp() -> Self {
        Self::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn unix() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gapless-client-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        Self::Unix(listener, path.display().to_string())
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.local_addr().unwrap().to_string(),
            Self::Unix(_, path) => format!("unix:{path}"),
        }
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new([self.address()]).name("test").backoff(FAST)
    }

    /// The next connection, before its hello.
    pub(crate) async fn accept(&self) -> Peer {
        let accepted = async {
            match self {
                Self::Tcp(listener) => {
                    Box::new(listener.accept().await.unwrap().0) as Box<dyn Stream>
                }
                Self::Unix(listener, _) => Box::new(listener.accept().await.unwrap().0),
            }
        };
        let stream = timeout(SOON, accepted).await.expect("a client connects");
        Peer { stream, input: BytesMut::new() }
    }

    /// The next connection, after its welcome.
    pub(crate) async fn welcome(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.welcome(LIMITS).await;
        peer
    }

    /// A client that is online, and its connection.
    pub(crate) async fn client(&self) -> (Client, Peer) {
        self.client_with(self.options()).await
    }

    pub(crate) async fn client_with(&self, options: ConnectOptions) -> (Client, Peer) {
        let (client, peer) = tokio::join!(Client::connect(options), self.welcome());
        (client.unwrap(), peer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Real sockets and a paused clock do not go together, so tests come back quickly instead.
pub(crate) const FAST: Backoff = Backoff {
    first: Duration::from_millis(2),
    most: Duration::from_millis(20),
    jitter_percent: 20,
};

pub(crate) const LIMITS: Limits = Limits {
    frame_bytes: 1 << 20,
    in_flight_bytes: 1 << 20,
    subscriptions: 100,
    credit_messages: 1_000,
    credit_bytes: 1 << 20,
    idle_ms: 0,
};

/// Limits of a client that is easily full.
pub(crate) fn small() -> ClientLimits {
    ClientLimits { in_flight_count: 2, ..ClientLimits::default() }
}

/// The server's half of a connection. Dropping it drops the connection.
pub(crate) struct Peer {
    stream: Box<dyn Stream>,
    input: BytesMut,
}

impl Peer {
    /// The next frame; `None` when the client has gone.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        let decoder = Decoder::new(FrameLimit::MAX);
        let next = async {
            loop {
                if let Some(frame) = decoder.decode(&mut self.input).unwrap() {
                    return Some(frame);
                }
                if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        };
        timeout(SOON, next).await.expect("a frame comes")
    }

    /// The next verb but pings, which are answered.
    pub(crate) async fn verb(&mut self) -> Option<(Verb, Ids)> {
        loop {
            let frame = self.frame().await?;
            let ids = Ids::answer_to(&frame);
            match Verb::decode(&frame).unwrap() {
                Verb::Ping(ping) => {
                    self.send(gapless_protocol::Pong { echo: ping.echo }, ids).await;
                }
                verb => return Some((verb, ids)),
            }
        }
    }

    pub(crate) async fn hello(&mut self) -> (Hello, Ids) {
        match self.verb().await {
            Some((Verb::Hello(hello), ids)) => (hello, ids),
            other => panic!("a hello, not {other:?}"),
        }
    }

    pub(crate) async fn welcome(&mut self, limits: Limits) {
        let (hello, ids) = self.hello().await;
        let welcome = Welcome {
            version: VERSION,
            features: hello.features,
            epoch: EPOCH,
            session: 1,
            limits,
            ..Welcome::default()
        };
        self.send(welcome, ids).await;
    }

    pub(crate) async fn publish(&mut self) -> (Publish, Ids) {
        match self.verb().await {
            Some((Verb::Publish(publish), ids)) => (publish, ids),
            other => panic!("a publish, not {other:?}"),
        }
    }

    pub(crate) async fn subscribe(&mut self) -> (Subscribe, Ids) {
        match self.verb().await {
            Some((Verb::Subscribe(subscribe), ids)) => (subscribe, ids),
            other => panic!("a subscribe, not {other:?}"),
        }
    }

    /// Takes the next subscription under this number.
    pub(crate) async fn subscribed(&mut self, subscription: u64) -> Subscribe {
        let (subscribe, ids) = self.subscribe().await;
        self.send(Subscribed { subscription, token: token(0) }, ids).await;
        subscribe
    }

    pub(crate) async fn send(&mut self, verb: impl Into<Verb>, ids: Ids) {
        let mut out = BytesMut::new();
        verb.into().encode(ids, FrameLimit::MAX, &mut out).unwrap();
        self.raw(&out).await;
    }

    /// A client that has gone is not an error: the test will notice.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Sends one message, whose body is its seq.
    pub(crate) async fn message(&mut self, subscription: u64, seq: u64) {
        self.send(messages(subscription, seq, seq), Ids::NONE).await;
    }

    /// Nothing but a ping comes before the ping's answer: what the client would have sent
    /// besides would have come before it.
    pub(crate) async fn expect_nothing(&mut self, client: &Client) {
        let serve = async {
            let frame = self.frame().await.expect("the client is there");
            let verb = Verb::decode(&frame).unwrap();
            assert_eq!(verb.kind().name(), "Ping", "{verb:?}");
            self.send(gapless_protocol::Pong::default(), Ids::answer_to(&frame)).await;
        };
        let (pong, ()) = tokio::join!(client.ping(), serve);
        pong.unwrap();
    }

    /// The next verb must be of this kind.
    pub(crate) async fn expect(&mut self, name: &str) -> (Verb, Ids) {
        let (verb, ids) = self.verb().await.expect("the client is there");
        assert_eq!(verb.kind().name(), name);
        (verb, ids)
    }
}

pub(crate) fn token(position: u64) -> Token {
    Token { epoch: EPOCH, position: Position(position) }
}

pub(crate) fn accepted(seq: u64, count: u32) -> PublishAck {
    let last = seq + u64::from(count) - 1;
    let accepted = Accepted {
        first: Seq(seq),
        last: Seq(last),
        position: Position(last),
        durability: Durability::Flushed,
        duplicate: false,
    };
    let part = PartAccepted { accepted, count, known: Known::None };
    PublishAck { parts: vec![PartAck::Accepted(part)] }
}

pub(crate) fn duplicate(seq: u64) -> PublishAck {
    let mut ack = accepted(seq, 1);
    if let PartAck::Accepted(part) = &mut ack.parts[0] {
        part.accepted.duplicate = true;
        part.known = Known::These(vec![(0, Seq(seq))]);
    }
    ack
}

/// Messages of these seqs in one batch, each with its seq as its body and as its position.
pub(crate) fn messages(subscription: u64, from: u64, to: u64) -> Messages {
    let bodies = (from..=to).map(|seq| seq.to_string()).collect::<Vec<_>>();
    let batch =
        batch(from, &bodies.iter().map(|body| Message::new(body.clone())).collect::<Vec<_>>());
    Messages {
        subscription,
        topic: "orders".parse().unwrap(),
        from: Seq(from),
        to: Seq(to),
        last_position: Position(to),
        batches: [batch].into_iter().collect(),
    }
}

pub(crate) fn batch(seq: u64, messages: &[Message]) -> Batch {
    let mut builder = RecordsBuilder::default();
    messages.iter().for_each(|message| builder.push(message).unwrap());
    let records = builder.finish();
    let header = EntryHeader {
        seq: Seq(seq),
        position: Position(seq),
        time: Timestamp(1),
        span: records.count,
        count: records.count,
        flags: records.flags,
        ..EntryHeader::new(EntryKind::Batch)
    };
    let mut bytes = BytesMut::new();
    header.put(&mut bytes, &records.bytes, 0, |_| 0);
    Batch::new(Entry { header, bytes: bytes.freeze() }).unwrap()
}
