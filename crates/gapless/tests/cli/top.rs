//! `gapless top` in a terminal of 80 columns and 24 rows, and `gapless stats --watch`.

use crate::support::{Server, alone};
use crate::terminal::Terminal;

const EVERY: &str = "100ms";

fn top(server: &Server, words: &[&str]) -> Terminal {
    let mut command = server.command(&["top", "--every", EVERY]);
    command.args(words).env("GAPLESS_SERVER", server.socket());
    Terminal::start(&command, 80, 24)
}

#[test]
fn top_shows_topics_groups_and_clients_and_quits() {
    let server = Server::start();
    server.run(&["pub", "orders.created", "x", "--create", "--count", "3"]).ok();
    server.run(&["group", "create", "billing", "orders.created"]).ok();
    let mut top = top(&server, &[]);
    let lines = top.until("a topic", |lines| lines[4].starts_with("orders.created"));
    assert!(lines[0].starts_with("gapless top unix:"), "{lines:#?}");
    assert!(lines[1].contains("msg/s") && lines[1].contains("flush"), "{lines:#?}");
    assert!(lines[2].contains("1 Topics 1") && lines[2].contains("2 Groups 1"), "{lines:#?}");
    assert!(lines[23].starts_with("q quit"), "{lines:#?}");
    top.press("2");
    let lines = top.until("a group", |lines| lines[4].starts_with("billing"));
    assert!(lines[3].contains("LAG") && lines[4].contains("running"), "{lines:#?}");
    assert!(lines[22].starts_with("reads orders.created"), "{lines:#?}");
    top.press("\t");
    top.until("itself", |lines| lines[4].starts_with("gapless cli"));
    top.press("?");
    top.until_shown("sort by another column");
    top.press("x");
    top.until("no help", |lines| !lines.join("\n").contains("sort by another column"));
    top.press("q");
    assert_eq!(top.wait(), Some(0));
    assert!(top.is_restored());
}

#[test]
fn top_sorts_filters_and_follows_what_is_published() {
    let server = Server::start();
    for (topic, count) in [("a.few", "1"), ("b.many", "30"), ("c.some", "5")] {
        server.run(&["pub", topic, "x", "--create", "--count", count]).ok();
    }
    let mut top = top(&server, &[]);
    // The second column is the number of messages.
    top.until("all topics", |lines| lines[6].starts_with("c.some"));
    top.press(">");
    top.until("the fullest first", |lines| {
        lines[3].contains("MESSAGESv") && lines[4].starts_with("b.many")
    });
    top.press("r");
    top.until("the emptiest first", |lines| lines[4].starts_with("a.few"));
    top.press("/SOME\r");
    let lines = top.until("one row", |lines| lines[2].contains("1 rows"));
    assert!(lines[4].starts_with("c.some") && lines[5].is_empty(), "{lines:#?}");
    server.run(&["pub", "c.some", "x", "--count", "7"]).ok();
    top.until("what is published", |lines| lines[4].contains(" 12 "));
    top.resize(60, 10);
    top.until("the keys in the last line", |lines| {
        lines.len() == 10 && lines[9].starts_with("q quit")
    });
    // Ctrl-C ends it as q does.
    top.press("\x03");
    assert_eq!(top.wait(), Some(0));
    assert!(top.is_restored());
}

#[test]
fn top_says_when_the_server_is_away_and_goes_on_when_it_is_back() {
    let mut server = Server::start();
    server.run(&["pub", "orders", "x", "--create"]).ok();
    let mut top = top(&server, &["--pattern", "orders"]);
    top.until("a topic", |lines| lines[4].starts_with("orders"));
    server.kill();
    top.until("the trouble", |lines| lines[0].contains("no answer for"));
    assert!(top.lines()[4].starts_with("orders"), "the last sample stays");
    server.crash_and_restart();
    top.until("an answer", |lines| !lines[0].contains("no answer for"));
    top.press("q");
    assert_eq!(top.wait(), Some(0));
}

#[test]
fn top_without_a_terminal_says_what_to_use() {
    alone(&["top"]).exits(2).says("needs a terminal").says("stats --watch");
}

#[test]
fn stats_are_watched_with_rates() {
    let server = Server::start();
    let ran = server.run(&["stats", "--watch", "10ms", "--count", "3"]).ok();
    let heads = ran.out.iter().filter(|line| line.starts_with("NAME")).count();
    assert_eq!(heads, 3, "{ran:#?}");
    let ran = server.run(&["stats", "--watch", "10ms", "--count", "2", "--json"]).ok();
    let json = ran.json();
    assert_eq!(json.len(), 2);
    assert!(json[0]["time_ms"].as_u64() <= json[1]["time_ms"].as_u64());
    server.run(&["stats", "--watch", "0s"]).exits(2);
    server.run(&["stats", "--count", "2"]).exits(2);
}
