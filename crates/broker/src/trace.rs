//! What traced messages go through: published until acked, delivered, held by a member until it said
//! what became of it.
//!
//! A message is traced if its header `traceparent` says so (the sampled flag), or if it has none
//! and the sink begins a trace for it, which is put into the header. Without a sink this costs
//! the look at one pointer for each publish and each delivery; with one, a look at the headers of
//! each message.
//!
//! The sink must not block. What members hold is remembered here, up to [`HELD_MAX`] messages;
//! beyond that the oldest are forgotten, and their last span is missing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gapless_core::trace::{TRACEPARENT, TraceContext};
use gapless_core::{
    Lease, MemberId, Position, PublishAck, Records, RecordsBuilder, Seq, TopicId, TopicName,
};

use crate::broker::Broker;
use crate::read::delivery::Messages;

/// Messages that members hold and that are traced, at most: some 200 bytes each.
const HELD_MAX: usize = 10_000;

/// Room for the header that a new trace needs.
const HEADER_BYTES: usize = 80;

/// Where spans go.
pub trait TraceSink: Send + Sync + fmt::Debug {
    /// The time, in nanoseconds since 1970.
    fn now_ns(&self) -> u64;
    /// Whether a trace begins with a message that belongs to none; then its context.
    fn begin(&self) -> Option<TraceContext>;
    /// Takes a span, or leaves it out if there are too many. Must not block.
    fn record(&self, span: Span);
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was published: from when it came until its ack was due.
    Publish,
    /// It was handed to a subscriber.
    Deliver,
    /// A member of a group had it: from when it was handed out until the member said what became
    /// of it.
    Process,
}

/// A step of a message, as a part of its trace.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace, and the publisher's span.
    pub parent: TraceContext,
    /// What happened.
    pub step: Step,
    /// The topic of the message.
    pub topic: TopicName,
    /// Its seq, if it got one.
    pub seq: Option<Seq>,
    /// When it began, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// When it was over.
    pub end_ns: u64,
    /// The group, if a member had it.
    pub group: Option<TopicName>,
    /// Which attempt that was; the first is 1.
    pub attempt: Option<u32>,
    /// The number of the subscriber, if it was handed to one.
    pub subscriber: Option<u64>,
    /// What became of it: `flushed`, `acked`, a reason for a refusal …
    pub outcome: &'static str,
    /// Whether that is a failure.
    pub failed: bool,
}

/// What a member holds.
#[derive(Debug)]
struct Held {
    span: Span,
    member: MemberId,
}

/// The sink of a broker, and what is remembered for it.
#[derive(Debug)]
pub(crate) struct Traces {
    sink: Arc<dyn TraceSink>,
    /// By group and position.
    held: Mutex<BTreeMap<(u64, u64), Held>>,
}

impl Broker {
    /// Records what traced messages go through, from now on. Only the first sink counts.
    pub fn trace_to(&self, sink: Arc<dyn TraceSink>) {
        // A second one is left out: the first is in use.
        let _ = self.inner.traces.set(Traces { sink, held: Mutex::default() });
    }
}

/// Messages that are being published.
#[derive(Debug)]
pub(crate) struct Publish {
    sink: Arc<dyn TraceSink>,
    topic: TopicName,
    begin_ns: u64,
    /// The index of each that is traced, and its context.
    traced: Vec<(u32, TraceContext)>,
}

impl Traces {
    /// Looks which of the messages are traced, and lets traces begin.
    pub(crate) fn publish(
        &self,
        topic: &TopicName,
        records: Records,
        bytes_max: usize,
    ) -> (Records, Option<Box<Publish>>) {
        let begin_ns = self.sink.now_ns();
        let mut traced = Vec::new();
        let mut begun = Vec::new();
        for (index, record) in (0..).zip(records.iter()) {
            match TraceContext::of_record(&record) {
                Some(context) if context.sampled => traced.push((index, context)),
                Some(_) => {}
                None => {
                    let body = record.body.map_or(0, <[u8]>::len) + record.headers.len();
                    let fits = body + record.key.map_or(0, <[u8]>::len) + HEADER_BYTES <= bytes_max;
                    if let Some(context) = self.sink.begin().filter(|_| fits) {
                        traced.push((index, context));
                        begun.push((index, context));
                    }
                }
            }
        }
        let records = with_contexts(records, &begun);
        let publish =
            Publish { sink: Arc::clone(&self.sink), topic: topic.clone(), begin_ns, traced };
        let publish = (!publish.traced.is_empty()).then(|| Box::new(publish));
        (records, publish)
    }

    /// Messages were handed to a subscriber: live ones since they were published, others just now.
    pub(crate) fn delivered(&self, subscriber: u64, messages: &Messages, live: bool) {
        let mut now = None;
        for each in messages.records() {
            let Some(parent) = sampled(&each.record) else { continue };
            let end_ns = *now.get_or_insert_with(|| self.sink.now_ns());
            let published_ns = each.time.0.saturating_mul(1_000_000);
            self.sink.record(Span {
                parent,
                step: Step::Deliver,
                topic: messages.topic().clone(),
                seq: Some(each.seq),
                begin_ns: if live { published_ns.min(end_ns) } else { end_ns },
                end_ns,
                group: None,
                attempt: None,
                subscriber: Some(subscriber),
                outcome: if live { "live" } else { "history" },
                failed: false,
            });
        }
    }

    /// Messages were handed to a member of a group.
    pub(crate) fn leased(
        &self,
        (group, name): (TopicId, &TopicName),
        member: MemberId,
        (messages, attempt): (&Messages, u32),
    ) {
        let mut now = None;
        for each in messages.records() {
            let Some(parent) = sampled(&each.record) else { continue };
            let begin_ns = *now.get_or_insert_with(|| self.sink.now_ns());
            let span = Span {
                parent,
                step: Step::Process,
                topic: messages.topic().clone(),
                seq: Some(each.seq),
                begin_ns,
                end_ns: begin_ns,
                group: Some(name.clone()),
                attempt: Some(attempt),
                subscriber: None,
                outcome: "",
                failed: false,
            };
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let before = held.insert((group.0, each.position.0), Held { span, member });
            if held.len() > HELD_MAX {
                held.pop_first();
            }
            drop(held);
            if let Some(before) = before {
                // It is with a member again, so the one before lost it.
                self.end(before.span, "lost", true);
            }
        }
    }

    /// A member said what became of messages.
    pub(crate) fn said(
        &self,
        group: TopicId,
        member: MemberId,
        leases: &[Lease],
        (outcome, failed): (&'static str, bool),
    ) {
        for lease in leases {
            self.said_range(group, member, (lease.first, lease.last), (outcome, failed));
        }
    }

    /// The same of all that it holds up to a position.
    pub(crate) fn said_through(&self, group: TopicId, member: MemberId, through: Position) {
        self.said_range(group, member, (Position(0), through), ("acked", false));
    }

    fn said_range(
        &self,
        group: TopicId,
        member: MemberId,
        (first, last): (Position, Position),
        (outcome, failed): (&'static str, bool),
    ) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let range = (group.0, first.0)..=(group.0, last.0);
        let of_it = held.range(range).filter(|(_, held)| held.member == member);
        let keys: Vec<(u64, u64)> = of_it.map(|(key, _)| *key).collect();
        let ended: Vec<Held> = keys.iter().filter_map(|key| held.remove(key)).collect();
        drop(held);
        for Held { span, .. } in ended {
            self.end(span, outcome, failed);
        }
    }

    fn end(&self, span: Span, outcome: &'static str, failed: bool) {
        let end_ns = self.sink.now_ns().max(span.begin_ns);
        self.sink.record(Span { end_ns, outcome, failed, ..span });
    }
}

impl Publish {
    /// The acks are known.
    pub(crate) fn done(self, acks: &[PublishAck]) {
        let end_ns = self.sink.now_ns().max(self.begin_ns);
        for (index, parent) in self.traced {
            // One ack for all, or one for each.
            let (ack, offset) = match acks {
                [one] => (Some(one), u64::from(index)),
                all => (all.get(index as usize), 0),
            };
            let (seq, outcome, failed) = match ack {
                Some(PublishAck::Accepted(accepted)) => {
                    (Some(accepted.first.plus(offset)), accepted.durability.name(), false)
                }
                Some(PublishAck::Rejected(reason)) => (None, reason.name(), true),
                Some(_) => (None, "accepted", false),
                None => (None, "unknown", true),
            };
            self.sink.record(Span {
                parent,
                step: Step::Publish,
                topic: self.topic.clone(),
                seq,
                begin_ns: self.begin_ns,
                end_ns,
                group: None,
                attempt: None,
                subscriber: None,
                outcome,
                failed,
            });
        }
    }
}

fn sampled(record: &gapless_core::Record<'_>) -> Option<TraceContext> {
    TraceContext::of_record(record).filter(|context| context.sampled)
}

/// The same messages, some of them with a context in their headers.
fn with_contexts(records: Records, contexts: &[(u32, TraceContext)]) -> Records {
    if contexts.is_empty() {
        return records;
    }
    let (mut with, mut contexts) = (RecordsBuilder::default(), contexts.iter().peekable());
    for (index, record) in (0..).zip(records.iter()) {
        let mut message = record.to_message(&records.bytes);
        if let Some((_, context)) = contexts.next_if(|(at, _)| *at == index) {
            message.headers.push((TRACEPARENT.to_owned(), context.header().into()));
        }
        if with.push(&message).is_err() {
            // It would be too long with it, so none of them gets one.
            return records;
        }
    }
    with.finish()
}
