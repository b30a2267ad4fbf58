//! What keeps the store in order: timers, segments, retention, and the state that is recovered.
//!
//! Two threads: `timers` for what must happen on time, `keeper` for what may take long.

pub(crate) mod keeper;
pub(crate) mod rebuild;
pub(crate) mod recover;
pub(crate) mod retention;
pub(crate) mod timers;
pub(crate) mod turns;
