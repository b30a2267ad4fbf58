//! Membership by gossip (chitchat), carried by the links as frames.
//!
//! So there is one port, one proof of who is who, and no datagram to forge. Every node tells a few
//! others several times a second which nodes it knows and how their heartbeats stand; one whose
//! heartbeat stays away too long counts as dead. Gossip that finds no link is lost, as a datagram would be.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chitchat::transport::{Socket, Transport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable,
    FailureDetectorConfig, Serializable, spawn_chitchat,
};
use gapless_core::cluster::{Incarnation, NodeName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::membership::{Carry, Membership, Topology};
use crate::options::StartError;

/// How often a node gossips.
const GOSSIP_EVERY: Duration = Duration::from_millis(200);
/// How far beyond the usual a heartbeat may be late before its node counts as dead.
const PHI_THRESHOLD: f64 = 8.0;
/// Heartbeats that the usual is computed from.
const HEARTBEATS: usize = 1_000;
/// What is usual at first.
const HEARTBEAT_FIRST: Duration = Duration::from_millis(400);
/// Later heartbeats do not count for what is usual.
const HEARTBEAT_MAX: Duration = Duration::from_secs(2);
/// How long a dead node is remembered.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// Messages of other nodes that wait to be read; more are dropped.
const HEARD_MAX: usize = 256;
/// Longest message of gossip that is read.
const MESSAGE_BYTES_MAX: usize = 128 * 1024;

/// A node that gossips.
pub(crate) struct Gossip {
    heard: mpsc::Sender<(SocketAddr, Bytes)>,
    topology: watch::Receiver<Topology>,
    watching: JoinHandle<()>,
    handle: Mutex<Option<ChitchatHandle>>,
}

/// Who gossips, and with whom at first.
pub(crate) struct GossipStart {
    pub(crate) cluster: String,
    pub(crate) node: NodeName,
    pub(crate) incarnation: Incarnation,
    pub(crate) address: SocketAddr,
    pub(crate) join: Vec<String>,
}

impl Gossip {
    pub(crate) async fn start(
        start: GossipStart,
        carry: Arc<dyn Carry>,
    ) -> Result<Self, StartError> {
        let (heard, inbox) = mpsc::channel(HEARD_MAX);
        let transport = LinkTransport { carry, inbox: Mutex::new(Some(inbox)) };
        let id =
            ChitchatId::new(start.node.as_str().to_owned(), start.incarnation.0, start.address);
        let config = ChitchatConfig {
            chitchat_id: id,
            cluster_id: start.cluster,
            gossip_interval: GOSSIP_EVERY,
            listen_addr: start.address,
            seed_nodes: start.join,
            failure_detector_config: FailureDetectorConfig::new(
                PHI_THRESHOLD,
                HEARTBEATS,
                HEARTBEAT_MAX,
                HEARTBEAT_FIRST,
                REMEMBERED,
            ),
            marked_for_deletion_grace_period: REMEMBERED,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let spawned = spawn_chitchat(config, Vec::new(), &transport).await;
        let handle = spawned.map_err(|error| StartError::Membership(error.to_string()))?;
        let mut live = handle.chitchat().lock().await.live_nodes_watcher();
        let (sender, topology) = watch::channel(Topology::default());
        let watching = tokio::spawn(async move {
            loop {
                let nodes: Vec<ChitchatId> = live.borrow_and_update().keys().cloned().collect();
                sender.send_replace(topology_of(&nodes));
                if live.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { heard, topology, watching, handle: Mutex::new(Some(handle)) })
    }
}

/// Of two starts of a node the later counts.
fn topology_of(nodes: &[ChitchatId]) -> Topology {
    let addresses = nodes.iter().map(|id| id.gossip_advertise_addr).collect();
    let named = nodes.iter().filter_map(|id| {
        // The cluster's own nodes have names that can be read; others are none.
        Some((NodeName::parse(&id.node_id).ok()?, Incarnation(id.generation_id)))
    });
    let mut live: Vec<(NodeName, Incarnation)> = named.collect();
    live.sort_by(|one, other| other.cmp(one));
    live.dedup_by(|later, kept| later.0 == kept.0);
    live.reverse();
    Topology { addresses, live: Some(live) }
}

impl Membership for Gossip {
    fn watch(&self) -> watch::Receiver<Topology> {
        self.topology.clone()
    }

    fn heard(&self, from: SocketAddr, bytes: Bytes) {
        // What does not fit is lost, and said again soon.
        let _ = self.heard.try_send((from, bytes));
    }

    fn leave(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            self.watching.abort();
            if let Some(handle) = handle {
                // It ends whatever it says of itself.
                let _ = handle.shutdown().await;
            }
        })
    }
}

struct LinkTransport {
    carry: Arc<dyn Carry>,
    inbox: Mutex<Option<mpsc::Receiver<(SocketAddr, Bytes)>>>,
}

#[async_trait]
impl Transport for LinkTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        let inbox = inbox.ok_or_else(|| anyhow::anyhow!("the transport was opened already"))?;
        Ok(Box::new(LinkSocket { carry: Arc::clone(&self.carry), inbox }))
    }
}

struct LinkSocket {
    carry: Arc<dyn Carry>,
    inbox: mpsc::Receiver<(SocketAddr, Bytes)>,
}

#[async_trait]
impl Socket for LinkSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        message.serialize(&mut bytes);
        self.carry.carry(to, bytes.into());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let heard = self.inbox.recv().await;
            let (from, bytes) = heard.ok_or_else(|| anyhow::anyhow!("the node has stopped"))?;
            if bytes.len() > MESSAGE_BYTES_MAX {
                continue;
            }
            match ChitchatMessage::deserialize(&mut &bytes[..]) {
                Ok(message) => return Ok((from, message)),
                Err(error) => tracing::warn!(%from, %error, "gossip that cannot be read"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, incarnation: u64) -> ChitchatId {
        ChitchatId::new(name.to_owned(), incarnation, SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    #[test]
    fn of_two_starts_of_a_node_the_later_is_alive() {
        let topology = topology_of(&[id("b", 3), id("a", 7), id("a", 9), id("a", 8), id("x y", 1)]);
        let live = topology.live.expect("gossip knows who is alive");
        let name = |text| NodeName::parse(text).expect("a name");
        assert_eq!(live, [(name("a"), Incarnation(9)), (name("b"), Incarnation(3))]);
    }
}
