//! What every connection needs, whatever protocol it speaks: its byte stream with or without TLS,
//! writing what waits, which of its subscriptions have something, history that yields to live
//! messages, its place among all connections.
//!
//! Not here: frames and verbs (`native`), paths (`http`).

pub(crate) mod awake;
pub(crate) mod connections;
pub(crate) mod fairness;
pub(crate) mod numbered;
pub(crate) mod output;
pub(crate) mod ready;
pub(crate) mod sessions;
pub(crate) mod sockets;
pub(crate) mod stream;
