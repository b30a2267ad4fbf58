//! Requests and their answers over HTTP, delivery reports, and what needs a cluster.

#[path = "common/http.rs"]
mod http;

use gapless_broker::{Delivery, From};
use gapless_core::{Message, Pattern, PublishOptions, TopicName};
use http::{Request, Server};
use serde_json::json;

/// Answers the first request to a subject in a thread of its own.
fn responder(
    server: &Server,
    subject: &str,
    answer: Option<Message>,
) -> std::thread::JoinHandle<Message> {
    let broker = server.broker.clone();
    let pattern = Pattern::parse(subject).expect("a pattern");
    let mut requests = broker.subscribe(&pattern, From::Now).expect("it is followed");
    let runtime = server.runtime.handle().clone();
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let Ok(Delivery::Messages(messages)) = requests.next().await else { continue };
                let request = messages.iter().next().expect("a request").message;
                let (_, to) =
                    request.headers.iter().find(|(name, _)| name == "reply-to").expect("a subject");
                let to = TopicName::parse(std::str::from_utf8(to).expect("text")).expect("a name");
                if let Some(answer) = answer {
                    let done = broker.publish(&to, &answer, &PublishOptions::default());
                    assert!(done.is_accepted(), "{:?}", done.rejected_with());
                }
                return request;
            }
        })
    })
}

#[test]
fn a_request_is_answered_by_one_who_follows_the_subject() {
    let server = Server::open();
    let answer = Message::new("{\"eur\":12}").with_header("content-type", "application/json");
    let asked = responder(&server, "prices.*", Some(answer));
    let request =
        Request::new("POST", "/v1/request/prices.get").header("Content-Type", "text/plain");
    let got = server.send(&request.body("apples")).is(200);
    assert_eq!(got.json(), json!({ "eur": 12 }));
    assert_eq!(got.header("content-type"), Some("application/json"));
    let request = asked.join().expect("it was asked");
    assert_eq!(request.body.as_deref(), Some(&b"apples"[..]));
    assert!(
        request.headers.iter().any(|(name, value)| name == "content-type" && value == "text/plain")
    );
    assert!(server.broker.subscribers().is_empty(), "the subject of the answer is given up");
}

#[test]
fn a_request_without_a_responder_is_refused_at_once_and_one_without_an_answer_in_time() {
    let server = Server::open();
    server.post("/v1/request/prices.get", "apples").problem(409, "NoSubscribers");
    let silent = responder(&server, "prices.get", None);
    server.post("/v1/request/prices.get?timeout_ms=20", "apples").problem(504, "TimedOut");
    silent.join().expect("it was asked");
    for wrong in ["timeout_ms=0", "timeout_ms=999999999", "within=1"] {
        server.post(&format!("/v1/request/prices.get?{wrong}"), "x").problem(400, "BadRequest");
    }
    server.post("/v1/request/a..b", "x").problem(400, "InvalidTopic");
    assert!(server.broker.subscribers().is_empty());
}

#[test]
fn a8_a_publish_over_http_is_answered_with_its_report() {
    let server = Server::open();
    let mut follower = server
        .broker
        .subscribe(&Pattern::parse("s").expect("a pattern"), From::Now)
        .expect("followed");
    let number = follower.id();
    let taking = server.runtime.spawn(async move {
        loop {
            if let Ok(Delivery::Messages(_)) = follower.next().await {
                return follower;
            }
        }
    });
    let ack = server.post("/v1/topics/s/messages?report=true", "x").is(201).json();
    let expected = json!({ "status": "delivered", "delivered": 1, "failed": [], "unnamed": 0 });
    assert_eq!(ack["report"], expected);
    let follower = server.runtime.block_on(taking).expect("it took it");
    // One who leaves without having taken it is named.
    let mut client = server.connect();
    client.write(&Request::new("POST", "/v1/topics/s/messages?report=true").body("y").bytes());
    while server.broker.open_reports() == 0 {
        std::thread::yield_now();
    }
    drop(follower);
    let report = &client.answer().is(201).json()["report"];
    let failed = json!([{ "subscriber": number, "status": "subscriber-unreachable" }]);
    assert_eq!((&report["status"], &report["failed"]), (&json!("subscriber-unreachable"), &failed));
    server.put("/v1/topics/durable", &json!({})).is(201);
    server.post("/v1/topics/durable/messages?report=true", "x").problem(400, "NotSupported");
}

#[test]
fn what_needs_a_cluster_is_refused_without_one() {
    let server = Server::open();
    server.get("/v1/follow?pattern=s&identity=ana").problem(400, "NotSupported");
    server.get("/v1/follow?pattern=s&identity=a%20b").problem(400, "BadRequest");
    server.get("/v1/follow?pattern=s&identity=ana&from=beginning").problem(400, "BadRequest");
    server.post("/v1/topics/s/messages?delivery=at-least-once", "x").problem(400, "NotSupported");
    server.post("/v1/topics/s/messages?partition=drop", "x").problem(400, "NotSupported");
    server.post("/v1/topics/s/messages?delivery=twice", "x").problem(400, "BadRequest");
}
