//! What a topic is: where it lives, how long it keeps what, and what it prefers.
//!
//! Settings are entries of the journal, so their bytes outlive the program that wrote
//! them: a version byte, then tag, length and value of each setting. A tag the program
//! does not know is an error that names it, since an older program that dropped a setting
//! silently would keep or delete what the user had decided otherwise.
//!
//! Carrying the settings out is the work of `topic.rs` and `reach.rs`, and of the broker.

use alloc::vec::Vec;
use core::time::Duration;

use crate::options::{DeliveryPolicy, Durability, PartitionBehavior, TopicDefaults, coded};
use crate::time::whole_ms;

/// The most ids a topic may remember: about 1 GiB; more is taken for a typing error.
pub const DEDUP_COUNT_MAX: u32 = 10_000_000;

const VERSION: u8 = 1;

/// Where a topic's messages live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    /// In the journal.
    #[default]
    Durable,
    /// In memory only, bounded.
    Volatile,
}

coded!(Storage, 1 Durable "durable", 2 Volatile "volatile");

/// How long messages are kept. Whichever limit is reached first counts; none keeps all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Retention {
    /// The greatest age.
    pub age: Option<Duration>,
    /// The most bytes.
    pub bytes: Option<u64>,
    /// The most messages.
    pub count: Option<u64>,
}

impl Retention {
    /// Whether `other` keeps less in some way.
    pub fn is_shortened_by(&self, other: &Self) -> bool {
        fn less<T: PartialOrd>(before: Option<T>, after: Option<T>) -> bool {
            after.is_some_and(|after| before.is_none_or(|before| after < before))
        }
        less(self.age, other.age) || less(self.bytes, other.bytes) || less(self.count, other.count)
    }
}

/// That only the latest message of each key stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Compaction {
    /// How long the removal of a key stays readable, so that readers learn of it.
    pub tombstone_grace: Duration,
}

impl Default for Compaction {
    /// A day: longer than most readers are away.
    fn default() -> Self {
        Self { tombstone_grace: Duration::from_secs(24 * 60 * 60) }
    }
}

/// For how long, and for how many, a message id is remembered. Either at zero is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DedupWindow {
    /// How long an id is remembered.
    pub time: Duration,
    /// How many ids are remembered at most.
    pub count: u32,
}

impl DedupWindow {
    /// Remembers nothing.
    pub const OFF: Self = Self { time: Duration::ZERO, count: 0 };
}

impl Default for DedupWindow {
    /// Two minutes cover a client's retries; the count bounds memory.
    fn default() -> Self {
        Self { time: Duration::from_secs(120), count: 100_000 }
    }
}

/// The settings of one topic. Durations count in whole milliseconds, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TopicSettings {
    /// Where its messages live.
    pub storage: Storage,
    /// How safe messages must be before their ack, unless the publish says otherwise.
    pub durability: Option<Durability>,
    /// How long messages are kept.
    pub retention: Retention,
    /// Whether only the latest message of each key stays.
    pub compaction: Option<Compaction>,
    /// How long message ids are remembered.
    pub dedup: DedupWindow,
    /// How hard delivery is tried, unless the publish says otherwise.
    pub delivery: Option<DeliveryPolicy>,
    /// What happens to messages for unreachable nodes, unless the publish says otherwise.
    pub partition: Option<PartitionBehavior>,
    /// Whether a publish to a topic without subscribers is rejected, unless it says otherwise.
    pub require_subscribers: Option<bool>,
    /// The most bytes of one message; the broker's own limit holds besides.
    pub max_message_bytes: Option<u32>,
}

/// Why settings were refused. Nothing is changed in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A limit of zero would keep nothing; purging does that.
    #[error("{setting} is zero: give at least one, or leave it out for no limit")]
    Zero {
        /// Which setting it is.
        setting: &'static str,
    },
    /// A volatile topic cannot promise what only a journal can.
    #[error("a volatile topic cannot be {durability}: make it durable, or ask for memory")]
    Volatile {
        /// What was asked for.
        durability: Durability,
    },
    /// More ids than a topic may remember.
    #[error("dedup count {count} is too large: ask for at most {DEDUP_COUNT_MAX}")]
    DedupCount {
        /// What was asked for.
        count: u32,
    },
    /// The setting concerns other nodes, and there are none.
    #[error("{setting} has no effect on a single server, so it cannot be set: leave it out")]
    NotInForce {
        /// Which setting it is.
        setting: &'static str,
    },
    /// The bytes were written by a program with another format.
    #[error("settings have format {version}, not {VERSION}: use the program that wrote them")]
    Version {
        /// The format found.
        version: u8,
    },
    /// The bytes hold a setting this program does not know.
    #[error("setting with tag {tag} is not known: use a newer program")]
    UnknownTag {
        /// The tag found.
        tag: u8,
    },
    /// A setting is there twice, or its value does not fit its tag.
    #[error("setting with tag {tag} is damaged: restore the settings from a backup")]
    BadValue {
        /// The tag found.
        tag: u8,
    },
    /// The bytes end in the middle of a setting.
    #[error("settings are cut short: restore them from a backup")]
    Truncated,
}

/// The tags of the encoding. A tag once used is never used for anything else.
mod tag {
    pub(super) const STORAGE: u8 = 1;
    pub(super) const DURABILITY: u8 = 2;
    pub(super) const RETENTION_AGE_MS: u8 = 3;
    pub(super) const RETENTION_BYTES: u8 = 4;
    pub(super) const RETENTION_COUNT: u8 = 5;
    pub(super) const TOMBSTONE_GRACE_MS: u8 = 6;
    pub(super) const DEDUP_TIME_MS: u8 = 7;
    pub(super) const DEDUP_COUNT: u8 = 8;
    pub(super) const DELIVERY: u8 = 9;
    pub(super) const PARTITION: u8 = 10;
    pub(super) const REQUIRE_SUBSCRIBERS: u8 = 11;
    pub(super) const MAX_MESSAGE_BYTES: u8 = 12;
}

impl TopicSettings {
    /// Whether these settings make sense together.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let zeroes = [
            ("retention age", self.retention.age.is_some_and(|age| age.is_zero())),
            ("retention bytes", self.retention.bytes == Some(0)),
            ("retention count", self.retention.count == Some(0)),
            ("max message bytes", self.max_message_bytes == Some(0)),
        ];
        if let Some((setting, _)) = zeroes.into_iter().find(|(_, zero)| *zero) {
            return Err(SettingsError::Zero { setting });
        }
        if self.dedup.count > DEDUP_COUNT_MAX {
            return Err(SettingsError::DedupCount { count: self.dedup.count });
        }
        match (self.storage, self.durability) {
            (Storage::Volatile, Some(durability)) if durability > Durability::Memory => {
                Err(SettingsError::Volatile { durability })
            }
            _ => Ok(()),
        }
    }

    /// Refuses settings that a single server cannot carry out. Topics that were created with them
    /// keep them, so `before` may have them already.
    pub fn check_in_force(&self, before: &Self) -> Result<(), SettingsError> {
        let changed = [
            ("delivery", self.delivery.is_some() && self.delivery != before.delivery),
            ("partition", self.partition.is_some() && self.partition != before.partition),
        ];
        match changed.into_iter().find(|(_, changed)| *changed) {
            Some((setting, _)) => Err(SettingsError::NotInForce { setting }),
            None => Ok(()),
        }
    }

    /// What the topic prefers where a publish says nothing. A volatile topic prefers
    /// memory, so that the system's default does not ask it for what it cannot do.
    pub fn defaults(&self) -> TopicDefaults {
        let durability = match self.storage {
            Storage::Durable => self.durability,
            Storage::Volatile => Some(Durability::Memory),
        };
        TopicDefaults {
            durability,
            delivery: self.delivery,
            partition: self.partition,
            require_subscribers: self.require_subscribers,
        }
    }

    /// Appends the bytes of these settings.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        let mut put = |tag: u8, value: &[u8]| {
            let length = u8::try_from(value.len()).expect("no setting has more than 8 bytes");
            out.extend_from_slice(&[tag, length]);
            out.extend_from_slice(value);
        };
        let ms = |duration: Duration| whole_ms(duration).to_le_bytes();
        put(tag::STORAGE, &[self.storage.code()]);
        if let Some(durability) = self.durability {
            put(tag::DURABILITY, &[durability.code()]);
        }
        if let Some(age) = self.retention.age {
            put(tag::RETENTION_AGE_MS, &ms(age));
        }
        if let Some(bytes) = self.retention.bytes {
            put(tag::RETENTION_BYTES, &bytes.to_le_bytes());
        }
        if let Some(count) = self.retention.count {
            put(tag::RETENTION_COUNT, &count.to_le_bytes());
        }
        if let Some(compaction) = self.compaction {
            put(tag::TOMBSTONE_GRACE_MS, &ms(compaction.tombstone_grace));
        }
        put(tag::DEDUP_TIME_MS, &ms(self.dedup.time));
        put(tag::DEDUP_COUNT, &self.dedup.count.to_le_bytes());
        if let Some(delivery) = self.delivery {
            put(tag::DELIVERY, &[delivery.code()]);
        }
        if let Some(partition) = self.partition {
            put(tag::PARTITION, &[partition.code()]);
        }
        if let Some(require) = self.require_subscribers {
            put(tag::REQUIRE_SUBSCRIBERS, &[u8::from(require)]);
        }
        if let Some(bytes) = self.max_message_bytes {
            put(tag::MAX_MESSAGE_BYTES, &bytes.to_le_bytes());
        }
    }

    /// Reads settings back, whole and valid, or says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, SettingsError> {
        let (&version, mut rest) = bytes.split_first().ok_or(SettingsError::Truncated)?;
        if version != VERSION {
            return Err(SettingsError::Version { version });
        }
        let mut settings = Self::default();
        let mut last = 0;
        while let Some((&tag, after)) = rest.split_first() {
            let (&length, after) = after.split_first().ok_or(SettingsError::Truncated)?;
            let (value, after) =
                after.split_at_checked(usize::from(length)).ok_or(SettingsError::Truncated)?;
            // Tags ascend, so a setting that is there twice is noticed without a set.
            if tag <= last && tag != 0 {
                return Err(SettingsError::BadValue { tag });
            }
            settings.set(tag, value)?;
            last = tag;
            rest = after;
        }
        settings.validate()?;
        Ok(settings)
    }

    fn set(&mut self, tag: u8, value: &[u8]) -> Result<(), SettingsError> {
        let bad = SettingsError::BadValue { tag };
        let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| bad);
        let int = || value.try_into().map(u32::from_le_bytes).map_err(|_| bad);
        let long = || value.try_into().map(u64::from_le_bytes).map_err(|_| bad);
        let time = || long().map(Duration::from_millis);
        match tag {
            tag::STORAGE => self.storage = Storage::from_code(byte()?).ok_or(bad)?,
            tag::DURABILITY => {
                self.durability = Some(Durability::from_code(byte()?).ok_or(bad)?);
            }
            tag::RETENTION_AGE_MS => self.retention.age = Some(time()?),
            tag::RETENTION_BYTES => self.retention.bytes = Some(long()?),
            tag::RETENTION_COUNT => self.retention.count = Some(long()?),
            tag::TOMBSTONE_GRACE_MS => {
                self.compaction = Some(Compaction { tombstone_grace: time()? });
            }
            tag::DEDUP_TIME_MS => self.dedup.time = time()?,
            tag::DEDUP_COUNT => self.dedup.count = int()?,
            tag::DELIVERY => {
                self.delivery = Some(DeliveryPolicy::from_code(byte()?).ok_or(bad)?);
            }
            tag::PARTITION => {
                self.partition = Some(PartitionBehavior::from_code(byte()?).ok_or(bad)?);
            }
            tag::REQUIRE_SUBSCRIBERS => {
                self.require_subscribers = Some(match byte()? {
                    0 => false,
                    1 => true,
                    _ => return Err(bad),
                });
            }
            tag::MAX_MESSAGE_BYTES => self.max_message_bytes = Some(int()?),
            _ => return Err(SettingsError::UnknownTag { tag }),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
