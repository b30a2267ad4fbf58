//! Outbox rows into topics, each exactly once.
//!
//! The messages of a batch and the outbox offset, a cell, are one atomic append, conditional on
//! the offset being what it was when the batch was read. So after any crash the offset says
//! which rows are in their topics, and of two relays at most one appends any row: the other's
//! append is refused, and it goes on from the offset as it is then.
//!
//! This is a crate of its own so that the outbox can be used without a broker, and the broker
//! without PostgreSQL. The broker may be in this process or behind the native protocol.

mod append;
mod message;
mod place;
mod relay;
mod target;

pub use message::{Naming, Refusal};
pub use relay::{Relay, RelayError, RelayOptions};
pub use target::{Target, TargetError};
