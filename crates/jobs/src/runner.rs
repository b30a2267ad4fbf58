//! A runner: a process of a worker that runs one job at a time.
//!
//! It is the parent of everything that the job leaves behind, so at the end of a job nothing of it
//! lives on. Its standard input is a socket to the worker, with frames as between worker and
//! leader: a hello with how programs are run, then assignments and cancels one way, pieces of
//! output and results the other way. When the worker is gone, however it ended, the socket is
//! closed, and the runner kills what it runs and ends.
//!
//! A worker starts a runner when it has no free one, and keeps it for the next jobs: starting a
//! process for each job beside the job's own would cost as much as the job.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;

use bytes::BytesMut;
use gapless_protocol::{Frame, Kind};
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use crate::capture::Piece;
use crate::client::{encoded, next_frame};
use crate::run::{self, RunOptions, Stop};
use crate::tree::{self, Tree};
use crate::wire::{JobRequest, JobResult, Status};

/// Most pieces of output that wait to be passed on.
pub(crate) const PIECES_MAX: usize = 64;

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
    while let Some(frame) = next_frame(&mut input, &mut read).await? {
        // A cancel of a job that has ended meanwhile.
        if frame.kind != Kind::JobAssign.number() {
            continue;
        }
        let request: JobRequest = serde_json::from_slice(&frame.payload)?;
        let (stop, stopping) = watch::channel(None);
        let (to, mut pieces) = mpsc::channel(PIECES_MAX);
        let mut job = std::pin::pin!(run::run(&request, &options, Tree::Own, stopping, to));
        let mut open = true;
        let result = loop {
            tokio::select! {
                result = &mut job => break result,
                Some(piece) = pieces.recv() => send(&mut output, Kind::JobProgress, &piece).await?,
                frame = next_frame(&mut input, &mut read), if open => {
                    let why = match frame {
                        Ok(Some(frame)) => serde_json::from_slice(&frame.payload)?,
                        _ => {
                            open = false;
                            Stop::Closing
                        }
                    };
                    stop.send_replace(Some(why));
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

async fn send(
    output: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    value: &impl Serialize,
) -> io::Result<()> {
    let payload = serde_json::to_vec(value).expect("plain data");
    output.write_all(&encoded(kind, [0; 16], payload.into())).await
}

/// A runner, as its worker sees it.
pub(crate) struct Runner {
    stream: UnixStream,
    read: BytesMut,
    /// It ends by itself when the socket is closed; until then it is ours to wait for.
    _process: Child,
}

impl Runner {
    /// Starts a runner by this command.
    pub(crate) async fn start(command: &[OsString], options: &RunOptions) -> io::Result<Self> {
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
        let mut stream = UnixStream::from_std(ours)?;
        send(&mut stream, Kind::JobWorkerHello, options).await?;
        Ok(Self { stream, read: BytesMut::new(), _process: process })
    }

    /// Runs a job. An error means that the runner is of no use any more.
    pub(crate) async fn run(
        &mut self,
        request: &JobRequest,
        stop: &mut watch::Receiver<Option<Stop>>,
        pieces: &mpsc::Sender<Piece>,
    ) -> io::Result<JobResult> {
        send(&mut self.stream, Kind::JobAssign, request).await?;
        let (mut input, mut output) = self.stream.split();
        let mut told = false;
        loop {
            let frame = tokio::select! {
                frame = next_frame(&mut input, &mut self.read) => frame?,
                why = run::stopped(stop), if !told => {
                    told = true;
                    send(&mut output, Kind::JobCancel, &why).await?;
                    continue;
                }
            };
            let frame: Frame = frame.ok_or(io::ErrorKind::UnexpectedEof)?;
            if frame.kind == Kind::JobAck.number() {
                return Ok(serde_json::from_slice(&frame.payload)?);
            }
            let piece: Piece = serde_json::from_slice(&frame.payload)?;
            let _ = pieces.try_send(piece);
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
