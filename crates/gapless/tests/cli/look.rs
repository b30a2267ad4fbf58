//! `gapless clients` and `gapless stats`.

use crate::support::Server;

#[test]
fn clients_are_shown_with_what_they_follow() {
    let server = Server::start();
    server.run(&["pub", "orders", "x", "--create"]).ok();
    let mut follow = server.begin(&["sub", "orders", "mails.>"]);
    assert_eq!(follow.out.next(), "orders 1 - x");
    follow.err.until("orders: live");
    let ran = server.run(&["clients"]).ok();
    assert!(ran.out[0].starts_with("SESSION"), "{ran:#?}");
    let row = ran.out.iter().find(|line| line.ends_with("orders")).unwrap();
    assert!(row.contains("online") && row.contains("gapless cli"), "{ran:#?}");
    let ran = server.run(&["clients", "--json"]).ok();
    let json = ran.json();
    let one = json.iter().find(|each| !each["follows"].as_array().unwrap().is_empty()).unwrap();
    assert_eq!(one["address"], "unix");
    let orders = &one["follows"][0];
    assert_eq!(orders["pattern"], "orders");
    assert_eq!(orders["unit"], "seq");
}

#[test]
fn clients_of_http_are_shown_beside_native_ones() {
    use std::io::{BufRead, BufReader, Write};
    let server = Server::start();
    server.run(&["pub", "orders", "x", "--create"]).ok();
    server.run(&["group", "create", "billing", "orders"]).ok();
    let mut stream = std::net::TcpStream::connect(server.http()).unwrap();
    let head = format!("GET /v1/topics/orders/follow HTTP/1.1\r\nHost: {}\r\n\r\n", server.http());
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().starts_with("event:")));
    let fetched = server.http_post("/v1/groups/billing/fetch?member=worker-1&max=1", "");
    assert_eq!(fetched.0, 200, "{fetched:?}");
    let clients = server.run(&["clients", "--json"]).ok().json();
    let numbers: Vec<_> = clients.iter().map(|each| each["session"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let follows = clients.iter().any(|each| each["follows"][0]["pattern"] == "orders");
    let member = clients.iter().find(|each| each["name"] == "worker-1").expect("the member");
    assert!(follows, "{clients:#?}");
    assert_eq!(member["memberships"][0]["group"], "billing");
    // Who leaves is gone.
    drop(lines);
    let until = std::time::Instant::now() + crate::support::DEADLINE;
    while server.run(&["clients"]).ok().out.join("\n").contains("online") {
        assert!(std::time::Instant::now() < until, "it stays");
    }
}

#[test]
fn stats_are_numbers() {
    let server = Server::start();
    server.run(&["pub", "t", "x", "--create"]).ok();
    server.run(&["stats"]).ok().shows("journal.flushes");
    let ran = server.run(&["stats", "--json"]).ok();
    assert!(ran.json()[0]["journal"]["frames"].as_u64().unwrap() > 0);
}

#[test]
fn a_running_server_can_be_measured_and_is_left_as_it_was() {
    let server = Server::start();
    let words = ["bench", "server", "--messages", "300", "--in-flight", "50", "--json"];
    let ran = server.run(&words).ok();
    let table: serde_json::Value = serde_json::from_str(&ran.out.join("\n")).unwrap();
    let text = table.to_string();
    for row in ["one at a time", "50 in flight", "read back"] {
        assert!(text.contains(row), "{text}");
    }
    assert!(server.run(&["topic", "ls", "--json"]).ok().json().is_empty());
    server.run(&["bench", "server", "--messages", "0"]).exits(2);
    server.run(&["bench", "server", "--durability", "rock"]).exits(2).says("flushed");
}
