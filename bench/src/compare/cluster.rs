//! Three nodes beside a cluster of three nats-servers, in one run.
//!
//! Messages are published at the first node and followed at the two others. At full speed the
//! publisher stays at most 2 MiB ahead of the slowest subscriber, and a message that does not come is
//! an error: nothing is lost on either side. Both clusters are up the whole time and take turns;
//! figures are medians over rounds.
//!
//! Below: `nodes.rs` starts the nodes and looks at them; `work.rs` measures.

mod nodes;
mod work;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use gapless_bench::process::load_average;
use gapless_bench::table::{Figure, Goal, Row, Table};

use super::publish::BATCH;
use super::server::{check_interrupt, end_all_on_signals};
use super::stats::Spread;
use super::stored::count_name;
use super::systems::{Contender, Store, Who};
use super::{Places, ROUNDS_MAX};
use crate::benches::store::Result;
use nodes::Nodes;
use work::{Flow, Interest, Late, Missed, NOTICE_MAX};

/// How many times the peer's rate is wanted.
const RATE_GOAL: f64 = 2.0;
/// Bytes between nodes that are wanted at most, as parts of the payload of one copy for each node.
const BYTES_GOAL: f64 = 1.1;
/// A node that is gone shall be missed within this time.
const MISSED_GOAL: Duration = Duration::from_millis(1500);

/// Deliveries a second at a fixed rate, at most: what a small machine can read without being busy.
const PACED_DELIVERIES_MAX: usize = 50_000;

/// How much is measured.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    places: Places,
    /// Seconds for each case, at most 10.
    #[arg(long, default_value_t = 2.0, value_parser = crate::parse_seconds)]
    seconds: f64,
    /// How many rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,
    /// How many subscribers, with commas between; half of them at each of the other nodes.
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [1, 10, 100],
        value_parser = clap::value_parser!(u64).range(1..=1000)
    )]
    subscribers: Vec<u64>,
    /// Messages a second at the fixed rate; fewer for many subscribers.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    per_second: u32,
    /// Subjects that are followed at one node, for their memory at the others.
    #[arg(long, default_value_t = 100_000, value_parser = crate::at_least_one)]
    subjects: u64,
    /// Topics that are followed at each node, until all nodes know all.
    #[arg(long, default_value_t = 10_000, value_parser = crate::at_least_one)]
    topics: u64,
}

/// What one system came to in one case, over all rounds.
#[derive(Default)]
struct Case {
    flows: Vec<Flow>,
    batched: Vec<Flow>,
    late: Vec<Late>,
}

/// Every case, as a table.
///
/// # Errors
/// When a server, a socket or the disk answers one, a message is lost, or the user interrupts.
pub(crate) fn run(args: &ClusterArgs, dir: &Path) -> Result<Table> {
    let programs = args.places.programs()?;
    end_all_on_signals()?;
    let load = load_average()?;
    let beside = programs.nats.as_ref().map_or("no peer is installed", |_| "beside nats-server");
    let mut table = Table::new(format!("cluster of three nodes, {beside}; load {load:.1}"));
    let all: Vec<Who> =
        [Who::Gapless, Who::Nats].into_iter().filter(|who| programs.of(*who).is_some()).collect();
    let interest = each(&all, |who| {
        eprintln!("interest: {}", who.name());
        work::interest(&programs, who, dir, (args.subjects as usize, args.topics as usize))
    })?;
    let clusters = each(&all, |who| Nodes::start(&programs, who, dir))?;
    for subscribers in &args.subscribers {
        let cases = args.case(&clusters, *subscribers as usize)?;
        args.push_case(&mut table, *subscribers as usize, &cases);
    }
    let missed = each(&all, |who| {
        eprintln!("a node is gone: {}", who.name());
        let cluster = clusters.iter().find(|nodes| nodes.who == who).ok_or("it is not there")?;
        work::missed(cluster)
    })?;
    push_missed(&mut table, &missed);
    args.push_interest(&mut table, &interest);
    Ok(table)
}

/// The same with each system, in turn.
fn each<T>(all: &[Who], mut measure: impl FnMut(Who) -> Result<T>) -> Result<Vec<T>> {
    let one = |who: &Who| {
        check_interrupt()?;
        measure(*who).map_err(|error| format!("{}: {error}", who.name()).into())
    };
    all.iter().map(one).collect()
}

impl ClusterArgs {
    /// Messages a second at the fixed rate, for so many subscribers.
    fn paced(&self, subscribers: usize) -> u32 {
        let most = u32::try_from(PACED_DELIVERIES_MAX / subscribers).unwrap_or(u32::MAX);
        self.per_second.min(most).max(1)
    }

    fn case(&self, clusters: &[Nodes], subscribers: usize) -> Result<Vec<Case>> {
        eprintln!("messages: {subscribers} subscribers");
        let time = Duration::from_secs_f64(self.seconds);
        let mut cases: Vec<Case> = clusters.iter().map(|_| Case::default()).collect();
        for _ in 0..self.rounds {
            for (nodes, case) in clusters.iter().zip(&mut cases) {
                check_interrupt()?;
                let failed = |error| format!("{}: {subscribers}: {error}", nodes.who.name());
                let plain = Contender::new(nodes.who, Store::Live);
                let flow = work::full_speed(nodes, &plain, subscribers, time).map_err(failed)?;
                case.flows.push(flow);
                if nodes.who == Who::Gapless {
                    let batched = Contender { batch: BATCH, ..plain };
                    let flow = work::full_speed(nodes, &batched, subscribers, time);
                    case.batched.push(flow.map_err(failed)?);
                }
                let pace = (self.paced(subscribers), time);
                case.late.push(work::fixed_rate(nodes, subscribers, pace).map_err(failed)?);
            }
        }
        Ok(cases)
    }

    fn push_case(&self, table: &mut Table, subscribers: usize, cases: &[Case]) {
        let [ours, peers @ ..] = cases else { return };
        let peer = peers.first();
        let to = format!("1 → {subscribers}");
        let flow = |figure: fn(&Flow) -> f64| {
            (median(&ours.flows, figure), peer.map(|peer| median(&peer.flows, figure)))
        };
        let late = |figure: fn(&Late) -> f64| {
            (median(&ours.late, figure), peer.map(|peer| median(&peer.late, figure)))
        };
        let rate = flow(|flow| flow.per_second);
        let row = beside(&format!("{to}, full speed"), rate, Figure::per_second);
        let cpu = |(ours, peer): (f64, Option<f64>)| match peer {
            Some(peer) => format!("CPU of a delivery {ours:.2} µs, nats-server {peer:.2} µs"),
            None => format!("CPU of a delivery {ours:.2} µs"),
        };
        let row = row.notes(cpu(flow(|flow| flow.cpu_micros)));
        table.push(with_goal(row, peer.is_some(), Goal::AtLeast(RATE_GOAL)));
        let batched = |figure: fn(&Flow) -> f64| median(&ours.batched, figure);
        let row = beside(
            &format!("{to}, full speed, batches of {BATCH}"),
            (batched(|flow| flow.per_second), rate.1),
            Figure::per_second,
        );
        table.push(row.notes(cpu((batched(|flow| flow.cpu_micros), None))));
        let bytes = flow(|flow| flow.bytes);
        let row = beside(&format!("{to}, full speed, bytes between nodes"), bytes, Figure::count);
        let row = row.beside("batches", Figure::count(batched(|flow| flow.bytes)));
        table.push(
            row.goal(Goal::FigureAtMost(BYTES_GOAL)).notes("× the payload of one copy per node"),
        );
        let at = format!("{to}, {}/s", self.paced(subscribers));
        let row = beside(&format!("{at}, p50"), late(|late| late.p50), Figure::micros);
        table.push(row);
        let row = beside(&format!("{at}, p99"), late(|late| late.p99), Figure::micros);
        table.push(with_goal(row, peer.is_some(), Goal::AtMost(1.0)));
        let row =
            beside(&format!("{at}, bytes between nodes"), late(|late| late.bytes), Figure::count);
        table.push(row.notes("× the payload of one copy per node"));
    }

    fn push_interest(&self, table: &mut Table, interest: &[Interest]) {
        let [ours, peers @ ..] = interest else { return };
        let both = |figure: fn(&Interest) -> f64| (figure(ours), peers.first().map(figure));
        let what = format!("memory of a foreign subject, of {}", count_name(self.subjects));
        table.push(beside(&what, both(|each| each.bytes_each), Figure::bytes));
        let what = format!("{} topics × {} nodes known everywhere", self.topics, nodes::NODES);
        table.push(beside(&what, both(|each| each.converged), Figure::micros));
    }
}

fn push_missed(table: &mut Table, missed: &[Missed]) {
    let all = |kind: fn(&Missed) -> Option<Duration>| missed.iter().map(kind).collect::<Vec<_>>();
    table.push(missed_row("killed", &all(|missed| missed.killed)));
    table.push(missed_row("frozen", &all(|missed| missed.frozen)));
}

/// How long it took until others missed a node: ours, then the peer's.
fn missed_row(how: &str, took: &[Option<Duration>]) -> Row {
    let micros = |took: Duration| took.as_secs_f64() * 1e6;
    // What was not missed at all took longer than was waited.
    let ours = took.first().copied().flatten().map_or(f64::INFINITY, micros);
    let peer = took.get(1).copied();
    let what = format!("a {how} node is missed by both others");
    let row = beside(&what, (ours, peer.flatten().map(micros)), Figure::micros);
    let row = row.goal(Goal::FigureAtMost(micros(MISSED_GOAL)));
    let late = format!("nats-server: not within {} s", NOTICE_MAX.as_secs());
    if peer == Some(None) { row.notes(late) } else { row }
}

/// A row with our figure, and the peer's if there is one.
fn beside(what: &str, (ours, peer): (f64, Option<f64>), figure: fn(f64) -> Figure) -> Row {
    let row = Row::new(what, figure(ours));
    peer.into_iter().fold(row, |row, peer| row.against(figure(peer)))
}

/// A goal about the ratio, where there is one.
fn with_goal(row: Row, has_peer: bool, goal: Goal) -> Row {
    if has_peer { row.goal(goal) } else { row }
}

fn median<T>(rounds: &[T], figure: fn(&T) -> f64) -> f64 {
    Spread::of(rounds.iter().map(figure)).map_or(0.0, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ClusterArgs,
    }

    #[test]
    fn many_subscribers_get_fewer_messages_a_second() {
        let args = Line::try_parse_from(["cluster"]).unwrap().args;
        assert_eq!([1, 10, 100].map(|count| args.paced(count)), [5000, 5000, 500]);
    }

    #[test]
    fn a_node_that_is_not_missed_does_not_reach_the_goal() {
        let mut table = Table::new("missed");
        let killed = Some(Duration::from_millis(3));
        let nats = Missed { frozen: None, killed };
        push_missed(&mut table, &[Missed { frozen: None, killed }, nats]);
        let ok: Vec<_> = table.rows().iter().map(Row::is_ok).collect();
        assert_eq!(ok, [Some(true), Some(false)]);
        assert!(table.to_string().contains("nats-server: not within 10 s"));
    }
}
