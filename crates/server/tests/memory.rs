//! H1: what all connections hold together is bounded, and those that hold little are not hurt.
//!
//! Both listeners share a budget of 64 MiB, and 200 clients of one kind ask for far more. Meanwhile a
//! client publishes, another follows, and the memory of the process stays within the budget and a
//! constant. `GAPLESS_ATTACKERS` sets another number of clients, for a look at larger attacks.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{DEADLINE, accepted, hello, name, publish, subscribe};
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::{Durability, Message, PublishOptions, TopicSettings};
use gapless_protocol::*;
use gapless_server::Budget;
use gapless_server::http::{HttpListener, HttpOptions};
use gapless_server::native::{NativeListener, NativeOptions};

const MIB: usize = 1024 * 1024;
/// The budget of all connections.
const BUDGET: usize = 64 * MIB;
/// What a listener reads at once from a client, at most.
const READ_BYTES: usize = 256 * 1024;
/// What the process may take beside the budget: the journal's tail, the runtime, allocators.
const CONSTANT: usize = 128 * MIB;

/// A broker with both APIs, which share one budget.
struct World {
    runtime: tokio::runtime::Runtime,
    broker: Broker,
    budget: Budget,
    native: SocketAddr,
    http: SocketAddr,
    rss_before: usize,
    _doors: (NativeListener, HttpListener),
    _folder: tempfile::TempDir,
}

impl World {
    fn open(patience: Duration, write_timeout: Duration) -> Self {
        Self::with(patience, write_timeout, |_| ())
    }

    fn with(
        patience: Duration,
        write_timeout: Duration,
        change: impl FnOnce(&mut BrokerOptions),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = BrokerOptions::new(folder.path().join("data"));
        options.defaults.durability = Durability::Written;
        options.journal.tail_bytes = 16 * MIB as u64;
        change(&mut options);
        let broker = Broker::open(options).expect("a broker");
        let runtime = gapless_server::runtime().expect("a runtime");
        let budget = Budget::new(BUDGET, patience);
        let native =
            NativeOptions { memory: budget.clone(), write_timeout, ..NativeOptions::default() };
        let http = HttpOptions { memory: budget.clone(), write_timeout, ..HttpOptions::default() };
        let open = NativeListener::open(broker.clone(), native, Some("127.0.0.1:0"), None);
        let native = runtime.block_on(open).expect("a listener");
        let http = runtime.block_on(HttpListener::open(broker.clone(), http, "127.0.0.1:0"));
        let http = http.expect("a listener");
        broker.create_topic(&name("t"), TopicSettings::default()).expect("a topic");
        Self {
            native: native.tcp_address().expect("it listens"),
            http: http.address(),
            runtime,
            broker,
            budget,
            rss_before: rss(),
            _doors: (native, http),
            _folder: folder,
        }
    }

    fn peer(&self) -> common::Peer {
        let stream = TcpStream::connect(self.native).expect("a connection");
        let mut peer = common::Peer::new(common::Socket::Tcp(stream));
        peer.greet();
        peer
    }

    /// Memory is within the budget and a constant.
    #[track_caller]
    fn is_bounded(&self) {
        let (used, grown) = (self.budget.used(), rss().saturating_sub(self.rss_before));
        // What one read brings is there before it can be asked whether there is room for it.
        assert!(used <= BUDGET + attackers() * READ_BYTES, "{used} bytes are counted");
        assert!(grown <= BUDGET + CONSTANT, "the process grew by {} MiB", grown / MIB);
    }

    /// A client publishes and another follows, over both APIs.
    fn others_are_unhurt(&self) {
        let mut follower = self.peer();
        follower.follow(subscribe("t", StartFrom::Now));
        let mut publisher = self.peer();
        accepted(&publisher.ask(publish("t", &[Message::new("native")])));
        let mut client = TcpStream::connect(self.http).expect("connects");
        client.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let request = "POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost\r\n\
                       content-length: 4\r\nconnection: close\r\n\r\nhttp";
        client.write_all(request.as_bytes()).expect("it is taken");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        let mut bodies = Vec::new();
        while bodies.len() < 2 {
            if let Verb::Messages(messages) = follower.next() {
                for batch in messages.batches.views() {
                    bodies.extend(batch.records().map(|each| each.body.unwrap_or(b"").to_vec()));
                }
            }
        }
        assert_eq!(bodies, [b"native".to_vec(), b"http".to_vec()]);
    }

    /// Asks until something is true, and fails when it does not become so.
    #[track_caller]
    fn until(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is(self) {
            assert!(Instant::now() < deadline, "it did not happen in time: {what}");
            std::thread::yield_now();
        }
    }
}

/// Bytes of memory that this process has.
fn rss() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = statm.split(' ').nth(1).expect("a number").parse::<usize>().expect("a number");
    pages * 4096
}

fn attackers() -> usize {
    std::env::var("GAPLESS_ATTACKERS").map_or(200, |text| text.parse().expect("a number"))
}

/// A client that sends as much as it can of something, never its last byte, and reads what comes.
struct Attacker {
    stream: TcpStream,
    head: Vec<u8>,
    /// Bytes to send after the head.
    left: usize,
    got: Vec<u8>,
    ended: bool,
}

impl Attacker {
    fn new(address: SocketAddr, head: Vec<u8>, left: usize) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nonblocking(true).expect("a socket option");
        Self { stream, head, left, got: Vec::new(), ended: false }
    }

    /// Sends what is taken; tells whether anything was.
    fn push(&mut self, filler: &[u8]) -> bool {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(read) => self.got.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.ended = true,
        }
        let bytes =
            if self.head.is_empty() { &filler[..self.left.min(filler.len())] } else { &self.head };
        match self.stream.write(bytes) {
            Ok(written) if self.head.is_empty() => {
                self.left -= written;
                written > 0
            }
            Ok(written) => {
                self.head.drain(..written);
                true
            }
            Err(_) => false,
        }
    }
}

/// Lets all of them send until the server takes no more.
fn flood(attackers: &mut [Attacker], filler: u8) {
    let filler = vec![filler; 64 * 1024];
    let mut quiet = 0;
    while quiet < 50 {
        let pushed =
            attackers.iter_mut().filter_map(|each| each.push(&filler).then_some(())).count();
        quiet = if pushed == 0 { quiet + 1 } else { 0 };
        std::thread::yield_now();
    }
}

/// Lets all that are not ended send a byte and read.
fn push_all(attackers: &mut [Attacker], filler: u8) {
    for attacker in attackers.iter_mut().filter(|each| !each.ended) {
        attacker.push(&[filler]);
    }
}

/// The beginning of a frame that says it has 4 MiB.
fn publish_head() -> Vec<u8> {
    let topic = "t";
    let head = Head {
        kind: Kind::Publish.number(),
        ids: Ids::question([1; 16]),
        subject: topic,
        payload_bytes: FrameLimit::MAX.payload_bytes(topic),
    };
    let mut out = bytes::BytesMut::new();
    head.encode(FrameLimit::MAX, &mut out).expect("a head");
    out.to_vec()
}

#[test]
fn h1_half_sent_frames_of_many_stay_within_the_budget_and_are_ended_with_a_reason() {
    let world = World::open(Duration::from_secs(2), DEADLINE);
    let mut greeting = bytes::BytesMut::new();
    Verb::from(hello())
        .encode(Ids::question([9; 16]), FrameLimit::MAX, &mut greeting)
        .expect("a frame");
    let head = [&greeting[..], &publish_head()].concat();
    let left = FRAME_BYTES_MAX - publish_head().len() - 1;
    let mut attackers: Vec<Attacker> =
        (0..attackers()).map(|_| Attacker::new(world.native, head.clone(), left)).collect();
    flood(&mut attackers, 1);
    assert!(world.budget.refused() > 0, "not all of it can be held at once");
    world.is_bounded();
    world.others_are_unhurt();
    world.until("some are ended and the others get on", |world| {
        world.is_bounded();
        push_all(&mut attackers, 1);
        attackers.iter().filter(|each| each.ended).count() > attackers.len() / 4
    });
    world.others_are_unhurt();
    let ended = attackers.iter().find(|each| each.ended && !each.got.is_empty()).expect("one");
    let mut got = bytes::BytesMut::from(&ended.got[..]);
    let mut last = None;
    while let Ok(Some(frame)) = Decoder::new(FrameLimit::MAX).decode(&mut got) {
        last = Verb::decode(&frame).ok();
    }
    assert_eq!(last.as_ref().map(common::code), Some(ErrorCode::OutOfMemory), "{last:?}");
    drop(attackers);
    world.until("all is given back", |world| world.budget.used() == 0);
}

#[test]
fn h1_before_the_hello_a_large_frame_is_refused_by_its_length() {
    let world = World::open(Duration::from_secs(1), DEADLINE);
    let mut attacker = Attacker::new(world.native, publish_head(), 0);
    world.until("it is ended", |_| {
        attacker.push(&[]);
        attacker.ended
    });
    let mut got = bytes::BytesMut::from(&attacker.got[..]);
    let frame = Decoder::new(FrameLimit::MAX).decode(&mut got).expect("a frame").expect("whole");
    assert_eq!(common::code(&Verb::decode(&frame).expect("a verb")), ErrorCode::FrameTooLarge);
    world.others_are_unhurt();
}

/// Lets clients send a request over HTTP whose last byte never comes.
fn http_attack(content_type: &str, filler: u8) {
    let world = World::open(Duration::from_secs(2), DEADLINE);
    let bytes = 16 * MIB;
    let head = format!(
        "POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n\
         content-length: {bytes}\r\n\r\n"
    );
    let mut attackers: Vec<Attacker> = (0..attackers())
        .map(|_| Attacker::new(world.http, head.clone().into_bytes(), bytes - 1))
        .collect();
    flood(&mut attackers, filler);
    world.until("not all of it can be held at once", |world| {
        push_all(&mut attackers, filler);
        world.budget.refused() > 0
    });
    world.is_bounded();
    world.others_are_unhurt();
    let refused = |each: &Attacker| {
        let got = String::from_utf8_lossy(&each.got);
        got.contains("\"name\":\"OutOfMemory\"")
    };
    world.until("some are refused", |world| {
        world.is_bounded();
        push_all(&mut attackers, filler);
        attackers.iter().filter(|each| refused(each)).count() > attackers.len() / 4
    });
    world.others_are_unhurt();
    let got = attackers.iter().find(|each| refused(each)).expect("one").got.clone();
    let got = String::from_utf8(got).expect("text");
    if content_type == "text/plain" {
        assert!(got.starts_with("HTTP/1.1 503") && got.contains("retry-after: 1"), "{got}");
    } else {
        assert!(got.contains("\"stopped\":true"), "{got}");
    }
    drop(attackers);
    world.until("all is given back", |world| world.budget.used() == 0);
}

#[test]
fn h1_bodies_without_their_last_byte_stay_within_the_budget_and_are_refused() {
    http_attack("text/plain", b'x');
}

#[test]
fn h1_lines_without_end_stay_within_the_budget_and_are_refused() {
    http_attack("application/x-ndjson", b'x');
}

#[test]
fn a_large_message_that_is_alone_passes_and_gives_its_memory_back() {
    let world = World::open(Duration::from_secs(2), DEADLINE);
    let large = Message::new(vec![1; 4_100_000]);
    for _ in 0..20 {
        accepted(&world.peer().ask(publish("t", std::slice::from_ref(&large))));
    }
    world.until("all is given back", |world| world.budget.used() == 0);
    assert_eq!(world.budget.refused(), 0);
    let plain = PublishOptions::default();
    let published = world.broker.publish(&name("t"), &Message::new("x"), &plain);
    world.runtime.block_on(published).expect("an ack");
}

/// Clients that ask for a stream and never read; one message is 24 MB as JSON.
fn readers_that_never_read(head: &str) {
    let world = World::open(Duration::from_secs(2), Duration::from_secs(4));
    let mut readers: Vec<Attacker> =
        (0..attackers()).map(|_| Attacker::new(world.http, head.as_bytes().to_vec(), 0)).collect();
    for reader in &mut readers {
        reader.stream.set_nonblocking(false).expect("a socket option");
        reader.stream.write_all(&std::mem::take(&mut reader.head)).expect("it is taken");
    }
    world.until("all follow", |world| world.broker.subscribers().len() >= readers.len());
    let large = Message::new(vec![1; 4_100_000]);
    let plain = PublishOptions::default();
    let published = world.broker.publish(&name("t"), &large, &plain);
    world.runtime.block_on(published).expect("an ack");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        world.is_bounded();
        world.others_are_unhurt();
    }
    // Those who take nothing are ended, and give everything back.
    world.until("all are ended", |world| {
        world.is_bounded();
        world.broker.subscribers().is_empty()
    });
    world.until("all is given back", |world| world.budget.used() == 0);
    world.others_are_unhurt();
}

#[test]
fn h1_h6_event_streams_that_are_not_read_stay_small_and_are_ended() {
    readers_that_never_read("GET /v1/topics/t/follow HTTP/1.1\r\nhost: localhost\r\n\r\n");
}

#[test]
fn h1_h6_websockets_that_are_not_read_stay_small_and_are_ended() {
    readers_that_never_read(
        "GET /v1/topics/t/follow HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
}

#[test]
fn h6_native_readers_that_never_read_are_ended_and_can_resume() {
    let world = World::open(Duration::from_secs(2), Duration::from_secs(2));
    let mut stuck = TcpStream::connect(world.native).expect("a connection");
    let mut asked = bytes::BytesMut::new();
    for verb in [Verb::from(hello()), subscribe("t", StartFrom::Beginning).into()] {
        verb.encode(Ids::question([9; 16]), FrameLimit::MAX, &mut asked).expect("a frame");
    }
    stuck.write_all(&asked).expect("it is taken");
    world.until("it follows", |world| !world.broker.subscribers().is_empty());
    let (large, plain) = (Message::new(vec![1; 1_000_000]), PublishOptions::default());
    for _ in 0..20 {
        let published = world.broker.publish(&name("t"), &large, &plain);
        world.runtime.block_on(published).expect("an ack");
    }
    world.until("it is ended", |world| world.broker.subscribers().is_empty());
    // What was on its way is there; the next connection goes on behind it.
    let mut got = Vec::new();
    let _ = stuck.read_to_end(&mut got);
    let (mut got, mut seen) = (bytes::BytesMut::from(&got[..]), 0);
    while let Ok(Some(frame)) = Decoder::new(FrameLimit::MAX).decode(&mut got) {
        if let Ok(Verb::Messages(messages)) = Verb::decode(&frame) {
            seen = messages.to.0;
        }
    }
    assert!(seen < 20, "{seen}");
    let mut again = world.peer();
    again.follow(subscribe("t", StartFrom::Seq(gapless_core::Seq(seen + 1))));
    while seen < 20 {
        if let Verb::Messages(messages) = again.next() {
            assert_eq!(messages.from.0, seen + 1);
            seen = messages.to.0;
        }
    }
}

#[test]
fn h1_answers_that_are_not_taken_stay_within_the_budget() {
    let world = World::open(Duration::from_secs(2), DEADLINE);
    let (large, plain) = (Message::new(vec![1; 4_000_000]), PublishOptions::default());
    let published = world.broker.publish(&name("t"), &large, &plain);
    world.runtime.block_on(published).expect("an ack");
    let mut asked = bytes::BytesMut::new();
    Verb::from(hello())
        .encode(Ids::question([9; 16]), FrameLimit::MAX, &mut asked)
        .expect("a frame");
    for _ in 0..30 {
        let read = gapless_protocol::Read { topic: name("t"), seq: gapless_core::Seq(1) };
        let read = Verb::from(read);
        read.encode(Ids::question([8; 16]), FrameLimit::MAX, &mut asked).expect("a frame");
    }
    let mut mute: Vec<Attacker> =
        (0..20).map(|_| Attacker::new(world.native, asked.to_vec(), 0)).collect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        for each in &mut mute {
            let _ = each.stream.write(&each.head).map(|written| each.head.drain(..written));
        }
        assert!(world.budget.used() <= BUDGET + 16 * MIB, "{:?}", world.budget);
    }
    world.others_are_unhurt();
    // Those that were refused get an error, behind the answers that there was memory for.
    let mut codes = std::collections::BTreeSet::new();
    for mut each in mute {
        each.stream.set_nonblocking(false).expect("a socket option");
        each.stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        each.stream.shutdown(std::net::Shutdown::Write).expect("half a close");
        let mut got = Vec::new();
        let _ = each.stream.read_to_end(&mut got);
        let mut got = bytes::BytesMut::from(&got[..]);
        while let Ok(Some(frame)) = Decoder::new(FrameLimit::MAX).decode(&mut got) {
            if let Ok(Verb::Error(error)) = Verb::decode(&frame) {
                codes.insert(error.code);
            }
        }
    }
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), [ErrorCode::OutOfMemory.number()]);
    world.until("all is given back", |world| world.budget.used() == 0);
}

/// Bytes of history that may be in memory in the test below.
const RECOVERY: usize = 32 * MIB;
/// What a reader still gets when it is used up: a block of a segment, with a message more, and as
/// much twice that is read ahead.
const SMALLEST_STEPS: usize = 3 * 160 * 1024;

#[test]
fn m6_the_memory_of_history_is_bounded_while_many_read_it_and_given_back_when_they_have_gone() {
    let world = World::with(Duration::from_secs(2), DEADLINE, |options| {
        options.limits.recovery_bytes_max = RECOVERY;
        options.journal.seal_bytes = 8 * MIB as u64;
        options.journal.tail_bytes = 4 * MIB as u64;
    });
    let plain = PublishOptions::default();
    let large = Message::new(vec![b'x'; 16 * 1024]);
    for _ in 0..4096 {
        let published = world.broker.publish(&name("t"), &large, &plain);
        world.runtime.block_on(published).expect("an ack");
    }
    world.until("most of it is history", |world| {
        let stats = world.broker.journal_stats();
        stats.segment_bytes > 48 * MIB as u64 && stats.tail_bytes < 16 * MIB as u64
    });
    let head = b"GET /v1/topics/t/follow?from=beginning HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut rss_after = Vec::new();
    for round in 0..4 {
        assert_eq!(world.broker.recovery_bytes(), 0, "before round {round}");
        let before = rss();
        let mut readers: Vec<Attacker> =
            (0..attackers()).map(|_| Attacker::new(world.http, Vec::new(), 0)).collect();
        for reader in &mut readers {
            reader.stream.set_nonblocking(false).expect("a socket option");
            reader.stream.write_all(head).expect("it is taken");
        }
        // They take nothing, so what was read for them stays.
        let count = readers.len();
        world.until("all follow", |world| world.broker.subscribers().len() == count);
        world.until("history waits for them", |world| world.broker.recovery_bytes() > RECOVERY / 2);
        for _ in 0..5 {
            let used = world.broker.recovery_bytes();
            let history = RECOVERY + count * SMALLEST_STEPS;
            assert!(used <= history, "{used} bytes of history");
            let (grown, bound) = (rss().saturating_sub(before), history + BUDGET + CONSTANT);
            assert!(grown <= bound, "{} MiB more while they read", grown / MIB);
            world.others_are_unhurt();
        }
        drop(readers);
        world.until("all have gone", |world| world.broker.subscribers().is_empty());
        world.until("all is given back", |world| {
            world.broker.recovery_bytes() == 0 && world.budget.used() == 0
        });
        rss_after.push(rss());
    }
    // The allocator may keep what it once had; it is used again by the next round.
    let grown = rss_after[3].saturating_sub(rss_after[0]);
    assert!(grown <= RECOVERY, "{} MiB more after three more rounds: {rss_after:?}", grown / MIB);
}
