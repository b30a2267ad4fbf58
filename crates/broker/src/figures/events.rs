//! The broker's own events, as messages on `$events.>`.
//!
//! Events are volatile, and an event without subscribers is not even created. The body is JSON; its
//! fields are in `docs/events.md`.

use std::time::Duration;

use gapless_core::{Message, RecordsBuilder, TopicName};
use serde_json::{Map, Value};

use crate::broker::{Broker, Inner};

impl Broker {
    /// Publishes an event of a part of the process, if it has subscribers. `kind` is the rest of
    /// the subject, such as `audit.denied`.
    pub fn emit_event(&self, kind: &'static str, fields: &[(&str, Value)]) {
        self.inner.emit(kind, fields);
    }
}

impl Inner {
    /// Publishes an event, if it has subscribers. `kind` is the rest of the subject,
    /// such as `topic.created`.
    pub(crate) fn emit(&self, kind: &'static str, fields: &[(&str, Value)]) {
        if !self.router.has_event_followers() {
            return;
        }
        let subject = format!("$events.{kind}");
        let Ok(subject) = TopicName::parse(&subject) else { return };
        if !self.router.is_wanted(&subject) {
            return;
        }
        let mut body: Map<String, Value> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        body.insert("event".to_owned(), kind.into());
        body.insert("time_ms".to_owned(), self.clock.now().0.into());
        let mut records = RecordsBuilder::default();
        let message = Message::new(Value::Object(body).to_string());
        if records.push(&message).is_ok() {
            self.route(&subject, (&records.finish(), Duration::ZERO), None);
        }
    }
}
