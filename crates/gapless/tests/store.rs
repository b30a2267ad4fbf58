//! Two servers on one object store: what was acknowledged survives the end of the one that owns it,
//! and readers go on at the other without gap or repeat (F1, F2, D3, D10).
//!
//! One publishes and two follow, by the native client and by SSE with `Last-Event-ID`, while the owner
//! is killed, or frozen and thawed after the other took over. Everything that was acknowledged must be
//! read once, in order, by both.

#[path = "../../engine/tests/support/moto.rs"]
mod moto;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gapless_client::{
    Backoff, Client, ConnectOptions, Event, From, Message, TopicName, TopicSettings,
};
use serde_json::Value;
use tempfile::TempDir;

/// Only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(120);
const TOPIC: &str = "kept";

#[track_caller]
fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < end, "{what}: not in time");
        thread::yield_now();
    }
}

fn free_address() -> String {
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
struct Place {
    native: String,
    http: String,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        Self { native: free_address(), http: free_address(), folder }
    }
}

struct Server {
    child: Child,
    out: Receiver<String>,
    log: Receiver<String>,
}

impl Server {
    fn start(place: &Place, store: &Where, words: &[&str]) -> Self {
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
    fn tells(&self, event: &str) -> Value {
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

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.expect("kill is there").success());
    }

    fn ends_with(&mut self) -> Option<i32> {
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
struct Where {
    url: String,
    variables: Vec<(String, String)>,
}

/// What was acknowledged and what readers saw.
#[derive(Default)]
struct Ledger {
    acked: Mutex<BTreeMap<u64, String>>,
    native: Mutex<Vec<(u64, String)>>,
    sse: Mutex<Vec<(u64, String)>>,
    stop: AtomicBool,
    done: AtomicBool,
    sse_links: AtomicU64,
}

impl Ledger {
    fn acks(&self) -> usize {
        self.acked.lock().expect("whole").len()
    }
}

fn client(places: &[Place; 2]) -> Client {
    let (first, most) = (Duration::from_millis(20), Duration::from_millis(200));
    let options = ConnectOptions::new(places.iter().map(|place| &place.native)).backoff(Backoff {
        first,
        most,
        ..Backoff::default()
    });
    Client::connect_lazy(options).expect("good options")
}

async fn publish(client: Client, ledger: Arc<Ledger>) {
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

async fn follow(client: Client, ledger: Arc<Ledger>) {
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
fn follow_sse(hosts: &[String; 2], ledger: &Ledger) {
    let mut last_id = String::new();
    for turn in 0_usize.. {
        if ledger.done.load(Ordering::SeqCst) {
            return;
        }
        // A server that stands by answers 503, one that is gone not at all.
        let _ = follow_stream(&hosts[turn % 2], &mut last_id, ledger);
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

/// How the owner is taken away.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Freeze,
}

/// Runs two servers on the store while owners end like this, and checks what readers saw. Tells how
/// long each take over took.
fn run(store: &Where, ends: &[End]) -> Vec<Duration> {
    let places = [Place::new(), Place::new()];
    let mut owner = (0, Server::start(&places[0], store, &["--standby"]));
    owner.1.tells("ready");
    let mut other = (1, Server::start(&places[1], store, &["--standby"]));
    other.1.tells("standby");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let ledger = Arc::new(Ledger::default());
    let maker = client(&places);
    let topic: TopicName = TOPIC.parse().expect("a name");
    let made = runtime.block_on(maker.create_topic(&topic, TopicSettings::default()));
    made.expect("the topic is new");
    let publishing = runtime.spawn(publish(client(&places), Arc::clone(&ledger)));
    let following = runtime.spawn(follow(client(&places), Arc::clone(&ledger)));
    let (for_sse, hosts) = (Arc::clone(&ledger), places.each_ref().map(|place| place.http.clone()));
    let sse = thread::spawn(move || follow_sse(&hosts, &for_sse));
    let mut took = Vec::new();
    for end in ends {
        let before = ledger.acks();
        until("publishing goes on", || ledger.acks() >= before + 20);
        let began = Instant::now();
        match end {
            End::Kill => {
                owner.1.child.kill().expect("killed");
                owner.1.child.wait().expect("ended");
                other.1.tells("ready");
                took.push(began.elapsed());
                owner.1 = Server::start(&places[owner.0], store, &["--standby"]);
            }
            End::Freeze => {
                owner.1.signal("STOP");
                other.1.tells("ready");
                took.push(began.elapsed());
                owner.1.signal("CONT");
            }
        }
        // Killed or thawed, it sees that it is not the owner.
        owner.1.tells("standby");
        std::mem::swap(&mut owner, &mut other);
        eprintln!("{end:?}: served again after {:?}", took.last());
    }
    let before = ledger.acks();
    until("publishing goes on at the end", || ledger.acks() >= before + 20);
    ledger.stop.store(true, Ordering::SeqCst);
    runtime.block_on(publishing).expect("the publisher ends");
    let last = ledger.acked.lock().expect("whole").keys().next_back().copied().expect("acks");
    for (who, seen) in [("native", &ledger.native), ("SSE", &ledger.sse)] {
        until(&format!("the {who} follower has all"), || {
            seen.lock().expect("whole").last().is_some_and(|(seq, _)| *seq >= last)
        });
    }
    ledger.done.store(true, Ordering::SeqCst);
    runtime.block_on(following).expect("the follower ends");
    sse.join().expect("the SSE follower ends");
    check(&ledger);
    took
}

fn check(ledger: &Ledger) {
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

fn folder_store() -> (TempDir, Where) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().join("store").display());
    (folder, Where { url, variables: Vec::new() })
}

fn moto_store(moto: &moto::Moto) -> Where {
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

#[test]
fn f1_owners_that_are_killed_and_frozen_lose_nothing_on_a_folder() {
    let (_folder, store) = folder_store();
    run(&store, &[End::Kill, End::Freeze, End::Kill, End::Freeze]);
}

#[test]
fn f1_owners_that_are_killed_and_frozen_lose_nothing_on_s3() {
    let moto = moto::Moto::start();
    run(&moto_store(&moto), &[End::Kill, End::Freeze]);
}

#[test]
fn f1_a_server_that_was_replaced_says_so_and_ends() {
    let (_folder, store) = folder_store();
    let places = [Place::new(), Place::new()];
    let mut first = Server::start(&places[0], &store, &[]);
    let first_term = first.tells("ready")["term"].as_u64();
    // Without --standby a server takes the store over at once.
    let second = Server::start(&places[1], &store, &[]);
    let ready = second.tells("ready");
    assert!(ready["term"].as_u64() > first_term, "{ready}");
    assert_eq!(ready["store"], *store.url);
    assert_eq!(first.ends_with(), Some(7));
    let log: Vec<String> = first.log.iter().collect();
    let told = log.iter().any(|line| line.contains("another server has taken the store over"));
    assert!(told, "{log:#?}");
}

#[test]
fn f1_a_store_moves_to_another_machine_by_a_clean_stop_and_a_start() {
    let (_folder, store) = folder_store();
    let places = [Place::new(), Place::new()];
    let mut first = Server::start(&places[0], &store, &[]);
    let epoch = first.tells("ready")["epoch"].clone();
    first.signal("TERM");
    assert_eq!(first.ends_with(), Some(0));
    let doctor = |url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        command.args(["doctor", "--json", "--set", &format!("store.url={url}")]);
        command.current_dir(places[0].folder.path()).output().expect("it ends")
    };
    let found = doctor(&store.url);
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    assert_eq!(found["damage"], serde_json::json!([]), "{found}");
    let nowhere = doctor(&format!("{}-not", store.url));
    assert_eq!(nowhere.status.code(), Some(6), "{nowhere:?}");
    let second = Server::start(&places[1], &store, &[]);
    let moved = second.tells("ready")["epoch"].clone();
    // The second half is the opening's.
    let store_of = |epoch: &Value| epoch.as_str().map(|text| text[..8].to_owned());
    assert_eq!(store_of(&moved), store_of(&epoch), "{moved} and {epoch} are one store");
}
