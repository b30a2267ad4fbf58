//! The goals for the work that web services do, each beside what was measured: one table.
//!
//! A goal names a case of the comparison by its title, and what of it must be reached: a ratio to the
//! best peer, a rate, a time. A goal that the machine forbids shows as such: the limit of the same
//! run is beside it. Nothing is measured here.

use std::fmt::Write as _;

use gapless_bench::table::Figure;

use super::report::{Case, Line, Report};
use super::show::ratio;

/// One line of the table.
struct Goal {
    /// What is done, in words.
    work: &'static str,
    /// The title of the case, or how it begins.
    case: &'static str,
    wanted: Wanted,
}

/// What must be reached.
#[derive(Clone, Copy)]
enum Wanted {
    /// So many times as good as the best peer.
    Ratio(f64),
    /// So many a second, whatever others reach; one that stands beside is shown.
    PerSecond(f64),
    /// At most so many microseconds of the server's CPU for one operation.
    CpuMicros(f64),
    /// At most so many microseconds.
    Micros(f64),
    /// At most so many times the peak memory of the fastest peer.
    Peak(f64),
    /// At least this part of the rate of another case.
    PartOf(f64, &'static str),
}

const fn goal(work: &'static str, case: &'static str, wanted: Wanted) -> Goal {
    Goal { work, case, wanted }
}

/// A rate that does not fall loses less than this, which is noise.
const NO_FALL: f64 = 0.9;

const POSTED: &str = "HTTP POST, flushed, 128 connections, one in flight each, 128 B";

/// All goals, in the order of the table.
const GOALS: [Goal; 31] = [
    goal(
        "100 connections, memory",
        "memory, 100 connections, one in flight each, 128 B",
        Wanted::Ratio(1.5),
    ),
    goal(
        "1,000 connections, memory",
        "memory, 1000 connections, one in flight each, 128 B",
        Wanted::Ratio(1.5),
    ),
    goal(
        "100 connections, flushed",
        "flushed, 100 connections, one in flight each, 128 B",
        Wanted::Ratio(1.5),
    ),
    goal(
        "1,000 connections, flushed",
        "flushed, 1000 connections, one in flight each, 128 B",
        Wanted::Ratio(1.5),
    ),
    goal(
        "100 connections, flushed: CPU of a publish",
        "flushed, 100 connections, one in flight each, 128 B",
        Wanted::CpuMicros(6.0),
    ),
    goal(
        "1,000 connections, flushed: CPU of a publish",
        "flushed, 1000 connections, one in flight each, 128 B",
        Wanted::CpuMicros(6.0),
    ),
    goal(
        "256 in flight over 10 topics, written",
        "written, 256 in flight over 10 topics, 128 B",
        Wanted::Ratio(2.0),
    ),
    goal(
        "256 in flight over 1,000 topics, written",
        "written, 256 in flight over 1000 topics, 128 B",
        Wanted::Ratio(2.0),
    ),
    goal(
        "256 in flight over 10 topics, flushed",
        "flushed, 256 in flight over 10 topics, 128 B",
        Wanted::Ratio(2.5),
    ),
    goal(
        "256 in flight over 1,000 topics, flushed",
        "flushed, 256 in flight over 1000 topics, 128 B",
        Wanted::Ratio(2.5),
    ),
    goal("16 KiB: live 1 → 1", "live 1 → 1, 16 KiB", Wanted::Ratio(1.3)),
    goal("16 KiB: publish, memory", "memory, 256 in flight, 16 KiB", Wanted::Ratio(1.3)),
    goal("16 KiB: publish, written", "written, 256 in flight, 16 KiB", Wanted::Ratio(1.3)),
    goal(
        "16 KiB: publish, memory, longest gap",
        "memory, 256 in flight, 16 KiB: longest time without an ack",
        Wanted::Micros(20_000.0),
    ),
    goal(
        "16 KiB: publish, written, longest gap",
        "written, 256 in flight, 16 KiB: longest time without an ack",
        Wanted::Micros(20_000.0),
    ),
    goal("live p99 at 10,000/s, open loop", "live at 10,000/s, open loop: p99", Wanted::Ratio(1.0)),
    goal("live p99.9 at 10,000/s", "live at 10,000/s, open loop: p99.9", Wanted::Ratio(1.0)),
    goal("live p99 at 50,000/s, open loop", "live at 50,000/s, open loop: p99", Wanted::Ratio(1.0)),
    goal("live p99.9 at 50,000/s", "live at 50,000/s, open loop: p99.9", Wanted::Ratio(1.0)),
    goal(
        "flushed one at a time: p99",
        "flushed, one at a time, 128 B: ack p99",
        Wanted::Ratio(1.0),
    ),
    goal(
        "history beside 1,000 live messages/s, of alone",
        "history read meanwhile",
        Wanted::PartOf(0.5, "catch-up of"),
    ),
    goal(
        "live p99 beside history",
        "live while another client reads history, 1,000/s: p99",
        Wanted::Micros(1000.0),
    ),
    goal("HTTP POST, flushed, 128 connections", POSTED, Wanted::PerSecond(60_000.0)),
    goal(
        "HTTP POST, flushed, 1,000 connections",
        "HTTP POST, flushed, 1000 connections, one in flight each, 128 B",
        Wanted::PerSecond(60_000.0),
    ),
    goal(
        "the same, of 128 connections: no fall",
        "HTTP POST, flushed, 1000 connections, one in flight each, 128 B",
        Wanted::PartOf(NO_FALL, POSTED),
    ),
    goal(
        "HTTP POST, memory, 128 connections",
        "HTTP POST, memory, 128 connections, one in flight each, 128 B",
        Wanted::PerSecond(60_000.0),
    ),
    goal(
        "HTTP POST, memory, 1,000 connections",
        "HTTP POST, memory, 1000 connections, one in flight each, 128 B",
        Wanted::PerSecond(60_000.0),
    ),
    goal(
        "peak memory, flushed, 1 KiB, 256 in flight",
        "flushed, 256 in flight, 1 KiB",
        Wanted::Peak(1.5),
    ),
    goal(
        "peak memory, flushed, 1 KiB, 4,096 in flight",
        "flushed, 4096 in flight, 1 KiB",
        Wanted::Peak(1.5),
    ),
    goal(
        "peak memory, flushed, 16 KiB, 256 in flight",
        "flushed, 256 in flight, 16 KiB",
        Wanted::Peak(1.5),
    ),
    goal(
        "group with a window of 100",
        "take and ack in a group, 1 member, 100 at once",
        Wanted::PerSecond(3e6),
    ),
];

/// Whether a case with this title is needed for one of the goals. What a case is announced by may be
/// the beginning of the titles of its figures.
pub(super) fn wants(title: &str) -> bool {
    GOALS.iter().any(|goal| goal.case == title || goal.case.starts_with(&format!("{title}: ")))
}

/// The table, in Markdown.
pub(super) fn table(report: &Report) -> String {
    let mut out = String::from(
        "| work | gapless | beside it | reached | goal | met |\n|---|---:|---:|---:|---:|---|\n",
    );
    for goal in &GOALS {
        let Some(row) = row(goal, report) else {
            let _ = writeln!(out, "| {} | not measured | | | {} | |", goal.work, wanted(goal));
            continue;
        };
        let Row { own, beside, reached, met } = row;
        let met = if met { "yes" } else { "**no**" };
        let wanted = wanted(goal);
        let _ =
            writeln!(out, "| {} | {own} | {beside} | {reached} | {wanted} | {met} |", goal.work);
    }
    out
}

fn wanted(goal: &Goal) -> String {
    match goal.wanted {
        Wanted::Ratio(least) => format!("≥ {least} × best peer"),
        Wanted::PerSecond(least) => format!("≥ {}", Figure::per_second(least)),
        Wanted::CpuMicros(most) | Wanted::Micros(most) => format!("≤ {}", Figure::micros(most)),
        Wanted::Peak(most) => format!("≤ {most} × fastest peer"),
        Wanted::PartOf(least, _) => format!("≥ {least}"),
    }
}

struct Row {
    own: String,
    beside: String,
    reached: String,
    met: bool,
}

fn row(goal: &Goal, report: &Report) -> Option<Row> {
    let case = find(report, goal.case)?;
    let own = case.lines.iter().find(|line| !line.is_peer)?;
    let median = own.spread()?.median;
    let figure = |value: f64| case.counts.figure(value).to_string();
    let spread = own.spread()?;
    let with_spread =
        format!("{} ({} – {})", figure(median), figure(spread.min), figure(spread.max));
    let best = || {
        best_peer(case)
            .map_or_else(String::new, |(name, value)| format!("{name} {}", figure(value)))
    };
    match goal.wanted {
        Wanted::Ratio(least) => {
            let reached = case.ratio(own)?;
            let (own, met) = (with_spread, reached >= least);
            Some(Row { own, beside: best(), reached: format!("{} ×", ratio(reached)), met })
        }
        Wanted::PerSecond(least) => {
            let reached =
                case.ratio(own).map_or_else(String::new, |of| format!("{} × that", ratio(of)));
            Some(Row { own: with_spread, beside: best(), reached, met: median >= least })
        }
        Wanted::CpuMicros(most) => {
            let cost = own.cpu_micros_each()?;
            let peers = case.lines.iter().filter(|line| line.is_peer);
            let least = peers.filter_map(|line| Some((short(line), line.cpu_micros_each()?)));
            let least = least.min_by(|a, b| a.1.total_cmp(&b.1));
            let beside = least.map_or_else(String::new, |(name, value)| {
                format!("{name} {}", Figure::micros(value))
            });
            let own = Figure::micros(cost).to_string();
            Some(Row { own, beside, reached: String::new(), met: cost <= most })
        }
        Wanted::Micros(most) => {
            let reached = case.ratio(own).map_or_else(String::new, |of| format!("{} ×", ratio(of)));
            Some(Row { own: with_spread, beside: best(), reached, met: median <= most })
        }
        Wanted::Peak(most) => {
            let peers = case.lines.iter().filter(|line| line.is_peer);
            let rate = |line: &&Line| line.spread().map_or(0.0, |spread| spread.median);
            let fastest = peers.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
            let (peak, theirs) = (own.peak()?, fastest.peak()?);
            let beside = format!("{} {}", short(fastest), Figure::bytes(theirs));
            let (own, reached) = (Figure::bytes(peak).to_string(), peak / theirs);
            Some(Row {
                own,
                beside,
                reached: format!("{} ×", ratio(reached)),
                met: reached <= most,
            })
        }
        Wanted::PartOf(least, whole) => {
            let whole = find(report, whole)?.lines.iter().find(|line| !line.is_peer)?;
            let whole = whole.spread()?.median;
            let (beside, reached) = (figure(whole), median / whole);
            Some(Row { own: with_spread, beside, reached: ratio(reached), met: reached >= least })
        }
    }
}

/// The case with this title, or the first whose title begins so.
fn find<'a>(report: &'a Report, title: &str) -> Option<&'a Case> {
    let cases = || report.cases.iter();
    let exact = cases().find(|case| case.title == title);
    exact.or_else(|| cases().find(|case| case.title.starts_with(title)))
}

/// The name of the best peer, and its median.
fn best_peer(case: &Case) -> Option<(&str, f64)> {
    let best = case.best_peer()?;
    let is_best = |line: &&Line| line.is_peer && line.spread().is_some_and(|it| it.median == best);
    case.lines.iter().find(is_best).map(|line| (short(line), best))
}

/// The system of a line, without its settings.
fn short(line: &Line) -> &str {
    line.name.split(':').next().unwrap_or(&line.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report::Counts;

    fn line(name: &str, is_peer: bool, figure: f64, peak: f64) -> Line {
        Line {
            name: name.to_owned(),
            is_peer,
            figures: vec![figure],
            server_cpu_seconds: vec![1.0],
            client_cpu_seconds: vec![1.0],
            operations: vec![100_000.0],
            peak_bytes: vec![peak],
            ..Line::default()
        }
    }

    fn report(title: &str, counts: Counts, lines: Vec<Line>) -> Report {
        let case = Case { work: "work".to_owned(), title: title.to_owned(), counts, lines };
        Report { cases: vec![case], ..Report::default() }
    }

    fn met(text: &str, work: &str) -> bool {
        let begin = format!("| {work} |");
        let row = text.lines().find(|row| row.starts_with(&begin)).unwrap();
        row.ends_with("| yes |")
    }

    #[test]
    fn every_goal_has_its_line_and_none_is_met_without_a_figure() {
        let text = table(&Report::default());
        assert_eq!(text.lines().count(), GOALS.len() + 2);
        assert!(!text.contains("yes"), "{text}");
        let mut works: Vec<&str> = GOALS.iter().map(|goal| goal.work).collect();
        works.sort_unstable();
        works.dedup();
        assert_eq!(works.len(), GOALS.len());
    }

    #[test]
    fn a_ratio_is_held_against_the_best_peer() {
        let title = "memory, 256 in flight, 16 KiB";
        let lines = |own| {
            vec![
                line("gapless: flushed", false, own, 90.0),
                line("redis: always", true, 100.0, 80.0),
                line("nats-server: always", true, 5.0, 10.0),
            ]
        };
        let text = table(&report(title, Counts::PerSecond, lines(131.0)));
        assert!(met(&text, "16 KiB: publish, memory"), "{text}");
        let text = table(&report(title, Counts::PerSecond, lines(129.0)));
        assert!(!met(&text, "16 KiB: publish, memory"), "{text}");
        // The peak is held against the peer that does most, not against one that does little.
        let title = "flushed, 256 in flight, 1 KiB";
        let text = table(&report(title, Counts::PerSecond, lines(100.0)));
        assert!(met(&text, "peak memory, flushed, 1 KiB, 256 in flight"), "{text}");
    }

    #[test]
    fn a_rate_needs_no_peer_and_shows_the_one_beside() {
        let lines = vec![
            line("gapless: flushed", false, 61_000.0, 1.0),
            line("bare hyper", true, 90_000.0, 1.0),
        ];
        let text = table(&report(POSTED, Counts::PerSecond, lines));
        assert!(met(&text, "HTTP POST, flushed, 128 connections"), "{text}");
        assert!(text.contains("bare hyper 90.0 k/s"), "{text}");
    }

    #[test]
    fn cases_are_wanted_by_what_announces_them() {
        for title in ["live at 10,000/s, open loop", POSTED, "flushed, one at a time, 128 B"] {
            assert!(wants(title), "{title}");
        }
        for title in ["live at 1000/s, open loop", "memory, 1", ""] {
            assert!(!wants(title), "{title}");
        }
    }
}
