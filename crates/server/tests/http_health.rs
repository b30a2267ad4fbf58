//! What monitoring asks, before the store is open, while it works, and after it has failed.

#[path = "common/http.rs"]
mod http;

use gapless_broker::{Broker, BrokerOptions};
use gapless_server::http::{HttpListener, HttpOptions};
use http::{Client, Request, Server};
use serde_json::json;

#[test]
fn f4_the_door_says_that_the_store_is_being_opened_until_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = gapless_server::runtime().unwrap();
    let listener = runtime.block_on(HttpListener::listen(HttpOptions::default(), "127.0.0.1:0"));
    let mut listener = listener.unwrap();
    let mut client = Client::connect(listener.address());
    let mut get = |path: &str| client.send(&Request::new("GET", path));
    get("/healthz").is(200);
    for path in ["/readyz", "/metrics", "/about", "/v1/topics", "/", "/nowhere"] {
        let answer = get(path).problem(503, "NotStarted");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    let broker = Broker::open(BrokerOptions::new(folder.path())).unwrap();
    runtime.block_on(async { listener.serve(&broker, None).unwrap() });
    // The same connection gets everything now.
    get("/readyz").is(200);
    assert_eq!(get("/about").is(200).json()["state"], "listening");
    runtime.block_on(listener.close());
    broker.close().unwrap();
}

#[test]
fn about_and_server_say_who_it_is_and_how_it_is() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    server.post("/v1/topics/a/messages", "x").is(201);
    let about = server.get("/about").is(200).json();
    assert_eq!(
        (about["name"].clone(), about["state"].clone()),
        ("gapless".into(), "online".into())
    );
    assert_eq!(about["epoch"], server.broker.epoch().to_string());
    let state = server.get("/v1/server").is(200).json();
    assert!(state["journal"]["flushes"].as_u64() > Some(0));
    assert_eq!(state["subscriptions"], 0);
}

#[test]
fn without_a_recorder_there_are_no_metrics() {
    Server::open().get("/metrics").problem(404, "NotOffered");
}

#[test]
fn a_server_whose_broker_is_closed_is_not_ready_and_takes_nothing() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    server.broker.clone().close().unwrap();
    server.get("/healthz").is(200);
    server.get("/readyz").problem(503, "Poisoned");
    let refused = server.post("/v1/topics/a/messages", "x").problem(503, "Stopped");
    assert_eq!(refused.json()["fate"], "did not happen");
}
