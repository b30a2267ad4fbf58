//! Three nodes share a store: any of them takes any request, while owners are killed, frozen and thawed
//! (F1, F2, D3, D10).
//!
//! One publishes and three read: a follower of the native client, one by SSE with `Last-Event-ID`, and a
//! member of a group. All have the addresses of all nodes. What was acknowledged must be read once, in
//! order, by the followers, and be done by the group. How long no publish was acknowledged after an owner
//! was taken away is told, and bounded.

#[path = "support/stores.rs"]
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gapless_client::{
    Client, GroupEvent, GroupSettings, MemberOptions, Pattern, TopicName, TopicSettings,
};
use serde_json::Value;
use support::{
    DEADLINE, Ledger, Place, Server, TOPIC, Where, check, client, folder_store, follow, follow_sse,
    free_address, moto, moto_store, publish, until,
};

/// The group that works on the topic.
const GROUP: &str = "workers";
/// An owner that is gone is replaced within this time; the machine may be busy with other tests.
const SERVED_AGAIN: Duration = Duration::from_secs(30);

/// Three nodes of one store.
struct Nodes {
    places: [Place; 3],
    clusters: [String; 3],
    servers: Vec<Server>,
    store: Where,
    words: Vec<String>,
}

impl Nodes {
    fn start(store: Where, words: &[&str]) -> Self {
        let places = [Place::new(), Place::new(), Place::new()];
        let clusters = [free_address(), free_address(), free_address()];
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let mut nodes = Self { places, clusters, servers: Vec::new(), store, words };
        for at in 0..3 {
            let server = nodes.begin(at);
            nodes.servers.push(server);
        }
        nodes.servers.iter().for_each(|server| drop(server.tells("ready")));
        nodes.settled();
        nodes
    }

    fn begin(&self, at: usize) -> Server {
        let join = self.clusters.join(",");
        let name = ["a", "b", "c"][at];
        let mut words = vec!["--shared", "--node", name, "--cluster-listen", &self.clusters[at]];
        words.extend(["--join", &join]);
        words.extend(self.words.iter().map(String::as_str));
        Server::start(&self.places[at], &self.store, &words)
    }

    /// How a node sees the journal, by its own HTTP.
    fn journal(&self, at: usize) -> Value {
        let Ok((200, body)) = get(&self.places[at].http, "/v1/cluster") else { return Value::Null };
        let status: Value = serde_json::from_str(&body).unwrap_or_default();
        status["journals"][0].clone()
    }

    /// Which node owns the journal, when all see the same and each sees the others.
    fn settled(&self) -> usize {
        let found = Mutex::new(None);
        until("all nodes see one owner", || {
            let seen: Vec<Value> = (0..3).map(|at| self.journal(at)).collect();
            let all = seen.iter().all(|journal| {
                journal["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3)
                    && journal["owner"] == seen[0]["owner"]
                    && journal["term"] == seen[0]["term"]
            });
            let owner = seen[0]["owner"].as_str().map(str::to_owned);
            *found.lock().expect("whole") = owner.filter(|_| all);
            found.lock().expect("whole").is_some()
        });
        let owner = found.into_inner().expect("whole").expect("an owner");
        ["a", "b", "c"].iter().position(|name| *name == owner).expect("one of them")
    }

    /// An owner that stays: the preferred node has been given the journal.
    fn at_rest(&self) -> usize {
        let mut owner = self.settled();
        let mut since = Instant::now();
        // Longer than a preferred node must be linked before it is given the journal.
        while since.elapsed() < Duration::from_secs(5) {
            let now = self.settled();
            if now != owner {
                (owner, since) = (now, Instant::now());
            }
            thread::yield_now();
        }
        owner
    }
}

/// The status and the body of an answer.
fn get(host: &str, path: &str) -> std::io::Result<(u16, String)> {
    ask(host, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

fn ask(host: &str, request: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or_default();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return Ok((status, body.to_owned()));
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || after.len() < size {
            break;
        }
        whole.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    Ok((status, whole))
}

/// Works in the group, and notes what was done.
async fn work(client: Client, ledger: Arc<Ledger>, done: Arc<Mutex<BTreeSet<u64>>>) {
    let group: TopicName = GROUP.parse().expect("a name");
    while !ledger.done.load(Ordering::SeqCst) {
        let joined = client.join_group(&group, MemberOptions::default()).await;
        // There is no owner, or it is gone again.
        let Ok(mut member) = joined else { continue };
        while !ledger.done.load(Ordering::SeqCst) {
            let next = tokio::time::timeout(Duration::from_millis(100), member.next()).await;
            let event = match next {
                Err(_) => continue,
                Ok(Some(Ok(event))) => event,
                Ok(None | Some(Err(_))) => break,
            };
            let GroupEvent::Messages(leased) = event else { continue };
            done.lock().expect("whole").extend(leased.iter().map(|each| each.seq.0));
            // What could not be acked comes again, unless the ack counted and its answer was lost.
            let _ = member.ack(leased.leases()).await;
        }
    }
}

/// How an owner is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    Freeze,
    /// Told to stop, and started again.
    Stop,
}

/// Runs three nodes while owners end like this, and checks what readers saw. Tells for each how long it
/// took from the end until a publish was acknowledged again.
fn run(store: Where, ends: &[End]) -> Vec<(End, Duration)> {
    let mut nodes = Nodes::start(store, &[]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let ledger = Arc::new(Ledger::default());
    let worked = Arc::new(Mutex::new(BTreeSet::new()));
    let maker = client(&nodes.places);
    let topic: TopicName = TOPIC.parse().expect("a name");
    let made = runtime.block_on(maker.create_topic(&topic, TopicSettings::default()));
    made.expect("the topic is new");
    let group = GROUP.parse().expect("a name");
    let mut settings = GroupSettings::new(Pattern::parse(TOPIC).expect("a pattern"));
    // What an owner that is gone had handed out is waited for.
    settings.lease = Duration::from_secs(3);
    let made = maker.create_group(&group, settings);
    runtime.block_on(made).expect("the group is new");
    let publishing = runtime.spawn(publish(client(&nodes.places), Arc::clone(&ledger)));
    let following = runtime.spawn(follow(client(&nodes.places), Arc::clone(&ledger)));
    let working =
        runtime.spawn(work(client(&nodes.places), Arc::clone(&ledger), Arc::clone(&worked)));
    let for_sse = Arc::clone(&ledger);
    let hosts = nodes.places.each_ref().map(|place| place.http.clone());
    let sse = thread::spawn(move || follow_sse(&hosts, &for_sse));
    let mut took = Vec::new();
    for end in ends {
        let owner = nodes.settled();
        let before = ledger.acks();
        until("publishing goes on", || ledger.acks() >= before + 20);
        let began = Instant::now();
        match end {
            End::Kill => {
                nodes.servers[owner].child.kill().expect("killed");
                nodes.servers[owner].child.wait().expect("ended");
            }
            End::Freeze => nodes.servers[owner].signal("STOP"),
            End::Stop => nodes.servers[owner].signal("TERM"),
        }
        // Of those that were acknowledged before some may be noted only now.
        let gone = ledger.acks() + 2;
        until("publishes are acknowledged again", || ledger.acks() > gone);
        took.push((*end, began.elapsed()));
        eprintln!("{end:?} of {owner}: acknowledged again after {:?}", began.elapsed());
        match end {
            End::Kill => nodes.servers[owner] = nodes.begin(owner),
            End::Freeze => nodes.servers[owner].signal("CONT"),
            End::Stop => {
                assert_eq!(nodes.servers[owner].ends_with(), Some(0), "it stops cleanly");
                nodes.servers[owner] = nodes.begin(owner);
            }
        }
    }
    nodes.settled();
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
    let acked: Vec<u64> = ledger.acked.lock().expect("whole").keys().copied().collect();
    until("the group has done all", || {
        let worked = worked.lock().expect("whole");
        acked.iter().all(|seq| worked.contains(seq))
    });
    until("the group's acks all count", || {
        let Ok((200, body)) = get(&nodes.places[0].http, "/v1/groups/workers") else {
            return false;
        };
        serde_json::from_str::<Value>(&body).is_ok_and(|group| group["lag"] == 0)
    });
    ledger.done.store(true, Ordering::SeqCst);
    runtime.block_on(following).expect("the follower ends");
    runtime.block_on(working).expect("the worker ends");
    sse.join().expect("the SSE follower ends");
    check(&ledger);
    let worst = took.iter().map(|(_, took)| *took).max().unwrap_or_default();
    assert!(worst < SERVED_AGAIN, "an owner was replaced after {worst:?} only: {took:?}");
    took
}

#[test]
fn f1_any_node_takes_any_request_while_owners_are_killed_frozen_and_stopped_on_a_folder() {
    let (_folder, store) = folder_store();
    run(store, &[End::Kill, End::Freeze, End::Stop, End::Kill]);
}

#[test]
fn f1_any_node_takes_any_request_while_owners_are_killed_and_frozen_on_s3() {
    let moto = moto::Moto::start();
    run(moto_store(&moto), &[End::Kill, End::Freeze]);
}

/// `GAPLESS_ROUNDS=50 cargo nextest run -p gapless --run-ignored all -E 'test(many_rounds)'`
#[test]
#[ignore = "takes a quarter of an hour; run by hand"]
fn f1_many_rounds() {
    let rounds = std::env::var("GAPLESS_ROUNDS").ok().and_then(|text| text.parse().ok());
    let ends = [End::Kill, End::Freeze, End::Kill, End::Stop, End::Freeze];
    let ends: Vec<End> = ends.into_iter().cycle().take(rounds.unwrap_or(50)).collect();
    let (_folder, store) = folder_store();
    let took = run(store, &ends);
    for end in [End::Kill, End::Freeze, End::Stop] {
        let mut times: Vec<Duration> =
            took.iter().filter(|(how, _)| *how == end).map(|(_, time)| *time).collect();
        times.sort();
        let (p50, worst) = (times.get(times.len() / 2), times.last());
        println!("{end:?}: {} times, p50 {p50:?}, worst {worst:?}", times.len());
    }
}

fn gapless(server: &str, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    command.args(words).args(["--server", server]).env("GAPLESS_WAIT", "60s");
    let output = command.output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn f1_every_node_answers_as_the_owner_does_and_for_itself_where_it_is_asked_about_itself() {
    let (_folder, store) = folder_store();
    let nodes = Nodes::start(store, &[]);
    let owner = nodes.at_rest();
    let others: Vec<usize> = (0..3).filter(|at| *at != owner).collect();
    let [one, two] = [&nodes.places[others[0]], &nodes.places[others[1]]];
    // The native API, over TCP, at both.
    let (code, said) = gapless(&one.native, &["pub", "orders", "first", "--create"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = gapless(&two.native, &["sub", "orders", "--count", "1"]);
    assert!(code == Some(0) && said.contains("first"), "{said}");
    // A body that is announced, one in pieces, and one that must be asked for.
    let post = |host: &str, headers: &str, body: &str| {
        let path = "/v1/topics/orders/messages";
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}");
        ask(host, &format!("{head}\r\n{body}")).expect("an answer")
    };
    let (status, body) = post(&one.http, "Content-Length: 6\r\n", "second");
    assert_eq!(status, 201, "{body}");
    let pieces = "6\r\n{\"text\r\nc\r\n\": \"third\"}\n\r\n0\r\n\r\n";
    let lines = "Transfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\n";
    let (status, body) = post(&two.http, lines, pieces);
    assert_eq!(status, 200, "{body}");
    let (status, body) = post(&one.http, "Content-Length: 6\r\nExpect: 100-continue\r\n", "fourth");
    assert!([100, 201].contains(&status), "{status} {body}");
    let (status, body) = get(&two.http, "/v1/topics/orders/messages?from=1&limit=10").expect("it");
    assert_eq!(status, 200, "{body}");
    for text in ["first", "second", "third", "fourth"] {
        assert!(body.contains(text), "{text} in {body}");
    }
    // Errors are the owner's.
    let (status, body) = get(&one.http, "/v1/topics/nothing").expect("an answer");
    assert!(status == 404 && body.contains("UnknownTopic"), "{status} {body}");
    // What is about a node is its own.
    for (at, place) in nodes.places.iter().enumerate() {
        for path in ["/healthz", "/readyz"] {
            assert_eq!(get(&place.http, path).expect("an answer").0, 200, "{path} of {at}");
        }
        let (_, metrics) = get(&place.http, "/metrics").expect("an answer");
        let owned = format!("gapless_journal_owned {}\n", u8::from(at == owner));
        assert!(metrics.contains(&owned), "{owned} of {at}: {metrics}");
        let (_, status) = get(&place.http, "/v1/cluster").expect("an answer");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        assert_eq!(status["node"], ["a", "b", "c"][at]);
    }
    // A WebSocket, and what is published meanwhile.
    let mut socket = TcpStream::connect(&two.http).expect("connects");
    socket.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let host = &two.http;
    let request =
        format!("GET /v1/topics/orders/follow HTTP/1.1\r\nHost: {host}\r\n{upgrade}\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut reader = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).expect("a head"), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let mut heard = Vec::new();
    let mut piece = [0; 4096];
    while !heard.windows(6).any(|bytes| bytes == b"fourth") {
        let read = reader.read(&mut piece).expect("it goes on");
        assert_ne!(read, 0, "it ended");
        heard.extend_from_slice(&piece[..read]);
    }
    // Who owns what, by any node; and one that leaves ends, without the others noticing much.
    let (code, said) = gapless(&one.native, &["cluster", "journals"]);
    let name = ["a", "b", "c"][owner];
    assert!(code == Some(0) && said.contains("serving") && said.contains(name), "{said}");
    let (code, said) = gapless(&one.native, &["cluster", "leave"]);
    assert!(code != Some(0) && said.contains("say which one"), "{said}");
    let mut nodes = nodes;
    let gone = ["a", "b", "c"][others[0]];
    let (code, said) =
        gapless(&nodes.places[others[1]].native, &["cluster", "leave", "--node", gone]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(nodes.servers[others[0]].ends_with(), Some(0));
    let (code, said) = gapless(&nodes.places[others[1]].native, &["pub", "orders", "fifth"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn f1_without_an_owner_requests_wait_and_are_told_that_nothing_was_done() {
    let (_folder, store) = folder_store();
    // A node that sees signs of life of an owner that it has no link to.
    let place = Place::new();
    let other = Server::start(&place, &store, &[]);
    other.tells("ready");
    let (lone, cluster) = (Place::new(), free_address());
    let words =
        ["--shared", "--node", "a", "--cluster-listen", &cluster, "--set", "store.wait_ms=300"];
    let waits = Server::start(&lone, &store, &words);
    until("it listens", || get(&lone.http, "/healthz").is_ok_and(|(status, _)| status == 200));
    let (status, body) = get(&lone.http, "/readyz").expect("an answer");
    assert!(status == 503 && body.contains("Unavailable"), "{status} {body}");
    let (status, body) = get(&lone.http, "/v1/topics").expect("an answer");
    assert!(status == 503 && body.contains("Unavailable"), "{status} {body}");
    assert!(body.contains("did not happen"), "{body}");
    let (code, said) = gapless(&lone.native, &["pub", "orders", "x", "--create", "--wait", "1s"]);
    assert!(code != Some(0), "{said}");
    // The owner goes, and it takes over by itself.
    drop(other);
    waits.tells("ready");
    let (code, said) = gapless(&lone.native, &["pub", "orders", "x", "--create"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a14_a_shared_store_that_cannot_work_is_refused_by_name() {
    let place = Place::new();
    let refused = |words: &[&str], part: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        command.args(["serve", "--shared", "--listen", &place.native, "--http", &place.http]);
        command.arg("--data").arg(place.folder.path().join("data")).args(words);
        let output = command.output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{part}: {said}");
    };
    let cluster = free_address();
    let node = ["--node", "a", "--cluster-listen", cluster.as_str()];
    refused(&[], "--store");
    refused(&["--store", "memory:"], "--node");
    refused(&[&["--store", "memory:", "--standby"][..], &node].concat(), "standby");
    let many = ["--store", "memory:", "--set", "store.journals=4"];
    refused(&[&many[..], &node].concat(), "store.journals");
    let asks = ["--store", "memory:", "--set", "auth.required=true"];
    refused(&[&asks[..], &node].concat(), "cluster.secret_file");
}
