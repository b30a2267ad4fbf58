//! This node's links to others: dialled, kept alive, dialled again.
//!
//! There is a task for each address. Everything that this node says to a peer goes over this one
//! connection, in order; the other direction carries the answers to pings and nothing else. A link
//! over which no answer came for the link timeout is down. That is a fact about the link: what becomes of
//! its node, the machine decides.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use gapless_core::backoff::{Backoff, Retries};
use gapless_protocol::link::{LinkDecoder, LinkError, LinkFrame, RefusalReason};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Interval, timeout};

use crate::clock;
use crate::handshake::{self, HANDSHAKE_WAIT, HandshakeError, Other};
use crate::membership::Topology;
use crate::outbox::{Outbox, Over};
use crate::secret::Purpose;
use crate::shell::Shell;

/// How long connecting may take.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// How waits between attempts grow: a node that is back is found soon.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), most: Duration::from_secs(2), jitter_percent: 20 };
/// How long an address that no node names any more is dialled without success.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);
/// Addresses that are dialled at the same time at most, for each node that there may be.
const ADDRESSES_PER_NODE: usize = 4;
/// Bytes that are written in one go, about; pings go in between.
const WRITE_BYTES: usize = 64 * 1024;
/// Bytes that the kernel takes before they are sent: what waits there delays pings.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES: u32 = 128 * 1024;
/// Pings within the link timeout.
const PINGS_PER_TIMEOUT: u32 = 4;

/// Dials all addresses that are known, until the task is aborted.
pub(crate) async fn dial_all(
    shell: Arc<Shell>,
    join: Vec<String>,
    mut topology: watch::Receiver<Topology>,
    mut learned: mpsc::Receiver<SocketAddr>,
    nodes_max: usize,
) {
    let mut tasks = JoinSet::new();
    let mut dialled: BTreeMap<String, AbortHandle> = BTreeMap::new();
    for address in join {
        let task = tasks.spawn(dial_address(Arc::clone(&shell), address.clone(), None));
        dialled.insert(address, task);
    }
    loop {
        let known: Vec<SocketAddr> = tokio::select! {
            Ok(()) = topology.changed() => {
                topology.borrow_and_update().addresses.iter().copied().collect()
            }
            Some(address) = learned.recv() => vec![address],
            Some(_) = tasks.join_next() => continue,
            else => return,
        };
        dialled.retain(|_, task| !task.is_finished());
        for address in known {
            let text = address.to_string();
            let full = dialled.len() >= nodes_max.saturating_mul(ADDRESSES_PER_NODE);
            if full || dialled.contains_key(&text) || text == shell.me.address {
                continue;
            }
            let task = dial_address(Arc::clone(&shell), text.clone(), Some(topology.clone()));
            dialled.insert(text, tasks.spawn(task));
        }
    }
}

/// Why a link ended, or did not come about.
enum Ended {
    /// The link was there.
    Down(LinkDown),
    /// There is a link to this node already.
    Linked(SocketAddr),
    /// It is this node itself.
    Myself,
    /// Nothing came of it.
    Failed(HandshakeError, SocketAddr),
    /// Nothing listens there.
    Unreachable(std::io::Error),
}

#[derive(Debug, thiserror::Error)]
enum LinkDown {
    #[error("no sign of life within the link timeout")]
    Silent,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("the other node closed it")]
    Closed,
    #[error("more waited for it than may")]
    Full,
    #[error("it was replaced, or this node leaves")]
    Replaced,
    #[error("a frame came that only the other direction may have")]
    Unexpected,
}

/// Keeps a link to the node at an address. Addresses that are not to be joined are given up when the
/// topology has not named them for long.
async fn dial_address(
    shell: Arc<Shell>,
    address: String,
    named_by: Option<watch::Receiver<Topology>>,
) {
    let seed = clock::random().map_or(0, u64::from_le_bytes);
    let mut retries = Retries::new(BACKOFF, seed).expect("these waits make sense");
    let mut links = shell.links.subscribe();
    let mut success = shell.now();
    loop {
        links.mark_unchanged();
        if shell.is_leaving() {
            return;
        }
        match dial_once(&shell, &address).await {
            Ended::Myself => return,
            Ended::Linked(at) => {
                retries.succeeded();
                success = shell.now();
                while shell.is_linked_at(at) {
                    if links.changed().await.is_err() {
                        return;
                    }
                }
            }
            Ended::Down(why) => {
                tracing::info!(address, %why, "a link to another node is down");
                retries.succeeded();
                success = shell.now();
            }
            Ended::Failed(error, at) => {
                if let Some(reason) = error.reason() {
                    let (text, at) = (error.to_string(), at.to_string());
                    shell.refusals.note(&shell.broker, shell.now(), (&at, true), (reason, &text));
                } else {
                    tracing::debug!(address, %error, "no link to another node");
                }
            }
            Ended::Unreachable(error) => {
                tracing::debug!(address, %error, "another node cannot be reached");
            }
        }
        if let Some(topology) = &named_by {
            let is_named = |at: &SocketAddr| at.to_string() == address;
            let named = topology.borrow().addresses.iter().any(is_named);
            if named {
                success = shell.now();
            } else if shell.now().since(success) > FORGET_AFTER {
                return;
            }
        }
        // A link that came or went may mean that a node is back.
        tokio::select! {
            () = clock::pause(retries.failed()) => {}
            _ = links.changed() => retries.succeeded(),
        }
    }
}

async fn dial_once(shell: &Arc<Shell>, address: &str) -> Ended {
    let found = match timeout(CONNECT_WAIT, lookup_host(address)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Ended::Unreachable(error),
        Err(_) => return Ended::Unreachable(std::io::ErrorKind::TimedOut.into()),
    };
    let mut ended = Ended::Unreachable(std::io::ErrorKind::NotFound.into());
    for at in found {
        if at.to_string() == shell.me.address {
            return Ended::Myself;
        }
        if shell.is_linked_at(at) {
            return Ended::Linked(at);
        }
        match timeout(CONNECT_WAIT, TcpStream::connect(at)).await {
            Ok(Ok(stream)) => return link(shell, stream, at).await,
            Ok(Err(error)) => ended = Ended::Unreachable(error),
            Err(_) => ended = Ended::Unreachable(std::io::ErrorKind::TimedOut.into()),
        }
    }
    ended
}

/// A connection, from its handshake to its end.
async fn link(shell: &Arc<Shell>, mut stream: TcpStream, at: SocketAddr) -> Ended {
    // Small frames go out at once; if that cannot be set they are only slower.
    let _ = stream.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
    let Some(tls) = shell.tls.as_ref().map(|tls| tls.sides()) else {
        let shaken = shake(shell, &mut stream).await;
        return match shaken {
            Ok(other) => {
                let (input, output) = stream.into_split();
                run(shell, &other, at, input, output).await
            }
            Err(error) => failed(error, at),
        };
    };
    let connecting = tls.connector.connect(tls.name.clone(), stream);
    let mut stream = match timeout(HANDSHAKE_WAIT, connecting).await {
        Ok(Ok(stream)) => Box::new(stream),
        Ok(Err(error)) => return Ended::Failed(error.into(), at),
        Err(_) => return Ended::Failed(HandshakeError::TimedOut, at),
    };
    match shake(shell, &mut stream).await {
        Ok(other) => {
            let (input, output) = tokio::io::split(stream);
            run(shell, &other, at, input, output).await
        }
        Err(error) => failed(error, at),
    }
}

fn failed(error: HandshakeError, at: SocketAddr) -> Ended {
    match error.reason() {
        Some(RefusalReason::Myself) => Ended::Myself,
        _ => Ended::Failed(error, at),
    }
}

async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
    shell: &Shell,
    stream: &mut S,
) -> Result<Other, HandshakeError> {
    let shaking = handshake::dial(stream, Purpose::Link, &shell.me, |other| shell.admit(other));
    timeout(HANDSHAKE_WAIT, shaking).await.unwrap_or(Err(HandshakeError::TimedOut))
}

async fn run(
    shell: &Arc<Shell>,
    other: &Other,
    at: SocketAddr,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> Ended {
    let node = &other.sender.node;
    let (generation, outbox) = match shell.linked(other, at) {
        Ok(linked) => linked,
        Err(None) => return Ended::Linked(at),
        Err(Some(refusal)) => return Ended::Failed(HandshakeError::Refusing(refusal), at),
    };
    tracing::info!(%node, %at, incarnation = other.sender.incarnation.0, "a link to a node is up");
    let _down = OnDrop(|| shell.unlinked(node, generation));
    let why = tokio::select! {
        why = write(&outbox, output, shell.link_timeout / PINGS_PER_TIMEOUT) => why,
        why = watch_answers(input, shell.link_timeout) => why,
    };
    Ended::Down(why)
}

/// Takes the link down also when its task is aborted.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Sends what is in the outbox, and pings.
async fn write(
    outbox: &Outbox,
    mut output: impl AsyncWrite + Unpin,
    ping_every: Duration,
) -> LinkDown {
    let mut ping = tokio::time::interval(ping_every);
    let mut out = BytesMut::new();
    let written = metrics::counter!("gapless_cluster_written_bytes_total");
    loop {
        let frames = tokio::select! {
            frames = outbox.take() => match frames {
                Ok(frames) => frames,
                Err(Over::Full) => return LinkDown::Full,
                Err(Over::Closed) => {
                    let _ = output.shutdown().await;
                    return LinkDown::Replaced;
                }
            },
            _ = ping.tick() => vec![LinkFrame::Ping],
        };
        for frame in &frames {
            if let Err(error) = frame.encode(&mut out) {
                return error.into();
            }
            if out.len() >= WRITE_BYTES {
                if let Err(error) = output.write_all(&out).await {
                    return error.into();
                }
                written.increment(out.len() as u64);
                out.clear();
                if is_due(&mut ping).await
                    && let Err(error) = LinkFrame::Ping.encode(&mut out)
                {
                    return error.into();
                }
            }
        }
        let sent = match output.write_all(&out).await {
            Ok(()) => output.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            return error.into();
        }
        written.increment(out.len() as u64);
        out.clear();
    }
}

/// Whether the next ping is due; waits for nothing, not even for the next millisecond of the timers.
async fn is_due(ping: &mut Interval) -> bool {
    poll_fn(|context| Poll::Ready(ping.poll_tick(context).is_ready())).await
}

/// Waits for answers to pings until they stay away.
async fn watch_answers(mut input: impl AsyncRead + Unpin, within: Duration) -> LinkDown {
    let mut read = BytesMut::new();
    loop {
        match timeout(within, input.read_buf(&mut read)).await {
            Err(_) => return LinkDown::Silent,
            Ok(Err(error)) => return error.into(),
            Ok(Ok(0)) => return LinkDown::Closed,
            Ok(Ok(_)) => {}
        }
        loop {
            match LinkDecoder::HANDSHAKE.decode(&mut read) {
                Ok(Some(LinkFrame::Pong)) => {}
                Ok(Some(_)) => return LinkDown::Unexpected,
                Ok(None) => break,
                Err(error) => return error.into(),
            }
        }
    }
}
