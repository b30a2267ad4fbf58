//! A client of one or several leaders: it submits jobs and gets each result once.
//!
//! The rules are a machine (`gapless_core::job::multi`): which leader a job goes to, when it
//! moves to another one, when to reconnect. Here are the sockets: a task for the machine, and
//! one for each connection. A job is resent under its id until its result is here, so a lost
//! connection or leader loses no job, and no job is done twice by resending it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::Timestamp;
use gapless_core::job::JobId;
use gapless_core::job::multi::{Effect, Input, Multi, MultiOptions, Policy};
use gapless_protocol::{Decoder, Frame, FrameLimit, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::access::{Access, Incoming, Outgoing};
use crate::clock::{self, Instant};
use crate::wire::{ClientConfig, JobAnswer, JobProgress, JobRequest, JobResult, SUBMIT_PREFIX};

/// How long connecting and being welcomed may take.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Most messages that wait for the client's task.
const QUEUE_MAX: usize = 4096;
/// Most jobs that wait for their result; further ones wait to be submitted.
const OPEN_MAX: usize = 65_536;
/// Most frames that wait for one connection: each open job once, and as many cancels.
const OUT_MAX: usize = 2 * OPEN_MAX;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The leaders' addresses, `host:port`.
    pub leaders: Vec<String>,
    /// Who it is.
    pub client_id: String,
    /// How all leaders are reached.
    pub access: Access,
    /// How many of its jobs may run at a time, over all leaders.
    pub cap: u32,
    /// Which leader a job goes to.
    pub policy: Policy,
    /// How long a lost leader may be away until its jobs go elsewhere.
    pub grace: Duration,
}

/// Why a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The leader refused it; it was not done.
    #[error("the job was refused: {0}")]
    Refused(String),
    /// It does not fit into a frame; it was not sent.
    #[error("the job has {bytes} bytes: at most {max} fit into a frame")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// What fits.
        max: usize,
    },
    /// The client was stopped; whether the job is done is unknown.
    #[error("the client was stopped before the result came; whether the job is done is unknown")]
    Stopped,
}

/// A client. The jobs that wait are given up when it is dropped.
pub struct JobClient {
    inbox: mpsc::Sender<News>,
    room: Semaphore,
    duplicates: Arc<AtomicU64>,
    connected: watch::Receiver<usize>,
    task: tokio::task::JoinHandle<()>,
}

/// What happens to a job before its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// A leader has stored it; `true` if it knew it before.
    Accepted(bool),
    /// It wrote something. Pieces may be missing; the result has all that is kept.
    Progress(JobProgress),
}

enum News {
    Submit(JobId, Open),
    Cancel(JobId),
    Connected(usize, mpsc::Sender<Bytes>),
    Lost(usize),
    Answer(usize, Frame),
}

impl JobClient {
    /// Begins to connect; jobs may be submitted at once.
    ///
    /// # Panics
    /// Without any leader, or with too many.
    pub fn connect(options: ClientOptions) -> Self {
        let (inbox, news) = mpsc::channel(QUEUE_MAX);
        let duplicates = Arc::<AtomicU64>::default();
        let (connections, connected) = watch::channel(0);
        let task = Task {
            connections,
            started: clock::now(),
            inbox: inbox.clone(),
            duplicates: Arc::clone(&duplicates),
            jobs: BTreeMap::new(),
            outs: BTreeMap::new(),
            options,
        };
        let room = Semaphore::new(OPEN_MAX);
        Self { inbox, room, duplicates, connected, task: tokio::spawn(task.run(news)) }
    }

    /// Submits a job, and waits for its result.
    ///
    /// # Errors
    /// When it was refused, or the client was stopped.
    pub async fn run(&self, request: &JobRequest) -> Result<JobResult, SubmitError> {
        self.submit(request, None).await
    }

    /// The same, and says what happens meanwhile. Events that are not taken in time are dropped.
    ///
    /// # Errors
    /// When it was refused, or the client was stopped.
    pub async fn follow(
        &self,
        request: &JobRequest,
        events: mpsc::Sender<JobEvent>,
    ) -> Result<JobResult, SubmitError> {
        self.submit(request, Some(events)).await
    }

    async fn submit(
        &self,
        request: &JobRequest,
        events: Option<mpsc::Sender<JobEvent>>,
    ) -> Result<JobResult, SubmitError> {
        let refused = |error: crate::wire::RequestError| SubmitError::Refused(error.to_string());
        let payload = serde_json::to_vec(request).expect("a request is plain data");
        let (_, spec) = JobRequest::parse(&payload).map_err(refused)?;
        let frame = Frame {
            kind: Kind::JobSubmit.number(),
            msg_id: spec.id.0.to_be_bytes(),
            corr_id: [0; 16],
            subject: Bytes::from(format!("{SUBMIT_PREFIX}{}", spec.exec)),
            payload: payload.into(),
        };
        let mut bytes = BytesMut::new();
        let max = FrameLimit::MAX.bytes();
        frame
            .encode(FrameLimit::MAX, &mut bytes)
            .map_err(|_| SubmitError::TooLarge { bytes: frame.bytes(), max })?;
        let _room = self.room.acquire().await.map_err(|_| SubmitError::Stopped)?;
        let (result, wait) = oneshot::channel();
        let submit = News::Submit(spec.id, Open { frame: bytes.freeze(), events, result });
        self.inbox.send(submit).await.map_err(|_| SubmitError::Stopped)?;
        wait.await.map_err(|_| SubmitError::Stopped)?
    }

    /// Asks that a job be cancelled, at whichever leader has it; its result says if it was.
    pub async fn cancel(&self, job: JobId) {
        let _ = self.inbox.send(News::Cancel(job)).await;
    }

    /// How many leaders are connected; it can be waited on for a change.
    pub fn connected(&self) -> watch::Receiver<usize> {
        self.connected.clone()
    }

    /// How many results came that were there already.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }
}

impl Drop for JobClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Open {
    frame: Bytes,
    events: Option<mpsc::Sender<JobEvent>>,
    result: oneshot::Sender<Result<JobResult, SubmitError>>,
}

struct Task {
    started: Instant,
    connections: watch::Sender<usize>,
    options: ClientOptions,
    inbox: mpsc::Sender<News>,
    duplicates: Arc<AtomicU64>,
    jobs: BTreeMap<JobId, Open>,
    outs: BTreeMap<usize, mpsc::Sender<Bytes>>,
}

impl Task {
    fn now(&self) -> Timestamp {
        Timestamp(self.started.elapsed().as_millis() as u64)
    }

    async fn run(mut self, mut news: mpsc::Receiver<News>) {
        let mut effects = Vec::new();
        let options = MultiOptions {
            policy: self.options.policy,
            grace: self.options.grace,
            // Each client has an address of its own in memory: enough to spread the waits.
            seed: u64::from(std::process::id()),
            ..MultiOptions::default()
        };
        let mut multi = Multi::new(self.options.leaders.len(), options, &mut effects);
        loop {
            while let Some(effect) = effects.pop() {
                self.carry_out(effect, &mut multi, &mut effects);
            }
            let due = multi.deadline().map(|at| at.since(self.now()));
            let input = tokio::select! {
                news = news.recv() => match news {
                    Some(news) => self.take(news),
                    None => return,
                },
                () = clock::pause(due.unwrap_or_default()), if due.is_some() => {
                    Some(Input::Tick)
                }
            };
            if let Some(input) = input {
                multi.step(self.now(), input, &mut effects);
                // Carried out from the back, so that pushed ones come after.
                effects.reverse();
            }
        }
    }

    fn take(&mut self, news: News) -> Option<Input> {
        match news {
            News::Submit(job, open) => {
                self.jobs.insert(job, open);
                Some(Input::Submit(job))
            }
            News::Cancel(job) => {
                let payload = format!("{{\"JobId\":\"{job}\"}}");
                let frame = encoded(Kind::JobCancel, job.0.to_be_bytes(), payload.into());
                for out in self.outs.values() {
                    let _ = out.try_send(frame.clone());
                }
                None
            }
            News::Connected(at, out) => {
                self.outs.insert(at, out);
                self.connections.send_replace(self.outs.len());
                Some(Input::Connected(at))
            }
            News::Lost(at) => {
                self.outs.remove(&at);
                self.connections.send_replace(self.outs.len());
                Some(Input::Lost(at))
            }
            News::Answer(at, frame) => self.answer(at, &frame),
        }
    }

    fn answer(&mut self, at: usize, frame: &Frame) -> Option<Input> {
        match Kind::from_number(frame.kind)? {
            Kind::JobResult => {
                let result: JobResult = serde_json::from_slice(&frame.payload).ok()?;
                let job = result.job_id.parse().ok()?;
                if let Some(open) = self.jobs.remove(&job) {
                    let _ = open.result.send(Ok(result));
                }
                Some(Input::Ended(at, job))
            }
            Kind::JobAnswer => {
                let answer: JobAnswer = serde_json::from_slice(&frame.payload).ok()?;
                // An answer without a job is about what could not even be read.
                let asked = JobId(u128::from_be_bytes(frame.corr_id));
                let job = answer.job_id.parse().unwrap_or(asked);
                if answer.accepted {
                    self.tell(job, JobEvent::Accepted(answer.known));
                    return None;
                }
                let open = self.jobs.remove(&job)?;
                let why = answer.why.unwrap_or_default();
                let _ = open.result.send(Err(SubmitError::Refused(why)));
                Some(Input::Ended(at, job))
            }
            Kind::JobProgress => {
                let progress: JobProgress = serde_json::from_slice(&frame.payload).ok()?;
                let job = progress.job_id.parse().ok()?;
                self.tell(job, JobEvent::Progress(progress));
                None
            }
            _ => None,
        }
    }

    fn tell(&self, job: JobId, event: JobEvent) {
        if let Some(events) = self.jobs.get(&job).and_then(|open| open.events.as_ref()) {
            let _ = events.try_send(event);
        }
    }

    fn carry_out(&mut self, effect: Effect, multi: &mut Multi, effects: &mut Vec<Effect>) {
        match effect {
            Effect::Connect(at) => self.connect(at),
            Effect::Send(at, job) => {
                let frame = self.jobs.get(&job).map(|open| open.frame.clone());
                let out = self.outs.get(&at);
                let written = match (out, frame) {
                    (Some(out), Some(frame)) => out.try_send(frame).is_ok(),
                    // Its result came meanwhile.
                    (Some(_), None) => true,
                    (None, _) => false,
                };
                if !written {
                    // The connection is gone; that comes as news too, but this may move now.
                    let mut more = Vec::new();
                    self.outs.remove(&at);
                    multi.step(self.now(), Input::Lost(at), &mut more);
                    multi.step(self.now(), Input::NotWritten(at, job), &mut more);
                    effects.extend(more.into_iter().rev());
                }
            }
            Effect::Done(_) => {}
            Effect::Duplicate(_) => {
                self.duplicates.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn connect(&self, at: usize) {
        let share = (self.options.cap / self.options.leaders.len() as u32).max(1);
        let hello = ClientConfig {
            client_id: self.options.client_id.clone(),
            token: self.options.access.token.clone(),
            desired_parallelism: share,
            weight: 1,
            observer: false,
            routed: false,
        };
        let payload = serde_json::to_vec(&hello).expect("a hello is plain data");
        let hello = encoded(Kind::JobClientHello, [0; 16], payload.into());
        let (address, inbox) = (self.options.leaders[at].clone(), self.inbox.clone());
        let access = self.options.access.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(at, (&address, &access), &hello, &inbox).await {
                tracing::debug!(address, %error, "the connection to a leader ended");
            }
            let _ = inbox.send(News::Lost(at)).await;
        });
    }
}

/// Connects to a leader, and passes frames both ways until the connection ends.
async fn converse(
    at: usize,
    (address, access): (&str, &Access),
    hello: &Bytes,
    inbox: &mpsc::Sender<News>,
) -> io::Result<()> {
    let Greeted { mut input, mut output, mut read } = greet(address, access, hello).await?;
    let (out, mut frames) = mpsc::channel::<Bytes>(OUT_MAX);
    if inbox.send(News::Connected(at, out)).await.is_err() {
        return Ok(());
    }
    let write = async {
        while let Some(frame) = frames.recv().await {
            send(&mut output, &frame).await?;
        }
        Ok(())
    };
    let read = async {
        while let Some(frame) = next_frame(&mut input, &mut read).await? {
            if inbox.send(News::Answer(at, frame)).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = write => ended,
        ended = read => ended,
    }
}

/// A connection to a leader that has welcomed this client.
pub(crate) struct Greeted {
    pub(crate) input: Incoming,
    pub(crate) output: Outgoing,
    /// What was read and is no whole frame yet.
    pub(crate) read: BytesMut,
}

/// Connects to a leader, in time.
pub(crate) async fn greet(address: &str, access: &Access, hello: &[u8]) -> io::Result<Greeted> {
    let connect = async {
        let (mut input, mut output) = access.dial(address).await?;
        send(&mut output, hello).await?;
        let mut read = BytesMut::new();
        let welcome = next_frame(&mut input, &mut read).await?;
        match welcome.map(|frame| frame.kind) {
            Some(kind) if kind == Kind::JobWelcome.number() => Ok(Greeted { input, output, read }),
            _ => Err(io::Error::other("the leader did not welcome this client")),
        }
    };
    tokio::time::timeout(CONNECT_WAIT, connect).await?
}

/// Writes a frame, and whatever TLS keeps back of it.
pub(crate) async fn send(output: &mut Outgoing, frame: &[u8]) -> io::Result<()> {
    output.write_all(frame).await?;
    output.flush().await
}

/// The next frame; `None` at the end of the connection.
pub(crate) async fn next_frame<R: tokio::io::AsyncRead + Unpin>(
    input: &mut R,
    read: &mut BytesMut,
) -> io::Result<Option<Frame>> {
    let decoder = Decoder::new(FrameLimit::MAX);
    loop {
        match decoder.decode(read) {
            Ok(Some(frame)) => return Ok(Some(frame)),
            Ok(None) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
        read.reserve(READ_BYTES);
        if input.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
}

/// How much is read from a socket at a time.
const READ_BYTES: usize = 64 * 1024;

/// A frame as bytes. Only for payloads that are known to fit.
pub(crate) fn encoded(kind: Kind, msg_id: [u8; 16], payload: Bytes) -> Bytes {
    let subject = Bytes::new();
    let frame = Frame { kind: kind.number(), msg_id, corr_id: [0; 16], subject, payload };
    let mut bytes = BytesMut::new();
    frame.encode(FrameLimit::MAX, &mut bytes).expect("small frames fit");
    bytes.freeze()
}
