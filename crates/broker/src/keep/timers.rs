//! What must happen in time: leases end, delayed messages are published, redrives go on, reports
//! are complete.
//!
//! It has a thread of its own, which never waits for a segment to be written or merged: that is
//! the keeper's work. It does wait for history: a delayed message or a dead letter may be in a
//! segment by now.

use std::time::Duration;

use gapless_core::Timestamp;

use crate::broker::Inner;

/// The shortest rest between two turns: what could not be done now, because the journal is full or
/// a message is not visible yet, is tried again after it.
const REST_MIN: Duration = Duration::from_millis(1);

impl Inner {
    /// One turn of the timers; returns how long they may rest.
    pub(crate) fn run_timers(&self) -> Duration {
        let now = self.clock.now();
        while self.publish_due(now) {}
        self.keep_groups(now);
        self.expire_reports(now);
        self.until_due(self.clock.now())
    }

    fn until_due(&self, now: Timestamp) -> Duration {
        let dues = [self.next_due(), self.groups.next_due(), self.reports.next_due()];
        let due = dues.into_iter().flatten().min();
        let rest = due.map_or(self.limits.keep_interval, |due| due.since(now));
        rest.clamp(REST_MIN, self.limits.keep_interval.max(REST_MIN))
    }
}
