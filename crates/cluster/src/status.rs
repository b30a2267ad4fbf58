//! How a node stands, as JSON: one shape for the HTTP API, the command line and the page.

use std::sync::PoisonError;

use gapless_core::Timestamp;
use gapless_core::cluster::{ClusterStatus, NamedStatus, NodeStatus, QueueStatus};
use gapless_core::subscriber::Status;
use serde_json::{Value, json};

use crate::shell::Shell;

/// How a node stands now.
pub(crate) fn of(shell: &Shell) -> Value {
    let mut status = json(&shell.me.cluster, &shell.me.address, &shell.status(), shell.now());
    let journals = shell.journals.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(journals) = &*journals {
        status["journals"] = journals.clone();
    }
    status
}

/// The status of a node of this cluster; ages are counted up to `now`.
fn json(cluster: &str, address: &str, status: &ClusterStatus, now: Timestamp) -> Value {
    json!({
        "cluster": cluster,
        "node": status.me.as_str(),
        "incarnation": status.incarnation.0,
        "address": address,
        "left": status.has_left,
        "interest": {
            "version": status.version,
            "visible": status.visible,
            "patterns": status.patterns,
            "named": status.sessions,
        },
        "nodes": status.nodes.iter().map(|each| node(each, now)).collect::<Vec<_>>(),
        "named": status.named.iter().map(|each| named(each, now)).collect::<Vec<_>>(),
        "named_total": status.named_total,
        "queued_bytes": status.queued_bytes,
        "counts": {
            "sent": status.counts.items_sent,
            "resent": status.counts.items_resent,
            "received": status.counts.items_received,
            "repeats": status.counts.items_repeated,
            "lost": status.counts.messages_lost,
            "unknown": status.counts.messages_unknown,
            "queue_full": status.counts.queue_full,
            "partition_drop": status.counts.partition_drop,
        },
    })
}

fn node(node: &NodeStatus, now: Timestamp) -> Value {
    json!({
        "node": node.node.as_str(),
        "incarnation": node.incarnation.0,
        "live": node.is_live,
        "left": node.has_left,
        "link": if node.has_link { "up" } else { "down" },
        "state": state(node.state, now),
        "patterns": node.patterns,
        "named": node.sessions,
        "interest_seen": node.interest_seen,
        "queue": queue(&node.queue, now),
        "unconfirmed_bytes": node.sent_bytes,
    })
}

fn named(named: &NamedStatus, now: Timestamp) -> Value {
    json!({
        "subscriber": named.named.identity.as_str(),
        "pattern": named.named.pattern.as_str(),
        "node": named.node.as_ref().map(|node| node.as_str()),
        "state": state(named.state, now),
        "queue": queue(&named.queue, now),
    })
}

fn state(state: Status, now: Timestamp) -> Value {
    match state {
        Status::Active => json!({ "is": "active" }),
        Status::Suspended { reason, since } => json!({
            "is": "suspended",
            "reason": reason.name(),
            "for_ms": ms(now.since(since)),
        }),
        Status::Removed => json!({ "is": "removed" }),
    }
}

fn queue(queue: &QueueStatus, now: Timestamp) -> Value {
    json!({
        "messages": queue.messages,
        "bytes": queue.bytes,
        "oldest_ms": queue.oldest.map(|oldest| ms(now.since(oldest))),
    })
}

fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
