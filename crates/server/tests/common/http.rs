//! An HTTP API over a broker in a folder of its own, and a client that speaks HTTP/1.1 by
//! hand: what it sends and what it got are bytes, and nothing is hidden by a library.
//!
//! Use it as `#[path = "common/http.rs"] mod http;`.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use gapless_broker::{Broker, BrokerOptions};
use gapless_jobs::{Leader, LeaderOptions};
use gapless_server::http::{HttpListener, HttpOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything takes on a loaded machine; only a failing test waits for it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A broker with an HTTP API on a free port.
pub struct Server {
    pub runtime: Runtime,
    pub broker: Broker,
    pub listener: Option<HttpListener>,
    pub address: SocketAddr,
    pub folder: TempDir,
}

impl Server {
    pub fn open() -> Self {
        Self::with(|_, _| ())
    }

    /// A server with other options than the default.
    pub fn with(change: impl FnOnce(&mut HttpOptions, &mut BrokerOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::on(folder, change)
    }

    /// A server on a folder that is there already.
    pub fn on(folder: TempDir, change: impl FnOnce(&mut HttpOptions, &mut BrokerOptions)) -> Self {
        let (mut http, mut options) =
            (HttpOptions::default(), BrokerOptions::new(folder.path().join("data")));
        change(&mut http, &mut options);
        let runtime = gapless_server::runtime().expect("a runtime");
        let broker = Broker::open(options).expect("a broker");
        let listener = runtime.block_on(async {
            let leader = Leader::start(&broker, LeaderOptions::default()).await.expect("a leader");
            let mut listener = HttpListener::listen(http, "127.0.0.1:0").await.expect("a listener");
            listener.leads(leader);
            listener.serve(&broker, None).expect("it serves");
            listener
        });
        let address = listener.address();
        Self { runtime, broker, listener: Some(listener), address, folder }
    }

    /// Closes listener and broker cleanly; the folder stays.
    pub fn close(mut self) -> TempDir {
        if let Some(listener) = self.listener.take() {
            self.runtime.block_on(listener.close());
        }
        self.broker.close().expect("closes cleanly");
        self.folder
    }

    /// A connection of its own.
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// One request on a connection of its own.
    pub fn send(&self, request: &Request) -> Answer {
        self.connect().send(request)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(&Request::new("GET", path))
    }

    pub fn put(&self, path: &str, json: &Value) -> Answer {
        self.send(&Request::new("PUT", path).json(json))
    }

    pub fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.send(&Request::new("POST", path).body(body))
    }

    pub fn post_json(&self, path: &str, json: &Value) -> Answer {
        self.send(&Request::new("POST", path).json(json))
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.send(&Request::new("DELETE", path))
    }
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.into(), path: path.into(), headers: Vec::new(), body: None }
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    #[must_use]
    pub fn json(self, json: &Value) -> Self {
        self.header("Content-Type", "application/json").body(json.to_string())
    }

    /// Its bytes, with a length, and with a host unless it names one.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name == "Host") {
            out += "Host: localhost\r\n";
        }
        for (name, value) in &self.headers {
            out += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            out += &format!("Content-Length: {}\r\n", body.len());
        }
        out += "\r\n";
        let mut out = out.into_bytes();
        out.extend_from_slice(self.body.as_deref().unwrap_or_default());
        out
    }
}

/// A connection.
pub struct Client {
    pub stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("writes");
    }

    /// Sends a request and reads the whole answer.
    pub fn send(&mut self, request: &Request) -> Answer {
        self.write(&request.bytes());
        let head = request.method == "HEAD";
        self.answer_to(head)
    }

    /// Sends a request and reads the head of the answer only: the body is a stream.
    pub fn begin(&mut self, request: &Request) -> Head {
        self.write(&request.bytes());
        self.head()
    }

    /// Reads a whole answer.
    pub fn answer(&mut self) -> Answer {
        self.answer_to(false)
    }

    fn answer_to(&mut self, is_head: bool) -> Answer {
        let head = self.head();
        let mut body = Vec::new();
        if is_head || matches!(head.status, 204 | 304) {
        } else if let Some(length) = head.header("content-length") {
            body = vec![0; length.parse().expect("a length")];
            self.stream.read_exact(&mut body).expect("the whole body");
        } else if head.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        } else {
            self.stream.read_to_end(&mut body).expect("the body up to the end");
        }
        Answer { head, body }
    }

    /// Reads the head of an answer.
    pub fn head(&mut self) -> Head {
        let first = self.line().expect("an answer");
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{first:?} is not a status line"));
        let mut headers = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').expect("a header");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Head { status, headers }
    }

    /// The next chunk of a chunked body; `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = self.line()?;
        let length = length.split(';').next().unwrap_or("");
        let length = usize::from_str_radix(length.trim(), 16).expect("a chunk's length");
        let mut chunk = vec![0; length];
        self.stream.read_exact(&mut chunk).expect("a chunk");
        self.line();
        (length > 0).then_some(chunk)
    }

    /// A line without its end; `None` when the server has closed the connection.
    pub fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let read = match self.stream.read_until(b'\n', &mut line) {
            // Closed with something of ours unread.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            other => other.expect("a line in time"),
        };
        let line = String::from_utf8(line).expect("text");
        (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Whether the server has closed the connection, with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Status and headers of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The value of a header; the name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(each, _)| each == name).map(|(_, value)| value.as_str())
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// The lines as JSON values.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line);
        let text = self.text();
        text.lines().map(|line| parse(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
    }

    /// The status must be this one.
    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status(), status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    /// It must be a whole problem with this status and this name of the one list.
    #[track_caller]
    pub fn problem(self, status: u16, name: &str) -> Self {
        let answer = self.is(status);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        let problem = answer.json();
        assert_eq!(problem["name"], name, "{problem:#}");
        assert_eq!(problem["status"], status, "{problem:#}");
        assert!(problem["code"].is_u64() && problem["detail"].is_string(), "{problem:#}");
        assert!(problem["title"].is_string() && problem["type"].is_string(), "{problem:#}");
        let fate = problem["fate"].as_str().unwrap_or_default();
        assert!(["did not happen", "unknown"].contains(&fate), "{problem:#}");
        answer
    }
}
