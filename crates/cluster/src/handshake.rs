//! The handshake of a link, on both sides: who is there, and whether it belongs to the cluster.
//!
//! Whatever does not fit is refused with a typed reason, which goes to the other side and into both logs.
//! Whether another process has the name, or there are too many nodes, is asked of the caller
//! (`admit`).

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use gapless_core::cluster::{Incarnation, NodeName, Sender};
use gapless_protocol::link::{
    LINK_VERSION, LinkChallenge, LinkClient, LinkDecoder, LinkError, LinkFrame, LinkHello,
    LinkIdentity, LinkKind, LinkRefusal, RefusalReason,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::clock;
use crate::secret::{Introductions, Prover, Purpose, Secret};

/// How long a handshake may take, TLS included.
pub(crate) const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);

/// Who this node is.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) cluster: String,
    pub(crate) node: NodeName,
    pub(crate) incarnation: Incarnation,
    /// Where other nodes reach it.
    pub(crate) address: String,
    pub(crate) secret: Secret,
}

/// Who the other node is, proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) sender: Sender,
    /// Where it says it is reached.
    pub(crate) address: String,
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("a frame {} came where it must not", .0.name())]
    Unexpected(LinkKind),
    #[error("the other side closed the connection")]
    Closed,
    #[error("the handshake took longer than {HANDSHAKE_WAIT:?}")]
    TimedOut,
    /// By the other side.
    #[error("the other node refuses: {}", .0.text)]
    Refused(LinkRefusal),
    /// By this node.
    #[error("{}", .0.text)]
    Refusing(LinkRefusal),
    #[error("the system gives no random bytes")]
    NoRandomness,
}

impl HandshakeError {
    /// The reason, if one of the two refused.
    pub(crate) fn reason(&self) -> Option<RefusalReason> {
        match self {
            Self::Refused(refusal) | Self::Refusing(refusal) => Some(refusal.reason),
            _ => None,
        }
    }
}

pub(crate) fn refusal(reason: RefusalReason, text: impl Into<String>) -> LinkRefusal {
    LinkRefusal { reason, text: text.into() }
}

impl Me {
    fn identity(&self) -> Result<LinkIdentity, HandshakeError> {
        Ok(LinkIdentity {
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            incarnation: self.incarnation,
            address: self.address.clone(),
            nonce: clock::random().ok_or(HandshakeError::NoRandomness)?,
        })
    }

    /// Whether a node that says this of itself can be a peer.
    fn fits(&self, other: &LinkIdentity) -> Result<(), LinkRefusal> {
        let (mine, theirs) = (&self.cluster, &other.cluster);
        if theirs != mine {
            return Err(refusal(
                RefusalReason::ForeignCluster,
                format!(
                    "node {} is of cluster {theirs:?}, node {} of cluster {mine:?}: this address is \
                     another cluster's",
                    other.node, self.node
                ),
            ));
        }
        if other.node != self.node {
            return Ok(());
        }
        if other.incarnation == self.incarnation {
            return Err(refusal(RefusalReason::Myself, "a node dialled itself"));
        }
        Err(refusal(
            RefusalReason::NameTaken,
            format!(
                "two processes have the node name {}: names are unique in a cluster",
                self.node
            ),
        ))
    }

    fn wrong_secret(&self, other: &NodeName) -> LinkRefusal {
        let text = format!(
            "nodes {other} and {} do not have the same cluster secret: give all nodes the same one",
            self.node
        );
        refusal(RefusalReason::WrongSecret, text)
    }
}

fn other(who: &LinkIdentity) -> Other {
    let sender = Sender { node: who.node.clone(), incarnation: who.incarnation };
    Other { sender, address: who.address.clone() }
}

/// Takes the part of the node that dialled.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    purpose: Purpose,
    me: &Me,
    admit: impl Fn(&Sender) -> Result<(), LinkRefusal>,
) -> Result<Other, HandshakeError> {
    let hello =
        LinkHello { version_min: LINK_VERSION, version_max: LINK_VERSION, who: me.identity()? };
    let mut shake = Shake { stream, read: BytesMut::new() };
    let first = match purpose {
        Purpose::Link => LinkFrame::Hello(hello.clone()),
        Purpose::Forward => LinkFrame::Forward(hello.clone()),
    };
    shake.send(&first).await?;
    let challenge = match shake.next().await? {
        LinkFrame::Challenge(challenge) => challenge,
        frame => return Err(unexpected(frame)),
    };
    let peer = other(&challenge.who);
    let fits = me.fits(&challenge.who).and_then(|()| version(challenge.version, challenge.version));
    if let Err(refusal) = fits.and_then(|_| admit(&peer.sender)) {
        return Err(shake.refuse(refusal).await);
    }
    let said = said(purpose, &hello, &challenge)?;
    shake.send(&LinkFrame::Proof(me.secret.proof(Prover::Dialling, &said))).await?;
    match shake.next().await? {
        LinkFrame::Accepted(proof) if me.secret.is_proved(Prover::Dialled, &said, &proof) => {
            Ok(peer)
        }
        LinkFrame::Accepted(_) => Err(shake.refuse(me.wrong_secret(&peer.sender.node)).await),
        frame => Err(unexpected(frame)),
    }
}

/// Takes the part of the node that was dialled; tells what for.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    me: &Me,
    admit: impl Fn(&Sender) -> Result<(), LinkRefusal>,
) -> Result<(Purpose, Other), HandshakeError> {
    let mut shake = Shake { stream, read: BytesMut::new() };
    let (purpose, hello) = match shake.next().await? {
        LinkFrame::Hello(hello) => (Purpose::Link, hello),
        LinkFrame::Forward(hello) => (Purpose::Forward, hello),
        frame => return Err(unexpected(frame)),
    };
    let peer = other(&hello.who);
    let agreed = me.fits(&hello.who).and_then(|()| version(hello.version_min, hello.version_max));
    let version = match agreed.and_then(|agreed| admit(&peer.sender).map(|()| agreed)) {
        Ok(version) => version,
        Err(refusal) => return Err(shake.refuse(refusal).await),
    };
    let challenge = LinkChallenge { version, who: me.identity()? };
    shake.send(&LinkFrame::Challenge(challenge.clone())).await?;
    let said = said(purpose, &hello, &challenge)?;
    match shake.next().await? {
        LinkFrame::Proof(proof) if me.secret.is_proved(Prover::Dialling, &said, &proof) => {}
        LinkFrame::Proof(_) => {
            return Err(shake.refuse(me.wrong_secret(&peer.sender.node)).await);
        }
        frame => return Err(unexpected(frame)),
    }
    shake.send(&LinkFrame::Accepted(me.secret.proof(Prover::Dialled, &said))).await?;
    Ok((purpose, peer))
}

/// Says which client follows, behind a handshake for it.
pub(crate) async fn introduce<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    client: LinkClient,
) -> Result<(), HandshakeError> {
    Shake { stream, read: BytesMut::new() }.send(&LinkFrame::Client(client)).await
}

/// Which client follows, behind a handshake for it.
pub(crate) async fn introduced<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> Result<LinkClient, HandshakeError> {
    match (Shake { stream, read: BytesMut::new() }).next().await? {
        LinkFrame::Client(client) => Ok(client),
        frame => Err(unexpected(frame)),
    }
}

/// The version to speak.
fn version(min: u16, max: u16) -> Result<u16, LinkRefusal> {
    if (min..=max).contains(&LINK_VERSION) {
        return Ok(LINK_VERSION);
    }
    let text = format!(
        "the other node speaks versions {min} to {max} of the cluster protocol, this one {LINK_VERSION}: \
         upgrade the older"
    );
    Err(refusal(RefusalReason::Version, text))
}

fn said(
    purpose: Purpose,
    hello: &LinkHello,
    challenge: &LinkChallenge,
) -> Result<Introductions, HandshakeError> {
    let said = Introductions::new(purpose, hello, challenge);
    said.ok_or(HandshakeError::Unexpected(LinkKind::Challenge))
}

fn unexpected(frame: LinkFrame) -> HandshakeError {
    match frame {
        LinkFrame::Refused(refusal) => HandshakeError::Refused(refusal),
        frame => HandshakeError::Unexpected(frame.kind()),
    }
}

/// A connection while nothing is known of its other side.
struct Shake<'a, S> {
    stream: &'a mut S,
    read: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Shake<'_, S> {
    async fn send(&mut self, frame: &LinkFrame) -> Result<(), HandshakeError> {
        let mut out = BytesMut::new();
        frame.encode(&mut out)?;
        self.stream.write_all(&out).await?;
        self.stream.flush().await?;
        Ok(())
    }

    async fn next(&mut self) -> Result<LinkFrame, HandshakeError> {
        loop {
            if let Some(frame) = LinkDecoder::HANDSHAKE.decode(&mut self.read)? {
                return Ok(frame);
            }
            // Not more than what is missing: what comes behind the handshake is for the link's reader.
            let missing = LinkDecoder::HANDSHAKE.missing(&self.read)?;
            let mut limited = (&mut *self.stream).take(missing as u64);
            if limited.read_buf(&mut self.read).await? == 0 {
                return Err(HandshakeError::Closed);
            }
        }
    }

    /// Says why there is no link; if that cannot be said any more, the log of this side has it.
    async fn refuse(&mut self, refusal: LinkRefusal) -> HandshakeError {
        let _ = self.send(&LinkFrame::Refused(refusal.clone())).await;
        let _ = self.stream.shutdown().await;
        HandshakeError::Refusing(refusal)
    }
}
