//! A connection to one leader for those who look and manage: lists, logs, cancel, retry, forget.
//!
//! It is no client of its own, unless it says which one it speaks for and that client's cap; the
//! jobs it submits are of the client that they name. A lost connection is an error: whether what was
//! asked is done can be looked up.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::job::JobId;
use gapless_protocol::{Frame, FrameLimit, Kind};
use serde::de::DeserializeOwned;

use crate::access::{Access, Incoming, Outgoing};
use crate::client::{encoded, next_frame, send};
use crate::shown::{JobDetail, JobLog, JobPage, JobQuery, Overview, Question};
use crate::wire::{
    ClientConfig, JobAnswer, JobRef, JobRequest, JobResult, JobWatch, SUBMIT_PREFIX,
};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// The leader refused it; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// It does not fit into a frame; it was not sent.
    #[error("the job does not fit into a frame of {} bytes", FrameLimit::MAX.bytes())]
    TooLarge,
    /// The connection failed, or the leader took too long. What was asked may have been done.
    #[error("the connection to the leader was lost: {0}")]
    Lost(#[from] io::Error),
}

/// What comes of a job that is followed.
#[derive(Debug)]
pub enum Heard {
    /// It wrote something, as its worker sent it.
    Wrote(serde_json::Value),
    /// It has ended.
    Ended(Box<JobResult>),
}

/// See the head of the file.
pub struct Manager {
    input: Incoming,
    output: Outgoing,
    read: BytesMut,
    next_id: u128,
    /// How long the leader may take to answer.
    timeout: Duration,
}

impl Manager {
    /// Connects to a leader, which has so long to answer, now and later.
    ///
    /// # Errors
    /// When it is not there, leads no jobs, or does not let this client in.
    pub async fn connect(
        address: &str,
        access: &Access,
        timeout: Duration,
    ) -> Result<Self, ManageError> {
        Self::introduced(address, access, timeout, None).await
    }

    /// The same for a client, of which so many jobs may run at a time from now on.
    ///
    /// # Errors
    /// When it is not there, leads no jobs, or does not let this client in.
    pub async fn connect_for(
        client: (&str, u32),
        address: &str,
        access: &Access,
        timeout: Duration,
    ) -> Result<Self, ManageError> {
        Self::introduced(address, access, timeout, Some(client)).await
    }

    async fn introduced(
        address: &str,
        access: &Access,
        timeout: Duration,
        client: Option<(&str, u32)>,
    ) -> Result<Self, ManageError> {
        let (input, output) = access.dial(address).await?;
        let mut manager = Self { input, output, read: BytesMut::new(), next_id: 0, timeout };
        let hello = ClientConfig {
            client_id: client.map_or_else(String::new, |(name, _)| name.to_owned()),
            token: access.token.clone(),
            desired_parallelism: client.map_or(1, |(_, cap)| cap),
            weight: 1,
            observer: client.is_none(),
            routed: false,
        };
        let payload = serde_json::to_vec(&hello).expect("a hello is plain data");
        send(&mut manager.output, &encoded(Kind::JobClientHello, [0; 16], payload.into())).await?;
        let welcome = manager.frame().await?;
        match Kind::from_number(welcome.kind) {
            Some(Kind::JobWelcome) => Ok(manager),
            Some(Kind::JobAnswer) => Err(refused(&welcome)),
            _ => Err(io::Error::other("it leads no jobs").into()),
        }
    }

    /// How all stands.
    ///
    /// # Errors
    /// When the leader does not answer.
    pub async fn overview(&mut self) -> Result<Overview, ManageError> {
        self.query(&JobQuery { ask: Question::Overview, ..JobQuery::default() }).await
    }

    /// A part of the list of jobs.
    ///
    /// # Errors
    /// When the leader does not answer, or there is no such state.
    pub async fn list(&mut self, query: JobQuery) -> Result<JobPage, ManageError> {
        self.query(&JobQuery { ask: Question::List, ..query }).await
    }

    /// One job.
    ///
    /// # Errors
    /// When it is not known, or the leader does not answer.
    pub async fn show(&mut self, job: JobId) -> Result<JobDetail, ManageError> {
        self.query(&about(Question::Show, job)).await
    }

    /// What a running job wrote lately.
    ///
    /// # Errors
    /// When the leader does not answer.
    pub async fn log(&mut self, job: JobId) -> Result<JobLog, ManageError> {
        self.query(&about(Question::Log, job)).await
    }

    /// Has a job cancelled: at once, or when its worker has stopped it.
    ///
    /// # Errors
    /// When it is not known or has ended, or the leader does not answer.
    pub async fn cancel(&mut self, job: JobId) -> Result<(), ManageError> {
        self.order(Kind::JobCancel, &json(&JobRef { job_id: job.to_string() }), job).await
    }

    /// Has a job tried again that ended without success.
    ///
    /// # Errors
    /// When it did not end so or is not known, or the leader does not answer.
    pub async fn retry(&mut self, job: JobId) -> Result<(), ManageError> {
        self.order(Kind::JobRetry, &json(&JobRef { job_id: job.to_string() }), job).await
    }

    /// Has an ended job forgotten.
    ///
    /// # Errors
    /// When it has not ended or is not known, or the leader does not answer.
    pub async fn forget(&mut self, job: JobId) -> Result<(), ManageError> {
        self.order(Kind::JobQuery, &json(&about(Question::Forget, job)), job).await
    }

    /// Submits a job, and returns when it is accepted and on disk; tells whether it was known.
    ///
    /// # Errors
    /// When it is refused, or the leader does not answer.
    pub async fn submit(&mut self, request: &JobRequest) -> Result<bool, ManageError> {
        self.begin_submit(request).await?;
        let (job, answer) = self.submitted().await?;
        debug_assert_eq!(Ok(job), request.job_id.parse(), "one at a time");
        answer
    }

    /// Sends a job; [`Manager::submitted`] says what became of it, and of others before it.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub async fn begin_submit(&mut self, request: &JobRequest) -> Result<(), ManageError> {
        let job = request.job_id.parse::<JobId>();
        let job = job.map_err(|error| ManageError::Refused(error.to_string()))?;
        let frame = Frame {
            kind: Kind::JobSubmit.number(),
            msg_id: job.0.to_be_bytes(),
            corr_id: [0; 16],
            subject: Bytes::from(format!("{SUBMIT_PREFIX}{}", request.exec_name)),
            payload: json(request).into(),
        };
        let mut bytes = BytesMut::new();
        frame.encode(FrameLimit::MAX, &mut bytes).map_err(|_| ManageError::TooLarge)?;
        Ok(send(&mut self.output, &bytes).await?)
    }

    /// The next job that was accepted, and whether it was known; or refused, and why.
    ///
    /// # Errors
    /// When the leader does not answer.
    pub async fn submitted(&mut self) -> Result<(JobId, Result<bool, ManageError>), ManageError> {
        loop {
            let frame = self.frame().await?;
            if frame.kind != Kind::JobAnswer.number() {
                continue;
            }
            let answer: JobAnswer = parse(&frame)?;
            let refused = |why: Option<String>| ManageError::Refused(why.unwrap_or_default());
            let job = JobId(u128::from_be_bytes(frame.corr_id));
            let outcome = if answer.accepted { Ok(answer.known) } else { Err(refused(answer.why)) };
            return Ok((job, outcome));
        }
    }

    /// Follows a job until it ends: what the leader keeps of its output, and what comes.
    ///
    /// # Errors
    /// When the leader is not there any more.
    pub async fn follow(&mut self, job: JobId) -> Result<(), ManageError> {
        let watch = JobWatch { job_id: job.to_string(), log: true };
        let frame = encoded(Kind::JobWatch, job.0.to_be_bytes(), json(&watch).into());
        Ok(send(&mut self.output, &frame).await?)
    }

    /// What comes next of a job that is followed, whenever that is.
    ///
    /// # Errors
    /// When it is not known, or the connection was lost.
    pub async fn heard(&mut self) -> Result<Heard, ManageError> {
        loop {
            let frame = self.next().await?;
            match Kind::from_number(frame.kind) {
                Some(Kind::JobProgress) => return Ok(Heard::Wrote(parse(&frame)?)),
                Some(Kind::JobResult) => return Ok(Heard::Ended(Box::new(parse(&frame)?))),
                Some(Kind::JobAnswer) => {
                    let answer: JobAnswer = parse(&frame)?;
                    if !answer.accepted {
                        return Err(ManageError::Refused(answer.why.unwrap_or_default()));
                    }
                }
                _ => {}
            }
        }
    }

    async fn query<T: DeserializeOwned>(&mut self, query: &JobQuery) -> Result<T, ManageError> {
        self.next_id += 1;
        let id = self.next_id.to_be_bytes();
        send(&mut self.output, &encoded(Kind::JobQuery, id, json(query).into())).await?;
        loop {
            let frame = self.frame().await?;
            match Kind::from_number(frame.kind) {
                Some(Kind::JobReply) if frame.corr_id == id => return parse(&frame),
                Some(Kind::JobAnswer) if frame.corr_id == id => return Err(refused(&frame)),
                // What comes of jobs that were submitted or followed here was not waited for.
                _ => {}
            }
        }
    }

    async fn order(&mut self, kind: Kind, payload: &[u8], job: JobId) -> Result<(), ManageError> {
        let payload = Bytes::copy_from_slice(payload);
        send(&mut self.output, &encoded(kind, job.0.to_be_bytes(), payload)).await?;
        self.answer(job).await.map(drop)
    }

    /// The answer about a job.
    async fn answer(&mut self, job: JobId) -> Result<JobAnswer, ManageError> {
        loop {
            let frame = self.frame().await?;
            let about = frame.corr_id == job.0.to_be_bytes();
            if about && frame.kind == Kind::JobAnswer.number() {
                let answer: JobAnswer = parse(&frame)?;
                return match answer.accepted {
                    true => Ok(answer),
                    false => Err(ManageError::Refused(answer.why.unwrap_or_default())),
                };
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame, ManageError> {
        let timeout = self.timeout;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it took too long to answer");
        tokio::time::timeout(timeout, self.next()).await.map_err(late)?
    }

    async fn next(&mut self) -> Result<Frame, ManageError> {
        let frame = next_frame(&mut self.input, &mut self.read).await?;
        frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

fn about(ask: Question, job: JobId) -> JobQuery {
    JobQuery { ask, job_id: Some(job.to_string()), ..JobQuery::default() }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("messages are plain data")
}

fn parse<T: DeserializeOwned>(frame: &Frame) -> Result<T, ManageError> {
    serde_json::from_slice(&frame.payload).map_err(|error| io::Error::other(error).into())
}

fn refused(frame: &Frame) -> ManageError {
    match parse::<JobAnswer>(frame) {
        Ok(answer) => ManageError::Refused(answer.why.unwrap_or_default()),
        Err(error) => error,
    }
}
