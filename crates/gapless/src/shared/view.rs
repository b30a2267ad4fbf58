//! What nodes say of themselves and the journal, and what is shown of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{NamedRefused, Spread};
use gapless_cluster::{Cluster, PeerNode};
use gapless_core::cluster::{
    Admitted, Incarnation, Named, NodeName, Policy, Sender, SubscriberResult,
};
use gapless_core::owner::{OwnerNote, Stage};
use gapless_core::{Pattern, Records, RejectReason, TopicName};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What an owner knows of its journal beside the rule's part of its note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// How long opening took, replay included.
    pub(super) opening_ms: u64,
    /// Frames of the log that were replayed.
    pub(super) replayed_frames: u64,
    /// Bytes that wait to be written to the store.
    pub(super) waiting_bytes: u64,
    /// How long ago the store confirmed that it is the owner.
    pub(super) confirmed_ms: u64,
}

/// A note as other nodes read it.
pub(super) fn encode(note: &OwnerNote, figures: &Figures, leave: &Leave) -> Bytes {
    let OwnerNote { stage, term, given, able } = note;
    let note = json!({
        "stage": stage.name(),
        "term": term,
        "given": given.as_ref().map(|node| node.as_str()),
        "able": able,
        "opening_ms": figures.opening_ms,
        "replayed_frames": figures.replayed_frames,
        "waiting_bytes": figures.waiting_bytes,
        "confirmed_ms": figures.confirmed_ms,
        "leave": leave,
    });
    note.to_string().into()
}

/// Nodes that are asked to leave, in which of their lives.
pub(super) type Leave = BTreeMap<String, u64>;

/// What another node said; one that cannot be read is of a node that can own nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    pub(super) note: OwnerNote,
    figures: Figures,
    leave: Leave,
}

pub(super) fn decode(bytes: &[u8]) -> Heard {
    let Ok(said) = serde_json::from_slice::<Value>(bytes) else { return Heard::default() };
    let number = |name: &str| said[name].as_u64().unwrap_or_default();
    let stage = said["stage"].as_str().and_then(Stage::from_name);
    let note = OwnerNote {
        stage: stage.unwrap_or_default(),
        term: number("term"),
        given: said["given"].as_str().and_then(|node| NodeName::parse(node).ok()),
        able: said["able"] == true && stage.is_some(),
    };
    let figures = Figures {
        opening_ms: number("opening_ms"),
        replayed_frames: number("replayed_frames"),
        waiting_bytes: number("waiting_bytes"),
        confirmed_ms: number("confirmed_ms"),
    };
    let leave = serde_json::from_value(said["leave"].clone()).unwrap_or_default();
    Heard { note, figures, leave }
}

/// All that is known of the journal, as JSON.
pub(super) fn journals(
    me: (&NodeName, &OwnerNote, &Figures),
    others: &[(PeerNode, Heard)],
) -> Value {
    let others = others.iter().map(|(peer, heard)| (&peer.node, &heard.note, &heard.figures));
    let all: Vec<_> = std::iter::once(me).chain(others).collect();
    let owner = all
        .iter()
        .filter(|(_, note, _)| note.stage == Stage::Serving)
        .max_by_key(|(_, note, _)| note.term);
    // Without an owner, who is about to be it says what happens.
    let busy = all.iter().find(|(_, note, _)| note.stage != Stage::Away);
    let figures = owner.map(|(_, _, figures)| *figures);
    let nodes = all.iter().map(|(node, note, _)| {
        json!({
            "node": node.as_str(), "state": note.stage.name(), "term": note.term, "able": note.able,
        })
    });
    json!([{
        "journal": 0,
        "owner": owner.map(|(node, _, _)| node.as_str()),
        "term": owner.map(|(_, note, _)| note.term),
        "state": owner.or(busy).map_or("none", |(_, note, _)| note.stage.name()),
        "opening_ms": figures.map(|figures| figures.opening_ms),
        "replayed_frames": figures.map(|figures| figures.replayed_frames),
        "waiting_bytes": figures.map(|figures| figures.waiting_bytes),
        "confirmed_ms": figures.map(|figures| figures.confirmed_ms),
        "nodes": nodes.collect::<Vec<_>>(),
    }])
}

/// The cluster as the broker of the journal sees it: all its clients are here, so nothing is sent to
/// other nodes.
pub(super) struct View {
    cluster: Weak<Cluster>,
    node: NodeName,
    asked: Arc<Notify>,
    leave: Arc<Mutex<Leave>>,
}

impl View {
    pub(super) fn new(
        cluster: &Arc<Cluster>,
        asked: &Arc<Notify>,
        leave: &Arc<Mutex<Leave>>,
    ) -> Self {
        let (node, asked) = (cluster.node().clone(), Arc::clone(asked));
        Self { cluster: Arc::downgrade(cluster), node, asked, leave: Arc::clone(leave) }
    }
}

/// Whether another node asks this one to leave.
pub(super) fn is_asked_to_leave(
    others: &[(PeerNode, Heard)],
    (me, life): (&NodeName, Incarnation),
) -> bool {
    others.iter().any(|(_, heard)| heard.leave.get(me.as_str()) == Some(&life.0))
}

impl Spread for View {
    fn node(&self) -> NodeName {
        self.node.clone()
    }

    fn subscriber_timeout(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn subscribed(&self, _: &Pattern) -> u64 {
        0
    }

    fn unsubscribed(&self, _: &Pattern) {}

    fn subscribed_named(&self, _: &Named, _: u64) -> Result<u64, NamedRefused> {
        let why = "named subscribers need a cluster whose nodes have a store each; on a shared store \
                   follow a durable topic, or be a member of a group";
        Err(NamedRefused(why.to_owned()))
    }

    fn away(&self, _: u64) {}

    fn unsubscribed_named(&self, _: u64) {}

    fn taken(&self, _: u64, _: &Sender, _: u64, _: &[(TopicName, u64)]) {}

    fn settled(&self, _: &Sender, _: u64, _: Vec<SubscriberResult>) {}

    fn wants(&self, _: &TopicName) -> bool {
        false
    }

    fn publish(
        &self,
        _: &TopicName,
        _: &Records,
        _: Policy,
        _: Option<u64>,
    ) -> Result<Admitted, RejectReason> {
        Ok(Admitted::default())
    }

    fn status(&self) -> Value {
        self.cluster.upgrade().map_or(Value::Null, |cluster| cluster.status_json())
    }

    fn leave(&self) {
        self.asked.notify_one();
    }

    fn leave_node(&self, node: &str) -> Result<(), String> {
        if node == self.node.as_str() {
            self.leave();
            return Ok(());
        }
        let linked = self.cluster.upgrade().map(|cluster| cluster.linked_nodes());
        let found = linked.into_iter().flatten().find(|peer| peer.node.as_str() == node);
        let found = found.ok_or_else(|| format!("there is no link to node {node}"))?;
        let mut leave = self.leave.lock().unwrap_or_else(PoisonError::into_inner);
        leave.insert(node.to_owned(), found.incarnation.0);
        Ok(())
    }

    fn await_visible(
        &self,
        _: u64,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<(), Vec<NodeName>>> + Send>> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_is_read_as_it_was_said() {
        let given = Some(NodeName::parse("b").expect("a name"));
        let note = OwnerNote { stage: Stage::Closing, term: 7, given, able: true };
        let figures = Figures { opening_ms: 5, waiting_bytes: 9, ..Figures::default() };
        let leave = Leave::from([("c".to_owned(), 3)]);
        let heard = decode(&encode(&note, &figures, &leave));
        assert_eq!((heard.note, heard.figures, heard.leave), (note, figures, leave));
    }

    #[test]
    fn a_node_that_says_what_cannot_be_read_can_own_nothing() {
        for said in [&b"nonsense"[..], b"{}", b"{\"stage\":\"dancing\",\"able\":true}"] {
            let heard = decode(said);
            assert!(!heard.note.able && heard.note.stage == Stage::Away, "{heard:?}");
        }
    }

    #[test]
    fn the_owner_with_the_highest_term_is_shown() {
        let name = |text| NodeName::parse(text).expect("a name");
        let other = PeerNode {
            node: name("b"),
            incarnation: Incarnation(1),
            address: ([127, 0, 0, 1], 1).into(),
            note: Bytes::new(),
        };
        let serving = |term| OwnerNote { stage: Stage::Serving, term, given: None, able: true };
        let heard = Heard { note: serving(9), ..Heard::default() };
        let me = (&name("a"), &serving(4), &Figures::default());
        let shown = journals(me, &[(other, heard)]);
        assert_eq!((&shown[0]["owner"], &shown[0]["term"]), (&json!("b"), &json!(9)));
        assert_eq!(shown[0]["nodes"].as_array().map(Vec::len), Some(2));
    }
}
