//! The paths of the source broker, as they were (C1 to C5).

#[path = "common/http.rs"]
mod http;

use http::{Request, Server};
use serde_json::json;

#[test]
fn c2_a_topic_is_created_pushed_to_and_configured_from_the_address_bar() {
    let server = Server::open();
    let made = server.get("/topic/some/create").is(200).json();
    assert_eq!(made["topic"], "some");
    assert_eq!(
        (made["retention"].clone(), made["compaction"].clone()),
        (false.into(), false.into())
    );
    server.get("/topic/some/create").is(200);
    let pushed = server.get(
        "/topic/some/push?message=%7B%22data%22:%7B%22some%22:%22content%22%7D,%22key%22:%22some_key%22%7D",
    );
    assert_eq!(pushed.is(201).json()["seq"], 1);
    let found = server.get("/v1/topics/some/messages/1").json();
    assert_eq!(
        (found["key"].clone(), found["json"].clone()),
        ("some_key".into(), json!({ "some": "content" }))
    );
    // A plain text will do.
    server.get("/topic/some/push?message=hello+there&key=k").is(201);
    let found = server.get("/v1/topics/some/messages/2").json();
    assert_eq!((found["key"].clone(), found["text"].clone()), ("k".into(), "hello there".into()));
    let now = server.get("/topic/some/config?retention=60000&compaction=true").is(200).json();
    assert_eq!(now["retention_millis"], 60_000);
    assert_eq!(server.get("/topic/some/config").is(200).json(), now);
}

#[test]
fn c2_messages_are_pushed_as_json() {
    let server = Server::open();
    server.get("/topic/a/create").is(200);
    let message = json!({ "key": "k", "data": { "n": 1 } });
    assert_eq!(server.post_json("/topic/a/push", &message).is(201).json()["durability"], "flushed");
    server.post_json("/topic/a/push", &json!({ "data": "only data" })).is(201);
    server.post_json("/topic/a/push", &json!({ "key": 7, "data": [] })).is(201);
    assert_eq!(server.get("/v1/topics/a/messages/2").json()["json"], "only data");
    assert_eq!(server.get("/v1/topics/a/messages/3").json()["key"], "7");
    server.post("/topic/a/push", "{").problem(400, "BadRequest");
    server.post("/topic/a/push", "").problem(400, "BadRequest");
    server.post_json("/topic/a/push", &json!({ "dta": 1 })).problem(400, "BadRequest");
    server.post_json("/topic/a/push", &json!({ "key": {}, "data": 1 })).problem(400, "BadRequest");
    server.post_json("/topic/a/push", &json!({})).problem(400, "InvalidPayload");
    server.post_json("/topic/none/push", &message).problem(404, "UnknownTopic");
    server.get("/topic/a/push").problem(400, "BadRequest");
}

#[test]
fn c3_create_and_config_answer_what_is_in_force() {
    let server = Server::open();
    let made = server.get("/topic/a/create?retention=true&compaction=false").is(200).json();
    assert_eq!(
        (made["retention"].clone(), made["retention_millis"].clone()),
        (true.into(), 604_800_000.into())
    );
    let set = json!({ "retention": false, "compaction": true });
    let now = server.post_json("/topic/a/config", &set).is(200).json();
    assert_eq!((now["retention"].clone(), now["compaction"].clone()), (false.into(), true.into()));
    assert_eq!(server.get("/topic/a/config").json(), now);
    let more =
        json!({ "retention_millis": 5000, "retention_bytes": 1_000_000, "retention_count": 9 });
    let now = server.post_json("/topic/a/config", &more).is(200).json();
    assert_eq!(now["retention_millis"], 5000);
    assert_eq!(
        (now["retention_bytes"].clone(), now["retention_count"].clone()),
        (1_000_000.into(), 9.into())
    );
    assert_eq!(now["compaction"], true, "what is not named stays");
    server.get("/topic/a/create?compaction=false").problem(409, "TopicExists");
    server.get("/topic/a/config?retention=often").problem(400, "BadRequest");
    server.get("/topic/a/config?retention=0").problem(400, "BadSettings");
    server.get("/topic/none/config").problem(404, "UnknownTopic");
    server.post("/topic/b/create?retention=1000", "").is(200);
}

#[test]
fn c4_what_is_past_its_time_cannot_be_read() {
    use gapless_broker::ManualClock;
    use std::sync::Arc;
    let clock = Arc::new(ManualClock::new(gapless_core::Timestamp(1_000_000)));
    let theirs = Arc::clone(&clock);
    let server = Server::with(move |_, broker| broker.clock = theirs);
    server.get("/topic/a/create?retention=1000").is(200);
    server.get("/topic/a/push?message=old").is(201);
    clock.advance(std::time::Duration::from_millis(2000));
    server.get("/topic/a/push?message=new").is(201);
    server.get("/v1/topics/a/messages/1").problem(404, "NoSuchMessage");
    let page = server.get("/v1/topics/a/messages").is(200).json();
    assert_eq!(page["messages"][0]["text"], "new");
}

#[test]
fn c5_compaction_keeps_only_the_latest_of_a_key_and_no_data_removes_it() {
    let server = Server::open();
    server.get("/topic/a/create?compaction=true").is(200);
    for data in 1..=3 {
        server.post_json("/topic/a/push", &json!({ "key": "k", "data": data })).is(201);
    }
    server.post_json("/topic/a/push", &json!({ "key": "gone", "data": 1 })).is(201);
    server.post_json("/topic/a/push", &json!({ "key": "gone" })).is(201);
    let page = server.get("/v1/topics/a/messages?from=last-per-key").is(200).json();
    let shown: Vec<_> =
        page["messages"].as_array().unwrap().iter().map(|m| m["json"].clone()).collect();
    assert_eq!(shown, [json!(3)]);
    server.get("/v1/topics/a/latest?key=gone").problem(404, "NoSuchMessage");
}

#[test]
fn a_page_of_another_origin_can_change_nothing() {
    let server = Server::open();
    let from_page = |method: &str, path: &str| {
        Request::new(method, path)
            .header("Sec-Fetch-Site", "cross-site")
            .header("Origin", "https://evil.example")
    };
    for (method, path) in [
        ("GET", "/topic/a/create"),
        ("POST", "/topic/a/create"),
        ("PUT", "/v1/topics/a"),
        ("POST", "/v1/topics/a/messages?create=true"),
    ] {
        server.send(&from_page(method, path)).problem(403, "NotAuthorised");
        let old = Request::new(method, path).header("Origin", "https://evil.example");
        server.send(&old).problem(403, "NotAuthorised");
    }
    server.get("/v1/topics/a").problem(404, "UnknownTopic");
    // Our own page may, and so may who types the address.
    for site in ["same-origin", "none"] {
        let own = Request::new("GET", "/topic/a/create").header("Sec-Fetch-Site", site);
        server.send(&own).is(200);
    }
    server.send(&from_page("GET", "/v1/topics/a")).is(200);
}

#[test]
fn h2_a_browser_that_does_not_say_who_asks_changes_nothing_by_get() {
    let server = Server::open();
    let browser = |path: &str| {
        Request::new("GET", path).header("Host", "192.168.7.9").header("User-Agent", "Mozilla/5.0")
    };
    let changing = [
        "/topic/a/create",
        "/topic/a/push?message=x",
        "/topic/a/config?retention_count=1",
        "/topic/b/subscribe?anyway=true",
        "/v1/topics/b/follow?%61nyway",
    ];
    server.get("/topic/a/create").is(200);
    for path in changing {
        server.send(&browser(path)).problem(403, "NotAuthorised");
        let head = Request::new("HEAD", path).header("User-Agent", "Mozilla/5.0");
        assert_eq!(server.send(&head).status(), 403, "{path}");
        let linked = Request::new("GET", path).header("Referer", "http://evil.example/");
        server.send(&linked).problem(403, "NotAuthorised");
    }
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
    server.get("/v1/topics/b").problem(404, "UnknownTopic");
    // What changes nothing may be looked at, typed addresses do what they say, and programs
    // are not browsers.
    server.send(&browser("/topic/a/config")).is(200);
    for path in &changing[..3] {
        server.send(&browser(path).header("Sec-Fetch-Site", "none"));
        server.send(&Request::new("GET", path).header("User-Agent", "curl/8.5.0"));
    }
    assert_eq!(server.get("/v1/topics/a").json()["next"], 3);
}

#[test]
fn h2_a_name_of_another_server_is_refused_on_every_path() {
    let server = Server::with(|http, _| http.hosts = vec!["queue.example".into()]);
    server.put("/v1/topics/a", &json!({})).is(201);
    let rebound = |method: &str, path: &str| {
        Request::new(method, path)
            .header("Host", "evil.example:4280")
            .header("Origin", "http://evil.example:4280")
            .header("Sec-Fetch-Site", "same-origin")
    };
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/healthz"),
        ("GET", "/v1/topics/a/messages"),
        ("GET", "/v1/topics/a/follow"),
        ("GET", "/v1/state/live"),
        ("GET", "/v1/stream/s"),
        ("POST", "/v1/topics/a/messages"),
        ("DELETE", "/v1/topics/a"),
        ("OPTIONS", "/v1/topics/a"),
        ("GET", "/nowhere"),
    ] {
        let answer = server.send(&rebound(method, path)).problem(421, "NotAuthorised");
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains("evil.example") && detail.contains("http.hosts"), "{detail}");
    }
    let upgrade = rebound("GET", "/v1/topics/a/follow")
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==");
    server.send(&upgrade).problem(421, "NotAuthorised");
    let in_line = Request::new("GET", "http://evil.example/v1/topics/a");
    server.send(&in_line).problem(421, "NotAuthorised");
    for host in ["localhost:4280", "127.0.0.1", "[::1]:4280", "queue.example", "192.168.7.9:80"] {
        server.send(&Request::new("GET", "/v1/topics/a").header("Host", host)).is(200);
    }
    let mut client = server.connect();
    client.write(b"GET /v1/topics/a HTTP/1.1\r\n\r\n");
    client.answer().problem(400, "BadRequest");
    let mut client = server.connect();
    client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n");
    client.answer().problem(400, "BadRequest");
    let mut client = server.connect();
    client.write(b"GET /healthz HTTP/1.0\r\n\r\n");
    client.answer().is(200);
}

#[test]
fn origins_that_are_allowed_may_read_and_change() {
    let server = Server::with(|http, _| http.cors_origins = vec!["https://app.example".into()]);
    let preflight = Request::new("OPTIONS", "/v1/topics/a")
        .header("Origin", "https://app.example")
        .header("Access-Control-Request-Method", "PUT");
    let answer = server.send(&preflight).is(200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    let put = Request::new("PUT", "/v1/topics/a")
        .header("Origin", "https://app.example")
        .header("Sec-Fetch-Site", "cross-site")
        .json(&json!({}));
    let answer = server.send(&put).is(201);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    let other = Request::new("GET", "/v1/topics/a").header("Origin", "https://evil.example");
    assert_eq!(server.send(&other).is(200).header("access-control-allow-origin"), None);
}
