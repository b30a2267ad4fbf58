//! `gapless doctor --check-upgrade`: whether this program can open a store, and what that changes.

use std::path::Path;

use gapless_journal::doctor::{Finding, FormatFound, Report, Severity, formats};
use gapless_journal::layout::Folder;
use serde_json::{Value, json};

use crate::exit::{Done, Exit, Failure};
use crate::output::Output;

/// Prints what was found; the report is that of the whole store. Nothing is changed.
pub(super) fn check(folder: &Folder, report: &Report, data: &Path, out: &mut Output) -> Done {
    let found = formats(folder)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", data.display())))?;
    let refused = refused(&found, report);
    let changes = changes(&found, report);
    if out.json {
        out.json_line(&json!({
            "data": data.display().to_string(),
            "program": env!("GAPLESS_VERSION"),
            "opens": refused.is_empty(),
            "refused": refused,
            "changes": changes,
            "formats": found.iter().map(shown).collect::<Vec<_>>(),
        }))?;
    } else {
        out.line(format_args!("data      {}", data.display()))?;
        out.line(format_args!("program   gapless {}", env!("GAPLESS_VERSION")))?;
        for each in &found {
            let files =
                if each.files == 1 { "1 file".into() } else { format!("{} files", each.files) };
            let note = match (each.is_read(), each.is_raised()) {
                (false, _) => out.paint.red("cannot be read by this program"),
                (true, true) => format!("read; new ones have version {}", each.writes),
                (true, false) => "as this program writes it".to_owned(),
            };
            let (kind, version) = (each.kind, each.version);
            out.line(format_args!("{kind:<10}version {version}, {files}: {note}"))?;
        }
        for (title, lines) in [("it would be refused", &refused), ("opening it changes", &changes)]
        {
            if !lines.is_empty() {
                out.line(format_args!("\n{}", out.paint.bold(title)))?;
                for line in lines {
                    out.line(format_args!("  {line}"))?;
                }
            }
        }
        let verdict = match (refused.is_empty(), changes.is_empty()) {
            (false, _) => out.paint.red("This program cannot open the store."),
            (true, true) => out.paint.green("This program opens the store, and changes no format."),
            (true, false) => out.paint.green("This program opens the store."),
        };
        out.line(format_args!("\n{verdict}"))?;
    }
    Ok(if refused.is_empty() { Exit::Ok } else { Exit::Damage })
}

/// Why the store would not open.
fn refused(found: &[FormatFound], report: &Report) -> Vec<String> {
    let unread = found.iter().filter(|each| !each.is_read()).map(|each| {
        let (first, last) = (each.reads.start(), each.reads.end());
        format!(
            "{} of version {}: this program reads {first} to {last}; use the program that wrote it, \
             or a newer one",
            each.kind, each.version
        )
    });
    let damaged = report.findings.iter().filter(|each| each.severity() == Severity::Damaged);
    unread.chain(damaged.map(Finding::to_string)).collect()
}

/// What opening would change, beside what each opening writes.
fn changes(found: &[FormatFound], report: &Report) -> Vec<String> {
    let raised = found.iter().filter(|each| each.is_read() && each.is_raised()).map(|each| {
        format!(
            "{}s get version {} (now {}): a program that reads only version {} cannot open the store \
             after that; copy the folder before, if you may want to go back",
            each.kind, each.writes, each.version, each.version
        )
    });
    let mends = report.findings.iter().filter(|each| each.severity() < Severity::Damaged);
    raised.chain(mends.map(|each| format!("{each}: {}", each.advice()))).collect()
}

fn shown(found: &FormatFound) -> Value {
    json!({
        "kind": found.kind, "version": found.version, "files": found.files,
        "reads": [found.reads.start(), found.reads.end()], "writes": found.writes,
    })
}
