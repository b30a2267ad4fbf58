//! `gapless explain`: from the publish to the ack, or to the dead letter.

use crate::support::Server;

#[test]
fn a_message_is_explained_from_the_publish_to_the_ack() {
    let server = Server::start();
    server.run(&["pub", "orders", "x", "--create", "--count", "3"]).ok();
    server.run(&["explain", "orders", "2"]).ok().shows("none that you may see reads this topic");
    server.run(&["group", "create", "billing", "orders"]).ok();
    server.run(&["explain", "orders", "2"]).ok().shows("not read yet").shows("flushed");
    // A member over HTTP has it, and lives between requests.
    let (status, leased) = server.http_post("/v1/groups/billing/fetch?member=worker-1&max=2", "");
    assert_eq!(status, 200, "{leased}");
    let ran = server.run(&["explain", "orders", "2"]).ok();
    ran.shows("billing: leased to worker-1").shows("delivered once");
    let json = server.run(&["explain", "orders", "2", "--json"]).ok().json().remove(0);
    assert_eq!(
        (&json["groups"][0]["state"], &json["groups"][0]["attempts"]),
        (&"leased".into(), &1.into())
    );
    let (status, same) = server.http_get_json("/v1/topics/orders/messages/2/explain");
    assert_eq!((status, same), (200, json));
    let ack: serde_json::Value = serde_json::from_str(&leased).unwrap();
    let leases: Vec<_> =
        ack["messages"].as_array().unwrap().iter().map(|each| each["lease"].clone()).collect();
    let body = serde_json::json!({ "leases": leases }).to_string();
    let (status, acked) = server.http_post("/v1/groups/billing/ack", &body);
    assert_eq!(status, 200, "{acked}");
    server.run(&["explain", "orders", "2"]).ok().shows("billing: done");
    server.run(&["explain", "orders", "9"]).exits(6).shows("the next seq is 4");
    server.run(&["explain", "nosuch", "1"]).exits(6);
    server.run(&["explain", "orders", "0"]).exits(2);
}

#[test]
fn a_dead_letter_and_a_message_that_is_gone_are_explained() {
    let server = Server::start();
    server.run(&["pub", "orders", "x", "--create", "--count", "2"]).ok();
    server.run(&["group", "create", "billing", "orders", "--attempts", "1"]).ok();
    let (status, leased) = server.http_post("/v1/groups/billing/fetch?member=w&max=1", "");
    assert_eq!(status, 200, "{leased}");
    let fetched: serde_json::Value = serde_json::from_str(&leased).unwrap();
    let lease = &fetched["messages"][0]["lease"];
    let body = serde_json::json!({ "leases": [lease], "reason": "no such customer" }).to_string();
    let (status, answer) = server.http_post("/v1/groups/billing/terminate", &body);
    assert_eq!(status, 200, "{answer}");
    let until = std::time::Instant::now() + crate::support::DEADLINE;
    loop {
        let text = server.run(&["explain", "orders", "1"]).ok().out.join("\n");
        if text.contains("dead letter 1") {
            assert!(text.contains("no such customer"), "{text}");
            break;
        }
        assert!(std::time::Instant::now() < until, "{text}");
    }
    server.run(&["topic", "purge", "orders", "--all", "--yes"]).ok();
    server.run(&["explain", "orders", "1"]).exits(6).shows("purge").shows("dead letter 1");
    server.run(&["explain", "orders", "2"]).exits(6).shows("gone, purge");
}
