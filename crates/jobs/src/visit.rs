//! Those who look and manage, and workers that have no connection between their requests.
//!
//! An [`Observer`] is a seat at the leader: it submits for any client, cancels, retries, forgets,
//! and waits for results. A worker without a connection [takes](Leader::take) by one request, which
//! waits for a job, and [speaks](Leader::speak) of an attempt by others. What was assigned to a
//! request that is not there any more goes back to the queue, and nothing is counted: it certainly
//! did not reach the worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::Pattern;
use gapless_core::job::leader::{Outcome, Refusal, Session};
use gapless_core::job::record::{Spec, WorkerId};
use gapless_core::job::{JobId, Token};
use tokio::sync::mpsc;

use crate::clock;
use crate::error::JobsError;
use crate::leader::{Ask, Leader, Tell};
pub use crate::log::PIECE_BYTES_MAX;
use crate::shown::JobDetail;
use crate::wire::{JobRequest, JobResult};

/// Why something was not done. Nothing was changed, unless the leader stopped meanwhile.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// The leader refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another leader leads such jobs.
    #[error("jobs of {exec} are led by {leader}: submit it there")]
    Elsewhere {
        /// What it runs.
        exec: Arc<str>,
        /// Who leads it.
        leader: Arc<str>,
    },
    /// What was submitted cannot be read.
    #[error("the request of job {0} cannot be read; it is ready again")]
    Lost(JobId),
    /// The leader starts again, or another request took the place of this one.
    #[error("{0}")]
    Closed(&'static str),
    /// The leader cannot do it.
    #[error(transparent)]
    Leader(#[from] JobsError),
}

/// What a worker says of an attempt.
#[derive(Debug)]
pub enum Said {
    /// It is still at it.
    Extend,
    /// It is still at it, and the job wrote this.
    Wrote(Bytes),
    /// What became of it, and the result as it is stored.
    Over(Outcome, Bytes),
}

/// What the leader answers to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The lease goes on, or the outcome counts.
    Counts,
    /// The job is to be cancelled: stop it.
    Cancelled,
    /// The attempt does not count any more: stop it.
    Stale,
}

/// A seat at the leader, which is given back when this is dropped.
pub struct Observer {
    leader: Leader,
    session: Session,
    tells: mpsc::Receiver<Tell>,
}

impl Drop for Observer {
    fn drop(&mut self) {
        let (leader, session) = (self.leader.clone(), self.session);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // A leader that has stopped has no seats.
            runtime.spawn(async move { drop(leader.ask(session, Ask::Gone).await) });
        }
    }
}

impl Observer {
    /// Submits a job; tells whether it was known before.
    ///
    /// # Errors
    /// When it was refused, or the leader cannot take it.
    pub async fn submit(&mut self, spec: Spec, request: Bytes) -> Result<bool, VisitError> {
        let job = spec.id;
        // Only connections are passed on to other leaders; here it would wait for ever.
        if let Some(leader) = self.leader.routes().leader_of(&spec.exec) {
            let (exec, leader) = (Arc::clone(&spec.exec), Arc::clone(leader));
            return Err(VisitError::Elsewhere { exec, leader });
        }
        match self.call(job, Ask::Submit(Box::new(spec), request)).await? {
            Tell::Submitted { known, .. } => Ok(known),
            _ => Ok(false),
        }
    }

    /// Asks that a job be cancelled.
    ///
    /// # Errors
    /// When it has ended or is not known.
    pub async fn cancel(&mut self, job: JobId) -> Result<(), VisitError> {
        self.call(job, Ask::Cancel(job)).await.map(drop)
    }

    /// Asks that a job which ended without success be tried again.
    ///
    /// # Errors
    /// When it did not end so, or is not known.
    pub async fn retry(&mut self, job: JobId) -> Result<(), VisitError> {
        self.call(job, Ask::Retry(job)).await.map(drop)
    }

    /// Asks that an ended job be forgotten.
    ///
    /// # Errors
    /// When it has not ended, or is not known.
    pub async fn forget(&mut self, job: JobId) -> Result<(), VisitError> {
        self.call(job, Ask::Forget(job)).await.map(drop)
    }

    /// Waits for the end of a job, and gives what it writes until then, from what is kept on.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn follow(&mut self, job: JobId) -> Result<(), VisitError> {
        Ok(self.leader.ask(self.session, Ask::Follow(job)).await?)
    }

    /// What the leader says next: a piece of what a job wrote, or its end.
    ///
    /// # Errors
    /// When the job is not known, or the leader has stopped.
    pub async fn next(&mut self) -> Result<Next, VisitError> {
        loop {
            match self.tell().await? {
                Tell::Progress(_, piece) => return Ok(Next::Wrote(piece)),
                Tell::Result(record, left) => {
                    return Ok(Next::Ended(Box::new(self.leader.result(&record, left).await)));
                }
                Tell::Refused { why, .. } => return Err(VisitError::Refused(why)),
                _ => {}
            }
        }
    }

    /// Waits for the end of a job.
    ///
    /// # Errors
    /// When it is not known, or the leader has stopped.
    pub async fn result(&mut self, job: JobId) -> Result<JobResult, VisitError> {
        self.leader.ask(self.session, Ask::Watch(job)).await?;
        loop {
            if let Next::Ended(result) = self.next().await? {
                return Ok(*result);
            }
        }
    }

    async fn call(&mut self, job: JobId, ask: Ask) -> Result<Tell, VisitError> {
        self.leader.ask(self.session, ask).await?;
        loop {
            match self.tell().await? {
                Tell::Refused { job: about, why } if about == job => {
                    return Err(VisitError::Refused(why));
                }
                done @ (Tell::Submitted { .. } | Tell::Done(_)) => return Ok(done),
                _ => {}
            }
        }
    }

    async fn tell(&mut self) -> Result<Tell, VisitError> {
        match self.tells.recv().await {
            Some(Tell::Close(why)) => Err(VisitError::Closed(why)),
            Some(tell) => Ok(tell),
            None => Err(JobsError::Stopped.into()),
        }
    }
}

/// What an [`Observer`] hears.
#[derive(Debug)]
pub enum Next {
    /// The job wrote something: JSON, as its worker sent it.
    Wrote(Bytes),
    /// It has ended.
    Ended(Box<JobResult>),
}

impl Leader {
    /// A seat for an observer, which lists and manages jobs.
    ///
    /// # Errors
    /// When the leader has stopped, or its topics cannot be created.
    pub async fn observe(&self) -> Result<Observer, JobsError> {
        self.prepare().await?;
        let (session, (out, tells)) = (self.new_session(), Self::channel());
        self.ask(session, Ask::Observer { out }).await?;
        Ok(Observer { leader: self.clone(), session, tells })
    }

    /// A job with what it was given and what it left; `None` when it is not known.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn detail(&self, job: JobId) -> Result<Option<JobDetail>, JobsError> {
        let Some(view) = self.describe(job).await? else { return Ok(None) };
        let request = self.request(job).await.unwrap_or_default();
        let request: JobRequest = serde_json::from_slice(&request).unwrap_or_default();
        // Of base64 four characters are three bytes.
        let bytes_of = |text: &String| {
            let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
            (text.len() / 4 * 3).saturating_sub(padding) as u64
        };
        let shown = view.shown();
        let result = match shown.ended_ms {
            Some(_) => Some(self.result(&view.record, None).await),
            None => None,
        };
        Ok(Some(JobDetail {
            job: shown,
            args: request.args,
            files: request
                .files
                .iter()
                .map(|(name, text)| (name.clone(), bytes_of(text)))
                .collect(),
            result,
        }))
    }

    /// Takes a job for a worker without a connection; waits for one for so long.
    ///
    /// # Errors
    /// When another request of the same worker took the place of this one, or the leader stopped.
    pub async fn take(
        &self,
        worker: WorkerId,
        pattern: Pattern,
        wait: Duration,
    ) -> Result<Option<(Token, Bytes)>, VisitError> {
        self.prepare().await?;
        let mut taking = Taking::begin(self, worker, pattern).await?;
        let first = tokio::select! {
            assigned = taking.assigned() => Some(assigned?),
            () = clock::pause(wait) => None,
        };
        let token = match first {
            Some(token) => Some(token),
            None => taking.last().await?,
        };
        let Some((token, request)) = token else { return Ok(None) };
        let request = match request {
            Some(request) => Some(request),
            None => self.request(token.job).await,
        };
        match request {
            Some(request) => {
                taking.open = None;
                taking.leave().await;
                Ok(Some((token, request)))
            }
            // It stays assigned until this is dropped, and goes back then.
            None => Err(VisitError::Lost(token.job)),
        }
    }

    /// A worker without a connection speaks of an attempt.
    ///
    /// # Errors
    /// When the leader has stopped.
    pub async fn speak(
        &self,
        worker: WorkerId,
        token: Token,
        said: Said,
    ) -> Result<Heard, VisitError> {
        self.prepare().await?;
        let (session, (out, tells)) = (self.new_session(), Self::channel());
        self.ask(session, Ask::Visit { worker, pattern: None, out }).await?;
        let mut seat = Observer { leader: self.clone(), session, tells };
        let ask = match said {
            Said::Extend => Ask::Renew(token),
            Said::Wrote(piece) => Ask::Progress(token, piece),
            Said::Over(outcome, result) => Ask::Ack(token, outcome, result),
        };
        self.ask(session, ask).await?;
        loop {
            match seat.tell().await? {
                Tell::Renewed(_) | Tell::Taken(_) => return Ok(Heard::Counts),
                Tell::Revoke(_) => return Ok(Heard::Cancelled),
                Tell::Stale(_) => return Ok(Heard::Stale),
                _ => {}
            }
        }
    }
}

type Assigned = (Token, Option<Bytes>);

/// A request that waits for a job. When it is dropped, what was assigned to it goes back.
struct Taking {
    leader: Leader,
    session: Session,
    tells: Option<mpsc::Receiver<Tell>>,
    /// What was assigned and not handed out.
    open: Option<Token>,
}

impl Taking {
    async fn begin(leader: &Leader, worker: WorkerId, pattern: Pattern) -> Result<Self, JobsError> {
        let (session, (out, tells)) = (leader.new_session(), Leader::channel());
        leader.ask(session, Ask::Visit { worker, pattern: Some(pattern), out }).await?;
        let taking = Self { leader: leader.clone(), session, tells: Some(tells), open: None };
        leader.ask(session, Ask::Credit(1)).await?;
        Ok(taking)
    }

    async fn assigned(&mut self) -> Result<Assigned, VisitError> {
        loop {
            if let Tell::Assign(token, request) = self.tell().await? {
                self.open = Some(token);
                return Ok((token, request));
            }
        }
    }

    /// Takes the credit back; what was assigned meanwhile, if anything.
    async fn last(&mut self) -> Result<Option<Assigned>, VisitError> {
        self.leader.ask(self.session, Ask::Withdraw).await?;
        let mut assigned = None;
        loop {
            match self.tell().await? {
                Tell::Assign(token, request) => {
                    self.open = Some(token);
                    assigned = Some((token, request));
                }
                Tell::Withdrawn(_) => return Ok(assigned),
                _ => {}
            }
        }
    }

    async fn tell(&mut self) -> Result<Tell, VisitError> {
        let next = match &mut self.tells {
            Some(tells) => tells.recv().await,
            None => None,
        };
        match next {
            Some(Tell::Close(why)) => Err(VisitError::Closed(why)),
            Some(tell) => Ok(tell),
            None => Err(JobsError::Stopped.into()),
        }
    }

    async fn leave(&mut self) {
        self.tells = None;
        let _ = self.leader.ask(self.session, Ask::Gone).await;
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(mut tells) = self.tells.take() else { return };
        let (leader, session, mut open) = (self.leader.clone(), self.session, self.open.take());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            // Until the credit is void something may still be assigned. A leader that has
            // stopped or closed this seat has no more to say.
            let _ = leader.ask(session, Ask::Withdraw).await;
            loop {
                match tells.recv().await {
                    Some(Tell::Assign(token, _)) => open = Some(token),
                    Some(Tell::Withdrawn(_) | Tell::Close(_)) | None => break,
                    Some(_) => {}
                }
            }
            if let Some(token) = open {
                let _ = leader.ask(session, Ask::GiveBack(token)).await;
            }
            let _ = leader.ask(session, Ask::Gone).await;
        });
    }
}
