//! A connection of a client or worker, at the leader: frames in, frames out.
//!
//! The first frame says which of the two it is. Every length is checked before memory is taken
//! for it; a frame that cannot be understood is answered with an error, and a connection on
//! which the next frame cannot be found ends.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::job::leader::{Outcome, Session};
use gapless_core::job::{JobId, Token};
use gapless_core::{Pattern, job::leader::ASSIGN_PREFIX};
use gapless_protocol::{Frame, FrameLimit, Kind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::client::next_frame;
use crate::leader::{Ask, Leader, Tell};
use crate::wire::{
    AttemptRef, Attempts, CAP_MAX, ClientConfig, JobAnswer, JobRef, JobRequest, JobResult,
    JobWelcome, Status, VERSION, WorkerConfig, name,
};

/// Most bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// How long the first frame may take.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How long the other side may take nothing of what is written to it.
const WRITE_WAIT: Duration = Duration::from_secs(120);

/// Serves a connection until it ends. `read` is what was already read from it.
///
/// # Errors
/// When the socket fails; that the peer goes away is none.
pub async fn serve<S>(stream: S, read: BytesMut, leader: Leader) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (input, mut output) = tokio::io::split(stream);
    let mut input = Input { stream: input, read };
    let session = leader.new_session();
    let (out, mut tells) = Leader::channel();
    let hello = tokio::time::timeout(HELLO_WAIT, input.frame()).await??;
    let Some(hello) = hello else { return Ok(()) };
    let mut wait = BytesMut::new();
    let prepared = leader.prepare().await.map_err(|error| error.to_string());
    match prepared.and_then(|()| introduce(&hello, &leader, out)) {
        Ok((ask, welcome)) => {
            if leader.ask(session, ask).await.is_err() {
                return Ok(());
            }
            put(&mut wait, Kind::JobWelcome, answer_to(&hello), &[], &json(&welcome));
        }
        Err(why) => {
            put_error(&mut wait, answer_to(&hello), &why);
            output.write_all(&wait).await?;
            return output.shutdown().await;
        }
    }
    output.write_all(&wait).await?;
    let (errors, mut more) = mpsc::channel(16);
    let reader = read_all(&mut input, session, &leader, errors);
    let writer = write_all(&mut output, &mut tells, &mut more, leader.epoch());
    let ended = tokio::select! {
        ended = reader => ended,
        ended = writer => ended,
    };
    let _ = leader.ask(session, Ask::Gone).await;
    ended
}

struct Input<R> {
    stream: R,
    read: BytesMut,
}

impl<R: AsyncRead + Unpin> Input<R> {
    async fn frame(&mut self) -> io::Result<Option<Frame>> {
        next_frame(&mut self.stream, &mut self.read).await
    }
}

/// What the first frame asks for.
fn introduce(
    hello: &Frame,
    leader: &Leader,
    out: mpsc::Sender<Tell>,
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
            Ask::Worker {
                name,
                pattern,
                running: config.running.iter().filter_map(known).collect(),
                out,
            }
        }
        _ => return Err("say who you are first: a client's or a worker's hello".to_owned()),
    };
    Ok((ask, welcome))
}

async fn read_all<R: AsyncRead + Unpin>(
    input: &mut Input<R>,
    session: Session,
    leader: &Leader,
    errors: mpsc::Sender<(Bytes, String)>,
) -> io::Result<()> {
    while let Some(frame) = input.frame().await? {
        match understand(&frame, leader.epoch()) {
            Ok(asks) => {
                for ask in asks {
                    if leader.ask(session, ask).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Err(why) => {
                let id = Bytes::copy_from_slice(&frame.msg_id);
                if errors.send((id, why)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
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
            let token = token_of(&result)?;
            if result.epoch.as_deref().is_some_and(|told| told != epoch) {
                return Err("this attempt is of another leader".to_owned());
            }
            Ask::Ack(token, outcome_of(&result), frame.payload.clone())
        }
        Some(Kind::JobProgress) => {
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
        Some(Kind::JobWatch) => Ask::Watch(job_of(&frame.payload)?),
        Some(Kind::JobRetry) => Ask::Retry(job_of(&frame.payload)?),
        _ => return Err(format!("a frame of kind {} is not expected here", frame.kind)),
    };
    Ok(vec![ask])
}

fn token_of(result: &JobResult) -> Result<Token, String> {
    let job =
        result.job_id.parse().map_err(|error: gapless_core::job::JobIdError| error.to_string())?;
    let attempt = result.attempt.ok_or("the result does not say of which attempt it is")?;
    Ok(Token { job, attempt })
}

fn outcome_of(result: &JobResult) -> Outcome {
    match result.status {
        Status::Ok => Outcome::Succeeded,
        Status::Failed => Outcome::Failed { again: result.retryable },
        Status::Cancelled => Outcome::Cancelled,
        Status::NotStarted | Status::Dead => Outcome::NotStarted,
    }
}

fn job_of(payload: &[u8]) -> Result<JobId, String> {
    let job: JobRef = parse(payload)?;
    job.job_id.parse().map_err(|error: gapless_core::job::JobIdError| error.to_string())
}

async fn write_all<W: AsyncWrite + Unpin>(
    output: &mut W,
    tells: &mut mpsc::Receiver<Tell>,
    errors: &mut mpsc::Receiver<(Bytes, String)>,
    epoch: &str,
) -> io::Result<()> {
    let mut wait = BytesMut::new();
    loop {
        let mut open = true;
        tokio::select! {
            tell = tells.recv() => match tell {
                Some(tell) => open = put_tell(&mut wait, tell, epoch),
                None => return Ok(()),
            },
            Some((id, why)) = errors.recv() => put_error(&mut wait, id_of(&id), &why),
        }
        while open && wait.len() < WRITE_BYTES {
            let Ok(tell) = tells.try_recv() else { break };
            open = put_tell(&mut wait, tell, epoch);
        }
        write_in_time(output, &wait).await?;
        wait.clear();
        if !open {
            return output.shutdown().await;
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
fn put_tell(out: &mut BytesMut, tell: Tell, epoch: &str) -> bool {
    let answer =
        |job: JobId| JobAnswer { job_id: job.to_string(), accepted: true, known: false, why: None };
    let attempt = |token: Token| AttemptRef {
        job_id: token.job.to_string(),
        attempt: token.attempt,
        epoch: epoch.to_owned(),
    };
    let id = |job: JobId| job.0.to_be_bytes();
    match tell {
        Tell::Submitted { job, known } => {
            let answer = JobAnswer { known, ..answer(job) };
            put(out, Kind::JobAnswer, id(job), &[], &json(&answer));
        }
        Tell::Refused { job, why } => {
            let answer = JobAnswer { accepted: false, why: Some(why), ..answer(job) };
            put(out, Kind::JobAnswer, id(job), &[], &json(&answer));
        }
        Tell::Done(job) => put(out, Kind::JobAnswer, id(job), &[], &json(&answer(job))),
        Tell::Assign(token, request) => put_assign(out, token, &request, epoch),
        Tell::Revoke(token) => {
            put(out, Kind::JobCancel, id(token.job), &[], &json(&attempt(token)));
        }
        Tell::Stale(token) => {
            let why = Some("the attempt does not count any more".to_owned());
            let answer = JobAnswer { accepted: false, why, ..answer(token.job) };
            put(out, Kind::JobAnswer, id(token.job), &[], &json(&answer));
            put(out, Kind::JobCancel, id(token.job), &[], &json(&attempt(token)));
        }
        Tell::Renewed(_) => {}
        Tell::Taken(token) => {
            put(out, Kind::JobAnswer, id(token.job), &[], &json(&answer(token.job)));
        }
        Tell::Progress(job, text) => put(out, Kind::JobProgress, id(job), &[], &text),
        Tell::Result(job, result) => put(out, Kind::JobResult, id(job), &[], &result),
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
    request.epoch = Some(epoch.to_owned());
    let subject = format!("{ASSIGN_PREFIX}{}", request.exec_name);
    put(out, Kind::JobAssign, token.job.0.to_be_bytes(), subject.as_bytes(), &json(&request));
}

fn answer_to(frame: &Frame) -> [u8; 16] {
    frame.msg_id
}

fn id_of(bytes: &Bytes) -> [u8; 16] {
    bytes[..].try_into().unwrap_or_default()
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| format!("the message is not valid: {error}"))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("messages are plain data")
}

fn put_error(out: &mut BytesMut, corr_id: [u8; 16], why: &str) {
    let answer = JobAnswer {
        job_id: String::new(),
        accepted: false,
        known: false,
        why: Some(why.to_owned()),
    };
    put(out, Kind::JobAnswer, corr_id, &[], &json(&answer));
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
