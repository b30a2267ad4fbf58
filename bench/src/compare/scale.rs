//! Curves: how rate, CPU of a message and memory change as one thing grows, and where a curve bends.
//!
//! gapless alone, the real server in a process of its own. A point bends its curve when a message
//! costs the server more than [`BEND`] times what it cost at the cheapest point before: load of other
//! programs changes rates, but CPU of a message hardly.

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gapless_bench::process::load_average;
use gapless_bench::table::{Figure, Row, Table};

use super::Places;
use super::crowd::{crowd, in_turn, spread};
use super::groups::take_all;
use super::keyed;
use super::link::Seen;
use super::live::{MESSAGE_BYTES, deliver};
use super::load::{Bound, Window};
use super::plan::Plan;
use super::publish::{IN_FLIGHT, publisher};
use super::report::{Measured, Report};
use super::run::{Meter, Run, Stage};
use super::server::{check_interrupt, end_all_on_signals};
use super::stored::count_name;
use super::systems::{Contender, Group, Store, Who};
use crate::benches::size_name;
use crate::benches::store::Result;

/// How many times the cheapest point before it a point costs if it bends the curve.
const BEND: f64 = 2.0;

/// No filling of a store takes longer.
const FILL_TIME: Duration = Duration::from_secs(120);

/// Messages that a shared group takes in all, and in flight at each member.
const TAKEN: u64 = 200_000;
const WINDOW: usize = 200;

const TOPIC: &str = "scale";

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Axis {
    /// Topics that one connection publishes to in turn, 256 in flight, written.
    Topics,
    /// Connections with one flushed publish in flight each.
    Connections,
    /// Subscribers of one live publisher.
    Subscribers,
    /// Bytes of a message: flushed, 256 in flight.
    Sizes,
    /// Members of a shared group.
    Members,
    /// Keys of a keyed group with 100,000 messages waiting.
    Keys,
    /// Messages that wait for a keyed group of 1,000 keys.
    Backlog,
    /// Stored messages that one client reads from the beginning.
    Stored,
}

impl Axis {
    fn title(self) -> &'static str {
        match self {
            Self::Topics => "topics (written, 256 in flight)",
            Self::Connections => "connections (flushed, one in flight each)",
            Self::Subscribers => "subscribers (live, one publisher)",
            Self::Sizes => "bytes (flushed, 256 in flight)",
            Self::Members => "members (shared group)",
            Self::Keys => "keys (keyed group, 4 × 1,000 in flight)",
            Self::Backlog => "waiting (keyed group, 1,000 keys)",
            Self::Stored => "stored messages (read from the beginning)",
        }
    }

    fn points(self) -> &'static [usize] {
        match self {
            Self::Topics => &[1, 10, 100, 1_000, 10_000, 100_000],
            Self::Connections | Self::Subscribers => &[1, 10, 100, 1_000],
            Self::Sizes => &[16, 128, 1_024, 16 * 1_024, 64 * 1_024],
            Self::Members => &[1, 4, 16, 64, 256],
            Self::Keys => &[10, 100, 1_000, 10_000, 100_000],
            Self::Backlog => &[10_000, 100_000, 1_000_000],
            Self::Stored => &[10_000, 100_000, 1_000_000, 5_000_000],
        }
    }

    fn name(self, at: usize) -> String {
        match self {
            Self::Sizes => size_name(at),
            _ => count_name(at as u64),
        }
    }

    /// Where messages of this curve go.
    fn store(self) -> Store {
        match self {
            Self::Subscribers => Store::Live,
            Self::Topics | Self::Stored => Store::Written,
            _ => Store::Flushed,
        }
    }
}

/// Which curves, and how far.
#[derive(Args)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    places: Places,
    /// Only these curves, with commas between [default: all].
    #[arg(long, value_delimiter = ',', value_name = "AXIS")]
    only: Vec<Axis>,
    /// Only points up to this one.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    most: usize,
    /// Seconds for each point that takes a time, at most 10.
    #[arg(long, default_value_t = 1.0, value_parser = crate::parse_seconds)]
    seconds: f64,
}

/// Every curve, as a table.
///
/// # Errors
/// When a server, a socket or the disk answers one, a message is lost, or the user interrupts.
pub(crate) fn run(args: &ScaleArgs, dir: &Path) -> Result<Table> {
    let programs = args.places.programs()?;
    end_all_on_signals()?;
    let load = load_average()?;
    let mut table = Table::new(format!("curves of gapless, {} B; load {load:.1}", MESSAGE_BYTES));
    let (plan, mut report) = (Plan::quick(), Report::default());
    let run = Run { programs: &programs, dir, plan: &plan, report: &mut report };
    let time = Duration::from_secs_f64(args.seconds);
    for axis in Axis::value_variants() {
        if !args.only.is_empty() && !args.only.contains(axis) {
            continue;
        }
        let mut cheapest = f64::INFINITY;
        for &at in axis.points().iter().filter(|at| **at <= args.most) {
            check_interrupt()?;
            run.tell(&format!("{}: {}", axis.title(), axis.name(at)));
            let contender = Contender::new(Who::Gapless, axis.store());
            let stage = run.stage(&contender)?;
            let measured = measure(*axis, at, (&contender, &stage), time)?;
            let each = measured.server_cpu * 1e6 / measured.operations;
            let bends = bends(&mut cheapest, each);
            let row = Row::new(
                format!("{} {}", axis.name(at), axis.title()),
                Figure::per_second(measured.figure),
            )
            .beside("CPU of a message", Figure::micros(each))
            .beside("most memory", Figure::bytes(measured.peak_bytes));
            table.push(if bends { row.notes("bends".to_owned()) } else { row });
        }
    }
    Ok(table)
}

/// Whether a point costs much more than the cheapest before it.
fn bends(cheapest: &mut f64, each: f64) -> bool {
    let bends = each > *cheapest * BEND;
    *cheapest = cheapest.min(each);
    bends
}

fn measure(
    axis: Axis,
    at: usize,
    (contender, stage): (&Contender, &Stage),
    time: Duration,
) -> Result<Measured> {
    let (server, address) = (&stage.server, stage.server.address());
    match axis {
        Axis::Topics => {
            let mut publisher = spread(contender, address, at)?;
            let meter = Meter::start(server)?;
            let sent = publisher.flood(Window::exactly(IN_FLIGHT), Bound::time(time))?;
            meter.rate(server, sent)
        }
        Axis::Connections => {
            let mut members = crowd(contender, address, at)?;
            let meter = Meter::start(server)?;
            let sent = in_turn(&mut members, time)?;
            meter.rate(server, sent)
        }
        Axis::Subscribers => deliver(stage, contender, (1, at, MESSAGE_BYTES), time),
        Axis::Sizes => {
            let mut publisher = publisher(address, contender, at, TOPIC)?;
            let meter = Meter::start(server)?;
            let sent = publisher.flood(Window::exactly(IN_FLIGHT), Bound::time(time))?;
            meter.rate(server, sent)
        }
        Axis::Members => {
            fill(contender, stage, TAKEN)?;
            let group = Group { topic: TOPIC, name: "members", batch: WINDOW / 2, keyed: false };
            take_all(TAKEN, (contender, stage), group, at)
        }
        Axis::Keys => keyed::work_off((contender, stage), (at as u64, 100_000), (4, 1_000)),
        Axis::Backlog => keyed::work_off((contender, stage), (1_000, at as u64), (4, 1_000)),
        Axis::Stored => {
            fill(contender, stage, at as u64)?;
            let system = contender.who.system();
            let mut link = system.connect(address)?;
            let meter = Meter::start(server)?;
            system.replay(&mut link, TOPIC)?;
            let mut seen = Seen::default();
            while seen.messages < at as u64 {
                link.receive(&mut seen)?;
            }
            meter.rate(server, seen.messages)
        }
    }
}

/// So many messages in the topic.
fn fill(contender: &Contender, stage: &Stage, count: u64) -> Result<()> {
    let mut publisher = publisher(stage.server.address(), contender, MESSAGE_BYTES, TOPIC)?;
    let most = publisher.ring.count().min(1_024);
    let window = Window { most, refill_at: most / 2 };
    publisher.flood(window, Bound { time: FILL_TIME, publishes: count })?;
    let stored = contender.who.system().stored(&mut publisher.link, TOPIC)?;
    if stored < count {
        return Err(format!("{stored} of {count} messages could be stored in time").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_costs_twice_the_cheapest_before_it_bends_the_curve() {
        let mut cheapest = f64::INFINITY;
        let points = [4.0, 2.0, 3.9, 4.1, 1.0, 1.9, 2.1];
        let bent = points.map(|each| bends(&mut cheapest, each));
        assert_eq!(bent, [false, false, false, true, false, false, true]);
    }

    #[test]
    fn every_curve_rises_along_its_axis() {
        for axis in Axis::value_variants() {
            assert!(axis.points().is_sorted(), "{axis:?}");
            assert!(axis.points().len() > 2, "{axis:?}");
        }
    }
}
