//! Publishing to several topics together, with acks of what it came from: after a crash all of
//! it is there, or nothing.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::routing::post;
use axum::{Json as JsonAnswer, Router};
use bytes::Bytes;
use gapless_auth::Caller;
use gapless_broker::{Atomic, MemberHandle};
use gapless_core::rights::Right;
use gapless_core::{
    Durability, Expect, Lease, Message, PublishAck, PublishOptions, RejectReason, Seq, TopicName,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::groups::held;
use crate::http::listener::body::{Whole, in_words};
use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::topic_name;
use crate::http::values::incoming::{Incoming, KEY_MISSING};
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;
use crate::http::values::publish::{one_of, position_json, unknown_topic};

/// Topics of one request, at most: all are locked at the same time.
const PARTS_MAX: usize = 256;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/atomic", post(commit))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    durability: Option<String>,
    #[serde(borrow, default)]
    parts: Vec<PartAsked<'a>>,
    /// Leases of members that are done with these.
    #[serde(default)]
    acks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartAsked<'a> {
    topic: String,
    expect_seq: Option<u64>,
    expect_key_seq: Option<u64>,
    #[serde(borrow)]
    messages: Vec<Incoming<'a>>,
}

struct Part {
    topic: TopicName,
    messages: Vec<Message>,
    expect: Option<Expect>,
}

async fn commit(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    params: Params,
    Whole(bytes): Whole,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    let (parts, acks, options) = read(&shared, &bytes)?;
    let mut size = (0, 0);
    for part in &parts {
        caller.may(Right::Publish, &part.topic)?;
        let bodies = part.messages.iter().filter_map(|message| message.body.as_ref());
        size.0 += part.messages.len() as u64;
        size.1 += bodies.map(|body| body.len() as u64).sum::<u64>();
    }
    caller.charge(size.0, size.1)?;
    let held = held(&shared, None, &acks)?;
    for (member, _) in held.by_member() {
        caller.may(Right::Group, member.group())?;
    }
    if held.lost > 0 {
        // Their member is gone, and so is what it held.
        return Err(RejectReason::LeaseLost.into());
    }
    let acked: Vec<(MemberHandle, Vec<Lease>)> =
        held.by_member().map(|(member, leases)| (member.clone(), leases.to_vec())).collect();
    let topics: Vec<TopicName> = parts.iter().map(|part| part.topic.clone()).collect();
    let broker = shared.broker.clone();
    // What the newest of a key is may have to be looked up on the disk.
    let publishing = blocking(move || {
        let mut atomic = Atomic::new();
        for part in &parts {
            atomic = match part.expect {
                Some(expect) => atomic.publish_if(&part.topic, &part.messages, expect),
                None => atomic.publish(&part.topic, &part.messages),
            };
        }
        for (member, leases) in &acked {
            atomic = atomic.ack(member, leases);
        }
        broker.commit(atomic, &options)
    });
    let acks = publishing.await?.all().await?;
    if let Some(reason) = acks.iter().find_map(PublishAck::rejected) {
        return Err(refused(&shared, &topics, *reason));
    }
    let parts = topics.iter().zip(&acks).filter_map(|(topic, ack)| {
        let accepted = ack.accepted()?;
        Some(json!({
            "topic": topic.as_str(),
            "first": accepted.first.0,
            "last": accepted.last.0,
            "position": position_json(accepted),
            "durability": accepted.durability.name(),
            "duplicate": accepted.duplicate,
        }))
    });
    Ok(JsonAnswer(json!({ "parts": parts.collect::<Vec<_>>() })))
}

type Read = (Vec<Part>, Vec<String>, PublishOptions);

fn read(shared: &Shared, bytes: &Bytes) -> Result<Read, Problem> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad_request("the body is a JSON object with `parts`"));
    }
    let asked: Asked<'_> = serde_json::from_slice(bytes).map_err(|why| {
        let detail = format!("the body is not the JSON that is asked for: {}", in_words(&why));
        Problem::bad_request(detail).with("line", why.line()).with("column", why.column())
    })?;
    let nothing = asked.parts.is_empty() && asked.acks.is_empty();
    if nothing || asked.parts.len() > PARTS_MAX {
        return Err(Problem::bad_request(format_args!("give 1 to {PARTS_MAX} parts, or acks")));
    }
    let durability = asked.durability.map(|word| {
        Durability::from_name(&word)
            .ok_or_else(|| Problem::bad_request("durability is one of memory, written and flushed"))
    });
    let options =
        PublishOptions { durability: durability.transpose()?, ..PublishOptions::default() };
    let now = shared.broker.now();
    let mut parts: Vec<Part> = Vec::with_capacity(asked.parts.len());
    for part in asked.parts {
        let topic = topic_name(&part.topic)?;
        if parts.iter().any(|before| before.topic == topic) {
            return Err(Problem::bad_request(format_args!(
                "{topic} has two parts; put its messages into one"
            )));
        }
        let mut messages = Vec::with_capacity(part.messages.len());
        for incoming in part.messages {
            let (message, expect) = incoming.into_message(|part| bytes.slice_ref(part), now)?;
            if expect.is_some() || message.not_before.is_some() {
                return Err(Problem::bad_request(
                    "here a part expects, not a message; and nothing is delayed",
                ));
            }
            messages.push(message);
        }
        if messages.is_empty() {
            return Err(Problem::bad_request(format_args!("{topic} gets no messages")));
        }
        let topic_last = part.expect_seq.map(|seq| Expect::TopicLast(Seq(seq)));
        let key_last = part.expect_key_seq.map(|seq| Expect::KeyLast(Seq(seq)));
        // The condition is about the key of the first message.
        if key_last.is_some() && messages[0].key.is_none() {
            return Err(Problem::bad_request(KEY_MISSING));
        }
        let expect = one_of("expect_seq", topic_last, "expect_key_seq", key_last)?;
        parts.push(Part { topic, messages, expect });
    }
    Ok((parts, asked.acks, options))
}

/// The problem, with the topic that is missing if that is the reason.
fn refused(shared: &Shared, topics: &[TopicName], reason: RejectReason) -> Problem {
    let missing = |topic: &&TopicName| !shared.broker.has_topic(topic);
    match topics.iter().find(missing) {
        Some(topic) if reason == RejectReason::UnknownTopic => {
            unknown_topic(topic).with("topic", topic.as_str())
        }
        _ => reason.into(),
    }
}
