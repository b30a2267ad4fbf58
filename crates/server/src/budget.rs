//! One budget of memory for what connections hold: unfinished input and unsent output.
//!
//! All listeners of a server share one. Bytes are counted as they arrive or are encoded, not as a
//! length announces them, and given back when they are done. **A connection may hold as much as it
//! leaves free.** So one that holds little is never stopped by those that hold much: with `n` that
//! take all they get, each holds an `n+1`th of the budget, and as much stays free for the next. The
//! first [`SMALL_BYTES`] of a connection are not counted: a hello and a small request always get
//! through.
//!
//! A connection that may not take more is not read (or not written for) until it may, and is
//! refused after [`Budget::patience`]. While the budget is [short](Budget::is_short), one that
//! holds something without getting on for so long is ended too.
//!
//! What the broker keeps (topics in memory, cells, history being read) is not here but in its own
//! limits.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::timeout;

use crate::machine;

/// Bytes of each connection that are not counted: enough for a hello and for a small request.
pub(crate) const SMALL_BYTES: usize = 8 * 1024;

/// The part of the machine's memory that is the budget, unless the configuration says otherwise.
const PART_OF_MEMORY: usize = 4;

/// The budget where the amount of memory is not known.
const UNKNOWN_MEMORY_BYTES: usize = 256 * 1024 * 1024;

/// How long a connection waits for memory, unless the configuration says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// Those that wait for memory and are woken when some is given back. Those that get some wake the
/// next ones, so that few wake-ups are wasted.
const WOKEN_AT_ONCE: usize = 4;

/// The memory that all connections of all listeners share. Clones are the same budget.
#[derive(Clone)]
pub struct Budget(Arc<Pool>);

struct Pool {
    bytes_max: usize,
    patience: Duration,
    used: AtomicUsize,
    /// How many shares were refused more; see [`Budget::is_short`].
    refused: AtomicU64,
    waiting: Mutex<Waiting>,
    /// How many wait, to be looked at without the lock.
    waiting_count: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    next_ticket: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// That the budget has no room, and the wait for it was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory for unfinished requests and unsent answers ({bytes_max} bytes, \
     limits.memory_bytes) is used up: send again later, or less at once"
)]
pub(crate) struct OutOfMemory {
    bytes_max: usize,
}

impl Budget {
    /// A budget of so many bytes; a connection waits for memory as long as `patience`.
    pub fn new(bytes_max: usize, patience: Duration) -> Self {
        Self(Arc::new(Pool {
            bytes_max,
            patience,
            used: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            waiting: Mutex::default(),
            waiting_count: AtomicUsize::new(0),
        }))
    }

    /// A quarter of the memory that this process may use.
    pub fn quarter_of_memory(patience: Duration) -> Self {
        let bytes =
            machine::memory_bytes().map_or(UNKNOWN_MEMORY_BYTES, |all| all / PART_OF_MEMORY);
        Self::new(bytes, patience)
    }

    /// How many bytes there are.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// How many are in use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// How long a connection waits for memory before it is refused, and may hold some without
    /// getting on while it is short.
    pub fn patience(&self) -> Duration {
        self.0.patience
    }

    /// How many bytes are encoded at once for a client that may not take them: `most`, or less
    /// while there is little left.
    pub(crate) fn piece_bytes(&self, most: usize) -> usize {
        let left = self.0.bytes_max.saturating_sub(self.used());
        most.min((left / 2).max(SMALL_BYTES))
    }

    /// Whether most of it is used, or connections wait for some.
    pub(crate) fn is_short(&self) -> bool {
        self.used() > self.0.bytes_max / 2 || self.0.waiting_count.load(Ordering::Relaxed) > 0
    }

    /// How many times a connection had to wait.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// The share of a connection, which holds nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), held: 0, ticket: None }
    }

    /// Why something was refused.
    pub(crate) fn out_of_memory(&self) -> OutOfMemory {
        OutOfMemory { bytes_max: self.0.bytes_max }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_some(&self) {
        if self.0.waiting_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut waiting = self.waiting();
        let first: Vec<u64> = waiting.wakers.keys().take(WOKEN_AT_ONCE).copied().collect();
        let woken: Vec<_> =
            first.iter().filter_map(|ticket| waiting.wakers.remove(ticket)).collect();
        self.0.waiting_count.store(waiting.wakers.len(), Ordering::Relaxed);
        drop(waiting);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::quarter_of_memory(PATIENCE)
    }
}

/// Options are compared by what they allow.
impl PartialEq for Budget {
    fn eq(&self, other: &Self) -> bool {
        (self.0.bytes_max, self.0.patience) == (other.0.bytes_max, other.0.patience)
    }
}

impl Eq for Budget {}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes_max, used) = (self.0.bytes_max, self.used());
        f.debug_struct("Budget").field("bytes_max", &bytes_max).field("used", &used).finish()
    }
}

/// What one connection, or one request, holds of the budget; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    /// What is counted: all that is held, or nothing if that is small.
    held: usize,
    /// Its place among those that wait.
    ticket: Option<u64>,
}

impl Share {
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether it may come to hold so many bytes in all.
    pub(crate) fn allows(&self, bytes: usize) -> bool {
        bytes <= SMALL_BYTES || bytes <= self.held || bytes <= self.allowance()
    }

    /// The most it may hold now: half of what others have left.
    pub(crate) fn allowance(&self) -> usize {
        let others = self.budget.used().saturating_sub(self.held);
        self.budget.0.bytes_max.saturating_sub(others) / 2
    }

    /// Whether anything of it is counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.held > 0
    }

    /// Whether it waits for more.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ticket.is_some()
    }

    /// Says how many bytes are held now, be it more or less than before.
    pub(crate) fn set(&mut self, bytes: usize) {
        let bytes = if bytes <= SMALL_BYTES { 0 } else { bytes };
        let used = &self.budget.0.used;
        match bytes.checked_sub(self.held) {
            Some(0) => return,
            Some(more) => drop(used.fetch_add(more, Ordering::Relaxed)),
            None => {
                used.fetch_sub(self.held - bytes, Ordering::Relaxed);
                self.budget.wake_some();
            }
        }
        self.held = bytes;
    }

    /// Ready once it may hold so many bytes in all, which are counted then.
    pub(crate) fn poll_grow(&mut self, bytes: usize, context: &Context<'_>) -> Poll<()> {
        if !self.allows(bytes) {
            self.wait(context.waker());
            // Some may have been given back before this one was among those that wait.
            if !self.allows(bytes) {
                return Poll::Pending;
            }
        }
        let waited = self.stop_waiting();
        self.set(bytes.max(self.held));
        if waited {
            self.budget.wake_some();
        }
        Poll::Ready(())
    }

    /// Waits until it may hold so many bytes in all, which are counted then.
    ///
    /// # Errors
    /// When that takes too long. What is held is as before.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let patience = self.budget.0.patience;
        let granted = timeout(patience, poll_fn(|context| self.poll_grow(bytes, context))).await;
        granted.map_err(|_| {
            self.stop_waiting();
            self.budget.out_of_memory()
        })
    }

    fn wait(&mut self, waker: &Waker) {
        let mut waiting = self.budget.waiting();
        let old = self.ticket.filter(|ticket| waiting.wakers.contains_key(ticket));
        let ticket = old.unwrap_or_else(|| {
            waiting.next_ticket += 1;
            waiting.next_ticket
        });
        waiting.wakers.insert(ticket, waker.clone());
        self.budget.0.waiting_count.store(waiting.wakers.len(), Ordering::Relaxed);
        drop(waiting);
        if self.ticket.is_none() {
            self.budget.0.refused.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("gapless_memory_waits_total").increment(1);
        }
        self.ticket = Some(ticket);
    }

    /// Gives up its place among those that wait; returns whether it had one.
    pub(crate) fn stop_waiting(&mut self) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        let mut waiting = self.budget.waiting();
        waiting.wakers.remove(&ticket);
        self.budget.0.waiting_count.store(waiting.wakers.len(), Ordering::Relaxed);
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.stop_waiting();
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn grow(share: &mut Share, bytes: usize) -> bool {
        share.poll_grow(bytes, &Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn h1_a_connection_may_hold_as_much_as_it_leaves_free() {
        let budget = Budget::new(64 * MIB, PATIENCE);
        let (mut one, mut two) = (budget.share(), budget.share());
        assert!(grow(&mut one, 32 * MIB));
        assert!(!grow(&mut one, 33 * MIB), "a half is the most for one alone");
        assert!(grow(&mut two, 16 * MIB));
        assert!(!grow(&mut two, 17 * MIB));
        assert_eq!(budget.used(), 48 * MIB);
        drop(one);
        assert!(grow(&mut two, 32 * MIB));
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn h1_however_many_take_all_they_get_the_next_one_gets_something() {
        let budget = Budget::new(64 * MIB, PATIENCE);
        let mut greedy: Vec<Share> = (0..500).map(|_| budget.share()).collect();
        for share in &mut greedy {
            let mut bytes = 0;
            while grow(share, bytes + 4096) {
                bytes += 4096;
            }
        }
        assert!(budget.used() <= 64 * MIB, "{budget:?}");
        let mut next = budget.share();
        assert!(grow(&mut next, SMALL_BYTES), "small requests are not counted");
        assert!(budget.is_short());
    }

    #[test]
    fn who_waits_is_woken_when_memory_is_given_back_and_forgotten_when_gone() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let budget = Budget::new(64 * MIB, PATIENCE);
        let (mut holder, mut waiter, mut gone) = (budget.share(), budget.share(), budget.share());
        assert!(grow(&mut holder, 32 * MIB));
        let flag = Arc::new(Flag(false.into()));
        let waker = Waker::from(Arc::clone(&flag));
        let context = Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(waiter.poll_grow(20 * MIB, &context).is_pending());
        }
        assert!(!grow(&mut gone, 20 * MIB));
        assert_eq!(budget.waiting().wakers.len(), 2, "each waits once");
        drop(gone);
        assert_eq!((budget.waiting().wakers.len(), budget.refused()), (1, 2));
        holder.set(0);
        assert!(flag.0.load(Ordering::Relaxed));
        assert!(waiter.poll_grow(20 * MIB, &context).is_ready());
        assert!(!budget.is_short());
    }

    #[tokio::test]
    async fn who_waits_too_long_is_refused_and_keeps_what_it_had() {
        let budget = Budget::new(64 * MIB, Duration::from_millis(10));
        let (mut holder, mut waiter) = (budget.share(), budget.share());
        assert!(grow(&mut holder, 32 * MIB));
        assert_eq!(waiter.grow(10 * MIB).await, Ok(()));
        let refused = waiter.grow(20 * MIB).await.expect_err("the holder does not give way");
        assert!(refused.to_string().contains("limits.memory_bytes"), "{refused}");
        assert_eq!((budget.used(), budget.waiting().wakers.len()), (42 * MIB, 0));
    }
}
