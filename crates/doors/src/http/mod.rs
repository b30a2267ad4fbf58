//! The HTTP door: REST, Server-Sent Events, WebSocket, Durable Streams, and the page.
//!
//! Each file with a `routes` function is one family of paths; [`server`] puts them together.
//! Every error leaves as a problem (RFC 9457) with the number of the one list, by
//! [`problem`]. Nothing here holds a rule: handlers parse, call the broker, and answer.

mod durable;
mod event_stream;
mod follow;
mod groups;
mod health;
mod messages;
mod options;
mod page;
mod problem;
mod server;
mod shown;
mod source;
mod topics;

pub use options::HttpOptions;
pub use server::HttpDoor;
