//! Volatile subjects: from a subject to its present subscribers.
//!
//! A volatile subject has no history, so its subscriber has no place in a sequence but a
//! mailbox: bounded, sharing the bytes with all others. When it is full the oldest messages are
//! dropped, and the subscriber gets a gap notice. Matching goes through the trie, so that a million
//! patterns are not scanned.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::atomic::{self, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::Waker;

use gapless_core::{Batch, Pattern, Position, SubscriptionIndex, TopicName};

use crate::cell::lock;
use crate::limits::Limits;

/// Messages for which an empty mailbox keeps capacity: enough for a subscriber that keeps up. The
/// room of a burst is given back, as most are idle after it.
const ROOM_KEPT: usize = 8;

/// What lies in a mailbox.
#[derive(Clone, Debug)]
pub(crate) struct Mail {
    pub(crate) subject: TopicName,
    pub(crate) batch: Batch,
}

/// Messages that were dropped because the mailbox was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    pub(crate) from: Position,
    pub(crate) to: Position,
}

/// The mail of one subscriber.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<MailboxState>,
    /// Bytes in all mailboxes of the broker.
    total: Arc<AtomicUsize>,
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let state = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.total.fetch_sub(state.bytes, atomic::Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct MailboxState {
    mail: VecDeque<Mail>,
    bytes: usize,
    messages: usize,
    overflow: Option<Overflow>,
    waker: Option<Waker>,
}

impl Mailbox {
    fn put(&self, mail: Mail, limits: &Limits) -> Option<Waker> {
        let mut state = lock(&self.inner);
        let bytes = mail.batch.bytes().len();
        state.bytes += bytes;
        let mut total = self.total.fetch_add(bytes, atomic::Ordering::Relaxed) + bytes;
        state.messages += mail.batch.header().count as usize;
        state.mail.push_back(mail);
        while (state.bytes > limits.mailbox_bytes_max
            || total > limits.mailboxes_bytes_max
            || state.messages > limits.mailbox_messages_max)
            && state.mail.len() > 1
            && let Some(lost) = state.mail.pop_front()
        {
            let header = lost.batch.header();
            let bytes = lost.batch.bytes().len();
            state.bytes -= bytes;
            total = self.total.fetch_sub(bytes, atomic::Ordering::Relaxed) - bytes;
            state.messages -= header.count as usize;
            let from = state.overflow.map_or(header.position, |overflow| overflow.from);
            state.overflow = Some(Overflow { from, to: header.last_position() });
        }
        state.waker.take()
    }

    /// What has come, oldest first, or leaves the waker.
    pub(crate) fn take(&self, waker: &Waker) -> Option<Result<Mail, Overflow>> {
        let mut state = lock(&self.inner);
        if let Some(overflow) = state.overflow.take() {
            return Some(Err(overflow));
        }
        match state.mail.pop_front() {
            Some(mail) => {
                let bytes = mail.batch.bytes().len();
                state.bytes -= bytes;
                self.total.fetch_sub(bytes, atomic::Ordering::Relaxed);
                state.messages -= mail.batch.header().count as usize;
                Some(Ok(mail))
            }
            None => {
                if state.mail.capacity() > ROOM_KEPT {
                    state.mail = VecDeque::new();
                }
                state.waker = Some(waker.clone());
                None
            }
        }
    }
}

/// A mailbox in the trie, known by its subscription's number.
#[derive(Clone, Debug)]
struct Address(u64, Arc<Mailbox>);

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Address {}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Address {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

/// Which subscribers follow which volatile subjects.
#[derive(Debug, Default)]
pub(crate) struct Router {
    index: RwLock<SubscriptionIndex<Address>>,
    next: AtomicU64,
    /// Bytes that lie in all mailboxes; what lies in several is counted for each.
    mailbox_bytes: Arc<AtomicUsize>,
    /// The number of subscribers of events: while it is zero, none is created.
    event_followers: AtomicU64,
}

/// Whether the pattern can match the broker's own subjects: a wildcard does not.
fn is_of_events(pattern: &Pattern) -> bool {
    pattern.tokens().next() == Some("$events")
}

impl Router {
    pub(crate) fn add(&self, pattern: &Pattern, subscriber: u64) -> Arc<Mailbox> {
        let total = Arc::clone(&self.mailbox_bytes);
        let mailbox = Arc::new(Mailbox { inner: Mutex::default(), total });
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        // Every subscription has a number of its own, so nothing can be there twice.
        let added = index.insert(pattern, Address(subscriber, Arc::clone(&mailbox)));
        debug_assert!(added.is_ok());
        if is_of_events(pattern) {
            self.event_followers.fetch_add(1, atomic::Ordering::Relaxed);
        }
        mailbox
    }

    pub(crate) fn remove(&self, pattern: &Pattern, subscriber: u64) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let removed = index.remove(pattern, &Address(subscriber, Arc::default()));
        debug_assert!(removed.is_ok());
        if is_of_events(pattern) {
            self.event_followers.fetch_sub(1, atomic::Ordering::Relaxed);
        }
    }

    /// Asserts what must always be true of the index.
    pub(crate) fn check(&self) {
        self.index.read().unwrap_or_else(PoisonError::into_inner).check();
    }

    /// Whether any events have subscribers.
    pub(crate) fn has_event_followers(&self) -> bool {
        self.event_followers.load(atomic::Ordering::Relaxed) > 0
    }

    pub(crate) fn is_wanted(&self, subject: &TopicName) -> bool {
        self.index.read().unwrap_or_else(PoisonError::into_inner).matches_any(subject)
    }

    /// Positions of volatile messages; a count of their own, from one on.
    pub(crate) fn positions(&self, count: u32) -> Position {
        Position(self.next.fetch_add(u64::from(count), atomic::Ordering::Relaxed) + 1)
    }

    /// The last position that was given.
    pub(crate) fn last_position(&self) -> Position {
        Position(self.next.load(atomic::Ordering::Relaxed))
    }

    /// Puts a batch into the mailbox of each matching subscriber, and returns their number.
    pub(crate) fn deliver(&self, subject: &TopicName, batch: &Batch, limits: &Limits) -> usize {
        let mut wakers = Vec::new();
        let mut count = 0;
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.for_each_match(subject, |address| {
            count += 1;
            let mail = Mail { subject: subject.clone(), batch: batch.clone() };
            wakers.extend(address.1.put(mail, limits));
        });
        drop(index);
        wakers.into_iter().for_each(Waker::wake);
        count
    }
}
