//! What a publish asks for, what a topic prefers, and what holds when neither says.
//!
//! The order is publish, then topic, then system (A5). Resolving reads all three and
//! changes none of them, so that one publish never alters the next.
//!
//! What a topic is (its storage, retention and so on) is in `settings.rs`.

use bytes::Bytes;

use crate::id::Seq;

/// How safe a message is. Ordered: a greater one includes the smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In memory: lost when the process ends.
    Memory,
    /// Handed to the system: survives `kill -9`, not a power loss.
    Written,
    /// Flushed to the medium: survives power loss.
    Flushed,
}

/// How hard delivery is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryPolicy {
    /// Sent once; a lost delivery is not repeated.
    AtMostOnce,
    /// Repeated until it is known to have arrived.
    AtLeastOnce,
}

/// What happens to messages for nodes that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartitionBehavior {
    /// Kept, up to a bound, and sent when the node is back.
    DelayQueue,
    /// Rejected with `PartitionDrop`.
    Drop,
}

macro_rules! coded {
    ($type:ident, $($code:literal $variant:ident $name:literal),+) => {
        impl $type {
            /// The number that stands for it on the wire and on disk; never reused.
            pub fn code(self) -> u8 {
                match self { $(Self::$variant => $code),+ }
            }

            /// The value behind a number; none if a newer program invented it.
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// The word users see and write, the same in every API.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value behind a word.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use coded;

coded!(Durability, 1 Memory "memory", 2 Written "written", 3 Flushed "flushed");
coded!(DeliveryPolicy, 1 AtMostOnce "at-most-once", 2 AtLeastOnce "at-least-once");
coded!(PartitionBehavior, 1 DelayQueue "delay-queue", 2 Drop "drop");

/// What a publish expects to be true; if it no longer is, nothing is written. Zero means
/// that there must be no message yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expect {
    /// The topic's last seq is this one.
    TopicLast(Seq),
    /// The last seq of the message's key is this one.
    KeyLast(Seq),
}

/// What a cell must be for a step to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpectCell {
    /// Any value, or none.
    #[default]
    Anything,
    /// It must not be there.
    Absent,
    /// It must have this value.
    Value(Bytes),
}

impl ExpectCell {
    /// Whether a cell of this value, or its absence, is what is expected.
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        match self {
            Self::Anything => true,
            Self::Absent => value.is_none(),
            Self::Value(expected) => value == Some(&expected[..]),
        }
    }
}

/// What one publish asks for; a `None` is left to the topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PublishOptions {
    /// How safe the message must be before the ack.
    pub durability: Option<Durability>,
    /// How hard delivery is tried.
    pub delivery: Option<DeliveryPolicy>,
    /// What happens to messages for unreachable nodes.
    pub partition: Option<PartitionBehavior>,
    /// Whether a topic without subscribers is a reason to reject (`NoSubscribers`).
    pub require_subscribers: Option<bool>,
    /// What must be true for the publish to be accepted. It concerns this publish alone,
    /// so there is no default for it.
    pub expect: Option<Expect>,
    /// Whether the publisher wants to learn which subscribers took it; of volatile subjects and
    /// topics only.
    pub report: bool,
}

impl PublishOptions {
    /// Whether it asks only for what a single server can carry out: the others are about nodes,
    /// and are refused rather than ignored.
    pub fn is_in_force(&self) -> bool {
        self.delivery.is_none() && self.partition.is_none()
    }
}

/// What a topic prefers; a `None` is left to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TopicDefaults {
    /// How safe messages must be before their ack.
    pub durability: Option<Durability>,
    /// How hard delivery is tried.
    pub delivery: Option<DeliveryPolicy>,
    /// What happens to messages for unreachable nodes.
    pub partition: Option<PartitionBehavior>,
    /// Whether a topic without subscribers is a reason to reject (`NoSubscribers`).
    pub require_subscribers: Option<bool>,
}

/// What holds when neither the publish nor the topic says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SystemDefaults {
    /// How safe messages must be before their ack.
    pub durability: Durability,
    /// How hard delivery is tried.
    pub delivery: DeliveryPolicy,
    /// What happens to messages for unreachable nodes.
    pub partition: PartitionBehavior,
    /// Whether a topic without subscribers is a reason to reject (`NoSubscribers`).
    pub require_subscribers: bool,
}

impl Default for SystemDefaults {
    /// The safest of each. Messages wait for subscribers (C8), so their absence is not a reason to
    /// reject.
    fn default() -> Self {
        Self {
            durability: Durability::Flushed,
            delivery: DeliveryPolicy::AtLeastOnce,
            partition: PartitionBehavior::DelayQueue,
            require_subscribers: false,
        }
    }
}

/// What holds for one publish, with nothing left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resolved {
    /// How safe the message must be before the ack.
    pub durability: Durability,
    /// How hard delivery is tried.
    pub delivery: DeliveryPolicy,
    /// What happens to messages for unreachable nodes.
    pub partition: PartitionBehavior,
    /// Whether a topic without subscribers is a reason to reject.
    pub require_subscribers: bool,
    /// What must be true for the publish to be accepted.
    pub expect: Option<Expect>,
}

/// Decides what holds for one publish: its own option, then the topic's, then the system's.
///
/// A volatile topic never reaches more than [`Durability::Memory`];
/// the ack names what was reached.
pub fn resolve(
    publish: &PublishOptions,
    topic: &TopicDefaults,
    system: &SystemDefaults,
) -> Resolved {
    Resolved {
        durability: publish.durability.or(topic.durability).unwrap_or(system.durability),
        delivery: publish.delivery.or(topic.delivery).unwrap_or(system.delivery),
        partition: publish.partition.or(topic.partition).unwrap_or(system.partition),
        require_subscribers: publish
            .require_subscribers
            .or(topic.require_subscribers)
            .unwrap_or(system.require_subscribers),
        expect: publish.expect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_the_system_default_is_at_least_once_with_a_delay_queue() {
        let system = SystemDefaults::default();
        let resolved = resolve(&PublishOptions::default(), &TopicDefaults::default(), &system);
        assert_eq!(resolved.delivery, DeliveryPolicy::AtLeastOnce);
        assert_eq!(resolved.partition, PartitionBehavior::DelayQueue);
        assert_eq!(resolved.durability, Durability::Flushed);
    }

    #[test]
    fn a5_publish_overrides_topic_overrides_system() {
        let system = SystemDefaults::default();
        let topic = TopicDefaults {
            durability: Some(Durability::Written),
            delivery: Some(DeliveryPolicy::AtMostOnce),
            partition: Some(PartitionBehavior::Drop),
            require_subscribers: Some(true),
        };
        let quiet = PublishOptions::default();
        let loud = PublishOptions {
            durability: Some(Durability::Memory),
            delivery: Some(DeliveryPolicy::AtLeastOnce),
            partition: Some(PartitionBehavior::DelayQueue),
            require_subscribers: Some(false),
            expect: Some(Expect::TopicLast(Seq(3))),
            report: true,
        };
        let before = resolve(&quiet, &topic, &system);
        assert_eq!(before.durability, Durability::Written);
        assert_eq!(before.delivery, DeliveryPolicy::AtMostOnce);
        assert_eq!(before.partition, PartitionBehavior::Drop);
        assert!(before.require_subscribers);

        let over = resolve(&loud, &topic, &system);
        assert_eq!(over.durability, Durability::Memory);
        assert_eq!(over.delivery, DeliveryPolicy::AtLeastOnce);
        assert_eq!(over.partition, PartitionBehavior::DelayQueue);
        assert!(!over.require_subscribers);
        assert_eq!(over.expect, loud.expect);

        // Overriding left the topic's own default alone.
        assert_eq!(resolve(&quiet, &topic, &system), before);
    }

    #[test]
    fn a_stronger_durability_is_greater() {
        assert!(Durability::Memory < Durability::Written);
        assert!(Durability::Written < Durability::Flushed);
    }

    #[test]
    fn words_and_numbers_go_there_and_back() {
        for value in [Durability::Memory, Durability::Written, Durability::Flushed] {
            assert_eq!(Durability::from_code(value.code()), Some(value));
            assert_eq!(Durability::from_name(value.name()), Some(value));
        }
        assert_eq!(Durability::from_code(0), None);
        assert_eq!(Durability::from_name("Flushed"), None);
    }
}
