//! Links that were refused: said loudly, but not at every attempt.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gapless_broker::Broker;
use gapless_core::Timestamp;
use gapless_protocol::link::RefusalReason;

/// How long the same refusal is not repeated in the log.
const SAID_FOR: Duration = Duration::from_secs(60);
/// Refusals that are remembered.
const REMEMBERED_MAX: usize = 1_024;

/// Which refusals were said, and when.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    said: Mutex<BTreeMap<(String, RefusalReason), Timestamp>>,
}

impl Refusals {
    /// Notes a refusal: in the log if it is new, as an event and in the metrics always. `peer` is the
    /// address of the other side, `dialled` whether this node dialled it.
    pub(crate) fn note(
        &self,
        broker: &Broker,
        now: Timestamp,
        (peer, dialled): (&str, bool),
        (reason, text): (RefusalReason, &str),
    ) {
        let name = reason.name();
        metrics::counter!("gapless_cluster_refused_total", "reason" => name).increment(1);
        let fields = [
            ("peer", peer.into()),
            ("dialled", dialled.into()),
            ("reason", name.into()),
            ("why", text.into()),
        ];
        broker.emit_event("cluster.link-refused", &fields);
        if reason == RefusalReason::Leaving {
            tracing::debug!(peer, dialled, "{text}");
        } else if self.is_new(now, (peer.to_owned(), reason)) {
            tracing::warn!(peer, dialled, reason = name, "a link between nodes is refused: {text}");
        }
    }

    fn is_new(&self, now: Timestamp, what: (String, RefusalReason)) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= REMEMBERED_MAX {
            said.retain(|_, then| now.since(*then) < SAID_FOR);
        }
        if said.get(&what).is_some_and(|then| now.since(*then) < SAID_FOR) {
            return false;
        }
        if said.len() < REMEMBERED_MAX {
            said.insert(what, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_repeated_in_the_log_after_a_while_only() {
        let refusals = Refusals::default();
        let what = || ("10.0.0.1:1".to_owned(), RefusalReason::WrongSecret);
        assert!(refusals.is_new(Timestamp(0), what()));
        assert!(!refusals.is_new(Timestamp(59_999), what()));
        assert!(refusals.is_new(Timestamp(5), ("10.0.0.1:1".to_owned(), RefusalReason::Version)));
        assert!(refusals.is_new(Timestamp(60_000), what()));
    }
}
