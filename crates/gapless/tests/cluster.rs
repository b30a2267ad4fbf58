//! Three real processes on loopback as a cluster: crashes, frozen nodes, cut links, restarts, refusals.

#[path = "support/nodes.rs"]
mod support;

use gapless_core::{PartitionBehavior, PublishOptions};
use serde_json::json;
use support::{DEADLINE, FaultProxy, Node, Nodes, until};

/// Options that reject where a node cannot be reached.
fn drops() -> PublishOptions {
    PublishOptions { partition: Some(PartitionBehavior::Drop), ..PublishOptions::default() }
}

#[test]
fn a7_a_publish_at_one_node_comes_to_subscribers_of_the_others_once_and_in_order() {
    let nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let mut feeds = [b.follow("orders.*"), b.follow("orders.>"), c.follow("orders.eu")];
    a.knows(b, 2);
    a.knows(c, 1);
    let expected: Vec<String> = (0..1_000).map(|number| format!("order {number}")).collect();
    a.publish_all("orders.eu", &expected);
    for feed in &mut feeds {
        assert_eq!(feed.take(1_000), expected);
    }
    // One copy for each node, however many subscribers it has.
    let count = |node: &Node, what: &str| node.status()["counts"][what].as_u64().expect("a number");
    let (at_b, at_c) = (count(b, "received"), count(c, "received"));
    assert_eq!((at_b, count(a, "sent")), (at_c, at_b + at_c));
    // Subscribers of the publisher's own node are served as ever.
    let mut own = a.follow("orders.*");
    a.publish_all("orders.eu", &["own".to_owned()]);
    assert_eq!(own.take(1), ["own"]);
}

#[test]
fn a10_a_killed_node_is_noticed_soon_and_what_it_misses_is_named() {
    let mut nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let (feed, mut other) = (b.follow("orders.*"), c.follow("orders.*"));
    let mut lost = a.follow("$events.delivery.lost");
    a.knows(b, 1);
    a.knows(c, 1);
    nodes.kill(1);
    let [a, b, _] = nodes.all();
    let began = std::time::Instant::now();
    a.state_of(b, "suspended");
    let noticed = began.elapsed();
    assert!(noticed < DEADLINE / 10, "noticed after {noticed:?}");
    let rejected = a.try_publish("orders.eu", "x", &drops()).expect_err("b is gone");
    assert!(rejected.contains("PartitionDrop"), "{rejected}");
    a.publish_all("orders.eu", &["held".to_owned()]);
    assert_eq!(other.take(1), ["held"], "others are served");
    drop(feed);
    // Its next start is another life: what was held for the former one is named as lost.
    nodes.restart(1);
    let said = lost.json();
    assert_eq!((&said["messages"], &said["reason"]), (&json!(1), &json!("restarted")), "{said}");
    assert_eq!(said["subjects"][0]["subject"], "orders.eu");
    let [a, b, _] = nodes.all();
    let mut feed = b.follow("orders.*");
    a.knows(b, 1);
    a.publish_all("orders.eu", &["again".to_owned()]);
    assert_eq!(feed.take(1), ["again"]);
}

#[test]
fn a10_a_frozen_node_gets_what_was_held_when_it_goes_on() {
    let nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let (mut feed, mut other) = (b.follow("orders.*"), c.follow("orders.*"));
    a.knows(b, 1);
    a.knows(c, 1);
    b.signal("STOP");
    a.state_of(b, "suspended");
    let expected: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    a.publish_all("orders.eu", &expected);
    assert_eq!(other.take(200), expected, "others are served meanwhile");
    assert!(a.held_for(b) >= 200);
    b.signal("CONT");
    assert_eq!(feed.take(200), expected);
    a.state_of(b, "active");
    until("nothing is held", || a.held_for(b) == 0);
}

#[test]
fn a10_cut_links_lose_nothing_and_repeat_nothing() {
    let proxy = FaultProxy::start();
    let mut nodes = Nodes::default();
    nodes.add(&[]);
    let seed = nodes.all::<1>()[0].cluster_address();
    // b is reached by all others over the proxy.
    let own = support::free_address();
    proxy.forward_to(&own);
    nodes.add(&[
        &format!("cluster.join={seed}"),
        &format!("cluster.listen={own}"),
        &format!("cluster.advertise={}", proxy.address()),
    ]);
    let [a, b] = nodes.all();
    let mut feed = b.follow("orders.*");
    a.knows(b, 1);
    let mut expected = Vec::new();
    for round in 0..5 {
        let bodies: Vec<String> = (0..100).map(|number| format!("{round}.{number}")).collect();
        if round % 2 == 1 {
            proxy.cut();
            a.state_of(b, "suspended");
        }
        a.publish_all("orders.eu", &bodies);
        expected.extend(bodies);
        proxy.mend();
    }
    assert_eq!(feed.take(500), expected);
    until("nothing is held", || a.held_for(b) == 0);
}

#[test]
fn a3_a_publish_is_rejected_when_the_delay_queue_is_full() {
    let mut nodes = Nodes::default();
    nodes.add(&["cluster.queue_messages_max=100"]);
    nodes.join();
    let [a, b] = nodes.all();
    let mut feed = b.follow("orders.*");
    a.knows(b, 1);
    b.signal("STOP");
    a.state_of(b, "suspended");
    let mut taken = Vec::new();
    let rejected = loop {
        let body = taken.len().to_string();
        match a.try_publish("orders.eu", &body, &PublishOptions::default()) {
            Ok(()) => taken.push(body),
            Err(rejected) => break rejected,
        }
        assert!(taken.len() <= 200, "it has a limit");
    };
    assert!(rejected.contains("QueueFull"), "{rejected}");
    b.signal("CONT");
    assert_eq!(feed.take(taken.len()), taken, "what was accepted is delivered");
}

#[test]
fn a14_a_node_that_stops_sends_what_it_accepted_and_leaves() {
    let mut nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let mut feeds = [b.follow("orders.*"), c.follow("orders.*")];
    let mut left = b.follow("$events.cluster.node-left");
    a.knows(b, 1);
    a.knows(c, 1);
    let expected: Vec<String> = (0..2_000).map(|number| number.to_string()).collect();
    a.publish_all("orders.eu", &expected);
    a.signal("TERM");
    for feed in &mut feeds {
        assert_eq!(feed.take(2_000), expected);
    }
    assert_eq!(left.json()["node"], "a");
    assert_eq!(nodes.wait(0), Some(0), "it ends cleanly");
    // A rolling restart: it is back under its name, and delivered to.
    nodes.restart(0);
    let [a, b, _] = nodes.all();
    let mut feed = a.follow("orders.*");
    b.knows(a, 1);
    b.publish_all("orders.eu", &["welcome".to_owned()]);
    assert_eq!(feed.take(1), ["welcome"]);
}

#[test]
fn a_node_of_another_cluster_at_a_reused_address_is_refused_and_both_say_so() {
    let mut nodes = Nodes::start(2);
    let address = nodes.all::<2>()[1].cluster_address();
    nodes.kill(1);
    let mut foreign = Node::start("b", &["cluster.id=other", &format!("cluster.listen={address}")]);
    foreign.logs("a link between nodes is refused");
    let said = nodes.logs(0, "a link between nodes is refused");
    assert!(said.contains("foreign-cluster") && said.contains("node b of cluster"), "{said}");
}

#[test]
fn a_wrong_secret_is_refused_with_a_clear_message_on_both_sides() {
    let mut first = Node::start_with("a", &[], Some("the secret of all nodes"));
    let join = format!("cluster.join={}", first.cluster_address());
    let mut second = Node::start_with("b", &[&join], Some("some other secret, sorry"));
    for node in [&mut first, &mut second] {
        let said = node.logs("a link between nodes is refused");
        assert!(said.contains("wrong-secret") && said.contains("same cluster secret"), "{said}");
        assert!(!said.contains("sorry") && !said.contains("of all nodes"), "{said}");
    }
    let third = Node::start_with("c", &[&join], Some("the secret of all nodes"));
    until("linked", || third.status()["nodes"][0]["link"] == "up");
}

#[test]
fn a11_the_cluster_is_shown_by_commands_and_over_http() {
    let nodes = Nodes::start(2);
    let [a, b] = nodes.all();
    let _feed = b.follow("orders.*");
    a.knows(b, 1);
    let shown = a.run(&["cluster", "nodes"]);
    assert!(shown.contains("a (this one)") && shown.contains("active"), "{shown}");
    assert!(a.run(&["cluster", "topology"]).contains("a --> b   active"));
    assert!(a.run(&["cluster", "status"]).contains("1 linked of 1"));
    let status: serde_json::Value =
        serde_json::from_str(&a.http("GET", "/v1/cluster")).expect("JSON");
    assert_eq!((&status["node"], &status["cluster"]), (&json!("a"), &json!("gapless")));
    assert_eq!(status["nodes"][0]["node"], "b");
    // It is shown again and again, as it changes.
    let watched = a.begin(&["cluster", "nodes", "--watch"]).prints("active");
    b.run(&["cluster", "leave"]);
    let _watched = watched.prints("left");
    until("b has left", || a.status()["nodes"][0]["left"] == true);
    until("b knows it", || b.status()["left"] == true);
}

#[test]
fn a14_a_server_that_cannot_be_a_node_says_what_to_do() {
    let said = Node::refused(&["--node", "a", "--cluster-listen", "0.0.0.0:0"]);
    assert!(said.contains("cluster.secret_file"), "{said}");
    let said = Node::refused(&["--node", "a.b", "--cluster-listen", "127.0.0.1:0"]);
    assert!(said.contains("cluster.node"), "{said}");
    let said = Node::refused(&["--set", "cluster.node=a"]);
    assert!(said.contains("cluster.listen"), "{said}");
}

#[test]
fn a_request_from_one_node_is_answered_by_another() {
    let nodes = Nodes::start(2);
    let [a, b] = nodes.all();
    let mut service = b.follow("service");
    let mut replies = a.follow("reply.1");
    a.knows(b, 1);
    b.knows(a, 1);
    a.publish_all("service", &["question".to_owned()]);
    assert_eq!(service.take(1), ["question"]);
    b.publish_all("reply.1", &["answer".to_owned()]);
    assert_eq!(replies.take(1), ["answer"]);
}
