//! What callers asked for in a burst, when, and the answers they got.
//!
//! A call lies between two stamps of one counter. Two calls that overlap may have taken effect
//! in either order; one that began after another ended came after it.

use gapless_broker::GroupError;
use gapless_broker::TopicError;
use gapless_core::{Durability, Fate as Happened, GroupSettings, PubSubError, TopicSettings};

/// The outcome of a call, as far as its caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    Nothing,
    Unknown,
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) fate: Fate,
    pub(crate) what: What,
}

/// What was asked for. Topics, groups and cells are named by their index.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Created or configured; without settings deleted. The number is that of the topic.
    Topic {
        topic: usize,
        id: Option<u64>,
        settings: Option<TopicSettings>,
    },
    Purge {
        topic: usize,
    },
    /// A message, and where it stands. Those of one commit are there together.
    Publish {
        topic: usize,
        body: u64,
        place: Option<Place>,
        commit: Option<u64>,
    },
    Cell {
        cell: usize,
        value: Option<u64>,
        reached: Durability,
    },
    Schedule {
        topic: usize,
        body: u64,
        id: Option<u64>,
        due: u64,
    },
    Cancel {
        id: u64,
    },
    /// Created or configured; without settings deleted.
    Group {
        group: usize,
        id: Option<u64>,
        settings: Option<GroupSettings>,
    },
    Paused {
        group: usize,
        paused: bool,
    },
    Reset {
        group: usize,
    },
    /// A member was handed the message at this position.
    Handed {
        group: usize,
        position: u64,
    },
    /// A member is done with it, for better or worse.
    Ended {
        group: usize,
        position: u64,
    },
    /// Dead letters were redriven or removed.
    Letters,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    pub(crate) position: u64,
    pub(crate) reached: Durability,
}

/// The kinds of calls, for counting.
pub(crate) const KINDS: [&str; 15] = [
    "topic set",
    "topic deleted",
    "purge",
    "publish",
    "cell",
    "schedule",
    "cancel",
    "group set",
    "group deleted",
    "pause",
    "reset",
    "handed",
    "ended",
    "letters",
    "in doubt",
];

impl Call {
    /// Its place among the kinds, if it happened or may have.
    pub(crate) fn kind(&self) -> Option<usize> {
        match (self.fate, &self.what) {
            (Fate::Nothing, _) => None,
            (Fate::Unknown, _) => Some(14),
            (Fate::Done, what) => Some(match what {
                What::Topic { settings: Some(_), .. } => 0,
                What::Topic { settings: None, .. } => 1,
                What::Purge { .. } => 2,
                What::Publish { .. } => 3,
                What::Cell { .. } => 4,
                What::Schedule { .. } => 5,
                What::Cancel { .. } => 6,
                What::Group { settings: Some(_), .. } => 7,
                What::Group { settings: None, .. } => 8,
                What::Paused { .. } => 9,
                What::Reset { .. } => 10,
                What::Handed { .. } => 11,
                What::Ended { .. } => 12,
                What::Letters => 13,
            }),
        }
    }

    /// Whether it may have happened.
    pub(crate) fn may_count(&self) -> bool {
        self.fate != Fate::Nothing
    }

    pub(crate) fn is_done(&self) -> bool {
        self.fate == Fate::Done
    }

    /// Whether it certainly came after `other`.
    pub(crate) fn follows(&self, other: &Self) -> bool {
        self.from > other.to
    }
}

pub(crate) fn fate_of(error: &PubSubError) -> Fate {
    match error.fate() {
        Happened::DidNotHappen => Fate::Nothing,
        Happened::Unknown => Fate::Unknown,
    }
}

/// What became of a change of topics.
pub(crate) fn topic_fate<T>(result: &Result<T, TopicError>) -> Fate {
    match result {
        Ok(_) => Fate::Done,
        Err(TopicError::System_(error)) => fate_of(error),
        Err(_) => Fate::Nothing,
    }
}

/// What became of a change of groups.
pub(crate) fn group_fate<T>(result: &Result<T, GroupError>) -> Fate {
    match result {
        Ok(_) => Fate::Done,
        Err(GroupError::System(error) | GroupError::Topic(TopicError::System_(error))) => {
            fate_of(error)
        }
        Err(_) => Fate::Nothing,
    }
}
