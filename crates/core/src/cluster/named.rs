//! What is held for one named subscription.
//!
//! Every message that is admitted for it is held until it was taken, wherever the subscription is.
//! It is at the place with the greatest claim. When that changes, everything that is held goes to
//! the new place, in the order of admission: so each stay (session) sees each publisher in order and
//! nothing twice, and a new stay begins at the latest with the first message that is not known to
//! be taken. Only so many messages are with a session untaken; the rest waits here.
//!
//! When it is suspended, and when that ends, is in `subscriber.rs`.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::message::Shared;
use super::name::{Claim, Named};
use super::peer::NodeId;
use crate::subscriber::{Status, Subscriber};
use crate::time::Timestamp;

/// A named subscription, for short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NamedId(pub(super) u64);

/// Where a named subscription is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: NodeId,
    pub(super) session: u64,
}

/// A message for a named subscription.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) admission: u64,
    pub(super) message: Shared,
    pub(super) report: Option<u64>,
}

/// One named subscription.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) named: Named,
    /// What nodes claim now.
    claims: Vec<(Claim, NodeId)>,
    pub(super) place: Option<Place>,
    pub(super) state: Subscriber,
    pub(super) held: VecDeque<Held>,
    /// The first so many of `held` are sent to the present place.
    pub(super) sent: usize,
    pub(super) sent_messages: usize,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// When something was taken for the last time, or nothing was with the session.
    pub(super) progress_at: Timestamp,
    /// Messages of the present session that overflowed, as it reported.
    pub(super) lost: u64,
    /// At-most-once messages that are with the session and for which a report was asked: their
    /// admissions and reports. Nothing else is known of them here.
    asked: VecDeque<(u64, u64)>,
    /// When it is looked at next.
    timer: Option<Timestamp>,
}

/// What was taken at once.
#[derive(Debug, Default)]
pub(super) struct Released {
    pub(super) bytes: usize,
    /// Reports that waited for it.
    pub(super) reports: Vec<u64>,
    pub(super) is_progress: bool,
    /// Whether some of it overflowed.
    pub(super) is_lossy: bool,
}

impl Holding {
    fn new(named: &Named, now: Timestamp, suspended_ttl: Duration) -> Self {
        Self {
            named: named.clone(),
            claims: Vec::new(),
            place: None,
            state: Subscriber::new(suspended_ttl),
            held: VecDeque::new(),
            sent: 0,
            sent_messages: 0,
            messages: 0,
            bytes: 0,
            progress_at: now,
            lost: 0,
            asked: VecDeque::new(),
            timer: None,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.state.status() == Status::Active
    }

    pub(super) fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    pub(super) fn claim(&mut self, claim: Claim, node: NodeId) {
        if !self.claims.iter().any(|(known, _)| *known == claim) {
            self.claims.push((claim, node));
        }
    }

    /// A session's claim is no longer made.
    pub(super) fn unclaim(&mut self, node: NodeId, session: u64) {
        self.claims.retain(|(claim, at)| *at != node || claim.session != session);
    }

    /// The greatest claim.
    pub(super) fn best(&self) -> Option<&(Claim, NodeId)> {
        self.claims.iter().max()
    }

    /// The sessions that a node claims.
    pub(super) fn sessions_at(&self, node: NodeId) -> Vec<u64> {
        let claims = self.claims.iter().filter(|(_, at)| *at == node);
        claims.map(|(claim, _)| claim.session).collect()
    }

    /// Where the greatest claim says it is.
    pub(super) fn best_place(&self) -> Option<Place> {
        self.best().map(|(claim, node)| Place { node: *node, session: claim.session })
    }

    /// It is at another place now: what is held goes there from the beginning.
    pub(super) fn move_to(&mut self, now: Timestamp, place: Option<Place>) {
        self.place = place;
        (self.sent, self.sent_messages, self.lost) = (0, 0, 0);
        self.asked.clear();
        self.progress_at = now;
    }

    pub(super) fn push(&mut self, held: Held) {
        self.messages += held.message.count();
        self.bytes += held.message.cost();
        self.held.push_back(held);
    }

    /// The admission of the first message that may be sent now.
    pub(super) fn ready(&self, ahead_max: usize) -> Option<u64> {
        if self.place.is_none() || self.sent_messages >= ahead_max {
            return None;
        }
        self.held.get(self.sent).map(|held| held.admission)
    }

    /// Whether everything that is held is with the session.
    pub(super) fn is_all_sent(&self) -> bool {
        self.sent == self.held.len()
    }

    /// The first message that is not sent yet goes out.
    pub(super) fn send(&mut self, now: Timestamp) {
        if self.sent == 0 {
            self.progress_at = now;
        }
        let held = self.held.get(self.sent).expect("what is ready is held");
        self.sent_messages += held.message.count();
        self.sent += 1;
    }

    /// An at-most-once message goes out, and a report about it is awaited. Of too many only the
    /// first are remembered; the report of others says that they timed out.
    pub(super) fn ask(&mut self, admission: u64, report: u64, max: usize) {
        if self.asked.len() < max {
            self.asked.push_back((admission, report));
        }
    }

    /// A session has taken everything up to an admission, but for `lost` messages in all. That of
    /// an earlier session counts as well: what it took is taken.
    pub(super) fn taken(&mut self, now: Timestamp, session: u64, upto: u64, lost: u64) -> Released {
        let is_present = self.place.is_some_and(|place| place.session == session);
        let known = if is_present { self.lost } else { 0 };
        let mut released = Released { is_lossy: lost > known, ..Released::default() };
        if is_present {
            self.lost = lost.max(known);
        }
        while self.held.front().is_some_and(|held| held.admission <= upto)
            && let Some(held) = self.held.pop_front()
        {
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_messages -= held.message.count();
            }
            self.messages -= held.message.count();
            self.bytes -= held.message.cost();
            released.bytes += held.message.cost();
            released.reports.extend(held.report);
            released.is_progress = true;
            self.progress_at = now;
        }
        while let Some((_, report)) = self.asked.pop_front_if(|(at, _)| *at <= upto) {
            released.reports.push(report);
        }
        released
    }

    /// Takes out everything that is held.
    pub(super) fn clear(&mut self) -> (VecDeque<Held>, usize) {
        let freed = self.bytes;
        (self.sent, self.sent_messages, self.messages, self.bytes) = (0, 0, 0, 0);
        (core::mem::take(&mut self.held), freed)
    }

    /// When something is due: its removal, or its suspension because it takes nothing.
    pub(super) fn due(
        &self,
        timeout: Duration,
        reachable_since: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let removal = self.state.deadline();
        let is_awaited = self.is_active() && self.sent > 0;
        let silent = reachable_since.filter(|_| is_awaited);
        let silent = silent.map(|since| self.progress_at.max(since).after(timeout));
        removal.into_iter().chain(silent).min()
    }

    pub(super) fn check(&self, ahead_max: usize) {
        let totals = self.held.iter().fold((0, 0), |(count, bytes), held| {
            (count + held.message.count(), bytes + held.message.cost())
        });
        assert_eq!(totals, (self.messages, self.bytes), "what is held is counted");
        let sent = || self.held.iter().take(self.sent);
        let sent_messages: usize = sent().map(|held| held.message.count()).sum();
        assert_eq!(sent_messages, self.sent_messages, "what is with the session is counted");
        let last = sent().next_back().map_or(0, |held| held.message.count());
        assert!(sent_messages - last < ahead_max, "a session is not flooded");
        let admissions = || self.held.iter().map(|held| held.admission);
        assert!(admissions().is_sorted_by(|a, b| a < b), "each message is held once, in order");
        assert_eq!(self.place, self.best_place(), "the greatest claim wins");
        assert!(self.place.is_some() || !self.is_active(), "what is nowhere is suspended");
        assert!(self.asked.len() <= ahead_max, "reports are bounded");
        self.state.check();
    }
}

/// All named subscriptions, and when each is looked at next.
#[derive(Debug, Default)]
pub(super) struct Table {
    records: BTreeMap<NamedId, Holding>,
    ids: BTreeMap<Named, NamedId>,
    timers: BTreeSet<(Timestamp, NamedId)>,
    next: u64,
}

impl Table {
    pub(super) fn id(&self, named: &Named) -> Option<NamedId> {
        self.ids.get(named).copied()
    }

    pub(super) fn get(&self, id: NamedId) -> Option<&Holding> {
        self.records.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: NamedId) -> Option<&mut Holding> {
        self.records.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NamedId, &Holding)> {
        self.records.iter().map(|(id, holding)| (*id, holding))
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn add(&mut self, named: &Named, now: Timestamp, ttl: Duration) -> NamedId {
        self.next += 1;
        let id = NamedId(self.next);
        self.records.insert(id, Holding::new(named, now, ttl));
        self.ids.insert(named.clone(), id);
        id
    }

    pub(super) fn remove(&mut self, id: NamedId) -> Option<Holding> {
        let holding = self.records.remove(&id)?;
        self.ids.remove(&holding.named);
        if let Some(at) = holding.timer {
            self.timers.remove(&(at, id));
        }
        Some(holding)
    }

    /// Looks at it at this time, unless it does so earlier.
    pub(super) fn arm(&mut self, id: NamedId, due: Option<Timestamp>) {
        let (Some(due), Some(holding)) = (due, self.records.get_mut(&id)) else { return };
        if holding.timer.is_some_and(|at| at <= due) {
            return;
        }
        if let Some(at) = holding.timer.replace(due) {
            self.timers.remove(&(at, id));
        }
        self.timers.insert((due, id));
    }

    /// The next one whose time has come; its timer is spent.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<NamedId> {
        let (at, id) = self.timers.first().copied().filter(|(at, _)| *at <= now)?;
        self.timers.remove(&(at, id));
        if let Some(holding) = self.records.get_mut(&id) {
            holding.timer = None;
        }
        Some(id)
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(super) fn check(&self) {
        assert_eq!(self.ids.len(), self.records.len(), "each has a name");
        let timers = self.records.values().filter(|holding| holding.timer.is_some()).count();
        assert_eq!(timers, self.timers.len(), "each has at most one timer");
        for (id, holding) in &self.records {
            assert_eq!(self.ids.get(&holding.named), Some(id), "a name leads to its record");
            let wakes = holding.timer.unwrap_or(Timestamp::NEVER);
            let removal = holding.state.deadline().unwrap_or(Timestamp::NEVER);
            assert!(wakes <= removal, "a removal has a timer");
        }
    }
}
