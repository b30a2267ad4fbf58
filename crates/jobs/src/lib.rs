//! Jobs: a client submits, a worker runs, a leader sees to it that each job ends once.
//!
//! The leader's rules are a machine in `gapless_core::job`; this crate is its shell. It keeps
//! jobs, requests and results in topics of the broker's journal, below `$jobs`, and nothing
//! anywhere else: what was accepted survives a restart, and a result is stored together with
//! the change that it means.
//!
//! - [`wire`]: what travels: frames with JSON in them.
//! - [`leader`]: the task that owns the machine.
//! - [`session`]: a connection of a client or worker, at the leader.
//! - `store`: jobs as messages.
//! - [`client`]: a client of one or several leaders.
//! - [`worker`]: a worker; `run`, `zipped`, `load`: how it runs a program, packs what it left, and
//!   how busy the machine is.

pub mod client;
mod clock;
mod error;
pub mod leader;
mod load;
mod run;
pub mod session;
mod store;
pub mod wire;
pub mod worker;
mod zipped;

pub use client::{ClientOptions, JobClient, SubmitError};
pub use error::JobsError;
pub use leader::{JobView, Leader, LeaderOptions};
pub use run::RunLimits;
pub use worker::{WorkerOptions, work};
