//! The broker's recent events: one subscription for all viewers.
//!
//! Of `$events` everything but accepted publishes, of which there may be a million a second, and
//! events of the server's own topics, which other events describe better. Nothing waits here: the
//! broker's mailboxes are bounded and say when they overflowed.

use std::task::{Context, Poll, Waker};

use gapless_broker::{Broker, Delivery, Subscription};
use gapless_core::Pattern;
use serde_json::{Map, Value};

use crate::http::page::ring::Ring;

/// What is listened to.
const PATTERNS: [&str; 8] = [
    "$events.group.>",
    "$events.topic.>",
    "$events.subscription.>",
    "$events.recovery.>",
    "$events.delivery.>",
    "$events.journal.>",
    "$events.delayed.>",
    "$events.publish.rejected",
];
/// Events that are kept for new viewers.
const EVENTS_MAX: usize = 200;
/// Events taken from one mailbox at a time; the others come next time.
const EVENTS_AT_ONCE: usize = 500;

/// The newest events, and the subscriptions they come by.
#[derive(Default)]
pub(crate) struct Events {
    ears: Vec<Subscription>,
    newest: Option<Ring<(u64, Value)>>,
    /// How many there were. The number of an event is its place in this count.
    pub(crate) count: u64,
}

impl Events {
    /// Begins to listen. Events are volatile, so what was before is not known.
    pub(crate) fn listen(&mut self, broker: &Broker) {
        if !self.ears.is_empty() {
            return;
        }
        let patterns = PATTERNS.iter().filter_map(|text| Pattern::parse(text).ok());
        // If no subscription can be had, the page shows no events; everything else works.
        self.ears.extend(patterns.filter_map(|each| broker.listen(&each).ok()));
    }

    pub(crate) fn stop(&mut self) {
        self.ears = Vec::new();
    }

    /// Takes what has come since the last time, without waiting.
    pub(crate) fn read(&mut self) {
        let mut came = Vec::new();
        for ear in &mut self.ears {
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..EVENTS_AT_ONCE {
                let Poll::Ready(Ok(delivery)) = ear.poll_next(&mut context) else { break };
                let Delivery::Messages(messages) = delivery else { continue };
                for each in messages.records() {
                    let body = each.record.body.unwrap_or_default();
                    if let Ok(event) = serde_json::from_slice::<Map<String, Value>>(body) {
                        came.push((each.position, event));
                    }
                }
            }
        }
        // One count gives all volatile messages their positions, so it is the order.
        came.sort_by_key(|(position, _)| *position);
        for (_, event) in came {
            let topic = event.get("topic").and_then(Value::as_str);
            if topic.is_some_and(|name| name.starts_with('$')) {
                continue;
            }
            self.count += 1;
            let newest = self.newest.get_or_insert_with(|| Ring::new(EVENTS_MAX));
            newest.push((self.count, Value::Object(event)));
        }
    }

    /// The newest events after this number, oldest first.
    pub(crate) fn after(&self, number: u64) -> impl Iterator<Item = &(u64, Value)> {
        let newest = self.newest.iter().flat_map(Ring::iter);
        newest.filter(move |(each, _)| *each > number)
    }
}
