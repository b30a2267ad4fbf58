//! Making topics: all at once, many in flight, and by many threads one at a time each.
//!
//! The figure is how many topics are made in a second, each flushed before it is told; what
//! stays the same on a busy machine is the CPU time of each, which stands beside it.

use std::collections::VecDeque;
use std::path::Path;
use std::thread;
use std::time::Instant;

use gapless_bench::process::cpu_time;
use gapless_bench::table::{Figure, Row, Table};
use gapless_broker::{Broker, CreatingTopic, block_on};
use gapless_core::{TopicName, TopicSettings};

use super::publish::per_message;
use super::store::{Folder, Result, open};

/// Topics in flight, and threads that make one at a time: as many as a connection may ask
/// for at the same time.
const AT_ONCE: usize = 64;

/// Makes all of these topics.
type Make = fn(&Broker, &[TopicName]) -> Result<()>;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How many topics each case makes.
    pub(crate) topics: usize,
}

/// Every case, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: Options) -> Result<Table> {
    let mut table = Table::new("make topics, in the process");
    let names: Vec<TopicName> = (0..options.topics)
        .map(|number| TopicName::parse(&format!("bench.{number}")))
        .collect::<std::result::Result<_, _>>()?;
    let cases: [(String, Make); 3] = [
        ("all at once".to_owned(), at_once),
        (format!("{AT_ONCE} in flight"), in_flight),
        (format!("{AT_ONCE} by threads"), by_threads),
    ];
    for (work, make) in cases {
        let folder = Folder::fresh(dir, "create")?;
        let broker = open(folder.path())?;
        let (cpu, started, flushes) = (cpu_time()?, Instant::now(), broker.journal_stats().flushes);
        make(&broker, &names)?;
        let took = started.elapsed().as_secs_f64();
        let cpu = cpu_time()?.saturating_sub(cpu);
        let count = names.len() as u64;
        let flushes = broker.journal_stats().flushes - flushes;
        table.push(
            Row::new(work, Figure::per_second(count as f64 / took))
                .beside("cpu/topic", Figure::micros(per_message(cpu, count)))
                .beside("flushes", Figure::count(flushes as f64)),
        );
        broker.close()?;
    }
    Ok(table)
}

fn at_once(broker: &Broker, names: &[TopicName]) -> Result<()> {
    Ok(broker.create_topics(names, TopicSettings::default())?)
}

fn in_flight(broker: &Broker, names: &[TopicName]) -> Result<()> {
    let mut window: VecDeque<CreatingTopic> = VecDeque::with_capacity(AT_ONCE);
    for name in names {
        if window.len() == AT_ONCE
            && let Some(oldest) = window.pop_front()
        {
            block_on(oldest)?;
        }
        window.push_back(broker.creating_topic(name, TopicSettings::default())?);
    }
    window.into_iter().try_for_each(|each| Ok(block_on(each).map(drop)?))
}

fn by_threads(broker: &Broker, names: &[TopicName]) -> Result<()> {
    let make = |names: &[TopicName]| -> Result<()> {
        for name in names {
            broker.create_topic(name, TopicSettings::default())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let share = names.len().div_ceil(AT_ONCE).max(1);
        let threads: Vec<_> =
            names.chunks(share).map(|names| scope.spawn(move || make(names))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        };
        threads.into_iter().try_for_each(join)
    })
}
