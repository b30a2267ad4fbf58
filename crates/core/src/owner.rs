//! Which node of a cluster should own a journal, as one node sees it (`docs/adr/0018`).
//!
//! Owning is proven by appending to the log, elsewhere. Here is only decided when this node tries,
//! when it gives the journal to another, and to which node requests go meanwhile. A wrong opinion costs
//! time, never data.
//!
//! What other nodes say comes by [`Owner::seen`], what the store shows by [`Owner::looked`]; what is to
//! be done is asked of [`Owner::step`], after each input and now and then, since time decides too.
//! Not here: links, the store, the broker, the listeners.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::cluster::{Incarnation, NodeName};
use crate::time::Timestamp;

/// The spans that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerConfig {
    /// How often an owner shows in the store that it lives.
    pub beat: Duration,
    /// How long a store shows nothing before its owner is taken for dead.
    pub takeover: Duration,
    /// How long a node must be linked before a journal is given to it.
    pub settle: Duration,
    /// How long a node waits for links after its start.
    pub first_wait: Duration,
    /// How long a node whose opening failed leaves it to others.
    pub rest: Duration,
}

/// How a node stands with the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It has nothing of it open.
    #[default]
    Away,
    /// It takes it over.
    Opening,
    /// It owns it, as far as it knows.
    Serving,
    /// It ends serving.
    Closing,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 4] = [Self::Away, Self::Opening, Self::Serving, Self::Closing];

    /// The word that users and other nodes see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Opening => "opening",
            Self::Serving => "serving",
            Self::Closing => "closing",
        }
    }

    /// The stage of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// What a node says of itself and the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerNote {
    /// How it stands with it.
    pub stage: Stage,
    /// The term it serves with, or served with last; 0 if it never did.
    pub term: u64,
    /// To which node it gave the journal when it ended serving.
    pub given: Option<NodeName>,
    /// Whether it can own the journal.
    pub able: bool,
}

/// What a look at the store showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Something new since the look before, or the first look.
    Alive,
    /// Nothing new.
    Silent,
    /// Its owner released it.
    Released,
    /// It never had an owner.
    Unowned,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Look at the store, and say what it shows.
    Look,
    /// Take the journal over.
    Open,
    /// Look at once whether this node still is the owner.
    Confirm,
    /// End serving, and give the journal to another if one is named.
    Close {
        /// The next owner.
        to: Option<NodeName>,
    },
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the broker of this node.
    Here,
    /// To another node.
    There {
        /// Which node.
        node: NodeName,
        /// Which life of it.
        incarnation: Incarnation,
        /// The term it serves with.
        term: u64,
    },
    /// Nowhere: they wait.
    Nowhere,
}

/// A node that is linked in both directions.
#[derive(Clone, Debug)]
struct Other {
    incarnation: Incarnation,
    since: Timestamp,
    note: OwnerNote,
}

/// What was seen of the store since no owner is seen among the links.
#[derive(Clone, Copy, Debug, Default)]
struct Witness {
    looking: bool,
    looked: Option<Timestamp>,
    /// Since when it shows nothing new.
    silent: Option<Timestamp>,
    /// Since when it can be had by who comes first.
    free: Option<Timestamp>,
}

/// The machine of one node for one journal.
#[derive(Debug)]
pub struct Owner {
    config: OwnerConfig,
    me: NodeName,
    journal: u16,
    stage: Stage,
    term: u64,
    given: Option<NodeName>,
    to: Option<NodeName>,
    leaving: bool,
    others: BTreeMap<NodeName, Other>,
    /// The link to an owner was lost, and none was seen since.
    lost: bool,
    witness: Witness,
    started: Timestamp,
    /// Until when it leaves opening to others.
    rests_until: Option<Timestamp>,
    /// When the store last confirmed that it is the owner.
    confirmed: Timestamp,
    /// The highest term of another that was a reason to look.
    doubted: u64,
}

impl Owner {
    /// A node that was just started.
    pub fn new(config: OwnerConfig, me: NodeName, journal: u16, now: Timestamp) -> Self {
        Self {
            config,
            me,
            journal,
            stage: Stage::Away,
            term: 0,
            given: None,
            to: None,
            leaving: false,
            others: BTreeMap::new(),
            lost: false,
            witness: Witness::default(),
            started: now,
            rests_until: None,
            confirmed: now,
            doubted: 0,
        }
    }

    /// How it stands.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What this node says to others.
    pub fn note(&self, now: Timestamp) -> OwnerNote {
        let given = self.given.clone();
        OwnerNote { stage: self.stage, term: self.term, given, able: self.able(now) }
    }

    /// What the linked nodes said last.
    pub fn notes(&self) -> impl Iterator<Item = (&NodeName, &OwnerNote)> {
        self.others.iter().map(|(node, other)| (node, &other.note))
    }

    /// Which nodes are linked now, and what each said last.
    pub fn seen(&mut self, now: Timestamp, linked: Vec<(NodeName, Incarnation, OwnerNote)>) {
        let mut before = core::mem::take(&mut self.others);
        for (node, incarnation, note) in linked {
            let known = before.remove(&node).filter(|other| other.incarnation == incarnation);
            let since = known.map_or(now, |other| other.since);
            self.others.insert(node, Other { incarnation, since, note });
        }
        let gone = before.values().any(|other| other.note.stage == Stage::Serving);
        self.lost |= gone;
        if self.others.values().any(|other| other.note.stage == Stage::Serving) {
            self.lost = false;
        }
    }

    /// What a look at the store showed; `None` if it did not answer.
    pub fn looked(&mut self, now: Timestamp, sign: Option<Sign>) {
        let witness = &mut self.witness;
        (witness.looking, witness.looked) = (false, Some(now));
        match sign {
            Some(Sign::Alive) => (witness.silent, witness.free) = (Some(now), None),
            Some(Sign::Silent) => {
                witness.silent.get_or_insert(now);
                witness.free = None;
            }
            Some(Sign::Released | Sign::Unowned) => {
                witness.silent = None;
                witness.free.get_or_insert(now);
            }
            None => (witness.silent, witness.free) = (None, None),
        }
    }

    /// It was opened with this term.
    pub fn opened(&mut self, now: Timestamp, term: u64) {
        (self.stage, self.term, self.confirmed) = (Stage::Serving, term, now);
        self.rests_until = None;
    }

    /// Opening failed; `faster` if another took over meanwhile.
    pub fn not_opened(&mut self, now: Timestamp, faster: bool) {
        self.stage = Stage::Away;
        self.witness = Witness::default();
        if !faster {
            self.rests_until = Some(now.after(self.config.rest));
        }
    }

    /// The store confirmed that this node is the owner.
    pub fn confirmed(&mut self, now: Timestamp) {
        self.confirmed = now;
    }

    /// Another owns the journal: serving is to end, without a next owner to name.
    pub fn fenced(&mut self) {
        if self.stage == Stage::Serving {
            (self.stage, self.to) = (Stage::Closing, None);
        }
    }

    /// Serving has ended.
    pub fn closed(&mut self) {
        self.stage = Stage::Away;
        self.given = self.to.take();
        self.witness = Witness::default();
    }

    /// The node is to leave: it gives up what it owns, and opens nothing.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Where requests go.
    pub fn route(&self) -> Route {
        if self.stage == Stage::Serving {
            return Route::Here;
        }
        let serving = self.others.iter().filter(|(_, other)| other.note.stage == Stage::Serving);
        let newest = serving.max_by_key(|(_, other)| other.note.term);
        newest.map_or(Route::Nowhere, |(node, other)| Route::There {
            node: node.clone(),
            incarnation: other.incarnation,
            term: other.note.term,
        })
    }

    /// The nodes that can own it, the preferred one first.
    fn ranked(&self, now: Timestamp, linked_for: Duration) -> Vec<&NodeName> {
        let others = self
            .others
            .iter()
            .filter(|(_, other)| other.note.able && now.since(other.since) >= linked_for);
        let mut nodes: Vec<&NodeName> = others.map(|(node, _)| node).collect();
        if self.able(now) {
            nodes.push(&self.me);
        }
        nodes.sort_by_key(|node| (core::cmp::Reverse(weight(self.journal, node)), *node));
        nodes
    }

    fn able(&self, now: Timestamp) -> bool {
        let rests = self.rests_until.is_some_and(|until| now < until);
        // An owner that cannot reach the store does not keep others from taking it over.
        !self.leaving && !rests && !self.is_cut_off(now)
    }

    /// Whether it serves and the store has not confirmed that for long.
    fn is_cut_off(&self, now: Timestamp) -> bool {
        self.stage == Stage::Serving && now.since(self.confirmed) >= self.config.takeover
    }

    /// What is to be done now. What is returned is taken to be under way.
    pub fn step(&mut self, now: Timestamp) -> Option<Act> {
        let act = match self.stage {
            Stage::Serving => self.step_serving(now),
            Stage::Away => self.step_away(now),
            Stage::Opening | Stage::Closing => None,
        };
        self.check();
        act
    }

    fn step_serving(&mut self, now: Timestamp) -> Option<Act> {
        let serving = self.others.values().filter(|other| other.note.stage == Stage::Serving);
        let highest = serving.map(|other| other.note.term).max().unwrap_or(0);
        if highest > self.term.max(self.doubted) {
            self.doubted = highest;
            return Some(Act::Confirm);
        }
        // Closing needs the store too; others see that it shows no sign of life.
        if self.is_cut_off(now) && !self.leaving {
            return None;
        }
        let settle = if self.leaving { Duration::ZERO } else { self.config.settle };
        let first = self.ranked(now, settle).first().map(|node| (*node).clone());
        let to = match first {
            None if self.leaving => None,
            Some(node) if node != self.me => Some(node),
            _ => return None,
        };
        (self.stage, self.to) = (Stage::Closing, to.clone());
        Some(Act::Close { to })
    }

    fn step_away(&mut self, now: Timestamp) -> Option<Act> {
        let has_owner = self.others.values().any(|other| match other.note.stage {
            Stage::Away => false,
            Stage::Serving => other.note.able,
            Stage::Opening | Stage::Closing => true,
        });
        if has_owner || !self.able(now) {
            self.witness = Witness { looking: self.witness.looking, ..Witness::default() };
            return None;
        }
        if now.since(self.started) < self.config.first_wait {
            return None;
        }
        let rank = self.ranked(now, Duration::ZERO).iter().position(|node| **node == self.me)?;
        if self.is_given() || self.is_turn(now, u32::try_from(rank).unwrap_or(u32::MAX)) {
            (self.stage, self.given) = (Stage::Opening, None);
            self.lost = false;
            return Some(Act::Open);
        }
        // Four looks for each beat: a sign of life is not missed for long.
        let due = self.witness.looked.is_none_or(|at| now.since(at) >= self.config.beat / 4);
        if due && !self.witness.looking {
            self.witness.looking = true;
            return Some(Act::Look);
        }
        None
    }

    /// Whether the newest owner that is known gave it to this node.
    fn is_given(&self) -> bool {
        let newest = self.others.values().max_by_key(|other| other.note.term);
        newest.is_some_and(|other| {
            other.note.term > self.term && other.note.given.as_ref() == Some(&self.me)
        })
    }

    /// Whether the store shows that there is no owner, for as long as one of this rank waits.
    fn is_turn(&self, now: Timestamp, rank: u32) -> bool {
        let OwnerConfig { beat, takeover, .. } = self.config;
        let after = takeover.saturating_mul(rank);
        let silence = if self.lost { beat + beat / 2 } else { takeover };
        let free = self.witness.free.is_some_and(|since| now.since(since) >= after);
        let silent = self.witness.silent.filter(|since| {
            // A look that is older than the silence that is asked for shows nothing of it.
            self.witness.looked.is_some_and(|at| at.since(*since) >= silence.saturating_add(after))
        });
        free || silent.is_some()
    }

    /// What must always hold.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        assert!(self.stage != Stage::Serving || self.term > 0, "who serves has a term");
        assert!(self.to.is_none() || self.stage == Stage::Closing, "only one who closes gives");
        assert!(self.to.as_ref() != Some(&self.me), "a journal is given to another node");
        assert!(!self.others.contains_key(&self.me), "a node is not linked to itself");
    }
}

/// How much a node is preferred for a journal: the same number on every machine and in every version.
fn weight(journal: u16, node: &NodeName) -> u64 {
    let bytes = journal.to_le_bytes();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in bytes.iter().chain(node.as_str().as_bytes()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // Names that differ in their last letter only must not stay neighbours.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests;
