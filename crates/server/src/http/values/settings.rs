//! Settings of a topic as JSON, and changes to them.
//!
//! A change names what shall be different; what it does not name stays. `null` gives a setting
//! back to the default.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use gapless_core::{
    Compaction, DedupWindow, DeliveryPolicy, Durability, PartitionBehavior, Retention, Storage,
    TopicSettings,
};
use gapless_protocol::ErrorCode;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::http::values::problem::Problem;

/// What a request wants to be different.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Changes {
    storage: Option<String>,
    #[serde(deserialize_with = "named")]
    durability: Named<String>,
    #[serde(deserialize_with = "named")]
    retention: Named<Object<RetentionChanges>>,
    #[serde(deserialize_with = "named")]
    compaction: Named<CompactionChanges>,
    #[serde(deserialize_with = "named")]
    dedup: Named<Object<DedupChanges>>,
    #[serde(deserialize_with = "named")]
    delivery: Named<String>,
    #[serde(deserialize_with = "named")]
    partition: Named<String>,
    #[serde(deserialize_with = "named")]
    require_subscribers: Named<bool>,
    #[serde(deserialize_with = "named")]
    max_message_bytes: Named<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RetentionChanges {
    #[serde(deserialize_with = "named")]
    age_ms: Named<u64>,
    #[serde(deserialize_with = "named")]
    bytes: Named<u64>,
    #[serde(deserialize_with = "named")]
    count: Named<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "compaction is true, false, or {\"tombstone_grace_ms\": a time in milliseconds}"
)]
enum CompactionChanges {
    Switch(bool),
    #[serde(rename_all = "snake_case")]
    Grace {
        tombstone_grace_ms: u64,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DedupChanges {
    time_ms: Option<u64>,
    count: Option<u32>,
}

/// Not named; or named with nothing, or with something.
pub(crate) type Named<T> = Option<Option<T>>;

pub(crate) fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Named<T>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// A JSON object. serde would also accept an array with the members in their order; that is
/// refused.
#[derive(Debug, Default)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        from.deserialize_map(Members(PhantomData))
    }
}

impl Changes {
    /// The settings with these changes.
    pub(crate) fn apply(self, mut settings: TopicSettings) -> Result<TopicSettings, Problem> {
        if let Some(storage) = self.storage {
            settings.storage = word("storage", &storage, Storage::from_name)?;
        }
        if let Some(durability) = self.durability {
            settings.durability = words("durability", durability, Durability::from_name)?;
        }
        match self.retention {
            None => {}
            Some(None) => settings.retention = Retention::default(),
            Some(Some(Object(changes))) => {
                let retention = &mut settings.retention;
                if let Some(age) = changes.age_ms {
                    retention.age = age.map(Duration::from_millis);
                }
                retention.bytes = changes.bytes.unwrap_or(retention.bytes);
                retention.count = changes.count.unwrap_or(retention.count);
            }
        }
        match self.compaction {
            None => {}
            Some(None | Some(CompactionChanges::Switch(false))) => settings.compaction = None,
            Some(Some(CompactionChanges::Switch(true))) => {
                settings.compaction.get_or_insert_default();
            }
            Some(Some(CompactionChanges::Grace { tombstone_grace_ms })) => {
                let tombstone_grace = Duration::from_millis(tombstone_grace_ms);
                settings.compaction = Some(Compaction { tombstone_grace });
            }
        }
        match self.dedup {
            None => {}
            Some(None) => settings.dedup = DedupWindow::default(),
            Some(Some(Object(changes))) => {
                let dedup = &mut settings.dedup;
                dedup.time = changes.time_ms.map_or(dedup.time, Duration::from_millis);
                dedup.count = changes.count.unwrap_or(dedup.count);
            }
        }
        if let Some(delivery) = self.delivery {
            settings.delivery = words("delivery", delivery, DeliveryPolicy::from_name)?;
        }
        if let Some(partition) = self.partition {
            settings.partition = words("partition", partition, PartitionBehavior::from_name)?;
        }
        settings.require_subscribers =
            self.require_subscribers.unwrap_or(settings.require_subscribers);
        settings.max_message_bytes = self.max_message_bytes.unwrap_or(settings.max_message_bytes);
        Ok(settings)
    }
}

pub(crate) fn word<T>(
    setting: &str,
    text: &str,
    read: fn(&str) -> Option<T>,
) -> Result<T, Problem> {
    read(text).ok_or_else(|| {
        let detail = format_args!("{setting} cannot be {text:?}; see /openapi.json for the words");
        Problem::new(ErrorCode::BadSettings, detail)
    })
}

fn words<T>(
    setting: &str,
    text: Option<String>,
    read: fn(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    text.map(|text| word(setting, &text, read)).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json::topic_settings;

    fn changed(settings: TopicSettings, changes: Value) -> TopicSettings {
        serde_json::from_value::<Changes>(changes).unwrap().apply(settings).unwrap()
    }

    #[test]
    fn what_is_shown_can_be_set_again() {
        let settings = TopicSettings {
            storage: Storage::Volatile,
            durability: Some(Durability::Memory),
            retention: Retention {
                age: Some(Duration::from_secs(1)),
                bytes: Some(2),
                count: Some(3),
            },
            compaction: Some(Compaction { tombstone_grace: Duration::from_millis(4) }),
            dedup: DedupWindow { time: Duration::from_millis(5), count: 6 },
            delivery: Some(DeliveryPolicy::AtMostOnce),
            partition: Some(PartitionBehavior::Drop),
            require_subscribers: Some(true),
            max_message_bytes: Some(7),
        };
        for each in [settings, TopicSettings::default()] {
            assert_eq!(changed(TopicSettings::default(), topic_settings(&each)), each);
        }
    }

    #[test]
    fn what_is_not_named_stays_and_null_gives_it_back() {
        let aged = changed(TopicSettings::default(), json!({ "retention": { "age_ms": 9 } }));
        let both = changed(aged, json!({ "retention": { "count": 5 }, "compaction": true }));
        assert_eq!(both.retention.age, Some(Duration::from_millis(9)));
        assert_eq!(both.retention.count, Some(5));
        assert_eq!(both.compaction, Some(Compaction::default()));
        let back = changed(both, json!({ "retention": null, "compaction": null }));
        assert_eq!(back, TopicSettings::default());
    }

    #[test]
    fn unknown_words_are_refused() {
        assert!(serde_json::from_value::<Changes>(json!({ "retentoin": {} })).is_err());
        let wrong: Changes = serde_json::from_value(json!({ "durability": "rock" })).unwrap();
        assert!(wrong.apply(TopicSettings::default()).is_err());
    }
}
