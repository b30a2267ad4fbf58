//! Work on a large store: catching up with it, live deliveries beside those who do, and
//! starting again with it.
//!
//! The store is filled once per contender, since that takes longest; all servers then stay up
//! and take turns. They are idle while it is not their turn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::link::Seen;
use super::live::{MESSAGE_BYTES, follower};
use super::load::{Bound, Window};
use super::paced::paced;
use super::publish::{BATCH, publisher};
use super::report::{Counts, Measured};
use super::run::{Meter, Run, Stage};
use super::server::{Server, check_interrupt};
use super::stats::per_mille;
use super::systems::{Contender, Store};
use crate::benches::size_name;
use crate::benches::store::Result;

const HISTORY: &str = "history";
const LIVE: &str = "live";

/// No filling takes longer.
const FILL_TIME: Duration = Duration::from_secs(240);

/// Publishes in flight while filling.
const FILL_IN_FLIGHT: usize = 1024;

/// Live messages per second beside readers of history.
const PACE_PER_SECOND: u32 = 1000;

/// A store that was filled, and who serves it.
struct Filled {
    contender: Contender,
    stage: Stage,
}

/// Everything about large stores.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    let mut contenders = run.present(Contender::all(Store::Written, Some(BATCH)));
    if run.plan.for_goals {
        // They are about gapless beside itself.
        contenders.truncate(1);
    }
    let mut filled = Vec::new();
    for contender in contenders {
        check_interrupt()?;
        let filling = fill(run, contender);
        filled.push(filling.map_err(|error| format!("{}: {error}", contender.name()))?);
    }
    let rounds = run.plan.rounds_stored;
    let count = count_name(run.plan.stored);
    run.tell(&format!("catch-up of {count}"));
    for _ in 0..rounds {
        filled.iter().try_for_each(|each| catch_up(run, each, &count))?;
    }
    // Batches change how history is stored, not how live messages fare beside it.
    filled.retain(|each| each.contender.batch == 1);
    run.tell("live beside history");
    for _ in 0..rounds {
        filled.iter().try_for_each(|each| beside_history(run, each))?;
    }
    if run.plan.for_goals {
        return Ok(());
    }
    run.tell(&format!("start with {count}"));
    for _ in 0..rounds {
        for is_clean in [true, false] {
            let mut again = Vec::new();
            for each in filled {
                again.push(start_again(run, each, is_clean, &count)?);
            }
            filled = again;
        }
    }
    Ok(())
}

fn fill(run: &mut Run<'_>, contender: Contender) -> Result<Filled> {
    run.tell(&format!("filling {}", contender.name()));
    let stage = run.stage(&contender)?;
    let mut publisher = publisher(stage.server.address(), &contender, MESSAGE_BYTES, HISTORY)?;
    let in_flight = (FILL_IN_FLIGHT / contender.batch).min(publisher.ring.count());
    let window = Window { most: in_flight, refill_at: in_flight / 2 };
    let publishes = run.plan.stored.div_ceil(contender.batch as u64);
    publisher.flood(window, Bound { time: FILL_TIME, publishes })?;
    let stored = contender.who.system().stored(&mut publisher.link, HISTORY)?;
    if stored < run.plan.stored {
        let wanted = run.plan.stored;
        return Err(format!("{stored} of {wanted} messages could be stored in time").into());
    }
    Ok(Filled { contender, stage })
}

fn catch_up(run: &mut Run<'_>, filled: &Filled, count: &str) -> Result<()> {
    check_interrupt()?;
    let Filled { contender, stage } = filled;
    let system = contender.who.system();
    let mut link = system.connect(stage.server.address())?;
    let meter = Meter::start(&stage.server)?;
    system.replay(&mut link, HISTORY)?;
    let mut seen = Seen::default();
    while seen.messages < run.plan.stored {
        link.receive(&mut seen)?;
    }
    let measured = meter.rate(&stage.server, seen.messages)?;
    let title = format!("catch-up of {count} messages of {}", size_name(MESSAGE_BYTES));
    run.add("stored", (&title, Counts::PerSecond), contender, measured);
    Ok(())
}

/// Live messages at a pace: alone, then while another client reads history over and over.
fn beside_history(run: &mut Run<'_>, filled: &Filled) -> Result<()> {
    check_interrupt()?;
    let Filled { contender, stage } = filled;
    let alone = paced_alone(stage, contender, run.plan.time)?;
    let read = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let meter = Meter::start(&stage.server)?;
    let beside = thread::scope(|scope| {
        let reader = scope.spawn(|| read_history(run.plan.stored, filled, &read, &stop));
        let beside = paced_alone(stage, contender, run.plan.time * 2);
        stop.store(true, Ordering::Release);
        reader.join().unwrap_or_else(|_| Err("the reader panicked".into()))?;
        beside
    })?;
    let history = meter.rate(&stage.server, read.into_inner())?;
    let figures = [
        ("live alone, 1,000/s", &alone),
        ("live while another client reads history, 1,000/s", &beside),
    ];
    for (what, micros) in figures {
        for (name, mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
            let measured = Measured { figure: per_mille(micros, mille), ..Measured::default() };
            run.add("beside", (&format!("{what}: {name}"), Counts::Micros), contender, measured);
        }
    }
    run.add("beside", ("history read meanwhile", Counts::PerSecond), contender, history);
    Ok(())
}

/// Reads all of it, again and again, until it shall stop.
fn read_history(stored: u64, filled: &Filled, read: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let system = filled.contender.who.system();
    while !stop.load(Ordering::Acquire) {
        let mut link = system.connect(filled.stage.server.address())?;
        system.replay(&mut link, HISTORY)?;
        let mut seen = Seen::default();
        while seen.messages < stored && !stop.load(Ordering::Acquire) {
            let before = seen.messages;
            link.receive(&mut seen)?;
            read.fetch_add(seen.messages - before, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// A live topic at a pace, on the same server.
fn paced_alone(stage: &Stage, contender: &Contender, time: Duration) -> Result<Vec<f64>> {
    let (system, address) = (contender.who.system(), stage.server.address());
    let mut publisher = system.connect(address)?;
    system.create(&mut publisher, LIVE, Store::Live)?;
    let follower = follower(system, address, LIVE)?;
    paced(system, &mut publisher, vec![follower], LIVE, (PACE_PER_SECOND, time))
}

/// Ends a server, as it should be ended or as a crash does it, and measures how long it takes
/// to be there again: until it tells how many messages it has.
fn start_again(run: &mut Run<'_>, filled: Filled, is_clean: bool, count: &str) -> Result<Filled> {
    check_interrupt()?;
    let Filled { contender, stage: Stage { server, folder } } = filled;
    if is_clean {
        server.end()?;
    } else {
        drop(server);
    }
    let started = Instant::now();
    let server = Server::start(run.programs, &contender, folder.path())?;
    let system = contender.who.system();
    let stored = system.stored(&mut system.connect(server.address())?, HISTORY)?;
    let took = started.elapsed();
    if stored < run.plan.stored {
        return Err(format!("{}: only {stored} are there again", contender.name()).into());
    }
    let measured = Measured {
        figure: took.as_secs_f64() * 1e6,
        server_cpu: server.cpu_time()?.as_secs_f64(),
        peak_bytes: server.resident_bytes_max()? as f64,
        ..Measured::default()
    };
    let after = if is_clean { "a clean end" } else { "kill -9" };
    let title = format!("start with {count} messages after {after}");
    run.add("start", (&title, Counts::Micros), &contender, measured);
    Ok(Filled { contender, stage: Stage { server, folder } })
}

/// A large number in words.
pub(super) fn count_name(count: u64) -> String {
    match count {
        _ if count >= 1_000_000 && count.is_multiple_of(1_000_000) => {
            format!("{} million", count / 1_000_000)
        }
        _ if count >= 10_000 && count.is_multiple_of(1000) => format!("{},000", count / 1000),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_told_in_words() {
        assert_eq!([5_000_000, 200_000, 2000].map(count_name), ["5 million", "200,000", "2000"]);
    }
}
