//! Jobs: a client submits, a worker runs, a leader sees to it that each job ends once.
//!
//! The leader's rules are a machine in `gapless_core::job`; this crate is its shell. It keeps
//! jobs, requests and results in topics of the broker's journal, below `$jobs`, and nothing
//! anywhere else: what was accepted survives a restart, and a result is stored together with
//! the change that it means.
//!
//! - [`wire`]: what travels: frames with JSON in them.
//! - [`leader`]: the task that owns the machine.
//! - [`session`]: a connection of a client or worker, at the leader; `route`: jobs that another
//!   leader leads.
//! - [`guard`]: who a connection is for, and what it may do.
//! - [`visit`]: those who look and manage, and workers without a connection.
//! - `store`: jobs as messages; `log`: what running jobs wrote; `tally`: what is counted.
//! - [`shown`]: jobs as people see them; [`names`]: their fields as other interfaces spell them.
//! - [`manage`]: a connection for those who look and manage.
//! - [`client`]: a client of one or several leaders.
//! - [`worker`]: a worker; `handler`: one whose jobs are functions of this process; `load`: how
//!   busy the machine is.
//! - `program`, `runner`: who runs a program; `run`: how; `unpack`, `capture`, `zipped`: what it
//!   reads, writes and leaves; [`outputs`]: what it leaves, if that is large; `isolate`,
//!   `cgroup`, `tree`: what it cannot do, and that nothing of it stays.

mod access;
mod calendar;
mod capture;
mod cell;
mod cgroup;
pub mod client;
mod clock;
mod error;
pub mod guard;
mod handler;
mod isolate;
pub mod leader;
mod lease;
mod load;
mod log;
pub mod manage;
pub mod names;
pub mod outputs;
mod program;
mod room;
mod route;
mod run;
mod runner;
pub mod session;
pub mod shown;
mod store;
mod tally;
mod tree;
mod unpack;
pub mod visit;
pub mod wire;
pub mod worker;
mod zipped;

pub use access::Access;
pub use client::{ClientOptions, JobClient, JobEvent, SubmitError};
pub use error::JobsError;
pub use handler::{Failure, Job, Worker};
pub use isolate::Sandbox;
pub use leader::{JobView, Leader, LeaderOptions};
pub use outputs::Outputs;
pub use room::Room;
pub use route::Routes;
pub use run::{RunLimits, RunOptions};
pub use runner::serve_worker;
pub use worker::{WorkerOptions, work};
