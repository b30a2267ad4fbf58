//! The cluster as the configuration has it: this server as a node.

use std::time::Duration;

use gapless_broker::Broker;
use gapless_cluster::{
    Cluster, ClusterOptions, ClusterTlsFiles, Members, Secret, SecretError, StartError,
};
use gapless_core::cluster::{ClusterConfig, NodeName};

use crate::cmd::serve::at_least;
use crate::config::{Config, ConfigError};
use crate::exit::Failure;

/// The variable that may hold the secret. It is not a key, so that no listing of keys shows it.
const SECRET_VARIABLE: &str = "GAPLESS_CLUSTER_SECRET";

/// What this server is started with as a node; `None` for a server on its own.
pub(crate) fn options(config: &Config) -> Result<Option<ClusterOptions>, Failure> {
    let text = |key| Some(config.text(key).to_owned()).filter(|text| !text.is_empty());
    let (node, listen) = match (text("cluster.node"), text("cluster.listen")) {
        (Some(node), Some(listen)) => (node, listen),
        (None, None) => {
            if let Some(key) =
                ["cluster.join", "cluster.advertise"].into_iter().find(|key| text(key).is_some())
            {
                return Err(config.bad(key, "set cluster.node and cluster.listen too").into());
            }
            return Ok(None);
        }
        (Some(_), None) => {
            let why = "a node listens for others: set it, like 10.0.0.1:4282";
            return Err(config.bad("cluster.listen", why).into());
        }
        (None, Some(_)) => {
            let why = "a node has a name: set it, unique in the cluster";
            return Err(config.bad("cluster.node", why).into());
        }
    };
    let node =
        NodeName::parse(&node).map_err(|error| config.bad("cluster.node", &error.to_string()))?;
    let mut options = ClusterOptions::new(node, listen);
    options.cluster = config.text("cluster.id").to_owned();
    options.advertise = text("cluster.advertise");
    let join = config.text("cluster.join").split(',').map(str::trim);
    options.join = join.filter(|address| !address.is_empty()).map(str::to_owned).collect();
    options.members = match config.text("cluster.members") {
        "gossip" => Members::Gossip,
        "static" => Members::Static,
        _ => return Err(config.bad("cluster.members", "use gossip or static").into()),
    };
    options.secret = secret(config, std::env::var(SECRET_VARIABLE).ok())?;
    options.tls = tls(config)?;
    options.rules = rules(config)?;
    let timeout = at_least(config, "cluster.link_timeout_ms", 100)?;
    options.link_timeout = Duration::from_millis(timeout);
    options.check().map_err(|error| not_started(&error))?;
    Ok(Some(options))
}

/// Whether other nodes must prove who they are.
pub(crate) fn asks(config: &Config) -> bool {
    let has = |key| !config.text(key).is_empty();
    has("cluster.secret_file")
        || has("cluster.tls_cert")
        || std::env::var_os(SECRET_VARIABLE).is_some()
}

fn secret(config: &Config, variable: Option<String>) -> Result<Option<Secret>, Failure> {
    let path = config.text("cluster.secret_file");
    let (read, from) = match variable {
        Some(text) => (Secret::new(text.trim().as_bytes()), SECRET_VARIABLE),
        None if path.is_empty() => return Ok(None),
        None => (Secret::read(path.as_ref()), "cluster.secret_file"),
    };
    let secret = read.map_err(|error: SecretError| {
        Failure::words(format!("{from}: {error}")).hint(
            "make one: head -c 32 /dev/urandom | base64 > cluster.secret; give it to all nodes",
        )
    })?;
    Ok(Some(secret))
}

fn tls(config: &Config) -> Result<Option<ClusterTlsFiles>, ConfigError> {
    let keys = ["cluster.tls_cert", "cluster.tls_key", "cluster.tls_ca"];
    let missing = keys.into_iter().find(|key| config.text(key).is_empty());
    if keys.into_iter().all(|key| config.text(key).is_empty()) {
        return Ok(None);
    }
    if let Some(key) = missing {
        return Err(config.bad(key, "links need all of cluster.tls_cert, tls_key and tls_ca"));
    }
    let [cert, key, ca] = keys.map(|key| config.text(key).into());
    Ok(Some(ClusterTlsFiles { cert, key, ca, name: config.text("cluster.tls_name").to_owned() }))
}

fn rules(config: &Config) -> Result<ClusterConfig, ConfigError> {
    let ms = |key, least| at_least(config, key, least).map(Duration::from_millis);
    Ok(ClusterConfig {
        subscriber_timeout: ms("cluster.subscriber_timeout_ms", 1)?,
        suspended_ttl: ms("cluster.suspended_ttl_ms", 1)?,
        queue_messages_max: at_least(config, "cluster.queue_messages_max", 1)?,
        queue_bytes_max: at_least(config, "cluster.queue_bytes_max", 1)?,
        queues_bytes_max: at_least(config, "cluster.queues_bytes_max", 1)?,
        window_bytes: at_least(config, "cluster.window_bytes", 1)?,
        interest_max: at_least(config, "cluster.interest_max", 1)?,
        nodes_max: at_least(config, "cluster.nodes_max", 1)?,
        ..ClusterConfig::default()
    })
}

/// Makes the server a node.
pub(crate) async fn start(
    options: Option<ClusterOptions>,
    broker: &Broker,
) -> Result<Option<Cluster>, Failure> {
    let Some(options) = options else { return Ok(None) };
    Cluster::start(options, broker).await.map(Some).map_err(|error| not_started(&error))
}

fn not_started(error: &StartError) -> Failure {
    let failure = Failure::words(format!("the cluster cannot be joined: {error}"));
    match error {
        StartError::Listen { .. } => {
            failure.hint("choose another with --cluster-listen host:port; port 0 takes a free one")
        }
        _ => failure,
    }
}

/// Waits until other nodes have what this one sent, and says goodbye.
pub(crate) async fn stop(config: &Config, cluster: &Cluster) -> Result<(), ConfigError> {
    let wait = Duration::from_millis(config.get("cluster.drain_ms")?);
    if !cluster.drain(wait).await {
        tracing::warn!(?wait, "other nodes did not confirm everything in time");
    }
    cluster.leave().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(flags: &[&str]) -> Result<Option<ClusterOptions>, String> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let config = Config::load(None, std::iter::empty(), &flags).expect("a configuration");
        options(&config).map_err(|failure| failure.message)
    }

    #[test]
    fn a14_a_node_that_is_half_described_is_refused_by_the_missing_key() {
        assert!(options_of(&[]).expect("no cluster").is_none());
        for (flags, key) in [
            (&["cluster.node=a"][..], "cluster.listen"),
            (&["cluster.listen=127.0.0.1:1"], "cluster.node"),
            (&["cluster.join=127.0.0.1:1"], "cluster.join"),
            (&["cluster.node=a.b", "cluster.listen=127.0.0.1:1"], "cluster.node"),
            (&["cluster.node=a", "cluster.listen=h:1", "cluster.members=x"], "cluster.members"),
            (&["cluster.node=a", "cluster.listen=h:1", "cluster.tls_cert=x"], "cluster.tls_key"),
            (
                &["cluster.node=a", "cluster.listen=h:1", "cluster.secret_file=no"],
                "cluster.secret_file",
            ),
            (&["cluster.node=a", "cluster.listen=h:1", "cluster.join=b"], "host:port"),
            (&["cluster.node=a", "cluster.listen=h:1", "cluster.nodes_max=0"], "cluster.nodes_max"),
        ] {
            let error = options_of(flags).expect_err("refused");
            assert!(error.contains(key), "{flags:?}: {error}");
        }
    }

    #[test]
    fn the_defaults_of_the_configuration_are_those_of_the_rules() {
        let options =
            options_of(&["cluster.node=a", "cluster.listen=127.0.0.1:0", "cluster.join=b:1, c:2"]);
        let options = options.expect("fine").expect("a node");
        assert_eq!(options.rules, ClusterConfig::default());
        assert_eq!(options.link_timeout, gapless_cluster::LINK_TIMEOUT);
        assert_eq!(options.cluster, gapless_cluster::CLUSTER_ID);
        assert_eq!(options.join, ["b:1", "c:2"]);
    }
}
