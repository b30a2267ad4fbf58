//! How an outbox stands, as operators see it: `outbox status` once, watched and as JSON, the
//! metrics of a server, and the state that its page shows.

#[path = "../../outbox/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;
use support::{DEADLINE, Postgres, eventually};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts gapless; what it prints is read line by line.
fn start(arguments: &[&str]) -> (Running, BufReader<ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    let mut child = command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let printed = BufReader::new(child.stdout.take().expect("it is piped"));
    (Running(child), printed)
}

/// The lines that a program prints, without waiting for ever.
fn lines(printed: BufReader<ChildStdout>) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in printed.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Waits for a line of which something is true.
fn line_with(printed: &mpsc::Receiver<String>, what: &str, is: impl Fn(&str) -> bool) -> String {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let line = printed.recv_timeout(left).unwrap_or_else(|_| panic!("{what}: not printed"));
        if is(&line) {
            return line;
        }
    }
}

fn state(line: &str) -> Value {
    serde_json::from_str(line).expect("each line is JSON")
}

async fn installed() -> Postgres {
    let server = Postgres::start().await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    server
}

const HOLD: &str =
    "SET application_name = 'billing'; BEGIN; SELECT gapless.emit('t', 'k', 'upsert')";
const ROWS: &str = "SELECT gapless.emit('t', i::text, 'upsert') FROM generate_series(1, 4) i";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_a_watched_status_follows_the_outbox_and_survives_a_restart() {
    let mut server = installed().await;
    let dsn = server.dsn();
    let (_fence, _) = start(&["outbox", "fence", "--dsn", &dsn, "--log", "error"]);
    let status = ["outbox", "status", "--watch", "--dsn", &dsn];
    let (_watch, printed) = start(&[&status[..], &["--json"]].concat());
    let printed = lines(printed);
    let (_plain, plain) = start(&status);
    let plain = lines(plain);
    line_with(&printed, "a fence runs", |line| state(line)["fence_owner"].is_string());
    assert!(line_with(&plain, "a summary", |_| true).starts_with("settled up to"));

    server.client().await.batch_execute(ROWS).await.expect("rows");
    let line = line_with(&printed, "rows are settled", |line| state(line)["safe_seq"] == 4);
    assert_eq!((&state(&line)["unsettled"], &state(&line)["culprit"]), (&0.into(), &Value::Null));
    let open = server.client().await;
    open.batch_execute(HOLD).await.expect("an open transaction");
    let held = line_with(&printed, "a culprit", |line| !state(line)["culprit"].is_null());
    let culprit = &state(&held)["culprit"];
    assert_eq!(
        (&culprit["name"], &culprit["state"]),
        (&"billing".into(), &"idle in transaction".into())
    );
    assert!(culprit["pid"].is_number() && culprit["held_ms"].is_number(), "{culprit}");
    let words = line_with(&plain, "the culprit in words", |line| line.contains("held "));
    assert!(words.contains("by pid") && words.contains("\"billing\""), "{words}");
    open.batch_execute("COMMIT").await.expect("committed");
    line_with(&printed, "it is settled", |line| {
        state(line)["safe_seq"] == 5 && state(line)["culprit"].is_null()
    });

    // While the server is away nothing is printed; then it goes on.
    server.kill();
    server.run().await;
    server.client().await.batch_execute(ROWS).await.expect("rows");
    line_with(&printed, "it goes on", |line| state(line)["safe_seq"].as_u64() >= Some(9));
}

/// The answer to a GET, head and all.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server answers");
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n");
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The value of a metric, if it is shown.
fn metric(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_metrics_and_the_page_show_lag_unsettled_rows_age_and_the_culprit() {
    let server = installed().await;
    let client = server.client().await;
    client.batch_execute(ROWS).await.expect("rows");
    client.batch_execute("SELECT gapless.emit('no name', 'k', 'upsert')").await.expect("a bad row");
    // A consumer that is done with one row, and runs no more.
    let slow = "INSERT INTO gapless.consumer_offsets (consumer, last_seq) VALUES ('slow', 1)";
    client.batch_execute(slow).await.expect("a consumer");
    let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
    let data = folder.path().join("data").display().to_string();
    let dsn = format!("outbox.dsn={}", server.dsn());
    let (_server, mut printed) = start(&[
        "serve",
        "--listen",
        "",
        "--http",
        "127.0.0.1:0",
        "--log",
        "error",
        "--json",
        "--data",
        &data,
        "--set",
        &dsn,
        "--set",
        "outbox.create_topics=true",
    ]);
    let mut line = String::new();
    printed.read_line(&mut line).expect("a line");
    let address = state(&line)["http"].as_str().expect("an address").replace("http://", "");
    let address = address.trim_end_matches('/').to_owned();
    let value = |name: &str| metric(&get(&address, "/metrics"), name);
    eventually("rows are moved", async || value("gapless_outbox_relayed_rows_total") == Some(5.0))
        .await;
    assert_eq!(value("gapless_outbox_dead_letters_total"), Some(1.0));
    eventually("all is settled", async || value("gapless_outbox_safe_seq") == Some(5.0)).await;
    assert_eq!(value("gapless_outbox_unsettled"), Some(0.0));
    assert_eq!(value("gapless_outbox_held_seconds"), Some(0.0));
    assert_eq!(value("gapless_outbox_backlog{consumer=\"slow\"}"), Some(4.0));
    let age = value("gapless_outbox_age_seconds{consumer=\"slow\"}").expect("an age");
    assert!(age > 0.0 && age < DEADLINE.as_secs_f64(), "{age}");

    client.batch_execute(HOLD).await.expect("an open transaction");
    server.client().await.batch_execute(ROWS).await.expect("rows behind it");
    eventually("they wait", async || value("gapless_outbox_unsettled") == Some(5.0)).await;
    eventually("it is held", async || value("gapless_outbox_held_seconds") > Some(0.0)).await;
    let shown = || {
        let answer = get(&address, "/?show=outbox");
        state(answer.split_once("\r\n\r\n").expect("a body").1)["outbox"].clone()
    };
    eventually("the page names it", async || shown()["culprit"]["name"] == "billing").await;
    assert_eq!((&shown()["safe_seq"], &shown()["unsettled"]), (&5.into(), &5.into()));
    client.batch_execute("ROLLBACK").await.expect("rolled back");
    eventually("they are moved", async || value("gapless_outbox_relayed_rows_total") == Some(9.0))
        .await;
    eventually("nothing is held", async || {
        value("gapless_outbox_unsettled") == Some(0.0) && shown()["culprit"].is_null()
    })
    .await;
    assert_eq!(value("gapless_outbox_held_seconds"), Some(0.0));
}
