//! The one way in which a reader may learn that numbers are missing.
//!
//! A gap names the first and the last missing seq, both included, and why they are gone.
//! Its numbers are on the wire and on disk: a number once given is never given to another
//! reason.
//!
//! Deciding that a gap is there is the cursor's work, not this file's.

use core::fmt;

use crate::id::Seq;

/// Why messages that once had a number can no longer be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GapReason {
    /// The topic's retention let them go.
    Retention,
    /// They had an expiry, and it passed.
    Expiry,
    /// The topic was purged.
    Purge,
    /// The reader's cursor belongs to another store, or to one restored from a copy.
    Epoch,
    /// A newer message of the same key replaced them.
    Compaction,
    /// The topic keeps them in memory only, and the reader was too slow for it.
    Slow,
    /// The topic was deleted, and another one was created under its name.
    Deleted,
    /// A reason that a newer server invented, by its number; a gap all the same.
    Other(u8),
}

impl GapReason {
    /// Every reason that this version knows, with its number. Append only.
    pub const ALL: [(u8, Self); 7] = [
        (1, Self::Retention),
        (2, Self::Expiry),
        (3, Self::Purge),
        (4, Self::Epoch),
        (5, Self::Compaction),
        (6, Self::Slow),
        (7, Self::Deleted),
    ];

    /// The number that stands for this reason on the wire and on disk.
    pub fn code(self) -> u8 {
        match self {
            Self::Retention => 1,
            Self::Expiry => 2,
            Self::Purge => 3,
            Self::Epoch => 4,
            Self::Compaction => 5,
            Self::Slow => 6,
            Self::Deleted => 7,
            Self::Other(code) => code,
        }
    }

    /// The reason behind a number; none if this version does not know it.
    pub fn known(code: u8) -> Option<Self> {
        Self::ALL.iter().find(|(number, _)| *number == code).map(|(_, reason)| *reason)
    }

    /// The reason behind a number, which may be from a newer server.
    pub fn from_code(code: u8) -> Self {
        Self::known(code).unwrap_or(Self::Other(code))
    }

    /// The word users see, the same in every API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retention => "retention",
            Self::Expiry => "expiry",
            Self::Purge => "purge",
            Self::Epoch => "epoch",
            Self::Compaction => "compaction",
            Self::Slow => "slow",
            Self::Deleted => "deleted",
            Self::Other(_) => "other",
        }
    }
}

impl fmt::Display for GapReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A notice that `from..=to` cannot be delivered; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The first missing seq.
    pub from: Seq,
    /// The last missing seq, included.
    pub to: Seq,
    /// Why they are gone.
    pub reason: GapReason,
}

impl Gap {
    /// How many seqs are missing.
    pub fn count(&self) -> u64 {
        self.to.next().distance(self.from)
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={} gone by {}", self.from, self.to, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_numbers_go_there_and_back() {
        for (code, reason) in GapReason::ALL {
            assert_eq!(reason.code(), code);
            assert_eq!(GapReason::known(code), Some(reason));
            assert_eq!(GapReason::from_code(code), reason);
        }
        assert_eq!(GapReason::known(0), None);
        assert_eq!(GapReason::known(8), None);
        assert_eq!(GapReason::from_code(8).code(), 8);
    }

    #[test]
    fn a_gap_of_one_counts_one() {
        let gap = Gap { from: Seq(4), to: Seq(4), reason: GapReason::Purge };
        assert_eq!(gap.count(), 1);
    }
}
