//! Who runs a worker's programs: runners that are kept for the next job, or the worker itself.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::capture::Piece;
use crate::run::{self, RunOptions, Stop};
use crate::runner::{self, PIECES_MAX, Runner};
use crate::tree::Tree;
use crate::wire::{JobProgress, JobRequest, JobResult};

/// Runs programs; as many at a time as it is asked to.
pub(crate) struct Programs {
    options: RunOptions,
    command: Vec<OsString>,
    /// Runners without a job: never more than jobs ran at a time.
    idle: Mutex<Vec<Runner>>,
}

impl Programs {
    /// Runners are started by this command; without one programs run here.
    pub(crate) fn new(options: RunOptions, command: Vec<OsString>) -> Self {
        Self { options, command, idle: Mutex::default() }
    }

    /// Runs a job, and passes on what it writes.
    pub(crate) async fn run(
        &self,
        request: &JobRequest,
        stop: watch::Receiver<Option<Stop>>,
        progress: mpsc::Sender<JobProgress>,
    ) -> JobResult {
        let (to, mut pieces) = mpsc::channel(PIECES_MAX);
        let mut job = std::pin::pin!(self.run_somewhere(request, stop, to));
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
        mut stop: watch::Receiver<Option<Stop>>,
        pieces: mpsc::Sender<Piece>,
    ) -> JobResult {
        if self.command.is_empty() {
            return run::run(request, &self.options, Tree::Marked, stop, pieces).await;
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let started = match idle {
            Some(runner) => Ok(runner),
            None => Runner::start(&self.command, &self.options).await,
        };
        let mut runner = match started {
            Ok(runner) => runner,
            Err(error) => return runner::lost(request, &error),
        };
        match runner.run(request, &mut stop, &pieces).await {
            Ok(result) => {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(runner);
                result
            }
            Err(error) => runner::lost(request, &error),
        }
    }
}
