//! Many members at once, on threads, with real time: no member is forgotten, none is woken in
//! vain for ever, and keys stay in order.

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use gapless_broker::{Broker, GroupError, Handed, Join, Member, block_on};
use gapless_core::{
    GroupSettings, Message, Mode, PubSubError, PublishOptions, RetryPolicy, TopicSettings, Waits,
};

const MEMBERS: usize = 50;
const KEYS: usize = 200;
const MESSAGES: usize = 10_000;

#[test]
fn fifty_members_of_a_keyed_group_keep_each_key_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::open(on_disk(folder.path())).unwrap();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let settings = GroupSettings {
        mode: Mode::Keyed,
        lease: Duration::from_secs(20),
        attempts_max: 1_000,
        retry: RetryPolicy {
            waits: Waits::Steps(vec![Duration::from_millis(3)]),
            jitter_percent: 20,
        },
        ..GroupSettings::new(pattern("t"))
    };
    broker.create_group(&name("g"), settings).unwrap();
    let seen: Mutex<BTreeMap<usize, Vec<usize>>> = Mutex::new(BTreeMap::new());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for id in 0..MEMBERS {
            let (broker, seen, done) = (&broker, &seen, &done);
            scope.spawn(move || work(broker, id, seen, done));
        }
        for part in (0..MESSAGES).collect::<Vec<_>>().chunks(25) {
            let message = |index: &usize| {
                Message::new(index.to_string()).with_key((index % KEYS).to_string())
            };
            let batch: Vec<Message> = part.iter().map(message).collect();
            loop {
                let options = PublishOptions::default();
                let publishing = broker.publish_batch(&name("t"), &batch, &options);
                if publishing.is_accepted() {
                    publishing.wait().unwrap();
                    break;
                }
                block_on(broker.room());
            }
        }
        let deadline = std::time::Instant::now() + PATIENCE;
        while done.load(Ordering::Acquire) < MESSAGES {
            assert!(
                std::time::Instant::now() < deadline,
                "{:?}",
                broker.describe_group(&name("g"))
            );
            std::thread::yield_now();
        }
        // Waiting members learn that it is over.
        broker.delete_group(&name("g")).unwrap();
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.values().map(Vec::len).sum::<usize>(), MESSAGES, "each was acked once");
    for (key, indexes) in seen {
        assert!(indexes.is_sorted(), "key {key}: {indexes:?}");
    }
    broker.close().unwrap();
}

/// Works until the group is gone; now and then fails, or dies and comes back.
fn work(broker: &Broker, id: usize, seen: &Mutex<BTreeMap<usize, Vec<usize>>>, done: &AtomicUsize) {
    let mut dice = Dice::new(id as u64 + 1);
    let join = Join { name: format!("m{id}"), window: 8 };
    let Some(mut member) = joined(broker, &join) else { return };
    loop {
        let Ok(handed) = block_on(member.next()) else { return };
        let Handed::Messages(leased) = handed else { continue };
        if dice.roll(100) == 0 {
            drop(member);
            let Some(new) = joined(broker, &join) else { return };
            member = new;
            continue;
        }
        for each in leased.messages().iter() {
            let lease = [leased.lease_of(each.position)];
            if dice.roll(50) == 0 {
                while member.nack(&lease, None, "not now").outcome().is_err() {
                    block_on(broker.room());
                }
                continue;
            }
            let body = each.message.body.as_deref().unwrap_or_default();
            let index: usize = std::str::from_utf8(body)
                .ok()
                .and_then(|text| text.parse().ok())
                .expect("a number");
            // Noted before the ack, and taken back if that comes too late.
            let mut all = seen.lock().expect("no thread panics with it");
            all.entry(index % KEYS).or_default().push(index);
            let outcome = loop {
                match member.ack(&lease).outcome() {
                    // Too much waits to be written.
                    Err(PubSubError::Unavailable) => block_on(broker.room()),
                    outcome => break outcome.expect("the disk is well"),
                }
            };
            if outcome.taken == 0 {
                all.entry(index % KEYS).or_default().retain(|other| *other != index);
                continue;
            }
            drop(all);
            done.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A new member, unless the group is gone.
fn joined(broker: &Broker, join: &Join) -> Option<Member> {
    loop {
        match broker.join_group(&name("g"), join) {
            Ok(member) => return Some(member),
            Err(GroupError::System(PubSubError::Unavailable)) => block_on(broker.room()),
            Err(_) => return None,
        }
    }
}
