//! Volatile subjects: from a subject to its present subscribers.
//!
//! A volatile subject has no history, so its subscriber has no place in a sequence but a
//! mailbox: bounded, sharing the bytes with all others. When it is full the oldest messages are
//! dropped, and the subscriber gets a gap notice. Matching goes through the trie, so that a million
//! patterns are not scanned.
//!
//! A mail may carry a receipt: who is to learn that it was taken. Receipts are settled by the
//! caller, after the lock of the mailbox.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::atomic::{self, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::Waker;

use gapless_core::cluster::EndReason;
use gapless_core::{Batch, Pattern, Position, SubscriptionIndex, TopicName};

use crate::limits::Limits;
use crate::topic::live_topic::lock;
use crate::volatile::named::Lost;
use crate::volatile::report::{Receipt, Report};

/// Messages for which an empty mailbox keeps capacity: enough for a subscriber that keeps up. The
/// room of a burst is given back, as most are idle after it.
const ROOM_KEPT: usize = 8;

/// What lies in a mailbox.
#[derive(Debug)]
pub(crate) struct Mail {
    pub(crate) subject: TopicName,
    pub(crate) batch: Batch,
    pub(crate) receipt: Option<Box<Receipt>>,
}

/// Messages that were dropped because the mailbox was full.
#[derive(Debug)]
pub(crate) struct Overflow {
    pub(crate) from: Position,
    pub(crate) to: Position,
    /// Which of them their senders numbered.
    pub(crate) lost: Vec<Lost>,
}

/// What comes out of a mailbox.
#[derive(Debug)]
pub(crate) enum Taken {
    Mail(Mail),
    Overflow(Overflow),
    /// It was ended; nothing comes after this.
    Ended(EndReason),
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
    ended: Option<EndReason>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(crate) fn new(total: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), total: Arc::clone(total) })
    }

    /// Puts a mail behind the others. What is dropped for it and has a ticket goes to `dropped`, to
    /// be settled when no lock is held.
    pub(crate) fn put(
        &self,
        mail: Mail,
        limits: &Limits,
        dropped: &mut Vec<Receipt>,
    ) -> Option<Waker> {
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
            && let Some(gone) = state.mail.pop_front()
        {
            let header = *gone.batch.header();
            let bytes = gone.batch.bytes().len();
            state.bytes -= bytes;
            total = self.total.fetch_sub(bytes, atomic::Ordering::Relaxed) - bytes;
            state.messages -= header.count as usize;
            let (from, to) = (header.position, header.last_position());
            let none = || Overflow { from, to, lost: Vec::new() };
            let overflow = state.overflow.get_or_insert_with(none);
            overflow.to = to;
            let Some(receipt) = gone.receipt else { continue };
            match receipt.numbered() {
                Some(lost) => lost.add_to(&mut overflow.lost, gone.subject, header.count.into()),
                None => dropped.push(*receipt),
            }
        }
        state.waker.take()
    }

    /// Lets nothing more come out of it.
    pub(crate) fn end(&self, reason: EndReason) {
        lock(&self.inner).ended.get_or_insert(reason);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        let waker = lock(&self.inner).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// What has come, oldest first, or leaves the waker.
    pub(crate) fn take(&self, waker: &Waker) -> Option<Taken> {
        let mut state = lock(&self.inner);
        if let Some(reason) = &state.ended {
            return Some(Taken::Ended(reason.clone()));
        }
        if let Some(overflow) = state.overflow.take() {
            return Some(Taken::Overflow(overflow));
        }
        match state.mail.pop_front() {
            Some(mail) => {
                let bytes = mail.batch.bytes().len();
                state.bytes -= bytes;
                self.total.fetch_sub(bytes, atomic::Ordering::Relaxed);
                state.messages -= mail.batch.header().count as usize;
                Some(Taken::Mail(mail))
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
    pub(crate) mailbox_bytes: Arc<AtomicUsize>,
    /// The number of subscribers of events: while it is zero, none is created.
    event_followers: AtomicU64,
}

/// Whether the pattern can match the broker's own subjects: a wildcard does not.
fn is_of_events(pattern: &Pattern) -> bool {
    pattern.tokens().next() == Some("$events")
}

impl Router {
    pub(crate) fn add(&self, pattern: &Pattern, subscriber: u64) -> Arc<Mailbox> {
        let mailbox = Mailbox::new(&self.mailbox_bytes);
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

    /// Puts a batch into the mailbox of each matching subscriber. Each has a part in the report, if
    /// there is one. Returns receipts of mails that were dropped for it: they are to be settled when
    /// no lock is held.
    pub(crate) fn deliver(
        &self,
        subject: &TopicName,
        batch: &Batch,
        report: Option<&Arc<Report>>,
        limits: &Limits,
    ) -> Vec<Receipt> {
        let (mut wakers, mut dropped) = (Vec::new(), Vec::new());
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.for_each_match(subject, |address| {
            let receipt = report.map(|report| Receipt::ticket(report, address.0));
            let mail = Mail { subject: subject.clone(), batch: batch.clone(), receipt };
            wakers.extend(address.1.put(mail, limits, &mut dropped));
        });
        drop(index);
        wakers.into_iter().for_each(Waker::wake);
        dropped
    }
}
