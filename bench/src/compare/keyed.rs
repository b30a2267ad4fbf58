//! Groups that keep the order of keys, with a backlog: members take and acknowledge, and of a key only
//! one message is with a member at a time.
//!
//! Neither peer has such groups, so gapless stands alone here. What is looked for is a cost per message
//! that does not grow with the backlog, also when the members' windows exceed the number of keys.

use std::net::SocketAddr;

use gapless_core::{Message, PublishOptions, RecordsBuilder, TopicName};
use gapless_protocol::Publish;

use super::groups::take_all;
use super::link::{Link, Seen};
use super::live::MESSAGE_BYTES;
use super::native::encode;
use super::report::{Counts, Measured};
use super::run::{Run, Stage};
use super::stored::count_name;
use super::systems::{Contender, Group, Store, Who};
use crate::benches::store::{Result, message};

const TOPIC: &str = "orders";
const KEYS: u64 = 1_000;

/// Members, and the window of each: the first has fewer messages in flight than there are keys.
const SHAPES: [(usize, usize); 3] = [(1, 500), (4, 1_000), (16, 1_000)];

/// Messages of a publish while the topic is filled, and publishes in flight.
const BATCH: u64 = 64;
const IN_FLIGHT: u64 = 64;

/// Every shape with a small and a large backlog.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    let contender = Contender::new(Who::Gapless, Store::Flushed);
    for backlog in [run.plan.backlog / 10, run.plan.backlog] {
        for (members, window) in SHAPES {
            let title = format!(
                "take and ack by key, {KEYS} keys, {} waiting, {members} × {window} in flight",
                count_name(backlog)
            );
            let rounds = run.plan.rounds_stored;
            run.alternate((&title, rounds), vec![contender], |run, contender| {
                let stage = run.stage(contender)?;
                let (there, shape) = ((KEYS, backlog), (members, window));
                let measured = work_off((contender, &stage), there, shape)?;
                run.add("keyed", (&title, Counts::PerSecond), contender, measured);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Fills a topic with so many messages of so many keys, and lets members take all of them.
pub(super) fn work_off(
    (contender, stage): (&Contender, &Stage),
    (keys, backlog): (u64, u64),
    (members, window): (usize, usize),
) -> Result<Measured> {
    fill(stage.server.address(), contender, (keys, backlog))?;
    let group = Group { topic: TOPIC, name: "keyed", batch: window / 2, keyed: true };
    take_all(backlog, (contender, stage), group, members)
}

/// So many messages, whose keys come in turn.
fn fill(address: SocketAddr, contender: &Contender, (keys, count): (u64, u64)) -> Result<()> {
    let system = contender.who.system();
    let mut link: Link = system.connect(address)?;
    system.create(&mut link, TOPIC, contender.store)?;
    let body = message(MESSAGE_BYTES).body.unwrap_or_default();
    let (mut in_flight, mut next) = (0, 0);
    while next < count {
        let mut records = RecordsBuilder::default();
        let batch = BATCH.min(count - next);
        for number in next..next + batch {
            let key = format!("key-{}", number % keys).into();
            records.push(&Message { key: Some(key), ..Message::new(body.clone()) })?;
        }
        next += batch;
        let publish = Publish {
            topic: TopicName::parse(TOPIC)?,
            options: PublishOptions::default(),
            not_before: None,
            records: records.finish(),
        };
        link.send(&encode(publish, u128::from(next) + 1)?)?;
        in_flight += 1;
        while in_flight >= IN_FLIGHT {
            let mut seen = Seen::default();
            link.receive(&mut seen)?;
            in_flight -= seen.answers;
        }
    }
    link.answers(in_flight)
}
