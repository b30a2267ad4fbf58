//! One position resumes a subscription (D3, D7): wherever it stopped, nothing is lost and
//! nothing comes twice; a position of another store is reported, not used (D10).

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use gapless_broker::{Broker, BrokerOptions, Delivery, From, Token};
use gapless_core::{
    Compaction, Durability, Epoch, GapReason, Message, Position, PublishOptions, Seq, TopicSettings,
};
use gapless_journal::faulty::CrashKind;

const TOPICS: [&str; 4] = ["t.a", "t.b", "t.c", "other"];

fn publish_some(broker: &Broker, dice: &mut Dice, nexts: &mut [u64; 4]) {
    for _ in 0..=dice.roll(4) {
        let at = dice.roll(4) as usize;
        let count = 1 + dice.roll(5);
        let one = |n: u64| Message::new(format!("{n}{}", "x".repeat(100)));
        let batch: Vec<Message> = (0..count).map(|n| one(nexts[at] + n)).collect();
        let ack = broker.publish_batch(&name(TOPICS[at]), &batch, &PublishOptions::default());
        assert_eq!(accepted(ack.wait().expect("the store is well")).first, Seq(nexts[at]));
        nexts[at] += count;
    }
}

/// Publishes, seals, compacts, restarts; between these a reader is handed a few steps, stops,
/// and goes on elsewhere from its token, through its text.
fn resumes_everywhere(seed: u64, of: &str, followed: &[usize]) {
    let mut dice = Dice::new(seed);
    let mut world = World::new(seed);
    world.options.limits.step_bytes = [1, 300, 4096][dice.roll(3) as usize];
    world.options.journal.tail_bytes = [0, 2000, 16 * 1024][dice.roll(3) as usize];
    let mut broker = world.open();
    broker.create_topics(&TOPICS.map(name), TopicSettings::default()).expect("the store is well");
    let mut nexts = [1; 4];
    let mut ledger = Ledger::default();
    let mut token = Token { epoch: broker.epoch(), position: Position(0) };
    for round in 0..60 {
        publish_some(&broker, &mut dice, &mut nexts);
        let mut follower =
            broker.subscribe(&pattern(of), From::Token(token)).expect("the store is well");
        for _ in 0..dice.roll(6) {
            match now(&mut follower) {
                Some(delivery) => ledger.note(&delivery.expect("the store is well")),
                None => break,
            }
        }
        // Also without any step it tells the place where it stands.
        token = follower.token().to_string().parse().expect("the store is well");
        drop(follower);
        assert!(ledger.gaps.is_empty(), "seed {seed} round {round}: {:?}", ledger.gaps);
        broker = match dice.roll(8) {
            0 => world.close(broker),
            1 => world.crash(broker, CrashKind::Power),
            2 => {
                broker.seal().expect("the store is well");
                broker
            }
            3 => {
                broker.compact().expect("the store is well");
                broker
            }
            _ => broker,
        };
    }
    let mut follower =
        broker.subscribe(&pattern(of), From::Token(token)).expect("the store is well");
    drain(&mut follower).iter().for_each(|delivery| ledger.note(delivery));
    let mut all = 0;
    for &at in followed {
        assert_eq!(ledger.next_of(TOPICS[at]), nexts[at], "seed {seed}: {}", TOPICS[at]);
        all += nexts[at] - 1;
    }
    assert_eq!(ledger.seen, all, "seed {seed}: every message exactly once");
}

#[test]
fn d3_a_topic_is_resumed_after_every_step_without_loss_or_repeat() {
    for seed in 0..12 {
        resumes_everywhere(seed, "t.a", &[0]);
    }
}

#[test]
fn d7_one_position_resumes_a_pattern_over_many_topics_without_loss_or_repeat() {
    for seed in 100..112 {
        resumes_everywhere(seed, "t.*", &[0, 1, 2]);
    }
    resumes_everywhere(200, ">", &[0, 1, 2, 3]);
}

/// The same where compaction makes holes under the reader, and the newest of each key must
/// arrive all the same.
#[test]
fn d10_a_token_resumes_between_holes_of_compaction_without_a_silent_skip() {
    for (seed, of) in (300..316).zip(["t.a", "t.*"].into_iter().cycle()) {
        let mut dice = Dice::new(seed);
        let mut world = World::new(seed);
        world.options.limits.step_bytes = [1, 300, 4096][dice.roll(3) as usize];
        world.options.journal.tail_bytes = [0, 2000][dice.roll(2) as usize];
        let mut broker = world.open();
        let grace = Compaction { tombstone_grace: Duration::from_millis(1) };
        let settings = TopicSettings { compaction: Some(grace), ..TopicSettings::default() };
        broker.create_topics(&TOPICS.map(name), settings).unwrap();
        let mut ledger = Ledger::default();
        let mut newest = BTreeMap::new();
        let mut token = Token { epoch: broker.epoch(), position: Position(0) };
        for round in 0..80 {
            for _ in 0..dice.roll(6) {
                let topic = ["t.a", "t.b", "other"][dice.roll(3) as usize];
                let key = dice.roll(6).to_string();
                let message = Message::new(format!("{round}{}", "x".repeat(90))).with_key(key);
                publish(&broker, topic, &message);
            }
            let mut follower = broker.subscribe(&pattern(of), From::Token(token)).unwrap();
            let steps = if round == 79 { u64::MAX } else { dice.roll(5) };
            for _ in 0..steps {
                let Some(delivery) = now(&mut follower) else { break };
                let delivery = delivery.unwrap();
                ledger.note(&delivery);
                if let Delivery::Messages(messages) = delivery {
                    let topic = messages.topic().clone();
                    let keyed = messages.iter().map(|m| ((topic.clone(), m.message.key), m.seq));
                    newest.extend(keyed);
                }
            }
            token = follower.token();
            drop(follower);
            match dice.roll(5) {
                0 => broker.seal().unwrap(),
                1 => broker.compact().unwrap(),
                2 => broker = world.close(broker),
                _ => broker.turn(),
            }
        }
        for topic in ["t.a", "t.b"].into_iter().filter(|topic| of != "t.a" || *topic == of) {
            let next = broker.describe_topic(&name(topic)).unwrap().next.0;
            assert_eq!(ledger.next_of(topic), next, "seed {seed} {topic}");
            for key in (0..6).map(|key| key.to_string()) {
                let latest = broker.latest(&name(topic), key.as_bytes()).unwrap();
                let seen = newest.get(&(name(topic), Some(key.into()))).copied();
                assert_eq!(seen, latest.map(|found| found.seq), "seed {seed} {topic}");
            }
        }
    }
}

#[test]
fn d3_the_token_of_a_follower_that_got_nothing_yet_stands_where_it_asked_to_begin() {
    for history in [false, true] {
        let mut world = World::new(1);
        world.options.journal.tail_bytes = 0;
        let broker = world.open();
        broker.create_topics(&[name("t"), name("u")], TopicSettings::default()).unwrap();
        let batch: Vec<Message> = (1..=4).map(|n| Message::new(format!("{n}"))).collect();
        for _ in 0..3 {
            broker.publish_batch(&name("t"), &batch, &PublishOptions::default()).wait().unwrap();
            text(&broker, "u", "between");
            world.advance(10);
        }
        if history {
            broker.seal().unwrap();
        }
        let middle = From::Time(START.after(Duration::from_millis(10)));
        let mut cases = vec![(From::Now, 13), (middle, 5), (From::Beginning, 1)];
        cases.extend((1..=13).map(|seq| (From::Seq(Seq(seq)), seq)));
        for (from, first) in cases {
            for steps in 0..3 {
                let mut follower = broker.subscribe(&pattern("t"), from).unwrap();
                let mut seen = Vec::new();
                for _ in 0..steps {
                    seen.extend(now(&mut follower).map(|delivery| delivery.unwrap()));
                }
                let token = follower.token();
                drop(follower);
                let mut again = broker.subscribe(&pattern("t"), From::Token(token)).unwrap();
                seen.extend(drain(&mut again));
                let wanted: Vec<u64> = (first..=12).collect();
                assert_eq!(seqs(&seen), wanted, "{from:?} after {steps}, history: {history}");
            }
        }
    }
}

#[test]
fn d3_a_token_taken_at_once_is_true_also_while_others_publish() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(on_disk(folder.path())).unwrap();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stops = StopOnDrop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let ack = broker.publish(
                            &name("t"),
                            &Message::new("x"),
                            &PublishOptions::default(),
                        );
                        ack.wait().unwrap();
                    }
                });
            }
            let first = |follower: &mut gapless_broker::Subscription| loop {
                if let Delivery::Messages(messages) = next(follower) {
                    break messages.from();
                }
            };
            for _ in 0..300 {
                let mut follower = broker.subscribe(&pattern("t"), From::Now).unwrap();
                let token = follower.token();
                let mut resumed = broker.subscribe(&pattern("t"), From::Token(token)).unwrap();
                assert_eq!(first(&mut follower), first(&mut resumed));
            }
        });
        broker.close().unwrap();
    });
}

#[test]
fn d10_a_token_of_another_store_is_told_and_reading_begins_anew() {
    let (old, new) = (World::new(2), World::new(3));
    let broker = old.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=9);
    let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    drain(&mut follower);
    let token = follower.token();
    let other = new.open();
    other.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&other, "t", 1..=2);
    for of in ["t", "*"] {
        let all = drain(&mut other.subscribe(&pattern(of), From::Token(token)).unwrap());
        let told = gaps(&all);
        assert!(matches!(all[0], Delivery::Gap(_)), "it is reported first");
        assert_eq!((told.len(), told[0].reason), (1, GapReason::Epoch));
        assert_eq!(seqs(&all), [1, 2]);
    }
    let ahead = Token { epoch: other.epoch(), position: Position(1 << 60) };
    let all = drain(&mut other.subscribe(&pattern("t"), From::Token(ahead)).unwrap());
    assert_eq!(gaps(&all)[0].reason, GapReason::Epoch);
    let forged = Token { epoch: Epoch(1), position: Position(u64::MAX) };
    for of in ["t", "*", "nothing"] {
        drain(&mut other.subscribe(&pattern(of), From::Token(forged)).unwrap());
        let end = Token { epoch: other.epoch(), position: Position(u64::MAX) };
        drain(&mut other.subscribe(&pattern(of), From::Token(end)).unwrap());
    }
}

#[test]
fn d10_a_token_for_what_the_power_took_back_is_told_and_new_messages_are_not_missed() {
    for seed in 0..20 {
        let world = World::new(seed);
        let broker = world.open();
        let written =
            TopicSettings { durability: Some(Durability::Written), ..TopicSettings::default() };
        broker.create_topic(&name("t"), written).unwrap();
        broker.flush();
        texts(&broker, "t", 1..=20);
        let tokens = ["t", "*"].map(|of| {
            let mut follower = broker.subscribe(&pattern(of), From::Beginning).expect("followed");
            drain(&mut follower);
            follower.token()
        });
        let broker = world.crash(broker, CrashKind::Power);
        let kept = broker.describe_topic(&name("t")).unwrap().next.0 - 1;
        text(&broker, "t", "new");
        for (of, token) in ["t", "*"].into_iter().zip(tokens) {
            let all = drain(&mut broker.subscribe(&pattern(of), From::Token(token)).unwrap());
            assert_eq!(bodies(&all), ["new"], "seed {seed} {of}");
            let lost = gaps(&all).iter().any(|gap| gap.reason == GapReason::Epoch);
            assert_eq!(lost, kept < 20, "seed {seed} {of}: {kept} of 20 were kept");
        }
    }
}

/// The store is copied, goes on, and is then replaced by the copy, which goes on otherwise: the
/// positions of the lost part are given to other messages.
#[test]
fn v9_a_token_from_after_the_copy_that_was_restored_is_told_and_not_obeyed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (live, copy) = (folder.path().join("live"), folder.path().join("copy"));
    let open = || {
        let mut options = BrokerOptions::new(&live);
        options.threads = false;
        Broker::open(options).expect("the store opens")
    };
    let publish_some = |broker: &Broker, text: &str, count: u64| {
        for at in 0..count {
            publish(broker, "t", &Message::new(format!("{text}{at}")));
        }
    };
    let follow = |broker: &Broker, token: Token| {
        let mut follower =
            broker.subscribe(&pattern("t"), From::Token(token)).expect("it is there");
        let deliveries = drain(&mut follower);
        (deliveries, follower.token())
    };
    let broker = open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("the store is well");
    publish_some(&broker, "old", 5);
    let beginning = Token { epoch: broker.epoch(), position: Position(0) };
    let (_, before_the_copy) = follow(&broker, beginning);
    broker.close().expect("it closes");
    copy_folder(&live, &copy);
    let broker = open();
    publish_some(&broker, "lost", 10);
    let (_, after_the_copy) = follow(&broker, before_the_copy);
    broker.close().expect("it closes");

    std::fs::remove_dir_all(&live).expect("it is there");
    copy_folder(&copy, &live);
    let broker = open();
    publish_some(&broker, "new", 30);
    let texts = |deliveries: &[Delivery]| -> Vec<String> {
        let messages = deliveries.iter().filter_map(|delivery| match delivery {
            Delivery::Messages(messages) => Some(messages),
            _ => None,
        });
        let text = |each: gapless_broker::Delivered| {
            String::from_utf8(each.message.body.expect("a body").to_vec()).expect("a text")
        };
        messages.flat_map(|messages| messages.iter().map(text).collect::<Vec<_>>()).collect()
    };
    let (deliveries, _) = follow(&broker, after_the_copy);
    let gap = deliveries.iter().find_map(|delivery| match delivery {
        Delivery::Gap(gap) => Some(gap.reason),
        _ => None,
    });
    assert_eq!(gap, Some(GapReason::Epoch));
    assert_eq!(texts(&deliveries).len(), 35, "all that is there, from the beginning");
    // A token of the part that both have is obeyed.
    let (deliveries, _) = follow(&broker, before_the_copy);
    assert_eq!(texts(&deliveries).len(), 30);
    assert!(deliveries.iter().all(|delivery| !matches!(delivery, Delivery::Gap(_))));
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("it is there").flatten() {
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a kind").is_dir() {
            copy_folder(&entry.path(), &to);
        } else if entry.file_type().expect("a kind").is_file() {
            std::fs::copy(entry.path(), to).expect("it can be copied");
        }
    }
}

/// A store in which a reader saw three messages of `t.a`, which then was deleted and created again
/// with two; the token of that reader.
fn created_again(world: &World, of: &str) -> (Broker, Token) {
    let broker = world.open();
    broker.create_topics(&TOPICS.map(name), TopicSettings::default()).expect("created");
    texts(&broker, "t.a", 1..=3);
    let mut follower = broker.subscribe(&pattern(of), From::Beginning).expect("followed");
    drain(&mut follower);
    let token = follower.token();
    drop(follower);
    broker.delete_topic(&name("t.a")).expect("deleted");
    broker.create_topic(&name("t.a"), TopicSettings::default()).expect("created");
    texts(&broker, "t.a", 1..=2);
    (broker, token)
}

/// The reasons of gaps and the first seqs of messages, in their order.
fn story(deliveries: &[Delivery]) -> Vec<String> {
    let tell = |delivery: &Delivery| match delivery {
        Delivery::Gap(gap) => {
            Some(format!("{} {:?}", gap.reason, gap.topic.as_ref().expect("of a topic")))
        }
        Delivery::Messages(messages) => Some(format!("{}..{}", messages.from(), messages.to())),
        Delivery::Recovering { .. } | Delivery::Live => None,
    };
    deliveries.iter().filter_map(tell).collect()
}

#[test]
fn o6_a_token_notices_that_its_topic_was_deleted_and_created_again() {
    for of in ["t.a", "t.*", ">"] {
        let world = World::new(600);
        let (mut broker, token) = created_again(&world, of);
        // At once, after a restart, when it is read from segments, and from a checkpoint.
        for round in 0..4 {
            let mut follower = broker.subscribe(&pattern(of), From::Token(token)).unwrap();
            let got = drain(&mut follower);
            let expected = [format!("deleted {:?}", name("t.a")), "1..2".to_owned()];
            assert_eq!(story(&got), expected, "{of}, round {round}");
            let notice = got.iter().find_map(|each| match each {
                Delivery::Gap(gap) => Some(gap.clone()),
                _ => None,
            });
            let (first, last) = notice.unwrap().positions.unwrap();
            assert!(first == token.position.next() && first < last);
            // Who has seen the notice and the messages is not notified again.
            let seen = follower.token();
            drop(follower);
            let mut follower = broker.subscribe(&pattern(of), From::Token(seen)).unwrap();
            assert_eq!(story(&drain(&mut follower)), [""; 0], "{of}, round {round}");
            drop(follower);
            broker = match round {
                0 => world.crash(broker, CrashKind::Power),
                1 => {
                    broker.seal().unwrap();
                    broker
                }
                _ => world.close(broker),
            };
        }
    }
}

#[test]
fn o6_a_live_follower_of_a_pattern_is_notified_between_the_two_topics() {
    let world = World::new(601);
    let broker = world.open();
    broker.create_topics(&TOPICS.map(name), TopicSettings::default()).expect("created");
    let mut follower = broker.subscribe(&pattern("t.*"), From::Beginning).unwrap();
    texts(&broker, "t.a", 1..=3);
    assert_eq!(story(&drain(&mut follower)), ["1..3"]);
    broker.delete_topic(&name("t.a")).expect("deleted");
    assert_eq!(story(&drain(&mut follower)), [""; 0]);
    let between = follower.token();
    texts(&broker, "t.b", 1..=1);
    broker.create_topic(&name("t.a"), TopicSettings::default()).expect("created");
    texts(&broker, "t.a", 1..=2);
    let notice = format!("deleted {:?}", name("t.a"));
    let expected = ["1..1".to_owned(), notice, "1..2".to_owned()];
    assert_eq!(story(&drain(&mut follower)), expected);
    // The same for a token from between the deletion and the creation.
    let mut follower = broker.subscribe(&pattern("t.*"), From::Token(between)).unwrap();
    assert_eq!(story(&drain(&mut follower)), expected);
}

#[test]
fn o6_a_notice_comes_after_what_was_written_before_the_creation_in_the_same_frame() {
    let world = World::new(603);
    let broker = world.open();
    let memory = TopicSettings { durability: Some(Durability::Memory), ..TopicSettings::default() };
    broker.create_topic(&name("t.a"), TopicSettings::default()).expect("created");
    broker.create_topic(&name("t.b"), memory).expect("created");
    texts(&broker, "t.a", 1..=1);
    let mut follower = broker.subscribe(&pattern("t.*"), From::Beginning).unwrap();
    assert_eq!(story(&drain(&mut follower)), ["1..1"]);
    broker.delete_topic(&name("t.a")).expect("deleted");
    assert_eq!(story(&drain(&mut follower)), [""; 0]);
    // In memory only, until the creation flushes both.
    texts(&broker, "t.b", 1..=3);
    broker.create_topic(&name("t.a"), TopicSettings::default()).expect("created");
    let first = now(&mut follower).expect("something came").expect("no trouble");
    assert_eq!(story(std::slice::from_ref(&first)), ["1..3"]);
    // A token covers what was handed out, and no more.
    let mut resumed = broker.subscribe(&pattern("t.*"), From::Token(follower.token())).unwrap();
    let notice = format!("deleted {:?}", name("t.a"));
    assert_eq!(story(&drain(&mut resumed)), [notice]);
}

#[test]
fn o6_a_topic_of_a_new_name_and_a_beginning_are_no_gap() {
    let world = World::new(602);
    let (broker, token) = created_again(&world, "t.a");
    broker.create_topic(&name("t.new"), TopicSettings::default()).unwrap();
    texts(&broker, "t.new", 1..=1);
    let mut follower = broker.subscribe(&pattern("t.new"), From::Token(token)).unwrap();
    assert_eq!(story(&drain(&mut follower)), ["1..1"]);
    for (of, expected) in [("t.a", vec!["1..2"]), ("t.*", vec!["1..2", "1..1"])] {
        let mut follower = broker.subscribe(&pattern(of), From::Beginning).expect("followed");
        assert_eq!(story(&drain(&mut follower)), expected);
    }
}
