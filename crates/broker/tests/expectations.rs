//! A publish may say what it expects (design section 1); if that does not hold, nothing is
//! written and the actual seq is returned.

mod common;

use common::*;
use gapless_broker::{Broker, From};
use gapless_core::{
    Compaction, Expect, Message, PublishAck, PublishOptions, RejectReason, Seq, TopicSettings,
};
use gapless_journal::faulty::CrashKind;

fn if_last(expect: Expect) -> PublishOptions {
    PublishOptions { expect: Some(expect), ..PublishOptions::default() }
}

fn keyed(key: &str, body: impl Into<String>) -> Message {
    Message::new(body.into()).with_key(key.to_owned())
}

/// Publishes if the key's last seq is `expected`; the new seq, or the actual one.
fn cas(broker: &Broker, topic: &str, message: &Message, expected: u64) -> Result<u64, u64> {
    let options = if_last(Expect::KeyLast(Seq(expected)));
    match when_there_is_room(broker, || broker.publish(&name(topic), message, &options)) {
        PublishAck::Accepted(accepted) => Ok(accepted.first.0),
        PublishAck::Rejected(RejectReason::ExpectedSeq { actual }) => Err(actual.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a3_the_topics_last_seq_must_be_as_expected() {
    for settings in [TopicSettings::default(), volatile()] {
        let world = World::new(1);
        let broker = world.open();
        broker.create_topic(&name("t"), settings).unwrap();
        for last in 0..3 {
            for wrong in (0..5).filter(|wrong| *wrong != last) {
                let options = if_last(Expect::TopicLast(Seq(wrong)));
                let refused = refusal(&broker, "t", &Message::new("x"), &options);
                assert_eq!(refused, RejectReason::ExpectedSeq { actual: Seq(last) });
            }
            let options = if_last(Expect::TopicLast(Seq(last)));
            let ack = broker.publish(&name("t"), &Message::new("x"), &options).wait().unwrap();
            assert_eq!(accepted(ack).first, Seq(last + 1));
        }
        let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
        assert_eq!(seqs(&drain(&mut follower)), [1, 2, 3]);
    }
}

#[test]
fn a3_the_keys_last_seq_must_be_as_expected_wherever_it_lies() {
    let world = World::new(2);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let mut last = 0;
    let mut other = 0;
    for round in 0..8_u64 {
        // The key is in memory, in segments only, replayed, or in a checkpoint's shadow.
        assert_eq!(cas(&broker, "t", &keyed("k", "wrong"), last + 100), Err(last), "{round}");
        assert_eq!(cas(&broker, "t", &keyed("other", "x"), other + 7), Err(other), "{round}");
        last = cas(&broker, "t", &keyed("k", format!("{round}")), last).unwrap();
        let latest = broker.latest(&name("t"), b"k").unwrap().unwrap();
        assert_eq!((latest.seq.0, body(&latest.message)), (last, format!("{round}")));
        if round % 3 == 0 {
            other = cas(&broker, "t", &keyed("other", "x"), other).unwrap();
        }
        broker = match round % 4 {
            0 => {
                broker.seal().unwrap();
                for n in 0..40 {
                    text(&broker, "t", format!("filler {n} {}", "x".repeat(1000)));
                    broker.turn();
                }
                broker.seal().unwrap();
                broker
            }
            1 => world.crash(broker, CrashKind::Power),
            2 => {
                broker.compact().unwrap();
                world.close(broker)
            }
            _ => broker,
        };
    }
}

#[test]
fn a3_a_tombstone_counts_as_the_keys_last_message() {
    let world = World::new(3);
    let mut broker = world.open();
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..Default::default() };
    broker.create_topic(&name("t"), settings).unwrap();
    let first = cas(&broker, "t", &keyed("k", "v"), 0).unwrap();
    let gone = cas(&broker, "t", &Message::tombstone("k"), first).unwrap();
    for _ in 0..3 {
        assert_eq!(broker.latest(&name("t"), b"k").unwrap(), None);
        assert_eq!(cas(&broker, "t", &keyed("k", "v"), 0), Err(gone));
        assert_eq!(cas(&broker, "t", &keyed("k", "v"), first), Err(gone));
        broker.compact().unwrap();
        broker = world.crash(broker, CrashKind::Power);
    }
    cas(&broker, "t", &keyed("k", "again"), gone).unwrap();
}

#[test]
fn a3_a_volatile_topic_knows_its_keys_too() {
    let world = World::new(4);
    let broker = world.open();
    broker.create_topic(&name("v"), volatile()).unwrap();
    assert_eq!(cas(&broker, "v", &keyed("k", "1"), 5), Err(0));
    assert_eq!(cas(&broker, "v", &keyed("k", "1"), 0), Ok(1));
    assert_eq!(cas(&broker, "v", &keyed("k", "2"), 0), Err(1));
    assert_eq!(broker.latest(&name("v"), b"k").unwrap().map(|m| m.seq), Some(Seq(1)));
    publish(&broker, "v", &keyed("k", "2"));
    assert_eq!(broker.latest(&name("v"), b"k").unwrap().map(|m| m.seq), Some(Seq(2)));
    assert_eq!(cas(&broker, "v", &keyed("k", "3"), 1), Err(2));
    assert_eq!(cas(&broker, "v", &keyed("k", "3"), 2), Ok(3));
}

#[test]
fn a3_expecting_a_key_without_naming_one_means_that_there_is_none() {
    let world = World::new(5);
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    publish(&broker, "t", &keyed("k", "v"));
    assert_eq!(cas(&broker, "t", &Message::new("no key"), 1), Err(0));
}

#[test]
fn a3_of_eight_threads_that_expect_the_same_exactly_one_wins_each_time() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        // Each thread adds one to a counter kept under a key, by compare and set, while
        // seals and evictions move the key between memory and segments.
        const EACH: u64 = 40;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        loop {
                            let latest = broker.latest(&name("t"), b"n").unwrap();
                            let (seq, count) = latest.map_or((0, 0), |found| {
                                let text = body(&found.message);
                                let count = text.trim().parse::<u64>().expect("it is a number");
                                (found.seq.0, count)
                            });
                            let next = format!("{:>500}", count + 1);
                            if cas(&broker, "t", &keyed("n", next), seq).is_ok() {
                                break;
                            }
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..20 {
                    broker.seal().unwrap();
                    broker.compact().unwrap();
                }
            });
        });
        let last = broker.latest(&name("t"), b"n").unwrap().unwrap();
        assert_eq!(body(&last.message).trim(), (8 * EACH).to_string());
        assert_eq!(last.seq, Seq(8 * EACH), "every winner wrote once, every loser nothing");
        broker.close().unwrap();
    });
}
