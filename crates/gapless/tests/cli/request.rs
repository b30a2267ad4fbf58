//! `gapless request`, `gapless reply`, `gapless pub --report` and `gapless sub --identity`.

use crate::support::Server;

#[test]
fn a_request_is_answered_by_a_program() {
    let server = Server::start();
    let mut replies =
        server.begin(&["reply", "up.*", "--exec", "tr a-z A-Z; echo \" $GAPLESS_SUBJECT\""]);
    replies.err.until("answering up.*");
    server.run(&["request", "up.case", "hello"]).ok().prints(&["HELLO up.case"]);
    let ran = server.run(&["request", "up.case", "x", "--json"]).ok();
    assert_eq!(ran.json()[0]["text"], "X up.case");
}

#[test]
fn a_request_without_a_responder_says_so_at_once() {
    let server = Server::start();
    let ran = server.run(&["request", "nobody.here", "x"]).exits(6).says("there is no responder");
    ran.says("gapless reply nobody.here");
    let mut fixed = server.begin(&["reply", "ping", "pong", "--count", "2"]);
    fixed.err.until("answering ping");
    server.run(&["request", "ping", ""]).ok().prints(&["pong"]);
    // What is no request is not counted, and not answered.
    server.run(&["pub", "ping", "no request"]).ok();
    server.run(&["request", "ping", ""]).ok().prints(&["pong"]);
    assert_eq!(fixed.wait(), Some(0));
    let mut failing = server.begin(&["reply", "fails", "--exec", "exit 3"]);
    failing.err.until("answering fails");
    let ran = server.run(&["request", "fails", "x", "--timeout", "200ms"]).exits(1);
    ran.says("no answer came");
    failing.err.until("exit 3: exit status: 3");
}

#[test]
fn a8_a_report_is_printed_and_what_needs_a_cluster_is_refused() {
    let server = Server::start();
    let mut follower = server.begin(&["sub", "room.*", "--from", "now"]);
    follower.err.until("live");
    let ran = server.run(&["pub", "room.one", "hi", "--report"]).ok();
    assert_eq!(ran.out[1], "delivered to 1");
    assert_eq!(follower.out.next(), "room.one 1 - hi");
    let ran = server.run(&["pub", "room.one", "hi", "--report", "--json"]).ok();
    assert_eq!(ran.json()[0]["report"]["delivered"], 1);
    server.run(&["pub", "stored", "x", "--create"]).ok();
    server.run(&["pub", "stored", "x", "--report"]).exits(5);
    server.run(&["pub", "room.one", "x", "--partition", "drop"]).exits(5);
    server
        .run(&["sub", "room.*", "--identity", "ana"])
        .exits(5)
        .says("an identity needs a cluster");
}
