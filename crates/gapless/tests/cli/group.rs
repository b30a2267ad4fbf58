//! `gapless group`, `gapless sub --group` and `gapless dlq`: every word of them.

use std::time::Duration;

use gapless_client::{Client, ConnectOptions, MemberOptions};

use crate::support::Server;

fn filled(count: usize) -> Server {
    let server = Server::start();
    server.run(&["topic", "create", "orders"]).ok();
    let bodies: String = (0..count).map(|number| format!("order {number}\n")).collect();
    server.run_with(&["pub", "orders", "--lines"], bodies.as_bytes()).ok();
    server
}

#[test]
fn a_group_is_made_shown_set_paused_reset_and_removed() {
    let server = filled(3);
    let words = ["group", "create", "billing", "orders", "--mode", "keyed", "--lease", "1m"];
    let words = [&words[..], &["--attempts", "3", "--retry", "1s,1m"]].concat();
    server
        .run(&words)
        .ok()
        .shows("group billing created (keyed, reads orders, lease 1m, 3 attempts)");
    server.run(&words).ok().shows("group billing is there already (keyed");
    server.run(&["group", "create", "billing", "orders"]).exits(5).says("gapless group set");
    let shown = server.run(&["group", "show", "billing"]).ok();
    shown.shows("It has no members; 3 messages wait for one.").shows("retry after        1s,1m");
    server.run(&["group", "ls"]).ok().shows("billing  keyed  running");
    server.run(&["group", "set", "billing", "--attempts", "7"]).ok().shows("7 attempts");
    server.run(&["group", "pause", "billing"]).ok().shows("is paused");
    server.run(&["group", "show", "billing"]).ok().shows("It is paused");
    server.run(&["group", "resume", "billing"]).ok().shows("goes on");
    server.run(&["group", "reset", "billing", "--to", "now"]).ok().shows("with 0 messages to do");
    server.run(&["group", "reset", "billing", "--to", "seq:2"]).ok().shows("with 2 messages to do");
    server.run(&["group", "reset", "billing", "--to", "last-per-key"]).exits(2).says("-2h");
    let info = server.run(&["group", "show", "billing", "--json"]).ok().json().remove(0);
    assert_eq!(
        (info["lag"].as_u64(), info["settings"]["attempts_max"].as_u64()),
        (Some(2), Some(7))
    );
    assert_eq!(info["settings"]["retry"]["steps_ms"][1], 60_000);
    server.run(&["group", "rm", "billing"]).exits(2).says("--yes");
    server.run(&["group", "rm", "billing", "--yes"]).ok().shows("group billing is gone");
    server.run(&["group", "show", "billing"]).exits(6).says("no group billing");
    server.run(&["group", "ls"]).ok().prints(&[]).says("no group matches >");
}

#[test]
fn members_on_the_command_line_share_a_group_and_ack_what_they_print() {
    let server = filled(5);
    server.run(&["sub", "--group", "billing"]).exits(6).says("gapless sub SOURCE --group billing");
    let words = ["sub", "orders", "--group", "billing", "--raw", "--count", "2", "--quiet"];
    server.run(&words).ok().prints(&["order 0", "order 1"]);
    let words = ["sub", "--group", "billing", "--no-follow", "--json"];
    let rest = server.run(&words).ok().json();
    let bodies: Vec<&str> = rest.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(bodies, ["order 2", "order 3", "order 4"]);
    assert_eq!(rest[0]["attempt"], 1);
    assert_eq!(rest.last().map(|line| line["acked"].clone()), Some(3.into()));
    server.run(&["group", "show", "billing"]).ok().shows("It is caught up");
    server.run(&["sub", "a", "b", "--group", "billing"]).exits(2).says("one topic or pattern");
}

#[test]
fn a_group_that_is_there_is_not_silently_another() {
    let server = filled(2);
    server.run(&["group", "create", "billing", "orders"]).ok();
    let sub = |words: &[&str]| {
        let all = [&["sub", "--group", "billing", "--no-follow", "--raw"], words].concat();
        server.run(&all)
    };
    sub(&["orders", "--mode", "keyed"]).exits(5).says("is there already and is shared");
    sub(&["other"]).exits(5).says("is there already and reads orders");
    sub(&["orders", "--mode", "shared", "--from", "now"])
        .ok()
        .says("--from is for a new one")
        .prints(&["order 0", "order 1"]);
    sub(&["orders", "--mode", "shared", "--from", "beginning", "-q"]).ok().prints(&[]);
}

#[test]
fn a_member_goes_on_over_a_crash_of_the_server_and_loses_nothing() {
    let mut server = filled(3);
    let mut member = server.begin(&["sub", "orders", "--group", "billing", "--raw"]);
    for number in 0..3 {
        assert_eq!(member.out.next(), format!("order {number}"));
    }
    server.run(&["clients"]).ok().shows("group billing");
    let clients = server.run(&["clients", "--json"]).ok().json();
    let shown = &clients[0]["memberships"][0];
    assert_eq!((&shown["group"], &shown["state"]), (&"billing".into(), &"member".into()));
    server.crash_and_restart();
    server.run(&["pub", "orders", "order 3"]).ok();
    member.out.until("order 3");
    member.signal("INT");
    assert_eq!(member.wait(), Some(0));
    server.run(&["sub", "--group", "billing", "--no-follow", "--raw"]).ok();
    server.run(&["group", "show", "billing"]).ok().shows("It is caught up");
}

#[test]
fn dead_letters_are_listed_shown_driven_again_and_removed() {
    let server = filled(2);
    let words = ["group", "create", "billing", "orders", "--attempts", "1"];
    server.run(&words).ok();
    server.run(&["dlq", "ls", "billing"]).ok().prints(&[]).says("no dead letters");
    server.run(&["sub", "--group", "billing", "--count", "1"]).ok();
    bury(&server, "no such customer");
    let letters = server.run(&["dlq", "ls", "billing", "--json"]).ok().json();
    assert_eq!((letters.len(), letters[0]["origin_seq"].as_u64()), (1, Some(2)), "{letters:?}");
    assert_eq!(letters[0]["text"], "order 1");
    server.run(&["dlq", "ls", "billing"]).ok().shows("no such customer");
    server.run(&["dlq", "show", "billing", "1"]).ok().shows("body               order 1");
    server.run(&["dlq", "show", "billing", "9"]).exits(6).says("no dead letter 9");
    server.run(&["dlq", "redrive", "billing"]).exits(2);
    server.run(&["dlq", "redrive", "billing", "9"]).exits(6).says("no dead letter 9");
    server.run(&["dlq", "rm", "billing", "9", "--yes"]).exits(6).says("no dead letter 9");
    server
        .run(&["dlq", "redrive", "billing", "--error", "nothing like it"])
        .ok()
        .shows("0 redriven");
    let ended = ["dlq", "redrive", "billing", "--all", "--rate", "0"];
    server.run(&ended).ok().shows("no redrive runs");
    server.run(&["dlq", "redrive", "billing", "1"]).ok().shows("1 redriven");
    server
        .run(&["sub", "--group", "billing", "--raw", "--count", "1", "-q"])
        .ok()
        .prints(&["order 1"]);
    server.run(&["dlq", "rm", "billing", "--all"]).exits(2).says("--yes");
    server.run(&["dlq", "rm", "billing", "--all", "--yes"]).ok().shows("0 removed");
    server.run(&["dlq", "ls", "nobody"]).exits(6).says("no group nobody");
}

/// A member gives up what it is handed.
fn bury(server: &Server, reason: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let options = ConnectOptions::new([server.address()]);
        let client = Client::connect(options).await.expect("a client");
        let group = "billing".parse().expect("a name");
        let member = client.join_group(&group, MemberOptions::default()).await;
        let mut member = member.expect("a member");
        let leased = member.next_messages().await.expect("goes on").expect("messages");
        let outcome = member.terminate(leased.leases(), reason).await.expect("an answer");
        assert_eq!(outcome.taken, leased.count());
        member.leave().await;
        while client.describe_group(&group).await.expect("a group").dead_letters == 0 {}
        client.close(Duration::from_secs(5)).await;
    });
}

#[test]
fn a_group_on_a_topic_that_is_not_there_says_so_when_it_is_made_and_shown() {
    let server = filled(1);
    let made = server.run(&["group", "create", "bad", "nosuchtopic"]).ok();
    made.shows("group bad created").says("no topic matches nosuchtopic yet");
    server.run(&["group", "show", "bad"]).ok().shows("No topic matches nosuchtopic yet.");
    let made = server.run(&["group", "create", "good", "orders"]).ok();
    assert!(!made.err.contains("no topic matches"), "{}", made.err);
}
