//! `gapless serve`: it tells where it listens, ends cleanly, and refuses what cannot be.

use crate::support::{DEADLINE, Running, Server, alone, gapless, run};

#[test]
fn a_server_says_where_it_is_and_ends_cleanly() {
    let mut server = Server::start();
    server.run(&["stats"]).ok().shows("epoch");
    assert_eq!(server.stop(), Some(0));
    server.run(&["stats", "--wait", "0s"]).exits(4).says("gapless serve");
}

#[test]
fn a_server_that_is_ended_as_soon_as_it_is_ready_ends_cleanly() {
    // Found by a run on a busy machine: the signal came before the process listened for it.
    for _ in 0..5 {
        assert_eq!(Server::start().stop(), Some(0));
    }
}

#[test]
fn serving_is_the_default_and_ready_is_told_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = gapless();
    command.current_dir(folder.path()).env("GAPLESS_NATIVE_LISTEN", "127.0.0.1:0").arg("--json");
    command.env("GAPLESS_HTTP_LISTEN", "127.0.0.1:0");
    let mut server = Running::start(&mut command);
    let ready: serde_json::Value = serde_json::from_str(&server.out.next()).unwrap();
    assert_eq!(ready["event"], "ready");
    let address = ready["native"].as_str().unwrap();
    run(gapless().args(["--server", address, "stats"]), None).ok().shows("epoch");
    assert!(folder.path().join("gapless-data").is_dir());
    server.signal("INT");
    assert_eq!(server.wait(), Some(0));
    let log = server.err.rest();
    let last: serde_json::Value = serde_json::from_str(log.last().unwrap()).unwrap();
    assert_eq!(last["message"], "stopped cleanly");
}

#[test]
fn the_unix_socket_is_as_good() {
    let server = Server::start();
    run(gapless().args(["--server", &server.socket(), "stats", "--json"]), None).ok();
}

#[test]
fn one_folder_has_one_server() {
    let server = Server::start();
    let data = server.data().display().to_string();
    let http = ["--http", "127.0.0.1:0"];
    alone(&[&["serve", "--data", &data, "--listen", "127.0.0.1:0"][..], &http].concat())
        .exits(1)
        .says("--data DIR");
    server.run(&["doctor", "--repair", "--data", &data]).exits(1).says("stop the server first");
}

#[test]
fn what_cannot_be_listened_on_is_told() {
    let server = Server::start();
    let other = tempfile::tempdir().unwrap();
    let data = other.path().display().to_string();
    let serve = ["serve", "--data", &data];
    let with = |words: [&str; 4], code| alone(&[&serve[..], &words].concat()).exits(code);
    with(["--http", "", "--listen", server.address()], 1).says("--listen").says("another server");
    with(["--listen", "127.0.0.1:0", "--http", server.http()], 1).says("--http");
    let set = ["--insecure", "--set", "http.listen="];
    let elsewhere = [&serve[..], &set, &["--listen", "192.0.2.1:4281"]].concat();
    let elsewhere = alone(&elsewhere).exits(1);
    assert!(!elsewhere.err.contains("another server"), "{elsewhere:#?}");
}

#[test]
fn an_address_without_a_port_is_a_wrong_value_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    for (key, flag) in [("native.listen", "--listen"), ("http.listen", "--http")] {
        for address in ["0.0.0.0", "nonsense", "::1", "localhost:http"] {
            let ran = alone(&["serve", "--data", data, flag, address]).exits(2);
            ran.says(key).says("write it as host:port");
        }
    }
    assert!(!std::path::Path::new(data).exists());
}

#[test]
fn the_http_port_is_told_from_the_native_one_at_once() {
    let server = Server::start();
    let begun = std::time::Instant::now();
    let ran = alone(&["--server", server.http(), "topic", "ls"]).exits(4);
    ran.says("is an HTTP port").says("--server 127.0.0.1:4281");
    // It was five seconds of trying again.
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn a_server_that_comes_up_in_time_is_waited_for() {
    let mut server = Server::start();
    let socket = server.socket();
    assert_eq!(server.stop(), Some(0));
    let mut waiting =
        Running::start(gapless().args(["--server", &socket, "--wait", "60s", "stats"]));
    server.crash_and_restart();
    waiting.out.until("epoch");
    assert_eq!(waiting.wait(), Some(0));
}

#[test]
fn no_server_is_exit_4_with_what_to_do() {
    let ran = alone(&["--server", "127.0.0.1:1", "--wait", "0s", "pub", "a", "b"]);
    ran.exits(4).says("cannot connect to 127.0.0.1:1").says("gapless serve --listen 127.0.0.1:1");
    let ran = alone(&["--server", "unix:/nowhere/x", "--wait", "10ms", "topic", "ls", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((error["exit"].clone(), ran.code), (4.into(), Some(4)));
    alone(&["--server", "a b", "stats"]).exits(2).says("host:port or unix:/path");
}

#[test]
fn f4_metrics_and_health_are_served_over_http() {
    let server = Server::start();
    server.run(&["pub", "orders", "first", "--create"]).ok();
    assert_eq!(server.http_get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.http_get("/readyz"), (200, "ready\n".to_owned()));
    let (status, metrics) = server.http_get("/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("\ngapless_published_messages_total 1\n"), "{metrics}");
    assert!(metrics.contains("\ngapless_topic_next_seq{topic=\"orders\"} 2\n"), "{metrics}");
    assert_eq!(server.http_get("/v1/topics/orders").0, 200);
}

#[test]
fn the_http_listener_can_be_left_out() {
    let server = Server::with(&["http.metrics_topics_max=0"]);
    let (_, metrics) = server.http_get("/metrics");
    assert!(!metrics.contains("{topic="), "{metrics}");
    let folder = tempfile::tempdir().unwrap();
    let mut command = gapless();
    command.current_dir(folder.path()).args(["serve", "--listen", "127.0.0.1:0", "--json"]);
    let mut running = Running::start(command.args(["--http", ""]));
    let ready: serde_json::Value = serde_json::from_str(&running.out.next()).unwrap();
    assert_eq!(ready["http"], serde_json::Value::Null);
}

#[test]
fn a_low_limit_of_open_files_is_raised_as_far_as_the_system_allows() {
    let folder = tempfile::tempdir().unwrap();
    let program = gapless();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -S -n 64; exec \"$0\" \"$@\""]).arg(program.get_program());
    command.args(["serve", "--json", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    command.arg("--data").arg(folder.path()).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut server = Running::start(&mut command);
    let ready: serde_json::Value = serde_json::from_str(&server.out.next()).unwrap();
    let address = ready["native"].as_str().unwrap();
    // More connections than files it was started with.
    let held: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    run(gapless().args(["--server", address, "stats"]), None).ok().shows("epoch");
    drop(held);
    server.signal("INT");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_start_that_fails_leaves_the_store_as_clean_as_it_was() {
    let (mut server, other) = (Server::start(), Server::start());
    server.run(&["pub", "t", "a", "--create"]).ok();
    assert_eq!(server.stop(), Some(0));
    let data = server.data().display().to_string();
    let taken = other.address().to_owned();
    let serve = ["serve", "--data", &data, "--http", "127.0.0.1:0", "--listen", &taken];
    alone(&serve).exits(1).says(&taken);
    let report = alone(&["doctor", "--data", &data]).ok();
    assert!(!report.out.join("\n").contains("was not closed"), "{report:#?}");
}

#[test]
fn a_folder_that_cannot_be_opened_is_told_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let serve = |data: &str| {
        alone(&["serve", "--data", data, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"])
    };
    let ran = serve(file.to_str().unwrap()).exits(1);
    let ran = ran.says("Not a directory").says("check the path");
    assert!(!ran.err.contains("doctor"), "{}", ran.err);
    serve("/proc/nope/data").exits(1).says("No such file or directory");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    alone(&["doctor", "--data", file.to_str().unwrap()]).exits(1).says("Not a directory");
}

#[test]
fn m4_only_the_owner_may_read_what_a_server_creates() {
    use std::os::unix::fs::PermissionsExt;
    let modes = |server: &Server| -> Vec<u32> {
        let mut folders = vec![server.data()];
        let mut modes = Vec::new();
        while let Some(folder) = folders.pop() {
            modes.push(std::fs::metadata(&folder).unwrap().permissions().mode());
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => modes.push(std::fs::metadata(path).unwrap().permissions().mode()),
                }
            }
        }
        modes
    };
    let server = Server::start();
    server.run(&["pub", "t", "a", "--create"]).ok();
    let found = modes(&server);
    assert!(found.len() > 6, "the socket is among them");
    assert!(found.iter().all(|mode| mode & 0o077 == 0), "{found:?}");
    let shared = Server::with(&["permissions=group"]);
    let found = modes(&shared);
    assert!(found.iter().all(|mode| mode & 0o007 == 0 && mode & 0o060 == 0o060), "{found:?}");
}

#[test]
fn m4_a_folder_that_others_may_read_is_left_and_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let mut server = Server::start();
    assert_eq!(server.stop(), Some(0));
    std::fs::set_permissions(server.data(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let data = server.data().display().to_string();
    let mut command = gapless();
    command.args(["serve", "--data", &data, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    let mut again = Running::start(&mut command);
    again.err.until("others on this machine may read the data folder");
    again.out.until("is ready");
    again.signal("TERM");
    assert_eq!(again.wait(), Some(0));
    let mode = std::fs::metadata(server.data()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

/// A server that may have only so many files open, whatever it asks for.
fn with_few_open_files(folder: &std::path::Path, files: u32) -> (Running, serde_json::Value) {
    let program = gapless();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
    command.arg(program.get_program()).args(["serve", "--json", "--http", "127.0.0.1:0"]);
    // Segments of the least size, so that files are needed often.
    command.args(["--listen", "127.0.0.1:0", "--set", "journal.seal_bytes=1048576"]);
    command.arg("--data").arg(folder).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut server = Running::start(&mut command);
    let ready = serde_json::from_str(&server.out.next()).expect("it says where it listens");
    (server, ready)
}

#[test]
fn h5_connections_that_take_every_descriptor_do_not_stop_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, ready) = with_few_open_files(folder.path(), 160);
    let address = ready["native"].as_str().unwrap();
    let connect = |_| std::net::TcpStream::connect(address).unwrap();
    let mut held: Vec<_> = (0..70).map(connect).collect();
    let line = [vec![b'x'; 60_000], vec![b'\n']].concat();
    let words = ["--server", address, "pub", "t", "--create", "--lines"];
    run(gapless().args(words).stdin(std::process::Stdio::piped()), Some(&line.repeat(400))).ok();
    // Those past the limit are refused.
    held.extend((0..300).map(connect));
    drop(held);
    let until = std::time::Instant::now() + DEADLINE;
    while run(gapless().args(["--server", address, "stats"]), None).code != Some(0) {
        assert!(std::time::Instant::now() < until, "there is no room again");
    }
    run(gapless().args(["--server", address, "pub", "t", "after"]), None).ok();
    server.signal("INT");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_supervisor_is_told_when_the_server_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let supervisor = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut command = gapless();
    command.current_dir(folder.path()).env("NOTIFY_SOCKET", &path);
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"]);
    let mut server = Running::start(&mut command);
    let mut said = [0; 64];
    let length = supervisor.recv(&mut said).unwrap();
    assert_eq!(&said[..length], b"READY=1");
    let ready: serde_json::Value = serde_json::from_str(&server.out.next()).unwrap();
    run(gapless().args(["--server", ready["native"].as_str().unwrap(), "stats"]), None).ok();
    server.signal("TERM");
    let length = supervisor.recv(&mut said).unwrap();
    assert_eq!(&said[..length], b"STOPPING=1");
    assert_eq!(server.wait(), Some(0));
}
