//! Bad input of every kind over HTTP: each gets a problem that says what is wrong, and leaves
//! the server as it was.

#[path = "common/http.rs"]
mod http;

use std::time::{Duration, Instant};

use http::{Client, Request, Server};
use serde_json::json;

/// A server with short timeouts.
fn impatient() -> Server {
    Server::with(|http, _| {
        http.head_timeout = Duration::from_millis(300);
        http.body_timeout = Duration::from_millis(300);
        http.head_bytes_max = 8192;
        http.body_bytes_max = 4096;
    })
}

fn is_well(server: &Server) {
    server.get("/healthz").is(200);
    server.get("/readyz").is(200);
}

fn raw(server: &Server, bytes: &[u8]) -> Client {
    let mut client = server.connect();
    client.write(bytes);
    client
}

#[test]
fn paths_and_methods_that_are_not_there_are_problems() {
    let server = Server::open();
    server.get("/nowhere").problem(404, "NoSuchPath");
    server.get("/v1/topics/a/b/c/d").problem(404, "NoSuchPath");
    let wrong = server.send(&Request::new("BREW", "/v1/topics")).problem(405, "MethodNotAllowed");
    assert_eq!(wrong.header("allow"), Some("GET,HEAD"));
    server.delete("/v1/topics").problem(405, "MethodNotAllowed");
    server.post("/healthz", "").problem(405, "MethodNotAllowed");
    server.get("/v1/topics/a%zz").problem(400, "BadRequest");
    server.get("/v1/topics?pattern=%").problem(400, "BadRequest");
    server.get("/v1/topics?pattern=%FF").problem(400, "BadRequest");
    server.get("/v1/topics/%FF").problem(400, "BadRequest");
    is_well(&server);
}

#[test]
fn json_that_is_none_is_told_with_its_place() {
    let server = Server::open();
    for body in ["{", "nonsense", "{\"retention\":}", "\u{0}", "[1]", "\"text\"", "{}{}"] {
        let request = Request::new("PUT", "/v1/topics/a").body(body);
        server.send(&request).problem(400, "BadRequest");
    }
    let deep = "[".repeat(100_000);
    server.post("/topic/a/push", deep).problem(400, "BadRequest");
    let not_utf8 = Request::new("PUT", "/v1/topics/a").body(&b"{\"storage\":\"\xff\"}"[..]);
    server.send(&not_utf8).problem(400, "BadRequest");
    server.get("/v1/topics/a").problem(404, "UnknownTopic");
}

#[test]
fn half_a_head_is_answered_408_and_closed() {
    let server = impatient();
    let began = Instant::now();
    let mut client = raw(&server, b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX-Half");
    client.answer().problem(408, "RequestTimeout");
    assert!(client.is_closed());
    assert!(began.elapsed() >= Duration::from_millis(300));
    // Who says nothing at all is closed without a word, before and between requests.
    assert!(server.connect().is_closed());
    let mut client = server.connect();
    client.send(&Request::new("GET", "/healthz")).is(200);
    assert!(client.is_closed());
    is_well(&server);
}

#[test]
fn a_body_that_does_not_come_is_answered_408() {
    let server = impatient();
    server.put("/v1/topics/a", &json!({})).is(201);
    for head in [
        "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
        "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nha",
        "PUT /v1/topics/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ] {
        raw(&server, head.as_bytes()).answer().problem(408, "RequestTimeout");
    }
    // Lines are answered by a line, since their answer has begun.
    let mut client = raw(
        &server,
        b"POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\
          Content-Type: application/x-ndjson\r\n\r\n{\"text\":\"1\"}\n{\"te",
    );
    let lines = client.answer().is(200).lines();
    assert!(lines.iter().any(|line| line["name"] == "RequestTimeout"), "{lines:?}");
    assert_eq!(lines.last().unwrap()["accepted"], 1);
    assert_eq!(server.get("/v1/topics/a").json()["next"], 2, "the whole line was taken");
    is_well(&server);
}

#[test]
fn a_body_that_ends_early_publishes_nothing() {
    let server = impatient();
    server.put("/v1/topics/a", &json!({})).is(201);
    let client = raw(
        &server,
        b"POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
    );
    drop(client);
    is_well(&server);
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
}

#[test]
fn chunked_rubbish_is_refused() {
    let server = impatient();
    server.put("/v1/topics/a", &json!({})).is(201);
    for chunks in
        ["zz\r\nhello\r\n0\r\n\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "5\r\nhelloworld"]
    {
        let head = "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
        let mut client = raw(&server, format!("{head}{chunks}").as_bytes());
        client.answer().problem(400, "BadRequest");
    }
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
}

/// A publish that an attacker hides behind another request, in the same packet.
const SMUGGLED: &str = "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\n\
                        Content-Length: 8\r\n\r\nsmuggled";

#[test]
fn l6_a_chunk_that_does_not_end_in_crlf_is_refused_with_everything_behind_it() {
    let server = impatient();
    server.put("/v1/topics/a", &json!({})).is(201);
    let head = "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        // The line of a size.
        "5\nhello\r\n0\r\n\r\n",
        "5 \nhello\r\n0\r\n\r\n",
        "5;x=y\nhello\r\n0\r\n\r\n",
        "5;x=\"\n\"\r\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5;x\r\r\nhello\r\n0\r\n\r\n",
        // The data.
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        // The last chunk.
        "5\r\nhello\r\n0\n\r\n",
        "5\r\nhello\r\n0;x\n\r\n",
    ] {
        let mut client = raw(&server, format!("{head}{chunks}{SMUGGLED}").as_bytes());
        client.answer().problem(400, "BadRequest");
        assert!(client.is_closed(), "{chunks:?}");
    }
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1, "nothing was published");
    is_well(&server);
}

#[test]
fn l6_after_a_request_with_two_lengths_the_connection_ends() {
    let server = impatient();
    server.put("/v1/topics/a", &json!({})).is(201);
    let lengths = ["Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n"];
    for [first, second] in [lengths, [lengths[1], lengths[0]]] {
        let request = format!(
            "POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\n{first}{second}\r\n\
             1\r\nx\r\n0\r\n\r\n{SMUGGLED}"
        );
        let mut client = raw(&server, request.as_bytes());
        let answer = client.answer().is(201);
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.is_closed(), "{first}");
    }
    let page = server.get("/v1/topics/a/messages").is(200).json();
    let texts = page["messages"].as_array().expect("messages").iter();
    assert!(texts.clone().all(|message| message["text"] == "x"), "{page:#}");
    assert_eq!(texts.count(), 2);
}

#[test]
fn what_is_not_http_gets_a_problem_and_is_disconnected() {
    let server = impatient();
    for rubbish in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03rubbish\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ] {
        let mut client = raw(&server, rubbish);
        client.answer().problem(400, "BadRequest");
        assert!(client.is_closed());
    }
    is_well(&server);
}

#[test]
fn header_bombs_are_refused() {
    let server = impatient();
    let mut head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n".to_vec();
    let long = [&head[..], b"X-Long: ", &vec![b'x'; 20_000], b"\r\n\r\n"].concat();
    raw(&server, &long).answer().problem(431, "HeadTooLarge");
    for number in 0..500 {
        head.extend_from_slice(format!("X-{number}: y\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    raw(&server, &head).answer().problem(431, "HeadTooLarge");
    let address = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(70_000));
    let answer = raw(&server, address.as_bytes()).answer();
    assert!([414, 431].contains(&answer.status()), "{answer:?}");
    assert_eq!(answer.json()["name"], "HeadTooLarge");
    is_well(&server);
}

#[test]
fn a_body_that_is_too_large_is_refused_however_it_comes() {
    let server = impatient();
    server.put("/v1/topics/a", &json!({})).is(201);
    let large = vec![b'x'; 1_000_000];
    server.post("/v1/topics/a/messages", large.clone()).problem(413, "BodyTooLarge");
    let mut client = raw(
        &server,
        b"POST /v1/topics/a/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    client.write(b"3e8\r\n");
    for _ in 0..5 {
        client.write(&[b'x'; 1000]);
        client.write(b"\r\n3e8\r\n");
    }
    client.answer().problem(413, "BodyTooLarge");
    let line = Request::new("POST", "/v1/topics/a/messages")
        .header("Content-Type", "application/x-ndjson")
        .body(large);
    let lines = server.send(&line).is(200).lines();
    assert!(lines.iter().any(|line| line["name"] == "BodyTooLarge"), "{lines:?}");
    assert_eq!(server.get("/v1/topics/a").json()["next"], 1);
    is_well(&server);
}

#[test]
fn past_the_limit_of_connections_new_ones_are_told_and_old_ones_work() {
    let server = Server::with(|http, _| http.connections_max = 2);
    let mut first = server.connect();
    let mut second = server.connect();
    first.send(&Request::new("GET", "/healthz")).is(200);
    second.send(&Request::new("GET", "/healthz")).is(200);
    let mut third = server.connect();
    third.answer().problem(429, "TooManyConnections");
    assert!(third.is_closed());
    first.send(&Request::new("GET", "/healthz")).is(200);
    drop((first, second));
    let until = Instant::now() + http::DEADLINE;
    loop {
        let mut client = server.connect();
        client.write(&Request::new("GET", "/healthz").header("Connection", "close").bytes());
        if client.line().is_some_and(|line| line.contains("200")) {
            break;
        }
        assert!(Instant::now() < until, "there is no room again");
    }
}

#[test]
fn requests_in_one_packet_are_all_answered_in_order() {
    let server = Server::open();
    let mut both = Request::new("GET", "/healthz").bytes();
    both.extend(Request::new("GET", "/nowhere").bytes());
    both.extend(Request::new("GET", "/healthz").bytes());
    let mut client = raw(&server, &both);
    client.answer().is(200);
    client.answer().problem(404, "NoSuchPath");
    client.answer().is(200);
}

#[test]
fn small_answers_are_not_compressed_and_large_ones_are_if_the_client_can() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    let gzip = |path: &str| Request::new("GET", path).header("Accept-Encoding", "gzip");
    assert_eq!(server.send(&gzip("/v1/topics/a")).is(200).header("content-encoding"), None);
    server.post("/v1/topics/a/messages", "x".repeat(50_000)).is(201);
    let packed = server.send(&gzip("/v1/topics/a/messages")).is(200);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < 5000);
    let plain = server.get("/v1/topics/a/messages").is(200);
    assert_eq!(plain.header("content-encoding"), None);
    assert!(plain.body.len() > 50_000);
}

#[test]
fn lines_end_well_when_the_client_accepts_gzip() {
    let server = Server::open();
    server.put("/v1/topics/a", &json!({})).is(201);
    let lines = |method: &str| {
        Request::new(method, "/v1/topics/a/messages")
            .header("Content-Type", "application/x-ndjson")
            .header("Accept", "application/x-ndjson")
    };
    // The last four bytes of gzip are the length of what it holds.
    let whole_length = |packed: &[u8]| {
        let (_, end) = packed.split_last_chunk::<4>().expect("gzip has an end");
        u32::from_le_bytes(*end) as usize
    };
    let one = lines("POST").body("{\"id\":\"1\",\"text\":\"x\"}\n");
    let plain = server.send(&one.clone().header("Accept-Encoding", "identity")).is(200);
    let packed = server.send(&one.header("Accept-Encoding", "gzip")).is(200);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    // The second answer says `true` where the first says `false`, and has counted the other way
    // round.
    let duplicate = "\"position\":null".len() - "\"position\":2".len() - 1;
    assert_eq!(whole_length(&packed.body), plain.body.len() + duplicate);
    let plain = server.send(&lines("GET")).is(200);
    let packed = server.send(&lines("GET").header("Accept-Encoding", "gzip")).is(200);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert_eq!(whole_length(&packed.body), plain.body.len());
}

#[test]
fn m5_credentials_that_are_not_valid_are_refused_even_where_none_are_needed() {
    let server = Server::open();
    let with = |value: &str| Request::new("GET", "/v1/topics").header("Authorization", value);
    for value in ["Bearer secret", "Basic dTpw"] {
        let refused = server.send(&with(value)).problem(401, "NotAuthenticated");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains("not valid"), "{detail}");
    }
    server.get("/v1/topics").is(200);
}
