//! `gapless job submit`: one job, and its result.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gapless_broker::{Clock, SystemClock};
use gapless_core::job::JobId;
use gapless_jobs::JobEvent;
use gapless_jobs::wire::{self, Isolation, JobRequest, JobResult, Status, Stream};
use serde_json::json;
use tokio::sync::mpsc;

use crate::cmd::{Global, SERVER_DEFAULT, job_batch, job_manage};
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::Interrupt;
use crate::values::When;
use crate::{jobs, values};

pub(crate) const EXAMPLES: &str = "\
Examples:
  gapless job submit calc 2 3
  gapless job submit resize photo.jpg 50% --file photo.jpg --out resized.zip
  gapless job submit calc --leader 10.0.0.5:4281 --json -- --verbose -n 3
  gapless job submit train --follow --run-max 2h --memory 4GiB --retry-code 75 --attempts 3
  gapless job submit cleanup --cron '0 3 * * *' --unique cleanup
  gapless job submit report --not-before +1h --key reports --after 01234567-89ab-…
  gapless job submit calc 2 3 --id 01234567-89ab-cdef-0123-456789abcdef
  gapless job submit calc 2 3 --detach              print the id when it is accepted; do not wait
  seq 1000 | gapless job submit calc --batch lines  a job for each line, its last argument
  gapless job submit --batch json < jobs.jsonl      lines like {\"exec\": \"calc\", \"args\": [\"2\"]}

It waits for the result, over restarts of the leader too. What the program printed is printed; the
exit code is 0 when it ended with 0. The same --id again gives the stored result and runs nothing.
Arguments that begin with - come behind --.";

/// Most events of a job that wait to be shown.
const EVENTS_MAX: usize = 256;

/// Submit a job and wait for its result
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubmitOptions {
    /// The executable, by its name in the folder of the workers
    #[arg(required_unless_present = "batch")]
    exec: Option<String>,
    /// Its arguments; no shell looks at them
    args: Vec<String>,
    /// The leader; several may be given
    #[arg(long = "leader", value_name = "HOST:PORT", value_parser = jobs::leader)]
    #[arg(default_value = SERVER_DEFAULT)]
    pub(super) leaders: Vec<String>,
    /// An input file, which the job finds in its folder; may be repeated
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A zip archive of input files, which is unpacked into its folder
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
    /// What it reads from standard input; - for what this command reads [default: nothing]
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// A variable of its environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Write the files that the job created to this file, as a zip archive
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print what it writes while it runs
    #[arg(long)]
    follow: bool,
    /// Whose job it is: jobs of one client share its cap
    #[arg(long, value_name = "ID", default_value = "cli")]
    pub(super) client: String,
    /// How many jobs of this client may run at a time
    #[arg(long, value_name = "N", env = "CLIENT_DESIRED_PAR", hide_env_values = true)]
    #[arg(default_value = "4", value_parser = jobs::cap)]
    pub(super) cap: u32,
    /// The job's id, a UUID [default: a random one]
    #[arg(long, value_name = "UUID")]
    id: Option<JobId>,
    /// How long the job may run [default: as long as the worker allows]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    run_max: Option<Duration>,
    /// Most memory of each of its processes [default: as much as the worker allows]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Most processor time of each of its processes [default: as much as the worker allows]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    cpu: Option<Duration>,
    /// The least isolation it may run with: process, files, kernel or user
    #[arg(long, value_name = "LEVEL")]
    isolation: Option<Isolation>,
    /// 0 to 9; higher ones go first
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Not before this time: 2026-11-15T22:54:03Z, or +5m
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    not_before: Option<When>,
    /// A schedule: run it whenever this cron expression says so, in UTC, until it is cancelled.
    /// The command ends when the schedule is stored, and prints its id
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["after", "out", "follow"])]
    cron: Option<String>,
    /// Of all jobs with this key one runs at a time
    #[arg(long)]
    key: Option<String>,
    /// Refuse it while another job with this value is not ended
    #[arg(long, value_name = "VALUE")]
    unique: Option<String>,
    /// A job that must have succeeded before; may be repeated
    #[arg(long, value_name = "UUID")]
    after: Vec<JobId>,
    /// Try it again when it ends with this code; may be repeated
    #[arg(long = "retry-code", value_name = "CODE", allow_negative_numbers = true)]
    retry_codes: Vec<i32>,
    /// How often it may fail until it is dead [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: Option<u32>,
    /// How long it waits after a failure; may be repeated for the ones after it
    #[arg(long = "retry-wait", value_name = "TIME", value_parser = values::duration)]
    retry_waits: Vec<Duration>,
    /// Return when the job is accepted and on disk, and print its id
    #[arg(long, conflicts_with_all = ["out", "follow"])]
    pub(super) detach: bool,
    /// Submit a job for each line of stdin
    #[arg(long, value_name = "FORM", conflicts_with_all = ["id", "out", "follow", "stdin"])]
    pub(super) batch: Option<Lines>,
}

/// What each line of stdin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Lines {
    /// The last argument of a job
    Lines,
    /// A whole request as JSON
    Json,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn run(options: &SubmitOptions, global: &Global, out: &mut Output) -> Done {
    if let Some(form) = options.batch {
        return job_batch::run(options, form, global, out);
    }
    let request = request(options)?;
    gapless_server::runtime()?.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        if options.detach {
            let client = Some((&*options.client, options.cap));
            let mut leader = job_manage::connect_for(client, &options.leaders[0], global).await?;
            let known = leader.submit(&request).await.map_err(jobs::not_done)?;
            out.result(&json!({ "JobId": request.job_id, "Known": known }), &request.job_id)?;
            return Ok(Exit::Ok);
        }
        let client = jobs::connect(global, &options.leaders, &options.client, options.cap).await?;
        let (events, mut happened) = mpsc::channel(EVENTS_MAX);
        let mut written = Written::default();
        let result = {
            let wait = jobs::result_of(&client, &request, events, global.timeout);
            let mut wait = std::pin::pin!(wait);
            loop {
                tokio::select! {
                    result = &mut wait => break result?,
                    Some(event) = happened.recv() => {
                        if options.cron.is_some() && matches!(event, JobEvent::Accepted(_)) {
                            let id = &request.job_id;
                            out.result(&serde_json::json!({ "JobId": id }), id)?;
                            return Ok(Exit::Ok);
                        }
                        if let JobEvent::Progress(piece) = event
                            && options.follow
                            && !out.json
                        {
                            written.show(piece.attempt, piece.stream, &piece.text, out)?;
                        }
                    }
                    () = interrupt.came() => {
                        let hint = jobs::ask_again(&request);
                        return Err(Failure::failed("stopped waiting for the result").hint(hint));
                    }
                }
            }
        };
        if let Some(path) = &options.out {
            jobs::write_archive(&result, path, out).await?;
        }
        show(&result, &written, out)
    })
}

/// What the words say; with `--batch` the lines say the rest.
pub(super) fn request(options: &SubmitOptions) -> Result<JobRequest, Failure> {
    let mut files = BTreeMap::new();
    for path in &options.files {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Failure::words(format!("{} is not the path of a file", path.display()))
        })?;
        if files.insert(name.to_owned(), content(path)?).is_some() {
            return Err(Failure::words(format!("two input files are called {name}")));
        }
    }
    let ms = |time: &Duration| time.as_millis() as u64;
    let now = SystemClock::default().now();
    let waits: Vec<u64> = options.retry_waits.iter().map(ms).collect();
    Ok(JobRequest {
        job_id: options.id.unwrap_or_else(jobs::new_id).to_string(),
        client_id: options.client.clone(),
        exec_name: options.exec.clone().unwrap_or_default(),
        args: options.args.clone(),
        files,
        archive: options.archive.as_deref().map(content).transpose()?,
        stdin: options.stdin.as_deref().map(content).transpose()?,
        env: options.env.iter().cloned().collect(),
        priority: options.priority,
        not_before_ms: options.not_before.map(|when| when.resolve(now).0),
        timeout_ms: options.run_max.as_ref().map(ms),
        memory_bytes: options.memory,
        cpu_ms: options.cpu.as_ref().map(ms),
        isolation: options.isolation,
        attempts_max: options.attempts,
        retry_ms: Some(waits).filter(|waits| !waits.is_empty()),
        retry_exit_codes: options.retry_codes.clone(),
        key: options.key.clone(),
        unique: options.unique.clone(),
        cron: options.cron.clone(),
        after: options.after.iter().map(ToString::to_string).collect(),
        ..JobRequest::default()
    })
}

/// The content of a file as it is sent; `-` is standard input.
fn content(path: &Path) -> Result<String, Failure> {
    let read = || {
        if path != Path::new("-") {
            return std::fs::read(path);
        }
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    };
    let cannot = |error| Failure::words(format!("cannot read {}: {error}", path.display()));
    read().map(|bytes| wire::encode(&bytes)).map_err(cannot)
}

/// What was shown of the attempt that runs, so that the rest follows with the result.
#[derive(Default)]
struct Written {
    attempt: u32,
    stdout: String,
    stderr: String,
}

impl Written {
    fn show(&mut self, attempt: u32, stream: Stream, text: &str, out: &mut Output) -> Done {
        if self.attempt != attempt {
            *self = Self { attempt, ..Self::default() };
        }
        match stream {
            Stream::Stdout => {
                out.bytes(text.as_bytes())?;
                out.flush()?;
                self.stdout += text;
            }
            Stream::Stderr => {
                eprint!("{text}");
                self.stderr += text;
            }
        }
        Ok(Exit::Ok)
    }
}

/// What is left to show: all of it, if not just this beginning was shown.
fn rest<'a>(whole: &'a str, shown: &str) -> &'a str {
    whole.strip_prefix(shown).unwrap_or(whole)
}

fn show(result: &JobResult, written: &Written, out: &mut Output) -> Done {
    if out.json {
        out.json_line(&serde_json::to_value(result).map_err(Failure::failed)?)?;
    } else {
        out.bytes(rest(&result.stdout, &written.stdout).as_bytes())?;
        eprint!("{}", rest(&result.stderr, &written.stderr));
    }
    if result.status == Status::Ok {
        return Ok(Exit::Ok);
    }
    Err(Failure::failed(jobs::ending(result)))
}
