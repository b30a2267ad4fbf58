//! One connection: everything it asks for, and everything it is sent.
//!
//! One task owns it. Each time it is woken it does what can be done, in an order that keeps
//! it bounded: write what waits, send acks that are due, deliver to subscribers that have credit,
//! and only then read more. When too much waits it stops reading, so that the other side's own
//! socket fills up: that is the back-pressure.

mod ask;
mod ending;
mod handle;
mod jobs;
mod logged;
mod publish;
mod rights;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use gapless_auth::{Caller, Held};
use gapless_broker::Reporting;
use gapless_protocol::{
    Decoder, ErrorCode, FRAME_BYTES_MIN, Features, FrameLimit, Ids, Kind, Output, Verb,
};
use tokio::time::{Instant, Sleep};

use crate::answers::error;
use crate::budget::{SMALL_BYTES, Share};
use crate::native::deliver::{Followed, Stop, put_with};
use crate::native::group::Memberships;
use crate::native::server::Shared;
use crate::native::signals::Heard;
use crate::session::numbered::Numbered;
use crate::session::output::poll_write;
use crate::session::ready::Ready;
use crate::session::sessions::{CLOSED_BY_ADMIN, Session};
use crate::session::sockets::slow_reader_ended;
use crate::session::stream::{STACK_BYTES, Stream};

use self::ask::Asked;
use self::publish::{Owed, Stalled};

/// Bytes read at once, at first: enough for a question. Large buffers that come and go would
/// leave holes in the memory between connections that stay.
const READ_BYTES_MIN: usize = STACK_BYTES;
/// Bytes read at once from a client that sends more than that: enough for many small frames.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Frames handled before their answers are written.
const FRAMES_AT_ONCE: usize = 256;
/// Rounds of reading and writing before other connections get their turn.
const ROUNDS_PER_TURN: usize = 16;
/// Questions that may wait for a blocking answer at the same time.
const ASKED_MAX: usize = 64;
/// Delivery reports that a connection may wait for; then it reads no more until one is complete.
const REPORTS_MAX: usize = 1_024;

/// A connection and all it owes.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    session: Arc<Session>,
    /// Who it is and what it may do; a stranger until the hello.
    caller: Caller,
    /// Its place among the connections of its identity.
    counted: Option<Held>,
    stream: Stream,
    limit: FrameLimit,
    input: BytesMut,
    /// How much is read at once; it follows what comes.
    read_bytes: usize,
    /// Since when the input holds a part of a frame.
    unfinished_since: Option<Instant>,
    /// What it holds of the memory of all connections.
    share: Share,
    output: Output,
    stage: Stage,
    /// What both sides can do.
    features: Features,
    /// Publishes and acks of members whose answers are not out yet, in order.
    publishes: VecDeque<Owed>,
    /// Delivery reports that are not complete, each after its ack.
    reports: Vec<(Ids, Reporting)>,
    in_flight_bytes: usize,
    /// How many of the next frames are handled one by one, because taking them together failed.
    alone: usize,
    /// A publish that must wait; nothing is read meanwhile.
    stalled: Option<Box<Stalled>>,
    /// Questions answered by code that may block.
    asked: VecDeque<Asked>,
    follows: Numbered<Box<Followed>>,
    members: Memberships,
    /// Subscriptions and memberships that should be asked for more.
    hungry: VecDeque<u64>,
    ready: Arc<Ready>,
    next_follow: u64,
    /// Whether another connection published just before this one did.
    is_one_of_many: bool,
    /// Whether something of this turn was live.
    was_live: bool,
    /// Whether what was delivered last was history.
    recovers: bool,
    /// Bytes written since it last paused for live messages.
    unrested: usize,
    /// Until when a recovering connection pauses, so that live messages pass.
    rest_until: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// What was said to all connections, as far as it is known here.
    heard: Heard,
    /// The time at which its turn began.
    now: Instant,
    hello_by: Instant,
    last_heard: Instant,
    last_written: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was said yet.
    New,
    /// Hello and welcome are done.
    Open,
    /// The client was asked to finish; it is read and answered until it says bye.
    Draining,
    /// It ends when everything owed is out.
    Ending,
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// The other side closed it, or all was done.
    Done,
    /// Its first frame is a hello of jobs: a session of the leader takes it over.
    Jobs,
    /// The socket failed.
    Io(io::Error),
}

/// Why a connection does not simply wait.
enum Stopped {
    Ended(End),
    /// Something was said to all connections.
    Heard(Heard),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: Arc<Session>,
        stream: Stream,
        too_many: bool,
    ) -> Box<Self> {
        let now = Instant::now();
        let heard = shared.signals.heard();
        let ready = Arc::clone(&session.ready);
        let hello_by = now + shared.options.hello_timeout;
        let limit = FrameLimit::at_most(shared.options.frame_bytes_max);
        let share = shared.options.memory.share();
        let caller = shared.auth.stranger(Arc::clone(&session.address));
        let mut connection = Box::new(Self {
            shared,
            session,
            caller,
            counted: None,
            stream,
            limit,
            input: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            unfinished_since: None,
            share,
            output: Output::default(),
            stage: Stage::New,
            publishes: VecDeque::new(),
            reports: Vec::new(),
            in_flight_bytes: 0,
            alone: 0,
            stalled: None,
            asked: VecDeque::new(),
            follows: Numbered::default(),
            members: Memberships::default(),
            features: Features::NONE,
            hungry: VecDeque::new(),
            ready,
            next_follow: 1,
            is_one_of_many: false,
            was_live: false,
            recovers: false,
            unrested: 0,
            rest_until: None,
            timer: Box::pin(tokio::time::sleep_until(hello_by)),
            heard,
            now,
            hello_by,
            last_heard: now,
            last_written: now,
        });
        if too_many {
            connection.end_with(ErrorCode::TooManyConnections, "too many connections", Ids::NONE);
        }
        connection
    }

    pub(crate) async fn run(mut self: Box<Self>) {
        let ended = loop {
            match poll_fn(|context| self.poll(context)).await {
                Stopped::Ended(End::Jobs) => return Box::pin(self.serve_jobs()).await,
                Stopped::Ended(end) => break Some(end),
                Stopped::Heard(heard) if heard.is_closing() => break None,
                Stopped::Heard(_) => self.check_again(),
            }
        };
        // Boxed: open connections must not pay for the state that an ending one needs.
        Box::pin(self.wind_up(ended)).await;
    }

    /// Does what can be done; ready when the connection has ended, or something was said to all.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Stopped> {
        if let Poll::Ready(end) = self.poll_end(context) {
            return Poll::Ready(Stopped::Ended(end));
        }
        // After the turn, which left the waker: what is said from now on wakes it.
        let heard = self.shared.signals.heard();
        if heard == self.heard {
            return Poll::Pending;
        }
        self.heard = heard;
        Poll::Ready(Stopped::Heard(heard))
    }

    /// Does what can be done; ready when the connection has ended.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match self.turn(context) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(end),
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        if self.rests(context) {
            return Ok(());
        }
        if let Some(awake) = &self.shared.awake {
            awake.touch();
        }
        self.look_at_clock();
        if self.session.is_closed() && self.stage != Stage::Ending {
            self.end_with(ErrorCode::ClosedByAdmin, CLOSED_BY_ADMIN, Ids::NONE);
        }
        let recovering = self.recovers.then(|| self.shared.broker.recovering());
        let share = self.shared.fairness.share(self.now, recovering);
        self.was_live = false;
        let mut quantum = share.bytes;
        while quantum > 0 {
            let mut did = self.read(context)?;
            did |= self.answer_publishes(context);
            did |= self.answer_reports(context);
            did |= self.answer_asked(context);
            did |= self.deliver(context);
            let written = self.write(quantum, context)?;
            quantum = quantum.saturating_sub(written.max(share.bytes / ROUNDS_PER_TURN));
            if self.stage == Stage::Ending && self.owes_nothing() {
                return Err(End::Done);
            }
            // Writing may have made room for waiting subscriptions, and for reading.
            did |= written > 0;
            if !did {
                self.drop_empty_queues();
                self.note_live();
                self.count_memory();
                return self.watch_time(context);
            }
        }
        self.note_live();
        self.count_memory();
        // Others get their turn; this one goes on after them, or after its rest.
        let rest = share.rest(&mut self.unrested, share.bytes);
        self.rest_until = rest.map(|rest| Instant::now() + rest);
        if !self.rests(context) {
            // After the runtime has looked at sockets too: the turn was long.
            let _ = pin!(tokio::task::yield_now()).poll(context);
        }
        Ok(())
    }

    /// Notes the time, at the beginning of a turn and after what may have taken long.
    fn look_at_clock(&mut self) {
        self.now = Instant::now();
    }

    /// Whether it rests; then it is woken when that is over.
    fn rests(&mut self, context: &mut Context<'_>) -> bool {
        let Some(until) = self.rest_until else { return false };
        self.timer.as_mut().reset(until);
        let over = self.timer.as_mut().poll(context).is_ready();
        if over {
            self.rest_until = None;
        }
        !over
    }

    /// Does nothing for a while, not even say why it ends.
    fn rest_for(&mut self, time: Duration) {
        self.rest_until = (!time.is_zero()).then(|| Instant::now() + time);
    }

    fn note_live(&self) {
        if self.was_live {
            self.shared.fairness.live(self.now);
        }
    }

    fn owes_nothing(&self) -> bool {
        let answered = self.publishes.is_empty() && self.asked.is_empty() && self.stalled.is_none();
        answered && self.reports.is_empty() && self.output.bytes() == 0
    }

    fn output_is_full(&self) -> bool {
        self.output.bytes() >= self.output_bytes_max()
    }

    /// Bytes of output past which nothing more is encoded for it.
    fn output_bytes_max(&self) -> usize {
        let allowed = self.share.allowance().max(SMALL_BYTES);
        self.shared.options.output_bytes_max.min(allowed)
    }

    /// The most bytes of the next frame: before the hello there is nothing large to say.
    fn frame_limit(&self) -> FrameLimit {
        if self.stage == Stage::New { FrameLimit::at_most(FRAME_BYTES_MIN) } else { self.limit }
    }

    /// What it holds in memory, whether read or to be written.
    fn held_bytes(&self) -> usize {
        let stalled = self.stalled.as_ref().map_or(0, |stalled| stalled.frame.bytes());
        self.input.capacity() + stalled + self.output.bytes()
    }

    fn count_memory(&mut self) {
        self.share.set(self.held_bytes());
    }

    /// How many of `wanted` bytes may be read now; `None` means to wait for memory.
    fn may_read(&mut self, wanted: usize, context: &Context<'_>) -> Option<usize> {
        let (length, capacity) = (self.input.len(), self.input.capacity());
        // A buffer that is too small grows to twice its size, or more.
        let fits = capacity - length >= wanted;
        let grown = if fits { capacity } else { (2 * capacity).max(length + wanted) };
        let after = self.held_bytes() - capacity + grown;
        if !self.share.allows(after) && self.input.len() + READ_BYTES_MIN <= SMALL_BYTES {
            // Small frames go on, from small reads.
            return Some(wanted.min(READ_BYTES_MIN));
        }
        self.share.poll_grow(after, context).is_ready().then_some(wanted)
    }

    /// Writes what waits, as far as the socket takes it; returns how much that was.
    fn write(&mut self, most: usize, context: &mut Context<'_>) -> Result<usize, End> {
        let before = self.output.bytes();
        if let Poll::Ready(written) = poll_write(&mut self.output, &mut self.stream, most, context)
        {
            written?;
        }
        let written = before - self.output.bytes();
        if written > 0 || before == 0 {
            self.last_written = self.now;
        }
        Ok(written)
    }

    /// Reads and handles frames, unless too much waits already. Returns whether it did.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        if self.stalled.is_some() {
            return Ok(self.go_on(context));
        }
        if !self.may_handle() {
            return Ok(false);
        }
        if self.is_of_jobs() {
            return Err(End::Jobs);
        }
        if self.handle_all() {
            return Ok(true);
        }
        let missing = Decoder::new(self.frame_limit()).missing(&self.input);
        let missing = missing.unwrap_or(self.read_bytes);
        // No more room than has come already: a length is a promise.
        let room = missing.min(self.input.len()).max(self.read_bytes);
        let Some(room) = self.may_read(room, context) else { return Ok(false) };
        match self.stream.poll_read(context, &mut self.input, room) {
            Poll::Pending => {
                self.drop_empty_input();
                Ok(false)
            }
            Poll::Ready(Ok(0)) => {
                // It sends no more, but may still read the answers to what it sent.
                self.ends_because("the client closed it");
                self.finish();
                Ok(true)
            }
            Poll::Ready(Ok(read)) => {
                self.read_bytes = match read {
                    _ if read >= room => (room * 4).min(READ_BYTES_MAX),
                    _ if read < self.read_bytes / 8 => (room / 2).max(READ_BYTES_MIN),
                    _ => self.read_bytes,
                };
                self.last_heard = self.now;
                self.unfinished_since.get_or_insert(self.last_heard);
                if !self.is_of_jobs() {
                    self.handle_all();
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Handles frames that have come. Publishes and acks are handled together, so that answers
    /// gather. Anything else is answered in its order: a pong says that what was asked before is
    /// done. Returns whether there was any frame.
    fn handle_all(&mut self) -> bool {
        let mut handled = 0;
        while handled < FRAMES_AT_ONCE && self.may_handle() {
            if let Some(run) = self.next_run() {
                handled += run.msg_ids.len();
                self.publish_run(run);
                continue;
            }
            handled += 1;
            match Decoder::new(self.frame_limit()).decode(&mut self.input) {
                Ok(Some(frame)) => {
                    let gathers = [Kind::Publish.number(), Kind::GroupAck.number()];
                    let gathers = gathers.contains(&frame.kind);
                    self.handle(frame);
                    if !gathers {
                        break;
                    }
                }
                Ok(None) => {
                    handled -= 1;
                    break;
                }
                Err(bad) => self.end_with(bad.code(), bad, Ids::NONE),
            }
        }
        self.drop_empty_input();
        if handled > 0 {
            self.unfinished_since = None;
        }
        handled > 0
    }

    /// Nothing is kept while nothing is in flight.
    fn drop_empty_input(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
            self.unfinished_since = None;
        }
    }

    /// The same for its queues; called before it waits, not between messages.
    fn drop_empty_queues(&mut self) {
        if self.publishes.is_empty() {
            self.publishes = VecDeque::new();
        }
        if self.asked.is_empty() {
            self.asked = VecDeque::new();
        }
        if self.reports.is_empty() {
            self.reports = Vec::new();
        }
        if self.hungry.is_empty() {
            self.hungry = VecDeque::new();
        }
    }

    fn may_handle(&self) -> bool {
        self.stage != Stage::Ending && self.stalled.is_none() && !self.is_full()
    }

    /// Whether reading must wait until something of what it brought is done.
    fn is_full(&self) -> bool {
        let options = &self.shared.options;
        let total = self.shared.in_flight_bytes.load(Ordering::Relaxed);
        let own = self.in_flight_bytes;
        own >= options.in_flight_bytes_max
            || (own > 0 && total >= options.in_flight_total_bytes_max)
            || self.asked.len() >= ASKED_MAX
            || self.reports.len() >= REPORTS_MAX
            || self.output_is_full()
    }

    /// Ends the connection when it was silent, or took nothing, for too long.
    fn watch_time(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        let options = &self.shared.options;
        let now = self.now;
        let stuck = self.output.bytes() > 0;
        let (deadline, code) = if stuck {
            (Some(self.last_written + options.write_timeout), ErrorCode::WriteTimeout)
        } else if self.stage == Stage::New {
            (Some(self.hello_by), ErrorCode::IdleTimeout)
        } else if options.idle_timeout > Duration::ZERO
            && self.stage == Stage::Open
            && self.stalled.is_none()
        {
            (Some(self.last_heard + options.idle_timeout), ErrorCode::IdleTimeout)
        } else {
            (None, ErrorCode::IdleTimeout)
        };
        let memory = self.memory_deadline(stuck);
        let is_short = options.memory.is_short();
        if memory.is_some_and(|memory| memory <= now) && is_short {
            let why = options.memory.out_of_memory();
            return self.end_overdue(stuck, (ErrorCode::OutOfMemory, &why), context);
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            return self.end_overdue(stuck, (code, &"nothing was heard for too long"), context);
        }
        // While memory is not short it is looked at again after as long.
        let memory = memory.map(|at| if at <= now { now + options.memory.patience() } else { at });
        let Some(next) = deadline.into_iter().chain(memory).min() else { return Ok(()) };
        // A timer that is due earlier is left as it is: to set it at every turn costs more than to
        // look at the time once more when it has passed.
        if self.timer.is_elapsed() || self.timer.deadline() > next {
            self.timer.as_mut().reset(next);
        }
        if self.timer.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Until when it may hold what it holds while memory is short.
    fn memory_deadline(&self, stuck: bool) -> Option<Instant> {
        let holds = self.share.is_counted() || self.share.is_waiting();
        let since = if stuck { Some(self.last_written) } else { self.unfinished_since };
        since.filter(|_| holds).map(|since| since + self.shared.options.memory.patience())
    }

    /// Ends a connection whose time is over, with a reason if it still takes one.
    fn end_overdue(
        &mut self,
        stuck: bool,
        (code, why): (ErrorCode, &dyn std::fmt::Display),
        context: &Context<'_>,
    ) -> Result<(), End> {
        if stuck {
            slow_reader_ended("native", &self.session.address);
            return Err(End::Io(io::ErrorKind::TimedOut.into()));
        }
        self.end_with(code, why, Ids::NONE);
        context.waker().wake_by_ref();
        Ok(())
    }

    fn put(&mut self, verb: impl Into<Verb>, ids: Ids) {
        put_with(&mut self.output, &verb.into(), ids, self.limit);
    }

    fn refuse(&mut self, code: ErrorCode, why: &dyn std::fmt::Display, ids: Ids) {
        self.log_refusal(code, why);
        self.put(error(code, why), ids);
    }

    /// The same, with the time to wait, if the client reads that.
    fn refuse_for(
        &mut self,
        code: ErrorCode,
        why: &dyn std::fmt::Display,
        wait: Duration,
        ids: Ids,
    ) {
        self.log_refusal(code, why);
        let told = self.features.has(Features::RETRY_AFTER) && !wait.is_zero();
        let error = error(code, why);
        self.put(if told { error.retry_after(wait) } else { error }, ids);
    }

    /// Sends subscribers what there is, taking turns. Returns whether any was polled.
    fn deliver(&mut self, context: &Context<'_>) -> bool {
        self.hungry.extend(self.ready.take(context.waker()));
        let max = self.output_bytes_max();
        let mut did = false;
        while self.output.bytes() < max {
            let Some(number) = self.hungry.pop_front() else { break };
            let before = self.output.bytes();
            let stop = match self.follows.get_mut(number) {
                Some(followed) => followed.send(&mut self.output, max, self.limit),
                // A client that is asked to finish gets nothing new to do.
                None if self.stage != Stage::Open => continue,
                None => match self.members.send(number, &mut self.output, max, self.limit) {
                    Some(stop) => stop,
                    None => continue,
                },
            };
            match stop {
                Stop::Waits | Stop::NoCredit => {}
                Stop::Full => self.hungry.push_back(number),
                Stop::Ended => {
                    self.follows.remove(number);
                    self.forget(number);
                }
            }
            if self.output.bytes() > before {
                did = true;
                let history =
                    self.follows.get(number).is_some_and(|followed| followed.is_recovering());
                self.recovers = history;
                self.was_live |= !history;
            }
        }
        did
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of an idle connection's own state, without what the runtime and the broker have of it.
    const STATE_BYTES_MAX: usize = 640;

    #[test]
    fn the_state_of_a_connection_and_of_a_subscription_is_small() {
        let sizes = [size_of::<Connection>(), size_of::<Followed>(), size_of::<Session>()];
        assert!(sizes[0] <= STATE_BYTES_MAX, "{sizes:?}");
        assert!(sizes[1] <= 192, "{sizes:?}");
        assert!(sizes[2] <= 192, "{sizes:?}");
    }
}
