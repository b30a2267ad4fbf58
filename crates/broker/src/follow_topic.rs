//! Following one topic by its seqs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::cursor::{Effect, Input};
use gapless_core::{Cursor, GapNotice, Position, Seq, Tally, Timestamp};
use gapless_journal::{ReadError, TopicReader};

use crate::broker::Inner;
use crate::cell::{Cell, headers};
use crate::delivery::{Delivery, Messages};
use crate::error::FollowError;
use crate::subscription::Shared;

/// A place in one topic.
pub(crate) struct TopicFollower {
    cell: Arc<Cell>,
    cursor: Cursor,
    position: Position,
    /// History that is being read.
    reader: Option<TopicReader>,
    /// What comes before anything else: a gap found when the subscription was made.
    ready: VecDeque<(Delivery, Position)>,
    handed_out: Position,
    recovering: bool,
    /// Up to this seq (included) only the newest message of each key is wanted.
    newest_only_to: Seq,
}

impl TopicFollower {
    pub(crate) fn new(cell: Arc<Cell>, cursor: Cursor, position: Position) -> Self {
        Self {
            cell,
            cursor,
            position,
            reader: None,
            ready: VecDeque::new(),
            handed_out: position,
            recovering: false,
            newest_only_to: Seq(0),
        }
    }

    pub(crate) fn tell_first(&mut self, delivery: Delivery) {
        self.tell(delivery);
    }

    /// Hands this out next; with it, everything up to `position` is handed out.
    fn tell(&mut self, delivery: Delivery) {
        self.ready.push_back((delivery, self.position));
    }

    pub(crate) fn leave(&self, shared: &Shared) {
        self.cell.lock().leave(shared.id);
    }

    pub(crate) fn newest_only(&mut self, to: Seq) {
        self.newest_only_to = to;
    }

    /// Lets the place take a step.
    fn step(&mut self, now: Timestamp, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.cursor.step(now, input, &mut effects);
        if cfg!(debug_assertions) {
            self.cursor.check();
        }
        effects
    }

    /// Asserts what must always be true of the place.
    pub(crate) fn check(&self) {
        self.cursor.check();
    }

    /// Everything of the topic up to here was handed out.
    pub(crate) fn handed_out(&self) -> Position {
        self.handed_out
    }

    pub(crate) fn poll(
        &mut self,
        inner: &Inner,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery, FollowError>> {
        loop {
            if let Some((delivery, through)) = self.ready.pop_front() {
                self.handed_out = self.handed_out.max(through);
                return Poll::Ready(Ok(delivery));
            }
            if let Some(mut reader) = self.reader.take() {
                let step = inner.recovery_memory.step(&inner.limits);
                let read = match inner.journal.poll_topic(&mut reader, step, context) {
                    Poll::Pending => {
                        self.reader = Some(reader);
                        return Poll::Pending;
                    }
                    Poll::Ready(read) => read,
                };
                self.take_step(inner, shared, reader, read)?;
                continue;
            }
            if !self.look(inner, shared, context)? {
                // Most wait for long; an empty queue is no cost of those.
                self.ready = VecDeque::new();
                return Poll::Pending;
            }
        }
    }

    /// Hands out a step of history, and keeps the reader if there is more to come. After an
    /// error it is not kept: the next try begins at the same place.
    fn take_step(
        &mut self,
        inner: &Inner,
        shared: &Shared,
        reader: TopicReader,
        read: Result<Vec<Bytes>, ReadError>,
    ) -> Result<(), FollowError> {
        let from = self.cursor.next();
        let state = self.cell.lock();
        let still_kept = state.first() <= from && !state.gone;
        drop(state);
        if !still_kept {
            // What was trimmed while it was read may not be handed out; looking tells.
            return Ok(());
        }
        let parts = read.map_err(closed_or_read)?;
        shared.recovery_steps.fetch_add(1, Ordering::Relaxed);
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        inner.metrics.recovered_bytes.increment(bytes as u64);
        shared.recovered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let parts = inner.recovery_memory.count(parts);
        let all = self.hand_out(inner, shared, (from, reader.to()), parts)?;
        if all && self.cursor.next() <= reader.to() {
            self.reader = Some(reader);
        }
        Ok(())
    }

    /// Asks the cursor what to do, and does it. False means to wait.
    fn look(
        &mut self,
        inner: &Inner,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Result<bool, FollowError> {
        let now = inner.clock.now();
        let cell = Arc::clone(&self.cell);
        let mut state = cell.lock();
        if state.gone {
            return Err(FollowError::Deleted(cell.name.clone()));
        }
        for effect in self.step(now, Input::Look(state.view())) {
            match effect {
                Effect::CaughtUp => {
                    self.recovering = false;
                    self.tell(Delivery::Live);
                }
                Effect::Gap(gap) => {
                    self.position = self.position.max(state.floor_position);
                    let notice = GapNotice {
                        topic: Some(self.cell.name.clone()),
                        from: Some(gap.from),
                        to: Some(gap.to),
                        positions: None,
                        reason: gap.reason,
                    };
                    self.tell(Delivery::Gap(notice));
                }
                Effect::Take { from, to_max } => {
                    let parts = state.take(from, inner.limits.step_bytes);
                    drop(state);
                    self.hand_out(inner, shared, (from, to_max), parts)?;
                    return Ok(true);
                }
                Effect::History { from, to } => {
                    drop(state);
                    if !std::mem::replace(&mut self.recovering, true) {
                        let (from, to) = (from.0, to.0);
                        self.tell(Delivery::Recovering { from, to });
                    }
                    self.reader = Some(TopicReader::new(self.cell.id, (from, to)));
                    return Ok(true);
                }
                Effect::Wait => {
                    if self.ready.is_empty() {
                        if inner.is_closed() {
                            return Err(FollowError::Closed);
                        }
                        state.wait(shared.id, context.waker());
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Moves the cursor over what was read and makes a delivery of it: of messages, or of the gap
    /// before them. Returns false if something is left, which the next look comes to.
    fn hand_out(
        &mut self,
        inner: &Inner,
        shared: &Shared,
        (from, to_max): (Seq, Seq),
        mut parts: Vec<Bytes>,
    ) -> Result<bool, FollowError> {
        let now = inner.clock.now();
        let kept = self.cell.lock().kept();
        let (mut to, mut last_first) = (from.prev(), from);
        let mut tally = Tally::default();
        let (mut beyond, mut all, mut gone) = (false, true, None);
        for header in parts.iter().flat_map(headers) {
            if header.seq > to_max {
                beyond = true;
                break;
            }
            // A hole is a part of the range around it, and as old as its last message.
            let seq = to.next().max(header.seq);
            let why = kept.gone(seq, Some(header.time), now);
            if to >= from && why != gone {
                (beyond, all) = (true, false);
                break;
            }
            gone = why;
            let last = match seq < kept.first {
                true => header.last_seq().min(kept.first.prev()),
                false => header.last_seq(),
            };
            to = last.min(to_max);
            last_first = header.seq;
            tally.note(&header);
            if header.count > 0 {
                self.position = header.position.plus(to.distance(header.seq));
            } else if to == header.last_seq() {
                // A hole stands where its last message stood; where the others did is not
                // known, so a part of it does not move the place.
                self.position = header.position;
            }
            if last < header.last_seq() {
                (beyond, all) = (true, false);
                break;
            }
        }
        if to < from {
            // Segments end before the tail begins: the topic was trimmed meanwhile, and the
            // next look tells; or they are damaged, and then nothing may be skipped.
            if self.cell.lock().first() > from {
                return Ok(true);
            }
            return Err(ReadError::Missing { topic: self.cell.id, seq: from }.into());
        }
        if gone.is_none() && from <= self.newest_only_to {
            // Before the place moves: if this fails, the same step is tried again.
            parts = inner.newest_of_keys(&self.cell, parts, self.newest_only_to)?;
            beyond = true;
        }
        self.step(now, Input::Took { from, to });
        shared.place.store(to.0, Ordering::Relaxed);
        let is_hole = from > self.newest_only_to && tally.messages == 0;
        if let Some(reason) = gone.or(is_hole.then(|| kept.hole_reason())) {
            self.tell(Delivery::Gap(GapNotice {
                topic: Some(self.cell.name.clone()),
                from: Some(from),
                to: Some(to),
                positions: None,
                reason,
            }));
            return Ok(all);
        }
        let name = self.cell.name.clone();
        let tally = (!beyond).then_some((tally, last_first));
        let messages = Messages::new(name, (from, to), self.position, now, parts, tally);
        self.tell(Delivery::Messages(messages));
        Ok(all)
    }
}

pub(crate) fn closed_or_read(error: ReadError) -> FollowError {
    match error {
        ReadError::Closed => FollowError::Closed,
        other => FollowError::Read(other),
    }
}
