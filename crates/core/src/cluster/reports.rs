//! Reports that wait for answers.
//!
//! A report is given once: when every target has answered, or when it has taken too long.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::name::{Identity, NodeName};
use super::named::NamedId;
use super::peer::NodeId;
use super::report::{DeliveryReport, DeliveryStatus, SubscriberName, SubscriberResult};
use crate::time::Timestamp;

/// Most reports that are waited for at the same time; past it a publish that asks for one is
/// refused as `QueueFull`.
pub const REPORTS_MAX: usize = 65_536;

/// A report that waits for answers.
#[derive(Debug)]
struct Pending {
    nodes: BTreeSet<NodeId>,
    named: BTreeMap<NamedId, Identity>,
    report: DeliveryReport,
}

/// All reports that wait.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pending: BTreeMap<u64, Pending>,
    /// When each is given at the latest, earliest first.
    due: VecDeque<(Timestamp, u64)>,
    /// Those that are complete.
    done: Vec<(u64, DeliveryReport)>,
}

impl Reports {
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= REPORTS_MAX
    }

    pub(super) fn begin(
        &mut self,
        id: u64,
        due: Timestamp,
        nodes: BTreeSet<NodeId>,
        named: BTreeMap<NamedId, Identity>,
    ) {
        self.pending.insert(id, Pending { nodes, named, report: DeliveryReport::default() });
        self.due.push_back((due, id));
        self.finish_if_complete(id);
    }

    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.pending.contains_key(&id)
    }

    /// A node reported about its anonymous subscribers.
    pub(super) fn node_reported(&mut self, id: u64, node: NodeId, results: Vec<SubscriberResult>) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if pending.nodes.remove(&node) {
            for result in results {
                pending.report.add(result.subscriber, result.status);
            }
            self.finish_if_complete(id);
        }
    }

    pub(super) fn node_failed(
        &mut self,
        id: u64,
        node: NodeId,
        name: &NodeName,
        status: DeliveryStatus,
    ) {
        let subscriber = SubscriberName::Node(name.clone());
        self.node_reported(id, node, Vec::from([SubscriberResult { subscriber, status }]));
    }

    pub(super) fn named_done(&mut self, id: u64, named: NamedId, status: DeliveryStatus) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if let Some(identity) = pending.named.remove(&named) {
            let subscriber = SubscriberName::Identity(identity);
            pending.report.add(subscriber, status);
            self.finish_if_complete(id);
        }
    }

    /// Ends those that have waited long enough: who has not answered, timed out.
    pub(super) fn expire(&mut self, now: Timestamp, name: impl Fn(NodeId) -> Option<NodeName>) {
        while let Some((due, id)) = self.due.front().copied()
            && (due <= now || !self.pending.contains_key(&id))
        {
            self.due.pop_front();
            let Some(mut pending) = self.pending.remove(&id) else { continue };
            let nodes = core::mem::take(&mut pending.nodes).into_iter();
            let nodes = nodes.filter_map(&name).map(SubscriberName::Node);
            let named = core::mem::take(&mut pending.named).into_values();
            for subscriber in nodes.chain(named.map(SubscriberName::Identity)) {
                pending.report.add(subscriber, DeliveryStatus::Timeout);
            }
            self.done.push((id, pending.report));
        }
    }

    pub(super) fn take_done(&mut self) -> Vec<(u64, DeliveryReport)> {
        core::mem::take(&mut self.done)
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.due.front().map(|(due, _)| *due)
    }

    pub(super) fn check(&self) {
        assert!(self.pending.len() <= REPORTS_MAX, "reports are bounded");
        for (id, pending) in &self.pending {
            assert!(!pending.nodes.is_empty() || !pending.named.is_empty(), "{id} waits for one");
            assert!(self.due.iter().any(|(_, due)| due == id), "{id} has a deadline");
        }
    }

    fn finish_if_complete(&mut self, id: u64) {
        let is_complete = |pending: &Pending| pending.nodes.is_empty() && pending.named.is_empty();
        if self.pending.get(&id).is_some_and(is_complete)
            && let Some(pending) = self.pending.remove(&id)
        {
            self.done.push((id, pending.report));
        }
        while self.due.front().is_some_and(|(_, id)| !self.pending.contains_key(id)) {
            self.due.pop_front();
        }
    }
}
