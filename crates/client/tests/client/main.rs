//! The client against a server that does whatever a test tells it to.

#![expect(clippy::unwrap_used, reason = "a test that fails panics")]

mod ask;
mod batching;
mod connect;
mod every_frame;
mod publish;
mod server;
mod subscribe;
