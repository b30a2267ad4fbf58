//! A connection of a client or worker, at the leader: frames in, frames out.
//!
//! The first frame says which of the two it is. Every length is checked before memory is taken
//! for it; a frame that cannot be understood is answered with an error, and a connection on
//! which the next frame cannot be found ends.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::job::leader::{Filter, Outcome, Session, State};
use gapless_core::job::record::WorkerId;
use gapless_core::job::{JobId, Token};
use gapless_core::{Pattern, job::leader::ASSIGN_PREFIX};
use gapless_protocol::{Decoder, Frame, FrameLimit, Kind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::clock;
use crate::guard::{Admitted, Guard};
use crate::leader::{Ask, Leader, Tell};
use crate::log::PIECE_BYTES_MAX;
use crate::room::{Owed, Room};
use crate::route::{Forward, PASSED_MAX};
use crate::shown::{JobPage, JobQuery, PAGE_DEFAULT, PAGE_MAX, Question};
use crate::wire::{
    AttemptRef, Attempts, CAP_MAX, ClientConfig, JobAnswer, JobRef, JobRequest, JobResult,
    JobWatch, JobWelcome, Status, VERSION, WorkerConfig, epoch_of, name,
};

/// How much is read at a time, at first and at most: twice as much after a read that was full.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;
/// Most bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// How long the first frame may take.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How long the next piece of a frame that has begun may take.
const PIECE_WAIT: Duration = Duration::from_secs(60);
/// How long the other side may take nothing of what is written to it.
const WRITE_WAIT: Duration = Duration::from_secs(120);
/// How long a client whose right was taken away has to take the reason.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(500);

/// The answer to what concerns no single job.
const ACCEPTED: JobAnswer =
    JobAnswer { job_id: String::new(), accepted: true, known: false, why: None };

/// Most answers to questions and errors that wait to be written; then nothing more is read.
const REPLIES_MAX: usize = 16;

/// Serves a connection until it ends. `read` is what was already read from it; the guard knows who
/// it is for; the rooms are for what it reads, what the leader holds for it, and what it writes.
///
/// # Errors
/// When the socket fails, or it may not do any more what it did; that the peer goes away is none.
pub async fn serve<S, R: Room>(
    stream: S,
    read: BytesMut,
    leader: Leader,
    guard: impl Guard,
    [reading, owing, writing]: [R; 3],
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (input, output) = tokio::io::split(stream);
    let mut input = Input { stream: input, read, room: reading, step: READ_BYTES_MIN };
    let mut output = Output { stream: output, room: writing };
    let owed = Owed::new(owing);
    let session = leader.new_session();
    let (out, mut tells) = Leader::channel();
    let hello = tokio::time::timeout(HELLO_WAIT, input.frame()).await??;
    let Some(hello) = hello else { return Ok(()) };
    let mut wait = BytesMut::new();
    let admitted = match Admitted::new(guard, &hello) {
        Ok(admitted) => admitted,
        Err(refused) => {
            clock::pause(refused.delay).await;
            put_error(&mut wait, answer_to(&hello), &refused.why);
            output.stream.write_all(&wait).await?;
            return output.stream.shutdown().await;
        }
    };
    let prepared = leader.prepare().await.map_err(|error| error.to_string());
    match prepared.and_then(|()| introduce(&hello, &leader, (out, admitted.identity()))) {
        Ok((ask, welcome)) => {
            if leader.ask(session, ask).await.is_err() {
                return Ok(());
            }
            put(&mut wait, Kind::JobWelcome, answer_to(&hello), &[], &json(&welcome));
        }
        Err(why) => {
            put_error(&mut wait, answer_to(&hello), &why);
            output.stream.write_all(&wait).await?;
            return output.stream.shutdown().await;
        }
    }
    output.stream.write_all(&wait).await?;
    let (replies, mut more) = mpsc::channel(REPLIES_MAX);
    let (passed, mut back) = mpsc::channel(PASSED_MAX);
    let forward = Forward::new(&leader, &hello, passed);
    let reader = read_all(&mut input, session, (&leader, &admitted, forward, &owed), replies);
    let channels = (&mut tells, &mut more, &mut back);
    let writer = write_all(&mut output, channels, admitted.lost(), &leader, &owed);
    let ended = tokio::select! {
        ended = reader => ended,
        ended = writer => ended,
        // The writer says why and ends, unless the client takes nothing.
        why = async {
            let why = admitted.lost().await;
            clock::pause(LAST_WORDS_WAIT).await;
            why
        } => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
    };
    let _ = leader.ask(session, Ask::Gone).await;
    ended
}

struct Input<S, R> {
    stream: S,
    read: BytesMut,
    room: R,
    /// How much is read next.
    step: usize,
}

impl<S: AsyncRead + Unpin, R: Room> Input<S, R> {
    async fn frame(&mut self) -> io::Result<Option<Frame>> {
        let decoder = Decoder::new(FrameLimit::MAX);
        loop {
            match decoder.decode(&mut self.read) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            let held = self.read.len();
            self.room.grow(held + self.step).await.map_err(io::Error::other)?;
            self.read.reserve(self.step);
            let room = self.read.capacity() - held;
            let piece = self.stream.read_buf(&mut self.read);
            let taken = match held {
                0 => piece.await?,
                _ => tokio::time::timeout(PIECE_WAIT, piece).await??,
            };
            if taken == 0 {
                return Ok(None);
            }
            let next = if taken == room { self.step * 2 } else { READ_BYTES_MIN };
            self.step = next.min(READ_BYTES_MAX);
            self.room.set(self.read.len());
        }
    }
}

struct Output<S, R> {
    stream: S,
    room: R,
}

/// What the first frame asks for.
fn introduce(
    hello: &Frame,
    leader: &Leader,
    (out, identity): (mpsc::Sender<Tell>, &str),
) -> Result<(Ask, JobWelcome), String> {
    let welcome = JobWelcome {
        version: VERSION,
        epoch: leader.epoch().to_owned(),
        lease_ms: leader.lease().as_millis() as u64,
        frame_bytes_max: FrameLimit::MAX.bytes() as u64,
    };
    let ask = match Kind::from_number(hello.kind) {
        Some(Kind::JobClientHello) => {
            let config: ClientConfig = parse(&hello.payload)?;
            if config.observer {
                return Ok((Ask::Observer { out }, welcome));
            }
            let cap = config.desired_parallelism;
            if cap == 0 || cap > CAP_MAX {
                return Err(format!("DesiredParallelism is {cap}: give 1 to {CAP_MAX}"));
            }
            let name = name("ClientId", &config.client_id).map_err(|error| error.to_string())?;
            Ask::Client { name, cap, weight: config.weight, out }
        }
        Some(Kind::JobWorkerHello) => {
            let config: WorkerConfig = if hello.payload.is_empty() {
                WorkerConfig::default()
            } else {
                parse(&hello.payload)?
            };
            let text = std::str::from_utf8(&hello.subject).map_err(|error| error.to_string())?;
            let text = if text.is_empty() { format!("{ASSIGN_PREFIX}*") } else { text.to_owned() };
            let pattern = Pattern::parse(&text).map_err(|error| error.to_string())?;
            let own = format!("worker-{}", leader.new_session().0);
            let given = if config.worker_id.is_empty() { &own } else { &config.worker_id };
            let name = name("WorkerId", given).map_err(|error| error.to_string())?;
            let known = |each: &AttemptRef| each.token(leader.epoch());
            if !config.instance.is_empty() {
                self::name("Instance", &config.instance).map_err(|error| error.to_string())?;
            }
            Ask::Worker {
                worker: WorkerId { name, origin: origin_of(identity, &config.instance) },
                pattern,
                running: config.running.iter().filter_map(known).collect(),
                out,
            }
        }
        _ => return Err("say who you are first: a client's or a worker's hello".to_owned()),
    };
    Ok((ask, welcome))
}

/// What tells a worker from others of its name: on whose behalf it works, and which one it is. Neither
/// has a line break in it.
pub fn origin_of(identity: &str, instance: &str) -> std::sync::Arc<str> {
    format!("{identity}\n{instance}").into()
}

/// What is written beside what the leader tells: a kind, what it answers, and a payload.
pub(crate) type Reply = (Kind, [u8; 16], Vec<u8>);

async fn read_all<S: AsyncRead + Unpin, R: Room, G: Guard>(
    input: &mut Input<S, R>,
    session: Session,
    (leader, admitted, mut forward, owed): (&Leader, &Admitted<G>, Option<Forward>, &Owed<R>),
    replies: mpsc::Sender<Reply>,
) -> io::Result<()> {
    while let Some(frame) = input.frame().await? {
        if let Err(why) = admitted.check(&frame, leader).await {
            let reply = (Kind::JobAnswer, frame.msg_id, refusal(&why));
            if replies.send(reply).await.is_err() {
                return Ok(());
            }
            continue;
        }
        if let Some(forward) = &mut forward
            && forward.take(&frame, owed).await
        {
            continue;
        }
        if frame.kind == Kind::JobQuery.number() {
            let reply = answer(&frame, session, leader, admitted).await;
            if let Some(reply) = reply
                && replies.send(reply).await.is_err()
            {
                return Ok(());
            }
            continue;
        }
        match understand(&frame, leader.epoch()) {
            Ok(asks) => {
                for ask in asks {
                    if let Some(job) = held_for(&ask) {
                        owed.add(job, frame.payload.len());
                    }
                    if leader.ask(session, ask).await.is_err() {
                        return Ok(());
                    }
                }
                // The worker counts its leases from when it sent what is answered here.
                if frame.kind == Kind::JobRenew.number() && frame.msg_id != [0; 16] {
                    let reply = (Kind::JobAnswer, frame.msg_id, json(&ACCEPTED));
                    if leader.heard(session).await.is_err() || replies.send(reply).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Err(why) => {
                let reply = (Kind::JobAnswer, frame.msg_id, refusal(&why));
                if replies.send(reply).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The job whose request or result the leader holds until it has answered.
fn held_for(ask: &Ask) -> Option<JobId> {
    match ask {
        Ask::Submit(spec, _) => Some(spec.id),
        Ask::Ack(token, ..) => Some(token.job),
        _ => None,
    }
}

/// Answers a question; what is answered by the leader itself is not here.
async fn answer<G: Guard>(
    frame: &Frame,
    session: Session,
    leader: &Leader,
    admitted: &Admitted<G>,
) -> Option<Reply> {
    let answered = match parse::<JobQuery>(&frame.payload) {
        Ok(query) if query.ask == Question::Forget => match query.job() {
            Ok(job) => {
                let _ = leader.ask(session, Ask::Forget(job)).await;
                return None;
            }
            Err(why) => Err(why),
        },
        Ok(query) => query.answer(leader, |exec| admitted.sees(exec)).await,
        Err(why) => Err(why),
    };
    let fits = FrameLimit::MAX.bytes() / 2;
    Some(match answered {
        Ok(json) if json.len() <= fits => (Kind::JobReply, frame.msg_id, json),
        Ok(json) => {
            let why = format!("the answer has {} bytes: ask for fewer jobs", json.len());
            (Kind::JobAnswer, frame.msg_id, refusal(&why))
        }
        Err(why) => (Kind::JobAnswer, frame.msg_id, refusal(&why)),
    })
}

impl JobQuery {
    fn job(&self) -> Result<JobId, String> {
        let id = self.job_id.as_deref().ok_or("JobId is missing")?;
        id.parse().map_err(|error: gapless_core::job::JobIdError| error.to_string())
    }

    async fn answer(
        &self,
        leader: &Leader,
        sees: impl Fn(&str) -> bool,
    ) -> Result<Vec<u8>, String> {
        let stopped = |error: crate::JobsError| error.to_string();
        match self.ask {
            Question::Overview => Ok(json(&leader.overview().await.map_err(stopped)?)),
            Question::List => {
                let state = self.state.as_deref().map(|word| {
                    State::from_name(word).ok_or_else(|| format!("there is no state {word:?}"))
                });
                let filter = Filter {
                    state: state.transpose()?,
                    exec: self.exec_name.as_deref().map(Into::into),
                    client: self.client_id.as_deref().map(Into::into),
                    schedules: self.schedules,
                };
                let most = self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
                let (jobs, next) = leader.list(filter, self.next, most).await.map_err(stopped)?;
                let seen = jobs.iter().filter(|job| sees(&job.record.spec.exec));
                Ok(json(&JobPage { jobs: seen.map(|job| job.shown()).collect(), next }))
            }
            Question::Show => {
                let job = self.job()?;
                let detail = leader.detail(job).await.map_err(stopped)?;
                let unknown = || gapless_core::job::leader::Refusal::Unknown(job).to_string();
                Ok(json(&detail.ok_or_else(unknown)?))
            }
            Question::Log => Ok(json(&leader.log(self.job()?).await.map_err(stopped)?)),
            Question::Forget => Err("this is no question".to_owned()),
        }
    }
}

fn understand(frame: &Frame, epoch: &str) -> Result<Vec<Ask>, String> {
    let ask = match Kind::from_number(frame.kind) {
        Some(Kind::JobSubmit) => {
            let (_, spec) = JobRequest::parse(&frame.payload).map_err(|error| error.to_string())?;
            Ask::Submit(Box::new(spec), frame.payload.clone())
        }
        Some(Kind::JobCredit) => {
            let bytes: [u8; 4] = frame.payload[..].try_into().map_err(|_| "credit has 4 bytes")?;
            Ask::Credit(i32::from_le_bytes(bytes))
        }
        Some(Kind::JobAck) => {
            let result: JobResult = parse(&frame.payload)?;
            let token = token_of(&result, epoch)?;
            Ask::Ack(token, outcome_of(&result), frame.payload.clone())
        }
        Some(Kind::JobProgress) => {
            if frame.payload.len() > PIECE_BYTES_MAX {
                return Err(format!("a piece of progress has at most {PIECE_BYTES_MAX} bytes"));
            }
            let attempt: AttemptRef = parse(&frame.payload)?;
            match attempt.token(epoch) {
                Some(token) => Ask::Progress(token, frame.payload.clone()),
                None => return Err("this attempt is of another leader".to_owned()),
            }
        }
        Some(Kind::JobRenew) => {
            let attempts: Attempts = parse(&frame.payload)?;
            let tokens = attempts.attempts.iter().filter_map(|each| each.token(epoch));
            return Ok(tokens.map(Ask::Renew).collect());
        }
        Some(Kind::JobCancel) => Ask::Cancel(job_of(&frame.payload)?),
        Some(Kind::JobWatch) => {
            let watch: JobWatch = parse(&frame.payload)?;
            let job = job_of(&frame.payload)?;
            if watch.log { Ask::Follow(job) } else { Ask::Watch(job) }
        }
        Some(Kind::JobRetry) => Ask::Retry(job_of(&frame.payload)?),
        _ => return Err(format!("a frame of kind {} is not expected here", frame.kind)),
    };
    Ok(vec![ask])
}

fn token_of(result: &JobResult, store: &str) -> Result<Token, String> {
    let (Some(attempt), Some(epoch)) = (result.attempt, result.epoch.clone()) else {
        return Err("the result does not say of which attempt it is".to_owned());
    };
    let attempt = AttemptRef { job_id: result.job_id.clone(), attempt, epoch };
    attempt.token(store).ok_or_else(|| "this attempt is of another leader".to_owned())
}

fn outcome_of(result: &JobResult) -> Outcome {
    match result.status {
        Status::Ok => Outcome::Succeeded,
        Status::Failed => Outcome::Failed { again: result.retryable },
        Status::Cancelled => Outcome::Cancelled,
        Status::Returned => Outcome::Returned,
        Status::NotStarted | Status::Dead => Outcome::NotStarted,
    }
}

fn job_of(payload: &[u8]) -> Result<JobId, String> {
    let job: JobRef = parse(payload)?;
    job.job_id.parse().map_err(|error: gapless_core::job::JobIdError| error.to_string())
}

async fn write_all<W: AsyncWrite + Unpin, R: Room>(
    output: &mut Output<W, R>,
    (tells, replies, passed): (
        &mut mpsc::Receiver<Tell>,
        &mut mpsc::Receiver<Reply>,
        &mut mpsc::Receiver<Option<Reply>>,
    ),
    lost: impl Future<Output = String>,
    leader: &Leader,
    owed: &Owed<R>,
) -> io::Result<()> {
    let mut lost = std::pin::pin!(lost);
    let mut wait = BytesMut::new();
    loop {
        let mut open = true;
        tokio::select! {
            why = &mut lost => {
                put_error(&mut wait, [0; 16], &why);
                open = false;
            },
            tell = tells.recv() => match tell {
                Some(tell) => open = put_tell(&mut wait, tell, leader, owed).await,
                None => return Ok(()),
            },
            Some((kind, id, payload)) = replies.recv() => put(&mut wait, kind, id, &[], &payload),
            Some(passed) = passed.recv() => match passed {
                Some((kind, id, payload)) => {
                    if kind == Kind::JobAnswer {
                        owed.answered(JobId(u128::from_be_bytes(id)));
                    }
                    put(&mut wait, kind, id, &[], &payload);
                }
                None => open = false,
            },
        }
        while open && wait.len() < WRITE_BYTES {
            let Ok(tell) = tells.try_recv() else { break };
            open = put_tell(&mut wait, tell, leader, owed).await;
        }
        output.room.set(wait.len());
        write_in_time(&mut output.stream, &wait).await?;
        wait.clear();
        if wait.capacity() > WRITE_BYTES {
            wait = BytesMut::new();
        }
        output.room.set(0);
        if !open {
            return output.stream.shutdown().await;
        }
    }
}

/// Writes all of it; each part must be taken in time.
async fn write_in_time<W: AsyncWrite + Unpin>(output: &mut W, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match tokio::time::timeout(WRITE_WAIT, output.write(bytes)).await?? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            taken => bytes = &bytes[taken..],
        }
    }
    Ok(())
}

/// Writes what the leader tells; `false` if the connection ends with it.
async fn put_tell<R: Room>(
    out: &mut BytesMut,
    tell: Tell,
    leader: &Leader,
    owed: &Owed<R>,
) -> bool {
    let epoch = leader.epoch();
    let answer =
        |job: JobId| JobAnswer { job_id: job.to_string(), accepted: true, known: false, why: None };
    let attempt = |token: Token| AttemptRef::new(epoch, token);
    let id = |job: JobId| job.0.to_be_bytes();
    match tell {
        Tell::Submitted { job, known } => {
            owed.answered(job);
            let answer = JobAnswer { known, ..answer(job) };
            put(out, Kind::JobAnswer, id(job), &[], &json(&answer));
        }
        Tell::Refused { job, why } => {
            owed.answered(job);
            let answer = JobAnswer { accepted: false, why: Some(why.to_string()), ..answer(job) };
            put(out, Kind::JobAnswer, id(job), &[], &json(&answer));
        }
        Tell::Done(job) => put(out, Kind::JobAnswer, id(job), &[], &json(&answer(job))),
        Tell::Assign(token, request) => {
            let request = match request {
                Some(request) => Some(request),
                None => leader.request(token.job).await,
            };
            put_assign(out, token, &request.unwrap_or_default(), epoch);
        }
        Tell::Revoke(token) => {
            put(out, Kind::JobCancel, id(token.job), &[], &json(&attempt(token)));
        }
        Tell::Stale(token) => {
            owed.answered(token.job);
            let why = Some("the attempt does not count any more".to_owned());
            let answer = JobAnswer { accepted: false, why, ..answer(token.job) };
            put(out, Kind::JobAnswer, id(token.job), &[], &json(&answer));
            put(out, Kind::JobCancel, id(token.job), &[], &json(&attempt(token)));
        }
        Tell::Renewed(_) | Tell::Withdrawn(_) => {}
        Tell::Taken(token) => {
            owed.answered(token.job);
            put(out, Kind::JobAnswer, id(token.job), &[], &json(&answer(token.job)));
        }
        Tell::Progress(job, text) => put(out, Kind::JobProgress, id(job), &[], &text),
        Tell::Result(record, left) => {
            let result = leader.result(&record, left).await;
            put(out, Kind::JobResult, id(record.spec.id), &[], &json(&result));
        }
        Tell::Close(why) => {
            put_error(out, [0; 16], why);
            return false;
        }
    }
    true
}

fn put_assign(out: &mut BytesMut, token: Token, request: &Bytes, epoch: &str) {
    let Ok(mut request) = serde_json::from_slice::<JobRequest>(request) else {
        // It was parsed when it came; a stored one that cannot be read any more stays away.
        tracing::error!(job = %token.job, "a stored request cannot be read");
        return;
    };
    request.attempt = Some(token.attempt);
    request.epoch = Some(epoch_of(epoch, token));
    let subject = format!("{ASSIGN_PREFIX}{}", request.exec_name);
    put(out, Kind::JobAssign, token.job.0.to_be_bytes(), subject.as_bytes(), &json(&request));
}

fn answer_to(frame: &Frame) -> [u8; 16] {
    frame.msg_id
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| format!("the message is not valid: {error}"))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("messages are plain data")
}

fn put_error(out: &mut BytesMut, corr_id: [u8; 16], why: &str) {
    put(out, Kind::JobAnswer, corr_id, &[], &refusal(why));
}

/// The answer to what was refused, or could not be understood.
pub(crate) fn refusal(why: &str) -> Vec<u8> {
    json(&JobAnswer {
        job_id: String::new(),
        accepted: false,
        known: false,
        why: Some(why.to_owned()),
    })
}

fn put(out: &mut BytesMut, kind: Kind, corr_id: [u8; 16], subject: &[u8], payload: &[u8]) {
    let frame = Frame {
        kind: kind.number(),
        msg_id: [0; 16],
        corr_id,
        subject: Bytes::copy_from_slice(subject),
        payload: Bytes::copy_from_slice(payload),
    };
    if let Err(error) = frame.encode(FrameLimit::MAX, out) {
        tracing::error!(%error, "a message of jobs does not fit into a frame");
    }
}
