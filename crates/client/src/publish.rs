//! Publishes on their way: encoded as a frame by the caller, answered by the driver.
//!
//! The frame is encoded once, in the caller's task; only its number is put in later. The same
//! bytes go out again after a lost connection, with the same message ids in them.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use gapless_core::cluster::DeliveryReport;
use gapless_core::{
    Durability, Expect, ExpectCell, Fate, Message, Position, PublishOptions, Records,
    RecordsBuilder, RejectReason, Seq, Timestamp, TopicName,
};
use gapless_protocol::{
    COPIED_BYTES_MAX, CellWrite, Commit, CommitPart, EncodeError, FrameError, FrameLimit,
    PartAccepted, PartAck, Publish, PublishAck, Verb, VerbError,
};
use tokio::sync::oneshot;

use crate::error::PublishError;
use crate::options;

/// Bytes taken at first for the frame of a publish: enough for a small message.
const FRAME_BYTES_EXPECTED: usize = 256;
/// Bytes of a record beside its body, as far as most go: an id, a short key.
const RECORD_BYTES_EXPECTED: usize = 48;

/// What the server says to a publish it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ack {
    /// Taken; delivery has begun.
    Accepted(PartAccepted),
    /// Kept until it is due; only then does it get its seq.
    Scheduled {
        /// The id by which it can be cancelled until it is due.
        id: Position,
        /// When it will appear in its topic.
        due: Timestamp,
    },
}

impl Ack {
    /// The seq of the first message; `None` when it is scheduled.
    pub fn seq(&self) -> Option<Seq> {
        self.seq_of(0)
    }

    /// The seq of a message by its index in the publish; `None` when it is scheduled, when
    /// there is no such message, or when the server did not say.
    pub fn seq_of(&self, index: u32) -> Option<Seq> {
        match self {
            Self::Accepted(part) => part.seq_of(index),
            Self::Scheduled { .. } => None,
        }
    }

    /// How safe it is; `None` when it is scheduled.
    pub fn durability(&self) -> Option<Durability> {
        match self {
            Self::Accepted(part) => Some(part.accepted.durability),
            Self::Scheduled { .. } => None,
        }
    }

    /// Whether all of it was there already.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Accepted(part) if part.accepted.duplicate)
    }

    pub(crate) fn new(part: PartAck) -> Result<Self, PublishError> {
        match part {
            PartAck::Accepted(part) => Ok(Self::Accepted(part)),
            PartAck::Scheduled { id, due } => Ok(Self::Scheduled { id, due }),
            PartAck::Rejected(rejection) => Err(rejection.into()),
        }
    }
}

type Answer = Result<PublishAck, PublishError>;

/// The ack of a publish that is on its way. It is sent whether this is awaited or not.
#[derive(Debug)]
#[must_use = "await it to learn what became of the publish"]
pub struct Publishing {
    answer: oneshot::Receiver<Answer>,
}

impl Future for Publishing {
    type Output = Result<Ack, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        poll_answer(&mut self.answer, context).map(|answer| match answer?.parts.pop() {
            Some(part) => Ack::new(part),
            None => Err(PublishError::Disconnected { fate: Fate::Unknown }),
        })
    }
}

/// The report of a publish that is on its way: who took it. It comes after the ack.
#[derive(Debug)]
#[must_use = "await it to learn who took the message"]
pub struct Reporting {
    pub(crate) report: oneshot::Receiver<DeliveryReport>,
}

impl Future for Reporting {
    type Output = Result<DeliveryReport, ReportError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.report).poll(context).map_err(|_| ReportError)
    }
}

/// That there is no report: the publish was not accepted, or its connection was lost. Who took it
/// is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no report: the publish was not accepted, or its connection was lost")]
pub struct ReportError;

/// The acks of a commit that is on its way, one for each topic. It is sent whether this is
/// awaited or not.
#[derive(Debug)]
#[must_use = "await it to learn what became of the commit"]
pub struct Committing {
    answer: oneshot::Receiver<Answer>,
}

impl Future for Committing {
    type Output = Result<Vec<Ack>, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        poll_answer(&mut self.answer, context)
            .map(|answer| answer?.parts.into_iter().map(Ack::new).collect())
    }
}

fn poll_answer(answer: &mut oneshot::Receiver<Answer>, context: &mut Context<'_>) -> Poll<Answer> {
    // A driver that is gone without an answer leaves the fate open.
    let gone = PublishError::Disconnected { fate: Fate::Unknown };
    Pin::new(answer).poll(context).map(|answer| answer.unwrap_or(Err(gone)))
}

/// Several things to be done together: after a crash all are there, or none.
///
/// ```
/// use gapless_client::{Atomic, Message, TopicName};
///
/// let orders: TopicName = "orders".parse()?;
/// let mails: TopicName = "mails".parse()?;
/// let step = Atomic::new()
///     .message(&orders, Message::new("order 7"))
///     .message(&mails, Message::new("mail for order 7"))
///     .cell("billing.cursor", "7");
/// # let _ = step;
/// # Ok::<(), gapless_client::NameError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Atomic {
    parts: Vec<(TopicName, Option<Expect>, Vec<Message>)>,
    cells: Vec<CellWrite>,
}

impl Atomic {
    /// As a step of a member sends it. It needs no ids: it is never sent twice, and messages
    /// that are acked in it are handed out once.
    pub(crate) fn into_commit(self, options: &PublishOptions) -> Result<Commit, PublishError> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for (topic, expect, messages) in self.parts {
            let mut records = RecordsBuilder::default();
            for message in messages {
                if message.not_before.is_some() {
                    return Err(PublishError::Rejected(RejectReason::InvalidPayload));
                }
                records.push(&message).map_err(PublishError::Invalid)?;
            }
            parts.push(CommitPart { topic, expect, records: records.finish() });
        }
        Ok(Commit { options: *options, parts, cells: self.cells })
    }

    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One message more for a topic.
    #[must_use]
    pub fn message(mut self, topic: &TopicName, message: Message) -> Self {
        self.part(topic).2.push(message);
        self
    }

    /// What must be true of a topic; if it no longer is, nothing of all is done.
    #[must_use]
    pub fn expect(mut self, topic: &TopicName, expect: Expect) -> Self {
        self.part(topic).1 = Some(expect);
        self
    }

    /// Sets a small named value.
    #[must_use]
    pub fn cell(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        let (name, value) = (name.into(), Some(value.into()));
        self.cells.push(CellWrite { name, value, expect: ExpectCell::Anything });
        self
    }

    /// Sets a small named value, on condition that it is as expected: otherwise nothing of all
    /// is done, and the answer is [`RejectReason::ExpectedCell`].
    #[must_use]
    pub fn cell_if(
        mut self,
        name: impl Into<Bytes>,
        expect: ExpectCell,
        value: impl Into<Bytes>,
    ) -> Self {
        self.cells.push(CellWrite { name: name.into(), value: Some(value.into()), expect });
        self
    }

    /// Removes a small named value.
    #[must_use]
    pub fn remove_cell(mut self, name: impl Into<Bytes>) -> Self {
        let expect = ExpectCell::Anything;
        self.cells.push(CellWrite { name: name.into(), value: None, expect });
        self
    }

    fn part(&mut self, topic: &TopicName) -> &mut (TopicName, Option<Expect>, Vec<Message>) {
        let at = self.parts.iter().position(|(known, ..)| known == topic).unwrap_or_else(|| {
            self.parts.push((topic.clone(), None, Vec::new()));
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }
}

/// Gives messages ids that no other message has.
#[derive(Debug)]
pub(crate) struct IdSource {
    instance: u64,
    next: AtomicU64,
    ids: options::Ids,
}

impl IdSource {
    pub(crate) fn new(ids: options::Ids) -> Self {
        Self { instance: random(), next: AtomicU64::new(1), ids }
    }

    /// The message with an id, unless it has one or ids are off.
    fn give(&self, message: &mut Message) {
        if message.id.is_none() && self.ids == options::Ids::Unique {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let mut id = [0; 16];
            id[..8].copy_from_slice(&self.instance.to_le_bytes());
            id[8..].copy_from_slice(&number.to_le_bytes());
            message.id = Some(Bytes::copy_from_slice(&id));
        }
    }

    fn records(&self, messages: Vec<Message>) -> Result<(Records, bool), PublishError> {
        let body = |message: &Message| message.body.as_ref().map_or(0, Bytes::len);
        let expected = messages.iter().map(|each| body(each) + RECORD_BYTES_EXPECTED).sum();
        let mut builder = RecordsBuilder::with_capacity(expected);
        let mut all_have_ids = true;
        for mut message in messages {
            self.give(&mut message);
            all_have_ids &= message.id.is_some();
            builder.push(&message).map_err(PublishError::Invalid)?;
        }
        Ok((builder.finish(), all_have_ids))
    }
}

/// A number that differs between clients, as far as the standard library's own seeds do.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A publish as a frame, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Everything, or everything but the tail.
    pub(crate) frame: BytesMut,
    /// A body that is too large to be copied.
    pub(crate) tail: Option<Bytes>,
    /// Whether it can be sent twice without being stored twice.
    pub(crate) repeatable: bool,
    reply: Option<oneshot::Sender<Answer>>,
    /// Where the report goes that comes after the answer.
    pub(crate) report: Option<oneshot::Sender<DeliveryReport>>,
}

impl Outgoing {
    pub(crate) fn publish(
        (topic, options): (&TopicName, &PublishOptions),
        messages: Vec<Message>,
        ids: &IdSource,
    ) -> Result<Self, PublishError> {
        let not_before = messages.iter().find_map(|message| message.not_before);
        if messages.is_empty() || (not_before.is_some() && messages.len() > 1) {
            return Err(PublishError::Rejected(RejectReason::InvalidPayload));
        }
        let (records, repeatable) = ids.records(messages)?;
        let publish = Publish { topic: topic.clone(), options: *options, not_before, records };
        Self::encode(&publish.into(), repeatable)
    }

    pub(crate) fn commit(
        atomic: Atomic,
        options: &PublishOptions,
        ids: &IdSource,
    ) -> Result<Self, PublishError> {
        // A cell that is written again could undo what another client wrote in between.
        let mut repeatable = atomic.cells.is_empty();
        let mut parts = Vec::with_capacity(atomic.parts.len());
        for (topic, expect, messages) in atomic.parts {
            if messages.iter().any(|message| message.not_before.is_some()) {
                return Err(PublishError::Rejected(RejectReason::InvalidPayload));
            }
            let (records, all_have_ids) = ids.records(messages)?;
            repeatable &= all_have_ids;
            parts.push(CommitPart { topic, expect, records });
        }
        let commit = Commit { options: *options, parts, cells: atomic.cells };
        Self::encode(&commit.into(), repeatable)
    }

    fn encode(verb: &Verb, repeatable: bool) -> Result<Self, PublishError> {
        let mut frame = BytesMut::with_capacity(FRAME_BYTES_EXPECTED);
        let mut tail = None;
        let ids = gapless_protocol::Ids::NONE;
        verb.encode_head(ids, FrameLimit::MAX, &mut frame, &mut |part| tail = Some(part.clone()))
            .map_err(refused)?;
        if let Some(small) = tail.take_if(|tail| tail.len() <= COPIED_BYTES_MAX) {
            frame.extend_from_slice(&small);
        }
        Ok(Self { frame, tail, repeatable, reply: None, report: None })
    }

    /// How many bytes it has on the wire.
    pub(crate) fn bytes(&self) -> u64 {
        (self.frame.len() + self.tail.as_ref().map_or(0, Bytes::len)) as u64
    }

    pub(crate) fn answer(mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            // A caller that does not wait for it has dropped the receiver.
            let _ = reply.send(answer);
        }
    }
}

/// A publish that is sent by `send`, and the future of its answer.
pub(crate) fn publishing(
    outgoing: Result<Outgoing, PublishError>,
    send: impl FnOnce(Outgoing),
) -> Publishing {
    Publishing { answer: answered(outgoing, send) }
}

/// The same for a commit.
pub(crate) fn committing(
    outgoing: Result<Outgoing, PublishError>,
    send: impl FnOnce(Outgoing),
) -> Committing {
    Committing { answer: answered(outgoing, send) }
}

fn answered(
    outgoing: Result<Outgoing, PublishError>,
    send: impl FnOnce(Outgoing),
) -> oneshot::Receiver<Answer> {
    let (reply, answer) = oneshot::channel();
    match outgoing {
        Ok(mut outgoing) => {
            outgoing.reply = Some(reply);
            send(outgoing);
        }
        Err(error) => {
            let _ = reply.send(Err(error));
        }
    }
    answer
}

fn refused(error: EncodeError) -> PublishError {
    match error {
        EncodeError::Frame(FrameError::TooLarge { bytes, max }) => {
            PublishError::Rejected(RejectReason::TooLarge { bytes: bytes as u64, max: max as u64 })
        }
        EncodeError::Verb(VerbError::Message { error, .. }) => PublishError::Invalid(error),
        EncodeError::Verb(error) => {
            PublishError::Rejected(error.reject_reason().unwrap_or(RejectReason::InvalidPayload))
        }
        _ => PublishError::Rejected(RejectReason::InvalidPayload),
    }
}
