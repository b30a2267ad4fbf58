//! Mutual TLS of links: each node shows a certificate of the cluster's own authority.
//!
//! The certificates of all nodes are for one name, since nodes are dialled at addresses that gossip
//! brings; which node it is, the handshake says. Files that change are read again: links that are up
//! keep what they began with, the next ones take what is new. Files that cannot be used leave the former
//! ones in force, with a warning. Listeners do the same (`server/tls.rs`).

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::clock;
use crate::options::{ClusterTlsFiles, StartError};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The certificates of a node.
pub(crate) struct Tls {
    files: ClusterTlsFiles,
    loaded: RwLock<Loaded>,
}

struct Loaded {
    stamps: Stamps,
    sides: Sides,
}

/// When each file was changed last, and how long it was.
type Stamps = [Option<(SystemTime, u64)>; 3];

/// Both sides of TLS, for one node.
#[derive(Clone)]
pub(crate) struct Sides {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

fn failed(path: &Path, why: &dyn std::fmt::Display) -> StartError {
    StartError::Tls { path: path.display().to_string(), why: why.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(path, &error))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| failed(path, &error))?;
    if found.is_empty() {
        return Err(failed(path, &"there is no certificate in it"));
    }
    Ok(found)
}

fn stamps(files: &ClusterTlsFiles) -> Stamps {
    [&files.cert, &files.key, &files.ca].map(|path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len()))
    })
}

impl Tls {
    /// Reads the files.
    pub(crate) fn open(files: &ClusterTlsFiles) -> Result<Self, StartError> {
        let loaded = RwLock::new(Loaded::read(files)?);
        Ok(Self { files: files.clone(), loaded })
    }

    /// What is in force now.
    pub(crate) fn sides(&self) -> Sides {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).sides.clone()
    }

    /// Reads the files again if they changed. Blocks while they are read.
    fn reload(&self) {
        let stamps = stamps(&self.files);
        if self.loaded.read().unwrap_or_else(PoisonError::into_inner).stamps == stamps {
            return;
        }
        let read = Loaded::read(&self.files);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(new) => {
                *loaded = new;
                tracing::info!("the certificates of the cluster were read again");
            }
            Err(error) => {
                loaded.stamps = stamps;
                tracing::warn!(%error, "the former certificates of the cluster stay in force");
            }
        }
    }

    /// Reads the files whenever they change, until the task is aborted.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            clock::pause(LOOK_EVERY).await;
            let tls = Arc::clone(&self);
            // What failed now is tried again the next time.
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
    }
}

impl Loaded {
    /// The stamps are taken first: a change while the files are read is seen the next time.
    fn read(files: &ClusterTlsFiles) -> Result<Self, StartError> {
        Ok(Self { stamps: stamps(files), sides: Sides::read(files)? })
    }
}

impl Sides {
    fn read(files: &ClusterTlsFiles) -> Result<Self, StartError> {
        let ClusterTlsFiles { cert, key, ca, name } = files;
        let chain = certificates(cert)?;
        let private = || PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error));
        let mut roots = RootCertStore::empty();
        for authority in certificates(ca)? {
            roots.add(authority).map_err(|error| failed(ca, &error))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| failed(ca, &error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(cert, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private()?)
            .map_err(|error| failed(cert, &error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(cert, &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private()?)
            .map_err(|error| failed(cert, &error))?;
        let wrong = |error| StartError::Tls { path: name.clone(), why: format!("{error}") };
        let name = ServerName::try_from(name.clone()).map_err(wrong)?;
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        Ok(Self { acceptor, connector, name })
    }
}
