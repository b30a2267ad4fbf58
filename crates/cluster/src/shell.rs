//! One node: the machine of `gapless_core::cluster` with its lock, its links and its broker.
//!
//! Lock order: a lock of the broker, then the machine's, then an outbox or a lane. The machine's lock is
//! never held while the broker is called: what the machine decides is put, under its lock, into outboxes (for
//! other nodes) and lanes (for this one), which keep the order, and is carried out afterwards. What the
//! machine sends it sends in the keeper's turns, so that all that came meanwhile goes together.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{Broker, Incoming};
use gapless_core::Timestamp;
use gapless_core::cluster::{
    ClusterEvent, ClusterStatus, Delivery, DeliveryReport, Effect, EndReason, Frame, Incarnation,
    Node, NodeName, Sender,
};
use gapless_protocol::link::{LinkFrame, LinkRefusal, RefusalReason};
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};

use crate::clock::{self, Clock};
use crate::events;
use crate::forward::{ForwardedClient, PeerNode};
use crate::handshake::{Me, Other, refusal};
use crate::membership::Carry;
use crate::outbox::Outbox;
use crate::refusals::Refusals;
use crate::tls::Tls;

/// How often numbers go to the recorder of metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked at whether all is sent.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The longest that the keeper rests.
const REST_MAX: Duration = Duration::from_secs(60);
/// Nodes without a link that are remembered, for each that may have one.
const REMEMBERED_PER_NODE: usize = 4;

/// What all tasks of a node share.
pub(crate) struct Shell {
    pub(crate) me: Me,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) link_timeout: Duration,
    pub(crate) refusals: Refusals,
    pub(crate) broker: Broker,
    /// Addresses that other nodes said they are reached at.
    pub(crate) learned: mpsc::Sender<SocketAddr>,
    /// Changes whenever a link comes or goes.
    pub(crate) links: watch::Sender<u64>,
    /// The version of this node's interest that all known nodes have seen.
    pub(crate) visible: watch::Sender<u64>,
    /// Takes clients that other nodes forward.
    pub(crate) forwarded: Option<mpsc::Sender<ForwardedClient>>,
    /// What is shown of the journals beside the rest.
    pub(crate) journals: Mutex<Option<Value>>,
    /// Changes whenever a link or a note does.
    pub(crate) peers: watch::Sender<u64>,
    clock: Clock,
    state: Mutex<State>,
    /// What concerns this node and no other's messages.
    mine: Lane,
    work: Notify,
    has_targets: AtomicBool,
}

struct State {
    node: Node,
    peers: BTreeMap<NodeName, Peer>,
    /// Which node is at an address.
    at: BTreeMap<SocketAddr, NodeName>,
    generation: u64,
    leaving: bool,
    /// What this node says of itself.
    note: Option<Bytes>,
    /// Whether links say who is alive, because the membership does not.
    live_by_links: bool,
}

#[derive(Default)]
struct Peer {
    /// The latest start that is known.
    newest: Incarnation,
    out: Option<Outgoing>,
    incoming: Option<Coming>,
    lane: Arc<Lane>,
    /// Where it says it is reached.
    address: Option<SocketAddr>,
    /// What it said of itself over the link that is there.
    note: Option<Bytes>,
}

/// This node's link to a peer.
struct Outgoing {
    generation: u64,
    incarnation: Incarnation,
    outbox: Arc<Outbox>,
}

/// The peer's link to this node.
struct Coming {
    generation: u64,
    incarnation: Incarnation,
}

/// A peer's link that was accepted.
pub(crate) struct Accepted {
    pub(crate) generation: u64,
    pub(crate) lane: Arc<Lane>,
}

/// What is to be done on this node, in order, by one thread at a time.
#[derive(Default)]
pub(crate) struct Lane(Mutex<LaneState>);

#[derive(Default)]
struct LaneState {
    queue: VecDeque<Local>,
    busy: bool,
}

enum Local {
    Deliver { from: Sender, order: u64, delivery: Delivery },
    End { session: u64, reason: EndReason },
    Reported { report: u64, results: DeliveryReport },
    Event(ClusterEvent),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    fn push(&self, local: Local) {
        lock(&self.0).queue.push_back(local);
    }

    /// What is there, for the thread that does it; `None` if there is nothing or another does it.
    fn begin(&self) -> Option<VecDeque<Local>> {
        let mut lane = lock(&self.0);
        if lane.busy || lane.queue.is_empty() {
            return None;
        }
        lane.busy = true;
        Some(std::mem::take(&mut lane.queue))
    }

    fn end(&self) {
        lock(&self.0).busy = false;
    }
}

/// What a shell is made of.
pub(crate) struct Parts {
    pub(crate) me: Me,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) link_timeout: Duration,
    pub(crate) broker: Broker,
    pub(crate) node: Node,
    pub(crate) learned: mpsc::Sender<SocketAddr>,
    pub(crate) forwarded: Option<mpsc::Sender<ForwardedClient>>,
    pub(crate) live_by_links: bool,
}

impl Shell {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { me, tls, link_timeout, broker, node, learned, forwarded, live_by_links } =
            parts;
        Self {
            me,
            tls,
            link_timeout,
            refusals: Refusals::default(),
            broker,
            learned,
            links: watch::channel(0).0,
            visible: watch::channel(0).0,
            forwarded,
            journals: Mutex::default(),
            peers: watch::channel(0).0,
            clock: Clock::start(),
            state: Mutex::new(State {
                node,
                peers: BTreeMap::new(),
                at: BTreeMap::new(),
                generation: 0,
                leaving: false,
                note: None,
                live_by_links,
            }),
            mine: Lane::default(),
            work: Notify::new(),
            has_targets: AtomicBool::new(false),
        }
    }

    /// Whether a publish to any subject could concern others.
    pub(crate) fn has_targets(&self) -> bool {
        self.has_targets.load(Ordering::Acquire)
    }

    /// Now, as the machine counts.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Gives the machine something, and wakes the keeper for what follows from it.
    pub(crate) fn with<R>(
        &self,
        change: impl FnOnce(&mut Node, Timestamp, &mut Vec<Effect>) -> R,
    ) -> R {
        let mut state = lock(&self.state);
        let result = self.step(&mut state, change);
        drop(state);
        self.work.notify_one();
        result
    }

    /// Looks at the machine.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Node) -> R) -> R {
        look(&lock(&self.state).node)
    }

    /// The version of this node's interest that all nodes have seen; `visible` tells when it rises.
    pub(crate) fn watch_visible(&self) -> u64 {
        lock(&self.state).node.watch_visible()
    }

    fn step<R>(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut Node, Timestamp, &mut Vec<Effect>) -> R,
    ) -> R {
        let mut effects = Vec::new();
        let result = change(&mut state.node, self.clock.now(), &mut effects);
        for effect in effects {
            self.route(state, effect);
        }
        self.has_targets.store(state.node.has_targets(), Ordering::Release);
        result
    }

    /// Puts what the machine decided where it is carried out.
    fn route(&self, state: &State, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => {
                if let Some(out) = state.peers.get(&to).and_then(|peer| peer.out.as_ref()) {
                    out.outbox.push(LinkFrame::Node(frame));
                }
            }
            Effect::Deliver { from, order, delivery } => {
                let peer = state.peers.get(&from.node);
                let lane = peer.map_or(&self.mine, |peer| &*peer.lane);
                lane.push(Local::Deliver { from, order, delivery });
            }
            Effect::EndNamed { session, reason, .. } => {
                self.mine.push(Local::End { session, reason });
            }
            Effect::Reported { report, results } => {
                self.mine.push(Local::Reported { report, results });
            }
            Effect::Event(event) => self.mine.push(Local::Event(event)),
            Effect::Visible { version } => {
                self.visible.send_replace(version);
            }
        }
    }

    /// Does what is in a lane, unless another thread is at it, which then does this too.
    fn carry_out(&self, lane: &Lane) {
        while let Some(batch) = lane.begin() {
            for local in batch {
                match local {
                    Local::Deliver { from, order, delivery } => {
                        self.deliver(&from, order, &delivery);
                    }
                    Local::End { session, reason } => self.broker.end_named(session, reason),
                    Local::Reported { report, results } => self.broker.reported(report, results),
                    Local::Event(event) => events::say(&self.broker, &event),
                }
            }
            lane.end();
        }
    }

    fn deliver(&self, from: &Sender, order: u64, delivery: &Delivery) {
        let sessions: Vec<u64> = delivery.named.iter().map(|(_, session)| *session).collect();
        let incoming = Incoming {
            subject: &delivery.subject,
            records: &delivery.records,
            age: Duration::from_millis(delivery.age_ms),
            anonymous: delivery.anonymous,
            sessions: &sessions,
            report: delivery.report,
        };
        self.broker.deliver_spread(from, order, &incoming);
    }

    /// Timers of the machine, and all that it sends, until the task is aborted.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut measure = tokio::time::interval(MEASURE_EVERY);
        loop {
            let due = self.look(Node::deadline);
            let rest = due.map_or(REST_MAX, |due| due.since(self.clock.now()).min(REST_MAX));
            tokio::select! {
                () = self.work.notified() => {}
                () = clock::pause(rest) => {}
                _ = measure.tick() => events::measure(&self.status()),
            }
            self.turn();
            // What comes meanwhile goes together in the next turn.
            tokio::task::yield_now().await;
        }
    }

    /// One turn of the keeper.
    pub(crate) fn turn(&self) {
        self.step(&mut lock(&self.state), |node, now, effects| {
            match node.deadline().is_some_and(|due| due <= now) {
                true => node.tick(now, effects),
                false => node.settle(now, effects),
            }
        });
        self.carry_out(&self.mine);
    }

    /// Frames that came over a peer's link. `false` if another link has taken its place.
    pub(crate) fn received(&self, from: &Sender, link: &Accepted, frames: Vec<Frame>) -> bool {
        let mut state = lock(&self.state);
        let peer = state.peers.get(&from.node).and_then(|peer| peer.incoming.as_ref());
        if peer.is_none_or(|coming| coming.generation != link.generation) {
            return false;
        }
        self.step(&mut state, |node, now, effects| {
            frames.into_iter().for_each(|frame| node.frame(now, from, frame, effects));
        });
        drop(state);
        self.carry_out(&link.lane);
        self.work.notify_one();
        true
    }

    /// Whether there may be a link with this node.
    pub(crate) fn admit(&self, other: &Sender) -> Result<(), LinkRefusal> {
        self.admitted(&lock(&self.state), other)
    }

    fn admitted(&self, state: &State, other: &Sender) -> Result<(), LinkRefusal> {
        let Sender { node, incarnation } = other;
        if state.leaving {
            let text = format!("node {} is leaving the cluster", self.me.node);
            return Err(refusal(RefusalReason::Leaving, text));
        }
        let Some(peer) = state.peers.get(node) else {
            let linked = state.peers.values().filter(|peer| peer.is_linked()).count();
            let max = state.node.config().nodes_max;
            if linked >= max {
                let text = format!("the cluster has {max} nodes, which is the most it may have");
                return Err(refusal(RefusalReason::TooManyNodes, text));
            }
            return Ok(());
        };
        if peer.newest > *incarnation {
            let text = format!(
                "node {node} was started again later: its start {} is over, {} counts",
                incarnation.0, peer.newest.0
            );
            return Err(refusal(RefusalReason::OldIncarnation, text));
        }
        let other_lives =
            peer.incoming.as_ref().is_some_and(|coming| coming.incarnation != *incarnation);
        if other_lives {
            let text = format!(
                "another process has the node name {node} and is connected: names are unique in a cluster"
            );
            return Err(refusal(RefusalReason::NameTaken, text));
        }
        Ok(())
    }

    /// A peer's link is established. Its former one, if any, counts no more.
    pub(crate) fn accepted(&self, other: &Other) -> Result<Accepted, LinkRefusal> {
        let mut state = lock(&self.state);
        self.admitted(&state, &other.sender)?;
        let Sender { node, incarnation } = other.sender.clone();
        let generation = state.next_generation();
        let peer = state.peer(&node);
        peer.newest = peer.newest.max(incarnation);
        peer.incoming = Some(Coming { generation, incarnation });
        // It says it again over its new link.
        peer.note = None;
        let lane = Arc::clone(&peer.lane);
        drop(state);
        self.links.send_modify(|version| *version += 1);
        self.peers.send_modify(|version| *version += 1);
        Ok(Accepted { generation, lane })
    }

    /// A peer's link is over.
    pub(crate) fn left(&self, node: &NodeName, link: &Accepted) {
        let mut state = lock(&self.state);
        if let Some(peer) = state.peers.get_mut(node)
            && peer.incoming.as_ref().is_some_and(|it| it.generation == link.generation)
        {
            peer.incoming = None;
        }
        drop(state);
        self.links.send_modify(|version| *version += 1);
        self.peers.send_modify(|version| *version += 1);
    }

    /// This node's link to a peer is established, under that address. `Err` with `None` when there
    /// is one already.
    pub(crate) fn linked(
        &self,
        other: &Other,
        at: SocketAddr,
    ) -> Result<(u64, Arc<Outbox>), Option<LinkRefusal>> {
        let mut state = lock(&self.state);
        self.admitted(&state, &other.sender).map_err(Some)?;
        let Sender { node, incarnation } = other.sender.clone();
        state.at.insert(at, node.clone());
        if let Ok(said) = other.address.parse() {
            state.at.insert(said, node.clone());
        }
        state.peer(&node).address = other.address.parse().ok();
        let former = state.peers.get(&node).and_then(|peer| peer.out.as_ref());
        if former.is_some_and(|out| out.incarnation >= incarnation) {
            return Err(None);
        }
        let had_one = former.is_some();
        let outbox = Arc::new(Outbox::new(state.node.config().window_bytes));
        let (generation, note) = (state.next_generation(), state.note.clone());
        let peer = state.peer(&node);
        peer.newest = peer.newest.max(incarnation);
        let out = Outgoing { generation, incarnation, outbox: Arc::clone(&outbox) };
        if let Some(note) = note {
            outbox.push(LinkFrame::Note(note));
        }
        if let Some(former) = peer.out.replace(out) {
            former.outbox.close();
        }
        self.step(&mut state, |machine, now, effects| {
            if had_one {
                machine.link_down(now, &node, effects);
            }
            machine.link_up(now, &node, incarnation, effects);
        });
        self.live_by_links(&mut state);
        drop(state);
        self.work.notify_one();
        self.links.send_modify(|version| *version += 1);
        self.peers.send_modify(|version| *version += 1);
        Ok((generation, outbox))
    }

    /// This node's link to a peer is over.
    pub(crate) fn unlinked(&self, node: &NodeName, generation: u64) {
        let mut state = lock(&self.state);
        let Some(peer) = state.peers.get_mut(node) else { return };
        if peer.out.as_ref().is_none_or(|out| out.generation != generation) {
            return;
        }
        peer.out = None;
        self.step(&mut state, |machine, now, effects| machine.link_down(now, node, effects));
        self.live_by_links(&mut state);
        drop(state);
        self.work.notify_one();
        self.links.send_modify(|version| *version += 1);
        self.peers.send_modify(|version| *version += 1);
    }

    /// Whether there is a link to the node at this address; a node that is not known has none.
    pub(crate) fn is_linked_at(&self, address: SocketAddr) -> bool {
        let state = lock(&self.state);
        let peer = state.at.get(&address).and_then(|node| state.peers.get(node));
        peer.is_some_and(|peer| peer.out.is_some())
    }

    /// Says something of this node to all others, in place of what was said before.
    pub(crate) fn say(&self, note: Bytes) {
        let mut state = lock(&self.state);
        if state.note.as_ref() == Some(&note) {
            return;
        }
        for out in state.peers.values().filter_map(|peer| peer.out.as_ref()) {
            out.outbox.push(LinkFrame::Note(note.clone()));
        }
        state.note = Some(note);
    }

    /// A peer said something of itself.
    pub(crate) fn noted(&self, from: &Sender, link: &Accepted, note: &[u8]) {
        let mut state = lock(&self.state);
        let Some(peer) = state.peers.get_mut(&from.node) else { return };
        if peer.incoming.as_ref().is_none_or(|coming| coming.generation != link.generation) {
            return;
        }
        peer.note = Some(Bytes::copy_from_slice(note));
        drop(state);
        self.peers.send_modify(|version| *version += 1);
    }

    /// The nodes that are linked in both directions, in the same life.
    pub(crate) fn linked_nodes(&self) -> Vec<PeerNode> {
        let state = lock(&self.state);
        let linked = state.peers.iter().filter_map(|(node, peer)| {
            let (out, coming) = (peer.out.as_ref()?, peer.incoming.as_ref()?);
            let (address, incarnation) = (peer.address?, out.incarnation);
            let note = peer.note.clone().filter(|_| coming.incarnation == incarnation)?;
            Some(PeerNode { node: node.clone(), incarnation, address, note })
        });
        linked.collect()
    }

    /// The membership's opinion on who is alive.
    pub(crate) fn topology(&self, live: &[(NodeName, Incarnation)]) {
        self.with(|node, now, effects| node.topology(now, live, effects));
    }

    fn live_by_links(&self, state: &mut State) {
        if !state.live_by_links {
            return;
        }
        let linked = state.peers.iter().filter_map(|(node, peer)| {
            peer.out.as_ref().map(|out| (node.clone(), out.incarnation))
        });
        let live: Vec<_> = linked.collect();
        self.step(state, |node, now, effects| node.topology(now, &live, effects));
    }

    /// How the node stands.
    pub(crate) fn status(&self) -> ClusterStatus {
        self.look(Node::status)
    }

    /// Says goodbye to all nodes; from now on no link is made. `false` if that was done before.
    pub(crate) fn leave(&self) -> bool {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.leaving, true) {
            return false;
        }
        self.step(&mut state, |node, now, effects| node.leave(now, effects));
        for peer in state.peers.values() {
            if let Some(out) = &peer.out {
                out.outbox.close();
            }
        }
        drop(state);
        self.carry_out(&self.mine);
        true
    }

    /// Whether this node leaves or has left.
    pub(crate) fn is_leaving(&self) -> bool {
        lock(&self.state).leaving
    }

    /// Waits until nothing waits for a node that can be reached. `false` if that took longer.
    pub(crate) async fn drain(&self, wait: Duration) -> bool {
        self.until(wait, |shell| shell.look(Node::is_idle)).await
    }

    /// Waits for something that is seen only by looking.
    pub(crate) async fn until(&self, wait: Duration, is: impl Fn(&Self) -> bool) -> bool {
        let looking = async {
            while !is(self) {
                clock::pause(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(wait, looking).await.is_ok()
    }

    /// Whether everything that was said to other nodes is with the system.
    pub(crate) fn is_sent(&self) -> bool {
        let state = lock(&self.state);
        let mut outs = state.peers.values().filter_map(|peer| peer.out.as_ref());
        outs.all(|out| out.outbox.is_sent())
    }
}

impl Peer {
    fn is_linked(&self) -> bool {
        self.out.is_some() || self.incoming.is_some()
    }
}

impl State {
    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// The entry of a node. Of those that have no link only some are remembered.
    fn peer(&mut self, node: &NodeName) -> &mut Peer {
        let max = self.node.config().nodes_max.saturating_mul(REMEMBERED_PER_NODE);
        if self.peers.len() >= max && !self.peers.contains_key(node) {
            self.peers.retain(|_, peer| peer.is_linked());
        }
        if self.at.len() >= max {
            let peers = &self.peers;
            self.at.retain(|_, at| peers.contains_key(at));
        }
        self.peers.entry(node.clone()).or_default()
    }
}

impl Carry for Shell {
    fn carry(&self, to: SocketAddr, bytes: Bytes) {
        let state = lock(&self.state);
        let peer = state.at.get(&to).and_then(|node| state.peers.get(node));
        if let Some(out) = peer.and_then(|peer| peer.out.as_ref()) {
            out.outbox.push(LinkFrame::Gossip(bytes));
        }
    }
}
