//! `kill -9` of a real process on a real disk, again and again (F2): nothing that was
//! acknowledged is missing, numbers and order hold, and nothing is there twice.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use common::*;
use gapless_broker::{Broker, BrokerOptions, From, block_on};
use gapless_core::{Durability, Message, PublishOptions, TopicSettings};

const FOLDER: &str = "GAPLESS_TEST_KILL_FOLDER";
const ROUND: &str = "GAPLESS_TEST_KILL_ROUND";
const TOPICS: [&str; 3] = ["t.a", "t.b", "t.c"];
const ROUNDS: u64 = 20;

fn options(folder: &Path, round: u64) -> BrokerOptions {
    let mut options = on_disk(folder);
    // In every other round a segment is being written at almost any moment.
    options.journal.seal_bytes = if round.is_multiple_of(2) { 12 * 1024 } else { 64 * 1024 };
    options
}

/// Not a test but the one who is killed: it publishes for ever and prints its acks.
#[test]
fn child_that_publishes_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let broker = Broker::open(options(Path::new(&folder), round)).unwrap();
    broker.create_topics(&TOPICS.map(name), TopicSettings::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let broker = &broker;
            scope.spawn(move || publish_for_ever(broker, round, thread));
        }
    });
}

fn publish_for_ever(broker: &Broker, round: u64, thread: u64) {
    let mut dice = Dice::new(round * 100 + thread);
    for n in 0.. {
        let topic = TOPICS[dice.roll(3) as usize];
        let bodies: Vec<String> =
            (0..=dice.roll(3)).map(|part| format!("{round}-{thread}-{n}-{part}")).collect();
        // Written is enough against kill -9, and flushed all the more.
        let durability = [Durability::Written, Durability::Flushed][dice.roll(2) as usize];
        let options = PublishOptions { durability: Some(durability), ..PublishOptions::default() };
        let padded = |body: &String| Message::new(format!("{body:<120}"));
        let batch: Vec<Message> = bodies.iter().map(padded).collect();
        let publishing = broker.publish_batch(&name(topic), &batch, &options);
        if !publishing.is_accepted() {
            block_on(broker.room());
            continue;
        }
        let ack = accepted(publishing.wait().expect("the disk is well"));
        assert!(ack.durability >= durability);
        let line = format!("ack {topic} {} {}\n", ack.first, bodies.join(" "));
        let mut out = std::io::stdout().lock();
        // The parent no longer reads when this process should be dead.
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

fn start(folder: &Path, round: u64) -> Child {
    Command::new(std::env::current_exe().expect("this test is a file"))
        .args(["--exact", "child_that_publishes_until_it_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test can start itself")
}

/// Kills the child after some acks and gives all the whole lines it said.
fn kill_after(mut child: Child, acks: u64) -> Vec<String> {
    let stdout = child.stdout.take().expect("it is piped");
    let (send, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
            // A line without an end was cut by the kill.
            if line.ends_with('\n') && send.send(line.trim().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    let mut said = Vec::new();
    while (said.len() as u64) < acks {
        match lines.recv_timeout(PATIENCE) {
            // The test harness of the child may have printed something before it.
            Ok(line) => said.extend(line.find("ack ").map(|at| line[at..].to_owned())),
            Err(error) => {
                child.kill().expect("it can be killed");
                panic!("the child said nothing more: {error}");
            }
        }
    }
    child.kill().expect("it can be killed");
    child.wait().expect("it was started here");
    said.extend(lines.iter().filter(|line| line.starts_with("ack ")));
    reader.join().expect("it only reads");
    said
}

#[test]
fn f2_what_was_acknowledged_survives_kill_nine_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice::new(9);
    let mut acked: BTreeMap<(String, u64), String> = BTreeMap::new();
    let mut sealed = 0;
    for round in 0..ROUNDS {
        for line in kill_after(start(folder.path(), round), 10 + dice.roll(300)) {
            let mut words = line.split(' ').skip(1);
            let topic = words.next().expect("a topic").to_owned();
            let first: u64 = words.next().expect("a seq").parse().expect("it is a number");
            for (at, body) in words.enumerate() {
                let before = acked.insert((topic.clone(), first + at as u64), body.to_owned());
                assert_eq!(before, None, "round {round}: a seq was given twice");
            }
        }
        let broker = Broker::open(options(folder.path(), round)).unwrap();
        let opened = broker.opened();
        assert!(!opened.clean && opened.jump.is_some(), "{opened:?}");
        sealed = sealed.max(broker.journal_stats().segments);
        let mut everything = BTreeSet::new();
        for topic in TOPICS {
            let mut follower = broker.subscribe(&pattern(topic), From::Beginning).unwrap();
            let all = until_live(&mut follower);
            let mut ledger = Ledger::from(topic, 1);
            all.iter().for_each(|delivery| ledger.note(delivery));
            assert!(ledger.gaps.is_empty());
            for (seq, body) in seqs(&all).into_iter().zip(bodies(&all)) {
                let body = body.trim().to_owned();
                if let Some(wanted) = acked.get(&(topic.to_owned(), seq)) {
                    assert_eq!(&body, wanted, "round {round}: {topic} {seq}");
                }
                assert!(everything.insert(body), "round {round}: {topic} {seq} is there twice");
            }
            let last = acked.keys().filter(|(each, _)| each == topic).map(|(_, seq)| *seq).max();
            let next = broker.describe_topic(&name(topic)).unwrap().next.0;
            assert!(Some(next) > last, "round {round}: {topic} ends at {next}, {last:?} was acked");
        }
        assert!(acked.values().all(|body| everything.contains(body)), "round {round}");
        broker.close().unwrap();
    }
    assert!(sealed > 0, "some rounds were killed with segments");
    assert!(acked.len() > 1000, "only {} acks were seen", acked.len());
}
