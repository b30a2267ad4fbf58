//! A producer that gathers values for one topic into batches (A6).
//!
//! When a batch is sent is decided by `core/batcher.rs`; here are the values, the timer, and one task
//! that has at most one batch on its way. Each value has a receipt of its own; a batch that is
//! refused refuses all its receipts.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use gapless_broker::{Broker, Publishing};
use gapless_core::batcher::{BatchNumber, Effect, Input};
use gapless_core::{
    Accepted, Batcher, BatcherLimits, BatcherLimitsError, Message, PubSubError, PublishAck,
    PublishOptions, TopicName,
};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::SerializationRegistry;

/// Bytes that a message takes besides its body, about.
const MESSAGE_OVERHEAD_BYTES: u64 = 64;

type Answer = Result<PublishAck, PubSubError>;
type Reply = oneshot::Sender<Answer>;

/// What happens to what has gathered when a producer is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// It is sent, and its acks are waited for so long.
    Flush {
        /// How long.
        wait: Duration,
    },
    /// It is discarded; its receipts say so.
    Discard,
}

/// What became of what was there when a producer was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Values that had gathered and were sent.
    pub flushed: u32,
    /// Values that were discarded.
    pub discarded: u32,
    /// Values that were sent and not answered in time.
    pub unanswered: u32,
}

/// The ack of a value. It is sent whether this is awaited or not.
#[derive(Debug)]
#[must_use = "await it to learn what became of the value"]
pub struct Receipt(oneshot::Receiver<Answer>);

impl Future for Receipt {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        // A task that is gone without an answer was stopped.
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or(Err(PubSubError::Stopped)))
    }
}

/// Gathers values for one topic. Dropping it sends what has gathered.
pub struct BatchingProducer<T> {
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
    values: PhantomData<fn(T)>,
}

struct Shared {
    broker: Broker,
    registry: Arc<SerializationRegistry>,
    topic: TopicName,
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    batcher: Batcher,
    /// Gathered, in order.
    gathered: VecDeque<(Message, Reply)>,
    /// Batches to be sent, in order.
    ready: VecDeque<(BatchNumber, Vec<(Message, Reply)>)>,
    stopped: Option<StopReport>,
    drained: bool,
}

impl<T: Any> BatchingProducer<T> {
    pub(super) fn new(
        broker: &Broker,
        registry: &Arc<SerializationRegistry>,
        topic: &TopicName,
        limits: BatcherLimits,
    ) -> Result<Self, BatcherLimitsError> {
        let state = State {
            batcher: Batcher::new(limits)?,
            gathered: VecDeque::new(),
            ready: VecDeque::new(),
            stopped: None,
            drained: false,
        };
        let shared = Arc::new(Shared {
            broker: broker.clone(),
            registry: Arc::clone(registry),
            topic: topic.clone(),
            state: Mutex::new(state),
            wake: Notify::new(),
        });
        let task = Some(tokio::spawn(run(Arc::clone(&shared))));
        Ok(Self { shared, task, values: PhantomData })
    }

    /// Takes a value; the receipt is its ack. When too much is gathered and on its way, it is
    /// rejected as `QueueFull`.
    pub fn produce(&self, payload: &T) -> Receipt {
        let (reply, answer) = oneshot::channel();
        match self.shared.registry.encode(payload) {
            Ok(envelope) => {
                let message = envelope.into_message();
                let body = message.body.as_ref().map_or(0, |body| body.len() as u64);
                let bytes = body + MESSAGE_OVERHEAD_BYTES;
                self.shared.step(Input::Add { bytes }, Some((message, reply)));
            }
            Err(error) => {
                let _ = reply.send(Ok(PublishAck::Rejected(error.into())));
            }
        }
        Receipt(answer)
    }

    /// Takes no more values, sends or discards what has gathered, and reports which.
    pub async fn stop(mut self, on_stop: OnStop) -> StopReport {
        let flush = matches!(on_stop, OnStop::Flush { .. });
        self.shared.step(Input::Stop { flush }, None);
        let mut unanswered = 0;
        if let (Some(mut task), OnStop::Flush { wait }) = (self.task.take(), on_stop)
            && timeout(wait, &mut task).await.is_err()
        {
            // Its receipts end as stopped.
            task.abort();
            unanswered = self.shared.lock().batcher.queued();
        }
        let report = self.shared.lock().stopped.unwrap_or_default();
        StopReport { unanswered, ..report }
    }
}

impl<T> Drop for BatchingProducer<T> {
    fn drop(&mut self) {
        self.shared.step(Input::Stop { flush: true }, None);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps the batcher and performs its effects.
    fn step(&self, input: Input, mut added: Option<(Message, Reply)>) {
        let mut effects = Vec::new();
        let mut state = self.lock();
        state.batcher.step(self.broker.now(), input, &mut effects);
        for effect in effects {
            state.perform(effect, &mut added);
        }
        drop(state);
        self.wake.notify_one();
    }
}

impl State {
    fn perform(&mut self, effect: Effect, added: &mut Option<(Message, Reply)>) {
        let mut refuse = |answer: Answer| {
            // A caller that does not wait for it has dropped the receiver.
            let _ = added.take().map(|(_, reply)| reply.send(answer));
        };
        match effect {
            Effect::Rejected(reason) => refuse(Ok(PublishAck::Rejected(reason))),
            Effect::Closed => refuse(Err(PubSubError::Stopped)),
            Effect::Queued { .. } => self.gathered.extend(added.take()),
            Effect::Flush { batch, count, .. } => {
                self.ready.push_back((batch, self.gathered.drain(..count as usize).collect()));
            }
            Effect::Stopped { flushed, discarded } => {
                self.stopped = Some(StopReport { flushed, discarded, unanswered: 0 });
                // The receipts of what is discarded end as stopped.
                self.gathered.clear();
            }
            Effect::Drained => self.drained = true,
        }
    }
}

/// Sends batches, one at a time, until it is stopped and all are answered.
async fn run(shared: Arc<Shared>) {
    loop {
        let (next, deadline) = {
            let mut state = shared.lock();
            if state.drained {
                return;
            }
            (state.ready.pop_front(), state.batcher.deadline())
        };
        if let Some((number, batch)) = next {
            send(&shared, batch).await;
            shared.step(Input::Done(number), None);
            continue;
        }
        let woken = shared.wake.notified();
        match deadline.map(|deadline| deadline.since(shared.broker.now())) {
            Some(rest) => {
                if timeout(rest, woken).await.is_err() {
                    shared.step(Input::Tick, None);
                }
            }
            None => woken.await,
        }
    }
}

/// Publishes a batch and answers its receipts.
async fn send(shared: &Shared, batch: Vec<(Message, Reply)>) {
    let (messages, replies): (Vec<Message>, Vec<Reply>) = batch.into_iter().unzip();
    let options = PublishOptions::default();
    let mut publishing = shared.broker.publish_batch(&shared.topic, &messages, &options);
    let acks = std::future::poll_fn(|context| publishing.poll_all(context)).await;
    let ack = acks.map(|mut acks| acks.swap_remove(0));
    let mut fresh = 0;
    for (index, reply) in (0..).zip(replies) {
        let _ = reply.send(ack.clone().map(|ack| match ack {
            PublishAck::Accepted(accepted) => {
                PublishAck::Accepted(one_of(&publishing, accepted, index, &mut fresh))
            }
            ack => ack,
        }));
    }
}

/// The ack of one value of a batch.
fn one_of(publishing: &Publishing, batch: Accepted, index: u32, fresh: &mut u64) -> Accepted {
    let known = publishing.known(0).iter().find(|(at, _)| *at == index);
    let (seq, duplicate) = match known {
        Some((_, seq)) => (*seq, true),
        None => {
            *fresh += 1;
            (batch.first.plus(*fresh - 1), false)
        }
    };
    Accepted { first: seq, last: seq, duplicate, ..batch }
}
