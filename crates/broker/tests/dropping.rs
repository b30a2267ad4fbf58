//! Dropping the last handle: when it returns, the folder is free.

mod common;

use common::*;
use gapless_broker::{Broker, From, Join};
use gapless_core::{GroupSettings, PublishOptions, TopicSettings};

/// The keeper is made busy while the last handle goes, so that it is in the middle of a turn.
#[test]
fn m7_a_dropped_broker_leaves_the_folder_free_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = on_disk(folder.path());
    options.limits.keep_interval = std::time::Duration::from_micros(1);
    for round in 0..200 {
        let broker = Broker::open(options.clone());
        let broker = broker.unwrap_or_else(|error| panic!("round {round}: {error}"));
        broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
        broker.create_group(&name("g"), GroupSettings::new(pattern("t"))).expect("there is room");
        let subscription = broker.subscribe(&pattern(">"), From::Beginning).expect("it is open");
        let member = broker.join_group(&name("g"), &Join { name: "m".into(), window: 1 });
        let member = member.expect("the group is there");
        let message = gapless_core::Message::new(format!("{round}"));
        let unheard = broker.publish(&name("t"), &message, &PublishOptions::default());
        // Any of them may be the last to go.
        match round % 3 {
            0 => drop((broker, subscription, member)),
            1 => drop((member, broker, subscription)),
            _ => drop((subscription, member, broker)),
        }
        drop(unheard);
    }
}
