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
