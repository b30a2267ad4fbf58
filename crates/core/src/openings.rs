//! The openings of a store, and whether a cursor token belongs to its history.
//!
//! Each time a store is opened it gets a random id, which stands in the lower half of the epoch
//! that tokens carry. A token is obeyed only if this store went through the opening that created
//! it, and if its position existed before the next opening. So a store that was restored from
//! an older copy notices tokens of the history that the copy does not have, although its
//! positions have meanwhile been given to other messages.
//!
//! Not here: positions that an unclean end made uncertain (the journal's jumps).

use alloc::vec::Vec;

use crate::id::{Epoch, Position};
use crate::token::Token;

/// How many openings are remembered, oldest forgotten first: a daily restart for almost three
/// years. A token from before them is treated like one of another store.
pub const OPENINGS_MAX: usize = 1024;

/// One opening of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Its random id.
    pub id: u32,
    /// The first position that could be given after it.
    pub first: Position,
}

/// The openings of a store, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Openings {
    epoch: Epoch,
    list: Vec<Opening>,
}

impl Openings {
    /// The history of a store whose first epoch was this one, with what is remembered of its
    /// openings. A store that remembers none counts as opened once, when it was created.
    pub fn new(epoch: Epoch, list: Vec<Opening>) -> Self {
        let mut openings = Self { epoch, list };
        if openings.list.is_empty() {
            openings.begin(epoch.opening(), Position(1));
        }
        openings
    }

    /// Notes an opening: positions from `first` on are given after it.
    pub fn begin(&mut self, id: u32, first: Position) {
        // A token of an opening that gave no position says no more than one of the opening before
        // it. It is remembered all the same: tokens that were created during it carry its id.
        self.list.push(Opening { id, first });
        let old = self.list.len().saturating_sub(OPENINGS_MAX);
        self.list.drain(..old);
    }

    /// The openings that are remembered, oldest first.
    pub fn list(&self) -> &[Opening] {
        &self.list
    }

    /// The epoch that tokens carry which are created now.
    pub fn epoch(&self) -> Epoch {
        let newest = self.list.last().map_or(self.epoch.opening(), |opening| opening.id);
        self.epoch.at_opening(newest)
    }

    /// Whether a token was created by this store, in the part of its history that it still has.
    pub fn knows(&self, token: Token) -> bool {
        let after = |at: usize| self.list.get(at + 1).map(|next| next.first);
        token.epoch.store() == self.epoch.store()
            && self.list.iter().enumerate().rev().any(|(at, opening)| {
                opening.id == token.epoch.opening()
                    && after(at).is_none_or(|next| token.position < next)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Epoch = Epoch(0xaaaa_aaaa_0000_0001);

    fn token(opening: u32, position: u64) -> Token {
        Token { epoch: STORE.at_opening(opening), position: Position(position) }
    }

    #[test]
    fn v9_tokens_of_a_history_that_a_restored_copy_lacks_are_not_known() {
        let mut copied = Openings::new(STORE, Vec::new());
        copied.begin(2, Position(10));
        let mut went_on = copied.clone();
        went_on.begin(3, Position(20));
        let old = Token { epoch: went_on.epoch(), position: Position(25) };
        let mut restored = copied;
        restored.begin(4, Position(20));
        assert!(went_on.knows(old));
        assert!(!restored.knows(old));
        // What the copy has, it knows; also when it was read late, after a later opening.
        assert!(restored.knows(token(1, 9)) && restored.knows(token(2, 19)));
        assert!(restored.knows(token(4, 5)) && restored.knows(token(4, 99)));
        // The copy was taken while the store ran on: position 20 came later than the copy.
        assert!(!restored.knows(token(2, 20)));
    }

    #[test]
    fn a_token_of_another_store_is_not_known() {
        let openings = Openings::new(STORE, Vec::new());
        assert!(openings.knows(Token { epoch: STORE, position: Position(7) }));
        let other = Epoch(0xbbbb_bbbb_0000_0001);
        assert!(!openings.knows(Token { epoch: other, position: Position(7) }));
    }

    #[test]
    fn a_store_that_knew_no_openings_keeps_its_old_tokens() {
        let mut openings = Openings::new(STORE, Vec::new());
        openings.begin(9, Position(50));
        assert!(openings.knows(Token { epoch: STORE, position: Position(49) }));
        assert_eq!(openings.epoch(), Epoch(0xaaaa_aaaa_0000_0009));
    }

    #[test]
    fn only_so_many_openings_are_remembered() {
        let mut openings = Openings::new(STORE, Vec::new());
        for at in 0..OPENINGS_MAX as u32 {
            openings.begin(at + 2, Position(u64::from(at) + 2));
        }
        assert_eq!(openings.list().len(), OPENINGS_MAX);
        assert!(!openings.knows(token(1, 1)));
        assert!(openings.knows(token(2, 1)));
    }
}
