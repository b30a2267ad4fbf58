//! What nodes say to each other.
//!
//! All of it goes over the link that the speaker opened, in order. How it looks as bytes is the
//! shell's business. Everything here can be said twice without harm: interest has versions, items
//! have numbers, reports are totals.

use alloc::vec::Vec;

use super::name::Named;
use super::report::SubscriberResult;
use crate::batch::Records;
use crate::name::TopicName;
use crate::pattern::Pattern;
use crate::time::Timestamp;

/// Most entries of one part of a full interest, changes of one delta, and totals of one report.
pub const FULL_ENTRIES_MAX: usize = 4_096;

/// Most items of one frame.
pub const FRAME_ITEMS_MAX: usize = 1_024;

/// Bytes of the items of one frame; a larger single item goes alone.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// One thing that a node says to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// How the speaker's interest changed.
    Interest {
        /// The version before.
        base: u64,
        /// The version after; each change is one step. The same as `base` without changes: the
        /// speaker only says where it stands.
        version: u64,
        /// What changed, in order.
        changes: Vec<Change>,
    },
    /// The speaker's whole interest, in parts.
    InterestFull {
        /// Its version, the same in all parts.
        version: u64,
        /// 0, 1, 2 ...
        part: u32,
        /// Whether it is the last part.
        last: bool,
        /// [`Change::Add`] and [`Change::Here`] for what there is, [`Change::Ended`] for sessions
        /// that were ended a short while ago.
        entries: Vec<Change>,
    },
    /// The speaker lacks part of the listener's interest, and asks for all of it.
    InterestAsk,
    /// Messages.
    Deliver {
        /// All numbers below are received, or the speaker has given them up.
        base: u64,
        /// The number of the first item; the others follow without holes.
        first: u64,
        /// The items.
        items: Vec<Item>,
    },
    /// What became of the listener's items.
    Report {
        /// All numbers up to this one were received.
        received: u64,
        /// The version of the listener's interest that the speaker knows; 0 if none.
        interest_seen: u64,
        /// How far named subscriptions at the speaker have taken what the listener sent them.
        taken: Vec<Taken>,
        /// What became of items for which a report was asked.
        results: Vec<ItemResult>,
    },
    /// Asks for a sign of life.
    Probe(u64),
    /// The answer to the probe with this number.
    Probed(u64),
    /// The speaker leaves the cluster; its subscriptions are gone.
    Leave,
}

/// One step of a node's interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The first anonymous subscription with this pattern came.
    Add(Pattern),
    /// The last one went.
    Remove(Pattern),
    /// A named subscription is here.
    Here {
        /// Which.
        named: Named,
        /// The time of its claim.
        time: Timestamp,
        /// The number of its stay.
        session: u64,
    },
    /// It lost its connection, or is at another node now: what it has not taken is held.
    Away {
        /// The number of its stay.
        session: u64,
    },
    /// It unsubscribed: nothing is held for it.
    Ended {
        /// The number of its stay.
        session: u64,
    },
}

/// A publish for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its subject.
    pub subject: TopicName,
    /// Its messages.
    pub records: Records,
    /// Its place among all publishes of the sender. Unlike the number it stays the same when a
    /// named subscription gets it at another place.
    pub order: u64,
    /// How long the sender has held it, in ms: times to live began that long ago.
    pub age_ms: u64,
    /// Whether it is for the anonymous subscribers that match the subject.
    pub anonymous: bool,
    /// The sessions that it is for.
    pub sessions: Vec<u64>,
    /// Whether the sender wants to know what became of it at the anonymous subscribers.
    pub report: bool,
}

/// How far a session has taken what one sender sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which session.
    pub session: u64,
    /// All items for it up to this place in the sender's order are out of its mailbox.
    pub upto: u64,
    /// How many of their messages were not taken but overflowed, in all.
    pub lost: u64,
}

/// What became of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemResult {
    /// Its place in the sender's order.
    pub order: u64,
    /// What each anonymous subscriber did, for at most [`RESULTS_MAX`](super::RESULTS_MAX) of them.
    pub results: Vec<SubscriberResult>,
}
