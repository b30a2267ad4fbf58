//! The task that owns the leader's machine.
//!
//! It takes what connections ask for, lets the machine decide, appends what changed, and only
//! when that is durable sends what follows from it. Appends are pipelined: the machine goes on
//! while earlier ones are being flushed, and answers leave in the order of their appends.
//!
//! If an append is refused, the machine is ahead of the journal. Then every connection is
//! closed, and the leader starts again from what is stored: clients and workers come back and
//! ask again, which is harmless by job id and attempt.
//!
//! Not here: sockets ([`crate::session`]) and rules (`gapless_core::job`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{Broker, BrokerState, Publishing};
use gapless_core::job::leader::{
    Closing, Counts, Effect, Filter, Input, Leader as Machine, Limits, Outcome, Refusal, Session,
    State,
};
use gapless_core::job::record::{End, Record, Spec, Stage, WorkerId};
use gapless_core::job::{JobId, Token};
use gapless_core::{Pattern, PublishAck};
use tokio::sync::{OnceCell, mpsc, oneshot};

use crate::error::JobsError;
use crate::log::Logs;
use crate::route::Routes;
use crate::shown::{JobLog, JobShown, NAMES_SHOWN_MAX, Overview};
use crate::store::{Changes, Store};
use crate::tally::{Event, Tally};
use crate::wire::{JobRequest, JobResult, Status};
use crate::{calendar, clock};

/// Most questions that wait for the leader's task, over all connections.
const INBOX_MAX: usize = 4096;
/// Most questions taken in one turn, and so into one append.
const TURN_MAX: usize = 256;
/// Most appends on their way to the disk at a time.
const APPENDS_MAX: usize = 64;
/// Most messages that wait for one connection. A connection that takes nothing is closed; what
/// was for it can be asked for again.
const OUT_MAX: usize = 8192;
/// Longest request or result that waits for a connection in memory. Longer ones are read again when
/// it is their turn, so that what waits stays small.
const KEPT_BYTES_MAX: usize = 4 * 1024;
/// How long the leader waits after a failed append until it starts again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// How a leader runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaderOptions {
    /// Times and limits of the machine.
    pub limits: Limits,
}

/// What a connection asks of the leader.
pub enum Ask {
    /// A client is here.
    Client {
        /// Who it is.
        name: Arc<str>,
        /// How many of its jobs may run at a time.
        cap: u32,
        /// Its share beside others.
        weight: u32,
        /// Where what is for it goes.
        out: mpsc::Sender<Tell>,
    },
    /// A worker is here.
    Worker {
        /// Who it is.
        worker: WorkerId,
        /// What it runs.
        pattern: Pattern,
        /// What it is still at.
        running: Vec<Token>,
        /// Where what is for it goes.
        out: mpsc::Sender<Tell>,
    },
    /// An observer connected: it lists and manages jobs.
    Observer {
        /// Where what is for it goes.
        out: mpsc::Sender<Tell>,
    },
    /// A request of a worker without a connection; see [`Input::Visit`].
    Visit {
        /// Who it is.
        worker: WorkerId,
        /// What it runs, if it waits for a job.
        pattern: Option<Pattern>,
        /// Where what is for it goes.
        out: mpsc::Sender<Tell>,
    },
    /// The connection is gone.
    Gone,
    /// The worker takes no more.
    Withdraw,
    /// The attempt did not reach the worker.
    GiveBack(Token),
    /// The ended job is not to be remembered any more.
    Forget(JobId),
    /// The result of a job is wanted, and what it writes until then, from what is kept of it on.
    Follow(JobId),
    /// The worker takes more.
    Credit(i32),
    /// A job to be done, and the request as it is stored.
    Submit(Box<Spec>, Bytes),
    /// The result of a job is wanted.
    Watch(JobId),
    /// The worker is there; answered when all that it said before is decided and durable.
    Heard(oneshot::Sender<()>),
    /// The worker is still at it.
    Renew(Token),
    /// Something the job wrote, for those who wait for it; it renews the lease too.
    Progress(Token, Bytes),
    /// What became of an attempt, and the result as it is stored.
    Ack(Token, Outcome, Bytes),
    /// The job is not wanted any more.
    Cancel(JobId),
    /// The job is to be tried again.
    Retry(JobId),
    /// How a job stands.
    Describe(JobId, oneshot::Sender<Option<JobView>>),
    /// How jobs stand: which, those below this number, and at most how many.
    List(Filter, u64, usize, oneshot::Sender<JobViews>),
    /// What a running job wrote lately.
    Log(JobId, oneshot::Sender<JobLog>),
    /// How all stands.
    Overview(oneshot::Sender<Overview>),
    /// How many jobs are where.
    Count(oneshot::Sender<Counts>),
}

/// What the leader tells a connection.
#[derive(Debug)]
pub enum Tell {
    /// A submit is accepted.
    Submitted {
        /// Which job.
        job: JobId,
        /// Whether it was known before.
        known: bool,
    },
    /// What was asked about this job is refused; nothing was changed.
    Refused {
        /// Which job.
        job: JobId,
        /// Why.
        why: Refusal,
    },
    /// A cancel, retry or forget is done.
    Done(JobId),
    /// Run this, as the request says; without it, it is [read](Leader::request).
    Assign(Token, Option<Bytes>),
    /// The credit is void; so much of it was left.
    Withdrawn(u32),
    /// Stop this.
    Revoke(Token),
    /// The lease goes on.
    Renewed(Token),
    /// The outcome counts.
    Taken(Token),
    /// The attempt does not count any more: stop it, and forget its outcome.
    Stale(Token),
    /// Something the job wrote.
    Progress(JobId, Bytes),
    /// The job has ended; what it left is [read](Leader::result) unless it is here.
    Result(Box<Record>, Option<Bytes>),
    /// The connection ends, and why.
    Close(&'static str),
}

/// A job as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// What is written down of it.
    pub record: Record,
    /// Where it is, in a word.
    pub state: State,
    /// The same, more exactly.
    pub phase: &'static str,
}

impl JobView {
    /// The same as plain data.
    pub fn shown(&self) -> JobShown {
        JobShown::new(&self.record, self.state, self.phase)
    }
}

/// A part of a list, and where it goes on.
pub type JobViews = (Vec<JobView>, Option<u64>);

/// The topics of jobs, which are created when they are first needed.
struct Prepared {
    store: Store,
    done: OnceCell<()>,
}

/// The handle to a leader. Cloning it copies a pointer; the leader ends with the last one.
#[derive(Clone)]
pub struct Leader {
    inbox: mpsc::Sender<(Session, Ask)>,
    prepared: Arc<Prepared>,
    next_session: Arc<std::sync::atomic::AtomicU64>,
    epoch: Arc<str>,
    lease: Duration,
    routes: Routes,
}

impl Leader {
    /// Starts the leader: reads what is stored, and goes on with it. A store that never had a job
    /// is not written to before the first client or worker comes.
    ///
    /// # Errors
    /// When the topics of jobs cannot be read.
    pub async fn start(broker: &Broker, options: LeaderOptions) -> Result<Self, JobsError> {
        let (inbox, asks) = mpsc::channel(INBOX_MAX);
        let store = Store::of(broker);
        let prepared = Arc::new(Prepared { store: store.clone(), done: OnceCell::new() });
        let mut task = Task {
            broker: broker.clone(),
            store,
            options,
            machine: Machine::new(options.limits).with_calendar(calendar::next),
            outs: BTreeMap::new(),
            appends: VecDeque::new(),
            logs: Logs::default(),
            tally: Tally::default(),
        };
        task.load().await?;
        let leader = Self {
            inbox,
            prepared,
            next_session: Arc::default(),
            // Without the opening: a worker goes on with its attempts when the leader is back.
            epoch: format!("{:08x}", broker.epoch().store()).into(),
            lease: options.limits.lease,
            routes: Routes::default(),
        };
        tokio::spawn(task.run(asks));
        Ok(leader)
    }

    /// The same leader, which passes on jobs that others lead.
    #[must_use]
    pub fn with_routes(self, routes: Routes) -> Self {
        Self { routes, ..self }
    }

    /// Which jobs others lead.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Sees to it that what is asked can be stored; before anything is asked for a connection.
    ///
    /// # Errors
    /// When the topics of jobs cannot be created.
    pub async fn prepare(&self) -> Result<(), JobsError> {
        let create = async || {
            let store = self.prepared.store.clone();
            let ensure = tokio::task::spawn_blocking(move || store.ensure());
            ensure.await.map_err(|_| JobsError::Stopped)?
        };
        self.prepared.done.get_or_try_init(create).await.copied()
    }

    /// A number for a new connection.
    pub fn new_session(&self) -> Session {
        Session(1 + self.next_session.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    /// The store, as the tokens of attempts begin.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// How long a worker may be silent about an attempt.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// A channel for what the leader tells a connection.
    pub fn channel() -> (mpsc::Sender<Tell>, mpsc::Receiver<Tell>) {
        mpsc::channel(OUT_MAX)
    }

    /// Asks something for a connection; waits while too much waits already.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn ask(&self, session: Session, ask: Ask) -> Result<(), JobsError> {
        self.inbox.send((session, ask)).await.map_err(|_| JobsError::Stopped)
    }

    /// How a job stands; `None` when it is not known.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn describe(&self, job: JobId) -> Result<Option<JobView>, JobsError> {
        self.question(|answer| Ask::Describe(job, answer)).await
    }

    /// How jobs stand, newest first: those below a number, at most so many; and where it goes on.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn list(
        &self,
        filter: Filter,
        below: Option<u64>,
        most: usize,
    ) -> Result<JobViews, JobsError> {
        let below = below.unwrap_or(u64::MAX);
        self.question(|answer| Ask::List(filter, below, most, answer)).await
    }

    /// What a running job wrote lately.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn log(&self, job: JobId) -> Result<JobLog, JobsError> {
        self.question(|answer| Ask::Log(job, answer)).await
    }

    /// How all stands.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn overview(&self) -> Result<Overview, JobsError> {
        self.question(Ask::Overview).await
    }

    /// What was submitted; `None` if that cannot be read.
    pub async fn request(&self, job: JobId) -> Option<Bytes> {
        match self.stored_request(job).await {
            Some(request) => Some(request),
            None => self.request_of_schedule(job).await,
        }
    }

    async fn stored_request(&self, job: JobId) -> Option<Bytes> {
        let store = self.prepared.store.clone();
        tokio::task::spawn_blocking(move || store.request(job)).await.ok().flatten()
    }

    /// A job of a schedule has the schedule's request, under its own id.
    async fn request_of_schedule(&self, job: JobId) -> Option<Bytes> {
        let schedule = self.describe(job).await.ok()??.record.origin?;
        let request = self.stored_request(schedule).await?;
        let mut request: JobRequest = serde_json::from_slice(&request).ok()?;
        request.job_id = job.to_string();
        request.cron = None;
        serde_json::to_vec(&request).ok().map(Bytes::from)
    }

    /// The result of an ended job: what its last attempt left, with the end that counts.
    pub async fn result(&self, record: &Record, left: Option<Bytes>) -> JobResult {
        let (store, job) = (self.prepared.store.clone(), record.spec.id);
        let left = match left {
            Some(left) => Some(left),
            None => tokio::task::spawn_blocking(move || store.result(job)).await.ok().flatten(),
        };
        finished(record, left.as_ref())
    }

    /// How many jobs are where.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn counts(&self) -> Result<Counts, JobsError> {
        self.question(Ask::Count).await
    }

    /// Waits until all that a worker said is decided; it counts as heard of.
    ///
    /// # Errors
    /// When the leader has stopped or closed the connection.
    pub(crate) async fn heard(&self, session: Session) -> Result<(), JobsError> {
        let (answer, answered) = oneshot::channel();
        self.ask(session, Ask::Heard(answer)).await?;
        answered.await.map_err(|_| JobsError::Stopped)
    }

    async fn question<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<T>) -> Ask,
    ) -> Result<T, JobsError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Session(0), ask(answer)).await?;
        answered.await.map_err(|_| JobsError::Stopped)
    }
}

/// What waits for an append.
struct Append {
    publishing: Publishing,
    effects: Vec<Effect>,
    /// Requests and results that came with this turn, so that they need not be read again.
    fresh: Fresh,
    /// What others may want to hear of it.
    events: Vec<Event>,
    /// Answers that must not show what is not durable yet.
    answers: Vec<Answer>,
}

/// Answers a question.
type Answer = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Fresh {
    requests: BTreeMap<JobId, Bytes>,
    results: BTreeMap<JobId, Bytes>,
    /// Jobs whose results are to be sent, as they were then: they may be retried or forgotten since.
    ended: BTreeMap<JobId, Record>,
}

struct Task {
    broker: Broker,
    store: Store,
    options: LeaderOptions,
    machine: Machine,
    outs: BTreeMap<Session, mpsc::Sender<Tell>>,
    appends: VecDeque<Append>,
    logs: Logs,
    tally: Tally,
}

/// What one turn of the task gathers.
#[derive(Default)]
struct Turn {
    effects: Vec<Effect>,
    fresh: Fresh,
    answers: Vec<Answer>,
}

impl Turn {
    fn answer<T: Send + 'static>(&mut self, to: oneshot::Sender<T>, value: T) {
        // Who asked may have gone.
        self.answers.push(Box::new(move || drop(to.send(value))));
    }
}

impl Task {
    async fn load(&mut self) -> Result<(), JobsError> {
        let (records, next) = self.store.load().await?;
        let machine = Machine::new(self.options.limits).with_calendar(calendar::next);
        self.machine = machine.numbered_from(next);
        let (now, mut effects) = (self.broker.now(), Vec::new());
        for record in records {
            self.machine.step(now, Input::Restore(record), &mut effects);
        }
        let mut turn = Turn::default();
        self.machine.step(now, Input::Restored, &mut turn.effects);
        self.append(turn);
        Ok(())
    }

    async fn run(mut self, mut asks: mpsc::Receiver<(Session, Ask)>) {
        let mut taken = Vec::with_capacity(TURN_MAX);
        loop {
            let now = self.broker.now();
            let due = self.machine.deadline().map(|at| at.since(now));
            let room = self.appends.len() < APPENDS_MAX;
            let failed = tokio::select! {
                biased;
                done = Self::next_append(&mut self.appends) => match done {
                    Ok(append) => {
                        self.carry_out(append);
                        false
                    }
                    Err(error) => {
                        tracing::warn!(%error, "jobs: an append was refused, starting again");
                        true
                    }
                },
                count = asks.recv_many(&mut taken, TURN_MAX), if room => {
                    if count == 0 {
                        return;
                    }
                    let mut turn = Turn::default();
                    for (session, ask) in taken.drain(..) {
                        self.take(session, ask, &mut turn);
                    }
                    self.append(turn);
                    false
                }
                () = sleep(due), if room && due.is_some() => {
                    let mut turn = Turn::default();
                    let now = self.broker.now();
                    self.machine.step(now, Input::Tick, &mut turn.effects);
                    self.keep_ended(&mut turn, 0);
                    self.append(turn);
                    false
                }
            };
            if failed && !self.start_again().await {
                return;
            }
        }
    }

    /// Waits for the oldest append; for ever if there is none.
    async fn next_append(appends: &mut VecDeque<Append>) -> Result<Append, JobsError> {
        let Some(first) = appends.front_mut() else { return std::future::pending().await };
        match (&mut first.publishing).await? {
            PublishAck::Rejected(reason) => Err(JobsError::Store(reason.to_string())),
            PublishAck::Accepted(_) | PublishAck::Scheduled { .. } => {
                Ok(appends.pop_front().expect("it was just looked at"))
            }
        }
    }

    /// Closes all connections and begins from what is stored, as often as it takes.
    async fn start_again(&mut self) -> bool {
        self.appends.clear();
        for (_, out) in std::mem::take(&mut self.outs) {
            let _ = out.try_send(Tell::Close("the leader starts again: come back"));
        }
        loop {
            clock::pause(RESTART_PAUSE).await;
            match self.load().await {
                Ok(()) => return true,
                Err(error) if self.broker.state() != BrokerState::Error => {
                    tracing::warn!(%error, "jobs: cannot start again yet");
                }
                Err(_) => return false,
            }
        }
    }

    fn take(&mut self, session: Session, ask: Ask, turn: &mut Turn) {
        let input = match ask {
            Ask::Client { name, cap, weight, out } => {
                self.outs.insert(session, out);
                Input::Client { session, name, cap, weight }
            }
            Ask::Worker { worker, pattern, running, out } => {
                self.outs.insert(session, out);
                Input::Worker { session, worker, pattern, running }
            }
            Ask::Observer { out } => {
                self.outs.insert(session, out);
                Input::Observer(session)
            }
            Ask::Visit { worker, pattern, out } => {
                self.outs.insert(session, out);
                Input::Visit { session, worker, pattern }
            }
            Ask::Gone => {
                self.outs.remove(&session);
                Input::Gone(session)
            }
            // From a connection that was closed: it has to introduce itself again.
            _ if session != Session(0) && !self.outs.contains_key(&session) => return,
            Ask::Credit(more) => Input::Credit(session, more),
            Ask::Submit(spec, request) => {
                turn.fresh.requests.insert(spec.id, request);
                Input::Submit(session, Arc::from(spec))
            }
            Ask::Watch(job) => Input::Watch(session, job),
            Ask::Follow(job) => {
                for piece in self.logs.of(job).iter().flat_map(|log| log.pieces()) {
                    self.tell_quietly(session, Tell::Progress(job, piece.clone()));
                }
                Input::Watch(session, job)
            }
            Ask::Withdraw => Input::Withdraw(session),
            Ask::GiveBack(token) => Input::GiveBack(session, token),
            Ask::Forget(job) => Input::Forget(session, job),
            Ask::Heard(answer) => {
                turn.answer(answer, ());
                Input::Heard(session)
            }
            Ask::Renew(token) => Input::Renew(session, token),
            Ask::Progress(token, text) => {
                if self.machine.has(session, token) {
                    let text = Bytes::copy_from_slice(&text);
                    for watcher in self.machine.watchers(token.job) {
                        self.tell_quietly(*watcher, Tell::Progress(token.job, text.clone()));
                    }
                    self.logs.push(token.job, text);
                }
                Input::Renew(session, token)
            }
            Ask::Ack(token, outcome, result) => {
                turn.fresh.results.insert(token.job, result);
                Input::Ack(session, token, outcome)
            }
            Ask::Cancel(job) => Input::Cancel(session, job),
            Ask::Retry(job) => Input::Retry(session, job),
            Ask::Describe(job, answer) => {
                let view = self.view(job);
                return turn.answer(answer, view);
            }
            Ask::List(filter, below, most, answer) => {
                let found = self.machine.find(&filter, below, most);
                let jobs = found.jobs.into_iter().filter_map(|job| self.view(job)).collect();
                return turn.answer(answer, (jobs, found.next));
            }
            Ask::Log(job, answer) => return turn.answer(answer, self.log(job)),
            Ask::Overview(answer) => return turn.answer(answer, self.overview()),
            Ask::Count(answer) => return turn.answer(answer, self.machine.counts()),
        };
        let from = turn.effects.len();
        let job_of_ack = match &input {
            Input::Ack(_, token, _) => Some(token.job),
            _ => None,
        };
        let job_of_submit = match &input {
            Input::Submit(_, spec) => Some(spec.id),
            _ => None,
        };
        self.machine.step(self.broker.now(), input, &mut turn.effects);
        self.keep_ended(turn, from);
        let new = &turn.effects[from..];
        for effect in new {
            if let Effect::Forget(job) = effect {
                turn.fresh.requests.remove(job);
                turn.fresh.results.remove(job);
            }
        }
        // A stale outcome is not stored, and neither is the request of a known job.
        if let Some(job) = job_of_ack
            && !new.iter().any(|effect| matches!(effect, Effect::Taken { .. }))
        {
            turn.fresh.results.remove(&job);
        }
        if let Some(job) = job_of_submit
            && !new.iter().any(|effect| matches!(effect, Effect::Submitted { known: false, .. }))
        {
            turn.fresh.requests.remove(&job);
        }
    }

    /// Keeps how jobs ended whose results the effects from there on send.
    fn keep_ended(&self, turn: &mut Turn, from: usize) {
        for effect in &turn.effects[from..] {
            if let Effect::Result { job, .. } = effect
                && let Some(record) = self.machine.record(*job)
            {
                turn.fresh.ended.insert(*job, record);
            }
        }
    }

    fn view(&self, job: JobId) -> Option<JobView> {
        let record = self.machine.record(job)?;
        let state = self.machine.state(job)?;
        Some(JobView { record, state, phase: self.machine.phase_name(job)? })
    }

    fn log(&self, job: JobId) -> JobLog {
        let Some(log) = self.logs.of(job) else { return JobLog::default() };
        let pieces = log.pieces().filter_map(|piece| serde_json::from_slice(piece).ok());
        JobLog { pieces: pieces.collect(), shortened: log.shortened }
    }

    fn overview(&self) -> Overview {
        let counts = self.machine.counts();
        Overview {
            waiting: counts.waiting,
            ready: counts.ready,
            running: counts.running,
            ended: counts.ended,
            dead: counts.dead,
            totals: self.tally.totals,
            wait: self.tally.wait(),
            run: self.tally.run(),
            workers: self.machine.workers().take(NAMES_SHOWN_MAX).map(Into::into).collect(),
            clients: self.machine.clients().take(NAMES_SHOWN_MAX).map(Into::into).collect(),
        }
    }

    /// Appends what changed; what follows from it waits for that.
    fn append(&mut self, turn: Turn) {
        let Turn { effects, fresh, answers } = turn;
        let events = self.tally.note(self.broker.now(), &self.machine, &effects);
        let mut changes = Changes::default();
        let mut saved = BTreeSet::new();
        for effect in &effects {
            match effect {
                // The newest record counts, however often a job changed in this turn.
                Effect::Save(job) if saved.insert(*job) => {
                    if let Some(record) = self.machine.record(*job) {
                        changes.save(&record);
                        if matches!(record.stage, Stage::Ended { .. }) {
                            self.logs.forget(*job);
                        }
                    }
                }
                Effect::Forget(job) => {
                    changes.forget(*job);
                    // Its id may be used again in the same turn.
                    saved.remove(job);
                }
                _ => {}
            }
        }
        if changes.is_empty() && self.appends.is_empty() {
            effects.into_iter().for_each(|effect| self.carry_out_one(&effect, &fresh));
            answers.into_iter().for_each(|answer| answer());
            return;
        }
        fresh.requests.iter().for_each(|(job, bytes)| changes.request(*job, bytes.clone()));
        fresh.results.iter().for_each(|(job, bytes)| changes.result(*job, bytes.clone()));
        let publishing = match changes.is_empty() {
            // Nothing to store, but earlier answers go first.
            true => match self.appends.back_mut() {
                Some(last) => {
                    last.fresh.ended.extend(fresh.ended);
                    last.effects.extend(effects);
                    last.answers.extend(answers);
                    return;
                }
                None => return,
            },
            false => self.store.write(&changes),
        };
        self.appends.push_back(Append { publishing, effects, fresh, events, answers });
    }

    fn carry_out(&mut self, append: Append) {
        let Append { effects, fresh, events, answers, .. } = append;
        effects.iter().for_each(|effect| self.carry_out_one(effect, &fresh));
        events.iter().for_each(|(kind, fields)| self.store.say(kind, fields));
        answers.into_iter().for_each(|answer| answer());
    }

    fn carry_out_one(&mut self, effect: &Effect, fresh: &Fresh) {
        match effect {
            Effect::Save(_) | Effect::Forget(_) => {}
            Effect::Submitted { session, job, known } => {
                self.tell(*session, Tell::Submitted { job: *job, known: *known });
            }
            Effect::Refused { session, job, why } => {
                self.tell(*session, Tell::Refused { job: *job, why: why.clone() });
            }
            Effect::Assign { session, token } => {
                let request = fresh.requests.get(&token.job).and_then(kept);
                self.tell(*session, Tell::Assign(*token, request));
            }
            Effect::Revoke { session, token } => self.tell(*session, Tell::Revoke(*token)),
            Effect::Renewed { session, token } => self.tell(*session, Tell::Renewed(*token)),
            Effect::Taken { session, token } => self.tell(*session, Tell::Taken(*token)),
            Effect::Stale { session, token } => self.tell(*session, Tell::Stale(*token)),
            Effect::Withdrawn { session, unspent } => {
                self.tell(*session, Tell::Withdrawn(*unspent));
            }
            Effect::Done { session, job } => self.tell(*session, Tell::Done(*job)),
            Effect::Result { session, job } => {
                if let Some(record) = fresh.ended.get(job).cloned() {
                    let left = fresh.results.get(job).and_then(kept);
                    self.tell(*session, Tell::Result(Box::new(record), left));
                }
            }
            Effect::Close { session, why } => {
                let why = match why {
                    Closing::BadCredit => "this credit makes no sense: send 1 to 1024",
                    Closing::Replaced => "the same worker came by another connection",
                };
                self.tell(*session, Tell::Close(why));
            }
        }
    }

    fn tell_quietly(&self, session: Session, tell: Tell) {
        if let Some(out) = self.outs.get(&session) {
            let _ = out.try_send(tell);
        }
    }

    /// Sends to a connection; one that takes nothing is closed.
    fn tell(&mut self, session: Session, tell: Tell) {
        if let Some(out) = self.outs.get(&session)
            && out.try_send(tell).is_err()
        {
            // Its end of the channel sees that this one is gone, and closes the socket.
            self.outs.remove(&session);
        }
    }
}

async fn sleep(due: Option<Duration>) {
    if let Some(due) = due {
        clock::pause(due).await;
    }
}

/// The result for a client: what the last attempt left, with the end that counts.
fn finished(record: &Record, stored: Option<&Bytes>) -> JobResult {
    let left = stored.and_then(|bytes| serde_json::from_slice::<JobResult>(bytes).ok());
    let mut result = left.unwrap_or_else(|| JobResult {
        job_id: record.spec.id.to_string(),
        client_id: record.spec.client.to_string(),
        exec_name: record.spec.exec.to_string(),
        ..JobResult::default()
    });
    if let Stage::Ended { how, .. } = &record.stage {
        result.status = match how {
            End::Succeeded => Status::Ok,
            End::Failed => Status::Failed,
            End::Cancelled => Status::Cancelled,
            End::TooManyFailures | End::TooManyDeaths | End::Dependency => Status::Dead,
        };
        if !matches!(how, End::Succeeded | End::Failed) {
            result.reason = Some(how.name().to_owned());
        }
    }
    result
}

/// What is short enough to wait for a connection; a copy, since it came in a larger buffer.
fn kept(bytes: &Bytes) -> Option<Bytes> {
    (bytes.len() <= KEPT_BYTES_MAX).then(|| Bytes::copy_from_slice(bytes))
}
