//! Stories of a few nodes over a network that delivers at once, or not at all.

mod visible;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ack::RejectReason;
use crate::batch::{Records, RecordsBuilder};
use crate::message::Message;
use crate::name::TopicName;
use crate::options::{DeliveryPolicy, PartitionBehavior};
use crate::pattern::Pattern;
use crate::subscriber::{FailReason, Status};
use crate::time::Timestamp;

pub(super) const AT_LEAST_ONCE: Policy =
    Policy { delivery: DeliveryPolicy::AtLeastOnce, partition: PartitionBehavior::DelayQueue };
const AT_MOST_ONCE: Policy =
    Policy { delivery: DeliveryPolicy::AtMostOnce, partition: PartitionBehavior::DelayQueue };
const OR_DROP: Policy =
    Policy { delivery: DeliveryPolicy::AtLeastOnce, partition: PartitionBehavior::Drop };

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn subject(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap()
}

fn named(identity: &str, text: &str) -> Named {
    Named { identity: Identity::parse(identity).unwrap(), pattern: pattern(text) }
}

fn records(body: &str) -> Records {
    let mut builder = RecordsBuilder::default();
    builder.push(&Message::new(body.to_string())).unwrap();
    builder.finish()
}

fn body(records: &Records) -> String {
    let bodies = records
        .iter()
        .map(|record| String::from_utf8_lossy(record.body.unwrap_or_default()).into_owned());
    bodies.collect::<Vec<_>>().join("+")
}

/// Says at once that messages came, so that a story needs no time.
fn at_once() -> ClusterConfig {
    ClusterConfig { receipt_after: Duration::ZERO, ..ClusterConfig::default() }
}

/// Nodes, links, and what came of it.
struct Net {
    now: Timestamp,
    config: ClusterConfig,
    nodes: BTreeMap<NodeName, Node>,
    /// Links that are up: from, to.
    links: BTreeSet<(NodeName, NodeName)>,
    /// What was delivered: `node<-publisher subject body [anonymous] [session...]`.
    delivered: Vec<String>,
    /// What is in the mailboxes of sessions: node, session, from, order.
    mail: Vec<(NodeName, u64, Sender, u64)>,
    events: Vec<(NodeName, ClusterEvent)>,
    ended: Vec<String>,
    reported: Vec<(u64, DeliveryReport)>,
    visible: BTreeMap<NodeName, u64>,
    flying: VecDeque<(Sender, NodeName, Frame)>,
    /// Frames that are dropped, if this says so.
    lose: fn(&Frame) -> bool,
}

impl Net {
    fn new(config: ClusterConfig, names: &[&str]) -> Self {
        let nodes =
            names.iter().map(|name| (node(name), Node::new(config, node(name), Incarnation(1))));
        let mut net = Self {
            now: Timestamp(1_000_000),
            config,
            nodes: nodes.collect(),
            links: BTreeSet::new(),
            delivered: Vec::new(),
            mail: Vec::new(),
            events: Vec::new(),
            ended: Vec::new(),
            reported: Vec::new(),
            visible: BTreeMap::new(),
            flying: VecDeque::new(),
            lose: |_| false,
        };
        for from in names {
            for to in names {
                if from != to {
                    net.link(from, to);
                }
            }
        }
        net.events.clear();
        net
    }

    fn small(names: &[&str]) -> Self {
        let config = ClusterConfig { queue_messages_max: 4, named_ahead_messages: 2, ..at_once() };
        Self::new(config, names)
    }

    fn act<T>(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut Node, Timestamp, &mut Vec<Effect>) -> T,
    ) -> T {
        let result = self.act_alone(name, act);
        while let Some((from, to, frame)) = self.flying.pop_front() {
            self.act_alone(to.as_str(), |node, now, effects| {
                node.frame(now, &from, frame, effects);
            });
        }
        result
    }

    fn act_alone<T>(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut Node, Timestamp, &mut Vec<Effect>) -> T,
    ) -> T {
        let (now, mut effects) = (self.now, Vec::new());
        let machine = self.nodes.get_mut(&node(name)).unwrap();
        let result = act(machine, now, &mut effects);
        machine.settle(now, &mut effects);
        machine.check();
        self.carry_out(&node(name), effects);
        result
    }

    fn carry_out(&mut self, at: &NodeName, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, frame } => {
                    if self.links.contains(&(at.clone(), to.clone())) && !(self.lose)(&frame) {
                        self.flying.push_back((self.nodes[at].me().clone(), to, frame));
                    }
                }
                Effect::Deliver { from, order, delivery } => {
                    let mut line = format!("{at}<-{} {} ", from.node, delivery.subject);
                    line.push_str(&body(&delivery.records));
                    if delivery.anonymous {
                        line.push_str(" all");
                    }
                    for (_, session) in delivery.named {
                        line.push_str(&format!(" {session}"));
                        self.mail.push((at.clone(), session, from.clone(), order));
                    }
                    self.delivered.push(line);
                }
                Effect::EndNamed { named, session, reason } => {
                    self.ended.push(format!("{at} {} {session} {reason:?}", named.identity));
                }
                Effect::Reported { report, results } => self.reported.push((report, results)),
                Effect::Event(event) => self.events.push((at.clone(), event)),
                Effect::Visible { version } => {
                    self.visible.insert(at.clone(), version);
                }
            }
        }
    }

    fn link(&mut self, from: &str, to: &str) {
        self.links.insert((node(from), node(to)));
        let incarnation = self.nodes[&node(to)].me().incarnation;
        self.act(from, |machine, now, effects| {
            machine.link_up(now, &node(to), incarnation, effects);
        });
    }

    fn cut(&mut self, from: &str, to: &str) {
        self.links.remove(&(node(from), node(to)));
        self.act(from, |machine, now, effects| machine.link_down(now, &node(to), effects));
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        loop {
            let due = self.nodes.values().filter_map(Node::deadline).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            let due = |machine: &Node| machine.deadline().is_some_and(|due| due <= self.now);
            let names: Vec<NodeName> = self
                .nodes
                .values()
                .filter(|node| due(node))
                .map(|node| node.me().node.clone())
                .collect();
            for name in names {
                self.act(name.as_str(), |machine, now, effects| machine.tick(now, effects));
            }
        }
        self.now = until;
    }

    fn subscribe(&mut self, at: &str, text: &str) -> u64 {
        self.act(at, |machine, _, _| machine.subscribe(&pattern(text)))
    }

    fn subscribe_named(&mut self, at: &str, who: &Named, session: u64) {
        let subscribed = self
            .act(at, |machine, now, effects| machine.subscribe_named(now, who, session, effects));
        subscribed.unwrap();
    }

    fn away(&mut self, at: &str, session: u64) {
        self.act(at, |machine, now, effects| machine.away(now, session, effects));
    }

    fn publish(&mut self, at: &str, to: &str, text: &str) -> Result<Admitted, RejectReason> {
        self.publish_as(at, to, text, AT_LEAST_ONCE)
    }

    fn publish_as(
        &mut self,
        at: &str,
        to: &str,
        text: &str,
        policy: Policy,
    ) -> Result<Admitted, RejectReason> {
        self.act(at, |machine, now, effects| {
            machine.publish(now, &subject(to), &records(text), policy, None, effects)
        })
    }

    /// The session takes all its mail.
    fn take_mail(&mut self, session: u64) {
        for (at, whose, from, number) in core::mem::take(&mut self.mail) {
            if whose == session {
                self.act(at.as_str(), |machine, now, _| {
                    machine.taken(now, session, &from, number, &[]);
                });
            } else {
                self.mail.push((at, whose, from, number));
            }
        }
    }

    fn restart(&mut self, name: &str) {
        let old = self.nodes[&node(name)].me().incarnation;
        let others: Vec<NodeName> =
            self.nodes.keys().filter(|other| other.as_str() != name).cloned().collect();
        for other in &others {
            self.links.remove(&(node(name), other.clone()));
            self.cut(other.as_str(), name);
        }
        let fresh = Node::new(self.config, node(name), Incarnation(old.0 + 1));
        self.nodes.insert(node(name), fresh);
        for other in &others {
            self.link(name, other.as_str());
            self.link(other.as_str(), name);
        }
    }

    fn take_delivered(&mut self) -> Vec<String> {
        core::mem::take(&mut self.delivered)
    }

    fn lost(&mut self) -> Vec<(String, u64, LostReason)> {
        let lost = self.events.iter().filter_map(|(_, event)| match event {
            ClusterEvent::Lost(Lost { target, messages, reason, .. }) => {
                let target = match target {
                    LostTarget::Node(node) => node.to_string(),
                    LostTarget::Named(named) => named.identity.to_string(),
                };
                Some((target, *messages, *reason))
            }
            _ => None,
        });
        let lost = lost.collect();
        self.events.clear();
        lost
    }

    fn state(&self, at: &str, of: &str) -> Status {
        let status = self.nodes[&node(at)].status();
        status.nodes.iter().find(|status| status.node.as_str() == of).unwrap().state
    }
}

#[test]
fn a7_a_publish_goes_once_to_each_node_that_wants_it() {
    let mut net = Net::new(at_once(), &["a", "b", "c"]);
    net.subscribe("b", "orders.>");
    net.subscribe("b", "orders.*");
    net.subscribe("c", "news");
    let admitted = net.publish("a", "orders.eu", "one").unwrap();
    assert_eq!(admitted, Admitted { nodes: 1, named: 0, delayed: 0 });
    assert_eq!(net.take_delivered(), ["b<-a orders.eu one all"]);
    assert_eq!(net.publish("a", "other", "two").unwrap().targets(), 0);
    assert!(net.take_delivered().is_empty());
    assert!(net.nodes[&node("a")].is_idle());
}

#[test]
fn a1_nothing_goes_to_one_who_unsubscribed() {
    let mut net = Net::new(at_once(), &["a", "b"]);
    for _ in 0..2 {
        net.subscribe("b", "x");
    }
    net.act("b", |node, _, _| node.unsubscribe(&pattern("x")));
    assert_eq!(net.publish("a", "x", "still one").unwrap().nodes, 1);
    net.act("b", |node, _, _| node.unsubscribe(&pattern("x")));
    assert_eq!(net.publish("a", "x", "none").unwrap().targets(), 0);
    assert!(!net.nodes[&node("a")].wants(&subject("x")));
}

#[test]
fn names_of_the_system_do_not_spread() {
    let mut net = Net::new(at_once(), &["a", "b"]);
    net.subscribe("b", ">");
    net.subscribe("b", "$events.>");
    assert_eq!(net.publish("a", "$events.x", "own").unwrap().targets(), 0);
    let refused = net.act("b", |node, now, effects| {
        node.subscribe_named(now, &named("i", "$events.x"), 1, effects)
    });
    assert_eq!(refused, Err(NamedError::SystemName));
}

#[test]
fn a10_messages_for_an_unreachable_node_are_held_and_sent_in_order_when_it_is_back() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("a", "b");
    for text in ["1", "2", "3"] {
        assert_eq!(net.publish("a", "x", text).unwrap().delayed, 1);
    }
    assert!(net.take_delivered().is_empty());
    net.link("a", "b");
    assert_eq!(net.take_delivered(), ["b<-a x 1 all", "b<-a x 2 all", "b<-a x 3 all"]);
    assert_eq!(net.state("a", "b"), Status::Active);
}

#[test]
fn a3_a_full_queue_refuses_for_all_and_sends_to_none() {
    let mut net = Net::small(&["a", "b", "c"]);
    net.subscribe("b", "x");
    net.subscribe("c", "x");
    net.cut("a", "b");
    for text in ["1", "2", "3", "4"] {
        net.publish("a", "x", text).unwrap();
    }
    assert_eq!(net.take_delivered().len(), 4);
    assert_eq!(net.publish("a", "x", "5"), Err(RejectReason::QueueFull));
    assert!(net.take_delivered().is_empty(), "c must not get what b cannot");
    net.link("a", "b");
    net.publish("a", "x", "5").unwrap();
    assert_eq!(net.take_delivered().len(), 6);
}

#[test]
fn all_queues_together_are_bounded() {
    let one = 128 + 1 + records("1").bytes.len();
    let config = ClusterConfig {
        queue_bytes_max: 3 * one,
        queues_bytes_max: 4 * one,
        window_bytes: one,
        ..at_once()
    };
    let mut net = Net::new(config, &["a", "b", "c"]);
    net.subscribe("b", "x");
    net.subscribe("c", "x");
    net.cut("a", "b");
    net.cut("a", "c");
    net.publish("a", "x", "1").unwrap();
    net.publish("a", "x", "2").unwrap();
    assert_eq!(net.publish("a", "x", "3"), Err(RejectReason::QueueFull));
}

#[test]
fn a10_drop_refuses_when_a_target_is_suspended() {
    let mut net = Net::small(&["a", "b", "c"]);
    net.subscribe("b", "x");
    net.subscribe("c", "x");
    assert_eq!(net.publish_as("a", "x", "1", OR_DROP).unwrap().nodes, 2);
    net.take_delivered();
    net.cut("a", "b");
    assert_eq!(net.publish_as("a", "x", "2", OR_DROP), Err(RejectReason::PartitionDrop));
    assert!(net.take_delivered().is_empty());
}

#[test]
fn a9_past_its_time_a_suspended_node_is_removed_and_what_was_held_is_named() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("a", "b");
    net.publish("a", "x", "1").unwrap();
    net.publish("a", "x", "2").unwrap();
    net.pass(Duration::from_millis(59_999));
    assert!(net.lost().is_empty());
    net.pass(Duration::from_millis(1));
    assert_eq!(net.lost(), [("b".to_string(), 2, LostReason::Expired)]);
    assert_eq!(net.state("a", "b"), Status::Removed);
    assert_eq!(net.publish("a", "x", "3").unwrap().targets(), 0);
    net.link("a", "b");
    net.publish("a", "x", "4").unwrap();
    assert_eq!(net.take_delivered(), ["b<-a x 4 all"], "it is asked for its interest again");
}

#[test]
fn a9_rejoining_at_the_instant_of_expiry_loses_nothing() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("a", "b");
    net.publish("a", "x", "1").unwrap();
    net.now = net.now.after(net.config.suspended_ttl);
    net.link("a", "b");
    net.pass(Duration::from_secs(120));
    assert_eq!(net.take_delivered(), ["b<-a x 1 all"]);
    assert!(net.lost().is_empty());
}

#[test]
fn a_lost_report_leads_to_a_repeat_that_is_not_delivered_again() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.lose = |frame| matches!(frame, Frame::Report { .. });
    net.publish("a", "x", "1").unwrap();
    assert_eq!(net.take_delivered(), ["b<-a x 1 all"]);
    assert!(!net.nodes[&node("a")].is_idle());
    net.lose = |_| false;
    net.pass(Duration::from_secs(1));
    assert!(net.take_delivered().is_empty());
    assert!(net.nodes[&node("a")].is_idle());
    assert_eq!(net.nodes[&node("b")].status().counts.items_repeated, 1);
}

#[test]
fn a_node_that_answers_nothing_is_suspended_and_probed() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("b", "a");
    net.publish("a", "x", "1").unwrap();
    net.pass(Duration::from_secs(3));
    let since = net.now;
    let suspended = Status::Suspended { reason: FailReason::Timeout, since };
    assert_eq!(net.state("a", "b"), suspended);
    net.link("b", "a");
    net.pass(Duration::from_secs(1));
    assert_eq!(net.state("a", "b"), Status::Active);
    assert_eq!(net.take_delivered(), ["b<-a x 1 all"]);
    assert!(net.nodes[&node("a")].is_idle());
}

#[test]
fn a_new_life_of_a_node_loses_what_was_for_the_old_ones_subscribers() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("a", "b");
    net.publish("a", "x", "1").unwrap();
    net.restart("b");
    assert_eq!(net.lost(), [("b".to_string(), 1, LostReason::Restarted)]);
    assert_eq!(net.publish("a", "x", "2").unwrap().targets(), 0);
    net.subscribe("b", "x");
    net.publish("a", "x", "3").unwrap();
    assert_eq!(net.take_delivered(), ["b<-a x 3 all"]);
}

#[test]
fn frames_of_an_old_life_are_dropped() {
    let mut net = Net::small(&["a", "b"]);
    net.restart("b");
    let old = Sender { node: node("b"), incarnation: Incarnation(1) };
    let changes = vec![Change::Add(pattern("x"))];
    let frame = Frame::Interest { base: 0, version: 1, changes };
    net.act("a", |machine, now, effects| machine.frame(now, &old, frame, effects));
    assert_eq!(net.publish("a", "x", "1").unwrap().targets(), 0);
}

#[test]
fn a14_a_node_that_leaves_is_forgotten_at_once() {
    let mut net = Net::small(&["a", "b", "c"]);
    net.subscribe("b", "x");
    net.cut("c", "b");
    net.publish("c", "x", "1").unwrap();
    net.act("b", |machine, now, effects| machine.leave(now, effects));
    assert_eq!(net.publish("a", "x", "2").unwrap().targets(), 0);
    assert_eq!(net.lost(), [("b".to_string(), 1, LostReason::Left)]);
    let refused = net.act("b", |machine, now, effects| {
        machine.subscribe_named(now, &named("i", "x"), 1, effects)
    });
    assert_eq!(refused, Err(NamedError::Left));
}

#[test]
fn a_leaving_node_names_what_it_takes_with_it() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("a", "b");
    net.publish("a", "x", "1").unwrap();
    net.act("a", |machine, now, effects| machine.leave(now, effects));
    assert_eq!(net.lost(), [("b".to_string(), 1, LostReason::Leaving)]);
}

#[test]
fn at_most_once_is_sent_at_once_or_lost_and_never_held() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.publish_as("a", "x", "1", AT_MOST_ONCE).unwrap();
    net.cut("a", "b");
    assert_eq!(net.publish_as("a", "x", "2", AT_MOST_ONCE).unwrap().delayed, 1);
    assert_eq!(net.lost(), [("b".to_string(), 1, LostReason::NotQueued)]);
    net.link("a", "b");
    net.publish_as("a", "x", "3", AT_MOST_ONCE).unwrap();
    assert_eq!(net.take_delivered(), ["b<-a x 1 all", "b<-a x 3 all"]);
}

#[test]
fn a_named_subscription_that_reconnects_elsewhere_goes_on_there() {
    let mut net = Net::small(&["a", "b", "c"]);
    let who = named("bill", "x");
    net.subscribe_named("b", &who, 1);
    net.publish("a", "x", "1").unwrap();
    net.take_mail(1);
    net.publish("a", "x", "2").unwrap();
    net.away("b", 1);
    net.mail.clear();
    assert_eq!(net.publish("a", "x", "3").unwrap(), Admitted { nodes: 0, named: 1, delayed: 1 });
    net.subscribe_named("c", &who, 7);
    assert_eq!(
        net.take_delivered(),
        ["b<-a x 1 1", "b<-a x 2 1", "c<-a x 2 7", "c<-a x 3 7"],
        "what was not taken is sent to the new place, before what came later"
    );
    net.take_mail(7);
    assert!(net.nodes[&node("a")].is_idle());
}

#[test]
fn the_later_claim_ends_the_earlier_subscription() {
    let mut net = Net::small(&["a", "b", "c"]);
    let who = named("bill", "x");
    net.subscribe_named("b", &who, 1);
    net.subscribe_named("c", &who, 1);
    assert_eq!(net.ended, ["b bill 1 TakenOver { by: NodeName(\"c\") }"]);
    net.publish("a", "x", "1").unwrap();
    assert_eq!(net.take_delivered(), ["c<-a x 1 1"]);
    net.subscribe_named("c", &who, 2);
    assert_eq!(net.ended[1..], ["c bill 1 TakenOver { by: NodeName(\"c\") }"]);
    assert_eq!(net.take_delivered(), ["c<-a x 1 2"]);
}

#[test]
fn a_named_subscription_of_the_publishers_own_node_is_held_for_too() {
    let mut net = Net::small(&["a"]);
    let who = named("bill", "x");
    net.subscribe_named("a", &who, 1);
    for text in ["1", "2", "3"] {
        net.publish("a", "x", text).unwrap();
    }
    assert_eq!(net.take_delivered(), ["a<-a x 1 1", "a<-a x 2 1"], "two are ahead");
    net.away("a", 1);
    net.mail.clear();
    net.subscribe_named("a", &who, 2);
    net.take_mail(2);
    assert_eq!(net.take_delivered(), ["a<-a x 1 2", "a<-a x 2 2", "a<-a x 3 2"]);
}

#[test]
fn a_slow_named_subscription_is_not_flooded_and_others_are_not_slowed() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe_named("b", &named("slow", "x"), 1);
    net.subscribe("b", "x");
    for text in ["1", "2", "3", "4"] {
        net.publish("a", "x", text).unwrap();
    }
    assert_eq!(
        net.take_delivered(),
        ["b<-a x 1 all 1", "b<-a x 2 all 1", "b<-a x 3 all", "b<-a x 4 all"]
    );
    assert_eq!(net.publish("a", "x", "5"), Err(RejectReason::QueueFull));
    net.take_mail(1);
    assert_eq!(net.take_delivered(), ["b<-a x 3 1", "b<-a x 4 1"]);
}

#[test]
fn nothing_is_held_for_one_who_unsubscribed_even_if_a_node_was_cut_off() {
    let mut net = Net::small(&["a", "b"]);
    let who = named("bill", "x");
    net.subscribe_named("b", &who, 1);
    net.publish("a", "x", "1").unwrap();
    net.cut("b", "a");
    net.act("b", |machine, now, effects| machine.unsubscribe_named(now, 1, effects));
    net.link("b", "a");
    assert_eq!(net.publish("a", "x", "2").unwrap().targets(), 0);
    assert!(net.lost().is_empty());
    assert_eq!(net.nodes[&node("a")].status().queued_bytes, 0);
}

#[test]
fn past_its_time_a_named_subscription_is_removed_and_what_was_held_is_named() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe_named("b", &named("bill", "x"), 1);
    net.away("b", 1);
    net.publish("a", "x", "1").unwrap();
    net.pass(Duration::from_secs(60));
    assert_eq!(net.lost(), [("bill".to_string(), 1, LostReason::Expired)]);
    assert_eq!(net.publish("a", "x", "2").unwrap().targets(), 0);
}

#[test]
fn a_named_subscription_that_takes_nothing_is_suspended_and_loses_what_it_did_not_take() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe_named("b", &named("hung", "x"), 1);
    net.publish("a", "x", "1").unwrap();
    net.pass(Duration::from_secs(3));
    assert_eq!(net.publish_as("a", "x", "2", OR_DROP), Err(RejectReason::PartitionDrop));
    net.pass(Duration::from_secs(60));
    assert_eq!(net.lost(), [("hung".to_string(), 1, LostReason::Expired)]);
    net.publish_as("a", "x", "3", OR_DROP).unwrap();
}

#[test]
fn what_overflows_is_named_where_it_happens() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe_named("b", &named("slow", "x"), 1);
    net.publish("a", "x", "1").unwrap();
    let from = net.nodes[&node("a")].me().clone();
    net.act("b", |machine, now, _| machine.taken(now, 1, &from, 1, &[(subject("x"), 1)]));
    assert_eq!(net.lost(), [("slow".to_string(), 1, LostReason::Overflow)]);
    assert!(net.nodes[&node("a")].is_idle());
}

#[test]
fn a8_a_report_names_each_subscriber_once_all_have_answered() {
    let mut net = Net::small(&["a", "b", "c"]);
    net.subscribe("b", "x");
    net.subscribe("c", "x");
    net.subscribe_named("c", &named("bill", "x"), 1);
    net.act("a", |machine, now, effects| {
        machine.publish(now, &subject("x"), &records("1"), AT_LEAST_ONCE, Some(9), effects)
    })
    .unwrap();
    let from = net.nodes[&node("a")].me().clone();
    let handle = |name: &str, number| SubscriberName::Handle { node: Some(node(name)), number };
    let result = |subscriber, status| SubscriberResult { subscriber, status };
    let timeout = result(handle("b", 5), DeliveryStatus::Timeout);
    let done = result(handle("b", 4), DeliveryStatus::Delivered);
    net.act("b", |machine, _, _| machine.settled(&from, 1, vec![done, timeout.clone()]));
    net.take_mail(1);
    assert!(net.reported.is_empty());
    let done = result(handle("c", 4), DeliveryStatus::Delivered);
    net.act("c", |machine, _, _| machine.settled(&from, 1, vec![done]));
    let status = DeliveryStatus::Timeout;
    let report = DeliveryReport { status, delivered: 3, failed: vec![timeout], unnamed: 0 };
    assert_eq!(net.reported, [(9, report)]);
}

#[test]
fn a8_a_report_that_does_not_come_is_a_timeout() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.cut("a", "b");
    let publish = |machine: &mut Node, now, effects: &mut Vec<Effect>| {
        machine.publish(now, &subject("x"), &records("1"), AT_LEAST_ONCE, Some(1), effects)
    };
    net.act("a", publish).unwrap();
    net.pass(Duration::from_secs(6));
    let status = DeliveryStatus::Timeout;
    let failed = vec![SubscriberResult { subscriber: SubscriberName::Node(node("b")), status }];
    assert_eq!(net.reported, [(1, DeliveryReport { status, delivered: 0, failed, unnamed: 0 })]);
    net.link("a", "b");
    assert_eq!(net.take_delivered(), ["b<-a x 1 all"], "it is still tried");
}

#[test]
fn a_missed_change_is_noticed_and_all_interest_is_asked_for() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.lose = |frame| matches!(frame, Frame::Interest { .. });
    net.act("b", |machine, _, _| machine.unsubscribe(&pattern("x")));
    net.lose = |_| false;
    net.subscribe("b", "y");
    assert_eq!(net.publish("a", "x", "1").unwrap().targets(), 0);
    assert_eq!(net.publish("a", "y", "2").unwrap().nodes, 1);
}

#[test]
fn a_membership_that_forgets_a_node_only_says_so() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    let live = [(node("b"), Incarnation(1))];
    net.act("a", |machine, now, effects| machine.topology(now, &live, effects));
    net.events.clear();
    net.act("a", |machine, now, effects| machine.topology(now, &[], effects));
    assert_eq!(net.events, [(node("a"), ClusterEvent::NodeGone { node: node("b") })]);
    net.publish("a", "x", "1").unwrap();
    assert_eq!(net.take_delivered(), ["b<-a x 1 all"]);
}

#[test]
fn there_are_at_most_so_many_nodes_and_one_that_left_makes_room() {
    let config = ClusterConfig { nodes_max: 1, ..ClusterConfig::default() };
    let mut net = Net::new(config, &["a"]);
    let join = |net: &mut Net, name: &str| {
        let live = [(node(name), Incarnation(1))];
        net.act("a", |machine, now, effects| machine.topology(now, &live, effects));
        core::mem::take(&mut net.events).into_iter().map(|(_, event)| event).next().unwrap()
    };
    assert_eq!(
        join(&mut net, "b"),
        ClusterEvent::NodeJoined { node: node("b"), incarnation: Incarnation(1) }
    );
    assert_eq!(join(&mut net, "c"), ClusterEvent::NodeRefused { node: node("c") });
    net.pass(Duration::from_secs(60));
    net.events.clear();
    assert_eq!(
        join(&mut net, "c"),
        ClusterEvent::NodeJoined { node: node("c"), incarnation: Incarnation(1) }
    );
}

#[test]
fn a_missed_change_is_noticed_even_if_nothing_follows() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.lose = |frame| matches!(frame, Frame::Interest { .. });
    net.act("b", |machine, _, _| machine.unsubscribe(&pattern("x")));
    net.lose = |_| false;
    assert_eq!(net.publish("a", "x", "1").unwrap().targets(), 1);
    net.pass(Duration::from_secs(1));
    assert_eq!(net.publish("a", "x", "2").unwrap().targets(), 0);
}

#[test]
fn a_lost_report_of_what_was_taken_is_asked_for() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe_named("b", &named("bill", "x"), 1);
    net.publish("a", "x", "1").unwrap();
    net.lose = |frame| matches!(frame, Frame::Report { .. });
    net.take_mail(1);
    net.lose = |_| false;
    assert!(!net.nodes[&node("a")].is_idle());
    net.pass(Duration::from_secs(3));
    assert!(net.nodes[&node("a")].is_idle());
    assert!(net.lost().is_empty());
}

#[test]
fn a_removed_node_that_answers_again_is_asked_for_its_interest() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x");
    net.lose = |frame| matches!(frame, Frame::Report { .. } | Frame::Probed(_));
    net.publish("a", "x", "1").unwrap();
    net.pass(Duration::from_secs(63));
    assert_eq!(net.state("a", "b"), Status::Removed);
    net.lose = |_| false;
    net.pass(Duration::from_secs(1));
    assert_eq!(net.state("a", "b"), Status::Active);
    assert_eq!(net.publish("a", "x", "2").unwrap().targets(), 1);
}

#[test]
fn a_session_gets_nothing_twice_when_a_later_claim_vanishes() {
    let mut net = Net::small(&["a", "b", "c"]);
    let who = named("bill", "x");
    net.subscribe_named("b", &who, 1);
    net.publish("a", "x", "1").unwrap();
    net.cut("c", "b");
    net.subscribe_named("c", &who, 7);
    assert_eq!(net.take_delivered(), ["b<-a x 1 1", "c<-a x 1 7"]);
    net.restart("c");
    net.publish("a", "x", "2").unwrap();
    assert_eq!(net.take_delivered(), ["b<-a x 2 1"], "b is taken to have it again");
    net.take_mail(1);
    assert!(net.nodes[&node("a")].is_idle());
}

proptest! {
    /// However subscriptions change while links come and go, in the end each node knows what the
    /// other wants, and what is published then arrives.
    #[test]
    fn in_the_end_each_node_knows_what_the_other_wants(
        steps in proptest::collection::vec((0_usize..2, 0_usize..5, 0_usize..3), 1..60),
    ) {
        const NODES: [&str; 2] = ["a", "b"];
        const SUBJECTS: [&str; 3] = ["x", "y", "z"];
        let mut net = Net::new(at_once(), &NODES);
        let mut wants = [[0_u32; 3]; 2];
        for (at, act, which) in steps {
            let (me, other) = (NODES[at], NODES[1 - at]);
            match act {
                0 => {
                    wants[at][which] += 1;
                    net.subscribe(me, SUBJECTS[which]);
                }
                1 if wants[at][which] > 0 => {
                    wants[at][which] -= 1;
                    net.act(me, |node, _, _| node.unsubscribe(&pattern(SUBJECTS[which])));
                }
                2 => net.cut(me, other),
                3 => net.link(me, other),
                _ => net.pass(Duration::from_secs(30)),
            }
        }
        net.link("a", "b");
        net.link("b", "a");
        net.pass(Duration::from_secs(2));
        for (at, me) in NODES.iter().enumerate() {
            for (which, name) in SUBJECTS.iter().enumerate() {
                net.take_delivered();
                let targets = net.publish(me, name, "1").unwrap().targets();
                let wanted = usize::from(wants[1 - at][which] > 0);
                prop_assert_eq!(targets as usize, wanted);
                prop_assert_eq!(net.take_delivered().len(), wanted);
            }
        }
    }
}

#[test]
fn that_messages_came_is_said_after_a_moment_or_when_much_came() {
    let mut net = Net::new(ClusterConfig::default(), &["a", "b"]);
    net.subscribe("b", "x");
    net.pass(Duration::from_secs(1));
    let held = |net: &Net| net.nodes[&node("a")].status().nodes[0].queue.messages;
    net.publish("a", "x", "1").unwrap();
    net.publish("a", "x", "2").unwrap();
    assert_eq!((net.take_delivered().len(), held(&net)), (2, 2), "they came, and that is not said");
    net.pass(net.config.receipt_after);
    assert_eq!(held(&net), 0);
    for _ in 0..64 {
        net.publish("a", "x", "1").unwrap();
    }
    assert_eq!(held(&net), 0, "much came");
    // Also when the report of them is lost: the repeat is answered at once.
    net.lose = |frame| matches!(frame, Frame::Report { .. });
    net.publish("a", "x", "3").unwrap();
    net.pass(net.config.receipt_after);
    net.lose = |_| false;
    net.take_delivered();
    net.pass(net.config.resend_after);
    assert_eq!((net.take_delivered().len(), held(&net)), (0, 0), "sent again, not delivered again");
}

#[test]
fn a11_messages_are_counted_for_each_topic() {
    let mut net = Net::small(&["a", "b"]);
    net.subscribe("b", "x.*");
    net.publish("a", "x.1", "1").unwrap();
    net.publish("a", "x.2", "1").unwrap();
    net.publish("a", "x.1", "2").unwrap();
    net.publish("a", "y", "not wanted").unwrap();
    net.cut("a", "b");
    assert!(net.publish_as("a", "x.2", "3", OR_DROP).is_err());
    net.publish("a", "x.2", "4").unwrap();
    net.restart("b");
    let counted = |at: &str| {
        let mut topics = net.nodes[&node(at)].topics_counted().topics;
        topics.sort_by(|one, other| one.0.cmp(&other.0));
        topics.into_iter().map(|(topic, counts)| (topic.to_string(), counts)).collect::<Vec<_>>()
    };
    let one = TopicCounts { published: 2, ..TopicCounts::default() };
    let two = TopicCounts { published: 2, rejected: 1, lost: 1, ..TopicCounts::default() };
    assert_eq!(counted("a"), [("x.1".to_string(), one), ("x.2".to_string(), two)]);
}

#[test]
fn a_node_that_leaves_says_first_what_came() {
    let mut net = Net::new(ClusterConfig::default(), &["a", "b"]);
    net.subscribe("b", "x");
    net.pass(Duration::from_secs(1));
    net.publish("a", "x", "1").unwrap();
    net.act("b", |machine, now, effects| machine.leave(now, effects));
    assert_eq!(net.take_delivered(), ["b<-a x 1 all"]);
    assert_eq!(net.lost(), [], "it came");
}
