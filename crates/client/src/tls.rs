//! TLS of a client: which servers are trusted, and by what the client proves itself.
//!
//! The session works on a socket that never blocks: what can be read or written is, and the socket says
//! when there is more. So a connection with TLS looks to the driver as one without.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

/// How a client speaks TLS.
///
/// ```no_run
/// use gapless_client::{Client, ConnectOptions, TlsOptions};
///
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = TlsOptions { ca: Some("ca.pem".into()), ..TlsOptions::default() };
/// let client = Client::connect(ConnectOptions::new(["broker.example"]).tls(tls)).await?;
/// # let _ = client;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// A file of certificates (PEM) of authorities that may sign a server's certificate; without it
    /// the system's are used.
    pub ca: Option<PathBuf>,
    /// Files (PEM) of the client's own certificate and key, if it proves itself by one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have; without it that of the address.
    pub server_name: Option<String>,
}

/// Why TLS cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be used. Nothing was connected.
    #[error("cannot use {}: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no certificate to trust. Nothing was connected.
    #[error("the system trusts no certificates: name a file of those to trust")]
    NoRoots,
    /// The name is none that a certificate can have. Nothing was connected.
    #[error("{0:?} is not a valid server name")]
    Name(String),
    /// One side does not trust the other, or does not speak TLS. Nothing was sent.
    #[error("{0}")]
    Handshake(String),
}

/// What was made of the options.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl TlsOptions {
    /// What rustls makes of them, for others that connect to the same servers; the name of the server
    /// is theirs to check.
    ///
    /// # Errors
    /// When a file cannot be used, or nothing is trusted.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        Ok(self.build()?.config)
    }

    pub(crate) fn build(&self) -> Result<Tls, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for each in certificates(path)? {
                    roots.add(each).map_err(|error| unusable(path, &error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(TlsError::NoRoots);
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Handshake(error.to_string()))?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let private = PrivateKeyDer::from_pem_file(key);
                let private = private.map_err(|error| unusable(key, &error))?;
                builder
                    .with_client_auth_cert(certificates(cert)?, private)
                    .map_err(|error| unusable(cert, &error))?
            }
        };
        let name = self.server_name.as_ref().map(|name| server_name(name)).transpose()?;
        Ok(Tls { config: Arc::new(config), name })
    }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), why: why.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, &error))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|error| unusable(path, &error))?;
    if all.is_empty() {
        return Err(unusable(path, &"there is no certificate in it"));
    }
    Ok(all)
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))
}

/// Whether a connection was lost because one side does not trust the other.
pub(crate) fn is_distrust(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<TlsError>())
}

fn distrust(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsError::Handshake(reason(error)))
}

/// Why it failed, for people.
fn reason(error: &Error) -> String {
    let of_server = match error {
        Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "is not valid yet"
            }
            CertificateError::Revoked => "was revoked",
            // Another authority of the same name signs differently.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "is not signed by an authority that this client trusts"
            }
            CertificateError::NotValidForName => "is for another name than that of the address",
            CertificateError::NotValidForNameContext { expected, presented } => {
                let (name, names) = (expected.to_str(), presented.join(", "));
                return format!("the server's certificate is not for {name}, but for {names}");
            }
            _ => return format!("the server's certificate cannot be used: {error}"),
        },
        Error::AlertReceived(alert) => return refusal(*alert),
        Error::InvalidMessage(_) => return "the server does not speak TLS at this port".to_owned(),
        _ => return format!("TLS failed: {error}"),
    };
    format!("the server's certificate {of_server}")
}

/// Why the server ended it.
fn refusal(alert: AlertDescription) -> String {
    let of_client = match alert {
        AlertDescription::CertificateRequired => "is missing: it asks for one",
        AlertDescription::CertificateExpired => "has expired",
        AlertDescription::CertificateRevoked => "was revoked",
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "is not signed by an authority that it trusts"
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => "cannot be used",
        _ => return format!("the server refuses: {alert:?}"),
    };
    format!("the server refuses: this client's certificate {of_client}")
}

impl Tls {
    /// Shakes hands with the server at this address.
    pub(crate) async fn connect(&self, tcp: TcpStream, address: &str) -> io::Result<TlsSocket> {
        let invalid = |error: TlsError| io::Error::new(io::ErrorKind::InvalidInput, error);
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                server_name(host).map_err(invalid)?
            }
        };
        let tls = ClientConnection::new(Arc::clone(&self.config), name);
        let tls = tls.map_err(|error| distrust(&error))?;
        let socket = TlsSocket { tcp, session: Mutex::new(Session { tls, more: false }) };
        socket.shake_hands().await?;
        Ok(socket)
    }
}

/// A socket that speaks TLS. Its calls are those of a [`TcpStream`].
#[derive(Debug)]
pub(crate) struct TlsSocket {
    tcp: TcpStream,
    session: Mutex<Session>,
}

#[derive(Debug)]
struct Session {
    tls: ClientConnection,
    /// Whether something that was decrypted may be waiting, of which the socket knows nothing.
    more: bool,
}

/// The socket as the session sees it.
struct Now<'a>(&'a TcpStream);

impl Read for Now<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl TlsSocket {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn shake_hands(&self) -> io::Result<()> {
        loop {
            let (flushed, handshaking) = {
                let mut session = self.session();
                (self.flush_session(&mut session)?, session.tls.is_handshaking())
            };
            if flushed && !handshaking {
                return Ok(());
            }
            let interest = if flushed { Interest::READABLE } else { Interest::WRITABLE };
            self.tcp.ready(interest).await?;
            if flushed {
                match self.take(&mut self.session()) {
                    Ok(0) => {
                        let why = "the server ended the connection before TLS was agreed on";
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                    }
                    Err(error) if !would_block(&error) => return Err(error),
                    _ => {}
                }
            }
        }
    }

    /// Reads and decrypts what the socket has; zero at its end.
    fn take(&self, session: &mut Session) -> io::Result<usize> {
        let read = session.tls.read_tls(&mut Now(&self.tcp))?;
        if let Err(error) = session.tls.process_new_packets() {
            // The server learns why, if it still listens.
            let _ = self.flush_session(session);
            return Err(distrust(&error));
        }
        Ok(read)
    }

    /// Writes what is encrypted; false when the socket takes no more.
    fn flush_session(&self, session: &mut Session) -> io::Result<bool> {
        while session.tls.wants_write() {
            match session.tls.write_tls(&mut Now(&self.tcp)) {
                Ok(_) => {}
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes what is encrypted; false when the socket takes no more.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        self.flush_session(&mut self.session())
    }

    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let unwritten = {
            let session = self.session();
            if session.more {
                return Ok(Ready::READABLE);
            }
            session.tls.wants_write()
        };
        let interest = if unwritten { interest | Interest::WRITABLE } else { interest };
        let ready = self.tcp.ready(interest).await?;
        if unwritten && ready.is_writable() {
            self.flush()?;
        }
        Ok(ready)
    }

    /// Reads what is there; zero at the end.
    pub(crate) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        let mut session = self.session();
        loop {
            let mut decrypted = session.tls.reader();
            match decrypted.fill_buf() {
                Ok(bytes) => {
                    let read = bytes.len();
                    into.extend_from_slice(bytes);
                    decrypted.consume(read);
                    session.more = read > 0;
                    return Ok(read);
                }
                Err(error) if would_block(&error) => session.more = false,
                // A server that ends without the last word of TLS is gone all the same.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) => return Err(error),
            }
            self.take(&mut session)?;
        }
    }

    /// Encrypts and writes what can be written; the rest of it goes out with the next call, or flush.
    pub(crate) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.session();
        if !self.flush_session(&mut session)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = session.tls.writer().write_vectored(parts)?;
        self.flush_session(&mut session)?;
        Ok(taken)
    }
}
