//! The native protocol: frames over TCP and Unix sockets.
//!
//! One task per connection does everything for it: it reads frames, hands them to the
//! broker, writes acks when they are durable, and messages as far as credit and the socket
//! allow. A connection that does not read costs one bounded buffer; its subscriptions are
//! places in a sequence and wait there. `docs/protocol.md` has every byte.

mod connection;
mod deliver;
mod front;
mod group;
mod group_requests;
mod options;
pub(crate) mod requests;
mod server;
mod signals;

pub use front::NativeFront;
pub use options::NativeOptions;
pub use server::{NativeGate, NativeListener};
