//! `docs/benchmarks.md`: the part between its markers, made from a report.
//!
//! What stands outside of the markers is written by people and never touched.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::chart;
use super::report::Report;
use super::show::cells;
use crate::benches::store::Result;

const BEGIN: &str = "<!-- compare: begin -->";
const END: &str = "<!-- compare: end -->";

/// Writes the page and its chart again, in the folder of the documentation.
///
/// # Errors
/// When the page has no markers, or cannot be read or written.
pub(super) fn renew(docs: &Path, report: &Report) -> Result<()> {
    let path = docs.join("benchmarks.md");
    let page = renewed(&fs::read_to_string(&path)?, &markdown(report))?;
    fs::write(path, page)?;
    Ok(fs::write(docs.join("benchmarks.svg"), chart::svg(report))?)
}

fn renewed(page: &str, between: &str) -> Result<String> {
    let parts = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| rest.split_once(END).map(|(_, after)| (before, after)));
    let (before, after) = parts.ok_or("the page has no markers to write between")?;
    Ok(format!("{before}{BEGIN}\n\n{between}\n{END}{after}"))
}

fn markdown(report: &Report) -> String {
    let mut out = String::from("![How many times as good as the best peer](benchmarks.svg)\n\n");
    out.push_str("| | |\n|---|---|\n");
    for (name, value) in &report.about {
        let _ = writeln!(out, "| {name} | {} |", escaped(value));
    }
    if !report.limits.is_empty() {
        out.push_str("\n### Limits of the machine and of the generators\n\n");
        out.push_str("| what | figure |\n|---|---:|\n");
        for limit in &report.limits {
            let figure = limit.counts.figure(limit.figure);
            let _ = writeln!(out, "| {} | {figure} |", escaped(&limit.what));
        }
    }
    let mut work = "";
    for case in &report.cases {
        if case.work != work {
            work = &case.work;
            let _ = writeln!(out, "\n### {}", heading(work));
        }
        let _ = writeln!(out, "\n**{}**\n", escaped(&case.title));
        out.push_str(
            "| | median | spread | × best peer | CPU s, server + client | server CPU each | peak memory |\n\
             |---|---:|---:|---:|---:|---:|---:|\n",
        );
        for line in &case.lines {
            let mut cells = cells(case, line).map(|cell| escaped(&cell));
            if !line.is_peer {
                cells[3] = format!("**{}**", cells[3]);
            }
            if !line.notes.is_empty() {
                let _ = write!(cells[0], " ({})", escaped(&line.notes));
            }
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
    out
}

fn heading(work: &str) -> String {
    let mut words = work.replace('-', " ");
    if let Some(first) = words.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    words
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report::tests::sample;

    #[test]
    fn only_what_lies_between_the_markers_is_renewed() {
        let page = format!("hand\n{BEGIN}\nold\n{END}\nwritten\n");
        let once = renewed(&page, "new").unwrap();
        assert_eq!(once, format!("hand\n{BEGIN}\n\nnew\n{END}\nwritten\n"));
        assert_eq!(renewed(&once, "new").unwrap(), once);
        assert!(renewed("no markers", "new").is_err());
    }

    #[test]
    fn the_page_has_a_table_for_each_case_with_signs_escaped() {
        let text = markdown(&sample());
        assert!(text.contains("**live 1 → 1**"), "{text}");
        assert!(text.contains("flush &lt;4 KiB>"), "{text}");
        assert!(
            text.contains("| gapless: volatile subject | 401 /s | 400 /s – 402 /s | **2.00** |")
        );
        assert_eq!(text.matches("### Live").count(), 1);
    }
}
