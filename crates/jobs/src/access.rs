//! How a leader is reached: over TCP, with TLS or without, and by what a client proves itself.
//!
//! Files of certificates are read by those that have them; here is what they make of them.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// What is read from a leader.
pub(crate) type Incoming = Box<dyn AsyncRead + Send + Unpin>;
/// What is written to it.
pub(crate) type Outgoing = Box<dyn AsyncWrite + Send + Unpin>;

/// See the head of the file. The default is no TLS and no token.
#[derive(Clone, Default)]
pub struct Access {
    /// By what a client or a worker proves who it is, beside a certificate.
    pub token: Option<String>,
    /// Which authorities are trusted, and by which certificate a client or a worker proves who it is;
    /// none is no TLS.
    pub tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Access {
    /// Secrets are not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (token, tls) = (self.token.is_some(), self.tls.is_some());
        f.debug_struct("Access").field("token", &token).field("tls", &tls).finish()
    }
}

impl Access {
    /// Connects to `host:port`, and shakes hands if there is TLS.
    pub(crate) async fn dial(&self, address: &str) -> io::Result<(Incoming, Outgoing)> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            let (input, output) = stream.into_split();
            return Ok((Box::new(input), Box::new(output)));
        };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
        let (input, output) = tokio::io::split(stream);
        Ok((Box::new(input), Box::new(output)))
    }
}
