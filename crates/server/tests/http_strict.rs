//! Nothing that was asked for is passed over, and nothing is done that was not asked for.

#[path = "common/http.rs"]
mod http;

use std::time::{Duration, Instant};

use http::{Request, Server};
use serde_json::{Value, json};

fn with_topic(name: &str) -> Server {
    let server = Server::open();
    server.put(&format!("/v1/topics/{name}"), &json!({})).is(201);
    server
}

fn publish(path: &str) -> Request {
    Request::new("POST", path).body("x")
}

fn lines(path: &str, body: impl Into<Vec<u8>>) -> Request {
    Request::new("POST", path).header("Content-Type", "application/x-ndjson").body(body)
}

fn detail(problem: &http::Answer) -> String {
    problem.json()["detail"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_misspelt_header_publishes_nothing_and_is_told_what_was_meant() {
    let server = with_topic("a");
    let path = "/v1/topics/a/messages";
    for (wrong, meant) in [
        ("Gapless-Expected-Seq", "did you mean `Gapless-Expect-Seq`?"),
        ("Gapless-Ttl", "did you mean `Gapless-Ttl-Ms`?"),
        ("Gapless-Create", "these are: Gapless-Durability, "),
    ] {
        let answer = server.send(&publish(path).header(wrong, "99")).problem(400, "BadRequest");
        let detail = detail(&answer);
        assert!(detail.contains(wrong) && detail.contains(meant), "{detail}");
    }
    // Of many messages at once a header can say only what is true of all.
    for wrong in ["Gapless-Key", "Gapless-Header-Trace"] {
        let many = lines(path, "{\"text\":\"x\"}\n").header(wrong, "x");
        server.send(&many).problem(400, "BadRequest");
    }
    // Where no header of ours is read, none is passed over.
    for elsewhere in ["/topic/a/push", "/v1/atomic"] {
        let request = Request::new("POST", elsewhere).header("Gapless-Expect-Seq", "99");
        server.send(&request.json(&json!({ "data": 1 }))).problem(400, "BadRequest");
    }
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
    server.send(&publish(path).header("Gapless-Header-Anything", "x")).is(201);
}

#[test]
fn what_is_given_twice_is_refused() {
    let server = with_topic("a");
    let both = publish("/v1/topics/a/messages?key=q").header("Gapless-Key", "h");
    let answer = server.send(&both).problem(400, "BadRequest");
    assert!(detail(&answer).contains("`key` or `Gapless-Key`, not both"), "{}", detail(&answer));
    let twice =
        publish("/v1/topics/a/messages").header("Gapless-Key", "1").header("Gapless-Key", "2");
    server.send(&twice).problem(400, "BadRequest");
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
}

#[test]
fn a_purge_must_say_what_goes() {
    let server = with_topic("a");
    for _ in 0..3 {
        server.send(&publish("/v1/topics/a/messages")).is(201);
    }
    for vague in ["", "?all=false", "?below=2&all=true"] {
        let answer = server.post(&format!("/v1/topics/a/purge{vague}"), "");
        assert!(detail(&answer.problem(400, "BadRequest")).contains("all=true"), "{vague}");
    }
    assert_eq!(server.get("/v1/topics/a").json()["first"], 1, "nothing is gone");
    assert_eq!(server.post("/v1/topics/a/purge?below=2", "").is(200).json()["purged"], 1);
    assert_eq!(server.post("/v1/topics/a/purge?all=true", "").is(200).json()["purged"], 2);
}

#[test]
fn lines_are_asked_for_before_they_are_answered() {
    let server = with_topic("a");
    let mut client = server.connect();
    client.write(
        b"POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\
          Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    // The body is sent only now, as curl does it.
    assert_eq!(client.head().status, 100);
    client.write(b"d\r\n{\"text\":\"1\"}\n\r\n0\r\n\r\n");
    let answers = client.answer().is(200).lines();
    assert_eq!(answers.last().unwrap()["accepted"], 1);
    assert_eq!(server.get("/v1/topics/a").json()["next"], 2);
}

#[test]
fn an_export_is_imported_as_it_is() {
    let server = with_topic("a");
    server.put("/v1/topics/b", &json!({})).is(201);
    for body in ["one", "two", "three"] {
        server.post("/v1/topics/a/messages?key=k", body).is(201);
    }
    server.post("/v1/topics/a/purge?below=2", "").is(200);
    let export = Request::new("GET", "/v1/topics/a/messages?from=1&format=ndjson");
    let exported = server.send(&export).is(200);
    assert_eq!(exported.lines().len(), 4, "a gap, two messages, the end: {}", exported.text());
    let answers = server.send(&lines("/v1/topics/b/messages", exported.body)).is(200).lines();
    let end = answers.last().unwrap();
    assert_eq!((&end["accepted"], &end["refused"]), (&json!(2), &json!(0)), "{answers:?}");
    let texts = |topic: &str| {
        let page = server.get(&format!("/v1/topics/{topic}/messages")).is(200).json();
        let texts = page["messages"].as_array().unwrap().iter().map(|each| each["text"].clone());
        texts.collect::<Vec<Value>>()
    };
    assert_eq!(texts("b"), texts("a"));
    // What only looks like it is still no message.
    let wrong = "{\"end\":false}\n{\"end\":true,\"lines\":4}\n{}\n";
    let answers = server.send(&lines("/v1/topics/b/messages", wrong)).is(200).lines();
    assert_eq!(answers.last().unwrap()["refused"], 3, "{answers:?}");
}

#[test]
fn a_duplicate_has_the_position_of_the_first() {
    let server = with_topic("a");
    let first = server.post("/v1/topics/a/messages?id=i", "x").is(201).json();
    let again = server.post("/v1/topics/a/messages?id=i", "x").is(200).json();
    assert_eq!((&again["duplicate"], &again["position"]), (&json!(true), &first["position"]));
    assert!(first["position"].as_u64().is_some_and(|position| position > 0));
    // In lines it is not looked up, and not made up.
    let answers = server.send(&lines("/v1/topics/a/messages", "{\"id\":\"i\",\"text\":\"x\"}\n"));
    let answer = answers.is(200).lines()[0].clone();
    assert_eq!((&answer["duplicate"], &answer["position"]), (&json!(true), &Value::Null));
}

#[test]
fn a_fetch_says_whether_more_waits() {
    let server = with_topic("a");
    server.put("/v1/groups/g", &json!({ "source": "a" })).is(201);
    for _ in 0..3 {
        server.send(&publish("/v1/topics/a/messages")).is(201);
    }
    let more = [true, true, false];
    for more in more {
        let path = "/v1/groups/g/fetch?member=m&max=1&wait_ms=30000";
        let fetched = server.post(path, "").is(200).json();
        assert_eq!((&fetched["count"], &fetched["more"]), (&json!(1), &json!(more)));
    }
}

#[test]
fn a_limit_that_cannot_be_met_is_refused() {
    let server = with_topic("a");
    server.put("/v1/groups/g", &json!({ "source": "a" })).is(201);
    for path in [
        "/v1/topics/a/messages?limit=0",
        "/v1/topics/a/messages?limit=100000",
        "/v1/topics/a/messages?format=ndjson&limit=0",
        "/v1/topics?limit=0",
        "/v1/topics?limit=1001",
        "/v1/groups?limit=0",
        "/v1/groups/g/dead-letters?limit=0",
    ] {
        let answer = server.get(path).problem(400, "BadRequest");
        assert!(detail(&answer).contains("it goes from 1 to "), "{}", detail(&answer));
    }
    server.post("/v1/groups/g/fetch?max=100000000", "").problem(400, "BadRequest");
}

#[test]
fn a_condition_on_a_key_needs_a_key() {
    let server = with_topic("a");
    server.post("/v1/topics/a/messages?expect_key_seq=1", "x").problem(400, "BadRequest");
    let answers =
        server.send(&lines("/v1/topics/a/messages", "{\"text\":\"x\",\"expect_key_seq\":0}\n"));
    assert_eq!(answers.is(200).lines()[0]["name"], "BadRequest");
    let atomic = json!({ "parts": [
        { "topic": "a", "expect_key_seq": 0, "messages": [{ "text": "x" }] },
    ]});
    server.post_json("/v1/atomic", &atomic).problem(400, "BadRequest");
    server.post("/v1/topics/a/messages?expect_key_seq=0&key=k", "x").is(201);
}

#[test]
fn the_first_comment_comes_as_soon_as_the_others() {
    let server = with_topic("a");
    // On a busy machine a comment may be late; but it must not be late each time.
    let is_in_time = || {
        let mut client = server.connect();
        let began = Instant::now();
        client.begin(&Request::new("GET", "/v1/topics/a/follow?keep_alive_secs=1"));
        while !client.line().expect("the stream goes on").starts_with(": keep-alive") {}
        began.elapsed() < Duration::from_millis(1900)
    };
    assert!((0..5).any(|_| is_in_time()));
}

#[test]
fn the_state_is_the_same_word_everywhere() {
    let server = with_topic("a");
    let about = server.get("/about").is(200).json()["state"].clone();
    let state = Request::new("GET", "/").header("Accept", "application/json");
    assert_eq!(server.send(&state).is(200).json()["server"]["state"], about);
    assert_eq!(about, "online");
}
