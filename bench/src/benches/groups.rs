//! Working off the backlog of a keyed group: what a message costs, over how many wait, how many
//! keys and members there are, and how much each member may hold.
//!
//! Each case fills a store with messages whose keys come in no order, then lets all members
//! take and ack until everything is done. Members run on one thread: each is polled when it was
//! woken, and touches what it is handed, as the native API does before it sends it. An ack takes
//! a round trip: the oldest hand-out is acked when no member is left that could get more. What
//! should not change with the backlog is the CPU time of a message.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use gapless_bench::process::{cpu_time, resident_bytes};
use gapless_bench::table::{Figure, Row, Table};
use gapless_broker::{Broker, Handed, Join, Member};
use gapless_core::{
    Durability, GroupSettings, Lease, Message, Mode, Pattern, PublishOptions, TopicName,
};

use super::publish::per_message;
use super::store::{Folder, Result, message, open, topic};
use super::window::Window;

/// Messages of a batch as published.
const BATCH: u64 = 256;
/// Batches in flight while the store is filled.
const BATCHES_IN_FLIGHT: usize = 32;
/// A case that takes longer is given up: its row says how far it came.
const CASE_MAX: Duration = Duration::from_secs(120);
/// How long nothing may happen before the case has failed.
const STALL_MAX: Duration = Duration::from_secs(20);

/// What is measured: every combination.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Messages that wait.
    pub(crate) backlogs: Vec<u64>,
    /// Different keys.
    pub(crate) keys: Vec<u64>,
    /// Members.
    pub(crate) members: Vec<usize>,
    /// Messages that one member may hold.
    pub(crate) windows: Vec<u32>,
    /// Bytes of a message.
    pub(crate) message_bytes: usize,
}

/// Every case, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new("work off a keyed group's backlog, in the process");
    for &backlog in &options.backlogs {
        for &keys in &options.keys {
            let folder = Folder::fresh(dir, "groups")?;
            let broker = open(folder.path())?;
            let source = topic(&broker, Durability::Written)?;
            fill(&broker, &source, (backlog, keys), options.message_bytes)?;
            for &members in &options.members {
                for &window in &options.windows {
                    let row = case(&broker, &source, backlog, (members, window))?;
                    let what = format!("{backlog} waiting, {keys} keys, {members} x {window}");
                    table.push(row.named(what));
                }
            }
            broker.close()?;
        }
    }
    Ok(table)
}

/// Publishes messages whose keys come in no order, each key as often as any other.
fn fill(
    broker: &Broker,
    topic: &TopicName,
    (messages, keys): (u64, u64),
    message_bytes: usize,
) -> Result<()> {
    let body = message(message_bytes);
    let options = PublishOptions::default();
    let mut window = Window::new(broker, BATCHES_IN_FLIGHT);
    let mut at = 0;
    while at < messages {
        let count = BATCH.min(messages - at);
        // An odd factor scatters neighbours and meets every key.
        let key = |index: u64| index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % keys;
        let one = |index: u64| Message { key: Some(key(index).to_string().into()), ..body.clone() };
        let batch: Vec<Message> = (at..at + count).map(one).collect();
        window.publish(|broker| broker.publish_batch(topic, &batch, &options))?;
        at += count;
    }
    window.drain()
}

/// What a case came to.
struct Worked {
    messages: u64,
    hand_outs: u64,
    took: Duration,
    cpu: Duration,
    resident_bytes: u64,
}

impl Worked {
    fn named(&self, work: String) -> Row {
        let rate = self.messages as f64 / self.took.as_secs_f64();
        Row::new(work, Figure::per_second(rate))
            .beside("cpu/msg", Figure::micros(per_message(self.cpu, self.messages)))
            .beside("msg/hand-out", Figure::count(self.messages as f64 / self.hand_outs as f64))
            .beside("done", Figure::count(self.messages as f64))
            .beside("resident", Figure::bytes(self.resident_bytes as f64))
    }
}

/// Members that were woken, in that order.
struct Woken {
    queue: Mutex<VecDeque<usize>>,
    thread: Thread,
}

struct Waking {
    woken: Arc<Woken>,
    member: usize,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        let mut queue = self.woken.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(self.member);
        drop(queue);
        self.woken.thread.unpark();
    }
}

fn case(
    broker: &Broker,
    source: &TopicName,
    backlog: u64,
    (count, window): (usize, u32),
) -> Result<Worked> {
    let group = TopicName::parse("bench-group")?;
    let settings = GroupSettings {
        mode: Mode::Keyed,
        durability: Durability::Written,
        lease: CASE_MAX * 2,
        ..GroupSettings::new(Pattern::literal(source))
    };
    broker.create_group(&group, settings)?;
    let join =
        |number: usize| broker.join_group(&group, &Join { name: number.to_string(), window });
    let mut members = (0..count).map(join).collect::<std::result::Result<Vec<_>, _>>()?;
    let queue = Mutex::new((0..count).collect());
    let woken = Arc::new(Woken { queue, thread: thread::current() });
    let waker = |member| Waker::from(Arc::new(Waking { woken: Arc::clone(&woken), member }));
    let wakers: Vec<Waker> = (0..count).map(waker).collect();
    let (cpu, started) = (cpu_time()?, Instant::now());
    let (mut messages, mut hand_outs, mut last) = (0, 0, Instant::now());
    let mut unacked: VecDeque<(usize, Vec<Lease>)> = VecDeque::new();
    while messages < backlog && started.elapsed() < CASE_MAX {
        let next = woken.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(next) = next else {
            if let Some((member, leases)) = unacked.pop_front() {
                messages += ack(broker, &members[member], &leases)?;
                last = Instant::now();
            } else if last.elapsed() > STALL_MAX {
                return Err(format!("stalled at {messages} of {backlog}").into());
            } else {
                thread::park_timeout(STALL_MAX);
            }
            continue;
        };
        let mut context = Context::from_waker(&wakers[next]);
        while let Poll::Ready(handed) = members[next].poll_next(&mut context) {
            let Handed::Messages(leased) = handed? else { continue };
            let stored = leased.messages().stored().bytes();
            let bodies = leased.messages().records().filter_map(|each| each.record.body);
            black_box(bodies.map(<[u8]>::len).sum::<usize>() + stored);
            unacked.push_back((next, leased.leases().to_vec()));
            hand_outs += 1;
        }
    }
    let took = started.elapsed();
    let cpu = cpu_time()?.saturating_sub(cpu);
    let resident_bytes = resident_bytes()?;
    members.into_iter().for_each(Member::leave);
    broker.delete_group(&group)?;
    Ok(Worked { messages, hand_outs, took, cpu, resident_bytes })
}

/// Acks, as soon as there is room for it.
fn ack(broker: &Broker, member: &Member, leases: &[Lease]) -> Result<u64> {
    loop {
        match member.ack(leases).outcome() {
            Ok(outcome) if outcome.refused == 0 => return Ok(outcome.taken),
            Ok(outcome) => return Err(format!("not held any more: {outcome:?}").into()),
            Err(gapless_core::PubSubError::Unavailable) => {
                gapless_broker::block_on(broker.room());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
