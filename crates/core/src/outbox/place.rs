//! Whether a consumer may go on from where it stands.
//!
//! A consumer stands at a *place*: an epoch and the number of the last row it is done with.
//! The database keeps the list of its epochs; each says after which number it began. A
//! promotion, a restore or a dump begins a new one. Rows up to that number are the same in
//! both epochs, so a consumer that had come no further goes on; one that had come further has
//! seen rows that are gone, whose numbers other rows may get: it gets an error. So does one that
//! stands below what retention has removed.
//!
//! Nothing is ever skipped silently: every answer but [`Standing::Ready`] and
//! [`Standing::Wait`] is an error that names the numbers.

use alloc::vec::Vec;

/// One history of the numbers of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochId(pub u128);

/// An epoch as the database lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Begun {
    /// Which one.
    pub id: EpochId,
    /// Rows up to this number are of the epochs before.
    pub after: u64,
}

/// Where a consumer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// In which epoch it read; `None` if it never did.
    pub epoch: Option<EpochId>,
    /// The last row it is done with; zero before the first.
    pub seq: u64,
}

/// What the database says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its epochs, oldest first; at least one.
    pub epochs: Vec<Begun>,
    /// Every row up to it is settled.
    pub safe: u64,
    /// Rows up to it are removed by retention.
    pub floor: u64,
    /// Whether it follows another server, and so may be behind it.
    pub standby: bool,
}

/// What a consumer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Go on, in this epoch.
    Ready(EpochId),
    /// The server has not come as far yet: look again later.
    Wait,
}

/// Why a consumer must not go on. Its place is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It read another outbox, or one that was installed again.
    #[error(
        "the place at seq {seq} is of another outbox: point the consumer at the database it \
         read before, or rebuild it and reset it to a seq of this one"
    )]
    OtherOutbox {
        /// Where it stands.
        seq: u64,
    },
    /// It has seen rows that a restore or failover took away.
    #[error(
        "the database was restored or failed over to a state that ends at seq {kept}, but the \
         consumer is done up to {seq}: undo what it did with the rows after {kept} (or rebuild \
         it), then reset it to {kept}"
    )]
    Rewound {
        /// Where it stands.
        seq: u64,
        /// The last row that is the same.
        kept: u64,
    },
    /// It is done with rows that do not exist.
    #[error(
        "the consumer is done up to seq {seq}, but the outbox is settled up to {safe} only: the \
         database was replaced by an older copy; begin a new epoch, then rebuild the consumer"
    )]
    Ahead {
        /// Where it stands.
        seq: u64,
        /// What is settled.
        safe: u64,
    },
    /// Rows it has not seen are removed.
    #[error(
        "rows {} to {floor} were removed by retention before the consumer read them: rebuild \
         what it keeps from the data itself, then reset it to the seq that was settled when the \
         rebuild began (at least {floor})", seq + 1
    )]
    BehindRetention {
        /// Where it stands.
        seq: u64,
        /// The last row that is removed.
        floor: u64,
    },
}

impl Source {
    /// What a consumer at this place may do.
    ///
    /// # Errors
    /// When going on would skip or repeat rows without saying so.
    pub fn standing(&self, place: Place) -> Result<Standing, PlaceError> {
        let Place { epoch, seq } = place;
        let newest = self.epochs.last().ok_or(PlaceError::OtherOutbox { seq })?.id;
        let at = match epoch {
            // One that never read stands where it was put, in the newest epoch.
            None => self.epochs.len() - 1,
            Some(epoch) => match self.epochs.iter().position(|begun| begun.id == epoch) {
                Some(at) => at,
                // The epoch may not have reached a standby yet.
                None if self.standby => return Ok(Standing::Wait),
                None => return Err(PlaceError::OtherOutbox { seq }),
            },
        };
        let later = self.epochs[at + 1..].iter().map(|begun| begun.after);
        if let Some(kept) = later.min()
            && seq > kept
        {
            return Err(PlaceError::Rewound { seq, kept });
        }
        if seq < self.floor {
            return Err(PlaceError::BehindRetention { seq, floor: self.floor });
        }
        if seq > self.safe {
            let waits = self.standby;
            return if waits { Ok(Standing::Wait) } else { Err(self.ahead(seq)) };
        }
        Ok(Standing::Ready(newest))
    }

    fn ahead(&self, seq: u64) -> PlaceError {
        PlaceError::Ahead { seq, safe: self.safe }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const OLD: EpochId = EpochId(1);
    const NEW: EpochId = EpochId(2);

    fn source(epochs: &[(EpochId, u64)], safe: u64, floor: u64) -> Source {
        let epochs = epochs.iter().map(|&(id, after)| Begun { id, after }).collect();
        Source { epochs, safe, floor, standby: false }
    }

    fn at(epoch: EpochId, seq: u64) -> Place {
        Place { epoch: Some(epoch), seq }
    }

    #[test]
    fn a_consumer_that_had_not_come_further_goes_on_in_the_new_epoch() {
        let source = source(&[(OLD, 0), (NEW, 100)], 5_000, 0);
        assert_eq!(source.standing(at(OLD, 100)), Ok(Standing::Ready(NEW)));
        assert_eq!(source.standing(at(NEW, 4_000)), Ok(Standing::Ready(NEW)));
    }

    #[test]
    fn a_consumer_that_saw_rows_that_are_gone_is_told() {
        let source = source(&[(OLD, 0), (NEW, 100)], 5_000, 0);
        let told = source.standing(at(OLD, 101));
        assert_eq!(told, Err(PlaceError::Rewound { seq: 101, kept: 100 }));
    }

    #[test]
    fn the_lowest_beginning_of_all_later_epochs_counts() {
        let middle = EpochId(9);
        let source = source(&[(OLD, 0), (middle, 100), (NEW, 50)], 5_000, 0);
        let told = source.standing(at(OLD, 70));
        assert_eq!(told, Err(PlaceError::Rewound { seq: 70, kept: 50 }));
    }

    #[test]
    fn a_place_of_another_outbox_is_refused() {
        let source = source(&[(NEW, 0)], 10, 0);
        assert_eq!(source.standing(at(OLD, 3)), Err(PlaceError::OtherOutbox { seq: 3 }));
    }

    #[test]
    fn b7_a_consumer_behind_retention_is_told_also_when_it_is_new() {
        let source = source(&[(OLD, 0)], 500, 200);
        let told = source.standing(at(OLD, 199));
        assert_eq!(told, Err(PlaceError::BehindRetention { seq: 199, floor: 200 }));
        assert_eq!(source.standing(at(OLD, 200)), Ok(Standing::Ready(OLD)));
        let new = Place { epoch: None, seq: 0 };
        let told = source.standing(new);
        assert_eq!(told, Err(PlaceError::BehindRetention { seq: 0, floor: 200 }));
    }

    #[test]
    fn a_standby_may_be_behind_and_a_primary_may_not() {
        let mut source = source(&[(OLD, 0)], 10, 0);
        assert_eq!(source.standing(at(OLD, 11)), Err(PlaceError::Ahead { seq: 11, safe: 10 }));
        source.standby = true;
        assert_eq!(source.standing(at(OLD, 11)), Ok(Standing::Wait));
        assert_eq!(source.standing(at(NEW, 5)), Ok(Standing::Wait));
    }

    #[test]
    fn a_database_without_an_epoch_is_no_outbox() {
        let source = Source { epochs: vec![], safe: 0, floor: 0, standby: false };
        let new = Place { epoch: None, seq: 0 };
        assert_eq!(source.standing(new), Err(PlaceError::OtherOutbox { seq: 0 }));
    }
}
