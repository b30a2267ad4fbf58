//! Topics: one with its tail and waiters, all of them by name, and their administration.
//!
//! Numbers and duplicates are decided in `core`; what is read from a topic is in `read`.

pub(crate) mod admin;
pub(crate) mod keys;
pub(crate) mod live_topic;
pub(crate) mod slices;
pub(crate) mod topics;
