//! Publishing: from messages to an ack.
//!
//! The records are encoded and their checksum computed before any lock. Then, under the topic's
//! lock and in one place of the journal's frame, the topic decides and the numbers are assigned.
//! Several topics, cells and delayed messages can share that one place: they are there together
//! after a crash or not at all.

pub(crate) mod commit;
pub(crate) mod delayed;
pub(crate) mod offer;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use gapless_core::{
    Durability, Expect, ExpectCell, Lease, MemberId, Message, Position, PubSubError, PublishAck,
    PublishOptions, Records, RecordsBuilder, RejectReason, Seq, TopicName,
};
use gapless_journal::Ticket;

use crate::broker::Broker;
use crate::clock::Clock;
use crate::error::unconfirmed;
use crate::group::LiveGroup;
use crate::group::member::MemberHandle;
use crate::publish::commit::Prepared;
use crate::publish::offer::Acks;
use crate::topic::live_topic::LiveTopic;
use crate::trace::Publish;
use crate::volatile::report::Reporting;

/// A publish under way: await it, or block on it with [`Publishing::wait`]. The message is
/// accepted or refused already; what is left is that it becomes durable. Dropping it does
/// not take the message back.
#[must_use = "the ack says whether the message was accepted"]
pub struct Publishing {
    pub(crate) acks: Vec<PublishAck>,
    /// By the index of a part: which of its messages were there already, and under what seq.
    pub(crate) known: Vec<(usize, Vec<(u32, Seq)>)>,
    pub(crate) result: Result<(), PubSubError>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) timing: Option<Timing>,
    pub(crate) report: Option<Reporting>,
    /// Whether it is of something that lives in memory only.
    pub(crate) volatile: bool,
    /// What of it is traced.
    pub(crate) traced: Option<Box<Publish>>,
}

/// When a publish began, and where to record how long it took.
pub(crate) struct Timing {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seconds: metrics::Histogram,
    pub(crate) began: Duration,
}

impl Publishing {
    /// Without any ack yet.
    pub(crate) fn new() -> Self {
        Self {
            acks: Vec::new(),
            known: Vec::new(),
            result: Ok(()),
            ticket: None,
            timing: None,
            report: None,
            volatile: false,
            traced: None,
        }
    }

    pub(crate) fn failed(error: PubSubError) -> Self {
        Self { result: Err(error), ..Self::new() }
    }

    pub(crate) fn rejected(reason: RejectReason) -> Self {
        Self::ready(PublishAck::Rejected(reason))
    }

    pub(crate) fn ready(ack: PublishAck) -> Self {
        Self { acks: vec![ack], ..Self::new() }
    }

    pub(crate) fn map_acks(mut self, change: impl FnMut(PublishAck) -> PublishAck) -> Self {
        self.acks = std::mem::take(&mut self.acks).into_iter().map(change).collect();
        self
    }

    /// Whether the broker took it; durability may still be to come.
    pub fn is_accepted(&self) -> bool {
        let rejected = |ack: &PublishAck| matches!(ack, PublishAck::Rejected(_));
        self.result.is_ok() && !self.acks.iter().any(rejected)
    }

    /// The reason, if it was refused.
    pub fn rejected_with(&self) -> Option<RejectReason> {
        self.acks.iter().find_map(|ack| ack.rejected().copied())
    }

    /// Whether it was refused because the journal is full, so that it may be tried again after
    /// [`Broker::room`].
    pub fn needs_room(&self) -> bool {
        self.rejected_with() == Some(RejectReason::QueueFull) && !self.volatile
    }

    /// Which messages of a part were there already, by ascending index, each with its seq.
    pub fn known(&self, part: usize) -> &[(u32, Seq)] {
        let found = self.known.iter().find(|(at, _)| *at == part);
        found.map_or(&[], |(_, known)| known)
    }

    /// The report of who takes it, if one was asked for and it was accepted.
    pub fn take_report(&mut self) -> Option<Reporting> {
        self.report.take()
    }

    /// As [`Publishing::all`], for callers that poll.
    pub fn poll_all(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<PublishAck>, PubSubError>> {
        let done = self.poll_done(context);
        done.map(|done| done.map(|()| std::mem::take(&mut self.acks)))
    }

    /// Whether it needs a flush and no thread is leading one.
    pub fn may_lead(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::may_lead)
    }

    /// Makes it durable in this thread, unless another thread is already flushing: faster than
    /// awaiting it for a caller that has nothing else to do, but it blocks.
    pub fn lead(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.lead();
        }
    }

    /// Does not write when it is polled, but lets it be written together with what others publish
    /// meanwhile: for a caller that is one of many.
    pub fn gather(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            ticket.gather();
        }
    }

    /// Blocks until the ack is known. Flushes in this thread if no other thread does.
    ///
    /// # Errors
    /// When the system is in trouble; [`PubSubError::fate`] says what became of it.
    pub fn wait(mut self) -> Result<PublishAck, PubSubError> {
        let reached = self.ticket.take().map(Ticket::wait);
        self.finish(reached)?;
        Ok(self.acks.swap_remove(0))
    }

    /// As [`Publishing::wait`], with the ack of every part of an atomic publish.
    ///
    /// # Errors
    /// As [`Publishing::wait`].
    pub fn wait_all(mut self) -> Result<Vec<PublishAck>, PubSubError> {
        let reached = self.ticket.take().map(Ticket::wait);
        self.finish(reached)?;
        Ok(std::mem::take(&mut self.acks))
    }

    fn finish(
        &mut self,
        reached: Option<Result<Durability, gapless_journal::Failure>>,
    ) -> Result<(), PubSubError> {
        self.result.clone()?;
        if let Some(reached) = reached {
            let durability = reached.map_err(|failure| unconfirmed(&failure))?;
            for ack in &mut self.acks {
                if let PublishAck::Accepted(accepted) = ack {
                    accepted.durability = durability;
                }
            }
        }
        if let Some(Timing { clock, seconds, began }) = self.timing.take() {
            seconds.record(clock.monotonic().saturating_sub(began).as_secs_f64());
        }
        if let Some(traced) = self.traced.take() {
            traced.done(&self.acks);
        }
        Ok(())
    }

    fn poll_done(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PubSubError>> {
        let reached = ready!(poll_ticket(&mut self.ticket, context));
        Poll::Ready(self.finish(reached))
    }

    /// Awaits the ack of every part of an atomic publish.
    ///
    /// # Errors
    /// As [`Publishing::wait`].
    pub async fn all(mut self) -> Result<Vec<PublishAck>, PubSubError> {
        std::future::poll_fn(|context| self.poll_done(context)).await?;
        Ok(std::mem::take(&mut self.acks))
    }
}

impl Future for Publishing {
    type Output = Result<PublishAck, PubSubError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_done(context).map(|done| done.map(|()| self.acks.swap_remove(0)))
    }
}

/// What an append has reached, once it has; `None` when there was nothing to wait for.
pub(crate) fn poll_ticket(
    ticket: &mut Option<Ticket>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Durability, gapless_journal::Failure>>> {
    let Some(waiting) = ticket else { return Poll::Ready(None) };
    let reached = ready!(Pin::new(waiting).poll(context));
    *ticket = None;
    Poll::Ready(Some(reached))
}

/// Several publishes, cell writes and a delayed message's end, to be done together.
#[derive(Default)]
pub struct Atomic {
    pub(crate) parts: Vec<Part>,
    pub(crate) cells: Vec<(Bytes, Option<Bytes>)>,
    pub(crate) expected: Vec<(Bytes, ExpectCell)>,
    pub(crate) delay_done: Option<(Arc<LiveTopic>, Seq, bool)>,
    pub(crate) groups: Vec<(Arc<LiveGroup>, GroupPart)>,
    /// Topics of the system may be written: a subsystem does it.
    pub(crate) system: bool,
}

/// What happens to a group in the same append.
pub(crate) enum GroupPart {
    /// A member is done with these.
    Ack { member: MemberId, leases: Vec<Lease> },
    /// These are dead letters now.
    Buried(Vec<(Position, Position)>),
    /// These dead letters were redriven or removed.
    LettersEnded(Vec<(Seq, Seq)>),
}

pub(crate) struct Part {
    pub(crate) topic: TopicName,
    pub(crate) messages: Result<Records, RejectReason>,
    pub(crate) expect: Option<Expect>,
}

impl Atomic {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether what is done beside publishing lets something go, and nothing else.
    pub(crate) fn only_frees_room(&self) -> bool {
        let removed = self.cells.iter().all(|(_, value)| value.is_none());
        let ends = |part: &GroupPart| matches!(part, GroupPart::LettersEnded(_));
        removed && !self.is_empty() && self.groups.iter().all(|(_, part)| ends(part))
    }

    /// Whether there is nothing to do beside publishing.
    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.delay_done.is_none() && self.groups.is_empty()
    }

    /// Adds messages to a topic.
    #[must_use]
    pub fn publish(self, topic: &TopicName, messages: &[Message]) -> Self {
        self.part(topic, encode(messages), None)
    }

    /// Adds messages to a topic, on condition that its last seq, or that of the first
    /// message's key, is as expected.
    #[must_use]
    pub fn publish_if(self, topic: &TopicName, messages: &[Message], expect: Expect) -> Self {
        self.part(topic, encode(messages), Some(expect))
    }

    /// Adds records that were made and checked elsewhere, as a listener does.
    #[must_use]
    pub fn publish_records(
        self,
        topic: &TopicName,
        records: Records,
        expect: Option<Expect>,
    ) -> Self {
        self.part(topic, Ok(records), expect)
    }

    fn part(
        mut self,
        topic: &TopicName,
        messages: Result<Records, RejectReason>,
        expect: Option<Expect>,
    ) -> Self {
        self.parts.push(Part { topic: topic.clone(), messages, expect });
        self
    }

    /// Acks messages that a member holds. If one of them is not with it any more, all of this
    /// is refused with [`RejectReason::LeaseLost`], and nothing is written.
    #[must_use]
    pub fn ack(mut self, member: &MemberHandle, leases: &[Lease]) -> Self {
        let part = GroupPart::Ack { member: member.id, leases: leases.to_vec() };
        self.groups.push((Arc::clone(&member.group), part));
        self
    }

    /// Sets a cell: a small named value, such as a cursor or an offset.
    #[must_use]
    pub fn set_cell(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.cells.push((name.into(), Some(value.into())));
        self
    }

    /// Makes all of this conditional on the present value of a cell: if it is another value,
    /// nothing is done, and the answer is [`RejectReason::ExpectedCell`].
    #[must_use]
    pub fn expect_cell(mut self, name: impl Into<Bytes>, expect: ExpectCell) -> Self {
        self.expected.push((name.into(), expect));
        self
    }

    /// Removes a cell.
    #[must_use]
    pub fn remove_cell(mut self, name: impl Into<Bytes>) -> Self {
        self.cells.push((name.into(), None));
        self
    }
}

fn encode(messages: &[Message]) -> Result<Records, RejectReason> {
    let delayed = messages.iter().any(|message| message.not_before.is_some());
    if messages.is_empty()
        || messages.len() > gapless_core::batch::BATCH_COUNT_MAX as usize
        || delayed
    {
        return Err(RejectReason::InvalidPayload);
    }
    let size = |message: &Message| message.body.as_ref().map_or(0, Bytes::len) + 64;
    let mut records = RecordsBuilder::with_capacity(messages.iter().map(size).sum());
    for message in messages {
        records.push(message).map_err(|_| RejectReason::InvalidPayload)?;
    }
    Ok(records.finish())
}

impl Broker {
    /// Publishes one message.
    pub fn publish(
        &self,
        topic: &TopicName,
        message: &Message,
        options: &PublishOptions,
    ) -> Publishing {
        let now = self.inner.clock.now();
        match message.not_before {
            Some(due) if due > now => self.inner.schedule(topic, message, due, options),
            Some(_) => {
                let message = Message { not_before: None, ..message.clone() };
                self.publish_batch(topic, std::slice::from_ref(&message), options)
            }
            None => self.publish_batch(topic, std::slice::from_ref(message), options),
        }
    }

    /// Publishes messages of one topic together: all are accepted or none, but that
    /// duplicates among them are passed over.
    pub fn publish_batch(
        &self,
        topic: &TopicName,
        messages: &[Message],
        options: &PublishOptions,
    ) -> Publishing {
        match encode(messages) {
            Ok(records) => self.publish_records(topic, records, options),
            Err(reason) => self.inner.reject(topic, reason),
        }
    }

    /// Publishes records that were made and checked elsewhere, as a listener does.
    pub fn publish_records(
        &self,
        topic: &TopicName,
        records: Records,
        options: &PublishOptions,
    ) -> Publishing {
        self.publish_with(topic, records, Acks::Together, options)
    }

    /// Publishes messages of one topic that came one by one, as if each was published alone,
    /// in their order; there is an ack for each. `None` when one of them may not be taken: then
    /// nothing has happened, and each is to be published by itself.
    pub fn publish_run(
        &self,
        topic: &TopicName,
        records: Records,
        options: &PublishOptions,
    ) -> Option<Publishing> {
        if options.expect.is_some() || options.report {
            return None;
        }
        let publishing = self.publish_with(topic, records, Acks::Each, options);
        publishing.rejected_with().is_none().then_some(publishing)
    }

    fn publish_with(
        &self,
        topic: &TopicName,
        records: Records,
        acks: Acks,
        options: &PublishOptions,
    ) -> Publishing {
        if topic.is_system() {
            return self.inner.refuse(topic, RejectReason::InvalidTopic, acks);
        }
        let for_cluster = !options.is_in_force();
        if for_cluster && self.inner.spread.get().is_none() {
            return self.inner.refuse(topic, RejectReason::NotSupported, acks);
        }
        if self.inner.is_closed() {
            return Publishing::failed(PubSubError::Stopped);
        }
        let Some(traces) = self.inner.traces.get() else {
            return self.publish_found(topic, records, acks, options);
        };
        let bytes_max = self.inner.limits.message_bytes_max;
        let (records, traced) = traces.publish(topic, records, bytes_max);
        Publishing { traced, ..self.publish_found(topic, records, acks, options) }
    }

    fn publish_found(
        &self,
        topic: &TopicName,
        records: Records,
        acks: Acks,
        options: &PublishOptions,
    ) -> Publishing {
        let for_cluster = !options.is_in_force();
        match self.inner.topics.find(topic) {
            Some(cell) if cell.lock().is_durable() => {
                if for_cluster || options.report {
                    return self.inner.refuse(topic, RejectReason::NotSupported, acks);
                }
                let part = Prepared::new(cell, records, options.expect).acked(acks);
                self.inner.commit(&mut [part], &Atomic::default(), options)
            }
            Some(cell) => self.inner.publish_volatile(&cell, (&records, acks), options),
            None => self.inner.publish_subject(topic, (&records, acks), options),
        }
    }

    /// Does several things together: after a crash all are there, or none.
    pub fn commit(&self, atomic: Atomic, options: &PublishOptions) -> Publishing {
        self.inner.commit_atomic(atomic, options)
    }

    /// Writes what need not be flushed in the caller's runtime, when its other tasks that are ready
    /// have had their turn: what they publish is written together, and no thread is woken for
    /// it. Wakes those whose publishes are done there, too. Never ends; dropped, the flusher's thread
    /// does all that again.
    pub async fn write_here(&self) {
        struct Writer<'a>(&'a Broker, Option<Waker>);
        impl Drop for Writer<'_> {
            fn drop(&mut self) {
                if let Some(waker) = &self.1 {
                    self.0.inner.journal.forget_writer(waker);
                }
            }
        }
        let mut writer = Writer(self, None);
        let mut yielded = false;
        std::future::poll_fn(|context| {
            let journal = &self.inner.journal;
            if writer.1.is_none() {
                journal.set_writer(context.waker());
                writer.1 = Some(context.waker().clone());
            }
            journal.wake_settled();
            if yielded {
                yielded = false;
                journal.write_gathered();
            } else if journal.wants_writer() {
                // Behind all that is ready.
                yielded = true;
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Resolves when an append that was refused with `QueueFull` may be tried again.
    pub async fn room(&self) {
        let mut asked = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            self.inner.journal.wait_for_room(context.waker());
            Poll::Pending
        })
        .await;
    }
}
