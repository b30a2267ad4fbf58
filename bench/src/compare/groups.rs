//! Groups: members take stored messages and acknowledge each.
//!
//! A message counts when the server has seen its ack: the clock stops when nothing is left
//! that was not taken or not acknowledged. Each system is measured with acks as safe as it
//! makes them; the name of the contender says how safe. Who has no groups yet is left out.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Link, Seen, WAIT_MAX};
use super::live::MESSAGE_BYTES;
use super::load::{Bound, Window};
use super::publish::publisher;
use super::report::{Counts, Measured};
use super::run::{Meter, Run, Stage};
use super::server::check_interrupt;
use super::systems::{Contender, Group, Groups, Store, Who};
use crate::benches::store::Result;

const TOPIC: &str = "tasks";

/// Members, and how many messages all of them together take at once.
const SHAPES: [(usize, usize); 3] = [(1, TAKEN_MAX), (16, TAKEN_MAX), (1, TAKEN_FEW)];

/// Messages that all members together take at once: what JetStream allows by default.
const TAKEN_MAX: usize = 1000;

/// The same of members that take little at once.
const TAKEN_FEW: usize = 100;

/// How often the server is asked whether anything is left.
const LOOK: Duration = Duration::from_millis(1);

const FILL_TIME: Duration = Duration::from_secs(120);
const FILL_IN_FLIGHT: usize = 1024;

/// Every system that has groups, with one member and with many.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    let contenders = [
        Contender::new(Who::Gapless, Store::Flushed),
        Contender::new(Who::Nats, Store::Written),
        Contender::new(Who::Redis, Store::Written),
        Contender::new(Who::Redis, Store::Flushed),
    ];
    let have_groups = |each: &Contender| each.who.system().groups().is_some();
    let contenders = run.present(contenders.into_iter().filter(have_groups).collect());
    let mut filled = Vec::new();
    for contender in contenders {
        run.tell(&format!("filling {}", contender.name()));
        let stage = fill(run, &contender)?;
        if has_groups(&contender, &stage)? {
            filled.push((contender, stage));
        } else {
            run.tell(&format!("{} does not offer groups: left out", contender.name()));
        }
    }
    for (members, taken) in SHAPES {
        let mut title = match members {
            1 => "take and ack in a group, 1 member".to_owned(),
            members => format!("take and ack in a group, {members} members"),
        };
        if taken != TAKEN_MAX {
            title += &format!(", {taken} at once");
        }
        if !run.plan.has_case(&title) {
            continue;
        }
        run.tell(&title);
        for round in 0..run.plan.rounds {
            for (contender, stage) in &filled {
                check_interrupt()?;
                let name = format!("group-{members}-{taken}-{round}");
                let batch = (taken / members / 2).max(1);
                let group = Group { topic: TOPIC, name: &name, batch, keyed: false };
                let measured = take_all(run.plan.grouped, (contender, stage), group, members);
                let named = |error| format!("{}: {error}", contender.name());
                run.add("groups", (&title, Counts::PerSecond), contender, measured.map_err(named)?);
            }
        }
    }
    Ok(())
}

fn fill(run: &Run<'_>, contender: &Contender) -> Result<Stage> {
    let stage = run.stage(contender)?;
    let mut publisher = publisher(stage.server.address(), contender, MESSAGE_BYTES, TOPIC)?;
    let most = FILL_IN_FLIGHT.min(publisher.ring.count());
    let window = Window { most, refill_at: most / 2 };
    publisher.flood(window, Bound { time: FILL_TIME, publishes: run.plan.grouped })?;
    let stored = contender.who.system().stored(&mut publisher.link, TOPIC)?;
    if stored < run.plan.grouped {
        return Err(format!("{}: only {stored} could be stored in time", contender.name()).into());
    }
    Ok(stage)
}

/// Whether the server itself offers what its protocol has.
fn has_groups(contender: &Contender, stage: &Stage) -> Result<bool> {
    let system = contender.who.system();
    let groups = system.groups().ok_or("a system without groups")?;
    let mut link = system.connect(stage.server.address())?;
    groups.create_group(&mut link, Group { topic: TOPIC, name: "probe", batch: 1, keyed: false })
}

pub(super) fn take_all(
    count: u64,
    (contender, stage): (&Contender, &Stage),
    group: Group<'_>,
    members: usize,
) -> Result<Measured> {
    let (system, address) = (contender.who.system(), stage.server.address());
    let groups = system.groups().ok_or("a system without groups")?;
    let mut control = system.connect(address)?;
    groups.create_group(&mut control, group)?;
    let links = (0..members).map(|_| system.connect(address)).collect::<Result<Vec<_>>>()?;
    let closers = links.iter().map(Link::closer).collect::<Result<Vec<_>>>()?;
    let taken = &AtomicU64::new(0);
    let is_over = &AtomicBool::new(false);
    let meter = Meter::start(&stage.server)?;
    thread::scope(|scope| {
        let take_some = |(member, mut link)| -> Result<()> {
            groups.join(&mut link, group, member)?;
            loop {
                let mut seen = Seen::default();
                link.receive(&mut seen)?;
                taken.fetch_add(seen.messages, Ordering::AcqRel);
            }
        };
        let take = move |each| match take_some(each) {
            // There is nothing left, and the link was closed to say so; the others may have
            // taken everything before this one had joined.
            Err(_) if is_over.load(Ordering::Acquire) => Ok(()),
            other => other,
        };
        let links = links.into_iter().enumerate();
        let threads: Vec<_> = links.map(|each| scope.spawn(move || take(each))).collect();
        let all = wait_for_all((taken, count), groups, (&mut control, group));
        let measured = meter.rate(&stage.server, count);
        is_over.store(true, Ordering::Release);
        for closer in &closers {
            // An error says that the link is closed already.
            let _ = closer.shutdown(Shutdown::Both);
        }
        // A member that failed says more than the one who waited for it.
        for thread in threads {
            thread.join().unwrap_or_else(|_| Err("a member panicked".into()))?;
        }
        all?;
        let taken = taken.load(Ordering::Acquire);
        if taken != count {
            return Err(format!("{taken} were taken, {count} are there").into());
        }
        measured
    })
}

/// Waits until all were taken, and the server has seen all acks.
fn wait_for_all(
    (taken, count): (&AtomicU64, u64),
    groups: &dyn Groups,
    (control, group): (&mut Link, Group<'_>),
) -> Result<()> {
    let deadline = Instant::now() + 2 * WAIT_MAX;
    loop {
        if taken.load(Ordering::Acquire) >= count && groups.left(control, group)? == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            let taken = taken.load(Ordering::Acquire);
            return Err(format!("{taken} of {count} were taken and acknowledged in time").into());
        }
        thread::park_timeout(LOOK);
    }
}
