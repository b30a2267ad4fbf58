//! The streams that are in use: their type, their producers, and when they end.
//!
//! What must survive is in cells of the journal: one for the stream (its type, its end,
//! whether it is closed, the last `Stream-Seq`), and one for each of its producers. They are
//! changed under the stream's lock and in the same atomic append as the messages they belong to.
//! Nothing is awaited under the lock.
//!
//! Accepted is not durable: each change has a number, and is not reported before it or a later one
//! is flushed (`settle`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{Atomic, Broker, Publishing, TopicError, TopicPlace};
use gapless_core::{Durability, PublishOptions, Timestamp, TopicName};
use gapless_protocol::ErrorCode;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::answer::{Refusal, accepted, unknown};
use super::expiry::Expiry;
use super::media::MediaType;
use super::producer::Place;
use crate::answers;
use crate::http::listener::server::{Shared, blocking};
use crate::http::values::problem::Problem;

/// Most producers that one stream remembers: each is a cell, and those are bounded for all.
pub(super) const PRODUCERS_MAX: usize = 4096;

/// How often streams that have ended are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

/// How many sweeps pass until streams are looked for whose topics others deleted.
const SWEEPS_UNTIL_PRUNE: u64 = 120;

/// How many cells are removed in one append.
const CELLS_AT_ONCE: usize = 1000;

/// Where the cells of all streams are.
const CELLS: &str = "http.stream/";

/// What a stream is, as its cell keeps it. A topic without one is a stream of bytes that
/// never ends: topics created through other APIs can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    /// The topic's name, which shows whether the cell outlived its topic.
    topic: String,
    pub(super) media: MediaType,
    #[serde(default)]
    pub(super) expiry: Expiry,
    #[serde(default)]
    pub(super) closed: bool,
    #[serde(default)]
    pub(super) stream_seq: Option<String>,
    /// When it was used last, in milliseconds, some while ago.
    #[serde(default)]
    used_ms: u64,
}

/// A stream in use.
pub(super) struct Stream {
    pub(super) id: u64,
    pub(super) name: TopicName,
    state: Mutex<State>,
    /// Changes when the stream is closed.
    pub(super) changed: watch::Sender<()>,
}

pub(super) struct State {
    pub(super) meta: Meta,
    /// Whether there is a cell.
    pub(super) declared: bool,
    /// Whether it is deleted, or about to be.
    pub(super) gone: bool,
    used: Timestamp,
    producers: usize,
    /// Accepted changes, and how many of them are known to be flushed.
    changes: u64,
    settled: u64,
}

/// A change that was accepted: await its ack before reporting it.
pub(super) struct Change {
    pub(super) publishing: Publishing,
    number: u64,
}

impl Stream {
    fn load(broker: &Broker, id: u64, name: &TopicName) -> Self {
        let cell = broker.cell(&cell_name(id));
        let meta: Option<Meta> = cell.and_then(|cell| serde_json::from_slice(&cell).ok());
        let declared = meta.is_some();
        let mut meta = meta.unwrap_or_default();
        name.as_str().clone_into(&mut meta.topic);
        let slack = meta.expiry.slack().unwrap_or_default();
        let used = Timestamp(meta.used_ms).after(slack);
        let producers = broker.cells_under(&producer_cell(id, "")).len();
        let state = State { meta, declared, gone: false, used, producers, changes: 0, settled: 0 };
        Self { id, name: name.clone(), state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a producer.
    pub(super) fn producer(&self, broker: &Broker, id: &str) -> Option<Place> {
        serde_json::from_slice(&broker.cell(&producer_cell(self.id, id))?).ok()
    }

    /// Notes a read or a write, which puts off the end of a stream with a time to live.
    pub(super) fn used(&self, broker: &Broker, state: &mut State) {
        let now = broker.now();
        state.used = state.used.max(now);
        let Some(slack) = state.meta.expiry.slack() else { return };
        if state.declared && now.since(Timestamp(state.meta.used_ms)) >= slack {
            let mut meta = state.meta.clone();
            meta.used_ms = now.0;
            let atomic = Atomic::new().set_cell(cell_name(self.id), meta.to_cell());
            // No request waits for it: if it is lost, the slack covers it.
            let options =
                PublishOptions { durability: Some(Durability::Memory), ..Default::default() };
            if broker.commit(atomic, &options).is_accepted() {
                state.meta = meta;
            }
        }
    }

    /// Commits a change together with the stream's own cell, if it has one or needs one.
    pub(super) fn commit(
        &self,
        broker: &Broker,
        state: &mut State,
        atomic: Atomic,
        meta: Option<Meta>,
    ) -> Change {
        let mut meta = meta.unwrap_or_else(|| state.meta.clone());
        meta.used_ms = broker.now().0;
        let atomic = atomic.set_cell(cell_name(self.id), meta.to_cell());
        let publishing = broker.commit(atomic, &PublishOptions::default());
        if publishing.is_accepted() {
            state.meta = meta;
            state.declared = true;
        }
        Self::change(state, publishing)
    }

    /// Commits a change that leaves the stream's own cell alone.
    pub(super) fn commit_plain(broker: &Broker, state: &mut State, atomic: Atomic) -> Change {
        let publishing = broker.commit(atomic, &PublishOptions::default());
        Self::change(state, publishing)
    }

    fn change(state: &mut State, publishing: Publishing) -> Change {
        state.changes += u64::from(publishing.is_accepted());
        Change { publishing, number: state.changes }
    }

    /// Adds the cell of a producer to a change.
    pub(super) fn with_producer(&self, atomic: Atomic, id: &str, place: Place) -> Atomic {
        let cell = serde_json::to_vec(&place).expect("it holds nothing that JSON cannot");
        atomic.set_cell(producer_cell(self.id, id), cell)
    }

    /// Waits for the ack of a change, and notes that it is flushed.
    pub(super) async fn done(&self, change: Change) -> Result<gapless_core::Accepted, Refusal> {
        let accepted = accepted(change.publishing.await)?;
        let mut state = self.lock();
        state.settled = state.settled.max(change.number);
        Ok(accepted)
    }

    /// Waits until everything that was accepted so far is flushed.
    pub(super) async fn settle(&self, broker: &Broker) -> Result<(), Refusal> {
        let change = {
            let mut state = self.lock();
            if state.gone {
                return Err(unknown());
            }
            if state.settled == state.changes {
                return Ok(());
            }
            // What is flushed later took everything before it along.
            self.commit(broker, &mut state, Atomic::new(), None)
        };
        self.done(change).await.map(drop)
    }

    fn remove_cells(&self, broker: &Broker) {
        let cells = broker.cells_under(&producer_cell(self.id, ""));
        let mut names: Vec<_> = cells.into_iter().map(|(name, _)| name).collect();
        names.push(cell_name(self.id));
        remove_cells(broker, &names);
    }

    /// Whether the stream is closed, as far as others may know.
    pub(super) async fn is_closed(&self, broker: &Broker) -> Result<bool, Refusal> {
        if !self.lock().meta.closed {
            return Ok(false);
        }
        self.settle(broker).await?;
        Ok(true)
    }
}

impl State {
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.meta.expiry.deadline(self.used)
    }

    fn has_ended(&self, now: Timestamp) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Makes room for one more producer, if there is any.
    pub(super) fn count_producer(&mut self) -> Result<(), Refusal> {
        if self.producers >= PRODUCERS_MAX {
            let why = format!("the stream remembers {PRODUCERS_MAX} producers already");
            return Err(Problem::new(ErrorCode::QueueFull, why).into());
        }
        self.producers += 1;
        Ok(())
    }

    pub(super) fn uncount_producer(&mut self) {
        self.producers -= 1;
    }
}

impl Meta {
    pub(super) fn new(name: &TopicName, media: MediaType, expiry: Expiry, closed: bool) -> Self {
        let topic = name.as_str().to_owned();
        Self { topic, media, expiry, closed, stream_seq: None, used_ms: 0 }
    }

    fn to_cell(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it holds nothing that JSON cannot")
    }
}

/// All streams in use. A stream is here from its first use until its topic is gone.
#[derive(Default)]
pub(crate) struct Streams {
    known: Mutex<HashMap<u64, Arc<Stream>>>,
    /// When to look whether a stream has ended: one entry for each that may.
    deadlines: Mutex<BTreeSet<(Timestamp, u64)>>,
}

impl Streams {
    /// Finds the streams that may end by themselves, and clears away what deleted topics left.
    pub(crate) fn open(broker: &Broker) -> Self {
        let streams = Self::default();
        let cells = broker.cells_under(CELLS.as_bytes());
        let mut alive = HashSet::new();
        for (name, value) in &cells {
            let Some((id, None)) = split(name) else { continue };
            let meta: Option<Meta> = serde_json::from_slice(value).ok();
            let topic = meta.as_ref().and_then(|meta| TopicName::parse(&meta.topic).ok());
            let place = topic.as_ref().and_then(|topic| broker.topic_place(topic).ok());
            if let (Some(topic), Some(meta), true) =
                (&topic, &meta, place.is_some_and(|place| place.id == id))
            {
                alive.insert(id);
                if meta.expiry != Expiry::Never {
                    streams.get(broker, id, topic);
                }
            }
        }
        let is_dead = |name: &Bytes| split(name).is_some_and(|(id, _)| !alive.contains(&id));
        let dead: Vec<_> = cells.into_iter().map(|(name, _)| name).filter(is_dead).collect();
        remove_cells(broker, &dead);
        streams
    }

    /// The stream of a topic.
    fn get(&self, broker: &Broker, id: u64, name: &TopicName) -> Arc<Stream> {
        let mut known = lock(&self.known);
        if let Some(stream) = known.get(&id) {
            return Arc::clone(stream);
        }
        let stream = Arc::new(Stream::load(broker, id, name));
        if let Some(deadline) = stream.lock().deadline() {
            lock(&self.deadlines).insert((deadline, id));
        }
        known.insert(id, Arc::clone(&stream));
        stream
    }

    /// Looks at a stream again whose end may have changed.
    pub(super) fn watch(&self, stream: &Stream, deadline: Option<Timestamp>) {
        if let Some(deadline) = deadline {
            lock(&self.deadlines).insert((deadline, stream.id));
        }
    }

    fn forget(&self, id: u64) {
        lock(&self.known).remove(&id);
    }

    /// Forgets streams whose topics were deleted through other APIs, and what was kept for them.
    fn prune(&self, broker: &Broker) {
        let known: Vec<_> = lock(&self.known).values().cloned().collect();
        for stream in known {
            let place = broker.topic_place(&stream.name);
            if !place.is_ok_and(|place| place.id == stream.id) {
                stream.lock().gone = true;
                self.forget(stream.id);
                stream.remove_cells(broker);
            }
        }
    }

    /// Those that are due.
    fn due(&self, now: Timestamp) -> Vec<Arc<Stream>> {
        let ids: Vec<u64> = {
            let mut deadlines = lock(&self.deadlines);
            let later = deadlines.split_off(&(now.after(Duration::from_millis(1)), 0));
            std::mem::replace(&mut *deadlines, later).into_iter().map(|(_, id)| id).collect()
        };
        let known = lock(&self.known);
        ids.iter().filter_map(|id| known.get(id).cloned()).collect()
    }
}

/// The stream of a name, and where its topic stands. One that has ended is not there.
pub(super) async fn find(
    shared: &Arc<Shared>,
    name: &TopicName,
) -> Result<(Arc<Stream>, TopicPlace), Refusal> {
    let place = match shared.broker.topic_place(name) {
        Ok(place) => place,
        Err(TopicError::Unknown(_)) => return Err(unknown()),
        Err(error) => return Err(Problem::from(answers::topic_error(&error)).into()),
    };
    if !place.durable {
        let why = "the topic is volatile; only durable ones are streams";
        let status = axum::http::StatusCode::CONFLICT;
        return Err(Refusal::new(ErrorCode::NotDurable, status, why));
    }
    let stream = shared.durable.get(&shared.broker, place.id, name);
    let (gone, ended) = {
        let state = stream.lock();
        (state.gone, state.has_ended(shared.broker.now()))
    };
    if !gone && ended {
        remove(shared, &stream, true).await?;
        return Err(unknown());
    }
    if gone { Err(unknown()) } else { Ok((stream, place)) }
}

/// Deletes a stream: the topic first, since a cell without a topic means nothing, and a topic
/// without its cell would be another stream.
pub(super) async fn remove(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    if_ended: bool,
) -> Result<(), Refusal> {
    {
        let mut state = stream.lock();
        if state.gone {
            return Err(unknown());
        }
        if if_ended && !state.has_ended(shared.broker.now()) {
            let deadline = state.deadline();
            drop(state);
            shared.durable.watch(stream, deadline);
            return Ok(());
        }
        state.gone = true;
    }
    // All of it in that task, so that it is also done when the request is gone.
    let (shared, stream) = (Arc::clone(shared), Arc::clone(stream));
    blocking(move || delete(&shared, &stream)).await?
}

fn delete(shared: &Shared, stream: &Stream) -> Result<(), Refusal> {
    let broker = &shared.broker;
    let deleted = match broker.topic_place(&stream.name) {
        Ok(place) if place.id == stream.id => broker.delete_topic(&stream.name),
        // Another API was faster, and the name may be another topic's by now.
        _ => Ok(()),
    };
    match deleted {
        Ok(()) | Err(TopicError::Unknown(_)) => {
            stream.remove_cells(broker);
            shared.durable.forget(stream.id);
            stream.changed.send_replace(());
            Ok(())
        }
        Err(error) => {
            let mut state = stream.lock();
            state.gone = false;
            let deadline = state.deadline();
            drop(state);
            shared.durable.watch(stream, deadline);
            Err(Problem::from(answers::topic_error(&error)).into())
        }
    }
}

/// Deletes streams that have expired, until the listener closes.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    let mut sweeps = 0_u64;
    while tokio::time::timeout(SWEEP_EVERY, shared.closed()).await.is_err() {
        sweeps += 1;
        if sweeps.is_multiple_of(SWEEPS_UNTIL_PRUNE) {
            let shared = Arc::clone(&shared);
            // It goes over all streams, and no request waits for it.
            if let Err(problem) = blocking(move || shared.durable.prune(&shared.broker)).await {
                tracing::warn!(?problem, "streams of deleted topics were not looked for");
            }
        }
        for stream in shared.durable.due(shared.broker.now()) {
            // What could not be deleted is tried again: `remove` put it back.
            if let Err(refusal) = remove(&shared, &stream, true).await {
                tracing::debug!(stream = %stream.name, ?refusal, "a stream has not ended");
            }
        }
    }
}

/// Removes cells without waiting: what is left after a crash goes at the next opening.
fn remove_cells(broker: &Broker, names: &[Bytes]) {
    for some in names.chunks(CELLS_AT_ONCE) {
        let atomic = some.iter().cloned().fold(Atomic::new(), Atomic::remove_cell);
        drop(broker.commit(atomic, &PublishOptions::default()));
    }
}

fn cell_name(id: u64) -> Bytes {
    format!("{CELLS}{id:016x}").into()
}

fn producer_cell(id: u64, producer: &str) -> Bytes {
    format!("{CELLS}{id:016x}/{producer}").into()
}

/// The topic's number in the name of a cell, and the producer if it is one's.
fn split(name: &[u8]) -> Option<(u64, Option<&str>)> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(CELLS)?;
    let (id, producer) = match rest.split_once('/') {
        Some((id, producer)) => (id, Some(producer)),
        None => (rest, None),
    };
    Some((u64::from_str_radix(id, 16).ok()?, producer))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
