//! A broker as a node of a cluster: start, look, leave.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::Broker;
use gapless_core::cluster::{ClusterStatus, Node, NodeName};
use gapless_protocol::link::LinkClient;
use serde_json::Value;
use tokio::net::{TcpListener, lookup_host};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::forward::{self, Duplex, ForwardError, PeerNode};
use crate::gossip::{Gossip, GossipStart};
use crate::handshake::Me;
use crate::membership::{Membership, StaticMembers};
use crate::options::{ClusterOptions, Members, StartError};
use crate::secret::Secret;
use crate::shell::{Parts, Shell};
use crate::spread::{self, Hook};
use crate::tls::Tls;
use crate::{events, incarnation, incoming, outgoing, status};

/// How long goodbyes may take to be sent.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);
/// Addresses that wait to be dialled; gossip brings others again.
const LEARNED_MAX: usize = 1_024;

/// A node of a cluster. Dropping it ends its links without a goodbye; [`Cluster::leave`] says one.
pub struct Cluster {
    shell: Arc<Shell>,
    address: SocketAddr,
    membership: Arc<dyn Membership>,
    tasks: Mutex<JoinSet<()>>,
}

/// Nodes that had not seen the interest of this one in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not every node has seen it yet: {}", names(.0))]
pub struct NotVisible(pub Vec<NodeName>);

fn names(nodes: &[NodeName]) -> String {
    nodes.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(", ")
}

impl Cluster {
    /// Makes a broker a node, in the runtime that this is called in. It is one from now on; that
    /// other nodes are reached is not waited for.
    ///
    /// # Errors
    /// When something it needs is missing or does not fit; then nothing was started (A14).
    pub async fn start(options: ClusterOptions, broker: &Broker) -> Result<Self, StartError> {
        options.check()?;
        events::describe();
        let tls = options.tls.as_ref().map(Tls::open).transpose()?.map(Arc::new);
        clock::random::<1>().ok_or(StartError::NoRandomness)?;
        let failed = |source| StartError::Listen { address: options.listen.clone(), source };
        let listener = TcpListener::bind(&options.listen).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let address = advertised(&options, bound).await?;
        let incarnation = incarnation::begin(broker, options.incarnation, clock::wall()).await?;
        let (learned, learning) = mpsc::channel(LEARNED_MAX);
        let is_static = matches!(options.members, Members::Static);
        let shell = Arc::new(Shell::new(Parts {
            me: Me {
                cluster: options.cluster.clone(),
                node: options.node.clone(),
                incarnation,
                address: address.to_string(),
                secret: options.secret.clone().unwrap_or_else(Secret::none),
            },
            tls: tls.clone(),
            link_timeout: options.link_timeout,
            broker: broker.clone(),
            node: Node::new(options.rules, options.node.clone(), incarnation),
            learned,
            forwarded: options.forwarded.clone(),
            live_by_links: is_static,
        }));
        let hook = Hook {
            shell: Arc::downgrade(&shell),
            node: options.node.clone(),
            subscriber_timeout: options.rules.subscriber_timeout,
            asked_to_leave: options.asked_to_leave.clone(),
            runtime: Handle::current(),
        };
        events::measure(&shell.status());
        broker.set_spread(Arc::new(hook)).map_err(|_| StartError::AlreadyStarted)?;
        let membership: Arc<dyn Membership> = match &options.members {
            Members::Static => Arc::new(StaticMembers::new()),
            Members::Given(given) => Arc::clone(given),
            Members::Gossip => {
                let (cluster, node) = (options.cluster.clone(), options.node.clone());
                let join = options.join.clone();
                let start = GossipStart { cluster, node, incarnation, address, join };
                Arc::new(Gossip::start(start, Arc::clone(&shell) as _).await?)
            }
        };
        // A list that does not change is dialled as it is, also when other nodes connect.
        let learning = if is_static { mpsc::channel(1).1 } else { learning };
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shell).keep());
        tls.into_iter().for_each(|tls| drop(tasks.spawn(tls.keep())));
        tasks.spawn(follow(Arc::clone(&shell), Arc::clone(&membership)));
        let (nodes_max, topology) = (options.rules.nodes_max, membership.watch());
        let (dialler, join) = (Arc::clone(&shell), options.join);
        tasks.spawn(outgoing::dial_all(dialler, join, topology, learning, nodes_max));
        let (acceptor, members) = (Arc::clone(&shell), Arc::clone(&membership));
        tasks.spawn(incoming::accept_all(acceptor, members, listener));
        tracing::info!(node = %options.node, cluster = options.cluster, %address, "a node of a cluster");
        Ok(Self { shell, address, membership, tasks: Mutex::new(tasks) })
    }

    /// The name of this node.
    pub fn node(&self) -> &NodeName {
        &self.shell.me.node
    }

    /// Where other nodes reach this one.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How this node sees the cluster.
    pub fn status(&self) -> ClusterStatus {
        self.shell.status()
    }

    /// The same as JSON, as it is shown everywhere.
    pub fn status_json(&self) -> Value {
        status::of(&self.shell)
    }

    /// Says something of this node to all others, in place of what it said before.
    pub fn say(&self, note: Bytes) {
        self.shell.say(note);
    }

    /// Shows this as `journals` in the state of the node from now on.
    pub fn show_journals(&self, journals: Value) {
        *self.shell.journals.lock().unwrap_or_else(PoisonError::into_inner) = Some(journals);
    }

    /// The nodes that are linked with this one in both directions and have said something of themselves.
    pub fn linked_nodes(&self) -> Vec<PeerNode> {
        self.shell.linked_nodes()
    }

    /// Changes whenever [`Cluster::linked_nodes`] may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shell.peers.subscribe()
    }

    /// Connects to a node to forward a client to it; what is written then is the client's.
    ///
    /// # Errors
    /// When it cannot be reached in time, or refuses.
    pub async fn forward(
        &self,
        to: &PeerNode,
        client: LinkClient,
    ) -> Result<Box<dyn Duplex>, ForwardError> {
        forward::dial(&self.shell, to, client).await
    }

    /// Whether this node is about to leave, or has left.
    pub fn is_leaving(&self) -> bool {
        self.shell.is_leaving()
    }

    /// Waits until every known node knows all that is subscribed to here now.
    ///
    /// # Errors
    /// Names the nodes that did not know it in time.
    pub async fn await_visible(&self, wait: Duration) -> Result<(), NotVisible> {
        let version = self.status().version;
        spread::await_visible(&self.shell, version, wait).await.map_err(NotVisible)
    }

    /// Waits until nothing waits for a node that can be reached. `false` if that took longer.
    pub async fn drain(&self, wait: Duration) -> bool {
        self.shell.drain(wait).await
    }

    /// Says goodbye: other nodes hold nothing for this one, and what this one holds is lost, with events that
    /// name it. Afterwards the broker is on its own. Does nothing the second time.
    pub async fn leave(&self) {
        if !self.shell.leave() {
            return;
        }
        self.shell.until(GOODBYE_WAIT, Shell::is_sent).await;
        let _ = timeout(GOODBYE_WAIT, self.membership.leave()).await;
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        tracing::info!(node = %self.shell.me.node, "left the cluster");
    }
}

/// Where other nodes reach this one.
async fn advertised(options: &ClusterOptions, bound: SocketAddr) -> Result<SocketAddr, StartError> {
    let Some(address) = &options.advertise else {
        if bound.ip().is_unspecified() {
            return Err(StartError::Unspecified(bound.to_string()));
        }
        return Ok(bound);
    };
    let failed = |why: String| StartError::Advertise { address: address.clone(), why };
    let found = lookup_host(address).await.map_err(|error| failed(error.to_string()))?;
    // One of the kind that is listened on, if there is one.
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(|at| at.is_ipv4() != bound.is_ipv4());
    let first = found.first().ok_or_else(|| failed("it has no address".to_owned()))?;
    // Port 0 is the one that was taken.
    let port = if first.port() == 0 { bound.port() } else { first.port() };
    Ok(SocketAddr::new(first.ip(), port))
}

/// Tells the machine who is alive, whenever the membership's opinion changes.
async fn follow(shell: Arc<Shell>, membership: Arc<dyn Membership>) {
    let mut topology = membership.watch();
    loop {
        let live = topology.borrow_and_update().live.clone();
        if let Some(live) = live {
            shell.topology(&live);
        }
        if topology.changed().await.is_err() {
            return;
        }
    }
}
