//! Every way into a cluster of real processes: SSE, WebSocket, requests, metrics of topics, restarts.

#[path = "support/nodes.rs"]
mod support;

use serde_json::{Value, json};
use support::{Nodes, until};

const FOLLOW: &str = "/v1/follow?pattern=orders.%3E&identity=billing";

fn texts(bodies: &[&str]) -> Vec<String> {
    bodies.iter().map(|body| (*body).to_owned()).collect()
}

/// An identity moves from node to node, by these ways.
fn moves(ways: [bool; 3]) {
    let nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let held = || {
        let named = a.status()["named"][0].clone();
        (named["node"].as_str().map(str::to_owned), named["queue"]["messages"].as_u64())
    };
    let placed = |at: &str| {
        until(&format!("a knows that it is at {at}"), || held().0.as_deref() == Some(at));
    };
    let mut first = b.stream(FOLLOW, ways[0]).live();
    placed("b");
    a.publish_all("orders.1", &texts(&["one", "two"]));
    assert_eq!([first.text(), first.text()], ["one", "two"]);
    until("a knows that they are taken", || held().1 == Some(0));
    drop(first);
    until("a knows that it is away", || held().0.is_none());
    a.publish_all("orders.1", &texts(&["three", "four"]));
    b.publish_all("orders.2", &texts(&["of b"]));
    assert_eq!(held().1, Some(2));
    let mut second = c.stream(FOLLOW, ways[1]);
    let mut seen = [second.text(), second.text(), second.text()];
    seen.sort();
    assert_eq!(seen, ["four", "of b", "three"], "what was held comes at another node");
    placed("c");
    until("a knows that they are taken", || held().1 == Some(0));
    a.publish_all("orders.1", &texts(&["five"]));
    assert_eq!(second.text(), "five");
    until("a knows that it is taken", || held().1 == Some(0));
    // The newest place counts; the older one is told why it ends.
    let mut third = b.stream(FOLLOW, ways[2]).live();
    let ended = loop {
        let event = second.next();
        if event["event"] == "failed" {
            break event;
        }
    };
    let why = ended["detail"].as_str().unwrap_or_default();
    assert!(ended["code"] == 241 && why.contains("on node b, which took over"), "{ended}");
    placed("b");
    a.publish_all("orders.1", &texts(&["six"]));
    assert_eq!(third.text(), "six");
}

#[test]
fn a1_an_identity_goes_on_at_another_node_over_sse_and_then_over_a_websocket() {
    moves([false, false, true]);
}

#[test]
fn a1_an_identity_goes_on_at_another_node_over_a_websocket_and_then_over_sse() {
    moves([true, true, false]);
}

#[test]
fn a_request_is_answered_by_a_second_responder_when_the_node_of_the_first_is_killed() {
    let mut nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let (code, said) = a.ends(&["request", "service", "x"]);
    assert_eq!(code, Some(6), "at once: {said}");
    let _first = b.begin(&["reply", "service", "of b"]).says("answering service");
    a.knows(b, 1);
    assert_eq!(a.run(&["request", "service", "x"]), "of b\n");
    let second = c.begin(&["reply", "service", "of c"]).says("answering service");
    a.knows(c, 1);
    nodes.kill(1);
    let [a, b, _] = nodes.all();
    assert_eq!(a.run(&["request", "service", "x", "--timeout", "60s"]), "of c\n");
    a.state_of(b, "suspended");
    assert_eq!(a.run(&["request", "service", "x", "--timeout", "60s"]), "of c\n");
    let over_http = a.http("POST", "/v1/request/service");
    assert_eq!(over_http, "of c");
    // b comes back without its responder, and that of c ends.
    drop(second);
    nodes.restart(1);
    let [a, b, _] = nodes.all();
    a.state_of(b, "active");
    until("no responder is left", || {
        let began = std::time::Instant::now();
        let (code, said) = a.ends(&["request", "service", "x", "--timeout", "60s"]);
        assert!(code != Some(6) || began.elapsed() < support::DEADLINE / 2, "not at once: {said}");
        code == Some(6)
    });
}

#[test]
fn a11_metrics_of_a_node_are_for_the_whole_and_per_topic() {
    let nodes = Nodes::start(2);
    let [a, b] = nodes.all();
    let mut feed = b.follow("orders.*");
    a.knows(b, 1);
    a.publish_all("orders.eu", &texts(&["1", "2", "3"]));
    a.publish_all("orders.us", &texts(&["4"]));
    assert_eq!(feed.take(4).len(), 4);
    let rows = |node: &support::Node, of: &str| {
        let shown = node.http("GET", "/metrics");
        let prefix = format!("gapless_cluster_topic_{of}_total{{topic=");
        let rows = shown.lines().filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned));
        rows.collect::<Vec<_>>()
    };
    assert_eq!(rows(a, "published"), [r#""orders.eu"} 3"#, r#""orders.us"} 1"#]);
    assert_eq!(rows(b, "received"), [r#""orders.eu"} 3"#, r#""orders.us"} 1"#]);
    assert_eq!(rows(b, "published"), [r#""orders.eu"} 0"#, r#""orders.us"} 0"#]);
    assert!(a.http("GET", "/metrics").contains("gapless_cluster_topics_left_out_total 0\n"));
}

#[test]
fn a14_a_rolling_restart_loses_nothing_that_was_accepted_at_least_once() {
    let mut nodes = Nodes::start(3);
    let path = "/v1/follow?pattern=orders.%3E&identity=ledger";
    let numbers = |from: u32, to: u32| (from..to).map(|each| each.to_string()).collect::<Vec<_>>();
    let knows = |nodes: &Nodes, at: usize| {
        until("it is known", || nodes.all::<3>()[at].status()["named"][0]["node"].is_string());
    };
    let mut stream = nodes.all::<3>()[2].stream(path, false).live();
    // First the node that neither publishes nor follows.
    knows(&nodes, 0);
    nodes.all::<3>()[0].publish_all("orders.1", &numbers(0, 50));
    nodes.all::<3>()[1].signal("TERM");
    nodes.all::<3>()[0].publish_all("orders.1", &numbers(50, 100));
    assert_eq!(nodes.wait(1), Some(0));
    nodes.restart(1);
    assert_eq!((0..100).map(|_| stream.text()).collect::<Vec<_>>(), numbers(0, 100));
    // Then the one that published: it sends what it accepted before it leaves.
    nodes.all::<3>()[0].publish_all("orders.1", &numbers(100, 200));
    nodes.all::<3>()[0].signal("TERM");
    assert_eq!(nodes.wait(0), Some(0));
    assert_eq!((0..100).map(|_| stream.text()).collect::<Vec<_>>(), numbers(100, 200));
    nodes.restart(0);
    // Then the one that follows: its subscriber goes on at another.
    knows(&nodes, 1);
    nodes.all::<3>()[1].publish_all("orders.1", &numbers(200, 250));
    nodes.all::<3>()[2].signal("TERM");
    nodes.all::<3>()[1].publish_all("orders.1", &numbers(250, 300));
    let mut seen = stream.rest();
    assert_eq!(nodes.wait(2), Some(0));
    let mut stream = nodes.all::<3>()[0].stream(path, true);
    while seen.last().map(String::as_str) != Some("299") {
        seen.push(stream.text());
    }
    // Those that were taken last before the move may come twice.
    let mut new: Vec<String> = Vec::new();
    for text in seen {
        if !new.contains(&text) {
            new.push(text);
        }
    }
    assert_eq!(new, numbers(200, 300));
}

#[test]
fn a14_cluster_leave_sends_what_waits_and_the_server_goes_on_alone() {
    let nodes = Nodes::start(2);
    let [a, b] = nodes.all();
    let mut feed = b.follow("orders.*");
    a.knows(b, 1);
    let bodies: Vec<String> = (0..5_000).map(|each| each.to_string()).collect();
    a.publish_all("orders.eu", &bodies);
    a.run(&["cluster", "leave"]);
    assert_eq!(feed.take(5_000), bodies);
    until("b knows that it left", || b.status()["nodes"][0]["left"] == true);
    until("a has left", || a.status()["left"] == true);
    let mut own = a.follow("orders.*");
    a.publish_all("orders.eu", &texts(&["alone"]));
    assert_eq!(own.take(1), ["alone"]);
}

/// The event that says which nodes do not know what is followed.
fn visible(stream: &mut support::Stream) -> Value {
    loop {
        let mut event = stream.next();
        if event["event"] == "visible" {
            return event["nodes"].take();
        }
    }
}

#[test]
fn a1_a_subscriber_that_waited_until_it_is_visible_misses_nothing_from_any_node() {
    let nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    let path = |of: &str| format!("/v1/follow?pattern={of}.%3E&from=now&await_visible_ms=60000");
    for round in 0..5 {
        let command = ["sub", &format!("cli{round}.>"), "--count", "2", "--await-visible=60s"];
        let native = b.begin(&command).says("all nodes know what is followed");
        a.publish_all(&format!("cli{round}.x"), &texts(&["from a"]));
        c.publish_all(&format!("cli{round}.x"), &texts(&["from c"]));
        assert_eq!(native.ends(), Some(0), "both messages came");
        for websocket in [false, true] {
            let subject = format!("{}{round}", if websocket { "ws" } else { "sse" });
            let mut stream = b.stream(&path(&subject), websocket);
            assert_eq!(visible(&mut stream), json!([]));
            a.publish_all(&format!("{subject}.x"), &texts(&["from a"]));
            assert_eq!(stream.text(), "from a");
        }
        // A name is known everywhere in the same way.
        let path = format!("/v1/follow?pattern=named{round}.%3E&identity=n&await_visible_ms=60000");
        let mut named = c.stream(&path, false);
        assert_eq!(visible(&mut named), json!([]));
        b.publish_all(&format!("named{round}.x"), &texts(&["from b"]));
        assert_eq!(named.text(), "from b");
    }
}

#[test]
fn a1_a_node_that_does_not_know_a_subscriber_in_time_is_named() {
    let nodes = Nodes::start(3);
    let [a, b, c] = nodes.all();
    c.signal("STOP");
    let (code, said) = b.ends(&["sub", "late", "--await-visible=100ms"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 nodes do not know") && said.contains(": c"), "{said}");
    let mut stream = b.stream("/v1/follow?pattern=late&from=now&await_visible_ms=100", false);
    assert_eq!(visible(&mut stream), json!(["c"]));
    // It is subscribed all the same, and visible once that node is back.
    a.knows(b, 1);
    a.publish_all("late", &texts(&["one"]));
    assert_eq!(stream.text(), "one");
    c.signal("CONT");
    let path = "/v1/follow?pattern=late&from=now&await_visible_ms=60000";
    assert_eq!(visible(&mut b.stream(path, true)), json!([]));
    c.publish_all("late", &texts(&["two"]));
    assert_eq!(stream.text(), "two");
}
