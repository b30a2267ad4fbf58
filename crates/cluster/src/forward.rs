//! Clients that one node forwards to another, each over a connection of its own.
//!
//! The connection uses the port of links and their handshake, for another purpose; behind it comes which
//! client it is, then the client's bytes. What is done with them is the listeners' business.

use std::net::SocketAddr;

use bytes::Bytes;
use gapless_core::cluster::{Incarnation, NodeName};
use gapless_protocol::link::LinkClient;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::handshake::{self, HANDSHAKE_WAIT, HandshakeError};
use crate::outgoing::CONNECT_WAIT;
use crate::secret::Purpose;
use crate::shell::Shell;

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Duplex for T {}

/// A node that is linked with this one in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNode {
    /// Its name.
    pub node: NodeName,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Where it is reached.
    pub address: SocketAddr,
    /// What it said of itself last.
    pub note: Bytes,
}

/// A client of another node, which that node has proved to be.
pub struct ForwardedClient {
    /// Who it is.
    pub client: LinkClient,
    /// Its bytes.
    pub stream: Box<dyn Duplex>,
}

/// Why a client cannot be forwarded. Nothing of it was sent.
#[derive(Debug, thiserror::Error)]
#[error("node {node} cannot be reached: {why}")]
pub struct ForwardError {
    /// Which node.
    pub node: NodeName,
    /// Why not.
    pub why: String,
}

/// Connects to a node for a client.
pub(crate) async fn dial(
    shell: &Shell,
    to: &PeerNode,
    client: LinkClient,
) -> Result<Box<dyn Duplex>, ForwardError> {
    let dialled = async {
        let connecting = timeout(CONNECT_WAIT, TcpStream::connect(to.address)).await;
        let stream = connecting.map_err(|_| HandshakeError::TimedOut)??;
        // Small frames go out at once; if that cannot be set they are only slower.
        let _ = stream.set_nodelay(true);
        let shaking = timeout(HANDSHAKE_WAIT, shake(shell, stream, to, client)).await;
        shaking.unwrap_or(Err(HandshakeError::TimedOut))
    };
    dialled.await.map_err(|error| ForwardError { node: to.node.clone(), why: error.to_string() })
}

async fn shake(
    shell: &Shell,
    stream: TcpStream,
    to: &PeerNode,
    client: LinkClient,
) -> Result<Box<dyn Duplex>, HandshakeError> {
    let mut stream: Box<dyn Duplex> = match shell.tls.as_ref().map(|tls| tls.sides()) {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.connector.connect(tls.name.clone(), stream).await?),
    };
    let shaken = handshake::dial(&mut stream, Purpose::Forward, &shell.me, |_| Ok(())).await?;
    if shaken.sender.node != to.node || shaken.sender.incarnation != to.incarnation {
        let other = std::io::Error::other("another node, or another start of it, is there");
        return Err(other.into());
    }
    handshake::introduce(&mut stream, client).await?;
    Ok(stream)
}
