//! Running one job: a folder of its own, a process without a shell, and nothing left behind.
//!
//! - Input files are written into a new folder, which is the process's working directory.
//! - The process gets its arguments as they are, a clean environment, and no standard input.
//! - What it writes is kept up to a limit; beyond it is read and dropped, so that it never blocks.
//! - At its end, on cancel, on a lost lease and past its time the whole tree is killed: its
//!   process group, and whatever carries its mark in the environment, also after a double fork.
//! - Files that it created or changed are zipped; the folder is removed.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gapless_core::job::JobId;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::clock;
use crate::wire::{JobRequest, JobResult, Status, check_file_name, decode, encode, exec_name};
use crate::worker::WorkerOptions;
use crate::zipped;

/// Limits of one job.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    /// How long a job runs that says nothing else, and how long it may ask for.
    pub run_max: Duration,
    /// How much of standard output and of standard error is kept, in bytes each.
    pub stream_bytes_max: usize,
    /// How large its input files may be together, in bytes.
    pub input_bytes_max: usize,
    /// How large its output files may be together, in bytes, before they are zipped.
    pub output_bytes_max: u64,
    /// How many output files it may leave.
    pub output_files_max: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            run_max: Duration::from_secs(60 * 60),
            stream_bytes_max: 256 * 1024,
            input_bytes_max: 16 * 1024 * 1024,
            output_bytes_max: 64 * 1024 * 1024,
            output_files_max: 1_000,
        }
    }
}

/// Why a job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It was cancelled, or does not count any more.
    Cancelled,
    /// The leader cannot be reached, and another worker may get it.
    LeaseLost,
    /// The worker ends.
    Closing,
}

/// The variable by which processes of a job are found, whatever they forked.
const MARK: &str = "GAPLESS_JOB_MARK";
/// How long a killed tree is looked after until it is given up.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Removes what an earlier worker left: folders of jobs, and processes of theirs.
pub(crate) async fn sweep(work_dir: &Path) -> io::Result<()> {
    tokio::fs::create_dir_all(work_dir).await?;
    let mut left = tokio::fs::read_dir(work_dir).await?;
    while let Some(entry) = left.next_entry().await? {
        let folder = entry.path();
        if !is_of_job(&entry.file_name()) {
            continue;
        }
        kill_marked(&mark_of(&folder)).await;
        tracing::info!(folder = %folder.display(), "sweeping what an earlier worker left");
        tokio::fs::remove_dir_all(folder).await?;
    }
    Ok(())
}

/// Whether a folder has the name of a job's: anything else in there is left alone.
fn is_of_job(name: &std::ffi::OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.rsplit_once('-'));
    parts.is_some_and(|(job, attempt)| {
        job.parse::<JobId>().is_ok() && attempt.parse::<u32>().is_ok()
    })
}

/// The mark of a job's processes: its folder, which no other worker of the machine has.
fn mark_of(folder: &Path) -> String {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    whole.display().to_string()
}

/// Runs a job, and says what became of it.
pub(crate) async fn run(
    request: &JobRequest,
    options: &WorkerOptions,
    stop: watch::Receiver<Option<Stop>>,
) -> JobResult {
    let mut result = JobResult {
        job_id: request.job_id.clone(),
        client_id: request.client_id.clone(),
        exec_name: request.exec_name.clone(),
        ..JobResult::default()
    };
    let name = format!("{}-{}", request.job_id, request.attempt.unwrap_or(0));
    let folder = options.work_dir.join(name);
    let mark = mark_of(&folder);
    let began = clock::now();
    match prepare(request, options, &folder).await {
        Ok((program, inputs)) => {
            let process = Process { request, options, folder: &folder, mark: &mark };
            process.run(&program, &inputs, stop, &mut result).await;
        }
        Err(why) => {
            result.status = Status::NotStarted;
            result.reason = Some(why);
        }
    }
    result.run_ms = Some(began.elapsed().as_millis() as u64);
    kill_marked(&mark).await;
    if let Err(error) = tokio::fs::remove_dir_all(&folder).await
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %error, "a job's folder cannot be removed");
    }
    result
}

/// Finds the program and writes the input files.
async fn prepare(
    request: &JobRequest,
    options: &WorkerOptions,
    folder: &Path,
) -> Result<(PathBuf, BTreeMap<String, Vec<u8>>), String> {
    let program = find_program(&options.exec_dir, &request.exec_name)?;
    let mut inputs = BTreeMap::new();
    let mut bytes = 0;
    for (name, content) in &request.files {
        check_file_name(name).map_err(|error| error.to_string())?;
        let content = decode(content).map_err(|error| error.to_string())?;
        bytes += content.len();
        if bytes > options.limits.input_bytes_max {
            let max = options.limits.input_bytes_max;
            return Err(format!("the input files have more than {max} bytes"));
        }
        inputs.insert(name.clone(), content);
    }
    let write = async {
        tokio::fs::create_dir(folder).await?;
        for (name, content) in &inputs {
            tokio::fs::write(folder.join(name), content).await?;
        }
        Ok::<(), io::Error>(())
    };
    write.await.map_err(|error| format!("cannot prepare the job's folder: {error}"))?;
    Ok((program, inputs))
}

/// `<name>` or `<name>.exe` in the folder of executables.
fn find_program(exec_dir: &Path, name: &str) -> Result<PathBuf, String> {
    exec_name(name).map_err(|error| error.to_string())?;
    let candidates = [exec_dir.join(name), exec_dir.join(format!("{name}.exe"))];
    let found = candidates.iter().find(|path| path.is_file());
    let found = found.ok_or_else(|| format!("this worker has no executable {name}"))?;
    std::path::absolute(found).map_err(|error| error.to_string())
}

struct Process<'a> {
    request: &'a JobRequest,
    options: &'a WorkerOptions,
    folder: &'a Path,
    mark: &'a str,
}

impl Process<'_> {
    async fn run(
        &self,
        program: &Path,
        inputs: &BTreeMap<String, Vec<u8>>,
        mut stop: watch::Receiver<Option<Stop>>,
        result: &mut JobResult,
    ) {
        let limits = &self.options.limits;
        let mut child = match self.spawn(program) {
            Ok(child) => child,
            Err(error) => {
                result.status = Status::NotStarted;
                result.reason = Some(format!("cannot start {}: {error}", self.request.exec_name));
                return;
            }
        };
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let streams = async {
            let max = limits.stream_bytes_max;
            tokio::join!(read_some(out, max), read_some(err, max))
        };
        let asked = self.request.timeout_ms.map(Duration::from_millis);
        let run_max = asked.unwrap_or(limits.run_max).min(limits.run_max);
        let ended = async {
            tokio::select! {
                status = child.wait() => Ended::Exit(status),
                () = clock::pause(run_max) => Ended::Timeout,
                why = stopped(&mut stop) => Ended::Stopped(why),
            }
        };
        let mut streams = std::pin::pin!(streams);
        let mut ended = std::pin::pin!(ended);
        let mut read = None;
        let how = loop {
            tokio::select! {
                how = &mut ended => break how,
                both = &mut streams, if read.is_none() => read = Some(both),
            }
        };
        // What it forked may hold its output open: it goes first.
        kill_group(group);
        kill_marked(self.mark).await;
        let (stdout, stderr) = match read {
            Some(both) => both,
            None => streams.await,
        };
        result.stdout = stdout;
        result.stderr = stderr;
        self.note_end(how, run_max, result);
        if matches!(result.status, Status::Ok | Status::Failed) {
            match zipped::changed_files(self.folder, inputs, limits).await {
                Ok(archive) => result.output_archive = archive.map(|bytes| encode(&bytes)),
                Err(why) => {
                    result.status = Status::Failed;
                    result.reason = Some(why);
                }
            }
        }
    }

    fn spawn(&self, program: &Path) -> io::Result<Child> {
        Command::new(program)
            .args(&self.request.args)
            .current_dir(self.folder)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.folder)
            .env("LANG", "C.UTF-8")
            .env("GAPLESS_JOB_ID", &self.request.job_id)
            .env("GAPLESS_CLIENT_ID", &self.request.client_id)
            .env(MARK, self.mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    fn note_end(&self, how: Ended, run_max: Duration, result: &mut JobResult) {
        match how {
            Ended::Exit(Ok(status)) => {
                result.exit_code = status.code();
                result.signal = status.signal();
                result.status = if status.success() { Status::Ok } else { Status::Failed };
                let code = status.code();
                result.retryable = code.is_some_and(|c| self.request.retry_exit_codes.contains(&c));
                if let Some(signal) = status.signal() {
                    result.reason = Some(format!("ended by signal {signal}"));
                }
            }
            Ended::Exit(Err(error)) => {
                result.status = Status::Failed;
                result.reason = Some(format!("waiting for it failed: {error}"));
            }
            Ended::Timeout => {
                result.status = Status::Failed;
                result.reason = Some(format!("it ran longer than {} ms", run_max.as_millis()));
            }
            Ended::Stopped(why) => {
                result.status = match why {
                    Stop::Cancelled => Status::Cancelled,
                    Stop::LeaseLost | Stop::Closing => Status::NotStarted,
                };
                result.reason = Some(
                    match why {
                        Stop::Cancelled => "it was cancelled",
                        Stop::LeaseLost => "the leader could not be reached",
                        Stop::Closing => "the worker was stopped",
                    }
                    .to_owned(),
                );
            }
        }
    }
}

enum Ended {
    Exit(io::Result<std::process::ExitStatus>),
    Timeout,
    Stopped(Stop),
}

/// Waits until the job is to be stopped.
async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await {
        Ok(why) => why.expect("it was waited for"),
        // The worker is gone, and the job goes with it.
        Err(_) => Stop::Closing,
    }
}

/// Reads a stream to its end, and keeps the beginning of it.
async fn read_some(stream: Option<impl AsyncRead + Unpin>, max: usize) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut kept, mut buffer) = (Vec::new(), vec![0; 8 * 1024]);
    let mut dropped = 0_u64;
    while let Ok(count) = stream.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        let room = max.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&buffer[..room]);
        dropped += (count - room) as u64;
    }
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    if dropped > 0 {
        text.push_str(&format!("\n[{dropped} more bytes were not kept]\n"));
    }
    text
}

fn kill_group(group: Option<Pid>) {
    if let Some(group) = group {
        // It may be gone already.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Kills every process that carries the mark of a job, until there is none.
async fn kill_marked(mark: &str) {
    let until = clock::now() + KILL_WAIT;
    loop {
        let wanted = format!("{MARK}={mark}");
        let marked = tokio::task::spawn_blocking(move || find_marked(&wanted)).await;
        let marked = marked.unwrap_or_default();
        if marked.is_empty() {
            return;
        }
        for pid in marked {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        if clock::now() > until {
            tracing::error!(mark, "processes of a job cannot be killed");
            return;
        }
        clock::pause(Duration::from_millis(2)).await;
    }
}

/// The processes with this variable in their environment.
fn find_marked(wanted: &str) -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in processes.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // Others' processes cannot be read; a zombie's environment is empty.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|each| each == wanted.as_bytes()) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_folders_of_jobs_are_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let job = folder.path().join(format!("{}-1", JobId(7)));
        let others = ["letters", "a-1", "worker.lock"].map(|name| folder.path().join(name));
        for each in others.iter().chain([&job]) {
            std::fs::create_dir(each).expect("a folder");
        }
        sweep(folder.path()).await.expect("it can be swept");
        assert!(!job.exists());
        assert!(others.iter().all(|each| each.exists()));
    }
}
