//! Numbers about the broker (A11, D9), as a recorder sees them.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::*;
use gapless_broker::From;
use gapless_core::{Message, PublishOptions, Seq, TopicSettings};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// Everything by name and labels, counted from the last time that this was asked.
fn numbers(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let all = snapshotter.snapshot().into_vec().into_iter();
    let number = |value: DebugValue| match value {
        DebugValue::Counter(count) => count as f64,
        DebugValue::Gauge(value) => value.into_inner(),
        DebugValue::Histogram(values) => values.len() as f64,
    };
    all.map(|(key, _, _, value)| {
        let labels: Vec<String> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = [&[key.key().name().to_owned()], &labels[..]].concat().join(" ");
        (name, number(value))
    })
    .collect()
}

#[test]
fn a11_d9_counters_and_gauges_tell_what_happened() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut world = World::new(1);
        world.options.journal.tail_bytes = 0;
        let broker = world.open();
        let plain = PublishOptions::default();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        broker.create_topic(&name("u"), TopicSettings::default()).unwrap();
        broker.delete_topic(&name("u")).unwrap();
        texts(&broker, "t", 1..=8);
        let batch = [Message::new("9").with_id("a"), Message::new("10").with_id("a")];
        broker.publish_batch(&name("t"), &batch, &plain).wait().unwrap();
        publish(&broker, "t", &Message::new("9").with_id("a"));
        refusal(&broker, "t", &Message::default(), &plain);
        refusal(&broker, "nobody", &Message::new("x"), &plain);
        let later = Message::new("x").with_not_before(START.after(Duration::from_secs(9)));
        broker.publish(&name("t"), &later, &plain).wait().unwrap();
        broker.seal().unwrap();
        broker.purge(&name("t"), Seq(3)).unwrap();
        let mut follower = broker.subscribe(&pattern("t"), From::Seq(Seq(1))).unwrap();
        let other = broker.subscribe(&pattern("t"), From::Now).unwrap();
        while !matches!(next(&mut follower), gapless_broker::Delivery::Recovering { .. }) {}
        broker.turn();

        let seen = numbers(&snapshotter);
        let is = |name: &str, wanted: f64| {
            assert_eq!(seen.get(name).copied(), Some(wanted), "{name} in {seen:#?}");
        };
        is("gapless_published_messages_total", 10.0);
        is("gapless_rejected_total reason=InvalidPayload", 1.0);
        is("gapless_rejected_total reason=UnknownTopic", 1.0);
        is("gapless_gaps_total reason=purge", 1.0);
        is("gapless_subscriptions", 2.0);
        is("gapless_subscriptions_recovering", 1.0);
        is("gapless_recoveries_started_total", 1.0);
        is("gapless_recoveries_done_total", 0.0);
        // Besides it the broker has one of its own, for what is delayed.
        is("gapless_topics", 1.0);
        is("gapless_delayed_messages", 1.0);
        is("gapless_disk_full", 0.0);
        is("gapless_journal_segments", 1.0);
        is("gapless_duplicates_total", 2.0);
        let stats = broker.journal_stats();
        is("gapless_journal_written_bytes_total", stats.bytes as f64);
        is("gapless_journal_written_frames_total", stats.frames as f64);
        is("gapless_journal_flushes_total", stats.flushes as f64);
        is("gapless_journal_tail_bytes", stats.tail_bytes as f64);
        is("gapless_journal_segment_bytes", stats.segment_bytes as f64);
        assert!(seen["gapless_published_bytes_total"] > 0.0);
        assert!(seen["gapless_ack_seconds"] >= 1.0, "one of every few acks is timed");

        let rest = drain(&mut follower);
        assert_eq!(seqs(&rest), (3..=9).collect::<Vec<_>>());
        drop(follower);
        drop(other);
        let seen = numbers(&snapshotter);
        let is = |name: &str, wanted: f64| {
            assert_eq!(seen.get(name).copied(), Some(wanted), "{name} in {seen:#?}");
        };
        is("gapless_recoveries_done_total", 1.0);
        // Some are set, some are moved, and the recorder starts again at each snapshot.
        assert!(seen["gapless_subscriptions"] <= 0.0);
        assert!(seen["gapless_subscriptions_recovering"] <= 0.0);
        assert!(seen["gapless_delivered_batches_total"] >= 1.0);
        assert!(seen["gapless_delivered_bytes_total"] > 0.0);
        assert!(seen["gapless_recovered_bytes_total"] > 0.0);
    });
}

#[test]
fn d9_a_follower_that_leaves_while_recovering_is_not_counted_for_ever() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut world = World::new(2);
        world.options.journal.tail_bytes = 0;
        let broker = world.open();
        broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
        texts(&broker, "t", 1..=3);
        broker.seal().unwrap();
        for of in ["t", "*"] {
            let mut follower = broker.subscribe(&pattern(of), From::Beginning).unwrap();
            next(&mut follower);
            drop(follower);
        }
        let seen = numbers(&snapshotter);
        assert_eq!(seen["gapless_subscriptions_recovering"], 0.0);
        assert_eq!(seen["gapless_subscriptions"], 0.0);
    });
}
