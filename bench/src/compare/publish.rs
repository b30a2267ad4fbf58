//! Publishing: without subscribers and without waiting, and into a store with acks.

use std::net::SocketAddr;

use super::load::{Bound, Publisher, Window};
use super::report::{Counts, Measured};
use super::run::{Meter, Run};
use super::stats::per_mille;
use super::systems::{Contender, Store, To, ring};
use crate::benches::size_name;
use crate::benches::store::Result;

/// Messages of a batch, for those who have batches.
pub(super) const BATCH: usize = 64;

/// Messages in flight of one who waits for acks.
pub(super) const IN_FLIGHT: usize = 256;

/// The same of one who has very many.
pub(super) const IN_FLIGHT_MANY: usize = 4096;

/// From here on bodies are large, and the longest time without an ack is shown too.
pub(super) const LARGE_BYTES: usize = 16 * 1024;

/// Publishes of a ring; no window here is wider.
pub(super) const RING: usize = 4096;

/// Bytes of a ring, at most: it should stay in the CPU's caches as far as it can.
const RING_BYTES: usize = 4 * 1024 * 1024;

const TOPIC: &str = "bench";

/// Publishing without subscribers. Peers without acks are waited for at the end; those that answer
/// anyway get a window wide enough that it does not matter.
pub(super) fn unheard(run: &mut Run<'_>) -> Result<()> {
    for size in run.plan.sizes.clone() {
        let title = format!("publish without waiting, {}", size_name(size));
        run.alternate(
            (&title, run.plan.rounds),
            Contender::all(Store::Live, Some(BATCH)),
            |run, contender| {
                let stage = run.stage(contender)?;
                let mut publisher = publisher(stage.server.address(), contender, size, TOPIC)?;
                let window = Window::wide(&publisher.ring);
                let meter = Meter::start(&stage.server)?;
                let sent = publisher.flood(window, Bound::time(run.plan.time))?;
                let measured = meter.rate(&stage.server, sent)?;
                run.add("publish", (&title, Counts::PerSecond), contender, measured);
                Ok(())
            },
        )?;
    }
    Ok(())
}

/// Publishing with acks, in each class of durability.
pub(super) fn acked(run: &mut Run<'_>) -> Result<()> {
    for size in run.plan.sizes_acked.clone() {
        for store in Store::KEPT {
            one_at_a_time(run, store, size)?;
            for window in run.plan.windows.clone() {
                in_flight(run, store, size, window)?;
            }
        }
    }
    Ok(())
}

fn one_at_a_time(run: &mut Run<'_>, store: Store, size: usize) -> Result<()> {
    let what = format!("{store}, one at a time, {}", size_name(size));
    let rounds = run.plan.rounds;
    run.alternate((&what, rounds), Contender::all_and_awake(store), |run, contender| {
        let stage = run.stage(contender)?;
        let mut publisher = publisher(stage.server.address(), contender, size, TOPIC)?;
        let meter = Meter::start(&stage.server)?;
        let mut micros = publisher.one_at_a_time(run.plan.time)?;
        let count = micros.len() as u64;
        let rate = meter.rate(&stage.server, count)?;
        micros.sort_unstable_by(f64::total_cmp);
        run.add("durable", (&what, Counts::PerSecond), contender, rate);
        for (name, mille) in [("p50", 500), ("p99", 990)] {
            let measured = Measured { figure: per_mille(&micros, mille), ..rate };
            let title = format!("{what}: ack {name}");
            run.add("durable", (&title, Counts::Micros), contender, measured);
        }
        Ok(())
    })
}

fn in_flight(run: &mut Run<'_>, store: Store, size: usize, most: usize) -> Result<()> {
    let title = format!("{store}, {most} in flight, {}", size_name(size));
    let rounds = run.plan.rounds;
    run.alternate((&title, rounds), Contender::all(store, Some(BATCH)), |run, contender| {
        let stage = run.stage(contender)?;
        let mut publisher = publisher(stage.server.address(), contender, size, TOPIC)?;
        let window = Window::exactly((most / contender.batch).max(1));
        let meter = Meter::start(&stage.server)?;
        let sent = publisher.flood(window, Bound::time(run.plan.time))?;
        let measured = meter.rate(&stage.server, sent)?;
        run.add("durable", (&title, Counts::PerSecond), contender, measured);
        if size >= LARGE_BYTES {
            let gap = publisher.longest_gap().as_secs_f64() * 1e6;
            let title = format!("{title}: longest time without an ack");
            let measured = Measured { figure: gap, ..measured };
            run.add("durable", (&title, Counts::Micros), contender, measured);
        }
        Ok(())
    })
}

/// A publisher on a topic of the contender's kind, which it makes.
pub(super) fn publisher(
    address: SocketAddr,
    contender: &Contender,
    size: usize,
    topic: &str,
) -> Result<Publisher<'static>> {
    let (system, store) = (contender.who.system(), contender.store);
    let mut link = system.connect(address)?;
    system.create(&mut link, topic, store)?;
    let most = RING_BYTES / (size * contender.batch);
    let count = most.clamp(2, RING).max(IN_FLIGHT / contender.batch);
    let ring = ring(system, &link, To { topic, store }, size, (count, contender.batch))?;
    Ok(Publisher::new(system, store, link, ring))
}
