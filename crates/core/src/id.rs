//! Numbers that name things, each with a type of its own, and the arithmetic they allow.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The number after this one.
            pub fn next(self) -> Self {
                self.plus(1)
            }

            /// The number before this one; zero has none and stays.
            pub fn prev(self) -> Self {
                Self(self.0.saturating_sub(1))
            }

            /// This number moved up by `count`.
            pub fn plus(self, count: u64) -> Self {
                Self(self.0.checked_add(count).expect("numbers of 64 bits do not run out"))
            }

            /// How many numbers lie from `from` (included) to here (excluded).
            pub fn distance(self, from: Self) -> u64 {
                self.0.saturating_sub(from.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The place of a message in its topic: 1, 2, 3 … Zero stands for "none yet".
    Seq
}

number! {
    /// The place of an entry in its journal. Zero stands for "none yet". Every message has
    /// one; so has every other entry, which is why a topic's positions may have holes.
    Position
}

number! {
    /// The number under which a journal knows a topic. Never reused, so that a topic created again
    /// under an old name is another topic.
    TopicId
}

/// The random id of a store and of one of its openings, part of every cursor token.
///
/// A cursor of another store, or of a history that a restored copy lacks, is noticed by it
/// ([`crate::openings`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The half that names the store, the same for ever.
    pub fn store(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The half that names the opening of the store.
    pub fn opening(self) -> u32 {
        self.0 as u32
    }

    /// The same store at another opening.
    #[must_use]
    pub fn at_opening(self, opening: u32) -> Self {
        Self(u64::from(self.store()) << 32 | u64::from(opening))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
