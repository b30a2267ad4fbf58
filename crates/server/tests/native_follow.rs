//! Subscriptions of the native API: recovery on the wire, credit, slow readers, gaps.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use gapless_core::{GapReason, Message, PublishOptions, Seq};
use gapless_protocol::*;

/// Publishes in the background until it is dropped.
struct Publisher<'a>(&'a AtomicBool);

impl Drop for Publisher<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn publish_until(server: &Server, topic: &str, stop: &AtomicBool) {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let message = Message::new(format!("live {number}"));
        let done = server.broker.publish(&name(topic), &message, &PublishOptions::default());
        done.wait().expect("an ack");
        number += 1;
    }
}

#[test]
fn d4_recovery_and_live_come_in_order_and_without_hole_while_a_publisher_runs() {
    let server = Server::with(|_, broker| {
        // What is still in memory needs no recovery; here most of it is not.
        broker.journal.tail_bytes = 16 * 1024;
        broker.journal.seal_bytes = 64 * 1024;
    });
    server.create("orders");
    for number in 0..50 {
        let bodies = (0..10).map(|each| format!("orders {number} {each} {:1000}", ""));
        let messages: Vec<Message> = bodies.map(Message::new).collect();
        let options = PublishOptions::default();
        server.broker.publish_batch(&name("orders"), &messages, &options).wait().expect("an ack");
    }
    server.broker.seal().expect("what is sealed may leave memory");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _publisher = Publisher(&stop);
        scope.spawn(|| publish_until(&server, "orders", &stop));
        let follow = |mut peer: Peer| {
            let first = peer.send(subscribe("orders", StartFrom::Beginning));
            let (answer, corr) = peer.verb_or_end().expect("an answer");
            assert_eq!(corr, first, "subscribed comes before everything of the subscription");
            let Verb::Subscribed(subscribed) = answer else { panic!("{answer:?}") };
            let Verb::RecoveryResponse(response) = peer.next() else { panic!("a response") };
            assert_eq!(response.subscription, subscribed.subscription);
            let PlaceRange::Seqs(from, to) = response.range else { panic!("{response:?}") };
            assert!(from == Seq(1) && to >= Seq(400), "{response:?}");
            let mut ledger = Ledger::from(1);
            let complete = loop {
                match peer.next() {
                    Verb::RecoveryComplete(complete) => break complete,
                    other => ledger.take(other),
                }
            };
            assert!(ledger.next > to.0 && ledger.others.is_empty());
            assert_eq!(complete.token.epoch, server.broker.epoch());
            let live_from = ledger.next;
            while ledger.next < live_from + 100 {
                ledger.take(peer.next());
            }
            let seqs = ledger.bodies.iter().map(|(seq, _)| *seq);
            assert!(seqs.eq(1..ledger.next), "each seq once, in order");
            (ledger, peer)
        };
        let (seen, _) = follow(server.peer());
        assert!(seen.bodies[0].1.starts_with(b"orders 0 0 "));
        follow(server.unix_peer());
    });
    server.still_works();
}

#[test]
fn d4_a_token_goes_on_where_the_last_connection_stood() {
    let server = Server::open();
    server.create("resumed");
    server.fill("resumed", 50);
    let mut token = None;
    let mut ledger = Ledger::from(1);
    let mut visits = 0;
    while ledger.next <= 50 {
        let mut peer = server.peer();
        let from = token.map_or(StartFrom::Beginning, StartFrom::Token);
        peer.follow(Subscribe { credit_messages: 7, ..subscribe("resumed", from) });
        for verb in peer.all_there_is() {
            if let Verb::Messages(messages) = &verb {
                let position = messages.last_position;
                token = Some(Token { epoch: server.broker.epoch(), position });
            }
            ledger.take(verb);
        }
        visits += 1;
        assert!(visits < 1000, "each visit brings something");
    }
    assert_eq!(ledger.bodies.len(), 50);
    server.still_works();
}

#[test]
fn d4_a_token_of_another_store_is_answered_with_a_gap_and_not_obeyed() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 5);
    let mut peer = server.peer();
    let epoch = gapless_core::Epoch(server.broker.epoch().0 ^ 1);
    let token = Token { epoch, position: gapless_core::Position(3) };
    peer.follow(subscribe("orders", StartFrom::Token(token)));
    let mut bodies = 0;
    let mut gaps = Vec::new();
    while bodies < 5 {
        match peer.next() {
            Verb::Gap(gap) => gaps.push(gap.gap.reason),
            Verb::Messages(messages) => bodies += messages.credit_messages(),
            _ => {}
        }
    }
    assert_eq!(gaps, [GapReason::Epoch]);
    server.still_works();
}

#[test]
fn o6_a_token_from_before_a_topic_was_created_again_is_answered_with_a_gap() {
    let server = Server::open();
    server.create("orders");
    server.fill("orders", 5);
    let position = {
        let pattern = gapless_core::Pattern::parse("orders").unwrap();
        server.broker.subscribe(&pattern, gapless_broker::From::Now).unwrap().token()
    };
    server.broker.delete_topic(&name("orders")).unwrap();
    server.create("orders");
    server.fill("orders", 2);
    for subject in ["orders", "*"] {
        let mut peer = server.peer();
        peer.follow(subscribe(subject, StartFrom::Token(position)));
        let (mut gaps, mut bodies) = (Vec::new(), 0);
        while bodies < 2 {
            match peer.next() {
                Verb::Gap(gap) => {
                    assert_eq!((bodies, gap.gap.from, gap.gap.to), (0, None, None), "{subject}");
                    gaps.push(gap.gap.reason);
                }
                Verb::Messages(messages) => bodies += messages.credit_messages(),
                _ => {}
            }
        }
        assert_eq!(gaps, [GapReason::Deleted], "{subject}");
    }
    server.still_works();
}

#[test]
fn batches_arrive_byte_for_byte_as_they_were_sent() {
    let server = Server::open();
    server.create("bytes");
    let mut peer = server.peer();
    let messages: Vec<Message> = (0..40_usize)
        .map(|n| Message::new(vec![n as u8; n * 100]).with_key("k").with_header("n", "v"))
        .collect();
    let sent = publish("bytes", &messages);
    peer.ask(sent.clone());
    for from in [StartFrom::Beginning, StartFrom::Seq(Seq(1))] {
        let mut reader = server.unix_peer();
        reader.follow(subscribe("bytes", from));
        let found = loop {
            if let Verb::Messages(messages) = reader.next() {
                break messages;
            }
        };
        found.verify(gapless_broker::checksum).expect("checksums verify");
        let batches: Vec<_> = found.batches.iter().collect();
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].bytes().slice(64..), sent.records.bytes);
    }
    server.still_works();
}

fn counted(verbs: &[Verb]) -> (u64, u64) {
    let messages = verbs.iter().filter_map(|verb| match verb {
        Verb::Messages(messages) => Some(messages),
        _ => None,
    });
    messages.fold((0, 0), |(count, bytes), messages| {
        (count + messages.credit_messages(), bytes + messages.credit_bytes())
    })
}

#[test]
fn credit_is_the_most_that_is_sent_and_none_is_a_pause() {
    let server = Server::with(|options, _| {
        options.credit_messages_max = 20;
        options.credit_bytes_max = 1 << 20;
    });
    server.create("credit");
    let batch = publish("credit", &vec![Message::new(vec![7; 100]); 30]);
    let mut peer = server.peer();
    peer.ask(batch);
    server.fill("credit", 30);
    let none = Subscribe {
        credit_messages: 0,
        credit_bytes: 0,
        ..subscribe("credit", StartFrom::Beginning)
    };
    let subscription = peer.follow(none.clone());
    assert_eq!(counted(&peer.all_there_is()).0, 0, "no credit, nothing");
    let mut ledger = Ledger::from(1);
    for (messages, bytes) in [(3, 1 << 20), (1, 0), (5, 0), (20, 0), (11, 0)] {
        peer.send(Credit { subscription, messages, bytes });
        let came = peer.all_there_is();
        assert_eq!(counted(&came).0, u64::from(messages), "exactly what was granted");
        came.into_iter().for_each(|verb| ledger.take(verb));
    }
    assert_eq!(ledger.next, 41);
    for (messages, bytes) in [(0, 0), (21, 0), (0, 2 << 20)] {
        let refused = peer.ask(Credit { subscription, messages, bytes });
        assert_eq!(code(&refused), ErrorCode::CreditExceeded);
    }
    assert_eq!(counted(&peer.all_there_is()).0, 0, "what was refused changed nothing");
    peer.send(Credit { subscription, messages: 20, bytes: 0 });
    let came = peer.all_there_is();
    assert_eq!(counted(&came).0, 20);
    let too_much = Subscribe { credit_messages: 21, ..none };
    assert_eq!(code(&peer.ask(too_much)), ErrorCode::CreditExceeded);
    peer.send(Credit { subscription: 999, messages: 1, bytes: 1 });
    assert!(peer.all_there_is().is_empty(), "credit for one that has ended is not an error");
    server.still_works();
}

#[test]
fn bytes_of_credit_hold_too_and_a_message_above_them_goes_alone() {
    let server = Server::open();
    server.create("large");
    let mut peer = server.peer();
    peer.ask(publish("large", &vec![Message::new(vec![1; 1000]); 10]));
    let small = Subscribe {
        credit_messages: 100,
        credit_bytes: 10,
        ..subscribe("large", StartFrom::Beginning)
    };
    let subscription = peer.follow(small);
    let mut ledger = Ledger::from(1);
    let mut left = 10;
    for _ in 0..5 {
        let came = peer.all_there_is();
        let (count, bytes) = counted(&came);
        assert_eq!(count, 1, "one alone, which takes more than was left");
        came.into_iter().for_each(|verb| ledger.take(verb));
        left -= bytes as i64;
        assert!(left < 0);
        // What it took too much is paid back first.
        peer.send(Credit { subscription, messages: 0, bytes: (-left) as u64 });
        assert_eq!(counted(&peer.all_there_is()).0, 0, "now there is exactly none");
        peer.send(Credit { subscription, messages: 0, bytes: 1 });
        left = 1;
    }
    let came = peer.all_there_is();
    left -= counted(&came).1 as i64;
    came.into_iter().for_each(|verb| ledger.take(verb));
    peer.send(Credit { subscription, messages: 0, bytes: 2500 + (-left) as u64 });
    let came = peer.all_there_is();
    let (count, bytes) = counted(&came);
    assert!(count >= 2 && bytes <= 3600, "two fit, a third goes alone: {count} with {bytes}");
    came.into_iter().for_each(|verb| ledger.take(verb));
    assert_eq!(ledger.bodies.len() as u64, ledger.next - 1);
    server.still_works();
}

#[test]
fn d11_a_reader_that_stops_reading_slows_nobody_holds_little_and_comes_back() {
    const BATCHES: usize = 250;
    let body = Bytes::from(vec![9; 64 * 1024]);
    let server = Server::with(|_, broker| {
        broker.journal.tail_bytes = 1 << 20;
        broker.journal.seal_bytes = 1 << 20;
    });
    server.create("stream");
    // A Unix socket has a small buffer, so that little of it hides in the kernel.
    let mut slow = server.unix_peer();
    slow.follow(subscribe("stream", StartFrom::Beginning));
    let mut quick = server.peer();
    quick.follow(subscribe("stream", StartFrom::Beginning));
    let mut publisher = server.peer();
    let mut seen = Ledger::from(1);
    for _ in 0..BATCHES {
        accepted(&publisher.ask(publish("stream", &[Message::new(body.clone())])));
        while seen.next <= publisher_last(&server) {
            seen.take(quick.next());
        }
    }
    assert_eq!(seen.bodies.len(), BATCHES);
    let Verb::ClientList(list) = publisher.ask(Clients { after: 0, limit: 10 }) else {
        panic!("a list")
    };
    let follow = list.clients.iter().find(|client| client.address == "unix").expect("the slow");
    let Place::Seq(place) = follow.follows[0].place else { panic!("a seq") };
    assert!(place.0 * 65_536 < 5 << 20, "it was handed {place:?}, the rest waits in history");
    // Nothing waits in memory for it, however busy the machine is.
    server.broker.seal().expect("a segment");
    let mut late = Ledger::from(1);
    while late.next <= BATCHES as u64 {
        late.take(slow.next());
    }
    assert_eq!(late.bodies.len(), BATCHES);
    let again = late.others.iter().any(|verb| matches!(verb, Verb::RecoveryResponse(_)));
    assert!(again, "it became a recovering one by itself");
    // It is live again: what comes now, comes to it.
    publisher.ask(publish("stream", &[Message::new("now")]));
    while late.next <= BATCHES as u64 + 1 {
        late.take(slow.next());
    }
    server.still_works();
}

fn publisher_last(server: &Server) -> u64 {
    server.broker.describe_topic(&name("stream")).expect("a topic").next.0 - 1
}

#[test]
fn d11_a_reader_that_reads_in_bursts_is_never_forgotten() {
    let server = Server::with(|options, _| options.output_bytes_max = 4096);
    server.create("bursts");
    let mut peer = server.peer();
    for _ in 0..5 {
        accepted(&peer.ask(publish("bursts", &vec![Message::new(vec![3; 1000]); 1000])));
    }
    // The socket fills up, then empties at once, over and over: nothing else wakes the listener.
    for mut reader in [server.peer(), server.unix_peer()] {
        let credit =
            Subscribe { credit_bytes: 64 << 20, ..subscribe("bursts", StartFrom::Beginning) };
        reader.follow(credit);
        let mut ledger = Ledger::from(1);
        while ledger.next <= 5000 {
            ledger.take(reader.next());
        }
    }
    server.still_works();
}

#[test]
fn f3_a_reader_that_takes_nothing_is_left_after_the_write_timeout() {
    let server = Server::with(|options, _| options.write_timeout = Duration::from_millis(300));
    server.create("stuck");
    let mut peer = server.peer();
    for _ in 0..30 {
        peer.ask(publish("stuck", &[Message::new(vec![3; 100_000])]));
    }
    let mut stuck = server.unix_peer();
    stuck.follow(subscribe("stuck", StartFrom::Beginning));
    server.until("it is left", |server| server.listener().connections() == 1);
    server.still_works();
}

#[test]
fn after_unsubscribed_nothing_of_it_comes_and_others_go_on() {
    let server = Server::open();
    server.create("two");
    server.fill("two", 3);
    let mut peer = server.peer();
    let first = peer.follow(subscribe("two", StartFrom::Beginning));
    let second = peer.follow(subscribe("two", StartFrom::Beginning));
    peer.all_there_is();
    let Verb::Unsubscribed(done) = peer.ask(Unsubscribe { subscription: first, hold: false })
    else {
        panic!("unsubscribed")
    };
    let place = server.broker.read(&name("two"), Seq(3)).unwrap().unwrap();
    assert_eq!((done.subscription, done.token.position), (first, place.position));
    peer.all_there_is();
    accepted(&peer.ask(publish("two", &[Message::new("x")])));
    let Verb::Messages(messages) = peer.next() else { panic!("messages") };
    assert_eq!((messages.subscription, messages.from), (second, Seq(4)));
    assert!(peer.all_there_is().is_empty());
    let again = peer.ask(Unsubscribe { subscription: first, hold: false });
    assert_eq!(code(&again), ErrorCode::UnknownSubscription);
    server.still_works();
}

#[test]
fn a_deleted_topic_ends_its_subscriptions_and_not_the_connection() {
    let server = Server::open();
    server.create("doomed");
    server.fill("doomed", 2);
    let mut peer = server.peer();
    let subscription = peer.follow(subscribe("doomed", StartFrom::Beginning));
    peer.all_there_is();
    assert_eq!(peer.ask(TopicDelete { topic: name("doomed") }), Verb::from(Done));
    let ended = loop {
        match peer.next() {
            Verb::Ended(ended) => break ended,
            other => assert!(!matches!(other, Verb::Messages(_)), "{other:?}"),
        }
    };
    assert_eq!(
        (ended.subscription, ended.error.known()),
        (subscription, Some(ErrorCode::TopicDeleted))
    );
    peer.send(Credit { subscription, messages: 1, bytes: 1 });
    assert!(peer.all_there_is().is_empty());
    server.still_works();
}

#[test]
fn d10_a_purge_is_a_gap_notice_that_is_true() {
    // Small steps, so that most of it is not on its way yet when it is purged.
    let server = Server::with(|_, broker| broker.limits.step_bytes = 200);
    server.create("purged");
    server.fill("purged", 20);
    let mut peer = server.peer();
    let slow = Subscribe { credit_messages: 5, ..subscribe("purged", StartFrom::Beginning) };
    let subscription = peer.follow(slow);
    let mut ledger = Ledger::from(1);
    peer.all_there_is().into_iter().for_each(|verb| ledger.take(verb));
    assert_eq!(ledger.next, 6);
    assert_eq!(peer.ask(TopicPurge { topic: name("purged"), below: Seq(15) }), Verb::from(Done));
    peer.send(Credit { subscription, messages: 1000, bytes: 1000 });
    while ledger.next <= 20 {
        ledger.take(peer.next());
    }
    // What was taken from the broker before the purge may still come; the rest is the gap.
    let [gap] = &ledger.gaps[..] else { panic!("one gap: {:?}", ledger.gaps) };
    assert_eq!((gap.to, gap.reason), (Some(Seq(14)), GapReason::Purge));
    // A subscriber that starts at the beginning now is not owed what was before.
    let mut fresh = server.peer();
    fresh.follow(subscribe("purged", StartFrom::Seq(Seq(3))));
    let mut ledger = Ledger::from(3);
    while ledger.next <= 20 {
        ledger.take(fresh.next());
    }
    assert_eq!(ledger.gaps.len(), 1);
    assert_eq!(ledger.bodies.len(), 6);
    server.still_works();
}

#[test]
fn d7_many_subscriptions_and_patterns_share_one_connection() {
    let server = Server::with(|options, _| options.subscriptions_max = 101);
    let mut peer = server.peer();
    let topics: Vec<String> = (0..100).map(|index| format!("many.{index}")).collect();
    topics.iter().for_each(|topic| server.create(topic));
    let mut by_number = std::collections::BTreeMap::new();
    for topic in &topics {
        let number = peer.follow(subscribe(topic, StartFrom::Beginning));
        assert!(by_number.insert(number, topic.clone()).is_none(), "numbers are not used twice");
    }
    let all = peer.follow(subscribe("many.>", StartFrom::Beginning));
    let full = peer.ask(subscribe("many.1", StartFrom::Now));
    assert_eq!(code(&full), ErrorCode::TooManySubscriptions);
    for topic in &topics {
        accepted(&peer.ask(publish(topic, &[Message::new(topic.clone())])));
    }
    let (mut own, mut matched) = (0, 0);
    while own < 100 || matched < 100 {
        if let Verb::Messages(messages) = peer.next() {
            if messages.subscription == all {
                matched += 1;
            } else {
                assert_eq!(by_number[&messages.subscription], messages.topic.as_str());
                own += 1;
            }
        }
    }
    peer.ask(Unsubscribe { subscription: all, hold: false });
    // Another pending request is not a subscription.
    peer.send(TopicDescribe { topic: name("many.1") });
    peer.follow(subscribe("many.1", StartFrom::Now));
    server.still_works();
}

#[test]
fn a_subscription_that_cannot_begin_is_an_error_of_the_list() {
    let server = Server::open();
    server.create("one");
    let mut peer = server.peer();
    let needs = peer.ask(subscribe("one.*", StartFrom::Seq(Seq(1))));
    assert_eq!(code(&needs), ErrorCode::NeedsTopic);
    let ahead = peer.ask(subscribe("one", StartFrom::Seq(Seq(99))));
    assert_eq!(code(&ahead), ErrorCode::Ahead);
    let missing = peer.ask(subscribe("none", StartFrom::Time(gapless_core::Timestamp(1))));
    assert_eq!(code(&missing), ErrorCode::NeedsTopic);
    server.still_works();
}

#[test]
fn a_message_that_fits_into_no_frame_ends_the_subscription_and_not_the_connection() {
    let server = Server::with(|options, _| options.frame_bytes_max = FRAME_BYTES_MIN);
    server.create("wide");
    let wide = Message::new(vec![0; FRAME_BYTES_MIN]);
    let done = server.broker.publish(&name("wide"), &wide, &PublishOptions::default());
    done.wait().expect("an ack");
    let mut peer = server.peer();
    peer.follow(subscribe("wide", StartFrom::Beginning));
    let ended = loop {
        if let Verb::Ended(ended) = peer.next() {
            break ended;
        }
    };
    assert_eq!(ended.error.known(), Some(ErrorCode::TooLargeToDeliver));
    assert!(matches!(peer.ask(Ping::default()), Verb::Pong(_)));
    server.still_works();
}
