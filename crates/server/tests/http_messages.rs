//! Messages over HTTP: published one by one, as lines and atomically; found, read, taken back.

#[path = "common/http.rs"]
mod http;

use std::time::Instant;

use http::{DEADLINE, Request, Server};
use serde_json::{Value, json};

fn with_topic(name: &str) -> Server {
    let server = Server::open();
    server.put(&format!("/v1/topics/{name}"), &json!({})).is(201);
    server
}

fn lines(path: &str, body: impl Into<Vec<u8>>) -> Request {
    Request::new("POST", path).header("Content-Type", "application/x-ndjson").body(body)
}

#[test]
fn c1_a_message_is_published_and_comes_out_the_same() {
    let server = with_topic("a");
    let cases: [(&str, &[u8], Value); 5] = [
        ("application/json", b"{\"n\": 1.10}", json!({ "json": { "n": 1.10 } })),
        ("text/plain; charset=utf-8", "grüße\n".as_bytes(), json!({ "text": "grüße\n" })),
        ("application/octet-stream", b"\x00\xff\n", json!({ "base64": "AP8K" })),
        ("application/cloudevents+json", b"[1]", json!({ "json": [1] })),
        ("text/html", b"", json!({ "text": "" })),
    ];
    for (at, (kind, body, shown)) in cases.into_iter().enumerate() {
        let seq = at + 1;
        let publish = Request::new("POST", "/v1/topics/a/messages");
        let ack = server.send(&publish.header("Content-Type", kind).body(body)).is(201).json();
        assert_eq!(ack["seq"], seq);
        assert_eq!(ack["durability"], "flushed");
        assert_eq!(ack["duplicate"], false);
        let found = server.get(&format!("/v1/topics/a/messages/{seq}")).is(200).json();
        for (name, value) in shown.as_object().unwrap() {
            assert_eq!(&found[name], value, "{kind}");
        }
        assert_eq!(found["headers"]["content-type"], kind);
        assert_eq!(found["position"], ack["position"]);
        let raw = server.get(&format!("/v1/topics/a/messages/{seq}/body")).is(200);
        assert_eq!(raw.body, body);
        assert_eq!(raw.header("content-type"), Some(kind));
        assert_eq!(raw.header("gapless-seq"), Some(seq.to_string().as_str()));
        assert_eq!(raw.header("content-security-policy"), Some("sandbox"));
    }
    server.get("/v1/topics/a/messages/99").problem(404, "NoSuchMessage");
    server.get("/v1/topics/a/messages/x").problem(400, "BadRequest");
    server.get("/v1/topics/b/messages/1").problem(404, "UnknownTopic");
}

#[test]
fn everything_can_be_said_in_the_address_and_in_headers() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({ "durability": "memory" })).is(201);
    let ack = server.post(
        "/v1/topics/a/messages?key=k%20%FF&id=one&ttl_ms=60000&header=trace=a%3Db&durability=flushed",
        "first",
    );
    assert_eq!(ack.is(201).json()["durability"], "flushed");
    let found = server.get("/v1/topics/a/messages/1").json();
    assert_eq!(found["key_base64"], "ayD/");
    assert_eq!((found["id"].as_str(), found["ttl_ms"].as_u64()), (Some("one"), Some(60_000)));
    assert_eq!(found["headers"]["trace"], "a=b");

    let by_header = Request::new("POST", "/v1/topics/a/messages")
        .header("Gapless-Key", "k2")
        .header("Gapless-Id", "two")
        .header("Gapless-Ttl-Ms", "5000")
        .header("Gapless-Expect-Seq", "1")
        .header("Gapless-Header-Trace", "xyz")
        .body("second");
    let ack = server.send(&by_header).is(201).json();
    assert_eq!((ack["seq"].clone(), ack["durability"].clone()), (2.into(), "memory".into()));
    let flushed = Request::new("POST", "/v1/topics/a/messages");
    let flushed = server.send(&flushed.header("Gapless-Durability", "flushed").body("third"));
    assert_eq!(flushed.is(201).json()["durability"], "flushed");
    let raw = server.get("/v1/topics/a/latest/body?key=k2").is(200);
    assert_eq!(raw.text(), "second");
    assert_eq!(raw.header("gapless-header-trace"), Some("xyz"));
    assert_eq!((raw.header("gapless-key"), raw.header("gapless-id")), (Some("k2"), Some("two")));
}

#[test]
fn a_second_message_of_the_same_id_is_told_to_be_there_already() {
    let server = with_topic("a");
    let first = server.post("/v1/topics/a/messages?id=x", "1").is(201).json();
    let second = server.post("/v1/topics/a/messages?id=x", "1").is(200).json();
    assert_eq!(second["duplicate"], true);
    assert_eq!(second["seq"], first["seq"]);
}

#[test]
fn an_expectation_that_fails_says_what_is_there() {
    let server = with_topic("a");
    server.post("/v1/topics/a/messages?expect_seq=0&key=k", "1").is(201);
    let refused = server.post("/v1/topics/a/messages?expect_seq=0", "2");
    let refused = refused.problem(412, "ExpectedSeq").json();
    assert_eq!(
        (refused["actual"].clone(), refused["fate"].clone()),
        (1.into(), "did not happen".into())
    );
    server.post("/v1/topics/a/messages?expect_key_seq=0&key=other", "2").is(201);
    server.post("/v1/topics/a/messages?expect_key_seq=0&key=k", "3").problem(412, "ExpectedSeq");
    server
        .post("/v1/topics/a/messages?expect_seq=1&expect_key_seq=1", "3")
        .problem(400, "BadRequest");
}

#[test]
fn c5_the_latest_of_a_key_is_found_and_a_tombstone_removes_it() {
    let server = with_topic("a");
    server.post("/v1/topics/a/messages?key=k", "old").is(201);
    server.post("/v1/topics/a/messages?key=k", "new").is(201);
    assert_eq!(server.get("/v1/topics/a/latest?key=k").is(200).json()["text"], "new");
    server.post("/v1/topics/a/messages?key=k&tombstone", "").is(201);
    server.get("/v1/topics/a/latest?key=k").problem(404, "NoSuchMessage");
    server.get("/v1/topics/a/latest").problem(400, "BadRequest");
    server.post("/v1/topics/a/messages?tombstone", "").problem(400, "BadRequest");
}

#[test]
fn a_delayed_message_is_scheduled_and_can_be_taken_back() {
    let server = with_topic("a");
    let ack = server.post("/v1/topics/a/messages?delay_ms=3600000", "later").is(202).json();
    let id = ack["delayed"].as_u64().unwrap();
    assert!(ack["due_ms"].is_u64());
    server.delete(&format!("/v1/delayed/{id}")).is(204);
    server.delete(&format!("/v1/delayed/{id}")).problem(404, "NoSuchMessage");
    server.delete("/v1/delayed/x").problem(400, "BadRequest");
}

#[test]
fn a_missing_topic_is_said_to_be_missing_unless_it_may_be_made() {
    let server = Server::open();
    let missing = server.post("/v1/topics/a/messages", "1").problem(404, "UnknownTopic");
    assert!(missing.text().contains("create=true"));
    server.send(&lines("/v1/topics/a/messages", "{\"text\":\"1\"}\n")).problem(404, "UnknownTopic");
    assert_eq!(server.post("/v1/topics/a/messages?create=true", "1").is(201).json()["seq"], 1);
    server.send(&lines("/v1/topics/b/messages?create=true", "{\"text\":\"1\"}")).is(200);
}

#[test]
fn a_misspelt_condition_does_not_publish() {
    let server = with_topic("a");
    server.post("/v1/topics/a/messages?expct_seq=7", "1").problem(400, "BadRequest");
    server.post("/v1/topics/a/messages?durability=rock", "1").problem(400, "BadRequest");
    server.post("/v1/topics/a/messages?ttl_ms=0", "1").problem(400, "InvalidPayload");
    let long = "k".repeat(5000);
    server.post(&format!("/v1/topics/a/messages?key={long}"), "1").problem(400, "InvalidPayload");
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
}

#[test]
fn a_message_that_is_too_large_is_refused_with_the_sizes() {
    let server = Server::with(|http, broker| {
        http.body_bytes_max = 64 * 1024;
        broker.limits.message_bytes_max = 1000;
    });
    server.put("/v1/topics/a", &json!({})).is(201);
    let refused = server.post("/v1/topics/a/messages", vec![b'x'; 2000]).problem(413, "TooLarge");
    assert!(refused.json()["max"].as_u64() <= Some(1000));
    server.post("/v1/topics/a/messages", vec![b'x'; 65 * 1024]).problem(413, "BodyTooLarge");
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
}

#[test]
fn lines_are_published_in_order_and_answered_by_runs() {
    let server = with_topic("a");
    let mut body = String::new();
    for number in 1..=5000 {
        body += &format!("{{\"key\":\"k{number}\",\"json\":{{\"n\":{number}}}}}\n");
    }
    let answers = server.send(&lines("/v1/topics/a/messages", body)).is(200).lines();
    let (end, runs) = answers.split_last().unwrap();
    assert_eq!(end["end"], true);
    assert_eq!((end["accepted"].clone(), end["refused"].clone()), (5000.into(), 0.into()));
    let mut next = 1;
    for run in runs {
        assert_eq!((run["line"].as_u64(), run["first"].as_u64()), (Some(next), Some(next)));
        assert_eq!(run["durability"], "flushed");
        next += run["count"].as_u64().unwrap();
        assert_eq!(run["last"].as_u64(), Some(next - 1));
    }
    assert_eq!(next, 5001);
    let found = server.get("/v1/topics/a/messages/4321").json();
    assert_eq!(
        (found["key"].clone(), found["json"].clone()),
        ("k4321".into(), json!({ "n": 4321 }))
    );
}

#[test]
fn a_bad_line_is_named_and_the_others_are_published() {
    let server = Server::with(|_, broker| broker.limits.message_bytes_max = 200);
    server.put("/v1/topics/a", &json!({})).is(201);
    let large = "x".repeat(500);
    let body = format!(
        "{{\"text\":\"1\"}}\n\nnot json\n{{\"text\":\"{large}\"}}\n{{\"text\":\"2\",\"id\":\"i\"}}\n\
         {{\"text\":\"2\",\"id\":\"i\"}}\n{{\"text\":\"3\",\"expect_seq\":9}}\n\
         {{\"text\":\"3\",\"delay_ms\":3600000}}\n{{\"text\":\"4\"}}"
    );
    let answers = server.send(&lines("/v1/topics/a/messages", body)).is(200).lines();
    let of = |line: u64| {
        let found = answers.iter().find(|answer| answer["line"] == line);
        found.unwrap_or_else(|| panic!("line {line} is not in {answers:#?}"))
    };
    assert_eq!(of(1)["first"], 1);
    assert_eq!(
        (of(3)["name"].clone(), of(3)["fate"].clone()),
        ("BadRequest".into(), "did not happen".into())
    );
    assert_eq!(of(4)["name"], "TooLarge");
    assert_eq!((of(5)["first"].clone(), of(5)["duplicate"].clone()), (2.into(), false.into()));
    assert_eq!((of(6)["first"].clone(), of(6)["duplicate"].clone()), (2.into(), true.into()));
    assert_eq!((of(7)["name"].clone(), of(7)["actual"].clone()), ("ExpectedSeq".into(), 2.into()));
    assert!(of(8)["delayed"].is_u64());
    assert_eq!(of(9)["first"], 3);
    let end = answers.last().unwrap();
    assert_eq!((end["lines"].clone(), end["accepted"].clone()), (9.into(), 3.into()));
    assert_eq!((end["duplicates"].clone(), end["refused"].clone()), (1.into(), 3.into()));
}

#[test]
fn each_line_gets_its_answer_if_that_is_wanted() {
    let server = with_topic("a");
    let body = "{\"text\":\"x\"}\n".repeat(100);
    let request = lines("/v1/topics/a/messages?answer_each", body);
    let answers = server.send(&request).is(200).lines();
    assert_eq!(answers.len(), 101);
    for (at, answer) in answers[..100].iter().enumerate() {
        assert_eq!(answer["line"], at + 1);
        assert_eq!(
            (answer["first"].clone(), answer["last"].clone()),
            ((at + 1).into(), (at + 1).into())
        );
        let found = server.broker.read(&name("a"), gapless_core::Seq(at as u64 + 1)).unwrap();
        assert_eq!(answer["position"], found.unwrap().position.0);
    }
}

fn name(text: &str) -> gapless_core::TopicName {
    gapless_core::TopicName::parse(text).expect("a name")
}

#[test]
fn lines_are_acknowledged_while_the_request_goes_on() {
    let server = with_topic("a");
    let mut client = server.connect();
    client.write(
        b"POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n\
          Transfer-Encoding: chunked\r\n\r\n",
    );
    let chunk = |client: &mut http::Client, text: &str| {
        client.write(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
    };
    // A line in two pieces is one line.
    chunk(&mut client, "{\"text\":");
    chunk(&mut client, "\"1\"}\n");
    assert_eq!(client.head().status, 200);
    let ack: Value = serde_json::from_slice(&client.chunk().unwrap()).unwrap();
    assert_eq!((ack["line"].clone(), ack["first"].clone()), (1.into(), 1.into()));
    chunk(&mut client, "{\"text\":\"2\"}\n{\"text\":\"3\"}\n");
    let ack: Value = serde_json::from_slice(&client.chunk().unwrap()).unwrap();
    assert_eq!((ack["line"].clone(), ack["last"].clone()), (2.into(), 3.into()));
    client.write(b"0\r\n\r\n");
    let end: Value = serde_json::from_slice(&client.chunk().unwrap()).unwrap();
    assert_eq!((end["end"].clone(), end["accepted"].clone()), (true.into(), 3.into()));
    assert!(client.chunk().is_none());
    // The connection is as good as before.
    assert_eq!(client.send(&Request::new("GET", "/healthz")).status(), 200);
}

#[test]
fn rubbish_without_end_is_not_read_to_its_end() {
    let server = with_topic("a");
    let answers = server.send(&lines("/v1/topics/a/messages", "rubbish\n".repeat(5000)));
    let answers = answers.is(200).lines();
    let end = answers.last().unwrap();
    assert_eq!((end["refused"].clone(), end["accepted"].clone()), (1000.into(), 0.into()));
    assert!(answers.iter().any(|answer| answer["stopped"] == true));
}

#[test]
fn several_topics_get_their_messages_together_or_not_at_all() {
    let server = with_topic("a");
    server.put("/v1/topics/b", &json!({})).is(201);
    let both = json!({ "durability": "flushed", "parts": [
        { "topic": "a", "messages": [{ "text": "1" }, { "json": [2] }] },
        { "topic": "b", "expect_seq": 0, "messages": [{ "key": "k", "base64": "/w==" }] },
    ]});
    let parts = server.post_json("/v1/atomic", &both).is(200).json()["parts"].clone();
    assert_eq!((parts[0]["topic"].clone(), parts[0]["last"].clone()), ("a".into(), 2.into()));
    assert_eq!(
        (parts[1]["first"].clone(), parts[1]["durability"].clone()),
        (1.into(), "flushed".into())
    );
    // What b expects is not true any more, so a gets nothing either.
    server.post_json("/v1/atomic", &both).problem(412, "ExpectedSeq");
    assert_eq!(server.get("/v1/topics/a").json()["next"], 3);
    let missing = json!({ "parts": [
        { "topic": "a", "messages": [{ "text": "x" }] }, { "topic": "c", "messages": [{ "text": "x" }] },
    ]});
    let missing = server.post_json("/v1/atomic", &missing).problem(404, "UnknownTopic");
    assert_eq!(missing.json()["topic"], "c");
    for wrong in [
        json!({}),
        json!({ "parts": [] }),
        json!({ "parts": [{ "topic": "a", "messages": [] }] }),
        json!({ "parts": [{ "topic": "a", "messages": [{}] }] }),
        json!({ "parts": [{ "topic": "a", "messages": [{ "text": "1", "delay_ms": 5 }] }] }),
        json!({ "parts": [{ "topic": "a", "messages": [{ "text": "1" }] },
                          { "topic": "a", "messages": [{ "text": "1" }] }] }),
    ] {
        assert_eq!(server.post_json("/v1/atomic", &wrong).status(), 400, "{wrong}");
    }
    assert_eq!(server.get("/v1/topics/a").json()["next"], 3);
}

#[test]
fn a_range_is_read_page_by_page() {
    let server = with_topic("a");
    for number in 1..=7 {
        server.post(&format!("/v1/topics/a/messages?key=k{number}"), number.to_string()).is(201);
    }
    let page = server.get("/v1/topics/a/messages?limit=3").is(200).json();
    let bodies = |page: &Value| {
        let messages = page["messages"].as_array().unwrap().iter();
        messages.map(|message| message["text"].as_str().unwrap().to_owned()).collect::<String>()
    };
    assert_eq!(bodies(&page), "123");
    assert_eq!((page["from"].clone(), page["to"].clone()), (1.into(), 3.into()));
    assert_eq!((page["next"].clone(), page["more"].clone()), (4.into(), true.into()));
    let cursor = page["cursor"].as_str().unwrap();
    let rest = server.get(&format!("/v1/topics/a/messages?from={cursor}")).is(200).json();
    assert_eq!((bodies(&rest).as_str(), rest["more"].clone()), ("4567", false.into()));
    let none =
        server.get(&format!("/v1/topics/a/messages?from={}", rest["cursor"].as_str().unwrap()));
    assert_eq!((bodies(&none.json()).as_str(), none.json()["more"].clone()), ("", false.into()));
    assert_eq!(bodies(&server.get("/v1/topics/a/messages?from=2&to=4").json()), "234");
    assert_eq!(bodies(&server.get("/v1/topics/a/messages?from=seq:7").json()), "7");
    assert_eq!(bodies(&server.get("/v1/topics/a/messages?from=8").json()), "");
    assert_eq!(bodies(&server.get("/v1/topics/a/messages?from=now").json()), "");
    server.get("/v1/topics/a/messages?from=9").problem(409, "Ahead");
    server.get("/v1/topics/a/messages?from=nowhere").problem(400, "BadRequest");
    server.get("/v1/topics/none/messages").problem(404, "UnknownTopic");
}

#[test]
fn v5_a_range_of_which_all_is_gone_tells_the_gap_and_goes_on_behind_it() {
    let server = with_topic("a");
    let body = "{\"text\":\"x\"}\n".repeat(5);
    server.send(&lines("/v1/topics/a/messages", body)).is(200);
    server.post("/v1/topics/a/purge?below=6", "").is(200);
    let page = server.get("/v1/topics/a/messages?from=1").is(200).json();
    assert_eq!(page["gaps"][0]["from"], 1);
    assert_eq!((&page["gaps"][0]["to"], &page["gaps"][0]["reason"]), (&5.into(), &"purge".into()));
    assert_eq!((page["next"].clone(), page["more"].clone()), (6.into(), false.into()));
    let page = server.get("/v1/topics/a/messages").is(200).json();
    assert_eq!((page["gaps"].clone(), page["next"].clone()), (json!([]), 6.into()));
}

#[test]
fn o6_a_range_from_before_a_topic_was_created_again_says_so() {
    let server = with_topic("a");
    server.send(&lines("/v1/topics/a/messages", "{\"text\":\"x\"}\n".repeat(3))).is(200);
    let page = server.get("/v1/topics/a/messages").is(200).json();
    let cursor = page["cursor"].as_str().unwrap().to_owned();
    server.delete("/v1/topics/a").is(204);
    server.put("/v1/topics/a", &json!({})).is(201);
    server.send(&lines("/v1/topics/a/messages", "{\"text\":\"y\"}\n".to_owned())).is(200);
    let page = server.get(&format!("/v1/topics/a/messages?from={cursor}")).is(200).json();
    assert_eq!(page["gaps"][0]["reason"], "deleted");
    assert_eq!(page["messages"][0]["seq"], 1);
}

#[test]
fn d10_a_range_tells_what_is_gone_and_accounts_for_what_is_compacted() {
    let server = with_topic("a");
    let body = "{\"text\":\"x\"}\n".repeat(10);
    server.send(&lines("/v1/topics/a/messages", body)).is(200);
    server.post("/v1/topics/a/purge?below=4", "").is(200);
    let page = server.get("/v1/topics/a/messages?from=2").is(200).json();
    assert_eq!(page["gaps"][0]["from"], 2);
    assert_eq!((&page["gaps"][0]["to"], &page["gaps"][0]["reason"]), (&3.into(), &"purge".into()));
    assert_eq!((page["from"].clone(), page["to"].clone()), (2.into(), 10.into()));
    assert_eq!(page["messages"].as_array().unwrap().len(), 7);
    let token = "0000000000000001:5";
    let page = server.get(&format!("/v1/topics/a/messages?from={token}")).is(200).json();
    assert_eq!(page["gaps"][0]["reason"], "epoch");
    let read = Request::new("GET", "/v1/topics/a/messages?from=1")
        .header("Accept", "application/x-ndjson");
    let lines = server.send(&read).is(200).lines();
    let gap = &lines[0]["gap"];
    assert_eq!((&gap["from"], &gap["to"], &gap["reason"]), (&1.into(), &3.into(), &"purge".into()));
    assert_eq!(lines[1]["seq"], 4);
    assert_eq!((lines[8]["end"].clone(), lines[8]["to"].clone()), (true.into(), 10.into()));
}

#[test]
fn what_is_read_as_lines_can_be_published_again_as_it_is() {
    let server = with_topic("a");
    server.put("/v1/topics/copy", &json!({})).is(201);
    let mut body = String::new();
    for number in 0..20_000 {
        body += &format!(
            "{{\"key\":\"k{number}\",\"json\":{{\"n\":{number}}},\"headers\":{{\"h\":\"v\"}}}}\n"
        );
    }
    server.send(&lines("/v1/topics/a/messages", body)).is(200);
    let read = server.get("/v1/topics/a/messages?format=ndjson").is(200);
    let text = read.text();
    let messages: Vec<&str> = text.lines().filter(|line| line.contains("\"seq\"")).collect();
    assert_eq!(messages.len(), 20_000);
    let end = read.lines().pop().unwrap();
    assert_eq!((end["end"].clone(), end["next"].clone()), (true.into(), 20_001.into()));
    let again = server.send(&lines("/v1/topics/copy/messages", messages.join("\n")));
    assert_eq!(again.lines().pop().unwrap()["accepted"], 20_000);
    let same = |topic: &str| {
        let mut found = server.get(&format!("/v1/topics/{topic}/messages/12345")).json();
        for number in ["topic", "position", "cursor", "time_ms"] {
            found.as_object_mut().unwrap().remove(number);
        }
        found
    };
    assert_eq!(same("a"), same("copy"));
}

#[test]
fn a_reader_may_wait_for_what_comes() {
    let server = with_topic("a");
    let mut client = server.connect();
    client.write(&Request::new("GET", "/v1/topics/a/messages?from=1&wait_ms=30000").bytes());
    let until = Instant::now() + DEADLINE;
    while server.broker.subscribers().is_empty() {
        assert!(Instant::now() < until, "no reader waits");
        std::thread::yield_now();
    }
    server.post("/v1/topics/a/messages", "here").is(201);
    let page = client.answer().is(200).json();
    assert_eq!(
        (page["messages"][0]["text"].clone(), page["next"].clone()),
        ("here".into(), 2.into())
    );
    // And not longer than it wants.
    let page = server.get("/v1/topics/a/messages?from=2&wait_ms=1").is(200).json();
    assert_eq!(page["messages"], json!([]));
}

#[test]
fn v7_a_durability_that_memory_cannot_give_is_refused() {
    let server = Server::open();
    server.put("/v1/topics/v", &json!({ "storage": "volatile" })).is(201);
    for durability in ["written", "flushed"] {
        let path = format!("/v1/topics/v/messages?durability={durability}");
        server.post(&path, "x").problem(409, "NotDurable");
        let told = server.send(&lines(&path, "{\"text\":\"x\"}\n")).is(200).lines();
        assert_eq!(told[0]["name"], "NotDurable", "{told:?}");
    }
    server.post("/v1/topics/v/messages?durability=memory", "x").is(201);
    server.post("/v1/topics/v/messages", "x").is(201);
}
