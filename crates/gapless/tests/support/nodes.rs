//! Nodes of a cluster as processes of the real program, clients of them, and a proxy that cuts links.
//!
//! Use it as `#[path = "support/nodes.rs"] mod support;`.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gapless_client::{
    Client, ConnectOptions, Event, From, Message, PublishError, PublishOptions, Subscription,
    TopicName,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Nothing here takes longer on a machine that is not stuck.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for something that is seen by looking.
#[track_caller]
pub fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < end, "{what}: not in time");
        thread::yield_now();
    }
}

/// An address that was free a moment ago.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GAPLESS_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The lines of a stream, read by a thread.
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

/// A server that is a node. It is killed when this goes out of scope.
pub struct Node {
    name: String,
    folder: TempDir,
    settings: Vec<String>,
    secret: Option<String>,
    child: Child,
    log: Receiver<String>,
    ready: Value,
    runtime: Runtime,
    client: Client,
}

impl Node {
    /// A node with settings as `--set` takes them, on ports of its own.
    pub fn start(name: &str, settings: &[&str]) -> Self {
        Self::start_with(name, settings, None)
    }

    /// The same, with a secret in a file.
    pub fn start_with(name: &str, settings: &[&str], secret: Option<&str>) -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        let settings: Vec<String> = settings.iter().map(|each| (*each).to_owned()).collect();
        let secret = secret.map(str::to_owned);
        let (child, log, ready) = Self::spawn(name, &folder, &settings, secret.as_deref());
        let (runtime, client) = Self::connect(&ready);
        let name = name.to_owned();
        Self { name, folder, settings, secret, child, log, ready, runtime, client }
    }

    fn spawn(
        name: &str,
        folder: &TempDir,
        settings: &[String],
        secret: Option<&str>,
    ) -> (Child, Receiver<String>, Value) {
        let mut command = program();
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        let listen = settings.iter().find_map(|each| each.strip_prefix("cluster.listen="));
        let listen = listen.unwrap_or("127.0.0.1:0");
        command.args(["--set", "native.unix=", "--node", name, "--cluster-listen", listen]);
        command.arg("--data").arg(folder.path().join("data")).current_dir(folder.path());
        if let Some(secret) = secret {
            std::fs::write(folder.path().join("secret"), secret).expect("written");
            command.args(["--cluster-secret-file", "secret"]);
        }
        for setting in settings.iter().filter(|each| !each.starts_with("cluster.listen=")) {
            command.args(["--set", setting]);
        }
        let mut child = command.spawn().expect("the program starts");
        let out = lines(child.stdout.take().expect("stdout is a pipe"));
        let log = lines(child.stderr.take().expect("stderr is a pipe"));
        let Ok(ready) = out.recv_timeout(DEADLINE) else {
            panic!("{name} is not ready: {:#?}", log.iter().collect::<Vec<_>>());
        };
        let ready = serde_json::from_str(&ready).unwrap_or_else(|error| panic!("{ready}: {error}"));
        (child, log, ready)
    }

    fn connect(ready: &Value) -> (Runtime, Client) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let address = ready["native"].as_str().expect("an address");
        let client = runtime.block_on(Client::connect(ConnectOptions::new([address])));
        (runtime, client.expect("it answers"))
    }

    /// What a server that does not start says.
    pub fn refused(words: &[&str]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = program();
        command.arg("serve").args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]).args(words);
        let output = command.current_dir(folder.path()).output().expect("it ends");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Where other nodes reach it.
    pub fn cluster_address(&self) -> String {
        self.ready["cluster"]["address"].as_str().expect("an address").to_owned()
    }

    /// Follows a pattern from now on.
    pub fn follow(&self, pattern: &str) -> Feed {
        let subscribing = self.client.subscribe(pattern, From::Now);
        let subscription = self.runtime.block_on(subscribing).expect("a subscription");
        Feed { handle: self.runtime.handle().clone(), subscription, read: Vec::new() }
    }

    /// Publishes these, each of which must be accepted.
    pub fn publish_all(&self, subject: &str, bodies: &[String]) {
        let subject: TopicName = subject.parse().expect("a name");
        self.runtime.block_on(async {
            for part in bodies.chunks(100) {
                let acks: Vec<_> = part
                    .iter()
                    .map(|body| self.client.publish(&subject, Message::new(body.clone())))
                    .collect();
                for ack in acks {
                    ack.await.expect("accepted");
                }
            }
        });
    }

    /// Publishes one; why not, if it is rejected.
    pub fn try_publish(
        &self,
        subject: &str,
        body: &str,
        options: &PublishOptions,
    ) -> Result<(), String> {
        let subject: TopicName = subject.parse().expect("a name");
        let message = Message::new(body.to_owned());
        let publishing = self.client.publish_with(&subject, message, options);
        match self.runtime.block_on(publishing) {
            Ok(_) => Ok(()),
            Err(PublishError::Rejected(reason)) => Err(format!("{reason:?}")),
            Err(error) => panic!("{error}"),
        }
    }

    /// How it sees the cluster.
    pub fn status(&self) -> Value {
        let asked = self.client.cluster("{\"do\":\"status\"}".to_owned());
        let text = self.runtime.block_on(asked).expect("an answer");
        serde_json::from_str(&text).expect("JSON")
    }

    fn of(&self, other: &Self) -> Value {
        let status = self.status();
        let nodes = status["nodes"].as_array().expect("nodes");
        nodes.iter().find(|node| node["node"] == *other.name).cloned().unwrap_or_default()
    }

    /// Waits until it knows that many patterns of another node, and delivers to them.
    #[track_caller]
    pub fn knows(&self, other: &Self, patterns: u64) {
        until(&format!("{} knows {}", self.name, other.name), || {
            let node = self.of(other);
            node["patterns"].as_u64() >= Some(patterns) && node["state"]["is"] == "active"
        });
    }

    /// Waits until it sees another node in this state.
    #[track_caller]
    pub fn state_of(&self, other: &Self, state: &str) {
        until(&format!("{} is {state}", other.name), || self.of(other)["state"]["is"] == state);
    }

    /// Messages that it holds for the anonymous subscribers of another.
    pub fn held_for(&self, other: &Self) -> u64 {
        self.of(other)["queue"]["messages"].as_u64().unwrap_or_default()
    }

    /// Sends a signal to its process alone.
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// The next line of its log that has this in it.
    #[track_caller]
    pub fn logs(&mut self, part: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("{} does not log {part:?}", self.name));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// A command that talks to it, and goes on; and what it says on stderr.
    pub fn begin(&self, words: &[&str]) -> Running {
        let mut command = program();
        let address = self.ready["native"].as_str().expect("an address");
        let mut child = command.args(words).args(["--server", address]).spawn().expect("it starts");
        let out = lines(child.stdout.take().expect("stdout is a pipe"));
        let err = lines(child.stderr.take().expect("stderr is a pipe"));
        Running { child, out, err }
    }

    /// How a command that talks to it ends, and what it says on stderr.
    pub fn ends(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = program();
        let address = self.ready["native"].as_str().expect("an address");
        let output = command.args(words).args(["--server", address]).output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What a command that talks to it prints.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        let mut command = program();
        let address = self.ready["native"].as_str().expect("an address");
        let output = command.args(words).args(["--server", address]).output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The body of an answer over HTTP.
    pub fn http(&self, method: &str, path: &str) -> String {
        let host = self.ready["http"].as_str().expect("an address").trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    /// Follows over HTTP: SSE, or a WebSocket.
    pub fn stream(&self, path: &str, websocket: bool) -> Stream {
        let host = self.ready["http"].as_str().expect("an address").trim_start_matches("http://");
        let mut socket = TcpStream::connect(host).expect("connects");
        socket.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let how = if websocket {
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        } else {
            "Accept: text/event-stream"
        };
        // HTTP/1.0 has no chunks to be taken apart.
        let version = if websocket { "1.1" } else { "1.0" };
        let request = format!("GET {path} HTTP/{version}\r\nHost: {host}\r\n{how}\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("sent");
        let mut read = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(read.read_line(&mut head).expect("a head"), 0, "{head}");
        }
        assert!(head.contains(if websocket { " 101 " } else { " 200 " }), "{head}");
        Stream { read, websocket }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its exit code, when it has ended by itself.
    fn wait(&mut self) -> Option<i32> {
        ended(&self.name, &mut self.child)
    }

    /// Starts it again, at the address that it had.
    fn restart(&mut self) {
        self.kill();
        let address = self.cluster_address();
        self.settings.retain(|each| !each.starts_with("cluster.listen="));
        self.settings.push(format!("cluster.listen={address}"));
        let started = Self::spawn(&self.name, &self.folder, &self.settings, self.secret.as_deref());
        (self.child, self.log, self.ready) = started;
        (self.runtime, self.client) = Self::connect(&self.ready);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that goes on. It is killed when this goes out of scope.
pub struct Running {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Running {
    /// Waits until it has said this on stderr.
    #[track_caller]
    pub fn says(self, part: &str) -> Self {
        until_line(&self.err, part);
        self
    }

    /// Waits until it has printed this.
    #[track_caller]
    pub fn prints(self, part: &str) -> Self {
        until_line(&self.out, part);
        self
    }
}

impl Running {
    /// Its exit code, when it has ended by itself.
    #[track_caller]
    pub fn ends(mut self) -> Option<i32> {
        ended("the command", &mut self.child)
    }
}

#[track_caller]
fn until_line(lines: &Receiver<String>, part: &str) {
    let end = Instant::now() + DEADLINE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("no {part:?}"));
        if line.contains(part) {
            return;
        }
    }
}

/// The exit code of a process that ends by itself.
#[track_caller]
fn ended(what: &str, child: &mut Child) -> Option<i32> {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().expect("our child") {
            return status.code();
        }
        assert!(Instant::now() < end, "{what} does not end");
        thread::yield_now();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A subscription, read from outside its runtime.
pub struct Feed {
    handle: tokio::runtime::Handle,
    subscription: Subscription,
    read: Vec<String>,
}

impl Feed {
    /// The bodies of the next messages.
    #[track_caller]
    pub fn take(&mut self, count: usize) -> Vec<String> {
        let reading = async {
            while self.read.len() < count {
                match self.subscription.next().await.expect("it goes on").expect("it goes on") {
                    Event::Messages(messages) => self.read.extend(messages.iter().map(|each| {
                        let body = each.message.body.unwrap_or_default();
                        String::from_utf8(body.to_vec()).expect("text")
                    })),
                    Event::Gap(gap) => panic!("a gap: {gap:?}"),
                    _ => {}
                }
            }
        };
        let read = self.handle.block_on(async { tokio::time::timeout(DEADLINE, reading).await });
        assert!(read.is_ok(), "{} of {count} messages came", self.read.len());
        self.read.drain(..count).collect()
    }

    /// The next message, which is JSON.
    #[track_caller]
    pub fn json(&mut self) -> Value {
        serde_json::from_str(&self.take(1)[0]).expect("JSON")
    }
}

/// What comes over HTTP.
pub struct Stream {
    read: BufReader<TcpStream>,
    websocket: bool,
}

impl Stream {
    /// The next event, with its kind as `event`.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        if self.websocket { self.next_frame() } else { self.next_lines() }
    }

    /// The text of the next message.
    #[track_caller]
    pub fn text(&mut self) -> String {
        loop {
            let event = self.next();
            match event["event"].as_str() {
                Some("message") => return event["text"].as_str().expect("text").to_owned(),
                Some("live" | "place") | None => {}
                _ => panic!("{event}"),
            }
        }
    }

    /// Waits until it is followed.
    #[track_caller]
    pub fn live(mut self) -> Self {
        while self.next()["event"] != "live" {}
        self
    }

    /// The texts of all messages up to the end of an SSE stream.
    pub fn rest(mut self) -> Vec<String> {
        let mut texts = Vec::new();
        for line in self.read.by_ref().lines().map_while(Result::ok) {
            let data = line.strip_prefix("data: ").and_then(|text| {
                serde_json::from_str::<Value>(text).ok()?["text"].as_str().map(str::to_owned)
            });
            texts.extend(data);
        }
        texts
    }

    fn next_lines(&mut self) -> Value {
        let (mut kind, mut data) = ("message".to_owned(), String::new());
        loop {
            let mut line = String::new();
            assert_ne!(self.read.read_line(&mut line).expect("it goes on"), 0, "it ended");
            let line = line.trim_end();
            if let Some(event) = line.strip_prefix("event: ") {
                kind = event.to_owned();
            } else if let Some(text) = line.strip_prefix("data: ") {
                data.push_str(text);
            } else if line.is_empty() && !data.is_empty() {
                let mut value: Value = serde_json::from_str(&data).expect("JSON");
                value["event"] = kind.into();
                return value;
            }
        }
    }

    fn next_frame(&mut self) -> Value {
        loop {
            let mut head = [0; 2];
            self.read.read_exact(&mut head).expect("a frame");
            let length = match head[1] {
                126 => {
                    let mut length = [0; 2];
                    self.read.read_exact(&mut length).expect("a length");
                    usize::from(u16::from_be_bytes(length))
                }
                short => usize::from(short),
            };
            let mut payload = vec![0; length];
            self.read.read_exact(&mut payload).expect("a payload");
            // Whole texts; pings and the close are passed over.
            if head[0] == 0x81 {
                return serde_json::from_slice(&payload).expect("JSON");
            }
        }
    }
}

/// The nodes of one cluster: `a`, `b`, `c` ...
#[derive(Default)]
pub struct Nodes(Vec<Node>);

impl Nodes {
    /// So many nodes, which all know each other.
    pub fn start(count: usize) -> Self {
        let mut nodes = Self::default();
        nodes.add(&[]);
        while nodes.0.len() < count {
            nodes.join();
        }
        for node in &nodes.0 {
            until("all are linked", || {
                let status = node.status();
                let linked = status["nodes"].as_array().into_iter().flatten();
                linked.filter(|other| other["link"] == "up").count() == count - 1
            });
        }
        nodes
    }

    /// One more, with these settings.
    pub fn add(&mut self, settings: &[&str]) {
        let name = char::from(b'a' + self.0.len() as u8).to_string();
        self.0.push(Node::start(&name, settings));
    }

    /// One more, which knows the first.
    pub fn join(&mut self) {
        let join = format!("cluster.join={}", self.0[0].cluster_address());
        self.add(&[&join]);
    }

    pub fn all<const N: usize>(&self) -> [&Node; N] {
        std::array::from_fn(|at| &self.0[at])
    }

    /// Ends one at once, as a power loss would.
    pub fn kill(&mut self, at: usize) {
        self.0[at].kill();
    }

    pub fn restart(&mut self, at: usize) {
        self.0[at].restart();
    }

    pub fn wait(&mut self, at: usize) -> Option<i32> {
        self.0[at].wait()
    }

    pub fn logs(&mut self, at: usize, part: &str) -> String {
        self.0[at].logs(part)
    }
}

/// Passes connections on to one address, until it is told to cut them.
pub struct FaultProxy {
    address: String,
    state: Arc<Mutex<ProxyState>>,
}

#[derive(Default)]
struct ProxyState {
    target: Option<String>,
    is_cut: bool,
    next: u64,
    open: HashMap<u64, [TcpStream; 2]>,
}

impl FaultProxy {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(Mutex::new(ProxyState::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(target) = state.target.clone().filter(|_| !state.is_cut) else { continue };
                let Ok(to) = TcpStream::connect(target) else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().expect("a handle");
                let id = state.next;
                state.next += 1;
                state.open.insert(id, [clone(&from), clone(&to)]);
                for (mut input, mut output) in [(clone(&from), clone(&to)), (to, from)] {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut input, &mut output);
                        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(both) = state.open.remove(&id) {
                            both.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                        }
                    });
                }
            }
        });
        Self { address, state }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn forward_to(&self, target: &str) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).target = Some(target.to_owned());
    }

    /// Ends all connections, and lets none through.
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_cut = true;
        for both in std::mem::take(&mut state.open).into_values() {
            both.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }

    pub fn mend(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_cut = false;
    }
}
