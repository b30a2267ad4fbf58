//! A producer that gathers messages into batches (A6).
//!
//! When a batch is sent is decided by `gapless_core::batcher`; here are the messages, the
//! timer, and the one task that hands each sender its own part of a batch's ack.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::batcher::{BatchNumber, Effect, Input};
use gapless_core::{
    Batcher, BatcherLimits, BatcherLimitsError, Durability, Fate, Message, PublishOptions,
    RejectReason, Seq, TopicName,
};
use gapless_protocol::Known;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::client::Client;
use crate::error::PublishError;
use crate::publish::{Ack, Publishing};

/// Bytes that a message takes besides its parts, about.
const MESSAGE_OVERHEAD_BYTES: usize = 32;

/// What became of one message of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its place in its topic, if the server said.
    pub seq: Option<Seq>,
    /// How safe it is.
    pub durability: Durability,
    /// Whether it was there already.
    pub duplicate: bool,
}

/// The ack of a message that was given to a [`BatchingProducer`]. It is sent whether this is
/// awaited or not.
#[derive(Debug)]
#[must_use = "await it to learn what became of the message"]
pub struct Sending {
    answer: oneshot::Receiver<Result<Sent, PublishError>>,
}

impl Future for Sending {
    type Output = Result<Sent, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let gone = PublishError::Disconnected { fate: Fate::Unknown };
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(gone)))
    }
}

/// What becomes of messages that have gathered when a producer is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// They are sent.
    Flush,
    /// They are not sent; their senders get [`PublishError::Closed`].
    Discard,
}

/// What a stop did with messages that had gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// How many were sent.
    pub flushed: u32,
    /// How many were discarded.
    pub discarded: u32,
}

type Reply = oneshot::Sender<Result<Sent, PublishError>>;

/// Gathers messages for one topic; created by [`Client::batching`].
///
/// A batch is sent when it is large enough or its first message has waited long enough.
/// Dropping the producer sends what has gathered.
#[derive(Debug)]
pub struct BatchingProducer {
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    topic: TopicName,
    options: PublishOptions,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug)]
struct State {
    batcher: Batcher,
    /// Gathered and not sent, in order.
    gathered: VecDeque<(Message, Reply)>,
    /// Sent and not taken up by the task, in order.
    sent: VecDeque<Batch>,
    stopped: Option<StopReport>,
    drained: bool,
}

#[derive(Debug)]
struct Batch {
    number: BatchNumber,
    publishing: Publishing,
    replies: Vec<Reply>,
}

impl BatchingProducer {
    pub(crate) fn new(
        client: Client,
        topic: TopicName,
        limits: BatcherLimits,
        options: PublishOptions,
    ) -> Result<Self, BatcherLimitsError> {
        let state = State {
            batcher: Batcher::new(limits)?,
            gathered: VecDeque::new(),
            sent: VecDeque::new(),
            stopped: None,
            drained: false,
        };
        let (state, wake) = (Mutex::new(state), Notify::new());
        let shared = Arc::new(Shared { client, topic, options, state, wake });
        let task = tokio::spawn(run(Arc::clone(&shared)));
        Ok(Self { shared, task: Some(task) })
    }

    /// Takes a message; the future is its ack. When too much is gathered and on its way it
    /// is rejected ([`RejectReason::QueueFull`]).
    pub fn send(&self, message: Message) -> Sending {
        let (reply, answer) = oneshot::channel();
        if let Err(error) = message.validate() {
            let _ = reply.send(Err(PublishError::Invalid(error)));
        } else if message.not_before.is_some() {
            // Each delayed message has an ack of its own kind.
            let _ = reply.send(Err(PublishError::Rejected(RejectReason::InvalidPayload)));
        } else {
            let bytes = message_bytes(&message);
            self.shared.step(Input::Add { bytes }, Some((message, reply)));
        }
        Sending { answer }
    }

    /// How many messages are gathered or on their way.
    pub fn queued(&self) -> u32 {
        self.shared.lock().batcher.queued()
    }

    /// Takes no more messages, sends or discards what has gathered, waits for all acks, and
    /// reports which.
    pub async fn stop(mut self, on_stop: OnStop) -> StopReport {
        self.shared.step(Input::Stop { flush: on_stop == OnStop::Flush }, None);
        if let Some(task) = self.task.take() {
            // A task that panicked has sent no answer; the report is still true.
            let _ = task.await;
        }
        self.shared.lock().stopped.unwrap_or_default()
    }
}

impl Drop for BatchingProducer {
    fn drop(&mut self) {
        self.shared.step(Input::Stop { flush: true }, None);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps the batcher and performs its effects; publishing enters in their order.
    fn step(&self, input: Input, mut added: Option<(Message, Reply)>) {
        let mut effects = Vec::new();
        let mut state = self.lock();
        state.batcher.step(self.client.clock().now(), input, &mut effects);
        for effect in effects {
            self.perform(effect, &mut state, &mut added);
        }
        drop(state);
        self.wake.notify_one();
    }

    fn perform(&self, effect: Effect, state: &mut State, added: &mut Option<(Message, Reply)>) {
        match effect {
            Effect::Queued { .. } => state.gathered.extend(added.take()),
            Effect::Rejected(reason) => refuse(added, PublishError::Rejected(reason)),
            Effect::Closed => refuse(added, PublishError::Closed),
            Effect::Flush { batch, count, .. } => {
                let (messages, replies) = state.gathered.drain(..count as usize).unzip();
                let publishing = self.client.publish_batch(&self.topic, messages, &self.options);
                state.sent.push_back(Batch { number: batch, publishing, replies });
            }
            Effect::Stopped { flushed, discarded } => {
                state.stopped = Some(StopReport { flushed, discarded });
                for (_, reply) in state.gathered.drain(..) {
                    let _ = reply.send(Err(PublishError::Closed));
                }
            }
            Effect::Drained => state.drained = true,
        }
    }
}

fn refuse(added: &mut Option<(Message, Reply)>, error: PublishError) {
    if let Some((_, reply)) = added.take() {
        let _ = reply.send(Err(error));
    }
}

/// Ticks the batcher and hands out acks, until it is stopped and all are there.
async fn run(shared: Arc<Shared>) {
    let clock = shared.client.clock();
    let mut current: Option<Batch> = None;
    loop {
        let deadline = {
            let mut state = shared.lock();
            if current.is_none() {
                // Acks come in the order of the batches, so that one is awaited at a time.
                current = state.sent.pop_front();
            }
            if state.drained && current.is_none() {
                return;
            }
            state.batcher.deadline()
        };
        let woken = async {
            match &mut current {
                Some(batch) => tokio::select! {
                    ack = &mut batch.publishing => Some(ack),
                    () = shared.wake.notified() => None,
                },
                None => {
                    shared.wake.notified().await;
                    None
                }
            }
        };
        match timeout_at(clock.instant(deadline), woken).await {
            Ok(Some(ack)) => {
                if let Some(batch) = current.take() {
                    hand_out(&ack, batch.replies);
                    shared.step(Input::Done(batch.number), None);
                }
            }
            Ok(None) => {}
            Err(_) => shared.step(Input::Tick, None),
        }
    }
}

fn hand_out(ack: &Result<Ack, PublishError>, replies: Vec<Reply>) {
    for (index, reply) in (0..).zip(replies) {
        let _ = reply.send(match ack {
            Ok(Ack::Accepted(part)) => {
                let known = match &part.known {
                    Known::These(known) => known.iter().any(|(at, _)| *at == index),
                    _ => part.accepted.duplicate,
                };
                let durability = part.accepted.durability;
                Ok(Sent { seq: part.seq_of(index), durability, duplicate: known })
            }
            // Delayed messages are not taken, so that none can be scheduled.
            Ok(Ack::Scheduled { .. }) => Err(PublishError::Disconnected { fate: Fate::Unknown }),
            Err(error) => Err(error.clone()),
        });
    }
}

fn message_bytes(message: &Message) -> u64 {
    let optional = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let parts = optional(&message.body) + optional(&message.key) + optional(&message.id);
    (parts + headers + MESSAGE_OVERHEAD_BYTES) as u64
}
