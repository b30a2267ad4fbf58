//! What is to be sent to one node: a queue, a window and the numbers.
//!
//! Messages wait in the order in which they were admitted. One gets its number when it is sent for
//! the first time, and stays until the other node has received it; a reconnect, or a time without
//! progress, begins again with the first one that is not received. So the other node gets all
//! numbers in order, and can tell a repeat. At most a window of bytes is sent and not received.
//!
//! Messages for named subscriptions are held elsewhere (`named.rs`): here is only which of them
//! have something to send. A message for several subscriptions at the node goes once, since all
//! queues are merged by the order of admission.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::message::Shared;
use super::named::NamedId;
use crate::time::Timestamp;

/// For the anonymous subscribers of a node, or at most once for named ones.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) admission: u64,
    pub(super) message: Shared,
    pub(super) anonymous: bool,
    /// Sessions that get it at most once: it is held nowhere else for them.
    pub(super) once: Vec<(NamedId, u64)>,
    pub(super) is_once: bool,
    pub(super) report: Option<u64>,
}

/// Sent, and not received yet.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) admission: u64,
    pub(super) message: Shared,
    pub(super) anonymous: bool,
    pub(super) named: Vec<(NamedId, u64)>,
    pub(super) is_once: bool,
    pub(super) report: Option<u64>,
    /// Whether it counts against the node's queue; what is only for named subscriptions counts
    /// against theirs.
    pub(super) is_charged: bool,
}

/// The way to one node.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) sent: VecDeque<Sent>,
    /// How many of `sent` went over the present link.
    pub(super) cursor: usize,
    /// The number of the next item.
    pub(super) next: u64,
    /// Bytes in `sent`.
    pub(super) sent_bytes: usize,
    /// Bytes in `waiting`.
    pub(super) waiting_bytes: usize,
    /// Messages and bytes that count against the node's queue.
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Named subscriptions at the node that have something to send: the admission of the first
    /// such message of each.
    pub(super) ready: BTreeSet<(u64, NamedId)>,
    /// Admissions whose result is awaited, with the id of the report.
    pub(super) reports: VecDeque<(u64, u64)>,
    /// When the node received something for the last time, or nothing was awaited.
    pub(super) progress_at: Timestamp,
    /// When sending began again for the last time.
    pub(super) resent_at: Timestamp,
}

impl Outbound {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            cursor: 0,
            next: 1,
            sent_bytes: 0,
            waiting_bytes: 0,
            messages: 0,
            bytes: 0,
            ready: BTreeSet::new(),
            reports: VecDeque::new(),
            progress_at: now,
            resent_at: now,
        }
    }

    /// All numbers below are received or given up.
    pub(super) fn base(&self) -> u64 {
        self.sent.front().map_or(self.next, |sent| sent.number)
    }

    /// When the oldest message that is queued here was admitted.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let sent = self.sent.iter().filter(|sent| sent.is_charged).map(|sent| sent.message.at);
        sent.chain(self.waiting.front().map(|waiting| waiting.message.at)).min()
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.messages += waiting.message.count();
        self.bytes += waiting.message.cost();
        self.waiting_bytes += waiting.message.cost();
        self.waiting.push_back(waiting);
    }

    /// The next message that waits.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.waiting_bytes -= waiting.message.cost();
        Some(waiting)
    }

    /// Takes a message out of the queue's totals; its bytes.
    pub(super) fn uncharge(&mut self, message: &Shared) -> usize {
        self.messages -= message.count();
        self.bytes -= message.cost();
        message.cost()
    }

    /// Adds an item that is now sent for the first time; it has the next number.
    pub(super) fn send(&mut self, now: Timestamp, sent: Sent) {
        if self.sent.is_empty() {
            (self.progress_at, self.resent_at) = (now, now);
        }
        self.next = sent.number + 1;
        self.sent_bytes += sent.message.cost();
        if let Some(report) = sent.report
            && sent.anonymous
        {
            self.reports.push_back((sent.admission, report));
        }
        self.sent.push_back(sent);
        self.cursor = self.sent.len();
    }

    /// Whether an item of this size may be sent now.
    pub(super) fn fits(&self, cost: usize, window: usize) -> bool {
        self.sent.is_empty() || self.sent_bytes + cost <= window
    }

    /// The other node has received everything up to a number. The bytes that are free again.
    pub(super) fn received(&mut self, now: Timestamp, upto: u64) -> usize {
        let mut freed = 0;
        while self.sent.front().is_some_and(|sent| sent.number <= upto)
            && let Some(sent) = self.sent.pop_front()
        {
            self.sent_bytes -= sent.message.cost();
            self.cursor = self.cursor.saturating_sub(1);
            if sent.is_charged {
                freed += self.uncharge(&sent.message);
            }
            (self.progress_at, self.resent_at) = (now, now);
        }
        freed
    }

    /// Sending begins again with the first item that is not received.
    pub(super) fn rewind(&mut self, now: Timestamp) {
        self.cursor = 0;
        self.resent_at = now;
    }

    /// Takes everything out, and gives it up. What was for anonymous subscribers is handed over,
    /// with its report; and the bytes that are free again.
    pub(super) fn clear(&mut self) -> (Vec<(Shared, Option<u64>)>, usize) {
        let sent = core::mem::take(&mut self.sent).into_iter();
        let waiting = core::mem::take(&mut self.waiting).into_iter();
        let sent = sent.map(|sent| (sent.anonymous, sent.message, sent.report));
        let waiting = waiting.map(|waiting| (waiting.anonymous, waiting.message, waiting.report));
        let lost = sent.chain(waiting).filter(|(anonymous, ..)| *anonymous);
        let lost = lost.map(|(_, message, report)| (message, report)).collect();
        let freed = self.bytes;
        self.ready.clear();
        self.reports.clear();
        self.cursor = 0;
        (self.sent_bytes, self.waiting_bytes, self.messages, self.bytes) = (0, 0, 0, 0);
        (lost, freed)
    }

    pub(super) fn check(&self, window: usize) {
        let sent: usize = self.sent.iter().map(|sent| sent.message.cost()).sum();
        assert_eq!(sent, self.sent_bytes, "sent bytes are counted");
        assert!(sent <= window || self.sent.len() == 1, "the window is kept");
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.message.cost()).sum();
        assert_eq!(waiting, self.waiting_bytes, "waiting bytes are counted");
        let charged = self.sent.iter().filter(|sent| sent.is_charged).map(|sent| &sent.message);
        let charged = charged.chain(self.waiting.iter().map(|waiting| &waiting.message));
        let totals = charged.fold((0, 0), |(count, bytes), message| {
            (count + message.count(), bytes + message.cost())
        });
        assert_eq!(totals, (self.messages, self.bytes), "what is queued is counted");
        assert!(self.cursor <= self.sent.len(), "nothing is sent that is not there");
        let mut numbers = self.sent.iter().map(|sent| sent.number);
        let first = numbers.next().unwrap_or(self.next);
        assert!(numbers.eq(first + 1..self.next.max(first + 1)), "numbers have no holes");
        assert!(self.reports.iter().is_sorted(), "reports are in order");
        let admissions = || self.waiting.iter().map(|waiting| waiting.admission);
        assert!(admissions().is_sorted(), "messages wait in the order of admission");
    }
}
