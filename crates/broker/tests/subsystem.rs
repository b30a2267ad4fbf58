//! Subsystems of the process have topics of their own, which others cannot write.

mod common;

use common::*;
use gapless_broker::{Atomic, TopicError};
use gapless_core::{Compaction, Message, PublishOptions, RejectReason, TopicSettings};

#[test]
fn a_subsystem_writes_below_its_own_prefix_and_nowhere_else_of_the_system() {
    let world = World::new(1);
    let broker = world.open();
    broker.create_topic(&name("orders"), TopicSettings::default()).unwrap();
    let jobs = broker.subsystem("$jobs");
    let state = jobs.topic("state");
    jobs.ensure_topic(&state, TopicSettings::default()).unwrap();
    // Again, with other settings: they are in force then.
    let compaction = Some(Compaction::default());
    let settings = TopicSettings { compaction, ..TopicSettings::default() };
    jobs.ensure_topic(&state, settings).unwrap();
    assert_eq!(broker.describe_topic(&state).unwrap().settings, settings);

    let plain = PublishOptions::default();
    let both = || {
        let message = [Message::new("x").with_key("k")];
        Atomic::new().publish(&state, &message).publish(&name("orders"), &message)
    };
    let acks = jobs.commit(both(), &plain).wait_all().unwrap();
    assert_eq!(acks.into_iter().map(|ack| accepted(ack).last.0).collect::<Vec<_>>(), [1, 1]);

    let refused = broker.commit(both(), &plain);
    assert_eq!(refused.rejected_with(), Some(RejectReason::InvalidTopic));
    for other in ["$outbox.x", "$jobsx", "$events.x"] {
        let atomic = Atomic::new().publish(&name(other), &[Message::new("x")]);
        let refused = jobs.commit(atomic, &plain);
        assert_eq!(refused.rejected_with(), Some(RejectReason::InvalidTopic), "{other}");
        let created = jobs.ensure_topic(&name(other), TopicSettings::default());
        assert!(matches!(created, Err(TopicError::System(_))), "{other}");
    }
    drop(jobs);
    let broker = world.close(broker);
    assert_eq!(broker.describe_topic(&state).unwrap().next.0, 2);
    assert_eq!(broker.describe_topic(&name("orders")).unwrap().next.0, 2);
}
