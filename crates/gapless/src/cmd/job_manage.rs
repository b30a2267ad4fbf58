//! `gapless job ls|show|logs|fetch|cancel|retry` and `gapless job dlq`: what a leader knows, and orders
//! to it.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use gapless_core::job::JobId;
use gapless_core::job::leader::State;
use gapless_jobs::manage::{Heard, ManageError, Manager};
use gapless_jobs::shown::{JobDetail, JobQuery, JobShown, PAGE_MAX};
use serde_json::{Value, json};

use crate::cmd::{Global, SERVER_DEFAULT};
use crate::exit::{Done, Exit, Failure};
use crate::jobs;
use crate::output::{Output, Table, ask, human_number};
use crate::remote::Interrupt;

#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// List jobs, newest first
    #[command(visible_alias = "list")]
    #[command(after_help = "Examples:\n  gapless job ls\n  gapless job ls --state running --exec \
                            render\n  gapless job ls --client me --all --json\n\nEnded jobs are \
                            listed until they are forgotten (jobs.keep_results_ms).")]
    Ls {
        #[command(flatten)]
        at: At,
        /// Only those in this state
        #[arg(long, value_parser = state())]
        state: Option<String>,
        #[command(flatten)]
        of: Of,
        /// Only schedules
        #[arg(long)]
        schedules: bool,
        /// At most so many
        #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
        count: u64,
        /// All of them, however many
        #[arg(long, conflicts_with = "count")]
        all: bool,
    },
    /// Show one job: where it is, what it was given, what it left
    #[command(after_help = "Examples:\n  gapless job show 01234567-89ab-cdef-0123-456789abcdef")]
    Show {
        #[command(flatten)]
        at: At,
        /// Which job
        #[arg(value_name = "ID")]
        id: JobId,
    },
    /// Print what a job wrote, while it runs or afterwards
    #[command(
        after_help = "Examples:\n  gapless job logs 01234567-89ab-cdef-0123-456789abcdef\n  \
                            gapless job logs 01234567-89ab-cdef-0123-456789abcdef --follow\n\nWhile \
                            it runs, the last 64 KiB are there; afterwards what its result has. Its \
                            stderr goes to stderr."
    )]
    Logs {
        #[command(flatten)]
        at: At,
        /// Which job
        #[arg(value_name = "ID")]
        id: JobId,
        /// Go on until it ends; the exit code is 1 if it does not succeed
        #[arg(long, short)]
        follow: bool,
    },
    /// Fetch the files that a job left, as a zip archive; waits until it has ended
    #[command(
        after_help = "Examples:\n  gapless job fetch 01234567-89ab-cdef-0123-456789abcdef out.zip\n\n\
                            An archive that is too large for a frame is fetched from where its \
                            worker put it: a folder that is seen here too, or a bucket (with the \
                            usual variables AWS_…)."
    )]
    Fetch {
        #[command(flatten)]
        at: At,
        /// Which job
        #[arg(value_name = "ID")]
        id: JobId,
        /// Where the archive goes
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Cancel jobs: those that wait at once, those that run when their worker has stopped them
    #[command(after_help = "Examples:\n  gapless job cancel 01234567-89ab-cdef-0123-456789abcdef")]
    Cancel {
        #[command(flatten)]
        at: At,
        /// Which jobs
        #[arg(value_name = "ID", required = true)]
        ids: Vec<JobId>,
    },
    /// Try jobs again that ended without success
    #[command(after_help = "Examples:\n  gapless job retry 01234567-89ab-cdef-0123-456789abcdef")]
    Retry {
        #[command(flatten)]
        at: At,
        /// Which jobs
        #[arg(value_name = "ID", required = true)]
        ids: Vec<JobId>,
    },
    /// Dead jobs: those that were given up
    #[command(
        after_help = "Examples:\n  gapless job dlq ls\n  gapless job dlq retry --all\n\nA job \
                            is given up when it failed too often, lost too many workers, or when \
                            one that it waited for did not succeed."
    )]
    Dlq {
        #[command(subcommand)]
        command: DeadCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List dead jobs, newest first
    #[command(visible_alias = "list")]
    #[command(after_help = "Examples:\n  gapless job dlq ls --exec render")]
    Ls {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        of: Of,
        /// At most so many
        #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
        count: u64,
    },
    /// Try dead jobs again
    #[command(
        after_help = "Examples:\n  gapless job dlq retry 01234567-89ab-cdef-0123-456789abcdef\n  \
                            gapless job dlq retry --all --exec render"
    )]
    Retry {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        which: Which,
    },
    /// Forget dead jobs, with what they left
    #[command(visible_aliases = ["remove", "delete"])]
    #[command(after_help = "Examples:\n  gapless job dlq rm 01234567-89ab-cdef-0123-456789abcdef \
                            --yes\n  gapless job dlq rm --all --exec render")]
    Rm {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        which: Which,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Which leader.
#[derive(Debug, Args)]
pub(super) struct At {
    /// The leader
    #[arg(long, value_name = "HOST:PORT", value_parser = jobs::leader)]
    #[arg(default_value = SERVER_DEFAULT)]
    leader: String,
}

/// Whose jobs, and of what.
#[derive(Debug, Default, Args)]
pub(super) struct Of {
    /// Only those that run this
    #[arg(long, value_name = "NAME")]
    exec: Option<String>,
    /// Only those of this client
    #[arg(long, value_name = "ID")]
    client: Option<String>,
}

/// Which dead jobs.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Which jobs
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<JobId>,
    /// All that are dead
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    of: Of,
}

fn state() -> clap::builder::PossibleValuesParser {
    State::ALL.map(State::name).into()
}

/// Connects to a leader that may not listen yet.
pub(super) async fn connect(leader: &str, global: &Global) -> Result<Manager, Failure> {
    connect_for(None, leader, global).await
}

/// The same for a client with this cap, if there is one.
pub(super) async fn connect_for(
    client: Option<(&str, u32)>,
    leader: &str,
    global: &Global,
) -> Result<Manager, Failure> {
    let access = jobs::access(global)?;
    let connect = async {
        loop {
            let connected = match client {
                None => Manager::connect(leader, &access, global.timeout).await,
                Some(client) => Manager::connect_for(client, leader, &access, global.timeout).await,
            };
            match connected {
                Ok(manager) => return Ok(manager),
                Err(refused @ ManageError::Refused(_)) => return Err(jobs::not_done(refused)),
                // Refused connections come back at once: others get their turn meanwhile.
                Err(_) => tokio::time::timeout(PAUSE, std::future::pending::<()>()).await.err(),
            };
        }
    };
    tokio::time::timeout(global.wait, connect).await.map_err(|_| {
        Failure::new(Exit::NoConnection, format!("no leader answers at {leader}"))
            .hint("start one with: gapless serve\nor name another with --leader host:port")
    })?
}

/// Between two tries to connect.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

pub(super) fn run(command: &JobCommand, global: &Global, out: &mut Output) -> Done {
    gapless_server::runtime()?.block_on(async {
        match command {
            JobCommand::Ls { at, state, of, schedules, count, all } => {
                let most = if *all { u64::MAX } else { *count };
                let mut leader = connect(&at.leader, global).await?;
                let query = JobQuery { schedules: *schedules, ..query(state.clone(), of) };
                list(&mut leader, query, most, out).await
            }
            JobCommand::Show { at, id } => {
                let mut leader = connect(&at.leader, global).await?;
                let job = leader.show(*id).await.map_err(jobs::not_done)?;
                show(&job, out)?;
                Ok(Exit::Ok)
            }
            JobCommand::Logs { at, id, follow } => {
                let mut leader = connect(&at.leader, global).await?;
                logs(&mut leader, *id, *follow, out).await
            }
            JobCommand::Fetch { at, id, file } => {
                let mut leader = connect(&at.leader, global).await?;
                fetch(&mut leader, *id, file, out).await
            }
            JobCommand::Cancel { at, ids } => {
                let mut leader = connect(&at.leader, global).await?;
                for id in ids {
                    leader.cancel(*id).await.map_err(jobs::not_done)?;
                    let value = json!({ "JobId": id.to_string(), "Cancelled": true });
                    out.result(&value, format_args!("{id} is cancelled"))?;
                }
                Ok(Exit::Ok)
            }
            JobCommand::Retry { at, ids } => {
                let mut leader = connect(&at.leader, global).await?;
                for id in ids {
                    leader.retry(*id).await.map_err(jobs::not_done)?;
                    let value = json!({ "JobId": id.to_string(), "Retried": true });
                    out.result(&value, format_args!("{id} is tried again"))?;
                }
                Ok(Exit::Ok)
            }
            JobCommand::Dlq { command } => dead(command, global, out).await,
        }
    })
}

async fn dead(command: &DeadCommand, global: &Global, out: &mut Output) -> Done {
    let dead = || Some(State::Dead.name().to_owned());
    match command {
        DeadCommand::Ls { at, of, count } => {
            let mut leader = connect(&at.leader, global).await?;
            list(&mut leader, query(dead(), of), *count, out).await
        }
        DeadCommand::Retry { at, which } => {
            let mut leader = connect(&at.leader, global).await?;
            let mut count = 0;
            for id in these(&mut leader, which).await? {
                leader.retry(id).await.map_err(jobs::not_done)?;
                count += 1;
            }
            let text = format!("{} tried again", human_number(count));
            out.result(&json!({ "Retried": count }), text)?;
            Ok(Exit::Ok)
        }
        DeadCommand::Rm { at, which, yes } => {
            if !yes && !out.can_ask() {
                return Err(Failure::words("removing dead jobs is for good")
                    .hint("add --yes to do it without asking"));
            }
            if !yes && !ask("Forget these dead jobs, for good?")? {
                return Err(Failure::failed("nothing was removed"));
            }
            let mut leader = connect(&at.leader, global).await?;
            let mut count = 0;
            for id in these(&mut leader, which).await? {
                leader.forget(id).await.map_err(jobs::not_done)?;
                count += 1;
            }
            out.result(&json!({ "Removed": count }), format!("{} removed", human_number(count)))?;
            Ok(Exit::Ok)
        }
    }
}

/// The ids of dead jobs: the given ones, or all.
async fn these(leader: &mut Manager, which: &Which) -> Result<Vec<JobId>, Failure> {
    if !which.ids.is_empty() {
        for id in &which.ids {
            let job = leader.show(*id).await.map_err(jobs::not_done)?;
            if job.job.state != State::Dead.name() {
                let why = format!("job {id} is {}, not dead", job.job.state);
                return Err(Failure::new(Exit::Rejected, why));
            }
        }
        return Ok(which.ids.clone());
    }
    let mut found = Vec::new();
    let mut query = query(Some(State::Dead.name().to_owned()), &which.of);
    loop {
        let page = leader.list(query.clone()).await.map_err(jobs::not_done)?;
        found.extend(page.jobs.iter().filter_map(|job| job.job_id.parse::<JobId>().ok()));
        match page.next {
            Some(next) => query.next = Some(next),
            None => return Ok(found),
        }
    }
}

fn query(state: Option<String>, of: &Of) -> JobQuery {
    JobQuery {
        state,
        exec_name: of.exec.clone(),
        client_id: of.client.clone(),
        limit: Some(PAGE_MAX),
        ..JobQuery::default()
    }
}

async fn list(leader: &mut Manager, mut query: JobQuery, most: u64, out: &mut Output) -> Done {
    let mut table =
        Table::new(&["ID", "STATE", "EXEC", "CLIENT", ">TRIES", "SUBMITTED", "WORKER OR WHY"]);
    let mut left = most;
    let mut any = false;
    while left > 0 {
        query.limit = Some(usize::try_from(left).unwrap_or(PAGE_MAX).min(PAGE_MAX));
        let page = leader.list(query.clone()).await.map_err(jobs::not_done)?;
        for job in &page.jobs {
            any = true;
            left -= 1;
            if out.json {
                out.json_line(&serde_json::to_value(job).map_err(Failure::failed)?)?;
            } else {
                table.row(row(job));
            }
        }
        match page.next {
            Some(next) => query.next = Some(next),
            None => break,
        }
    }
    if !any {
        out.note("there are no such jobs");
    } else if !out.json {
        out.table(&table)?;
    }
    Ok(Exit::Ok)
}

fn row(job: &JobShown) -> Vec<String> {
    let more = match (&job.worker_id, job.state == job.phase) {
        (Some(worker), _) if job.cancelling => format!("{worker}, to be cancelled"),
        (Some(worker), _) => worker.clone(),
        (None, false) => job.cron.clone().unwrap_or_else(|| job.phase.clone()),
        (None, true) => "-".to_owned(),
    };
    vec![
        job.job_id.clone(),
        job.state.clone(),
        job.exec_name.clone(),
        job.client_id.clone(),
        job.attempt.to_string(),
        gapless_core::calendar::format(job.submitted_ms),
        more,
    ]
}

fn show(detail: &JobDetail, out: &mut Output) -> Result<(), Failure> {
    if out.json {
        out.json_line(&serde_json::to_value(detail).map_err(Failure::failed)?)?;
        return Ok(());
    }
    let job = &detail.job;
    let time = |ms: Option<u64>| ms.map(gapless_core::calendar::format);
    let files: Vec<String> =
        detail.files.iter().map(|(name, bytes)| format!("{name} ({bytes} bytes)")).collect();
    let lines = [
        ("job", Some(job.job_id.clone())),
        ("state", Some(format!("{} ({})", job.state, job.phase))),
        ("exec", Some(job.exec_name.clone())),
        ("arguments", Some(format!("{:?}", detail.args))),
        ("files", Some(files.join(", ")).filter(|files| !files.is_empty())),
        ("client", Some(job.client_id.clone())),
        ("priority", Some(job.priority.to_string())),
        ("submitted", time(Some(job.submitted_ms))),
        ("not before", time(job.not_before_ms.filter(|until| *until > job.submitted_ms))),
        ("cron", job.cron.clone()),
        ("schedule", job.schedule_id.clone()),
        ("attempt", Some(job.attempt.to_string())),
        ("failures", Some(job.failures.to_string())),
        ("lost workers", Some(job.lost_workers.to_string())),
        ("worker", job.worker_id.clone()),
        ("started", time(job.started_ms)),
        ("ended", time(job.ended_ms)),
    ];
    for (label, value) in lines {
        if let Some(value) = value {
            out.line(format_args!("{label:<14} {value}"))?;
        }
    }
    let Some(result) = &detail.result else { return Ok(()) };
    out.line(format_args!("{:<14} {}", "result", jobs::ending(result)))?;
    if let Some(left) = &result.output_ref {
        out.line(format_args!("{:<14} {} ({} bytes)", "output", left.url, left.bytes))?;
    }
    for (label, text) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        for line in text.lines() {
            out.line(format_args!("{label:<14} {line}"))?;
        }
    }
    Ok(())
}

async fn logs(leader: &mut Manager, id: JobId, follow: bool, out: &mut Output) -> Done {
    let job = leader.show(id).await.map_err(jobs::not_done)?;
    if !follow {
        if let Some(result) = &job.result {
            write(out, "stdout", &result.stdout)?;
            write(out, "stderr", &result.stderr)?;
            return Ok(Exit::Ok);
        }
        let log = leader.log(id).await.map_err(jobs::not_done)?;
        if log.shortened {
            out.note("older output is not kept while the job runs; its result will have it");
        }
        log.pieces.iter().try_for_each(|piece| print(out, piece))?;
        if log.pieces.is_empty() {
            out.note(format_args!("job {id} is {} and has written nothing yet", job.job.state));
        }
        return Ok(Exit::Ok);
    }
    let mut interrupt = Interrupt::listen()?;
    leader.follow(id).await.map_err(jobs::not_done)?;
    // What was printed while it ran is not printed again from its result.
    let mut printed = false;
    loop {
        let heard = tokio::select! {
            heard = leader.heard() => heard.map_err(jobs::not_done)?,
            () = interrupt.came() => return Ok(Exit::Ok),
        };
        match heard {
            Heard::Wrote(piece) => {
                printed = true;
                print(out, &piece)?;
                out.flush()?;
            }
            Heard::Ended(result) => {
                if !printed {
                    write(out, "stdout", &result.stdout)?;
                    write(out, "stderr", &result.stderr)?;
                }
                out.note(jobs::ending(&result));
                let ok = result.status == gapless_jobs::wire::Status::Ok;
                return Ok(if ok { Exit::Ok } else { Exit::Failed });
            }
        }
    }
}

async fn fetch(leader: &mut Manager, id: JobId, file: &Path, out: &mut Output) -> Done {
    leader.follow(id).await.map_err(jobs::not_done)?;
    loop {
        if let Heard::Ended(result) = leader.heard().await.map_err(jobs::not_done)? {
            jobs::write_archive(&result, file, out).await?;
            return Ok(Exit::Ok);
        }
    }
}

/// A piece of output, as a worker sent it.
fn print(out: &mut Output, piece: &Value) -> Result<(), Failure> {
    let text = |name: &str| piece[name].as_str().unwrap_or_default();
    write(out, text("Stream"), text("Text"))
}

fn write(out: &mut Output, stream: &str, text: &str) -> Result<(), Failure> {
    if out.json {
        if !text.is_empty() {
            out.json_line(&json!({ "Stream": stream, "Text": text }))?;
        }
        return Ok(());
    }
    match stream {
        "stderr" => {
            out.flush()?;
            eprint!("{text}");
        }
        _ => out.bytes(text.as_bytes())?,
    }
    Ok(())
}
