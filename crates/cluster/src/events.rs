//! What happens in the cluster, as events on `$events.cluster.>` and `$events.delivery.>`, and as metrics.
//!
//! The fields of each event are in `docs/events.md`, the names of metrics in `docs/metrics.md`.

use gapless_broker::Broker;
use gapless_core::cluster::{
    ClusterEvent, ClusterStatus, Counts, Lost, LostReason, LostTarget, Named,
};
use gapless_core::subscriber::Status;
use gapless_protocol::link::RefusalReason;
use serde_json::{Value, json};

/// Publishes an event, and logs what an operator wants to know.
pub(crate) fn say(broker: &Broker, event: &ClusterEvent) {
    let fields = fields(event);
    match event {
        ClusterEvent::Lost(lost) => {
            let (messages, reason) = (lost.messages, lost.reason.name());
            metrics::counter!("gapless_cluster_lost_total", "reason" => reason).increment(messages);
            tracing::warn!(
                messages,
                reason,
                target = target_text(&lost.target),
                "messages are lost"
            );
        }
        ClusterEvent::NodeRefused { .. } | ClusterEvent::InterestRefused { .. } => {
            tracing::warn!("{}: {}", event.kind(), text(&fields));
        }
        ClusterEvent::NamedPlaced { .. } | ClusterEvent::NamedEnded { .. } => {}
        _ => tracing::info!("{}: {}", event.kind(), text(&fields)),
    }
    broker.emit_event(event.kind(), &fields);
}

fn text(fields: &[(&str, Value)]) -> String {
    let parts = fields.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn fields(event: &ClusterEvent) -> Vec<(&'static str, Value)> {
    match event {
        ClusterEvent::NodeJoined { node, incarnation }
        | ClusterEvent::NodeRestarted { node, incarnation } => {
            vec![("node", node.as_str().into()), ("incarnation", incarnation.0.into())]
        }
        ClusterEvent::NodeGone { node }
        | ClusterEvent::NodeLeft { node }
        | ClusterEvent::NodeResumed { node }
        | ClusterEvent::NodeRefused { node }
        | ClusterEvent::InterestRefused { node } => vec![("node", node.as_str().into())],
        ClusterEvent::NodeSuspended { node, reason }
        | ClusterEvent::NodeRemoved { node, reason } => {
            vec![("node", node.as_str().into()), ("reason", reason.name().into())]
        }
        ClusterEvent::NamedPlaced { named, node } | ClusterEvent::NamedResumed { named, node } => {
            let mut fields = of_named(named);
            fields.push(("node", node.as_str().into()));
            fields
        }
        ClusterEvent::NamedSuspended { named, reason }
        | ClusterEvent::NamedRemoved { named, reason } => {
            let mut fields = of_named(named);
            fields.push(("reason", reason.name().into()));
            fields
        }
        ClusterEvent::NamedEnded { named } => of_named(named),
        ClusterEvent::Lost(lost) => of_lost(lost),
    }
}

fn of_named(named: &Named) -> Vec<(&'static str, Value)> {
    vec![("subscriber", named.identity.as_str().into()), ("pattern", named.pattern.as_str().into())]
}

fn of_lost(lost: &Lost) -> Vec<(&'static str, Value)> {
    let mut fields = match &lost.target {
        LostTarget::Node(node) => vec![("node", Value::from(node.as_str()))],
        LostTarget::Named(named) => of_named(named),
    };
    let subjects = lost
        .subjects
        .iter()
        .map(|(subject, messages)| json!({ "subject": subject.as_str(), "messages": messages }));
    fields.push(("messages", lost.messages.into()));
    fields.push(("subjects", subjects.collect()));
    fields.push(("reason", lost.reason.name().into()));
    fields
}

fn target_text(target: &LostTarget) -> String {
    match target {
        LostTarget::Node(node) => format!("node {node}"),
        LostTarget::Named(named) => format!("{} of {}", named.identity, named.pattern.as_str()),
    }
}

/// Gives the recorder of metrics the numbers of a node.
pub(crate) fn measure(status: &ClusterStatus) {
    let nodes = &status.nodes;
    let count = |is: fn(&gapless_core::cluster::NodeStatus) -> bool| {
        nodes.iter().filter(|node| is(node)).count() as f64
    };
    metrics::gauge!("gapless_cluster_nodes").set(count(|node| node.is_live) + 1.0);
    metrics::gauge!("gapless_cluster_links").set(count(|node| node.has_link));
    let suspended = count(|node| matches!(node.state, Status::Suspended { .. }));
    metrics::gauge!("gapless_cluster_nodes_suspended").set(suspended);
    let queued: usize = nodes.iter().map(|node| node.queue.messages).sum();
    let named: usize = status.named.iter().map(|named| named.queue.messages).sum();
    metrics::gauge!("gapless_cluster_queued_messages").set((queued + named) as f64);
    metrics::gauge!("gapless_cluster_queued_bytes").set(status.queued_bytes as f64);
    metrics::gauge!("gapless_cluster_interest_patterns").set(status.patterns as f64);
    let Counts {
        items_sent,
        items_resent,
        items_received,
        items_repeated,
        messages_unknown,
        queue_full,
        partition_drop,
        ..
    } = status.counts;
    metrics::counter!("gapless_cluster_sent_total").absolute(items_sent);
    metrics::counter!("gapless_cluster_resent_total").absolute(items_resent);
    metrics::counter!("gapless_cluster_received_total").absolute(items_received);
    metrics::counter!("gapless_cluster_repeats_total").absolute(items_repeated);
    metrics::counter!("gapless_cluster_unknown_total").absolute(messages_unknown);
    for (reason, count) in [("QueueFull", queue_full), ("PartitionDrop", partition_drop)] {
        metrics::counter!("gapless_cluster_rejected_total", "reason" => reason).absolute(count);
    }
}

/// Says what the metrics of the cluster mean.
pub(crate) fn describe() {
    use metrics::{describe_counter, describe_gauge};
    describe_gauge!(
        "gapless_cluster_nodes",
        "nodes of the cluster that are alive, this one included"
    );
    describe_gauge!("gapless_cluster_links", "links of this node to others");
    describe_gauge!("gapless_cluster_nodes_suspended", "nodes not delivered to at the moment");
    describe_gauge!("gapless_cluster_queued_messages", "messages held for nodes and subscribers");
    describe_gauge!("gapless_cluster_queued_bytes", "bytes of these");
    describe_gauge!(
        "gapless_cluster_interest_patterns",
        "patterns that subscribers of this node follow"
    );
    describe_counter!("gapless_cluster_sent_total", "publishes sent to other nodes, one for each");
    describe_counter!("gapless_cluster_resent_total", "publishes sent again");
    describe_counter!("gapless_cluster_received_total", "publishes received from other nodes");
    describe_counter!("gapless_cluster_repeats_total", "publishes received again, and passed over");
    describe_counter!(
        "gapless_cluster_unknown_total",
        "at-most-once messages that were on their way when a link broke"
    );
    describe_counter!(
        "gapless_cluster_rejected_total",
        "publishes rejected because of other nodes"
    );
    describe_counter!(
        "gapless_cluster_lost_total",
        "messages lost, by reason; an event names them"
    );
    describe_counter!("gapless_cluster_refused_total", "links refused, by reason");
    describe_counter!("gapless_cluster_written_bytes_total", "bytes written to other nodes");
    // What has not happened yet is shown as such.
    metrics::counter!("gapless_cluster_written_bytes_total").increment(0);
    for reason in RefusalReason::ALL {
        metrics::counter!("gapless_cluster_refused_total", "reason" => reason.name()).increment(0);
    }
    for reason in [
        LostReason::Expired,
        LostReason::Restarted,
        LostReason::Left,
        LostReason::Leaving,
        LostReason::Overflow,
        LostReason::NotQueued,
    ] {
        metrics::counter!("gapless_cluster_lost_total", "reason" => reason.name()).increment(0);
    }
}
