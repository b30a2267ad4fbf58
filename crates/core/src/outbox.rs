//! The rules of the outbox: rows of a PostgreSQL table that are read in the order of their
//! numbers, although they become visible in another one.
//!
//! [`fence`] decides up to which number every row is settled, [`owner`] which process may run the
//! fence or a consumer, [`place`] whether a consumer may go on from where it stands, and [`pace`]
//! how often to look. `docs/outbox.md` has the argument.
//!
//! SQL, connections and clocks are not here.

pub mod fence;
pub mod owner;
pub mod pace;
pub mod place;

#[cfg(test)]
mod tests;
