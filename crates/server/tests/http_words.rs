//! Errors say what to do, in words of HTTP and JSON.

#[path = "common/http.rs"]
mod http;

use http::{Answer, Request, Server};
use serde_json::{Value, json};

#[track_caller]
fn says(answer: &Answer, words: &[&str]) {
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    for word in words {
        assert!(detail.contains(word), "{word:?} is not in: {detail}");
    }
    for foreign in ["`gapless ", "`configure`", "u64", "u32", "enum", "struct ", "sequence"] {
        assert!(!detail.contains(foreign), "{foreign:?} is in: {detail}");
    }
}

fn patch(path: &str, json: &Value) -> Request {
    Request::new("PATCH", path).json(json)
}

#[test]
fn hints_name_calls_of_http() {
    let server = Server::open();
    let put = "PUT /v1/topics/no";
    says(&server.get("/topic/no/push?message=x").problem(404, "UnknownTopic"), &[put]);
    says(&server.post("/v1/topics/no/messages", "x").problem(404, "UnknownTopic"), &[put]);
    says(&server.get("/v1/topics/no/follow").problem(404, "UnknownTopic"), &[put]);
    says(&server.get("/v1/topics/no/messages").problem(404, "UnknownTopic"), &[put]);
    says(&server.send(&patch("/v1/topics/no", &json!({}))).problem(404, "UnknownTopic"), &[put]);
    let deleted = server.delete("/v1/topics/no").problem(404, "UnknownTopic");
    says(&deleted, &["nothing was deleted"]);
    says(&server.get("/v1/groups/no").problem(404, "UnknownGroup"), &["PUT /v1/groups/no"]);
    server.put("/v1/topics/a", &json!({})).is(201);
    let other = server.put("/v1/topics/a", &json!({ "compaction": true }));
    says(&other.problem(409, "TopicExists"), &["PATCH /v1/topics/a"]);
    server.put("/v1/groups/g", &json!({ "source": "a" })).is(201);
    let other = server.put("/v1/groups/g", &json!({ "source": "a", "lease_ms": 1000 }));
    says(&other.problem(409, "GroupExists"), &["PATCH /v1/groups/g"]);
}

#[test]
fn a_method_that_is_not_offered_is_told_those_that_are() {
    let server = Server::open();
    let answer = server.post("/v1/topics/a", "").problem(405, "MethodNotAllowed");
    says(&answer, &["POST is not offered here; these are: GET, HEAD, PUT, PATCH, DELETE"]);
    assert_eq!(answer.header("allow"), Some("GET,HEAD,PUT,PATCH,DELETE"));
}

#[test]
fn a_wildcard_inside_a_token_is_explained() {
    let server = Server::open();
    for path in ["/v1/topics?pattern=h%2A", "/v1/follow?pattern=h%2A", "/v1/groups?pattern=h%2A"] {
        says(&server.get(path).problem(400, "BadPattern"), &["h*", "a token of its own"]);
    }
    let answer = server.get("/v1/follow?pattern=o.%3E&from=seq:1").problem(400, "NeedsTopic");
    says(&answer, &["o.>", "one existing topic", "cursor"]);
}

#[test]
fn what_is_wrong_with_json_is_told_in_words_of_json() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    for (path, body, words) in [
        ("/v1/topics/b", json!({ "retention": { "count": "x" } }), "a whole number"),
        ("/v1/topics/b", json!({ "retention": { "count": -1 } }), "a whole number"),
        ("/v1/topics/b", json!({ "retention": [1] }), "invalid type: array, expected an object"),
        ("/v1/topics/b", json!({ "retention": 5 }), "expected an object"),
        ("/v1/topics/b", json!({ "compaction": "yes" }), "tombstone_grace_ms"),
        ("/v1/topics/b", json!({ "max_message_bytes": 5_000_000_000_u64 }), "4294967295"),
        ("/v1/groups/g", json!({ "source": "a", "retry": [100, 200] }), "expected an object"),
        ("/v1/groups/g", json!({ "source": "a", "retry": { "step_ms": [1] } }), "`steps_ms`"),
        ("/v1/groups/g", json!({ "source": "a", "retry": { "steps_ms": 1 } }), "an array"),
    ] {
        says(&server.put(path, &body).problem(400, "BadRequest"), &[words]);
    }
    let config = server.post_json("/topic/a/config", &json!({ "retention": "often" }));
    says(&config.problem(400, "BadRequest"), &["true, false, or a time in milliseconds"]);
    let push = server.post_json("/topic/a/push", &json!([1]));
    says(&push.problem(400, "BadRequest"), &["send {\"key\": …, \"data\": …}"]);
    says(&server.delete("/v1/delayed/x").problem(400, "BadRequest"), &["`id=x`", "whole number"]);
    says(
        &server.get("/v1/topics?limit=x").problem(400, "BadRequest"),
        &["`limit=x`", "whole number"],
    );
    let ttl = server.post("/v1/topics/a/messages?ttl_ms=soon", "x");
    says(&ttl.problem(400, "BadRequest"), &["`ttl_ms=soon`", "whole number"]);
}

#[test]
fn a_byte_of_the_address_that_must_be_escaped_is_named() {
    let server = Server::open();
    let answer = server.get("/v1/topics?pattern=o.>").problem(400, "BadRequest");
    says(&answer, &["byte 22 of the address is '>'", "write %3E"]);
    let answer = server.get("/topic/a/push?message={\"data\":1}").problem(400, "BadRequest");
    says(&answer, &["'\"'", "write %22"]);
    let answer = server.get("/topic/a/push?message=two words").problem(400, "BadRequest");
    says(&answer, &["' '", "write %20"]);
    // The next one is none of its business.
    let mut client = server.connect();
    client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n");
    says(&client.answer().problem(400, "BadRequest"), &["not valid HTTP/1.1"]);
}

#[test]
fn l6_a_length_beside_chunks_smuggles_nothing() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    let hidden = "DELETE /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for lengths in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
    ] {
        let mut client = server.connect();
        client.write(
            format!(
                "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n\
                 0\r\n\r\n{hidden}"
            )
            .as_bytes(),
        );
        client.answer().is(201);
        assert!(client.is_closed(), "what follows is not trusted");
    }
    server.get("/v1/topics/a").is(200);
}
