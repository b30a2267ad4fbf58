//! `gapless export` and `gapless import`.

use serde_json::Value;

use crate::support::Server;

/// What of a message does not depend on the store it is in.
fn content(line: &Value) -> Value {
    let mut line = line.clone();
    for name in ["topic", "seq", "position", "cursor", "time_ms"] {
        line.as_object_mut().expect("an object").remove(name);
    }
    line
}

fn fill(server: &Server) {
    for topic in ["orders.eu", "orders.us"] {
        server.run(&["topic", "create", topic]).ok();
    }
    let words = ["pub", "orders.eu", "first", "--key", "k1", "--id", "id-1", "--header", "a=b"];
    server.run(&words).ok();
    // Bodies that are not text, empty, of several lines, and JSON in its own spelling.
    server.run_with(&["pub", "orders.us"], b"\xff\x00\x01").ok();
    server.run(&["pub", "orders.eu", ""]).ok();
    server.run(&["pub", "orders.us", "two\nlines \u{1f980}"]).ok();
    let json = "{\"b\" : 1.0,  \"a\":[ 1e3 ]}";
    server.run(&["pub", "orders.eu", json, "-H", "content-type=application/json"]).ok();
    server.run(&["pub", "orders.us", "{\n}", "-H", "content-type=application/json"]).ok();
    server.run(&["pub", "orders.eu", "--key", "k1", "--tombstone"]).ok();
    server.run(&["pub", "orders.us", "short", "--ttl", "30d"]).ok();
}

#[test]
fn what_is_exported_and_imported_is_the_same() {
    let old = Server::start();
    fill(&old);
    let file = old.path("orders.ndjson");
    old.run(&["export", "orders.>", "--output", &file]).ok().says("8 messages");
    let lines = std::fs::read(&file).unwrap();
    assert!(String::from_utf8_lossy(&lines).contains("{\"b\" : 1.0,  \"a\":[ 1e3 ]}"));
    let new = Server::start();
    new.run(&["import", &file]).exits(6).says("line 1").says("there is no topic orders.eu");
    new.run(&["import", &file, "--create"]).ok().shows("8 messages");
    let export = |server: &Server| server.run(&["export", "orders.>"]).ok().json();
    let (before, after) = (export(&old), export(&new));
    assert_eq!(before.len(), 8);
    assert_eq!(
        before.iter().map(content).collect::<Vec<_>>(),
        after.iter().map(content).collect::<Vec<_>>()
    );
    // Ids make a second import harmless.
    new.run(&["import", &file]).ok().shows("0 messages, 8 were there already");
    // The bodies are the same bytes.
    for (topic, seq) in [("orders.us", "1"), ("orders.eu", "3"), ("orders.us", "3")] {
        let words = ["get", topic, "--seq", seq, "--raw"];
        assert_eq!(old.run(&words).ok().out, new.run(&words).ok().out);
    }
}

#[test]
fn an_export_goes_on_where_its_file_was_cut_off() {
    let server = Server::start();
    server.run(&["pub", "orders", "x", "--create", "--count", "50"]).ok();
    let file = server.path("orders.ndjson");
    server.run(&["export", "orders", "--output", &file, "--count", "20"]).ok();
    server.run(&["export", "orders", "--output", &file]).exits(2).says("--resume");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 30]).unwrap();
    server.run(&["export", "orders", "--output", &file, "--resume"]).ok().says("31 messages");
    server.run(&["export", "orders", "--output", &file, "--resume"]).ok().says("0 messages");
    let text = std::fs::read_to_string(&file).unwrap();
    let seqs: Vec<u64> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=50).collect::<Vec<_>>());
    server.run(&["export", "orders", "--output", &file, "--force"]).ok().says("50 messages");
    std::fs::write(&file, "something else\n").unwrap();
    server.run(&["export", "orders", "--output", &file, "--resume"]).exits(2).says("no cursor");
    server.run(&["export", "nosuch"]).exits(6);
}

#[test]
fn an_import_goes_on_behind_what_was_acked() {
    let server = Server::start();
    let (file, place) = (server.path("in.ndjson"), server.path("in.place"));
    let lines: String =
        (1..=30).map(|n| format!("{{\"topic\":\"t\",\"text\":\"{n}\"}}\n")).collect();
    let broken = lines.replacen("\"text\":\"21\"", "\"txet\":\"21\"", 1);
    std::fs::write(&file, &broken).unwrap();
    let words = ["import", &file, "--create", "--save", &place];
    server.run(&words).exits(2).says("line 21").says("txet");
    // What was acked before the bad line is not sent again, though it has no id.
    std::fs::write(&file, &lines).unwrap();
    server.run(&words).ok();
    server.run(&words).ok().shows("0 messages");
    let seen = server.run(&["sub", "t", "--no-follow", "--raw"]).ok().out;
    let mut bodies: Vec<u64> = seen.iter().map(|line| line.parse().unwrap()).collect();
    bodies.dedup();
    assert!(bodies.ends_with(&(21..=30).collect::<Vec<_>>()), "{bodies:?}");
    assert!((1..=30).all(|n| bodies.contains(&n)), "{bodies:?}");
}

#[test]
fn an_import_chooses_topics_and_keeps_where_messages_came_from() {
    let server = Server::start();
    let lines = b"{\"topic\":\"a\",\"seq\":7,\"time_ms\":5,\"text\":\"x\"}\n\n{\"end\":true}\n";
    server.run_with(&["import", "--prefix", "old", "--create", "--keep-origin"], lines).ok();
    let json = server.run(&["get", "old.a", "--seq", "1", "--json"]).ok().json();
    assert_eq!(json[0]["headers"]["origin-seq"], "7");
    assert_eq!(json[0]["headers"]["origin-time-ms"], "5");
    assert_eq!(json[0]["headers"]["origin-topic"], "a");
    server.run_with(&["import", "--topic", "old.a"], b"{\"text\":\"y\"}\n").ok();
    server.run_with(&["import"], b"{\"text\":\"y\"}\n").exits(2).says("names no topic");
    let bad = b"nonsense\n{\"topic\":\"old.a\",\"text\":\"z\"}\n{\"topic\":\"..\"}\n";
    let ran = server.run_with(&["import", "--skip-bad", "--json"], bad).exits(1);
    assert_eq!((&ran.json()[0]["published"], &ran.json()[0]["bad"]), (&1.into(), &2.into()));
    server.run(&["get", "old.a", "--seq", "3"]).ok().shows("z");
}
