//! What is in the log after an incident: who was there, what was refused, who changed what, and how
//! much was left out.

use std::io::Write;

use crate::support::{Running, Server, gapless};

/// The lines of a server's log, once it has ended.
fn log_of(server: &mut Server) -> Vec<String> {
    assert_eq!(server.stop(), Some(0));
    server.log()
}

/// Those with all of these in them.
fn with<'a>(log: &'a [String], parts: &[&str]) -> Vec<&'a String> {
    log.iter().filter(|line| parts.iter().all(|part| line.contains(part))).collect()
}

#[test]
fn clients_their_refusals_and_what_admins_ask_for_are_in_the_log() {
    let mut server = Server::start();
    server.run(&["pub", "orders", "first", "--create"]).ok();
    server.run(&["group", "create", "mailer", "orders"]).ok();
    server.run(&["group", "rm", "mailer", "--yes"]).ok();
    server.run(&["group", "show", "mailer"]).exits(6);
    assert_eq!(server.http_get("/v1/topics/no.such").0, 404);
    assert_eq!(server.http_post("/v1/topics/orders/purge?all=true", "").0, 200);
    // Without a hello: a health check, which is not worth a line.
    drop(std::net::TcpStream::connect(server.address()).expect("connects"));
    let log = log_of(&mut server);
    let connected = with(&log, &["INFO", "connected", "from=\"127.0.0.1:", "client="]);
    assert!(connected.len() >= 4, "{log:#?}");
    assert!(
        !with(&log, &["disconnected", "reason=\"the client said goodbye\""]).is_empty(),
        "{log:#?}"
    );
    for (action, on) in [
        ("create topic", "orders"),
        ("create group", "mailer"),
        ("delete group", "mailer"),
        ("purge topic", "orders"),
    ] {
        let (action, on) = (format!("action=\"{action}\""), format!("on=\"{on}\""));
        let lines = with(&log, &["admin request", &action, &on, "who=", "from=\"127.0.0.1:"]);
        assert_eq!(lines.len(), 1, "{action} in {log:#?}");
    }
    let refused = with(&log, &["request refused", "path=\"/v1/topics/no.such\"", "status=404"]);
    assert_eq!(refused.len(), 1, "{log:#?}");
    assert!(refused[0].contains("error=\"UnknownTopic\""), "{refused:?}");
    assert!(with(&log, &["gone without a hello"]).is_empty(), "{log:#?}");
    assert!(with(&log, &["GET"]).len() == 1, "there is no access log unless it is asked for");
}

#[test]
fn each_request_is_a_line_if_that_is_wanted() {
    let mut server = Server::with(&["log.access=all"]);
    server.run(&["pub", "orders", "first", "--create"]).ok();
    server.run(&["sub", "orders", "--count", "1"]).ok();
    assert_eq!(server.http_get("/v1/topics/orders?ticket=of-no-use").0, 401);
    assert_eq!(server.http_get("/v1/topics/orders").0, 200);
    let log = log_of(&mut server);
    for parts in [
        ["native", "verb=\"TopicCreate\"", "on=\"orders\""],
        ["native", "verb=\"Publish\"", "messages=1"],
        ["native", "verb=\"Subscribe\"", "on=\"orders\""],
        ["http", "method=\"GET\" path=\"/v1/topics/orders\"", "status=200"],
        ["http", "method=\"GET\" path=\"/v1/topics/orders\"", "status=401"],
    ] {
        assert!(!with(&log, &parts).is_empty(), "{parts:?} in {log:#?}");
    }
    assert!(with(&log, &["of-no-use"]).is_empty(), "queries are not logged: {log:#?}");
}

#[test]
fn a_flood_of_refusals_is_bounded_counted_and_hides_nothing_else() {
    let mut server = Server::with(&["log.lines_per_s=1"]);
    for _ in 0..40 {
        assert_eq!(server.http_get("/no/such/path").0, 404);
    }
    server.run(&["topic", "create", "orders"]).ok();
    let (status, metrics) = server.http_get("/metrics");
    assert_eq!(status, 200);
    let left_out =
        metrics.lines().find_map(|line| line.strip_prefix("gapless_log_lines_left_out_total "));
    let left_out: u64 = left_out.and_then(|count| count.parse().ok()).expect("a count");
    let log = log_of(&mut server);
    let there = with(&log, &["request refused", "/no/such/path"]).len() as u64;
    // Ten for each span of ten seconds; on a busy machine there may be more than one.
    assert!((10..40).contains(&there), "{there} in {log:#?}");
    assert_eq!(left_out + there, 40, "{log:#?}");
    let said: u64 = with(&log, &["lines of the log were left out", "of=\"request refused\""])
        .iter()
        .filter_map(|line| line.split("lines=").nth(1)?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(said, left_out, "{log:#?}");
    assert_eq!(with(&log, &["admin request", "create topic"]).len(), 1, "{log:#?}");
}

#[test]
fn what_clients_send_cannot_forge_lines_and_json_is_one_object_for_each_line() {
    let server = Server::start();
    let mut command = gapless();
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"])
        .arg(server.path("other"))
        .current_dir(server.path(""));
    let mut running = Running::start(&mut command);
    let ready: serde_json::Value = serde_json::from_str(&running.out.next()).expect("JSON");
    let http = ready["http"].as_str().and_then(|url| url.strip_prefix("http://")).expect("http");
    let mut stream = std::net::TcpStream::connect(http).expect("connects");
    let request = format!(
        "POST /v1/topics/orders/messages?create=true&key=a%0Ab&oops=%1b%5b2J%0AERROR HTTP/1.1\r\n\
         Host: {http}\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx"
    );
    stream.write_all(request.as_bytes()).expect("writes");
    std::io::copy(&mut stream, &mut std::io::sink()).expect("an answer");
    running.signal("TERM");
    assert_eq!(running.wait(), Some(0));
    let log = running.err.all();
    let lines: Vec<serde_json::Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    let refused = lines.iter().find(|line| line["message"] == "request refused").expect("a line");
    assert_eq!(refused["status"], 400);
    assert_eq!(refused["target"], "clients");
    assert_eq!(refused["path"], "/v1/topics/orders/messages");
}
