//! `gapless topic`: every word of it.

use crate::support::Server;

#[test]
fn a_topic_is_made_shown_set_and_removed() {
    let server = Server::start();
    let words = ["topic", "create", "t", "--retention-age", "30d", "--retention-bytes", "1GiB"];
    let more = ["--retention-count", "1000", "--compact", "--tombstone-grace", "2h"];
    let rest = ["--durability", "written", "--dedup-time", "5m", "--dedup-count", "10"];
    let words = [&words[..], &more, &rest, &["--max-message-bytes", "64KiB"]].concat();
    let settings = "(durable, age 30d, bytes 1.0 GiB, count 1 000, compacted, written)";
    server.run(&words).ok().prints(&[&format!("topic t created {settings}")]);
    // The same again is fine, others are refused.
    server.run(&words).ok().prints(&[&format!("topic t is there already {settings}")]);
    let again = server.run(&[&words[..], &["--json"]].concat()).ok().json().remove(0);
    assert_eq!(again["created"], false);
    server.run(&["topic", "create", "t"]).exits(5).says("gapless topic set");
    let ran = server.run(&["topic", "show", "t"]).ok();
    for line in [
        "kind               durable",
        "retention age      30d",
        "retention bytes    1.0 GiB",
        "retention count    1 000",
        "compacted          yes, removals stay for 2h",
        "durability         written",
        "remembers          10 ids for 5m",
        "largest message    64.0 KiB",
    ] {
        assert!(ran.out.iter().any(|each| each == line), "{line}: {ran:#?}");
    }
    let words =
        ["topic", "set", "t", "--no-retention-age", "--no-compact", "--retention-count", "7"];
    server.run(&words).ok().shows("topic t is set: durable, bytes 1.0 GiB, count 7, written");
    server.run(&["topic", "set", "t"]).ok().shows("as it was");
    let settings = server.run(&["topic", "show", "t", "--json"]).ok().json().remove(0);
    let settings = &settings["settings"];
    assert_eq!(settings["retention"]["age_ms"], serde_json::Value::Null);
    assert_eq!(settings["retention"]["count"], 7);
    assert_eq!(settings["compaction"], serde_json::Value::Null);
    assert_eq!(settings["dedup"]["time_ms"], 300_000);
    server.run(&["topic", "rm", "t"]).exits(2).says("--yes");
    server.run(&["topic", "rm", "t", "--yes"]).ok().shows("topic t is gone");
    // What is not there is not to be created for that.
    let ran = server.run(&["topic", "rm", "t", "--yes"]).exits(6);
    assert!(!ran.err.contains("create"), "{ran:#?}");
    ran.says("no topic t").says("gapless topic ls");
    server.run(&["topic", "add", "other", "--json"]).ok().shows("\"created\":true");
    server.run(&["topic", "info", "other"]).ok().shows("largest message    the server's limit");
    server.run(&["topic", "delete", "other", "-y"]).ok();
}

#[test]
fn topics_are_listed_by_pattern() {
    let server = Server::start();
    server.run(&["topic", "ls"]).ok().prints(&[]).says("no topic matches >");
    for name in ["orders.eu", "orders.us", "mails"] {
        server.run(&["topic", "create", name]).ok();
    }
    server.run(&["pub", "orders.eu", "x", "--count", "3"]).ok();
    let ran = server.run(&["topic", "ls", "orders.*"]).ok();
    assert!(ran.out[0].starts_with("TOPIC"), "{ran:?}");
    assert!(ran.out[1].starts_with("orders.eu         3      1     3"), "{ran:#?}");
    assert_eq!(ran.out.len(), 3);
    let ran = server.run(&["topic", "list", "--json"]).ok();
    let names: Vec<_> = ran.json().iter().map(|each| each["name"].clone()).collect();
    assert_eq!(names, ["mails", "orders.eu", "orders.us"]);
}

#[test]
fn a_purge_removes_for_ever() {
    let server = Server::start();
    server.run(&["pub", "t", "x", "--count", "10", "--create"]).ok();
    server.run(&["topic", "purge", "t", "--below", "4"]).ok().prints(&["3 messages of t are gone"]);
    server.run(&["topic", "purge", "t", "--all"]).exits(2).says("--yes");
    assert_eq!(server.run(&["topic", "show", "t", "--json"]).ok().json()[0]["first"], 4);
    let ran = server.run(&["topic", "purge", "t", "--all", "--yes", "--json"]).ok();
    assert_eq!(ran.json()[0]["purged"], 7);
    server.run(&["pub", "t", "y"]).ok().shows("t seq 11 ");
    server.run(&["topic", "purge", "t", "--below", "99"]).exits(5).says("99");
    server.run(&["topic", "purge", "t"]).exits(2).says("--below");
    server.run(&["topic", "purge", "nowhere", "--all", "--yes"]).exits(6);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = Server::start();
    server.run(&["topic", "create", "v", "--volatile"]).ok().shows("(volatile)");
    let words = ["topic", "create", "w", "--volatile", "--durability", "flushed"];
    server.run(&words).exits(2).says("volatile topic cannot be flushed");
    server.run(&["topic", "create", "w", "--retention-count", "0"]).exits(2).says("zero");
    server.run(&["topic", "create", "$mine"]).exits(5).says("broker's own");
    server.run(&["topic", "create", "a..b"]).exits(2).says("one dot");
    server.run(&["topic", "create", "a", "--retention-bytes", "1XB"]).exits(2).says("64KiB");
    server.run(&["topic", "create", "a", "--retention-age", "old"]).exits(2).says("10ms");
    server.run(&["topic", "show", "nowhere"]).exits(6).says("gapless topic ls");
    server.run(&["topic", "set", "nowhere", "--compact"]).exits(6);
    let words = ["topic", "set", "v", "--compact", "--no-compact"];
    server.run(&words).exits(2).says("cannot be used with");
    server.run(&["topic"]).exits(2).says("Usage: gapless topic");
}
