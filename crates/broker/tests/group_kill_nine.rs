//! `kill -9` of a process whose members copy a topic into another in atomic steps: each input
//! is in the output exactly once, whatever moment it dies at (B4, F2).

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use gapless_broker::{Atomic, Broker, BrokerOptions, From, Handed, Join, Member, block_on};
use gapless_core::{
    GroupSettings, Message, Mode, PublishAck, PublishOptions, RejectReason, RetryPolicy,
    TopicSettings,
};

const FOLDER: &str = "GAPLESS_TEST_COPY_FOLDER";
const ROUND: &str = "GAPLESS_TEST_COPY_ROUND";
const ROUNDS: u64 = 8;
const INPUTS: usize = 3_000;
const KEYS: usize = 40;

fn options(folder: &Path, round: u64) -> BrokerOptions {
    let mut options = on_disk(folder);
    options.journal.seal_bytes = if round.is_multiple_of(2) { 12 * 1024 } else { 64 * 1024 };
    options
}

fn group(mode: Mode) -> GroupSettings {
    GroupSettings {
        mode,
        lease: Duration::from_millis(500),
        attempts_max: 1_000_000,
        retry: RetryPolicy::at_once(),
        ..GroupSettings::new(pattern("in"))
    }
}

/// Not a test but the one who is killed: members that copy for ever.
#[test]
fn child_that_copies_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let broker = Broker::open(options(Path::new(&folder), round)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let broker = &broker;
            scope.spawn(move || copy_for_ever(broker, round, thread));
        }
    });
}

fn copy_for_ever(broker: &Broker, round: u64, thread: u64) {
    let mut dice = Dice::new(round * 100 + thread);
    let join = Join { name: format!("copier-{thread}"), window: 20 };
    let new = || loop {
        match broker.join_group(&name("copy"), &join) {
            Ok(member) => return member,
            // Too much waits to be written.
            Err(_) => block_on(broker.room()),
        }
    };
    let mut member = new();
    loop {
        let Ok(handed) = block_on(member.next()) else { return };
        let Handed::Messages(leased) = handed else { continue };
        match dice.roll(20) {
            // It dies in the middle, without a word.
            0 => {
                drop(member);
                member = new();
                continue;
            }
            1 => {
                while member.nack(leased.leases(), None, "not today").wait().is_err() {
                    block_on(broker.room());
                }
                continue;
            }
            _ => {}
        }
        for each in leased.messages().iter() {
            let body = each.message.body.as_deref().unwrap_or_default();
            let made =
                Message { body: Some([body, b" copied"].concat().into()), ..each.message.clone() };
            let atomic = Atomic::new()
                .publish(&name("out"), &[made])
                .ack(&member.handle(), &[leased.lease_of(each.position)]);
            match broker.commit(atomic, &PublishOptions::default()).wait() {
                Ok(PublishAck::Rejected(RejectReason::LeaseLost)) => break,
                Ok(PublishAck::Rejected(RejectReason::QueueFull)) => block_on(broker.room()),
                Ok(PublishAck::Accepted(_)) => {
                    let mut out = std::io::stdout().lock();
                    if out.write_all(b"step\n").and_then(|()| out.flush()).is_err() {
                        return;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn run_and_kill(folder: &Path, round: u64, steps: u64) {
    let mut child = Command::new(std::env::current_exe().expect("this test is a file"))
        .args(["--exact", "child_that_copies_until_it_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test can start itself");
    let stdout = child.stdout.take().expect("it is piped");
    let (send, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.contains("step") && send.send(()).is_err() {
                break;
            }
        }
    });
    let all = (0..steps).all(|_| lines.recv_timeout(PATIENCE).is_ok());
    child.kill().expect("it can be killed");
    child.wait().expect("it was started here");
    drop(lines);
    reader.join().expect("it only reads");
    assert!(all, "round {round}: the members stand still");
}

/// The bodies of a topic, in order, with their keys.
fn all_of(broker: &Broker, topic: &str) -> Vec<(String, String)> {
    let mut follower = broker.subscribe(&pattern(topic), From::Beginning).expect("it is there");
    let text = |bytes: Option<bytes::Bytes>| {
        String::from_utf8(bytes.unwrap_or_default().to_vec()).expect("text")
    };
    let all = delivered(&until_live(&mut follower));
    all.into_iter().map(|each| (text(each.message.key), text(each.message.body))).collect()
}

#[test]
fn f2_a_copy_in_atomic_steps_holds_each_input_once_after_kill_nine() {
    for mode in [Mode::Keyed, Mode::Shared, Mode::Ordered] {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::open(options(folder.path(), 0)).unwrap();
        broker.create_topics(&["in", "out"].map(name), TopicSettings::default()).unwrap();
        broker.create_group(&name("copy"), group(mode)).unwrap();
        let input = |index: usize| {
            Message::new(format!("{index:05}")).with_key(format!("key-{}", index % KEYS))
        };
        let inputs: Vec<Message> = (0..INPUTS).map(input).collect();
        for part in inputs.chunks(50) {
            broker.publish_batch(&name("in"), part, &PublishOptions::default()).wait().unwrap();
        }
        broker.close().unwrap();
        let mut dice = Dice::new(11);
        for round in 0..ROUNDS {
            run_and_kill(folder.path(), round, 1 + dice.roll(250));
        }
        // What is left is copied in peace.
        let broker = Broker::open(options(folder.path(), 1)).unwrap();
        let copied = all_of(&broker, "out").len();
        assert!(copied > 100, "{mode}: only {copied} were copied before");
        drain(&broker);
        let mut seen = BTreeMap::new();
        let mut of_key: BTreeMap<String, String> = BTreeMap::new();
        for (key, body) in all_of(&broker, "out") {
            *seen.entry(body.clone()).or_insert(0) += 1;
            let before = of_key.insert(key.clone(), body.clone());
            if mode != Mode::Shared {
                assert!(before.is_none_or(|before| before < body), "{key} goes in order");
            }
        }
        assert_eq!(seen.len(), INPUTS, "nothing is missing");
        assert!(seen.values().all(|count| *count == 1), "nothing is there twice");
        broker.close().unwrap();
    }
}

fn drain(broker: &Broker) {
    let join = Join { name: "last".to_owned(), window: 500 };
    let mut member: Member = broker.join_group(&name("copy"), &join).expect("it is there");
    while broker.describe_group(&name("copy")).expect("it is there").lag > 0 {
        let Ok(Handed::Messages(leased)) = block_on(member.next()) else { continue };
        let copy = |each: gapless_broker::Delivered| {
            let body = each.message.body.as_deref().unwrap_or_default();
            Message { body: Some([body, b" copied"].concat().into()), ..each.message.clone() }
        };
        let made: Vec<Message> = leased.messages().iter().map(copy).collect();
        let atomic =
            Atomic::new().publish(&name("out"), &made).ack(&member.handle(), leased.leases());
        // On a slow machine a lease may run out before; then it comes again.
        let ack = broker.commit(atomic, &PublishOptions::default()).wait().expect("it is well");
        let lost = PublishAck::Rejected(RejectReason::LeaseLost);
        assert!(matches!(ack, PublishAck::Accepted(_)) || ack == lost, "{ack:?}");
    }
}
