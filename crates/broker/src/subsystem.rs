//! Topics of a part of the process, such as jobs: durable topics below a reserved prefix.
//!
//! Names that begin with `$` are the system's: publishers cannot write to them, and admin calls
//! cannot create or remove them. A subsystem may, below its own prefix, and nowhere else. What
//! it writes is an append like any other, so its state and users' messages can change together.

use gapless_core::{PublishOptions, RejectReason, TopicName, TopicSettings};
use serde_json::Value;

use crate::broker::Broker;
use crate::error::TopicError;
use crate::publish::{Atomic, Publishing};

/// The handle of one part of the process to its own topics. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Subsystem {
    broker: Broker,
    prefix: TopicName,
}

impl Broker {
    /// The handle to the topics below a prefix, such as `$jobs`.
    ///
    /// # Panics
    /// When the prefix is not a name of the system: such topics need no handle.
    pub fn subsystem(&self, prefix: &str) -> Subsystem {
        let prefix = TopicName::parse(prefix).expect("a prefix is a name");
        assert!(prefix.is_system(), "a prefix begins with a dollar sign");
        Subsystem { broker: self.clone(), prefix }
    }
}

impl Subsystem {
    /// The broker.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The full name of a topic of this subsystem.
    ///
    /// # Panics
    /// When the two do not make a name.
    pub fn topic(&self, name: &str) -> TopicName {
        TopicName::parse(&format!("{}.{name}", self.prefix)).expect("a topic of a subsystem")
    }

    /// Creates a topic, or gives it these settings. Blocks until that is flushed.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn ensure_topic(
        &self,
        topic: &TopicName,
        settings: TopicSettings,
    ) -> Result<(), TopicError> {
        if !self.owns(topic) {
            return Err(TopicError::System(topic.clone()));
        }
        match self.broker.inner.create_topic(topic, settings) {
            Ok(_) => Ok(()),
            Err(TopicError::Exists(_)) => self.broker.inner.configure(topic, settings),
            Err(error) => Err(error),
        }
    }

    /// As [`Broker::commit`]; topics of this subsystem may be among those written.
    pub fn commit(&self, mut atomic: Atomic, options: &PublishOptions) -> Publishing {
        let mut topics = atomic.parts.iter().map(|part| &part.topic);
        if let Some(other) = topics.find(|topic| topic.is_system() && !self.owns(topic)) {
            return self.broker.inner.reject(other, RejectReason::InvalidTopic);
        }
        atomic.system = true;
        self.broker.inner.commit_atomic(atomic, options)
    }

    /// Publishes an event on `$events`, if it has subscribers. `kind` is the rest of the
    /// subject, such as `job.ended`.
    pub fn say(&self, kind: &'static str, fields: &[(&str, Value)]) {
        self.broker.inner.emit(kind, fields);
    }

    fn owns(&self, topic: &TopicName) -> bool {
        let below = topic.as_str().strip_prefix(self.prefix.as_str());
        below.is_some_and(|rest| rest.starts_with('.'))
    }
}
