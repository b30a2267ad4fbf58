//! `gapless sub` and `gapless events`: places to begin, ends, and no gap in between.

use crate::support::{Server, run};

/// Publishes `1` to `count` to the topic.
fn fill(server: &Server, topic: &str, count: u64) {
    let lines: String = (1..=count).map(|number| format!("{number}\n")).collect();
    server.run_with(&["pub", topic, "--create", "--lines"], lines.as_bytes()).ok();
}

#[test]
fn every_place_to_begin_works() {
    let server = Server::start();
    fill(&server, "t", 5);
    let shown = |from: &str| server.run(&["sub", "t", "--no-follow", "--from", from]).ok().out;
    assert_eq!(shown("beginning").len(), 5);
    assert_eq!(shown("seq:4"), ["t 4 - 4", "t 5 - 5"]);
    assert_eq!(shown("now"), [""; 0]);
    assert_eq!(shown("-1h").len(), 5);
    assert_eq!(shown("time:1970-01-02").len(), 5);
    assert_eq!(shown("time:2099-01-01").len(), 0);
    let ran = server.run(&["sub", "t", "--json", "--count", "2"]).ok();
    let end = ran.json().pop().unwrap();
    assert_eq!(end["event"], "end");
    assert_eq!(shown(end["cursor"].as_str().unwrap()), ["t 3 - 3", "t 4 - 4", "t 5 - 5"]);
    for (key, body) in [("a", "1"), ("b", "2"), ("a", "3")] {
        server.run(&["pub", "keyed", body, "--key", key, "--create"]).ok();
    }
    let ran = server.run(&["sub", "keyed", "--no-follow", "--from", "last-per-key"]).ok();
    ran.prints(&["keyed 2 b 2", "keyed 3 a 3"]);
}

#[test]
fn a_pattern_begins_at_a_time() {
    let server = Server::start();
    fill(&server, "a.x", 2);
    fill(&server, "a.y", 1);
    let shown = |from: &str| server.run(&["sub", "a.>", "--no-follow", "--from", from]).ok().out;
    assert_eq!(shown("-2h"), ["a.x 1 - 1", "a.x 2 - 2", "a.y 1 - 1"]);
    assert_eq!(shown("time:2099-01-01"), [""; 0]);
}

#[test]
fn places_that_cannot_be_are_told() {
    let server = Server::start();
    fill(&server, "t", 2);
    server.run(&["sub", "t", "--from", "seq:99"]).exits(5).says("does not exist yet");
    server.run(&["sub", "t.>", "--from", "seq:1"]).exits(5).says("now, a time or a token");
    server.run(&["sub", "t*"]).exits(2).says("'*' at byte 1 must be a token of its own");
    let nowhere = server.path("nowhere/place");
    let ran = server.run(&["sub", "t", "--save", &nowhere]).exits(2).says("cannot keep the place");
    ran.prints(&[]);
    server.run(&["sub", "tt", "--from", "seq:1"]).exits(6).says("did you mean t?");
    server.run(&["sub", "nowhere", "--no-follow"]).exits(6).says("no topic nowhere");
    for (words, teaches) in [
        (&["sub"][..], "<PATTERN|--pattern"),
        (&["sub", "a.>.b"], "must be the last token"),
        (&["sub", "a", "--from", "begining"], "did you mean `beginning`?"),
        (&["sub", "a", "--from", "seq:0"], "seq:42"),
        (&["sub", "a", "--from", "-2"], "10ms, 5s"),
        (&["sub", "a", "--count", "0"], "0 is not in"),
        (&["sub", "a", "--raw", "--json"], "cannot be used with"),
        (&["events", "a b"], "topic.created"),
    ] {
        server.run(words).exits(2).says(teaches);
    }
    // A cursor of another store is noticed, reported, and not used.
    let ran = server.run(&["sub", "t", "--no-follow", "--from", "00000000000000ab:7"]).ok();
    ran.says("gap").prints(&["t 1 - 1", "t 2 - 2"]);
}

#[test]
fn lines_json_and_raw_show_the_same_messages() {
    let server = Server::start();
    fill(&server, "a.x", 2);
    fill(&server, "a.y", 1);
    let plain = server.run(&["sub", "a.>", "--no-follow"]).ok();
    plain.says("a.>: live").prints(&["a.x 1 - 1", "a.x 2 - 2", "a.y 1 - 1"]);
    server.run(&["sub", "a.>", "--no-follow", "--raw"]).ok().prints(&["1", "2", "1"]);
    let quiet = server.run(&["sub", "a.>", "--no-follow", "-q"]).ok();
    assert_eq!(quiet.err, "");
    let ran = server.run(&["sub", "a.>", "--no-follow", "--json"]).ok();
    let events: Vec<String> =
        ran.json().iter().map(|each| each["event"].as_str().unwrap().to_owned()).collect();
    assert!(events.ends_with(&["live".to_owned(), "end".to_owned()]), "{events:?}");
    assert_eq!(events.iter().filter(|each| *each == "message").count(), 3);
}

#[test]
fn several_patterns_are_followed_together() {
    let server = Server::start();
    fill(&server, "a", 2);
    fill(&server, "b", 2);
    let mut lines = server.run(&["sub", "a", "--pattern", "b", "a", "--no-follow"]).ok().out;
    lines.sort_unstable();
    assert_eq!(lines, ["a 1 - 1", "a 2 - 2", "b 1 - 1", "b 2 - 2"]);
    let place = server.path("place");
    let words = ["sub", "a", "b", "--no-follow", "--save", &place];
    assert_eq!(server.run(&words).ok().out.len(), 4);
    assert_eq!(server.run(&words).ok().out.len(), 0);
    fill(&server, "b", 1);
    server.run(&words).ok().prints(&["b 3 - 1"]);
}

#[test]
fn a_saved_place_goes_on_without_gap_or_repeat() {
    let mut server = Server::start();
    fill(&server, "t", 10);
    let place = server.path("place");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.extend(server.run(&["sub", "t", "--count", "3", "--save", &place]).ok().out);
    }
    server.crash_and_restart();
    fill(&server, "t", 2);
    // What --from says counts for the first time only.
    let words = ["sub", "t", "--no-follow", "--from", "now", "--save", &place];
    seen.extend(server.run(&words).ok().out);
    let seqs: Vec<&str> = seen.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(seqs, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"]);
    std::fs::write(&place, "rubbish\n").unwrap();
    server.run(&["sub", "t", "--save", &place]).exits(2).says("holds no places");
}

#[test]
fn a_follower_survives_kill_9_of_the_server() {
    let mut server = Server::start();
    fill(&server, "t", 2);
    let mut follow = server.begin(&["sub", "t"]);
    assert_eq!(follow.out.next(), "t 1 - 1");
    assert_eq!(follow.out.next(), "t 2 - 2");
    follow.err.until("t: live");
    server.crash_and_restart();
    follow.err.until("the connection is lost");
    server.run(&["pub", "t", "after"]).ok();
    assert_eq!(follow.out.next(), "t 3 - after");
    follow.signal("INT");
    assert_eq!(follow.wait(), Some(0));
    let resume = follow.err.until("go on with: gapless sub 't' --from ");
    let token = resume.rsplit(' ').next().unwrap().to_owned();
    server.run(&["pub", "t", "more"]).ok();
    server.run(&["sub", "t", "--from", &token, "--no-follow"]).ok().prints(&["t 4 - more"]);
}

#[test]
fn publishing_goes_on_over_kill_9_of_the_server() {
    use std::io::Write;
    let mut server = Server::start();
    let mut command = server.command(&["pub", "t", "--create", "--lines", "--json"]);
    command.env("GAPLESS_SERVER", server.socket()).stdin(std::process::Stdio::piped());
    let (read, mut write) = std::io::pipe().unwrap();
    command.stdin(read);
    let mut publisher = crate::support::Running::start(&mut command);
    // The command's own copy of the pipe must go, so that its end is seen.
    drop(command);
    for number in 1..=100 {
        writeln!(write, "{number}").unwrap();
    }
    publisher.out.until("\"seq\":100,");
    server.crash_and_restart();
    for number in 101..=200 {
        writeln!(write, "{number}").unwrap();
    }
    drop(write);
    publisher.out.until("\"seq\":200,");
    assert_eq!(publisher.wait(), Some(0));
    let shown = server.run(&["sub", "t", "--no-follow", "--raw"]).ok().out;
    let expected: Vec<String> = (1..=200).map(|number| number.to_string()).collect();
    assert_eq!(shown, expected);
}

#[test]
fn a_topic_that_is_not_there_yet_is_waited_for() {
    let server = Server::start();
    let mut follow = server.begin(&["sub", "late", "--count", "1"]);
    follow.err.until("there is no topic late; waiting for it");
    follow.err.until("live");
    server.run(&["pub", "late", "here", "--create"]).ok();
    assert_eq!(follow.out.next(), "late 1 - here");
    assert_eq!(follow.wait(), Some(0));
}

#[test]
fn gaps_are_told() {
    let server = Server::start();
    fill(&server, "t", 5);
    server.run(&["topic", "purge", "t", "--below", "4"]).ok();
    let ran = server.run(&["sub", "t", "--no-follow", "--from", "seq:1"]).ok();
    ran.says("gap: t: seq 1 to 3 are gone (purge)").prints(&["t 4 - 4", "t 5 - 5"]);
    let ran = server.run(&["sub", "t", "--no-follow", "--from", "seq:1", "--json"]).ok();
    let gap = ran.json().into_iter().find(|each| each["event"] == "gap").unwrap();
    assert_eq!((gap["from"].clone(), gap["to"].clone()), (1.into(), 3.into()));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let server = Server::start();
    fill(&server, "t", 20_000);
    let script = format!("{} sub t --no-follow | head -n 1", env!("CARGO_BIN_EXE_gapless"));
    let mut shell = std::process::Command::new("bash");
    shell.args(["-o", "pipefail", "-c", &script]).env("GAPLESS_SERVER", server.address());
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    run(&mut shell, None).ok().prints(&["t 1 - 1"]);
}

#[test]
fn events_tell_what_happens() {
    let server = Server::start();
    let mut people = server.begin(&["events", "topic.>", "--count", "2"]);
    let mut programs = server.begin(&["events", "$events.topic.created", "--json", "-n", "1"]);
    // Both follow before something happens.
    people.err.until("waiting for events");
    programs.err.until("waiting for events");
    server.run(&["topic", "create", "t"]).ok();
    server.run(&["topic", "rm", "t", "--yes"]).ok();
    assert!(people.out.next().ends_with("topic.created topic=t"));
    assert!(people.out.next().ends_with("topic.deleted topic=t"));
    assert_eq!(people.wait(), Some(0));
    let event: serde_json::Value = serde_json::from_str(&programs.out.next()).unwrap();
    assert_eq!(
        (event["event"].clone(), event["topic"].clone()),
        ("topic.created".into(), "t".into())
    );
}
