//! Jobs, workers and clients as people see them, in JSON: on the wire, over HTTP, on the page.

use std::collections::BTreeMap;

use gapless_core::job::leader::{ClientView, State, WorkerView};
use gapless_core::job::record::{Record, Stage};
use serde::{Deserialize, Serialize};

use crate::wire::JobResult;

/// Most jobs in one answer.
pub const PAGE_MAX: usize = 1_000;
/// Jobs in an answer, unless the question says otherwise.
pub const PAGE_DEFAULT: usize = 50;
/// Most workers, and most clients, in an overview.
pub const NAMES_SHOWN_MAX: usize = 1_000;

/// A question about jobs, or a wish that an ended one be forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobQuery {
    /// What is asked.
    pub ask: Question,
    /// About which job: `show`, `log`, `forget`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Only jobs in this state: `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only jobs that run this: `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_name: Option<String>,
    /// Only jobs of this client: `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Only schedules: `list`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub schedules: bool,
    /// How many at most: `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where an earlier answer stopped: `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// How all stands.
    #[default]
    Overview,
    /// Jobs, newest first.
    List,
    /// One job, with its result if it has one.
    Show,
    /// What a running job wrote lately.
    Log,
    /// Forget an ended job.
    Forget,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobShown {
    /// Its id.
    pub job_id: String,
    /// Whose it is.
    pub client_id: String,
    /// What it runs.
    pub exec_name: String,
    /// Where it is: waiting, ready, running, succeeded, failed, cancelled or dead.
    pub state: String,
    /// The same, more exactly.
    pub phase: String,
    /// Jobs are numbered as they are accepted.
    pub number: u64,
    /// 0 to 9.
    pub priority: u8,
    /// When it was accepted, in milliseconds since 1970.
    pub submitted_ms: u64,
    /// The number of its last attempt; 0 if there was none.
    pub attempt: u32,
    /// How often it failed since it was submitted or retried.
    pub failures: u32,
    /// How many workers were lost with it since then.
    pub lost_workers: u32,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// Whether it is to be cancelled, and its worker has not answered yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelling: bool,
    /// When it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Of a schedule: when it has a job run, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The schedule that it was made by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
}

impl JobShown {
    pub(crate) fn new(record: &Record, state: State, phase: &str) -> Self {
        let spec = &record.spec;
        let mut shown = Self {
            job_id: spec.id.to_string(),
            client_id: spec.client.to_string(),
            exec_name: spec.exec.to_string(),
            state: state.name().to_owned(),
            phase: phase.to_owned(),
            number: record.number,
            priority: spec.priority,
            submitted_ms: record.submitted.0,
            attempt: record.attempt,
            failures: record.failures,
            lost_workers: record.deaths,
            worker_id: None,
            started_ms: None,
            cancelling: false,
            not_before_ms: None,
            ended_ms: None,
            cron: spec.cron.as_ref().map(ToString::to_string),
            schedule_id: record.origin.map(|schedule| schedule.to_string()),
        };
        match &record.stage {
            Stage::Open { until } => shown.not_before_ms = Some(until.0).filter(|until| *until > 0),
            Stage::Running { worker, started, cancel } => {
                shown.worker_id = Some(worker.name.to_string());
                shown.started_ms = Some(started.0);
                shown.cancelling = *cancel;
            }
            Stage::Ended { at, .. } => shown.ended_ms = Some(at.0),
        }
        shown
    }
}

/// A part of a list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobPage {
    /// The jobs, newest first.
    pub jobs: Vec<JobShown>,
    /// Where the list goes on; it may go on even if there are fewer jobs here than asked for.
    pub next: Option<u64>,
}

/// A job with what it was given and what it left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: JobShown,
    /// Its arguments.
    pub args: Vec<String>,
    /// The names of its input files, and how many bytes each has.
    pub files: BTreeMap<String, u64>,
    /// Its result, when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// What a running job wrote lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobLog {
    /// Pieces, as its worker sent them.
    pub pieces: Vec<serde_json::Value>,
    /// Whether older pieces were left out.
    pub shortened: bool,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct WorkerShown {
    /// Who it is.
    pub worker_id: String,
    /// What it takes.
    pub pattern: Option<String>,
    /// Whether it is connected, or waits for a job.
    pub connected: bool,
    /// How many more jobs it takes.
    pub credit: u32,
    /// How many it has.
    pub running: usize,
}

impl From<WorkerView> for WorkerShown {
    fn from(worker: WorkerView) -> Self {
        Self {
            worker_id: worker.name.to_string(),
            pattern: worker.pattern.map(|pattern| pattern.to_string()),
            connected: worker.connected,
            credit: worker.credit,
            running: worker.running,
        }
    }
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClientShown {
    /// Who it is.
    pub client_id: String,
    /// Whether it is connected.
    pub connected: bool,
    /// How many of its jobs may run at a time.
    pub cap: u32,
    /// How many do.
    pub in_flight: u32,
    /// How many of its jobs have not ended.
    pub open: usize,
}

impl From<ClientView> for ClientShown {
    fn from(client: ClientView) -> Self {
        Self {
            client_id: client.name.to_string(),
            connected: client.connected,
            cap: client.cap,
            in_flight: client.in_flight,
            open: client.open,
        }
    }
}

/// How long something takes, since the leader started. Quantiles are at most a quarter too
/// high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Times {
    /// How many were measured.
    pub count: u64,
    /// What they took together.
    pub sum_ms: u64,
    /// Half of them took at most this.
    pub p50_ms: Option<u64>,
    /// 95 of 100 took at most this.
    pub p95_ms: Option<u64>,
    /// 99 of 100 took at most this.
    pub p99_ms: Option<u64>,
}

/// How all stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Overview {
    /// Jobs that wait for a time, for other jobs, or for their key.
    pub waiting: usize,
    /// Jobs that wait for a worker.
    pub ready: usize,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that have ended and are remembered.
    pub ended: usize,
    /// Of these, those that were given up.
    pub dead: usize,
    /// What happened since the leader started.
    pub totals: Totals,
    /// From being accepted, or ready again, until a worker got it.
    pub wait: Times,
    /// From when a worker got it until the attempt was over.
    pub run: Times,
    /// The workers, by name.
    pub workers: Vec<WorkerShown>,
    /// The clients, by name.
    pub clients: Vec<ClientShown>,
}

/// What happened since the leader started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Totals {
    /// Jobs accepted.
    pub submitted: u64,
    /// Jobs that ended well.
    pub succeeded: u64,
    /// Jobs that ran and failed.
    pub failed: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that were given up.
    pub dead: u64,
    /// Attempts after the first one of a job.
    pub resends: u64,
    /// What workers said of attempts that did not count any more.
    pub stale: u64,
}
