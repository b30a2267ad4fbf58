//! Other nodes' links to this one: accepted, proved, read.
//!
//! A reader gives the machine all that it has read at once, and answers pings. It never waits for a
//! subscriber. A link that is silent for the link timeout is closed: its node pings several times within it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::cluster::{Frame, Sender};
use gapless_protocol::link::{LINK_HEAD_BYTES, LinkDecoder, LinkFrame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::forward::{Duplex, ForwardedClient};
use crate::handshake::{self, HANDSHAKE_WAIT, HandshakeError, Other};
use crate::membership::Membership;
use crate::secret::Purpose;
use crate::shell::{Accepted, Shell};

/// How long accepting rests after it failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that have not proved who they are, at the same time.
const HANDSHAKES_MAX: usize = 64;
/// Bytes that are read in one go, at most.
const READ_BYTES: usize = 256 * 1024;
/// A message that is smaller is copied out of what was read, so that one that waits for its subscriber
/// does not keep all others that came with it.
const COPIED_BYTES_MAX: usize = 16 * 1024;

/// Accepts links until the task is aborted.
pub(crate) async fn accept_all(
    shell: Arc<Shell>,
    membership: Arc<dyn Membership>,
    listener: TcpListener,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
                        tracing::warn!(%peer, "too many unproved connections: one is closed");
                        continue;
                    };
                    let (shell, membership) = (Arc::clone(&shell), Arc::clone(&membership));
                    links.spawn(async move {
                        let shaken = link(&shell, &*membership, stream, permit).await;
                        if let Err(error) = shaken {
                            refused(&shell, peer, &error);
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a link of another node");
                    clock::pause(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = links.join_next() => {}
        }
    }
}

fn refused(shell: &Shell, peer: SocketAddr, error: &HandshakeError) {
    match error.reason() {
        Some(reason) => {
            let (from, text) = (peer.ip().to_string(), error.to_string());
            shell.refusals.note(&shell.broker, shell.now(), (&from, false), (reason, &text));
        }
        None => tracing::info!(%peer, %error, "a connection to the cluster's port was no link"),
    }
}

/// A connection, from its handshake to its end.
async fn link<P>(
    shell: &Arc<Shell>,
    membership: &dyn Membership,
    mut stream: TcpStream,
    permit: P,
) -> Result<(), HandshakeError> {
    // Small frames go out at once; if that cannot be set they are only slower.
    let _ = stream.set_nodelay(true);
    let Some(tls) = shell.tls.as_ref().map(|tls| tls.sides()) else {
        let Shaken::Link(other, accepted) = shake(shell, &mut stream).await? else {
            return forwarded(shell, Box::new(stream), permit).await;
        };
        drop(permit);
        let (input, output) = stream.into_split();
        run(shell, membership, (&other, &accepted), input, output).await;
        return Ok(());
    };
    let accepting = timeout(HANDSHAKE_WAIT, tls.acceptor.accept(stream)).await;
    let mut stream = Box::new(accepting.map_err(|_| HandshakeError::TimedOut)??);
    let Shaken::Link(other, accepted) = shake(shell, &mut stream).await? else {
        return forwarded(shell, stream, permit).await;
    };
    drop(permit);
    let (input, output) = tokio::io::split(stream);
    run(shell, membership, (&other, &accepted), input, output).await;
    Ok(())
}

/// A connection whose other side has proved that it is a node.
enum Shaken {
    Link(Other, Accepted),
    Forward,
}

/// Hands the client of another node to the listeners.
async fn forwarded<P>(
    shell: &Shell,
    mut stream: Box<dyn Duplex>,
    permit: P,
) -> Result<(), HandshakeError> {
    let introduced = timeout(HANDSHAKE_WAIT, handshake::introduced(&mut stream)).await;
    let client = introduced.unwrap_or(Err(HandshakeError::TimedOut))?;
    drop(permit);
    // Without listeners for it, or with more than they take, it ends; its node tries again.
    if let Some(clients) = &shell.forwarded {
        let _ = clients.try_send(ForwardedClient { client, stream });
    }
    Ok(())
}

async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
    shell: &Shell,
    stream: &mut S,
) -> Result<Shaken, HandshakeError> {
    let shaking = handshake::accept(stream, &shell.me, |other| shell.admit(other));
    let shaken = timeout(HANDSHAKE_WAIT, shaking).await.unwrap_or(Err(HandshakeError::TimedOut))?;
    let other = match shaken {
        (Purpose::Link, other) => other,
        (Purpose::Forward, _) => return Ok(Shaken::Forward),
    };
    // Another link of the same name may have come meanwhile.
    let accepted = shell.accepted(&other).map_err(HandshakeError::Refusing)?;
    Ok(Shaken::Link(other, accepted))
}

async fn run(
    shell: &Arc<Shell>,
    membership: &dyn Membership,
    (other, accepted): (&Other, &Accepted),
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) {
    let Sender { node, incarnation } = &other.sender;
    tracing::info!(%node, incarnation = incarnation.0, at = other.address, "a link of a node is up");
    let address = other.address.parse().ok();
    if let Some(address) = address {
        // If there are many already, gossip brings it again.
        let _ = shell.learned.try_send(address);
    }
    let _left = Left { shell, other, accepted };
    let link = Reading { shell, membership, other, accepted, address };
    let why = link.read(input, output).await;
    tracing::info!(%node, why, "a link of a node is down");
}

/// Takes the link off also when its task is aborted.
struct Left<'a> {
    shell: &'a Shell,
    other: &'a Other,
    accepted: &'a Accepted,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.shell.left(&self.other.sender.node, self.accepted);
    }
}

struct Reading<'a> {
    shell: &'a Shell,
    membership: &'a dyn Membership,
    other: &'a Other,
    accepted: &'a Accepted,
    address: Option<SocketAddr>,
}

impl Reading<'_> {
    /// Reads to the end; says why that came.
    async fn read(
        &self,
        mut input: impl AsyncRead + Unpin,
        mut output: impl AsyncWrite + Unpin,
    ) -> String {
        let mut pong = BytesMut::with_capacity(LINK_HEAD_BYTES);
        LinkFrame::Pong.encode(&mut pong).expect("a pong is valid");
        let mut read = BytesMut::new();
        loop {
            // Memory is taken for what arrives, not for what a length promises.
            read.reserve(READ_BYTES);
            match timeout(self.shell.link_timeout, input.read_buf(&mut read)).await {
                Err(_) => return "it is silent".to_owned(),
                Ok(Err(error)) => return error.to_string(),
                Ok(Ok(0)) => return "the other node closed it".to_owned(),
                Ok(Ok(_)) => {}
            }
            let (frames, pings) = match self.decode(&mut read) {
                Ok(decoded) => decoded,
                Err(why) => return why,
            };
            if !frames.is_empty() && !self.shell.received(&self.other.sender, self.accepted, frames)
            {
                return "another link took its place".to_owned();
            }
            for _ in 0..pings {
                let written = match output.write_all(&pong).await {
                    Ok(()) => output.flush().await,
                    Err(error) => Err(error),
                };
                if let Err(error) = written {
                    return error.to_string();
                }
            }
        }
    }

    /// All frames that are whole, and how many pings are to be answered.
    fn decode(&self, read: &mut BytesMut) -> Result<(Vec<Frame>, usize), String> {
        let (mut frames, mut pings) = (Vec::new(), 0);
        while let Some(frame) =
            LinkDecoder::ESTABLISHED.decode(read).map_err(|error| error.to_string())?
        {
            match frame {
                LinkFrame::Ping => pings += 1,
                LinkFrame::Node(frame) => frames.push(unshared(frame)),
                LinkFrame::Gossip(bytes) => {
                    if let Some(from) = self.address {
                        self.membership.heard(from, bytes);
                    }
                }
                LinkFrame::Note(note) => {
                    self.shell.noted(&self.other.sender, self.accepted, &note);
                }
                frame => return Err(format!("a frame {} came late", frame.kind().name())),
            }
        }
        Ok((frames, pings))
    }
}

/// Small messages in memory of their own.
fn unshared(mut frame: Frame) -> Frame {
    if let Frame::Deliver { items, .. } = &mut frame {
        for item in items {
            let bytes = &mut item.records.bytes;
            if bytes.len() <= COPIED_BYTES_MAX {
                *bytes = Bytes::copy_from_slice(bytes);
            }
        }
    }
    frame
}
