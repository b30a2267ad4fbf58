//! What must always hold of a node. Walks everything: for debug builds and the simulator.

use super::Node;
use crate::cluster::named::Holding;
use crate::cluster::peer::{ME, NodeId};

impl Node {
    /// Asserts what must always be true.
    pub fn check(&self) {
        self.interest.check(self.config.interest_max);
        self.index.check();
        self.named.check();
        self.reports.check();
        self.topics.check();
        self.check_peers();
        self.check_named();
        let nodes = self.peers.values().map(|peer| peer.out.bytes).sum::<usize>();
        let named = self.named.iter().map(|(_, holding)| holding.bytes).sum::<usize>();
        let total = nodes + named + self.local.bytes;
        assert_eq!(total, self.queued_bytes, "all queues are counted");
        assert!(total <= self.config.queues_bytes_max, "all queues together are bounded");
        let patterns = self.peers.values().map(|peer| peer.view.patterns.len()).sum::<usize>();
        assert_eq!(self.index.len(), patterns + self.named.len(), "the index has every target");
    }

    fn check_peers(&self) {
        let config = &self.config;
        assert!(self.peers.len() <= config.nodes_max, "nodes are bounded");
        assert_eq!(self.peers.len(), self.ids.len(), "each node has a name");
        for (id, peer) in &self.peers {
            assert_eq!(self.ids.get(&peer.name), Some(id), "a name leads to its node");
            peer.state.check();
            peer.inbound.check();
            peer.out.check(config.window_bytes);
            assert!(peer.out.messages <= config.queue_messages_max, "a queue is bounded");
            assert!(peer.out.bytes <= config.queue_bytes_max, "a queue is bounded");
            assert!(peer.view.total() <= config.interest_max, "interest is bounded");
            assert!(!peer.is_active() || peer.has_link, "without a link a node is suspended");
            assert!(peer.seen <= self.interest.version(), "none has seen what is not there");
            assert!(!peer.has_left || peer.view.total() == 0, "one that left wants nothing");
            for (session, (named, _)) in &peer.view.sessions {
                let holding = self.named.id(named).and_then(|id| self.named.get(id));
                let claimed = holding.map(|holding| holding.sessions_at(*id)).unwrap_or_default();
                assert!(claimed.contains(session), "what is said to be there is a claim");
            }
        }
    }

    fn check_named(&self) {
        let config = &self.config;
        let away = self.named.iter().filter(|(_, holding)| holding.place.is_none()).count();
        assert_eq!(away, self.away, "those that are away are counted");
        assert!(away <= config.interest_max, "those that are away are bounded");
        for (session, named) in self.interest.sessions() {
            let holding = self.named.id(named).and_then(|id| self.named.get(id));
            let place = holding.and_then(|holding| holding.place);
            let is_here = place.is_some_and(|place| place.node == ME && place.session == session);
            assert!(is_here, "a session of this node has the greatest claim");
        }
        let mut ready = 0;
        for (id, holding) in self.named.iter() {
            holding.check(config.named_ahead_messages);
            assert!(holding.messages <= config.queue_messages_max, "a queue is bounded");
            assert!(holding.bytes <= config.queue_bytes_max, "a queue is bounded");
            if let Some((node, admission)) = self.ready_of(holding) {
                ready += 1;
                let lane = if node == ME { Some(&self.local) } else { self.out_of(node) };
                let is_ready = lane.is_some_and(|lane| lane.ready.contains(&(admission, id)));
                assert!(is_ready, "what can be sent is on its way");
            }
        }
        let lanes = self.peers.values().map(|peer| &peer.out).chain([&self.local]);
        let listed: usize = lanes.map(|lane| lane.ready.len()).sum();
        assert_eq!(ready, listed, "nothing else is on its way");
    }

    fn out_of(&self, node: NodeId) -> Option<&crate::cluster::outbound::Outbound> {
        self.peers.get(&node).map(|peer| &peer.out)
    }

    fn ready_of(&self, holding: &Holding) -> Option<(NodeId, u64)> {
        let place = holding.place?;
        holding.ready(self.config.named_ahead_messages).map(|admission| (place.node, admission))
    }
}
