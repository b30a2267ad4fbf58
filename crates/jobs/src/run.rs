//! Running one job: a folder of its own, a process without a shell, and nothing left behind.
//!
//! - Input files are written into a new folder, which is the process's working directory.
//! - The process gets its arguments as they are, a clean environment with what the request adds,
//!   and the standard input that the request has, or none.
//! - What it writes is kept up to a limit and passed on while it runs (`capture`).
//! - It is kept from the rest of the machine as far as that can be (`isolate`, `cgroup`).
//! - At its end, on cancel, on a lost lease and past its time the whole tree is killed (`tree`).
//! - Files that it created or changed are zipped; the folder is removed.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gapless_core::job::JobId;
use gapless_protocol::FrameLimit;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};

use crate::capture::{PassOn, Piece, capture};
use crate::cell::Cell;
use crate::cgroup::{Group, GroupLimits};
use crate::clock::Instant;
use crate::isolate::{self, ProcessLimits, Sandbox};
use crate::outputs::Outputs;
use crate::tree::{self, MARK, Tree};
use crate::wire::{JobRequest, JobResult, Status, Stream, decode, encode, exec_name};
use crate::{cell, clock, unpack, zipped};

/// How programs are run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunOptions {
    /// Where executables are.
    pub exec_dir: PathBuf,
    /// Where jobs have their folders.
    pub work_dir: PathBuf,
    /// Limits of one job.
    pub limits: RunLimits,
    /// How jobs are kept from the rest of the machine.
    pub sandbox: Sandbox,
    /// Where output archives go that do not fit into a frame; without it such a job fails.
    pub outputs: Option<Outputs>,
}

/// Limits of one job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RunLimits {
    /// How long a job runs that says nothing else, and how long it may ask for.
    pub run_max: Duration,
    /// How much of standard output and of standard error is kept, in bytes each.
    pub stream_bytes_max: usize,
    /// How large its input files may be together, in bytes.
    pub input_bytes_max: u64,
    /// How many files its input archive may have.
    pub input_files_max: usize,
    /// How large its output files may be together, in bytes, before they are zipped.
    pub output_bytes_max: u64,
    /// How many output files it may leave.
    pub output_files_max: usize,
    /// How much memory each of its processes may have, in bytes; 0 for no limit.
    pub memory_bytes_max: u64,
    /// How much processor time each of its processes may use; zero for no limit.
    pub cpu_max: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            run_max: Duration::from_secs(60 * 60),
            stream_bytes_max: 256 * 1024,
            input_bytes_max: 16 * 1024 * 1024,
            input_files_max: 1_000,
            output_bytes_max: 64 * 1024 * 1024,
            output_files_max: 1_000,
            memory_bytes_max: 0,
            cpu_max: Duration::ZERO,
        }
    }
}

impl RunLimits {
    /// What the request asks for, as far as the worker allows it.
    fn of_processes(&self, request: &JobRequest) -> ProcessLimits {
        // A limit of 0 is none, so the smaller one is the smaller of those that are given.
        let smaller = |asked: Option<u64>, most: u64| match (asked.unwrap_or(0), most) {
            (0, most) => most,
            (asked, 0) => asked,
            (asked, most) => asked.min(most),
        };
        let cpu_ms = smaller(request.cpu_ms, self.cpu_max.as_millis() as u64);
        ProcessLimits {
            memory_bytes: smaller(request.memory_bytes, self.memory_bytes_max),
            cpu_seconds: cpu_ms.div_ceil(1000),
            file_bytes: self.output_bytes_max,
        }
    }
}

/// Why a job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stop {
    /// It was cancelled, or does not count any more.
    Cancelled,
    /// The leader cannot be reached, and another worker may get it.
    LeaseLost,
    /// The worker ends.
    Closing,
}

/// What a job is told while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Why it is to stop, if it is.
    pub(crate) stop: Option<Stop>,
    /// It is stopped then, unless this has moved by that time: another worker may get it.
    pub(crate) until: Instant,
}

/// Removes what an earlier worker left: folders of jobs, and processes of theirs.
pub(crate) async fn sweep(work_dir: &Path) -> io::Result<()> {
    tokio::fs::create_dir_all(work_dir).await?;
    let mut left = tokio::fs::read_dir(work_dir).await?;
    while let Some(entry) = left.next_entry().await? {
        let folder = entry.path();
        if cell::is_idle(&entry.file_name()) {
            // Of a runner that was killed. There is nothing in it, else it was not kept.
            let _ = tokio::fs::remove_dir(&folder).await;
        }
        if !is_of_job(&entry.file_name()) {
            continue;
        }
        Tree::Marked.kill(&tree::mark_of(&folder)).await;
        tracing::info!(folder = %folder.display(), "sweeping what an earlier worker left");
        match tokio::fs::remove_dir_all(folder).await {
            // A runner of the earlier worker cleans up too, when it sees that the worker is gone.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The folder of an attempt, by its whole token: no other attempt ever has it.
pub(crate) fn folder_of(request: &JobRequest, options: &RunOptions) -> PathBuf {
    let mut name = format!("{}-{}", request.job_id, request.attempt.unwrap_or(0));
    if let Some(epoch) = &request.epoch {
        name.push('.');
        name.extend(
            epoch.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '.'),
        );
    }
    options.work_dir.join(name)
}

/// Whether a folder has the name of a job's: anything else in there is left alone.
fn is_of_job(name: &std::ffi::OsStr) -> bool {
    let name = name.to_str().map(|name| name.split_once('.').map_or(name, |(front, _)| front));
    let parts = name.and_then(|name| name.rsplit_once('-'));
    parts.is_some_and(|(job, attempt)| {
        job.parse::<JobId>().is_ok() && attempt.parse::<u32>().is_ok()
    })
}

/// Runs a job, and says what became of it. What it writes is passed on meanwhile.
pub(crate) async fn run(
    request: &JobRequest,
    options: &RunOptions,
    mut home: Home<'_>,
    orders: watch::Receiver<Orders>,
    pieces: mpsc::Sender<Piece>,
) -> JobResult {
    let mut result = result_of(request);
    let folder = folder_of(request, options);
    let mark = tree::mark_of(&folder);
    let began = clock::now();
    match prepare(request, options, &folder, &mut home).await {
        Ok((program, inputs)) => {
            let (tree, home) = (home.tree(), &mut home);
            let mut process =
                Process { request, options, tree, home, folder: &folder, mark: &mark };
            process.run(&program, &inputs, (orders, pieces), &mut result).await;
        }
        Err((status, why)) => {
            result.status = status;
            result.reason = Some(why);
        }
    }
    result.run_ms = Some(began.elapsed().as_millis() as u64);
    fit(&mut result);
    if !home.leave(&folder) {
        remove(&folder).await;
    }
    result
}

/// Where a job runs, and so how its processes are found.
pub(crate) enum Home<'a> {
    /// In a worker that runs several at a time.
    Shared,
    /// In a runner.
    Own(&'a mut Cell),
}

impl Home<'_> {
    fn tree(&self) -> Tree {
        match self {
            Self::Shared => Tree::Marked,
            Self::Own(_) => Tree::Own,
        }
    }

    fn enter(&mut self, folder: &Path) -> io::Result<()> {
        match self {
            Self::Shared => std::fs::create_dir(folder),
            Self::Own(cell) => cell.enter(folder),
        }
    }

    /// Whether the folder is gone from its place.
    fn leave(&mut self, folder: &Path) -> bool {
        match self {
            Self::Shared => false,
            Self::Own(cell) => cell.leave(folder),
        }
    }
}

/// Removes a job's folder: at once if it is empty, as most are.
pub(crate) async fn remove(folder: &Path) {
    if std::fs::remove_dir(folder).is_ok() {
        return;
    }
    if let Err(error) = tokio::fs::remove_dir_all(folder).await
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %error, "a job's folder cannot be removed");
    }
}

/// The name and quotes of a field beside its text.
const FIELD_BYTES: usize = 64;

fn bytes_of(result: &JobResult) -> usize {
    serde_json::to_vec(result).expect("plain data").len()
}

fn frame_bytes() -> usize {
    FrameLimit::MAX.payload_bytes("")
}

/// Sees to it that a result fits into a frame.
pub(crate) fn fit(result: &mut JobResult) {
    if bytes_of(result) > frame_bytes() {
        *result = JobResult {
            status: Status::Failed,
            stdout: String::new(),
            stderr: String::new(),
            output_archive: None,
            reason: Some("the output does not fit into a frame".to_owned()),
            ..std::mem::take(result)
        };
    }
}

/// A result that says nothing yet.
pub(crate) fn result_of(request: &JobRequest) -> JobResult {
    JobResult {
        job_id: request.job_id.clone(),
        client_id: request.client_id.clone(),
        exec_name: request.exec_name.clone(),
        attempt: request.attempt,
        epoch: request.epoch.clone(),
        ..JobResult::default()
    }
}

/// Finds the program and writes the input files.
async fn prepare(
    request: &JobRequest,
    options: &RunOptions,
    folder: &Path,
    home: &mut Home<'_>,
) -> Result<(PathBuf, BTreeMap<String, Vec<u8>>), (Status, String)> {
    // Another worker may have the program; the inputs are the same everywhere.
    let elsewhere = |why| (Status::NotStarted, why);
    let program = find_program(&options.exec_dir, &request.exec_name).map_err(elsewhere)?;
    let inputs = unpack::inputs(request, &options.limits).map_err(|why| (Status::Failed, why))?;
    let write = async {
        // A single call: handing it to another thread would take longer.
        home.enter(folder)?;
        unpack::write(folder, &inputs).await?;
        match options.sandbox.user {
            Some(user) => give(folder, user),
            None => Ok(()),
        }
    };
    let written = write.await;
    written.map_err(|error| elsewhere(format!("cannot prepare the job's folder: {error}")))?;
    Ok((program, inputs))
}

/// Makes a folder and all in it a user's.
fn give(folder: &Path, user: u32) -> io::Result<()> {
    std::os::unix::fs::chown(folder, Some(user), Some(user))?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            give(&entry.path(), user)?;
        } else {
            std::os::unix::fs::chown(entry.path(), Some(user), Some(user))?;
        }
    }
    Ok(())
}

/// `<name>` or `<name>.exe` in the folder of executables.
fn find_program(exec_dir: &Path, name: &str) -> Result<PathBuf, String> {
    exec_name(name).map_err(|error| error.to_string())?;
    let candidates = [exec_dir.join(name), exec_dir.join(format!("{name}.exe"))];
    let found = candidates.iter().find(|path| path.is_file());
    let found = found.ok_or_else(|| format!("this worker has no executable {name}"))?;
    std::path::absolute(found).map_err(|error| error.to_string())
}

struct Process<'a, 'b> {
    request: &'a JobRequest,
    options: &'a RunOptions,
    tree: Tree,
    home: &'a mut Home<'b>,
    folder: &'a Path,
    mark: &'a str,
}

impl Process<'_, '_> {
    async fn run(
        &mut self,
        program: &Path,
        inputs: &BTreeMap<String, Vec<u8>>,
        (mut orders, pieces): (watch::Receiver<Orders>, mpsc::Sender<Piece>),
        result: &mut JobResult,
    ) {
        let limits = &self.options.limits;
        let group = self.group(result);
        let (mut child, stdin) = match self.start(program, group.as_ref(), result) {
            Ok(started) => started,
            Err((status, why)) => {
                result.status = status;
                result.reason = Some(why);
                if let Some(group) = &group {
                    group.remove();
                }
                return;
            }
        };
        let first = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (out, err, input) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
        let streams = async {
            let max = limits.stream_bytes_max;
            let pass_on = |stream| PassOn { stream, to: pieces.clone() };
            let (stdout, stderr, ()) = tokio::join!(
                capture(out, max, pass_on(Stream::Stdout)),
                capture(err, max, pass_on(Stream::Stderr)),
                give_input(input, &stdin),
            );
            (stdout, stderr)
        };
        let asked = self.request.timeout_ms.map(Duration::from_millis);
        let run_max = asked.unwrap_or(limits.run_max).min(limits.run_max);
        let ended = async {
            tokio::select! {
                status = child.wait() => Ended::Exit(status),
                () = clock::pause(run_max) => Ended::Timeout,
                why = stopped(&mut orders) => Ended::Stopped(why),
            }
        };
        let mut streams = std::pin::pin!(streams);
        let mut read = None;
        let how = {
            let mut ended = std::pin::pin!(ended);
            loop {
                tokio::select! {
                    how = &mut ended => break how,
                    both = &mut streams, if read.is_none() => read = Some(both),
                }
            }
        };
        // What it forked may hold its output open: it goes first.
        if let Some(group) = &group {
            group.kill().await;
        }
        tree::kill_group(first);
        let _ = child.wait().await;
        self.tree.kill(self.mark).await;
        let (stdout, stderr) = match read {
            Some(both) => both,
            None => streams.await,
        };
        result.stdout = stdout;
        result.stderr = stderr;
        self.note_end(how, run_max, result);
        if let Some(group) = group {
            if group.ran_out_of_memory() {
                result.reason = Some("it used more memory than it may".to_owned());
            }
            group.remove();
        }
        if matches!(result.status, Status::Ok | Status::Failed) {
            match zipped::changed_files(self.folder, inputs, limits).await {
                Ok(Some(archive)) => self.attach(archive, &mut orders, result).await,
                Ok(None) => {}
                Err(why) => {
                    result.status = Status::Failed;
                    result.reason = Some(why);
                }
            }
        }
    }

    /// Puts an archive into the result, or into the store if it is too large for a frame.
    async fn attach(
        &self,
        archive: Vec<u8>,
        orders: &mut watch::Receiver<Orders>,
        result: &mut JobResult,
    ) {
        let encoded_bytes = archive.len().div_ceil(3) * 4 + FIELD_BYTES;
        let (Some(outputs), false) =
            (&self.options.outputs, bytes_of(result) + encoded_bytes <= frame_bytes())
        else {
            result.output_archive = Some(encode(&archive));
            return;
        };
        tokio::select! {
            stored = outputs.put(result, archive) => match stored {
                Ok(reference) => result.output_ref = Some(reference),
                Err(error) => {
                    result.status = Status::Failed;
                    result.reason = Some(error.to_string());
                }
            },
            why = stopped(orders) => note_stop(why, result),
        }
    }

    /// A group for its processes, if the worker is to make one and the machine allows it.
    fn group(&self, result: &mut JobResult) -> Option<Group> {
        let above = self.options.sandbox.cgroup.as_ref()?;
        let limits = GroupLimits {
            memory_bytes: self.options.limits.of_processes(self.request).memory_bytes,
            cpus: self.options.sandbox.cpus,
        };
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let made = match self.tree {
            Tree::Own => Group::create(above, &name, limits),
            Tree::Marked => Err(io::Error::other("this worker has no runners")),
        };
        let (had, group) = match made {
            Ok(group) => (group.has.clone(), Some(group)),
            Err(error) => (format!("none: {}: {error}", above.display()), None),
        };
        result.cgroup = Some(had);
        group
    }

    /// Starts the program; what it is to read comes back with it.
    fn start(
        &mut self,
        program: &Path,
        group: Option<&Group>,
        result: &mut JobResult,
    ) -> Result<(Child, Vec<u8>), (Status, String)> {
        let name = &self.request.exec_name;
        let stdin = self.request.stdin.as_deref().map(decode).transpose();
        let stdin = stdin.map_err(|error| (Status::Failed, error.to_string()))?;
        let command = self.command(program, stdin.is_some());
        let RunOptions { exec_dir, sandbox, .. } = self.options;
        let least = self.request.isolation;
        let folders = (self.folder, &**exec_dir);
        let home = &mut *self.home;
        let spawn = || match home {
            Home::Shared => isolate::spawn(command, folders, sandbox, least),
            Home::Own(cell) => cell.spawn(command, folders, sandbox, least),
        };
        let spawned = match group {
            Some(group) => group.inside(spawn),
            None => spawn(),
        };
        let (child, level) = spawned
            .map_err(|error| (Status::NotStarted, format!("cannot start {name}: {error}")))?;
        result.isolation = Some(level);
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            isolate::limit(pid, self.options.limits.of_processes(self.request));
        }
        Ok((child, stdin.unwrap_or_default()))
    }

    fn command(&self, program: &Path, reads: bool) -> Command {
        let mut command = Command::new(program);
        command
            .args(&self.request.args)
            .current_dir(self.folder)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.folder)
            .env("TMPDIR", self.folder)
            .env("LANG", "C.UTF-8")
            .envs(&self.request.env)
            .env("GAPLESS_JOB_ID", &self.request.job_id)
            .env("GAPLESS_CLIENT_ID", &self.request.client_id)
            .env(MARK, self.mark)
            .stdin(if reads { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
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
            Ended::Stopped(why) => note_stop(why, result),
        }
    }
}

/// Says that a job was stopped, and why.
pub(crate) fn note_stop(why: Stop, result: &mut JobResult) {
    let (status, reason) = match why {
        Stop::Cancelled => (Status::Cancelled, "it was cancelled"),
        Stop::LeaseLost => (Status::NotStarted, "the leader could not be reached"),
        Stop::Closing => (Status::Returned, "the worker was stopped"),
    };
    result.status = status;
    result.reason = Some(reason.to_owned());
}

enum Ended {
    Exit(io::Result<std::process::ExitStatus>),
    Timeout,
    Stopped(Stop),
}

/// Waits until the job is to be stopped.
pub(crate) async fn stopped(orders: &mut watch::Receiver<Orders>) -> Stop {
    loop {
        let Orders { stop, until } = *orders.borrow_and_update();
        if let Some(why) = stop {
            return why;
        }
        tokio::select! {
            changed = orders.changed() => {
                if changed.is_err() {
                    // The worker is gone, and the job goes with it.
                    return Stop::Closing;
                }
            }
            () = clock::pause_until(until) => return Stop::LeaseLost,
        }
    }
}

/// Writes what a program is to read; it need not read it.
async fn give_input(stdin: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(bytes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_folders_of_jobs_are_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let jobs = ["", ".5f3c2a10.2f"].map(|epoch| format!("{}-1{epoch}", JobId(7)));
        let jobs = jobs.map(|name| folder.path().join(name));
        let others = ["letters", "a-1", "worker.lock"].map(|name| folder.path().join(name));
        let idle = folder.path().join(".runner-77");
        std::fs::create_dir(&idle).expect("a folder");
        for each in others.iter().chain(&jobs) {
            std::fs::create_dir(each).expect("a folder");
        }
        sweep(folder.path()).await.expect("it can be swept");
        assert!(!jobs.iter().any(|job| job.exists()) && !idle.exists());
        assert!(others.iter().all(|each| each.exists()));
    }
}
