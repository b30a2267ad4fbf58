//! TLS as the configuration and the command line have it: of the server, and of those who talk to one.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gapless_client::TlsOptions;
use gapless_jobs::Access;
use gapless_server::{Tls, TlsFiles};
use tokio::signal::unix::{SignalKind, signal};

use crate::cmd::Global;
use crate::cmd::serve::switch;
use crate::config::{Config, ConfigError};
use crate::exit::Failure;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The server's certificates, if it has some.
pub(crate) fn server(config: &Config) -> Result<Option<Tls>, Failure> {
    let Some(files) = files(config)? else { return Ok(None) };
    let tls = Tls::open(files).map_err(|error| {
        Failure::words(error).hint("nothing was started; `gapless init --secure` makes new ones")
    })?;
    Ok(Some(tls))
}

fn files(config: &Config) -> Result<Option<TlsFiles>, ConfigError> {
    let file = |key| Some(config.text(key)).filter(|text| !text.is_empty()).map(Into::into);
    let files = TlsFiles {
        cert: file("tls.cert").unwrap_or_default(),
        key: file("tls.key").unwrap_or_default(),
        client_ca: file("tls.client_ca"),
        client_crl: file("tls.client_crl"),
        client_required: switch(config, "tls.client_required")?,
    };
    let has = |path: &std::path::Path| !path.as_os_str().is_empty();
    match (has(&files.cert), has(&files.key)) {
        (true, false) => Err(config.bad("tls.key", "tls.cert needs its key")),
        (false, true) => Err(config.bad("tls.cert", "tls.key needs its certificate")),
        (false, false) if files.client_ca.is_some() => {
            Err(config.bad("tls.client_ca", "set tls.cert and tls.key too"))
        }
        _ if files.client_crl.is_some() && files.client_ca.is_none() => {
            Err(config.bad("tls.client_crl", "set tls.client_ca too"))
        }
        _ if files.client_required && files.client_ca.is_none() => {
            Err(config.bad("tls.client_required", "set tls.client_ca too"))
        }
        (false, false) => Ok(None),
        (true, true) => Ok(Some(files)),
    }
}

/// How leaders are reached that jobs are routed to.
pub(crate) fn to_leaders(config: &Config) -> Result<Access, ConfigError> {
    let file = |key| Some(config.text(key)).filter(|text| !text.is_empty()).map(PathBuf::from);
    let (ca, token) = (file("jobs.routes_ca"), file("jobs.routes_token_file"));
    let identity = match (file("jobs.routes_cert"), file("jobs.routes_key")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => return Err(config.bad("jobs.routes_key", "the certificate needs it")),
        (None, Some(_)) => return Err(config.bad("jobs.routes_cert", "the key needs it")),
    };
    if ca.is_none() && identity.is_some() {
        return Err(config.bad("jobs.routes_ca", "a certificate is shown by TLS only: set it too"));
    }
    let tls = ca.map(|ca| TlsOptions { ca: Some(ca), identity, server_name: None }.config());
    let tls = tls.transpose().map_err(|why| config.bad("jobs.routes_ca", &why.to_string()))?;
    let token = token.map(|path| {
        let text = std::fs::read_to_string(path);
        text.map(|text| text.lines().next().unwrap_or_default().trim().to_owned())
    });
    let unreadable = |why: std::io::Error| config.bad("jobs.routes_token_file", &why.to_string());
    Ok(Access { token: token.transpose().map_err(unreadable)?, tls })
}

/// Reads the certificates again when they change, and on SIGHUP, which ends nothing then; warns
/// before they expire.
pub(crate) async fn keep(tls: Option<Tls>) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut due = tokio::time::interval(LOOK_EVERY);
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            _ = due.tick() => false,
        };
        if let Some(tls) = tls.clone() {
            let looked = tokio::task::spawn_blocking(move || {
                tls.reload(asked);
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                tls.warn_if_old(now.unwrap_or_default());
            });
            // What failed now is tried again the next time.
            let _ = looked.await;
        }
    }
}

/// How a server is talked to, if by TLS.
pub(crate) fn client(global: &Global) -> Option<TlsOptions> {
    let identity = global.tls_cert.clone().zip(global.tls_key.clone());
    let ca = global.tls_ca.clone();
    let wanted = global.tls || ca.is_some() || identity.is_some();
    wanted.then_some(TlsOptions { ca, identity, server_name: None })
}
