//! The verbs, one file per family, each with its fields, their reading and their writing.

pub mod ack;
pub mod follow;
pub mod group;
pub mod group_admin;
pub mod lookup;
pub mod publish;
pub mod session;
pub mod topics;
pub mod visible;
