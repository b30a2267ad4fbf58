//! Up to which number the rows of an outbox are settled.
//!
//! A transaction draws the numbers of its rows while it holds a lock on the table, and keeps
//! the lock until its rows are visible. So a poll first reads the last number drawn, and only
//! then the list of lock holders: a number that was drawn before the poll and whose
//! transaction is not in the list is visible, or will never be. The machine remembers for
//! each holder a *floor*, below or at which the holder has drawn nothing that is not visible:
//!
//! - a holder that was in the list before keeps its floor;
//! - at the first poll the floor is `safe`, which is below everything unseen;
//! - a new holder has drawn nothing up to the last number of the poll before;
//! - a new *prepared* holder may be an ordinary holder of the poll before under another id:
//!   its floor is the lowest of theirs too.
//!
//! `safe` is the lowest floor, or the last number drawn if there are no holders; it never
//! falls. What is remembered is bound to one *life* of the server: after a crash numbers that
//! were drawn and not flushed are drawn again, so floors of the life before mean nothing, and
//! neither does a bound that was not published. A poll of another life is not used: the machine
//! asks for the stored bound.
//!
//! Holders are as many as the server allows transactions. Reading them is not here.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::time::Timestamp;

/// One life of a server, from a start to the next crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(pub u128);

/// A transaction that holds the lock; unique within a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u64);

/// A transaction in the list of lock holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Which one.
    pub id: HolderId,
    /// Whether it is prepared, so that it may have had another id before.
    pub prepared: bool,
}

/// The fence's memory of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    floor: u64,
    since: Timestamp,
    prepared: bool,
}

/// What is remembered from one poll to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Memory {
    life: Life,
    drawn: u64,
    held: BTreeMap<HolderId, Held>,
}

/// The machine. Feed it [`Input::Stored`] first and after every lost connection, then polls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    safe: u64,
    memory: Option<Memory>,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The bound as the database has it. What was remembered is forgotten.
    Stored {
        /// Every row up to it is settled.
        safe: u64,
    },
    /// A poll: `drawn` was read before `holders`, both in the same life.
    Polled {
        /// The life in which both were read.
        life: Life,
        /// The last number drawn.
        drawn: u64,
        /// The transactions that held the lock after that.
        holders: Vec<Holder>,
    },
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this bound to the database, if its life is still this one, and notify.
    Publish {
        /// Every row up to it is settled.
        safe: u64,
        /// The life in which that is true.
        life: Life,
    },
    /// The server crashed since the last poll: read the stored bound again, as [`Input::Stored`].
    Restore,
    /// Stop: the numbers cannot be trusted any more.
    Refused(FenceError),
}

/// Why the fence stops. The published bound stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Numbers that were drawn before would be drawn again.
    #[error(
        "the sequence went back to {drawn} although {known} was reached: it was set by hand or \
         restored; set it above {known}, then begin a new epoch"
    )]
    WentBack {
        /// The last number drawn now.
        drawn: u64,
        /// A number that was reached before.
        known: u64,
    },
}

/// The holder that everything waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Which one.
    pub id: HolderId,
    /// Since when it is known to hold.
    pub since: Timestamp,
}

impl Fence {
    /// A fence that knows nothing but the bound that the database has.
    pub fn new(safe: u64) -> Self {
        Self { safe, memory: None }
    }

    /// Every row up to this number is settled.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// What keeps the bound below the last number drawn, if anything does.
    pub fn culprit(&self) -> Option<Culprit> {
        let memory = self.memory.as_ref().filter(|memory| memory.drawn > self.safe)?;
        let (id, held) = memory.held.iter().min_by_key(|(_, held)| (held.floor, held.since))?;
        Some(Culprit { id: *id, since: held.since })
    }

    /// Takes in what was read.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Stored { safe } => *self = Self::new(safe),
            Input::Polled { life, drawn, holders } => {
                if let Err(error) = self.polled(now, life, drawn, &holders, effects) {
                    effects.push(Effect::Refused(error));
                }
            }
        }
    }

    fn polled(
        &mut self,
        now: Timestamp,
        life: Life,
        drawn: u64,
        holders: &[Holder],
        effects: &mut Vec<Effect>,
    ) -> Result<(), FenceError> {
        let before = self.memory.take();
        if before.as_ref().is_some_and(|memory| memory.life != life) {
            effects.push(Effect::Restore);
            return Ok(());
        }
        let known = before.as_ref().map_or(self.safe, |memory| memory.drawn.max(self.safe));
        if drawn < known {
            return Err(FenceError::WentBack { drawn, known });
        }
        let ordinary = before.iter().flat_map(|memory| memory.held.values());
        let lowest = ordinary.filter(|held| !held.prepared).map(|held| held.floor).min();
        let mut held = BTreeMap::new();
        for holder in holders {
            let floor = match &before {
                None => self.safe,
                Some(memory) if holder.prepared => lowest.unwrap_or(memory.drawn).min(memory.drawn),
                Some(memory) => memory.drawn,
            };
            let new = Held { floor, since: now, prepared: holder.prepared };
            let known = before.as_ref().and_then(|memory| memory.held.get(&holder.id));
            let known = known.map(|known| Held { prepared: holder.prepared, ..*known });
            held.insert(holder.id, known.unwrap_or(new));
        }
        let floor = held.values().map(|held| held.floor).min().unwrap_or(drawn);
        let safe = self.safe.max(floor.min(drawn));
        self.memory = Some(Memory { life, drawn, held });
        if safe > self.safe {
            self.safe = safe;
            effects.push(Effect::Publish { safe, life });
        }
        Ok(())
    }

    /// Asserts what must always hold.
    pub fn check(&self) {
        if let Some(memory) = &self.memory {
            assert!(self.safe <= memory.drawn, "settled beyond what was drawn");
            let drawn = memory.drawn;
            assert!(memory.held.values().all(|held| held.floor <= drawn), "a floor was not drawn");
        }
    }
}
