//! Numbers about the broker, through the `metrics` facade: whoever installs a recorder sees
//! them. `docs/metrics.md` lists the names; they do not change without notice.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use gapless_core::{GapReason, RejectReason};
use gapless_journal::JournalStats;

/// The handles, made once.
pub(crate) struct Metrics {
    pub(crate) published_messages: Counter,
    pub(crate) published_bytes: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) delivered_batches: Counter,
    pub(crate) delivered_bytes: Counter,
    pub(crate) recoveries_started: Counter,
    pub(crate) recoveries_done: Counter,
    pub(crate) recovered_bytes: Counter,
    pub(crate) subscriptions: Gauge,
    pub(crate) recovering: Gauge,
    pub(crate) topics: Gauge,
    pub(crate) delayed: Gauge,
    pub(crate) group_delivered: Counter,
    pub(crate) group_redelivered: Counter,
    pub(crate) group_acked: Counter,
    pub(crate) group_nacked: Counter,
    pub(crate) group_expired: Counter,
    pub(crate) group_buried: Counter,
    pub(crate) ack_seconds: Histogram,
    journal_bytes: Gauge,
    journal_frames: Gauge,
    journal_flushes: Gauge,
    journal_flush_seconds: Gauge,
    tail_bytes: Gauge,
    waiting_bytes: Gauge,
    segments: Gauge,
    segment_bytes: Gauge,
    recovery_waiting: Gauge,
    full: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            published_messages: counter!("gapless_published_messages_total"),
            published_bytes: counter!("gapless_published_bytes_total"),
            duplicates: counter!("gapless_duplicates_total"),
            delivered_batches: counter!("gapless_delivered_batches_total"),
            delivered_bytes: counter!("gapless_delivered_bytes_total"),
            recoveries_started: counter!("gapless_recoveries_started_total"),
            recoveries_done: counter!("gapless_recoveries_done_total"),
            recovered_bytes: counter!("gapless_recovered_bytes_total"),
            subscriptions: gauge!("gapless_subscriptions"),
            recovering: gauge!("gapless_subscriptions_recovering"),
            topics: gauge!("gapless_topics"),
            delayed: gauge!("gapless_delayed_messages"),
            group_delivered: counter!("gapless_group_delivered_total"),
            group_redelivered: counter!("gapless_group_redelivered_total"),
            group_acked: counter!("gapless_group_acked_total"),
            group_nacked: counter!("gapless_group_nacked_total"),
            group_expired: counter!("gapless_group_expired_total"),
            group_buried: counter!("gapless_group_buried_total"),
            ack_seconds: histogram!("gapless_ack_seconds"),
            journal_bytes: gauge!("gapless_journal_bytes_written"),
            journal_frames: gauge!("gapless_journal_frames_written"),
            journal_flushes: gauge!("gapless_journal_flushes"),
            journal_flush_seconds: gauge!("gapless_journal_flush_seconds_sum"),
            tail_bytes: gauge!("gapless_journal_tail_bytes"),
            waiting_bytes: gauge!("gapless_journal_waiting_bytes"),
            segments: gauge!("gapless_journal_segments"),
            segment_bytes: gauge!("gapless_journal_segment_bytes"),
            recovery_waiting: gauge!("gapless_recovery_requests_waiting"),
            full: gauge!("gapless_disk_full"),
        }
    }
}

impl Metrics {
    pub(crate) fn rejected(&self, reason: &RejectReason) {
        counter!("gapless_rejected_total", "reason" => reason.name()).increment(1);
    }

    pub(crate) fn gap(&self, reason: GapReason) {
        counter!("gapless_gaps_total", "reason" => reason.name()).increment(1);
    }

    /// How a group stands.
    pub(crate) fn group(&self, name: &str, numbers: &[(&'static str, f64)]) {
        for (metric, value) in numbers {
            gauge!(*metric, "group" => name.to_owned()).set(*value);
        }
    }

    pub(crate) fn journal(&self, stats: &JournalStats) {
        self.journal_bytes.set(stats.bytes as f64);
        self.journal_frames.set(stats.frames as f64);
        self.journal_flushes.set(stats.flushes as f64);
        self.journal_flush_seconds.set(stats.flush_time.as_secs_f64());
        self.tail_bytes.set(stats.tail_bytes as f64);
        self.waiting_bytes.set(stats.waiting_bytes as f64);
        self.segments.set(stats.segments as f64);
        self.segment_bytes.set(stats.segment_bytes as f64);
        self.recovery_waiting.set(stats.recovery_waiting as f64);
        self.full.set(f64::from(u8::from(stats.full)));
    }
}
