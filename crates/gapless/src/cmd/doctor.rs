//! `gapless doctor`: examines a data folder, and repairs it only on request.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use gapless_engine::StoreError;
use gapless_journal::doctor::{Finding, Repair, Report, Severity, examine, repair};
use gapless_journal::fs::DiskFs;
use gapless_journal::layout::Folder;
use serde_json::{Value, json};

use super::upgrade;
use crate::config::Config;
use crate::engine;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Paint, ask, human_bytes, human_number};
use crate::permissions;
use crate::progress::{Progress, bytes_bar};

const EXAMPLES: &str = "\
Examples:
  gapless doctor                                examine; nothing is changed
  gapless doctor --data /srv/gapless --json
  gapless doctor --check-upgrade                before a new version opens the store
  gapless doctor --repair                       repair, and ask before anything is given up
  gapless doctor --repair --yes                 the same without asking
  gapless doctor --rebuild                      create manifest and checkpoint again, when lost
  gapless doctor --set store.url=s3://bucket/prefix    look at a store on object storage

It reads every byte. Of a folder that a server writes to, the newest part may look
unfinished; repairing needs the server stopped. Exit code 3 means that damage was found, 6
that there is no store in the folder. Rebuilding deletes nothing, and reports what no file
holds any more.";

/// Examine the data folder; repair it only on request
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorOptions {
    /// Say whether this program can open the store, which versions of its format it found, and
    /// what opening would change
    #[arg(long, conflicts_with_all = ["repair", "rebuild"])]
    check_upgrade: bool,
    /// Repair what can be repaired
    #[arg(long)]
    repair: bool,
    /// Create manifest and checkpoint again from segments and log, when they are lost
    #[arg(long, conflicts_with = "repair")]
    rebuild: bool,
    /// Repair also where something is given up for good, without asking
    #[arg(long, short, requires = "repair")]
    yes: bool,
}

pub(crate) fn run(options: &DoctorOptions, config: &Config, out: &mut Output) -> Done {
    permissions::apply(config)?;
    if let Some(place) = engine::place(config)? {
        if options.repair || options.rebuild {
            let message = "a store on object storage is not repaired: restore what is missing";
            return Err(Failure::words(message));
        }
        return survey(&place, out);
    }
    let data = Path::new(config.text("data"));
    let folder = Folder::new(Arc::new(DiskFs), data);
    let mut report = look(&folder, out)?;
    if report.findings.iter().any(|finding| matches!(finding, Finding::NoStore)) {
        let message = format!("there is no store in {}", data.display());
        return Err(Failure::not_found(message).hint("name the data folder: --data DIR"));
    }
    if options.check_upgrade {
        return upgrade::check(&folder, &report, data, out);
    }
    let mut repairs = Vec::new();
    if options.repair {
        if !out.json {
            print_report(&report, data, out)?;
            out.line("")?;
        }
        choose(&mut report, options.yes, out)?;
        repairs = repair(&folder, &report).map_err(|error| {
            Failure::failed(format!("cannot repair: {error}")).hint("stop the server first")
        })?;
        report = look(&folder, out)?;
    }
    let mut rebuilt = None;
    if options.rebuild {
        if !report.findings.iter().any(Finding::rebuild_helps) {
            let message = "manifest and checkpoint are there, so there is nothing to rebuild";
            return Err(
                Failure::failed(message).hint("see: gapless doctor, gapless doctor --repair")
            );
        }
        let done = gapless_broker::rebuild(&folder).map_err(|error| {
            Failure::failed(format!("cannot rebuild: {error}"))
                .hint("if the log is what is missing or damaged, move its folder away, and keep it")
        })?;
        rebuilt = Some(done.to_string());
        report = look(&folder, out)?;
    }
    if out.json {
        let mut json = report_json(&report, &repairs, data);
        json["rebuilt"] = json!(rebuilt);
        out.json_line(&json)?;
    } else {
        if let Some(text) = &rebuilt {
            out.line(out.paint.bold("rebuilt"))?;
            for line in text.lines() {
                out.line(format_args!("  {line}"))?;
            }
            out.line("")?;
        }
        print_repairs(options, &repairs, out)?;
        if !options.repair || !repairs.is_empty() {
            print_report(&report, data, out)?;
        }
    }
    // Any damage, also what can be repaired: a disk that loses an index may lose more.
    let damaged = report.worst() >= Some(Severity::Repairable);
    Ok(if damaged { Exit::Damage } else { Exit::Ok })
}

/// Looks at a store on object storage.
fn survey(place: &engine::Place, out: &mut Output) -> Done {
    let store = engine::reach(place, false).map_err(|error| match error {
        StoreError::NoStore { .. } => Failure::not_found(error),
        other => Failure::failed(other),
    })?;
    let found = store.survey(0).map_err(Failure::failed)?;
    if !found.exists {
        return Err(Failure::not_found(format!("there is no store at {}", place.url())));
    }
    if out.json {
        out.json_line(&json!({
            "store": place.url(), "manifest": found.manifest, "term": found.term,
            "segments": found.segments, "segment_bytes": found.segment_bytes,
            "log_objects": found.log_objects, "log_bytes": found.log_bytes,
            "damage": found.damage,
        }))?;
    } else {
        out.line(format_args!("store     {}", place.url()))?;
        out.line("create    if absent: enforced")?;
        out.line(format_args!("manifest  {}, term {}", found.manifest, found.term))?;
        let (segments, bytes) = (human_number(found.segments), human_bytes(found.segment_bytes));
        out.line(format_args!("segments  {segments}, {bytes}; all are there, not read"))?;
        let (objects, bytes) = (human_number(found.log_objects), human_bytes(found.log_bytes));
        out.line(format_args!("log       {objects} objects, {bytes}; read"))?;
        for damage in &found.damage {
            out.line(format_args!("damage    {damage}"))?;
        }
    }
    Ok(if found.damage.is_empty() { Exit::Ok } else { Exit::Damage })
}

fn look(folder: &Folder, out: &mut Output) -> Result<Report, Failure> {
    let mut progress = Progress::new(out.quiet || out.json);
    let mut tell = |done, total| {
        progress.update(|elapsed| bytes_bar("checking segments", done, total, elapsed));
    };
    let mut report = examine(folder, &mut tell).map_err(|error| {
        let path = folder.path.display();
        Failure::failed(format!("cannot examine {path}: {error}"))
    })?;
    // Parts that are whole can still contradict each other: only the replay of an opening
    // shows that. Of damaged ones it would say the same thing again.
    let whole = report.worst() < Some(Severity::Damaged) && report.manifest.is_some();
    if whole && let Err(why) = gapless_broker::rehearse(folder) {
        report.findings.push(Finding::State { why });
    }
    Ok(report)
}

/// Takes out of the report what the user does not want to be repaired.
fn choose(report: &mut Report, yes: bool, out: &mut Output) -> Result<(), Failure> {
    let loses = report.findings.iter().filter(|finding| finding.repair_loses()).count();
    if loses == 0 || yes {
        return Ok(());
    }
    if out.can_ask() {
        out.flush()?;
        if ask("Some repairs give up what is damaged, for good. A backup is better. Go on?")? {
            return Ok(());
        }
    } else {
        out.note("repairs that give something up are left out; --yes allows them");
    }
    report.findings.retain(|finding| !finding.repair_loses());
    Ok(())
}

fn print_repairs(
    options: &DoctorOptions,
    repairs: &[Repair],
    out: &mut Output,
) -> Result<(), Failure> {
    if !options.repair {
        return Ok(());
    }
    if repairs.is_empty() {
        out.line("nothing was repaired")?;
    } else {
        out.line(out.paint.bold("repaired"))?;
        for each in repairs {
            out.line(format_args!("  {each}"))?;
        }
        out.line("")?;
    }
    Ok(())
}

fn print_report(report: &Report, data: &Path, out: &mut Output) -> Result<(), Failure> {
    let text = report_text(report, data, out.paint);
    out.bytes(text.as_bytes())?;
    Ok(())
}

fn report_text(report: &Report, data: &Path, paint: Paint) -> String {
    let epoch = report.epoch.map(|epoch| format!(" (epoch {epoch})")).unwrap_or_default();
    let mut text = format!("data      {}{epoch}\n", data.display());
    let batches: u64 = report.segments.iter().map(|(_, batches)| batches).sum();
    text += &format!(
        "segments  {} whole, {}, {} batches\n",
        report.segments.len(),
        human_bytes(report.segment_bytes),
        human_number(batches)
    );
    if let Some(items) = report.checkpoint_items {
        text += &format!("state     {} items\n", human_number(items));
    }
    if let Some(log) = &report.log {
        let live: u64 = log.files.iter().map(|file| file.live).sum();
        let bytes: u64 = log.files.iter().map(|file| file.bytes).sum();
        text += &format!(
            "log       {} files, {}, {} frames\n",
            log.files.len(),
            human_bytes(bytes),
            human_number(live)
        );
    }
    let groups = [
        (Severity::Damaged, paint.red("damaged")),
        (Severity::Repairable, paint.yellow("can be repaired without loss")),
        (Severity::Info, paint.dim("good to know")),
    ];
    for (severity, title) in groups {
        let mut found =
            report.findings.iter().filter(|each| each.severity() == severity).peekable();
        if found.peek().is_some() {
            text += &format!("\n{title}\n");
        }
        for finding in found {
            text += &format!("  {finding}\n    → {}\n", paint.dim(finding.advice()));
        }
    }
    let verdict = match report.worst() {
        None | Some(Severity::Info) => paint.green("No damage found."),
        Some(Severity::Repairable) if may_repair(report) => {
            "Nothing is lost; `gapless doctor --repair` repairs it.".to_owned()
        }
        Some(_) if may_repair(report) => {
            "Restore from a backup if there is one; else see `gapless doctor --repair`.".to_owned()
        }
        Some(_) => "Restore from a backup; repairing cannot help here.".to_owned(),
    };
    text += &format!("\n{verdict}\n");
    text
}

fn may_repair(report: &Report) -> bool {
    let wrong = |each: &&Finding| each.severity() > Severity::Info;
    report.findings.iter().filter(wrong).any(Finding::is_repairable)
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Repairable => "repairable",
        Severity::Damaged => "damaged",
    }
}

fn report_json(report: &Report, repairs: &[Repair], data: &Path) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "severity": severity_name(finding.severity()),
            "what": finding.to_string(),
            "advice": finding.advice(),
            "repairable": finding.is_repairable(),
            "repair_loses": finding.repair_loses(),
        })
    };
    json!({
        "data": data.display().to_string(),
        "epoch": report.epoch.map(|epoch| epoch.to_string()),
        "worst": report.worst().map(severity_name),
        "segments": report.segments.len(),
        "segment_bytes": report.segment_bytes,
        "checkpoint_items": report.checkpoint_items,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "repairs": repairs.iter().map(Repair::to_string).collect::<Vec<_>>(),
    })
}
