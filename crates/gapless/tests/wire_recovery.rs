//! The promise, over the wire and over the end of the server: a subscriber sees every seq
//! once, in order, or a gap notice that is true (D3, D4, D8, D10, D11, F2).
//!
//! Publishers run all the while. A hundred subscribers join at random positions, are cut off
//! and come back at random, some too slow, half of them over TCP and half over the Unix
//! socket; the server is killed twice and stopped once in the middle. At the end what each of
//! them saw is compared with what was acknowledged.
//!
//! Everything random comes from one seed, which a failure prints; `GAPLESS_SEED` sets it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gapless_client::{
    Amount, Backoff, Client, ClientLimits, ConnectOptions, Event, From, GapReason, Message, Seq,
    Token, TopicName, TopicSettings,
};
use tokio::sync::watch;
use tokio::time::timeout;

/// Only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(120);
const SUBSCRIBERS: u64 = 100;
const PUBLISHERS: u64 = 4;
const IN_FLIGHT: usize = 8;
/// Acks after which the server is killed, killed again, and stopped in order.
const ENDS: [(u64, How); 3] = [(800, How::Kill), (2000, How::Kill), (3200, How::Stop)];
const ACKS: u64 = 4500;
const CUTS: u64 = 200;
const PURGE_EVERY: u64 = 400;
/// One keeps everything; of the other the older messages are purged again and again.
const TOPICS: [&str; 2] = ["kept", "purged"];

#[derive(Clone, Copy, Debug)]
enum How {
    Kill,
    Stop,
}

struct Dice(u64);

impl Dice {
    fn new(seed: u64, who: u64) -> Self {
        let mut dice = Self((seed ^ who.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..10).for_each(|_| drop(dice.next()));
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// A server of its own process; it ends with the test, however that ends.
struct Server {
    child: Child,
    tcp: String,
    unix: String,
}

impl Server {
    fn start(data: &Path, listen: &str) -> Self {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
                .args(["serve", "--json", "--listen", listen, "--data"])
                .arg(data)
                .args(["--set", "journal.tail_bytes=65536"])
                .args(["--set", "journal.seal_bytes=1048576"])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("the server starts");
            let mut line = String::new();
            let out = child.stdout.take().expect("it has an output");
            let read = BufReader::new(out).read_line(&mut line);
            let ready: Option<serde_json::Value> =
                read.ok().and_then(|_| serde_json::from_str(&line).ok());
            let server = Self { child, tcp: String::new(), unix: String::new() };
            if let Some(ready) = ready {
                let text = |key: &str| ready[key].as_str().expect("an address").to_owned();
                return Self { tcp: text("native"), unix: text("unix"), ..server.taken() };
            }
            // The port may be taken for a moment by what the last one left.
            assert!(Instant::now() < deadline, "the server does not get ready: {line:?}");
        }
    }

    /// Moves the child out, so that it is not ended here.
    fn taken(self) -> ServerParts {
        unreachable!("replaced below")
    }
}
