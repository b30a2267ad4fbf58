//! Who a client is, and what it may do.
//!
//! [`Auth`] knows the roles, identities and tokens of a store and turns a proof into a [`Caller`]; a
//! caller is what listeners hold instead of a bare broker, and the one place where rights are
//! checked. The rules themselves are in `gapless_core::rights`, sockets and TLS in the listeners.

mod audit;
mod auth;
mod caller;
mod command;
mod hash;
pub mod jwt;
mod policy;
mod quota;
mod records;
mod rules_file;
mod sessions;
mod throttle;

pub use auth::{Auth, AuthError, AuthOptions, Proof, Refused};
pub use caller::{Caller, Denied, Lost};
pub use command::{Command, CommandError};
pub use quota::{Held, OverQuota, Places};
pub use records::{Quotas, RecordError};
pub use rules_file::RulesFileError;

/// The prefix of all cells that belong to this crate; no listener shows or changes them as cells.
pub const CELLS: &str = "$auth/";
