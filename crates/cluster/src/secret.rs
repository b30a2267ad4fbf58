//! The secret that all nodes of a cluster know, and proofs of knowing it.
//!
//! A proof is an HMAC-SHA256 over the side that proves and both introductions of a handshake; each
//! has random bytes of its own, so that no proof is of use a second time. The secret itself is never
//! sent, and never printed.

use std::fmt;
use std::path::Path;

use gapless_protocol::link::{LinkChallenge, LinkHello, PROOF_BYTES};
use ring::hmac;

/// Shortest secret in bytes: shorter ones can be guessed from a recorded handshake.
pub const SECRET_BYTES_MIN: usize = 16;
/// Longest secret in bytes.
pub const SECRET_BYTES_MAX: usize = 4096;

/// What the nodes of a cluster know, and no one else.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It could be guessed.
    #[error(
        "the secret has {bytes} bytes: use at least {SECRET_BYTES_MIN}, from a random generator"
    )]
    TooShort {
        /// How many it has.
        bytes: usize,
    },
    /// It is longer than any secret needs to be.
    #[error("the secret has {bytes} bytes: use at most {SECRET_BYTES_MAX}")]
    TooLong {
        /// How many it has.
        bytes: usize,
    },
    /// Its file cannot be read.
    #[error("cannot read the secret in {path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a connection between two nodes is for. A proof is of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What nodes say to each other.
    Link,
    /// The bytes of one client.
    Forward,
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prover {
    Dialling,
    Dialled,
}

impl Secret {
    /// A secret of these bytes.
    ///
    /// # Errors
    /// When it is too short or too long.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        match bytes.len() {
            bytes if bytes < SECRET_BYTES_MIN => Err(SecretError::TooShort { bytes }),
            bytes if bytes > SECRET_BYTES_MAX => Err(SecretError::TooLong { bytes }),
            _ => Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))),
        }
    }

    /// The secret in the first line of a file.
    ///
    /// # Errors
    /// When the file cannot be read, or its first line cannot be a secret.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let text = std::fs::read(path)
            .map_err(|source| SecretError::File { path: path.display().to_string(), source })?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Self::new(line.trim_ascii())
    }

    /// What nodes without a secret share: they are told apart from those that have one.
    pub(crate) fn none() -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &[]))
    }

    /// The proof of one side.
    pub(crate) fn proof(&self, prover: Prover, said: &Introductions) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.0, &said.of(prover));
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether the other side proved it; takes the same time for every wrong proof.
    pub(crate) fn is_proved(
        &self,
        prover: Prover,
        said: &Introductions,
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        hmac::verify(&self.0, &said.of(prover), proof).is_ok()
    }
}

/// What both sides said of themselves.
#[derive(Clone, Debug)]
pub(crate) struct Introductions {
    purpose: Purpose,
    hello: Vec<u8>,
    challenge: Vec<u8>,
}

impl Introductions {
    /// `None` if one of them breaks a rule of its fields, which no decoded one does.
    pub(crate) fn new(
        purpose: Purpose,
        hello: &LinkHello,
        challenge: &LinkChallenge,
    ) -> Option<Self> {
        let (hello, challenge) = (hello.body().ok()?, challenge.body().ok()?);
        Some(Self { purpose, hello: hello.to_vec(), challenge: challenge.to_vec() })
    }

    fn of(&self, prover: Prover) -> Vec<u8> {
        let label: &[u8] = match (self.purpose, prover) {
            (Purpose::Link, Prover::Dialling) => b"gapless link 1, dialling\0",
            (Purpose::Link, Prover::Dialled) => b"gapless link 1, dialled\0",
            (Purpose::Forward, Prover::Dialling) => b"gapless forward 1, dialling\0",
            (Purpose::Forward, Prover::Dialled) => b"gapless forward 1, dialled\0",
        };
        let length = (self.hello.len() as u64).to_le_bytes();
        [label, &length, &self.hello, &self.challenge].concat()
    }
}

#[cfg(test)]
mod tests {
    use gapless_core::cluster::{Incarnation, NodeName};
    use gapless_protocol::link::{LinkIdentity, NONCE_BYTES};

    use super::*;

    fn said(nonce: u8) -> Introductions {
        introduced(Purpose::Link, nonce)
    }

    fn introduced(purpose: Purpose, nonce: u8) -> Introductions {
        let who = |name: &str, nonce| LinkIdentity {
            cluster: "test".into(),
            node: NodeName::parse(name).expect("a name"),
            incarnation: Incarnation(7),
            address: "127.0.0.1:1".into(),
            nonce: [nonce; NONCE_BYTES],
        };
        let hello = LinkHello { version_min: 1, version_max: 1, who: who("a", nonce) };
        let challenge = LinkChallenge { version: 1, who: who("b", 9) };
        Introductions::new(purpose, &hello, &challenge).expect("valid")
    }

    #[test]
    fn a_proof_is_of_one_secret_one_side_and_one_handshake() {
        let secret = Secret::new(b"0123456789abcdef").expect("long enough");
        let proof = secret.proof(Prover::Dialling, &said(1));
        assert!(secret.is_proved(Prover::Dialling, &said(1), &proof));
        assert!(!secret.is_proved(Prover::Dialled, &said(1), &proof), "no reflection");
        assert!(!secret.is_proved(Prover::Dialling, &said(2), &proof), "no replay");
        let other = introduced(Purpose::Forward, 1);
        assert!(!secret.is_proved(Prover::Dialling, &other, &proof), "no other purpose");
        let other = Secret::new(b"0123456789abcdeX").expect("long enough");
        assert!(!other.is_proved(Prover::Dialling, &said(1), &proof));
        assert!(!Secret::none().is_proved(Prover::Dialling, &said(1), &proof));
    }

    #[test]
    fn a14_a_secret_that_can_be_guessed_is_refused_and_none_is_printed() {
        assert!(matches!(Secret::new(b"short"), Err(SecretError::TooShort { bytes: 5 })));
        let long = vec![b'x'; SECRET_BYTES_MAX + 1];
        assert!(matches!(Secret::new(&long), Err(SecretError::TooLong { .. })));
        let secret = Secret::new(b"0123456789abcdef").expect("long enough");
        assert!(!format!("{secret:?}").contains("0123"));
    }

    #[test]
    fn a_secret_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "0123456789abcdef \r\nmore\n").expect("written");
        let (read, same) = (Secret::read(&path), Secret::new(b"0123456789abcdef"));
        let proof = read.expect("read").proof(Prover::Dialled, &said(1));
        assert!(same.expect("long enough").is_proved(Prover::Dialled, &said(1), &proof));
        let missing = Secret::read(&folder.path().join("no")).expect_err("there is none");
        assert!(missing.to_string().contains("no"), "{missing}");
    }
}
