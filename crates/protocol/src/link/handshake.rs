//! How two nodes agree on a link: four frames, or a refusal in place of any of them.
//!
//! The dialling node says who it is, the other answers who it is, then each proves that it
//! knows the cluster's secret, the dialling one first: who only connects gets no proof to work on. A proof
//! is over the bodies of hello and challenge, which have one encoding each, so that names, incarnations
//! and the cluster's id are what was proved. Computing proofs is not here.

use alloc::string::String;
use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::cluster::{Incarnation, NodeName};

use crate::verb::VerbError;
use crate::wire::{Reader, at_most, ensure, put_bytes, text};

/// Longest id of a cluster.
pub const CLUSTER_ID_BYTES_MAX: usize = 64;
/// Longest address at which a node is reached.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Bytes of randomness by which a handshake differs from all others.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof (HMAC-SHA256).
pub const PROOF_BYTES: usize = 32;
/// Longest text of a refusal.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 512;

/// Who a node says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkIdentity {
    /// Which cluster it belongs to.
    pub cluster: String,
    /// Its name in the cluster.
    pub node: NodeName,
    /// Which of its starts this is: each has a higher one.
    pub incarnation: Incarnation,
    /// Where other nodes reach it, as `ip:port`.
    pub address: String,
    /// Random bytes, new for each handshake.
    pub nonce: [u8; NONCE_BYTES],
}

impl LinkIdentity {
    fn put(&self, out: &mut BytesMut) -> Result<(), VerbError> {
        self.check()?;
        put_bytes(out, self.cluster.as_bytes());
        put_bytes(out, self.node.as_str().as_bytes());
        out.put_u64_le(self.incarnation.0);
        put_bytes(out, self.address.as_bytes());
        out.put_slice(&self.nonce);
        Ok(())
    }

    fn take(reader: &mut Reader) -> Result<Self, VerbError> {
        let cluster = reader.text("cluster")?;
        let node = node(reader, "node")?;
        let incarnation = Incarnation(reader.u64("incarnation")?);
        let address = reader.text("address")?;
        let nonce = array(reader, "nonce")?;
        let identity = Self { cluster, node, incarnation, address, nonce };
        identity.check()?;
        Ok(identity)
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(!self.cluster.is_empty(), "cluster")?;
        at_most(CLUSTER_ID_BYTES_MAX, self.cluster.len(), "cluster")?;
        at_most(ADDRESS_BYTES_MAX, self.address.len(), "address")
    }
}

/// The first frame of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkHello {
    /// The lowest version that the node speaks.
    pub version_min: u16,
    /// The highest version that the node speaks.
    pub version_max: u16,
    /// Who dials.
    pub who: LinkIdentity,
}

impl LinkHello {
    pub(super) fn put(&self, out: &mut BytesMut) -> Result<(), VerbError> {
        out.put_u16_le(self.version_min);
        out.put_u16_le(self.version_max);
        self.who.put(out)
    }

    pub(super) fn take(reader: &mut Reader) -> Result<Self, VerbError> {
        let (version_min, version_max) = (reader.u16("version_min")?, reader.u16("version_max")?);
        Ok(Self { version_min, version_max, who: LinkIdentity::take(reader)? })
    }

    /// The bytes that proofs are over.
    ///
    /// # Errors
    /// When the hello breaks a rule of its fields.
    pub fn body(&self) -> Result<Bytes, VerbError> {
        body(|out| self.put(out))
    }
}

/// The answer to a hello that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkChallenge {
    /// The version that the link speaks.
    pub version: u16,
    /// Who was dialled.
    pub who: LinkIdentity,
}

impl LinkChallenge {
    pub(super) fn put(&self, out: &mut BytesMut) -> Result<(), VerbError> {
        out.put_u16_le(self.version);
        self.who.put(out)
    }

    pub(super) fn take(reader: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { version: reader.u16("version")?, who: LinkIdentity::take(reader)? })
    }

    /// The bytes that proofs are over.
    ///
    /// # Errors
    /// When the challenge breaks a rule of its fields.
    pub fn body(&self) -> Result<Bytes, VerbError> {
        body(|out| self.put(out))
    }
}

/// Why a link is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RefusalReason {
    /// No version is common to both.
    Version = 1,
    /// The two belong to different clusters.
    ForeignCluster = 2,
    /// The proof is not that of this cluster's secret.
    WrongSecret = 3,
    /// Another process that lives has this name.
    NameTaken = 4,
    /// A later start of the node is known.
    OldIncarnation = 5,
    /// The node dialled itself.
    Myself = 6,
    /// There are as many nodes as there may be.
    TooManyNodes = 7,
    /// The node is leaving the cluster.
    Leaving = 8,
    /// What was sent is not the handshake of a link.
    Malformed = 9,
}

impl RefusalReason {
    /// Every reason, in the order of the numbers.
    pub const ALL: [Self; 9] = [
        Self::Version,
        Self::ForeignCluster,
        Self::WrongSecret,
        Self::NameTaken,
        Self::OldIncarnation,
        Self::Myself,
        Self::TooManyNodes,
        Self::Leaving,
        Self::Malformed,
    ];

    /// The number on the wire; never reused.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The reason of this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.number() == number)
    }

    /// The word in logs, events and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::ForeignCluster => "foreign-cluster",
            Self::WrongSecret => "wrong-secret",
            Self::NameTaken => "name-taken",
            Self::OldIncarnation => "old-incarnation",
            Self::Myself => "myself",
            Self::TooManyNodes => "too-many-nodes",
            Self::Leaving => "leaving",
            Self::Malformed => "malformed",
        }
    }
}

/// The last frame of a link that does not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRefusal {
    /// Why.
    pub reason: RefusalReason,
    /// The same in words, for the log of the other side.
    pub text: String,
}

impl LinkRefusal {
    pub(super) fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.reason.number());
        let mut end = self.text.len().min(REFUSAL_TEXT_BYTES_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        out.put_slice(&self.text.as_bytes()[..end]);
    }

    pub(super) fn take(reader: &mut Reader) -> Result<Self, VerbError> {
        let reason = RefusalReason::from_number(reader.u8("reason")?);
        let reason = reason.ok_or(VerbError::Value { field: "reason" })?;
        let rest = reader.rest();
        at_most(REFUSAL_TEXT_BYTES_MAX, rest.len(), "text")?;
        Ok(Self { reason, text: text(&rest, "text")?.into() })
    }
}

fn body(put: impl FnOnce(&mut BytesMut) -> Result<(), VerbError>) -> Result<Bytes, VerbError> {
    let mut out = BytesMut::new();
    put(&mut out)?;
    Ok(out.freeze())
}

/// The name of a node.
pub(super) fn node(reader: &mut Reader, field: &'static str) -> Result<NodeName, VerbError> {
    let bytes = reader.bytes(field)?;
    NodeName::parse(text(&bytes, field)?).map_err(|_| VerbError::Value { field })
}

/// Bytes of a fixed length.
pub(super) fn array<const N: usize>(
    reader: &mut Reader,
    field: &'static str,
) -> Result<[u8; N], VerbError> {
    let mut array = [0; N];
    for byte in &mut array {
        *byte = reader.u8(field)?;
    }
    Ok(array)
}
