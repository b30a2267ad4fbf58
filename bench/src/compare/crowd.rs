//! Publishing where neighbouring publishes are not of one connection and one topic: many
//! connections with one publish in flight each, and one connection to many topics in turn.
//!
//! One thread drives all connections of a crowd, one after the other: it takes the answer of each and
//! sends its next publish. So as many are in flight as there are connections, and what the generator
//! costs is the same for all systems.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::link::{Link, Ring};
use super::load::{Bound, Publisher, Window};
use super::publish::{IN_FLIGHT, RING};
use super::report::Counts;
use super::run::{Meter, Run};
use super::stored::count_name;
use super::systems::{Contender, Part, Store, System, To};
use crate::benches::size_name;
use crate::benches::store::{Result, message};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 128;

/// The topic of a crowd.
const TOPIC: &str = "crowd";

/// What the names of many topics begin with.
const PREFIX: &str = "many";

/// Questions in flight while topics are made.
const CREATES_IN_FLIGHT: usize = 256;

/// Many connections, one publish in flight on each.
pub(super) fn connections(run: &mut Run<'_>) -> Result<()> {
    for store in Store::KEPT {
        for count in run.plan.crowds.clone() {
            let size = size_name(MESSAGE_BYTES);
            let count_name = count_name(count as u64);
            let title = format!("{store}, {count_name} connections, one in flight each, {size}");
            let rounds = run.plan.rounds;
            run.alternate((&title, rounds), Contender::all(store, None), |run, contender| {
                let stage = run.stage(contender)?;
                let mut members = crowd(contender, stage.server.address(), count)?;
                let meter = Meter::start(&stage.server)?;
                let sent = in_turn(&mut members, run.plan.time)?;
                let measured = meter.rate(&stage.server, sent)?;
                run.add("crowd", (&title, Counts::PerSecond), contender, measured);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Connections that publish to one topic, which is made.
pub(super) fn crowd(
    contender: &Contender,
    address: SocketAddr,
    count: usize,
) -> Result<Vec<Member>> {
    let (system, store) = (contender.who.system(), contender.store);
    system.create(&mut system.connect(address)?, TOPIC, store)?;
    let body = message(MESSAGE_BYTES).body.unwrap_or_default();
    let member = |number| {
        let link = system.connect(address)?;
        let (to, part) = (To { topic: TOPIC, store }, Part { number, batch: 1 });
        let publish = system.publish(&link, to, &body, part)?;
        Ok(Member::new(link, publish))
    };
    (1..=count).map(member).collect()
}

/// A connection and what it publishes, again and again.
pub(super) struct Member {
    link: Link,
    publish: Vec<u8>,
}

impl Member {
    pub(super) fn new(link: Link, publish: Vec<u8>) -> Self {
        Self { link, publish }
    }

    fn send(&mut self) -> Result<()> {
        self.link.send(&self.publish)
    }
}

/// Keeps one publish in flight on each link; tells how many were answered.
pub(super) fn in_turn(members: &mut [Member], time: Duration) -> Result<u64> {
    let started = Instant::now();
    members.iter_mut().try_for_each(Member::send)?;
    let mut sent = members.len() as u64;
    while started.elapsed() < time {
        for member in &mut *members {
            member.link.answers(1)?;
            member.send()?;
        }
        sent += members.len() as u64;
    }
    members.iter_mut().try_for_each(|member| member.link.answers(1))?;
    Ok(sent)
}

/// One connection with 256 publishes in flight, each to the next of many topics.
pub(super) fn topics(run: &mut Run<'_>) -> Result<()> {
    for store in Store::KEPT {
        for count in run.plan.spreads.clone() {
            let size = size_name(MESSAGE_BYTES);
            let count_name = count_name(count as u64);
            let title = format!("{store}, {IN_FLIGHT} in flight over {count_name} topics, {size}");
            let rounds = run.plan.rounds;
            run.alternate((&title, rounds), Contender::all(store, None), |run, contender| {
                let stage = run.stage(contender)?;
                let mut publisher = spread(contender, stage.server.address(), count)?;
                let meter = Meter::start(&stage.server)?;
                let window = Window::exactly(IN_FLIGHT);
                let sent = publisher.flood(window, Bound::time(run.plan.time))?;
                let measured = meter.rate(&stage.server, sent)?;
                run.add("spread", (&title, Counts::PerSecond), contender, measured);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// A publisher whose ring goes round many topics, which it makes.
pub(super) fn spread(
    contender: &Contender,
    address: SocketAddr,
    count: usize,
) -> Result<Publisher<'static>> {
    let (system, store) = (contender.who.system(), contender.store);
    let mut link = system.connect(address)?;
    create_all(system, &mut link, store, count)?;
    let body = message(MESSAGE_BYTES).body.unwrap_or_default();
    let ring = Ring::new(count.max(RING), 1, |number| {
        let topic = name(number % count);
        system.publish(&link, To { topic: &topic, store }, &body, Part { number, batch: 1 })
    })?;
    Ok(Publisher::new(system, store, link, ring))
}

/// Names of equal length, so that all publishes of a ring are equally long.
fn name(number: usize) -> String {
    format!("{PREFIX}.{number:06}")
}

fn create_all(system: &dyn System, link: &mut Link, store: Store, count: usize) -> Result<()> {
    if system.create_below(link, PREFIX, store)? {
        return Ok(());
    }
    let mut in_flight = 0;
    for number in 0..count {
        let request = system.create_request(link, &name(number), store, number + 1)?;
        let Some(request) = request else { return Ok(()) };
        link.send(&request)?;
        in_flight += 1;
        if in_flight == CREATES_IN_FLIGHT {
            link.answers(in_flight as u64)?;
            in_flight = 0;
        }
    }
    link.answers(in_flight as u64)
}
