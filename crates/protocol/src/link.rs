//! Frames between the nodes of a cluster: their envelope and the one list of their kinds.
//!
//! `[len:4LE][kind:1][body]`, where `len` counts the bytes after itself. A link has a port of its
//! own and lives as long as its two nodes, so that the envelope needs neither ids nor a subject: five
//! bytes for as many messages as fit. The numbers of the kinds are none of the native protocol's, so
//! that a node that reached the wrong port is recognised by its first frame.
//!
//! A length is refused as soon as it can be seen, before anything is kept for it; what is in a frame
//! shares the bytes that were read. Anything that cannot be read ends the link: it is resumed
//! by a new one. How two nodes prove who they are is in `link/handshake.rs`, which client a forwarded
//! connection carries in `link/client.rs`, what they say about messages and interest in
//! `link/frames.rs`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use gapless_core::cluster::Frame as NodeFrame;

use crate::verb::VerbError;
use crate::wire::Reader;

mod client;
mod frames;
mod handshake;

pub use client::{CERTIFICATE_BYTES_MAX, ClientApi, LinkClient, UnixPeer};
pub use frames::{DELIVER_ITEMS_MAX, NAMED_MAX, REPORTED_MAX};
pub use handshake::{
    ADDRESS_BYTES_MAX, CLUSTER_ID_BYTES_MAX, LinkChallenge, LinkHello, LinkIdentity, LinkRefusal,
    NONCE_BYTES, PROOF_BYTES, REFUSAL_TEXT_BYTES_MAX, RefusalReason,
};

/// The version of this protocol that this library speaks.
pub const LINK_VERSION: u16 = 1;
/// Bytes of a frame before its body.
pub const LINK_HEAD_BYTES: usize = 5;
/// Longest frame of a link that is established, all of it.
pub const LINK_FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest frame of a peer that has not proved who it is.
pub const LINK_HANDSHAKE_BYTES_MAX: usize = 2 * 1024;

const LEN_BYTES: usize = 4;

// Append only.
numbered! {
    /// What a frame of a link is about.
    LinkKind
    128 Hello "The first frame of a link, from the node that dialled: who it is.",
    129 Challenge "The answer to a hello: who the other node is, and what must be proved.",
    130 Proof "The dialling node proves that it knows the secret.",
    131 Accepted "The other node proves the same; the link is established.",
    132 Refused "The link is refused, and why; it ends.",
    133 Ping "Asks for a sign of life.",
    134 Pong "The sign of life.",
    135 Gossip "Bytes of the membership protocol.",
    136 Interest "What changed in the interest of the node.",
    137 InterestFull "A part of the whole interest of the node.",
    138 InterestAsk "Asks for the whole interest of the peer.",
    139 Deliver "Messages for subscribers of the peer.",
    140 Report "What became of messages that the peer sent.",
    141 Probe "Asks whether deliveries would be taken.",
    142 Probed "They would.",
    143 Leave "The node leaves; nothing of it comes any more.",
    144 Note "What the node says of itself; the latest counts.",
    145 Forward "The first frame of a connection that carries a client, from the node that dialled.",
    146 Client "The client that a forwarded connection carries; its own bytes follow.",
}

/// One frame of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFrame {
    /// Who dials.
    Hello(LinkHello),
    /// Who was dialled.
    Challenge(LinkChallenge),
    /// The proof of the node that dialled.
    Proof([u8; PROOF_BYTES]),
    /// The proof of the node that was dialled.
    Accepted([u8; PROOF_BYTES]),
    /// Why there will be no link.
    Refused(LinkRefusal),
    /// Asks for a pong.
    Ping,
    /// The answer to a ping.
    Pong,
    /// A message of the membership protocol, as it is.
    Gossip(Bytes),
    /// What a node says of itself, as it is.
    Note(Bytes),
    /// Who dials to forward a client.
    Forward(LinkHello),
    /// Which client that is.
    Client(LinkClient),
    /// What the cluster's machine says.
    Node(NodeFrame),
}

/// Why bytes are not a valid frame of a link. The link must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A frame has at least its kind.
    #[error("a frame of a link says it has no kind")]
    Empty,
    /// The frame is longer than the link allows.
    #[error("a frame of {bytes} bytes on a link: at most {max} are allowed here")]
    TooLarge {
        /// Its whole length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// There is no such kind in this version.
    #[error("no frame of a link has kind {kind}: is this the address of another listener?")]
    UnknownKind {
        /// Its number.
        kind: u8,
    },
    /// The body is not what the kind asks for.
    #[error("a frame {} of a link is malformed: {error}", kind.name())]
    Malformed {
        /// Which kind.
        kind: LinkKind,
        /// What is wrong.
        error: VerbError,
    },
}

impl LinkFrame {
    /// Its kind.
    pub fn kind(&self) -> LinkKind {
        match self {
            Self::Hello(_) => LinkKind::Hello,
            Self::Challenge(_) => LinkKind::Challenge,
            Self::Proof(_) => LinkKind::Proof,
            Self::Accepted(_) => LinkKind::Accepted,
            Self::Refused(_) => LinkKind::Refused,
            Self::Ping => LinkKind::Ping,
            Self::Pong => LinkKind::Pong,
            Self::Gossip(_) => LinkKind::Gossip,
            Self::Note(_) => LinkKind::Note,
            Self::Forward(_) => LinkKind::Forward,
            Self::Client(_) => LinkKind::Client,
            Self::Node(frame) => frames::kind(frame),
        }
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// When a peer would refuse it; then nothing was written.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), LinkError> {
        let kind = self.kind();
        let malformed = |error| LinkError::Malformed { kind, error };
        put(kind, out, |out| match self {
            Self::Hello(hello) | Self::Forward(hello) => hello.put(out).map_err(malformed),
            Self::Client(client) => client.put(out).map_err(malformed),
            Self::Challenge(challenge) => challenge.put(out).map_err(malformed),
            Self::Proof(proof) | Self::Accepted(proof) => {
                out.put_slice(proof);
                Ok(())
            }
            Self::Refused(refusal) => {
                refusal.put(out);
                Ok(())
            }
            Self::Ping | Self::Pong => Ok(()),
            Self::Gossip(bytes) | Self::Note(bytes) => {
                out.put_slice(bytes);
                Ok(())
            }
            Self::Node(frame) => frames::put(frame, out).map_err(malformed),
        })
    }

    fn decode(kind: LinkKind, body: &Bytes) -> Result<Self, VerbError> {
        let mut reader = Reader::new(body);
        let rest = &mut reader;
        let frame = match kind {
            LinkKind::Hello => Self::Hello(LinkHello::take(rest)?),
            LinkKind::Challenge => Self::Challenge(LinkChallenge::take(rest)?),
            LinkKind::Proof => Self::Proof(handshake::array(rest, "proof")?),
            LinkKind::Accepted => Self::Accepted(handshake::array(rest, "proof")?),
            LinkKind::Refused => Self::Refused(LinkRefusal::take(rest)?),
            LinkKind::Ping => Self::Ping,
            LinkKind::Pong => Self::Pong,
            LinkKind::Gossip => Self::Gossip(rest.rest()),
            LinkKind::Note => Self::Note(rest.rest()),
            LinkKind::Forward => Self::Forward(LinkHello::take(rest)?),
            LinkKind::Client => Self::Client(LinkClient::take(rest)?),
            _ => Self::Node(frames::take(kind, rest)?),
        };
        reader.finish()?;
        Ok(frame)
    }
}

/// Writes a frame whose body `body` writes; its length is put in once it is known. On an error
/// nothing was written.
fn put(
    kind: LinkKind,
    out: &mut BytesMut,
    body: impl FnOnce(&mut BytesMut) -> Result<(), LinkError>,
) -> Result<(), LinkError> {
    let begin = out.len();
    out.put_u32_le(0);
    out.put_u8(kind.number());
    let written = body(out);
    let bytes = out.len() - begin;
    let fits = if bytes > LINK_FRAME_BYTES_MAX {
        Err(LinkError::TooLarge { bytes, max: LINK_FRAME_BYTES_MAX })
    } else {
        Ok(())
    };
    if let Err(error) = written.and(fits) {
        out.truncate(begin);
        return Err(error);
    }
    // Not cut short: it is at most LINK_FRAME_BYTES_MAX.
    let len = ((bytes - LEN_BYTES) as u32).to_le_bytes();
    out[begin..begin + LEN_BYTES].copy_from_slice(&len);
    Ok(())
}

/// Takes frames off what was read; what is not yet a frame stays there.
#[derive(Clone, Copy, Debug)]
pub struct LinkDecoder {
    bytes_max: usize,
}

impl LinkDecoder {
    /// For a peer that has not proved who it is: its frames are small.
    pub const HANDSHAKE: Self = Self { bytes_max: LINK_HANDSHAKE_BYTES_MAX };
    /// For a link that is established.
    pub const ESTABLISHED: Self = Self { bytes_max: LINK_FRAME_BYTES_MAX };

    /// The next frame; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When what is there can never become a frame. The link must end.
    pub fn decode(&self, input: &mut BytesMut) -> Result<Option<LinkFrame>, LinkError> {
        let Some(whole) = self.whole(input)? else { return Ok(None) };
        if input.len() < whole {
            return Ok(None);
        }
        let mut body = input.split_to(whole).freeze();
        let kind = body[LEN_BYTES];
        body.advance(LINK_HEAD_BYTES);
        let kind = LinkKind::from_number(kind).ok_or(LinkError::UnknownKind { kind })?;
        let frame = LinkFrame::decode(kind, &body);
        frame.map(Some).map_err(|error| LinkError::Malformed { kind, error })
    }

    /// How many bytes are missing until the next frame is whole, as far as is known: never more than
    /// the longest frame.
    ///
    /// # Errors
    /// As [`LinkDecoder::decode`].
    pub fn missing(&self, input: &[u8]) -> Result<usize, LinkError> {
        let whole = self.whole(input)?.unwrap_or(LINK_HEAD_BYTES);
        Ok(whole.saturating_sub(input.len()))
    }

    /// The length of the next frame, once it can be seen.
    fn whole(&self, input: &[u8]) -> Result<Option<usize>, LinkError> {
        let Some(len) = input.first_chunk().map(|len| u32::from_le_bytes(*len) as usize) else {
            return Ok(None);
        };
        // A kind that does not exist is seen before its frame is waited for.
        if let Some(&kind) = input.get(LEN_BYTES)
            && LinkKind::from_number(kind).is_none()
        {
            return Err(LinkError::UnknownKind { kind });
        }
        let bytes = len.saturating_add(LEN_BYTES);
        if bytes < LINK_HEAD_BYTES {
            return Err(LinkError::Empty);
        }
        if bytes > self.bytes_max {
            return Err(LinkError::TooLarge { bytes, max: self.bytes_max });
        }
        Ok(Some(bytes))
    }
}
