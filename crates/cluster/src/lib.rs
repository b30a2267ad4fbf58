//! A cluster of brokers: one space of volatile subjects over many nodes.
//!
//! The rules (who gets what, what waits, what is given up) are the machine `gapless_core::cluster`; here
//! are its edges: links over TCP that prove who is there, the membership that finds nodes, and the hook
//! into the broker. [`Cluster::start`] makes a broker a node:
//!
//! ```no_run
//! # async fn example(broker: &gapless_broker::Broker) -> Result<(), Box<dyn std::error::Error>> {
//! use gapless_cluster::{Cluster, ClusterOptions, Secret};
//!
//! let mut options = ClusterOptions::new("a".parse()?, "10.0.0.1:4282");
//! options.join = vec!["10.0.0.2:4282".to_owned()];
//! options.secret = Some(Secret::read("/etc/gapless/cluster.secret".as_ref())?);
//! let cluster = Cluster::start(options, broker).await?;
//! // ... and at the end:
//! cluster.drain(std::time::Duration::from_secs(5)).await;
//! cluster.leave().await;
//! # Ok(())
//! # }
//! ```

mod clock;
mod cluster;
mod events;
mod forward;
mod gossip;
mod handshake;
mod incarnation;
mod incoming;
mod membership;
mod options;
mod outbox;
mod outgoing;
pub mod pubsub;
mod refusals;
mod secret;
mod shell;
mod spread;
mod status;
mod tls;

pub use cluster::{Cluster, NotVisible};
pub use forward::{Duplex, ForwardError, ForwardedClient, PeerNode};
pub use membership::{Carry, Membership, MemoryMembers, StaticMembers, Topology};
pub use options::{
    CLUSTER_ID, ClusterOptions, ClusterTlsFiles, LINK_TIMEOUT, LINK_TIMEOUT_MIN, Members,
    StartError, TLS_NAME,
};
pub use secret::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret, SecretError};
