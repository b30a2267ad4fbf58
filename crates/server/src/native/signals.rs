//! What is said to all connections of a listener: that it closes, and that rights changed.
//!
//! A connection looks at one number at the end of each turn. One task waits for what there is to
//! say and then wakes all: connections that wait for it themselves would take locks that all
//! share at every turn, and memory for it while they are idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::native::server::Shared;

/// Set in the number when the listener closes.
const CLOSING: u64 = 1;
/// Added for each change of rights.
const CHANGE: u64 = 2;

/// What was said so far.
#[derive(Debug, Default)]
pub(crate) struct Signals(AtomicU64);

/// What was said up to some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard(u64);

impl Heard {
    /// Whether the listener closes.
    pub(crate) fn is_closing(self) -> bool {
        self.0 & CLOSING != 0
    }
}

impl Signals {
    pub(crate) fn heard(&self) -> Heard {
        Heard(self.0.load(Ordering::Acquire))
    }

    fn change(&self) {
        self.0.fetch_add(CHANGE, Ordering::AcqRel);
    }

    fn close(&self) {
        self.0.fetch_or(CLOSING, Ordering::AcqRel);
    }
}

/// Tells all connections of each change of rights, and at last that the listener closes.
pub(crate) async fn tell_all(shared: Arc<Shared>) {
    let mut changes = shared.auth.changes();
    loop {
        let closes = tokio::select! {
            biased;
            () = shared.closed() => true,
            Ok(()) = changes.changed() => false,
        };
        if closes {
            shared.signals.close();
        } else {
            shared.signals.change();
        }
        // A connection that is not in the list yet looks at the number in its first turn.
        let sessions: Vec<_> = shared.sessions().values().cloned().collect();
        sessions.iter().for_each(|session| session.ready.wake());
        if closes {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_and_the_end_are_heard() {
        let signals = Signals::default();
        let before = signals.heard();
        signals.change();
        let after = signals.heard();
        assert!(before != after && !after.is_closing());
        signals.close();
        signals.change();
        assert!(signals.heard() != after && signals.heard().is_closing());
    }
}
