//! `gapless job submit`: one job, and its result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use gapless_core::job::JobId;
use gapless_jobs::wire::{self, JobRequest, JobResult, Status};

use crate::cmd::{Global, SERVER_DEFAULT};
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::Interrupt;
use crate::{jobs, values};

const EXAMPLES: &str = "\
Examples:
  gapless job submit calc 2 3
  gapless job submit resize photo.jpg 50% --file photo.jpg --out resized.zip
  gapless job submit calc --leader 10.0.0.5:4281 --json -- --verbose -n 3
  gapless job submit calc 2 3 --id 01234567-89ab-cdef-0123-456789abcdef

It waits for the result, over restarts of the leader too. What the program printed is printed; the
exit code is 0 when it ended with 0. The same --id again gives the stored result and runs nothing.
Arguments that begin with - come behind --.";

/// Have programs run by workers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JobOptions {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    Submit(SubmitOptions),
}

/// Submit a job and wait for its result
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct SubmitOptions {
    /// The executable, by its name in the folder of the workers
    exec: String,
    /// Its arguments; no shell looks at them
    args: Vec<String>,
    /// The leader; several may be given
    #[arg(long = "leader", value_name = "HOST:PORT", value_parser = jobs::leader)]
    #[arg(default_value = SERVER_DEFAULT)]
    leaders: Vec<String>,
    /// An input file, which the job finds in its folder; may be repeated
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write the files that the job created to this file, as a zip archive
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Whose job it is: jobs of one client share its cap
    #[arg(long, value_name = "ID", default_value = "cli")]
    client: String,
    /// How many jobs of this client may run at a time
    #[arg(long, value_name = "N", env = "CLIENT_DESIRED_PAR", hide_env_values = true)]
    #[arg(default_value = "4", value_parser = jobs::cap)]
    cap: u32,
    /// The job's id, a UUID [default: a random one]
    #[arg(long, value_name = "UUID")]
    id: Option<JobId>,
    /// How long the job may run [default: as long as the worker allows]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    run_max: Option<Duration>,
    /// 0 to 9; higher ones go first
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
}

pub(crate) fn run(options: &JobOptions, global: &Global, out: &mut Output) -> Done {
    let Job::Submit(options) = &options.job;
    let request = request(options)?;
    gapless_doors::runtime()?.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let client = jobs::connect(global, &options.leaders, &options.client, options.cap).await?;
        let result = tokio::select! {
            result = jobs::result_of(&client, &request, global.timeout) => result?,
            () = interrupt.came() => {
                let hint = jobs::ask_again(&request);
                return Err(Failure::failed("stopped waiting for the result").hint(hint));
            }
        };
        show(&result, options.out.as_deref(), out)
    })
}

fn request(options: &SubmitOptions) -> Result<JobRequest, Failure> {
    let mut files = BTreeMap::new();
    for path in &options.files {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Failure::words(format!("{} is not the path of a file", path.display()))
        })?;
        let content = std::fs::read(path)
            .map_err(|error| Failure::words(format!("cannot read {}: {error}", path.display())))?;
        if files.insert(name.to_owned(), wire::encode(&content)).is_some() {
            return Err(Failure::words(format!("two input files are called {name}")));
        }
    }
    Ok(JobRequest {
        job_id: options.id.unwrap_or_else(jobs::new_id).to_string(),
        client_id: options.client.clone(),
        exec_name: options.exec.clone(),
        args: options.args.clone(),
        files,
        priority: options.priority,
        timeout_ms: options.run_max.map(|time| time.as_millis() as u64),
        ..JobRequest::default()
    })
}

fn show(result: &JobResult, archive: Option<&Path>, out: &mut Output) -> Done {
    if let Some(path) = archive {
        match &result.output_archive {
            Some(text) => {
                let bytes = wire::decode(text).map_err(Failure::failed)?;
                std::fs::write(path, bytes).map_err(|error| {
                    Failure::failed(format!("cannot write {}: {error}", path.display()))
                })?;
            }
            None => out.note(format_args!("the job left no files: {} stays", path.display())),
        }
    }
    if out.json {
        out.json_line(&serde_json::to_value(result).map_err(Failure::failed)?)?;
    } else {
        out.bytes(result.stdout.as_bytes())?;
        eprint!("{}", result.stderr);
    }
    if result.status == Status::Ok {
        return Ok(Exit::Ok);
    }
    Err(Failure::failed(jobs::ending(result)))
}
