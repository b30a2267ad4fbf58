//! `gapless backup`, `restore`, `verify` and `store copy` (F1).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gapless_client::{Backoff, Client, ConnectOptions, Message, TopicName, TopicSettings};

use crate::support::{DEADLINE, Running, Server, alone, gapless};

const TOPIC: &str = "kept";
/// Large enough that a backup takes a moment.
const BODY_BYTES: usize = 20_000;
const BACKOFF: Duration = Duration::from_millis(50);
/// A server is killed at the latest this long after a backup began.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

fn http(server: &Server) -> String {
    format!("http://{}", server.http())
}

/// Publishes 1, 2, 3 … through all restarts, and knows what was acknowledged.
struct Publisher {
    acked: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    fn start(server: &Server) -> Self {
        let (acked, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped, address) = (Arc::clone(&acked), Arc::clone(&stop), server.socket());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let backoff = Backoff { first: BACKOFF, most: BACKOFF, ..Backoff::default() };
                let options = ConnectOptions::new([address.as_str()]).backoff(backoff);
                let client = Client::connect(options).await.expect("connects");
                let topic = TopicName::parse(TOPIC).expect("a name");
                client.create_topic(&topic, TopicSettings::default()).await.expect("created");
                let mut number = 0;
                while !stopped.load(Ordering::Acquire) {
                    number += 1;
                    let body = format!("{number} {}", "x".repeat(BODY_BYTES));
                    client.publish(&topic, Message::new(body)).await.expect("it is sent again");
                    counted.store(number, Ordering::Release);
                }
            });
        });
        Self { acked, stop, thread: Some(thread) }
    }

    fn acked(&self) -> u64 {
        self.acked.load(Ordering::Acquire)
    }

    fn wait_for(&self, more: u64) {
        let (wanted, end) = (self.acked() + more, Instant::now() + DEADLINE);
        while self.acked() < wanted {
            assert!(Instant::now() < end, "publishing does not go on");
            thread::yield_now();
        }
    }

    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Release);
        self.thread.take().expect("it runs").join().expect("it published");
        self.acked()
    }
}

/// The numbers in a topic, which must be 1, 2, 3 …; how many there are.
#[track_caller]
fn whole(server: &Server) -> u64 {
    let lines = server.run(&["export", TOPIC]).ok().json();
    for (at, line) in lines.iter().enumerate() {
        let text = line["text"].as_str().or(line["body"].as_str()).expect("text");
        let number: usize = text.split(' ').next().expect("a number").parse().expect("a number");
        assert_eq!((number, line["seq"].as_u64()), (at + 1, Some(number as u64)));
    }
    lines.len() as u64
}

/// A server on what a backup holds; the doctor finds nothing in it.
fn restored(backup: &str) -> Server {
    Server::over(&[], |data| {
        alone(&["restore", backup, data]).ok().shows("restored");
        alone(&["verify", data]).ok().shows("is whole");
        alone(&["doctor", "--data", data]).ok().shows("No damage found.");
    })
}

#[test]
fn f1_a_backup_of_a_running_server_has_all_that_was_acknowledged_before_it() {
    let server = Server::start();
    let publisher = Publisher::start(&server);
    publisher.wait_for(100);
    let to = server.path("backup");
    for round in 0..3 {
        let before = publisher.acked();
        let took = server.run(&["backup", &to, "--from", &http(&server), "--json"]).ok().json();
        assert_eq!(took[0]["kept_blobs"].as_u64() > Some(0), round > 0, "{took:?}");
        alone(&["verify", &to]).ok().shows("is whole");
        let copy = restored(&to);
        assert!(whole(&copy) >= before, "acknowledged before the backup: {before}");
        publisher.wait_for(20);
    }
    let all = publisher.stop();
    assert_eq!(whole(&server), all);
}

#[test]
fn f1_each_backup_that_finished_is_whole_although_servers_are_killed_during_it() {
    let mut server = Server::with(&["journal.seal_bytes=1048576"]);
    let publisher = Publisher::start(&server);
    let to = server.path("backup");
    let blobs = Path::new(&to).join("j/0000/blobs");
    let (mut finished, mut killed) = (0, 0);
    for round in 0..6 {
        publisher.wait_for(60);
        let before = publisher.acked();
        let files = || std::fs::read_dir(&blobs).map_or(0, Iterator::count);
        let at_first = files();
        let mut command = gapless();
        command.args(["backup", &to, "--from", &http(&server)]);
        let mut backup = Running::start(&mut command);
        // At once, after the first blob, after the second, …; on a busy machine, where it may have to
        // wait for the server's own work of low priority, wherever it is by then.
        let end = Instant::now() + KILLED_WITHIN;
        while files() < at_first + round && backup.is_running() && Instant::now() < end {
            thread::yield_now();
        }
        server.crash_and_restart();
        if backup.wait() == Some(0) {
            finished += 1;
            assert!(whole(&restored(&to)) >= before);
        } else {
            killed += 1;
        }
    }
    assert!(killed > 0, "no backup was interrupted");
    let before = publisher.acked();
    server.run(&["backup", &to, "--from", &http(&server)]).ok();
    let copy = restored(&to);
    let count = whole(&copy);
    assert!(count >= before, "{finished} finished, {killed} did not");
    assert!(publisher.stop() >= count);
}

#[test]
fn v9_cursors_of_what_came_after_a_backup_are_noticed() {
    let server = Server::start();
    server.run(&["pub", "orders", "old", "--create", "--count", "5"]).ok();
    let (to, place) = (server.path("backup"), server.path("place"));
    server.run(&["backup", &to, "--from", &http(&server)]).ok();
    let early = server.path("early");
    server.run(&["sub", "orders", "--count", "5", "--save", &early]).ok();
    server.run(&["pub", "orders", "lost", "--count", "10"]).ok();
    server.run(&["sub", "orders", "--count", "15", "--save", &place]).ok();
    let copy = restored(&to);
    copy.run(&["pub", "orders", "new", "--count", "30"]).ok();
    // What the backup has goes on where it was.
    let seen = copy.run(&["sub", "orders", "--count", "30", "--save", &early, "--json"]).ok();
    let bodies = |line: &serde_json::Value| line["text"].as_str().map(str::to_owned);
    assert!(seen.json().iter().filter_map(bodies).all(|body| body == "new"), "{seen:?}");
    // Of the rest its reader is told.
    let seen = copy.run(&["sub", "orders", "--count", "30", "--save", &place, "--json"]);
    let told = seen.out.iter().chain([&seen.err]).any(|line| line.contains("gap"));
    assert!(told, "{seen:?}");
    let seen: Vec<String> = seen.json().iter().filter_map(bodies).collect();
    assert_eq!(seen.iter().filter(|body| *body == "new").count(), seen.len().min(30), "{seen:?}");
}

#[test]
fn what_is_damaged_is_found_and_not_restored() {
    let server = Server::start();
    server.run(&["pub", "orders", "old", "--create", "--count", "50"]).ok();
    let to = server.path("backup");
    server.run(&["backup", &to, "--from", &http(&server)]).ok();
    let blobs = Path::new(&to).join("j/0000/blobs");
    let data = std::fs::read_dir(&blobs).expect("blobs").filter_map(Result::ok);
    // The last one that is copied.
    let data =
        data.map(|each| each.path()).filter(|path| path.to_string_lossy().contains("checkpoint-"));
    let data = data.max().expect("a checkpoint");
    let good = std::fs::read(&data).expect("bytes");
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    std::fs::write(&data, &bad).expect("written");
    alone(&["verify", &to]).exits(3).says("is damaged");
    let target = server.path("target");
    alone(&["restore", &to, &target]).exits(3).says("is damaged");
    // What was begun is not taken for a store.
    let words = ["serve", "--listen", "127.0.0.1:0", "--http", "", "--data"];
    alone(&[&words[..], &[&target]].concat()).exits(1).says("no manifest");
    std::fs::remove_file(&data).expect("removed");
    alone(&["verify", &to]).exits(3).says("there is no blob");
    std::fs::write(&data, &good).expect("written");
    alone(&["verify", &to]).ok();
    // A place that is not empty is left alone.
    alone(&["restore", &to, &target]).exits(2).says("not empty");
    let running = server.data().display().to_string();
    alone(&["restore", &to, &running]).exits(1).says("in use");
    alone(&["verify", &server.path("nothing")]).exits(6);
}

#[test]
fn a_place_of_backups_takes_those_of_one_store() {
    let (one, other) = (Server::start(), Server::start());
    for server in [&one, &other] {
        server.run(&["pub", "orders", "x", "--create"]).ok();
    }
    let to = one.path("backup");
    one.run(&["backup", &to, "--from", &http(&one)]).ok();
    other.run(&["backup", &to, "--from", &http(&other)]).exits(2).says("another place");
    alone(&["verify", &to]).ok();
    // A server does not take a backup for its store.
    let url = format!("file://{to}");
    alone(&["serve", "--store", &url]).exits(1).says("is a backup");
}

#[test]
fn f1_a_store_is_copied_from_files_to_object_storage_and_back() {
    let mut server = Server::start();
    server.run(&["pub", "orders", "x", "--create", "--count", "40"]).ok();
    let data = server.data().display().to_string();
    let url = format!("file://{}", server.path("objects"));
    alone(&["store", "copy", &data, &url]).exits(1).says("in use by a server");
    alone(&["store", "copy", &http(&server), &url]).ok().shows("copied");
    alone(&["verify", &url]).ok().shows("is whole");
    alone(&["doctor", "--set", &format!("store.url={url}")]).ok();
    assert_eq!(server.stop(), Some(0));
    let stopped = format!("file://{}", server.path("stopped"));
    alone(&["store", "copy", &data, &stopped]).ok();
    alone(&["store", "copy", &data, &stopped]).exits(2).says("not empty");
    for url in [&url, &stopped] {
        let back = Server::over(&[], |data| {
            alone(&["store", "copy", url, data]).ok();
            alone(&["doctor", "--data", data]).ok().shows("No damage found.");
        });
        assert_eq!(back.run(&["export", "orders"]).ok().out.len(), 40);
        back.run(&["pub", "orders", "more"]).ok();
        let served = Server::over(&[&format!("store.url={url}")], |_| {});
        assert_eq!(served.run(&["export", "orders"]).ok().out.len(), 40);
        served.run(&["pub", "orders", "more"]).ok();
    }
}

#[test]
fn the_commands_of_the_page_about_operations_work() {
    let page = include_str!("../../../../docs/operations.md");
    let section = page.split("## Backup").nth(1).expect("a section");
    let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert!(lines.len() >= 5, "{lines:?}");
    let server = Server::start();
    server.run(&["pub", "orders", "x", "--create", "--count", "3"]).ok();
    let (to, target) = (server.path("backups"), server.path("new-data"));
    for line in lines.iter().filter(|line| !line.starts_with("gapless serve")) {
        let line = line.replace("/backups/orders", &to).replace("new-data", &target);
        let line = line.replace("http://127.0.0.1:4280", &http(&server));
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        server.run(&words).ok();
    }
    let copy = Server::over(&[], |data| std::fs::rename(&target, data).expect("moved"));
    assert_eq!(copy.run(&["export", "orders"]).ok().out.len(), 3);
}
