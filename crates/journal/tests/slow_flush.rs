//! A flush that takes long is in the log, and only then.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use gapless_core::Message;
use gapless_journal::JournalOptions;
use gapless_journal::faulty::FaultyFs;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// How many warnings three flushed publishes give.
fn warnings(slow_flush: Duration) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(Arc::clone(&count)), || {
        let options = JournalOptions { slow_flush, ..JournalOptions::small() };
        let opened = try_open_with(&folder(&FaultyFs::new(1)), options, false);
        let store = opened.expect("the store opens");
        for _ in 0..3 {
            store.publish(1, Message::new("x"));
        }
    });
    count.load(Ordering::Relaxed)
}

#[test]
fn a_flush_that_takes_longer_than_it_may_is_in_the_log() {
    assert_eq!(warnings(Duration::from_nanos(1)), 3);
    assert_eq!(warnings(Duration::from_secs(3600)), 0);
    assert_eq!(warnings(Duration::ZERO), 0, "zero says nothing");
}
