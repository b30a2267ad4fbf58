//! Servers on object stores, and a publisher and followers that keep a ledger of what was acknowledged and
//! what was seen.
//!
//! Use it as `#[path = "support/stores.rs"] mod support;`.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

#[path = "../../../engine/tests/support/moto.rs"]
pub mod moto;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gapless_client::{Backoff, Client, ConnectOptions, Event, From, Message, TopicName};
use serde_json::Value;
use tempfile::TempDir;

use self::moto::Moto;

/// Only a failing test waits this long.
pub const DEADLINE: Duration = Duration::from_secs(120);
pub const TOPIC: &str = "kept";

#[track_caller]
pub fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < end, "{what}: not in time");
        thread::yield_now();
    }
}

pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// A place for a server: its addresses and its folder, on a machine of its own as it were.
pub struct Place {
    pub native: String,
    pub http: String,
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        Self { native: free_address(), http: free_address(), folder }
    }
}

pub struct Server {
    pub child: Child,
    pub out: Receiver<String>,
    pub log: Receiver<String>,
}

impl Server {
    pub fn start(place: &Place, store: &Where, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        command.args(["serve", "--json", "--listen", &place.native, "--http", &place.http]);
        command.args([
            "--store",
            &store.url,
            "--set",
            "native.unix=",
            "--set",
            "http.drain_ms=200",
        ]);
        command.args(["--set", "native.drain_ms=200"]).args(words);
        command.args(["--set", "journal.seal_bytes=1048576"]);
        command.arg("--data").arg(place.folder.path().join("data"));
        command.envs(store.variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = lines(child.stdout.take().expect("a pipe"));
        let log = lines(child.stderr.take().expect("a pipe"));
        Self { child, out, log }
    }

    /// Waits for a line that tells of this.
    #[track_caller]
    pub fn tells(&self, event: &str) -> Value {
        loop {
            let Ok(line) = self.out.recv_timeout(DEADLINE) else {
                let log: Vec<String> = self.log.try_iter().collect();
                panic!("it does not tell {event:?}: {log:#?}");
            };
            let line: Value = serde_json::from_str(&line).expect("JSON");
            if line["event"] == event {
                return line;
            }
        }
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.expect("kill is there").success());
    }

    pub fn ends_with(&mut self) -> Option<i32> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end");
            thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the store is.
pub struct Where {
    pub url: String,
    pub variables: Vec<(String, String)>,
}

/// What was acknowledged and what readers saw.
#[derive(Default)]
pub struct Ledger {
    pub acked: Mutex<BTreeMap<u64, String>>,
    pub native: Mutex<Vec<(u64, String)>>,
    pub sse: Mutex<Vec<(u64, String)>>,
    pub stop: AtomicBool,
    pub done: AtomicBool,
    pub sse_links: AtomicU64,
}

impl Ledger {
    pub fn acks(&self) -> usize {
        self.acked.lock().expect("whole").len()
    }
}

pub fn client(places: &[Place]) -> Client {
    let (first, most) = (Duration::from_millis(20), Duration::from_millis(200));
    let options = ConnectOptions::new(places.iter().map(|place| &place.native)).backoff(Backoff {
        first,
        most,
        ..Backoff::default()
    });
    Client::connect_lazy(options).expect("good options")
}

pub async fn publish(client: Client, ledger: Arc<Ledger>) {
    let topic: TopicName = TOPIC.parse().expect("a name");
    let mut number = 0;
    while !ledger.stop.load(Ordering::SeqCst) {
        number += 1;
        let body = format!("message {number}");
        match client.publish(&topic, Message::new(body.clone())).await {
            Ok(ack) => {
                let seq = ack.seq().expect("a durable topic has seqs").0;
                let before = ledger.acked.lock().expect("whole").insert(seq, body);
                assert_eq!(before, None, "seq {seq} is given once");
            }
            // It may be there or not; the next one has another number.
            Err(error) => eprintln!("{body}: {error}"),
        }
    }
}

pub async fn follow(client: Client, ledger: Arc<Ledger>) {
    let mut follow = client.subscribe_lazy(TOPIC, From::Beginning).expect("a pattern");
    while !ledger.done.load(Ordering::SeqCst) {
        let next = tokio::time::timeout(Duration::from_millis(100), follow.next()).await;
        let Ok(Some(event)) = next else { continue };
        match event.expect("it goes on by itself") {
            Event::Messages(messages) => {
                let mut seen = ledger.native.lock().expect("whole");
                for each in messages.records() {
                    let body = String::from_utf8_lossy(each.record.body.unwrap_or_default());
                    seen.push((each.seq.0, body.into_owned()));
                }
            }
            Event::Gap(gap) => panic!("a gap: {gap:?}"),
            _ => {}
        }
    }
}

/// Follows by SSE, and comes back with the last id when the stream ends.
pub fn follow_sse(hosts: &[String], ledger: &Ledger) {
    let mut last_id = String::new();
    for turn in 0_usize.. {
        if ledger.done.load(Ordering::SeqCst) {
            return;
        }
        // One that stands by, or has no owner, answers 503, one that is gone not at all.
        let _ = follow_stream(&hosts[turn % hosts.len()], &mut last_id, ledger);
        thread::yield_now();
    }
}

fn follow_stream(host: &str, last_id: &mut String, ledger: &Ledger) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    let resume = match last_id.is_empty() {
        true => String::new(),
        false => format!("Last-Event-ID: {last_id}\r\n"),
    };
    let path = format!("/v1/topics/{TOPIC}/follow?keep_alive_secs=1");
    let head = format!("Host: {host}\r\nAccept: text/event-stream\r\n{resume}");
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{head}\r\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Ok(());
    }
    ledger.sse_links.fetch_add(1, Ordering::SeqCst);
    let (mut id, mut data, mut name) = (String::new(), String::new(), String::new());
    while !ledger.done.load(Ordering::SeqCst) {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let text = line.trim_end();
        if let Some(value) = text.strip_prefix("id: ") {
            value.clone_into(&mut id);
        } else if let Some(value) = text.strip_prefix("data: ") {
            value.clone_into(&mut data);
        } else if let Some(value) = text.strip_prefix("event: ") {
            value.clone_into(&mut name);
        } else if text.is_empty() && !(data.is_empty() && id.is_empty()) {
            if name.is_empty() && !data.is_empty() {
                let message: Value = serde_json::from_str(&data).expect("JSON");
                let seq = message["seq"].as_u64().expect("a seq");
                let body = message["text"].as_str().map(str::to_owned).unwrap_or_else(|| {
                    panic!("a body: {message}");
                });
                ledger.sse.lock().expect("whole").push((seq, body));
            } else {
                assert_ne!(name, "gap", "{data}");
            }
            if !id.is_empty() {
                last_id.clone_from(&id);
            }
            (id, data, name) = Default::default();
        }
    }
    Ok(())
}

pub fn check(ledger: &Ledger) {
    let acked = ledger.acked.lock().expect("whole");
    for (who, seen) in [("native", &ledger.native), ("SSE", &ledger.sse)] {
        let seen = seen.lock().expect("whole");
        let expected: Vec<u64> = (1..=seen.len() as u64).collect();
        let seqs: Vec<u64> = seen.iter().map(|(seq, _)| *seq).collect();
        assert!(seqs == expected, "{who}: each seq once, in order, without a hole: {seqs:?}");
        for (seq, body) in acked.iter() {
            let found = seen.get(*seq as usize - 1).map(|(_, body)| body);
            assert_eq!(found, Some(body), "{who}: what was acknowledged as {seq}");
        }
    }
    let links = ledger.sse_links.load(Ordering::SeqCst);
    eprintln!("{} acknowledged, {links} SSE streams", acked.len());
}

pub fn folder_store() -> (TempDir, Where) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().join("store").display());
    (folder, Where { url, variables: Vec::new() })
}

pub fn moto_store(moto: &Moto) -> Where {
    moto.bucket("messages");
    let variables = [
        ("AWS_ENDPOINT_URL", moto.url()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
    Where { url: "s3://messages/one".to_owned(), variables }
}
