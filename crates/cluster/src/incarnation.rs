//! Which start of a node this is, noted in the node's store.
//!
//! Other nodes take the greater of two incarnations for the later start. The time of the start is one
//! that rises by itself; the store makes it rise also when the clock was set back, or had been ahead.

use gapless_broker::{Atomic, Broker};
use gapless_core::cluster::Incarnation;
use gapless_core::{PublishAck, PublishOptions, Timestamp};

use crate::options::StartError;

/// The cell that holds the last one, as eight bytes, least significant first. No client sees or changes
/// cells below `$cluster/` (`auth/caller.rs`).
const CELL: &[u8] = b"$cluster/incarnation";

/// The incarnation of this start: the given one, or the time, in any case above the last. It is
/// flushed before any other node sees it.
pub(crate) async fn begin(
    broker: &Broker,
    given: Option<Incarnation>,
    now: Timestamp,
) -> Result<Incarnation, StartError> {
    let last =
        broker.cell(CELL).and_then(|value| Some(u64::from_le_bytes(value[..].try_into().ok()?)));
    let begun = given.unwrap_or_else(|| next(last, now));
    let atomic = Atomic::new().set_cell(CELL, begun.0.to_le_bytes().to_vec());
    let stored = broker.subsystem("$cluster").commit(atomic, &PublishOptions::default()).await;
    match stored {
        Ok(PublishAck::Rejected(reason)) => Err(StartError::Incarnation(reason.to_string())),
        Ok(_) => Ok(begun),
        Err(error) => Err(StartError::Incarnation(error.to_string())),
    }
}

fn next(last: Option<u64>, now: Timestamp) -> Incarnation {
    Incarnation(last.map_or(now.0, |last| now.0.max(last.saturating_add(1))))
}

#[cfg(test)]
mod tests {
    use gapless_broker::BrokerOptions;

    use super::*;

    #[tokio::test]
    async fn a_later_start_has_a_greater_incarnation_whatever_the_clock_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut seen = Vec::new();
        // Ahead by a year, then right, then set back.
        for now in [1_000_000, 5_000, 5_000, 10, 2_000_000] {
            let broker = Broker::open(BrokerOptions::new(folder.path())).expect("a broker");
            seen.push(begin(&broker, None, Timestamp(now)).await.expect("begun").0);
            broker.close().expect("closed");
        }
        assert_eq!(seen, [1_000_000, 1_000_001, 1_000_002, 1_000_003, 2_000_000]);
    }
}
