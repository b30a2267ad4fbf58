//! A worker: it takes jobs from a leader, runs them, and says what became of them.
//!
//! It gives the leader credit for as many jobs as it may run at a time, and gives it back for
//! each job that ended, when the machine is not too busy. It renews the lease of each attempt; if the
//! leader does not answer, its jobs stop before their leases end, so that no other worker runs them at
//! the same time. A result that could not be delivered is sent again after the next connection.
//! When it is to end, it gives its jobs back, at once or after a while.
//!
//! Not here: how a program is run (`run`), until when (`lease`), and who runs what (the leader).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::Path;
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
use crate::lease::Leases;
use crate::load::Load;
use crate::names::new_id;
use crate::program::Programs;
use crate::run::{self, Orders, RunOptions, Stop};
use crate::tree;
use crate::wire::{
    AttemptRef, Attempts, JobProgress, JobRequest, JobResult, JobWelcome, Status, VERSION,
    WorkerConfig,
};

/// How long connecting and being welcomed may take.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long a worker that ends waits until the leader has taken what it gives back.
const CLOSE_WAIT: Duration = Duration::from_secs(15);
/// How often a busy machine is looked at until credit is given back.
const LOAD_LOOK: Duration = Duration::from_millis(200);
/// Most pieces of output that wait to be sent to the leader.
const PROGRESS_MAX: usize = 256;
/// The file of a worker's folder with what tells it from others.
const INSTANCE: &str = "worker.instance";
/// Finished attempts are remembered, so that one that comes twice is not run twice.
const FINISHED_MAX: usize = 10_000;

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The leader's address, `host:port`.
    pub leader: String,
    /// What it is called; the same after a lost connection.
    pub worker_id: String,
    /// How the leader is reached.
    pub access: Access,
    /// What it takes: a pattern over `job.assign.<exec>`.
    pub pattern: String,
    /// How programs are run.
    pub run: RunOptions,
    /// The command that starts a runner ([`crate::serve_worker`]). With it this process must have no
    /// other children: what a killed runner leaves behind becomes its own, and it kills that. Without
    /// it programs are children of this process, and what they leave behind is found by its environment
    /// and folder only.
    pub runner: Vec<OsString>,
    /// How many jobs run at a time.
    pub parallel: u32,
    /// Above this share of the processors no credit is given back.
    pub cpu_cap: f64,
    /// How long jobs may go on when the worker is to end; then they are given back.
    pub drain: Duration,
}

/// A job that runs, or whose result is not delivered.
struct Attempt {
    orders: watch::Sender<Orders>,
    result: Option<Bytes>,
}

/// Where a worker takes jobs from, and how many.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) leader: String,
    pub(crate) worker_id: String,
    /// Which one of that name it is.
    pub(crate) instance: String,
    pub(crate) access: Access,
    pub(crate) pattern: String,
    pub(crate) parallel: u32,
    pub(crate) cpu_cap: f64,
    pub(crate) drain: Duration,
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
        orders: watch::Receiver<Orders>,
        progress: mpsc::Sender<JobProgress>,
    ) -> JobResult {
        match self {
            Self::Programs(programs) => programs.run(&request, orders, progress).await,
            Self::Handler(handler) => handler.run(request, orders, progress).await,
        }
    }
}

/// The newest finished attempts.
#[derive(Default)]
struct Finished {
    attempts: BTreeSet<AttemptRef>,
    in_order: VecDeque<AttemptRef>,
}

impl Finished {
    fn contains(&self, attempt: &AttemptRef) -> bool {
        self.attempts.contains(attempt)
    }

    fn push(&mut self, attempt: AttemptRef) {
        if !self.attempts.insert(attempt.clone()) {
            return;
        }
        self.in_order.push_back(attempt);
        if self.in_order.len() > FINISHED_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.attempts.remove(&oldest);
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
    finished: Finished,
    leases: Leases,
    load: Load,
    /// How much credit is to be given back.
    owed: u32,
    /// When its jobs are given back, if it is to end.
    ends: Option<Instant>,
}

/// Runs a worker until `stopped` says so.
///
/// # Errors
/// When its folders cannot be prepared.
pub async fn work(options: WorkerOptions, stopped: watch::Receiver<bool>) -> io::Result<()> {
    let WorkerOptions { leader, worker_id, access, pattern, run, runner, parallel, .. } = options;
    // Jobs have it as their home, and run elsewhere than this process.
    let run = RunOptions { work_dir: std::path::absolute(&run.work_dir)?, ..run };
    if !runner.is_empty() {
        tree::adopt()?;
    }
    run::sweep(&run.work_dir).await?;
    let instance = instance_of(&run.work_dir)?;
    let (cpu_cap, drain) = (options.cpu_cap, options.drain);
    let link = Link { leader, worker_id, instance, access, pattern, parallel, cpu_cap, drain };
    take_jobs(link, Executor::Programs(Box::new(Programs::new(run, runner))), stopped).await;
    Ok(())
}

/// Which worker uses this folder: the same after a restart, since what the one before ran was swept
/// away, and another than any that has another folder.
fn instance_of(work_dir: &Path) -> io::Result<String> {
    let path = work_dir.join(INSTANCE);
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    if stored.parse::<JobId>().is_ok() {
        return Ok(stored);
    }
    let made = new_id().to_string();
    std::fs::write(&path, &made)?;
    Ok(made)
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
        finished: Finished::default(),
        leases: Leases::new(Duration::ZERO, VERSION, clock::now()),
        load: Load::default(),
        owed: 0,
        ends: None,
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
        let mut renew = tokio::time::interval(self.leases.renew_every());
        let mut look = tokio::time::interval(LOAD_LOOK);
        loop {
            if self.ends.is_some() && self.attempts.is_empty() {
                reader.abort();
                return output.shutdown().await;
            }
            let gives_up = self.gives_up();
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
                _ = renew.tick() => self.renew(&mut output).await?,
                _ = look.tick(), if self.owed > 0 && self.ends.is_none() => {
                    if self.load.busy_share() < self.link.cpu_cap {
                        send(&mut output, &credit(std::mem::take(&mut self.owed))).await?;
                    }
                }
                () = clock::pause_until(gives_up.unwrap_or_else(clock::now)), if gives_up.is_some() => {
                    reader.abort();
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the leader does not answer"));
                }
                () = is_true(stopped), if self.ends.is_none() => {
                    self.ends = Some(clock::now() + self.link.drain);
                }
                () = clock::pause_until(self.ends.unwrap_or_else(clock::now)), if self.drains() => {
                    self.stop_all(Stop::Closing);
                }
            }
        }
    }

    /// Renews all leases, unless the leader has not answered the last time.
    async fn renew(&mut self, output: &mut Outgoing) -> io::Result<()> {
        let attempts: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        let payload = serde_json::to_vec(&Attempts { attempts: attempts.clone() });
        let Some(id) = self.leases.ask(clock::now(), attempts) else { return Ok(()) };
        send(output, &encoded(Kind::JobRenew, id, payload.expect("plain data").into())).await?;
        if let Some((attempts, until)) = self.leases.unanswered() {
            self.go_on(&attempts, until);
        }
        Ok(())
    }

    /// These attempts may run until then.
    fn go_on(&mut self, attempts: &[AttemptRef], until: Instant) {
        for attempt in attempts.iter().filter_map(|key| self.attempts.get(key)) {
            attempt.orders.send_modify(|orders| orders.until = until);
        }
    }

    /// Whether it is to end, and its jobs may go on for a while.
    fn drains(&self) -> bool {
        let runs = |each: &Attempt| each.result.is_none() && each.orders.borrow().stop.is_none();
        self.ends.is_some() && self.attempts.values().any(runs)
    }

    /// When this connection is given up: the leader does not answer, or takes nothing back.
    fn gives_up(&self) -> Option<Instant> {
        let closed = self.ends.map(|ends| ends + CLOSE_WAIT);
        [self.leases.gives_up(), closed].into_iter().flatten().min()
    }

    async fn connect(&mut self) -> io::Result<(Incoming, Outgoing, BytesMut)> {
        let (mut input, mut output) = self.link.access.dial(&self.link.leader).await?;
        let hello = WorkerConfig {
            worker_id: self.link.worker_id.clone(),
            instance: self.link.instance.clone(),
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
        let sent = clock::now();
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
        let lease = Duration::from_millis(welcome.lease_ms.max(3));
        self.leases = Leases::new(lease, welcome.version, sent);
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
                        known.orders.send_modify(|orders| orders.stop = Some(Stop::Cancelled));
                    }
                }
            }
            Some(Kind::JobAnswer) => {
                if let Some((attempts, until)) = self.leases.answered(frame) {
                    self.go_on(&attempts, until);
                    return Ok(());
                }
                // A result was taken, or is stale: either way it is done with.
                let job = JobId(u128::from_be_bytes(frame.corr_id)).to_string();
                let first = AttemptRef { job_id: job, attempt: 0, epoch: String::new() };
                let done = self
                    .attempts
                    .range(&first..)
                    .take_while(|(key, _)| key.job_id == first.job_id)
                    .find(|(_, each)| each.result.is_some())
                    .map(|(key, _)| key.clone());
                if let Some(key) = done {
                    self.attempts.remove(&key);
                    self.owed += 1;
                }
            }
            _ => {}
        }
        if self.owed > 0 && self.ends.is_none() && self.load.busy_share() < self.link.cpu_cap {
            send(output, &credit(std::mem::take(&mut self.owed))).await?;
        }
        Ok(())
    }

    /// Starts a job. One that cannot be started gives its credit back, and the answer says so to the
    /// leader, which need not wait for the lease; an attempt that runs here already goes on.
    fn start(&mut self, request: JobRequest) -> Option<JobResult> {
        let refused = |status, reason: &str| {
            let reason = Some(reason.to_owned());
            JobResult { status, reason, ..run::result_of(&request) }
        };
        let not_started = |reason: &str| refused(Status::NotStarted, reason);
        if self.ends.is_some() {
            return Some(refused(Status::Returned, "the worker ends"));
        }
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
        let now = clock::now();
        let until = self.leases.until_of_new(now);
        if until <= now {
            self.owed += 1;
            return Some(not_started("it came late, and its lease may be over"));
        }
        let (orders, obeyed) = watch::channel(Orders { stop: None, until });
        self.attempts.insert(key.clone(), Attempt { orders, result: None });
        let (executor, progress) = (Arc::clone(&self.executor), self.progress.clone());
        self.running.spawn(async move { (key, executor.run(request, obeyed, progress).await) });
        None
    }

    /// Keeps the result of an attempt until the leader has it.
    fn ended(
        &mut self,
        ended: Result<(AttemptRef, JobResult), tokio::task::JoinError>,
    ) -> Option<Bytes> {
        let (key, result) = ended.ok()?;
        self.finished.push(key.clone());
        let attempt = self.attempts.get_mut(&key)?;
        let payload = serde_json::to_vec(&result).expect("plain data");
        let job: JobId = key.job_id.parse().expect("it was written from an id");
        let frame = encoded(Kind::JobAck, job.0.to_be_bytes(), payload.into());
        attempt.result = Some(frame.clone());
        Some(frame)
    }

    fn stop_all(&mut self, why: Stop) {
        self.attempts.values().for_each(|each| {
            each.orders.send_modify(|orders| orders.stop = Some(why));
        });
    }

    /// Without a connection: jobs go on until their time is over.
    async fn wait_away(&mut self, wait: Duration, stopped: &mut watch::Receiver<bool>) {
        let until = clock::now() + wait;
        loop {
            tokio::select! {
                () = clock::pause_until(until) => return,
                Some(ended) = self.running.join_next() => {
                    self.ended(ended);
                }
                () = is_true(stopped) => return,
            }
        }
    }
}

/// Waits until it is so; at once if it is.
async fn is_true(stopped: &mut watch::Receiver<bool>) {
    // If it cannot change any more, nothing else will say so either.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn credit(more: u32) -> Bytes {
    let more = i32::try_from(more).unwrap_or(i32::MAX);
    encoded(Kind::JobCredit, [0; 16], Bytes::copy_from_slice(&more.to_le_bytes()))
}
