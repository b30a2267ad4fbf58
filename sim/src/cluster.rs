//! Nodes of a cluster over a network that delays, cuts, resets and forgets: a world of its own.
//!
//! Every node runs the real machine of `core::cluster`; the simulator plays the network, the
//! membership, the mailboxes and the clients. A seed decides what is published, who subscribes, moves
//! and hangs, which links are cut in which direction, what is in flight when a connection breaks,
//! who freezes, restarts and leaves, and how the clocks differ.
//!
//! What must hold: a message that was accepted is delivered to each of its targets of then, or an
//! event names it as lost; nothing goes to one who is not subscribed; each subscriber sees each
//! publisher's messages of a subject in order, and none twice, but for a named subscription that
//! moved; a refused publish reaches no one; every machine's `check()` after each step. At the end the
//! network heals: then everything that is owed arrives, and everyone sees everyone.
//!
//! `network` carries frames, `host` is a node with its mailboxes, `acts` is what happens to them,
//! `ledger` says what is owed and what may be.

mod acts;
mod host;
mod ledger;
mod network;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gapless_core::cluster::{ClusterConfig, Effect, Frame, Item, LostTarget, Node, Sender};
use gapless_core::{Pattern, Timestamp, TopicName};

use crate::random::Random;
use crate::trace::Trace;
use crate::world::{Checked, Violation, ensure};
use host::Host;
use ledger::Ledger;
use network::Network;

/// A defect that is put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// What arrives twice is delivered twice.
    NoDedup,
    /// A publish is acked before its admission is decided.
    AckBeforeAdmission,
    /// What is published while a target is suspended is sent to it as an empty item later.
    NoDelayQueue,
    /// Now and then what was reported as received is not delivered.
    ReportBeforeDelivery,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::NoDedup, Self::AckBeforeAdmission, Self::NoDelayQueue, Self::ReportBeforeDelivery];
}

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// How many steps it has.
    pub steps: u64,
    /// Whether every line of the trace is printed.
    pub print: bool,
    /// The defect that is put in.
    pub mutation: Option<Mutation>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { steps: 300, print: false, mutation: None }
    }
}

/// What happened in a run, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// Publishes that were accepted.
    pub accepted: u64,
    /// Publishes refused as `QueueFull`.
    pub queue_full: u64,
    /// Publishes refused as `PartitionDrop`.
    pub partition_drop: u64,
    /// Deliveries to the anonymous subscribers of a node.
    pub delivered: u64,
    /// Messages that named subscriptions took.
    pub taken: u64,
    /// Messages that a named subscription took again after it moved.
    pub taken_again: u64,
    /// Messages that events named as lost.
    pub lost: u64,
    /// Messages that overflowed in mailboxes.
    pub overflowed: u64,
    /// Items that arrived again.
    pub repeats: u64,
    /// Items sent again.
    pub resent: u64,
    /// Connections that broke.
    pub resets: u64,
    /// Restarts of nodes.
    pub restarts: u64,
    /// Nodes that left.
    pub leaves: u64,
    /// Nodes that froze.
    pub freezes: u64,
    /// Links that were cut.
    pub cuts: u64,
    /// Sessions that a later claim ended.
    pub taken_over: u64,
    /// Nodes and named subscriptions that were removed because their time was up.
    pub removed: u64,
    /// Delivery reports.
    pub reports: u64,
}

impl ClusterCounts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.queue_full += other.queue_full;
        self.partition_drop += other.partition_drop;
        self.delivered += other.delivered;
        self.taken += other.taken;
        self.taken_again += other.taken_again;
        self.lost += other.lost;
        self.overflowed += other.overflowed;
        self.repeats += other.repeats;
        self.resent += other.resent;
        self.resets += other.resets;
        self.restarts += other.restarts;
        self.leaves += other.leaves;
        self.freezes += other.freezes;
        self.cuts += other.cuts;
        self.taken_over += other.taken_over;
        self.removed += other.removed;
        self.reports += other.reports;
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// The seed.
    pub seed: u64,
    /// The hash of everything that happened.
    pub hash: u64,
    /// What was done.
    pub counts: ClusterCounts,
}

/// Runs a seed.
///
/// # Errors
/// Seed, step and story of what did not hold.
pub fn run_cluster(seed: u64, options: ClusterOptions) -> Result<ClusterReport, String> {
    let mut world = World::new(seed, options);
    let result = catch_unwind(AssertUnwindSafe(|| world.run(options.steps)));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("panic: {}", text.unwrap_or_default())))
    });
    match result {
        Ok(()) => Ok(ClusterReport { seed, hash: world.trace.hash(), counts: world.counts }),
        Err(violation) => {
            let recent: Vec<&str> = world.trace.recent().collect();
            let recent = recent.join("\n    ");
            let step = world.step;
            Err(format!("cluster seed {seed}, step {step}: {violation}\n    {recent}"))
        }
    }
}

/// Everything.
struct World {
    random: Random,
    trace: Trace,
    options: ClusterOptions,
    counts: ClusterCounts,
    step: u64,
    now: u64,
    config: ClusterConfig,
    hosts: Vec<Host>,
    network: Network,
    ledger: Ledger,
    subjects: Vec<TopicName>,
    patterns: Vec<Pattern>,
    identities: u64,
    /// The number of the next message, session and report.
    next_message: u64,
    next_session: u64,
    next_report: u64,
    /// Messages that a mailbox holds.
    mailbox_max: usize,
    /// What overflowed and no event has named yet.
    unnamed: Option<(LostTarget, u64)>,
    /// Items whose subscribers have yet to answer: where, from whom, which number.
    answers: BTreeMap<u64, (Sender, Sender, u64)>,
    /// Whether faults happen: not any more at the end.
    is_calm: bool,
}

impl World {
    fn new(seed: u64, options: ClusterOptions) -> Self {
        // The same seed is another story than in the world of topics.
        let mut random = Random::new(seed ^ 0x636c_7573_7465_7221);
        let config = acts::config(&mut random);
        let count = random.between(2, 5) as usize;
        let mut hosts = Vec::new();
        for index in 0..count {
            let skew = random.below(4_000);
            hosts.push(Host::new(index, 1, skew, config));
        }
        let parse = |text: &str| TopicName::parse(text).expect("a name");
        let subjects = ["a.x", "a.y", "b.x"].map(parse).to_vec();
        let pattern = |text: &str| Pattern::parse(text).expect("a pattern");
        let patterns = ["a.x", "a.*", "b.x", ">", "*.x"].map(pattern).to_vec();
        let loss = if random.chance(15) { random.between(1, 5) } else { 0 };
        Self {
            network: Network::new(count, loss),
            trace: Trace::new(options.print),
            options,
            counts: ClusterCounts::default(),
            step: 0,
            now: 1_000_000,
            config,
            hosts,
            ledger: Ledger::default(),
            subjects,
            patterns,
            identities: random.between(1, 3),
            next_message: 0,
            next_session: 0,
            next_report: 0,
            mailbox_max: random.between(1, 40) as usize,
            unnamed: None,
            answers: BTreeMap::new(),
            is_calm: false,
            random,
        }
    }

    fn run(&mut self, steps: u64) -> Checked {
        self.begin()?;
        for _ in 0..steps {
            self.step += 1;
            self.act()?;
            let pause = if self.random.chance(85) { 40 } else { 1_500 };
            let pause = self.random.below(pause);
            self.pass(pause)?;
        }
        self.step += 1;
        self.come_to_rest()?;
        for host in &self.hosts {
            let counts = host.node.status().counts;
            self.counts.repeats += counts.items_repeated;
            self.counts.resent += counts.items_resent;
        }
        Ok(())
    }

    /// Lets time pass; what is due happens in its order.
    fn pass(&mut self, ms: u64) -> Checked {
        let until = self.now + ms;
        loop {
            let ticks = self.hosts.iter().filter(|host| host.is_running());
            let ticks = ticks.filter_map(Host::deadline).map(|at| at.max(self.now));
            let due = ticks.chain(self.network.due(self.now, &self.hosts)).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = due;
            self.network_turn()?;
            for index in 0..self.hosts.len() {
                let host = &self.hosts[index];
                if host.is_running() && host.deadline().is_some_and(|at| at <= self.now) {
                    self.input(index, |node, now, effects| node.tick(now, effects))?;
                }
            }
        }
        self.now = until;
        Ok(())
    }

    /// Gives a node an input and carries out what it says.
    fn input<T>(
        &mut self,
        index: usize,
        input: impl FnOnce(&mut Node, Timestamp, &mut Vec<Effect>) -> T,
    ) -> Result<T, Violation> {
        let mut effects = Vec::new();
        let host = &mut self.hosts[index];
        let now = host.time(self.now);
        let result = input(&mut host.node, now, &mut effects);
        host.node.settle(now, &mut effects);
        host.node.check();
        self.carry_out(index, effects)?;
        Ok(result)
    }

    fn carry_out(&mut self, index: usize, effects: Vec<Effect>) -> Checked {
        for effect in effects {
            let line = Line(&effect);
            self.trace.line(format_args!("{} n{index} {line}", self.now));
            match effect {
                Effect::Send { to, frame } => {
                    let to = host::index_of(&to);
                    let frame = self.mutate(index, frame);
                    self.network.send(&mut self.random, self.now, (index, to), frame);
                }
                Effect::Deliver { from, order, delivery } => {
                    if self.options.mutation == Some(Mutation::ReportBeforeDelivery)
                        && self.random.chance(2)
                    {
                        continue;
                    }
                    self.deliver(index, &from, order, &delivery)?;
                }
                Effect::EndNamed { session, .. } => {
                    self.counts.taken_over += 1;
                    let ended = self.hosts[index].sessions.remove(&session);
                    ensure(ended.is_some(), || format!("{session} ended, and is not there"))?;
                }
                Effect::Reported { report, .. } => {
                    self.counts.reports += 1;
                    let due = self.hosts[index].reports.remove(&report);
                    ensure(due.is_some(), || {
                        format!("{report} is reported, and no publisher waits for it")
                    })?;
                }
                Effect::Event(event) => self.event(index, &event)?,
                Effect::Visible { .. } => {}
            }
        }
        self.overflow(index)
    }

    /// A frame arrived.
    fn arrive(&mut self, index: usize, from: &Sender, frame: Frame) -> Checked {
        if self.options.mutation == Some(Mutation::NoDedup)
            && let Frame::Deliver { items, .. } = &frame
        {
            for item in items {
                if self.hosts[index].seen.contains(&(from.clone(), item.order)) {
                    let delivery = self.hosts[index].delivery_of(item);
                    self.deliver(index, from, item.order, &delivery)?;
                }
            }
        }
        self.input(index, |node, now, effects| node.frame(now, from, frame, effects))
    }

    /// What a defective delay queue would send.
    fn mutate(&self, index: usize, frame: Frame) -> Frame {
        let Frame::Deliver { base, first, items } = frame else { return frame };
        let mutate = |item: Item| {
            let is_delayed = ledger::number_of(&item.records)
                .is_some_and(|number| self.hosts[index].delayed.contains(&number));
            if is_delayed && self.options.mutation == Some(Mutation::NoDelayQueue) {
                return Item { anonymous: false, sessions: Vec::new(), ..item };
            }
            item
        };
        Frame::Deliver { base, first, items: items.into_iter().map(mutate).collect() }
    }
}

/// An effect in a few words: frames are long.
struct Line<'a>(&'a Effect);

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Effect::Send { to, frame: Frame::Deliver { base, first, items } } => {
                write!(f, "-> {to} items base {base} from {first}:")?;
                for item in items {
                    let number = ledger::number_of(&item.records).unwrap_or(0);
                    write!(f, " {number}/{}{:?}", item.anonymous, item.sessions)?;
                }
                Ok(())
            }
            Effect::Send { to, frame } => write!(f, "-> {to} {frame:?}"),
            Effect::Deliver { from, order, delivery } => {
                let message = ledger::number_of(&delivery.records).unwrap_or(0);
                let sessions: Vec<u64> = delivery.named.iter().map(|(_, at)| *at).collect();
                let (node, anonymous) = (&from.node, delivery.anonymous);
                write!(f, "deliver {node}/{order} message {message} {anonymous} {sessions:?}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}
