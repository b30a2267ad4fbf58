//! Reading one topic's history by seq, ahead of the one who asked for it.
//!
//! The index is asked once for many steps (a plan); each step is then a request of its own
//! to the recovery pool. While a step is being used, the next ones are read, by more than
//! one thread if no other reader needs them: so neither side waits for the other to wake up. A
//! step that the system has in memory is read at once by who asks, without the pool.
//! The rule: steps come in order and without a hole; what is missing is an error.
//!
//! Not here: whether what was read may still be handed out. A topic can be trimmed
//! meanwhile, and only who hands it out can look.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::{EntryHeader, Position, Seq, TopicId};

use crate::error::ReadError;
use crate::index::BlockRow;
use crate::journal::Journal;
use crate::pool::Pending;
use crate::segment::Segment;

/// Steps that are being read or wait to be used, besides the one in use.
pub const STEPS_AHEAD: usize = 2;

/// Index rows that are looked up at once: as many steps as that makes are known ahead.
const PLAN_ROWS: usize = 256;

/// A place in the history of one topic. [`Journal::poll_topic`] moves it.
pub struct TopicReader {
    topic: TopicId,
    to: Seq,
    /// What is known of the next steps.
    plan: Plan,
    /// The index is being asked for more of the plan.
    planning: bool,
    /// The next step, if who asks for it is to read it.
    here: Option<Step>,
    /// Those after it, in the hands of the pool.
    ahead: VecDeque<Pending<Result<Read, ReadError>>>,
}

/// Where the next steps of a topic lie.
struct Plan {
    steps: VecDeque<Step>,
    /// The first seq that is not planned.
    next: Seq,
    /// Everything of the topic up to here is planned: older segments need no look.
    after: Position,
    /// A step of it was not in the system's memory.
    is_cold: bool,
}

/// Neighbouring blocks of a topic that are read at once; perhaps of several segments.
#[derive(Default)]
struct Step {
    blocks: Vec<(Arc<Segment>, Vec<BlockRow>)>,
    bytes: usize,
}

/// What a request to the pool gives: a step, and the plan if it was to make one.
type Read = (Vec<Bytes>, Option<Plan>);

impl TopicReader {
    /// A reader of the seqs `from` to `to`, both included.
    pub fn new(topic: TopicId, (from, to): (Seq, Seq)) -> Self {
        let plan = Plan::new(from, Position(0));
        Self { topic, to, plan, planning: false, here: None, ahead: VecDeque::new() }
    }

    /// The last seq it reads.
    pub fn to(&self) -> Seq {
        self.to
    }
}

impl Journal {
    /// The next step of a topic's history, of about `bytes_max`: batches without a hole, of
    /// which the very first may begin before the reader's place, and the very last end after
    /// it. Nothing at all means that no segment goes on there.
    ///
    /// After an error the reader is of no more use: make a new one.
    pub fn poll_topic(
        &self,
        reader: &mut TopicReader,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Bytes>, ReadError>> {
        if reader.here.is_none() && reader.ahead.is_empty() {
            self.share_out(reader, bytes_max);
        }
        if let Some(step) = reader.here.take() {
            if let Some(parts) = step.read_cached()? {
                return Poll::Ready(Ok(parts));
            }
            // The rest of the plan will not be in memory either.
            reader.plan.is_cold = true;
            reader.ahead.push_front(self.read_in_pool(step));
        }
        let Some(first) = reader.ahead.front_mut() else { return Poll::Ready(Ok(Vec::new())) };
        let Poll::Ready(read) = Pin::new(first).poll(context) else { return Poll::Pending };
        reader.ahead.pop_front();
        let (parts, plan) = read.and_then(|read| read)?;
        if let Some(plan) = plan {
            (reader.plan, reader.planning) = (plan, false);
        }
        self.share_out(reader, bytes_max);
        Poll::Ready(Ok(parts))
    }

    /// Decides who reads the next steps. One that the system has in memory is only copied:
    /// the thread that needs it does that itself, while another reads the one after it. What
    /// must come from the disk is read by others, several steps ahead.
    fn share_out(&self, reader: &mut TopicReader, bytes_max: usize) {
        if !reader.plan.is_cold && reader.ahead.is_empty() {
            reader.here = reader.plan.steps.pop_front();
        }
        if reader.here.is_none() && reader.ahead.is_empty() {
            self.read_ahead(reader, bytes_max);
        }
        let ahead_max = if reader.here.is_some() { 1 } else { STEPS_AHEAD };
        // Only with threads that no other reader waits for.
        while reader.ahead.len() < ahead_max
            && self.inner.pool.is_idle()
            && self.read_ahead(reader, bytes_max)
        {}
    }

    fn read_in_pool(&self, step: Step) -> Pending<Result<Read, ReadError>> {
        let task = move || Ok((step.read(Seq::default())?, None));
        self.inner.pool.run(self.inner.options.recovery_queue_max, task)
    }

    /// Begins to read one more step. False when there is none, or none known yet.
    fn read_ahead(&self, reader: &mut TopicReader, bytes_max: usize) -> bool {
        if let Some(step) = reader.plan.steps.pop_front() {
            reader.ahead.push_back(self.read_in_pool(step));
            return true;
        }
        if reader.planning || reader.plan.next > reader.to {
            return false;
        }
        let (segments, topic) = (self.inner.segments(), reader.topic);
        let (place, to) = ((reader.plan.next, reader.plan.after), reader.to);
        reader.planning = true;
        let task = move || {
            let mut plan = Plan::of(&segments, topic, (place, to), (PLAN_ROWS, bytes_max))?;
            let step = plan.steps.pop_front().unwrap_or_default();
            Ok((step.read(place.0)?, Some(plan)))
        };
        reader.ahead.push_back(self.inner.pool.run(self.inner.options.recovery_queue_max, task));
        true
    }
}

/// Reads one step of `topic` that accounts for `from` and on, without a hole, until `to` or
/// `bytes_max` is reached. Each part holds whole batches; the first may begin before
/// `from`. Nothing at all means that no segment reaches `from`.
pub(crate) fn read_topic(
    segments: &[Arc<Segment>],
    topic: TopicId,
    (from, to): (Seq, Seq),
    bytes_max: usize,
) -> Result<Vec<Bytes>, ReadError> {
    let rows = PLAN_ROWS.min(1 + bytes_max / 4096);
    let mut plan = Plan::of(segments, topic, ((from, Position(0)), to), (rows, bytes_max))?;
    plan.steps.pop_front().unwrap_or_default().read(from)
}

impl Plan {
    fn new(next: Seq, after: Position) -> Self {
        Self { steps: VecDeque::new(), next, after, is_cold: false }
    }

    /// Looks up at most `rows_max` blocks of `topic` that account for `from` and on, without
    /// a hole, until `to`, and makes steps of about `bytes_max` of them.
    fn of(
        segments: &[Arc<Segment>],
        topic: TopicId,
        ((from, after), to): ((Seq, Position), Seq),
        (rows_max, bytes_max): (usize, usize),
    ) -> Result<Self, ReadError> {
        let mut plan = Self::new(from, after);
        let mut left = rows_max;
        let older = segments.partition_point(|segment| segment.meta().last <= after);
        for segment in &segments[older..] {
            let mut at = segment.index().find(topic, plan.next)?;
            while plan.next <= to && left > 0 {
                let mut rows = segment.index().blocks(at, left as u64)?;
                let is_wanted = |row: &BlockRow| row.topic == topic && row.first_seq <= to;
                let end = rows.iter().position(|row| !is_wanted(row)).unwrap_or(rows.len());
                rows.truncate(end);
                if rows.is_empty() {
                    break;
                }
                at += rows.len() as u64;
                left -= rows.len();
                for row in rows {
                    if row.first_seq > plan.next && plan.steps.is_empty() {
                        return Err(ReadError::Missing { topic, seq: plan.next });
                    } else if row.first_seq > plan.next {
                        // What comes before the hole is good; then it is found again.
                        return Ok(plan);
                    }
                    plan.push(segment, row, bytes_max);
                }
            }
            if plan.next > to || left == 0 {
                break;
            }
        }
        Ok(plan)
    }

    fn push(&mut self, segment: &Arc<Segment>, row: BlockRow, bytes_max: usize) {
        let fits = |step: &Step| step.bytes + row.bytes as usize <= bytes_max;
        if !self.steps.back().is_some_and(fits) {
            self.steps.push_back(Step::default());
        }
        let step = self.steps.back_mut().expect("a step was just seen to");
        match step.blocks.last_mut() {
            Some((last, rows)) if Arc::ptr_eq(last, segment) => rows.push(row),
            _ => step.blocks.push((Arc::clone(segment), vec![row])),
        }
        step.bytes += row.bytes as usize;
        self.next = row.last_seq.next();
        self.after = row.last_position;
    }
}

impl Step {
    /// Reads its blocks if the system has all of them in memory.
    fn read_cached(&self) -> Result<Option<Vec<Bytes>>, ReadError> {
        let mut parts = Vec::new();
        for (segment, rows) in &self.blocks {
            match segment.read_blocks_cached(rows)? {
                Some(blocks) => parts.extend(blocks),
                None => return Ok(None),
            }
        }
        Ok(Some(parts))
    }

    /// Reads its blocks, without the batches that lie wholly before `from`.
    fn read(self, from: Seq) -> Result<Vec<Bytes>, ReadError> {
        let mut parts = Vec::new();
        for (segment, rows) in &self.blocks {
            for (block, row) in segment.read_blocks(rows)?.into_iter().zip(rows) {
                let begins_before = row.first_seq < from;
                parts.push(if begins_before {
                    skip_before(segment, row, block, from)?
                } else {
                    block
                });
            }
        }
        Ok(parts)
    }
}

/// Drops the batches of a block that lie wholly before `seq`.
fn skip_before(
    segment: &Segment,
    row: &BlockRow,
    mut block: Bytes,
    seq: Seq,
) -> Result<Bytes, ReadError> {
    while !block.is_empty() {
        let (header, len) = EntryHeader::read(&block)
            .map_err(|why| segment.damaged(row.offset, &why.to_string()))?;
        if header.last_seq() >= seq {
            break;
        }
        drop(block.split_to(len.min(block.len())));
    }
    Ok(block)
}
