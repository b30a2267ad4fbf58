//! The HTTP API: REST, Server-Sent Events, WebSocket, Durable Streams, and the page.
//!
//! Each file with a `routes` function is one family of paths; `server` puts them together.
//! Every error leaves as a problem (RFC 9457) with the number of the one list, by
//! `problem`. Nothing here holds a rule: handlers parse, call the broker, and answer.

mod around;
mod atomic;
mod authorization;
mod body;
mod durable;
pub(crate) mod event_stream;
mod follow;
mod groups;
mod health;
mod host;
mod http2;
mod incoming;
mod jobs;
mod lines;
mod login;
mod messages;
mod metrics;
mod options;
mod origin;
mod outgoing;
mod page;
mod params;
mod problem;
mod publish;
mod range;
mod request;
mod rights;
mod server;
mod settings;
mod socket;
mod source;
mod topics;
mod wire;

pub use options::HttpOptions;
pub use server::{HttpListener, keep_metrics_small};
