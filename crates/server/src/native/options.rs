//! Every maximum of the native listener, with its unit and its reason.

use std::time::Duration;

use gapless_protocol::FRAME_BYTES_MAX;

use crate::session::sockets::WRITE_TIMEOUT;
use crate::{Budget, Connections, Tls};

/// Limits of the native listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeOptions {
    /// What the server calls itself in its welcome.
    pub server_name: String,
    /// Most connections at the same time.
    pub connections_max: usize,
    /// Most connections of all listeners that share it.
    pub connections: Connections,
    /// Most subscriptions of one connection.
    pub subscriptions_max: u32,
    /// Most bytes of a frame; at most 4 MiB.
    pub frame_bytes_max: usize,
    /// Bytes of one connection's publishes that wait for their ack; past it the server reads no
    /// further from it.
    pub in_flight_bytes_max: usize,
    /// The same for all connections together.
    pub in_flight_total_bytes_max: usize,
    /// Most messages a subscription may allow to be sent ahead.
    pub credit_messages_max: u32,
    /// Most bytes a subscription may allow to be sent ahead.
    pub credit_bytes_max: u64,
    /// Bytes that wait to be written to one connection; past it nothing more is encoded.
    pub output_bytes_max: usize,
    /// How long a connection may take to say hello.
    pub hello_timeout: Duration,
    /// The memory that connections of all listeners share.
    pub memory: Budget,
    /// How long a connection may say nothing; zero is for ever.
    pub idle_timeout: Duration,
    /// How long a connection may take nothing of what is written to it.
    pub write_timeout: Duration,
    /// How long connections get to finish when the listener closes.
    pub drain: Duration,
    /// By what connections over TCP are encrypted; they are not without it.
    pub tls: Option<Tls>,
    /// How long the processors are kept from sleeping after each message; zero is not at all.
    pub awake: Duration,
    /// Whether each request is a line of the log.
    pub access_log: bool,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            server_name: "gapless".to_owned(),
            connections_max: 10_000,
            connections: Connections::default(),
            subscriptions_max: 10_000,
            frame_bytes_max: FRAME_BYTES_MAX,
            in_flight_bytes_max: 16 * 1024 * 1024,
            in_flight_total_bytes_max: 256 * 1024 * 1024,
            credit_messages_max: 1_000_000,
            credit_bytes_max: 64 * 1024 * 1024,
            output_bytes_max: 512 * 1024,
            memory: Budget::default(),
            hello_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(120),
            write_timeout: WRITE_TIMEOUT,
            drain: Duration::from_secs(5),
            tls: None,
            awake: Duration::ZERO,
            access_log: false,
        }
    }
}
