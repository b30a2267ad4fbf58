//! Following over HTTP by Server-Sent Events: resuming, recovery, keeping alive, ending.

mod streams;

use std::sync::atomic::{AtomicBool, Ordering};

use gapless_core::{Message, PublishOptions, Seq, TopicSettings};
use serde_json::json;
use streams::*;

#[test]
fn c2_a_topic_is_followed_and_closing_the_stream_unsubscribes() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 3);
    let mut stream = server.follow("/topic/orders/subscribe");
    assert!(stream.head.to_ascii_lowercase().contains("content-type: text/event-stream"));
    let first = stream.message();
    assert_eq!((first.seq(), first.text()), (1, "orders 0".to_owned()));
    assert_eq!(first.json()["cursor"], first.id);
    assert_eq!([stream.message().seq(), stream.message().seq()], [2, 3]);
    assert_eq!(stream.retry_ms, Some(1000));
    server.publish("orders", &[Message::new("live")]);
    assert_eq!(stream.message().text(), "live");
    let seen = server.broker().subscribers();
    assert_eq!((seen.len(), seen[0].pattern.as_str()), (1, "orders"));
    drop(stream);
    server.until("it is unsubscribed", |server| server.broker().subscribers().is_empty());
}

#[test]
fn a_missing_topic_is_a_problem_unless_it_is_wanted_anyway() {
    let server = Server::open();
    let missing = Stream::open(server.address, "/topic/new/subscribe", None);
    assert_eq!(missing.status, 404);
    assert_eq!(missing.body()["name"], "UnknownTopic");
    let mut stream = server.follow("/topic/new/subscribe?anyway=true");
    server.publish("new", &[Message::new("there")]);
    assert_eq!(stream.message().text(), "there");
}

#[test]
fn a_stream_cut_behind_any_message_goes_on_right_behind_it() {
    let server = Server::open();
    server.create("orders");
    server.create("other");
    for _ in 0..4 {
        server.fill("orders", 7);
        server.fill("other", 2);
    }
    for path in ["/v1/topics/orders/follow", "/v1/follow?pattern=orders", "/v1/follow?pattern=*"] {
        let whole: Vec<_> = {
            let mut stream = server.follow(path);
            let count = if path.ends_with('*') { 36 } else { 28 };
            (0..count).map(|_| stream.message()).collect()
        };
        for (at, cut) in whole.iter().enumerate() {
            let mut stream = server.resume(path, &cut.id);
            for expected in &whole[at + 1..] {
                assert_eq!(stream.message(), *expected, "{path} behind {}", cut.id);
            }
            stream.told("live");
        }
    }
}

#[test]
fn last_event_id_wins_over_from() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 5);
    let mut stream = server.follow("/v1/topics/orders/follow?from=seq:3");
    let third = stream.message();
    assert_eq!(third.seq(), 3);
    let mut stream = server.resume("/v1/topics/orders/follow?from=beginning", &third.id);
    assert_eq!(stream.message().seq(), 4);
    let path = format!("/v1/topics/orders/follow?from={}", third.id);
    assert_eq!(server.follow(&path).message().seq(), 4);
}

#[test]
fn who_began_now_and_saw_nothing_misses_nothing_when_it_comes_back() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 5);
    let path = "/v1/topics/orders/follow?from=now";
    let mut stream = server.follow(path);
    stream.told("live");
    let id = stream.last_id.clone();
    drop(stream);
    server.publish("orders", &[Message::new("meanwhile")]);
    assert_eq!(server.resume(path, &id).message().text(), "meanwhile");
}

#[test]
fn d4_recovery_and_live_are_events_and_every_seq_comes_once_while_a_publisher_runs() {
    let server = Server::with(|_, broker| {
        broker.journal.tail_bytes = 16 * 1024;
        broker.journal.seal_bytes = 64 * 1024;
    });
    server.create("orders");
    for _ in 0..50 {
        let batch: Vec<_> =
            (0..10).map(|each| Message::new(format!("{each} {:1000}", ""))).collect();
        server.publish("orders", &batch);
    }
    server.broker().seal().expect("what is sealed may leave memory");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let options = PublishOptions::default();
                let done =
                    server.broker().publish(&name("orders"), &Message::new("live"), &options);
                done.wait().expect("an ack");
            }
        });
        let mut stream = server.follow("/v1/topics/orders/follow");
        let recovering = stream.next();
        let facts = recovering.json();
        assert_eq!((recovering.event.as_str(), &facts["from"]), ("recovering", &json!(1)));
        let to = facts["to"].as_u64().expect("a last seq");
        let mut ledger = Ledger::from(1);
        let live = loop {
            let event = stream.next();
            if event.event == "live" {
                break event;
            }
            ledger.take(&event);
        };
        assert!(ledger.next > to, "everything that was announced came before it was live");
        assert_eq!(live.json()["cursor"], live.id);
        while ledger.next < to + 500 {
            ledger.take(&stream.next());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn d10_what_was_purged_is_told_as_a_gap_once() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 10);
    server.broker().purge(&name("orders"), Seq(6)).expect("purged");
    let path = "/v1/topics/orders/follow?from=seq:2";
    let mut stream = server.follow(path);
    let gap = stream.told("gap");
    let facts = gap.json();
    assert_eq!((&facts["from"], &facts["to"]), (&json!(2), &json!(5)));
    assert_eq!((&facts["reason"], &facts["topic"]), (&json!("purge"), &json!("orders")));
    assert_eq!(stream.message().seq(), 6);
    let mut stream = server.resume(path, &gap.id);
    loop {
        let event = stream.next();
        assert_ne!(event.event, "gap", "it was reported");
        if event.is_message() {
            assert_eq!(event.seq(), 6);
            break;
        }
    }
}

#[test]
fn a_token_of_another_store_is_answered_with_a_gap_and_not_obeyed() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 3);
    let mut stream = server.resume("/v1/topics/orders/follow", "00000000000000ab:2");
    assert_eq!(stream.told("gap").json()["reason"], "epoch");
    assert_eq!(stream.message().seq(), 1);
}

#[test]
fn o6_a_cursor_from_before_a_topic_was_created_again_is_answered_with_a_gap() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 3);
    let mut stream = server.follow("/v1/topics/orders/follow?from=beginning");
    let cursor = (0..3).map(|_| stream.message().id).last().unwrap();
    server.broker().delete_topic(&name("orders")).expect("it is there");
    server.create("orders");
    server.fill("orders", 1);
    for path in ["/v1/topics/orders/follow", "/v1/follow?pattern=*"] {
        let mut stream = server.resume(path, &cursor);
        let gap = stream.told("gap").json();
        assert_eq!(
            (&gap["reason"], &gap["topic"]),
            (&json!("deleted"), &json!("orders")),
            "{path}"
        );
        assert_eq!((&gap["from"], &gap["to"]), (&json!(null), &json!(null)), "{path}");
        assert_eq!(stream.message().seq(), 1, "{path}");
    }
}

#[test]
fn the_end_of_a_topic_is_told_and_ends_the_stream() {
    let server = Server::open();
    server.create("orders");
    let mut stream = server.follow("/v1/topics/orders/follow");
    stream.told("live");
    server.broker().delete_topic(&name("orders")).expect("deleted");
    assert_eq!(stream.told("deleted").json()["code"], 222);
    assert_eq!(stream.next_or_end(), None);
    let gone = Stream::open(server.address, "/v1/topics/orders/follow", Some(&stream.last_id));
    assert_eq!(gone.status, 404, "so a browser does not come back again");
}

#[test]
fn c2_comments_keep_a_silent_stream_alive() {
    let server = Server::open();
    server.create("orders");
    let path = "/topic/orders/subscribe?keep_alive_secs=1&keep_alive_text=still%0Ahere";
    let mut stream = server.follow(path);
    stream.told("live");
    while stream.comments.len() < 4 {
        assert!(stream.step(), "the stream goes on");
    }
    assert_eq!(stream.comments, ["still", "here", "still", "here"]);
    server.publish("orders", &[Message::new("after")]);
    assert_eq!(stream.message().text(), "after");
}

#[test]
fn bodies_alone_keep_their_lines_and_bytes() {
    let server = Server::open();
    server.create("orders");
    let bytes = Message::new(&[0xff, 0x00][..]);
    server.publish("orders", &[Message::new("two\nlines"), bytes, Message::tombstone("k")]);
    let mut stream = server.follow("/v1/topics/orders/follow?format=body");
    let all: Vec<_> = (0..4)
        .map(|_| stream.next())
        .filter(|event| event.event != "live")
        .map(|event| (event.event, event.data))
        .collect();
    let expected = [("message", "two\nlines"), ("base64", "/wA="), ("removed", "k")];
    assert_eq!(all, expected.map(|(event, data)| (event.to_owned(), data.to_owned())));
}

#[test]
fn bad_questions_are_problems_that_name_what_is_wrong() {
    let server = Server::open();
    server.create("orders");
    let asked = [
        ("/v1/topics/orders/follow?from=yesterday", 400, "from"),
        ("/v1/topics/orders/follow?from=seq:0", 400, "from"),
        ("/v1/topics/orders/follow?keep_alive_secs=0", 400, "keep_alive_secs"),
        ("/v1/follow", 400, "pattern"),
    ];
    for (path, status, parameter) in asked {
        let answer = Stream::open(server.address, path, None);
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.body()["parameter"], parameter, "{path}");
    }
    for (path, status) in [
        ("/v1/topics/orders/follow?from=seq:77", 409),
        ("/v1/topics/a..b/follow", 400),
        ("/v1/follow?pattern=a..b", 400),
        ("/v1/follow?pattern=*&from=seq:1", 400),
        ("/v1/topics/orders/follow?format=xml", 400),
    ] {
        let answer = Stream::open(server.address, path, None);
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body()["code"].is_u64(), "{path}");
    }
    let answer = Stream::open(server.address, "/v1/topics/orders/follow", Some("rubbish"));
    assert_eq!(answer.status, 400);
}

#[test]
fn past_the_limit_a_stream_is_refused_and_a_closed_one_makes_room() {
    let server = Server::with(|http, _| http.streams_max = 2);
    server.create("orders");
    let path = "/v1/topics/orders/follow";
    let first = server.follow(path);
    let _second = server.follow(path);
    let third = Stream::open(server.address, path, None);
    assert_eq!(third.status, 429);
    assert_eq!(third.body()["streams_max"], 2);
    drop(first);
    server.until("there is room again", |server| {
        Stream::open(server.address, path, None).status == 200
    });
}

#[test]
fn skipped_seqs_of_a_compacted_topic_are_accounted_for_behind_any_event() {
    let mut server = Server::open();
    let compaction = Some(gapless_core::Compaction::default());
    server.create_with("keys", TopicSettings { compaction, ..TopicSettings::default() });
    for round in 0..20 {
        let key = |each: u32| format!("k{}", (round * each) % 7);
        let batch: Vec<_> = (0..6).map(|each| Message::new("v").with_key(key(each))).collect();
        server.publish("keys", &batch);
    }
    server.broker().seal().expect("sealed");
    server.broker().compact().expect("compacted");
    // Reopened, it has nothing in memory that compaction has not seen.
    server.stop();
    server.start();
    let path = "/v1/topics/keys/follow";
    let mut stream = server.follow(path);
    let mut whole = Vec::new();
    let mut ledger = Ledger::from(1);
    while ledger.next <= 120 {
        let event = stream.next();
        ledger.take(&event);
        whole.push(event);
    }
    let kept: Vec<_> = whole.iter().filter(|event| event.is_message()).collect();
    assert!(kept.len() < 60, "most were compacted away: {}", kept.len());
    for (at, cut) in kept.iter().enumerate() {
        let mut stream = server.resume(path, &cut.id);
        for expected in &kept[at + 1..] {
            assert_eq!(stream.message(), **expected);
        }
    }
}
