//! The seam to a cluster: what it learns, what it may refuse, and what it delivers.

mod common;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::*;
use gapless_broker::{
    Broker, Delivery, FollowError, From, Incoming, NamedRefused, Reporting, Spread, SubscribeError,
    Unseen,
};
use gapless_core::cluster::{
    Admitted, DeliveryReport, DeliveryStatus, EndReason, Identity, Incarnation, Named, NodeName,
    Policy, Sender, SubscriberName, SubscriberResult,
};
use gapless_core::{
    DeliveryPolicy, Message, PartitionBehavior, Pattern, PublishOptions, Records, RecordsBuilder,
    RejectReason, TopicName, TopicSettings,
};

const TIMEOUT: Duration = Duration::from_secs(3);

/// A cluster that writes down what it is told, and answers as it was told to.
#[derive(Default)]
struct Notes {
    told: Vec<String>,
    followed: BTreeMap<String, i64>,
    answer: Option<RejectReason>,
    admitted: Admitted,
    wanted: bool,
    policies: Vec<(Policy, Option<u64>)>,
    sent: Vec<(TopicName, Records)>,
    settled: Vec<(u64, Vec<SubscriberResult>)>,
    sessions: Vec<u64>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Notes>>);

impl Fake {
    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.0.lock().expect("it is good")
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.notes().told)
    }
}

impl Spread for Fake {
    fn node(&self) -> NodeName {
        NodeName::parse("a").expect("it is good")
    }

    fn subscriber_timeout(&self) -> Duration {
        TIMEOUT
    }

    fn subscribed(&self, pattern: &Pattern) -> u64 {
        *self.notes().followed.entry(pattern.as_str().to_owned()).or_default() += 1;
        7
    }

    fn unsubscribed(&self, pattern: &Pattern) {
        *self.notes().followed.entry(pattern.as_str().to_owned()).or_default() -= 1;
    }

    fn subscribed_named(&self, named: &Named, session: u64) -> Result<u64, NamedRefused> {
        self.notes().sessions.push(session);
        self.notes().told.push(format!("{} follows {}", named.identity, named.pattern));
        Ok(8)
    }

    fn away(&self, _: u64) {
        self.notes().told.push("away".into());
    }

    fn unsubscribed_named(&self, _: u64) {
        self.notes().told.push("unsubscribed".into());
    }

    fn taken(&self, _: u64, from: &Sender, upto: u64, lost: &[(TopicName, u64)]) {
        let lost: Vec<_> =
            lost.iter().map(|(subject, count)| format!(" -{count} {subject}")).collect();
        self.notes().told.push(format!("{} {upto}{}", from.node, lost.concat()));
    }

    fn settled(&self, _: &Sender, number: u64, results: Vec<SubscriberResult>) {
        self.notes().settled.push((number, results));
    }

    fn wants(&self, _: &TopicName) -> bool {
        self.notes().wanted
    }

    fn publish(
        &self,
        subject: &TopicName,
        records: &Records,
        policy: Policy,
        report: Option<u64>,
    ) -> Result<Admitted, RejectReason> {
        let mut notes = self.notes();
        if let Some(reason) = notes.answer {
            return Err(reason);
        }
        notes.policies.push((policy, report));
        notes.sent.push((subject.clone(), records.clone()));
        Ok(notes.admitted)
    }

    fn status(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    fn leave(&self) {}

    fn await_visible(
        &self,
        version: u64,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<(), Unseen>> + Send>> {
        let unseen =
            if version > 7 { Ok(()) } else { Err(vec![NodeName::parse("b").expect("it is good")]) };
        Box::pin(std::future::ready(unseen))
    }
}

fn in_cluster(world: &World) -> (Broker, Fake) {
    let (broker, fake) = (world.open(), Fake::default());
    broker.set_spread(Arc::new(fake.clone())).expect("it is good");
    (broker, fake)
}

fn one(text: &str) -> Message {
    Message::new(text.to_owned())
}

fn records(texts: &[&str]) -> Records {
    let mut builder = RecordsBuilder::default();
    texts.iter().for_each(|text| builder.push(&one(text)).expect("it is good"));
    builder.finish()
}

fn sender() -> Sender {
    Sender { node: NodeName::parse("b").expect("it is good"), incarnation: Incarnation(5) }
}

fn identity(text: &str) -> Identity {
    Identity::parse(text).expect("it is good")
}

fn ready<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

fn local(number: u64) -> SubscriberName {
    SubscriberName::Handle { node: None, number }
}

fn here(number: u64) -> SubscriberName {
    SubscriberName::Handle { node: Some(NodeName::parse("a").expect("it is good")), number }
}

#[test]
fn a1_the_cluster_learns_what_is_followed_and_what_no_more() {
    let world = World::new(1);
    let broker = world.open();
    let early = broker.subscribe(&pattern("early.*"), From::Now).unwrap();
    let fake = Fake::default();
    broker.set_spread(Arc::new(fake.clone())).unwrap();
    assert!(broker.set_spread(Arc::new(fake.clone())).is_err(), "a broker is in one cluster");
    broker.create_topic(&name("durable"), TopicSettings::default()).unwrap();
    broker.create_topic(&name("volatile"), volatile()).unwrap();
    let twice = [(); 2].map(|()| broker.subscribe(&pattern("s"), From::Now).unwrap());
    let own = ["durable", "$events.>"].map(|of| broker.subscribe(&pattern(of), From::Now).unwrap());
    let topic = broker.subscribe(&pattern("volatile"), From::Now).unwrap();
    let server = broker.listen(&pattern("quiet")).unwrap();
    let followed = |notes: &Notes| {
        let all = notes.followed.iter().map(|(of, count)| format!("{of} {count}"));
        all.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(followed(&fake.notes()), "early.* 1, s 2, volatile 1");
    drop((early, twice, own, topic, server));
    assert_eq!(followed(&fake.notes()), "early.* 0, s 0, volatile 0");
    assert_eq!(ready(broker.await_visible(TIMEOUT)).unwrap(), Err(vec![sender().node]));
    let _named = broker.subscribe_named(&identity("billing"), &pattern("n")).unwrap();
    assert_eq!(ready(broker.await_visible(TIMEOUT)).unwrap(), Ok(()), "a name counts too");
}

#[test]
fn a3_what_the_cluster_refuses_is_delivered_to_none() {
    let world = World::new(2);
    let (broker, fake) = in_cluster(&world);
    broker.create_topic(&name("volatile"), volatile()).unwrap();
    let mut follower = broker.subscribe(&pattern("*"), From::Now).unwrap();
    drain(&mut follower);
    fake.notes().wanted = true;
    for reason in [RejectReason::QueueFull, RejectReason::PartitionDrop] {
        fake.notes().answer = Some(reason);
        for subject in ["subject", "volatile"] {
            let refused = refusal(&broker, subject, &one("x"), &PublishOptions::default());
            assert_eq!(refused, reason, "{subject}");
            assert!(drain(&mut follower).is_empty(), "no follower got what was refused");
        }
    }
    fake.notes().answer = None;
    text(&broker, "subject", "1");
    assert_eq!(text(&broker, "volatile", "2").first.0, 1, "a refusal uses no seq");
    assert_eq!(bodies(&drain(&mut follower)), ["1", "2"]);
    assert_eq!(fake.notes().sent.len(), 2);
}

#[test]
fn a3_there_are_no_subscribers_only_if_neither_this_node_nor_the_cluster_has_any() {
    let world = World::new(3);
    let (broker, fake) = in_cluster(&world);
    broker.create_topic(&name("volatile"), volatile()).unwrap();
    let plain = PublishOptions::default();
    let asks = PublishOptions { require_subscribers: Some(true), ..plain };
    let none = |subject: &str, options| refusal(&broker, subject, &one("x"), options);
    for wanted in [false, true] {
        // That the cluster may have some does not mean that it has.
        fake.notes().wanted = wanted;
        assert_eq!(none("subject", &plain), RejectReason::UnknownTopic);
        assert_eq!(none("subject", &asks), RejectReason::NoSubscribers);
        assert_eq!(none("volatile", &asks), RejectReason::NoSubscribers);
    }
    fake.notes().sent.clear();
    fake.notes().admitted = Admitted { nodes: 1, named: 0, delayed: 1 };
    for subject in ["subject", "volatile"] {
        assert!(broker.publish(&name(subject), &one("x"), &asks).is_accepted(), "{subject}");
    }
    assert_eq!(fake.notes().sent.len(), 2);
}

#[test]
fn a5_options_of_the_publish_come_before_the_topics_and_those_before_the_systems() {
    let world = World::new(4);
    let (broker, fake) = in_cluster(&world);
    let (once, least) = (DeliveryPolicy::AtMostOnce, DeliveryPolicy::AtLeastOnce);
    let (queue, drop) = (PartitionBehavior::DelayQueue, PartitionBehavior::Drop);
    let settings = TopicSettings { delivery: Some(once), partition: Some(drop), ..volatile() };
    broker.create_topic(&name("volatile"), settings).unwrap();
    broker.create_topic(&name("durable"), TopicSettings::default()).unwrap();
    fake.notes().wanted = true;
    fake.notes().admitted.nodes = 1;
    let own = PublishOptions {
        delivery: Some(least),
        partition: Some(queue),
        ..PublishOptions::default()
    };
    let publish = |topic: &str, options: &PublishOptions| {
        assert!(broker.publish(&name(topic), &one("x"), options).is_accepted(), "{topic}");
        let (policy, report) = fake.notes().policies.pop().unwrap();
        assert_eq!(report, None);
        (policy.delivery, policy.partition)
    };
    assert_eq!(publish("subject", &PublishOptions::default()), (least, queue));
    assert_eq!(publish("volatile", &PublishOptions::default()), (once, drop));
    assert_eq!(publish("volatile", &own), (least, queue));
    let other = PublishOptions { delivery: Some(once), ..PublishOptions::default() };
    assert_eq!(publish("subject", &other), (once, queue));
    assert_eq!(publish("volatile", &PublishOptions::default()), (once, drop), "as before");
    // A durable topic belongs to its node.
    assert_eq!(refusal(&broker, "durable", &one("x"), &own), RejectReason::NotSupported);
    let alone = World::new(5).open();
    assert_eq!(refusal(&alone, "subject", &one("x"), &own), RejectReason::NotSupported);
}

#[test]
fn messages_that_a_topic_knows_or_refuses_do_not_reach_other_nodes() {
    let world = World::new(6);
    let (broker, fake) = in_cluster(&world);
    broker.create_topic(&name("volatile"), volatile()).unwrap();
    fake.notes().wanted = true;
    let plain = PublishOptions::default();
    let with_id = |id: &str| one(id).with_id(id.to_owned());
    let publish = |ids: &[&str], options: &PublishOptions| {
        let messages: Vec<_> = ids.iter().map(|id| with_id(id)).collect();
        let taken = broker.publish_batch(&name("volatile"), &messages, options).is_accepted();
        let sent: Vec<_> = fake.notes().sent.drain(..).collect();
        let ids = |records: Records| {
            let ids =
                records.iter().map(|each| String::from_utf8_lossy(each.id.unwrap()).into_owned());
            ids.collect::<Vec<_>>().concat()
        };
        (taken, sent.into_iter().map(|(_, records)| ids(records)).collect::<Vec<_>>())
    };
    assert_eq!(publish(&["1", "2", "1"], &plain), (true, vec!["12".to_owned()]));
    assert_eq!(publish(&["2", "3"], &plain), (true, vec!["3".to_owned()]));
    assert_eq!(publish(&["1", "3"], &plain), (true, vec![]));
    let expect = gapless_core::Expect::TopicLast(gapless_core::Seq(9));
    let wrong = PublishOptions { expect: Some(expect), ..plain };
    assert_eq!(publish(&["4"], &wrong), (false, vec![]));
    assert_eq!(publish(&["1"], &wrong), (true, vec![]), "the retry of what was taken");
}

#[test]
fn a1_what_comes_from_other_nodes_reaches_exactly_those_who_follow_it() {
    let world = World::new(7);
    let (broker, fake) = in_cluster(&world);
    broker.create_topic(&name("a.volatile"), volatile()).unwrap();
    broker.create_topic(&name("a.durable"), TopicSettings::default()).unwrap();
    let all = ["a.*", "a.volatile", "a.durable", "b.*"];
    let mut all = all.map(|of| broker.subscribe(&pattern(of), From::Now).unwrap());
    all.iter_mut().for_each(|follower| drop(drain(follower)));
    for (number, subject) in (1..).zip(["a.subject", "a.volatile", "a.durable"]) {
        let incoming = Incoming {
            subject: &name(subject),
            records: &records(&[subject]),
            age: Duration::ZERO,
            anonymous: true,
            sessions: &[],
            report: false,
        };
        broker.deliver_spread(&sender(), number, &incoming);
    }
    let got = all.each_mut().map(|follower| bodies(&drain(follower)));
    assert_eq!(got[0], ["a.subject", "a.volatile", "a.durable"]);
    assert_eq!(got[1], ["a.volatile"], "followers of a volatile topic read it there");
    assert!(got[2].is_empty() && got[3].is_empty(), "a durable topic belongs to its node");
    assert!(fake.notes().sent.is_empty() && fake.notes().settled.is_empty());
}

#[test]
fn times_to_live_count_from_the_publish_on() {
    let world = World::new(8);
    let (broker, _) = in_cluster(&world);
    let mut follower = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut follower);
    let mut builder = RecordsBuilder::default();
    builder.push(&one("short").with_ttl(Duration::from_secs(10))).unwrap();
    let records = builder.finish();
    for (number, age) in [(1, 9), (2, 11)] {
        let incoming = Incoming {
            subject: &name("s"),
            records: &records,
            age: Duration::from_secs(age),
            anonymous: true,
            sessions: &[],
            report: false,
        };
        broker.deliver_spread(&sender(), number, &incoming);
    }
    assert_eq!(bodies(&drain(&mut follower)), ["short"]);
}

#[test]
fn a1_an_identity_takes_what_is_for_its_session_and_says_so() {
    let world = World::new(9);
    let (broker, fake) = in_cluster(&world);
    let mut named = broker.subscribe_named(&identity("billing"), &pattern("s.*")).unwrap();
    assert_eq!(fake.told(), ["billing follows s.*"]);
    assert!(matches!(drain(&mut named)[..], [Delivery::Live]));
    let session = fake.notes().sessions[0];
    assert_eq!(session, named.id());
    let deliver = |number, text: &str, sessions: &[u64]| {
        let incoming = Incoming {
            subject: &name("s.x"),
            records: &records(&[text]),
            age: Duration::ZERO,
            anonymous: false,
            sessions,
            report: false,
        };
        broker.deliver_spread(&sender(), number, &incoming);
    };
    deliver(4, "one", &[session]);
    deliver(5, "for others", &[session + 1]);
    deliver(6, "two", &[session]);
    deliver(0, "at most once", &[session]);
    assert!(fake.told().is_empty(), "nothing is taken yet");
    assert_eq!(bodies(&[next(&mut named)]), ["one"]);
    assert_eq!(fake.told(), ["b 4"]);
    assert_eq!(bodies(&drain(&mut named)), ["two", "at most once"]);
    assert_eq!(fake.told(), ["b 6"]);
    drop(named);
    assert_eq!(fake.told(), ["away"]);
    let named = broker.subscribe_named(&identity("billing"), &pattern("s.*")).unwrap();
    named.unsubscribe();
    assert_eq!(fake.told(), ["billing follows s.*", "unsubscribed"]);
    assert_ne!(fake.notes().sessions[1], session, "each stay has a number of its own");
}

#[test]
fn a1_an_identity_that_appears_elsewhere_ends_here_with_the_reason() {
    let world = World::new(10);
    let (broker, fake) = in_cluster(&world);
    let mut named = broker.subscribe_named(&identity("billing"), &pattern("s")).unwrap();
    drain(&mut named);
    let by = NodeName::parse("c").unwrap();
    broker.end_named(named.id(), EndReason::TakenOver { by: by.clone() });
    for _ in 0..2 {
        let ended = now(&mut named).expect("it ends");
        assert!(matches!(ended, Err(FollowError::TakenOver { by: at }) if at == by));
    }
    drop(named);
    assert_eq!(fake.told(), ["billing follows s", "away"]);
}

#[test]
fn an_identity_needs_a_cluster_and_subjects_that_are_spread() {
    let alone = World::new(11).open();
    let refused = alone.subscribe_named(&identity("billing"), &pattern("s"));
    assert!(matches!(refused, Err(SubscribeError::NeedsCluster)));
    let world = World::new(12);
    let (broker, fake) = in_cluster(&world);
    broker.create_topic(&name("durable"), TopicSettings::default()).unwrap();
    let refused = broker.subscribe_named(&identity("billing"), &pattern("durable"));
    assert!(matches!(refused, Err(SubscribeError::Durable(_))));
    let refused = broker.subscribe_named(&identity("billing"), &pattern("$events.>"));
    assert!(matches!(refused, Err(SubscribeError::NotSpread(_))));
    assert!(fake.told().is_empty() && broker.subscribers().is_empty());
}

#[test]
fn a_session_that_is_too_slow_says_what_it_lost() {
    let mut world = World::new(13);
    world.options.limits.mailbox_messages_max = 2;
    let (broker, fake) = in_cluster(&world);
    let mut named = broker.subscribe_named(&identity("slow"), &pattern("s.*")).unwrap();
    drain(&mut named);
    fake.told();
    for (number, subject) in (1..).zip(["s.a", "s.b", "s.a", "s.c", "s.d"]) {
        let incoming = Incoming {
            subject: &name(subject),
            records: &records(&[subject]),
            age: Duration::ZERO,
            anonymous: false,
            sessions: &[named.id()],
            report: false,
        };
        broker.deliver_spread(&sender(), number, &incoming);
    }
    let all = drain(&mut named);
    assert!(matches!(all[0], Delivery::Gap(_)));
    assert_eq!(bodies(&all), ["s.c", "s.d"]);
    assert_eq!(fake.told(), ["b 3 -2 s.a -1 s.b", "b 4", "b 5"]);
}

/// Publishes and asks for a report.
fn reported(broker: &Broker, subject: &str) -> Reporting {
    let options = PublishOptions { report: true, ..PublishOptions::default() };
    let mut publishing = broker.publish(&name(subject), &one("x"), &options);
    assert!(publishing.is_accepted(), "{:?}", publishing.rejected_with());
    publishing.take_report().expect("it was asked for")
}

#[test]
fn a8_a_report_says_who_took_it_who_left_and_who_lost_it() {
    let mut world = World::new(14);
    world.options.limits.mailbox_messages_max = 2;
    let broker = world.open();
    let follow = || {
        let mut follower = broker.subscribe(&pattern("s"), From::Now).unwrap();
        drain(&mut follower);
        follower
    };
    let [mut quick, leaving, mut full] = [(); 3].map(|()| follow());
    let mut report = reported(&broker, "s");
    assert!(ready(&mut report).is_none());
    drain(&mut quick);
    let left = leaving.id();
    drop(leaving);
    // Its mailbox overflows, while the quick one takes all.
    texts(&broker, "s", 1..=2);
    let report = ready(&mut report).expect("all parts are settled");
    assert_eq!(report.delivered, 1);
    let failed =
        [(left, DeliveryStatus::SubscriberUnreachable), (full.id(), DeliveryStatus::OtherError)];
    let failed = failed.map(|(n, status)| SubscriberResult { subscriber: local(n), status });
    assert_eq!(report.failed, failed);
    drain(&mut full);
}

#[test]
fn a8_one_who_does_not_take_it_in_time_is_a_timeout_and_holds_up_no_other() {
    let world = World::new(15);
    let broker = world.open();
    let mut quick = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut quick);
    let mut alone = reported(&broker, "s");
    drain(&mut quick);
    let delivered = DeliveryReport { delivered: 1, ..DeliveryReport::default() };
    assert_eq!(ready(&mut alone), Some(delivered), "it is complete with the last that takes it");
    let mut slow = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut slow);
    let mut report = reported(&broker, "s");
    drain(&mut quick);
    world.advance(2_999);
    broker.turn();
    assert!(ready(&mut report).is_none(), "it has time left");
    world.advance(1);
    broker.turn();
    let report = ready(&mut report).expect("the time is over");
    assert_eq!((report.status, report.delivered), (DeliveryStatus::Timeout, 1));
    assert_eq!(report.failed[0].subscriber, local(slow.id()));
    assert_eq!(bodies(&drain(&mut slow)), ["x"], "it is still there for the slow one");
}

#[test]
fn a8_a_report_of_a_volatile_topic_counts_those_who_read_it_there() {
    let world = World::new(16);
    let broker = world.open();
    broker.create_topic(&name("v"), volatile()).unwrap();
    let mut all = ["v", "*", "v"].map(|of| broker.subscribe(&pattern(of), From::Now).unwrap());
    all.iter_mut().for_each(|follower| drop(drain(follower)));
    let [mut first, mut by_pattern, second] = all;
    let mut report = reported(&broker, "v");
    drain(&mut first);
    drain(&mut by_pattern);
    assert!(ready(&mut report).is_none());
    let gone = second.id();
    drop(second);
    let report = ready(&mut report).expect("all parts are settled");
    assert_eq!((report.delivered, report.status), (2, DeliveryStatus::SubscriberUnreachable));
    assert_eq!(report.failed[0].subscriber, local(gone));
}

#[test]
fn a_report_is_of_volatile_messages_and_their_number_is_limited() {
    let mut world = World::new(17);
    world.options.limits.reports_max = 1;
    let broker = world.open();
    broker.create_topic(&name("durable"), TopicSettings::default()).unwrap();
    let options = PublishOptions { report: true, ..PublishOptions::default() };
    assert_eq!(refusal(&broker, "durable", &one("x"), &options), RejectReason::NotSupported);
    assert_eq!(refusal(&broker, "s", &one("x"), &options), RejectReason::UnknownTopic);
    let mut slow = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut slow);
    let open = reported(&broker, "s");
    assert_eq!(refusal(&broker, "s", &one("x"), &options), RejectReason::QueueFull);
    assert_eq!(bodies(&drain(&mut slow)), ["x"], "what was refused was not delivered");
    assert!(ready(open).is_some());
    drop(reported(&broker, "s"));
}

#[test]
fn a8_the_report_of_a_publish_has_the_clusters_part() {
    let world = World::new(18);
    let (broker, fake) = in_cluster(&world);
    fake.notes().wanted = true;
    fake.notes().admitted.nodes = 1;
    let mut follower = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut follower);
    let mut report = reported(&broker, "s");
    let id = fake.notes().policies[0].1.expect("the cluster is asked for its part");
    drain(&mut follower);
    assert!(ready(&mut report).is_none());
    let mut part = DeliveryReport { delivered: 2, ..DeliveryReport::default() };
    let unreachable = DeliveryStatus::SubscriberUnreachable;
    part.add(SubscriberName::Identity(identity("billing")), unreachable);
    broker.reported(id, part.clone());
    let report = ready(&mut report).expect("all parts are there");
    assert_eq!((report.delivered, report.status), (3, unreachable));
    assert_eq!(report.failed, part.failed);
    // The cluster has more time than subscribers here, also if there are none.
    drop(follower);
    let mut report = reported(&broker, "s");
    let id = fake.notes().policies[1].1.expect("the cluster is asked for its part");
    world.advance(3_000);
    broker.turn();
    assert!(ready(&mut report).is_none());
    broker.reported(id, part.clone());
    assert_eq!(ready(&mut report), Some(part));
    let mut follower = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut follower);
    // A cluster that never answers is not waited for without end.
    let mut report = reported(&broker, "s");
    for _ in 0..2 {
        assert!(ready(&mut report).is_none());
        world.advance(6_000);
        broker.turn();
    }
    let report = ready(&mut report).expect("it ends");
    assert_eq!(report.failed[1].subscriber, SubscriberName::Node(fake.node()));
}

#[test]
fn a8_a_node_reports_to_the_sender_what_became_of_each_subscriber() {
    let world = World::new(19);
    let (broker, fake) = in_cluster(&world);
    let follow = || {
        let mut follower = broker.subscribe(&pattern("s"), From::Now).unwrap();
        drain(&mut follower);
        follower
    };
    let (mut quick, slow) = (follow(), follow());
    let deliver = |number, subject: &str| {
        let incoming = Incoming {
            subject: &name(subject),
            records: &records(&["x"]),
            age: Duration::ZERO,
            anonymous: true,
            sessions: &[],
            report: true,
        };
        broker.deliver_spread(&sender(), number, &incoming);
    };
    deliver(1, "s");
    deliver(2, "nobody");
    drain(&mut quick);
    assert_eq!(fake.notes().settled, [(2, vec![])], "no subscriber is waited for in vain");
    fake.notes().settled.clear();
    world.advance(3_000);
    broker.turn();
    let results = vec![
        SubscriberResult { subscriber: here(quick.id()), status: DeliveryStatus::Delivered },
        SubscriberResult { subscriber: here(slow.id()), status: DeliveryStatus::Timeout },
    ];
    assert_eq!(fake.notes().settled, [(1, results)]);
}

#[test]
fn closing_ends_reports_and_named_subscriptions() {
    let world = World::new(20);
    let (broker, _) = in_cluster(&world);
    let mut named = broker.subscribe_named(&identity("billing"), &pattern("s")).unwrap();
    let mut slow = broker.subscribe(&pattern("s"), From::Now).unwrap();
    drain(&mut slow);
    drain(&mut named);
    let report = reported(&broker, "s");
    broker.close().unwrap();
    assert_eq!(ready(report).map(|report| report.status), Some(DeliveryStatus::Timeout));
    assert!(matches!(now(&mut named), Some(Err(FollowError::Closed))));
}
