//! How much a reader allows to be sent to it: back-pressure as two numbers.
//!
//! A reader grants messages and bytes; sending takes from both. Nothing is sent that was
//! not granted, and no grant lifts a window above its maximum, so that a reader's mistake
//! cannot make the broker hold or send without bound. A refused grant or take changes
//! nothing.
//!
//! What waits for credit is a cursor, which needs no queue: it is not here.

use alloc::vec::Vec;

use crate::time::Timestamp;

/// An amount of both things that are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    /// How many messages.
    pub messages: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What one reader allows to be sent at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    left: Amount,
    max: Amount,
}

/// Why a window, a grant or a take was refused. Nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// A window that could never hold anything.
    #[error("a credit window needs at least one message and one byte: raise its maximum")]
    NoWindow,
    /// A grant of nothing is a mistake: who wants to pause simply grants no more.
    #[error("the grant is zero: grant at least one message or byte")]
    ZeroGrant,
    /// The grant would lift the window above its maximum.
    #[error(
        "the grant leaves {} messages and {} bytes, above {} and {}: grant less",
        wanted.messages, wanted.bytes, max.messages, max.bytes
    )]
    AboveMaximum {
        /// What the window would hold.
        wanted: Amount,
        /// What it may hold.
        max: Amount,
    },
    /// More would be sent than was granted.
    #[error(
        "{} messages and {} bytes are left, {} and {} are needed: grant more",
        left.messages, left.bytes, needed.messages, needed.bytes
    )]
    Overdrawn {
        /// What is left.
        left: Amount,
        /// What was to be taken.
        needed: Amount,
    },
}

/// What happens to a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The reader allows more.
    Grant(Amount),
    /// This is about to be sent.
    Take(Amount),
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// There is credit of both kinds again after there was none: wake the reader's cursor.
    Opened,
    /// There is no credit of one kind any more: do not look before it opens.
    Closed,
    /// The step was refused.
    Refused(CreditError),
}

impl Credit {
    /// An empty window that may hold up to `max`.
    pub fn new(max: Amount) -> Result<Self, CreditError> {
        if max.messages == 0 || max.bytes == 0 {
            return Err(CreditError::NoWindow);
        }
        Ok(Self { left: Amount::default(), max })
    }

    /// What may still be sent.
    pub fn left(&self) -> Amount {
        self.left
    }

    /// Whether anything may be sent at all.
    pub fn is_open(&self) -> bool {
        self.left.messages > 0 && self.left.bytes > 0
    }

    /// Takes one step. `now` plays no part: credit does not age.
    pub fn step(&mut self, _now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        let was_open = self.is_open();
        let outcome = match input {
            Input::Grant(amount) => self.grant(amount),
            Input::Take(amount) => self.take(amount),
        };
        match (outcome, was_open, self.is_open()) {
            (Err(error), _, _) => effects.push(Effect::Refused(error)),
            (Ok(()), false, true) => effects.push(Effect::Opened),
            (Ok(()), true, false) => effects.push(Effect::Closed),
            (Ok(()), _, _) => {}
        }
    }

    /// Credit waits for no time.
    pub fn deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        assert!(self.left.messages <= self.max.messages, "the window is bounded");
        assert!(self.left.bytes <= self.max.bytes, "the window is bounded");
    }

    fn grant(&mut self, amount: Amount) -> Result<(), CreditError> {
        if amount == Amount::default() {
            return Err(CreditError::ZeroGrant);
        }
        let wanted = Amount {
            messages: self.left.messages.saturating_add(amount.messages),
            bytes: self.left.bytes.saturating_add(amount.bytes),
        };
        if wanted.messages > self.max.messages || wanted.bytes > self.max.bytes {
            return Err(CreditError::AboveMaximum { wanted, max: self.max });
        }
        self.left = wanted;
        Ok(())
    }

    fn take(&mut self, needed: Amount) -> Result<(), CreditError> {
        let overdrawn = CreditError::Overdrawn { left: self.left, needed };
        let messages = self.left.messages.checked_sub(needed.messages).ok_or(overdrawn)?;
        let bytes = self.left.bytes.checked_sub(needed.bytes).ok_or(overdrawn)?;
        self.left = Amount { messages, bytes };
        Ok(())
    }
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;
