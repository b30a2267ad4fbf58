//! Following many topics by one position, and volatile subjects beside them.
//!
//! Durable messages come in the order of their positions, so that one number resumes them
//! all. Volatile ones come in between, as they arrive. Where it stands, and which gaps are
//! reported, is decided by `core/sweep.rs`.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use gapless_core::sweep::{Effect, Input};
use gapless_core::{
    Entry, EntryKind, GapNotice, Kept, Pattern, Position, Seq, Sweep, Tally, Timestamp, TopicId,
    TopicName,
};
use gapless_journal::{PatternReader, Pending, ReadError, TailRead};

use crate::broker::Inner;
use crate::error::FollowError;
use crate::read::delivery::{Delivery, Messages};
use crate::read::follow_topic::closed_or_read;
use crate::read::recovery_memory::Reserved;
use crate::read::subscription::{NOTHING_SEEN, Shared};
use crate::topic::live_topic::LiveTopic;
use crate::volatile::named::{mailed, slow};
use crate::volatile::router::{Mailbox, Taken};

/// Topics that a follower remembers; past it, it asks for each again.
const CELLS_MAX: usize = 65_536;

/// What a step of history gives.
type Step = Result<Vec<Bytes>, ReadError>;

/// A step that is being read, with the memory that is reserved for it.
type Reading = (Pending<(PatternReader, Step)>, Reserved);

/// A place in the journal.
pub(crate) struct PatternFollower {
    pattern: Pattern,
    sweep: Sweep,
    mailbox: Arc<Mailbox>,
    /// The last thing handed out was volatile.
    mailed: bool,
    /// History, and a step of it that is being read; boxed, as most subscriptions are live.
    reader: Option<Box<PatternReader>>,
    reading: Option<Box<Reading>>,
    /// What is to be handed out, and the position up to which all is, once it was.
    ready: VecDeque<(Delivery, Position)>,
    handed_out: Position,
    /// Topics whose batches came by, if they are wanted. A number is never given twice.
    cells: HashMap<TopicId, Option<Arc<LiveTopic>>>,
    trims_seen: Option<u64>,
}

/// The topic of this number, if it is wanted and still there.
fn wanted(inner: &Inner, pattern: &Pattern, id: TopicId) -> Option<Arc<LiveTopic>> {
    inner.topics.by_id_or_leaving(id).filter(|cell| pattern.matches(&cell.name))
}

impl PatternFollower {
    pub(crate) fn new(inner: &Inner, shared: &Shared, next: Position) -> Self {
        let pattern = shared.pattern.clone();
        let mailbox = inner.router.add(&pattern, shared.id);
        let sweep = Sweep::start(next, inner.journal.last_settled(), next == NOTHING_SEEN.next());
        Self {
            pattern,
            sweep,
            mailbox,
            mailed: false,
            reader: None,
            reading: None,
            ready: VecDeque::new(),
            handed_out: next.prev(),
            cells: HashMap::new(),
            trims_seen: None,
        }
    }

    pub(crate) fn tell_first(&mut self, delivery: Delivery) {
        self.ready.push_back((delivery, self.handed_out));
    }

    fn tell(&mut self, delivery: Delivery) {
        self.ready.push_back((delivery, self.sweep.next().prev()));
    }

    /// Moves the place, and queues the notices that this causes; returns from which seq on an entry
    /// is to be handed out.
    fn step(&mut self, now: Timestamp, topic: Option<&TopicName>, input: Input<'_>) -> Option<Seq> {
        let mut effects = Vec::new();
        self.sweep.step(now, input, &mut effects);
        if cfg!(debug_assertions) {
            self.sweep.check();
        }
        let mut delivered = None;
        for effect in effects {
            match effect {
                Effect::Recovering { from, to } => {
                    self.tell(Delivery::Recovering { from: from.0, to: to.0 });
                }
                Effect::CaughtUp => self.tell(Delivery::Live),
                Effect::Deliver { from } => delivered = Some(from),
                Effect::Gap { from, to, positions, through, reason } => {
                    let (topic, to) = (topic.cloned(), Some(to));
                    let notice = GapNotice { topic, from, to, positions: Some(positions), reason };
                    // With the notice these are accounted for, so that they are not reported again.
                    self.ready.push_back((Delivery::Gap(notice), through));
                }
                Effect::Deleted { positions } => {
                    let notice = GapNotice::deleted(topic.cloned(), positions);
                    self.ready.push_back((Delivery::Gap(notice), positions.1));
                }
            }
        }
        delivered
    }

    fn pass(&mut self, inner: &Inner, shared: &Shared, through: Position) {
        self.tell_reused(inner, through);
        self.step(inner.clock.now(), None, Input::Passed { through });
        shared.place.store(self.sweep.next().prev().0, Ordering::Relaxed);
    }

    /// Asserts what must always be true of the place.
    pub(crate) fn check(&self) {
        self.sweep.check();
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
                let done = ready!(Pin::new(&mut reading.0).poll(context));
                // It counts as it was read from here on.
                let _reserved = self.reading.take();
                let (reader, read) = done.map_err(closed_or_read)?;
                let next = reader.next();
                let parts = read.map_err(FollowError::Read)?;
                self.reader = Some(Box::new(reader));
                self.tell_trimmed(inner);
                self.hand_out(inner, shared.recovered(inner, parts));
                self.pass(inner, shared, next.prev());
                if inner.journal.is_sealed(self.sweep.next()) {
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
                // Most subscribers wait for long: an idle one must not keep an empty queue
                // allocated.
                self.ready = VecDeque::new();
                return Poll::Pending;
            }
        }
    }

    fn mail(&self, inner: &Inner, context: &Context<'_>) -> Option<Delivery> {
        match self.mailbox.take(context.waker())? {
            Taken::Mail(mail) => Some(mailed(inner, mail, self.handed_out)),
            Taken::Overflow(overflow) => Some(slow(&overflow)),
            // Only those of named subscriptions are ended.
            Taken::Ended(_) => None,
        }
    }

    /// Takes frames from memory, or begins to read history. False means to wait.
    fn look(
        &mut self,
        inner: &Arc<Inner>,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Result<bool, FollowError> {
        let reader = (shared.id, context.waker());
        let (now, was_live) = (inner.clock.now(), self.sweep.is_live());
        if !was_live {
            // Though memory may hold it too: see `core/sweep.rs`.
            if inner.journal.is_sealed(self.sweep.next()) {
                self.fall_behind(inner);
                return Ok(true);
            }
            self.step(now, None, Input::AtTail { is_empty: false });
            if self.sweep.is_live() {
                self.reader = None;
                return Ok(true);
            }
        }
        match inner.journal.tail(self.sweep.next(), inner.limits.step_bytes, reader) {
            TailRead::Wait => {
                if !was_live {
                    // Nothing is left to recover, so what comes now is live.
                    self.step(now, None, Input::AtTail { is_empty: true });
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
                        if entry.header.last_position() >= self.sweep.next() {
                            entries.push(entry.bytes);
                        }
                    }
                }
                self.hand_out(inner, entries);
                self.pass(inner, shared, last);
                Ok(true)
            }
            TailRead::Behind => {
                self.fall_behind(inner);
                Ok(true)
            }
        }
    }

    /// Goes on in segments.
    fn fall_behind(&mut self, inner: &Arc<Inner>) {
        let last = inner.journal.last_settled();
        self.step(inner.clock.now(), None, Input::Behind { last });
        self.tell_trimmed(inner);
        self.read(inner);
    }

    fn read(&mut self, inner: &Arc<Inner>) {
        let next = self.sweep.next();
        let at_place = self.reader.take().filter(|reader| reader.next() == next);
        let reader = at_place.map_or_else(|| PatternReader::new(next), |reader| *reader);
        let (pattern, broker) = (self.pattern.clone(), Arc::downgrade(inner));
        let is_wanted = Arc::new(move |id: TopicId| {
            broker.upgrade().is_some_and(|inner| wanted(&inner, &pattern, id).is_some())
        });
        let reserved = inner.recovery_memory.reserve(&inner.limits);
        let reading = inner.journal.read_pattern(reader, is_wanted, reserved.step());
        self.reading = Some(Box::new((reading, reserved)));
    }

    /// The topic of this number, if it is wanted and still there.
    fn wanted(&mut self, inner: &Inner, id: TopicId) -> Option<Arc<LiveTopic>> {
        if self.cells.len() >= CELLS_MAX {
            self.cells.clear();
        }
        let look = || wanted(inner, &self.pattern, id);
        self.cells.entry(id).or_insert_with(look).clone()
    }

    /// Queues notices of matching topics that were trimmed beyond this subscriber's place.
    fn tell_trimmed(&mut self, inner: &Inner) {
        let trims = inner.trims.load(Ordering::Acquire);
        if self.trims_seen.replace(trims) == Some(trims) {
            return;
        }
        for cell in inner.topics.matching_or_leaving(&self.pattern) {
            let place = self.sweep.next().prev();
            let is_ahead = |cell: &LiveTopic| {
                inner
                    .topics
                    .reused(|names| names.created_after(&cell.name, cell.id, place))
                    .is_some()
            };
            // That it is another topic must be reported before: `tell_reused` does both.
            if !inner.topics.may_be_reused_from(place.next()) || !is_ahead(&cell) {
                self.tell_floor(inner, &cell);
            }
        }
    }

    /// Queues a notice if this topic was trimmed beyond this subscriber's place.
    fn tell_floor(&mut self, inner: &Inner, cell: &LiveTopic) {
        let (kept, position) = {
            let state = cell.lock();
            if !state.is_durable() {
                return;
            }
            // What retention by count has let go comes by in its entries.
            let (first, floor_reason) = (state.machine.first(), state.machine.floor_reason());
            (Kept { first, floor_reason, ..state.kept() }, state.floor_position)
        };
        let floor = Input::Floor { topic: cell.id, kept: &kept, position };
        self.step(inner.clock.now(), Some(&cell.name), floor);
    }

    /// Queues notices of matching topics that were created up to a position under the name of
    /// another.
    fn tell_reused(&mut self, inner: &Inner, through: Position) {
        let next = self.sweep.next();
        if through < next || !inner.topics.may_be_reused_from(next) {
            return;
        }
        let wanted = |name: &TopicName| self.pattern.matches(name);
        let created: Vec<(TopicName, Position, TopicId)> = inner.topics.reused(|names| {
            let between = names.created_between(next, through);
            between
                .filter(|each| wanted(each.0))
                .map(|each| (each.0.clone(), each.1, each.2))
                .collect()
        });
        for (name, position, topic) in created {
            self.step(inner.clock.now(), Some(&name), Input::Reused { topic, position });
            if let Some(cell) = inner.topics.by_id(topic) {
                self.tell_floor(inner, &cell);
            }
        }
    }

    /// Turns entries in the order of their positions into deliveries; neighbours of one topic go
    /// together.
    fn hand_out(&mut self, inner: &Inner, entries: Vec<Bytes>) {
        let now = inner.clock.now();
        let mut run: Option<Run> = None;
        for mut bytes in entries {
            let Ok(entry) = Entry::take_trusted(&mut bytes) else { continue };
            let header = entry.header;
            let is_batch = header.kind == EntryKind::Batch;
            let cell = is_batch.then(|| self.wanted(inner, header.topic)).flatten();
            let kept = cell.as_ref().and_then(|cell| {
                let state = cell.lock();
                (!state.gone).then(|| state.kept())
            });
            let (place, told) = (self.sweep.next().prev(), self.ready.len());
            self.tell_reused(inner, header.position.prev());
            let (Some(cell), Some(kept)) = (cell, kept) else {
                let through = header.last_position();
                self.tell_reused(inner, through);
                self.step(now, None, Input::Passed { through });
                if told < self.ready.len()
                    && let Some(run) = run.take()
                {
                    // Before all notices of this entry: the token of one covers what is before it.
                    self.ready.insert(told, run.finish(place, now));
                }
                continue;
            };
            let from =
                self.step(now, Some(&cell.name), Input::Entry { header: &header, kept: &kept });
            let is_whole = from == Some(header.seq) && told == self.ready.len();
            let continues = run.as_ref().is_some_and(|run| {
                is_whole && run.cell.id == cell.id && run.to.next() == header.seq
            });
            if !continues && let Some(run) = run.take() {
                // What comes before a notice must be delivered before it.
                self.ready.insert(told, run.finish(place, now));
            }
            if let Some(from) = from {
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
        if let Some(run) = run {
            self.ready.push_back(run.finish(self.sweep.next().prev(), now));
        }
    }
}

/// Neighbouring batches of one topic.
struct Run {
    cell: Arc<LiveTopic>,
    from: Seq,
    to: Seq,
    last_first: Seq,
    tally: Tally,
    parts: Vec<Bytes>,
}

impl Run {
    /// The delivery, and the position up to which all is handed out with it.
    fn finish(self, place: Position, now: Timestamp) -> (Delivery, Position) {
        let (name, range) = (self.cell.name.clone(), (self.from, self.to));
        let tally = Some((self.tally, self.last_first));
        let messages = Messages::new(name, range, place, now, self.parts, tally);
        (Delivery::Messages(messages), place)
    }
}
