//! Where the database is, and how to get a connection to it.
//!
//! TLS is used unless the server is on this machine (a Unix socket or a loopback address) or
//! the connection string says `sslmode=disable`; the server's certificate is always verified,
//! against the system's roots or a file of its own. A password never appears in texts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::dsn;
use crate::error::{OutboxError, with_causes};
use crate::names::Name;
use crate::session::Session;

/// How long a connection may take to come about.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long a silent connection is believed to be alive.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How long sent bytes may stay unacknowledged by the peer's kernel.
const UNACKED_WAIT: Duration = Duration::from_secs(30);
/// The first version that is supported.
const VERSION_MIN: i32 = 130_000;

/// A database, and the schema of the outbox in it.
#[derive(Clone)]
pub struct Database {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    ca_file: Option<String>,
    schema: Name,
    server: Arc<str>,
}

impl Database {
    /// Takes a connection string as libpq does: a URL, or `host=… user=… dbname=…`. A password
    /// that is not in it is taken from `PGPASSWORD`, if that is set.
    ///
    /// # Errors
    /// When it cannot be understood.
    pub fn parse(dsn: &str) -> Result<Self, OutboxError> {
        let mut config = dsn::parse(dsn)?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("/var/run/postgresql");
        }
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("gapless");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WAIT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(UNACKED_WAIT);
        }
        config.keepalives_idle(KEEPALIVE_IDLE);
        if config.get_ssl_mode() == SslMode::Prefer {
            let near = config.get_hosts().iter().all(is_near)
                && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback);
            config.ssl_mode(if near { SslMode::Disable } else { SslMode::Require });
        }
        let schema = "gapless".parse()?;
        let server = server_of(&config).into();
        Ok(Self { config, tls: None, ca_file: None, schema, server })
    }

    /// The schema of the outbox; `gapless` unless said.
    #[must_use]
    pub fn in_schema(mut self, schema: Name) -> Self {
        self.schema = schema;
        self
    }

    /// How it appears in `pg_stat_activity` and in the list of leases.
    #[must_use]
    pub fn named(mut self, application: &str) -> Self {
        self.config.application_name(application);
        self
    }

    /// Takes the password from a file: its first line.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn password_file(mut self, path: &Path) -> Result<Self, OutboxError> {
        let text = std::fs::read_to_string(path).map_err(|why| file(path, &why))?;
        self.config.password(text.lines().next().unwrap_or_default());
        Ok(self)
    }

    /// Verifies the server with the certificates of a file (PEM), not with the system's.
    #[must_use]
    pub fn ca_file(mut self, path: &Path) -> Self {
        self.ca_file = Some(path.display().to_string());
        self
    }

    /// The schema of the outbox.
    pub fn schema(&self) -> &Name {
        &self.schema
    }

    /// Host and database, without user and password.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn application(&self) -> &str {
        self.config.get_application_name().unwrap_or("gapless")
    }

    /// Connects, and refuses servers that are too old.
    ///
    /// # Errors
    /// When there is no connection, or none that can be used.
    pub async fn connect(&self) -> Result<Session, OutboxError> {
        let mut config = self.config.clone();
        let session = if config.get_ssl_mode() == SslMode::Disable {
            config.ssl_mode(SslMode::Disable);
            let connected = tokio::time::timeout(CONNECT_WAIT, config.connect(NoTls)).await;
            let (client, connection) = self.connected(connected)?;
            Session::begin(self, client, connection)
        } else {
            let tls = match &self.tls {
                Some(tls) => tls.clone(),
                None => self.make_tls()?,
            };
            let connected = tokio::time::timeout(CONNECT_WAIT, config.connect(tls)).await;
            let (client, connection) = self.connected(connected)?;
            Session::begin(self, client, connection)
        };
        let row = session.one("SELECT current_setting('server_version_num')::int", &[]).await?;
        supported(row.get(0))?;
        Ok(session)
    }

    fn connected<T>(
        &self,
        connected: Result<Result<T, tokio_postgres::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, OutboxError> {
        let unreachable =
            |why: String| OutboxError::Unreachable { server: self.server.to_string(), why };
        let connected = connected.map_err(|_| unreachable("no answer in time".to_owned()))?;
        connected.map_err(|error| match error.as_db_error() {
            Some(_) => OutboxError::from_query(&error, &self.server, self.schema.as_str()),
            // The driver finds this out by itself, in the middle of connecting.
            None if with_causes(&error).ends_with("password missing") => OutboxError::NotAllowed {
                server: self.server.to_string(),
                why: "it wants a password: set PGPASSWORD, or name a password file".to_owned(),
            },
            None => unreachable(with_causes(&error)),
        })
    }

    fn make_tls(&self) -> Result<MakeRustlsConnect, OutboxError> {
        let mut roots = RootCertStore::empty();
        match &self.ca_file {
            Some(path) => {
                let path = Path::new(path);
                let certificates = CertificateDer::pem_file_iter(path);
                for certificate in certificates.map_err(|why| file(path, &why))? {
                    let certificate = certificate.map_err(|why| file(path, &why))?;
                    roots.add(certificate).map_err(|why| file(path, &why))?;
                }
            }
            None => {
                for certificate in rustls_native_certs::load_native_certs().certs {
                    // One root of the system that cannot be read spoils only itself.
                    let _ = roots.add(certificate);
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|why| OutboxError::Dsn(why.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }
}

/// Refuses versions that are too old, given as `server_version_num`.
fn supported(version: i32) -> Result<(), OutboxError> {
    if version >= VERSION_MIN {
        return Ok(());
    }
    Err(OutboxError::TooOld { found: format!("{}.{}", version / 10_000, version % 10_000) })
}

fn file(path: &Path, why: &dyn fmt::Display) -> OutboxError {
    OutboxError::File { path: path.display().to_string(), why: why.to_string() }
}

fn is_near(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
    }
}

fn server_of(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Unix(path)) => path.display().to_string(),
        Some(Host::Tcp(name)) => name.clone(),
        None => config.get_hostaddrs().first().map(ToString::to_string).unwrap_or_default(),
    };
    let port = config.get_ports().first().map(|port| format!(":{port}")).unwrap_or_default();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{host}{port}/{database}")
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({}, schema {})", self.server, self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_database_hold_neither_user_nor_password() {
        let dsn = "postgres://alice:geheim@db.example:6000/shop";
        let database = Database::parse(dsn).expect("a good one");
        let text = format!("{database:?} {}", database.server());
        assert!(text.contains("db.example:6000/shop"), "{text}");
        assert!(!text.contains("geheim") && !text.contains("alice"), "{text}");
    }

    #[test]
    fn a_version_before_13_is_refused_by_its_number() {
        supported(130_000).expect("13.0 is supported");
        let told = supported(120_022).expect_err("12 is too old").to_string();
        assert_eq!(told, "PostgreSQL 12.22 is not supported: use version 13 or newer");
    }

    #[test]
    fn tls_is_required_unless_the_server_is_near_or_it_is_said() {
        let mode = |dsn: &str| Database::parse(dsn).expect("a good one").config.get_ssl_mode();
        assert_eq!(mode("host=/tmp dbname=a"), SslMode::Disable);
        assert_eq!(mode("postgres://u@127.0.0.1/a"), SslMode::Disable);
        assert_eq!(mode("postgres://u@localhost/a"), SslMode::Disable);
        assert_eq!(mode("postgres://u@db.example/a"), SslMode::Require);
        assert_eq!(mode("postgres://u@db.example/a?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgres://u@db.example/a?sslmode=verify-full"), SslMode::Require);
    }
}
