//! What is done with a cluster: messages from the first node to subscribers at the others, much
//! interest, and a node that stops answering.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::link::Link;
use super::super::live::{MESSAGE_BYTES, flow, follower};
use super::super::paced::paced;
use super::super::publish::publisher;
use super::super::server::Programs;
use super::super::stats::per_mille;
use super::super::systems::{Contender, Who};
use super::nodes::{NODES, Nodes, within};
use crate::benches::store::Result;

/// What is published to; the only one while messages are measured.
const TOPIC: &str = "live.0";

/// Where messages are published, and where they are followed.
const PUBLISHED_AT: usize = 0;
const FOLLOWED_AT: [usize; NODES - 1] = [1, 2];

/// Subscriptions on one connection: what gapless allows by default.
const PER_LINK: usize = 10_000;

/// Subjects before memory is looked at: by then what is made once is made.
const WARM_UP: usize = 1000;

/// A node that is not missed by then is not waited for any longer.
pub(super) const NOTICE_MAX: Duration = Duration::from_secs(10);

/// What messages between nodes have cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Messages delivered in a second.
    pub(super) per_second: f64,
    /// Microseconds of CPU time of all nodes, for a delivered message.
    pub(super) cpu_micros: f64,
    /// Bytes between nodes, as parts of the payload of one copy for each node that follows.
    pub(super) bytes: f64,
}

/// How late messages were, at a fixed rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// As in [`Flow`].
    pub(super) bytes: f64,
}

/// Nodes that follow if there are so many subscribers, which are spread over them evenly.
fn following_nodes(subscribers: usize) -> usize {
    subscribers.min(FOLLOWED_AT.len())
}

/// Subscribers at the other nodes, known where messages are published.
fn followers(nodes: &Nodes, subscribers: usize) -> Result<Vec<Link>> {
    let known = |count| move || Ok(nodes.followed(PUBLISHED_AT, TOPIC)? == count);
    nodes.until("those of the last case are gone", known(0))?;
    let links = (0..subscribers).map(|number| {
        let at = FOLLOWED_AT[number % FOLLOWED_AT.len()];
        follower(nodes.who.system(), nodes.address(at), TOPIC)
    });
    let links = links.collect::<Result<Vec<_>>>()?;
    nodes.until("subscribers are known", known(following_nodes(subscribers)))?;
    Ok(links)
}

/// Bytes between nodes for a message, as parts of the payload of its copies.
fn of_payload(bytes: u64, messages: u64, copies: usize) -> f64 {
    bytes as f64 / (messages as f64 * copies as f64 * MESSAGE_BYTES as f64)
}

/// As much as goes without loss.
pub(super) fn full_speed(
    nodes: &Nodes,
    contender: &Contender,
    subscribers: usize,
    time: Duration,
) -> Result<Flow> {
    let address = nodes.address(PUBLISHED_AT);
    let mut publisher = publisher(address, contender, MESSAGE_BYTES, TOPIC)?;
    let following = followers(nodes, subscribers)?;
    let (bytes, cpu, started) = (nodes.bytes_between()?, nodes.cpu_time()?, Instant::now());
    let delivered = flow(std::slice::from_mut(&mut publisher), following, time)?;
    let took = started.elapsed().as_secs_f64();
    let cpu = nodes.cpu_time()?.saturating_sub(cpu).as_secs_f64();
    let bytes = nodes.bytes_between()?.saturating_sub(bytes);
    let published = delivered / subscribers as u64;
    Ok(Flow {
        per_second: delivered as f64 / took,
        cpu_micros: cpu * 1e6 / delivered as f64,
        bytes: of_payload(bytes, published, following_nodes(subscribers)),
    })
}

/// At a fixed rate, whatever the nodes do.
pub(super) fn fixed_rate(
    nodes: &Nodes,
    subscribers: usize,
    (per_second, time): (u32, Duration),
) -> Result<Late> {
    let system = nodes.who.system();
    let mut publisher = system.connect(nodes.address(PUBLISHED_AT))?;
    let following = followers(nodes, subscribers)?;
    let bytes = nodes.bytes_between()?;
    let micros = paced(system, &mut publisher, following, TOPIC, (per_second, time))?;
    let bytes = nodes.bytes_between()?.saturating_sub(bytes);
    let published = micros.len() as u64 / subscribers as u64;
    Ok(Late {
        p50: per_mille(&micros, 500),
        p99: per_mille(&micros, 990),
        bytes: of_payload(bytes, published, following_nodes(subscribers)),
    })
}

/// What much interest costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    /// Bytes of memory for a subject, at a node other than the one where it is followed.
    pub(super) bytes_each: f64,
    /// Microseconds until all nodes knew all topics, from the first subscribe on.
    pub(super) converged: f64,
}

/// Follows subjects at one node, then topics at each; a fresh cluster of its own.
pub(super) fn interest(
    programs: &Programs,
    who: Who,
    dir: &Path,
    (subjects, topics): (usize, usize),
) -> Result<Interest> {
    let nodes = Nodes::start(programs, who, dir)?;
    let others = [PUBLISHED_AT, FOLLOWED_AT[1]];
    let warm = follow_many(&nodes, FOLLOWED_AT[0], "warm", WARM_UP)?;
    known_at(&nodes, &others, known_of(&warm, WARM_UP))?;
    let resident =
        || -> Result<u64> { others.iter().map(|at| nodes.server(*at).resident_bytes()).sum() };
    let before = resident()?;
    let many = follow_many(&nodes, FOLLOWED_AT[0], "many", subjects)?;
    known_at(&nodes, &others, known_of(&warm, WARM_UP) + known_of(&many, subjects))?;
    let more = resident()?.saturating_sub(before);
    drop((warm, many));
    let all: Vec<usize> = (0..NODES).collect();
    for at in &all {
        nodes.until("all are gone", || Ok(nodes.interest(*at)? == 0))?;
    }
    let started = Instant::now();
    let links: Result<Vec<Vec<Link>>> = std::thread::scope(|scope| {
        let follow = |at: &usize| {
            let (nodes, at) = (&nodes, *at);
            scope.spawn(move || follow_many(nodes, at, &format!("at-{at}"), topics))
        };
        let threads: Vec<_> = all.iter().map(follow).collect();
        let links = threads.into_iter().map(|thread| thread.join());
        links.map(|links| links.unwrap_or_else(|_| Err("it panicked".into()))).collect()
    });
    let links = links?;
    known_at(&nodes, &all, (NODES as u64 - 1) * known_of(&links[0], topics))?;
    let converged = started.elapsed().as_secs_f64() * 1e6;
    Ok(Interest { bytes_each: more as f64 / (others.len() * subjects) as f64, converged })
}

/// Links at a node, which follow so many subjects.
fn follow_many(nodes: &Nodes, at: usize, prefix: &str, count: usize) -> Result<Vec<Link>> {
    let subjects: Vec<String> =
        (0..count).map(|number| format!("{prefix}.subject.{number}")).collect();
    let follow = |some: &[String]| {
        let system = nodes.who.system();
        let mut link = system.connect(nodes.address(at))?;
        system.follow_many(&mut link, some)?;
        Ok(link)
    };
    subjects.chunks(PER_LINK).map(follow).collect::<Result<Vec<_>>>().map(shrunk)
}

fn shrunk(links: Vec<Link>) -> Vec<Link> {
    links.into_iter().map(Link::shrunk).collect()
}

/// Subscriptions that others see of so many subjects on these links.
fn known_of(links: &[Link], subjects: usize) -> u64 {
    let inboxes = links.iter().filter(|link| !link.inbox.is_empty()).count();
    (subjects + inboxes) as u64
}

fn known_at(nodes: &Nodes, all: &[usize], count: u64) -> Result<()> {
    for at in all {
        nodes.until("all subjects are known", || Ok(nodes.interest(*at)? >= count))?;
    }
    Ok(())
}

/// How long it takes until the others miss a node, if they do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missed {
    /// It was frozen (SIGSTOP): its connections stay open, and it says nothing.
    pub(super) frozen: Option<Duration>,
    /// It was killed (SIGKILL): the kernel closes its connections.
    pub(super) killed: Option<Duration>,
}

/// Freezes a node, lets it go on, and kills it.
pub(super) fn missed(nodes: &Nodes) -> Result<Missed> {
    let gone = NODES - 1;
    let reached = |count| move || Ok(nodes.reached(0)? == count && nodes.reached(1)? == count);
    nodes.server(gone).signal("STOP")?;
    let frozen = within(NOTICE_MAX, reached(NODES - 2))?;
    nodes.server(gone).signal("CONT")?;
    nodes.until("it is linked again", reached(NODES - 1))?;
    nodes.server(gone).signal("KILL")?;
    let killed = within(NOTICE_MAX, reached(NODES - 2))?;
    Ok(Missed { frozen, killed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_as_parts_of_one_copy_for_each_node() {
        assert_eq!(of_payload(1000 * 2 * MESSAGE_BYTES as u64, 1000, 2), 1.0);
        assert_eq!(of_payload(1500 * MESSAGE_BYTES as u64, 1000, 1), 1.5);
    }

    #[test]
    fn a_single_subscriber_is_at_one_node() {
        assert_eq!([1, 2, 100].map(following_nodes), [1, 2, 2]);
    }
}
