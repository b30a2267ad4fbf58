//! Who did what from where: an event for those that follow, and a message that stays, if that is set.
//!
//! What stays is in `$audit.log`, a topic of the system: no client can write to it or remove it. It
//! keeps a number of bytes, the oldest go first. An entry that the journal refuses is missing there,
//! and the log says so: what is audited does not wait for it.

use gapless_broker::{Atomic, Broker, Subsystem, TopicError};
use gapless_core::{Durability, Message, PublishOptions, Retention, TopicName, TopicSettings};
use serde_json::{Map, Value};

/// What the topics of the audit begin with.
const PREFIX: &str = "$audit";

/// Where entries go.
pub(crate) struct Audit {
    broker: Broker,
    kept: Option<(Subsystem, TopicName)>,
}

impl Audit {
    /// Creates the topic if entries are kept, or gives it its size. May block.
    pub(crate) fn open(broker: &Broker, keep_bytes: Option<u64>) -> Result<Self, TopicError> {
        let broker = broker.clone();
        let Some(bytes) = keep_bytes else { return Ok(Self { broker, kept: None }) };
        let own = broker.subsystem(PREFIX);
        let topic = own.topic("log");
        let retention = Retention { bytes: Some(bytes), ..Retention::default() };
        own.ensure_topic(&topic, TopicSettings { retention, ..TopicSettings::default() })?;
        Ok(Self { broker, kept: Some((own, topic)) })
    }

    /// An entry. Never waits for the disk.
    pub(crate) fn say(&self, kind: &'static str, fields: &[(&str, Value)]) {
        log(kind, fields);
        self.broker.emit_event(kind, fields);
        let Some((own, topic)) = &self.kept else { return };
        let mut body: Map<String, Value> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        body.insert("event".to_owned(), kind.into());
        body.insert("time_ms".to_owned(), self.broker.now().0.into());
        let message = Message::new(Value::Object(body).to_string());
        let options =
            PublishOptions { durability: Some(Durability::Written), ..PublishOptions::default() };
        let kept = own.commit(Atomic::new().publish(topic, &[message]), &options);
        if !kept.is_accepted() {
            tracing::warn!(kind, "an entry of the audit could not be kept");
        }
    }
}

/// A line of the log. What is refused stands out; what is allowed is said when it is asked for, by
/// [`Caller::acts`](crate::Caller::acts).
fn log(kind: &str, fields: &[(&str, Value)]) {
    let of = |name: &str| {
        let found = fields.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let (who, from) = (of("who"), of("from"));
    let (right, on) = (of("right"), of("on"));
    match kind {
        "audit.refused" => tracing::warn!(target: "audit", from, why = of("why"), "login refused"),
        "audit.denied" => tracing::warn!(target: "audit", who, from, right, on, "denied"),
        "audit.changed" => {
            let (what, name) = (of("what"), of("name"));
            tracing::info!(target: "audit", who, from, what, name, "identities changed");
        }
        _ => tracing::debug!(target: "audit", who, from, right, on, "allowed"),
    }
}
