//! How far the journal has come, and who waits for it.
//!
//! Marks only rise. A waiter names a frame and a durability; it is woken once when the mark
//! has reached it, or when the journal has failed. One thread at a time leads: it writes and
//! flushes for all. A blocked publisher leads itself when no other thread does, which
//! saves it two wake-ups; the flusher's thread leads for all who do not block.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

use gapless_core::Durability;

use crate::error::Failure;
use crate::log::Lsn;

/// Waiters that are woken by the thread that raised the marks, if there is a writer for more.
const WOKEN_HERE_MAX: usize = 2;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All that had gathered is written, or the journal has failed.
    Done,
    /// The same, and what has gathered meanwhile is to be flushed too.
    More,
    /// All that had gathered is written, and the next turn is to come after a rest.
    Rest(Duration),
    /// The disk is full: the same is to be tried again after a rest.
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct Marks {
    written: AtomicU64,
    flushed: AtomicU64,
    failed: AtomicBool,
    waiting: Mutex<Waiting>,
    /// Those who must take a turn of their own wait here until no thread leads.
    turns: Condvar,
    /// The flusher's thread waits here for work.
    kicks: Condvar,
    /// How long a full disk is left alone.
    full_retry: Duration,
    /// The writer was asked for a turn that it has not begun.
    writer_asked: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    leading: bool,
    /// How many wait for a turn of their own: while none does, none is notified, which
    /// would cost a call of the system each time.
    blocked: usize,
    /// Blocked publishers, parked until their mark is reached or it is their turn to lead.
    /// Each is woken by itself: a crowd that is woken together for one of them to lead would
    /// cost more than the flush.
    parked: VecDeque<(Lsn, Durability, Thread)>,
    kicked: bool,
    /// Asked for turns without a flush in place of the flusher's thread.
    writer: Option<Waker>,
    /// Those whose wait is over and whom the writer wakes.
    settled: Vec<Waker>,
    failure: Option<Failure>,
    /// Those who wait for a frame up to this one are not kept waiting.
    given_up: Lsn,
    wakers: Vec<(Lsn, Durability, Waker)>,
    /// Those who wait for room to append.
    room: Vec<Waker>,
}

impl Waiting {
    /// Why waiting for a frame that is not written yet makes no sense, if so.
    fn end_of(&self, lsn: Lsn) -> Option<Failure> {
        let given_up = || (lsn <= self.given_up).then_some(Failure::Unwritten);
        self.failure.clone().or_else(given_up)
    }
}

/// Locks a mutex whose data is whole even if a holder panicked: no code between lock and
/// unlock in this crate leaves it half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Marks {
    pub(crate) fn new(full_retry: Duration) -> Self {
        Self { full_retry, ..Self::default() }
    }

    /// Begins where the log stands at opening: all of that is flushed.
    pub(crate) fn start(&self, through: Lsn) {
        self.written.store(through.0, Ordering::Release);
        self.flushed.store(through.0, Ordering::Release);
    }

    pub(crate) fn written(&self) -> Lsn {
        Lsn(self.written.load(Ordering::Acquire))
    }

    pub(crate) fn flushed(&self) -> Lsn {
        Lsn(self.flushed.load(Ordering::Acquire))
    }

    /// What the frame `lsn` has reached.
    pub(crate) fn reached(&self, lsn: Lsn) -> Durability {
        if self.flushed() >= lsn {
            Durability::Flushed
        } else if self.written() >= lsn {
            Durability::Written
        } else {
            Durability::Memory
        }
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.waiting).failure.clone()
    }

    /// Whether a waiter needs a flush of what is written already.
    pub(crate) fn awaits_flush(&self) -> bool {
        if self.flushed() >= self.written() {
            return false;
        }
        let waits = |lsn: Lsn, wanted: Durability| {
            wanted == Durability::Flushed && self.reached(lsn) == Durability::Written
        };
        let waiting = lock(&self.waiting);
        waiting.wakers.iter().any(|(lsn, wanted, _)| waits(*lsn, *wanted))
            || waiting.parked.iter().any(|(lsn, wanted, _)| waits(*lsn, *wanted))
    }

    /// Raises the marks and wakes everybody whose wait is over.
    pub(crate) fn raise(&self, written: Lsn, flushed: Lsn) {
        self.written.fetch_max(written.0, Ordering::AcqRel);
        self.flushed.fetch_max(flushed.0, Ordering::AcqRel);
        let mut waiting = lock(&self.waiting);
        let over = |(lsn, wanted, _): &mut (Lsn, Durability, Waker)| self.reached(*lsn) >= *wanted;
        let woken: Vec<_> = waiting.wakers.extract_if(.., over).collect();
        waiting.parked.retain(|(lsn, wanted, thread)| {
            let over = self.reached(*lsn) >= *wanted;
            if over {
                thread.unpark();
            }
            !over
        });
        let woken = woken.into_iter().map(|(_, _, waker)| waker);
        // From the writer's own threads each of them takes less.
        if woken.len() > WOKEN_HERE_MAX && waiting.writer.is_some() {
            waiting.settled.extend(woken);
            let writer = waiting.writer.clone();
            drop(waiting);
            writer.into_iter().for_each(Waker::wake);
        } else {
            drop(waiting);
            woken.for_each(Waker::wake);
        }
    }

    /// Wakes those whose wait is over and who were left to the writer.
    pub(crate) fn wake_settled(&self) {
        let settled = std::mem::take(&mut lock(&self.waiting).settled);
        settled.into_iter().for_each(Waker::wake);
    }

    /// Ends the journal: everybody is woken and learns why. The first failure stays.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut waiting = lock(&self.waiting);
        waiting.failure.get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
        let wakers: Vec<Waker> = waiting.wakers.drain(..).map(|(_, _, waker)| waker).collect();
        let room = std::mem::take(&mut waiting.room);
        waiting.parked.drain(..).for_each(|(_, _, thread)| thread.unpark());
        drop(waiting);
        self.turns.notify_all();
        self.kicks.notify_all();
        wakers.into_iter().chain(room).for_each(Waker::wake);
    }

    /// Tells those who wait for frames through `last` that these are not written, and that
    /// it is not known when they will be.
    pub(crate) fn give_up(&self, last: Lsn) {
        let mut waiting = lock(&self.waiting);
        waiting.given_up = waiting.given_up.max(last);
        let wakers: Vec<Waker> = waiting.wakers.drain(..).map(|(_, _, waker)| waker).collect();
        waiting.parked.drain(..).for_each(|(_, _, thread)| thread.unpark());
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Asks whether the wait is over, and leaves `waker` if not. `again` says that the same
    /// waiter asked before.
    pub(crate) fn poll(
        &self,
        (lsn, wanted): (Lsn, Durability),
        waker: &Waker,
        again: bool,
    ) -> Option<Result<Durability, Failure>> {
        let reached = self.reached(lsn);
        if reached >= wanted {
            return Some(Ok(reached));
        }
        let mut waiting = lock(&self.waiting);
        let reached = self.reached(lsn);
        if reached >= wanted {
            return Some(Ok(reached));
        }
        if let Some(failure) = waiting.end_of(lsn) {
            return Some(Err(failure));
        }
        // A ticket that is polled again would otherwise be here many times.
        let same = |(at, to, by): &(Lsn, Durability, Waker)| {
            *at == lsn && *to == wanted && by.will_wake(waker)
        };
        if !again || !waiting.wakers.iter().any(same) {
            waiting.wakers.push((lsn, wanted, waker.clone()));
        }
        self.ask(waiting, wanted);
        None
    }

    /// Asks for a turn, of the writer if there is one and no flush is needed.
    fn ask(&self, mut waiting: MutexGuard<'_, Waiting>, wanted: Durability) {
        if wanted < Durability::Flushed && waiting.writer.is_some() {
            if !self.writer_asked.swap(true, Ordering::AcqRel) {
                let writer = waiting.writer.clone();
                drop(waiting);
                writer.into_iter().for_each(Waker::wake);
            }
        } else if !waiting.kicked {
            waiting.kicked = true;
            self.kicks.notify_one();
        }
    }

    /// Lets turns without a flush be asked of this waker, in place of the flusher's thread, until
    /// [`Marks::forget_writer`].
    pub(crate) fn set_writer(&self, writer: &Waker) {
        lock(&self.waiting).writer = Some(writer.clone());
    }

    /// Turns are asked of the flusher's thread again, unless another waker was set since. What was
    /// asked of the writer is asked of that thread.
    pub(crate) fn forget_writer(&self, writer: &Waker) {
        let mut waiting = lock(&self.waiting);
        if waiting.writer.as_ref().is_some_and(|known| known.will_wake(writer)) {
            waiting.writer = None;
        }
        drop(waiting);
        self.writer_asked.store(false, Ordering::Release);
        self.wake_settled();
        self.kick();
    }

    /// Whether the writer is asked for a turn.
    pub(crate) fn is_writer_asked(&self) -> bool {
        self.writer_asked.load(Ordering::Acquire)
    }

    /// The writer's turn begins: what is appended from now on may not be in it.
    pub(crate) fn writer_begins(&self) {
        self.writer_asked.store(false, Ordering::Release);
    }

    /// Asks for a turn without a flush, and does not wait for it.
    pub(crate) fn ask_to_write(&self) {
        // The writer begins its turn after this look, and then finds what was appended before it.
        if !self.writer_asked.load(Ordering::Acquire) {
            self.ask(lock(&self.waiting), Durability::Written);
        }
    }

    /// Blocks until the wait is over; leads when no thread does.
    pub(crate) fn wait(
        &self,
        lsn: Lsn,
        wanted: Durability,
        turn: impl Fn() -> Turn,
    ) -> Result<Durability, Failure> {
        let me = std::thread::current();
        let mut waiting = lock(&self.waiting);
        loop {
            let reached = self.reached(lsn);
            if reached >= wanted {
                return Ok(reached);
            }
            if let Some(failure) = waiting.end_of(lsn) {
                return Err(failure);
            }
            if waiting.leading {
                waiting.parked.push_back((lsn, wanted, me.clone()));
                drop(waiting);
                std::thread::park();
                waiting = lock(&self.waiting);
                // Those whose mark is reached were taken out, or are about to be.
                if self.reached(lsn) < wanted {
                    waiting.parked.retain(|(_, _, thread)| thread.id() != me.id());
                }
                continue;
            }
            waiting = self.lead(waiting, &turn, self.full_retry).0;
        }
    }

    fn block<'a>(&self, mut waiting: MutexGuard<'a, Waiting>) -> MutexGuard<'a, Waiting> {
        waiting.blocked += 1;
        let mut waiting = self.turns.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        waiting.blocked -= 1;
        waiting
    }

    /// Takes one turn as the leader, if no thread leads, else waits until that one is done.
    pub(crate) fn take_turn(&self, turn: impl Fn() -> Turn) {
        let mut waiting = lock(&self.waiting);
        while waiting.leading {
            waiting = self.block(waiting);
        }
        drop(self.lead(waiting, &turn, Duration::ZERO));
    }

    /// Whether a thread leads.
    pub(crate) fn is_led(&self) -> bool {
        lock(&self.waiting).leading
    }

    /// Takes one turn as the leader, if no thread leads. Returns whether it did.
    pub(crate) fn try_turn(&self, turn: impl Fn() -> Turn) -> bool {
        let waiting = lock(&self.waiting);
        let may = !waiting.leading;
        if may {
            drop(self.lead(waiting, &turn, Duration::ZERO));
        }
        may
    }

    /// The life of the flusher's thread: a turn whenever one was asked for, and while
    /// the disk is full one now and then, so that all goes on by itself when it is not.
    pub(crate) fn serve(&self, turn: impl Fn() -> Turn) {
        let mut waiting = lock(&self.waiting);
        while waiting.failure.is_none() {
            // Those who must take a turn of their own go first, and wake this thread after it.
            if !waiting.kicked || waiting.leading || waiting.blocked > 0 {
                waiting = self.kicks.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            waiting.kicked = false;
            let turned;
            (waiting, turned) = self.lead(waiting, &turn, self.full_retry);
            waiting.kicked |= turned != Turn::Done;
        }
    }

    fn lead<'a>(
        &'a self,
        mut waiting: MutexGuard<'a, Waiting>,
        turn: &impl Fn() -> Turn,
        rest: Duration,
    ) -> (MutexGuard<'a, Waiting>, Turn) {
        waiting.leading = true;
        drop(waiting);
        let leader = Leader(self);
        let turned = turn();
        let rest = match turned {
            Turn::Full => rest,
            Turn::Rest(paced) if !rest.is_zero() => paced,
            _ => Duration::ZERO,
        };
        if !rest.is_zero() {
            // Still leading, so that there is no other turn meanwhile. Only a failure notifies
            // before the time is over.
            let waiting = lock(&self.waiting);
            if waiting.failure.is_none() {
                let rested = self.turns.wait_timeout(waiting, rest);
                drop(rested.unwrap_or_else(PoisonError::into_inner));
            }
        }
        drop(leader);
        (lock(&self.waiting), turned)
    }

    /// Asks the flusher's thread for a turn without waiting for it.
    pub(crate) fn kick(&self) {
        let mut waiting = lock(&self.waiting);
        if !waiting.kicked {
            waiting.kicked = true;
            self.kicks.notify_one();
        }
    }

    /// Leaves a waker to be called when there may be room to append.
    pub(crate) fn wait_for_room(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if waiting.failure.is_some() {
            drop(waiting);
            return waker.wake_by_ref();
        }
        waiting.room.push(waker.clone());
    }

    pub(crate) fn room_made(&self) {
        let room = std::mem::take(&mut lock(&self.waiting).room);
        room.into_iter().for_each(Waker::wake);
    }
}

/// Lets go of the leadership, whatever ends the turn. A turn that panics ends the journal
/// too, because it is not known what it had done; else all who wait would wait for ever.
struct Leader<'a>(&'a Marks);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Failure::Poisoned { why: Arc::from("the flusher panicked") });
        }
        let mut waiting = lock(&self.0.waiting);
        waiting.leading = false;
        if waiting.blocked > 0 {
            self.0.turns.notify_all();
        }
        // The next leader, if it is not a thread that comes just now. It stays in the queue
        // until it has looked, so that the one who leads before it wakes it again.
        if let Some((_, _, next)) = waiting.parked.front() {
            next.unpark();
        }
        if waiting.kicked {
            self.0.kicks.notify_one();
        }
    }
}
