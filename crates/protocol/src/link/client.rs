//! The client that a node forwards to another: what the first node knows of it and the bytes that follow
//! do not say.

use alloc::string::String;

use bytes::{BufMut, BytesMut};

use super::handshake::ADDRESS_BYTES_MAX;
use crate::verb::VerbError;
use crate::wire::{Reader, at_most, ensure, put_bytes};

/// Longest name in a certificate that is passed on.
pub const CERTIFICATE_BYTES_MAX: usize = 1024;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ClientApi {
    /// The native protocol.
    Native = 1,
    /// HTTP/1.1.
    Http = 2,
}

/// The process at the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixPeer {
    /// Its user.
    pub uid: u32,
    /// The user of the node that it is connected to.
    pub own: u32,
}

/// A client of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkClient {
    /// What it speaks.
    pub api: ClientApi,
    /// Where it is connected from.
    pub address: String,
    /// The name in its certificate, which was verified.
    pub certificate: Option<String>,
    /// Who it is by its Unix socket.
    pub peer: Option<UnixPeer>,
}

impl LinkClient {
    pub(super) fn put(&self, out: &mut BytesMut) -> Result<(), VerbError> {
        self.check()?;
        out.put_u8(self.api as u8);
        put_bytes(out, self.address.as_bytes());
        // A certificate without a name is none.
        put_bytes(out, self.certificate.as_deref().unwrap_or_default().as_bytes());
        out.put_u8(u8::from(self.peer.is_some()));
        if let Some(UnixPeer { uid, own }) = self.peer {
            out.put_u32_le(uid);
            out.put_u32_le(own);
        }
        Ok(())
    }

    pub(super) fn take(reader: &mut Reader) -> Result<Self, VerbError> {
        let api = match reader.u8("api")? {
            1 => ClientApi::Native,
            2 => ClientApi::Http,
            _ => return Err(VerbError::Value { field: "api" }),
        };
        let (address, certificate) = (reader.text("address")?, reader.text("certificate")?);
        let certificate = Some(certificate).filter(|name| !name.is_empty());
        let peer = match reader.flag("peer")? {
            false => None,
            true => Some(UnixPeer { uid: reader.u32("uid")?, own: reader.u32("own")? }),
        };
        let client = Self { api, address, certificate, peer };
        client.check()?;
        Ok(client)
    }

    fn check(&self) -> Result<(), VerbError> {
        let certificate = self.certificate.as_deref();
        at_most(ADDRESS_BYTES_MAX, self.address.len(), "address")?;
        at_most(CERTIFICATE_BYTES_MAX, certificate.unwrap_or_default().len(), "certificate")?;
        ensure(certificate != Some(""), "certificate")
    }
}
