//! What every bench shares: the hardware's own figures, and one way to print figures.
//!
//! A figure of ours says little alone. So each bench measures, in the same run, what the
//! machine could do at best, and prints both side by side with their ratio.
//!
//! Not here: anything that knows the broker. `gapless bench disk` uses this crate too.

pub mod buffer;
pub mod hardware;
pub mod process;
pub mod samples;
pub mod scratch;
pub mod table;
