//! Numbers about the broker, through the `metrics` facade: a recorder that is installed before
//! the broker opens sees them. `docs/metrics.md` lists the names; they do not change without
//! notice.
//!
//! No label here has values of users: what a topic or a group counts ends with it, and a
//! recorder would keep it for ever. `/metrics` reads those numbers from the broker instead.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics::{describe_counter, describe_gauge, describe_histogram};

use gapless_core::{GapReason, RejectReason};
use gapless_journal::JournalStats;

/// Upper bounds for a histogram of `gapless_ack_seconds`, in seconds: from an ack out of memory
/// to a disk that hangs.
pub const ACK_SECONDS_BUCKETS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

/// Upper bounds for a histogram of `gapless_delivery_seconds`, in seconds. The time of a message has
/// milliseconds, so nothing below can be told apart; members of groups may be hours behind.
pub const DELIVERY_SECONDS_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0,
    3600.0,
];

/// One delivery of a subscriber or member in this many is timed.
const TIMED_ONE_IN: u32 = 16;

/// Says which deliveries of one subscriber or member are timed: the first, then every sixteenth.
#[derive(Debug, Default)]
pub(crate) struct Sample(u32);

impl Sample {
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.0.is_multiple_of(TIMED_ONE_IN);
        self.0 = self.0.wrapping_add(1);
        is_due
    }
}

/// The handles, created once.
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
    pub(crate) ack_seconds: Histogram,
    pub(crate) delivery_subscriber_seconds: Histogram,
    pub(crate) delivery_group_seconds: Histogram,
    journal_bytes: Counter,
    journal_frames: Counter,
    journal_flushes: Counter,
    pub(crate) volatile_bytes: Gauge,
    pub(crate) cell_bytes: Gauge,
    pub(crate) recovery_bytes: Gauge,
    tail_bytes: Gauge,
    waiting_bytes: Gauge,
    segments: Gauge,
    segment_bytes: Gauge,
    recovery_waiting: Gauge,
    full: Gauge,
    time_steps_back: Gauge,
}

fn total(name: &'static str, help: &'static str) -> Counter {
    describe_counter!(name, help);
    counter!(name)
}

fn level(name: &'static str, help: &'static str) -> Gauge {
    describe_gauge!(name, help);
    gauge!(name)
}

impl Default for Metrics {
    fn default() -> Self {
        describe_counter!("gapless_rejected_total", "Publishes refused, by reason.");
        describe_counter!("gapless_gaps_total", "Gap notices, by reason.");
        for (_, reason) in GapReason::ALL {
            counter!("gapless_gaps_total", "reason" => reason.name()).absolute(0);
        }
        let ack_seconds = "gapless_ack_seconds";
        describe_histogram!(ack_seconds, "From publish to ack; one publish in 16 is timed.");
        let delivery_seconds = "gapless_delivery_seconds";
        describe_histogram!(
            delivery_seconds,
            "From publish until a live subscriber, or a member for its first attempt, got it; one \
             delivery in 16 of each is timed."
        );
        Self {
            published_messages: total("gapless_published_messages_total", "Messages accepted."),
            published_bytes: total("gapless_published_bytes_total", "Bytes of messages accepted."),
            duplicates: total(
                "gapless_duplicates_total",
                "Publishes answered with the seq of an earlier one.",
            ),
            delivered_batches: total(
                "gapless_delivered_batches_total",
                "Batches delivered to subscribers.",
            ),
            delivered_bytes: total(
                "gapless_delivered_bytes_total",
                "Bytes delivered to subscribers.",
            ),
            recoveries_started: total(
                "gapless_recoveries_started_total",
                "Times that a subscriber began to read history.",
            ),
            recoveries_done: total(
                "gapless_recoveries_done_total",
                "Times that a subscriber became live again.",
            ),
            recovered_bytes: total("gapless_recovered_bytes_total", "Bytes read from history."),
            subscriptions: level("gapless_subscriptions", "Subscriptions of clients."),
            recovering: level(
                "gapless_subscriptions_recovering",
                "Subscriptions that read history now.",
            ),
            topics: level("gapless_topics", "Topics, without the server's own ($...)."),
            delayed: level("gapless_delayed_messages", "Messages that appear at a later time."),
            ack_seconds: histogram!(ack_seconds),
            delivery_subscriber_seconds: histogram!(delivery_seconds, "to" => "subscriber"),
            delivery_group_seconds: histogram!(delivery_seconds, "to" => "group"),
            journal_bytes: total(
                "gapless_journal_written_bytes_total",
                "Bytes of frames written to the journal.",
            ),
            journal_frames: total(
                "gapless_journal_written_frames_total",
                "Frames written to the journal.",
            ),
            journal_flushes: total(
                "gapless_journal_flushes_total",
                "Flushes (fsync) that publishers waited for.",
            ),
            volatile_bytes: level("gapless_volatile_bytes", "Bytes that volatile topics keep."),
            cell_bytes: level("gapless_cell_bytes", "Bytes of named cells."),
            recovery_bytes: level(
                "gapless_recovery_bytes",
                "Bytes of history in memory that are not delivered yet.",
            ),
            tail_bytes: level(
                "gapless_journal_tail_bytes",
                "Bytes of the newest entries in memory.",
            ),
            waiting_bytes: level(
                "gapless_journal_waiting_bytes",
                "Bytes that are not written yet.",
            ),
            segments: level("gapless_journal_segments", "Segments."),
            segment_bytes: level("gapless_journal_segment_bytes", "Bytes of all segments."),
            recovery_waiting: level(
                "gapless_recovery_requests_waiting",
                "Reads of history that wait for a thread.",
            ),
            full: level("gapless_disk_full", "1 while the disk is full, else 0."),
            time_steps_back: level(
                "gapless_clock_steps_back",
                "Times that the time stepped back by more than a minute.",
            ),
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

    pub(crate) fn journal(&self, stats: &JournalStats) {
        self.journal_bytes.absolute(stats.bytes);
        self.journal_frames.absolute(stats.frames);
        self.journal_flushes.absolute(stats.flushes);
        self.tail_bytes.set(stats.tail_bytes as f64);
        self.waiting_bytes.set(stats.waiting_bytes as f64);
        self.segments.set(stats.segments as f64);
        self.segment_bytes.set(stats.segment_bytes as f64);
        self.recovery_waiting.set(stats.recovery_waiting as f64);
        self.full.set(f64::from(u8::from(stats.full)));
        self.time_steps_back.set(stats.time_steps_back as f64);
    }
}
