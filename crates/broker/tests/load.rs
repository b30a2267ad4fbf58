//! From history to live with publishers running all the while (D3), many at once (D8), and
//! slow ones that fall back and come back (D11), on a real disk with real threads.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use gapless_broker::{
    Broker, Delivery, FollowError, From, JournalOptions, SubscriberState, Token, block_on,
};
use gapless_core::{Compaction, Message, PublishOptions, Seq, TopicSettings};

const TOPICS: [&str; 3] = ["t.a", "t.b", "t.c"];

/// Publishes batches of random sizes until the topics have about `until` messages.
fn publish_until(broker: &Broker, seed: u64, until: u64, stop: &AtomicBool) {
    let mut dice = Dice::new(seed);
    let mut last = None;
    while !stop.load(Ordering::Relaxed) {
        let topic = name(TOPICS[dice.roll(3) as usize]);
        let one = |dice: &mut Dice| {
            let body = vec![b'x'; 50 + dice.roll(400) as usize];
            Message::new(body).with_key(dice.roll(50).to_string())
        };
        let batch: Vec<Message> = (0..=dice.roll(4)).map(|_| one(&mut dice)).collect();
        let publishing = broker.publish_batch(&topic, &batch, &PublishOptions::default());
        if publishing.is_accepted() {
            last = Some(publishing);
        } else {
            block_on(broker.room());
        }
        if dice.roll(20) == 0 {
            last.take().map(|last| last.wait().expect("the disk is well"));
            let next = |topic: &&str| broker.describe_topic(&name(topic)).expect("there").next.0;
            if TOPICS.iter().map(next).sum::<u64>() > until {
                break;
            }
        }
    }
}

fn settings(topic: &str) -> TopicSettings {
    // One of them is compacted: holes come and go under the readers.
    let grace = Compaction { tombstone_grace: Duration::from_millis(1) };
    let compaction = (topic == "t.c").then_some(grace);
    TopicSettings { compaction, ..TopicSettings::default() }
}

/// Follows one topic from a random place until `end` was published and seen.
fn follow_one(broker: &Broker, seed: u64, done: &AtomicBool) {
    let mut dice = Dice::new(seed);
    let topic = TOPICS[dice.roll(3) as usize];
    let next = broker.describe_topic(&name(topic)).expect("there").next.0;
    let (from, first) = match dice.roll(3) {
        0 => (From::Beginning, 1),
        1 => {
            let seq = 1 + dice.roll(next);
            (From::Seq(Seq(seq)), seq)
        }
        _ => (From::Now, 0),
    };
    let mut follower = broker.subscribe(&pattern(topic), from).expect("it begins");
    let mut ledger = Ledger::from(topic, first);
    if first == 0 {
        ledger.next.clear();
    }
    loop {
        // Now and then it goes on elsewhere, from its token.
        if dice.roll(40) == 0 {
            let token: Token = follower.token().to_string().parse().expect("it is a token");
            follower = broker.subscribe(&pattern(topic), From::Token(token)).expect("it resumes");
        }
        let delivery = next_or_busy(&mut follower);
        if let (true, Delivery::Messages(messages)) = (ledger.next.is_empty(), &delivery) {
            ledger.next.insert(topic.to_owned(), messages.from().0);
        }
        ledger.note(&delivery);
        let ended = done.load(Ordering::Acquire);
        let end = broker.describe_topic(&name(topic)).expect("there").next.0;
        if ended && ledger.next_of(topic) >= end {
            return;
        }
    }
}

/// The next step; a pool that is busy is asked again.
fn next_or_busy(follower: &mut gapless_broker::Subscription) -> Delivery {
    loop {
        match step(follower) {
            Ok(delivery) => return delivery,
            Err(FollowError::Read(error)) if error.to_string().contains("wait") => {
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn d3_followers_that_join_at_any_place_see_every_seq_once_while_publishers_run() {
    within(Duration::from_secs(120), || {
        let folder = tempfile::tempdir().unwrap();
        let mut options = on_disk(folder.path());
        options.limits.step_bytes = 2048;
        let broker = Broker::open(options).unwrap();
        for topic in TOPICS {
            broker.create_topic(&name(topic), settings(topic)).unwrap();
        }
        let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _stops = StopOnDrop(&stop);
            let publishers: Vec<_> = (0..3)
                .map(|seed| {
                    let (broker, stop) = (&broker, &stop);
                    scope.spawn(move || publish_until(broker, seed, 12_000, stop))
                })
                .collect();
            let mut followers = Vec::new();
            for seed in 0..50 {
                // They join one after another, all through the life of the publishers.
                let wanted = seed * 200;
                until("more was published", || {
                    let next = |topic: &&str| broker.describe_topic(&name(topic)).unwrap().next.0;
                    TOPICS.iter().map(next).sum::<u64>() > wanted
                });
                let (broker, done) = (&broker, &done);
                followers.push(scope.spawn(move || follow_one(broker, seed, done)));
            }
            for publisher in publishers {
                publisher.join().unwrap();
            }
            broker.flush();
            done.store(true, Ordering::Release);
            // All waiting threads are woken once more, so that they notice the end.
            for topic in TOPICS {
                text(&broker, topic, "the end");
            }
            for follower in followers {
                follower.join().unwrap();
            }
        });
        let stats = broker.journal_stats();
        assert!(stats.segments > 0, "history was in segments: {stats:?}");
        assert_eq!(broker.subscribers().len(), 0);
        broker.close().unwrap();
    });
}

#[test]
fn d8_many_recover_at_once_without_disturbing_one_another_or_the_live_one() {
    within(Duration::from_secs(120), || {
        let folder = tempfile::tempdir().unwrap();
        let mut options = on_disk(folder.path());
        options.journal.tail_bytes = 0;
        options.limits.step_bytes = 4096;
        let broker = Broker::open(options).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let batch = vec![Message::new(vec![b'x'; 300]); 50];
        for _ in 0..40 {
            let options = PublishOptions::default();
            accepted(broker.publish_batch(&name("t"), &batch, &options).wait().unwrap());
            broker.seal().unwrap();
        }
        let mut live = broker.subscribe(&pattern("t"), From::Now).unwrap();
        until_live(&mut live);
        std::thread::scope(|scope| {
            let recovering: Vec<_> = (0..60_u64)
                .map(|n| {
                    let of = if n % 2 == 0 { "t" } else { "*" };
                    let broker = &broker;
                    scope.spawn(move || {
                        let mut follower = broker.subscribe(&pattern(of), From::Beginning).unwrap();
                        let mut ledger = Ledger::default();
                        let first = next(&mut follower);
                        assert!(matches!(first, Delivery::Recovering { .. }), "{first:?}");
                        assert_eq!(follower.state(), SubscriberState::Recovering);
                        while ledger.next_of("t") <= 2000 {
                            ledger.note(&next(&mut follower));
                        }
                        assert!(ledger.gaps.is_empty());
                    })
                })
                .collect();
            for n in 0..20 {
                text(&broker, "t", format!("live {n}"));
                let Delivery::Messages(messages) = next(&mut live) else { panic!("it is live") };
                assert_eq!(messages.from(), Seq(2001 + n));
            }
            recovering.into_iter().for_each(|each| each.join().unwrap());
        });
        drop(live);
        broker.close().unwrap();
    });
}

#[test]
fn d11_a_slow_follower_falls_back_and_comes_back_and_memory_stays_bounded() {
    for of in ["t", "*"] {
        let mut world = World::new(1);
        world.options.journal = JournalOptions { tail_bytes: 20_000, ..JournalOptions::small() };
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let mut slow = broker.subscribe(&pattern(of), From::Now).unwrap();
        let mut quick = broker.subscribe(&pattern(of), From::Now).unwrap();
        drain(&mut slow);
        let mut ledger = Ledger::default();
        let mut most = 0;
        for round in 0..3_u64 {
            for n in 0..500 {
                text(&broker, "t", format!("{n:>1000}"));
                broker.turn();
                most = most.max(broker.journal_stats().tail_bytes);
                assert!(
                    drain(&mut quick).iter().all(|d| !matches!(d, Delivery::Recovering { .. }))
                );
            }
            let all = drain(&mut slow);
            assert!(matches!(all[0], Delivery::Recovering { .. }), "it became a recovering one");
            assert!(all.iter().any(|each| matches!(each, Delivery::Live)), "and came back");
            all.iter().for_each(|delivery| ledger.note(delivery));
            assert_eq!((ledger.next_of("t"), ledger.gaps.len()), ((round + 1) * 500 + 1, 0));
            assert_eq!(slow.state(), SubscriberState::Online);
        }
        assert!(most < 150_000, "{most} bytes in memory of 1.5 MB");
    }
}

#[test]
fn f3_handles_dropped_in_any_order_in_the_middle_of_recovery_end_without_a_hang() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let mut options = on_disk(folder.path());
        options.journal.tail_bytes = 0;
        options.limits.step_bytes = 512;
        let broker = Broker::open(options.clone()).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        texts(&broker, "t", 1..=200);
        broker.seal().unwrap();
        broker.close().unwrap();
        for round in 0..40 {
            // Threads of the last life may hold the lock for a moment.
            let mut opened = None;
            until("the folder is free", || {
                opened = Broker::open(options.clone()).ok();
                opened.is_some()
            });
            let broker = opened.unwrap();
            let mut followers: Vec<_> = ["t", "*", "t", "*"]
                .map(|of| broker.subscribe(&pattern(of), From::Beginning).unwrap())
                .into();
            for follower in &mut followers {
                drop(now(follower));
                drop(now(follower));
            }
            match round % 3 {
                0 => drop(broker),
                1 => broker.close().unwrap(),
                _ => {
                    followers.clear();
                    drop(broker);
                }
            }
        }
    });
}
