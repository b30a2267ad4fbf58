//! `gapless pub`, `gapless get` and `gapless cancel`.

use crate::support::Server;

#[test]
fn a_message_is_published_and_its_place_is_told() {
    let server = Server::start();
    let ran = server.run(&["pub", "orders", "first", "--create"]).ok();
    assert!(ran.out[0].starts_with("orders seq 1 position "), "{ran:?}");
    assert!(ran.out[0].ends_with(" flushed"), "{ran:?}");
    let ran = server.run(&["pub", "orders", "second", "--durability", "written", "--json"]).ok();
    assert_eq!(ran.json()[0]["seq"], 2);
    assert_eq!(ran.json()[0]["duplicate"], false);
    server.run(&["--quiet", "pub", "orders", "third"]).ok().prints(&[]);
    server.run(&["get", "orders", "--seq", "3", "--raw"]).ok().prints(&["third"]);
}

#[test]
fn bodies_come_from_stdin_files_and_lines() {
    let server = Server::start();
    server.run_with(&["pub", "t", "--create"], b"all of\nstdin\n").ok();
    let file = server.path("body");
    std::fs::write(&file, b"from\xffa file").unwrap();
    server.run(&["pub", "t", "--file", &file]).ok();
    server
        .run_with(&["pub", "t", "--lines"], b"one\r\n\nthree")
        .ok()
        .shows("3 messages to t: seq 3 to 5");
    server.run(&["pub", "t", "again", "--count", "2"]).ok().shows("seq 6 to 7");
    let shown = server.run(&["sub", "t", "--no-follow"]).ok();
    shown.prints(&[
        "t 1 - all of\\nstdin\\n",
        "t 2 - 0x66726f6dff612066696c65",
        "t 3 - one",
        "t 4 - ",
        "t 5 - three",
        "t 6 - again",
        "t 7 - again",
    ]);
    let ran = server.run_with(&["pub", "t", "--lines", "--json", "--file", "-"], b"x\ny\n").ok();
    assert_eq!(ran.json().len(), 2);
    assert_eq!(ran.json()[1]["seq"], 9);
    server.run(&["pub", "t", "--file", "/nowhere"]).exits(2).says("cannot read /nowhere");
    let folder = server.data().display().to_string();
    for more in [&[][..], &["--lines"]] {
        let words = [&["pub", "t", "--file", &folder][..], more].concat();
        server.run(&words).exits(2).says(&format!("cannot read {folder}: it is a folder"));
    }
}

#[test]
fn many_lines_are_pipelined_and_all_are_there() {
    let server = Server::start();
    let lines: String = (1..=20_000).map(|number| format!("line {number}\n")).collect();
    let ran = server.run_with(&["pub", "bulk", "--create", "--lines"], lines.as_bytes()).ok();
    ran.shows("20 000 messages to bulk: seq 1 to 20000, flushed");
    let shown = server.run(&["sub", "bulk", "--no-follow", "--raw"]).ok();
    assert_eq!(shown.out.join("\n") + "\n", lines);
}

#[test]
fn everything_a_message_carries_arrives() {
    let server = Server::start();
    let words =
        ["pub", "t", "body", "--create", "--key", "k", "--header", "a=b", "--header", "c=d=e"];
    server.run(&[&words[..], &["--id", "id-1", "--ttl", "1h"]].concat()).ok();
    let again = server.run(&["pub", "t", "body", "--id", "id-1"]).ok();
    again.shows("t seq 1 ").shows("it was there already");
    let ran = server.run(&["sub", "t", "--count", "1", "--json"]).ok();
    let json = ran.json();
    let message = json.iter().find(|each| each["event"] == "message").unwrap();
    assert_eq!(message["topic"], "t");
    assert_eq!(message["key"], "k");
    assert_eq!(message["text"], "body");
    assert_eq!(message["id"], "id-1");
    assert_eq!(message["ttl_ms"], 3_600_000);
    let headers = message["headers"].as_object().unwrap();
    assert!(headers.values().any(|value| value == "d=e"), "{headers:?}");
    assert!(message["cursor"].as_str().unwrap().contains(':'));
}

#[test]
fn headers_are_written_as_curl_writes_them_too_and_counts_as_sub_does() {
    let server = Server::start();
    server.run(&["pub", "t", "x", "--create", "-H", "Trace-Id: a=b", "-H", "c=d", "-n", "2"]).ok();
    let ran = server.run(&["sub", "t", "--no-follow", "--json"]).ok();
    let messages: Vec<_> =
        ran.json().into_iter().filter(|each| each["event"] == "message").collect();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0]["headers"]["Trace-Id"], "a=b");
    assert_eq!(messages[0]["headers"]["c"], "d");
}

#[test]
fn a_server_that_dies_is_told_and_given_up_with_what_is_known() {
    use std::io::Write;
    for json in [false, true] {
        let mut server = Server::start();
        let words = ["pub", "t", "--create", "--lines", "--timeout", "1s", "--json"];
        let mut command = server.command(&words[..if json { 7 } else { 6 }]);
        let (read, mut write) = std::io::pipe().unwrap();
        let mut publisher = crate::support::Running::start(command.stdin(read));
        drop(command);
        writeln!(write, "first").unwrap();
        while server.run(&["get", "t", "--seq", "1"]).code != Some(0) {}
        server.kill();
        for _ in 0..5 {
            writeln!(write, "more").unwrap();
        }
        if json {
            let line: serde_json::Value =
                serde_json::from_str(&publisher.err.next()).expect("a line of JSON");
            assert_eq!(line["event"], "offline");
        } else {
            publisher.err.until("the connection is lost");
        }
        assert_eq!(publisher.wait(), Some(4));
        let rest = publisher.err.rest().join("\n");
        assert!(rest.contains("1 messages were acknowledged before it, up to seq 1"), "{rest}");
        assert!(rest.contains("whether") || rest.contains("did not happen"), "{rest}");
    }
}

#[test]
fn a_server_that_hangs_is_given_up_in_time() {
    let server = Server::start();
    server.run(&["topic", "create", "t"]).ok();
    server.signal("STOP");
    // Connecting works: the system accepts for the server.
    let begun = std::time::Instant::now();
    let ran = server.run(&["pub", "t", "x", "--timeout", "1s"]);
    let took = begun.elapsed();
    server.signal("CONT");
    ran.exits(4);
    assert!(took < std::time::Duration::from_secs(30), "{took:?}");
}

#[test]
fn every_error_is_one_line_of_json_for_programs_and_has_one_prefix_for_people() {
    let server = Server::start();
    for words in [
        &["pub", "t", "x", "--ttl", "10"][..],
        &["pub"],
        &["foo"],
        &["topic"],
        &["pub", "t", "x", "--nonsense"],
        &["get", "nothing", "k"],
    ] {
        let people = server.run(words);
        if words != ["topic"] {
            assert!(people.err.starts_with("gapless: "), "{people:#?}");
        }
        let programs = server.run(&[words, &["--json"]].concat());
        assert_eq!(programs.code, people.code);
        let error: serde_json::Value = serde_json::from_str(&programs.err)
            .unwrap_or_else(|why| panic!("{why}: {programs:#?}"));
        assert_eq!(error["exit"].as_i64(), programs.code.map(i64::from));
        assert!(error["error"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
    }
    // Help is not an error.
    server.run(&["pub", "--help", "--json"]).ok().shows("Usage: gapless pub");
}

#[test]
fn expectations_that_no_longer_hold_are_exit_5() {
    let server = Server::start();
    server.run(&["pub", "t", "1", "--create", "--expect-seq", "0", "--key", "k"]).ok();
    let ran = server.run(&["pub", "t", "2", "--expect-seq", "0"]).exits(5);
    ran.says("the last seq is 1");
    server.run(&["pub", "t", "2", "--key", "k", "--expect-key-seq", "1"]).ok();
    let ran =
        server.run(&["pub", "t", "3", "--key", "k", "--expect-key-seq", "1", "--json"]).exits(5);
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(error["code"], 7);
}

#[test]
fn a_missing_topic_is_exit_6_with_the_name_that_was_meant() {
    let server = Server::start();
    server.run(&["topic", "create", "orders.created"]).ok();
    let ran = server.run(&["pub", "orders.craeted", "x"]).exits(6);
    ran.says("did you mean orders.created?").says("--create");
    server.run(&["pub", "zebra", "x"]).exits(6).says("gapless topic create zebra");
    server.run(&["get", "orders.creatd", "k"]).exits(6).says("did you mean orders.created?");
    let ran = server.run_with(&["pub", "zebra", "--lines"], b"a\nb\n").exits(6);
    ran.says("no message was acknowledged before it");
}

#[test]
fn what_the_topic_does_not_allow_is_exit_5() {
    let server = Server::start();
    server.run(&["topic", "create", "small", "--max-message-bytes", "100"]).ok();
    let long = "x".repeat(1000);
    server.run(&["pub", "small", &long]).exits(5).says("at most");
    let lines = format!("fits\n{long}\nnever\n");
    let ran = server.run_with(&["pub", "small", "--lines"], lines.as_bytes()).exits(5);
    ran.says("1 messages were acknowledged before it, up to seq 1");
    let key = "k".repeat(5000);
    server.run(&["pub", "small", "x", "--key", &key]).exits(5).says("key has 5000 bytes");
    let huge = vec![b'x'; 5 << 20];
    server.run_with(&["pub", "small"], &huge).exits(1).says("the most there can be");
}

#[test]
fn a_delayed_message_can_be_called_off() {
    let server = Server::start();
    let ran = server.run(&["pub", "t", "later", "--create", "--delay", "1h", "--json"]).ok();
    let id = ran.json()[0]["scheduled"].as_u64().unwrap().to_string();
    server.run(&["cancel", &id]).ok().shows("called off");
    server.run(&["cancel", &id]).exits(6).says("no delayed message");
    server.run(&["pub", "t", "later", "--at", "+2h"]).ok().shows("scheduled for 2");
    server.run(&["pub", "t", "later", "--at", "9999-01-01"]).exits(5).says("times");
    server.run(&["pub", "t", "soon", "--delay", "10ms"]).ok();
    // It appears by itself.
    let mut follow = server.begin(&["sub", "t", "--count", "1"]);
    assert_eq!(follow.out.next(), "t 1 - soon");
}

#[test]
fn get_shows_the_latest_of_a_key() {
    let server = Server::start();
    server.run(&["topic", "create", "prices", "--compact"]).ok();
    server.run(&["pub", "prices", "12", "--key", "apples"]).ok();
    server.run(&["pub", "prices", "13", "--key", "apples"]).ok();
    server.run(&["get", "prices", "apples"]).ok().prints(&["prices 2 apples 13"]);
    let ran = server.run(&["get", "prices", "apples", "--json"]).ok();
    assert_eq!(ran.json()[0]["text"], "13");
    server.run(&["get", "prices", "pears"]).exits(6).says("no message of key \"pears\"");
    server.run(&["get", "prices", "--seq", "99"]).exits(6).says("no message 99");
    server.run(&["pub", "prices", "--key", "apples", "--tombstone"]).ok();
    server.run(&["get", "prices", "apples"]).exits(6).says("removed");
}

#[test]
fn wrong_words_are_exit_2_and_teach() {
    let server = Server::start();
    for (words, teaches) in [
        (&["pub"][..], "<TOPIC>"),
        (&["pub", "a b", "x"], "orders.eu.created"),
        (&["pub", "a.*", "x"], "patterns only"),
        (&["pub", "a", "x", "--ttl", "5"], "10ms, 5s"),
        (&["pub", "a", "x", "--delay", "soon"], "10ms, 5s"),
        (&["pub", "a", "x", "--at", "noon"], "2026-11-15"),
        (&["pub", "a", "x", "--delay", "1s", "--at", "2099-01-01"], "cannot be used with"),
        (&["pub", "a", "x", "--header", "novalue"], "trace=abc123"),
        (&["pub", "a", "x", "--durability", "rock"], "survives power loss"),
        (&["pub", "a", "x", "--count", "0"], "0 is not in"),
        (&["pub", "a", "x", "--lines"], "cannot be used with"),
        (&["pub", "a", "--lines", "--file", "f", "--count", "2"], "cannot be used with"),
        (&["pub", "a", "x", "--id", "i", "--count", "2"], "--id names one message"),
        (&["pub", "a", "x", "--expect-seq", "1", "--count", "2"], "one message"),
        (&["pub", "a", "x", "--expect-key-seq", "1"], "--key"),
        (&["pub", "a", "--tombstone"], "--key"),
        (&["get", "a"], "<KEY"),
        (&["get", "a", "k", "--seq", "1"], "cannot be used with"),
        (&["cancel", "x"], "invalid"),
    ] {
        server.run(words).exits(2).says(teaches);
    }
}

#[test]
fn d6_a_durability_that_memory_cannot_give_is_refused() {
    let server = Server::start();
    server.run(&["topic", "create", "vol", "--volatile"]).ok();
    server.run(&["pub", "vol", "x"]).ok();
    for durability in ["written", "flushed"] {
        let ran = server.run(&["pub", "vol", "x", "--durability", durability]);
        ran.exits(5).says("the topic is in memory only");
    }
}
