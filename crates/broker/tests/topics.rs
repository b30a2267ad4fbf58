//! Making, changing, listing, trimming and deleting topics (C1, C3), and all of it again
//! after a restart.

mod common;

use std::time::Duration;

use common::*;
use gapless_broker::{
    Atomic, Broker, Delivery, FollowError, From, SubscribeError, TopicError, block_on,
};
use gapless_core::{
    DedupWindow, DeliveryPolicy, Durability, GapReason, Message, PartitionBehavior, PublishAck,
    PublishOptions, RejectReason, Retention, Seq, SettingsError, Storage, TopicSettings,
};

fn kept_for(count: u64) -> TopicSettings {
    let retention = Retention { count: Some(count), ..Retention::default() };
    TopicSettings { retention, ..TopicSettings::default() }
}

fn names(broker: &Broker, of: &str) -> Vec<String> {
    let found = broker.list_topics(&pattern(of));
    found.iter().map(|topic| topic.name.as_str().to_owned()).collect()
}

#[test]
fn c1_a_topic_made_twice_with_equal_settings_is_one_topic() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::open(on_disk(folder.path())).unwrap();
    let first = broker.create_topic(&name("a.b"), kept_for(5)).unwrap();
    let again = broker.create_topic(&name("a.b"), kept_for(5)).unwrap();
    assert_eq!(first, again);
    let other = broker.create_topic(&name("a.b"), kept_for(6));
    assert!(matches!(other, Err(TopicError::Exists(_))), "{other:?}");
    assert_eq!(broker.describe_topic(&name("a.b")).unwrap().settings, kept_for(5));
    broker.close().unwrap();
}

#[test]
fn c1_topics_made_at_the_same_time_share_a_flush() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::open(on_disk(folder.path())).unwrap();
    let names: Vec<_> = (0..32).map(|number| name(&format!("orders.{number}"))).collect();
    let flushes = broker.journal_stats().flushes;
    let making: Vec<_> = names
        .iter()
        .map(|name| broker.creating_topic(name, TopicSettings::default()).unwrap())
        .collect();
    for (making, name) in making.into_iter().zip(&names) {
        assert_eq!(block_on(making).unwrap().name, *name);
    }
    let flushes = broker.journal_stats().flushes - flushes;
    assert!(flushes < 8, "{flushes} flushes for {} topics", names.len());
    broker.close().unwrap();
    let broker = Broker::open(on_disk(folder.path())).unwrap();
    assert!(names.iter().all(|name| broker.topic_place(name).is_ok()));
}

#[test]
fn c3_settings_are_in_force_at_once_and_after_every_kind_of_end() {
    let world = World::new(1);
    let mut broker = world.open();
    let settings = TopicSettings {
        durability: Some(Durability::Written),
        dedup: DedupWindow { time: Duration::from_secs(7), count: 3 },
        max_message_bytes: Some(99),
        require_subscribers: Some(false),
        ..kept_for(4)
    };
    let made = broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let changed = broker.configure_topic(&name("t"), settings).unwrap();
    assert_eq!((changed.settings, changed.id), (settings, made.id));
    for round in 0..4 {
        let again = broker.describe_topic(&name("t")).unwrap();
        assert_eq!((again.settings, again.id), (settings, made.id), "round {round}");
        broker = match round {
            0 => world.close(broker),
            1 => world.crash(broker, gapless_journal::faulty::CrashKind::Power),
            2 => {
                broker.seal().unwrap();
                world.crash(broker, gapless_journal::faulty::CrashKind::Process)
            }
            _ => broker,
        };
    }
}

#[test]
fn f3_settings_that_make_no_sense_change_nothing() {
    let world = World::new(2);
    let broker = world.open();
    broker.create_topic(&name("t"), kept_for(4)).unwrap();
    let zero = broker.configure_topic(&name("t"), kept_for(0));
    assert!(matches!(zero, Err(TopicError::Settings(SettingsError::Zero { .. }))), "{zero:?}");
    let moved = broker.configure_topic(&name("t"), volatile());
    assert!(matches!(moved, Err(TopicError::Storage(_))), "{moved:?}");
    assert_eq!(broker.describe_topic(&name("t")).unwrap().settings, kept_for(4));
    broker.create_topic(&name("v"), volatile()).unwrap();
    let moved = broker.configure_topic(&name("v"), TopicSettings::default());
    assert!(matches!(moved, Err(TopicError::Storage(_))), "{moved:?}");
    let flushed = TopicSettings { durability: Some(Durability::Flushed), ..volatile() };
    let refused = broker.create_topic(&name("w"), flushed);
    assert!(matches!(refused, Err(TopicError::Settings(SettingsError::Volatile { .. }))));
    let unknown = broker.configure_topic(&name("w"), volatile());
    assert!(matches!(unknown, Err(TopicError::Unknown(_))), "{unknown:?}");
}

#[test]
fn f3_names_of_the_system_are_refused_in_every_verb() {
    let world = World::new(3);
    let broker = world.open();
    // A delayed message makes the broker's own topic, so that there is one to attack.
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let later = Message::new("later").with_not_before(START.after(Duration::from_secs(9)));
    broker.publish(&name("t"), &later, &PublishOptions::default()).wait().unwrap();
    for own in ["$delayed", "$mine"] {
        let own = name(own);
        let created = broker.create_topic(&own, TopicSettings::default()).map(drop);
        let many = broker.create_topics(std::slice::from_ref(&own), TopicSettings::default());
        let configured = broker.configure_topic(&own, kept_for(1)).map(drop);
        let purged = broker.purge(&own, Seq(2)).map(drop);
        let deleted = broker.delete_topic(&own);
        for refused in [created, many, configured, purged, deleted] {
            assert!(matches!(refused, Err(TopicError::System(_))), "{own}: {refused:?}");
        }
    }
    assert_eq!(broker.delayed_len(), 1);
}

#[test]
fn c3_topics_are_listed_by_pattern_and_name() {
    let world = World::new(4);
    let mut broker = world.open();
    let all = ["b.x", "a.x", "a.y", "a.x.deep"].map(name);
    broker.create_topics(&all, TopicSettings::default()).unwrap();
    // Those that are there already are fine.
    broker.create_topics(&all, TopicSettings::default()).unwrap();
    broker.create_topic(&name("a.volatile"), volatile()).unwrap();
    for _ in 0..2 {
        assert_eq!(names(&broker, "a.x"), ["a.x"]);
        assert_eq!(names(&broker, "*.x"), ["a.x", "b.x"]);
        assert_eq!(names(&broker, "a.x.>"), ["a.x.deep"]);
        assert_eq!(names(&broker, "nothing.>"), [""; 0]);
        broker = world.close(broker);
    }
    // Of volatile ones only the messages are gone with the process.
    assert_eq!(names(&broker, ">"), ["a.volatile", "a.x", "a.x.deep", "a.y", "b.x"]);
}

#[test]
fn f3_there_are_no_more_topics_and_subscriptions_than_the_limits_say() {
    let mut world = World::new(5);
    world.options.limits.topics_max = 2;
    world.options.limits.subscriptions_max = 1;
    let broker = world.open();
    for topic in ["a", "b"] {
        broker.create_topic(&name(topic), TopicSettings::default()).unwrap();
    }
    let third = broker.create_topic(&name("c"), TopicSettings::default());
    assert!(matches!(third, Err(TopicError::TooMany { max: 2 })), "{third:?}");
    broker.delete_topic(&name("a")).unwrap();
    broker.create_topic(&name("c"), TopicSettings::default()).unwrap();

    let first = broker.subscribe(&pattern("b"), From::Now).unwrap();
    let second = broker.subscribe(&pattern("b"), From::Now).map(drop);
    assert!(matches!(second, Err(SubscribeError::TooMany { max: 1 })), "{second:?}");
    drop(first);
    broker.subscribe(&pattern(">"), From::Now).unwrap();
}

#[test]
fn c1_deleting_a_topic_tells_its_followers_and_frees_the_name() {
    let world = World::new(6);
    let broker = world.open();
    let old = broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=3);
    let mut waiting = broker.subscribe(&pattern("t"), From::Now).unwrap();
    assert!(matches!(drain(&mut waiting)[..], [Delivery::Live]));
    broker.delete_topic(&name("t")).unwrap();
    assert!(matches!(now(&mut waiting), Some(Err(FollowError::Deleted(_)))));
    assert!(matches!(broker.delete_topic(&name("t")), Err(TopicError::Unknown(_))));

    let new = broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    assert_ne!(new.id, old.id);
    assert_eq!(text(&broker, "t", "fresh").first, Seq(1));
    let broker = world.crash(broker, gapless_journal::faulty::CrashKind::Power);
    let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    assert_eq!(bodies(&drain(&mut follower)), ["fresh"]);
    let again = broker.describe_topic(&name("t")).unwrap();
    assert_eq!(again.id, new.id);
}

#[test]
fn c1_a_deleted_topic_stays_deleted_after_seal_and_restart_and_its_number_is_not_used_again() {
    let world = World::new(7);
    let broker = world.open();
    let old = broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=3);
    broker.seal().unwrap();
    broker.delete_topic(&name("t")).unwrap();
    broker.compact().unwrap();
    let broker = world.close(broker);
    assert_eq!(names(&broker, ">"), [""; 0]);
    let new = broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    assert!(new.id > old.id);
    let mut follower = broker.subscribe(&pattern("t"), From::Beginning).unwrap();
    assert_eq!(bodies(&drain(&mut follower)), [""; 0]);
}

#[test]
fn d10_a_purge_takes_what_lies_below_and_no_more_for_ever() {
    let world = World::new(8);
    let mut broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    texts(&broker, "t", 1..=10);
    let ahead = broker.purge(&name("t"), Seq(12));
    assert!(matches!(ahead, Err(TopicError::Ahead { wanted: Seq(12), next: Seq(11) })));
    let gap = broker.purge(&name("t"), Seq(5)).unwrap().unwrap();
    assert_eq!((gap.from, gap.to, gap.reason), (Seq(1), Seq(4), GapReason::Purge));
    assert_eq!(broker.purge(&name("t"), Seq(5)).unwrap(), None);
    for round in 0..3 {
        assert_eq!(broker.describe_topic(&name("t")).unwrap().first, Seq(5), "round {round}");
        assert_eq!(broker.read(&name("t"), Seq(4)).unwrap(), None);
        let mut follower = broker.subscribe(&pattern("t"), From::Seq(Seq(2))).unwrap();
        let all = drain(&mut follower);
        let told = &gaps(&all)[0];
        assert_eq!((told.from, told.to), (Some(Seq(2)), Some(Seq(4))));
        assert_eq!(told.reason, GapReason::Purge);
        assert_eq!(seqs(&all), (5..=10).collect::<Vec<_>>());
        drop(follower);
        // A purge that was answered survives the power going (F2).
        broker = world.crash(broker, gapless_journal::faulty::CrashKind::Power);
        broker.seal().unwrap();
    }
    broker.purge(&name("t"), Seq(11)).unwrap();
    let empty = broker.describe_topic(&name("t")).unwrap();
    assert_eq!((empty.first, empty.next), (Seq(11), Seq(11)));
    assert_eq!(text(&broker, "t", "next").first, Seq(11));
}

#[test]
fn f3_changing_and_deleting_at_the_same_time_never_brings_a_topic_back() {
    let folder = tempfile::tempdir().unwrap();
    let options = on_disk(folder.path());
    let broker = Broker::open(options.clone()).unwrap();
    for round in 0..20 {
        let topic = name(&format!("t.{round}"));
        broker.create_topic(&topic, TopicSettings::default()).unwrap();
        std::thread::scope(|scope| {
            // A late caller gets an error: there is no such topic.
            scope.spawn(|| broker.configure_topic(&topic, kept_for(3)).map(drop));
            scope.spawn(|| broker.delete_topic(&topic).unwrap());
        });
    }
    assert_eq!(names(&broker, ">"), [""; 0]);
    broker.close().unwrap();
    let broker = Broker::open(options).unwrap();
    assert_eq!(names(&broker, ">"), [""; 0]);
    assert_eq!(broker.list_topics(&pattern("t.*")).len(), 0);
    let storage = broker.create_topic(&name("t.0"), TopicSettings::default()).unwrap();
    assert_eq!(storage.settings.storage, Storage::Durable);
    broker.close().unwrap();
}

/// Found by bursts of calls: a caller that created a topic that was just being created got the
/// answer before either was flushed.
#[test]
fn a_topic_that_somebody_else_just_creates_is_flushed_before_it_is_told() {
    let world = World::new(9);
    let broker = world.open();
    drop(broker.creating_topic(&name("t"), TopicSettings::default()).unwrap());
    broker.create_topic(&name("t"), TopicSettings::default()).unwrap();
    let broker = world.crash(broker, gapless_journal::faulty::CrashKind::Power);
    broker.describe_topic(&name("t")).unwrap();
}

#[test]
fn a5_delivery_and_partition_are_refused_where_they_would_have_no_effect() {
    let world = World::new(2);
    let broker = world.open();
    let delivery = Some(DeliveryPolicy::AtLeastOnce);
    let partition = Some(PartitionBehavior::Drop);
    let settings = [
        (TopicSettings { delivery, ..TopicSettings::default() }, "delivery"),
        (TopicSettings { partition, ..TopicSettings::default() }, "partition"),
    ];
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    for (settings, setting) in settings {
        let is_refused = |error: &TopicError| {
            matches!(error, TopicError::Settings(SettingsError::NotInForce { setting: named })
                if *named == setting)
        };
        let made = broker.create_topic(&name("other"), settings);
        assert!(made.as_ref().is_err_and(is_refused), "{made:?}");
        let changed = broker.configure_topic(&name("t"), settings);
        assert!(changed.as_ref().is_err_and(is_refused), "{changed:?}");
    }
    let refused = PublishAck::Rejected(RejectReason::NotSupported);
    let message = Message::new("x");
    let late =
        Message { not_before: Some(broker.now().after(Duration::from_secs(9))), ..message.clone() };
    for options in [
        PublishOptions { delivery, ..PublishOptions::default() },
        PublishOptions { partition, ..PublishOptions::default() },
    ] {
        assert_eq!(broker.publish(&name("t"), &message, &options).wait().unwrap(), refused);
        assert_eq!(broker.publish(&name("t"), &late, &options).wait().unwrap(), refused);
        let both = Atomic::new().publish(&name("t"), std::slice::from_ref(&message));
        assert_eq!(broker.commit(both, &options).wait().unwrap(), refused);
    }
    assert_eq!(broker.describe_topic(&name("t")).unwrap().next, Seq(1), "nothing was stored");
}
