//! Identities on a cluster of one node: a lost connection, another place, and an end for good.

use std::time::Instant;

use crate::support::{DEADLINE, Running, Server};

fn node() -> Server {
    Server::with(&["cluster.node=a", "cluster.listen=127.0.0.1:0"])
}

fn follow(server: &Server, identity: &str) -> Running {
    let mut follower = server.begin(&["sub", "room.*", "--identity", identity]);
    follower.err.until("live");
    follower
}

/// Waits until the server has noticed that a follower is gone.
fn until_gone(server: &Server) {
    let began = Instant::now();
    while server.run(&["clients", "--json"]).ok().out.concat().contains("room.*") {
        assert!(began.elapsed() < DEADLINE, "the follower is still there");
    }
}

#[test]
fn a1_an_identity_goes_on_after_its_connection_is_lost() {
    let server = node();
    let mut follower = follow(&server, "ana");
    server.run(&["pub", "room.one", "1"]).ok();
    assert!(follower.out.next().ends_with("- 1"));
    follower.kill();
    until_gone(&server);
    for body in ["2", "3"] {
        // An identity that is away is a subscriber: what is published is held for it.
        server.run(&["pub", "room.one", body]).ok();
    }
    let mut again = follow(&server, "ana");
    assert!(again.out.next().ends_with("- 2"));
    assert!(again.out.next().ends_with("- 3"));
    server.run(&["pub", "room.one", "4"]).ok();
    assert!(again.out.next().ends_with("- 4"));
}

#[test]
fn a1_the_newest_place_of_an_identity_counts_and_the_older_one_ends_with_the_reason() {
    let server = node();
    let mut first = follow(&server, "ana");
    let mut second = follow(&server, "ana");
    first.err.until("took over this subscription");
    assert_ne!(first.wait(), Some(0));
    server.run(&["pub", "room.one", "to the second"]).ok();
    assert!(second.out.next().ends_with("to the second"));
}

#[test]
fn a5_a8_options_of_the_cluster_are_taken_and_a_report_names_identities() {
    let server = node();
    let mut follower = follow(&server, "ana");
    let ran =
        server.run(&["pub", "room.one", "x", "--report", "--delivery", "at-least-once", "--json"]);
    assert_eq!(ran.ok().json()[0]["report"]["delivered"], 1);
    assert!(follower.out.next().ends_with("- x"));
    follower.kill();
    until_gone(&server);
    let refused = server.run(&["pub", "room.one", "x", "--partition", "drop"]);
    refused.exits(5).says("unreachable");
    let ran = server.run(&["pub", "room.one", "y", "--report", "--json"]).exits(1);
    let report = &ran.json()[0]["report"];
    assert_eq!(
        (&report["delivered"], &report["failed"][0]["identity"]),
        (&0.into(), &"ana".into())
    );
}
