//! `gapless worker`: runs jobs of a leader, until it is stopped.
//!
//! Its folder is locked while it runs: what an earlier worker left there is removed at the start,
//! and that must not be what another worker is at.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gapless_core::Pattern;
use gapless_core::job::leader::CREDIT_MAX;
use gapless_jobs::wire::Isolation;
use gapless_jobs::{Outputs, RunLimits, RunOptions, Sandbox, WorkerOptions};
use serde_json::json;
use tokio::sync::watch;

use crate::cmd::{Global, SERVER_DEFAULT};
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::Interrupt;
use crate::{jobs, values};

const EXAMPLES: &str = "\
Examples:
  gapless worker --exec-dir ./exec
  gapless worker 127.0.0.1 5000 'job.assign.*'
  gapless worker --leader 10.0.0.5:4281 --pattern job.assign.render --parallel 8
  WORKER_MAX_PAR=2 WORKER_CPU_CAP=0.5 gapless worker 127.0.0.1 5000
  gapless worker --outputs s3://results/jobs

A job runs the file of its name in --exec-dir (NAME or NAME.exe), in a folder of its own, without
a shell. It reads system folders, --exec-dir and its own folder and writes only there, as far as the
system can enforce it; more with --allow and --allow-read. Ctrl-C gives the jobs that run back, and they
run again on another worker; with --drain they may end first.";

/// The lock of a worker's folder.
const LOCK: &str = "worker.lock";
/// Most workers that find a folder by themselves in one place.
const FOLDERS_MAX: usize = 64;

/// Run jobs of a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WorkOptions {
    /// Host of the leader
    #[arg(requires = "port", conflicts_with = "leader")]
    host: Option<String>,
    /// Port of the leader
    port: Option<u16>,
    /// Which jobs to take [default: job.assign.*]
    #[arg(value_name = "PATTERN", value_parser = values::pattern)]
    takes: Option<Pattern>,
    /// The leader
    #[arg(long, value_name = "HOST:PORT", value_parser = jobs::leader)]
    #[arg(default_value = SERVER_DEFAULT)]
    leader: String,
    /// Which jobs to take, as job.assign.NAME; * is any name
    #[arg(long, value_name = "PATTERN", conflicts_with = "takes", value_parser = values::pattern)]
    #[arg(default_value = "job.assign.*")]
    pattern: Pattern,
    /// The folder with the executables
    #[arg(long, value_name = "DIR", default_value = "exec")]
    exec_dir: PathBuf,
    /// Where jobs get their folders [default: ./gapless-worker-0, or the next that is free]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// How many jobs run at a time
    #[arg(long, value_name = "N", env = "WORKER_MAX_PAR", hide_env_values = true)]
    #[arg(default_value = "4", value_parser = parallel)]
    parallel: u32,
    /// No further jobs while more than this share of the processors is busy: 0.10 to 0.95, 1 for
    /// any
    #[arg(long, value_name = "SHARE", env = "WORKER_CPU_CAP", hide_env_values = true)]
    #[arg(default_value = "0.75", value_parser = cpu_cap)]
    cpu_cap: f64,
    /// How long a job may run
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::duration)]
    run_max: Duration,
    /// Most memory of each process of a job [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Most processor time of each process of a job [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    cpu: Option<Duration>,
    /// The most isolation that jobs get: process, files, kernel or user [default: all there is]
    #[arg(long, value_name = "LEVEL")]
    isolation: Option<Isolation>,
    /// A folder that jobs may read and write; may be repeated
    #[arg(long, value_name = "DIR")]
    allow: Vec<PathBuf>,
    /// A folder that jobs may read; may be repeated
    #[arg(long, value_name = "DIR")]
    allow_read: Vec<PathBuf>,
    /// Number of the user that jobs run as; only a worker of root can do that
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1..))]
    job_user: Option<u32>,
    /// A folder of cgroup v2, without processes, in which each job gets a group: limits then hold
    /// for all its processes together
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Most processors that a job uses at a time, like 1.5; needs --cgroup
    #[arg(long, value_name = "N", requires = "cgroup", value_parser = cpus)]
    cpus: Option<f64>,
    /// Where output archives go that are too large for a frame: a folder, or s3://BUCKET/PREFIX
    /// with the usual variables AWS_… [default: outputs in --work-dir]
    #[arg(long, value_name = "PLACE")]
    outputs: Option<String>,
    /// How long archives stay in a folder of outputs
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = values::duration)]
    keep_outputs: Duration,
    /// Run single jobs for another worker, which holds the other end of standard input
    #[arg(long, hide = true)]
    runner: bool,
    /// When it is to end (Ctrl-C, SIGTERM): how long its jobs may go on before they are given back
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = values::duration)]
    drain: Duration,
    /// Its name, for people [default: the process id and a random part]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
}

fn parallel(text: &str) -> Result<u32, String> {
    let given = text.parse().ok().filter(|count| (1..=CREDIT_MAX).contains(count));
    given.ok_or_else(|| format!("give 1 to {CREDIT_MAX} jobs"))
}

fn cpu_cap(text: &str) -> Result<f64, String> {
    let may = |share: &f64| (0.10..=0.95).contains(share) || *share == 1.0;
    let given = text.parse().ok().filter(may);
    given.ok_or_else(|| "give a share from 0.10 to 0.95, or 1 for no ceiling".to_owned())
}

fn cpus(text: &str) -> Result<f64, String> {
    let given = text.parse().ok().filter(|cpus| (0.01..=4096.0).contains(cpus));
    given.ok_or_else(|| "give a number of processors, from 0.01".to_owned())
}

pub(crate) fn run(options: WorkOptions, global: &Global, out: &mut Output) -> Done {
    if options.runner {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(gapless_jobs::serve_worker())?;
        return Ok(Exit::Ok);
    }
    if !options.exec_dir.is_dir() {
        let message = format!("there is no folder {}", options.exec_dir.display());
        return Err(Failure::words(message).hint("name the one with the executables: --exec-dir"));
    }
    let (work_dir, _lock) = match &options.work_dir {
        Some(folder) => (folder.clone(), own(folder)?),
        None => free_folder(Path::new("."))?,
    };
    let beside = || work_dir.join("outputs").to_string_lossy().into_owned();
    let outputs = Outputs::new(&options.outputs.unwrap_or_else(beside), options.keep_outputs)
        .map_err(Failure::words)?;
    let leader = match (&options.host, options.port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => options.leader.clone(),
    };
    let pattern = options.takes.as_ref().unwrap_or(&options.pattern).to_string();
    let own_id = || format!("worker-{}-{:08x}", std::process::id(), jobs::new_id().0 >> 96);
    let worker_id = options.id.clone().unwrap_or_else(own_id);
    let options = WorkerOptions {
        leader,
        worker_id,
        access: jobs::access(global)?,
        pattern,
        run: RunOptions {
            exec_dir: options.exec_dir,
            work_dir,
            limits: RunLimits {
                run_max: options.run_max,
                memory_bytes_max: options.memory.unwrap_or(0),
                cpu_max: options.cpu.unwrap_or_default(),
                ..RunLimits::default()
            },
            sandbox: Sandbox {
                most: options.isolation,
                read: options.allow_read,
                write: options.allow,
                user: options.job_user,
                cgroup: options.cgroup,
                cpus: options.cpus.unwrap_or(0.0),
            },
            outputs: Some(outputs),
        },
        runner: vec![std::env::current_exe()?.into(), "worker".into(), "--runner".into()],
        parallel: options.parallel,
        // With no ceiling, not even a machine that is all busy holds credit back.
        drain: options.drain,
        cpu_cap: if options.cpu_cap < 1.0 { options.cpu_cap } else { f64::INFINITY },
    };
    let WorkerOptions { leader, worker_id, pattern, .. } = &options;
    let told = json!({
        "event": "working", "worker": worker_id, "leader": leader, "pattern": pattern,
        "work_dir": options.run.work_dir.display().to_string(),
    });
    out.result(&told, format_args!("{worker_id} takes {pattern} of {leader}"))?;
    out.flush()?;
    gapless_server::runtime()?.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let (stop, stopped) = watch::channel(false);
        let mut work = std::pin::pin!(gapless_jobs::work(options, stopped));
        tokio::select! {
            ended = &mut work => ended?,
            () = interrupt.came() => {
                stop.send_replace(true);
                // Once more: at once. Runners end their jobs by themselves.
                tokio::select! {
                    ended = &mut work => ended?,
                    () = interrupt.came() => {}
                }
            }
        }
        Ok(Exit::Ok)
    })
}

/// Locks a folder, which is created if it is not there.
fn own(folder: &Path) -> Result<File, Failure> {
    try_own(folder)?.ok_or_else(|| {
        let message = format!("another worker uses {}", folder.display());
        Failure::failed(message).hint("give each worker a folder of its own: --work-dir")
    })
}

/// The same; `None` when another worker has it.
fn try_own(folder: &Path) -> io::Result<Option<File>> {
    fs::create_dir_all(folder)?;
    let lock = File::create(folder.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The first folder that no other worker uses: so what a killed one left is found again.
fn free_folder(above: &Path) -> Result<(PathBuf, File), Failure> {
    for number in 0..FOLDERS_MAX {
        let folder = above.join(format!("gapless-worker-{number}"));
        if let Some(lock) = try_own(&folder)? {
            return Ok((folder, lock));
        }
    }
    Err(Failure::failed(format!("{FOLDERS_MAX} workers run here already"))
        .hint("name a folder: --work-dir"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e6_limits_of_a_worker_out_of_range_are_refused() {
        assert_eq!((cpu_cap("0.10"), cpu_cap("0.95")), (Ok(0.10), Ok(0.95)));
        assert_eq!(cpu_cap("1"), Ok(1.0));
        for wrong in ["0.09", "0.96", "1.1", "-1", "NaN", "much"] {
            assert!(cpu_cap(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parallel("1024"), Ok(1024));
        assert_eq!(cpus("1.5"), Ok(1.5));
        for wrong in ["0", "-1", "NaN", "inf", "all"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "1025", "-1"] {
            assert!(parallel(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_worker_has_a_folder_of_its_own_and_a_freed_one_is_taken_again() {
        let above = tempfile::tempdir().expect("a folder");
        let (first, held) = free_folder(above.path()).expect("a folder");
        let (second, _held) = free_folder(above.path()).expect("another");
        assert_ne!(first, second);
        assert!(own(&first).is_err());
        drop(held);
        assert_eq!(free_folder(above.path()).expect("the first again").0, first);
    }
}
