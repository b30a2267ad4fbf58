//! Who can reach the listeners: beyond this machine only with TLS and identities.
//!
//! A server that everybody can reach, and read and change on the way, is what no one asks for by
//! accident. `insecure` is for networks that are closed otherwise, and for proxies that speak TLS.

use std::net::ToSocketAddrs;

use crate::cluster;
use crate::cmd::serve::switch;
use crate::config::{Config, ConfigError};
use crate::exit::Failure;

/// Refuses listeners that other machines reach without TLS and identities, unless that is meant.
pub(crate) fn check(config: &Config) -> Result<(), Failure> {
    check_cluster(config, cluster::asks(config))?;
    let open = ["native.listen", "http.listen"].into_iter().find(|key| is_open(config.text(key)));
    let Some(key) = open else { return Ok(()) };
    let missing = missing(config)?;
    if missing.is_empty() {
        return Ok(());
    }
    let address = config.text(key);
    if switch(config, "insecure")? {
        tracing::warn!(key, address, "other machines may reach this server: insecure = true");
        return Ok(());
    }
    let lines = missing.join("\n  ");
    Err(Failure::words(format!(
        "{key} = {address:?} lets other machines in, without TLS or without asking who they are"
    ))
    .hint(format!(
        "add to the configuration:\n  {lines}\n`gapless init --secure` makes all of it; --insecure \
         listens as it is"
    )))
}

/// Refuses a node that lets in any other without a proof, unless that is meant.
fn check_cluster(config: &Config, asks: bool) -> Result<(), Failure> {
    let address = config.text("cluster.listen");
    if asks || address.is_empty() || !is_open(address) {
        return Ok(());
    }
    if switch(config, "insecure")? {
        tracing::warn!(address, "any machine may be a node of this cluster: insecure = true");
        return Ok(());
    }
    Err(Failure::words(format!(
        "cluster.listen = {address:?} lets any machine be a node, without a secret and without TLS"
    ))
    .hint(
        "make a secret: head -c 32 /dev/urandom | base64 > cluster.secret\n\
         and give it to all nodes:\n  cluster.secret_file = \"cluster.secret\"\n\
         or use certificates (cluster.tls_cert, tls_key, tls_ca); --insecure listens as it is",
    ))
}

/// The lines that are missing.
fn missing(config: &Config) -> Result<Vec<&'static str>, ConfigError> {
    let has_tls = !config.text("tls.cert").is_empty();
    let asks = switch(config, "auth.required")? || switch(config, "tls.client_required")?;
    let tls = ["tls.cert = \"server.pem\"", "tls.key = \"server.key\""];
    let asking = (!asks).then_some("auth.required = true");
    Ok(tls.into_iter().filter(|_| !has_tls).chain(asking).collect())
}

/// Whether other machines may reach this address. One that cannot be found is for the listener to
/// refuse.
fn is_open(address: &str) -> bool {
    let found = address.to_socket_addrs();
    found.is_ok_and(|mut found| found.any(|address| !address.ip().to_canonical().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(flags: &[&str]) -> Result<(), String> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let config = Config::load(None, std::iter::empty(), &flags).expect("a configuration");
        check(&config).map_err(|failure| failure.hint.unwrap_or_default())
    }

    #[test]
    fn a14_only_on_loopback_a_node_needs_neither_secret_nor_tls() {
        let checked = |flags: &[&str], asks| {
            let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            let config = Config::load(None, std::iter::empty(), &flags).expect("a configuration");
            check_cluster(&config, asks).map_err(|failure| failure.hint.unwrap_or_default())
        };
        let open = "cluster.listen=192.0.2.7:4282";
        assert_eq!(checked(&["cluster.listen=127.0.0.1:0"], false), Ok(()));
        assert_eq!(checked(&[open], true), Ok(()));
        assert_eq!(checked(&[open, "insecure=true"], false), Ok(()));
        let hint = checked(&[open], false).expect_err("refused");
        assert!(hint.contains("cluster.secret_file"), "{hint}");
    }

    #[test]
    fn f3_only_loopback_needs_no_tls_and_no_identities() {
        let open = "native.listen=0.0.0.0:1";
        for fine in [
            &["http.listen=127.0.0.1:0"][..],
            &["http.listen=[::1]:0", "native.listen="],
            &["http.listen=localhost:0"],
            &["http.listen=[::ffff:127.0.0.1]:0"],
            &[open, "insecure=true"],
            &[open, "tls.cert=x", "auth.required=true"],
            &[open, "tls.cert=x", "tls.client_required=true"],
        ] {
            assert_eq!(checked(fine), Ok(()), "{fine:?}");
        }
        for (open, lines) in [
            (&[open][..], 3),
            (&["http.listen=[::]:1"], 3),
            (&["http.listen=192.0.2.7:1"], 3),
            (&[open, "auth.required=true"], 2),
            (&[open, "tls.cert=x"], 1),
        ] {
            let hint = checked(open).expect_err("refused");
            assert_eq!(hint.lines().filter(|line| line.contains(" = ")).count(), lines, "{hint}");
            assert!(hint.contains("--insecure"), "{hint}");
        }
    }
}
