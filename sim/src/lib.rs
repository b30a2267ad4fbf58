//! A seeded simulator of the broker over a faulty disk.
//!
//! A seed decides everything: what is published, followed, looked up and deleted, how large
//! things are, when the clock moves, and when the disk tears, loses, fails, fills up or the
//! process dies. Beside the broker runs a plain model of what must hold, and after every
//! step both are compared. The same seed gives the same trace, so whatever fails can be
//! run again with `--seed N --trace`.
//!
//! Where things are: `plan` draws sizes and frequencies, `workload` publishes, `admin` makes
//! and follows topics, `hook` does things within a flush, `crash` ends and reopens; `model`
//! and `decide` say what must be, `follower` and `checks` compare; `run` is the whole of it;
//! `members` is a world of its own, about groups, `cluster` one about nodes, and `jobs` one about jobs.

mod admin;
mod checks;
mod cluster;
mod crash;
mod decide;
mod follower;
mod hook;
mod jobs;
mod members;
mod model;
mod plan;
mod random;
mod run;
mod trace;
mod workload;
mod world;

pub use cluster::{ClusterCounts, ClusterOptions, ClusterReport, Mutation, run_cluster};
pub use jobs::{JobCounts, JobMutation, JobOptions, JobReport, run_jobs};
pub use run::{Report, RunOptions, run};
pub use world::Counts;
