//! Following over HTTP while things go wrong: restarts, slow readers, what is gone, crowds.

#[path = "common/process.rs"]
mod process;
mod streams;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Instant;

use gapless_broker::{Broker, SubscriberState};
use gapless_core::{Message, PublishOptions, Retention, TopicSettings};
use process::{files_max, memory};
use serde_json::json;
use streams::*;

/// Publishes to a topic until it is stopped, to the broker that runs; counts what was accepted.
fn publish_through(brokers: &RwLock<Option<Broker>>, topic: &str, stop: &AtomicBool) -> u64 {
    let mut accepted = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(broker) = brokers.read().expect("no panic").clone() else {
            std::thread::yield_now();
            continue;
        };
        let batch: Vec<_> = (0..3).map(|each| Message::new(format!("{accepted} {each}"))).collect();
        let done = broker.publish_batch(&name(topic), &batch, &PublishOptions::default()).wait();
        if done.is_ok_and(|ack| ack.accepted().is_some()) {
            accepted += 3;
        }
    }
    accepted
}

/// Reads a stream to its end, however it ends, and comes back with the last id until all of
/// these topics were read as far as they were filled.
struct Reader<'a> {
    path: &'static str,
    last_id: Option<String>,
    next: BTreeMap<String, u64>,
    visits: &'a AtomicU64,
}

impl<'a> Reader<'a> {
    fn new(path: &'static str, visits: &'a AtomicU64) -> Self {
        Self { path, last_id: None, next: BTreeMap::new(), visits }
    }

    /// One visit: until the server ends it, or `enough` says so.
    fn visit(&mut self, address: SocketAddr, enough: impl Fn(&BTreeMap<String, u64>) -> bool) {
        let opened = Stream::try_open(address, self.path, self.last_id.as_deref());
        // While the server is away, or about to come, one tries again.
        let Some(mut stream) = opened.ok().filter(|stream| stream.status != 503) else {
            return std::thread::yield_now();
        };
        assert_eq!(stream.status, 200, "{}", stream.head);
        self.visits.fetch_add(1, Ordering::Relaxed);
        while !enough(&self.next) {
            let Some(event) = stream.next_or_end() else { break };
            assert!(!["gap", "failed", "skipped"].contains(&event.event.as_str()), "{event:?}");
            self.last_id = Some(event.id.clone()).filter(|id| !id.is_empty());
            if event.is_message() {
                let topic = event.json()["topic"].as_str().expect("a topic").to_owned();
                let next = self.next.entry(topic).or_insert(1);
                assert_eq!(event.seq(), *next, "no gap and no repeat: {event:?}");
                *next += 1;
            }
        }
    }
}

#[test]
fn d7_streams_go_on_without_gap_or_repeat_through_restarts_while_publishers_run() {
    const RESTARTS: u64 = 4;
    let mut server = Server::with(|http, broker| {
        http.drain = std::time::Duration::from_secs(2);
        broker.journal.tail_bytes = 32 * 1024;
        broker.journal.seal_bytes = 64 * 1024;
    });
    for topic in ["orders.eu", "orders.us"] {
        server.create(topic);
    }
    let brokers = RwLock::new(Some(server.broker().clone()));
    let (stop, address) = (AtomicBool::new(false), server.address);
    // Of each reader what it read, and how often it has connected: every restart cuts off both, also one
    // that still reads what came before the last.
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    let visits = [AtomicU64::new(0), AtomicU64::new(0)];
    let targets: Mutex<Option<Vec<u64>>> = Mutex::new(None);
    std::thread::scope(|scope| {
        let publishers: Vec<_> = ["orders.eu", "orders.us"]
            .map(|topic| scope.spawn(|| publish_through(&brokers, topic, &stop)))
            .into();
        let paths = ["/v1/topics/orders.eu/follow", "/v1/follow?pattern=orders.%3E"];
        let readers: Vec<_> = paths
            .into_iter()
            .zip(seen.iter().zip(&visits))
            .map(|(path, (seen, visits))| {
                let targets = &targets;
                scope.spawn(move || {
                    let mut reader = Reader::new(path, visits);
                    let done = |next: &BTreeMap<String, u64>| {
                        seen.fetch_add(1, Ordering::Relaxed);
                        targets.lock().expect("no panic").as_ref().is_some_and(|targets| {
                            ["orders.eu", "orders.us"].iter().zip(targets).all(|(topic, last)| {
                                let wanted = path.contains("pattern") || *topic == "orders.eu";
                                !wanted || next.get(*topic).is_some_and(|next| next > last)
                            })
                        })
                    };
                    while !done(&reader.next) {
                        reader.visit(address, done);
                    }
                    reader.visits.load(Ordering::Relaxed)
                })
            })
            .collect();
        for restart in 0..RESTARTS {
            let is_new = |visits: &AtomicU64| visits.load(Ordering::Relaxed) > restart;
            server.until("readers have come back", |_| visits.iter().all(is_new));
            let now = || seen.each_ref().map(|seen| seen.load(Ordering::Relaxed));
            let before = now();
            server.until("readers go on", |_| {
                now().iter().zip(before).all(|(now, before)| *now > before + 150)
            });
            *brokers.write().expect("no panic") = None;
            server.stop();
            server.start();
            *brokers.write().expect("no panic") = Some(server.broker().clone());
        }
        stop.store(true, Ordering::Relaxed);
        let accepted: Vec<u64> =
            publishers.into_iter().map(|each| each.join().expect("no panic")).collect();
        let last = |topic| server.broker().describe_topic(&name(topic)).expect("it").next.0 - 1;
        let lasts = vec![last("orders.eu"), last("orders.us")];
        assert!(lasts.iter().zip(&accepted).all(|(last, accepted)| last >= accepted));
        *targets.lock().expect("no panic") = Some(lasts);
        // One more of each, so that readers who wait for something get to see that it is over.
        server.publish("orders.eu", &[Message::new("end")]);
        server.publish("orders.us", &[Message::new("end")]);
        for reader in readers {
            let visits = reader.join().expect("no gap, no repeat");
            assert!(visits > RESTARTS, "it was cut off by every restart: {visits}");
        }
    });
}

#[test]
fn d10_what_retention_let_go_is_a_gap_event() {
    let server = Server::open();
    let retention = Retention { count: Some(10), ..Retention::default() };
    server.create_with("orders", TopicSettings { retention, ..TopicSettings::default() });
    server.fill("orders", 5);
    let mut stream = server.follow("/v1/topics/orders/follow");
    let third = (0..3).map(|_| stream.message()).last().expect("three");
    drop(stream);
    server.fill("orders", 50);
    let mut stream = server.resume("/v1/topics/orders/follow", &third.id);
    let facts = stream.told("gap").json();
    assert_eq!(facts["reason"], "retention", "{facts}");
    let to = facts["to"].as_u64().expect("a last seq");
    assert_eq!(stream.message().seq(), to + 1);
    let mut stream = server.follow("/v1/topics/orders/follow?from=seq:1");
    assert_eq!(stream.told("gap").json()["from"], json!(1));
}

#[test]
fn d11_a_reader_that_stops_reading_is_not_cut_off_costs_little_and_recovers() {
    const MESSAGES: usize = 30_000;
    let server = Server::with(|_, broker| {
        broker.journal.tail_bytes = 256 * 1024;
        broker.journal.seal_bytes = 1024 * 1024;
    });
    server.create("orders");
    let mut slow = server.follow("/v1/topics/orders/follow");
    slow.told("live");
    for _ in 0..MESSAGES / 100 {
        let batch: Vec<_> = (0..100).map(|_| Message::new("x".repeat(1000))).collect();
        server.publish("orders", &batch);
    }
    // It stands still once the buffers of both sockets are full, far from the end; a live one
    // beside it has everything.
    let state = server.broker().subscribers().remove(0);
    assert!(state.place < MESSAGES as u64 * 2 / 3, "it was handed {} of {MESSAGES}", state.place);
    let mut fast = server.follow("/v1/topics/orders/follow?from=now");
    fast.told("live");
    server.publish("orders", &[Message::new("now")]);
    assert_eq!(fast.message().text(), "now");
    let mut ledger = Ledger::from(1);
    let mut states = Vec::new();
    // It is live again when everything is there that was there when recovery began: that may
    // be before the last message.
    while ledger.next <= MESSAGES as u64 + 1 || states.last().is_none_or(|last| last != "live") {
        let event = slow.next();
        states.extend((!event.is_message()).then(|| event.event.clone()));
        ledger.take(&event);
    }
    assert!(states.contains(&"recovering".to_owned()), "it fell out of memory: {states:?}");
    assert!(ledger.gaps.is_empty() && ledger.skipped == 0);
    server.until("it is online again", |server| {
        server.broker().subscribers().iter().all(|each| each.state == SubscriberState::Online)
    });
}

/// Bytes that an open stream may cost the server in total. Debug builds need more.
const STREAM_BYTES_MAX: u64 = 40 * 1024;

/// The clients of the next test, in a process of their own: each process has its own limit of
/// open files.
#[test]
#[ignore = "it is started by ten_thousand_streams_are_open_and_each_gets_every_message"]
fn many_clients() {
    let Ok(address) = std::env::var("GAPLESS_TEST_ADDRESS") else { return };
    let count: usize =
        std::env::var("GAPLESS_TEST_STREAMS").expect("how many").parse().expect("it");
    let address: SocketAddr = address.parse().expect("an address");
    let mut all: Vec<Stream> = (0..count)
        .map(|_| {
            let mut stream = Stream::open(address, "/v1/topics/orders/follow?from=now", None);
            assert_eq!(stream.status, 200, "{}", stream.head);
            stream.told("live");
            stream
        })
        .collect();
    let mut lines = std::io::stdin().lines();
    println!("\nmany clients: open");
    lines.next().expect("a line").expect("text");
    for stream in &mut all {
        let texts: Vec<_> = (0..3).map(|_| stream.message().text()).collect();
        assert_eq!(texts, ["one", "two", "three"]);
    }
    println!("\nmany clients: read");
}

#[test]
fn ten_thousand_streams_are_open_and_each_gets_every_message() {
    let streams = 10_000.min(files_max().saturating_sub(1000));
    let server = Server::with(|http, _| {
        http.streams_max = 10_000;
        http.connections_max = 11_000;
    });
    server.create("orders");
    let before = memory();
    let began = Instant::now();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "many_clients", "--ignored", "--nocapture"])
        .env("GAPLESS_TEST_ADDRESS", server.address.to_string())
        .env("GAPLESS_TEST_STREAMS", streams.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("clients");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut wait_for = |what: &str| {
        let found = lines.by_ref().map_while(Result::ok).any(|line| line == what);
        assert!(found, "the clients failed before: {what}");
    };
    wait_for("many clients: open");
    let each = memory().saturating_sub(before) / streams as u64;
    println!("{streams} streams after {:?}, {each} bytes each", began.elapsed());
    assert_eq!(server.broker().subscribers().len(), streams);
    assert!(each < STREAM_BYTES_MAX, "{each} bytes for each open stream");
    if streams == 10_000 {
        let one_more = Stream::open(server.address, "/v1/topics/orders/follow", None);
        assert_eq!(one_more.status, 429);
    }
    for text in ["one", "two", "three"] {
        server.publish("orders", &[Message::new(text)]);
    }
    let mut input = child.stdin.take().expect("its input");
    writeln!(input, "go on").expect("it listens");
    wait_for("many clients: read");
    assert!(child.wait().expect("its end").success());
    server.until("all are unsubscribed", |server| server.broker().subscribers().is_empty());
}
