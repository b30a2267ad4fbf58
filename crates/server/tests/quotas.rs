//! Quotas from outside: what is over one is refused with the time to come back, on both listeners.

mod common;
#[path = "common/http.rs"]
mod http;
#[path = "common/secured.rs"]
mod secured;

use std::time::Instant;

use common::{code, create, hello, name, publish, subscribe};
use gapless_core::{Message, TopicSettings};
use gapless_protocol::*;
use http::Request;
use secured::{EVERYTHING, Server};
use serde_json::{Value, json};

/// Asks until there is an answer.
fn until<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + http::DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "it did not happen in time: {what}");
        std::thread::yield_now();
    }
}

/// A server, and the token of an identity with these quotas.
fn with_quotas(quotas: &Value) -> (Server, String) {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    server.command(
        &json!({ "do": "identity_set", "name": "shop", "roles": ["shop"], "quotas": quotas }),
    );
    (server, token)
}

fn by(token: &str, request: Request) -> Request {
    request.header("Authorization", &format!("Bearer {token}"))
}

fn websocket(token: &str) -> Request {
    by(token, Request::new("GET", "/v1/topics/t/follow"))
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

#[test]
fn f3_connections_over_http_count_for_those_who_send_requests_by_them() {
    let (server, token) = with_quotas(&json!({ "connections": 2 }));
    let connect = || http::Client::connect(server.http.address());
    let list = || by(&token, Request::new("GET", "/v1/topics"));
    let (mut first, mut second) = (connect(), connect());
    for _ in 0..3 {
        first.send(&list()).is(200);
    }
    // A stream counts as the connection that it is on.
    let follow = by(&token, Request::new("GET", "/v1/topics/t/follow"));
    assert_eq!(second.begin(&follow).status, 200);
    let mut third = connect();
    let over = third.send(&list()).problem(429, "QuotaExceeded");
    assert_eq!((&over.json()["quota"], &over.json()["limit"]), (&json!("connections"), &json!(2)));
    assert!(over.header("retry-after").is_some() && over.json()["retry_after_ms"].is_u64());
    assert_eq!(over.header("connection"), Some("close"));
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut third.stream, &mut rest).expect("it is closed");
    // Both listeners count together.
    let greeted = server.silent().ask(Hello { token: Some(token.clone().into()), ..hello() });
    assert_eq!(code(&greeted), ErrorCode::QuotaExceeded);
    // Requests without a name, and those of others, are not held up; a proxy may carry many.
    first.send(&Request::new("GET", "/healthz")).is(200);
    let other = server.token("other", EVERYTHING);
    first.send(&by(&other, Request::new("GET", "/v1/topics"))).is(200);
    first.send(&list()).is(200);
    // A place is free again when its connection has ended.
    drop(second);
    until("a free place", || (connect().send(&list()).status() == 200).then_some(()));
}

#[test]
fn f3_a_websocket_counts_as_a_connection_until_it_ends() {
    let (server, token) = with_quotas(&json!({ "connections": 1 }));
    let connect = || http::Client::connect(server.http.address());
    let mut socket = connect();
    assert_eq!(socket.begin(&websocket(&token)).status, 101);
    // It has left the connections of the listener, and counts all the same.
    for _ in 0..3 {
        connect()
            .send(&by(&token, Request::new("GET", "/v1/topics")))
            .problem(429, "QuotaExceeded");
    }
    drop(socket);
    until("a free place", || {
        (connect().send(&by(&token, Request::new("GET", "/v1/topics"))).status() == 200)
            .then_some(())
    });
}

#[test]
fn f3_tokens_that_are_refused_take_no_place_of_a_quota() {
    let (server, token) = with_quotas(&json!({ "connections": 1 }));
    let mut stays = Vec::new();
    for _ in 0..3 {
        let mut wrong = http::Client::connect(server.http.address());
        wrong.send(&by("wrong", Request::new("GET", "/v1/topics"))).is(401);
        stays.push(wrong);
    }
    server.get(&token, "/v1/topics").is(200);
}

#[test]
fn f3_quotas_are_told_with_the_time_to_come_back() {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let quotas = json!({ "connections": 1, "subscriptions": 1, "messages_per_s": 5, "topics": 1 });
    server.command(
        &json!({ "do": "identity_set", "name": "shop", "roles": ["shop"], "quotas": quotas }),
    );
    let mut peer = server.peer(&token);
    let mut second = server.silent();
    let hello = Hello { token: Some(token.clone().into()), ..hello() };
    assert_eq!(code(&second.ask(hello)), ErrorCode::QuotaExceeded);
    peer.follow(subscribe("t", StartFrom::Now));
    assert_eq!(code(&peer.ask(subscribe("t", StartFrom::Now))), ErrorCode::QuotaExceeded);
    assert_eq!(code(&peer.ask(create("t2"))), ErrorCode::QuotaExceeded);
    common::accepted(&peer.ask(publish("t", &vec![Message::new("x"); 5])));
    let over = peer.ask(publish("t", &vec![Message::new("x"); 5]));
    assert_eq!(code(&over), ErrorCode::QuotaExceeded);
    let Verb::Error(error) = over else { panic!("an error") };
    assert!(error.message.contains("5 messages per second; try again in"), "{error:?}");
    assert_eq!(error.retry_after_ms, None, "the hello did not say that it reads this");
    drop((peer, second));
    // The connection is gone when the server has read its end.
    let over = until("the quota of topics", || {
        let over = server.send(&token, Request::new("PUT", "/v1/topics/t2").json(&json!({})));
        let over = over.problem(429, "QuotaExceeded");
        (over.json()["quota"] == "topics").then_some(over)
    });
    assert!(over.header("retry-after").is_some() && over.json()["retry_after_ms"].is_u64());
}

#[test]
fn f3_a_quota_says_on_the_wire_when_to_come_back() {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let quotas = json!({ "connections": 1, "subscriptions": 1, "messages_per_s": 5 });
    server.command(
        &json!({ "do": "identity_set", "name": "shop", "roles": ["shop"], "quotas": quotas }),
    );
    let hello =
        || Hello { token: Some(token.clone().into()), features: Features::RETRY_AFTER, ..hello() };
    let mut peer = server.silent();
    let Verb::Welcome(welcome) = peer.ask(hello()) else { panic!("a welcome") };
    assert_eq!(welcome.features, Features::RETRY_AFTER);
    let wait = |verb: Verb| {
        assert_eq!(code(&verb), ErrorCode::QuotaExceeded);
        let Verb::Error(error) = verb else { panic!("{verb:?}") };
        error.retry_after_ms.expect("the time to wait")
    };
    assert!(wait(server.silent().ask(hello())) > 0, "of connections");
    peer.follow(subscribe("t", StartFrom::Now));
    assert!(wait(peer.ask(subscribe("t", StartFrom::Now))) > 0, "of subscriptions");
    common::accepted(&peer.ask(publish("t", &vec![Message::new("x"); 5])));
    let ms = wait(peer.ask(publish("t", &vec![Message::new("x"); 5])));
    assert!((1..=1_000).contains(&ms), "five are there again within a second: {ms}");
    // An address that has failed often is asked to wait.
    let mut waits = Vec::new();
    for _ in 0..5 {
        let wrong = Hello {
            token: Some("wrong".into()),
            features: Features::RETRY_AFTER,
            ..common::hello()
        };
        let Verb::Error(error) = server.silent().ask(wrong) else { panic!("an error") };
        waits.push(error.retry_after_ms);
    }
    assert_eq!(waits, [None, None, None, Some(100), Some(200)]);
    let refused = http::Client::connect(server.http.address())
        .send(&Request::new("GET", "/v1/topics").header("Authorization", "Bearer wrong"));
    let refused = refused.problem(401, "NotAuthenticated");
    assert_eq!(refused.json()["retry_after_ms"], 400);
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[test]
fn f3_a_member_over_http_counts_as_a_subscription() {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let group = Request::new("PUT", "/v1/groups/g").json(&json!({ "source": "t" }));
    server.send(&token, group).is(201);
    let quotas = json!({ "subscriptions": 1 });
    server.command(
        &json!({ "do": "identity_set", "name": "shop", "roles": ["shop"], "quotas": quotas }),
    );
    let fetch = |member: &str| {
        let path = format!("/v1/groups/g/fetch?member={member}&max=1");
        server.send(&token, Request::new("POST", &path))
    };
    fetch("a").is(200);
    fetch("a").is(200);
    fetch("b").problem(429, "QuotaExceeded");
    server.send(&token, Request::new("DELETE", "/v1/groups/g/members/a")).is(204);
    fetch("b").is(200);
}
