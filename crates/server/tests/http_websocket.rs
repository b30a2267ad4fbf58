//! Following over a WebSocket: the same contents, pings, closes with reasons, bad clients.

mod streams;

use std::io::{Read, Write};
use std::net::TcpStream;

use gapless_core::Message;
use serde_json::Value;
use streams::*;
use tungstenite::protocol::WebSocket;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Error, Message as Sent};

const FOLLOW: &str = "/v1/topics/orders/follow";

fn open(server: &Server, path: &str) -> WebSocket<TcpStream> {
    let socket = TcpStream::connect(server.address).expect("a connection");
    socket.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let uri = format!("ws://{}{path}", server.address);
    tungstenite::client(uri, socket).expect("an upgrade").0
}

/// The next event; pings are answered on the way.
fn next(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        if let Sent::Text(text) = socket.read().expect("it goes on") {
            return serde_json::from_str(&text).expect("JSON");
        }
    }
}

fn message(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        let event = next(socket);
        if event["event"] == "message" {
            return event;
        }
    }
}

/// Reads to the close, and gives its code and reason.
fn close_of(socket: &mut WebSocket<TcpStream>) -> (CloseCode, String) {
    loop {
        match socket.read() {
            Ok(Sent::Close(Some(frame))) => return (frame.code, frame.reason.to_string()),
            Ok(_) => {}
            Err(error) => panic!("a close with a reason: {error}"),
        }
    }
}

/// Sends a request to upgrade by hand; gives the connection and the head of the answer.
fn upgrade(server: &Server, path: &str, headers: &[(&str, &str)]) -> (TcpStream, String) {
    let mut all = vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    all.retain(|(name, _)| headers.iter().all(|(other, _)| name != other));
    all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
    let (socket, head, _) = request(server.address, path, &all);
    (socket, head)
}

/// A frame as a client sends it, masked with zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("short");
    let mut bytes = vec![first, 0x80 | length, 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn the_same_comes_over_a_websocket_and_a_cursor_resumes_it_behind_any_message() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 12);
    let mut socket = open(&server, "/v1/topics/orders/follow");
    let mut all: Vec<Value> = (0..12).map(|_| message(&mut socket)).collect();
    let live = next(&mut socket);
    assert_eq!((&live["event"], live["cursor"].is_string()), (&"live".into(), true));
    server.publish("orders", &[Message::new("live")]);
    all.push(message(&mut socket));
    assert_eq!(all[12]["text"], "live");
    let mut stream = server.follow("/v1/topics/orders/follow");
    for (at, event) in all.iter().enumerate() {
        let mut same = stream.message().json();
        same["event"] = "message".into();
        assert_eq!(same, *event, "a message looks the same on both");
        let cursor = event["cursor"].as_str().expect("a cursor");
        let mut socket = open(&server, &format!("/v1/follow?pattern=orders&from={cursor}"));
        for expected in &all[at + 1..] {
            assert_eq!(message(&mut socket), *expected);
        }
    }
    socket.close(None).expect("a close");
    assert!(matches!(socket.read(), Ok(Sent::Close(_)) | Err(Error::ConnectionClosed)));
    drop(stream);
    server.until("closing unsubscribes", |server| server.broker().subscribers().is_empty());
}

#[test]
fn a_client_that_answers_pings_stays_and_one_that_does_not_is_closed() {
    let server = Server::open();
    server.create("orders");
    let mut lively = open(&server, "/v1/topics/orders/follow?keep_alive_secs=1");
    let (mut mute, head) = upgrade(&server, "/v1/topics/orders/follow?keep_alive_secs=1", &[]);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let mute = std::thread::spawn(move || {
        let mut rest = Vec::new();
        mute.read_to_end(&mut rest).expect("it is closed in time");
        rest
    });
    // The lively one answers while it reads; the mute one never does.
    while !mute.is_finished() {
        lively.read().expect("it goes on");
    }
    let (rest, reason) = (mute.join().expect("bytes"), b"pings were not answered");
    assert!(rest.windows(reason.len()).any(|part| part == reason), "{rest:?}");
    server.publish("orders", &[Message::new("still here")]);
    assert_eq!(message(&mut lively)["text"], "still here");
}

#[test]
fn every_end_has_a_code_and_a_reason() {
    let mut server = Server::open();
    server.create("orders");
    server.create("others");
    let mut deleted = open(&server, "/v1/topics/orders/follow");
    server.broker().delete_topic(&name("orders")).expect("deleted");
    loop {
        let event = next(&mut deleted);
        if event["event"] == "deleted" {
            assert_eq!(event["code"], 222);
            break;
        }
    }
    let (code, reason) = close_of(&mut deleted);
    assert_eq!((code, reason.as_str()), (CloseCode::Normal, "topic orders was deleted"));
    let mut talks = open(&server, "/v1/topics/others/follow");
    talks.send(Sent::text("hello?")).expect("sent");
    assert_eq!(close_of(&mut talks).0, CloseCode::Policy);
    let mut open_one = open(&server, "/v1/topics/others/follow");
    next(&mut open_one);
    let closing = std::thread::spawn(move || close_of(&mut open_one));
    server.stop();
    let (code, reason) = closing.join().expect("a close");
    assert_eq!((code, reason.as_str()), (CloseCode::Away, "the server is closing"));
}

#[test]
fn broken_frames_end_the_session_with_a_protocol_error_and_harm_nobody() {
    let server = Server::open();
    server.create("orders");
    let unmasked = vec![0x81, 0x02, b'h', b'i'];
    let too_large = vec![0x82, 0xff, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    for bad in [unmasked, too_large, frame(0xff, b""), frame(0x09, b"ping in pieces"), vec![0x81]] {
        let (mut socket, head) = upgrade(&server, FOLLOW, &[]);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        socket.write_all(&bad).expect("sent");
        socket.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = socket.read_to_end(&mut rest);
    }
    server.until("all are gone", |server| server.broker().subscribers().is_empty());
    server.publish("orders", &[Message::new("fine")]);
    assert_eq!(message(&mut open(&server, "/v1/topics/orders/follow"))["text"], "fine");
}

#[test]
fn a_bad_upgrade_and_a_page_of_another_site_are_refused_with_a_problem() {
    let server = Server::with(|http, _| http.cors_origins = vec!["https://good.example".into()]);
    server.create("orders");
    let refused = |headers: &[(&str, &str)], status: &str| {
        let (_, head) = upgrade(&server, FOLLOW, headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{headers:?} {head}");
        if status.starts_with('4') {
            assert!(head.contains("application/problem+json"), "{head}");
        }
    };
    refused(&[("Sec-WebSocket-Version", "7")], "400");
    refused(&[("Sec-WebSocket-Key", "")], "400");
    refused(&[("Connection", "close")], "400");
    refused(&[("Origin", "https://evil.example")], "403");
    refused(&[("Origin", "null")], "403");
    refused(&[("Origin", "https://good.example")], "101");
    refused(&[("Origin", "http://localhost")], "101");
    // A client that offers another protocol is answered with events.
    refused(&[("Upgrade", "h2c")], "200");
}

#[test]
fn sockets_count_as_streams() {
    let server = Server::with(|http, _| http.streams_max = 1);
    server.create("orders");
    let first = open(&server, "/v1/topics/orders/follow");
    assert_eq!(Stream::open(server.address, "/v1/topics/orders/follow", None).status, 429);
    drop(first);
    server.until("there is room again", |server| {
        Stream::open(server.address, "/v1/topics/orders/follow", None).status == 200
    });
}

#[test]
fn h1_long_bodies_come_whole_over_both_kinds_of_stream() {
    let server = Server::open();
    server.create("orders");
    let lines = "a\r\nb\rc\n\n".repeat(10_000);
    let json = format!("[{}1]", "{\"n\" : \"a \\\" b\"},\n".repeat(5_000));
    let bodies = [
        Message::new(vec![1; 200_000]),
        Message::new(vec![0xff; 100_000]),
        Message::new(lines.clone()),
        Message::new(json.clone()).with_header("content-type", "application/json"),
        Message::new("short"),
    ];
    let mut socket = open(&server, FOLLOW);
    let mut stream = server.follow(FOLLOW);
    let mut plain = server.follow("/v1/topics/orders/follow?format=body");
    for body in &bodies {
        server.publish("orders", std::slice::from_ref(body));
        let shown = message(&mut socket);
        let mut same = stream.message().json();
        same["event"] = "message".into();
        assert!(same == shown, "a message looks the same on both");
        let body = body.body.as_ref().expect("a body");
        match std::str::from_utf8(body) {
            Ok(text) if text == json => {
                assert!(shown["json"] == serde_json::from_str::<Value>(&json).expect("JSON"));
            }
            Ok(text) => assert!(shown["text"] == text),
            Err(_) => assert_eq!(shown["base64"].as_str().map(str::len), Some(133_336)),
        }
        let event = loop {
            let event = plain.next();
            if ["message", "base64"].contains(&event.event.as_str()) {
                break event;
            }
        };
        if *body == lines {
            assert!(event.data == "a\nb\nc\n\n".repeat(10_000), "every line end is one");
        } else if let Ok(text) = std::str::from_utf8(body) {
            assert!(event.data == text);
        }
    }
}
