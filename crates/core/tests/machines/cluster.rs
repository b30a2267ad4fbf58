//! A node of a cluster as the golden scripts drive it. It settles after each command.

use std::time::Duration;

use gapless_core::cluster::{
    Change, ClusterConfig, Effect, Frame, Identity, Incarnation, Item, Named, Node, NodeName,
    Policy, Sender, Taken,
};
use gapless_core::{
    DeliveryPolicy, Message, PartitionBehavior, Pattern, Records, RecordsBuilder, Timestamp,
    TopicName,
};

use super::{Words, trace};

pub(crate) fn new(words: &Words<'_>) -> Node {
    let number = |name, default| words.text(name).map_or(default, |_| words.number(name) as usize);
    let config = ClusterConfig::default();
    let config = ClusterConfig {
        queue_messages_max: number("queue", config.queue_messages_max),
        named_ahead_messages: number("ahead", config.named_ahead_messages),
        receipt_after: words
            .text("receipt")
            .map_or(Duration::ZERO, |_| Duration::from_millis(words.number("receipt"))),
        ..config
    };
    Node::new(config, node("a"), Incarnation(1))
}

fn node(name: &str) -> NodeName {
    NodeName::parse(name).expect("the name of a node")
}

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("a pattern")
}

/// `who:pattern:session:time`.
fn here(text: &str) -> (Named, u64, u64) {
    let mut parts = text.split(':');
    let mut part = || parts.next().expect("who:pattern:session:time");
    let identity = Identity::parse(part()).expect("an identity");
    let named = Named { identity, pattern: pattern(part()) };
    let mut number = || part().parse().expect("a number");
    (named, number(), number())
}

fn records(body: &str) -> Records {
    let mut builder = RecordsBuilder::default();
    builder.push(&Message::new(body.to_owned())).expect("a small message");
    builder.finish()
}

fn body(records: &Records) -> String {
    let body = records.iter().next().and_then(|record| record.body).unwrap_or(b"nothing");
    String::from_utf8_lossy(body).into_owned()
}

fn frame(words: &Words<'_>) -> Frame {
    let number = |name| words.text(name).map(|_| words.number(name));
    let change = |name: &str| words.text(name);
    let changes = || {
        let add = change("add").map(|text| Change::Add(pattern(text)));
        let remove = change("remove").map(|text| Change::Remove(pattern(text)));
        let here = change("here").map(here).map(|(named, session, time)| Change::Here {
            named,
            session,
            time: Timestamp(time),
        });
        let away = number("away").map(|session| Change::Away { session });
        [add, remove, here, away].into_iter().flatten().collect::<Vec<_>>()
    };
    if let Some(version) = number("full") {
        return Frame::InterestFull { version, part: 0, last: true, entries: changes() };
    }
    if let Some(version) = number("version") {
        return Frame::Interest { base: words.number("base"), version, changes: changes() };
    }
    if let Some(first) = number("first") {
        let item = Item {
            subject: TopicName::parse(words.text("subject").expect("subject=")).expect("a name"),
            records: records(words.text("body").expect("body=")),
            order: words.number("order"),
            age_ms: 0,
            anonymous: words.text("all").is_some(),
            sessions: number("session").into_iter().collect(),
            report: false,
        };
        let base = number("base").unwrap_or(1);
        return Frame::Deliver { base, first, items: vec![item] };
    }
    if let Some(received) = number("received") {
        let interest_seen = number("seen").unwrap_or(0);
        let taken =
            number("taken").map(|upto| Taken { session: words.number("session"), upto, lost: 0 });
        let taken = taken.into_iter().collect();
        return Frame::Report { received, interest_seen, taken, results: Vec::new() };
    }
    match (number("probe"), number("probed")) {
        (Some(number), _) => Frame::Probe(number),
        (_, Some(number)) => Frame::Probed(number),
        _ => Frame::Leave,
    }
}

/// An effect in a few words.
fn told(effect: &Effect) -> String {
    match effect {
        Effect::Send { to, frame: Frame::Deliver { base, first, items } } => {
            let items: Vec<String> = items
                .iter()
                .map(|item| {
                    let (body, all) = (body(&item.records), item.anonymous);
                    format!("{body} (order {}, all {all}, {:?})", item.order, item.sessions)
                })
                .collect();
            format!("to {to}: items from {first}, base {base}: {}", items.join(", "))
        }
        Effect::Send { to, frame } => format!("to {to}: {frame:?}"),
        Effect::Deliver { from, order, delivery } => {
            let (body, all) = (body(&delivery.records), delivery.anonymous);
            let sessions: Vec<u64> = delivery.named.iter().map(|(_, session)| *session).collect();
            format!("deliver {body} of {} (order {order}, all {all}, {sessions:?})", from.node)
        }
        other => format!("{other:?}"),
    }
}

pub(crate) fn run(machine: &mut Node, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let mut effects = Vec::new();
    let to = || node(words.text("node").expect("node="));
    let life = || Incarnation(words.text("life").map_or(1, |_| words.number("life")));
    let mut answer = String::new();
    match verb {
        "link-up" => machine.link_up(now, &to(), life(), &mut effects),
        "link-down" => machine.link_down(now, &to(), &mut effects),
        "frame" => {
            let from = Sender { node: to(), incarnation: life() };
            machine.frame(now, &from, frame(words), &mut effects);
        }
        "subscribe" => {
            machine.subscribe(&pattern(words.text("pattern").expect("pattern=")));
        }
        "unsubscribe" => machine.unsubscribe(&pattern(words.text("pattern").expect("pattern="))),
        "named" => {
            let (named, session, _) = here(words.text("here").expect("here="));
            let result = machine.subscribe_named(now, &named, session, &mut effects);
            answer = format!("{result:?}\n");
        }
        "away" => machine.away(now, words.number("session"), &mut effects),
        "taken" => {
            let from = Sender { node: to(), incarnation: life() };
            machine.taken(now, words.number("session"), &from, words.number("upto"), &[]);
        }
        "publish" => {
            let subject = TopicName::parse(words.text("subject").expect("subject="));
            let delivery = words
                .text("once")
                .map_or(DeliveryPolicy::AtLeastOnce, |_| DeliveryPolicy::AtMostOnce);
            let partition = words
                .text("drop")
                .map_or(PartitionBehavior::DelayQueue, |_| PartitionBehavior::Drop);
            let policy = Policy { delivery, partition };
            let records = records(words.text("body").expect("body="));
            let subject = subject.expect("a name");
            let result = machine.publish(now, &subject, &records, policy, None, &mut effects);
            answer = format!("{result:?}\n");
        }
        "leave" => machine.leave(now, &mut effects),
        "tick" => machine.tick(now, &mut effects),
        other => panic!("a node has no {other}"),
    }
    machine.settle(now, &mut effects);
    machine.check();
    let lines: Vec<Line> = effects.iter().map(|effect| Line(told(effect))).collect();
    let status = machine.status();
    let mut standing: Vec<String> = Vec::new();
    for node in &status.nodes {
        let queued = node.queue.messages;
        standing.push(format!("{}: {:?}, {queued} queued", node.node, node.state));
    }
    for named in &status.named {
        let at = named.node.as_ref().map_or("nowhere", |node| node.as_str());
        let (who, held) = (&named.named.identity, named.queue.messages);
        standing.push(format!("{who} at {at}: {:?}, {held} held", named.state));
    }
    answer + &trace(&lines, &standing.join("; "))
}

/// Text that is shown as it is.
struct Line(String);

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
