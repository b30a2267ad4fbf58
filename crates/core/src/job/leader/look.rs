//! What people ask about jobs: lists by state, workers, clients.
//!
//! Jobs are listed newest first, by the numbers they got when they were accepted. A step of a list
//! looks at a bounded number of jobs and says where the next one goes on, so that a question
//! costs the same whatever is remembered.

use super::*;

/// Most jobs that one step of a list looks at.
pub const LOOKED_AT_MAX: usize = 10_000;

/// Where a job is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It waits for a time, for other jobs, or for its key.
    Waiting,
    /// It waits for a worker.
    Ready,
    /// A worker has it.
    Running,
    /// It ended well.
    Succeeded,
    /// It ran and failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It was given up: a person should look at it.
    Dead,
}

impl State {
    /// Every state, in the order in which a job goes through them.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Ready,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Dead,
    ];

    /// Its word, the same everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Dead => "dead",
        }
    }

    /// The state of this word.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    pub(super) fn of(phase: &Phase) -> Self {
        match phase {
            Phase::Delayed(_) | Phase::Blocked | Phase::KeyBusy => Self::Waiting,
            Phase::Ready => Self::Ready,
            Phase::Running(_) => Self::Running,
            Phase::Ended { how: End::Succeeded, .. } => Self::Succeeded,
            Phase::Ended { how: End::Failed, .. } => Self::Failed,
            Phase::Ended { how: End::Cancelled, .. } => Self::Cancelled,
            Phase::Ended { .. } => Self::Dead,
        }
    }
}

/// Which jobs are wanted; what is not given does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Where they are.
    pub state: Option<State>,
    /// What they run.
    pub exec: Option<Arc<str>>,
    /// Whose they are.
    pub client: Option<Arc<str>>,
    /// Only schedules.
    pub schedules: bool,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The jobs, newest first.
    pub jobs: Vec<JobId>,
    /// Where the list goes on: jobs with lower numbers than this; `None` at its end.
    pub next: Option<u64>,
}

/// A worker, as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Who it is.
    pub name: Arc<str>,
    /// What it takes; not known when it has not been here since the leader started.
    pub pattern: Option<Pattern>,
    /// Whether it is connected, or waits for a job.
    pub connected: bool,
    /// How many more jobs it takes.
    pub credit: u32,
    /// How many it has.
    pub running: usize,
}

/// A client, as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientView {
    /// Who it is.
    pub name: Arc<str>,
    /// Whether it is connected.
    pub connected: bool,
    /// How many of its jobs may run at a time.
    pub cap: u32,
    /// How many do.
    pub in_flight: u32,
    /// How many of its jobs have not ended.
    pub open: usize,
}

impl Leader {
    /// The next jobs of a list, from those with lower numbers than `below` on.
    pub fn find(&self, filter: &Filter, below: u64, most: usize) -> Found {
        let one = filter.state.map(|state| [state]);
        let states = one.as_ref().map_or(&State::ALL[..], |one| &one[..]);
        let mut found = Found::default();
        let mut below = below;
        for _ in 0..LOOKED_AT_MAX {
            let newest = states.iter().filter_map(|state| {
                let before = self.by_state.range((*state, 0)..(*state, below)).next_back();
                before.map(|((_, number), job)| (*number, *job))
            });
            let Some((number, job)) = newest.max() else { return found };
            if found.jobs.len() == most {
                break;
            }
            below = number;
            let spec = &self.jobs[&job].spec;
            if filter.exec.as_ref().is_none_or(|exec| *exec == spec.exec)
                && filter.client.as_ref().is_none_or(|client| *client == spec.client)
                && (!filter.schedules || spec.cron.is_some())
            {
                found.jobs.push(job);
            }
        }
        found.next = Some(below);
        found
    }

    /// Whether this is the attempt that counts, and this connection has it.
    pub fn has(&self, session: Session, token: Token) -> bool {
        let Some(Role::Worker(no)) = self.sessions.get(&session) else { return false };
        self.jobs.get(&token.job).is_some_and(|job| match &job.phase {
            Phase::Running(run) => run.worker == *no && job.token() == token,
            _ => false,
        })
    }

    /// Whether there are jobs of this executable that have not ended.
    pub fn has_open(&self, exec: &str) -> bool {
        self.turn.knows(exec)
    }

    /// Where a job is, in one word; `None` if it is not known.
    pub fn state(&self, job: JobId) -> Option<State> {
        self.jobs.get(&job).map(|known| State::of(&known.phase))
    }

    /// The workers that are connected or have jobs, by name.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.worker_ids.values().map(|no| {
            let worker = &self.workers[no];
            WorkerView {
                name: Arc::clone(&worker.id.name),
                pattern: worker.pattern.clone(),
                connected: worker.session.is_some(),
                credit: worker.credit,
                running: worker.running.len(),
            }
        })
    }

    /// The clients that are connected or have jobs that have not ended, by name.
    pub fn clients(&self) -> impl Iterator<Item = ClientView> {
        self.client_names.values().map(|no| {
            let client = &self.clients[no];
            ClientView {
                name: Arc::clone(&client.name),
                connected: !client.sessions.is_empty(),
                cap: client.cap.unwrap_or(self.limits.cap),
                in_flight: client.in_flight,
                open: client.open_jobs,
            }
        })
    }
}
