//! Reading again what is leased and in none of its group's buffers.
//!
//! One read at a time for a group, and a large one: it takes in what else is open and lies
//! close by, and what it brings goes into the group's buffers, for all members. So the cost of
//! a read is shared by all that is handed out of it later. Members that wait for it are all
//! woken when it is done.

use std::collections::BTreeMap;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::Bytes;
use gapless_core::group::Granted;
use gapless_core::{GapReason, MemberId, Seq, TopicId, TopicName};
use gapless_journal::{Pending, ReadError};

use crate::broker::Inner;
use crate::group::read_ahead::last_seq;
use crate::group::{GroupState, LiveGroup};
use crate::topic::live_topic::{LiveTopic, headers, lock};

/// Bytes read in one go, at most.
const READ_BYTES: usize = 1024 * 1024;
/// So many runs of open messages close together are worth a read of full size: there are
/// likely to be more behind them.
const RUNS_DENSE: usize = 64;
/// Messages that may lie between two that are read in one go: to read over them costs less than
/// a read of its own.
const APART_MAX: u64 = 64;

/// What a read came to.
pub(crate) enum Reread {
    /// Something was read: look again.
    Look,
    /// The first messages of the grant, so many of them, cannot be read any more.
    Gone {
        /// How many.
        count: u64,
        /// Why.
        reason: GapReason,
        /// Their topic, if it still exists.
        topic: Option<TopicName>,
    },
}

/// A read on the recovery pool.
pub(crate) struct Rereading {
    topic: TopicId,
    from: Seq,
    read: Pending<Result<Vec<Bytes>, ReadError>>,
    waiting: Arc<Waiting>,
}

/// Members that wait for a read.
#[derive(Default)]
struct Waiting(Mutex<BTreeMap<MemberId, Waker>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let all = std::mem::take(&mut *lock(&self.0));
        all.into_values().for_each(Waker::wake);
    }
}

impl Inner {
    /// Brings the first message of a grant, which is in none of the group's buffers, into them.
    pub(crate) fn poll_reread(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        grant: &Granted,
        (member, context): (MemberId, &mut Context<'_>),
    ) -> Poll<Result<Reread, ReadError>> {
        if state.rereading.is_none() {
            let Some(cell) = self.topics.by_id(grant.topic) else {
                let count = grant.lease.count();
                let gone = Reread::Gone { count, reason: GapReason::Purge, topic: None };
                return Poll::Ready(Ok(gone));
            };
            let (tail, parts) = {
                let topic = cell.lock();
                let tail = topic.view().tail;
                (tail, (grant.seq >= tail).then(|| topic.take(grant.seq, READ_BYTES)))
            };
            match parts {
                Some(parts) => return Poll::Ready(self.reread(state, &cell, grant.seq, parts)),
                None => state.rereading = Some(self.begin_reread(state, grant, tail.prev())),
            }
        }
        let Some(reading) = &mut state.rereading else { return Poll::Ready(Ok(Reread::Look)) };
        lock(&reading.waiting.0).insert(member, context.waker().clone());
        let waker = Waker::from(Arc::clone(&reading.waiting));
        let read = ready!(Pin::new(&mut reading.read).poll(&mut Context::from_waker(&waker)));
        let Some(reading) = state.rereading.take() else { return Poll::Ready(Ok(Reread::Look)) };
        lock(&reading.waiting.0).remove(&member);
        reading.waiting.wake();
        let is_own = (reading.topic, reading.from) == (grant.topic, grant.seq);
        let cell = self.topics.by_id(reading.topic);
        let read = match (read.and_then(|parts| parts), cell) {
            (Ok(parts), Some(cell)) => self.reread(state, &cell, reading.from, parts),
            (Err(error), _) => {
                tracing::debug!(group = group.name.as_str(), %error, "messages cannot be read");
                Err(error)
            }
            (Ok(_), None) => Ok(Reread::Look),
        };
        // What another member began says nothing of this grant.
        Poll::Ready(if is_own { read } else { Ok(Reread::Look) })
    }

    /// Reads from segments, up to the seq before which all is there.
    fn begin_reread(&self, state: &GroupState, grant: &Granted, end: Seq) -> Rereading {
        let (topic, from, at) = (grant.topic, grant.seq, grant.lease.first);
        let near = state.machine.close_by(topic, at, APART_MAX, RUNS_DENSE);
        let held = state.ahead.next_held(topic, from).map_or(end, Seq::prev);
        let to = near.map_or(end, |near| near.max(last_seq(grant))).min(held).min(end);
        let read = self.journal.read_topic(topic, (from, to), READ_BYTES);
        Rereading { topic, from, read, waiting: Arc::default() }
    }

    /// Keeps what was read from here on.
    fn reread(
        &self,
        state: &mut GroupState,
        cell: &LiveTopic,
        from: Seq,
        parts: Vec<Bytes>,
    ) -> Result<Reread, ReadError> {
        let mut all = parts.iter().flat_map(headers);
        let first = all.next();
        let last = all.last().or(first).map(|header| header.last_seq());
        if let Some((first, last)) = first.zip(last).filter(|(_, last)| *last >= from) {
            let (what, bytes_max) =
                ((cell.id, cell.name.clone()), self.limits.group_read_ahead_bytes_max);
            // From the beginning of a batch on, so that no batch lies in two buffers.
            let range = (first.seq.min(from), last);
            state.ahead.restore(what, from, range, parts, bytes_max);
            return Ok(Reread::Look);
        }
        // Neither in memory nor in segments any more; or it has moved between them.
        let (kept, tail, next) = {
            let topic = cell.lock();
            (topic.kept(), topic.view().tail, topic.next())
        };
        let first = kept.first;
        if first <= from && (from < tail || from >= next) {
            return Err(ReadError::Missing { topic: cell.id, seq: from });
        }
        let (count, reason) = (first.distance(from), kept.floor_reason);
        let topic = Some(cell.name.clone());
        Ok(if count > 0 { Reread::Gone { count, reason, topic } } else { Reread::Look })
    }
}
