//! Mutual TLS of links: each node shows a certificate of the cluster's own authority.
//!
//! The certificates of all nodes are for one name, since nodes are dialled at addresses that gossip
//! brings; which node it is, the handshake says. They are read once, at the start: a new one takes
//! effect with a rolling restart.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::options::{ClusterTlsFiles, StartError};

/// Both sides of TLS, for one node.
#[derive(Clone)]
pub(crate) struct Tls {
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

impl Tls {
    /// Reads the files.
    pub(crate) fn open(files: &ClusterTlsFiles) -> Result<Self, StartError> {
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
