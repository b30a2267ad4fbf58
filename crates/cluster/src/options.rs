//! What a node is started with, and why it may not start.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gapless_core::cluster::{ClusterConfig, ClusterConfigError, Incarnation, NodeName};
use gapless_protocol::link::CLUSTER_ID_BYTES_MAX;
use tokio::sync::{Notify, mpsc};

use crate::forward::ForwardedClient;
use crate::membership::Membership;
use crate::secret::Secret;

/// How long a link may be silent before it counts as down, unless the configuration says otherwise. With
/// pings four times as often, a node that is dead or frozen is noticed in 1.25 s.
pub const LINK_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest time that can be set: a busy machine is silent for some of it.
pub const LINK_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The id of a cluster that has not been given one.
pub const CLUSTER_ID: &str = "gapless";
/// The name that the certificates of all nodes are for, unless the configuration says otherwise.
pub const TLS_NAME: &str = "gapless-cluster";

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Which cluster the node belongs to.
    pub cluster: String,
    /// Its name there.
    pub node: NodeName,
    /// Which of its starts this is; `None` takes the time of the start, or more than the last one in
    /// its store if that was later.
    pub incarnation: Option<Incarnation>,
    /// Where it listens for other nodes. Port 0 takes a free one.
    pub listen: String,
    /// Where other nodes reach it, if not where it listens.
    pub advertise: Option<String>,
    /// Where some other nodes are.
    pub join: Vec<String>,
    /// How the other nodes are found.
    pub members: Members,
    /// What all nodes know.
    pub secret: Option<Secret>,
    /// Certificates by which nodes are encrypted and recognised.
    pub tls: Option<ClusterTlsFiles>,
    /// The rules of delivery.
    pub rules: ClusterConfig,
    /// How long a link may be silent.
    pub link_timeout: Duration,
    /// Takes clients that other nodes forward to this one; without it they are refused.
    pub forwarded: Option<mpsc::Sender<ForwardedClient>>,
    /// Is told when the node is asked to leave, in place of leaving at once.
    pub asked_to_leave: Option<Arc<Notify>>,
}

impl ClusterOptions {
    /// A node of this name that listens here, with everything else as usual.
    pub fn new(node: NodeName, listen: impl Into<String>) -> Self {
        Self {
            cluster: CLUSTER_ID.to_owned(),
            node,
            incarnation: None,
            listen: listen.into(),
            advertise: None,
            join: Vec::new(),
            members: Members::default(),
            secret: None,
            tls: None,
            rules: ClusterConfig::default(),
            link_timeout: LINK_TIMEOUT,
            forwarded: None,
            asked_to_leave: None,
        }
    }

    /// Checks what needs neither files nor the network (A14).
    ///
    /// # Errors
    /// Says what cannot be used; nothing was started.
    pub fn check(&self) -> Result<(), StartError> {
        let is_text = |byte: u8| byte.is_ascii_graphic();
        if self.cluster.is_empty()
            || self.cluster.len() > CLUSTER_ID_BYTES_MAX
            || !self.cluster.bytes().all(is_text)
        {
            return Err(StartError::ClusterId(self.cluster.clone()));
        }
        if self.link_timeout < LINK_TIMEOUT_MIN {
            return Err(StartError::LinkTimeout(self.link_timeout));
        }
        let addresses = self.join.iter().chain(&self.advertise).chain([&self.listen]);
        for address in addresses {
            check_address(address)?;
        }
        self.rules.validate()?;
        Ok(())
    }
}

/// That an address has a port.
fn check_address(address: &str) -> Result<(), StartError> {
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && port.parse::<u16>().is_ok()
            && (!host.contains(':') || host.ends_with(']'))
    });
    if has_port { Ok(()) } else { Err(StartError::Address(address.to_owned())) }
}

/// How the other nodes are found.
#[derive(Clone, Default)]
pub enum Members {
    /// Nodes tell each other whom they know, beginning with those in `join`.
    #[default]
    Gossip,
    /// Exactly the addresses in `join`, on every node all the others.
    Static,
    /// As this says.
    Given(Arc<dyn Membership>),
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gossip => "Gossip",
            Self::Static => "Static",
            Self::Given(_) => "Given",
        })
    }
}

/// Where the certificates of a node are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTlsFiles {
    /// The node's certificate, and those between it and its authority (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// The authorities that sign the certificates of nodes (PEM), and of nodes only.
    pub ca: PathBuf,
    /// The name that all these certificates are for.
    pub name: String,
}

/// Why a node did not start. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The id of the cluster.
    #[error(
        "{0:?} cannot be the id of a cluster: use 1 to {CLUSTER_ID_BYTES_MAX} characters, without blanks"
    )]
    ClusterId(String),
    /// The links would go up and down.
    #[error("links cannot be watched within {0:?}: use at least {LINK_TIMEOUT_MIN:?}")]
    LinkTimeout(Duration),
    /// An address has no port.
    #[error("{0:?} is not an address: write it as host:port, like 10.0.0.5:4282")]
    Address(String),
    /// A rule makes no sense.
    #[error(transparent)]
    Rules(#[from] ClusterConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen for other nodes on {address}: {source}")]
    Listen {
        /// Which address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Other nodes would not know where to connect to.
    #[error(
        "other nodes cannot connect to {0}: say with `advertise` at which address they reach this node"
    )]
    Unspecified(String),
    /// The address for other nodes cannot be found.
    #[error("the address for other nodes, {address}, cannot be found: {why}")]
    Advertise {
        /// Which address.
        address: String,
        /// Why not.
        why: String,
    },
    /// Certificates cannot be used.
    #[error("the certificates of the cluster cannot be used: {path}: {why}")]
    Tls {
        /// Which file, or name.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The broker's store does not take the number of this start.
    #[error("the start of this node cannot be noted in its store: {0}")]
    Incarnation(String),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes, which links need")]
    NoRandomness,
    /// The broker is in a cluster already.
    #[error("this broker is a node of a cluster already: a broker is one node of one cluster")]
    AlreadyStarted,
    /// The membership protocol did not start.
    #[error("the membership protocol did not start: {0}")]
    Membership(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ClusterOptions {
        ClusterOptions::new(NodeName::parse("a").expect("a name"), "127.0.0.1:0")
    }

    #[test]
    fn a14_what_cannot_work_is_refused_by_name_before_anything_starts() {
        options().check().expect("the usual is fine");
        let mut wrong = options();
        wrong.cluster = "two words".into();
        assert!(wrong.check().expect_err("refused").to_string().contains("two words"));
        for address in ["host", "host:port", ":1", "::1:5", "host:70000"] {
            let mut wrong = options();
            wrong.join = vec!["127.0.0.1:1".into(), address.into()];
            let error = wrong.check().expect_err("refused").to_string();
            assert!(error.contains(address) && error.contains("host:port"), "{error}");
        }
        let mut wrong = options();
        wrong.link_timeout = Duration::from_millis(1);
        assert!(matches!(wrong.check(), Err(StartError::LinkTimeout(_))));
        let mut wrong = options();
        wrong.rules.nodes_max = 0;
        assert!(matches!(wrong.check(), Err(StartError::Rules(_))));
    }
}
