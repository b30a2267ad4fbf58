//! The leader: it accepts jobs, hands them to workers against credit, and sees to it that each
//! ends once.
//!
//! What it promises, and [`Leader::check`] asserts:
//!
//! - a job is in one place: waiting (for a time, for other jobs, or for its key), ready,
//!   running, or ended;
//! - of a client no more jobs are assigned than its cap allows, to a worker no more than it
//!   gave credit for, and of a key one job runs at a time;
//! - no job waits that could run;
//! - a token (job, number of its submission, attempt) is given once. Only the newest attempt can
//!   end a job: a result of an older one is stale and changes nothing.
//!
//! A lost connection ends nothing. A worker's leases go on; it may come back and renew them, and
//! if it does not, they run out and its jobs run elsewhere. A worker stops its own jobs
//! before its leases end, so two attempts overlap only if clocks run at different speeds. A worker
//! that lets a lease run out over an open connection is stuck: it gets no more jobs until it is
//! heard of again.
//!
//! A worker is its name, on whose behalf it works, and which instance it is ([`WorkerId`]). Only a
//! connection of all these takes the place of an earlier one; another worker of the same name is
//! another worker.
//!
//! An [`Effect::Save`] must be durable before the effects behind it are carried out.
//!
//! Not here: what a job runs, and the bytes of requests and results.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::name::TopicName;
use crate::pattern::Pattern;
use crate::time::Timestamp;

use super::record::{End, Record, Spec, Stage, WorkerId};
pub use super::turn::WEIGHT_MAX;
use super::turn::{ClientNo, ExecNo, Place, Turn, WorkerNo};
use super::{JobId, Token};
pub use event::{Closing, Effect, Input, Outcome, Refusal, Session};
pub use look::{ClientView, Filter, Found, LOOKED_AT_MAX, State, WorkerView};
pub use schedule::Calendar;

mod attempt;
mod connection;
mod event;
mod look;
mod place;
mod request;
mod schedule;
mod visit;

/// What workers subscribe to: this, and the name of the executable.
pub const ASSIGN_PREFIX: &str = "job.assign.";
/// Most credit a worker may have: a larger value is taken for a mistake.
pub const CREDIT_MAX: u32 = 1024;
/// Most executables with open jobs: workers are matched with each.
pub const EXECS_MAX: usize = 4096;

/// Times and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a worker may be silent about an attempt. It stops its job before that.
    pub lease: Duration,
    /// How much longer the leader waits before it gives the job to another worker.
    pub margin: Duration,
    /// How long an ended job is remembered, with its result.
    pub keep: Duration,
    /// By how much waiting raises a job's priority by one.
    pub age_step: Duration,
    /// Cap of a client that told none.
    pub cap: u32,
    /// Most jobs that are remembered, ended ones included.
    pub jobs_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            margin: Duration::from_secs(2),
            keep: Duration::from_secs(24 * 60 * 60),
            age_step: Duration::from_secs(60),
            cap: 4,
            jobs_max: 1_000_000,
        }
    }
}

/// Where a job is, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Not before this time.
    Delayed(Timestamp),
    /// Other jobs must succeed first.
    Blocked,
    /// Another job of its key is ready or running.
    KeyBusy,
    Ready,
    Running(Run),
    Ended {
        how: End,
        at: Timestamp,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    worker: WorkerNo,
    started: Timestamp,
    lease_ends: Timestamp,
    cancel: bool,
    charged_ms: u64,
}

#[derive(Clone, Debug)]
struct Job {
    spec: Arc<Spec>,
    client: ClientNo,
    exec: ExecNo,
    number: u64,
    submitted: Timestamp,
    attempt: u32,
    failures: u32,
    deaths: u32,
    phase: Phase,
    /// When it may run next, from its last record; kept while it is blocked or its key is busy.
    until: Timestamp,
    /// The schedule that it was made by, whose request is its own.
    origin: Option<JobId>,
    /// Its client's cap when it ended: the client may be forgotten before the job is.
    cap: Option<u32>,
    /// Connections that want its result.
    watchers: Vec<Session>,
}

impl Job {
    fn deadline(&self, keep: Duration) -> Option<Timestamp> {
        match &self.phase {
            Phase::Delayed(until) => Some(*until),
            Phase::Running(run) => Some(run.lease_ends),
            Phase::Ended { at, .. } => Some(at.after(keep)),
            Phase::Blocked | Phase::KeyBusy | Phase::Ready => None,
        }
    }

    /// Its newest attempt.
    fn token(&self) -> Token {
        Token { job: self.spec.id, number: self.number, attempt: self.attempt }
    }

    fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }
}

#[derive(Debug)]
struct Client {
    name: Arc<str>,
    /// As its last connection said, or the newest record of its jobs.
    cap: Option<u32>,
    in_flight: u32,
    open_jobs: usize,
    sessions: BTreeSet<Session>,
}

#[derive(Debug)]
struct Worker {
    id: WorkerId,
    session: Option<Session>,
    /// Whether that is a connection, which speaks for all its attempts.
    connected: bool,
    /// A lease of it ran out while it was connected: it gets nothing more until it is heard of.
    silent: bool,
    pattern: Option<Pattern>,
    credit: u32,
    running: BTreeSet<JobId>,
    /// Attempts that its hello did not name. They are lost when it speaks again on that connection.
    unnamed: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client(ClientNo),
    Worker(WorkerNo),
    Observer,
}

#[derive(Debug, Default)]
struct Key {
    holder: JobId,
    waiting: BTreeSet<Place>,
}

/// How many jobs are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting for a time, other jobs or their key.
    pub waiting: usize,
    /// Ready to run.
    pub ready: usize,
    /// With a worker.
    pub running: usize,
    /// Ended, and still remembered.
    pub ended: usize,
    /// Of these, those that were given up.
    pub dead: usize,
}

impl Counts {
    fn add(&mut self, phase: &Phase, by: isize) {
        let count = match phase {
            Phase::Delayed(_) | Phase::Blocked | Phase::KeyBusy => &mut self.waiting,
            Phase::Ready => &mut self.ready,
            Phase::Running(_) => &mut self.running,
            Phase::Ended { .. } => &mut self.ended,
        };
        *count = count.checked_add_signed(by).expect("counts follow phases");
        if State::of(phase) == State::Dead {
            self.dead = self.dead.checked_add_signed(by).expect("counts follow phases");
        }
    }
}

/// The machine; see the module.
#[derive(Debug)]
pub struct Leader {
    limits: Limits,
    calendar: Calendar,
    jobs: BTreeMap<JobId, Job>,
    /// All jobs by state and number, for lists.
    by_state: BTreeMap<(State, u64), JobId>,
    /// How many jobs that are known were made by a schedule.
    made_by: BTreeMap<JobId, usize>,
    clients: BTreeMap<ClientNo, Client>,
    client_names: BTreeMap<Arc<str>, ClientNo>,
    workers: BTreeMap<WorkerNo, Worker>,
    worker_ids: BTreeMap<WorkerId, WorkerNo>,
    sessions: BTreeMap<Session, Role>,
    turn: Turn,
    keys: BTreeMap<Arc<str>, Key>,
    unique: BTreeMap<Arc<str>, JobId>,
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    deadlines: BTreeSet<(Timestamp, JobId)>,
    /// Open jobs by executable, so that one without any is forgotten.
    exec_jobs: BTreeMap<ExecNo, usize>,
    next_number: u64,
    next_no: u32,
    counts: Counts,
}

impl Leader {
    /// A leader that knows of nothing yet. Restore first what is written down.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            calendar: |_, _| None,
            jobs: BTreeMap::new(),
            by_state: BTreeMap::new(),
            made_by: BTreeMap::new(),
            clients: BTreeMap::new(),
            client_names: BTreeMap::new(),
            workers: BTreeMap::new(),
            worker_ids: BTreeMap::new(),
            sessions: BTreeMap::new(),
            turn: Turn::default(),
            keys: BTreeMap::new(),
            unique: BTreeMap::new(),
            dependents: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            exec_jobs: BTreeMap::new(),
            next_number: 1,
            next_no: 0,
            counts: Counts::default(),
        }
    }

    /// The same, with schedules.
    #[must_use]
    pub fn with_calendar(self, calendar: Calendar) -> Self {
        Self { calendar, ..self }
    }

    /// The same; the next job gets this number or a higher one. Numbers of jobs that are forgotten
    /// are not in any record, and must not be given again.
    #[must_use]
    pub fn numbered_from(self, first: u64) -> Self {
        Self { next_number: self.next_number.max(first), ..self }
    }

    /// Takes in what happened, and says what must be done.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Restore(record) => return self.insert(record),
            Input::Restored => self.restored(now),
            Input::Client { session, name, cap, weight } => {
                self.client_came(session, &name, cap, weight);
            }
            Input::Worker { session, worker, pattern, running } => {
                self.worker_came(now, (session, &worker, pattern), &running, effects);
            }
            Input::Observer(session) => self.observer_came(session),
            Input::Visit { session, worker, pattern } => {
                self.visit(session, &worker, pattern, effects);
            }
            Input::Withdraw(session) => self.withdraw(session, effects),
            Input::GiveBack(session, token) => self.give_back(now, session, token, effects),
            Input::Forget(session, job) => self.forget(session, job, effects),
            Input::Gone(session) => self.gone(session),
            Input::Credit(session, more) => {
                self.heard(now, session, effects);
                self.credit(session, more, effects);
            }
            // What is due to be forgotten is not there any more for what is asked now.
            Input::Submit(session, spec) => {
                self.pass_time(now, effects);
                self.submit(now, session, spec, effects);
            }
            Input::Watch(session, job) => {
                self.pass_time(now, effects);
                self.watch(session, job, effects);
            }
            Input::Renew(session, token) => {
                self.heard(now, session, effects);
                self.renew(now, session, token, effects);
            }
            Input::Ack(session, token, outcome) => {
                self.heard(now, session, effects);
                self.ack(now, (session, token), outcome, effects);
            }
            Input::Cancel(session, job) => self.cancel(now, session, job, effects),
            Input::Retry(session, job) => self.retry(now, session, job, effects),
            Input::Heard(session) => self.heard(now, session, effects),
            Input::Tick => {}
        }
        self.pass_time(now, effects);
        self.assign(now, effects);
    }

    /// When the next thing happens by itself.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// How many jobs are where.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How long a worker may be silent about an attempt.
    pub fn lease(&self) -> Duration {
        self.limits.lease
    }

    /// A job as it is to be written down; `None` if it is not known.
    pub fn record(&self, job: JobId) -> Option<Record> {
        let known = self.jobs.get(&job)?;
        let stage = match &known.phase {
            Phase::Delayed(_) | Phase::Blocked | Phase::KeyBusy | Phase::Ready => {
                Stage::Open { until: known.until }
            }
            Phase::Running(run) => Stage::Running {
                worker: self.workers[&run.worker].id.clone(),
                started: run.started,
                cancel: run.cancel,
            },
            Phase::Ended { how, at } => Stage::Ended { how: *how, at: *at },
        };
        Some(Record {
            spec: Arc::clone(&known.spec),
            number: known.number,
            submitted: known.submitted,
            attempt: known.attempt,
            failures: known.failures,
            deaths: known.deaths,
            origin: known.origin,
            cap: self.clients.get(&known.client).map_or(known.cap, |client| client.cap),
            stage,
        })
    }

    /// The ids of all jobs that are known.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.jobs.keys().copied()
    }

    /// The connections that want the result of a job.
    pub fn watchers(&self, job: JobId) -> &[Session] {
        self.jobs.get(&job).map_or(&[], |known| &known.watchers)
    }

    /// A word for where a job is.
    pub fn phase_name(&self, job: JobId) -> Option<&'static str> {
        self.jobs.get(&job).map(|known| match &known.phase {
            Phase::Delayed(_) => "delayed",
            Phase::Blocked => "blocked",
            Phase::KeyBusy => "waiting for its key",
            Phase::Ready => "ready",
            Phase::Running(_) => "running",
            Phase::Ended { how, .. } => how.name(),
        })
    }
}

/// Time, and assigning.
impl Leader {
    fn pass_time(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                return;
            }
            match &self.jobs[&id].phase {
                Phase::Delayed(_) if self.jobs[&id].spec.cron.is_some() => {
                    self.fire(now, id, effects);
                }
                Phase::Delayed(_) => self.admit(now, id),
                Phase::Running(run) => {
                    let worker = run.worker;
                    self.fell_silent(worker);
                    self.lost(now, id, effects);
                }
                // The request of a schedule is that of the jobs it made.
                Phase::Ended { how, .. } if self.made_by.contains_key(&id) => {
                    let how = *how;
                    self.set_phase(id, Phase::Ended { how, at: now });
                    effects.push(Effect::Save(id));
                }
                _ => {
                    self.remove(id);
                    effects.push(Effect::Forget(id));
                }
            }
        }
    }

    fn assign(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some(next) = self.turn.next() {
            let (id, no) = (next.job, next.worker);
            let worker = self.workers.get_mut(&no).expect("a free worker is known");
            let session = worker.session.expect("a free worker is connected");
            worker.credit -= 1;
            worker.running.insert(id);
            if worker.credit == 0 {
                self.turn.set_free(no, false);
            }
            let job = self.jobs.get_mut(&id).expect("a ready job is known");
            job.attempt += 1;
            let (client, exec) = (job.client, job.exec);
            let token = job.token();
            let charged_ms = self.turn.mean_ms(exec);
            let run = Run {
                worker: no,
                started: now,
                lease_ends: now.after(self.limits.lease + self.limits.margin),
                cancel: false,
                charged_ms,
            };
            self.set_phase(id, Phase::Running(run));
            self.turn.charge(exec, client, i64::try_from(charged_ms).unwrap_or(i64::MAX));
            self.in_flight(client, 1);
            effects.push(Effect::Save(id));
            effects.push(Effect::Assign { session, token });
        }
    }

    /// Asserts the promises of the module's head.
    pub fn check(&self) {
        self.turn.check();
        let mut counts = Counts::default();
        let mut in_flight: BTreeMap<ClientNo, u32> = BTreeMap::new();
        let mut open: BTreeMap<ClientNo, usize> = BTreeMap::new();
        let mut deadlines = BTreeSet::new();
        for (id, job) in &self.jobs {
            match &job.phase {
                Phase::Delayed(_) | Phase::Blocked | Phase::KeyBusy => counts.waiting += 1,
                Phase::Ready => counts.ready += 1,
                Phase::Running(run) => {
                    counts.running += 1;
                    *in_flight.entry(job.client).or_default() += 1;
                    assert!(self.workers[&run.worker].running.contains(id), "its worker has it");
                    assert!(job.attempt > 0, "what runs has an attempt");
                }
                Phase::Ended { how, .. } => {
                    counts.ended += 1;
                    counts.dead += usize::from(how.is_dead());
                }
            }
            let listed = self.by_state.get(&(State::of(&job.phase), job.number));
            assert_eq!(listed, Some(id), "lists follow phases");
            let holds = matches!(job.phase, Phase::Ready | Phase::Running(_));
            if let Some(name) = job.spec.key.as_ref().filter(|_| holds) {
                assert_eq!(self.keys[name].holder, *id, "of a key one job goes at a time");
            }
            if job.phase == Phase::KeyBusy {
                let place = place_of(job, self.limits.age_step);
                let name = job.spec.key.as_ref().expect("it waits for its key");
                assert!(self.keys[name].waiting.contains(&place), "its key knows that it waits");
            }
            if job.is_open() {
                *open.entry(job.client).or_default() += 1;
                assert!(job.failures < job.spec.attempts_max, "it is not dead");
            }
            deadlines.extend(job.deadline(self.limits.keep).map(|at| (at, *id)));
        }
        assert_eq!(counts, self.counts, "counts follow phases");
        assert_eq!(self.by_state.len(), self.jobs.len(), "a job is listed once");
        assert_eq!(deadlines, self.deadlines, "deadlines follow phases");
        for (no, client) in &self.clients {
            assert_eq!(client.in_flight, in_flight.remove(no).unwrap_or(0), "jobs in flight");
            assert_eq!(client.open_jobs, open.remove(no).unwrap_or(0), "open jobs");
        }
        let ran: usize = self.workers.values().map(|worker| worker.running.len()).sum();
        assert_eq!(ran, counts.running, "each running job is with one worker");
        for worker in self.workers.values() {
            assert!(worker.session.is_some() || worker.credit == 0, "who is away has no credit");
            assert!(!worker.silent || worker.connected, "only a connection can be silent");
        }
    }
}

/// The place of a job among those of its client. A higher priority counts as if the job had
/// been submitted that much earlier, so that waiting makes up for it in the end.
fn place_of(job: &Job, age_step: Duration) -> Place {
    let ahead = age_step.as_millis() as i64 * i64::from(job.spec.priority);
    let submitted = i64::try_from(job.submitted.0).unwrap_or(i64::MAX);
    Place { rank: submitted.saturating_sub(ahead), number: job.number, job: job.spec.id }
}

/// Whether a worker with this pattern runs the executable.
fn runs(pattern: &Pattern, exec: &str) -> bool {
    let mut subject = alloc::string::String::from(ASSIGN_PREFIX);
    subject.push_str(exec);
    TopicName::parse(&subject).is_ok_and(|subject| pattern.matches(&subject))
}
