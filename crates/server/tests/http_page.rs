//! The page at `/` and the state it shows, over real sockets: what people and programs get,
//! whether it is true, that it is bounded, and that nothing is sampled while no page is open.

#[path = "common/http.rs"]
mod http;
mod streams;

use std::time::{Duration, Instant};

use gapless_broker::Broker;
use gapless_core::{Message, PublishOptions, TopicName, TopicSettings};
use gapless_server::native::{NativeListener, NativeOptions};
use http::{Answer, DEADLINE, Request, Server};
use serde_json::{Value, json};
use streams::Stream;

/// Fast, so that tests are.
const INTERVAL: Duration = Duration::from_millis(20);

fn quick() -> Server {
    Server::with(|http, _| {
        http.sample_interval = INTERVAL;
        http.sample_linger = Duration::ZERO;
    })
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

fn state(server: &Server, query: &str) -> Value {
    let request = Request::new("GET", &format!("/{query}")).header("Accept", "application/json");
    server.send(&request).is(200).json()
}

fn publish(broker: &Broker, topic: &str, count: usize) {
    let messages = vec![Message::new("0123456789"); count];
    let done = broker.publish_batch(&name(topic), &messages, &PublishOptions::default());
    assert!(done.wait().expect("an ack").accepted().is_some());
}

/// The state as a viewer sees it: the full one, with all deltas so far.
struct Viewer {
    stream: Stream,
    full: Value,
    deltas: Vec<(Value, usize)>,
}

impl Viewer {
    fn open(server: &Server, query: &str) -> Self {
        let mut stream = Stream::open(server.address, &format!("/v1/state/live{query}"), None);
        assert_eq!(stream.status, 200, "{}", stream.head);
        let first = stream.next();
        assert_eq!(first.event, "full");
        Self { stream, full: first.json(), deltas: Vec::new() }
    }

    fn delta(&mut self) -> Value {
        let event = self.stream.next();
        assert_eq!(event.event, "delta");
        self.deltas.push((event.json(), event.data.len()));
        event.json()
    }

    /// Takes deltas until one is as wanted.
    fn until(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let delta = self.delta();
            if is(&delta) {
                return delta;
            }
            assert!(Instant::now() < deadline, "it did not happen in time: {what}");
        }
    }
}

fn accept(server: &Server, path: &str, accept: &str) -> Answer {
    server.send(&Request::new("GET", path).header("Accept", accept))
}

#[test]
fn c2_people_get_the_page_and_programs_the_state() {
    let server = quick();
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for wanted in [browser, "*/*", "text/html"] {
        let page = accept(&server, "/", wanted).is(200);
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert!(page.text().starts_with("<!doctype html>"));
        assert!(page.header("vary").is_some_and(|vary| vary.contains("accept")));
    }
    let json = accept(&server, "/", "application/json").is(200);
    assert_eq!(json.header("content-type"), Some("application/json"));
    assert!(json.header("vary").is_some_and(|vary| vary.contains("accept")));
    let json = json.json();
    for part in ["server", "totals", "rates", "journal", "flush", "recovery", "history", "topics"] {
        assert!(json[part].is_object(), "{part}: {json:#}");
    }
    assert_eq!(json["server"]["state"], "listening");
}

#[test]
fn the_page_names_its_files_and_they_are_kept_for_ever() {
    let server = quick();
    let page = server.get("/").is(200);
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"));
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let text = page.text();
    assert!(!text.contains("{{"), "every place is filled");
    assert!(!text.contains("<style") && !text.contains(" style="), "nothing inline");
    assert!(!text.contains("http://") || !text.contains("src=\"http"), "nothing from elsewhere");
    let paths: Vec<&str> = text.split('"').filter(|part| part.starts_with("/page/")).collect();
    assert!(paths.len() >= 4, "{paths:?}");
    for path in paths {
        let file = server.get(path).is(200);
        assert!(file.header("cache-control").is_some_and(|kept| kept.contains("immutable")));
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        let tag = file.header("etag").expect("a tag");
        let again = server.send(&Request::new("GET", path).header("If-None-Match", tag)).is(304);
        assert!(again.body.is_empty());
    }
    let tag = page.header("etag").expect("a tag");
    server.send(&Request::new("GET", "/").header("If-None-Match", tag)).is(304);
    let weak = format!("\"other\", W/{tag}");
    server.send(&Request::new("GET", "/").header("If-None-Match", &weak)).is(304);
    server.send(&Request::new("GET", "/").header("If-None-Match", "\"other\"")).is(200);
    server.get("/page/0000000000000000/app.js").is(404);
    server.get("/page/../Cargo.toml").is(404);
}

#[test]
fn the_state_is_true_at_once() {
    let server = quick();
    server.put("/v1/topics/a.one", &json!({})).is(201);
    server.put("/v1/topics/a.two", &json!({})).is(201);
    publish(&server.broker, "a.one", 7);
    let now = state(&server, "");
    assert_eq!(now["server"]["state"], "online");
    assert_eq!(now["server"]["epoch"], server.broker.epoch().to_string());
    assert_eq!(now["totals"]["topics"], 2);
    assert_eq!(now["totals"]["messages"], 7);
    assert_eq!(now["topics"]["total"], 2);
    let row = &now["topics"]["rows"][0];
    assert_eq!(
        (&row["name"], &row["first"], &row["next"]),
        (&json!("a.one"), &json!(1), &json!(8))
    );
    let info = server.broker.describe_topic(&name("a.one")).expect("a topic");
    assert_eq!(row["bytes"], info.bytes);
    assert_eq!(now["flush"]["count"], server.broker.journal_stats().flushes);
    assert!(now["flush"]["p50_us"].is_u64(), "{now:#}");

    // The next reading shows what came since, and what is gone.
    publish(&server.broker, "a.two", 3);
    server.broker.delete_topic(&name("a.one")).expect("it is there");
    let now = state(&server, "?show=topics");
    assert_eq!(now["topics"]["rows"].as_array().map(Vec::len), Some(1));
    assert_eq!(now["topics"]["rows"][0]["next"], 4);
    assert!(now.get("totals").is_none(), "only what was asked for");
}

#[test]
fn rates_add_up_to_what_was_published() {
    let server = quick();
    server.put("/v1/topics/rates", &json!({})).is(201);
    let mut viewer = Viewer::open(&server, "?show=overview,topics");
    viewer.delta();
    publish(&server.broker, "rates", 500);
    // Points are messages of an interval, so they add up; rates are per second.
    let points = |delta: &Value| -> u64 {
        let row = &delta["topics"]["rows"][0];
        let points = row["points"].as_array().or(row["recent"].as_array());
        points.map_or(0, |points| points.iter().filter_map(Value::as_u64).sum())
    };
    let seen = viewer.until("the messages are in a point", |delta| points(delta) > 0);
    let mut sum = points(&seen);
    assert!(seen["topics"]["rows"][0]["messages_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
    assert!(seen["rates"]["messages_in"].as_f64().is_some_and(|rate| rate > 0.0), "{seen:#}");
    assert_eq!(seen["totals"]["messages"], 500);
    while sum < 500 {
        sum += points(&viewer.delta());
    }
    assert_eq!(sum, 500);
}

#[test]
fn d5_subscribers_of_all_doors_are_shown_with_their_states() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = gapless_broker::BrokerOptions::new(folder.path().join("data"));
    let broker = Broker::open(options).expect("a broker");
    let runtime = gapless_server::runtime().expect("a runtime");
    let native =
        NativeListener::open(broker.clone(), NativeOptions::default(), Some("127.0.0.1:0"), None);
    let native = runtime.block_on(native).expect("a listener");
    let http = gapless_server::http::HttpOptions::default();
    let mut listener = runtime
        .block_on(gapless_server::http::HttpListener::listen(http, "127.0.0.1:0"))
        .expect("a listener");
    listener.beside(&native);
    runtime.block_on(async { listener.serve(&broker, None).unwrap() });
    let address = listener.address();
    let server = Server { runtime, broker, listener: Some(listener), address, folder };

    // A client of the native API that follows nothing, and one of HTTP that does.
    let _silent =
        std::net::TcpStream::connect(native.tcp_address().expect("TCP")).expect("connects");
    server.broker.create_topic(&name("d5"), TopicSettings::default()).expect("a topic");
    publish(&server.broker, "d5", 3);
    let mut stream = Stream::open(server.address, "/v1/topics/d5/follow?from=beginning", None);
    while !stream.next().is_message() {}
    let deadline = Instant::now() + DEADLINE;
    let found = loop {
        let found = state(&server, "?show=subscribers");
        let subscribers = &found["subscribers"];
        if subscribers["online"] == 1 && subscribers["connected"] == 1 {
            break found;
        }
        assert!(Instant::now() < deadline, "{found:#}");
        std::thread::yield_now();
    };
    let rows = found["subscribers"]["rows"].as_array().expect("rows");
    let online = rows.iter().find(|row| row["state"] == "online").expect("who follows");
    assert_eq!((&online["pattern"], &online["behind"]), (&json!("d5"), &json!(0)));
    assert!(online["delivered_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert_eq!(online["session"]["listener"], "http");
    assert!(online["session"]["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")));
    let connected = rows.iter().find(|row| row["state"] == "connected").expect("who is silent");
    assert_eq!(connected["session"]["listener"], "native");
    let one = state(&server, "?show=subscribers&state=online");
    assert_eq!(one["subscribers"]["matching"], 1);

    // One who leaves is shown as offline for a while.
    drop(stream);
    let deadline = Instant::now() + DEADLINE;
    while state(&server, "?show=subscribers")["subscribers"]["offline"] != 1 {
        assert!(Instant::now() < deadline, "it is noticed that a client left");
        std::thread::yield_now();
    }
    server.runtime.block_on(native.close());
}

#[test]
fn events_are_told_in_order_to_who_looks() {
    let server = quick();
    let mut viewer = Viewer::open(&server, "?show=events");
    viewer.delta();
    server.put("/v1/topics/told.first", &json!({})).is(201);
    server.put("/v1/topics/told.second", &json!({})).is(201);
    server.delete("/v1/topics/told.first").is(204);
    let mut told = Vec::new();
    while told.len() < 3 {
        let delta = viewer.delta();
        let rows = delta["events"]["rows"].as_array().cloned().unwrap_or_default();
        told.extend(
            rows.iter().map(|row| format!("{} {}", row["event"], row["topic"]).replace('"', "")),
        );
    }
    let expected =
        ["topic.created told.first", "topic.created told.second", "topic.deleted told.first"];
    assert_eq!(told, expected);
}

#[test]
fn with_10_000_topics_a_viewer_is_sent_only_what_it_asked_to_see() {
    let server = quick();
    let names: Vec<TopicName> =
        (0..10_000).map(|number| name(&format!("many.t{number:05}"))).collect();
    server.broker.create_topics(&names, TopicSettings::default()).expect("topics");
    let mut viewer = Viewer::open(&server, "?show=topics&rows=50&sort=rate");
    assert_eq!(viewer.full["topics"]["total"], 10_000);
    assert_eq!(viewer.full["topics"]["rows"].as_array().map(Vec::len), Some(50));
    for number in 0..500 {
        publish(&server.broker, &format!("many.t{number:05}"), 1 + number % 3);
    }
    viewer.until("the busy ones are on top", |delta| {
        delta["topics"]["order"].as_array().is_some_and(|order| order.len() == 50)
    });
    (0..5).for_each(|_| drop(viewer.delta()));
    for (delta, bytes) in &viewer.deltas {
        assert!(*bytes < 64 * 1024, "a delta of {bytes} bytes");
        assert!(delta["topics"]["rows"].as_array().is_none_or(|rows| rows.len() <= 50));
    }
    // Filters, pages and orders are the server's work.
    let found = state(&server, "?show=topics&filter=T0042&rows=7&page=2");
    assert_eq!(found["topics"]["matching"], 10);
    assert_eq!(found["topics"]["pages"], 2);
    assert_eq!(found["topics"]["rows"][0]["name"], "many.t00427");
    let found = state(&server, "?show=topics&filter=many.*&sort=messages&rows=1");
    assert_eq!(found["topics"]["matching"], 10_000);
    assert_eq!(found["topics"]["rows"][0]["next"], 4);
}

#[test]
fn sampling_stops_when_nobody_looks() {
    // It listens to events while it samples, which can be seen at the broker without looking.
    let server = quick();
    let listens = |server: &Server| server.broker.listeners() > 0;
    assert!(!listens(&server), "no page was open yet");
    let mut viewers: Vec<Viewer> =
        (0..3).map(|_| Viewer::open(&server, "?show=overview")).collect();
    let ears = server.broker.listeners();
    viewers.iter_mut().for_each(|viewer| drop(viewer.delta()));
    viewers.iter_mut().for_each(|viewer| drop(viewer.delta()));
    assert!(listens(&server));
    assert!(server.broker.listeners() <= ears.max(8), "one sampler serves them all");
    assert!(server.broker.subscribers().is_empty(), "the server's own are not shown");
    viewers.truncate(1);
    (0..3).for_each(|_| drop(viewers[0].delta()));
    let before = viewers[0].delta()["tick"].as_u64().expect("a tick");
    drop(viewers);
    let deadline = Instant::now() + DEADLINE;
    while listens(&server) {
        assert!(Instant::now() < deadline, "it stops");
        std::thread::yield_now();
    }
    // What was seen is forgotten, so the next one who looks is not shown an old minute.
    let again = Viewer::open(&server, "?show=overview");
    assert!(again.full["tick"].as_u64().is_some_and(|tick| tick >= before));
    let points = again.full["history"]["messages_in"].as_array().expect("points");
    assert!(points.len() <= 1, "{points:?}");
}

#[test]
fn f3_what_makes_no_sense_is_refused_in_words() {
    let server = quick();
    for (query, word) in [
        ("?sort=colour", "sort"),
        ("?rows=0", "rows"),
        ("?rows=100000", "rows"),
        ("?page=first", "page"),
        ("?show=everything", "show"),
        ("?state=happy", "state"),
        ("?fliter=a", "fliter"),
    ] {
        for path in [format!("/{query}"), format!("/v1/state/live{query}")] {
            let answer = accept(&server, &path, "application/json").problem(400, "BadPayload");
            let detail = answer.json()["detail"].to_string();
            assert!(detail.contains(word), "{detail}");
        }
    }
    let full = Server::with(|http, _| http.streams_max = 0);
    full.get("/v1/state/live").is(429);
}

#[test]
fn closing_the_door_ends_the_streams_of_viewers() {
    let server = quick();
    let mut viewers: Vec<Viewer> = (0..3).map(|_| Viewer::open(&server, "")).collect();
    let began = Instant::now();
    server.close();
    assert!(began.elapsed() < DEADLINE);
    for viewer in &mut viewers {
        while viewer.stream.next_or_end().is_some() {}
    }
}

#[test]
fn b6_the_state_of_the_outbox_is_shown_as_it_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = gapless_broker::BrokerOptions::new(folder.path().join("data"));
    let broker = Broker::open(options).expect("a broker");
    let runtime = gapless_server::runtime().expect("a runtime");
    let http = gapless_server::http::HttpOptions::default();
    let mut listener = runtime
        .block_on(gapless_server::http::HttpListener::listen(http, "127.0.0.1:0"))
        .expect("a listener");
    let (tell, told) = tokio::sync::watch::channel(json!({ "safe_seq": 7 }));
    listener.outbox(told);
    runtime.block_on(async { listener.serve(&broker, None).unwrap() });
    let address = listener.address();
    let server = Server { runtime, broker, listener: Some(listener), address, folder };
    assert_eq!(state(&server, "?show=outbox")["outbox"]["safe_seq"], 7);
    tell.send_replace(json!({ "safe_seq": 8 }));
    assert_eq!(state(&server, "")["outbox"]["safe_seq"], 8);
    assert_eq!(state(&quick(), "?show=outbox")["outbox"], Value::Null, "there is none");
}
