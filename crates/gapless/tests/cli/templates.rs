//! Templates of `pub`, formats and filters of `sub`.

use std::time::{Duration, Instant};

use crate::support::{DEADLINE, Server};

#[test]
fn pub_fills_in_numbers_times_and_random_values() {
    let server = Server::start();
    let body = "{\"n\": {n}, \"at\": \"{time}\", \"r\": {rand:5-6}}";
    let words = ["pub", "load", body, "--create", "--template", "--count", "20", "--key", "k{n}"];
    server.run(&words).ok();
    let seen = server.run(&["sub", "load", "--no-follow", "--format", "{key} {body}"]).ok().out;
    assert_eq!(seen.len(), 20);
    for (at, line) in seen.iter().enumerate() {
        let (key, body) = line.split_once(' ').unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(key, format!("k{}", at + 1));
        assert_eq!(body["n"], at as u64 + 1);
        assert!((5..=6).contains(&body["r"].as_u64().unwrap()), "{line}");
        assert!(body["at"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    // Without --template everything stays as it is.
    server.run(&["pub", "load", "{n}"]).ok();
    server.run(&["get", "load", "--seq", "21"]).ok().shows("{n}");
}

#[test]
fn a_rate_spreads_messages_over_time() {
    let server = Server::start();
    let begin = Instant::now();
    server.run(&["pub", "slow", "x", "--create", "--count", "21", "--rate", "20"]).ok();
    // Twenty pauses of 50 ms.
    assert!(begin.elapsed() >= Duration::from_millis(950), "{:?}", begin.elapsed());
    assert!(begin.elapsed() < DEADLINE);
    server.run(&["pub", "slow", "x", "--rate", "0"]).exits(2);
}

#[test]
fn sub_shows_only_what_is_asked_for_as_it_is_asked_for() {
    let server = Server::start();
    for (key, source, body) in [("a", "x", "1"), ("b", "x", "2"), ("a", "y", "3"), ("c", "y", "4")]
    {
        let header = format!("source={source}");
        server.run(&["pub", "t.one", body, "--create", "--key", key, "-H", &header]).ok();
    }
    let only = |words: &[&str]| {
        let all = [&["sub", "t.>", "--no-follow", "--format", "{body}"], words].concat();
        server.run(&all).ok().out
    };
    assert_eq!(only(&["--key", "a"]), ["1", "3"]);
    assert_eq!(only(&["--key", "a", "--key", "c"]), ["1", "3", "4"]);
    assert_eq!(only(&["--header", "source=y"]), ["3", "4"]);
    assert_eq!(only(&["--header", "source=y", "--key", "a"]), ["3"]);
    // The count is of those that are shown.
    assert_eq!(only(&["--key", "a", "--count", "1"]), ["1"]);
    let ran = server.run(&["sub", "t.one", "-n", "1", "--timestamps"]).ok();
    let (time, line) = ran.out[0].split_once(' ').unwrap();
    assert!(time.ends_with('Z') && line.starts_with("t.one 1 a 1"), "{ran:#?}");
    let words =
        ["sub", "t.>", "--from", "-1h", "-n", "2", "--format", "{topic}:{seq}\\t{header:source}"];
    server.run(&words).ok().prints(&["t.one:1\tx", "t.one:2\tx"]);
    server.run(&["sub", "t.one", "--format", "{boby}"]).exits(2).says("did you mean {body}?");
    server.run(&["sub", "t.one", "--group", "g", "--key", "a"]).exits(2);
    let words = ["sub", "t.one", "--group", "g", "-n", "2", "--format", "{seq}={body}"];
    server.run(&words).ok().prints(&["1=1", "2=2"]);
}
