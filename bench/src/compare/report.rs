//! What was measured, by case and contender, and what it comes to.
//!
//! A report is plain data: it is written as JSON, read again, and shown as a table, a page or
//! a chart. It keeps every round's figure; medians and ratios are made when it is shown. A
//! ratio says how many times as good as the best peer: rates as ours over theirs, times and
//! bytes the other way round, so that more than one is always better.

use gapless_bench::table::{Figure, Unit};
use serde::{Deserialize, Serialize};

use super::stats::Spread;

/// What the figures of a case count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Counts {
    /// Messages per second: more is better.
    PerSecond,
    /// Bytes per second: more is better.
    BytesPerSecond,
    /// Microseconds: less is better.
    Micros,
    /// Bytes: less is better.
    Bytes,
}

impl Counts {
    pub(super) fn figure(self, value: f64) -> Figure {
        let unit = match self {
            Self::PerSecond => Unit::PerSecond,
            Self::BytesPerSecond => Unit::BytesPerSecond,
            Self::Micros => Unit::Micros,
            Self::Bytes => Unit::Bytes,
        };
        Figure { value, unit }
    }

    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Self::PerSecond | Self::BytesPerSecond)
    }

    /// How many times as good `value` is as `other`.
    fn ratio(self, value: f64, other: f64) -> Option<f64> {
        let (above, below) = if self.more_is_better() { (value, other) } else { (other, value) };
        (below > 0.0 && above > 0.0).then(|| above / below)
    }
}

/// One figure of one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) figure: f64,
    /// CPU seconds of the server, and of the load generator.
    pub(super) server_cpu: f64,
    pub(super) client_cpu: f64,
    /// Messages, or whatever the work consists of.
    pub(super) operations: f64,
    /// The most memory that the server had.
    pub(super) peak_bytes: f64,
}

/// Everything about one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// What ran it: machine, versions, settings, by name.
    pub(super) about: Vec<(String, String)>,
    /// The machine's own limits, and what the generators reach alone.
    pub(super) limits: Vec<Limit>,
    pub(super) cases: Vec<Case>,
}

/// Something that was measured without any server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Limit {
    pub(super) what: String,
    pub(super) counts: Counts,
    pub(super) figure: f64,
}

/// One question, answered by all who take part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Case {
    /// The kind of work it belongs to.
    pub(super) work: String,
    pub(super) title: String,
    pub(super) counts: Counts,
    pub(super) lines: Vec<Line>,
}

/// The answers of one contender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) is_peer: bool,
    pub(super) figures: Vec<f64>,
    pub(super) server_cpu_seconds: Vec<f64>,
    pub(super) client_cpu_seconds: Vec<f64>,
    pub(super) operations: Vec<f64>,
    pub(super) peak_bytes: Vec<f64>,
    /// What must be known to read the figure.
    pub(super) notes: String,
}

impl Report {
    /// Adds a round's figure of one by its name, which is a peer or not; cases and contenders stay in
    /// the order in which they came.
    pub(super) fn add(
        &mut self,
        (work, title, counts): (&str, &str, Counts),
        (name, is_peer): (String, bool),
        measured: &Measured,
    ) -> &mut Line {
        let is_it = |case: &Case| case.work == work && case.title == title;
        let at = self.cases.iter().position(is_it).unwrap_or_else(|| {
            let (work, title) = (work.to_owned(), title.to_owned());
            self.cases.push(Case { work, title, counts, lines: Vec::new() });
            self.cases.len() - 1
        });
        self.cases[at].add((name, is_peer), measured)
    }
}

impl Case {
    fn add(&mut self, (name, is_peer): (String, bool), measured: &Measured) -> &mut Line {
        let at = self.lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            self.lines.push(Line { name, is_peer, ..Line::default() });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        line.figures.push(measured.figure);
        line.server_cpu_seconds.push(measured.server_cpu);
        line.client_cpu_seconds.push(measured.client_cpu);
        line.operations.push(measured.operations);
        line.peak_bytes.push(measured.peak_bytes);
        line
    }

    /// The best median of those that are not gapless.
    pub(super) fn best_peer(&self) -> Option<f64> {
        let peers = self.lines.iter().filter(|line| line.is_peer);
        let medians = peers.filter_map(|line| line.spread().map(|spread| spread.median));
        if self.counts.more_is_better() {
            medians.reduce(f64::max)
        } else {
            medians.reduce(f64::min)
        }
    }

    /// How many times as good as the best peer a line is.
    pub(super) fn ratio(&self, line: &Line) -> Option<f64> {
        self.counts.ratio(line.spread()?.median, self.best_peer()?)
    }
}

impl Line {
    pub(super) fn spread(&self) -> Option<Spread> {
        Spread::of(self.figures.iter().copied())
    }

    /// Median CPU seconds of the server and of the generator.
    pub(super) fn cpu_seconds(&self) -> Option<(f64, f64)> {
        let median = |of: &[f64]| Spread::of(of.iter().copied()).map(|spread| spread.median);
        Some((median(&self.server_cpu_seconds)?, median(&self.client_cpu_seconds)?))
    }

    /// Microseconds of the server's CPU for one operation, over all rounds.
    pub(super) fn cpu_micros_each(&self) -> Option<f64> {
        let operations: f64 = self.operations.iter().sum();
        let seconds: f64 = self.server_cpu_seconds.iter().sum();
        (operations > 0.0).then(|| seconds * 1e6 / operations)
    }

    pub(super) fn peak(&self) -> Option<f64> {
        self.peak_bytes.iter().copied().reduce(f64::max).filter(|bytes| *bytes > 0.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::compare::systems::{Contender, Store, Who};

    /// Two cases: a rate that gapless wins, and a time that it loses.
    pub(in crate::compare) fn sample() -> Report {
        let mut report = Report::default();
        let gapless = Contender::new(Who::Gapless, Store::Live);
        let nats = Contender::new(Who::Nats, Store::Live);
        let redis = Contender::new(Who::Redis, Store::Live);
        for (contender, rate, micros) in
            [(&gapless, 400.0, 30.0), (&nats, 100.0, 20.0), (&redis, 200.0, 60.0)]
        {
            let line = || (contender.name(), contender.who != Who::Gapless);
            for round in 0..3 {
                let measured = Measured {
                    figure: rate + f64::from(round),
                    server_cpu: 1.0,
                    client_cpu: 0.5,
                    operations: 1e6,
                    peak_bytes: 1024.0 * f64::from(round),
                };
                report.add(("live", "live 1 → 1", Counts::PerSecond), line(), &measured);
                let measured = Measured { figure: micros, ..Measured::default() };
                report.add(("live", "round trip p50", Counts::Micros), line(), &measured);
            }
        }
        report.about.push(("cores".to_owned(), "2".to_owned()));
        let what = "flush <4 KiB>".to_owned();
        report.limits.push(Limit { what, counts: Counts::PerSecond, figure: 5600.0 });
        report
    }

    #[test]
    fn rounds_of_one_contender_gather_in_one_line() {
        let report = sample();
        assert_eq!(report.cases.len(), 2);
        let line = &report.cases[0].lines[0];
        assert_eq!(line.figures, [400.0, 401.0, 402.0]);
        assert_eq!(line.spread().unwrap().median, 401.0);
        assert_eq!(line.cpu_micros_each(), Some(1.0));
        assert_eq!(line.cpu_seconds(), Some((1.0, 0.5)));
        assert_eq!(line.peak(), Some(2048.0));
    }

    #[test]
    fn more_than_one_is_better_for_rates_and_for_times() {
        let report = sample();
        let [rate, time] = &report.cases[..] else { panic!("two cases") };
        assert_eq!(rate.best_peer(), Some(201.0));
        assert_eq!(rate.ratio(&rate.lines[0]), Some(401.0 / 201.0));
        assert_eq!(time.best_peer(), Some(20.0));
        assert_eq!(time.ratio(&time.lines[0]), Some(20.0 / 30.0));
        assert_eq!(time.ratio(&time.lines[1]), Some(1.0));
    }

    #[test]
    fn without_peers_there_is_no_ratio() {
        let mut case = sample().cases.remove(0);
        case.lines.truncate(1);
        assert_eq!(case.ratio(&case.lines[0]), None);
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = sample();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
