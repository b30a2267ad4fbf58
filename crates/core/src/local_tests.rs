//! Tests of the rules in `local.rs`.

use alloc::collections::BTreeSet;

use core::time::Duration;

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_000);
const ANN: SubscriberId = SubscriberId(1);
const BOB: SubscriberId = SubscriberId(2);

fn name(text: &str) -> TopicName {
    TopicName::parse(text).unwrap()
}

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap()
}

fn local() -> Local {
    Local::new(LocalLimits { queue_count_max: 2, topics_max: 3 })
}

fn publish(local: &mut Local, topic: &str, body: &'static str) -> PublishAck {
    let ack = local.publish(NOW, &name(topic), &Message::new(body));
    local.check();
    ack
}

fn polled(local: &mut Local, id: SubscriberId) -> Option<(u64, Message)> {
    local.poll(NOW, id).map(|delivery| (delivery.seq.0, delivery.message))
}

#[test]
fn a1_a13_a_publish_reaches_its_subscribers_in_order() {
    let mut local = local();
    local.subscribe(ANN, &pattern("a.*")).unwrap();
    local.subscribe(BOB, &pattern(">")).unwrap();
    let ack = publish(&mut local, "a.b", "one");
    assert_eq!(ack.accepted().unwrap().last, Seq(1));
    publish(&mut local, "a.b", "two");
    for id in [ANN, BOB] {
        assert_eq!(polled(&mut local, id), Some((1, Message::new("one"))));
        assert_eq!(polled(&mut local, id), Some((2, Message::new("two"))));
        assert_eq!(polled(&mut local, id), None);
    }
}

#[test]
fn a1_nothing_is_delivered_to_one_who_is_not_subscribed() {
    let mut local = local();
    local.subscribe(ANN, &pattern("a")).unwrap();
    local.subscribe(ANN, &pattern("b")).unwrap();
    publish(&mut local, "a", "one");
    publish(&mut local, "b", "two");
    assert_eq!(polled(&mut local, BOB), None);
    // What waits on a topic that is no longer followed goes with the subscription.
    local.unsubscribe(ANN, &pattern("a")).unwrap();
    assert_eq!(polled(&mut local, ANN), Some((1, Message::new("two"))));
    local.unsubscribe(ANN, &pattern("b")).unwrap();
    assert_eq!(polled(&mut local, ANN), None);
    local.check();
}

#[test]
fn a2_double_subscribe_and_missing_unsubscribe_are_seen() {
    let mut local = local();
    local.subscribe(ANN, &pattern("a")).unwrap();
    assert_eq!(local.subscribe(ANN, &pattern("a")), Err(SubscribeError::AlreadySubscribed));
    assert_eq!(local.unsubscribe(BOB, &pattern("a")), Err(UnsubscribeError::NotSubscribed));
    publish(&mut local, "a", "one");
    assert!(polled(&mut local, ANN).is_some());
    assert!(polled(&mut local, ANN).is_none());
}

#[test]
fn a3_a_full_queue_rejects_for_all_and_delivers_to_none() {
    let mut local = local();
    local.subscribe(ANN, &pattern("a")).unwrap();
    publish(&mut local, "a", "one");
    publish(&mut local, "a", "two");
    local.subscribe(BOB, &pattern("a")).unwrap();
    let ack = publish(&mut local, "a", "three");
    assert_eq!(ack, PublishAck::Rejected(RejectReason::QueueFull));
    assert_eq!(polled(&mut local, BOB), None);
    // The rejected one left no hole in the numbers.
    polled(&mut local, ANN).unwrap();
    assert_eq!(publish(&mut local, "a", "four").accepted().unwrap().first, Seq(3));
}

#[test]
fn a3_rejections_name_their_reason() {
    let mut local = local();
    let reason = |ack: PublishAck| *ack.rejected().unwrap();
    assert_eq!(reason(publish(&mut local, "a", "x")), RejectReason::NoSubscribers);
    local.subscribe(ANN, &pattern("a")).unwrap();
    let empty = local.publish(NOW, &name("a"), &Message::default());
    assert_eq!(reason(empty), RejectReason::InvalidPayload);
    let later = Message::new("x").with_not_before(Timestamp(2_000));
    assert_eq!(reason(local.publish(NOW, &name("a"), &later)), RejectReason::NotDurable);
}

#[test]
fn an_expired_message_is_not_delivered() {
    let mut local = local();
    local.subscribe(ANN, &pattern("a")).unwrap();
    let short = Message::new("short").with_ttl(Duration::from_millis(10));
    local.publish(NOW, &name("a"), &short);
    publish(&mut local, "a", "long");
    let delivery = local.poll(Timestamp(1_010), ANN).unwrap();
    assert_eq!(delivery.message, Message::new("long"));
}

proptest! {
    /// Each subscriber gets exactly what was accepted while it followed, once and in order.
    #[test]
    fn a1_every_accepted_message_arrives_once(
        steps in proptest::collection::vec((0_u8..4, 0_u64..3, 0_usize..4), 0..60),
    ) {
        let patterns = ["a.b", "a.*", ">", "a.>"];
        let topics = ["a.b", "a.c", "b", "a.b.c"];
        let mut local = Local::new(LocalLimits { queue_count_max: 3, topics_max: 4 });
        let mut follows: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut waiting: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
        let hits = |p: usize, t: usize| pattern(patterns[p]).matches(&name(topics[t]));
        for (verb, id, n) in steps {
            match verb {
                0 => {
                    let fresh = follows.insert((id, n));
                    prop_assert_eq!(local.subscribe(SubscriberId(id), &pattern(patterns[n])).is_ok(), fresh);
                }
                1 => {
                    let had = follows.remove(&(id, n));
                    prop_assert_eq!(local.unsubscribe(SubscriberId(id), &pattern(patterns[n])).is_ok(), had);
                    if had {
                        let kept = |t: usize| follows.iter().any(|(f, p)| *f == id && hits(*p, t));
                        waiting.entry(id).or_default().retain(|(t, _)| kept(*t));
                    }
                }
                2 => {
                    let hit = follows.iter().filter(|(_, p)| hits(*p, n));
                    let ids: BTreeSet<u64> = hit.map(|(f, _)| *f).collect();
                    let full = ids.iter().any(|id| waiting.get(id).is_some_and(|w| w.len() >= 3));
                    let ack = local.publish(NOW, &name(topics[n]), &Message::new("x"));
                    prop_assert_eq!(ack.accepted().is_some(), !ids.is_empty() && !full);
                    if let Some(accepted) = ack.accepted() {
                        for id in ids {
                            waiting.entry(id).or_default().push((n, accepted.first.0));
                        }
                    }
                }
                _ => {
                    let queue = waiting.entry(id).or_default();
                    let expected = (!queue.is_empty()).then(|| queue.remove(0));
                    let got = local.poll(NOW, SubscriberId(id));
                    let index = |name: &str| topics.iter().position(|t| *t == name).unwrap();
                    let got = got.map(|d| (index(d.topic.as_str()), d.seq.0));
                    prop_assert_eq!(got, expected);
                }
            }
            local.check();
        }
    }
}
