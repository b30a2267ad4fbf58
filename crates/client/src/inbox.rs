//! What handles ask of the driver, and how much of it there may be.
//!
//! Publishes enter in the order of the calls. As long as there is room they go to the driver
//! at once; otherwise they wait in line, and those that come later wait behind them. Both
//! places are bounded, by count and by bytes; beyond them a publish is rejected. Questions
//! are bounded by their permits, subscriptions by the link, and each subscription is noted
//! at most once at a time.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless_core::RejectReason;
use gapless_core::link::SubscriptionId;
use gapless_protocol::{StartFrom, Verb};
use tokio::sync::{Notify, oneshot};

use crate::error::{AskError, PublishError};
use crate::feed::Feed;
use crate::membership::{NewMember, Saying};
use crate::publish::Outgoing;

/// Something the driver is asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Publish(Outgoing),
    Ask(Question),
    Follow(NewFollow),
    Join(NewMember),
    Say(Saying),
    /// The user of a membership is gone.
    Leave(u64),
    /// Take nothing new, wait for answers so long, end.
    Stop {
        grace: Duration,
    },
}

/// A question and where its answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) verb: Verb,
    /// Whether it does no harm to ask it twice.
    pub(crate) repeatable: bool,
    pub(crate) reply: oneshot::Sender<Result<Verb, AskError>>,
}

/// A subscription to be requested.
#[derive(Debug)]
pub(crate) struct NewFollow {
    pub(crate) feed: Arc<Feed>,
    pub(crate) pattern: gapless_core::Pattern,
    pub(crate) from: StartFrom,
    pub(crate) identity: Option<gapless_core::cluster::Identity>,
}

/// An amount of publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) count: u32,
    pub(crate) bytes: u64,
}

impl Load {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn take(&mut self, other: Self) {
        self.count -= other.count;
        self.bytes -= other.bytes;
    }

    /// Whether one more fits under `limit`. A single one always does.
    fn has_room(self, bytes: u64, limit: Self) -> bool {
        self.count == 0 || (self.count < limit.count && self.bytes + bytes <= limit.bytes)
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Wakes the driver.
    work: Notify,
    /// Wakes the callers that wait for room.
    room: Notify,
    /// The client's own limit; the server's may be lower.
    own: Load,
}

#[derive(Debug)]
struct State {
    commands: VecDeque<Command>,
    noted: Vec<SubscriptionId>,
    line: VecDeque<Outgoing>,
    line_load: Load,
    /// Handed to the driver and not answered.
    in_flight: Load,
    limit: Load,
    closed: bool,
}

impl Inbox {
    pub(crate) fn new(own: Load) -> Self {
        let state = State {
            commands: VecDeque::new(),
            noted: Vec::new(),
            line: VecDeque::new(),
            line_load: Load::default(),
            in_flight: Load::default(),
            limit: own,
            closed: false,
        };
        Self { state: Mutex::new(state), work: Notify::new(), room: Notify::new(), own }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic is done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, outgoing: Outgoing) {
        let (bytes, max) = (outgoing.bytes(), self.own.bytes);
        if bytes > max {
            let reason = RejectReason::TooLarge { bytes, max };
            return outgoing.answer(Err(PublishError::Rejected(reason)));
        }
        let mut state = self.lock();
        if state.closed {
            drop(state);
            outgoing.answer(Err(PublishError::Closed));
        } else if state.line.is_empty() && state.in_flight.has_room(bytes, state.limit) {
            state.in_flight.add(bytes);
            state.commands.push_back(Command::Publish(outgoing));
            drop(state);
            self.work.notify_one();
        } else if state.line_load.has_room(bytes, self.own) {
            state.line_load.add(bytes);
            state.line.push_back(outgoing);
        } else {
            drop(state);
            outgoing.answer(Err(PublishError::Rejected(RejectReason::QueueFull)));
        }
    }

    /// Hands over anything but a publish; false when the client is closed.
    #[must_use]
    pub(crate) fn send(&self, command: Command) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        state.commands.push_back(command);
        drop(state);
        self.work.notify_one();
        true
    }

    /// Notifies the driver that a subscription needs attention.
    pub(crate) fn note(&self, id: SubscriptionId) {
        self.lock().noted.push(id);
        self.work.notify_one();
    }

    /// Closes the inbox: nothing more is taken. What waits in line is handed over without regard to
    /// room, and then this stop.
    pub(crate) fn stop(&self, grace: Duration) {
        let mut state = self.lock();
        state.closed = true;
        let line = std::mem::take(&mut state.line);
        state.line_load = Load::default();
        for outgoing in line {
            state.in_flight.add(outgoing.bytes());
            state.commands.push_back(Command::Publish(outgoing));
        }
        state.commands.push_back(Command::Stop { grace });
        drop(state);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Waits until a publish would be taken at once, or never will.
    pub(crate) async fn has_room(&self) {
        loop {
            let mut freed = pin!(self.room.notified());
            freed.as_mut().enable();
            {
                let state = self.lock();
                let room = state.line.is_empty() && state.in_flight.has_room(0, state.limit);
                if room || state.closed {
                    return;
                }
            }
            freed.await;
        }
    }

    /// For the driver: waits for something to do.
    pub(crate) async fn work(&self) {
        self.work.notified().await;
    }

    /// For the driver: everything there is to do.
    pub(crate) fn take(&self, commands: &mut VecDeque<Command>, noted: &mut Vec<SubscriptionId>) {
        let mut state = self.lock();
        std::mem::swap(&mut state.commands, commands);
        std::mem::swap(&mut state.noted, noted);
    }

    /// For the driver: so much was answered, and the server allows so many bytes.
    pub(crate) fn release(&self, freed: Load, server_bytes: u64) {
        let mut state = self.lock();
        let state = &mut *state;
        state.in_flight.take(freed);
        state.limit = Load { bytes: self.own.bytes.min(server_bytes.max(1)), ..self.own };
        let mut moved = false;
        while let Some(next) = state.line.front() {
            let bytes = next.bytes();
            if !state.in_flight.has_room(bytes, state.limit) {
                break;
            }
            let Some(next) = state.line.pop_front() else { break };
            state.line_load.take(Load { count: 1, bytes });
            state.in_flight.add(bytes);
            state.commands.push_back(Command::Publish(next));
            moved = true;
        }
        if moved {
            self.work.notify_one();
        }
        if state.line.is_empty() {
            self.room.notify_waiters();
        }
    }

    /// For the driver: nothing is taken any more, and what was not taken up comes back.
    pub(crate) fn close(&self) -> VecDeque<Command> {
        let mut state = self.lock();
        state.closed = true;
        let mut left = std::mem::take(&mut state.commands);
        left.extend(std::mem::take(&mut state.line).into_iter().map(Command::Publish));
        drop(state);
        self.room.notify_waiters();
        left
    }
}
