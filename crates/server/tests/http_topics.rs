//! Topics over HTTP: made, listed, described, configured, purged, deleted.

#[path = "common/http.rs"]
mod http;

use http::{Request, Server};
use serde_json::json;

#[test]
fn a_topic_is_made_described_configured_and_deleted() {
    let server = Server::open();
    let made = server.put("/v1/topics/orders.eu", &json!({ "retention": { "age_ms": 60_000 } }));
    let made = made.is(201).json();
    assert_eq!(made["name"], "orders.eu");
    assert_eq!((made["first"].clone(), made["next"].clone()), (json!(1), json!(1)));
    assert_eq!(made["settings"]["retention"]["age_ms"], 60_000);
    assert_eq!(server.get("/v1/topics/orders.eu").is(200).json(), made);

    let patch = Request::new("PATCH", "/v1/topics/orders.eu");
    let changed = server.send(&patch.json(&json!({ "compaction": true }))).is(200).json();
    assert_eq!(changed["settings"]["retention"]["age_ms"], 60_000, "what is not named stays");
    assert_eq!(changed["settings"]["compaction"]["tombstone_grace_ms"], 86_400_000);

    server.delete("/v1/topics/orders.eu").is(204);
    server.get("/v1/topics/orders.eu").problem(404, "UnknownTopic");
    server.delete("/v1/topics/orders.eu").problem(404, "UnknownTopic");
}

#[test]
fn making_it_again_is_fine_and_with_other_settings_a_conflict() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    server.put("/v1/topics/a", &json!({})).is(200);
    let other = json!({ "retention": { "count": 1 } });
    server.put("/v1/topics/a", &other).problem(409, "TopicExists");
    let volatile = Request::new("PATCH", "/v1/topics/a").json(&json!({ "storage": "volatile" }));
    server.send(&volatile).problem(409, "StorageFixed");
}

#[test]
fn topics_are_listed_by_pattern_and_page() {
    let server = Server::open();
    for name in ["a.1", "a.2", "a.3", "b.1"] {
        server.put(&format!("/v1/topics/{name}"), &json!({})).is(201);
    }
    let names = |path: &str| {
        let list = server.get(path).is(200).json();
        let names = list["topics"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|topic| topic["name"].as_str().unwrap().to_owned()).collect();
        (names.join(" "), list["next"].as_str().map(str::to_owned))
    };
    assert_eq!(names("/v1/topics"), ("a.1 a.2 a.3 b.1".into(), None));
    assert_eq!(names("/v1/topics?pattern=a.*&limit=2"), ("a.1 a.2".into(), Some("a.2".into())));
    assert_eq!(names("/v1/topics?pattern=a.%3E&limit=2&after=a.2"), ("a.3".into(), None));
    server.get("/v1/topics?pattern=a.%3E.b").problem(400, "BadPattern");
    server.get("/v1/topics?limit=many").problem(400, "BadRequest");
    server.get("/v1/topics?limt=1").problem(400, "BadRequest");
}

#[test]
fn a_purge_says_how_many_are_gone() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    let topic = gapless_core::TopicName::parse("a").unwrap();
    let messages: Vec<_> = ["1", "2", "3"].map(gapless_core::Message::new).into();
    server.broker.publish_batch(&topic, &messages, &Default::default()).wait().unwrap();
    let purged = server.post("/v1/topics/a/purge?below=3", "").is(200).json();
    assert_eq!((purged["purged"].clone(), purged["topic"]["first"].clone()), (2.into(), 3.into()));
    assert_eq!(server.post("/v1/topics/a/purge?all=true", "").is(200).json()["purged"], 1);
    server.post("/v1/topics/a/purge?below=99", "").problem(409, "Ahead");
    server.post("/v1/topics/none/purge?all=true", "").problem(404, "UnknownTopic");
}

#[test]
fn names_that_are_none_are_problems() {
    let server = Server::open();
    for name in ["a..b", "a%20b", "a.*", "%C3%28", ".", "a%2Fb"] {
        let path = format!("/v1/topics/{name}");
        let name = if name == "%C3%28" { "BadRequest" } else { "InvalidTopic" };
        server.put(&path, &json!({})).problem(400, name);
    }
    let long = "x".repeat(256);
    server.get(&format!("/v1/topics/{long}")).problem(400, "InvalidTopic");
    server.put("/v1/topics/$mine", &json!({})).problem(403, "ReservedName");
    // Names in any script are names.
    server.put("/v1/topics/%E6%B3%A8%E6%96%87", &json!({})).is(201);
    assert_eq!(server.get("/v1/topics/%E6%B3%A8%E6%96%87").is(200).json()["name"], "注文");
}

#[test]
fn settings_that_make_no_sense_are_problems() {
    let server = Server::open();
    for (settings, name) in [
        (json!({ "retentoin": {} }), "BadRequest"),
        (json!({ "retention": { "age_ms": "long" } }), "BadRequest"),
        (json!({ "retention": { "count": 0 } }), "BadSettings"),
        (json!({ "durability": "rock" }), "BadSettings"),
        (json!({ "storage": "volatile", "durability": "flushed" }), "BadSettings"),
        (json!([]), "BadRequest"),
    ] {
        server.put("/v1/topics/a", &settings).problem(400, name);
    }
    server.get("/v1/topics/a").problem(404, "UnknownTopic");
}
