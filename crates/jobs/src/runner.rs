//! A runner: a process of a worker that runs one job at a time.
//!
//! It is the parent of everything that the job leaves behind, so at the end of a job nothing of it
//! lives on. Its standard input is a socket to the worker, with frames as between worker and
//! leader: a hello with how programs are run, then assignments and cancels one way, pieces of
//! output and results the other way. When the worker is gone, however it ended, the socket is
//! closed, and the runner kills what it runs and ends. It also kills its job when the worker does not
//! tell it in time that it may go on: the worker may be stopped, or hang.
//!
//! A worker starts a runner when it has no free one, and keeps it for the next jobs: starting a
//! process for each job beside the job's own would cost as much as the job.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_protocol::{Frame, Kind};
use rustix::process::Pid;
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use crate::capture::Piece;
use crate::cell::Cell;
use crate::client::{encoded, next_frame};
use crate::clock::{self, Instant};
use crate::run::{self, Home, Orders, RunOptions, Stop};
use crate::tree;
use crate::wire::{JobRequest, JobResult, Status};

/// Most pieces of output that wait to be passed on.
pub(crate) const PIECES_MAX: usize = 64;
/// How long a runner may take to stop its job; then it is stuck, and is killed.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How long it may take to answer while its job goes on; longer, since starting one must not be
/// taken for being stuck.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Runs jobs for the worker at the other end of standard input, until it is gone.
///
/// # Errors
/// When standard input is not a socket to a worker.
pub async fn serve_worker() -> io::Result<()> {
    tree::adopt()?;
    let stdin: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let stream = StdUnixStream::from(stdin);
    stream.set_nonblocking(true)?;
    let (mut input, mut output) = UnixStream::from_std(stream)?.into_split();
    let mut read = BytesMut::new();
    let Some(hello) = next_frame(&mut input, &mut read).await? else { return Ok(()) };
    let options: RunOptions = serde_json::from_slice(&hello.payload)?;
    let (mut until, mut cell) = (clock::now(), Cell::new(&options.work_dir));
    while let Some(frame) = next_frame(&mut input, &mut read).await? {
        if frame.kind == Kind::JobRenew.number() {
            until = until_of(&frame)?;
        }
        // Or a cancel of a job that has ended meanwhile.
        if frame.kind != Kind::JobAssign.number() {
            continue;
        }
        let request: JobRequest = serde_json::from_slice(&frame.payload)?;
        let (orders, obeyed) = watch::channel(Orders { stop: None, until });
        let (to, mut pieces) = mpsc::channel(PIECES_MAX);
        let mut job =
            std::pin::pin!(run::run(&request, &options, Home::Own(&mut cell), obeyed, to));
        let mut open = true;
        let result = loop {
            tokio::select! {
                result = &mut job => break result,
                Some(piece) = pieces.recv() => send(&mut output, Kind::JobProgress, &piece).await?,
                frame = next_frame(&mut input, &mut read), if open => {
                    match frame {
                        Ok(Some(frame)) if frame.kind == Kind::JobRenew.number() => {
                            until = until_of(&frame)?;
                            orders.send_modify(|orders| orders.until = until);
                            output.write_all(&message(Kind::JobRenew, &())).await?;
                        }
                        Ok(Some(frame)) => {
                            let why = serde_json::from_slice(&frame.payload)?;
                            orders.send_modify(|orders| orders.stop = Some(why));
                        }
                        _ => {
                            open = false;
                            orders.send_modify(|orders| orders.stop = Some(Stop::Closing));
                        }
                    }
                }
            }
        };
        if !open {
            return Ok(());
        }
        while let Ok(piece) = pieces.try_recv() {
            send(&mut output, Kind::JobProgress, &piece).await?;
        }
        send(&mut output, Kind::JobAck, &result).await?;
    }
    Ok(())
}

/// Until when a job may run, as the worker says.
fn until_of(frame: &Frame) -> io::Result<Instant> {
    Ok(clock::from_shared_ms(serde_json::from_slice(&frame.payload)?))
}

fn message(kind: Kind, value: &impl Serialize) -> Bytes {
    encoded(kind, [0; 16], serde_json::to_vec(value).expect("plain data").into())
}

async fn send(
    output: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    value: &impl Serialize,
) -> io::Result<()> {
    output.write_all(&message(kind, value)).await
}

/// A runner, as its worker sees it.
pub(crate) struct Runner {
    stream: UnixStream,
    read: BytesMut,
    /// It ends by itself when the socket is closed; until then it is ours to wait for.
    process: Child,
    greeted: bool,
}

impl Runner {
    /// Starts a runner by this command.
    pub(crate) fn start(command: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (program, words) = command.split_first().expect("a runner has a command");
        let process = Command::new(program)
            .args(words)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            // The worker's own signals, as from a terminal, are not for its jobs.
            .process_group(0)
            .spawn()?;
        let stream = UnixStream::from_std(ours)?;
        Ok(Self { stream, read: BytesMut::new(), process, greeted: false })
    }

    /// Its number, until it was waited for.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()))
    }

    /// Runs a job. An error means that the runner is of no use any more: it is to be killed.
    pub(crate) async fn run(
        &mut self,
        request: &JobRequest,
        options: &RunOptions,
        orders: &mut watch::Receiver<Orders>,
        pieces: &mpsc::Sender<Piece>,
    ) -> io::Result<JobResult> {
        let mut until = orders.borrow_and_update().until;
        let mut first = BytesMut::new();
        if !self.greeted {
            first.extend_from_slice(&message(Kind::JobWorkerHello, options));
            self.greeted = true;
        }
        first.extend_from_slice(&message(Kind::JobRenew, &clock::shared_ms(until)));
        first.extend_from_slice(&message(Kind::JobAssign, request));
        self.stream.write_all(&first).await?;
        let (mut input, mut output) = self.stream.split();
        // It has been told to stop; and by when it must answer what it was told last.
        let (mut told, mut answers_by) = (false, None);
        loop {
            let frame = tokio::select! {
                frame = next_frame(&mut input, &mut self.read) => frame?,
                change = changed(orders, until), if !told => {
                    match change {
                        Change::Until(later) => {
                            until = later;
                            let later = clock::shared_ms(later);
                            send(&mut output, Kind::JobRenew, &later).await?;
                            answers_by = answers_by.or(Some(clock::now() + ANSWER_WAIT));
                        }
                        Change::Stop(why) => {
                            told = true;
                            answers_by = Some(clock::now() + STOP_WAIT);
                            send(&mut output, Kind::JobCancel, &why).await?;
                        }
                    }
                    continue;
                }
                () = clock::pause_until(answers_by.unwrap_or(until)), if answers_by.is_some() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            };
            let frame: Frame = frame.ok_or(io::ErrorKind::UnexpectedEof)?;
            if frame.kind == Kind::JobAck.number() {
                return Ok(serde_json::from_slice(&frame.payload)?);
            }
            if frame.kind == Kind::JobRenew.number() {
                answers_by = answers_by.filter(|_| told);
                continue;
            }
            let piece: Piece = serde_json::from_slice(&frame.payload)?;
            let _ = pieces.try_send(piece);
        }
    }

    /// Kills it; what it ran is this process's then.
    pub(crate) async fn kill(mut self) {
        // It may be gone already.
        let _ = self.process.start_kill();
        let _ = self.process.wait().await;
    }
}

enum Change {
    Until(Instant),
    Stop(Stop),
}

/// Waits until the job may run longer than that, or is to stop.
async fn changed(orders: &mut watch::Receiver<Orders>, until: Instant) -> Change {
    // What is read twice is not lost when this is dropped halfway.
    let mut seen = orders.clone();
    tokio::select! {
        why = run::stopped(orders) => Change::Stop(why),
        later = seen.wait_for(|orders| orders.until != until && orders.stop.is_none()) => {
            match later {
                Ok(orders) => Change::Until(orders.until),
                Err(_) => Change::Stop(Stop::Closing),
            }
        }
    }
}

/// What became of a job whose runner is gone.
pub(crate) fn lost(request: &JobRequest, error: &io::Error) -> JobResult {
    let mut result = run::result_of(request);
    result.status = Status::NotStarted;
    result.reason = Some(format!("its runner ended: {error}"));
    result
}
