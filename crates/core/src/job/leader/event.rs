//! What happens to a leader, and what it wants done.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::job::record::{Record, Spec, WorkerId};
use crate::job::{JobId, Token};
use crate::pattern::Pattern;

/// A connection of a client or worker, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// What became of an attempt, as its worker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and succeeded.
    Succeeded,
    /// It ran and failed; `again` if its retry rule says that it may be tried again.
    Failed {
        /// Whether it may be tried again.
        again: bool,
    },
    /// The worker could not start it; another one may.
    NotStarted,
    /// It was stopped because it was cancelled.
    Cancelled,
    /// The worker ends and gives it back: another one may have it at once, and nothing is counted.
    /// The worker takes no more jobs until it gives credit again.
    Returned,
}

/// What happens to a leader.
#[derive(Clone, Debug)]
pub enum Input {
    /// A job that was written down earlier, before anything else.
    Restore(Record),
    /// All that was written down is restored.
    Restored,
    /// A client is connected.
    Client {
        /// Its connection.
        session: Session,
        /// Who it is.
        name: Arc<str>,
        /// How many of its jobs may run at a time.
        cap: u32,
        /// Its share of the run time beside other clients; at most [`super::WEIGHT_MAX`].
        weight: u32,
    },
    /// A worker is connected.
    Worker {
        /// Its connection.
        session: Session,
        /// Who it is.
        worker: WorkerId,
        /// What it runs: a pattern over `job.assign.<exec>`.
        pattern: Pattern,
        /// The attempts it is still at, from before.
        running: Vec<Token>,
    },
    /// An observer is connected: it lists and manages jobs, and may submit for any client.
    Observer(Session),
    /// A request of a worker that has no connection of its own: with a pattern it waits for a job,
    /// without one it speaks of attempts.
    Visit {
        /// The request.
        session: Session,
        /// Who the worker is.
        worker: WorkerId,
        /// What it runs.
        pattern: Option<Pattern>,
    },
    /// A worker takes no more jobs.
    Withdraw(Session),
    /// An attempt did not reach its worker.
    GiveBack(Session, Token),
    /// An ended job is not to be remembered any more.
    Forget(Session, JobId),
    /// A connection is gone.
    Gone(Session),
    /// A worker takes this many jobs more.
    Credit(Session, i32),
    /// A client wants a job to be done.
    Submit(Session, Arc<Spec>),
    /// A client wants the result of a job, now or when it ends.
    Watch(Session, JobId),
    /// A worker is there, whatever it is at.
    Heard(Session),
    /// A worker is still at it.
    Renew(Session, Token),
    /// A worker says what became of an attempt.
    Ack(Session, Token, Outcome),
    /// A job is not wanted any more.
    Cancel(Session, JobId),
    /// A job that ended without success is to be tried again.
    Retry(Session, JobId),
    /// Time has passed.
    Tick,
}

/// What must be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The record of a job changed: append it. All effects behind it wait until it is durable.
    Save(JobId),
    /// The job and its result are to be forgotten.
    Forget(JobId),
    /// A submit is accepted; `known` if the job was there already.
    Submitted {
        /// To whom.
        session: Session,
        /// Which job.
        job: JobId,
        /// Whether it is not new.
        known: bool,
    },
    /// A request was refused. Nothing was changed by it.
    Refused {
        /// To whom.
        session: Session,
        /// About which job.
        job: JobId,
        /// Why.
        why: Refusal,
    },
    /// A worker is to run a job.
    Assign {
        /// The worker's connection.
        session: Session,
        /// The attempt.
        token: Token,
    },
    /// A worker is to stop an attempt.
    Revoke {
        /// The worker's connection.
        session: Session,
        /// The attempt.
        token: Token,
    },
    /// The lease of an attempt is extended.
    Renewed {
        /// The worker's connection.
        session: Session,
        /// The attempt.
        token: Token,
    },
    /// An outcome counts.
    Taken {
        /// The worker's connection.
        session: Session,
        /// The attempt.
        token: Token,
    },
    /// An attempt is not the one that counts: its outcome is dropped, its lease is lost.
    Stale {
        /// The worker's connection.
        session: Session,
        /// The attempt.
        token: Token,
    },
    /// A client is to get the result of a job.
    Result {
        /// The client's connection.
        session: Session,
        /// Which job.
        job: JobId,
    },
    /// A worker's credit is void.
    Withdrawn {
        /// The worker's connection.
        session: Session,
        /// How much of it was left: the rest became assignments.
        unspent: u32,
    },
    /// A cancel, retry or forget is done.
    Done {
        /// To whom.
        session: Session,
        /// Which job.
        job: JobId,
    },
    /// A connection must end: it broke the rules, or a newer one took its place.
    Close {
        /// Which.
        session: Session,
        /// Why.
        why: Closing,
    },
}

/// Why a request was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another job has this id.
    #[error("another job has this id: choose a new one")]
    IdTaken,
    /// A job with the same unique value is not ended.
    #[error("job {0} has the same unique value and is not ended")]
    NotUnique(JobId),
    /// No such job is known; it may have been forgotten.
    #[error("job {0} is not known; ended jobs are forgotten after a time")]
    Unknown(JobId),
    /// The job is not ended, or it succeeded.
    #[error("only a job that ended without success can be retried")]
    NotRetryable,
    /// The job is not ended.
    #[error("the job has not ended: cancel it first")]
    NotEnded,
    /// The job is ended.
    #[error("the job has ended")]
    AlreadyEnded,
    /// So many jobs or executables are known that no more are taken.
    #[error("too many {what}: at most {most}; try again later")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        most: usize,
    },
    /// The time of the schedule never comes.
    #[error("the time of this schedule never comes")]
    NoTime,
    /// The connection has not said that it is a client.
    #[error("a client must introduce itself first")]
    NoHello,
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The worker gave credit that makes no sense.
    BadCredit,
    /// The same worker came by another connection.
    Replaced,
}
