//! Durable Streams over `kill -9`: producers go on where they were, and nothing counts twice.
//!
//! Several producers append to one stream, each with one append under way. The server is
//! killed in the middle, again and again, on one folder. A producer whose answer did not come
//! does not know what became of its append: it sends the same one again.

#[path = "../../server/tests/common/http.rs"]
mod http;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use http::{Client, DEADLINE, Request};
use serde_json::{Value, json};

const PRODUCERS: u64 = 5;
const KILLS: u64 = 4;

/// Acks between two kills.
const ACKS: u64 = 60;

/// A server, killed when it goes out of scope.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GAPLESS_") {
                command.env_remove(name);
            }
        }
        command
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--set", "native.unix=", "--data"])
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut ready).expect("a line");
        let ready: Value = serde_json::from_str(&ready).expect("it is ready");
        let address = ready["http"].as_str().expect("an address").trim_start_matches("http://");
        Self { child, address: address.parse().expect("an address") }
    }

    fn kill(&mut self) {
        // On Unix this is SIGKILL.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The status of an answer, if one came.
fn try_send(address: SocketAddr, request: &Request) -> Option<u16> {
    let mut socket = TcpStream::connect(address).ok()?;
    socket.set_read_timeout(Some(DEADLINE)).ok()?;
    socket.write_all(&request.bytes()).ok()?;
    let mut head = [0; 12];
    socket.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

fn append(producer: u64, seq: u64) -> Request {
    Request::new("POST", "/v1/stream/jobs/done")
        .json(&json!([{ "producer": producer, "seq": seq, "part": 0 },
                      { "producer": producer, "seq": seq, "part": 1 }]))
        .header("Producer-Id", &format!("worker-{producer}"))
        .header("Producer-Epoch", "0")
        .header("Producer-Seq", &seq.to_string())
}

#[test]
fn f2_a_producer_s_retry_after_kill_9_is_a_duplicate_if_it_was_acked() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path());
    let send =
        |server: &Server, request: &Request| Client::connect(server.address).send(request).status();
    let put =
        Request::new("PUT", "/v1/stream/jobs/done").header("Content-Type", "application/json");
    assert_eq!(send(&server, &put), 201);
    assert_eq!(send(&server, &append(0, 0)), 200);
    server.kill();
    let server = Server::start(folder.path());
    assert_eq!(send(&server, &put), 200);
    assert_eq!(send(&server, &append(0, 0)), 204);
    assert_eq!(send(&server, &append(0, 1)), 200);
    let read = Client::connect(server.address).send(&Request::new("GET", "/v1/stream/jobs/done"));
    let parts: Vec<_> = read.json().as_array().expect("an array").clone();
    let seqs: Vec<_> = parts.iter().map(|each| each["seq"].as_u64()).collect();
    assert_eq!(seqs, [Some(0), Some(0), Some(1), Some(1)]);
}

#[test]
fn f2_over_many_kills_each_append_of_each_producer_counts_once_and_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path());
    let put =
        Request::new("PUT", "/v1/stream/jobs/done").header("Content-Type", "application/json");
    assert_eq!(try_send(server.address, &put), Some(201));
    // Where the server is, and the how manieth; producers that lost it wait here for the next.
    let place = (Mutex::new((0, server.address)), Condvar::new());
    let (acks, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let produce = |producer: u64| {
            let (place, acks, stop) = (&place, &acks, &stop);
            move || -> u64 {
                let mut seq = 0;
                while !stop.load(Ordering::Acquire) {
                    let (life, address) = *place.0.lock().expect("a lock");
                    match try_send(address, &append(producer, seq)) {
                        Some(200 | 204) => {
                            seq += 1;
                            acks.fetch_add(1, Ordering::AcqRel);
                        }
                        Some(status) => panic!("an append of producer {producer} got {status}"),
                        None => {
                            let known = place.0.lock().expect("a lock");
                            let same = |known: &mut (u64, SocketAddr)| known.0 == life;
                            let waited = place.1.wait_timeout_while(known, DEADLINE, same);
                            assert!(!waited.expect("a lock").1.timed_out(), "no server came");
                        }
                    }
                }
                seq
            }
        };
        let producers: Vec<_> = (0..PRODUCERS).map(|each| scope.spawn(produce(each))).collect();
        for kill in 1..=KILLS {
            while acks.load(Ordering::Acquire) < kill * ACKS {
                assert!(!producers.iter().any(std::thread::ScopedJoinHandle::is_finished));
                std::thread::yield_now();
            }
            server.kill();
            server = Server::start(folder.path());
            *place.0.lock().expect("a lock") = (kill, server.address);
            place.1.notify_all();
        }
        while acks.load(Ordering::Acquire) < (KILLS + 1) * ACKS {
            assert!(!producers.iter().any(std::thread::ScopedJoinHandle::is_finished));
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        producers.into_iter().map(|each| each.join().expect("it produces")).collect()
    });
    let read = Client::connect(server.address).send(&Request::new("GET", "/v1/stream/jobs/done"));
    assert_eq!(read.header("stream-up-to-date"), Some("true"));
    let stored: Vec<Value> = read.json().as_array().expect("an array").clone();
    for (producer, sent) in (0..).zip(sent) {
        let own = stored.iter().filter(|each| each["producer"] == producer);
        let numbers: Vec<_> =
            own.map(|each| (each["seq"].as_u64(), each["part"].as_u64())).collect();
        let expected: Vec<_> =
            (0..sent).flat_map(|seq| [(Some(seq), Some(0)), (Some(seq), Some(1))]).collect();
        assert_eq!(numbers, expected, "producer {producer}");
    }
}
