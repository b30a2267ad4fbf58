//! A report as text for a terminal: one block per case, one line per contender.

use std::fmt::Write as _;

use gapless_bench::table::Figure;

use super::report::{Case, Line, Report};

const HEADINGS: [&str; 7] =
    ["", "median", "spread", "× best peer", "CPU s, server + client", "server CPU each", "peak"];

/// The whole report.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    for (name, value) in &report.about {
        let _ = writeln!(out, "{name:<12}  {value}");
    }
    if !report.limits.is_empty() {
        out.push_str("\nlimits of the machine and of the generators, in the same run\n");
        let width = report.limits.iter().map(|limit| limit.what.chars().count()).max();
        let width = width.unwrap_or(0);
        for limit in &report.limits {
            let _ = writeln!(
                out,
                "  {:<width$}  {:>10}",
                limit.what,
                limit.counts.figure(limit.figure)
            );
        }
    }
    for case in &report.cases {
        let _ = write!(out, "\n{}\n{}", case.title, block(case));
    }
    out
}

fn block(case: &Case) -> String {
    let headings = HEADINGS.map(str::to_owned);
    let rows: Vec<[String; 7]> =
        std::iter::once(headings).chain(case.lines.iter().map(|line| cells(case, line))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..7).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for (row, notes) in rows.iter().zip([""].into_iter().chain(notes(case))) {
        let mut line = format!("  {:<width$}", row[0], width = widths[0]);
        for column in 1..7 {
            let _ = write!(line, "  {:>width$}", row[column], width = widths[column]);
        }
        let _ = write!(line, "  {notes}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn notes(case: &Case) -> impl Iterator<Item = &str> {
    case.lines.iter().map(|line| line.notes.as_str())
}

/// What is said of one contender: name, median, spread, ratio, CPU, CPU each, memory.
pub(super) fn cells(case: &Case, line: &Line) -> [String; 7] {
    let figure = |value: f64| case.counts.figure(value).to_string();
    let spread = line.spread();
    [
        line.name.clone(),
        spread.map_or_else(String::new, |spread| figure(spread.median)),
        spread.map_or_else(String::new, |spread| {
            format!("{} – {}", figure(spread.min), figure(spread.max))
        }),
        case.ratio(line).map_or_else(String::new, ratio),
        line.cpu_seconds()
            .filter(|(server, client)| server + client > 0.0)
            .map_or_else(String::new, |(server, client)| format!("{server:.2} + {client:.2}")),
        line.cpu_micros_each()
            .filter(|micros| *micros > 0.0)
            .map_or_else(String::new, |micros| Figure::micros(micros).to_string()),
        line.peak().map_or_else(String::new, |bytes| Figure::bytes(bytes).to_string()),
    ]
}

/// A ratio with as many digits as mean something.
pub(super) fn ratio(value: f64) -> String {
    match value {
        _ if value >= 10.0 => format!("{value:.0}"),
        _ if value >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report::tests::sample;

    #[test]
    fn every_case_and_contender_is_shown_with_its_ratio() {
        let text = text(&sample());
        assert!(text.contains("live 1 → 1\n"), "{text}");
        assert!(text.contains("flush <4 KiB>"), "{text}");
        let line = text.lines().find(|line| line.contains("gapless: volatile")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(line.contains("401 /s") && line.contains("400 /s – 402 /s"), "{line}");
        assert!(words.contains(&"2.00") && line.contains("1.00 + 0.50"), "{line}");
        assert!(line.contains("1.00 µs") && line.ends_with("2.00 KiB"), "{line}");
    }

    #[test]
    fn ratios_have_as_many_digits_as_mean_something() {
        assert_eq!([123.4, 2.345, 0.5, 0.0123].map(ratio), ["123", "2.35", "0.50", "0.012"]);
    }
}
