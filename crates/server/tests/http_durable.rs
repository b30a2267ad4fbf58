//! Durable Streams over real sockets: what the public suite does not ask. Restarts, races,
//! limits, other listeners, and the end of streams.

#[path = "common/http.rs"]
mod http;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_broker::{BrokerOptions, Delivery, From, ManualClock, block_on};
use gapless_core::{
    Durability, Message, Pattern, PublishOptions, Retention, Timestamp, TopicName, TopicSettings,
};
use gapless_server::http::HttpOptions;
use http::{Answer, Client, DEADLINE, Request, Server};
use serde_json::{Value, json};

const TEXT: &str = "text/plain";
const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

fn request(method: &str, stream: &str) -> Request {
    Request::new(method, &format!("/v1/stream/{stream}"))
}

fn create(server: &Server, stream: &str, kind: &str) -> Answer {
    server.send(&request("PUT", stream).header("Content-Type", kind)).is(201)
}

fn append(stream: &str, kind: &str, body: impl Into<Vec<u8>>) -> Request {
    request("POST", stream).header("Content-Type", kind).body(body)
}

fn by(request: Request, producer: &str, epoch: u64, seq: u64) -> Request {
    request
        .header("Producer-Id", producer)
        .header("Producer-Epoch", &epoch.to_string())
        .header("Producer-Seq", &seq.to_string())
}

fn close(stream: &str) -> Request {
    request("POST", stream).header("Stream-Closed", "true")
}

fn next_offset(answer: &Answer) -> String {
    answer.header("stream-next-offset").expect("an offset").to_owned()
}

/// Everything from an offset on, over as many answers as it takes.
fn read_all(server: &Server, stream: &str) -> Vec<Answer> {
    let (mut client, mut offset, mut answers) = (server.connect(), "-1".to_owned(), Vec::new());
    loop {
        let path = format!("{stream}?offset={offset}");
        let answer = client.send(&request("GET", &path)).is(200);
        offset = next_offset(&answer);
        let done = answer.header("stream-up-to-date") == Some("true");
        answers.push(answer);
        if done {
            return answers;
        }
    }
}

fn values(server: &Server, stream: &str) -> Vec<Value> {
    let answers = read_all(server, stream);
    answers.iter().flat_map(|each| each.json().as_array().expect("an array").clone()).collect()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < deadline, "it did not happen in time: {what}");
        std::thread::yield_now();
    }
}

/// A clock that tests move, and a change of the options that puts it in.
fn manual_clock() -> (Arc<ManualClock>, impl Fn(&mut HttpOptions, &mut BrokerOptions)) {
    let clock = Arc::new(ManualClock::new(Timestamp(1_800_000_000_000)));
    let moved = Arc::clone(&clock);
    (clock, move |_: &mut HttpOptions, options: &mut BrokerOptions| {
        options.clock = Arc::clone(&moved) as _;
    })
}

#[test]
fn what_a_stream_is_and_where_its_producers_stand_survives_a_restart() {
    let server = Server::open();
    create(&server, "a/b", TEXT);
    server.send(&by(append("a/b", TEXT, "one"), "p", 3, 0)).is(200);
    server.send(&by(append("a/b", TEXT, "two"), "p", 3, 1)).is(200);
    server.send(&append("a/b", TEXT, "three").header("Stream-Seq", "m")).is(204);
    create(&server, "closed", JSON);
    let last = append("closed", JSON, "[1, 2]").header("Stream-Closed", "true");
    let end = next_offset(&server.send(&by(last.clone(), "p", 0, 0)).is(200));

    let server = Server::on(server.close(), |_, _| ());
    server.send(&by(append("a/b", TEXT, "two"), "p", 3, 1)).is(204);
    let gap = server.send(&by(append("a/b", TEXT, "five"), "p", 3, 4)).problem(409, "ExpectedSeq");
    assert_eq!(gap.header("producer-expected-seq"), Some("2"));
    let stale = server.send(&by(append("a/b", TEXT, "zero"), "p", 2, 0)).problem(403, "Fenced");
    assert_eq!(stale.header("producer-epoch"), Some("3"));
    server.send(&append("a/b", TEXT, "no").header("Stream-Seq", "m")).problem(409, "ExpectedSeq");
    server.send(&append("a/b", JSON, "1")).problem(409, "BadRequest");
    assert_eq!(server.send(&request("GET", "a/b")).is(200).text(), "onetwothree");

    let refused = server.send(&append("closed", JSON, "3")).problem(409, "ExpectedSeq");
    assert_eq!(refused.header("stream-closed"), Some("true"));
    assert_eq!(next_offset(&refused), end);
    assert_eq!(server.send(&by(last, "p", 0, 0)).is(204).header("stream-closed"), Some("true"));
    assert_eq!(values(&server, "closed"), [json!(1), json!(2)]);
}

#[test]
fn appends_of_producers_that_race_with_their_own_retries_count_once_and_in_order() {
    // Each producer has two senders that both send everything, as a client does that lost its
    // answers; what one of them was first with is a duplicate for the other.
    const PRODUCERS: u64 = 6;
    const APPENDS: u64 = 25;
    let server = Server::open();
    create(&server, "race", JSON);
    let answered: Vec<u16> = std::thread::scope(|scope| {
        let send = |producer: u64| {
            let mut client = server.connect();
            move || -> Vec<u16> {
                let send = |seq: u64| {
                    let body = format!("[{{\"p\":{producer},\"n\":{seq}}}]");
                    let request = append("race", JSON, body);
                    client.send(&by(request, &format!("p{producer}"), 0, seq)).status()
                };
                (0..APPENDS).map(send).collect()
            }
        };
        let senders: Vec<_> =
            (0..PRODUCERS * 2).map(|each| scope.spawn(send(each % PRODUCERS))).collect();
        senders.into_iter().flat_map(|sender| sender.join().expect("it sends")).collect()
    });
    let count = |status: u16| answered.iter().filter(|each| **each == status).count() as u64;
    assert_eq!((count(200), count(204)), (PRODUCERS * APPENDS, PRODUCERS * APPENDS));
    let stored = values(&server, "race");
    assert_eq!(stored.len() as u64, PRODUCERS * APPENDS);
    for producer in 0..PRODUCERS {
        let own = stored.iter().filter(|each| each["p"] == producer);
        let numbers: Vec<_> = own.map(|each| each["n"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, (0..APPENDS).collect::<Vec<_>>(), "producer {producer}");
    }
}

#[test]
fn of_appends_with_the_same_stream_seq_one_is_taken() {
    let server = Server::open();
    create(&server, "once", TEXT);
    for round in 0..5 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let server = &server;
            let send = move || {
                let request = append("once", TEXT, format!("{round}"));
                server.send(&request.header("Stream-Seq", &format!("seq-{round}"))).status()
            };
            let senders: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
            senders.into_iter().map(|sender| sender.join().expect("it sends")).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 204).count(), 1, "{statuses:?}");
        assert!(statuses.iter().all(|status| [204, 409].contains(status)), "{statuses:?}");
    }
    assert_eq!(server.send(&request("GET", "once")).text(), "01234");
}

#[test]
fn of_many_who_make_a_stream_one_makes_it() {
    let server = Server::open();
    for round in 0..5 {
        let path = format!("made/{round}");
        let mut statuses: Vec<u16> = std::thread::scope(|scope| {
            let (server, path) = (&server, &path);
            let make = move || {
                let put = request("PUT", path).header("Content-Type", TEXT).body("first");
                server.send(&put).status()
            };
            let makers: Vec<_> = (0..6).map(|_| scope.spawn(make)).collect();
            makers.into_iter().map(|maker| maker.join().expect("it makes")).collect()
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 201]);
        assert_eq!(server.send(&request("GET", &path)).text(), "first");
    }
}

#[test]
fn nothing_is_appended_behind_the_end_of_a_stream_that_is_closed() {
    let server = Server::open();
    for round in 0..5 {
        let path = format!("end/{round}");
        create(&server, &path, JSON);
        let (taken, end) = std::thread::scope(|scope| {
            let (server, path) = (&server, &path);
            let appender = |number: usize| {
                move || -> Vec<Value> {
                    let mut client = server.connect();
                    let mut taken = Vec::new();
                    for each in 0.. {
                        let value = json!(number * 1000 + each);
                        let sent = client.send(&append(path, JSON, value.to_string()));
                        if sent.status() == 409 {
                            assert_eq!(sent.header("stream-closed"), Some("true"));
                            break;
                        }
                        sent.is(204);
                        taken.push(value);
                    }
                    taken
                }
            };
            let appenders: Vec<_> = (0..4).map(|each| scope.spawn(appender(each))).collect();
            until("some are appended", || values(server, path).len() > 8);
            let end = next_offset(&server.send(&close(path)).is(204));
            let join = |each: std::thread::ScopedJoinHandle<'_, Vec<Value>>| each.join();
            let taken = appenders.into_iter().flat_map(|each| join(each).expect("it appends"));
            (taken.collect::<Vec<_>>(), end)
        });
        let answers = read_all(&server, &path);
        assert_eq!(next_offset(answers.last().expect("an answer")), end);
        let mut stored = values(&server, &path);
        let mut taken = taken;
        stored.sort_unstable_by_key(Value::as_u64);
        taken.sort_unstable_by_key(Value::as_u64);
        assert_eq!(stored, taken);
    }
}

#[test]
fn a_large_stream_is_read_in_bounded_answers_byte_by_byte() {
    let server = Server::open();
    create(&server, "large", BYTES);
    let mut sent = Vec::new();
    for (index, length) in [1, 3_000_000, 70_000, 1_048_576, 2_500_000, 9].into_iter().enumerate() {
        let body: Vec<u8> = (0..length).map(|at: usize| (at * 31 + index * 7) as u8).collect();
        server.send(&append("large", BYTES, body.clone())).is(204);
        sent.extend(body);
    }
    let answers = read_all(&server, "large");
    assert!(answers.len() > 3, "{}", answers.len());
    assert!(answers.iter().all(|each| each.body.len() <= 2 * 1024 * 1024));
    let read: Vec<u8> = answers.into_iter().flat_map(|each| each.body).collect();
    assert!(read == sent, "{} bytes of {}", read.len(), sent.len());
    // Over a restart it comes from disk.
    let server = Server::on(server.close(), |_, _| ());
    let read: Vec<u8> = read_all(&server, "large").into_iter().flat_map(|each| each.body).collect();
    assert!(read == sent, "{} bytes of {} after a restart", read.len(), sent.len());
}

#[test]
fn an_answer_that_is_known_is_not_sent_again_until_there_is_more_or_the_end() {
    let server = Server::open();
    create(&server, "tagged", TEXT);
    server.send(&append("tagged", TEXT, "a")).is(204);
    let read = |tag: &str| server.send(&request("GET", "tagged").header("If-None-Match", tag));
    let tag = |answer: &Answer| answer.header("etag").expect("a tag").to_owned();
    let first = read("\"other\"").is(200);
    let same = read(&format!("\"other\", W/{}", tag(&first))).is(304);
    assert_eq!((next_offset(&same), tag(&same)), (next_offset(&first), tag(&first)));
    assert_eq!(same.header("stream-up-to-date"), Some("true"));
    server.send(&append("tagged", TEXT, "b")).is(204);
    let more = read(&tag(&first)).is(200);
    assert_eq!(more.text(), "ab");
    server.send(&close("tagged")).is(204);
    let end = read(&tag(&more)).is(200);
    assert_eq!(end.header("stream-closed"), Some("true"));
    assert_eq!(read(&tag(&end)).is(304).header("stream-closed"), Some("true"));
}

#[test]
fn a_stream_remembers_so_many_producers_and_no_more() {
    let server = Server::with(|_, options| options.defaults.durability = Durability::Memory);
    create(&server, "many", TEXT);
    let mut client = server.connect();
    for each in 0..4096 {
        client.send(&by(append("many", TEXT, "x"), &format!("p{each}"), 0, 0)).is(200);
    }
    let more = by(append("many", TEXT, "x"), "one more", 0, 0);
    client.send(&more).problem(429, "QueueFull");
    client.send(&by(append("many", TEXT, "x"), "p7", 0, 1)).is(200);
    // The limit holds over a restart, and goes with the stream.
    let server = Server::on(server.close(), |_, _| ());
    server.send(&more).problem(429, "QueueFull");
    server.delete("/v1/stream/many").is(204);
    until("its cells are gone", || server.broker.cells_under(b"http.stream/").is_empty());
    create(&server, "many", TEXT);
    server.send(&more).is(200);
}

#[test]
fn json_comes_out_as_it_went_in() {
    let server = Server::open();
    create(&server, "exact", "application/vnd.api+json");
    let body = r#"[ {"b":1.50, "a":[ ]} , 123456789012345678901234567890, "\u00e9" ]"#;
    server.send(&append("exact", "application/vnd.api+json", body)).is(204);
    let read = server.send(&request("GET", "exact")).is(200).text();
    assert_eq!(read, r#"[{"b":1.50, "a":[ ]},123456789012345678901234567890,"\u00e9"]"#);
}

#[test]
fn other_doors_see_the_same_topic() {
    let server = Server::open();
    let topic = TopicName::parse("orders.eu").expect("a name");
    create(&server, "orders/eu", JSON);
    server.send(&append("orders/eu", JSON, r#"[{"id":1},{"id":2}]"#)).is(204);
    let mut follower =
        server.broker.subscribe(&Pattern::literal(&topic), From::Beginning).expect("a follower");
    let messages = loop {
        if let Delivery::Messages(messages) = block_on(follower.next()).expect("a step") {
            break messages;
        }
    };
    let bodies: Vec<_> = messages.iter().map(|each| each.message.body.expect("a body")).collect();
    assert_eq!(bodies, [&br#"{"id":1}"#[..], br#"{"id":2}"#]);
    let published = Message::new(r#"{"id":3}"#);
    server.broker.publish(&topic, &published, &PublishOptions::default()).wait().expect("an ack");
    assert_eq!(values(&server, "orders/eu"), [json!({"id":1}), json!({"id":2}), json!({"id":3})]);
}

#[test]
fn a_topic_of_another_door_is_a_stream_of_bytes_until_put_gives_it_a_type() {
    let server = Server::open();
    let topic = TopicName::parse("plain").expect("a name");
    server.broker.create_topic(&topic, TopicSettings::default()).expect("a topic");
    let publish = |text: &str| {
        let message = Message::new(text.to_owned());
        server.broker.publish(&topic, &message, &PublishOptions::default()).wait().expect("an ack");
    };
    publish("1");
    publish("2");
    let read = server.send(&request("GET", "plain")).is(200);
    assert_eq!((read.header("content-type"), read.text()), (Some(BYTES), "12".to_owned()));
    server.send(&by(append("plain", BYTES, "3"), "p", 0, 0)).is(200);
    // This is also how a PUT that a crash cut off after the topic was made is finished.
    let empty = TopicName::parse("half").expect("a name");
    server.broker.create_topic(&empty, TopicSettings::default()).expect("a topic");
    let put = request("PUT", "half").header("Content-Type", JSON).body("[7]");
    server.send(&put).is(201);
    server.send(&put).is(200);
    assert_eq!(values(&server, "half"), [json!(7)]);
}

#[test]
fn d10_what_is_gone_is_told_and_never_skipped() {
    let server = Server::open();
    let topic = TopicName::parse("short").expect("a name");
    let retention = Retention { count: Some(3), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    server.broker.create_topic(&topic, settings).expect("a topic");
    let begin = next_offset(&server.send(&request("HEAD", "short")).is(200));
    for each in 0..10 {
        server.send(&append("short", BYTES, each.to_string())).is(204);
    }
    let gone = server.send(&request("GET", &format!("short?offset={begin}")));
    let gone = gone.problem(410, "TopicDeleted");
    let first = next_offset(&gone);
    let read = server.send(&request("GET", &format!("short?offset={first}"))).is(200);
    assert_eq!(read.text(), "789");
    assert_eq!(server.send(&request("GET", "short")).is(200).text(), "789");
    // Offsets of a stream that was deleted mean nothing in the one that took its name.
    server.delete("/v1/stream/short").is(204);
    server.delete("/v1/stream/short").problem(404, "UnknownTopic");
    create(&server, "short", TEXT);
    server.send(&append("short", TEXT, "new")).is(204);
    server.send(&request("GET", &format!("short?offset={first}"))).problem(410, "TopicDeleted");
    let tail = next_offset(&server.send(&request("HEAD", "short")));
    let ahead = tail.replace(&tail[30..], "fff");
    server.send(&request("GET", &format!("short?offset={ahead}"))).problem(400, "Ahead");
}

#[test]
fn a_stream_with_a_time_to_live_ends_after_its_last_use_and_its_topic_with_it() {
    let (clock, change) = manual_clock();
    let server = Server::with(&change);
    let topic = TopicName::parse("brief").expect("a name");
    let put = request("PUT", "brief").header("Content-Type", TEXT).header("Stream-TTL", "60");
    server.send(&put).is(201);
    server.send(&by(append("brief", TEXT, "a"), "p", 0, 0)).is(200);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(50));
        server.send(&request("GET", "brief")).is(200);
    }
    // A restart does not make it younger than the slack, and not older at all.
    let server = Server::on(server.close(), &change);
    clock.advance(Duration::from_secs(50));
    assert_eq!(server.send(&request("HEAD", "brief")).is(200).header("stream-ttl"), Some("60"));
    clock.advance(Duration::from_secs(18));
    // No request asks for it: it is swept.
    until("the topic is deleted", || server.broker.topic_place(&topic).is_err());
    until("its cells are gone", || server.broker.cells_under(b"http.stream/").is_empty());
    server.send(&request("HEAD", "brief")).is(404);
    server.send(&put).is(201);
    assert_eq!(server.send(&request("GET", "brief")).is(200).text(), "");
}

#[test]
fn a_stream_ends_at_its_moment_whatever_is_done_with_it() {
    let (clock, change) = manual_clock();
    let server = Server::with(&change);
    // 1_800_000_000 seconds after 1970, and a minute.
    let at = "2027-01-15T08:01:00Z";
    let put = request("PUT", "till").header("Content-Type", TEXT).header("Stream-Expires-At", at);
    server.send(&put).is(201);
    assert_eq!(server.send(&request("HEAD", "till")).header("stream-expires-at"), Some(at));
    clock.advance(Duration::from_secs(59));
    server.send(&append("till", TEXT, "a")).is(204);
    clock.advance(Duration::from_secs(1));
    server.send(&append("till", TEXT, "b")).problem(404, "UnknownTopic");
}

#[test]
fn cells_of_topics_that_other_doors_deleted_go_at_the_next_opening() {
    let server = Server::open();
    create(&server, "left", TEXT);
    server.send(&by(append("left", TEXT, "a"), "p", 0, 0)).is(200);
    let topic = TopicName::parse("left").expect("a name");
    server.broker.delete_topic(&topic).expect("deletes");
    server.send(&request("GET", "left")).problem(404, "UnknownTopic");
    assert_eq!(server.broker.cells_under(b"http.stream/").len(), 2);
    let server = Server::on(server.close(), |_, _| ());
    assert!(server.broker.cells_under(b"http.stream/").is_empty());
    create(&server, "left", TEXT);
    server.send(&by(append("left", TEXT, "b"), "p", 0, 0)).is(200);
}

/// Reads events of a stream until one has this in it.
fn event_with(client: &mut Client, part: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(part) {
        let chunk = client.chunk().unwrap_or_else(|| panic!("it ended after {seen:?}"));
        seen += std::str::from_utf8(&chunk).expect("text");
    }
    seen
}

#[test]
fn live_readers_get_what_comes_and_then_the_end() {
    let server = Server::with(|http, _| http.long_poll = DEADLINE);
    create(&server, "live", TEXT);
    let mut events = server.connect();
    let head = events.begin(&request("GET", "live?offset=-1&live=sse"));
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    event_with(&mut events, "upToDate");
    let poll = |offset: &str| {
        let mut client = server.connect();
        client.write(&request("GET", &format!("live?offset={offset}&live=long-poll")).bytes());
        client
    };
    let mut waiting = poll("now");
    until("the poll waits", || server.broker.subscribers().len() == 2);
    server.send(&append("live", TEXT, "hello")).is(204);
    let answer = waiting.answer().is(200);
    assert_eq!(answer.text(), "hello");
    assert!(event_with(&mut events, "streamNextOffset").starts_with("event: data\ndata:hello\n"));
    let mut waiting = poll(&next_offset(&answer));
    until("the poll waits", || server.broker.subscribers().len() == 2);
    server.send(&close("live")).is(204);
    assert_eq!(waiting.answer().is(204).header("stream-closed"), Some("true"));
    event_with(&mut events, "streamClosed");
    assert_eq!(events.chunk(), None);
}

#[test]
fn live_readers_learn_that_the_stream_is_deleted() {
    let server = Server::with(|http, _| http.long_poll = DEADLINE);
    create(&server, "doomed", TEXT);
    let mut events = server.connect();
    events.begin(&request("GET", "doomed?offset=-1&live=sse"));
    event_with(&mut events, "upToDate");
    let mut waiting = server.connect();
    waiting.write(&request("GET", "doomed?offset=-1&live=long-poll").bytes());
    until("the poll waits", || server.broker.subscribers().len() == 2);
    server.delete("/v1/stream/doomed").is(204);
    waiting.answer().problem(404, "UnknownTopic");
    assert_eq!(events.chunk(), None);
}

#[test]
fn open_streams_are_bounded_and_end_with_the_listener() {
    let server = Server::with(|http, _| {
        http.streams_max = 1;
        http.long_poll = DEADLINE;
    });
    create(&server, "few", TEXT);
    let mut events = server.connect();
    events.begin(&request("GET", "few?offset=-1&live=sse"));
    event_with(&mut events, "upToDate");
    for live in ["sse", "long-poll"] {
        let asked = request("GET", &format!("few?offset=-1&live={live}"));
        server.send(&asked).problem(429, "TooManySubscriptions");
    }
    server.send(&request("GET", "few?offset=-1")).is(200);
    server.close();
    assert_eq!(events.chunk(), None);
}

#[test]
fn f3_bad_input_is_refused_and_changes_nothing() {
    let server = Server::with(|http, _| http.body_bytes_max = 64 * 1024);
    create(&server, "good", JSON);
    let post = |kind: &str, body: &str| append("good", kind, body);
    let get = |query: &str| request("GET", &format!("good?{query}"));
    let put = |path: &str| request("PUT", path).header("Content-Type", TEXT);
    for (asked, status, name) in [
        (post(JSON, "{"), 400, "BadRequest"),
        (post(JSON, "[]"), 400, "BadRequest"),
        (post(JSON, " "), 400, "BadRequest"),
        (post(JSON, ""), 400, "BadRequest"),
        (post(JSON, "\u{feff}1"), 400, "BadRequest"),
        (request("POST", "good").body("1"), 400, "BadRequest"),
        (post("nonsense", "1"), 400, "BadRequest"),
        (post(TEXT, "1"), 409, "BadRequest"),
        (post(JSON, "1").header("Stream-Seq", ""), 400, "BadRequest"),
        (post(JSON, "1").header("Stream-Seq", &"s".repeat(257)), 400, "BadRequest"),
        (post(JSON, "1").header("Producer-Id", "p"), 400, "BadRequest"),
        (by(post(JSON, "1"), &"p".repeat(257), 0, 0), 400, "BadRequest"),
        (by(post(JSON, "1"), "p", 0, 1), 409, "ExpectedSeq"),
        (by(post(JSON, "1"), "p", 1 << 53, 0), 400, "BadRequest"),
        (post(JSON, &format!("\"{}\"", "x".repeat(70_000))), 413, "BodyTooLarge"),
        (append("missing", JSON, "1"), 404, "UnknownTopic"),
        (close("missing"), 404, "UnknownTopic"),
        (get("offset="), 400, "BadRequest"),
        (get("offset=0000000000000001_zzz"), 400, "BadRequest"),
        (get("offset=ffffffffffffffff_0000000000000001"), 400, "Ahead"),
        (get("live=sse"), 400, "BadRequest"),
        (get("offset=-1&live=websocket"), 400, "BadRequest"),
        (put("a//b"), 400, "InvalidTopic"),
        (put("a/"), 400, "InvalidTopic"),
        (put("%FF"), 400, "InvalidTopic"),
        (put(&"x".repeat(256)), 400, "InvalidTopic"),
        (put("$events/x"), 403, "ReservedName"),
        (put("__ds/subscriptions/x"), 501, "NotOffered"),
        (put("fork").header("Stream-Forked-From", "/v1/stream/good"), 501, "NotOffered"),
        (put("late").header("Stream-TTL", "-1"), 400, "BadRequest"),
        (put("late").header("Stream-Expires-At", "soon"), 400, "BadRequest"),
        (request("PATCH", "good"), 405, "MethodNotAllowed"),
    ] {
        let answer = server.send(&asked).problem(status, name);
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{asked:?}");
    }
    assert_eq!(values(&server, "good"), Vec::<Value>::new());
    assert_eq!(server.broker.list_topics(&Pattern::parse(">").expect("a pattern")).len(), 1);
}

#[test]
fn a_volatile_topic_is_no_stream() {
    let server = Server::open();
    let topic = TopicName::parse("gone.soon").expect("a name");
    let settings =
        TopicSettings { storage: gapless_core::Storage::Volatile, ..TopicSettings::default() };
    server.broker.create_topic(&topic, settings).expect("a topic");
    server.send(&request("GET", "gone/soon")).problem(409, "NotDurable");
    server.send(&request("PUT", "gone/soon")).problem(409, "NotDurable");
}

#[test]
fn h3_a_stream_of_html_is_no_page_of_this_server() {
    let server = Server::open();
    for kind in ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml"] {
        let path = format!("/v1/stream/{}", kind.replace('/', "-"));
        let made =
            Request::new("PUT", &path).header("Content-Type", kind).body("<script>1</script>");
        server.send(&made).is(201);
        for method in ["GET", "HEAD"] {
            let answer = server.send(&Request::new(method, &format!("{path}?offset=-1"))).is(200);
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(
                answer.header("content-security-policy"),
                Some("sandbox"),
                "{method} {kind}"
            );
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        }
    }
    server.put("/v1/topics/a", &serde_json::json!({})).is(201);
    let html = Request::new("POST", "/v1/topics/a/messages").header("Content-Type", "text/html");
    server.send(&html.body("<script>1</script>")).is(201);
    let answer = server.get("/v1/topics/a/messages/1/body").is(200);
    assert_eq!(answer.header("content-security-policy"), Some("sandbox"));
    // JSON is shown, never run, as long as the browser may not guess.
    let answer = server.get("/v1/topics/a/messages/1").is(200);
    assert_eq!(answer.header("content-security-policy"), None);
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
}
