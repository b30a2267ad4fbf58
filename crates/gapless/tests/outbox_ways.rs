//! The outbox from the command line: a relay to a server elsewhere, rows for commands and URLs.

#[path = "../../outbox/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use serde_json::Value;
use support::writers::{Writers, all_seqs, finish_prepared, prepare};
use support::{DEADLINE, Postgres, eventually, meanwhile};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn gapless(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn start(arguments: &[&str]) -> Running {
    Running(gapless(arguments).stdout(Stdio::null()).spawn().expect("gapless starts"))
}

fn run(arguments: &[&str]) -> Output {
    gapless(arguments).output().expect("gapless starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn installed() -> Postgres {
    let server = Postgres::start().await;
    let done = run(&["outbox", "install", "--dsn", &server.dsn()]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    server
}

/// The state as `outbox status --json` prints it.
fn status(server: &Postgres) -> Value {
    let done = run(&["outbox", "status", "--json", "--dsn", &server.dsn()]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("JSON")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_a_relay_elsewhere_moves_every_row_once_though_it_is_killed() {
    let server = installed().await;
    let client = server.client().await;
    prepare(&client).await;
    let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
    let data = folder.path().join("data");
    let address = format!("unix:{}", data.join("gapless.sock").display());
    let data = data.display().to_string();
    let _broker =
        start(&["serve", "--listen", "", "--http", "", "--log", "error", "--data", &data]);
    let dsn = server.dsn();
    let relay =
        ["outbox", "run", "--dsn", &dsn, "--server", &address, "--create-topics", "--quiet"];
    eventually("the server answers", async || {
        run(&["topic", "ls", "--server", &address]).status.success()
    })
    .await;
    let writers = Writers::start(&dsn, 8, 11);
    for _ in 0..2 {
        let running = start(&relay);
        meanwhile(std::time::Duration::from_secs(2)).await;
        drop(running);
    }
    let _relay = start(&relay);
    meanwhile(std::time::Duration::from_secs(1)).await;
    writers.stop().await;
    finish_prepared(&client).await;
    let all = all_seqs(&client).await;
    let sub = ["sub", "things", "--server", &address, "--no-follow", "--json"];
    let seqs = || -> Vec<u64> {
        let printed = text(&run(&sub).stdout);
        let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let seq = |message: Value| message["headers"]["outbox-seq"].as_str()?.parse().ok();
        messages.filter_map(seq).collect()
    };
    eventually("every row arrives", async || seqs().len() >= all.len()).await;
    assert_eq!(seqs(), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_go_to_a_command_and_what_it_refuses_is_put_aside() {
    let server = installed().await;
    let dsn = server.dsn();
    let client = server.client().await;
    let rows = "SELECT gapless.emit('t', 'a', 'upsert', 'e1', '{\"n\": 1}');
                SELECT gapless.emit('t', 'bad', 'upsert', 'e2', '{\"n\": 2}');
                SELECT gapless.emit_bytes('t', 'c', 'upsert', 'e3', '\\x00ff');
                SELECT gapless.emit('t', 'a', 'delete', 'e4');";
    client.batch_execute(rows).await.expect("rows");
    let _fence = start(&["outbox", "fence", "--dsn", &dsn]);
    let folder = tempfile::tempdir().expect("a folder");
    let taken = folder.path().join("taken");
    // Refuses one row, and says why.
    let command = format!(
        "read -r row; case $row in *bad*) echo 'I do not like it' >&2; exit 3;; esac; echo \"$row\" >> {}",
        taken.display()
    );
    let consume = [
        "outbox",
        "consume",
        "c",
        "--dsn",
        &dsn,
        "--exec",
        &command,
        "--attempts",
        "2",
        "--retry",
        "10ms",
        "--log",
        "error",
    ];
    let _consumer = start(&consume);
    eventually("the last row is taken", async || lines(&taken).len() == 3).await;
    let found = lines(&taken);
    assert_eq!(found[0]["payload"]["n"], 1);
    assert_eq!(found[1]["payload_base64"], "AP8=");
    assert_eq!((&found[2]["op"], &found[2]["payload"]), (&Value::from("delete"), &Value::Null));
    eventually("the offset is moved", async || status(&server)["consumers"][0]["last_seq"] == 4)
        .await;
    assert_eq!(status(&server)["consumers"][0]["dead_letters"], 1);
    let sql = "SELECT event_id, attempts, error FROM gapless.dead_letters";
    let row = client.query_one(sql, &[]).await.expect("a dead letter");
    let (id, attempts, error): (String, i32, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((id.as_str(), attempts), ("e2", 2));
    assert!(error.contains("I do not like it"), "{error}");

    // A replay hands all of it over again.
    let done = run(&["outbox", "reset", "c", "--to", "beginning", "--dsn", &dsn]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    client.batch_execute("SELECT gapless.emit('t', 'z', 'upsert')").await.expect("a row");
    eventually("all of it is taken again", async || lines(&taken).len() >= 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_go_to_a_url_failures_are_tried_again_and_put_aside_in_the_end() {
    let server = installed().await;
    let dsn = server.dsn();
    let client = server.client().await;
    // The fourth is never taken.
    let rows = "SELECT gapless.emit('t', i::text, 'upsert') FROM generate_series(1, 5) i";
    client.batch_execute(rows).await.expect("rows");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/rows", listener.local_addr().expect("an address"));
    let (send, posted) = mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let row: Value = serde_json::from_slice(&body).expect("JSON");
            // The first one is refused, once.
            let refused = number == 0 || row["seq"] == 4;
            let status = if refused { "503 Service Unavailable" } else { "204 No Content" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n");
            let _ = send.send(row["seq"].as_u64());
        }
    });
    let _fence = start(&["outbox", "fence", "--dsn", &dsn]);
    let consume = [
        "outbox",
        "consume",
        "c",
        "--dsn",
        &dsn,
        "--post",
        &url,
        "--retry",
        "10ms",
        "--log",
        "error",
        "--attempts",
        "2",
    ];
    let _consumer = start(&consume);
    for expected in [1, 1, 2, 3, 4, 4, 5] {
        assert_eq!(posted.recv_timeout(DEADLINE).expect("a row"), Some(expected));
    }
    eventually("the offset is moved", async || status(&server)["consumers"][0]["last_seq"] == 5)
        .await;
    let sql = "SELECT seq, attempts, error FROM gapless.dead_letters";
    let row = client.query_one(sql, &[]).await.expect("one dead letter");
    let (seq, attempts, error): (i64, i32, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((seq, attempts), (4, 2));
    assert!(error.contains("503"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told_with_an_exit_code_and_a_remedy() {
    let server = Postgres::start().await;
    let dsn = server.dsn();
    let told = run(&["outbox", "status", "--dsn", &dsn]);
    assert_eq!(told.status.code(), Some(6));
    assert!(text(&told.stderr).contains("gapless outbox install"), "{}", text(&told.stderr));
    let told = run(&["outbox", "status"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(text(&told.stderr).contains("--dsn"), "{}", text(&told.stderr));
    let told = run(&["outbox", "status", "--dsn", "postgres://me:geheim@127.0.0.1:1/x"]);
    assert_eq!(told.status.code(), Some(4));
    assert!(!text(&told.stderr).contains("geheim"), "{}", text(&told.stderr));
    for command in ["install", "upgrade"] {
        let done = run(&["outbox", command, "--dsn", &dsn]);
        assert!(done.status.success(), "{command}: {}", text(&done.stderr));
    }
    let told = run(&["outbox", "uninstall", "--dsn", &dsn]);
    assert_eq!(told.status.code(), Some(2), "it asks first");
    let shown = run(&["outbox", "status", "--dsn", &dsn]);
    assert!(text(&shown.stdout).contains("NO FENCE RUNS"), "{}", text(&shown.stdout));
    assert!(run(&["outbox", "uninstall", "--yes", "--dsn", &dsn]).status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_taken_from_the_environment_or_a_file_and_is_in_no_log() {
    let server = installed().await;
    let client = server.client().await;
    let role = "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'geheim'";
    client.batch_execute(role).await.expect("a role");
    let rules = "local all postgres trust\nlocal all app scram-sha-256\n";
    server.write("pg_hba.conf", rules, false);
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reloaded");
    let dsn = server.dsn().replace("user=postgres", "user=app");
    let status = ["outbox", "status", "--dsn", &dsn];
    eventually("a password is asked for", async || !run(&status).status.success()).await;
    let told = run(&status);
    assert_eq!(told.status.code(), Some(5), "{}", text(&told.stderr));
    assert!(text(&told.stderr).contains("PGPASSWORD"), "{}", text(&told.stderr));
    let with = gapless(&status).env("PGPASSWORD", "geheim").output().expect("it starts");
    assert!(with.status.success(), "{}", text(&with.stderr));
    let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
    let file = folder.path().join("password");
    fs::write(&file, "geheim\n").expect("a file");
    let file = file.display().to_string();
    let with = run(&[&status[..], &["--password-file", &file]].concat());
    assert!(with.status.success(), "{}", text(&with.stderr));

    // A server that logs everything, with the password in its configuration: one that is right,
    // and one that is refused again and again.
    for (password, log) in [("geheim", "good.log"), ("falschgeheim", "bad.log")] {
        let data = folder.path().join(log.replace(".log", "")).display().to_string();
        let (path, set) =
            (folder.path().join(log), format!("outbox.dsn={dsn} password={password}"));
        let said = fs::File::create(&path).expect("a file");
        let arguments = [
            "serve", "--listen", "", "--http", "", "--log", "trace", "--data", &data, "--set", &set,
        ];
        let mut server = gapless(&arguments);
        server.stdout(said.try_clone().expect("a file")).stderr(said);
        let _server = Running(server.spawn().expect("gapless starts"));
        let word = if password == "geheim" { "the work is ours" } else { "refuses the user" };
        eventually("it is logged", async || {
            fs::read_to_string(&path).is_ok_and(|text| text.contains(word))
        })
        .await;
        let logged = fs::read_to_string(&path).expect("a log");
        assert!(!logged.contains("geheim"), "the password is logged: {logged}");
    }
}
