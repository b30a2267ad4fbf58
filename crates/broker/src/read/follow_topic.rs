//! Following one topic by its seqs.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use gapless_core::cursor::{Effect, Input};
use gapless_core::{Cursor, GapNotice, GapReason, Position, Seq, Tally, Timestamp};
use gapless_journal::{Pending, ReadError, TopicReader};

use crate::broker::Inner;
use crate::error::FollowError;
use crate::read::delivery::{Delivery, Messages};
use crate::read::recovery_memory::Reserved;
use crate::read::subscription::Shared;
use crate::topic::live_topic::{LiveTopic, headers};

/// A place in one topic.
pub(crate) struct TopicFollower {
    cell: Arc<LiveTopic>,
    cursor: Cursor,
    position: Position,
    /// History that is being read, and the memory for its next step.
    reader: Option<TopicReader>,
    reserved: Option<Reserved>,
    /// What comes before anything else: a gap found when the subscription began.
    ready: VecDeque<(Delivery, Position)>,
    handed_out: Position,
    recovering: bool,
    /// Up to this seq (included) only the newest message of each key is wanted.
    newest_only_to: Seq,
    /// What was read of these, while it is looked up which are the newest.
    filtering: Option<Box<Filtering>>,
}

/// A stretch of what was read: messages, or the gap before them.
struct Run {
    from: Seq,
    to: Seq,
    /// Where the last of it stands.
    position: Position,
    /// Why it is gone, if it is.
    gone: Option<GapReason>,
    /// What it holds, if the parts hold nothing else, and the first seq of the last batch.
    tally: Option<(Tally, Seq)>,
    /// Whether nothing was read behind it.
    is_all: bool,
    is_empty: bool,
}

/// A run of which only the newest message of each key is wanted.
struct Filtering {
    run: Run,
    reader: Option<TopicReader>,
    newest: Pending<Result<Result<Vec<Bytes>, ReadError>, ReadError>>,
}

impl TopicFollower {
    pub(crate) fn new(cell: Arc<LiveTopic>, cursor: Cursor, position: Position) -> Self {
        Self {
            cell,
            cursor,
            position,
            reader: None,
            reserved: None,
            ready: VecDeque::new(),
            handed_out: position,
            recovering: false,
            newest_only_to: Seq(0),
            filtering: None,
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

    pub(crate) fn cell(&self) -> &LiveTopic {
        &self.cell
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
        inner: &Arc<Inner>,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery, FollowError>> {
        loop {
            if let Some((delivery, through)) = self.ready.pop_front() {
                self.handed_out = self.handed_out.max(through);
                return Poll::Ready(Ok(delivery));
            }
            if let Some(filtering) = &mut self.filtering {
                let newest = ready!(Pin::new(&mut filtering.newest).poll(context));
                let Some(filtering) = self.filtering.take() else { continue };
                // If it failed, the place has not moved: the same step is tried again.
                let parts = newest.and_then(|done| done).and_then(|done| done);
                let Filtering { run, reader, .. } = *filtering;
                let parts = parts.map_err(closed_or_read)?;
                self.finish(inner, shared, &run, parts, reader);
                continue;
            }
            if let Some(mut reader) = self.reader.take() {
                let reserve = || inner.recovery_memory.reserve(&inner.limits);
                let step = self.reserved.get_or_insert_with(reserve).step();
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
                // Most subscribers wait for long: an idle one must not keep an empty queue
                // allocated.
                self.ready = VecDeque::new();
                return Poll::Pending;
            }
        }
    }

    /// Hands out a step of history, and keeps the reader if there is more to come. After an
    /// error it is not kept: the next try begins at the same place.
    fn take_step(
        &mut self,
        inner: &Arc<Inner>,
        shared: &Shared,
        reader: TopicReader,
        read: Result<Vec<Bytes>, ReadError>,
    ) -> Result<(), FollowError> {
        // It counts as it was read from here on, or is dropped.
        let _reserved = self.reserved.take();
        let from = self.cursor.next();
        let state = self.cell.lock();
        let still_kept = state.first() <= from && !state.gone;
        drop(state);
        if !still_kept {
            // What was trimmed while it was read may not be handed out; the cursor's answer says
            // so.
            return Ok(());
        }
        let parts = read.map_err(closed_or_read)?;
        let parts = shared.recovered(inner, parts);
        self.hand_out(inner, shared, (from, reader.to()), parts, Some(reader))
    }

    /// Asks the cursor what to do, and does it. False means to wait.
    fn look(
        &mut self,
        inner: &Arc<Inner>,
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
                    self.hand_out(inner, shared, (from, to_max), parts, None)?;
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

    /// Makes a delivery of the first run of what was read; what lies behind it, the next look
    /// comes to. `reader` has read it, if it is history.
    fn hand_out(
        &mut self,
        inner: &Arc<Inner>,
        shared: &Shared,
        (from, to_max): (Seq, Seq),
        parts: Vec<Bytes>,
        reader: Option<TopicReader>,
    ) -> Result<(), FollowError> {
        let Some(run) = self.first_run((from, to_max), &parts, inner.clock.now()) else {
            // Segments end before the tail begins: the topic was trimmed meanwhile, which the next
            // look reports; or they are damaged, and then nothing may be skipped.
            if self.cell.lock().first() > from {
                return Ok(());
            }
            return Err(ReadError::Missing { topic: self.cell.id, seq: from }.into());
        };
        if run.gone.is_none() && from <= self.newest_only_to {
            let (cell, to) = (Arc::clone(&self.cell), self.newest_only_to);
            let newest = inner.look_up(move |inner| inner.newest_of_keys(&cell, parts, to));
            self.filtering = Some(Box::new(Filtering { run, reader, newest }));
            return Ok(());
        }
        self.finish(inner, shared, &run, parts, reader);
        Ok(())
    }

    /// The longest run at the beginning of what was read that is there, or gone for one reason.
    fn first_run(
        &self,
        (from, to_max): (Seq, Seq),
        parts: &[Bytes],
        now: Timestamp,
    ) -> Option<Run> {
        let kept = self.cell.lock().kept();
        let (mut to, mut last_first, mut position) = (from.prev(), from, self.position);
        let mut tally = Tally::default();
        let (mut beyond, mut is_all, mut gone) = (false, true, None);
        for header in parts.iter().flat_map(headers) {
            if header.seq > to_max {
                beyond = true;
                break;
            }
            // A hole is a part of the range around it, and as old as its last message.
            let seq = to.next().max(header.seq);
            let why = kept.gone(seq, Some(header.time), now);
            if to >= from && why != gone {
                (beyond, is_all) = (true, false);
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
                position = header.position.plus(to.distance(header.seq));
            } else if to == header.last_seq() {
                // A hole stands where its last message stood; where the others did is not
                // known, so a part of it does not move the place.
                position = header.position;
            }
            if last < header.last_seq() {
                (beyond, is_all) = (true, false);
                break;
            }
        }
        let is_empty = tally.messages == 0;
        let tally = (!beyond).then_some((tally, last_first));
        (to >= from).then_some(Run { from, to, position, gone, tally, is_all, is_empty })
    }

    /// Moves the cursor over a run and makes a delivery of it.
    fn finish(
        &mut self,
        inner: &Inner,
        shared: &Shared,
        run: &Run,
        parts: Vec<Bytes>,
        reader: Option<TopicReader>,
    ) {
        let now = inner.clock.now();
        let Run { from, to, .. } = *run;
        self.position = run.position;
        self.step(now, Input::Took { from, to });
        shared.place.store(to.0, Ordering::Relaxed);
        // What lies behind the run is read again, unless there is nothing.
        self.reader = reader.filter(|reader| run.is_all && to < reader.to());
        let topic = self.cell.name.clone();
        let is_filtered = from <= self.newest_only_to;
        let hole = (run.is_empty && !is_filtered).then(|| self.cell.lock().kept().hole_reason());
        if let Some(reason) = run.gone.or(hole) {
            let (from, to) = (Some(from), Some(to));
            let notice = GapNotice { topic: Some(topic), from, to, positions: None, reason };
            return self.tell(Delivery::Gap(notice));
        }
        let tally = run.tally.filter(|_| !is_filtered);
        let messages = Messages::new(topic, (from, to), self.position, now, parts, tally);
        self.tell(Delivery::Messages(messages));
    }
}

pub(crate) fn closed_or_read(error: ReadError) -> FollowError {
    match error {
        ReadError::Closed => FollowError::Closed,
        other => FollowError::Read(other),
    }
}
