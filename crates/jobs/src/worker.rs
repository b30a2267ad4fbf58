//! A worker: it takes jobs from a leader, runs them, and says what became of them.
//!
//! It gives the leader credit for as many jobs as it may run at a time, and gives it back for
//! each job that ended, when the machine is not too busy. It renews the lease of each attempt;
//! if it cannot reach the leader, it stops its jobs before their leases end, so that no other
//! worker runs them at the same time. A result that could not be delivered is sent again after
//! the next connection.
//!
//! Not here: how a program is run (`run`), and who runs what (the leader).

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::backoff::{Backoff, Retries};
use gapless_core::job::JobId;
use gapless_protocol::{Frame, FrameLimit, Kind};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::access::{Access, Incoming, Outgoing};
use crate::client::{encoded, next_frame, send};
use crate::clock::{self, Instant};
use crate::handler::Handler;
use crate::load::Load;
use crate::program::Programs;
use crate::run::{self, RunOptions, Stop};
use crate::wire::{
    AttemptRef, Attempts, JobProgress, JobRequest, JobResult, JobWelcome, Status, WorkerConfig,
};

/// How long connecting and being welcomed may take.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// A job is stopped so long before its lease ends, or a sixth of the lease if that is less: with a
/// short lease, a leader that restarts would else find nothing running.
const LEASE_MARGIN_MAX: Duration = Duration::from_secs(2);
/// How often a busy machine is looked at until credit is given back.
const LOAD_LOOK: Duration = Duration::from_millis(200);
/// Most pieces of output that wait to be sent to the leader.
const PROGRESS_MAX: usize = 256;
/// Finished attempts are remembered, so that one that comes twice is not run twice.
const FINISHED_MAX: usize = 10_000;

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The leader's address, `host:port`.
    pub leader: String,
    /// Who it is; the same after a lost connection.
    pub worker_id: String,
    /// How the leader is reached.
    pub access: Access,
    /// What it takes: a pattern over `job.assign.<exec>`.
    pub pattern: String,
    /// How programs are run.
    pub run: RunOptions,
    /// The command that starts a runner ([`crate::serve_worker`]). Without it programs are
    /// children of this process, and what they leave behind is found by its environment only.
    pub runner: Vec<OsString>,
    /// How many jobs run at a time.
    pub parallel: u32,
    /// Above this share of the processors no credit is given back.
    pub cpu_cap: f64,
}

/// A job that runs, or whose result is not delivered.
struct Attempt {
    stop: watch::Sender<Option<Stop>>,
    lease_ends: Instant,
    result: Option<Bytes>,
}

/// Where a worker takes jobs from, and how many.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) leader: String,
    pub(crate) worker_id: String,
    pub(crate) access: Access,
    pub(crate) pattern: String,
    pub(crate) parallel: u32,
    pub(crate) cpu_cap: f64,
}

/// What runs jobs.
pub(crate) enum Executor {
    Programs(Box<Programs>),
    Handler(Handler),
}

impl Executor {
    async fn run(
        &self,
        request: JobRequest,
        stop: watch::Receiver<Option<Stop>>,
        progress: mpsc::Sender<JobProgress>,
    ) -> JobResult {
        match self {
            Self::Programs(programs) => programs.run(&request, stop, progress).await,
            Self::Handler(handler) => handler.run(request, stop, progress).await,
        }
    }
}

struct Worker {
    link: Link,
    executor: Arc<Executor>,
    progress: mpsc::Sender<JobProgress>,
    written: mpsc::Receiver<JobProgress>,
    /// By their whole tokens: an id may come again as another job.
    attempts: BTreeMap<AttemptRef, Attempt>,
    running: JoinSet<(AttemptRef, JobResult)>,
    finished: VecDeque<AttemptRef>,
    lease: Duration,
    load: Load,
    /// How much credit is to be given back.
    owed: u32,
}

/// Runs a worker until `stopped` says so.
///
/// # Errors
/// When its folders cannot be prepared.
pub async fn work(options: WorkerOptions, stopped: watch::Receiver<bool>) -> io::Result<()> {
    let WorkerOptions { leader, worker_id, access, pattern, run, runner, parallel, cpu_cap } =
        options;
    // Jobs have it as their home, and run elsewhere than this process.
    let run = RunOptions { work_dir: std::path::absolute(&run.work_dir)?, ..run };
    run::sweep(&run.work_dir).await?;
    let link = Link { leader, worker_id, access, pattern, parallel, cpu_cap };
    take_jobs(link, Executor::Programs(Box::new(Programs::new(run, runner))), stopped).await;
    Ok(())
}

/// Takes jobs and has them run, until `stopped` says so.
pub(crate) async fn take_jobs(link: Link, executor: Executor, mut stopped: watch::Receiver<bool>) {
    let mut retries = Retries::new(Backoff::default(), u64::from(std::process::id()))
        .expect("the usual waits make sense");
    let (progress, written) = mpsc::channel(PROGRESS_MAX);
    let mut worker = Worker {
        link,
        executor: Arc::new(executor),
        progress,
        written,
        attempts: BTreeMap::new(),
        running: JoinSet::new(),
        finished: VecDeque::new(),
        lease: Duration::from_secs(15),
        load: Load::default(),
        owed: 0,
    };
    loop {
        match worker.serve(&mut stopped, &mut retries).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(leader = worker.link.leader, %error, "no connection to the leader");
            }
        }
        if *stopped.borrow() {
            worker.stop_all(Stop::Closing);
            while let Some(ended) = worker.running.join_next().await {
                worker.ended(ended);
            }
            return;
        }
        worker.wait_away(retries.failed(), &mut stopped).await;
    }
}

impl Worker {
    /// One connection, from the hello to its end.
    async fn serve(
        &mut self,
        stopped: &mut watch::Receiver<bool>,
        retries: &mut Retries,
    ) -> io::Result<()> {
        let (mut input, mut output, mut read) =
            tokio::time::timeout(CONNECT_WAIT, self.connect()).await??;
        retries.succeeded();
        self.owed = 0;
        let free = self.link.parallel.saturating_sub(self.attempts.len() as u32);
        if free > 0 {
            send(&mut output, &credit(free)).await?;
        }
        let (frames, mut came) = mpsc::channel(64);
        let mut reader = tokio::spawn(async move {
            while let Some(frame) = next_frame(&mut input, &mut read).await? {
                if frames.send(frame).await.is_err() {
                    break;
                }
            }
            Ok::<(), io::Error>(())
        });
        // What ended while there was no connection.
        for attempt in self.attempts.values() {
            if let Some(result) = &attempt.result {
                send(&mut output, result).await?;
            }
        }
        let mut renew = tokio::time::interval(self.lease / 3);
        let mut look = tokio::time::interval(LOAD_LOOK);
        loop {
            tokio::select! {
                frame = came.recv() => match frame {
                    Some(frame) => self.take(&frame, &mut output).await?,
                    None => return (&mut reader).await.unwrap_or(Ok(())),
                },
                Some(ended) = self.running.join_next() => {
                    if let Some(result) = self.ended(ended) {
                        send(&mut output, &result).await?;
                    }
                }
                Some(piece) = self.written.recv() => {
                    let payload = serde_json::to_vec(&piece).expect("plain data");
                    send(&mut output, &encoded(Kind::JobProgress, [0; 16], payload.into())).await?;
                }
                _ = renew.tick() => {
                    let attempts = self.attempts.keys().cloned().collect();
                    let payload = serde_json::to_vec(&Attempts { attempts }).expect("plain data");
                    send(&mut output, &encoded(Kind::JobRenew, [0; 16], payload.into())).await?;
                    let lease_ends = clock::now() + self.lease;
                    self.attempts.values_mut().for_each(|each| each.lease_ends = lease_ends);
                }
                _ = look.tick(), if self.owed > 0 => {
                    if self.load.busy_share() < self.link.cpu_cap {
                        send(&mut output, &credit(std::mem::take(&mut self.owed))).await?;
                    }
                }
                _ = stopped.changed() => {
                    reader.abort();
                    return output.shutdown().await;
                }
            }
        }
    }

    async fn connect(&mut self) -> io::Result<(Incoming, Outgoing, BytesMut)> {
        let (mut input, mut output) = self.link.access.dial(&self.link.leader).await?;
        let hello = WorkerConfig {
            worker_id: self.link.worker_id.clone(),
            token: self.link.access.token.clone(),
            running: self.attempts.keys().cloned().collect(),
        };
        let frame = Frame {
            kind: Kind::JobWorkerHello.number(),
            msg_id: [0; 16],
            corr_id: [0; 16],
            subject: self.link.pattern.clone().into(),
            payload: serde_json::to_vec(&hello).expect("plain data").into(),
        };
        let mut bytes = BytesMut::new();
        frame.encode(FrameLimit::MAX, &mut bytes).map_err(io::Error::other)?;
        send(&mut output, &bytes).await?;
        let mut read = BytesMut::new();
        let Some(frame) = next_frame(&mut input, &mut read).await? else {
            return Err(io::Error::other("the leader closed the connection"));
        };
        if frame.kind != Kind::JobWelcome.number() {
            let why = String::from_utf8_lossy(&frame.payload).into_owned();
            return Err(io::Error::other(format!("the leader refused this worker: {why}")));
        }
        let welcome: JobWelcome = serde_json::from_slice(&frame.payload)?;
        self.lease = Duration::from_millis(welcome.lease_ms.max(1));
        Ok((input, output, read))
    }

    async fn take(&mut self, frame: &Frame, output: &mut Outgoing) -> io::Result<()> {
        match Kind::from_number(frame.kind) {
            Some(Kind::JobAssign) => {
                let request: JobRequest = serde_json::from_slice(&frame.payload)?;
                if let Some(refused) = self.start(request) {
                    let payload = serde_json::to_vec(&refused).expect("plain data");
                    send(output, &encoded(Kind::JobAck, frame.corr_id, payload.into())).await?;
                }
            }
            Some(Kind::JobCancel) => {
                let attempt: AttemptRef = serde_json::from_slice(&frame.payload)?;
                if let Some(known) = self.attempts.get_mut(&attempt) {
                    if known.result.take().is_some() {
                        // It had ended, and the leader does not want to know.
                        self.attempts.remove(&attempt);
                        self.owed += 1;
                    } else {
                        known.stop.send_replace(Some(Stop::Cancelled));
                    }
                }
            }
            Some(Kind::JobAnswer) => {
                // A result was taken, or is stale: either way it is done with.
                let job = JobId(u128::from_be_bytes(frame.corr_id));
                let done = |(key, each): (&AttemptRef, &Attempt)| {
                    let is_of_job = key.job_id.parse() == Ok(job);
                    (is_of_job && each.result.is_some()).then(|| key.clone())
                };
                if let Some(key) = self.attempts.iter().find_map(done) {
                    self.attempts.remove(&key);
                    self.owed += 1;
                }
            }
            _ => {}
        }
        if self.owed > 0 && self.load.busy_share() < self.link.cpu_cap {
            send(output, &credit(std::mem::take(&mut self.owed))).await?;
        }
        Ok(())
    }

    /// Starts a job. One that cannot be started gives its credit back, and the answer says so to the
    /// leader, which need not wait for the lease; an attempt that runs here already goes on.
    fn start(&mut self, request: JobRequest) -> Option<JobResult> {
        let not_started = |reason: &str| {
            let reason = Some(reason.to_owned());
            JobResult { status: Status::NotStarted, reason, ..run::result_of(&request) }
        };
        let (Ok(job), Some(attempt), Some(epoch)) =
            (request.job_id.parse::<JobId>(), request.attempt, request.epoch.clone())
        else {
            tracing::error!("the leader sent a job without id, attempt or epoch");
            self.owed += 1;
            return Some(not_started("the assignment has no id, attempt or epoch"));
        };
        let key = AttemptRef { job_id: job.to_string(), attempt, epoch };
        let runs = self.attempts.contains_key(&key);
        if runs || self.finished.contains(&key) {
            tracing::warn!(%job, attempt, "this attempt came twice");
            self.owed += 1;
            return (!runs).then(|| not_started("this attempt came twice"));
        }
        let (stop, stopping) = watch::channel(None);
        let lease_ends = clock::now() + self.lease;
        self.attempts.insert(key.clone(), Attempt { stop, lease_ends, result: None });
        let (executor, progress) = (Arc::clone(&self.executor), self.progress.clone());
        self.running.spawn(async move { (key, executor.run(request, stopping, progress).await) });
        None
    }

    /// Keeps the result of an attempt until the leader has it.
    fn ended(
        &mut self,
        ended: Result<(AttemptRef, JobResult), tokio::task::JoinError>,
    ) -> Option<Bytes> {
        let (key, result) = ended.ok()?;
        self.finished.push_back(key.clone());
        if self.finished.len() > FINISHED_MAX {
            self.finished.pop_front();
        }
        let attempt = self.attempts.get_mut(&key)?;
        let payload = serde_json::to_vec(&result).expect("plain data");
        let job: JobId = key.job_id.parse().expect("it was written from an id");
        let frame = encoded(Kind::JobAck, job.0.to_be_bytes(), payload.into());
        attempt.result = Some(frame.clone());
        Some(frame)
    }

    fn stop_all(&mut self, why: Stop) {
        self.attempts.values().for_each(|each| {
            each.stop.send_replace(Some(why));
        });
    }

    /// Without a connection: jobs go on, and are stopped before their leases end.
    async fn wait_away(&mut self, wait: Duration, stopped: &mut watch::Receiver<bool>) {
        let until = clock::now() + wait;
        loop {
            let running = self.attempts.values().filter(|each| each.result.is_none());
            let margin = lease_margin(self.lease);
            let lease = running.map(|each| each.lease_ends - margin).min();
            tokio::select! {
                () = clock::pause_until(until) => return,
                () = clock::pause_until(lease.unwrap_or(until)), if lease.is_some() => {
                    let now = clock::now();
                    for each in self.attempts.values() {
                        if each.lease_ends - margin <= now {
                            each.stop.send_replace(Some(Stop::LeaseLost));
                        }
                    }
                    if let Some(ended) = self.running.join_next().await {
                        self.ended(ended);
                    }
                }
                Some(ended) = self.running.join_next() => {
                    self.ended(ended);
                }
                _ = stopped.changed() => return,
            }
        }
    }
}

/// How long before the end of its lease a job is stopped.
fn lease_margin(lease: Duration) -> Duration {
    LEASE_MARGIN_MAX.min(lease / 6)
}

fn credit(more: u32) -> Bytes {
    let more = i32::try_from(more).unwrap_or(i32::MAX);
    encoded(Kind::JobCredit, [0; 16], Bytes::copy_from_slice(&more.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e10_a_worker_without_its_leader_goes_on_for_most_of_its_lease() {
        for lease_ms in [3_000, 15_000, 600_000] {
            let lease = Duration::from_millis(lease_ms);
            // Leases are renewed three times in their time, so two thirds of it are left at least.
            let left = lease * 2 / 3 - lease_margin(lease);
            assert!(left >= lease / 2, "{left:?} of {lease:?}");
            assert!(lease_margin(lease) >= Duration::from_millis(500), "there is time to stop");
        }
    }
}
