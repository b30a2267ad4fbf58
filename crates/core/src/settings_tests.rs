//! Tests of the rules in `settings.rs`.

use alloc::string::ToString;
use alloc::vec;

use proptest::prelude::*;

use super::*;

fn bytes(settings: &TopicSettings) -> Vec<u8> {
    let mut out = Vec::new();
    settings.encode(&mut out);
    out
}

fn millis() -> impl Strategy<Value = Duration> {
    (1..=u64::MAX).prop_map(Duration::from_millis)
}

fn anything() -> impl Strategy<Value = TopicSettings> {
    let kept = (
        proptest::option::of(millis()),
        proptest::option::of(1..=u64::MAX),
        proptest::option::of(1..=u64::MAX),
        proptest::option::of(millis()),
    );
    let rest = (
        (any::<bool>(), 0_u8..4, 0_u8..3, 0_u8..3),
        (any::<u64>(), 0..=DEDUP_COUNT_MAX),
        proptest::option::of(any::<bool>()),
        proptest::option::of(1..=u32::MAX),
    );
    (kept, rest).prop_map(|((age, bytes, count, grace), (codes, dedup, require, max))| {
        let (durable, durability, delivery, partition) = codes;
        TopicSettings {
            storage: if durable { Storage::Durable } else { Storage::Volatile },
            durability: Durability::from_code(if durable { durability } else { durability.min(1) }),
            retention: Retention { age, bytes, count },
            compaction: grace.map(|tombstone_grace| Compaction { tombstone_grace }),
            dedup: DedupWindow { time: Duration::from_millis(dedup.0), count: dedup.1 },
            delivery: DeliveryPolicy::from_code(delivery),
            partition: PartitionBehavior::from_code(partition),
            require_subscribers: require,
            max_message_bytes: max,
        }
    })
}

proptest! {
    #[test]
    fn settings_survive_their_bytes(settings in anything()) {
        prop_assert_eq!(TopicSettings::decode(&bytes(&settings)), Ok(settings));
    }

    #[test]
    fn a_cut_inside_a_setting_is_noticed(settings in anything(), cut in 0_usize..80) {
        let whole = bytes(&settings);
        prop_assume!(cut < whole.len());
        let mut boundary = 1;
        while boundary < cut {
            boundary += 2 + usize::from(whole[boundary + 1]);
        }
        // Between two settings a cut cannot be seen here; the entry's checksum sees it.
        if boundary != cut {
            prop_assert_eq!(TopicSettings::decode(&whole[..cut]), Err(SettingsError::Truncated));
        }
    }

    #[test]
    fn bytes_of_any_kind_never_panic(noise in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = TopicSettings::decode(&noise);
    }
}

#[test]
fn the_bytes_of_the_default_are_fixed_for_ever() {
    let expected = [
        vec![1, 1, 1, 1, 7, 8],
        120_000_u64.to_le_bytes().to_vec(),
        vec![8, 4],
        100_000_u32.to_le_bytes().to_vec(),
    ];
    assert_eq!(bytes(&TopicSettings::default()), expected.concat());
}

#[test]
fn an_unknown_tag_is_named() {
    let mut out = bytes(&TopicSettings::default());
    out.extend_from_slice(&[99, 1, 0]);
    let error = TopicSettings::decode(&out).unwrap_err();
    assert_eq!(error, SettingsError::UnknownTag { tag: 99 });
    assert_eq!(error.to_string(), "setting with tag 99 is not known: use a newer program");
    assert_eq!(TopicSettings::decode(&[1, 0, 0]), Err(SettingsError::UnknownTag { tag: 0 }));
}

#[test]
fn a_setting_told_twice_is_damage() {
    assert_eq!(
        TopicSettings::decode(&[1, 1, 1, 1, 1, 1, 2]),
        Err(SettingsError::BadValue { tag: 1 })
    );
}

#[test]
fn another_format_is_refused_by_number() {
    assert_eq!(TopicSettings::decode(&[9]), Err(SettingsError::Version { version: 9 }));
    assert_eq!(TopicSettings::decode(&[]), Err(SettingsError::Truncated));
}

#[test]
fn c3_settings_that_keep_nothing_are_refused() {
    let mut settings = TopicSettings::default();
    assert_eq!(settings.validate(), Ok(()));
    settings.retention.count = Some(0);
    assert_eq!(settings.validate(), Err(SettingsError::Zero { setting: "retention count" }));
}

#[test]
fn a_volatile_topic_promises_memory_only() {
    let mut settings = TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() };
    assert_eq!(settings.validate(), Ok(()));
    assert_eq!(settings.defaults().durability, Some(Durability::Memory));
    settings.durability = Some(Durability::Flushed);
    assert_eq!(
        settings.validate(),
        Err(SettingsError::Volatile { durability: Durability::Flushed })
    );
}
