//! Messages that come in, and their acks, which go out in order once they are due.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use gapless_broker::{Atomic, Broker, CreatingTopic, Publishing, Reporting};
use gapless_core::{Expect, ExpectCell, PubSubError, PublishAck, RejectReason};
use gapless_protocol::{
    Commit, ErrorCode, Frame, FrameLimit, GroupStep, Ids, Publish, PublishAck as AckVerb,
    PublishRun, Verb,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

use super::{Connection, Stage};
use crate::answers::{or_error, part_ack, trouble};
use crate::native::deliver::put_with;
use crate::native::group::Said;
use crate::native::requests::delayed;

pub(super) struct Owed {
    pub(super) ids: Ids,
    pub(super) due: Due,
    pub(super) bytes: usize,
}

/// What is answered when it is durable.
pub(super) enum Due {
    /// A publish or commit, and how many messages its parts have.
    Publishing(Publishing, Vec<u32>),
    /// Publishes of one message each that were taken together, and the id of each.
    Run(Publishing, Vec<[u8; 16]>),
    /// A topic that is being created.
    Making(CreatingTopic),
    /// What a member of a group said.
    Said(Said),
}

/// A publish that must wait, and with it everything behind it: so order holds.
pub(super) struct Stalled {
    pub(super) frame: Frame,
    until: Until,
}

enum Until {
    /// The journal may have room: then the frame is handled again.
    Room(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// It is published on a thread that may block, since the newest message of a key may have to
    /// be looked for on the disk.
    Published { publishing: JoinHandle<Publishing>, waits: bool, counts: Vec<u32>, ids: Ids },
}

impl Owed {
    /// Puts the answers, once they are known; a report comes later.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        limit: FrameLimit,
        put: &mut dyn FnMut(&Verb, Ids),
    ) -> Poll<Option<Reporting>> {
        let mut report = None;
        match &mut self.due {
            Due::Publishing(publishing, counts) => {
                let acks = ready!(publishing.poll_all(context));
                let answer = acks.map(|acks| {
                    let parts = acks.iter().zip(counts.iter()).enumerate();
                    let part = |(at, (ack, count)): (usize, (&PublishAck, &u32))| {
                        part_ack(ack, *count, publishing.known(at))
                    };
                    AckVerb { parts: parts.map(part).collect() }.within(limit).into()
                });
                put_ack(answer, self.ids, put);
                // Without an id the client does not wait for the report either.
                report = publishing.take_report().filter(|_| self.ids.corr_id != [0; 16]);
            }
            Due::Run(publishing, msg_ids) => {
                let acks = ready!(publishing.poll_all(context));
                // One verb for all, since making one for each would cost as much as the rest. Those
                // without an id expect no answer.
                let mut verb = Verb::from(AckVerb { parts: Vec::with_capacity(1) });
                for (index, &msg_id) in msg_ids.iter().enumerate() {
                    if msg_id == [0; 16] {
                        continue;
                    }
                    let ids = Ids { msg_id: [0; 16], corr_id: msg_id };
                    match (&acks, &mut verb) {
                        (Ok(acks), Verb::PublishAck(ack)) => {
                            ack.parts.clear();
                            ack.parts.push(part_ack(&acks[index], 1, &[]));
                        }
                        (Ok(_), _) => {}
                        (Err(failed), _) => verb = trouble(failed).into(),
                    }
                    put(&verb, ids);
                }
            }
            Due::Making(topic) => {
                let made = ready!(Pin::new(topic).poll(context));
                put(&or_error(made, Into::into), self.ids);
            }
            Due::Said(said) => {
                let done = ready!(said.poll(context)).map(Verb::from);
                put(&done.unwrap_or_else(|failed| trouble(&failed).into()), self.ids);
            }
        }
        Poll::Ready(report)
    }
}

/// Whether the newest message of a key must be known: it may be on the disk only.
fn is_about_key(expect: Option<Expect>) -> bool {
    matches!(expect, Some(Expect::KeyLast(_)))
}

/// Answers a publish, unless its sender gave it no id: then no answer is expected.
fn put_ack(answer: Result<Verb, PubSubError>, ids: Ids, put: &mut dyn FnMut(&Verb, Ids)) {
    if ids.corr_id != [0; 16] {
        put(&answer.unwrap_or_else(|failed| trouble(&failed).into()), ids);
    }
}

impl Connection {
    pub(super) fn ack(&mut self, ack: AckVerb, ids: Ids) {
        let (output, limit) = (&mut self.output, self.limit);
        put_ack(Ok(ack.into()), ids, &mut |verb, ids| put_with(output, verb, ids, limit));
    }

    /// Publishes that came one by one and can be taken together.
    pub(super) fn next_run(&mut self) -> Option<PublishRun> {
        if self.alone > 0 {
            self.alone -= 1;
            return None;
        }
        if self.stage == Stage::New { None } else { PublishRun::look(&self.input, self.limit) }
    }

    pub(super) fn publish_run(&mut self, run: PublishRun) {
        let PublishRun { topic, options, records, msg_ids, bytes } = run;
        self.log_access("Publish", topic.as_str(), msg_ids.len() as u64);
        if !self.may_run(&topic, msg_ids.len(), records.bytes.len()) {
            // Each is refused, or finds its quota, by itself.
            self.alone = msg_ids.len();
            return;
        }
        match self.shared.broker.publish_run(&topic, records, &options) {
            Some(publishing) => {
                self.input.advance(bytes);
                self.owe_later(Due::Run(publishing, msg_ids), bytes, Ids::NONE);
            }
            // One of them will be refused; each is to get the answer it deserves.
            None => self.alone = msg_ids.len(),
        }
    }

    pub(super) fn publish(&mut self, frame: Frame, publish: Publish, ids: Ids) {
        let broker = &self.shared.broker;
        let (count, waits) = (publish.records.count, publish.not_before.is_none());
        if waits && is_about_key(publish.options.expect) {
            let broker = broker.clone();
            let Publish { topic, options, records, .. } = publish;
            let work = move || broker.publish_records(&topic, records, &options);
            return self.publish_aside((frame, waits), work, vec![count], ids);
        }
        let publishing = match publish.not_before {
            None => broker.publish_records(&publish.topic, publish.records, &publish.options),
            Some(at) => match delayed(&publish, at) {
                Some(message) => broker.publish(&publish.topic, &message, &publish.options),
                None => {
                    let rejected = PublishAck::Rejected(RejectReason::InvalidPayload);
                    let parts = vec![part_ack(&rejected, count, &[])];
                    return self.ack(AckVerb { parts }, ids);
                }
            },
        };
        self.owe((frame, waits), publishing, vec![count], ids);
    }

    pub(super) fn commit(&mut self, frame: Frame, commit: Commit, ids: Ids) {
        self.commit_with(Atomic::new(), (frame, commit), ids);
    }

    /// A commit that acks as well.
    pub(super) fn step(&mut self, frame: Frame, step: GroupStep, ids: Ids) {
        let mut atomic = Atomic::new();
        for ack in &step.acks {
            match self.members.handle_of(ack) {
                Ok(handle) => atomic = atomic.ack(handle, &ack.leases),
                Err(failed) => return self.put(failed, ids),
            }
        }
        self.commit_with(atomic, (frame, step.commit), ids);
    }

    pub(super) fn commit_with(
        &mut self,
        mut atomic: Atomic,
        (frame, commit): (Frame, Commit),
        ids: Ids,
    ) {
        let waits = commit.cells.is_empty();
        let looks_up = commit.parts.iter().any(|part| is_about_key(part.expect));
        let mut counts: Vec<u32> = commit.parts.iter().map(|part| part.records.count).collect();
        for part in commit.parts {
            atomic = atomic.publish_records(&part.topic, part.records, part.expect);
        }
        for cell in commit.cells {
            if cell.expect != ExpectCell::Anything {
                atomic = atomic.expect_cell(cell.name.clone(), cell.expect);
            }
            atomic = match cell.value {
                Some(value) => atomic.set_cell(cell.name, value),
                None => atomic.remove_cell(cell.name),
            };
        }
        if counts.is_empty() {
            counts.push(0);
        }
        if looks_up {
            let (broker, options) = (self.shared.broker.clone(), commit.options);
            let work = move || broker.commit(atomic, &options);
            return self.publish_aside((frame, waits), work, counts, ids);
        }
        let publishing = self.shared.broker.commit(atomic, &commit.options);
        self.owe((frame, waits), publishing, counts, ids);
    }

    /// Publishes where blocking does no harm; nothing is read until that is done.
    fn publish_aside(
        &mut self,
        (frame, waits): (Frame, bool),
        work: impl FnOnce() -> Publishing + Send + 'static,
        counts: Vec<u32>,
        ids: Ids,
    ) {
        let publishing = tokio::task::spawn_blocking(work);
        let until = Until::Published { publishing, waits, counts, ids };
        self.stalled = Some(Box::new(Stalled { frame, until }));
    }

    /// Goes on with what had to wait. Tells whether it did.
    pub(super) fn go_on(&mut self, context: &mut Context<'_>) -> bool {
        let Some(stalled) = &mut self.stalled else { return false };
        match &mut stalled.until {
            Until::Room(room) => {
                if room.as_mut().poll(context).is_pending() {
                    return false;
                }
                let stalled = self.stalled.take().map(|stalled| stalled.frame);
                stalled.into_iter().for_each(|frame| self.handle(frame));
            }
            Until::Published { publishing, .. } => {
                let Poll::Ready(done) = Pin::new(publishing).poll(context) else { return false };
                let Some(stalled) = self.stalled.take() else { return false };
                let Stalled { frame, until: Until::Published { waits, counts, ids, .. } } =
                    *stalled
                else {
                    return false;
                };
                match done {
                    Ok(publishing) => self.owe((frame, waits), publishing, counts, ids),
                    Err(failed) => self.refuse(ErrorCode::Internal, &failed, ids),
                }
            }
        }
        true
    }

    /// Remembers to send an ack. If the journal has no room at the moment, the frame waits,
    /// and with it everything behind it: so order holds and nothing is refused. Delayed
    /// messages and cells have limits of their own that waiting does not lift: these do not.
    pub(super) fn owe(
        &mut self,
        (frame, waits): (Frame, bool),
        publishing: Publishing,
        counts: Vec<u32>,
        ids: Ids,
    ) {
        if waits && publishing.needs_room() {
            let broker: Broker = self.shared.broker.clone();
            let room = Box::pin(async move { broker.room().await });
            self.stalled = Some(Box::new(Stalled { frame, until: Until::Room(room) }));
            return;
        }
        self.owe_later(Due::Publishing(publishing, counts), frame.bytes(), ids);
    }

    pub(super) fn owe_later(&mut self, mut due: Due, bytes: usize, ids: Ids) {
        self.was_live = true;
        if let Due::Publishing(publishing, _) | Due::Run(publishing, _) = &mut due {
            // Others publish too: then one write or flush is for all of them, and none does its own.
            let last = self.shared.published_last.swap(self.session.number, Ordering::Relaxed);
            self.is_one_of_many = last != self.session.number;
            if self.is_one_of_many {
                publishing.gather();
            }
        }
        self.in_flight_bytes += bytes;
        self.shared.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.publishes.push_back(Owed { ids, due, bytes });
    }

    pub(super) fn settle_in_flight(&mut self, bytes: usize) {
        self.in_flight_bytes -= bytes;
        self.shared.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A client with a single publish in flight waits for it and does nothing else: then the flush
    /// is done here, which saves two wake-ups. The runtime moves other tasks to another thread.
    pub(super) fn flush_here(&mut self) {
        if let [Owed { due: Due::Publishing(publishing, _), .. }] = self.publishes.as_slices().0
            && self.input.is_empty()
            && !self.is_one_of_many
            && publishing.may_lead()
            && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
        {
            tokio::task::block_in_place(|| publishing.lead());
            self.look_at_clock();
        }
    }

    /// Sends the acks that are due, in order. Returns whether there was any.
    pub(super) fn answer_publishes(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        self.flush_here();
        while let Some(owed) = self.publishes.front_mut() {
            let (output, limit) = (&mut self.output, self.limit);
            let mut put = |verb: &Verb, ids| put_with(output, verb, ids, limit);
            let Poll::Ready(report) = owed.poll(context, limit, &mut put) else { break };
            let (bytes, ids) = (owed.bytes, owed.ids);
            self.reports.extend(report.map(|report| (ids, report)));
            self.publishes.pop_front();
            self.settle_in_flight(bytes);
            did = true;
        }
        did
    }

    /// Sends the reports that are complete. Returns whether there was any.
    pub(super) fn answer_reports(&mut self, context: &mut Context<'_>) -> bool {
        let mut at = 0;
        let before = self.reports.len();
        while let Some((ids, report)) = self.reports.get_mut(at) {
            let ids = *ids;
            match Pin::new(report).poll(context) {
                Poll::Ready(report) => {
                    drop(self.reports.swap_remove(at));
                    self.put(report, ids);
                }
                Poll::Pending => at += 1,
            }
        }
        self.reports.len() < before
    }
}
