//! What every request passes, whatever its path: socket, TLS, limits, hosts, origins, bodies.

pub(crate) mod around;
pub(crate) mod body;
pub(crate) mod front;
pub(crate) mod host;
pub(crate) mod http2;
pub(crate) mod options;
pub(crate) mod origin;
pub(crate) mod outgoing;
pub(crate) mod server;
pub(crate) mod socket;
pub(crate) mod wire;
