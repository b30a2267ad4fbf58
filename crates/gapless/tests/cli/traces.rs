//! Traces from publish to delivery to ack, as a collector receives them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::Value;

use crate::support::{DEADLINE, Server};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_SAMPLED: &str = "00-11f92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A collector: a socket that takes OTLP over HTTP as JSON.
struct Collector {
    endpoint: String,
    spans: Receiver<Value>,
    seen: Vec<Value>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (send, spans) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), send) = (stream, send.clone()) else { return };
                thread::spawn(move || {
                    while let Some(spans) = take(&stream) {
                        for span in spans {
                            if send.send(span).is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
        Self { endpoint, spans, seen: Vec::new() }
    }

    /// The next span with this name; others are kept.
    fn next(&mut self, name: &str) -> Value {
        loop {
            if let Some(at) = self.seen.iter().position(|span| span["name"] == name) {
                return self.seen.remove(at);
            }
            let span = self.spans.recv_timeout(DEADLINE);
            self.seen.push(span.unwrap_or_else(|_| panic!("no {name} in {:#?}", self.seen)));
        }
    }
}

/// The spans of the next request, which is answered; `None` at the end of the connection.
fn take(mut stream: &std::net::TcpStream) -> Option<Vec<Value>> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
    assert!(first.starts_with("POST /v1/traces HTTP/1.1"), "{first}");
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(kind) = line.strip_prefix("content-type:") {
            assert_eq!(kind.trim(), "application/json");
        }
        if let Some(bytes) = line.strip_prefix("content-length:") {
            length = bytes.trim().parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(answer).ok()?;
    let document: Value = serde_json::from_slice(&body).expect("JSON");
    let resource = &document["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0]["key"], "service.name");
    resource["scopeSpans"][0]["spans"].as_array().cloned()
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let all = span["attributes"].as_array().expect("attributes");
    let found = all.iter().find(|each| each["key"] == key)?;
    found["value"]["stringValue"].as_str().or(found["value"]["intValue"].as_str())
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().and_then(|text| text.parse().ok()).expect(key)
}

#[test]
fn a_traced_message_is_seen_from_publish_to_delivery_to_ack() {
    let mut collector = Collector::start();
    let endpoint = format!("trace.endpoint={}", collector.endpoint);
    let server = Server::with(&[&endpoint, "trace.service=shop"]);
    server.run(&["topic", "create", "orders"]).ok();
    let header = format!("traceparent={PARENT}");
    server.run(&["pub", "orders", "first", "--header", &header]).ok();
    // Neither is recorded: one says so, the other belongs to no trace.
    let header = format!("traceparent={NOT_SAMPLED}");
    server.run(&["pub", "orders", "second", "--header", &header]).ok();
    server.run(&["pub", "orders", "third"]).ok();
    let publish = collector.next("publish orders");
    assert_eq!(publish["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(publish["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(attribute(&publish, "messaging.message.id"), Some("1"));
    assert_eq!(attribute(&publish, "gapless.outcome"), Some("flushed"));
    assert!(nanos(&publish, "startTimeUnixNano") < nanos(&publish, "endTimeUnixNano"));
    // What subscribers and members get carries the header as it was.
    let seen = server.run(&["sub", "orders", "--count", "3", "--json"]).ok();
    assert!(seen.out.iter().any(|line| line.contains(PARENT)), "{:?}", seen.out);
    let deliver = collector.next("deliver orders");
    assert_eq!(deliver["parentSpanId"], "00f067aa0ba902b7");
    server.run(&["group", "create", "mailer", "orders", "--from", "beginning"]).ok();
    server.run(&["sub", "orders", "--group", "mailer", "--count", "3"]).ok();
    let process = collector.next("process orders");
    assert_eq!(process["traceId"], publish["traceId"]);
    assert_eq!(attribute(&process, "messaging.consumer.group.name"), Some("mailer"));
    assert_eq!(attribute(&process, "gapless.outcome"), Some("acked"));
    assert_eq!(attribute(&process, "gapless.attempt"), Some("1"));
    let (status, metrics) = server.http_get("/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("gapless_trace_spans_left_out_total{reason=\"queue full\"} 0"));
    assert!(collector.seen.is_empty(), "{:#?}", collector.seen);
}

#[test]
fn the_trace_of_an_http_request_goes_with_its_message_and_a_nack_is_a_failure() {
    let mut collector = Collector::start();
    let server = Server::with(&[&format!("trace.endpoint={}", collector.endpoint)]);
    let mut stream = std::net::TcpStream::connect(server.http()).expect("connects");
    let request = format!(
        "POST /v1/topics/orders/messages?create=true HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         traceparent: {PARENT}\r\nContent-Length: 1\r\n\r\nx",
        server.http()
    );
    stream.write_all(request.as_bytes()).expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(collector.next("publish orders")["parentSpanId"], "00f067aa0ba902b7");
    let (_, message) = server.http_get_json("/v1/topics/orders/messages/1");
    assert_eq!(message["headers"]["traceparent"], PARENT, "{message}");
    server.run(&["group", "create", "g", "orders", "--from", "beginning"]).ok();
    let (_, fetched) = server.http_post("/v1/groups/g/fetch?max=1&wait_ms=10000", "");
    let fetched: Value = serde_json::from_str(&fetched).expect("JSON");
    let said = serde_json::json!({ "leases": [fetched["messages"][0]["lease"]] }).to_string();
    assert_eq!(server.http_post("/v1/groups/g/nack", &said).0, 200);
    let process = collector.next("process orders");
    assert_eq!(attribute(&process, "gapless.outcome"), Some("nacked"));
    assert_eq!(process["status"]["code"], 2);
}

#[test]
fn traces_begin_with_a_share_of_messages_and_a_collector_that_is_gone_stops_nothing() {
    let mut collector = Collector::start();
    let server =
        Server::with(&[&format!("trace.endpoint={}", collector.endpoint), "trace.ratio=1"]);
    server.run(&["pub", "orders", "first", "--create"]).ok();
    let publish = collector.next("publish orders");
    let trace = publish["traceId"].as_str().expect("an id").to_owned();
    let seen = server.run(&["sub", "orders", "--count", "1", "--json"]).ok();
    assert!(seen.out.iter().any(|line| line.contains(&trace)), "{:?}", seen.out);
    assert_eq!(collector.next("deliver orders")["traceId"], publish["traceId"]);
    // No collector listens here.
    let mut alone = Server::with(&["trace.endpoint=http://127.0.0.1:1", "trace.ratio=1"]);
    alone.run(&["pub", "orders", "first", "--create"]).ok();
    alone.logs("the collector did not take traces");
    alone.run(&["sub", "orders", "--count", "1"]).ok();
    let (_, metrics) = alone.http_get("/metrics");
    assert!(
        !metrics.contains("gapless_trace_spans_left_out_total{reason=\"not taken\"} 0"),
        "{metrics}"
    );
}
