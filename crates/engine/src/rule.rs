//! What a writer of the log may conclude from what it knows about the place it wrote to.
//!
//! The one rule on which everything rests, as a function without IO: the writer follows it, and the
//! model in `tests/log_model.rs` checks it. `docs/adr/0017` has the argument.

use std::time::Duration;

/// Who made an object of the log: no two objects have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The term of the writer.
    pub term: u64,
    /// A random number, new for each object.
    pub nonce: u64,
}

/// What is known about the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Our create succeeded.
    Created,
    /// An object is there, with this mark.
    Taken(Mark),
    /// Nothing is there. A create of ours may still be on its way.
    Free,
    /// There was no answer, or one that does not say.
    Unclear,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The object is in the log: its frames may be acknowledged.
    Done,
    /// It is there, but the last check is old: list what is newer first. Nothing newer means done.
    Confirm,
    /// Read the place.
    Look,
    /// Create the same object at the same place again.
    Again,
    /// Another owns the log. Nothing was appended, and nothing will be.
    Fenced,
}

/// Whether a check so long ago is too old to conclude anything from a create that succeeded: what
/// was created since may have been trimmed again.
pub fn is_old(checked_ago: Duration, trim_wait: Duration) -> bool {
    checked_ago > trim_wait / 2
}

/// The next step of the writer that made, or is making, the object `own`. It knew that it owned the
/// log so long ago; objects are trimmed `trim_wait` after the floor passed them.
pub fn next_step(seen: Seen, own: Mark, checked_ago: Duration, trim_wait: Duration) -> Step {
    match seen {
        Seen::Taken(mark) if mark != own => Step::Fenced,
        Seen::Created | Seen::Taken(_) if is_old(checked_ago, trim_wait) => Step::Confirm,
        Seen::Created | Seen::Taken(_) => Step::Done,
        Seen::Free => Step::Again,
        Seen::Unclear => Step::Look,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mark = Mark { term: 3, nonce: 7 };
    const WAIT: Duration = Duration::from_secs(60);

    fn step(seen: Seen, ago: u64) -> Step {
        next_step(seen, OWN, Duration::from_secs(ago), WAIT)
    }

    #[test]
    fn only_a_young_check_lets_a_create_count() {
        for seen in [Seen::Created, Seen::Taken(OWN)] {
            assert_eq!(step(seen, 30), Step::Done);
            assert_eq!(step(seen, 31), Step::Confirm);
        }
    }

    #[test]
    fn the_same_term_with_another_nonce_is_another_writer() {
        assert_eq!(step(Seen::Taken(Mark { nonce: 8, ..OWN }), 0), Step::Fenced);
        assert_eq!(step(Seen::Taken(Mark { term: 4, ..OWN }), 0), Step::Fenced);
        assert_eq!(step(Seen::Unclear, 0), Step::Look);
        assert_eq!(step(Seen::Free, 0), Step::Again);
    }
}
