//! The HTTP API: REST, Server-Sent Events, WebSocket, Durable Streams, and the page.
//!
//! Each file with a `routes` function is one family of paths; `listener/server` puts them
//! together. Every error leaves as a problem (RFC 9457) with the number of the one list, by
//! `values/problem`. Nothing here holds a rule: handlers parse, call the broker, and answer.

mod access;
mod backups;
mod clients;
mod durable;
pub(crate) mod follow;
mod groups;
mod jobs;
mod listener;
mod page;
mod topics;
pub(crate) mod values;
mod watch;

pub use listener::front::Node;
pub use listener::options::HttpOptions;
pub use listener::server::{HttpGate, HttpListener, keep_metrics_small};
pub use watch::requests::HTTP_SECONDS_BUCKETS;
