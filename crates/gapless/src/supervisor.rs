//! What a supervisor is notified of: systemd's notify protocol (`Type=notify`).
//!
//! A service manager that wants to know names a datagram socket in `NOTIFY_SOCKET`. Without it
//! nothing is sent. A message that cannot be sent is logged and changes nothing else: the server
//! serves whether or not its supervisor listens.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The server serves all its listeners.
pub(crate) const READY: &str = "READY=1";
/// The server has begun to stop.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Tells the supervisor, if there is one.
pub(crate) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    let Some(socket) = socket.to_str() else { return };
    if let Err(error) = send(socket, state) {
        tracing::warn!(%error, socket, state, "the supervisor could not be notified");
    }
}

fn send(socket: &str, state: &str) -> io::Result<()> {
    // A leading @ names a socket that is not in the file system.
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}
