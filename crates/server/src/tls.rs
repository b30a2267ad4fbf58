//! TLS of the listeners: certificates from files, read again when they change.
//!
//! A connection keeps the configuration it began with, so that a new certificate ends none. Files that
//! cannot be used leave the former certificate in force, with a warning. What is in a client's certificate
//! is in `certificate.rs`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{AlertDescription, CertificateError, CipherSuite, Error, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificate;
use crate::read_ahead::ReadAhead;

/// How long before its end a certificate is warned about.
const WARN_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often it is warned about.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Where certificates are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// Authorities (PEM) that sign clients' certificates; without it none is asked for.
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked clients' certificates (PEM).
    pub client_crl: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub client_required: bool,
}

/// Why certificates cannot be used. Those that were in force before still are.
#[derive(Debug, thiserror::Error)]
#[error("TLS cannot be used: {}: {why}", path.display())]
pub struct TlsError {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The certificates of a server. Clones share them.
#[derive(Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

struct Inner {
    files: TlsFiles,
    loaded: RwLock<Loaded>,
}

struct Loaded {
    /// When the files were changed last, and how long they were.
    stamps: Vec<Option<(SystemTime, u64)>>,
    native: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// Since 1970.
    expires: Duration,
    /// When its end was warned about last.
    warned: Option<Duration>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls({})", self.inner.files.cert.display())
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Tls {}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let loaded = RwLock::new(load(&files)?);
        Ok(Self { inner: Arc::new(Inner { files, loaded }) })
    }

    /// Reads the files again if they changed, or `anyway`. Returns whether new ones are in force now.
    pub fn reload(&self, anyway: bool) -> bool {
        let stamps = stamps(&self.inner.files);
        if !anyway && self.read().stamps == stamps {
            return false;
        }
        match load(&self.inner.files) {
            Ok(loaded) => {
                *self.write() = loaded;
                tracing::info!("the certificates were read again");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the former certificate stays in force");
                self.write().stamps = stamps;
                false
            }
        }
    }

    /// Warns once a day if the certificate ends soon; `now` is since 1970.
    pub fn warn_if_old(&self, now: Duration) {
        let mut loaded = self.write();
        let left = loaded.expires.saturating_sub(now);
        let was_said = loaded.warned.is_some_and(|said| now.saturating_sub(said) < WARN_EVERY);
        if left < WARN_BEFORE && !was_said {
            loaded.warned = Some(now);
            let (path, days) = (self.inner.files.cert.display(), left.as_secs() / 86_400);
            tracing::warn!(%path, days, "the server's certificate expires soon: renew it");
        }
    }

    /// When the certificate expires, since 1970.
    pub fn expires(&self) -> Duration {
        self.read().expires
    }

    fn read(&self) -> RwLockReadGuard<'_, Loaded> {
        self.inner.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Loaded> {
        self.inner.loaded.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shakes hands on a listener: `http` agrees on the version of HTTP as well. `None` when that fails
    /// or takes longer than `most`; why is in the log.
    pub(crate) async fn accept(
        &self,
        http: bool,
        stream: TcpStream,
        most: Duration,
    ) -> Option<TlsStream<ReadAhead>> {
        let config = {
            let loaded = self.read();
            Arc::clone(if http { &loaded.http } else { &loaded.native })
        };
        let peer = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
        let shaking = Box::pin(TlsAcceptor::from(config).accept(ReadAhead::new(stream)));
        let error = match tokio::time::timeout(most, shaking).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        let listener = if http { "http" } else { "native" };
        metrics::counter!("gapless_tls_handshakes_failed_total", "listener" => listener)
            .increment(1);
        let why = reason(&error);
        if error.kind() == io::ErrorKind::UnexpectedEof {
            // A port scan or a health check does that.
            tracing::debug!(listener, peer, why, "a TLS handshake failed");
        } else {
            tracing::info!(listener, peer, why, "a TLS handshake failed");
        }
        None
    }
}

/// Why a handshake failed, for people.
fn reason(error: &io::Error) -> String {
    let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<Error>()) else {
        return error.to_string();
    };
    let of_client = match error {
        Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "is not valid yet"
            }
            CertificateError::Revoked => "was revoked",
            // Another authority of the same name signs differently.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "is not signed by an authority of tls.client_ca"
            }
            _ => return format!("the client's certificate cannot be used: {error}"),
        },
        Error::NoCertificatesPresented => "is missing, and tls.client_required asks for one",
        Error::AlertReceived(alert) => {
            return format!("the client refuses: {}", alert_text(*alert));
        }
        Error::InvalidMessage(_) => return "the client does not speak TLS".to_owned(),
        _ => return error.to_string(),
    };
    format!("the client's certificate {of_client}")
}

fn alert_text(alert: AlertDescription) -> String {
    let about_ours = match alert {
        AlertDescription::CertificateExpired => "has expired",
        AlertDescription::CertificateRevoked => "was revoked",
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "is not signed by an authority it trusts"
        }
        AlertDescription::BadCertificate => "is not for the name it asked for, or is damaged",
        _ => return format!("{alert:?}"),
    };
    format!("this server's certificate {about_ours}")
}

/// When the files were changed last.
fn stamps(files: &TlsFiles) -> Vec<Option<(SystemTime, u64)>> {
    let others = [&files.client_ca, &files.client_crl].into_iter().flatten();
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len()))
    };
    [&files.cert, &files.key].into_iter().chain(others).map(stamp).collect()
}

fn failed(path: &Path, why: &dyn std::fmt::Display) -> TlsError {
    TlsError { path: path.to_owned(), why: why.to_string() }
}

/// All items of a kind in a file, at least one.
fn all_in<T: PemObject>(path: &Path, what: &str) -> Result<Vec<T>, TlsError> {
    let items = T::pem_file_iter(path).map_err(|error| failed(path, &error))?;
    let items: Vec<_> = items.collect::<Result<_, _>>().map_err(|error| failed(path, &error))?;
    if items.is_empty() {
        return Err(failed(path, &format_args!("there is no {what} in it")));
    }
    Ok(items)
}

fn load(files: &TlsFiles) -> Result<Loaded, TlsError> {
    // Before they are read: a change meanwhile is seen the next time.
    let stamps = stamps(files);
    let chain: Vec<CertificateDer<'static>> = all_in(&files.cert, "certificate")?;
    let expires = certificate::expires(&chain[0]).map_err(|error| failed(&files.cert, &error))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| failed(&files.key, &error))?;
    let provider = Arc::new(provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&files.cert, &error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(client_verifier(files, path, provider)?),
    };
    let native = builder.with_single_cert(chain, key);
    let mut native = native.map_err(|error| failed(&files.cert, &error))?;
    native.ignore_client_order = true;
    let mut http = native.clone();
    // A client that comes again gets the next one then; browsers open several connections at once.
    native.send_tls13_tickets = 1;
    http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let (native, http) = (Arc::new(native), Arc::new(http));
    Ok(Loaded { stamps, native, http, expires, warned: None })
}

/// The cryptography, with AES of 128 bits first: it is as safe for all that is known, its bytes cost
/// about a quarter less, and its handshakes use SHA-256, which most processors compute by themselves.
/// Many clients list that of 256 bits first, without needing it.
fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !FIRST.contains(&suite.suite()));
    provider
}

/// Which suites are taken if a client has them.
const FIRST: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// Checks clients' certificates against the authorities in `path`, and the lists of revoked ones.
fn client_verifier(
    files: &TlsFiles,
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in all_in(path, "certificate")? {
        roots.add(authority).map_err(|error| failed(path, &error))?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if let Some(path) = &files.client_crl {
        let revoked = all_in::<CertificateRevocationListDer<'static>>(path, "revocation list")?;
        // A list of one authority says nothing about the certificates of another.
        verifier = verifier
            .with_crls(revoked)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    if !files.client_required {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map_err(|error| failed(files.client_crl.as_deref().unwrap_or(path), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_of_128_bits_come_first_and_none_is_missing() {
        let suites: Vec<CipherSuite> =
            provider().cipher_suites.iter().map(|each| each.suite()).collect();
        assert!(FIRST.contains(&suites[0]) && FIRST.contains(&suites[2]), "{suites:?}");
        let known = rustls::crypto::ring::default_provider().cipher_suites;
        assert_eq!(suites.len(), known.len());
        assert!(known.iter().all(|each| suites.contains(&each.suite())));
    }
}
