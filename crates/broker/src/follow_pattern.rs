//! Following many topics by one position, and volatile subjects beside them.
//!
//! Durable messages come in the order of their positions, so that one number resumes them
//! all. Volatile ones come in between, as they arrive.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_core::{
    Entry, EntryHeader, EntryKind, GapReason, Pattern, Position, Seq, Tally, Timestamp, TopicId,
};
use gapless_journal::{PatternReader, Pending, ReadError, TailRead};

use crate::broker::Inner;
use crate::cell::Cell;
use crate::delivery::{Delivery, GapNotice, Messages};
use crate::error::FollowError;
use crate::follow_topic::closed_or_read;
use crate::router::Mailbox;
use crate::subscription::Shared;

/// What a step of history gives.
/// Topics that a follower remembers; past it, it asks for each again.
const CELLS_MAX: usize = 65_536;

type Step = Result<Vec<Bytes>, ReadError>;

/// A place in the journal.
pub(crate) struct PatternFollower {
    pattern: Pattern,
    /// The next position that is wanted.
    next: Position,
    mailbox: Arc<Mailbox>,
    /// The last thing handed out was volatile.
    mailed: bool,
    reader: Option<PatternReader>,
    reading: Option<Pending<(PatternReader, Step)>>,
    /// What is to be handed out, and the position up to which all is, once it was.
    ready: VecDeque<(Delivery, Position)>,
    handed_out: Position,
    recovering: bool,
    /// Live was told, and nothing since took it back.
    live: bool,
    /// Recovery is done when everything that was there when it began was handed out.
    target: Position,
    /// Topics whose batches came by, if they are wanted. A number is never given twice.
    cells: HashMap<TopicId, Option<Arc<Cell>>>,
    /// Floors that were told, so that none is told twice.
    told: HashMap<TopicId, Seq>,
    trims_seen: Option<u64>,
}

/// The topic of this number, if it is wanted and still there.
fn wanted(inner: &Inner, pattern: &Pattern, id: TopicId) -> Option<Arc<Cell>> {
    inner.topics.by_id(id).filter(|cell| pattern.matches(&cell.name))
}

impl PatternFollower {
    pub(crate) fn new(inner: &Inner, shared: &Shared, next: Position) -> Self {
        let pattern = shared.pattern.clone();
        let mailbox = inner.router.add(&pattern, shared.id);
        Self {
            pattern,
            next,
            mailbox,
            mailed: false,
            reader: None,
            reading: None,
            ready: VecDeque::new(),
            handed_out: next.prev(),
            recovering: false,
            live: false,
            target: inner.journal.last_settled(),
            cells: HashMap::new(),
            told: HashMap::new(),
            trims_seen: None,
        }
    }

    pub(crate) fn tell_first(&mut self, delivery: Delivery) {
        self.ready.push_back((delivery, self.handed_out));
    }

    fn tell(&mut self, delivery: Delivery) {
        self.ready.push_back((delivery, self.next.prev()));
    }

    pub(crate) fn leave(&self, inner: &Inner, shared: &Shared) {
        inner.router.remove(&self.pattern, shared.id);
        // The journal may hold its waker, and with it a whole task, until the next frame.
        inner.journal.forget_reader(shared.id);
    }

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
            if let Some(reading) = &mut self.reading {
                let (reader, read) = match Pin::new(reading).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(done) => {
                        self.reading = None;
                        done.map_err(closed_or_read)?
                    }
                };
                let next = reader.next();
                let parts = read.map_err(FollowError::Read)?;
                self.reader = Some(reader);
                shared.recovery_steps.fetch_add(1, Ordering::Relaxed);
                let bytes: usize = parts.iter().map(Bytes::len).sum();
                inner.metrics.recovered_bytes.increment(bytes as u64);
                shared.recovered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                self.tell_trimmed(inner);
                self.hand_out(inner, inner.recovery_memory.count(parts));
                self.next = self.next.max(next);
                shared.place.store(self.next.prev().0, Ordering::Relaxed);
                if self.next < inner.journal.tail_first() {
                    // The next step is read while this one is being used.
                    self.read(inner);
                }
                continue;
            }
            // Taken in turns, so that neither kind can hold up the other for ever.
            let turn_of_mail = !std::mem::replace(&mut self.mailed, false);
            if turn_of_mail && let Some(delivery) = self.mail(inner, context) {
                self.mailed = true;
                return Poll::Ready(Ok(delivery));
            }
            if !self.look(inner, shared, context)? && turn_of_mail {
                // Most wait for long; an empty queue is no cost of those.
                self.ready = VecDeque::new();
                return Poll::Pending;
            }
        }
    }

    fn mail(&self, inner: &Inner, context: &Context<'_>) -> Option<Delivery> {
        Some(match self.mailbox.take(context.waker())? {
            Ok(mail) => {
                let header = mail.batch.header();
                let (range, now) = ((header.seq, header.last_seq()), inner.clock.now());
                let parts = vec![mail.batch.bytes().clone()];
                let position = self.handed_out;
                let messages = Messages::new(mail.subject, range, position, now, parts, None);
                Delivery::Messages(messages.mailed())
            }
            Err(overflow) => Delivery::Gap(GapNotice {
                topic: None,
                from: None,
                to: None,
                positions: Some((overflow.from, overflow.to)),
                reason: GapReason::Slow,
            }),
        })
    }

    /// Takes frames from memory, or begins to read history. False means to wait.
    fn look(
        &mut self,
        inner: &Arc<Inner>,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Result<bool, FollowError> {
        let reader = (shared.id, context.waker());
        if !self.live && self.next > self.target && self.next >= inner.journal.tail_first() {
            self.live = true;
            self.recovering = false;
            self.reader = None;
            self.tell(Delivery::Live);
            return Ok(true);
        }
        match inner.journal.tail(self.next, inner.limits.step_bytes, reader) {
            TailRead::Wait => {
                if !self.live {
                    // Nothing is left to recover, so what comes now is live.
                    self.target = self.next.prev();
                    return Ok(true);
                }
                if inner.is_closed() {
                    return Err(FollowError::Closed);
                }
                Ok(false)
            }
            TailRead::Frames { frames, last } => {
                self.reader = None;
                self.tell_trimmed(inner);
                let mut entries = Vec::new();
                for mut frame in frames {
                    while let Ok(entry) = Entry::take_trusted(&mut frame) {
                        if entry.header.last_position() >= self.next {
                            entries.push(entry.bytes);
                        }
                    }
                }
                self.hand_out(inner, entries);
                self.next = self.next.max(last.next());
                shared.place.store(self.next.prev().0, Ordering::Relaxed);
                Ok(true)
            }
            TailRead::Behind => {
                if self.live || !self.recovering {
                    self.live = false;
                    self.recovering = true;
                    self.target = inner.journal.last_settled();
                    let (from, to) = (self.next.0, self.target.0);
                    self.tell(Delivery::Recovering { from, to });
                }
                self.tell_trimmed(inner);
                self.read(inner);
                Ok(true)
            }
        }
    }

    fn read(&mut self, inner: &Arc<Inner>) {
        let at_place = self.reader.take().filter(|reader| reader.next() == self.next);
        let reader = at_place.unwrap_or_else(|| PatternReader::new(self.next));
        let (pattern, broker) = (self.pattern.clone(), Arc::downgrade(inner));
        let is_wanted = Arc::new(move |id: TopicId| {
            broker.upgrade().is_some_and(|inner| wanted(&inner, &pattern, id).is_some())
        });
        let bytes = inner.recovery_memory.step(&inner.limits);
        self.reading = Some(inner.journal.read_pattern(reader, is_wanted, bytes));
    }

    /// The topic of this number, if it is wanted and still there.
    fn wanted(&mut self, inner: &Inner, id: TopicId) -> Option<Arc<Cell>> {
        if self.cells.len() >= CELLS_MAX {
            self.cells.clear();
        }
        let look = || wanted(inner, &self.pattern, id);
        self.cells.entry(id).or_insert_with(look).clone()
    }

    /// Tells of wanted topics that were trimmed beyond the place where this one stands.
    fn tell_trimmed(&mut self, inner: &Inner) {
        let trims = inner.trims.load(Ordering::Acquire);
        if self.trims_seen.replace(trims) == Some(trims) {
            return;
        }
        let seen = self.next.prev();
        for cell in inner.topics.matching(&self.pattern) {
            let state = cell.lock();
            let floor = state.machine.first();
            if state.floor_position <= seen || !state.is_durable() {
                continue;
            }
            if self.told.insert(cell.id, floor).is_some_and(|told| told >= floor) {
                continue;
            }
            let notice = GapNotice {
                topic: Some(cell.name.clone()),
                from: None,
                to: Some(floor.prev()),
                positions: Some((self.next, state.floor_position)),
                reason: state.machine.floor_reason(),
            };
            self.tell(Delivery::Gap(notice));
        }
    }

    /// Makes deliveries of entries that come in the order of their positions; neighbours of
    /// one topic go together.
    fn hand_out(&mut self, inner: &Inner, entries: Vec<Bytes>) {
        let now = inner.clock.now();
        let mut run: Option<Run> = None;
        for mut bytes in entries {
            let Ok(entry) = Entry::take_trusted(&mut bytes) else { continue };
            let header = entry.header;
            let is_batch = header.kind == EntryKind::Batch;
            let cell = is_batch.then(|| self.wanted(inner, header.topic)).flatten();
            let from = header.seq.plus(self.next.distance(header.position));
            let end = header.last_position().next();
            let looked = cell.and_then(|cell| {
                let gone = gone_of(&cell, &header, from, now).ok()?;
                Some((cell, gone))
            });
            let Some((cell, gone)) = looked else {
                self.next = self.next.max(end);
                continue;
            };
            let continues = run.as_ref().is_some_and(|run| {
                run.cell.id == cell.id && run.to.next() == from && from == header.seq
            });
            if !continues || gone.is_some() {
                // What comes before a notice must be told before it.
                self.finish_run(run.take(), now);
            }
            let kept = match gone {
                None => Some(from),
                Some(gone) => self.tell_gone(&cell, &header, from, gone),
            };
            self.next = self.next.max(end);
            if let Some(from) = kept {
                let tally = Tally::default();
                let new =
                    || Run { cell, from, to: from, last_first: from, tally, parts: Vec::new() };
                let run = run.get_or_insert_with(new);
                run.to = header.last_seq();
                run.last_first = header.seq;
                run.tally.note(&header);
                run.parts.push(entry.bytes);
            }
        }
        self.finish_run(run.take(), now);
    }

    /// Tells of messages of a batch that may not be handed out any more; gives the first
    /// seq that may.
    fn tell_gone(
        &mut self,
        cell: &Cell,
        header: &EntryHeader,
        from: Seq,
        (to, reason): (Seq, GapReason),
    ) -> Option<Seq> {
        let last = header.last_seq();
        let told = self.told.get(&cell.id).copied().unwrap_or_default();
        if told <= to {
            // Some of a hole may have been seen while they were there; nobody knows which.
            let is_hole = header.count == 0 && header.span > 1;
            let notice = GapNotice {
                topic: Some(cell.name.clone()),
                from: (!is_hole).then(|| from.max(told)),
                to: Some(to),
                positions: Some((header.position, header.last_position())),
                reason,
            };
            // With the notice these are accounted for, so that it is not told again.
            let through = header.position.plus(to.distance(header.seq));
            let through = through.min(header.last_position());
            self.ready.push_back((Delivery::Gap(notice), through));
        }
        (to < last).then(|| to.next())
    }

    fn finish_run(&mut self, run: Option<Run>, now: Timestamp) {
        if let Some(run) = run {
            let (name, range) = (run.cell.name.clone(), (run.from, run.to));
            let tally = Some((run.tally, run.last_first));
            let messages = Messages::new(name, range, self.next.prev(), now, run.parts, tally);
            self.tell(Delivery::Messages(messages));
        }
    }
}

/// How far a batch, from `from` on, may not be handed out any more, and why.
fn gone_of(
    cell: &Cell,
    header: &EntryHeader,
    from: Seq,
    now: Timestamp,
) -> Result<Option<(Seq, GapReason)>, Deleted> {
    let state = cell.lock();
    if state.deleted {
        return Err(Deleted);
    }
    let (view, last) = (state.view(), header.last_seq());
    Ok(if header.count == 0 {
        Some((last, GapReason::Compaction))
    } else if from < view.first {
        Some((last.min(view.first.prev()), view.floor_reason))
    } else {
        // Past its age it is gone, whether or not the keeper has come to it (C4).
        let aged = state.settings.retention.age.is_some_and(|age| header.time.after(age) <= now);
        aged.then_some((last, GapReason::Retention))
    })
}

/// The topic is gone, and all of it with it.
struct Deleted;

/// Neighbouring batches of one topic.
struct Run {
    cell: Arc<Cell>,
    from: Seq,
    to: Seq,
    last_first: Seq,
    tally: Tally,
    parts: Vec<Bytes>,
}
