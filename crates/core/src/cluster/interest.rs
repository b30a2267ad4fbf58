//! Who wants what: this node's interest, and what it knows of another node's.
//!
//! Interest has a version that rises by one with each change. Others get the changes since the
//! version they were sent last, and all of it when they miss one: a change whose base is not the
//! version they have is not applied. So a sub, an unsub and a sub again arrive as that, or as their
//! result, and never in another order.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::frame::{Change, FULL_ENTRIES_MAX, Frame};
use super::name::Named;
use crate::pattern::Pattern;
use crate::time::Timestamp;

/// Most ended sessions that are remembered, so that nodes that were cut off hear of them.
const ENDED_MAX: usize = 65_536;

/// This node's interest.
#[derive(Debug, Default)]
pub(super) struct Interest {
    patterns: BTreeMap<Pattern, Local>,
    /// How many of them are spread.
    spread: usize,
    sessions: BTreeMap<u64, (Named, Timestamp)>,
    version: u64,
    /// The changes that led to `version`, from `flushed` on.
    changes: Vec<Change>,
    flushed: u64,
    /// Sessions that unsubscribed, and when, oldest first.
    ended: VecDeque<(Timestamp, u64)>,
}

#[derive(Debug)]
struct Local {
    subscriptions: usize,
    is_spread: bool,
}

impl Interest {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// How many patterns are spread, and how many sessions there are.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.spread, self.sessions.len())
    }

    pub(super) fn total(&self) -> usize {
        self.spread + self.sessions.len()
    }

    /// Adds an anonymous subscription; whether its pattern is spread.
    pub(super) fn add(&mut self, pattern: &Pattern, max: usize) -> bool {
        let has_room = self.total() < max;
        if let Some(local) = self.patterns.get_mut(pattern) {
            local.subscriptions += 1;
            return local.is_spread;
        }
        let local = Local { subscriptions: 1, is_spread: has_room };
        self.patterns.insert(pattern.clone(), local);
        if has_room {
            self.spread += 1;
            self.change(Change::Add(pattern.clone()));
        }
        has_room
    }

    /// Removes an anonymous subscription, if there is one.
    pub(super) fn remove(&mut self, pattern: &Pattern) {
        let Some(local) = self.patterns.get_mut(pattern) else { return };
        local.subscriptions -= 1;
        if local.subscriptions > 0 {
            return;
        }
        let is_spread = local.is_spread;
        self.patterns.remove(pattern);
        if is_spread {
            self.spread -= 1;
            self.change(Change::Remove(pattern.clone()));
        }
    }

    pub(super) fn session(&self, session: u64) -> Option<&Named> {
        self.sessions.get(&session).map(|(named, _)| named)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = (u64, &Named)> {
        self.sessions.iter().map(|(session, (named, _))| (*session, named))
    }

    pub(super) fn add_session(&mut self, session: u64, named: &Named, time: Timestamp) {
        self.sessions.insert(session, (named.clone(), time));
        self.change(Change::Here { named: named.clone(), time, session });
    }

    /// Removes a session: its subscription is away, or has ended.
    pub(super) fn remove_session(&mut self, now: Timestamp, session: u64, ended: bool) {
        if self.sessions.remove(&session).is_none() {
            return;
        }
        if ended {
            if self.ended.len() == ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back((now, session));
            self.change(Change::Ended { session });
        } else {
            self.change(Change::Away { session });
        }
    }

    /// Forgets sessions that ended long ago: those who missed it have given them up by now.
    pub(super) fn forget_ended(&mut self, now: Timestamp, after: Duration) {
        while self.ended.front().is_some_and(|(at, _)| at.after(after) <= now) {
            self.ended.pop_front();
        }
    }

    /// The changes from a version on, for one who was sent everything before.
    pub(super) fn since(&self, told: u64) -> impl Iterator<Item = Frame> + '_ {
        let from = (told - self.flushed) as usize;
        let parts = self.changes[from..].chunks(FULL_ENTRIES_MAX);
        parts.scan(told, |base, part| {
            let (from, version) = (*base, *base + part.len() as u64);
            *base = version;
            Some(Frame::Interest { base: from, version, changes: part.to_vec() })
        })
    }

    /// Whether changes from this version on are at hand.
    pub(super) fn has_since(&self, told: u64) -> bool {
        told >= self.flushed
    }

    /// All of it.
    pub(super) fn full(&self) -> Vec<Frame> {
        let patterns = self.patterns.iter().filter(|(_, local)| local.is_spread);
        let patterns = patterns.map(|(pattern, _)| Change::Add(pattern.clone()));
        let sessions = self.sessions.iter().map(|(session, (named, time))| Change::Here {
            named: named.clone(),
            time: *time,
            session: *session,
        });
        let ended = self.ended.iter().map(|(_, session)| Change::Ended { session: *session });
        let entries: Vec<Change> = patterns.chain(sessions).chain(ended).collect();
        let mut parts: Vec<Vec<Change>> =
            entries.chunks(FULL_ENTRIES_MAX).map(<[Change]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let (version, count) = (self.version, parts.len());
        let frame = |(at, entries): (usize, Vec<Change>)| Frame::InterestFull {
            version,
            part: u32::try_from(at).expect("a part holds many entries, and entries are bounded"),
            last: at + 1 == count,
            entries,
        };
        parts.into_iter().enumerate().map(frame).collect()
    }

    /// The changes so far were sent to all who are to get them.
    pub(super) fn flushed(&mut self) {
        self.changes.clear();
        self.flushed = self.version;
    }

    pub(super) fn check(&self, max: usize) {
        let spread = self.patterns.values().filter(|local| local.is_spread).count();
        assert_eq!(spread, self.spread, "spread patterns are counted");
        assert!(self.total() <= max, "interest is bounded");
        assert!(self.patterns.values().all(|local| local.subscriptions > 0), "none without use");
        assert_eq!(self.flushed + self.changes.len() as u64, self.version, "one step per change");
        assert!(self.ended.len() <= ENDED_MAX, "ended sessions are bounded");
    }

    fn change(&mut self, change: Change) {
        self.version += 1;
        self.changes.push(change);
    }
}

/// What is known of another node's interest.
#[derive(Debug, Default)]
pub(super) struct View {
    /// None: nothing is known, all of it is needed.
    pub(super) version: Option<u64>,
    pub(super) patterns: BTreeSet<Pattern>,
    pub(super) sessions: BTreeMap<u64, (Named, Timestamp)>,
    /// Parts of a full interest that is not complete yet.
    parts: Option<Parts>,
    /// Whether part of it was left out because there was too much.
    pub(super) is_refused: bool,
}

#[derive(Debug)]
struct Parts {
    version: u64,
    next: u32,
    entries: Vec<Change>,
}

/// What to do with changes that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// They are known already.
    Known,
    /// They are the next ones.
    Next,
    /// Some before them are missing.
    Hole,
}

impl View {
    pub(super) fn step(&self, base: u64, version: u64) -> Step {
        match self.version {
            Some(known) if version <= known => Step::Known,
            Some(known) if base == known => Step::Next,
            _ => Step::Hole,
        }
    }

    /// Adds a part of a full interest; all of it when that was the last.
    pub(super) fn part(
        &mut self,
        (version, part, last): (u64, u32, bool),
        entries: Vec<Change>,
        max: usize,
    ) -> Result<Option<Vec<Change>>, PartMissing> {
        if part == 0 {
            self.parts = Some(Parts { version, next: 0, entries: Vec::new() });
        }
        let Some(parts) = &mut self.parts else { return Err(PartMissing) };
        if parts.version != version || parts.next != part {
            self.parts = None;
            return Err(PartMissing);
        }
        parts.next += 1;
        // What the speaker may have, and the sessions that it ended.
        if parts.entries.len() <= max + ENDED_MAX {
            parts.entries.extend(entries);
        }
        Ok(if last { self.parts.take().map(|parts| parts.entries) } else { None })
    }

    pub(super) fn total(&self) -> usize {
        self.patterns.len() + self.sessions.len()
    }
}

/// A part of a full interest did not arrive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartMissing;
