//! Who runs a worker's programs: runners that are kept for the next job, or the worker itself.
//!
//! A worker with runners adopts what they leave behind when they are killed, and kills it: so it has
//! no children but its runners.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;
use tokio::sync::{mpsc, watch};

use crate::capture::Piece;
use crate::run::{self, Home, Orders, RunOptions};
use crate::runner::{self, PIECES_MAX, Runner};
use crate::tree;
use crate::wire::{JobProgress, JobRequest, JobResult};

/// Runs programs; as many at a time as it is asked to.
pub(crate) struct Programs {
    options: RunOptions,
    command: Vec<OsString>,
    /// Runners without a job: never more than jobs ran at a time.
    idle: Mutex<Vec<Runner>>,
    /// The processes of all runners.
    runners: Mutex<HashSet<Pid>>,
}

impl Programs {
    /// Runners are started by this command; without one programs run here.
    pub(crate) fn new(options: RunOptions, command: Vec<OsString>) -> Self {
        Self { options, command, idle: Mutex::default(), runners: Mutex::default() }
    }

    /// Runs a job, and passes on what it writes.
    pub(crate) async fn run(
        &self,
        request: &JobRequest,
        orders: watch::Receiver<Orders>,
        progress: mpsc::Sender<JobProgress>,
    ) -> JobResult {
        let (to, mut pieces) = mpsc::channel(PIECES_MAX);
        let mut job = std::pin::pin!(self.run_somewhere(request, orders, to));
        loop {
            tokio::select! {
                result = &mut job => return result,
                Some((stream, text)) = pieces.recv() => {
                    let _ = progress.try_send(JobProgress {
                        job_id: request.job_id.clone(),
                        attempt: request.attempt.unwrap_or(0),
                        epoch: request.epoch.clone().unwrap_or_default(),
                        stream,
                        text,
                    });
                }
            }
        }
    }

    async fn run_somewhere(
        &self,
        request: &JobRequest,
        mut orders: watch::Receiver<Orders>,
        pieces: mpsc::Sender<Piece>,
    ) -> JobResult {
        if self.command.is_empty() {
            return run::run(request, &self.options, Home::Shared, orders, pieces).await;
        }
        let idle = lock(&self.idle).pop();
        let started = match idle {
            Some(runner) => Ok(runner),
            None => self.start_runner(),
        };
        let mut runner = match started {
            Ok(runner) => runner,
            Err(error) => return runner::lost(request, &error),
        };
        match runner.run(request, &self.options, &mut orders, &pieces).await {
            Ok(result) => {
                lock(&self.idle).push(runner);
                result
            }
            Err(error) => {
                self.clean_up(runner, request).await;
                runner::lost(request, &error)
            }
        }
    }

    fn start_runner(&self) -> io::Result<Runner> {
        // Strays are not looked for before it is known to be none.
        let mut runners = lock(&self.runners);
        let runner = Runner::start(&self.command)?;
        runners.extend(runner.pid());
        Ok(runner)
    }

    /// A runner was killed, or hangs: it goes with all that its job started, which is below this
    /// process then. Only when nothing is left may the job run again.
    async fn clean_up(&self, runner: Runner, request: &JobRequest) {
        let pid = runner.pid();
        runner.kill().await;
        if let Some(pid) = pid {
            lock(&self.runners).remove(&pid);
        }
        tree::kill_strays(&self.runners).await;
        run::remove(&run::folder_of(request, &self.options)).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
