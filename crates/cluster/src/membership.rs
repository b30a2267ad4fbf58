//! Who belongs to the cluster, as far as one node knows.
//!
//! A membership says where nodes are, so that they are dialled, and which of them it takes for
//! alive. That is an opinion: whether messages can be sent to a node is decided by the link to it, and
//! when it is given up by a timer of the machine. There are three: gossip (`gossip.rs`), a list that
//! does not change, and one in memory for nodes of one process.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use gapless_core::cluster::{Incarnation, NodeName};
use tokio::sync::watch;

/// What one node knows of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Where nodes are. A node's own address may be among them.
    pub addresses: BTreeSet<SocketAddr>,
    /// Who is alive; `None` if only links can tell.
    pub live: Option<Vec<(NodeName, Incarnation)>>,
}

/// Finds the nodes of a cluster.
pub trait Membership: Send + Sync {
    /// What is known now, and whenever it changes.
    fn watch(&self) -> watch::Receiver<Topology>;

    /// Takes bytes that this membership sent on another node.
    fn heard(&self, _from: SocketAddr, _bytes: Bytes) {}

    /// Ends it; other nodes need not be told, links do that.
    fn leave(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

/// Carries bytes of a membership to another node, if there is a link to it; they may be lost.
pub trait Carry: Send + Sync {
    /// Sends bytes to the node at this address.
    fn carry(&self, to: SocketAddr, bytes: Bytes);
}

/// A list that does not change: the addresses to join, which a node knows by itself.
#[derive(Debug)]
pub struct StaticMembers(watch::Sender<Topology>);

impl StaticMembers {
    /// Nothing beyond the addresses to join.
    pub fn new() -> Self {
        Self(watch::channel(Topology::default()).0)
    }
}

impl Default for StaticMembers {
    fn default() -> Self {
        Self::new()
    }
}

impl Membership for StaticMembers {
    fn watch(&self) -> watch::Receiver<Topology> {
        self.0.subscribe()
    }
}

/// A membership in memory: nodes of one process that know each other as soon as they are added.
#[derive(Clone, Debug, Default)]
pub struct MemoryMembers {
    inner: Arc<MemoryInner>,
}

#[derive(Debug, Default)]
struct MemoryInner {
    nodes: Mutex<BTreeMap<NodeName, (Incarnation, SocketAddr)>>,
    topology: watch::Sender<Topology>,
}

impl MemoryMembers {
    /// Adds a node, or replaces its former start.
    pub fn add(&self, node: NodeName, incarnation: Incarnation, address: SocketAddr) {
        self.change(|nodes| {
            nodes.insert(node, (incarnation, address));
        });
    }

    /// Takes a node out, as if it were dead.
    pub fn remove(&self, node: &NodeName) {
        self.change(|nodes| {
            nodes.remove(node);
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<NodeName, (Incarnation, SocketAddr)>)) {
        let mut nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut nodes);
        let addresses = nodes.values().map(|(_, address)| *address).collect();
        let live = nodes.iter().map(|(node, (incarnation, _))| (node.clone(), *incarnation));
        self.inner.topology.send_replace(Topology { addresses, live: Some(live.collect()) });
    }
}

impl Membership for MemoryMembers {
    fn watch(&self) -> watch::Receiver<Topology> {
        self.inner.topology.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_in_memory_know_each_other_at_once() {
        let members = MemoryMembers::default();
        let (mut seen, name) = (members.watch(), |text| NodeName::parse(text).expect("a name"));
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        members.add(name("a"), Incarnation(1), address);
        members.add(name("a"), Incarnation(2), address);
        members.add(name("b"), Incarnation(1), SocketAddr::from(([127, 0, 0, 1], 2)));
        let topology = seen.borrow_and_update().clone();
        assert_eq!(topology.addresses.len(), 2);
        let live = [(name("a"), Incarnation(2)), (name("b"), Incarnation(1))];
        assert_eq!(topology.live.as_deref(), Some(&live[..]));
        members.remove(&name("a"));
        assert_eq!(seen.borrow_and_update().addresses.len(), 1);
    }

    #[test]
    fn a_static_list_says_nothing_about_life() {
        assert_eq!(*StaticMembers::new().watch().borrow(), Topology::default());
    }
}
