//! Where a reader stands in a topic.
//!
//! A cursor hands out seqs without gap or repeat: what was read must begin exactly at
//! `next`, which never moves backwards. The only way to skip is a [`Gap`], which the
//! reader is given. Each [`Input::Look`] answers one of *take*, *history*, *gap*, *wait*.
//!
//! A cursor recovers until it has reached both the tail and everything that could be seen
//! when recovery began; then it is live, and says [`Effect::CaughtUp`] once. A reader too slow for
//! the tail falls out of it and recovers by itself. History and live messages need no hand-over,
//! because a reader is only a number.
//!
//! It reads nothing itself, so that the same code runs under the simulator. All ranges
//! include both their ends.

use alloc::vec::Vec;

use crate::gap::{Gap, GapReason};
use crate::id::Seq;
use crate::time::Timestamp;

/// A reader's place in one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The seq the reader needs next.
    next: Seq,
    /// One past the last seq a look has ever shown: nothing above may be handed out.
    shown: Seq,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Created, but not yet shown its topic.
    New,
    /// Reading up to `target`, what could be seen when recovery began (excluded). Without
    /// a fixed target a busy topic would keep a reader recovering for ever.
    Recovering { target: Seq },
    /// At the tail.
    Live,
}

/// What a topic shows its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The first seq that is kept (the floor).
    pub first: Seq,
    /// Why what lay below the floor is gone.
    pub floor_reason: GapReason,
    /// The first seq held in memory; `next` if none is.
    pub tail: Seq,
    /// One past the last seq that may be seen.
    pub next: Seq,
}

/// Where a reader wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// With the oldest message that is kept.
    Beginning,
    /// With this seq. If it is gone, the first look reports the gap.
    Seq(Seq),
    /// With the next message to come.
    Now,
}

/// Why a reader could not begin. No cursor was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The seq does not exist yet. Waiting for it would hide that the reader has seen
    /// another topic or another store than this one.
    #[error("seq {wanted} does not exist yet: begin at {next} or before")]
    Ahead {
        /// The seq asked for.
        wanted: Seq,
        /// The next seq to come.
        next: Seq,
    },
}

/// What happens to a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The reader could take something: what should it do?
    Look(View),
    /// `from..=to` was read and accounted for, holes left by compaction or expiry
    /// included.
    Took {
        /// The first seq read; must be the cursor's `next`.
        from: Seq,
        /// The last seq read.
        to: Seq,
    },
}

/// What is to be done about it. A look gives exactly one of the first four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Serve from the tail, beginning at `from`, up to `to_max` or less.
    Take {
        /// The first seq to serve.
        from: Seq,
        /// The last seq that may be served.
        to_max: Seq,
    },
    /// Read from the store, beginning at `from`, up to `to` or less.
    History {
        /// The first seq to read.
        from: Seq,
        /// The last seq that is not in the tail.
        to: Seq,
    },
    /// Report to the reader that these are gone; the cursor has already moved past them.
    Gap(Gap),
    /// There is nothing to read; look again when the topic's `next` rises.
    Wait,
    /// The reader has turned from recovering to live. Comes before the take or wait of
    /// the same look.
    CaughtUp,
}

impl Cursor {
    /// A cursor at the place asked for.
    pub fn start(start: Start, view: &View) -> Result<Self, StartError> {
        let next = match start {
            Start::Beginning => view.first,
            // Seqs begin at one; a reader that asks for zero has seen nothing yet.
            Start::Seq(wanted) if wanted <= view.next => wanted.max(Seq(1)),
            Start::Seq(wanted) => {
                return Err(StartError::Ahead { wanted, next: view.next });
            }
            // A purge may have taken even what could not be seen yet.
            Start::Now => view.next.max(view.first),
        };
        Ok(Self { next, shown: next, state: State::New })
    }

    /// The seq the reader needs next.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Whether the reader has reached the tail and stayed there.
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Takes one step. `now` plays no part: a cursor waits for messages, not for time.
    ///
    /// # Panics
    ///
    /// When a [`Input::Took`] does not begin at `next`, is empty, or goes beyond what a
    /// look has shown. Each of them would be an unreported gap or repeat, and only a bug can cause
    /// it.
    pub fn step(&mut self, _now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Look(view) => self.look(&view, effects),
            Input::Took { from, to } => {
                let next = self.next;
                assert!(
                    from == next,
                    "a cursor at {next} takes only what begins there, not at {from}"
                );
                assert!(from <= to, "a cursor takes at least one seq");
                assert!(to < self.shown, "a cursor takes only what a look has shown");
                self.next = to.next();
            }
        }
    }

    /// A cursor waits for no time.
    pub fn deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        assert!(self.next >= Seq(1), "the first seq is one");
        assert!(self.next <= self.shown, "nothing is handed out before it was shown");
    }

    fn look(&mut self, view: &View, effects: &mut Vec<Effect>) {
        self.shown = self.shown.max(view.next);
        if self.next < view.first {
            let gap = Gap { from: self.next, to: view.first.prev(), reason: view.floor_reason };
            self.next = view.first;
            self.shown = self.shown.max(self.next);
            self.fall_behind(view);
            effects.push(Effect::Gap(gap));
            return;
        }
        // A view older than the last one shows less than was taken: there is nothing to do.
        if self.next < view.tail && self.next < view.next {
            self.fall_behind(view);
            let to = view.tail.min(view.next).prev();
            effects.push(Effect::History { from: self.next, to });
            return;
        }
        self.reach_tail(view, effects);
        effects.push(if self.next < view.next {
            Effect::Take { from: self.next, to_max: view.next.prev() }
        } else {
            Effect::Wait
        });
    }

    fn fall_behind(&mut self, view: &View) {
        if !matches!(self.state, State::Recovering { .. }) {
            self.state = State::Recovering { target: view.next };
        }
    }

    fn reach_tail(&mut self, view: &View, effects: &mut Vec<Effect>) {
        let target = match self.state {
            State::Live => return,
            State::New => view.next,
            State::Recovering { target } => target,
        };
        if self.next >= target {
            self.state = State::Live;
            effects.push(Effect::CaughtUp);
        } else {
            self.state = State::Recovering { target };
        }
    }
}

#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
