//! What came from another node: which numbers, and what is to be reported about them.
//!
//! A number below the one that is expected is a repeat: it is reported again and not delivered
//! again. A number above it means that something is missing; it is not delivered, and the report
//! says how far everything is there. Reports are totals, so a lost one is made good by the next.
//! That something came is said a little later, or when much came: a report for each message would cost
//! as much as the message. Repeats, holes, and all else is said at once.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::frame::{FULL_ENTRIES_MAX, Frame, ItemResult, Taken};
use crate::time::Timestamp;

/// Results that wait for a link to their sender; past it the oldest go, and the publisher reads
/// of a timeout.
const RESULTS_WAITING_MAX: usize = 1_024;

/// Items, and bytes in them, after which it is said at once that they came: little beside the window and
/// the queue of the sender, much beside a report.
const UNSAID_ITEMS_MAX: usize = 64;
const UNSAID_BYTES_MAX: usize = 64 * 1024;

/// What one other node has sent.
#[derive(Debug)]
pub(super) struct Inbound {
    /// The next number.
    pub(super) expected: u64,
    /// What each session of this node got of it.
    sessions: BTreeMap<u64, Got>,
    /// Sessions whose total changed since the last report.
    dirty: BTreeSet<u64>,
    /// Sessions that have ended: their totals are said once more, and then forgotten.
    gone: Vec<u64>,
    results: VecDeque<ItemResult>,
    /// Items and bytes that came since the last report.
    unsaid: (usize, usize),
    /// When it is to be said that they came.
    pub(super) due_at: Option<Timestamp>,
    /// Whether something is to be reported now.
    pub(super) is_due: bool,
}

/// What one session got from one node.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    /// The last place in the sender's order that was delivered to it.
    delivered: u64,
    /// The last one that is out of its mailbox.
    taken: u64,
    /// Messages that overflowed.
    lost: u64,
}

/// What a number means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// It was received before.
    Repeat,
    /// It is the next one.
    Next,
    /// Some before it are missing.
    Hole,
}

impl Inbound {
    pub(super) fn new() -> Self {
        Self {
            expected: 1,
            sessions: BTreeMap::new(),
            dirty: BTreeSet::new(),
            gone: Vec::new(),
            results: VecDeque::new(),
            unsaid: (0, 0),
            due_at: None,
            is_due: false,
        }
    }

    /// The sender will not send numbers below this one again.
    pub(super) fn skip_to(&mut self, base: u64) {
        if base > self.expected {
            self.expected = base;
            self.is_due = true;
        }
    }

    /// A new item came; that is said when it is due, at the latest.
    pub(super) fn came(&mut self, due: Timestamp, bytes: usize, bytes_max: usize) {
        let (items, total) = &mut self.unsaid;
        (*items, *total) = (*items + 1, *total + bytes);
        self.is_due |= *items >= UNSAID_ITEMS_MAX || *total >= bytes_max.min(UNSAID_BYTES_MAX);
        self.due_at.get_or_insert(due);
    }

    pub(super) fn number(&mut self, number: u64) -> Number {
        match number.cmp(&self.expected) {
            core::cmp::Ordering::Less => {
                // The sender has missed that it came.
                self.is_due = true;
                Number::Repeat
            }
            core::cmp::Ordering::Greater => {
                self.is_due = true;
                Number::Hole
            }
            core::cmp::Ordering::Equal => {
                self.expected += 1;
                Number::Next
            }
        }
    }

    /// Whether a session is to get what has this place in the sender's order. It has it already if
    /// the sender took it to be elsewhere for a while, and began from the first that is not taken.
    pub(super) fn is_new_to(&mut self, session: u64, order: u64) -> bool {
        let got = self.sessions.entry(session).or_default();
        let is_new = order > got.delivered;
        got.delivered = got.delivered.max(order);
        // What it has taken is said again: the sender holds it still.
        if !is_new {
            self.dirty.insert(session);
            self.is_due = true;
        }
        is_new
    }

    pub(super) fn taken(&mut self, session: u64, upto: u64, lost: u64) {
        let got = self.sessions.entry(session).or_default();
        got.taken = got.taken.max(upto);
        got.lost += lost;
        self.dirty.insert(session);
        self.is_due = true;
    }

    pub(super) fn settled(&mut self, result: ItemResult) {
        if self.results.len() == RESULTS_WAITING_MAX {
            self.results.pop_front();
        }
        self.results.push_back(result);
        self.is_due = true;
    }

    /// There is a new link: everything is said again.
    pub(super) fn say_all(&mut self) {
        self.dirty = self.sessions.keys().copied().collect();
        self.is_due = true;
    }

    /// A session of this node has ended.
    pub(super) fn session_gone(&mut self, session: u64) {
        if self.sessions.contains_key(&session) {
            self.gone.push(session);
        }
    }

    /// The reports that are due.
    pub(super) fn reports(&mut self, now: Timestamp, interest_seen: u64) -> Vec<Frame> {
        let is_late = self.due_at.is_some_and(|due| due <= now);
        if !core::mem::take(&mut self.is_due) && !is_late {
            self.forget_gone();
            return Vec::new();
        }
        (self.unsaid, self.due_at) = ((0, 0), None);
        let dirty = core::mem::take(&mut self.dirty).into_iter();
        let taken: Vec<Taken> = dirty.filter_map(|session| self.total(session)).collect();
        self.forget_gone();
        let received = self.expected - 1;
        let mut results: Vec<ItemResult> = core::mem::take(&mut self.results).into();
        let mut frames = Vec::new();
        let mut parts = taken.chunks(FULL_ENTRIES_MAX);
        loop {
            let taken = parts.next().unwrap_or_default().to_vec();
            let results = core::mem::take(&mut results);
            frames.push(Frame::Report { received, interest_seen, taken, results });
            if parts.len() == 0 {
                return frames;
            }
        }
    }

    fn total(&self, session: u64) -> Option<Taken> {
        let Got { taken, lost, .. } = *self.sessions.get(&session)?;
        Some(Taken { session, upto: taken, lost })
    }

    /// Forgets sessions that have ended.
    pub(super) fn forget_gone(&mut self) {
        for session in core::mem::take(&mut self.gone) {
            self.sessions.remove(&session);
            self.dirty.remove(&session);
        }
    }

    pub(super) fn check(&self) {
        assert!(self.results.len() <= RESULTS_WAITING_MAX, "results are bounded");
        assert!(
            self.dirty.iter().all(|session| self.sessions.contains_key(session)),
            "has a total"
        );
        assert!(self.dirty.is_empty() || self.is_due, "what changed is reported");
        assert!(self.unsaid == (0, 0) || self.due_at.is_some(), "what came is reported");
    }
}
